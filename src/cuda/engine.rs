//! Runs a prepared plan on its GPU: uploads inputs, issues commands, downloads outputs.
//!
//! Runs follow each other on the main stream: the other streams wait for it at the start of a run, and it
//! waits for them at the end. The outputs are copied at the plan's `ReadOutputs`, on the stream that is
//! current there, before the main stream waits for the others. So a program that lacks an ordering shows
//! wrong outputs.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    ExecutorError, ProcessGroup, Result,
    buffer_assignment::PortMemory,
    comm::Communicators,
    device::{Device, Event, ResourceMark, Stream},
    executable::{Command, Executable, LogicalStream, LoopExit, ScheduledCommand},
    kernels::{BARRIER_BLOCK, CommonKernel},
    library_state::LibraryState,
    memory::DeviceMemory,
    progress::ProgressWords,
    signals::CapturedSignals,
};
use hir_executor::RunProgress;
use hir_plan::{Inst, Plan, View, World};

mod algorithms;
mod bytes;
mod caller;
mod data;
mod difference;
mod executor;
mod graph;
mod host_profile;
mod line_profile;
mod prepare;
mod stress;
mod timestamps;
mod timing;
mod tuning;
mod warmup;

pub(super) use algorithms::machine;
pub(super) use caller::CallerProgram;
use prepare::Prepared;

/// An input of this rank.
struct Input {
    address: u64,
    bytes: usize,
    /// A copy of the input, if the program writes to the input.
    backup: Option<u64>,
}

/// An output of this rank.
struct Output {
    view: View,
    dtype: grammar::dtype::DType,
    address: u64,
    bytes: usize,
    /// Whether some rank writes to it while the program runs.
    is_written: bool,
    host_buffer: *mut u8,
}

/// A plan that is ready to run.
pub(super) struct Engine {
    device: Rc<Device>,
    memory: DeviceMemory,
    comms: Communicators,
    executable: Executable,
    main_stream: Stream,
    start_event: Event,
    end_events: Vec<Event>,
    inputs: Vec<Option<Input>>,
    outputs: Vec<Option<Output>>,
    /// The epoch (`signals`) of the last run that was issued.
    epoch: u32,
    barrier_count: u32,
    progress: Arc<ProgressWords>,
    /// Device address of the nanoseconds for which each stream is delayed at the start of a run, indexed by
    /// stream; `None` if there are no delays.
    delays: Option<u64>,
    /// The epoch before the first run of the job's current program.
    base_epoch: u32,
    /// The resources in use when the plan was ready. Resources that a program takes beyond them are released
    /// after it.
    resource_mark: ResourceMark,
}

/// How commands are issued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IssueMode {
    /// Streams mark their progress, and the outputs are copied to the host.
    Checked,
    /// The commands alone.
    Plain,
    /// Into a graph: each replay sets the values of signals, and the device counts the epoch that kernels
    /// read. With `reads_outputs`, each replay copies the outputs to the host.
    Captured { reads_outputs: bool },
}

impl Engine {
    /// Prepares this rank's plan. `again` says that the GPU has run another plan before. All ranks have to
    /// call this.
    ///
    /// # Errors
    /// A library is missing, or the plan requires something that this executor does not support.
    pub(super) fn new(
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        device: Rc<Device>,
        libraries: &mut LibraryState,
        again: bool,
    ) -> Result<Self> {
        let engine = Self::with_ports(world, peers, device, libraries, again, PortMemory::Segments)?;
        engine.warm_up(peers)?;
        peers.barrier()?;
        Ok(engine)
    }

