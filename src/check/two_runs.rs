//! Two consecutive runs as a single plan: of one program, or of two that a process executes one after the other.

use std::{collections::BTreeSet, sync::Arc};

use grammar::{dtype::DType, ops::Op};

use super::{not_compared::NotCompared, storage::IssuedRuns};
use hir_plan::{
    Arg, BufferNo, Collective, CommunicatorNo, Inst, InstKind, IoBinding, MappedView, Number, P2pGroup,
    P2pOp, Plan, SignalId, StreamNo, View, ViewOnRank,
};

/// Two consecutive runs as a single plan, and the origin of each instruction.
pub(super) struct TwoRuns {
    pub plan: Plan,
    /// For each instruction, its index in the plan of its run and whether it belongs to the second run; `None`
    /// for the instructions between the runs.
    pub from: Vec<Option<(usize, bool)>>,
    /// What the runs allocate if they are issued.
    pub issued: IssuedRuns,
}

/// The numbers that the streams, buffers and communicators of a second program have in the combined plan of a rank.
pub(super) struct SecondNumbers {
    streams: Vec<StreamNo>,
    pub buffers: Vec<BufferNo>,
    communicators: Vec<CommunicatorNo>,
}

/// Returns the number of signals of all ranks.
pub(super) fn signal_count(plans: &[Plan]) -> u32 {
    let signals = plans.iter().flat_map(|it| &it.code).filter_map(|it| match it.kind {
        InstKind::Signal { signal } | InstKind::WaitSignal { signal } => Some(signal.index + 1),
        _ => None,
    });
    signals.max().unwrap_or(0)
}

/// Adds what is not in `known` yet, and returns the numbers there. Of equal elements, the n-th is the n-th in `known`.
pub(super) fn add_all<T: Clone + PartialEq>(known: &mut Vec<T>, all: &[T]) -> Vec<u32> {
    let mut numbers = Vec::new();
    for it in all {
        let number = (0..known.len()).find(|at| known[*at] == *it && !numbers.contains(&(*at as u32)));
        numbers.push(number.unwrap_or(known.len()) as u32);
        if number.is_none() {
            known.push(it.clone());
        }
    }
    numbers
}

/// Adds the streams, buffers and communicators of `second` to `first`, and returns their numbers there. Inputs and
/// outputs of one name, and tensors with a name of `shared`, are one buffer, as long as the longer one. A buffer may have several names.
///
/// # Errors
/// The reason why such a buffer of `second` is none of `first`.
pub(super) fn join_plans(
    first: &mut Plan,
    second: &Plan,
    shared: &BTreeSet<String>,
) -> Result<SecondNumbers, NotCompared> {
    let streams = add_all(&mut first.streams, &second.streams);
    let communicators = add_all(&mut first.communicators, &second.communicators);
    let ports = |plan: &Plan| -> Vec<(String, BufferNo)> {
        let port = |it: &IoBinding| Some((it.name.clone(), it.shard.view.as_ref()?.buffer));
        let local = (0..).zip(&plan.buffers).filter(|it| shared.contains(&*it.1.name));
        let local = local.map(|(number, it)| (it.name.to_string(), number));
        plan.inputs.iter().chain(&plan.outputs).filter_map(port).chain(local).collect()
    };
    let (mine, theirs) = (ports(first), ports(second));
    let dtypes: Vec<DType> = first.buffers.iter().map(|it| it.dtype).collect();
    let known_as = |buffer: BufferNo| -> Result<Option<BufferNo>, NotCompared> {
        let names = theirs.iter().filter(|it| it.1 == buffer).map(|it| &it.0);
        let mut known: Option<&(String, BufferNo)> = None;
        for it in names.flat_map(|name| mine.iter().filter(move |it| it.0 == *name)) {
            let (one, other) = (dtypes[it.1 as usize], second.buffers[buffer as usize].dtype);
            if one != other {
                return Err(NotCompared::DifferentTypes { name: it.0.clone(), dtypes: [one, other] });
            }
            if let Some(before) = known.replace(it).filter(|before| before.1 != it.1) {
                return Err(NotCompared::DifferentMemory(before.0.clone(), it.0.clone()));
            }
        }
        Ok(known.map(|it| it.1))
    };
    let known: Vec<Option<BufferNo>> =
        (0..).zip(&second.buffers).map(|(number, _)| known_as(number)).collect::<Result<_, _>>()?;
    let buffers = known.into_iter().zip(&second.buffers).map(|(known, it)| match known {
        Some(known) => {
            let buffer = &mut first.buffers[known as usize];
            buffer.len = buffer.len.max(it.len);
            known
        }
        None => {
            first.buffers.push(it.clone());
            first.buffers.len() as BufferNo - 1
        }
    });
    let buffers = buffers.collect();
    Ok(SecondNumbers { streams, buffers, communicators })
}

