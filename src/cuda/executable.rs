//! Lowers a plan to commands: each is one call whose arguments are all known.

use super::{
    CONNECTIONS, ExecutorError, Result,
    buffer_assignment::REGISTER_BASE,
    comm::Communicators,
    cudnn,
    device::{Device, Event, KernelFunction, Stream},
    kernels::{self, COMMON_KERNELS, DeviceView, Kernel, Kernels, Launch},
    library_state::LibraryState,
    matmul::{CublasLtHandle, MatmulDesc},
    memory::DeviceMemory,
};
use std::{fmt::Display, sync::Arc};

use grammar::DType;
use hir_executor::AttentionLibrary;
use rustc_hash::{FxHashMap, FxHashSet};

use hir_plan::{CostClass, Inst, PeerPhases, Plan, SignalId, StreamNo, View};

mod attention;
mod caller_memory;
mod command;
mod communication;
mod elementwise;
mod fusion;
mod instruction;
mod library_attention;
mod matmul;
mod packets;
mod peer_memory;
mod registers;
mod routine;
mod stream_assignment;

pub(super) use caller_memory::{BoundMemory, CallerBuffer, CallerMemory};
pub(super) use command::{Command, Executable, LogicalStream, LoopExit, ScheduledCommand};
pub use fusion::fused_instructions;
use fusion::{FusionRole, FusionScope, fusion_roles};
pub(super) use library_attention::workspaces;
pub(super) use registers::{assign_memory, memory_report};

const NO_EPILOGUE: &str = "`epilogue=true` has no effect: what follows the Wait on the same stream does not use the result, or \
                           no kernel computes it by rows";

/// The state of lowering a plan.
struct ExecutableBuilder<'a> {
    device: &'a Device,
    plan: &'a Plan,
    memory: &'a mut DeviceMemory,
    comms: &'a Communicators,
    cublaslt: &'a mut Option<CublasLtHandle>,
    /// What computes attentions, if not hir's kernels do. An error says why no library does.
    attention: Result<Option<Arc<dyn AttentionLibrary>>, String>,
    kernels: Kernels,
    /// The matrix products that are described to cuBLASLt so far.
    matmul_descs: Vec<MatmulDesc>,
    /// Indices of the commands that call a library with new arguments.
    first_calls: Vec<usize>,
    /// The matrix products for which algorithms can be chosen.
    products: matmul::Products,
    commands: Vec<ScheduledCommand>,
    /// Index of the last command of each stream.
    last_on_stream: FxHashMap<Stream, usize>,
    /// Device address of the epoch (`signals`).
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
    /// The cuBLASLt workspace of each stream of the plan: address and size.
    workspaces: Vec<(u64, usize)>,
    /// Scratch memory of instructions, by stream.
    scratch: Vec<Scratch>,
    /// The device addresses of constants, by the address of their bytes.
    constants: FxHashMap<usize, u64>,
    /// The temporary buffers of the instruction that is being lowered: addresses and element types. Their numbers follow
    /// those of the plan's buffers.
    temporaries: Vec<(u64, DType)>,
    /// By stream: the device address of the counters of blocks, and their number.
    counters: FxHashMap<Stream, (u64, usize)>,
    /// Maximum number of blocks of a kernel that waits for other ranks.
    waiting_blocks: u64,
    /// Number of different flags of packets in a run.
    flags_per_run: u32,
    notes: Vec<String>,
}

/// What is lowered, and where: the number of an instruction of the plan, the instruction or a part of it, and the stream of its
/// commands.
#[derive(Clone, Copy)]
struct Site<'i> {
    at: u32,
    inst: &'i Inst,
    stream: LogicalStream,
}

/// Scratch memory that the instructions of one stream use in turn.
struct Scratch {
    stream: Stream,
    /// Distinguishes the blocks of an instruction that needs several.
    number: usize,
    address: u64,
    bytes: usize,
}

