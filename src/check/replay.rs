//! Runs in which the simulator can show what a plain run of one program cannot: two runs one after the other, and tensors that share
//! storage as an allocator may place them.
//!
//! `Replay` is a world that the simulator executes like any other. Between the runs, the caller saves the outputs on the stream that is current
//! at exit, and writes the inputs of the next run on the stream that is current at entry: both are copies of the world, so that
//! they race as the caller does. As in the check of two runs, the hosts exchange no handles and pass no barriers.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    capture::capture,
    joined_runs::{JoinedRuns, RunNumbers, signal_count},
    not_compared::NotCompared,
    shared_buffers::join_buffers,
    two_runs,
};
use hir_plan::{
    Buffer, BufferNo, InstKind, IoBinding, Number, Plan, Shard, ShardLayout, View, ViewOnRank, World,
    sync::{InstRef, Step},
};

/// A tensor or the caller gets the storage of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayedStorage {
    /// The rank.
    pub rank: usize,
    /// The tensor that has the storage first, a buffer of the first run.
    pub earlier: BufferNo,
    /// The tensor that gets it, a buffer of the last run; `None` is the caller, which writes it at the end of the program.
    pub later: Option<BufferNo>,
}

impl ReplayedStorage {
    /// Returns whether both say which storage the same tensor, or the caller, gets: only one of them can hold.
    pub fn takes_place_of(&self, other: &Self) -> bool {
        let is_same = self.later.is_some() || self.earlier == other.earlier;
        (self.rank, self.later) == (other.rank, other.later) && is_same
    }

    /// Returns the plans of its rank in the first and in the last run.
    ///
    /// # Errors
    /// One of them has no such rank or tensor.
    pub(super) fn plans<'w>(
        &self,
        first: &'w World,
        last: &'w World,
    ) -> Result<[&'w Plan; 2], NoSuchStorage> {
        let plan = |world: &'w World, buffer: Option<BufferNo>| {
            let plan = world.get(self.rank).ok_or(NoSuchStorage::Rank(self.rank))?;
            match buffer.filter(|it| *it as usize >= plan.buffers.len()) {
                Some(number) => Err(NoSuchStorage::Tensor { rank: self.rank, number }),
                None => Ok(plan),
            }
        };
        Ok([plan(first, Some(self.earlier))?, plan(last, self.later)?])
    }
}

/// What worlds do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoSuchStorage {
    /// There is no such rank.
    #[error("there is no rank {0}")]
    Rank(usize),
    /// There is no such tensor.
    #[error("rank {rank} has no tensor {number}")]
    Tensor {
        /// The rank.
        rank: usize,
        /// The number of the buffer.
        number: BufferNo,
    },
}

/// What follows the first run.
#[derive(Clone, Copy, Debug)]
pub enum NextRun<'w> {
    /// A run of the same program.
    Same,
    /// A graph of the same program, which lacks what its capture does not record.
    Captured,
    /// A run of another program. Inputs and outputs of one name have the same memory, and so have tensors with one of the names.
    Other(&'w World, &'w BTreeSet<String>),
}

/// How the name of an input or output ends in the plans of two runs.
const OF_RUNS: [&str; 2] = [" of run 1", " of run 2"];

/// Returns the name that an input or output of two runs has in its program.
pub fn name_in_program(name: &str) -> &str {
    OF_RUNS.iter().find_map(|it| name.strip_suffix(it)).unwrap_or(name)
}

/// The plans of all runs as a single world.
#[derive(Debug, Default)]
pub struct Replay {
    /// The plans. Inputs and outputs are those of the first run, then those of the second one.
    pub world: World,
    /// By rank and run: the instructions in the world, by the instruction in the plan of the run; `None` if the world has none.
    places: Vec<Vec<Vec<Option<usize>>>>,
    /// By rank and input: the instruction that writes it for the second run.
    written_inputs: Vec<Vec<Option<usize>>>,
    /// By rank: the instruction with which the caller writes storage at the end.
    caller_writes: Vec<Option<usize>>,
    /// By rank: the first instruction of the second run.
    second_begins: Vec<usize>,
}

