//! Lowers a plan to commands: each is one call whose arguments are all known.

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

use crate::plan::{
    Inst, InstClass, InstKind, KernelKind, KernelRange, Plan, SignalId, SignalKind, StreamNo, View,
};

mod command;
mod communication;
mod elementwise;
mod fusion;
mod matmul;
mod packets;
mod peer_memory;
mod stream_assignment;

pub(super) use command::{Command, Executable, LogicalStream, ScheduledCommand};
use elementwise::elementwise_op;
use fusion::{FusionRole, fusion_roles};

/// The state of lowering a plan.
struct ExecutableBuilder<'a> {
    device: &'a Device,
    plan: &'a Plan,
    memory: &'a mut DeviceMemory,
    comms: &'a Communicators,
    cublaslt: &'a mut Option<CublasLtHandle>,
    kernels: Kernels,
    /// The matrix products prepared so far, and the commands that call a library with new arguments first.
    matmul_descs: Vec<MatmulDesc>,
    first_calls: Vec<usize>,
    /// The matrix products for which algorithms can be chosen.
    products: matmul::Products,
    commands: Vec<ScheduledCommand>,
    /// Index of the last command of each stream.
    last_on_stream: FxHashMap<Stream, usize>,
    /// Device address of the epoch.
    epoch_address: u64,
    /// Whether a kernel reads the epoch.
    kernels_read_epoch: bool,
    /// Indexed by stream of the plan, then by communicator.
    logical_streams: Vec<LogicalStream>,
    events: Vec<Event>,
    /// By work: the event recorded when a communication is complete; `None` if it runs on the stream that
    /// waits for it.
    completion_events: Vec<Option<Event>>,
    /// The stream of the last NCCL group and the event recorded behind it, if communications are serialized.
    last_nccl_group: Option<(Stream, Event)>,
    /// The cuBLASLt workspace of each stream of the plan.
    workspaces: Vec<Option<u64>>,
    /// Scratch memory of instructions, by stream.
    scratch: Vec<Scratch>,
    /// Device addresses of the block counters of kernels over peer memory, by stream.
    block_counters: FxHashMap<Stream, u64>,
    /// Maximum number of blocks of a kernel that waits for other ranks.
    waiting_blocks: u64,
    /// Number of different flags of packets in a run.
    flags_per_run: u32,
    notes: Vec<String>,
}

/// Scratch memory that the instructions of one stream use in turn.
struct Scratch {
    stream: Stream,
    /// Distinguishes the blocks of an instruction that needs several.
    number: usize,
    address: u64,
    bytes: usize,
}

/// Returns the maximum number of blocks of an instruction range that runs as one kernel. All ranks launch the same
/// grids, because packets require it.
///
/// Such kernels wait for blocks of other ranks (`kernels::peer_memory`, `kernels::packets`), so those on different
/// streams must be resident together: they share the multiprocessors. Half of the multiprocessors remain for other
/// streams that compute, and for NCCL, whose blocks wait too and need most of a multiprocessor's registers.
/// `benches/gpu/NOTES.md` has the figures.
pub(super) fn count_waiting_blocks(plans: &[Plan], multiprocessors: u32) -> u64 {
    let waiting = |plan: &Plan| -> FxHashSet<StreamNo> {
        plan.kernels.iter().filter_map(|it| plan.code.get(it.range.start)).map(|it| it.stream).collect()
    };
    let (mut most, mut shares) = (1, 1);
    for plan in plans {
        let waiting = waiting(plan);
        let computes =
            |it: &Inst| it.kind.work_info().kind == InstClass::Compute && !waiting.contains(&it.stream);
        if plan.communicators.iter().any(|it| it.team.len() > 1) || plan.code.iter().any(computes) {
            shares = 2;
        }
        most = most.max(waiting.len() as u64);
    }
    u64::from(multiprocessors) / (most * shares)
}