impl TwoRuns {
    /// Returns two runs of a plan.
    pub fn of_one(plan: &Plan, signals: u32) -> Self {
        Self::of(plan.clone(), plan, plan, signals, None)
    }

    /// Returns a run of each of the plans of two programs on a rank. `joined` is the first one with what `join_plans`
    /// adds; `numbers` has what that returns for each rank.
    pub fn of_two(
        joined: Plan,
        first: &Plan,
        second: &Plan,
        signals: u32,
        numbers: &[SecondNumbers],
    ) -> Self {
        Self::of(joined, first, second, signals, Some(numbers))
    }

    fn of(
        joined: Plan,
        first: &Plan,
        second: &Plan,
        signals: u32,
        numbers: Option<&[SecondNumbers]>,
    ) -> Self {
        let plan = Plan { code: Vec::new(), allocations: Vec::new(), peer_collectives: Vec::new(), ..joined };
        let mut allocated = [first, second].map(|it| it.allocations.clone());
        if let Some(numbers) = numbers.map(|it| &it[second.rank]) {
            for it in &mut allocated[1] {
                it.buffer = numbers.buffers[it.buffer as usize];
                it.pool.stream = numbers.streams[it.pool.stream as usize];
            }
        }
        let mut it = Self { plan, from: Vec::new(), issued: IssuedRuns { allocated, second_begins: 0 } };
        it.plan.event_count = first.event_count + second.event_count + 1;
        it.plan.work_count = first.work_count + second.work_count;
        for (number, inst) in first.code.iter().enumerate() {
            if let Some(kind) = kept_kind(&inst.kind) {
                it.push(Inst { kind, ..inst.clone() }, Some((number, false)));
            }
        }
        if let Some(end) = first.code.last().filter(|it| matches!(it.kind, InstKind::ReadOutputs)) {
            // The next run begins where this one has ended.
            let event = (first.event_count + second.event_count) as u32;
            it.push(Inst { kind: InstKind::RecordEvent { event }, ..end.clone() }, None);
            it.push(Inst { kind: InstKind::WaitEvent { event }, stream: 0, origin: end.origin }, None);
        }
        it.issued.second_begins = it.from.len();
        let mut before = Counts::default();
        before.add(first, signals);
        let origins = it.plan.origins.len() as u32;
        if numbers.is_some() {
            Arc::make_mut(&mut it.plan.origins).extend(second.origins.iter().copied());
        }
        for (number, inst) in second.code.iter().enumerate() {
            let Some(mut kind) = kept_kind(&inst.kind) else { continue };
            shift(&mut kind, before);
            let Some(numbers) = numbers else {
                it.push(Inst { kind, ..inst.clone() }, Some((number, true)));
                continue;
            };
            let stream = numbers[second.rank].streams[inst.stream as usize];
            for kind in renumbered(kind, second.rank, numbers) {
                it.push(Inst { kind, stream, origin: inst.origin + origins }, Some((number, true)));
            }
        }
        it
    }

