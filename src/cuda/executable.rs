//! From a plan to steps: each is one call with nothing left to decide.

use super::{
    CONNECTIONS,
    comm::Communicators,
    device::{Copy2d, Device, Event, Stream},
    error::CudaError,
    kernels::{self, COMMON_KERNELS, DeviceView, ElementwiseArg, ElementwiseOp, Kernel, Kernels, Launch},
    library_state::LibraryState,
    matmul::{CublasLtHandle, MatmulDesc},
    memory::DeviceMemory,
    signals::SignalBatch,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::plan::{Inst, InstKind, Plan, SignalId, View};

mod all_reduce;
mod command;
mod communication;
mod elementwise;
mod fusion;
mod matmul;
mod stream_assignment;

pub(super) use command::{Command, Executable, LogicalStream, ScheduledCommand};
use elementwise::elementwise_op;
use fusion::{FusionRole, fusion_roles};

/// What is known while a plan is prepared.
struct ExecutableBuilder<'a> {
    device: &'a Device,
    plan: &'a Plan,
    memory: &'a mut DeviceMemory,
    comms: &'a Communicators,
    cublaslt: &'a mut Option<CublasLtHandle>,
    kernels: Kernels,
    /// What libraries have been called for, and the steps that did it first.
    matmul_descs: Vec<MatmulDesc>,
    first_calls: Vec<usize>,
    commands: Vec<ScheduledCommand>,
    /// The last step of each stream.
    last_on_stream: FxHashMap<Stream, usize>,
    /// Where the device counts runs.
    epoch_address: u64,
    /// Whether a kernel reads it.
    kernels_read_epoch: bool,
    /// By stream of the plan, then by communicator.
    logical_streams: Vec<LogicalStream>,
    events: Vec<Event>,
    /// What is set when a communication is done; `None` where it runs on the stream that waits for it.
    completion_events: Vec<Option<Event>>,
    /// The queue of the last communication, and what is set when it is done, where communications take turns.
    last_nccl_group: Option<(Stream, Event)>,
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
fn count_all_reduce_streams(plan: &Plan) -> u64 {
    let streams = plan.kernels.iter().filter_map(|it| plan.code.get(it.start)).map(|it| it.stream);
    streams.collect::<FxHashSet<_>>().len() as u64
}

/// Prepares a plan. `first` is the stream of everything before and after it, the plan's stream 0.
pub(super) fn prepare(
    device: &Device,
    plan: &Plan,
    memory: &mut DeviceMemory,
    comms: &Communicators,
    libraries: &mut LibraryState,
    first: Stream,
) -> Result<Executable, CudaError> {
    let (streams, lanes) = stream_assignment::assign_streams(device, plan, first)?;
    let event = |_| device.event(false);
    let counter = memory.allocate_scratch(device, 8)?;
    device.memset(counter, 0, 8, first)?;
    let mut builder = ExecutableBuilder {
        device,
        plan,
        memory,
        comms,
        cublaslt: &mut libraries.cublaslt,
        kernels: Kernels::default(),
        matmul_descs: Vec::new(),
        first_calls: Vec::new(),
        commands: Vec::new(),
        last_on_stream: FxHashMap::default(),
        epoch_address: counter,
        kernels_read_epoch: false,
        logical_streams: lanes,
        events: (0..plan.event_count).map(event).collect::<Result<_, _>>()?,
        completion_events: vec![None; plan.work_count],
        workspaces: vec![None; plan.streams.len()],
        last_nccl_group: None,
        scratch: Vec::new(),
        block_counters: FxHashMap::default(),
        all_reduce_streams: count_all_reduce_streams(plan),
        notes: Vec::new(),
    };
    let spots = &builder.memory.assignment.ranks[plan.rank].buffers;
    let is_shared = |it| spots.get(it as usize).is_none_or(|it| it.is_symmetric);
    let mut fused = Vec::new();
    let roles = fusion_roles(plan, |view| builder.local_view(view), is_shared);
    let mut done = 0;
    for ((at, inst), role) in (0..).zip(&plan.code).zip(roles) {
        if at < done {
            continue;
        }
        let marked = plan.kernels.binary_search_by_key(&(at as usize), |it| it.start);
        if let Some(range) = marked.ok().map(|it| plan.kernels[it].clone()) {
            let lane = builder.logical_streams[inst.stream as usize];
            if let Some(step) = builder.fuse_all_reduce(&range, lane).map_err(|it| it.at_inst(plan, inst))? {
                done = range.end as u32;
                fused.extend((at..done).filter(|it| *it != step).map(|it| (it, step)));
                continue;
            }
        }
        match role {
            FusionRole::Unfused => builder.lower_inst(at, inst).map_err(|it| it.at_inst(plan, inst))?,
            FusionRole::Leader(launch) => {
                builder.push_launch(at, builder.logical_streams[inst.stream as usize], Some(*launch))
            }
            FusionRole::FusedInto(first) => fused.push((at, first)),
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
    let functions = device.load_kernels(cubin, &names)?;
    let ExecutableBuilder {
        commands: steps,
        first_calls: firsts,
        mut notes,
        cublaslt: products,
        matmul_descs: forms,
        kernels_read_epoch: reads_counter,
        ..
    } = builder;
    notes.dedup();
    let has_flags = reads_counter
        || steps.iter().any(|it| matches!(it.command, Command::Signal(_) | Command::WaitSignal(_)));
    let made = device.stream_count();
    if has_flags && made > CONNECTIONS {
        notes.push(format!(
            "{made} streams share {CONNECTIONS} queues to the GPU: one that waits for another rank may hold up others"
        ));
    }
    notes.extend(products.as_ref().filter(|_| !forms.is_empty()).map(CublasLtHandle::describe_library));
    Ok(Executable {
        commands: steps,
        streams,
        functions,
        epoch_address: counter,
        kernels_read_epoch: reads_counter,
        has_signals: has_flags,
        first_calls: firsts,
        fused,
        notes,
    })
}

/// The dense form of a view's elements, where they lie in a row.
fn is_dense(view: &View) -> bool {
    let merged = kernels::merge_dims(&view.shape, &[&view.strides]);
    view.len() <= 1 || (merged.extents.len() == 1 && merged.strides[0][0] == 1)
}

impl ExecutableBuilder<'_> {
    fn lower_inst(&mut self, at: u32, inst: &Inst) -> Result<(), CudaError> {
        let lane = *self
            .logical_streams
            .get(inst.stream as usize)
            .ok_or_else(|| CudaError::Internal(format!("no stream {}", inst.stream)))?;
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        match &inst.kind {
            InstKind::Alloc { buffer, zero } => {
                if *zero {
                    let to = self.memory.buffer_address(self.plan.rank, *buffer)?;
                    let bytes = self.memory.assignment.ranks[self.plan.rank].buffers[*buffer as usize].bytes;
                    self.push(at, lane, Command::Memset { to, byte: 0, bytes });
                }
            }
            InstKind::Copy { from, to } => return self.lower_copy(at, inst, lane, from, to),
            InstKind::Fill { .. } | InstKind::Iota { .. } | InstKind::Map { .. } => {
                if let Some(link) = elementwise_op(self.plan, inst, &|view| self.local_view(view))? {
                    return self.lower_elementwise(at, inst, lane, &link);
                }
            }
            InstKind::Gemm(it) => return self.lower_matmul(at, inst, lane, it),
            InstKind::Reduce(it) => {
                let (input, out) = (self.local_view(&it.input)?, self.local_view(&it.out)?);
                if input.may_partially_overlap(&out) {
                    return Err(refuse("a reduction onto its own operand".to_owned()));
                }
                let room = match kernels::reduce_scratch_bytes(it, &input, &out).map_err(refuse)? {
                    0 => 0,
                    bytes => self.scratch_buffer(lane, 0, bytes)?,
                };
                for launch in kernels::reduce_launches(it, &input, &out, room).map_err(refuse)? {
                    self.push_launch(at, lane, Some(launch));
                }
            }
            InstKind::PeerReduce { op, parts, out } => {
                let mut operands = Vec::new();
                for it in parts {
                    operands.push(ElementwiseArg::View(self.device_view(it.rank, &it.view)?));
                }
                return self.lower_elementwise(
                    at,
                    inst,
                    lane,
                    &ElementwiseOp::new(
                        kernels::ScalarFunction::Reduce(*op),
                        operands,
                        self.local_view(out)?,
                    ),
                );
            }
            InstKind::Collective(it) => return self.lower_collective(at, inst, lane, it),
            InstKind::Transfer(it) => return self.lower_transfer(at, inst, lane, it),
            InstKind::Wait { work } => self.lower_wait(at, lane, *work),
            InstKind::Signal { signal: slot } => {
                let flag = self.signal_address(slot)?;
                let joins = match self.last_command(lane.stream) {
                    Some(Command::Signal(flags)) => flags.add(flag),
                    _ => false,
                };
                if !joins {
                    self.push(
                        at,
                        lane,
                        Command::Signal(Box::new(SignalBatch::new(self.epoch_address, flag))),
                    );
                }
            }
            InstKind::WaitSignal { signal: slot } => {
                let flag = self.signal_address(slot)?;
                let joins = match self.last_command(lane.stream) {
                    Some(Command::WaitSignal(flags)) => flags.add(flag),
                    _ => false,
                };
                if !joins {
                    self.push(
                        at,
                        lane,
                        Command::WaitSignal(Box::new(SignalBatch::new(self.epoch_address, flag))),
                    );
                }
            }
            InstKind::RecordEvent { event } => {
                let event = self.events[*event as usize];
                self.push(at, lane, Command::RecordEvent(event));
            }
            InstKind::WaitEvent { event } => {
                let event = self.events[*event as usize];
                self.push(at, lane, Command::WaitEvent(event));
            }
            // All memory is mapped before the first run, and hosts order nothing: streams run behind them.
            InstKind::ShareMemHandles { .. } | InstKind::Barrier => {}
            InstKind::Reshard(_) => {
                return Err(refuse(
                    "a resharding operator runs on the simulator only: lower it to communications first, with \
                     `--passes @lower`"
                        .to_owned(),
                ));
            }
            InstKind::ReadOutputs => self.push(at, lane, Command::ReadOutputs),
        }
        Ok(())
    }

    fn push(&mut self, inst: u32, lane: LogicalStream, action: Command) {
        if let Command::Memset { bytes: 0, .. } | Command::Copy { bytes: 0, .. } = action {
            return;
        }
        self.last_on_stream.insert(lane.stream, self.commands.len());
        self.commands.push(ScheduledCommand { command: action, stream: lane, inst });
    }

    /// The last thing on a stream so far. More of the same may join it: nothing of the stream lies between.
    fn last_command(&mut self, stream: Stream) -> Option<&mut Command> {
        let at = *self.last_on_stream.get(&stream)?;
        self.commands.get_mut(at).map(|it| &mut it.command)
    }

    fn push_launch(&mut self, inst: u32, lane: LogicalStream, launch: Option<Launch>) {
        let Some(Launch { kernel, params: words, blocks }) = launch else { return };
        let function = COMMON_KERNELS.len() + self.kernels.number(&kernel);
        let most = match kernel {
            // Eight blocks of 256 threads fill a multiprocessor; more work is done in turns.
            Kernel::Elementwise { .. } | Kernel::Matmul { .. } => u64::from(self.device.multiprocessors) * 8,
            // Their registers leave room for fewer: each of these has enough to do, and the next one comes when it ends.
            Kernel::Reduce { .. } => i32::MAX as u64,
            // Half as many as there are multiprocessors fill the links. All-reduces of different streams have to fit side by side:
            // a block waits for block 0 of every member (`kernels::all_reduce`).
            Kernel::AllReduce { .. } => {
                u64::from(self.device.multiprocessors) / (2 * self.all_reduce_streams.max(1))
            }
        };
        let grid = blocks.clamp(1, most.max(1)) as u32;
        self.push(inst, lane, Command::Launch { function, grid, params: words.into_boxed_slice() });
    }

    fn device_view<'v>(&self, rank: usize, view: &'v View) -> Result<DeviceView<'v>, CudaError> {
        let address = self.memory.view_address(rank, view)?;
        let dtype = self.memory.view_dtype(rank, view);
        Ok(DeviceView { address, dtype, view })
    }

    fn local_view<'v>(&self, view: &'v View) -> Result<DeviceView<'v>, CudaError> {
        self.device_view(self.plan.rank, view)
    }

    fn signal_address(&self, slot: &SignalId) -> Result<u64, CudaError> {
        let base = self.memory.symmetric.get(slot.to).copied().filter(|it| *it != 0);
        match (base, self.memory.assignment.signal_offset(slot)) {
            (Some(base), Some(offset)) => Ok(base + offset as u64),
            _ => Err(CudaError::Internal(format!("{slot:?} is not mapped"))),
        }
    }

    /// Room for as long as an instruction of a stream runs: `number` tells several of one instruction apart.
    fn scratch_buffer(&mut self, lane: LogicalStream, number: usize, bytes: usize) -> Result<u64, CudaError> {
        let known = self.scratch.iter_mut().find(|it| it.stream == lane.stream && it.number == number);
        if let Some(room) = &known
            && room.bytes >= bytes
        {
            return Ok(room.address);
        }
        let address = self.memory.allocate_scratch(self.device, bytes)?;
        match known {
            Some(room) => (room.address, room.bytes) = (address, bytes),
            None => self.scratch.push(Scratch { stream: lane.stream, number, address, bytes }),
        }
        Ok(address)
    }
}
