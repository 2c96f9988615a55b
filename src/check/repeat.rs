//! Two consecutive runs of a program with nothing between them, as a captured graph that is replayed: on each rank the next run begins on
//! the stream that is current at entry once the stream that is current at exit has done its work. Other ranks may be a run behind.
//!
//! Buffers, their storage and inputs are those of the first run, flags count the runs. Where nothing races, no barrier of all ranks is
//! needed between the runs.

use rustc_hash::FxHashMap;

use super::{
    conflict::{Party, Race, ReusedStorage},
    ordering_model::OrderingModel,
    overlap::ElementRange,
    race::RaceDetector,
};
use crate::plan::{
    Access, BufferNo, Inst, InstKind, Number, Plan, SignalId, View,
    sync::{
        CommMatching, InstRef, deadlocked_state,
        happens_before::{self, Occurrence, OrderError},
    },
};

/// Two runs of a plan as one, and where its instructions come from.
struct TwoRuns {
    plan: Plan,
    /// By instruction: its index in the plan, and whether it is of the second run. `None`: it stands between the runs.
    from: Vec<Option<(usize, bool)>>,
}

/// The races between two runs of plans that race neither with themselves nor with the caller, in the numbers of one run; those of the first
/// run first. Then, how many pairs of views are too large to compare.
///
/// # Errors
/// A world of too many streams, or two runs that deadlock.
pub(super) fn races_between_runs(
    plans: &[Plan],
    model: OrderingModel,
) -> Result<(Vec<Race>, usize), OrderError> {
    let flags = plans.iter().flat_map(|it| &it.code).filter_map(|it| flag(&it.kind)).map(|it| it.index + 1);
    let flags = flags.max().unwrap_or(0);
    let twice: Vec<TwoRuns> = plans.iter().map(|it| TwoRuns::of(it, flags)).collect();
    let (both, from): (Vec<Plan>, Vec<_>) = twice.into_iter().map(|it| (it.plan, it.from)).unzip();
    let matched = CommMatching::from_plans(&both);
    if deadlocked_state(&both, &matched).is_some() {
        return Err(OrderError::Deadlock);
    }
    let mut races = RaceDetector::new(&both, model);
    let mut blocks = SharedBlocks::new(plans);
    happens_before::walk(&both, &matched, &mut |it| {
        races.visit(&it);
        for access in both[it.rank].code[it.inst].kind.accesses(it.rank) {
            blocks.access(&it, access);
        }
    })?;
    races.found.extend(blocks.found);
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

fn flag(kind: &InstKind) -> Option<SignalId> {
    if let InstKind::Signal { signal: slot } | InstKind::WaitSignal { signal: slot } = kind {
        Some(*slot)
    } else {
        None
    }
}

/// An access to a buffer that shares its block of storage with others.
struct BlockAccess {
    buffer: BufferNo,
    at: InstRef,
    actor: u32,
    number: u32,
    written: bool,
}

/// Accesses to blocks of storage that several buffers of a rank get, one behind the other: each run gives them the same blocks.
struct SharedBlocks {
    /// By rank and buffer: the block, where other buffers get it, too.
    block_of: FxHashMap<(usize, BufferNo), u32>,
    /// By rank and block: accesses that do not happen before later ones.
    accesses: FxHashMap<(usize, u32), Vec<BlockAccess>>,
    found: Vec<Race>,
}

impl SharedBlocks {
    fn new(plans: &[Plan]) -> Self {
        let mut owners: FxHashMap<(usize, u32), usize> = FxHashMap::default();
        let all = || plans.iter().flat_map(|plan| plan.allocations.iter().map(|it| (plan.rank, it)));
        all().for_each(|(rank, it)| *owners.entry((rank, it.block)).or_default() += 1);
        let shared = all().filter(|(rank, it)| owners[&(*rank, it.block)] > 1);
        let of = shared.map(|(rank, it)| ((rank, it.buffer), it.block)).collect();
        Self { block_of: of, accesses: FxHashMap::default(), found: Vec::new() }
    }

    fn access(&mut self, it: &Occurrence, access: Access<'_>) {
        let buffer = access.view.buffer;
        let Some(block) = self.block_of.get(&(access.rank, buffer)) else { return };
        let at = InstRef { rank: it.rank, inst: it.inst };
        let (actor, number, written) = (it.actor, it.number, access.is_write);
        let known = self.accesses.entry((access.rank, *block)).or_default();
        known.retain(|earlier| {
            let is_ordered = (earlier.actor, earlier.number) == (actor, number)
                || it.clock.ended(earlier.actor) >= earlier.number;
            if !is_ordered && earlier.buffer != buffer && (earlier.written || written) {
                let bounds = access.view.bounds().unwrap_or((0, 0));
                let elements = ElementRange { start: bounds.0, end: bounds.1 + 1 };
                let parties = [(Party::Inst(earlier.at), earlier.written), (Party::Inst(at), written)];
                let reused =
                    Some(ReusedStorage { earlier: earlier.buffer, later: Some(buffer), freed_by: None });
                self.found.push(Race {
                    rank: access.rank,
                    buffer,
                    elements,
                    parties,
                    reused,
                    between_runs: false,
                });
            }
            !is_ordered
        });
        known.push(BlockAccess { buffer, at, actor, number, written });
    }
}

impl TwoRuns {
    fn of(plan: &Plan, flags: u32) -> Self {
        let mut it = Self {
            plan: Plan { code: Vec::new(), allocations: Vec::new(), ..plan.clone() },
            from: Vec::new(),
        };
        it.plan.event_count = 2 * plan.event_count + 1;
        it.plan.work_count = 2 * plan.work_count;
        let end = plan.code.last().filter(|it| matches!(it.kind, InstKind::ReadOutputs));
        for second in [false, true] {
            for (number, inst) in plan.code.iter().enumerate() {
                if let Some(kind) = inst_of_run(&inst.kind, plan, flags, second) {
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

/// An instruction of the first or the second run; `None`: the runs have none in its place. What hosts do orders nothing, storage stays where
/// it is, and the caller waits for the end of both.
fn inst_of_run(kind: &InstKind, plan: &Plan, flags: u32, second: bool) -> Option<InstKind> {
    let shift = |count: usize| if second { count as u32 } else { 0 };
    let (events, works) = (shift(plan.event_count), shift(plan.work_count));
    let slot = |it: SignalId| SignalId { index: it.index + if second { flags } else { 0 }, ..it };
    Some(match kind {
        InstKind::ShareMemHandles { .. }
        | InstKind::Barrier
        | InstKind::ReadOutputs
        | InstKind::Alloc { zero: false, .. } => return None,
        InstKind::Alloc { buffer, zero: true } => {
            let to = View::contiguous(*buffer, vec![plan.buffers[*buffer as usize].len]);
            InstKind::Fill { to: Box::new(to), value: Number::Int(0) }
        }
        InstKind::RecordEvent { event } => InstKind::RecordEvent { event: event + events },
        InstKind::WaitEvent { event } => InstKind::WaitEvent { event: event + events },
        InstKind::Wait { work } => InstKind::Wait { work: work + works },
        InstKind::Signal { signal: it } => InstKind::Signal { signal: slot(*it) },
        InstKind::WaitSignal { signal: it } => InstKind::WaitSignal { signal: slot(*it) },
        InstKind::Collective(it) => {
            let mut it = it.clone();
            it.work += works;
            InstKind::Collective(it)
        }
        InstKind::Transfer(it) => {
            let mut it = it.clone();
            it.work += works;
            InstKind::Transfer(it)
        }
        InstKind::Copy { .. }
        | InstKind::Fill { .. }
        | InstKind::Iota { .. }
        | InstKind::Gemm(_)
        | InstKind::Map { .. }
        | InstKind::Reduce(_)
        | InstKind::PeerReduce { .. }
        | InstKind::Reshard(_) => kind.clone(),
    })
}