/// Why a world of several runs cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotReplayable {
    /// The programs have different numbers of ranks.
    #[error("the programs have different numbers of ranks")]
    Ranks,
    /// The storage to share does not exist.
    #[error(transparent)]
    Storage(#[from] NoSuchStorage),
    /// The programs do not fit together.
    #[error(transparent)]
    Programs(#[from] NotCompared),
    /// Two tensors that are to share storage have different element types.
    #[error(
        "`{0}` and `{1}` have different element types, which the simulator does not place in one storage"
    )]
    DifferentTypes(String, String),
}

impl Replay {
    /// Combines a run of a program with what follows it. Without `next` and `storage`, the world is that of the program, without exchanges
    /// of handles and barriers.
    ///
    /// # Errors
    /// Tensors that are to share memory have different element types, or a buffer or rank does not exist.
    pub fn new(
        first: &World,
        next: Option<NextRun<'_>>,
        storage: &[ReplayedStorage],
    ) -> Result<Self, NotReplayable> {
        let second = next.map(|it| match it {
            NextRun::Same | NextRun::Captured => first,
            NextRun::Other(world, _) => world,
        });
        if second.is_some_and(|it| it.len() != first.len()) {
            return Err(NotReplayable::Ranks);
        }
        for it in storage {
            it.plans(first, second.unwrap_or(first))?;
        }
        let mut ranks = Vec::new();
        for (rank, plan) in first.iter().enumerate() {
            let other = second.map(|it| &it[rank]);
            ranks.push(RankReplay::new(plan, other, next, storage)?);
        }
        let buffers: Vec<[Vec<BufferNo>; 2]> = ranks.iter().map(|it| it.buffers.clone()).collect();
        let signals = signal_count(first);
        let mut replay = Self::default();
        let mut plans = Vec::new();
        for (rank, mut it) in ranks.into_iter().enumerate() {
            it.add_run(0, &first[rank], (&buffers, signals), &[]);
            let mut second_begins = it.joined.plan.code.len();
            if let Some(second) = second {
                second_begins += it.end_first_run(&first[rank], &second[rank]);
                let is_captured = matches!(next, Some(NextRun::Captured));
                let omitted = if is_captured { capture(&second[rank]).not_recorded } else { Vec::new() };
                it.add_run(1, &second[rank], (&buffers, signals), &omitted);
            }
            it.end(second.unwrap_or(first), (first, storage));
            plans.push(it.joined.plan);
            replay.second_begins.push(second_begins);
            replay.places.push(it.places);
            replay.written_inputs.push(it.written_inputs);
            replay.caller_writes.push(it.caller_write);
        }
        replay.world = World::new(plans);
        Ok(replay)
    }

    /// Returns steps in the order in which the first run ends on all ranks before the second one begins on one of them. `steps` are in a possible
    /// order.
    pub fn in_sequence(&self, steps: &[Step]) -> Vec<Step> {
        let is_first = |it: &&Step| it.inst_ref.inst < self.second_begins[it.inst_ref.rank];
        let (first, second): (Vec<&Step>, Vec<&Step>) = steps.iter().partition(is_first);
        first.into_iter().chain(second).copied().collect()
    }

    /// Returns the place of an instruction of a run, 0 or 1.
    pub fn inst(&self, run: usize, at: InstRef) -> Option<InstRef> {
        let inst = *self.places.get(at.rank)?.get(run)?.get(at.inst)?;
        inst.map(|inst| InstRef { inst, ..at })
    }

    /// Returns the instruction that writes the input in a buffer of the first run for the second run.
    pub fn written_input(&self, first: &World, rank: usize, buffer: BufferNo) -> Option<InstRef> {
        let is_it = |it: &IoBinding| it.shard.view.as_ref().is_some_and(|it| it.buffer == buffer);
        let input = first.get(rank)?.inputs.iter().position(is_it)?;
        let inst = *self.written_inputs.get(rank)?.get(input)?;
        inst.map(|inst| InstRef { rank, inst })
    }

    /// Returns the instruction with which the caller writes storage that it gets at the end.
    pub fn caller_write(&self, rank: usize) -> Option<InstRef> {
        let inst = *self.caller_writes.get(rank)?;
        inst.map(|inst| InstRef { rank, inst })
    }
}

