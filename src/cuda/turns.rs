//! Whether all communications of a world can run one after another on every rank, in the order in which it issues them.
//!
//! NCCL wants that of a device with several communicators: kernels of two that start in different orders on two devices can
//! wait for each other, as each takes part of a device and none gives way (NCCL's user guide, "Using multiple NCCL
//! communicators concurrently"). Where it is possible, the executor sees to it; where a program's order forbids it,
//! communicators stay independent.

use std::collections::VecDeque;

use crate::plan::{Communicator, InstKind, Plan};

/// A communication as one rank issues it.
struct Posted<'a> {
    communicator: &'a Communicator,
    /// The ranks that have to take part at the same time.
    others: Vec<usize>,
    collective: bool,
}

/// Whether the ranks' communications come to an end, each rank doing one at a time in its order. False as well for worlds
/// where nothing is to be ordered: no rank has two communicators.
pub(super) fn are_possible(plans: &[Plan]) -> bool {
    let shared = |plan: &&Plan| plan.communicators.iter().filter(|it| it.team.len() > 1).count() > 1;
    if !plans.iter().any(|it| shared(&it)) {
        return false;
    }
    let mut heads: Vec<VecDeque<Posted>> = plans.iter().map(posted).collect();
    let mut ready: Vec<usize> = (0..plans.len()).collect();
    while let Some(rank) = ready.pop() {
        if let Some(ranks) = together(&heads, rank) {
            for it in &ranks {
                heads[*it].pop_front();
            }
            ready.extend(ranks);
        }
    }
    heads.iter().all(VecDeque::is_empty)
}

/// The ranks whose first communications are one with this rank's: its partners, theirs, and so on. `None` where a partner's
/// first communication is another.
fn together(heads: &[VecDeque<Posted>], rank: usize) -> Option<Vec<usize>> {
    let mut ranks = vec![rank];
    let mut at = 0;
    while let Some(&one) = ranks.get(at) {
        let first = heads[one].front()?;
        for &other in &first.others {
            let its = heads.get(other)?.front()?;
            let same = its.communicator == first.communicator && its.collective == first.collective;
            if !same || !its.others.contains(&one) {
                return None;
            }
            if !ranks.contains(&other) {
                ranks.push(other);
            }
        }
        at += 1;
    }
    Some(ranks)
}

fn posted(plan: &Plan) -> VecDeque<Posted<'_>> {
    let mut list = VecDeque::new();
    for inst in &plan.code {
        let (number, others, collective) = match &inst.kind {
            InstKind::Collective(it) => {
                let team = &plan.communicators[it.communicator as usize].team;
                (it.communicator, team.clone(), true)
            }
            InstKind::Transfer(it) => {
                (it.communicator, it.sides.iter().map(|side| side.peer).collect(), false)
            }
            InstKind::Alloc { .. }
            | InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Iota { .. }
            | InstKind::Gemm(_)
            | InstKind::Map { .. }
            | InstKind::Reduce(_)
            | InstKind::Combine { .. }
            | InstKind::Wait { .. }
            | InstKind::Signal { .. }
            | InstKind::Await { .. }
            | InstKind::Record { .. }
            | InstKind::Join { .. }
            | InstKind::Exchange { .. }
            | InstKind::Barrier
            | InstKind::Reshard(_)
            | InstKind::Finish => continue,
        };
        let communicator = &plan.communicators[number as usize];
        let others = others.into_iter().filter(|it| *it != plan.rank).collect();
        if communicator.team.len() > 1 {
            list.push_back(Posted { communicator, others, collective });
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan, source::Source};

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
        plan::build_each(&each).unwrap_or_default()
    }

    #[test]
    fn ranks_of_one_order_take_turns() {
        let plans = world(["NCCL", "UCC"]);
        assert_eq!(plans.len(), 2);
        assert!(are_possible(&plans));
    }

    #[test]
    fn crossed_orders_stay_independent() {
        let plans = world(["UCC", "NCCL"]);
        assert_eq!(plans.len(), 2);
        assert!(!are_possible(&plans));
    }
}