/// Returns the maximum number of blocks of the kernel of a collective. All ranks launch the same grids, because packets
/// require it.
///
/// All blocks of such kernels stay until those of other ranks are done (`kernels::peer_memory`, `kernels::packets`), so
/// those on different streams must be resident together: they share the multiprocessors. Half of the multiprocessors
/// remain for other streams that compute, and for NCCL, whose blocks wait too and need most of a multiprocessor's
/// registers. `benches/gpu/NOTES.md` has the figures.
pub(super) fn count_waiting_blocks(plans: &[Plan], multiprocessors: u32) -> u64 {
    let waiting = |plan: &Plan| -> FxHashSet<StreamNo> {
        plan.peer_collectives
            .iter()
            .filter_map(|it| plan.code.get(it.range.start))
            .map(|it| it.stream)
            .collect()
    };
    let (mut most, mut shares) = (1, 1);
    for plan in plans {
        let waiting = waiting(plan);
        let computes =
            |it: &Inst| it.kind.cost_info().class == CostClass::Compute && !waiting.contains(&it.stream);
        if plan.communicators.iter().any(|it| it.team.len() > 1) || plan.code.iter().any(computes) {
            shares = 2;
        }
        most = most.max(waiting.len() as u64);
    }
    u64::from(multiprocessors) / (most * shares)
}

/// Returns the number of flags that the collectives of a team need in one run.
fn count_flags(plans: &[Plan]) -> u32 {
    let indices = plans.iter().flat_map(|plan| &plan.peer_collectives).filter_map(|it| match it.phases {
        PeerPhases::Packets { index, .. } => Some(index),
        PeerPhases::Memory(_) => None,
    });
    indices.max().map_or(0, |it| it + 1)
}