    /// Prepares this rank's plan without the first calls of `warm_up`, for which the memory of all ports has to be known.
    fn with_ports(
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        device: Rc<Device>,
        libraries: &mut LibraryState,
        again: bool,
        ports: PortMemory,
    ) -> Result<Self> {
        let rank = peers.rank();
        let plan = world.get(rank).filter(|_| world.len() == peers.world()).ok_or_else(|| {
            ExecutorError::Environment(format!(
                "the job has {} plans, but {} processes",
                world.len(),
                peers.world()
            ))
        })?;
        let Prepared { first, memory, comms, executable, inputs, outputs } =
            Prepared::of(world, peers, &device, libraries, again, ports)?;
        let event = |_| device.event(false);
        let ends = executable.streams.iter().map(event).collect::<Result<_, _>>()?;
        let position = |it: &ScheduledCommand| (it.stream.index, it.inst);
        let words = device.pinned_words(plan.streams.len() + plan.communicators.len() + 1)?;
        let progress = Arc::new(ProgressWords::new(plan, executable.commands.iter().map(position), words));
        let start = device.event(false)?;
        let taken = device.resource_mark();
        Ok(Self {
            device,
            memory,
            comms,
            executable,
            main_stream: first,
            start_event: start,
            end_events: ends,
            inputs,
            outputs,
            epoch: 0,
            barrier_count: 0,
            progress,
            delays: None,
            base_epoch: 0,
            resource_mark: taken,
        })
    }

    /// Returns true if the engine was prepared for these plans.
    pub(super) fn runs_plans(&self, plans: &[Plan]) -> bool {
        self.memory.plans() == plans
    }

    /// Prepares for another program of the job that has the same plans. The epoch and the signals keep their
    /// values. All ranks have to call this.
    pub(super) fn reuse(&mut self, peers: &dyn ProcessGroup) -> Result<()> {
        self.device.release(&self.resource_mark, peers)?;
        (self.base_epoch, self.delays) = (self.epoch, None);
        self.use_own_algorithms();
        self.progress.end();
        self.count_run()?;
        self.synchronize()
    }

    fn plan(&self) -> &Plan {
        &self.memory.plans()[self.memory.rank]
    }

    /// Returns notes for the user.
    fn notes(&self) -> Vec<String> {
        let mut notes = self.executable.notes.clone();
        let mib = self.memory.allocated as f64 / f64::from(1 << 20);
        notes.push(format!(
            "{} commands on {} streams, {mib:.1} MiB of GPU memory",
            self.executable.commands.len(),
            self.executable.streams.len()
        ));
        let unmapped = self.memory.unmapped.iter();
        notes.extend(
            unmapped
                .map(|it| format!("rank {it} cannot map the memory of another rank (cuIpcOpenMemHandle)")),
        );
        notes.extend(self.comms.library.clone());
        notes
    }

    /// Begins a run: all streams wait for the main stream.
    fn begin(&mut self, mode: IssueMode) -> Result<()> {
        self.epoch = self.epoch.wrapping_add(1);
        self.progress.begin(self.run_index(), mode == IssueMode::Checked);
        if matches!(mode, IssueMode::Captured { .. }) && self.executable.kernels_read_epoch {
            let advance = self.executable.common_kernel(CommonKernel::AdvanceEpoch);
            self.device.launch(advance, 1, 1, &[self.executable.epoch_address], self.main_stream)?;
        } else if self.executable.kernels_read_epoch {
            self.device.write_value(self.executable.epoch_address, self.epoch, self.main_stream)?;
        }
        self.device.record(self.start_event, self.main_stream)?;
        for stream in &self.executable.streams[1..] {
            self.device.wait_event(*stream, self.start_event)?;
        }
        let Some(delays) = self.delays else { return Ok(()) };
        for (at, stream) in self.executable.streams.iter().enumerate() {
            let words = [self.executable.epoch_address, delays + 8 * at as u64];
            self.device.launch(self.executable.common_kernel(CommonKernel::Delay), 1, 1, &words, *stream)?;
        }
        Ok(())
    }

    /// Returns the index of the run that is being issued, from 0.
    fn run_index(&self) -> u32 {
        self.epoch.wrapping_sub(self.base_epoch).wrapping_sub(1)
    }