    fn push(&mut self, inst: Inst, from: Option<(usize, bool)>) {
        self.plan.code.push(inst);
        self.from.push(from);
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

/// How many events and works of the rank, and signals of all ranks, runs have.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub events: u32,
    pub works: u32,
    signals: u32,
}

impl Counts {
    /// Adds a run of a plan, with the number of signals of all ranks.
    pub fn add(&mut self, plan: &Plan, signals: u32) {
        self.events += plan.event_count as u32;
        self.works += plan.work_count as u32;
        self.signals += signals;
    }
}

/// Numbers the events, works and signals of a run behind those of the runs before.
pub(super) fn shift(kind: &mut InstKind, before: Counts) {
    let Counts { events, works, signals } = before;
    match kind {
        InstKind::RecordEvent { event } | InstKind::WaitEvent { event } | InstKind::HostWait { event } => {
            *event += events;
        }
        InstKind::Wait { work } => *work += works,
        InstKind::Signal { signal: it } | InstKind::WaitSignal { signal: it } => {
            *it = SignalId { index: it.index + signals, ..*it };
        }
        InstKind::Collective(it) => it.work += works,
        InstKind::P2pGroup(it) => it.work += works,
        _ => (),
    }
}

/// Gives an instruction the numbers of communicators in combined plans.
pub(super) fn renumber_communicator(kind: &mut InstKind, numbers: &[CommunicatorNo]) {
    let number = |it: &mut CommunicatorNo| *it = numbers[*it as usize];
    match kind {
        InstKind::Collective(it) => number(&mut it.communicator),
        InstKind::P2pGroup(it) => number(&mut it.communicator),
        _ => (),
    }
}

/// Returns a mapped view of a rank of a second program with the numbers of the combined plans.
pub(super) fn renumbered_view(it: &MappedView, rank: usize, numbers: &[SecondNumbers]) -> MappedView {
    let number = |rank: usize, buffer: BufferNo| numbers[rank].buffers[buffer as usize];
    let shard = |it: &ViewOnRank| {
        let view = View { buffer: number(it.rank, it.view.buffer), ..it.view.clone() };
        ViewOnRank { view, ..*it }
    };
    MappedView { buffer: number(rank, it.buffer), shards: it.shards.iter().map(shard).collect(), ..*it }
}

/// Returns an instruction of a second program with the numbers of the combined plan. One that computes becomes
/// elementwise instructions with the same accesses: only these are compared.
fn renumbered(kind: InstKind, rank: usize, numbers: &[SecondNumbers]) -> Vec<InstKind> {
    let on =
        |rank: usize, it: &View| View { buffer: numbers[rank].buffers[it.buffer as usize], ..it.clone() };
    let own = |it: &View| on(rank, it);
    let at = |it: &ViewOnRank| ViewOnRank { rank: it.rank, view: on(it.rank, &it.view) };
    let communicator = |it: CommunicatorNo| numbers[rank].communicators[it as usize];
    vec![match kind {
        InstKind::Copy { from, to } => InstKind::Copy { from: Box::new(at(&from)), to: Box::new(at(&to)) },
        InstKind::PeerReduce { op, parts, out } => {
            InstKind::PeerReduce { op, parts: parts.iter().map(at).collect(), out: Box::new(own(&out)) }
        }
        InstKind::Collective(it) => InstKind::Collective(Box::new(Collective {
            communicator: communicator(it.communicator),
            input: it.input.as_ref().map(own),
            output: it.output.as_ref().map(own),
            ..*it
        })),
        InstKind::P2pGroup(it) => InstKind::P2pGroup(P2pGroup {
            communicator: communicator(it.communicator),
            ops: it.ops.iter().map(|side| P2pOp { view: own(&side.view), ..side.clone() }).collect(),
            ..it
        }),
        InstKind::RecordEvent { .. }
        | InstKind::WaitEvent { .. }
        | InstKind::Wait { .. }
        | InstKind::Signal { .. }
        | InstKind::WaitSignal { .. } => kind,
        _ => {
            let accesses = kind.accesses(rank);
            let reads = accesses.iter().filter(|it| !it.is_write).map(|it| Arg::View(own(it.view)));
            let reads: Vec<Arg> = reads.collect();
            let writes = accesses.iter().filter(|it| it.is_write);
            return writes
                .map(|it| InstKind::Map { op: Op::Add, args: reads.clone(), out: Box::new(own(it.view)) })
                .collect();
        }
    }]
}
