//! From a plan to steps: each is one call with nothing left to decide.

use super::{
    CONNECTIONS,
    comm::Comms,
    device::{Device, Event, Rows, Stream},
    error::CudaError,
    flags::Flags,
    gemm::{Form, Products},
    kernels::{self, Argument, COMMON, Kernel, Kernels, Launch, Link, Located},
    libraries::Libraries,
    memory::Memory,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::plan::{Inst, InstKind, Plan, Slot, View};

mod all_reduce;
mod elementwise;
mod fusion;
mod product;
mod queue;
mod step;
mod stream_assignment;

use elementwise::link;
use fusion::{Role, chains};
pub(super) use step::{Action, Executable, Lane, Step};

/// What is known while a plan is prepared.
struct Builder<'a> {
    device: &'a Device,
    plan: &'a Plan,
    memory: &'a mut Memory,
    comms: &'a Comms,
    products: &'a mut Option<Products>,
    kernels: Kernels,
    /// What libraries have been called for, and the steps that did it first.
    forms: Vec<Form>,
    firsts: Vec<usize>,
    steps: Vec<Step>,
    /// The last step of each stream.
    newest: FxHashMap<Stream, usize>,
    /// Where the device counts runs.
    counter: u64,
    /// Whether a kernel reads it.
    reads_counter: bool,
    /// By stream of the plan, then by communicator.
    lanes: Vec<Lane>,
    events: Vec<Event>,
    /// What is set when a communication is done; `None` where it runs on the stream that waits for it.
    works: Vec<Option<Event>>,
    /// The queue of the last communication, and what is set when it is done, where communications take turns.
    last: Option<(Stream, Event)>,
    /// Room for cuBLASLt, by stream of the plan.
    workspaces: Vec<Option<u64>>,
    /// Scratch memory of instructions, by stream.
    scratch: Vec<Scratch>,
    /// Where all-reduce kernels count their blocks, by stream.
    block_counters: FxHashMap<Stream, u64>,
    /// How many streams run all-reduce kernels.
    all_reduce_streams: u64,
    notes: Vec<String>,
}

/// Scratch memory that the instructions of one stream use one after another.
struct Scratch {
    stream: Stream,
    /// An instruction that needs several takes them by number.
    number: usize,
    address: u64,
    bytes: usize,
}

/// How many streams have ranges that run as one kernel.
fn all_reduce_streams(plan: &Plan) -> u64 {
    let streams = plan.kernels.iter().filter_map(|it| plan.code.get(it.start)).map(|it| it.stream);
    streams.collect::<FxHashSet<_>>().len() as u64
}

/// Prepares a plan. `first` is the stream of everything before and after it, the plan's stream 0.
pub(super) fn prepare(
    device: &Device,
    plan: &Plan,
    memory: &mut Memory,
    comms: &Comms,
    libraries: &mut Libraries,
    first: Stream,
) -> Result<Executable, CudaError> {
    let (streams, lanes) = stream_assignment::assign_streams(device, plan, first)?;
    let event = |_| device.event(false);
    let counter = memory.scratch(device, 8)?;
    device.set(counter, 0, 8, first)?;
    let mut builder = Builder {
        device,
        plan,
        memory,
        comms,
        products: &mut libraries.products,
        kernels: Kernels::default(),
        forms: Vec::new(),
        firsts: Vec::new(),
        steps: Vec::new(),
        newest: FxHashMap::default(),
        counter,
        reads_counter: false,
        lanes,
        events: (0..plan.events).map(event).collect::<Result<_, _>>()?,
        works: vec![None; plan.works],
        workspaces: vec![None; plan.streams.len()],
        last: None,
        scratch: Vec::new(),
        block_counters: FxHashMap::default(),
        all_reduce_streams: all_reduce_streams(plan),
        notes: Vec::new(),
    };
    let spots = &builder.memory.layout.ranks[plan.rank].spots;
    let is_shared = |it| spots.get(it as usize).is_none_or(|it| it.symmetric);
    let mut fused = Vec::new();
    let roles = chains(plan, |view| builder.here(view), is_shared);
    let mut done = 0;
    for ((at, inst), role) in (0..).zip(&plan.code).zip(roles) {
        if at < done {
            continue;
        }
        let marked = plan.kernels.binary_search_by_key(&(at as usize), |it| it.start);
        if let Some(range) = marked.ok().map(|it| plan.kernels[it].clone()) {
            let lane = builder.lanes[inst.stream as usize];
            if let Some(step) = builder.one_kernel(&range, lane).map_err(|it| it.at(plan, inst))? {
                done = range.end as u32;
                fused.extend((at..done).filter(|it| *it != step).map(|it| (it, step)));
                continue;
            }
        }
        match role {
            Role::Alone => builder.instruction(at, inst).map_err(|it| it.at(plan, inst))?,
            Role::First(launch) => builder.launch(at, builder.lanes[inst.stream as usize], Some(*launch)),
            Role::Later(first) => fused.push((at, first)),
        }
    }
    let (source, names) = (builder.kernels.source(), builder.kernels.names());
    let cubin = match libraries.cubins.get(&source) {
        Some(it) => it,
        None => {
            let made = kernels::nvrtc::compile(&source, device.capability)?;
            libraries.cubins.entry(source).or_insert(made)
        }
    };
    let functions = device.functions(cubin, &names)?;
    let Builder { steps, firsts, mut notes, products, forms, reads_counter, .. } = builder;
    notes.dedup();
    let has_flags =
        reads_counter || steps.iter().any(|it| matches!(it.action, Action::Raise(_) | Action::Await(_)));
    let made = device.streams();
    if has_flags && made > CONNECTIONS {
        notes.push(format!(
            "{made} streams share {CONNECTIONS} queues to the GPU: one that waits for another rank may hold up others"
        ));
    }
    notes.extend(products.as_ref().filter(|_| !forms.is_empty()).map(Products::describe_library));
    Ok(Executable { steps, streams, functions, counter, reads_counter, has_flags, firsts, fused, notes })
}

