//! Finds statements that only make a stream wait. Removing such a statement from the program removes exactly
//! its instructions from the plans. A statement is not a candidate if anything else in the plans depends on
//! it:
//!
//! * A `Wait` releases the operands of its communication. If the program frees them, the allocator would
//!   assign different storage without the `Wait`.
//! * A communicator whose collectives run over peer memory has a queue that depends on its `Wait`s
//!   (`transport::queue`).

use grammar::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use hir_plan::{BufferNo, InstKind, Plan, SignalKind, SyncEffect, World, sync::InstRef};

/// A statement that only makes streams wait.
pub struct WaitCandidate {
    /// The instructions of the statement on all ranks.
    pub insts: FxHashSet<InstRef>,
    /// The first of these instructions.
    pub first: InstRef,
}

/// The instructions of one statement, and whether it is a candidate.
struct StmtSummary {
    insts: Vec<InstRef>,
    /// True if the statement only waits.
    only_waits: bool,
    /// How often the statement records an event and immediately waits for it.
    synchronizes: usize,
}

/// Returns all candidates in program order.
pub fn wait_candidates(world: &World) -> Vec<WaitCandidate> {
    let mut known: FxHashMap<(usize, StmtId), StmtSummary> = FxHashMap::default();
    let has_team_signals = world.iter().any(uses_peer_collectives);
    for plan in world.plans() {
        let freed: FxHashSet<BufferNo> =
            plan.allocations.iter().filter(|it| it.freed.is_some()).map(|it| it.buffer).collect();
        for (inst, it) in plan.code.iter().enumerate() {
            let Some(stmt) = plan.origins[it.origin as usize].stmt else { continue };
            let known = known.entry((plan.program_id, stmt)).or_insert_with(|| StmtSummary {
                insts: Vec::new(),
                only_waits: true,
                synchronizes: 0,
            });
            known.insts.push(InstRef { rank: plan.rank, inst });
            known.only_waits &= match it.kind.effect() {
                SyncEffect::RecordEvent(event) => {
                    known.synchronizes += 1;
                    let next = plan.code.get(inst + 1);
                    next.is_some_and(|next| {
                        next.origin == it.origin
                            && matches!(next.kind, InstKind::WaitEvent { event: it } if it == event)
                    })
                }
                SyncEffect::WaitEvent(event) => {
                    let before =
                        inst.checked_sub(1).map(|at| &plan.code[at]).filter(|at| at.origin == it.origin);
                    let is_own = before.is_some_and(
                        |it| matches!(it.kind, InstKind::RecordEvent { event: it } if it == event),
                    );
                    is_own || !has_team_signals && freed.is_empty()
                }
                SyncEffect::Wait(work) => {
                    !has_team_signals
                        && !frees_operands(plan, world.matching().posting_inst(plan.rank, work), &freed)
                }
                SyncEffect::WaitSignal(_) => !has_team_signals && freed.is_empty(),
                hir_plan::host_effects!()
                | SyncEffect::Compute
                | SyncEffect::Signal(_)
                | SyncEffect::Post(_)
                | SyncEffect::Reshard(_)
                | SyncEffect::ReadOutputs => false,
            };
        }
    }
    // A Synchronize consists of RecordEvent and WaitEvent pairs. A Wait has no RecordEvent.
    let is_candidate =
        |it: &StmtSummary| it.only_waits && (it.synchronizes == 0 || it.synchronizes * 2 == it.insts.len());
    let mut found: Vec<WaitCandidate> = known
        .into_values()
        .filter(is_candidate)
        .filter_map(|it| {
            Some(WaitCandidate { first: *it.insts.first()?, insts: it.insts.into_iter().collect() })
        })
        .collect();
    found.sort_by_key(|it| it.first);
    found
}

/// Returns true if any collective of the plan runs over peer memory.
fn uses_peer_collectives(plan: &Plan) -> bool {
    plan.code.iter().any(|it| {
        let (InstKind::Signal { signal } | InstKind::WaitSignal { signal }) = it.kind else { return false };
        match signal.kind {
            SignalKind::TeamReady(_)
            | SignalKind::TeamDone(_)
            | SignalKind::TeamData(_)
            | SignalKind::TeamResult(_) => true,
            SignalKind::Ready | SignalKind::Done | SignalKind::PutReady | SignalKind::PutDone => false,
        }
    })
}

/// Returns true if an operand of the communication posted at `posted` is freed before the program ends.
fn frees_operands(plan: &Plan, posted: Option<usize>, freed: &FxHashSet<BufferNo>) -> bool {
    let operands = posted.map(|at| plan.code[at].kind.accesses(plan.rank));
    operands.is_some_and(|all| all.iter().any(|it| freed.contains(&it.view.buffer)))
}