/// The plan of a rank while runs are added.
struct RankReplay {
    joined: JoinedRuns,
    /// By run: the numbers of its buffers, and those of its streams and communicators.
    buffers: [Vec<BufferNo>; 2],
    numbers: Vec<RunNumbers>,
    places: Vec<Vec<Option<usize>>>,
    written_inputs: Vec<Option<usize>>,
    caller_write: Option<usize>,
}

impl RankReplay {
    fn new(
        first: &Plan,
        second: Option<&Plan>,
        next: Option<NextRun<'_>>,
        storage: &[ReplayedStorage],
    ) -> Result<Self, NotReplayable> {
        let mut joined =
            JoinedRuns::new(Plan { bound_at_exit: Vec::new(), live_out: Vec::new(), ..first.clone() });
        let mut numbers = vec![joined.number(first)];
        numbers.extend(second.map(|it| joined.number(it)));
        let plan = &mut joined.plan;
        let own: Vec<BufferNo> = (0..first.buffers.len() as BufferNo).collect();
        let mut buffers = [own, Vec::new()];
        if let Some(second) = second {
            buffers[1] = match next {
                Some(NextRun::Other(_, shared)) => join_buffers(plan, second, shared)?,
                Some(NextRun::Same | NextRun::Captured) | None => buffers[0].clone(),
            };
        }
        let last = usize::from(second.is_some());
        for it in storage.iter().filter(|it| it.rank == first.rank) {
            let Some(later) = it.later else { continue };
            if last == 1 && next.is_some_and(|it| matches!(it, NextRun::Same)) && it.earlier != later {
                // The tensor of the first run gets other storage in the second one.
                buffers[1][it.earlier as usize] = add_buffer(plan, first, it.earlier);
            }
            buffers[last][later as usize] = it.earlier;
        }
        for (buffers, of) in buffers.iter().zip([Some(first), second]) {
            let Some(of) = of else { continue };
            for (number, it) in buffers.iter().zip(&of.buffers) {
                let place = &mut plan.buffers[*number as usize];
                if place.dtype != it.dtype {
                    return Err(NotReplayable::DifferentTypes(place.name.to_string(), it.name.to_string()));
                }
                place.len = place.len.max(it.len);
            }
        }
        for it in plan.inputs.iter_mut().chain(&mut plan.outputs).filter_map(|it| it.shard.view.as_mut()) {
            it.buffer = buffers[0][it.buffer as usize];
        }
        Ok(Self {
            joined,
            buffers,
            numbers,
            places: Vec::new(),
            written_inputs: Vec::new(),
            caller_write: None,
        })
    }

    /// Adds the instructions of a run besides the `omitted` ones, in ascending order. `buffers` are those of all ranks.
    fn add_run(
        &mut self,
        run: usize,
        of: &Plan,
        (buffers, signals): (&[[Vec<BufferNo>; 2]], u32),
        omitted: &[usize],
    ) {
        let is_known = run == 0 || Arc::ptr_eq(&self.joined.plan.origins, &of.origins);
        self.numbers[run].origins = if is_known { 0 } else { self.joined.add_origins(of) };
        let places = self.joined.add_run(of, &self.numbers[run], signals, |at, kind| {
            let mut kind = kept_kind(kind).filter(|_| omitted.binary_search(&at).is_err())?;
            kind.change_views(of.rank, |rank, view| {
                view.buffer = buffers[rank][run][view.buffer as usize];
            });
            Some(kind)
        });
        self.places.push(places);
    }

