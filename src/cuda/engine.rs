//! A prepared plan on its GPU: inputs go in, steps are issued, outputs come out.
//!
//! Runs follow each other on the first stream: it releases the others at the start of a run and waits for them at its end.
//! The outputs are read where the plan says, on the stream current at its `Finish`, before the others are waited for: a
//! program that lacks an order shows it.

use std::time::{Duration, Instant};

use super::{
    Peers,
    comm::Comms,
    device::{Device, Event, Graph, Stream},
    error::CudaError,
    kernels::{BLOCK, FLAG_BLOCK},
    layout,
    memory::Memory,
    program::{self, Action, Program, Step},
};
use crate::{
    io::data::Data,
    plan::{Plan, View},
    sim::memory::Block,
};

mod bytes;
mod lines;
mod timing;

pub use bytes::{data as data_of, of as bytes_of};
pub use lines::Line;
pub use timing::Timing;

/// How plans are run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a run may take.
    pub timeout: Duration,
}

/// An input of this rank.
struct Input {
    address: u64,
    bytes: usize,
    /// A copy, where the program writes to the input.
    kept: Option<u64>,
}

/// An output of this rank.
struct Output {
    view: View,
    dtype: grammar::dtype::DType,
    address: u64,
    bytes: usize,
    host: *mut u8,
}

/// A plan, ready to run.
pub struct Engine<'a> {
    device: Device,
    plan: &'a Plan,
    memory: Memory<'a>,
    comms: Comms,
    program: Program,
    options: Options,
    first: Stream,
    start: Event,
    ends: Vec<Event>,
    inputs: Vec<Option<Input>>,
    outputs: Vec<Option<Output>>,
    /// The number of the last run that was issued; flags compare with it.
    epoch: u32,
    barriers: u32,
    /// Steps that each stream has come past, in page-locked memory.
    marks: *mut u32,
}

/// How steps are issued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Each stream tells how far it has come; the outputs are copied to the host.
    Checked,
    /// Nothing besides the steps.
    Plain,
    /// Into a graph: flags compare with the device's own count of runs.
    Captured,
}

impl<'a> Engine<'a> {
    /// Prepares this rank's plan; all ranks have to call this.
    ///
    /// # Errors
    /// What is missing, what the plan asks for and this executor lacks.
    pub fn new(plans: &'a [Plan], peers: &dyn Peers, options: Options) -> Result<Self, CudaError> {
        let rank = peers.rank();
        let plan = plans.get(rank).filter(|_| plans.len() == peers.world()).ok_or_else(|| {
            CudaError::Environment(format!("{} plans for {} processes", plans.len(), peers.world()))
        })?;
        let device = Device::open(peers.local_rank())?;
        let first = device.stream(false)?;
        let mut memory = Memory::new(&device, plans, peers, first)?;
        let comms = Comms::new(plans, peers)?;
        let program = program::prepare(&device, plan, &mut memory, &comms, first)?;
        let written = layout::written(plans, rank);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for port in &plan.inputs {
            inputs.push(match &port.shard.view {
                None => None,
                Some(view) => {
                    let bytes = view.len() * port.dtype.size();
                    let kept = match written[view.buffer as usize] {
                        true => Some(memory.scratch(&device, bytes)?),
                        false => None,
                    };
                    Some(Input { address: memory.view(rank, view)?, bytes, kept })
                }
            });
        }
        for port in &plan.outputs {
            outputs.push(match &port.shard.view {
                None => None,
                Some(view) => {
                    memory.view(rank, view)?;
                    let bytes = memory.layout.ranks[rank].spots[view.buffer as usize].bytes;
                    let (address, dtype) = (memory.buffer(rank, view.buffer)?, memory.dtype(rank, view));
                    Some(Output { view: view.clone(), dtype, address, bytes, host: device.host(bytes)? })
                }
            });
        }
        let event = |_| device.event(false);
        let ends = program.streams.iter().map(event).collect::<Result<_, _>>()?;
        let marks = device.host(4 * program.streams.len())?.cast();
        let start = device.event(false)?;
        peers.barrier()?;
        Ok(Self {
            device,
            plan,
            memory,
            comms,
            program,
            options,
            first,
            start,
            ends,
            inputs,
            outputs,
            epoch: 0,
            barriers: 0,
            marks,
        })
    }

