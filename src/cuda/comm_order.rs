//! Which communications of the ranks are one: told from all plans, by letting each rank do one after another in its order.
//!
//! Where that comes to an end, communications can take turns. NCCL wants that of a device with several communicators: kernels
//! of two that start in different orders on two devices can wait for each other, as each takes part of a device and none gives
//! way (NCCL's user guide, "Using multiple NCCL communicators concurrently"). Where a program's order forbids it,
//! communicators stay independent.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
    mem::discriminant,
};

use rustc_hash::{FxHashSet, FxHasher};

use crate::plan::{Communication, Communicator, Direction, Plan, Transfer, View};

/// What one rank does in the turns of all.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CommOrder {
    /// Whether this rank's communications run one after another, whatever their communicators.
    pub is_serialized: bool,
    /// Instructions that begin something new, which NCCL prepares at the first call: those of one communication are in the
    /// lists of all its ranks.
    pub first_uses: FxHashSet<u32>,
}

/// A communication as one rank issues it.
struct PostedComm<'a> {
    /// Index in `Plan::code`.
    at: u32,
    communicator: &'a Communicator,
    /// The ranks that have to take part at the same time.
    others: Vec<usize>,
    communication: Communication<'a>,
}

impl CommOrder {
    /// The turns of a rank; none where the ranks' orders do not fit together.
    pub fn of(plans: &[Plan], rank: usize) -> Self {
        let mut heads: Vec<VecDeque<PostedComm>> = plans.iter().map(posted_comms).collect();
        let mut ready: Vec<usize> = (0..plans.len()).collect();
        let (mut known, mut firsts) = (FxHashSet::default(), FxHashSet::default());
        while let Some(next) = ready.pop() {
            let Some(ranks) = matched_ranks(&heads, next) else { continue };
            let mut hasher = FxHasher::default();
            let mut own = None;
            for &it in &ranks {
                let Some(posted) = heads[it].pop_front() else { continue };
                it.hash(&mut hasher);
                posted.describe(&plans[it], &mut hasher);
                own = own.or((it == rank).then_some(posted.at));
            }
            if known.insert(hasher.finish()) {
                firsts.extend(own);
            }
            ready.extend(ranks);
        }
        if !heads.iter().all(VecDeque::is_empty) {
            return Self::default();
        }
        let several = |plan: &Plan| plan.communicators.iter().filter(|it| it.team.len() > 1).count() > 1;
        Self { is_serialized: plans.iter().any(several), first_uses: firsts }
    }
}

impl PostedComm<'_> {
    /// Whether both, this one of rank `one` and another rank's, can be parts of one communication.
    fn can_match(&self, one: usize, its: &Self, other: usize) -> bool {
        let same = match (self.communication, its.communication) {
            (Communication::Collective(a), Communication::Collective(b)) => {
                discriminant(&a.kind) == discriminant(&b.kind)
            }
            // What one sends the other has to receive.
            (Communication::Transfer(a), Communication::Transfer(b)) => {
                let count = |it: &Transfer, peer: usize, direction: Direction| {
                    it.ops.iter().filter(|it| it.peer == peer && it.direction == direction).count()
                };
                count(a, other, Direction::Send) == count(b, one, Direction::Recv)
                    && count(a, other, Direction::Recv) == count(b, one, Direction::Send)
            }
            (Communication::Collective(_), Communication::Transfer(_))
            | (Communication::Transfer(_), Communication::Collective(_)) => false,
        };
        same && self.communicator == its.communicator
    }

    /// All that NCCL's preparations depend on.
    fn describe(&self, plan: &Plan, hasher: &mut FxHasher) {
        (self.communicator.backend, &self.communicator.team).hash(hasher);
        let elements = |it: &View| (plan.buffers[it.buffer as usize].dtype, it.len());
        let length = |it: &Option<View>| it.as_ref().map(elements);
        match self.communication {
            Communication::Collective(it) => {
                (it.kind, length(&it.input), length(&it.output)).hash(hasher);
            }
            Communication::Transfer(it) => {
                for side in &it.ops {
                    (side.direction, side.peer, elements(&side.view)).hash(hasher);
                }
            }
        }
    }
}

