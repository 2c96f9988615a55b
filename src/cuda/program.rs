//! From a plan to steps: each is one call with nothing left to decide.

use super::{
    CONNECTIONS,
    comm::{Comms, Group},
    device::{Device, Event, Function, Rows, Stream},
    error::CudaError,
    flags::Flags,
    gemm::{BIAS_ALIGNMENT, Form, Product, Products, WORKSPACE},
    kernels::{self, Argument, COMMON, Kernels, Launch, Located},
    memory::Memory,
};
use rustc_hash::FxHashMap;

use crate::plan::{Arg, Gemm, Inst, InstKind, Number, Place, Plan, Slot, View};

mod queue;

/// One call.
pub(super) enum Action {
    /// Bytes become equal.
    Set { to: u64, byte: u8, bytes: usize },
    /// Bytes move.
    Copy { to: u64, from: u64, bytes: usize },
    /// Rows of bytes move.
    Rows(Rows),
    /// A kernel runs; its number among the module's functions.
    Launch { function: usize, grid: u32, words: Box<[u64]> },
    /// A matrix product.
    Product(Box<Product>),
    /// Calls of NCCL.
    Group(Box<Group>),
    /// An event is set.
    Record(Event),
    /// The stream waits for an event.
    Wait(Event),
    /// Flags are raised to the number of the run.
    Raise(Box<Flags>),
    /// The stream waits until flags have come to the number of the run.
    Await(Box<Flags>),
    /// The outputs are read.
    Finish,
}

impl Action {
    /// Whether a captured plan has a node for it at least.
    pub fn is_node(&self) -> bool {
        match self {
            Self::Set { .. }
            | Self::Copy { .. }
            | Self::Rows(_)
            | Self::Launch { .. }
            | Self::Product(_)
            | Self::Group(_)
            | Self::Raise(_)
            | Self::Await(_) => true,
            Self::Record(_) | Self::Wait(_) | Self::Finish => false,
        }
    }
}

/// A call, its stream, and the instruction that it is for.
pub(super) struct Step {
    pub action: Action,
    pub stream: Stream,
    /// Index in `Plan::code`.
    pub inst: u32,
}

/// A prepared plan.
pub(super) struct Program {
    pub steps: Vec<Step>,
    /// All streams: those of the plan, then those of communicators.
    pub streams: Vec<Stream>,
    /// The functions of the module, the common ones first.
    pub functions: Vec<Function>,
    /// Where the device keeps the number of the run for captured runs.
    pub counter: u64,
    /// Steps that call a library for something new.
    pub firsts: Vec<usize>,
    /// What the user may want to know, by line.
    pub notes: Vec<String>,
}

/// What is known while a plan is prepared.
struct Builder<'a, 'm> {
    device: &'a Device,
    plan: &'a Plan,
    memory: &'a mut Memory<'m>,
    comms: &'a Comms,
    products: Option<Products>,
    kernels: Kernels,
    /// What libraries have been called for, and the steps that did it first.
    forms: Vec<Form>,
    firsts: Vec<usize>,
    steps: Vec<Step>,
    /// The last step of each stream.
    newest: FxHashMap<Stream, usize>,
    /// Where the device counts runs.
    counter: u64,
    streams: Vec<Stream>,
    /// The stream of each communicator.
    queues: Vec<Stream>,
    events: Vec<Event>,
    works: Vec<Event>,
    /// The queue of the last communication, and what is set when it is done, where communications take turns.
    last: Option<(Stream, Event)>,
    /// Room for cuBLASLt, by stream of the plan.
    workspaces: Vec<Option<u64>>,
    /// Room for what instructions keep while they run.
    rooms: Vec<Room>,
    notes: Vec<String>,
}

/// Memory that one instruction after another uses: a stream runs them in order.
struct Room {
    stream: Stream,
    /// An instruction that needs several takes them by number.
    number: usize,
    address: u64,
    bytes: usize,
}

