//! Collectives of one team that two ranks call in different orders, although all of them agree on kind, size and type. NCCL matches calls in
//! order, and so do PyTorch's kernels over peer memory. So each rank gets the data of another call, and nothing waits forever.
//!
//! Statements with one number are one call. Of each pair of calls that match, one rank makes call X where the other one makes Y, and later, in
//! the same iteration, Y where the other one makes X. Calls with the same operands may be swapped.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{CommKey, CommNo, CommRole, GroupNo, InstRef, World, comm_order::joint_peer_collectives};
use crate::{CollectiveKind, Communication, Plan, SyncEffect, Transfer, View};

/// Two calls that two ranks make in different orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwappedCalls {
    /// The calls that match first.
    pub first: [InstRef; 2],
    /// The calls that match later.
    pub later: [InstRef; 2],
}

impl World {
    /// Returns two calls that ranks have swapped.
    pub fn swapped_calls(&self) -> Option<SwappedCalls> {
        // Numbers of several programs are not comparable.
        if self.iter().any(|it| it.program_id != self[0].program_id) {
            return None;
        }
        // By team, ranks and numbers: the calls that match with other numbers.
        type Pair = (Option<GroupNo>, [usize; 2], [u32; 2]);
        let mut crossed: FxHashMap<Pair, [InstRef; 2]> = FxHashMap::default();
        for (group, parts) in self.calls_of_teams() {
            let Some((&first, others)) = parts.split_first() else { continue };
            for &other in others {
                let calls = [first, other];
                let [Some(one), Some(two)] = calls.map(|at| number(&self[at.rank], at)) else { continue };
                if one == two {
                    continue;
                }
                let ranks = [first.rank, other.rank];
                let before = crossed.get(&(group, ranks, [two, one])).copied();
                if let Some(before) = before.filter(|it| self.are_swapped(*it, calls)) {
                    return Some(SwappedCalls { first: before, later: calls });
                }
                crossed.insert((group, ranks, [one, two]), calls);
            }
        }
        None
    }

    /// Returns the collectives, each with its team if NCCL executes it, and with the calls of its members.
    fn calls_of_teams(&self) -> impl Iterator<Item = (Option<GroupNo>, Vec<InstRef>)> {
        let of_nccl = self.matching().comms.iter().filter_map(|comm| {
            let CommKey::Collective(group, _) = comm.key else { return None };
            let first = comm.parts.iter().position(|it| it.role == CommRole::Member(0))?;
            let mut parts: Vec<InstRef> = comm.parts.iter().map(|it| it.inst_ref).collect();
            parts.swap(0, first);
            Some((Some(group), parts))
        });
        let mut over_memory: BTreeMap<CommNo, Vec<InstRef>> = BTreeMap::new();
        for (at, number) in joint_peer_collectives(self) {
            over_memory.entry(number).or_default().push(at);
        }
        let mut over_memory: Vec<Vec<InstRef>> = over_memory.into_values().collect();
        over_memory.iter_mut().for_each(|it| it.sort_unstable());
        over_memory.sort_unstable();
        of_nccl.chain(over_memory.into_iter().map(|it| (None, it)))
    }

    /// Returns whether the calls are in one iteration, and have different operands on a rank.
    fn are_swapped(&self, first: [InstRef; 2], later: [InstRef; 2]) -> bool {
        let loops = |at: InstRef| {
            let plan = &self[at.rank];
            plan.enclosing_loops(plan.origins[plan.code[at.inst].origin as usize].iteration)
        };
        let differ =
            |[one, other]: [InstRef; 2]| operands(&self[one.rank], one) != operands(&self[other.rank], other);
        let all = [first[1], later[0], later[1]];
        all.into_iter().all(|at| loops(at) == loops(first[0]))
            && [0, 1].into_iter().any(|side| differ([first[side], later[side]]))
    }
}

fn number(plan: &Plan, at: InstRef) -> Option<u32> {
    plan.comm_names.number(plan.origins[plan.code[at.inst].origin as usize].stmt?)
}

/// Returns what a call reads, and its kind if NCCL executes it.
fn operands(plan: &Plan, at: InstRef) -> (Option<&CollectiveKind>, Vec<&View>) {
    match plan.code[at.inst].kind.effect() {
        SyncEffect::Post(Communication::Collective(it)) => (Some(&it.kind), it.input.iter().collect()),
        _ => {
            let phases = plan.peer_collective_at(at.inst).into_iter().flat_map(|it| it.phases.all());
            let read = phases.flat_map(|it| &it.transfers).flat_map(|it| match it {
                Transfer::Copy { from, .. } => std::slice::from_ref(from),
                Transfer::Reduce { parts, .. } => parts.as_slice(),
            });
            (None, read.filter(|it| it.rank == plan.rank).map(|it| &it.view).collect())
        }
    }
}
