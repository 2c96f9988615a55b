//! Finds races between two consecutive runs of a program with nothing between them, as when a captured graph
//! is replayed. On each rank, the next run begins on the entry stream once the exit stream has finished its
//! work. Other ranks may be one run behind.
//!
//! Both runs use the same buffers, storage and inputs; signals are counted across runs. If there is no race,
//! no barrier of all ranks is needed between the runs.

use super::{
    conflict::{Party, Race},
    ordering_model::AccessRules,
    race::RaceDetector,
    storage::SharedStorage,
};
use hir_plan::{
    Inst, InstKind, Number, Plan, SignalId, World,
    sync::{
        InstRef,
        happens_before::{self, OrderError},
    },
};

/// Two consecutive runs of a plan as a single plan, and the origin of each instruction.
struct TwoRuns {
    plan: Plan,
    /// For each instruction, its index in the original plan and whether it belongs to the second run; `None`
    /// for the instructions between the runs.
    from: Vec<Option<(usize, bool)>>,
}

/// Returns the races between two runs, numbered as in a single run, with the access of the first run first,
/// and the number of pairs of views that are too large to compare. A single run must have no race, neither
/// internal nor with the caller.
///
/// # Errors
/// The world has too many streams, or two consecutive runs deadlock.
pub(super) fn races_between_runs(
    plans: &[Plan],
    rules: AccessRules,
) -> Result<(Vec<Race>, usize), OrderError> {
    let signal_count =
        plans.iter().flat_map(|it| &it.code).filter_map(|it| signal_of(&it.kind)).map(|it| it.index + 1);
    let signal_count = signal_count.max().unwrap_or(0);
    let twice: Vec<TwoRuns> = plans.iter().map(|it| TwoRuns::of(it, signal_count)).collect();
    let (both, from): (Vec<Plan>, Vec<_>) = twice.into_iter().map(|it| (it.plan, it.from)).unzip();
    let both = World::new(both);
    if both.deadlocked_state().is_some() {
        return Err(OrderError::Deadlock);
    }
    let mut races = RaceDetector::new(&both, rules);
    // Both runs use the same storage: that which the allocator gives out during the first one.
    let mut storage = SharedStorage::of_two_runs(plans, rules.storage);
    happens_before::walk(&both, &mut |it| {
        races.visit(&it);
        let party = Party::Inst(InstRef { rank: it.rank, inst: it.inst });
        if rules.reuses_in_order() {
            return;
        }
        for access in both[it.rank].code[it.inst].kind.accesses(it.rank) {
            let found = storage.access(&it, (party, access.is_write), access.rank, access.view.buffer);
            races.report_reuse(access.rank, found);
        }
    })?;
    let single = |party: Party| {
        let at = |at: InstRef| from[at.rank][at.inst].map(|(inst, second)| (InstRef { inst, ..at }, second));
        match party {
            Party::Inst(it) => at(it).map(|(it, second)| (Party::Inst(it), second)),
            Party::Operation(it, origin) => at(it).map(|(it, second)| (Party::Operation(it, origin), second)),
            Party::CallerBefore | Party::CallerAfter(_) => None,
        }
    };
    let between = |race: Race| {
        let [(a, writes), (b, also)] = race.parties;
        let ((a, first), (b, second)) = single(a).zip(single(b))?;
        let parties = if first { [(b, also), (a, writes)] } else { [(a, writes), (b, also)] };
        (first != second).then_some(Race { parties, between_runs: true, ..race })
    };
    let not_compared = races.not_compared;
    Ok((races.found.into_iter().filter_map(between).collect(), not_compared))
}

fn signal_of(kind: &InstKind) -> Option<SignalId> {
    if let InstKind::Signal { signal } | InstKind::WaitSignal { signal } = kind {
        Some(*signal)
    } else {
        None
    }
}

impl TwoRuns {
    fn of(plan: &Plan, signal_count: u32) -> Self {
        let mut it = Self {
            plan: Plan {
                code: Vec::new(),
                allocations: Vec::new(),
                peer_collectives: Vec::new(),
                ..plan.clone()
            },
            from: Vec::new(),
        };
        it.plan.event_count = 2 * plan.event_count + 1;
        it.plan.work_count = 2 * plan.work_count;
        let end = plan.code.last().filter(|it| matches!(it.kind, InstKind::ReadOutputs));
        for second in [false, true] {
            for (number, inst) in plan.code.iter().enumerate() {
                if let Some(kind) = inst_of_run(&inst.kind, plan, signal_count, second) {
                    it.push(Inst { kind, ..inst.clone() }, Some((number, second)));
                }
            }
            if let (Some(end), false) = (end, second) {
                // The next run begins where this one has ended.
                let event = 2 * plan.event_count as u32;
                it.push(Inst { kind: InstKind::RecordEvent { event }, ..end.clone() }, None);
                it.push(Inst { kind: InstKind::WaitEvent { event }, stream: 0, origin: end.origin }, None);
            }
        }
        it
    }

    fn push(&mut self, inst: Inst, from: Option<(usize, bool)>) {
        self.plan.code.push(inst);
        self.from.push(from);
    }
}

/// Returns the copy of an instruction in the first or the second run, or `None` if the combined plan omits
/// it: operations of the host order nothing, storage is not reallocated, and the caller waits for the end of
/// both runs.
fn inst_of_run(kind: &InstKind, plan: &Plan, signal_count: u32, second: bool) -> Option<InstKind> {
    let shift = |count: usize| if second { count as u32 } else { 0 };
    let (events, works) = (shift(plan.event_count), shift(plan.work_count));
    let renumber = |it: SignalId| SignalId { index: it.index + if second { signal_count } else { 0 }, ..it };
    Some(match kind {
        InstKind::ShareMemHandles { .. }
        | InstKind::Barrier
        | InstKind::ReadOutputs
        | InstKind::Alloc { zeroed: None, .. } => return None,
        InstKind::Alloc { zeroed: Some(to), .. } => InstKind::Fill { to: to.clone(), value: Number::Int(0) },
        InstKind::RecordEvent { event } => InstKind::RecordEvent { event: event + events },
        InstKind::WaitEvent { event } => InstKind::WaitEvent { event: event + events },
        InstKind::Wait { work } => InstKind::Wait { work: work + works },
        InstKind::Signal { signal: it } => InstKind::Signal { signal: renumber(*it) },
        InstKind::WaitSignal { signal: it } => InstKind::WaitSignal { signal: renumber(*it) },
        InstKind::Collective(it) => {
            let mut it = it.clone();
            it.work += works;
            InstKind::Collective(it)
        }
        InstKind::P2pGroup(it) => {
            let mut it = it.clone();
            it.work += works;
            InstKind::P2pGroup(it)
        }
        InstKind::Copy { .. }
        | InstKind::Fill { .. }
        | InstKind::Iota { .. }
        | InstKind::Gemm(_)
        | InstKind::Attention(_)
        | InstKind::Routine(_)
        | InstKind::Map { .. }
        | InstKind::Reduce(_)
        | InstKind::PeerReduce { .. }
        | InstKind::OpaqueCall(_)
        | InstKind::Reshard(_) => kind.clone(),
    })
}