/// Prepares a plan. `first` is the stream of everything before and after it, the plan's stream 0.
pub(super) fn prepare(
    device: &Device,
    plan: &Plan,
    memory: &mut Memory,
    comms: &Comms,
    first: Stream,
) -> Result<Program, CudaError> {
    let mut streams = vec![first];
    for number in 1..plan.streams.len() {
        streams.push(device.stream(only_moves(plan, number as u32))?);
    }
    let mut queues = Vec::new();
    for _ in &plan.communicators {
        queues.push(device.stream(true)?);
    }
    streams.extend(&queues);
    let event = |_| device.event(false);
    let counter = memory.scratch(device, 8)?;
    device.set(counter, 0, 8, first)?;
    let mut builder = Builder {
        device,
        plan,
        memory,
        comms,
        products: None,
        kernels: Kernels::default(),
        forms: Vec::new(),
        firsts: Vec::new(),
        steps: Vec::new(),
        newest: FxHashMap::default(),
        counter,
        queues,
        events: (0..plan.events).map(event).collect::<Result<_, _>>()?,
        works: (0..plan.works).map(event).collect::<Result<_, _>>()?,
        workspaces: vec![None; plan.streams.len()],
        last: None,
        rooms: Vec::new(),
        streams,
        notes: Vec::new(),
    };
    for (at, inst) in plan.code.iter().enumerate() {
        builder.instruction(at as u32, inst).map_err(|it| it.at(plan, inst))?;
    }
    let (source, names) = (builder.kernels.source(), builder.kernels.names());
    let cubin = kernels::nvrtc::compile(&source, device.capability)?;
    let functions = device.functions(&cubin, &names)?;
    let Builder { steps, firsts, streams, mut notes, products, .. } = builder;
    notes.dedup();
    let waits = steps.iter().any(|it| matches!(it.action, Action::Await(_)));
    if waits && streams.len() > CONNECTIONS {
        notes.push(format!(
            "{} streams share {CONNECTIONS} queues to the GPU: one that waits for another rank may hold up others",
            streams.len()
        ));
    }
    notes.extend(products.map(|it| it.describe_library()));
    Ok(Program { steps, streams, functions, counter, firsts, notes })
}

/// Whether a stream of a plan moves data between ranks and computes nothing else: it goes first where both could.
fn only_moves(plan: &Plan, stream: u32) -> bool {
    let mut moves = false;
    for inst in plan.code.iter().filter(|it| it.stream == stream) {
        match &inst.kind {
            InstKind::Gemm(_) | InstKind::Map { .. } | InstKind::Reduce(_) => return false,
            InstKind::Combine { .. } | InstKind::Signal { .. } | InstKind::Await { .. } => moves = true,
            InstKind::Alloc { .. }
            | InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Iota { .. }
            | InstKind::Collective(_)
            | InstKind::Transfer(_)
            | InstKind::Wait { .. }
            | InstKind::Record { .. }
            | InstKind::Join { .. }
            | InstKind::Exchange { .. }
            | InstKind::Barrier
            | InstKind::Reshard(_)
            | InstKind::Finish => {}
        }
    }
    moves
}

/// The dense form of a view's elements, where they lie in a row.
fn is_dense(view: &View) -> bool {
    let merged = kernels::merged(&view.shape, &[&view.strides]);
    view.len() <= 1 || (merged.extents.len() == 1 && merged.strides[0][0] == 1)
}