    /// Issues the whole plan once. Returns the operations on signals that were captured.
    fn issue(&mut self, mode: IssueMode) -> Result<Vec<CapturedSignals>> {
        self.begin(mode)?;
        let mut captured = Vec::new();
        // Where the loop ends that the host has left.
        let mut end = None;
        for (number, scheduled) in self.executable.commands.iter().enumerate() {
            if end.is_some_and(|end| !matches!(scheduled.command, Command::RecordEvent(it) if it == end)) {
                continue;
            }
            let inst = &self.plan().code[scheduled.inst as usize];
            self.issue_command(scheduled, mode, &mut captured).map_err(|it| it.at_inst(self.plan(), inst))?;
            end = match &scheduled.command {
                Command::WaitOnHost(Some(exit)) => self.left_loop(exit, inst)?,
                _ => None,
            };
            if mode == IssueMode::Checked {
                self.mark_progress(scheduled.stream, number)?;
            }
        }
        self.join_streams()?;
        Ok(captured)
    }

    /// Ends a run: the main stream waits for all others.
    fn join_streams(&self) -> Result<()> {
        self.progress.issued_all(self.run_index());
        for (stream, end) in self.executable.streams.iter().zip(&self.end_events).skip(1) {
            self.device.record(*end, *stream)?;
            self.device.wait_event(self.main_stream, *end)?;
        }
        Ok(())
    }

    fn issue_command(
        &self,
        scheduled: &ScheduledCommand,
        mode: IssueMode,
        captured: &mut Vec<CapturedSignals>,
    ) -> Result<()> {
        self.progress.issue(self.run_index(), scheduled.inst);
        let (device, stream) = (&self.device, scheduled.stream.stream);
        match &scheduled.command {
            Command::Memset { to, byte, bytes } => device.memset(*to, *byte, *bytes, stream),
            Command::Copy { to, from, bytes } => device.copy(*to, *from, *bytes, stream),
            Command::Copy2d(rows) => device.copy_2d(rows, stream),
            Command::Launch { function, grid, params: words } => {
                let function = self.executable.functions[*function];
                device.launch(function, *grid, function.block.threads, words, stream)
            }
            Command::Matmul(it) => it.issue(stream),
            Command::Attention(library, it) => library.issue(it, stream.handle()),
            Command::NcclGroup(it) => it.issue(stream),
            Command::RecordEvent(event) => device.record(*event, stream),
            Command::WaitEvent(event) => device.wait_event(stream, *event),
            Command::Signals(op, batch) if matches!(mode, IssueMode::Captured { .. }) => {
                captured.push(device.capture_signals(*op, batch, self.epoch, stream)?);
                Ok(())
            }
            Command::Signals(op, batch) => device.issue_signals(*op, batch, self.epoch, stream),
            Command::ReadOutputs
                if matches!(mode, IssueMode::Checked | IssueMode::Captured { reads_outputs: true }) =>
            {
                self.copy_outputs_to_host(stream)
            }
            Command::WaitOnHost(_) if matches!(mode, IssueMode::Captured { .. }) => {
                Err(graph::host_wait(self.plan(), &self.plan().code[scheduled.inst as usize]))
            }
            Command::WaitOnHost(_) => self.wait_on_host(stream),
            Command::NoOp | Command::ReadOutputs => Ok(()),
        }
    }

    /// Reads the condition of a loop. Returns the event at its end, if it is false.
    fn left_loop(&self, exit: &LoopExit, inst: &Inst) -> Result<Option<Event>> {
        let mut condition = [0];
        self.device.read(&mut condition, exit.condition)?;
        match exit.end {
            None if condition != [0] => {
                let plan = self.plan();
                let line = plan.origins[inst.origin as usize].line;
                Err(ExecutorError::LoopLimit { rank: plan.rank, line, place: plan.location(inst) })
            }
            end => Ok(end.filter(|_| condition == [0])),
        }
    }

