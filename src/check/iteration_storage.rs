//! A buffer that is allocated before a loop, and that each iteration writes before it reads: an ALLOCATE in the loop gives each iteration its
//! own storage.

use super::{
    plan_index::PlanIndex,
    race_side::RaceSide,
    repair::Repair,
    written::{UnwrittenPart, WrittenElements},
};
use grammar::StmtId;
use hir_plan::{BufferNo, InstKind};

/// The maximum number of uses of a buffer that are examined.
const MAX_USES: usize = 4_096;

/// Returns the edit that moves the ALLOCATE of a buffer into a loop, if two iterations of the loop race on it, and only the loop uses it. Each
/// iteration has to write the elements that it reads first.
pub fn move_allocate(
    buffer: BufferNo,
    (first, second): (&RaceSide<'_>, &RaceSide<'_>),
    index: PlanIndex<'_>,
) -> Option<Repair> {
    let plan = index.plan();
    let is_own = [first, second].iter().all(|it| it.is_in_program() && it.plan.rank == first.owner);
    let alloc = &plan.code[index.alloc(buffer).filter(|_| is_own)?];
    if !matches!(alloc.kind, InstKind::Alloc { zeroed: None, .. }) {
        return None;
    }
    // The loops around a statement and its iterations, outermost first.
    let loops = |origin: u32| {
        let frame = plan.origins[origin as usize].iteration;
        let around = std::iter::successors(frame, |it| plan.iterations[*it as usize].parent);
        let of = |it: u32| (plan.iterations[it as usize].stmt, plan.iterations[it as usize].value);
        let mut all: Vec<(StmtId, i64)> = around.map(of).collect();
        all.reverse();
        all
    };
    let outer = loops(alloc.origin);
    // The iteration of the outermost loop around a statement in which the ALLOCATE is not.
    let iteration = |origin: u32| {
        let mut all = loops(origin);
        all.truncate(outer.len() + 1);
        (all.len() > outer.len() && all.starts_with(&outer)).then(|| all.pop()).flatten()
    };
    let (one, other) = (iteration(first.origin)?, iteration(second.origin)?);
    let uses = index.own_uses(buffer);
    let is_callers = plan.caller_buffers().any(|it| it == buffer);
    if one.0 != other.0 || one.1 == other.1 || is_callers || uses.len() > MAX_USES {
        return None;
    }
    let (mut written, mut current) = (WrittenElements::default(), None);
    let mut user = None;
    for at in uses {
        let inst = &plan.code[*at];
        if matches!(inst.kind, InstKind::Alloc { .. }) {
            continue;
        }
        let here = iteration(inst.origin).filter(|it| it.0 == one.0)?;
        user = user.or(Some(inst.origin));
        if current.as_ref() != Some(&here) {
            (written, current) = (WrittenElements::default(), Some(here));
        }
        let (writes, reads): (Vec<_>, Vec<_>) = index.own_accesses(*at, buffer).partition(|it| it.is_write);
        if reads.iter().any(|it| written.missing(it.view) != UnwrittenPart::Nothing) {
            return None;
        }
        writes.iter().for_each(|it| _ = written.write(it.view));
    }
    let stmt = |origin: u32| plan.origins[origin as usize].stmt;
    Some(Repair::MoveAllocate { allocate: stmt(alloc.origin), user: stmt(user?) })
}
