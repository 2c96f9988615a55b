//! The access that a race is reported with, if a stream accesses the same elements several times: the first one that an edit has to order.

use std::cell::OnceCell;

use rustc_hash::FxHashMap;

use super::{
    conflict::{Party, Race},
    overlap::{Footprint, Overlap, overlap},
};
use hir_plan::{BufferNo, ExecutionSite, Plan, StreamNo, sync::InstRef};

/// The maximum number of accesses that are compared for one race.
const MAX_COMPARED: usize = 64;

/// By stream, owner of the memory, and buffer: the instructions of a rank that access the buffer, in order, and the position of each on its
/// stream.
type AccessesOfRank = FxHashMap<(StreamNo, usize, BufferNo), Vec<(usize, u32)>>;

/// The accesses of all ranks, collected for a rank when one of its accesses races.
pub(super) struct FirstAccesses<'p> {
    plans: &'p [Plan],
    ranks: Vec<OnceCell<AccessesOfRank>>,
}

impl<'p> FirstAccesses<'p> {
    /// Creates the index of plans.
    pub fn new(plans: &'p [Plan]) -> Self {
        Self { plans, ranks: plans.iter().map(|_| OnceCell::new()).collect() }
    }

    /// Returns the race with the first access of the stream of the first party that races with the second party, up to the first party. If
    /// both are on one rank, it is issued after the second party: an earlier one needs an edit at another place. Returns `None` if it is
    /// the first party itself. `footprint` is that of the second party, and `unordered` is the number of instructions of the stream, up
    /// to the first party, that nothing orders before the second one.
    pub fn of(&self, race: &Race, footprint: &Footprint, unordered: u32) -> Option<Race> {
        let [(Party::Inst(last), _), second @ (Party::Inst(other), writes)] = race.parties else {
            return None;
        };
        let plan = &self.plans[last.rank];
        let start = if other.rank == last.rank { other.inst + 1 } else { 0 };
        if start >= last.inst {
            return None;
        }
        let accesses = self.ranks[last.rank].get_or_init(|| accesses_of(plan));
        let all = accesses.get(&(plan.code[last.inst].stream, race.rank, race.buffer))?;
        let end = all.binary_search_by_key(&last.inst, |it| it.0).ok()?;
        // Each instruction counts at most once on its stream, so all of these are unordered.
        let is_unordered = |it: &&(usize, u32)| it.0 >= start && all[end].1 - it.1 < unordered;
        let earlier = all[..end].iter().rev().take(MAX_COMPARED).take_while(is_unordered);
        let mut found = None;
        for (at, _) in earlier {
            let party = Party::Inst(InstRef { inst: *at, ..last });
            let mut here: Option<Race> = None;
            plan.code[*at].kind.visit_accesses(last.rank, &mut |access| {
                let is_same = (access.rank, access.view.buffer) == (race.rank, race.buffer);
                let view = Footprint::of(access.view).filter(|_| is_same && (writes || access.is_write));
                let common = view.map_or(Overlap::None, |view| overlap(&view, footprint));
                if let (Overlap::Some(elements), None) = (common, here) {
                    here = Some(Race { elements, parties: [(party, access.is_write), second], ..*race });
                }
            });
            found = here.or(found);
        }
        found
    }
}

/// Collects the accesses of a rank that its streams execute.
fn accesses_of(plan: &Plan) -> AccessesOfRank {
    let mut found = AccessesOfRank::default();
    let mut positions = vec![0_u32; plan.streams.len()];
    for (at, inst) in plan.code.iter().enumerate() {
        let position = &mut positions[inst.stream as usize];
        *position += 1;
        match inst.kind.effect().execution_site() {
            ExecutionSite::Stream => inst.kind.visit_accesses(plan.rank, &mut |it| {
                let all = found.entry((inst.stream, it.rank, it.view.buffer)).or_default();
                if all.last().is_none_or(|it: &(usize, u32)| it.0 != at) {
                    all.push((at, *position));
                }
            }),
            ExecutionSite::Host | ExecutionSite::Queue(_) => (),
        }
    }
    found
}
