//! Finds the statement that should have written elements which are read before anything writes them.

use super::{
    memory::UnwrittenRead,
    overlap::{ElementRange, Footprint, Overlap, overlap},
    plan_index::PlanIndex,
};
use hir_plan::View;

/// Returns the statement that should have written the elements of an unwritten read, an index into `Plan::origins`, and its
/// label: the first statement that writes some of them, which is too late, or the one that allocates them.
pub fn missing_write(index: PlanIndex<'_>, read: &UnwrittenRead) -> Option<(u32, String)> {
    let ElementRange { start, end } = read.elements;
    let shape = vec![end.saturating_sub(start)];
    let missing = Footprint::of(&View { buffer: read.buffer, offset: start, shape, strides: vec![1] })?;
    let overlaps = |view: &View| {
        let there = Footprint::of(view);
        there.is_some_and(|it| matches!(overlap(&it, &missing), Overlap::Some(_)))
    };
    let plan = index.plan();
    for at in index.own_writers(read.buffer) {
        let mut writes = false;
        plan.code[*at].kind.visit_accesses(plan.rank, &mut |it| {
            let is_there = it.is_write && it.rank == read.rank && it.view.buffer == read.buffer;
            writes |= is_there && overlaps(it.view);
        });
        if writes {
            let label = "writes elements of it, but not before they are read";
            return Some((plan.code[*at].origin, label.to_owned()));
        }
    }
    let alloc = index.alloc(read.buffer)?;
    Some((plan.code[alloc].origin, "allocates it; no statement of the rank writes these elements".to_owned()))
}
