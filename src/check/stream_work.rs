//! The work of a stream that storage has to follow.

use hir_plan::{ExecutionSite, Inst, InstKind, Plan};

/// Returns whether an instruction is work that its stream may still execute, with its workspace, when storage is allocated on the stream.
pub(super) fn is_work_of_stream(plan: &Plan, inst: &Inst) -> bool {
    match &inst.kind {
        InstKind::RecordEvent { .. }
        | InstKind::WaitEvent { .. }
        | InstKind::Signal { .. }
        | InstKind::WaitSignal { .. }
        | InstKind::Wait { .. }
        | InstKind::Alloc { zeroed: None, .. } => false,
        // It stands for a view that maps the shards of all ranks.
        InstKind::Map { out, .. } if plan.mapped_views.iter().any(|it| it.buffer == out.buffer) => false,
        // A communication uses its tensors only, also where it is work of the stream: a copy, or a kernel over peer memory.
        kind => {
            let stmt = plan.origins[inst.origin as usize].stmt;
            !matches!(kind.effect().execution_site(), ExecutionSite::Queue(_))
                && !stmt.is_some_and(|it| plan.comm_names.posts_or_waits(it))
        }
    }
}
