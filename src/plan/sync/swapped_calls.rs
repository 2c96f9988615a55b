//! Collectives of one team that two ranks call in different orders, although all of them agree on kind, size and type. NCCL matches calls in
//! order, so each rank gets the data of another call, and nothing waits forever.
//!
//! Statements with one number are one call. Of each pair of calls that match, one rank makes call X where the other one makes Y, and later, in
//! the same iteration, Y where the other one makes X. Calls with the same operands may be swapped.

use rustc_hash::FxHashMap;

use super::{CommKey, CommRole, GroupNo, InstRef, MatchedComm, World};
use crate::{Collective, Communication, Plan, SyncEffect};

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
        let mut crossed: FxHashMap<(GroupNo, [usize; 2], [u32; 2]), [InstRef; 2]> = FxHashMap::default();
        for comm in &self.matching().comms {
            let CommKey::Collective(group, _) = comm.key else { continue };
            let Some(first) = member(comm, 0) else { continue };
            for other in comm.parts.iter().map(|it| it.inst_ref).filter(|it| *it != first) {
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

    /// Returns whether the calls are in one iteration, and have different operands on a rank.
    fn are_swapped(&self, first: [InstRef; 2], later: [InstRef; 2]) -> bool {
        let loops = |at: InstRef| {
            let plan = &self[at.rank];
            plan.enclosing_loops(plan.origins[plan.code[at.inst].origin as usize].iteration)
        };
        let differ = |[one, other]: [InstRef; 2]| {
            let [one, other] = [one, other].map(|at| collective(&self[at.rank], at));
            one.zip(other).is_some_and(|(one, other)| one.input != other.input || one.kind != other.kind)
        };
        let all = [first[1], later[0], later[1]];
        all.into_iter().all(|at| loops(at) == loops(first[0]))
            && [0, 1].into_iter().any(|side| differ([first[side], later[side]]))
    }
}

fn member(comm: &MatchedComm, place: usize) -> Option<InstRef> {
    comm.parts.iter().find(|it| it.role == CommRole::Member(place)).map(|it| it.inst_ref)
}

fn number(plan: &Plan, at: InstRef) -> Option<u32> {
    collective(plan, at)?;
    plan.comm_names.number(plan.origins[plan.code[at.inst].origin as usize].stmt?)
}

fn collective(plan: &Plan, at: InstRef) -> Option<&Collective> {
    match plan.code[at.inst].kind.effect() {
        SyncEffect::Post(Communication::Collective(it)) => Some(it),
        _ => None,
    }
}
