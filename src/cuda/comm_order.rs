//! Matches communications across ranks by replaying each rank's posting order.
//!
//! If the replay reaches the end, communications can be serialized. NCCL requires this of a device with
//! several communicators: kernels of two communicators that start in different orders on two devices can
//! deadlock, because each occupies part of a device and neither yields (NCCL's user guide, "Using multiple
//! NCCL communicators concurrently"). If the program's order does not allow it, communicators stay
//! independent. A program whose order the checker accepts (`LaunchOrder::Implicit`) is always serialized: the
//! replay pairs whole groups of sends and receives only, and so does not reach the end of some of them.

use std::{
    collections::VecDeque,
    hash::{Hash, Hasher},
};

use rustc_hash::{FxHashSet, FxHasher};

use hir_plan::{
    Backend, Communication, Communicator, Direction, P2pGroup, Plan, View, World,
    sync::{LaunchOrder, comm_order_cycle},
};

/// The order of one rank's communications relative to those of the other ranks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CommOrder {
    /// Whether this rank's communications run one after another, across all communicators.
    pub is_serialized: bool,
    /// Instructions whose communication has a new signature, for which NCCL sets up resources at the first
    /// call. If a communication is in the set of one of its ranks, it is in the sets of all of them.
    pub first_uses: FxHashSet<u32>,
}

/// A communication in the posting order of one rank.
struct PostedComm<'a> {
    /// Index in `Plan::code`.
    at: u32,
    communicator: &'a Communicator,
    /// The other ranks that have to take part at the same time.
    others: Vec<usize>,
    communication: Communication<'a>,
}

impl CommOrder {
    /// Computes the order for a rank; the default, without serialization, if the orders of the ranks do not
    /// match.
    pub fn of(world: &World, rank: usize) -> Self {
        let mut heads: Vec<VecDeque<PostedComm>> = world.iter().map(posted_comms).collect();
        let mut ready: Vec<usize> = (0..world.len()).collect();
        let (mut known, mut first_uses) = (FxHashSet::default(), FxHashSet::default());
        while let Some(next) = ready.pop() {
            let Some(ranks) = matched_ranks(&heads, next) else { continue };
            let mut hasher = FxHasher::default();
            let mut own = None;
            for &it in &ranks {
                let Some(posted) = heads[it].pop_front() else { continue };
                it.hash(&mut hasher);
                posted.describe(&world[it], &mut hasher);
                own = own.or((it == rank).then_some(posted.at));
            }
            if known.insert(hasher.finish()) {
                first_uses.extend(own);
            }
            ready.extend(ranks);
        }
        let several = |plan: &Plan| plan.communicators.iter().filter(|it| it.team.len() > 1).count() > 1;
        let has_several = world.iter().any(several);
        if !heads.iter().all(VecDeque::is_empty) {
            let is_of_nccl =
                world.iter().flat_map(|it| &it.communicators).all(|it| it.backend == Backend::Nccl);
            let is_ordered = || comm_order_cycle(world, LaunchOrder::Implicit) == Ok(None);
            let is_serialized = has_several && is_of_nccl && is_ordered();
            return Self { is_serialized, first_uses: FxHashSet::default() };
        }
        Self { is_serialized: has_several, first_uses }
    }
}

impl PostedComm<'_> {
    /// Returns true if this communication of rank `one` and the communication `its` of rank `other` can be
    /// parts of the same one.
    fn can_match(&self, one: usize, its: &Self, other: usize) -> bool {
        let same = match (self.communication, its.communication) {
            (Communication::Collective(a), Communication::Collective(b)) => a.kind.of == b.kind.of,
            // One rank's sends have to match the other rank's receives.
            (Communication::P2pGroup(a), Communication::P2pGroup(b)) => {
                let count = |it: &P2pGroup, peer: usize, direction: Direction| {
                    it.ops.iter().filter(|it| it.peer == peer && it.direction == direction).count()
                };
                count(a, other, Direction::Send) == count(b, one, Direction::Recv)
                    && count(a, other, Direction::Recv) == count(b, one, Direction::Send)
            }
            (Communication::Collective(_), Communication::P2pGroup(_))
            | (Communication::P2pGroup(_), Communication::Collective(_)) => false,
        };
        same && self.communicator == its.communicator
    }

    /// Hashes everything that NCCL's setup depends on.
    fn describe(&self, plan: &Plan, hasher: &mut FxHasher) {
        (self.communicator.backend, &self.communicator.team).hash(hasher);
        let elements = |it: &View| (plan.dtype_of(it), it.len());
        let length = |it: &Option<View>| it.as_ref().map(elements);
        match self.communication {
            Communication::Collective(it) => {
                (it.kind, length(&it.input), length(&it.output)).hash(hasher);
            }
            Communication::P2pGroup(it) => {
                for side in &it.ops {
                    (side.direction, side.peer, elements(&side.view)).hash(hasher);
                }
            }
        }
    }
}

