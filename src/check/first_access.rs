//! The access that a race is reported with, if a stream accesses the same elements several times: the first one that an edit has to order.

use super::{
    conflict::{Party, Race},
    overlap::{Footprint, Overlap, overlap},
};
use hir_plan::{ExecutionSite, InstKind, Plan, sync::InstRef};

/// The maximum number of instructions that are searched for one race.
const MAX_SEARCHED: usize = 1 << 14;

/// Returns the race with the first access of the stream of the first party that races with the second party, up to the first party. If both
/// are on one rank, it is issued after the second party: an earlier one needs an edit at another place. Returns `None` if it is the first
/// party itself. `footprint` is that of the second party, and `unordered` is the number of instructions of the stream, up to the first
/// party, that nothing orders before the second one.
pub(super) fn first_access(
    plans: &[Plan],
    race: &Race,
    footprint: &Footprint,
    unordered: u32,
) -> Option<Race> {
    let [(Party::Inst(last), _), second @ (Party::Inst(other), writes)] = race.parties else { return None };
    let plan = &plans[last.rank];
    let is_of_stream = |kind: &InstKind| match kind.effect().execution_site() {
        ExecutionSite::Stream => true,
        ExecutionSite::Host | ExecutionSite::Queue(_) => false,
    };
    let start = if other.rank == last.rank { other.inst + 1 } else { 0 };
    if start >= last.inst || !is_of_stream(&plan.code[last.inst].kind) {
        return None;
    }
    let stream = plan.code[last.inst].stream;
    let searched = (start..last.inst).rev().take(MAX_SEARCHED);
    // Each instruction counts at most once on its stream, so all of these are unordered.
    let earlier = searched.filter(|at| plan.code[*at].stream == stream);
    let earlier = earlier.take((unordered as usize).saturating_sub(1));
    let mut found = None;
    for at in earlier.filter(|at| is_of_stream(&plan.code[*at].kind)) {
        let party = Party::Inst(InstRef { inst: at, ..last });
        let mut here: Option<Race> = None;
        plan.code[at].kind.visit_accesses(last.rank, &mut |access| {
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