    /// What the user may want to know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.program.notes.clone();
        let mib = self.memory.allocated as f64 / f64::from(1 << 20);
        notes.push(format!(
            "{} steps on {} streams, {mib:.1} MiB of GPU memory",
            self.program.steps.len(),
            self.program.streams.len()
        ));
        notes.extend(self.comms.library.clone());
        notes
    }

    /// Poisons all memory and puts the inputs into it, row-major parts by input.
    ///
    /// # Errors
    /// Inputs that do not fit, a failed call.
    pub fn fill(&mut self, inputs: &[Data], peers: &dyn Peers) -> Result<(), CudaError> {
        let rank = self.plan.rank;
        // Flags only ever grow: they keep their values.
        let flags = self.memory.layout.flags;
        let segment = self.memory.symmetric[rank] + flags as u64;
        self.device.set(segment, 0xff, self.memory.layout.symmetric - flags, self.first)?;
        let (private, bytes) = self.memory.private();
        self.device.set(private, 0xff, bytes, self.first)?;
        if inputs.len() != self.inputs.len() {
            return Err(CudaError::Internal(format!("{} inputs for {}", inputs.len(), self.inputs.len())));
        }
        for (input, data) in self.inputs.iter().zip(inputs) {
            let Some(it) = input else { continue };
            let bytes = bytes::of(data);
            if bytes.len() != it.bytes {
                return Err(CudaError::Internal(format!(
                    "{} bytes for an input of {}",
                    bytes.len(),
                    it.bytes
                )));
            }
            self.device.upload(it.address, bytes, self.first)?;
            if let Some(kept) = it.kept {
                self.device.upload(kept, bytes, self.first)?;
            }
        }
        self.device.finish(self.first)?;
        peers.barrier()
    }

    /// Runs once and reads the outputs, by output.
    ///
    /// # Errors
    /// A failed call, a run that does not end in time.
    pub fn run(&mut self) -> Result<Vec<Option<Block>>, CudaError> {
        for stream in 0..self.program.streams.len() {
            // SAFETY: `marks` has a number for each stream, and nothing is running that writes to it.
            unsafe { self.marks.add(stream).write_volatile(0) };
        }
        self.issue(Mode::Checked)?;
        self.finish()?;
        self.read()
    }

    /// The outputs as the last run has left them on the host.
    fn read(&self) -> Result<Vec<Option<Block>>, CudaError> {
        let mut blocks = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            blocks.push(match output {
                None => None,
                Some(it) => {
                    // SAFETY: `host` has so many bytes, and the copies to it are done.
                    let bytes = unsafe { std::slice::from_raw_parts(it.host, it.bytes) };
                    let whole = bytes::data(it.dtype, bytes)
                        .map_err(|it| CudaError::Internal(format!("an output: {it}")))?;
                    Some(Block::full(it.view.shape.clone(), whole.gather(&it.view)))
                }
            });
        }
        Ok(blocks)
    }

    /// What views of this rank hold now.
    ///
    /// # Errors
    /// Views outside memory, a failed call.
    pub fn peek(&self, views: &[&View]) -> Result<Vec<Block>, CudaError> {
        let rank = self.plan.rank;
        let mut blocks = Vec::with_capacity(views.len());
        for view in views {
            self.memory.view(rank, view)?;
            let bytes = self.memory.layout.ranks[rank].spots[view.buffer as usize].bytes;
            let host = self.device.host(bytes)?;
            self.device.download(host, self.memory.buffer(rank, view.buffer)?, bytes, self.first)?;
            self.device.finish(self.first)?;
            // SAFETY: `host` has so many bytes, and the copy to it is done.
            let bytes = unsafe { std::slice::from_raw_parts(host, bytes) };
            let whole = bytes::data(self.memory.dtype(rank, view), bytes)
                .map_err(|it| CudaError::Internal(format!("a tensor to be written: {it}")))?;
            blocks.push(Block::full(view.shape.clone(), whole.gather(view)));
        }
        Ok(blocks)
    }

    /// Copies the outputs to the host after what is on a stream.
    fn download(&self, stream: Stream) -> Result<(), CudaError> {
        self.outputs
            .iter()
            .flatten()
            .try_for_each(|it| self.device.download(it.host, it.address, it.bytes, stream))
    }

    /// Begins a run: all streams wait for the first.
    fn begin(&mut self, mode: Mode) -> Result<(), CudaError> {
        self.epoch = self.epoch.wrapping_add(1);
        if mode == Mode::Captured {
            self.device.launch(self.program.functions[2], 1, 1, &[self.program.counter], self.first)?;
        }
        self.device.record(self.start, self.first)?;
        for stream in &self.program.streams[1..] {
            self.device.wait(*stream, self.start)?;
        }
        Ok(())
    }

    /// Issues the whole plan once.
    fn issue(&mut self, mode: Mode) -> Result<(), CudaError> {
        self.begin(mode)?;
        for (number, step) in self.program.steps.iter().enumerate() {
            self.step(step, mode).map_err(|it| it.at(self.plan, &self.plan.code[step.inst as usize]))?;
            if mode == Mode::Checked {
                self.mark(step.stream, number)?;
            }
        }
        self.join()
    }

    /// Ends a run: the first stream waits for all others.
    fn join(&self) -> Result<(), CudaError> {
        for (stream, end) in self.program.streams.iter().zip(&self.ends).skip(1) {
            self.device.record(*end, *stream)?;
            self.device.wait(self.first, *end)?;
        }
        Ok(())
    }

    fn step(&self, step: &Step, mode: Mode) -> Result<(), CudaError> {
        let (device, stream) = (&self.device, step.stream);
        let captured = mode == Mode::Captured;
        match &step.action {
            Action::Set { to, byte, bytes } => device.set(*to, *byte, *bytes, stream),
            Action::Copy { to, from, bytes } => device.copy(*to, *from, *bytes, stream),
            Action::Rows(rows) => device.copy_rows(rows, stream),
            Action::Launch { function, grid, words } => {
                device.launch(self.program.functions[*function], *grid, BLOCK, words, stream)
            }
            Action::Product(it) => it.issue(stream),
            Action::Group(it) => it.issue(stream),
            Action::Record(event) => device.record(*event, stream),
            Action::Wait(event) => device.wait(stream, *event),
            Action::Raise(flags) if captured => {
                device.launch(self.program.functions[0], 1, FLAG_BLOCK, flags.words(), stream)
            }
            Action::Await(flags) if captured => {
                device.launch(self.program.functions[1], 1, FLAG_BLOCK, flags.words(), stream)
            }
            Action::Raise(flags) => device.raise(flags, self.epoch, stream),
            Action::Await(flags) => device.wait_for(flags, self.epoch, stream),
            Action::Finish if mode == Mode::Checked => self.download(stream),
            Action::Finish => Ok(()),
        }
    }

    /// A stream tells that it has come past a step.
    fn mark(&self, stream: Stream, step: usize) -> Result<(), CudaError> {
        let Some(at) = self.program.streams.iter().position(|it| *it == stream) else { return Ok(()) };
        self.device.write_flag(self.marks as u64 + 4 * at as u64, step as u32 + 1, stream)
    }

    /// Waits for the end of all that was issued, for as long as the options say.
    fn finish(&self) -> Result<(), CudaError> {
        let begin = Instant::now();
        loop {
            if self.device.is_idle(self.first)? {
                return Ok(());
            }
            if begin.elapsed() > self.options.timeout {
                return Err(CudaError::Hang(self.report()));
            }
            match begin.elapsed() < Duration::from_millis(20) {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// Who waits for what when a run does not end.
    fn report(&self) -> String {
        let rank = self.plan.rank;
        let seconds = self.options.timeout.as_secs_f64();
        let mut text = format!("rank {rank}: the run has not ended after {seconds} s");
        for (at, (stream, name)) in self.program.streams.iter().zip(&self.program.names).enumerate() {
            // SAFETY: `marks` has a number for each stream; the device writes to it meanwhile, a whole word at a time.
            let past = unsafe { self.marks.add(at).read_volatile() } as usize;
            let steps = self.program.steps.iter().enumerate().skip(past);
            if let Some((_, step)) = steps.into_iter().find(|(_, it)| it.stream == *stream) {
                let inst = &self.plan.code[step.inst as usize];
                text += &format!(
                    "\nrank {rank}: {name} has not come past {}: {}",
                    self.plan.place(inst),
                    crate::plan::inst_text(self.plan, inst)
                );
            }
        }
        if let Some(trouble) = self.comms.trouble() {
            text += &format!("\nrank {rank}: NCCL: {trouble}");
        }
        text
    }

    /// Puts back the inputs that the program has written to.
    fn restore(&self) -> Result<(), CudaError> {
        for it in self.inputs.iter().flatten() {
            if let Some(kept) = it.kept.filter(|_| it.bytes > 0) {
                self.device.copy(it.address, kept, it.bytes, self.first)?;
            }
        }
        Ok(())
    }

    /// The first streams of all ranks wait for each other, without their hosts.
    fn meet(&mut self) -> Result<(), CudaError> {
        let (rank, world) = (self.plan.rank, self.plan.world);
        if world == 1 || !self.memory.is_mapped() {
            return Ok(());
        }
        self.barriers = self.barriers.wrapping_add(1);
        for other in (0..world).filter(|it| *it != rank) {
            let flag = self.memory.symmetric[other] + self.memory.layout.barrier(rank) as u64;
            self.device.write_flag(flag, self.barriers, self.first)?;
        }
        for other in (0..world).filter(|it| *it != rank) {
            let flag = self.memory.symmetric[rank] + self.memory.layout.barrier(other) as u64;
            self.device.wait_flag(flag, self.barriers, self.first)?;
        }
        Ok(())
    }

    /// Captures the plan as a graph.
    fn capture(&mut self) -> Result<Graph, CudaError> {
        // The device's count of runs goes on from the host's.
        self.device.upload(self.program.counter, &self.epoch.to_le_bytes(), self.first)?;
        let before = self.epoch;
        self.device.begin_capture(self.first)?;
        let issued = self.issue(Mode::Captured);
        let graph = self.device.end_capture(self.first);
        // Capturing is not running.
        self.epoch = before;
        issued?;
        graph
    }
}