/// The dense form of a view's elements, where they lie in a row.
fn is_dense(view: &View) -> bool {
    let merged = kernels::merged(&view.shape, &[&view.strides]);
    view.len() <= 1 || (merged.extents.len() == 1 && merged.strides[0][0] == 1)
}

impl Builder<'_> {
    fn instruction(&mut self, at: u32, inst: &Inst) -> Result<(), CudaError> {
        let lane = *self
            .lanes
            .get(inst.stream as usize)
            .ok_or_else(|| CudaError::Internal(format!("no stream {}", inst.stream)))?;
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        match &inst.kind {
            InstKind::Alloc { buffer, zero } => {
                if *zero {
                    let to = self.memory.buffer(self.plan.rank, *buffer)?;
                    let bytes = self.memory.layout.ranks[self.plan.rank].spots[*buffer as usize].bytes;
                    self.push(at, lane, Action::Set { to, byte: 0, bytes });
                }
            }
            InstKind::Copy { from, to } => return self.copy(at, inst, lane, from, to),
            InstKind::Fill { .. } | InstKind::Iota { .. } | InstKind::Map { .. } => {
                if let Some(link) = link(self.plan, inst, &|view| self.here(view))? {
                    return self.map(at, inst, lane, &link);
                }
            }
            InstKind::Gemm(it) => return self.gemm(at, inst, lane, it),
            InstKind::Reduce(it) => {
                let (input, out) = (self.here(&it.input)?, self.here(&it.out)?);
                if input.overlaps(&out) {
                    return Err(refuse("a reduction onto its own operand".to_owned()));
                }
                let room = match kernels::room(it, &input, &out).map_err(refuse)? {
                    0 => 0,
                    bytes => self.room(lane, 0, bytes)?,
                };
                for launch in kernels::fold(it, &input, &out, room).map_err(refuse)? {
                    self.launch(at, lane, Some(launch));
                }
            }
            InstKind::Combine { op, parts, out } => {
                let mut operands = Vec::new();
                for it in parts {
                    operands.push(Argument::View(self.located(it.rank, &it.view)?));
                }
                return self.map(
                    at,
                    inst,
                    lane,
                    &Link::new(kernels::Function::Combine(*op), operands, self.here(out)?),
                );
            }
            InstKind::Collective(it) => return self.collective(at, inst, lane, it),
            InstKind::Transfer(it) => return self.transfer(at, inst, lane, it),
            InstKind::Wait { work } => self.wait(at, lane, *work),
            InstKind::Signal { slot } => {
                let flag = self.flag(slot)?;
                let joins = match self.previous(lane.stream) {
                    Some(Action::Raise(flags)) => flags.add(flag),
                    _ => false,
                };
                if !joins {
                    self.push(at, lane, Action::Raise(Box::new(Flags::new(self.counter, flag))));
                }
            }
            InstKind::Await { slot } => {
                let flag = self.flag(slot)?;
                let joins = match self.previous(lane.stream) {
                    Some(Action::Await(flags)) => flags.add(flag),
                    _ => false,
                };
                if !joins {
                    self.push(at, lane, Action::Await(Box::new(Flags::new(self.counter, flag))));
                }
            }
            InstKind::Record { event } => {
                let event = self.events[*event as usize];
                self.push(at, lane, Action::Record(event));
            }
            InstKind::Join { event } => {
                let event = self.events[*event as usize];
                self.push(at, lane, Action::Wait(event));
            }
            // All memory is mapped before the first run, and hosts order nothing: streams run behind them.
            InstKind::Exchange { .. } | InstKind::Barrier => {}
            InstKind::Reshard(_) => {
                return Err(refuse(
                    "a resharding operator runs on the simulator only: lower it to communications first, with \
                     `--passes @lower`"
                        .to_owned(),
                ));
            }
            InstKind::Finish => self.push(at, lane, Action::Finish),
        }
        Ok(())
    }

    fn push(&mut self, inst: u32, lane: Lane, action: Action) {
        if let Action::Set { bytes: 0, .. } | Action::Copy { bytes: 0, .. } = action {
            return;
        }
        self.newest.insert(lane.stream, self.steps.len());
        self.steps.push(Step { action, lane, inst });
    }

    /// The last thing on a stream so far. More of the same may join it: nothing of the stream lies between.
    fn previous(&mut self, stream: Stream) -> Option<&mut Action> {
        let at = *self.newest.get(&stream)?;
        self.steps.get_mut(at).map(|it| &mut it.action)
    }

    fn launch(&mut self, inst: u32, lane: Lane, launch: Option<Launch>) {
        let Some(Launch { kernel, words, blocks }) = launch else { return };
        let function = COMMON.len() + self.kernels.number(&kernel);
        let most = match kernel {
            // Eight blocks of 256 threads fill a multiprocessor; more work is done in turns.
            Kernel::Chain { .. } | Kernel::Product { .. } => u64::from(self.device.processors) * 8,
            // Their registers leave room for fewer: each of these has enough to do, and the next one comes when it ends.
            Kernel::Fold { .. } => i32::MAX as u64,
            // Half as many as there are multiprocessors fill the links. All-reduces of different streams have to fit side by side:
            // a block waits for block 0 of every member (`kernels::all_reduce`).
            Kernel::AllReduce { .. } => {
                u64::from(self.device.processors) / (2 * self.all_reduce_streams.max(1))
            }
        };
        let grid = blocks.clamp(1, most.max(1)) as u32;
        self.push(inst, lane, Action::Launch { function, grid, words: words.into_boxed_slice() });
    }

    fn located<'v>(&self, rank: usize, view: &'v View) -> Result<Located<'v>, CudaError> {
        let address = self.memory.view(rank, view)?;
        let dtype = self.memory.dtype(rank, view);
        Ok(Located { address, dtype, view })
    }

    fn here<'v>(&self, view: &'v View) -> Result<Located<'v>, CudaError> {
        self.located(self.plan.rank, view)
    }

    fn flag(&self, slot: &Slot) -> Result<u64, CudaError> {
        let base = self.memory.symmetric.get(slot.to).copied().filter(|it| *it != 0);
        match (base, self.memory.layout.slot(slot)) {
            (Some(base), Some(offset)) => Ok(base + offset as u64),
            _ => Err(CudaError::Internal(format!("{slot:?} is not mapped"))),
        }
    }

    /// Room for as long as an instruction of a stream runs: `number` tells several of one instruction apart.
    fn room(&mut self, lane: Lane, number: usize, bytes: usize) -> Result<u64, CudaError> {
        let known = self.scratch.iter_mut().find(|it| it.stream == lane.stream && it.number == number);
        if let Some(room) = &known
            && room.bytes >= bytes
        {
            return Ok(room.address);
        }
        let address = self.memory.scratch(self.device, bytes)?;
        match known {
            Some(room) => (room.address, room.bytes) = (address, bytes),
            None => self.scratch.push(Scratch { stream: lane.stream, number, address, bytes }),
        }
        Ok(address)
    }
}