/// Returns the ranks whose next communications match this rank's next one: its partners, their partners, and
/// so on, sorted. Returns `None` if the next communication of a partner does not match.
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
            Communication::P2pGroup(it) => it.ops.iter().map(|side| side.peer).collect(),
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
    use grammar::Source;

    use super::*;
    use hir_plan::plans_of_text;

    /// Builds the plans of ranks 0 and 1, which post an all-reduce on each of two communicators; `backends`
    /// is the order of rank 0.
    fn world(backends: [&str; 2]) -> World {
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
        hir_plan::build_per_rank(
            &each,
            &hir_plan::limits::Limits::default(),
            &hir_plan::CallerUses::default(),
        )
        .unwrap_or_default()
    }

    #[test]
    fn groups_that_meet_several_sends_are_serialized() {
        let text = "
%HostIrContainer { (T0_g_float[iS0{2}] (DeviceMesh{0 1})) -> (T1_g_float[iS1{2}] (DeviceMesh{0 1})) :
  Communication 1 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{2}] (DeviceMesh{0 1}), output=T0_g_float[iS0{2}] (DeviceMesh{0 1}), backend=NCCL)
  Communication 2 (type=Allreduce, team=(1 0), red_op=SUM, input=T0_g_float[iS0{2}] (DeviceMesh{0 1}), output=T0_g_float[iS0{2}] (DeviceMesh{0 1}), backend=NCCL)
  T1_g_float[iS1{2}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
  IF Manual ( rank == 0 ):
    P2PCommunication 3 (type=send, buffer=T0_g_float[iS0{2}] (DeviceMesh{0 1}), peer=1, backend=NCCL)
    P2PCommunication 4 (type=send, buffer=T0_g_float[iS0{2}] (DeviceMesh{0 1}), peer=1, backend=NCCL)
  ELSE:
    StartCoalescing
    P2PCommunication 3 (type=recv, buffer=T1_g_float[iS1{2}] (DeviceMesh{0 1}), peer=0, backend=NCCL)
    P2PCommunication 4 (type=recv, buffer=T1_g_float[iS1{2}] (DeviceMesh{0 1}), peer=0, backend=NCCL)
    EndCoalescing 5
} // %HostIrContainer
";
        let plans = plans_of_text(text, 2).unwrap_or_default();
        assert_eq!(plans.len(), 2);
        assert!(CommOrder::of(&plans, 0).is_serialized);
    }

    #[test]
    fn ranks_of_one_order_take_turns() {
        let plans = world(["NCCL", "UCC"]);
        assert_eq!(plans.len(), 2);
        let orders = [0, 1].map(|rank| CommOrder::of(&plans, rank));
        assert!(orders[0].is_serialized);
        assert_eq!(orders[0].first_uses.len(), 2);
        assert_eq!(orders[0], orders[1]);
    }

    #[test]
    fn crossed_orders_stay_independent() {
        let plans = world(["UCC", "NCCL"]);
        assert_eq!(plans.len(), 2);
        assert_eq!(CommOrder::of(&plans, 0), CommOrder::default());
    }

    #[test]
    fn two_receives_are_no_transfer() {
        let plans = plans_of_text(include_str!("../../tests/cases/deadlock/both-receive-first.hir"), 2)
            .unwrap_or_default();
        // The communications of a program that deadlocks are not warmed up.
        assert_eq!(CommOrder::of(&plans, 0), CommOrder::default());
    }
}