impl Builder<'_, '_> {
    fn instruction(&mut self, at: u32, inst: &Inst) -> Result<(), CudaError> {
        let stream = *self
            .streams
            .get(inst.stream as usize)
            .ok_or_else(|| CudaError::Internal(format!("no stream {}", inst.stream)))?;
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        match &inst.kind {
            InstKind::Alloc { buffer, zero } => {
                if *zero {
                    let to = self.memory.buffer(self.plan.rank, *buffer)?;
                    let bytes = self.memory.layout.ranks[self.plan.rank].spots[*buffer as usize].bytes;
                    self.push(at, stream, Action::Set { to, byte: 0, bytes });
                }
            }
            InstKind::Copy { from, to } => return self.copy(at, inst, stream, from, to),
            InstKind::Fill { to, value } => {
                let out = self.here(to)?;
                let number = Argument::Number(*value);
                let launch = kernels::map(kernels::Function::Move, &[number], &out).map_err(refuse)?;
                self.launch(at, stream, launch);
            }
            InstKind::Iota { to, start, step } => {
                let out = self.here(to)?;
                let numbers = [*start, *step].map(|it| Argument::Number(Number::Int(it)));
                let launch = kernels::map(kernels::Function::Iota, &numbers, &out).map_err(refuse)?;
                self.launch(at, stream, launch);
            }
            InstKind::Gemm(it) => return self.gemm(at, inst, stream, it),
            InstKind::Map { op, args, out } => {
                let overlaps = args.iter().any(|it| matches!(it, Arg::View(view) if overlaps(view, out)));
                let located = self.here(out)?;
                let mut operands = Vec::new();
                for it in args {
                    operands.push(match it {
                        Arg::View(view) => Argument::View(self.here(view)?),
                        Arg::Number(number) => Argument::Number(*number),
                    });
                }
                let function = kernels::Function::Op(*op);
                return self.map(at, inst, stream, function, &operands, &located, overlaps);
            }
            InstKind::Reduce(it) => {
                if overlaps(&it.input, &it.out) {
                    return Err(refuse("a reduction onto its own operand".to_owned()));
                }
                let (input, out) = (self.here(&it.input)?, self.here(&it.out)?);
                let launch = kernels::fold(it, &input, &out).map_err(refuse)?;
                self.launch(at, stream, launch);
            }
            InstKind::Combine { op, parts, out } => {
                let located = self.here(out)?;
                let mut operands = Vec::new();
                for it in parts {
                    operands.push(Argument::View(self.located(it.rank, &it.view)?));
                }
                let own = |it: &Place| it.rank == self.plan.rank && overlaps(&it.view, out);
                let overlaps = parts.iter().any(own);
                let function = kernels::Function::Combine(*op);
                return self.map(at, inst, stream, function, &operands, &located, overlaps);
            }
            InstKind::Collective(it) => return self.collective(at, inst, stream, it),
            InstKind::Transfer(it) => return self.transfer(at, inst, stream, it),
            InstKind::Wait { work } => {
                let event = self.works[*work as usize];
                self.push(at, stream, Action::Wait(event));
            }
            InstKind::Signal { slot } => {
                let flag = self.flag(slot)?;
                let joins = match self.previous(stream) {
                    Some(Action::Raise(flags)) => flags.add(flag),
                    _ => false,
                };
                if !joins {
                    self.push(at, stream, Action::Raise(Box::new(Flags::new(self.counter, flag))));
                }
            }
            InstKind::Await { slot } => {
                let flag = self.flag(slot)?;
                let joins = match self.previous(stream) {
                    Some(Action::Await(flags)) => flags.add(flag),
                    _ => false,
                };
                if !joins {
                    self.push(at, stream, Action::Await(Box::new(Flags::new(self.counter, flag))));
                }
            }
            InstKind::Record { event } => {
                let event = self.events[*event as usize];
                self.push(at, stream, Action::Record(event));
            }
            InstKind::Join { event } => {
                let event = self.events[*event as usize];
                self.push(at, stream, Action::Wait(event));
            }
            // All memory is mapped before the first run, and hosts order nothing: streams run behind them.
            InstKind::Exchange { .. } | InstKind::Barrier => {}
            InstKind::Reshard(_) => {
                return Err(refuse(
                    "a resharding operator runs on the simulator only: lower it first, with \
                     `--passes insert-resharding,…` (see `hir-opt --list-passes`)"
                        .to_owned(),
                ));
            }
            InstKind::Finish => self.push(at, stream, Action::Finish),
        }
        Ok(())
    }

    fn push(&mut self, inst: u32, stream: Stream, action: Action) {
        if let Action::Set { bytes: 0, .. } | Action::Copy { bytes: 0, .. } = action {
            return;
        }
        self.newest.insert(stream, self.steps.len());
        self.steps.push(Step { action, stream, inst });
    }

    /// The last thing on a stream so far. More of the same may join it: nothing of the stream lies between.
    fn previous(&mut self, stream: Stream) -> Option<&mut Action> {
        let at = *self.newest.get(&stream)?;
        self.steps.get_mut(at).map(|it| &mut it.action)
    }