/// The ranks whose first communications are one with this rank's: its partners, theirs, and so on, in order. `None` where a
/// partner's first communication is another.
fn matched_ranks(heads: &[VecDeque<PostedComm>], rank: usize) -> Option<Vec<usize>> {
    let mut ranks = vec![rank];
    let mut at = 0;
    while let Some(&one) = ranks.get(at) {
        let first = heads[one].front()?;
        for &other in &first.others {
            let its = heads.get(other)?.front()?;
            if !first.can_match(one, its, other) || !its.others.contains(&one) {
                return None;
            }
            if !ranks.contains(&other) {
                ranks.push(other);
            }
        }
        at += 1;
    }
    ranks.sort_unstable();
    Some(ranks)
}

fn posted_comms(plan: &Plan) -> VecDeque<PostedComm<'_>> {
    let mut list = VecDeque::new();
    for (at, inst) in plan.code.iter().enumerate() {
        let Some(what) = inst.kind.communication() else { continue };
        let communicator = &plan.communicators[what.communicator() as usize];
        let mut others = match what {
            Communication::Collective(_) => communicator.team.to_vec(),
            Communication::Transfer(it) => it.ops.iter().map(|side| side.peer).collect(),
        };
        others.retain(|it| *it != plan.rank);
        if communicator.team.len() > 1 {
            list.push_back(PostedComm { at: at as u32, communicator, others, communication: what });
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::{self, tests::plans_of},
        source::Source,
    };

    /// Rank 0 and 1 post an all-reduce on each of two communicators, rank 1 perhaps the other way round.
    fn world(backends: [&str; 2]) -> Vec<Plan> {
        let program = |[first, second]: [&str; 2]| {
            let tensor = |it: usize| format!("T{it}_g_float[iS{it}{{2}}] (DeviceMesh{{0 1}})");
            let reduce = |number: usize, backend: &str| {
                format!(
                    "  Communication {number} (type=Allreduce, team=(0 1), red_op=SUM, input={}, output={}, \
                     backend={backend})\n",
                    tensor(0),
                    tensor(0)
                )
            };
            format!(
                "%HostIrContainer {{ ({}) -> ({}) :\n{}{}  Wait(Communication 1)\n  Wait(Communication 2)\n}} // \
                 %HostIrContainer\n",
                tensor(0),
                tensor(0),
                reduce(1, first),
                reduce(2, second)
            )
        };
        let [a, b] = backends;
        let sources =
            [[a, b], ["NCCL", "UCC"]].map(|order| Source::new("order.hir".to_owned(), program(order)));
        let read: Vec<_> = sources.iter().map(|it| (it.programs().0, &it.lines)).collect();
        let each: Vec<_> = read.iter().map(|(programs, lines)| (&programs[0], *lines)).collect();
        plan::build_per_rank(&each, &plan::limits::Limits::default()).unwrap_or_default()
    }

    #[test]
    fn ranks_of_one_order_take_turns() {
        let plans = world(["NCCL", "UCC"]);
        assert_eq!(plans.len(), 2);
        let turns = [0, 1].map(|rank| CommOrder::of(&plans, rank));
        assert!(turns[0].is_serialized);
        assert_eq!(turns[0].first_uses.len(), 2);
        assert_eq!(turns[0], turns[1]);
    }

    #[test]
    fn crossed_orders_stay_independent() {
        let plans = world(["UCC", "NCCL"]);
        assert_eq!(plans.len(), 2);
        assert_eq!(CommOrder::of(&plans, 0), CommOrder::default());
    }

    #[test]
    fn two_receives_are_no_transfer() {
        let plans = plans_of(include_str!("../../tests/cases/deadlock/both-receive-first.hir"), 2);
        // Nothing is tried out that would wait for ever.
        assert_eq!(CommOrder::of(&plans, 0), CommOrder::default());
    }
}