    /// Makes a stream record that it has completed a command.
    fn mark_progress(&self, stream: LogicalStream, command: usize) -> Result<()> {
        self.device.write_value(self.progress.marker_address(stream.index), command as u32 + 1, stream.stream)
    }

    /// Makes the main stream record that the run is complete.
    fn count_run(&self) -> Result<()> {
        let complete = self.epoch.wrapping_sub(self.base_epoch);
        self.device.write_value(self.progress.run_counter_address(), complete, self.main_stream)
    }

    /// Waits until all issued work is complete. The watchdog of the job decides whether that takes too long.
    fn synchronize(&self) -> Result<()> {
        self.wait_on_host(self.main_stream)?;
        self.progress.end();
        Ok(())
    }

    /// Waits until a stream has finished the work that is issued.
    fn wait_on_host(&self, stream: Stream) -> Result<()> {
        let begin = Instant::now();
        loop {
            if self
                .device
                .is_idle(stream)
                .map_err(|it| it.near_inst(self.plan(), self.earliest_incomplete()))?
            {
                return Ok(());
            }
            if begin.elapsed() < Duration::from_millis(20) {
                std::thread::yield_now();
                continue;
            }
            if let Some((communicator, error)) = self.comms.async_error() {
                let queue = self.plan().communicators.iter().position(|it| it == communicator);
                let at = queue.and_then(|it| self.progress.communicator_positions().get(it).copied());
                return Err(error.near_inst(self.plan(), at.and_then(|it| self.plan().code.get(it as usize))));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Returns the first instruction that some stream has not completed, if streams mark their progress.
    fn earliest_incomplete(&self) -> Option<&Inst> {
        let at = self
            .progress
            .stream_positions()
            .into_iter()
            .chain(self.progress.communicator_positions())
            .min()?;
        self.plan().code.get(at as usize)
    }

    /// Separates two runs. All ranks complete the last run before any of them touches inputs and outputs, and
    /// all finish that before any begins the next run.
    fn reset_between_runs(&mut self, peers: &dyn ProcessGroup) -> Result<()> {
        self.rank_barrier(peers)?;
        self.poison()?;
        self.restore()?;
        self.rank_barrier(peers)
    }

    /// Returns whether the ranks can wait for each other without blocking the hosts. The memory of ranks on other
    /// hosts is not mapped.
    fn has_device_barrier(&self) -> bool {
        self.plan().world == 1 || self.memory.is_mapped()
    }

    /// Makes the main streams of all ranks wait for each other: on the GPUs if possible, and otherwise on the hosts,
    /// after the work that has been issued.
    fn rank_barrier(&mut self, peers: &dyn ProcessGroup) -> Result<()> {
        if self.plan().world == 1 {
            return Ok(());
        }
        if !self.has_device_barrier() {
            self.synchronize()?;
            return peers.barrier();
        }
        self.device_barrier()
    }

    /// Makes the main streams of all ranks wait for each other on the GPUs. The memory of all ranks is mapped.
    fn device_barrier(&mut self) -> Result<()> {
        let (rank, world) = (self.plan().rank, self.plan().world);
        self.barrier_count = self.barrier_count.wrapping_add(1);
        let (number, most) = (u64::from(self.barrier_count), BARRIER_BLOCK as usize);
        let signal = |of: usize, with: usize| {
            self.memory.symmetric[with] + self.memory.assignment.barrier_signal_offset(of) as u64
        };
        let others: Vec<usize> = (0..world).filter(|it| *it != rank).collect();
        for others in others.chunks(most) {
            let mut words = vec![number, others.len() as u64];
            words.extend(others.iter().map(|it| signal(rank, *it)));
            words.resize(2 + most, 0);
            words.extend(others.iter().map(|it| signal(*it, rank)));
            words.resize(2 + 2 * most, 0);
            self.device.launch(
                self.executable.common_kernel(CommonKernel::RankBarrier),
                1,
                BARRIER_BLOCK,
                &words,
                self.main_stream,
            )?;
        }
        Ok(())
    }
}