    /// Lets the caller save the outputs and write the inputs of the second run, which begins where the first one has ended. Returns the number of
    /// instructions of the first run.
    fn end_first_run(&mut self, first: &Plan, second: &Plan) -> usize {
        let begin = self.joined.plan.code.len();
        let exit = first.code.last().map_or(0, |it| it.stream);
        let numbers = self.buffers.clone();
        for (number, it) in first.outputs.iter().enumerate() {
            let Some(view) = &it.shard.view else { continue };
            let to = self.caller_buffer(it, view);
            let mut from = ViewOnRank { rank: first.rank, view: view.clone() };
            from.view.buffer = numbers[0][view.buffer as usize];
            let saved = ViewOnRank { rank: first.rank, view: to.clone() };
            if !to.is_empty() {
                self.joined.push(InstKind::Copy { from: Box::new(from), to: Box::new(saved) }, exit, 0);
            }
            self.joined.plan.outputs[number].shard.view = Some(to);
        }
        self.joined.end_run(exit, 0);
        let instructions = self.joined.plan.code.len() - begin;
        for it in &second.inputs {
            let mut port = it.clone();
            let mut written = None;
            if let Some(to) = &it.shard.view {
                let from = self.caller_buffer(it, to);
                let mut to = ViewOnRank { rank: second.rank, view: to.clone() };
                to.view.buffer = numbers[1][to.view.buffer as usize];
                let given = ViewOnRank { rank: second.rank, view: from.clone() };
                if !from.is_empty() {
                    let copy = InstKind::Copy { from: Box::new(given), to: Box::new(to) };
                    written = Some(self.joined.push(copy, 0, 0));
                }
                port.shard.view = Some(from);
            }
            self.written_inputs.push(written);
            port.name = it.name.clone() + OF_RUNS[1];
            self.joined.plan.inputs.push(port);
        }
        let outputs = &mut self.joined.plan.outputs;
        outputs.iter_mut().for_each(|it| it.name = it.name.clone() + OF_RUNS[0]);
        outputs.extend(second.outputs.iter().map(|it| {
            let mut port = IoBinding { name: it.name.clone() + OF_RUNS[1], ..it.clone() };
            if let Some(view) = &mut port.shard.view {
                view.buffer = numbers[1][view.buffer as usize];
            }
            port
        }));
        instructions
    }

    /// Lets the caller write the storage that it gets, which counts as an output then, and read the outputs.
    fn end(&mut self, last: &World, (first, storage): (&World, &[ReplayedStorage])) {
        let rank = self.joined.plan.rank;
        let run = self.places.len() - 1;
        let exit = last[rank].code.last().map_or(0, |it| self.numbers[run].streams[it.stream as usize]);
        // What is bound to a name at the end is the output of the last run that has it.
        let runs = if run == 1 { vec![first, last] } else { vec![first] };
        let names: Vec<_> = runs.iter().flat_map(|it| &it[rank].outputs).map(|it| it.name.clone()).collect();
        let plan = &mut self.joined.plan;
        for (name, it) in names.into_iter().zip(&plan.outputs).rev() {
            if plan.bound_at_exit.iter().all(|it| it.name != name) {
                plan.bound_at_exit.push(IoBinding { name, ..it.clone() });
            }
        }
        for it in storage.iter().filter(|it| it.later.is_none()) {
            let of = &first[it.rank].buffers[it.earlier as usize];
            let view = View::contiguous(it.earlier, vec![of.len]);
            if it.rank == rank {
                let write = InstKind::Fill { to: Box::new(view.clone()), value: Number::Int(1) };
                self.caller_write = Some(self.joined.push(write, exit, 0));
            }
            self.joined.plan.outputs.push(IoBinding {
                name: format!("what the caller writes into the storage of {}", of.name),
                dtype: of.dtype,
                shard: Shard {
                    view: Some(view).filter(|_| it.rank == rank),
                    layout: ShardLayout::whole(&[of.len]),
                },
                printed_axes: None,
                broadcast: vec![false],
                is_compared_per_rank: false,
            });
        }
        self.joined.push(InstKind::ReadOutputs, exit, 0);
    }

    /// Adds a buffer of the caller for a part of an input or output.
    fn caller_buffer(&mut self, of: &IoBinding, view: &View) -> View {
        let buffer = Buffer::new(of.name.clone(), of.dtype, view.len());
        self.joined.plan.buffers.push(buffer);
        View::contiguous(self.joined.plan.buffers.len() as BufferNo - 1, view.shape.clone())
    }
}

/// Adds a buffer of another plan.
fn add_buffer(plan: &mut Plan, of: &Plan, number: BufferNo) -> BufferNo {
    plan.buffers.push(of.buffers[number as usize].clone());
    plan.buffers.len() as BufferNo - 1
}

/// Returns an instruction as the combined world contains it, or `None` if it omits it. The host waits for the run that it belongs to.
fn kept_kind(kind: &InstKind) -> Option<InstKind> {
    match kind {
        InstKind::HostWait { .. } => Some(kind.clone()),
        it => two_runs::kept_kind(it),
    }
}
