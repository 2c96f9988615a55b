//! Two consecutive runs as a single plan: of one program, or of two that a process executes one after the other.

use super::{joined_runs::JoinedRuns, storage::IssuedRuns};
use hir_plan::{BufferNo, InstKind, MappedView, Number, Plan, View, ViewOnRank};

/// Two consecutive runs as a single plan, and the origin of each instruction.
pub(super) struct TwoRuns {
    pub plan: Plan,
    /// For each instruction, its index in the plan of its run and whether it belongs to the second run; `None`
    /// for the instructions between the runs.
    pub from: Vec<Option<(usize, bool)>>,
    /// What the runs allocate if they are issued.
    pub issued: IssuedRuns,
}

impl TwoRuns {
    /// Returns two runs of a plan.
    pub fn of_one(plan: &Plan, signals: u32) -> Self {
        Self::of(JoinedRuns::new(plan.clone()), [plan, plan], signals, None)
    }

    /// Returns a run of each of the plans of two programs on a rank. `joined` is the first one with the buffers of the second one, whose
    /// numbers there are `buffers`, by rank.
    pub fn of_two(joined: Plan, runs: [&Plan; 2], signals: u32, buffers: &[Vec<BufferNo>]) -> Self {
        Self::of(JoinedRuns::new(joined), runs, signals, Some(buffers))
    }

    fn of(mut joined: JoinedRuns, runs: [&Plan; 2], signals: u32, buffers: Option<&[Vec<BufferNo>]>) -> Self {
        let [first, second] = runs;
        let rank = second.rank;
        let numbers = runs.map(|it| joined.number(it));
        let mut allocated = runs.map(|it| it.allocations.clone());
        for it in &mut allocated[1] {
            it.buffer = buffers.map_or(it.buffer, |all| all[rank][it.buffer as usize]);
            it.pool.stream = numbers[1].streams[it.pool.stream as usize];
            it.pool.named = it.pool.named.map(|named| numbers[1].pools[named as usize]);
        }
        let [of_first, mut of_second] = numbers;
        let mut places = [joined.add_run(first, &of_first, signals, |_, it| kept_kind(it)), Vec::new()];
        if let Some(end) = first.code.last().filter(|it| matches!(it.kind, InstKind::ReadOutputs)) {
            joined.end_run(end.stream, end.origin);
        }
        let second_begins = joined.plan.code.len();
        of_second.origins = if buffers.is_some() { joined.add_origins(second) } else { 0 };
        places[1] = joined.add_run(second, &of_second, signals, |_, it| {
            let mut kind = kept_kind(it)?;
            if let Some(buffers) = buffers {
                kind.change_views(rank, |rank, view| {
                    view.buffer = buffers[rank][view.buffer as usize];
                });
            }
            Some(kind)
        });
        let mut from = vec![None; joined.plan.code.len()];
        for (places, is_second) in places.iter().zip([false, true]) {
            let places = places.iter().enumerate().filter_map(|(number, it)| Some((number, (*it)?)));
            places.for_each(|(number, place)| from[place] = Some((number, is_second)));
        }
        Self { plan: joined.plan, from, issued: IssuedRuns { allocated, second_begins } }
    }
}

/// Returns an instruction as combined plans contain it, or `None` if they omit it: storage is not reallocated, the order of hosts
/// is that of one run, and the caller waits for the end of both runs.
pub(super) fn kept_kind(kind: &InstKind) -> Option<InstKind> {
    Some(match kind {
        InstKind::ShareMemHandles { .. }
        | InstKind::Barrier
        | InstKind::HostWait { .. }
        | InstKind::ReadOutputs
        | InstKind::Alloc { zeroed: None, .. } => return None,
        InstKind::Alloc { zeroed: Some(to), .. } => InstKind::Fill { to: to.clone(), value: Number::Int(0) },
        _ => kind.clone(),
    })
}

/// Returns a mapped view of a rank of a second program with the numbers that buffers have in the combined plans, by rank.
pub(super) fn renumbered_view(it: &MappedView, rank: usize, numbers: &[Vec<BufferNo>]) -> MappedView {
    let number = |rank: usize, buffer: BufferNo| numbers[rank][buffer as usize];
    let shard = |it: &ViewOnRank| {
        let view = View { buffer: number(it.rank, it.view.buffer), ..it.view.clone() };
        ViewOnRank { view, ..*it }
    };
    MappedView { buffer: number(rank, it.buffer), shards: it.shards.iter().map(shard).collect(), ..*it }
}