/// Returns the number of flags that the collectives of a team need in one run.
fn count_flags(plans: &[Plan]) -> u32 {
    let signals = plans.iter().flat_map(|plan| &plan.code).filter_map(|inst| match &inst.kind {
        InstKind::Signal { signal } => Some(signal),
        _ => None,
    });
    let indices = signals.filter(|it| matches!(it.kind, SignalKind::TeamData(_))).map(|it| it.index);
    indices.max().map_or(0, |it| it + 1)
}

/// Lowers a plan. `first` is the main stream, which is stream 0 of the plan.
pub(super) fn prepare(
    device: &Device,
    plan: &Plan,
    memory: &mut DeviceMemory,
    comms: &Communicators,
    libraries: &mut LibraryState,
    first: Stream,
) -> Result<Executable, CudaError> {
    let (streams, logical_streams) = stream_assignment::assign_streams(device, plan, first)?;
    let event = |_| device.event(false);
    let epoch_address = memory.allocate_scratch(device, 8)?;
    device.memset(epoch_address, 0, 8, first)?;
    let waiting_blocks = count_waiting_blocks(memory.plans(), device.multiprocessors);
    let flags_per_run = count_flags(memory.plans());
    let mut builder = ExecutableBuilder {
        device,
        plan,
        memory,
        comms,
        cublaslt: &mut libraries.cublaslt,
        kernels: Kernels::default(),
        matmul_descs: Vec::new(),
        first_calls: Vec::new(),
        products: matmul::Products::default(),
        commands: Vec::new(),
        last_on_stream: FxHashMap::default(),
        epoch_address,
        kernels_read_epoch: false,
        logical_streams,
        events: (0..plan.event_count).map(event).collect::<Result<_, _>>()?,
        completion_events: vec![None; plan.work_count],
        workspaces: vec![None; plan.streams.len()],
        last_nccl_group: None,
        scratch: Vec::new(),
        block_counters: FxHashMap::default(),
        waiting_blocks,
        flags_per_run,
        notes: Vec::new(),
    };
    let slices = &builder.memory.assignment.ranks[plan.rank].buffers;
    let is_shared = |it| slices.get(it as usize).is_none_or(|it| it.is_symmetric);
    let mut fused = Vec::new();
    // The products whose epilogue computes the `relu` behind them.
    let mut with_relu: FxHashSet<u32> = FxHashSet::default();
    let roles = fusion_roles(plan, |view| builder.local_view(view), is_shared);
    let mut done = 0;
    for ((at, inst), role) in (0..).zip(&plan.code).zip(roles) {
        if at < done {
            continue;
        }
        let marked = plan.kernels.binary_search_by_key(&(at as usize), |it| it.range.start);
        if let Some(KernelRange { range, kind }) = marked.ok().map(|it| &plan.kernels[it]) {
            let stream = builder.logical_streams[inst.stream as usize];
            let lowered = match kind {
                KernelKind::PeerMemory => builder.fuse_peer_memory(range, stream),
                KernelKind::Packets(format) => builder.lower_packets(range, *format, stream).map(Some),
            };
            if let Some(step) = lowered.map_err(|it| it.at_inst(plan, inst))? {
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
            FusionRole::ProductWithRelu(relu) => {
                if builder.lower_with_relu(at, relu).map_err(|it| it.at_inst(plan, inst))? {
                    with_relu.insert(at);
                } else {
                    builder.lower_inst(at, inst).map_err(|it| it.at_inst(plan, inst))?;
                }
            }
            FusionRole::ReluOf(product) if with_relu.contains(&product) => fused.push((at, product)),
            FusionRole::ReluOf(_) => builder.lower_inst(at, inst).map_err(|it| it.at_inst(plan, inst))?,
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
        commands,
        first_calls,
        products,
        mut notes,
        cublaslt,
        matmul_descs,
        kernels_read_epoch,
        ..
    } = builder;
    notes.dedup();
    let has_signals = kernels_read_epoch
        || commands.iter().any(|it| matches!(it.command, Command::Signal(_) | Command::WaitSignal(_)));
    let made = device.stream_count();
    if has_signals && made > CONNECTIONS {
        notes.push(format!(
            "{made} streams share {CONNECTIONS} queues to the GPU: one that waits for another rank may block others"
        ));
    }
    notes
        .extend(cublaslt.as_ref().filter(|_| !matmul_descs.is_empty()).map(CublasLtHandle::describe_library));
    Ok(Executable {
        commands,
        streams,
        functions,
        epoch_address,
        kernels_read_epoch,
        first_calls,
        products: products.list,
        fused,
        notes,
    })
}

/// Returns true if the elements of a view are contiguous in row-major order.
fn is_dense(view: &View) -> bool {
    let merged = kernels::merge_dims(&view.shape, &[&view.strides]);
    view.len() <= 1 || (merged.extents.len() == 1 && merged.strides[0][0] == 1)
}

impl ExecutableBuilder<'_> {
    fn lower_inst(&mut self, at: u32, inst: &Inst) -> Result<(), CudaError> {
        let stream = *self
            .logical_streams
            .get(inst.stream as usize)
            .ok_or_else(|| CudaError::Internal(format!("no stream {}", inst.stream)))?;
        let refuse = |message: String| CudaError::unsupported(self.plan, inst, message);
        match &inst.kind {
            InstKind::Alloc { buffer, zero } => {
                if *zero {
                    let to = self.memory.buffer_address(self.plan.rank, *buffer)?;
                    let bytes = self.memory.assignment.ranks[self.plan.rank].buffers[*buffer as usize].bytes;
                    self.push(at, stream, Command::Memset { to, byte: 0, bytes });
                }
            }
            InstKind::Copy { from, to } => return self.lower_copy(at, inst, stream, from, to),
            InstKind::Fill { .. } | InstKind::Iota { .. } | InstKind::Map { .. } => {
                if let Some(op) = elementwise_op(self.plan, inst, &|view| self.local_view(view))? {
                    return self.lower_elementwise(at, inst, stream, &op);
                }
            }
            InstKind::Gemm(it) => return self.lower_matmul(at, inst, stream, it, None).map(|_| ()),
            InstKind::Reduce(it) => {
                let (input, out) = (self.local_view(&it.input)?, self.local_view(&it.out)?);
                if input.may_partially_overlap(&out) {
                    return Err(refuse("the result of a reduction overlaps its operand".to_owned()));
                }
                let scratch = match kernels::reduce_scratch_bytes(it, &input, &out).map_err(refuse)? {
                    0 => 0,
                    bytes => self.scratch_buffer(stream, 0, bytes)?,
                };
                for launch in kernels::reduce_launches(it, &input, &out, scratch).map_err(refuse)? {
                    self.push_launch(at, stream, Some(launch));
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
                    stream,
                    &ElementwiseOp::new(
                        kernels::ScalarFunction::Reduce(*op),
                        operands,
                        self.local_view(out)?,
                    ),
                );
            }
            InstKind::Collective(it) => return self.lower_collective(at, inst, stream, it),
            InstKind::Transfer(it) => return self.lower_transfer(at, inst, stream, it),
            InstKind::Wait { work } => self.lower_wait(at, stream, *work),
            InstKind::Signal { signal } => {
                let signal = self.signal_address(signal)?;
                let joins = match self.last_command(stream.stream) {
                    Some(Command::Signal(batch)) => batch.add(signal),
                    _ => false,
                };
                if !joins {
                    self.push(at, stream, Command::Signal(Box::new(SignalBatch::new(signal))));
                }
            }
            InstKind::WaitSignal { signal } => {
                let signal = self.signal_address(signal)?;
                let joins = match self.last_command(stream.stream) {
                    Some(Command::WaitSignal(batch)) => batch.add(signal),
                    _ => false,
                };
                if !joins {
                    self.push(at, stream, Command::WaitSignal(Box::new(SignalBatch::new(signal))));
                }
            }
            InstKind::RecordEvent { event } => {
                let event = self.events[*event as usize];
                self.push(at, stream, Command::RecordEvent(event));
            }
            InstKind::WaitEvent { event } => {
                let event = self.events[*event as usize];
                self.push(at, stream, Command::WaitEvent(event));
            }
            // All memory is mapped before the first run. A barrier between hosts orders nothing: streams run
            // asynchronously.
            InstKind::ShareMemHandles { .. } | InstKind::Barrier => {}
            InstKind::Reshard(_) => {
                return Err(refuse(
                    "a resharding operator runs on the simulator only: lower it to communications first, with \
                     `--passes @lower`"
                        .to_owned(),
                ));
            }
            InstKind::ReadOutputs => self.push(at, stream, Command::ReadOutputs),
        }
        Ok(())
    }

    fn push(&mut self, inst: u32, stream: LogicalStream, command: Command) {
        if let Command::Memset { bytes: 0, .. } | Command::Copy { bytes: 0, .. } = command {
            return;
        }
        self.last_on_stream.insert(stream.stream, self.commands.len());
        self.commands.push(ScheduledCommand { command, stream, inst });
    }

    /// Returns the last command on a stream. A command of the same kind may be merged into it, because the
    /// stream does nothing in between.
    fn last_command(&mut self, stream: Stream) -> Option<&mut Command> {
        let at = *self.last_on_stream.get(&stream)?;
        self.commands.get_mut(at).map(|it| &mut it.command)
    }

    fn push_launch(&mut self, inst: u32, stream: LogicalStream, launch: Option<Launch>) {
        let Some(Launch { kernel, params, blocks }) = launch else { return };
        let function = COMMON_KERNELS.len() + self.kernels.number(&kernel);
        let most = match kernel {
            // Eight blocks of 256 threads fill a multiprocessor; a grid-stride loop does the rest.
            Kernel::Elementwise(_) | Kernel::Matmul(_) => u64::from(self.device.multiprocessors) * 8,
            // Fewer of these blocks fit, because they use more registers. Each has enough to do, and the next
            // one starts when it ends.
            Kernel::Reduce(_) | Kernel::Row(_) => i32::MAX as u64,
            Kernel::PeerMemory(_) | Kernel::Packets(_) => self.waiting_blocks,
        };
        let grid = blocks.clamp(1, most.max(1)) as u32;
        self.push(inst, stream, Command::Launch { function, grid, params: params.into_boxed_slice() });
    }

    fn device_view<'v>(&self, rank: usize, view: &'v View) -> Result<DeviceView<'v>, CudaError> {
        let address = self.memory.view_address(rank, view)?;
        let dtype = self.memory.view_dtype(rank, view);
        Ok(DeviceView { address, dtype, view })
    }

    fn local_view<'v>(&self, view: &'v View) -> Result<DeviceView<'v>, CudaError> {
        self.device_view(self.plan.rank, view)
    }

    fn signal_address(&self, signal: &SignalId) -> Result<u64, CudaError> {
        let base = self.memory.symmetric.get(signal.to).copied().filter(|it| *it != 0);
        match (base, self.memory.assignment.signal_offset(signal)) {
            (Some(base), Some(offset)) => Ok(base + offset as u64),
            _ => Err(CudaError::Internal(format!("{signal:?} is not mapped"))),
        }
    }

    /// Returns scratch memory for the duration of one instruction of a stream; `number` distinguishes several
    /// blocks of one instruction.
    fn scratch_buffer(
        &mut self,
        stream: LogicalStream,
        number: usize,
        bytes: usize,
    ) -> Result<u64, CudaError> {
        let known = self.scratch.iter_mut().find(|it| it.stream == stream.stream && it.number == number);
        if let Some(scratch) = &known
            && scratch.bytes >= bytes
        {
            return Ok(scratch.address);
        }
        let address = self.memory.allocate_scratch(self.device, bytes)?;
        match known {
            Some(scratch) => (scratch.address, scratch.bytes) = (address, bytes),
            None => self.scratch.push(Scratch { stream: stream.stream, number, address, bytes }),
        }
        Ok(address)
    }
}