/// Lowers a plan. `main_stream` is stream 0 of the plan.
pub(super) fn lower(
    device: &Device,
    plan: &Plan,
    memory: &mut DeviceMemory,
    comms: &Communicators,
    libraries: &mut LibraryState,
    main_stream: Stream,
) -> Result<Executable> {
    let (streams, logical_streams) = stream_assignment::assign_streams(device, plan, main_stream)?;
    let epoch_address = memory.allocate_scratch(device, 8)?;
    device.memset(epoch_address, 0, 8, main_stream)?;
    let attention = libraries.attention_of(plan, device.capability);
    // A file that the user names is used, or the program does not run.
    if let (Err(fault), true) = (&attention, cudnn::named().is_some()) {
        return Err(fault.clone());
    }
    let cublaslt = &mut libraries.cublaslt;
    let mut builder =
        ExecutableBuilder::new(device, plan, memory, comms, cublaslt, epoch_address, logical_streams)?;
    builder.attention = attention.map_err(|it| it.to_string());
    let fused = builder.lower_instructions()?;
    let functions = load_kernels(device, plan, &builder, &mut libraries.cubins)?;
    let mut notes = builder.all_notes();
    let ExecutableBuilder { commands, first_calls, products, kernels_read_epoch, .. } = builder;
    if commands.iter().any(|it| matches!(it.command, Command::Attention(..))) {
        notes.extend(libraries.describe_attention());
    }
    let registers = REGISTER_BASE..REGISTER_BASE + (1 << 48);
    if commands.iter().any(|it| it.command.addresses().iter().any(|it| registers.contains(it))) {
        return Err(ExecutorError::Internal("a command accesses a buffer that is in registers".to_owned()));
    }
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

/// Loads the kernels of an executable. NVRTC compiles them, unless this process has compiled the same source
/// before.
fn load_kernels(
    device: &Device,
    plan: &Plan,
    ExecutableBuilder { kernels, commands, .. }: &ExecutableBuilder<'_>,
    cubins: &mut FxHashMap<String, Vec<u8>>,
) -> Result<Vec<KernelFunction>> {
    let source = kernels.source();
    let cubin = match cubins.get(&source) {
        Some(it) => it,
        None => {
            let launches = commands.iter().filter(|it| matches!(it.command, Command::Launch { .. }));
            let mut places: Vec<String> = launches
                .filter_map(|it| plan.code.get(it.inst as usize))
                .map(|it| plan.location(it))
                .collect();
            places.dedup();
            let names = match places.len() {
                0 => "a kernel of every program".to_owned(),
                _ => format!("a kernel of {}", grammar::list_text(places.iter(), 4, "or")),
            };
            let compiled = kernels::nvrtc::compile(&source, device.capability, &names)?;
            cubins.entry(source).or_insert(compiled)
        }
    };
    device.load_kernels(cubin, &kernels.functions())
}

impl<'a> ExecutableBuilder<'a> {
    fn new(
        device: &'a Device,
        plan: &'a Plan,
        memory: &'a mut DeviceMemory,
        comms: &'a Communicators,
        cublaslt: &'a mut Option<CublasLtHandle>,
        epoch_address: u64,
        logical_streams: Vec<LogicalStream>,
    ) -> Result<Self> {
        let waiting_blocks = count_waiting_blocks(memory.plans(), device.multiprocessors);
        let flags_per_run = count_flags(memory.plans());
        let event = |_| device.event(false);
        Ok(Self {
            device,
            plan,
            memory,
            comms,
            cublaslt,
            attention: Ok(None),
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
            workspaces: vec![(0, 0); plan.streams.len()],
            last_nccl_group: None,
            scratch: Vec::new(),
            constants: FxHashMap::default(),
            temporaries: Vec::new(),
            counters: FxHashMap::default(),
            waiting_blocks,
            flags_per_run,
            notes: Vec::new(),
        })
    }

    /// Lowers all instructions. Returns those without a command of their own, each with the instruction whose
    /// command does their work.
    fn lower_instructions(&mut self) -> Result<Vec<(u32, u32)>> {
        let plan = self.plan;
        let scope = FusionScope {
            rank: plan.rank,
            code: &plan.code,
            peer_collectives: &plan.peer_collectives,
            escapes: self.memory.assignment.ranks[plan.rank].escapes(plan),
            dtype: &|it| plan.buffers[it as usize].dtype,
            source: &|it| self.source(it),
        };
        let roles = fusion_roles(&scope, |view| self.local_view(view));
        let mut fused = Vec::new();
        // The products and collectives that compute an epilogue.
        let mut with_epilogue = FxHashSet::default();
        let mut done = 0;
        for ((at, inst), role) in (0..).zip(&plan.code).zip(roles) {
            if at < done {
                continue;
            }
            let site = self.site(at, inst)?;
            let range = self
                .lower_peer_collective(site, &role, &mut with_epilogue)
                .map_err(|it| it.at_inst(plan, inst))?;
            if let Some((end, leader)) = range {
                done = end;
                fused.extend((at..done).filter(|it| *it != leader).map(|it| (it, leader)));
                continue;
            }
            let leader =
                self.lower_with_role(site, role, &mut with_epilogue).map_err(|it| it.at_inst(plan, inst))?;
            fused.extend(leader.map(|it| (at, it)));
        }
        Ok(fused)
    }

    fn site<'i>(&self, at: u32, inst: &'i Inst) -> Result<Site<'i>> {
        let stream = self.logical_streams.get(inst.stream as usize).copied();
        let stream = stream.ok_or_else(|| ExecutorError::Internal(format!("no stream {}", inst.stream)))?;
        Ok(Site { at, inst, stream })
    }

    /// Launches one kernel for the collective that begins at an instruction, if there is one and the executor has its
    /// kernel. Returns the end of the collective, and the instruction that gets the command: the one that hang reports name.
    /// This instruction is added to `with_epilogue` if the kernel computes what follows the collective.
    fn lower_peer_collective(
        &mut self,
        site: Site<'_>,
        role: &FusionRole,
        with_epilogue: &mut FxHashSet<u32>,
    ) -> Result<Option<(u32, u32)>> {
        let plan = self.plan;
        let all = &plan.peer_collectives;
        let Ok(number) = all.binary_search_by_key(&(site.at as usize), |it| it.range.start) else {
            return Ok(None);
        };
        let leader = all[number].first_wait() as u32;
        let fused = match role {
            FusionRole::CollectiveLeader(rows, gathered) => {
                let gathered = gathered.map(|(number, step)| (&all[number].phases, step));
                self.launch_with_rows(&all[number].phases, rows, gathered)?
            }
            FusionRole::GatherOf(it) if with_epilogue.contains(it) => {
                return Ok(Some((all[number].range.end as u32, *it)));
            }
            _ => None,
        };
        if fused.is_some() {
            with_epilogue.insert(leader);
        } else if all[number].epilogue.is_some() {
            self.note(site, NO_EPILOGUE);
        }
        let launch = match &all[number].phases {
            _ if fused.is_some() => fused,
            PeerPhases::Memory(phases) => self.peer_memory_launch(phases, site)?,
            PeerPhases::Packets { format, index, phases } => {
                Some(self.packet_launch((*format, *index), phases, site)?)
            }
        };
        let Some(launch) = launch else { return Ok(None) };
        self.kernels_read_epoch = true;
        self.push_launch(Site { at: leader, ..site }, Some(launch));
        Ok(Some((all[number].range.end as u32, leader)))
    }

    /// Lowers an instruction by its role in fusion. Returns the instruction whose command does its work, if it
    /// has no command of its own. `with_epilogue` has the products and collectives lowered so far that compute an epilogue.
    fn lower_with_role(
        &mut self,
        site: Site<'_>,
        role: FusionRole,
        with_epilogue: &mut FxHashSet<u32>,
    ) -> Result<Option<u32>> {
        match role {
            // The kernel of a collective has the epilogue, or nothing of it is fused.
            FusionRole::Unfused | FusionRole::CollectiveLeader(..) | FusionRole::GatherOf(_) => {
                self.lower_inst(site)?
            }
            FusionRole::Leader(launch) => {
                self.push_launch(site, Some(*launch));
            }
            FusionRole::ProductWithEpilogue(follower) => {
                if self.lower_with_epilogue(site, follower)? {
                    with_epilogue.insert(site.at);
                } else {
                    self.lower_inst(site)?;
                }
            }
            FusionRole::EpilogueOf(it) if with_epilogue.contains(&it) => return Ok(Some(it)),
            FusionRole::EpilogueOf(_) => self.lower_inst(site)?,
            FusionRole::FusedInto(leader) => return Ok(Some(leader)),
        }
        Ok(None)
    }

    /// Returns the notes of the lowered instructions, on hardware queues, and on the library of matrix
    /// products.
    fn all_notes(&mut self) -> Vec<String> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.dedup();
        let has_signals = self.kernels_read_epoch
            || self.commands.iter().any(|it| matches!(it.command, Command::Signals(..)));
        let streams = self.device.stream_count();
        if has_signals && streams > CONNECTIONS {
            notes.push(format!(
                "{streams} streams share {CONNECTIONS} queues to the GPU: one that waits for another rank may block others"
            ));
        }
        let cublaslt = self.cublaslt.as_ref().filter(|_| !self.matmul_descs.is_empty());
        notes.extend(cublaslt.map(CublasLtHandle::describe_library));
        notes
    }

    /// Returns the error for what the executor does not support.
    fn unsupported(&self, site: Site<'_>, reason: impl Display) -> ExecutorError {
        ExecutorError::unsupported(self.plan, site.inst, reason)
    }

    /// Notes something about an instruction.
    fn note(&mut self, site: Site<'_>, text: impl Display) {
        self.notes.push(format!("{}: {text}", self.plan.location(site.inst)));
    }

    fn push(&mut self, Site { at: inst, stream, .. }: Site<'_>, command: Command) {
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

    fn push_launch(&mut self, site: Site<'_>, launch: Option<Launch>) {
        let Some(Launch { kernel, params, blocks }) = launch else { return };
        let function = COMMON_KERNELS.len() + self.kernels.number(&kernel);
        let most = match kernel {
            // Eight blocks of 256 threads fill a multiprocessor; a grid-stride loop does the rest.
            Kernel::Elementwise(_)
            | Kernel::Matmul(_)
            | Kernel::Routine(_)
            | Kernel::Transpose(_)
            | Kernel::ShiftedRows => u64::from(self.device.multiprocessors) * 8,
            // Fewer of these blocks fit, because they use more registers. Each has enough to do, and the next
            // one starts when it ends.
            Kernel::PeerMemory(_) | Kernel::Packets(_) => self.waiting_blocks,
            Kernel::Row(ref it) if it.waits_for_peers() => self.waiting_blocks,
            Kernel::Reduce(_) | Kernel::Row(_) | Kernel::Attention(_) | Kernel::FewRows(_) => i32::MAX as u64,
        };
        let grid = blocks.clamp(1, most.max(1)) as u32;
        self.push(site, Command::Launch { function, grid, params: params.into_boxed_slice() });
    }

    fn device_view<'v>(&self, rank: usize, view: &'v View) -> Result<DeviceView<'v>> {
        let number = (view.buffer as usize).checked_sub(self.plan.buffers.len());
        if let (true, Some((address, dtype))) =
            (rank == self.plan.rank, number.and_then(|it| self.temporaries.get(it)))
        {
            let address = address + (view.offset * dtype.size()) as u64;
            return Ok(DeviceView { address, dtype: *dtype, view });
        }
        let address = self.memory.view_address(rank, view)?;
        let dtype = self.memory.view_dtype(rank, view);
        Ok(DeviceView { address, dtype, view })
    }

    fn local_view<'v>(&self, view: &'v View) -> Result<DeviceView<'v>> {
        self.device_view(self.plan.rank, view)
    }

    /// Returns the address of the first word of a signal.
    fn signal_address(&self, signal: &SignalId) -> Result<u64> {
        let base = self.memory.symmetric.get(signal.to).copied().filter(|it| *it != 0);
        match (base, self.memory.assignment.signal(signal)) {
            (Some(base), Some(slice)) => Ok(base + slice.offset as u64),
            _ => Err(ExecutorError::Internal(format!("{signal:?} is not mapped"))),
        }
    }

    /// Returns the address of counters of blocks, of 4 bytes each. Each kernel resets those that it uses to 0, and a stream runs one
    /// kernel after another.
    fn counters(&mut self, site: Site<'_>, count: usize) -> Result<u64> {
        let stream = site.stream.stream;
        if let Some((address, known)) = self.counters.get(&stream)
            && *known >= count
        {
            return Ok(*address);
        }
        let address = self.memory.allocate_scratch(self.device, 4 * count)?;
        self.device.memset(address, 0, 4 * count, stream)?;
        self.counters.insert(stream, (address, count));
        Ok(address)
    }

    /// Returns scratch memory for the duration of one instruction of a stream; `number` distinguishes several
    /// blocks of one instruction.
    fn scratch_buffer(&mut self, site: Site<'_>, number: usize, bytes: usize) -> Result<u64> {
        let stream = site.stream.stream;
        let known = self.scratch.iter_mut().find(|it| it.stream == stream && it.number == number);
        if let Some(scratch) = &known
            && scratch.bytes >= bytes
        {
            return Ok(scratch.address);
        }
        let address = self.memory.allocate_temporary(self.device, bytes)?;
        match known {
            Some(scratch) => (scratch.address, scratch.bytes) = (address, bytes),
            None => self.scratch.push(Scratch { stream, number, address, bytes }),
        }
        Ok(address)
    }
}