    fn launch(&mut self, inst: u32, stream: Stream, launch: Option<Launch>) {
        let Some(Launch { kernel, words, blocks }) = launch else { return };
        let function = COMMON.len() + self.kernels.number(&kernel);
        // Eight blocks of 256 threads fill a multiprocessor; more work is done in turns.
        let most = u64::from(self.device.processors) * 8;
        let grid = blocks.clamp(1, most.max(1)) as u32;
        self.push(inst, stream, Action::Launch { function, grid, words: words.into_boxed_slice() });
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

    /// A map; through memory of its own where the result would overwrite operands that are still to be read.
    #[expect(clippy::too_many_arguments, reason = "one instruction's parts")]
    fn map(
        &mut self,
        at: u32,
        inst: &Inst,
        stream: Stream,
        function: kernels::Function,
        operands: &[Argument],
        out: &Located,
        overlaps: bool,
    ) -> Result<(), CudaError> {
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        if !overlaps {
            let launch = kernels::map(function, operands, out).map_err(refuse)?;
            self.launch(at, stream, launch);
            return Ok(());
        }
        let dense = View::contiguous(0, out.view.shape.clone());
        let address = self.room(stream, 0, dense.len() * out.dtype.size())?;
        let between = Located { address, dtype: out.dtype, view: &dense };
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        let first = kernels::map(function, operands, &between).map_err(refuse)?;
        let second =
            kernels::map(kernels::Function::Move, &[Argument::View(between)], out).map_err(refuse)?;
        self.launch(at, stream, first);
        self.launch(at, stream, second);
        Ok(())
    }

    /// Equal types move by the copy engine where their elements lie in rows, everything else by a kernel.
    fn copy(
        &mut self,
        at: u32,
        inst: &Inst,
        stream: Stream,
        from: &Place,
        to: &Place,
    ) -> Result<(), CudaError> {
        let (source, target) = (self.located(from.rank, &from.view)?, self.located(to.rank, &to.view)?);
        if from.view.is_empty()
            || (source.address == target.address
                && from.view.strides == to.view.strides
                && source.dtype == target.dtype)
        {
            return Ok(());
        }
        if from.view.shape != to.view.shape {
            let message = format!("a copy from shape {:?} to {:?}", from.view.shape, to.view.shape);
            return Err(CudaError::unsupported(self.plan, inst, message));
        }
        let overlaps = from.rank == to.rank && overlaps(&from.view, &to.view);
        if source.dtype == target.dtype && !overlaps {
            let size = source.dtype.size();
            let merged = kernels::merged(&to.view.shape, &[&to.view.strides, &from.view.strides]);
            let [into, out_of] = merged.strides.as_slice() else {
                return Err(CudaError::Internal("a copy of two views".to_owned()));
            };
            match (merged.extents.as_slice(), into.as_slice(), out_of.as_slice()) {
                ([_], [1], [1]) | ([1], _, _) => {
                    let bytes = merged.extents[0] * size;
                    let action = Action::Copy { to: target.address, from: source.address, bytes };
                    self.push(at, stream, action);
                    return Ok(());
                }
                // A stride of 0 repeats a row, which pitches cannot say.
                ([height, width], [to_row, 1], [from_row, 1]) if to_row >= width && from_row >= width => {
                    let rows = Rows {
                        from: source.address,
                        from_pitch: from_row * size,
                        to: target.address,
                        to_pitch: to_row * size,
                        width: width * size,
                        height: *height,
                    };
                    if rows.from_pitch.max(rows.to_pitch) < 1 << 31 {
                        self.push(at, stream, Action::Rows(rows));
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        self.map(at, inst, stream, kernels::Function::Move, &[Argument::View(source)], &target, overlaps)
    }

    fn gemm(&mut self, at: u32, inst: &Inst, stream: Stream, it: &Gemm) -> Result<(), CudaError> {
        let (a, b, out) = (self.here(&it.a)?, self.here(&it.b)?, self.here(&it.out)?);
        let bias = it.bias.as_ref().map(|it| self.here(it)).transpose()?;
        if overlaps(&it.a, &it.out) || overlaps(&it.b, &it.out) {
            return Err(CudaError::unsupported(self.plan, inst, "a matrix product onto its own operand"));
        }
        if out.view.is_empty() {
            return Ok(());
        }
        let why = match Form::of(&a, &b, bias.as_ref(), &out) {
            Ok(form) => {
                let products = match self.products {
                    Some(it) => it,
                    None => *self.products.insert(Products::new()?),
                };
                let workspace = self.workspace(inst.stream as usize)?;
                let addresses = [a.address, b.address, out.address];
                let mut address = bias.as_ref().map_or(0, |it| it.address);
                if let Some(bytes) = form.vector_bytes().filter(|_| !address.is_multiple_of(BIAS_ALIGNMENT)) {
                    let room = self.room(stream, 0, bytes)?;
                    self.push(at, stream, Action::Copy { to: room, from: address, bytes });
                    address = room;
                }
                if let Some(product) = products.prepare(&form, addresses, address, workspace)? {
                    if !self.forms.contains(&form) {
                        self.firsts.push(self.steps.len());
                        self.forms.push(form);
                    }
                    self.push(at, stream, Action::Product(Box::new(product)));
                    return Ok(());
                }
                "cuBLASLt has no algorithm for it".to_owned()
            }
            Err(why) => why,
        };
        if it.bias.as_ref().is_some_and(|bias| overlaps(bias, &it.out)) {
            let message = format!("a matrix product onto its bias, which cuBLASLt does not do: {why}");
            return Err(CudaError::unsupported(self.plan, inst, message));
        }
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        let launch = kernels::product(&a, &b, bias.as_ref(), &out).map_err(refuse)?;
        self.notes
            .push(format!("{}: the matrix product runs on a plain kernel: {why}", self.plan.place(inst)));
        self.launch(at, stream, launch);
        Ok(())
    }

    /// Room for as long as an instruction of a stream runs: `number` tells several of one instruction apart.
    fn room(&mut self, stream: Stream, number: usize, bytes: usize) -> Result<u64, CudaError> {
        let known = self.rooms.iter_mut().find(|it| it.stream == stream && it.number == number);
        if let Some(room) = &known
            && room.bytes >= bytes
        {
            return Ok(room.address);
        }
        let address = self.memory.scratch(self.device, bytes)?;
        match known {
            Some(room) => (room.address, room.bytes) = (address, bytes),
            None => self.rooms.push(Room { stream, number, address, bytes }),
        }
        Ok(address)
    }

    /// Products on one stream share room; streams run side by side.
    fn workspace(&mut self, stream: usize) -> Result<u64, CudaError> {
        if let Some(address) = self.workspaces[stream] {
            return Ok(address);
        }
        let address = self.memory.scratch(self.device, WORKSPACE)?;
        self.workspaces[stream] = Some(address);
        Ok(address)
    }
}

/// Whether writing one view may change elements of another that differs from it. Views of equal place and strides are
/// written where they were read.
fn overlaps(read: &View, written: &View) -> bool {
    if read.buffer != written.buffer || read == written || read.is_empty() || written.is_empty() {
        return false;
    }
    let range = |view: &View| {
        let last: usize = view.shape.iter().zip(&view.strides).map(|(n, s)| (n - 1) * s).sum();
        (view.offset, view.offset + last)
    };
    let ((first, last), (start, end)) = (range(read), range(written));
    if last < start || end < first {
        return false;
    }
    // Columns of one matrix lie in each other's range without touching.
    let row = |view: &View| {
        let outer = view.strides.iter().max().copied().unwrap_or(0);
        let at = view.strides.iter().position(|it| *it == outer)?;
        let inner: usize = (0..view.shape.len())
            .filter(|it| *it != at)
            .map(|it| (view.shape[it] - 1) * view.strides[it])
            .sum();
        Some((outer, view.offset.checked_rem(outer)?, inner))
    };
    match (row(read), row(written)) {
        (Some((outer, a, a_len)), Some((pitch, b, b_len))) if outer == pitch => {
            let inside = a + a_len < outer && b + b_len < outer;
            !(inside && (a + a_len < b || b + b_len < a))
        }
        _ => true,
    }
}
