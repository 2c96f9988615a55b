//! A prepared plan on its GPU: inputs go in, steps are issued, outputs come out.
//!
//! Runs follow each other on the first stream: it releases the others at the start of a run and waits for them at its end.
//! The outputs are read where the plan says, on the stream current at its `Finish`, before the others are waited for: a
//! program that lacks an order shows it.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Peers,
    comm::Comms,
    device::{Device, Event, Stream, Taken},
    error::CudaError,
    executable::{Action, Executable, Lane, Step},
    kernels::{BLOCK, Common, FLAG_BLOCK},
    libraries::Libraries,
    memory::Memory,
    progress::Progress,
};
use crate::{
    io::dense::DenseTensor,
    plan::{Inst, Plan, View},
};

mod bytes;
mod data;
mod graph;
mod lines;
mod prepare;
mod profile;
mod stress;
mod timing;
mod warm;

pub use bytes::{data as data_of, of as bytes_of};
pub use lines::Line;
use prepare::Prepared;
pub use profile::{Calls, Host};
pub use timing::Timing;

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
    /// Whether some rank writes to it while the program runs.
    written: bool,
    host: *mut u8,
}

/// A plan, ready to run.
pub struct Engine {
    device: Rc<Device>,
    memory: Memory,
    comms: Comms,
    executable: Executable,
    first: Stream,
    start: Event,
    ends: Vec<Event>,
    inputs: Vec<Option<Input>>,
    outputs: Vec<Option<Output>>,
    /// The number of the last run that was issued; flags compare with it.
    epoch: u32,
    barriers: u32,
    progress: Arc<Progress>,
    /// For how long each stream is held back when a run begins, by stream, in device memory; `None`: it is not.
    delays: Option<u64>,
    /// The number of the last run before the job's program that runs now.
    before: u32,
    /// What the device has given when the plan was ready: what programs take on top of that ends with them.
    taken: Taken,
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

impl Engine {
    /// Prepares this rank's plan on a GPU that has had another one (`again`) or not; all ranks have to call this.
    ///
    /// # Errors
    /// What is missing, what the plan asks for and this executor lacks.
    pub(super) fn new(
        plans: &Arc<Vec<Plan>>,
        peers: &dyn Peers,
        device: Rc<Device>,
        libraries: &mut Libraries,
        again: bool,
    ) -> Result<Self, CudaError> {
        let rank = peers.rank();
        let plan = plans.get(rank).filter(|_| plans.len() == peers.world()).ok_or_else(|| {
            CudaError::Environment(format!("{} plans for {} processes", plans.len(), peers.world()))
        })?;
        let Prepared { first, memory, comms, executable, inputs, outputs } =
            Prepared::of(plans, peers, &device, libraries, again)?;
        let event = |_| device.event(false);
        let ends = executable.streams.iter().map(event).collect::<Result<_, _>>()?;
        let lane = |step: &Step| (step.lane.number, step.inst);
        let words = device.words(plan.streams.len() + plan.communicators.len() + 1)?;
        let progress = Arc::new(Progress::new(plan, executable.steps.iter().map(lane), words));
        let start = device.event(false)?;
        let taken = device.taken();
        let engine = Self {
            device,
            memory,
            comms,
            executable,
            first,
            start,
            ends,
            inputs,
            outputs,
            epoch: 0,
            barriers: 0,
            progress,
            delays: None,
            before: 0,
            taken,
        };
        engine.warm(peers)?;
        peers.barrier()?;
        Ok(engine)
    }

    /// Whether it runs these plans.
    pub(super) fn is_of(&self, plans: &[Plan]) -> bool {
        self.memory.plans() == plans
    }

    /// Another program of the job has the same plans; all ranks have to call this. Flags and runs are counted on.
    pub(super) fn renew(&mut self, peers: &dyn Peers) -> Result<(), CudaError> {
        self.device.release(&self.taken, peers)?;
        (self.before, self.delays) = (self.epoch, None);
        self.progress.end();
        self.count()?;
        self.finish()
    }

    fn plan(&self) -> &Plan {
        &self.memory.plans()[self.memory.rank]
    }

    /// How far this rank is, for another thread.
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// What the user may want to know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.executable.notes.clone();
        let mib = self.memory.allocated as f64 / f64::from(1 << 20);
        notes.push(format!(
            "{} steps on {} streams, {mib:.1} MiB of GPU memory",
            self.executable.steps.len(),
            self.executable.streams.len()
        ));
        notes.extend(self.comms.library.clone());
        notes
    }

    /// Runs once and reads the outputs, by output.
    ///
    /// # Errors
    /// A failed call.
    pub fn run(&mut self) -> Result<Vec<Option<DenseTensor>>, CudaError> {
        self.issue(Mode::Checked)?;
        self.count()?;
        self.finish()?;
        self.read()
    }

    /// Begins a run: all streams wait for the first.
    fn begin(&mut self, mode: Mode) -> Result<(), CudaError> {
        self.epoch = self.epoch.wrapping_add(1);
        self.progress.begin(self.round(), mode == Mode::Checked);
        if mode == Mode::Captured && self.executable.has_flags {
            let advance = self.executable.common(Common::Advance);
            self.device.launch(advance, 1, 1, &[self.executable.counter], self.first)?;
        } else if self.executable.reads_counter {
            self.device.write_flag(self.executable.counter, self.epoch, self.first)?;
        }
        self.device.record(self.start, self.first)?;
        for stream in &self.executable.streams[1..] {
            self.device.wait(*stream, self.start)?;
        }
        let Some(delays) = self.delays else { return Ok(()) };
        for (at, stream) in self.executable.streams.iter().enumerate() {
            let words = [self.executable.counter, delays + 8 * at as u64];
            self.device.launch(self.executable.common(Common::Hold), 1, 1, &words, *stream)?;
        }
        Ok(())
    }

    /// The number of the run that is being issued, from 0.
    fn round(&self) -> u32 {
        self.epoch.wrapping_sub(self.before).wrapping_sub(1)
    }

    /// Issues the whole plan once.
    fn issue(&mut self, mode: Mode) -> Result<(), CudaError> {
        self.begin(mode)?;
        for (number, step) in self.executable.steps.iter().enumerate() {
            self.step(step, mode).map_err(|it| it.at(self.plan(), &self.plan().code[step.inst as usize]))?;
            if mode == Mode::Checked {
                self.mark(step.lane, number)?;
            }
        }
        self.join()
    }

    /// Ends a run: the first stream waits for all others.
    fn join(&self) -> Result<(), CudaError> {
        self.progress.issued(self.round());
        for (stream, end) in self.executable.streams.iter().zip(&self.ends).skip(1) {
            self.device.record(*end, *stream)?;
            self.device.wait(self.first, *end)?;
        }
        Ok(())
    }

    fn step(&self, step: &Step, mode: Mode) -> Result<(), CudaError> {
        self.progress.issue(self.round(), step.inst);
        let (device, stream) = (&self.device, step.lane.stream);
        let captured = mode == Mode::Captured;
        match &step.action {
            Action::Set { to, byte, bytes } => device.set(*to, *byte, *bytes, stream),
            Action::Copy { to, from, bytes } => device.copy(*to, *from, *bytes, stream),
            Action::Rows(rows) => device.copy_rows(rows, stream),
            Action::Launch { function, grid, words } => {
                device.launch(self.executable.functions[*function], *grid, BLOCK, words, stream)
            }
            Action::Product(it) => it.issue(stream),
            Action::Group(it) => it.issue(stream),
            Action::Record(event) => device.record(*event, stream),
            Action::Wait(event) => device.wait(stream, *event),
            Action::Raise(flags) if captured => {
                device.launch(self.executable.common(Common::Raise), 1, FLAG_BLOCK, flags.words(), stream)
            }
            Action::Await(flags) if captured => {
                device.launch(self.executable.common(Common::Await), 1, FLAG_BLOCK, flags.words(), stream)
            }
            Action::Raise(flags) => device.raise(flags, self.epoch, stream),
            Action::Await(flags) => device.wait_for(flags, self.epoch, stream),
            Action::Finish if mode == Mode::Checked => self.download(stream),
            Action::Pass | Action::Finish => Ok(()),
        }
    }

    /// A stream tells that it has come past a step of a lane.
    fn mark(&self, lane: Lane, step: usize) -> Result<(), CudaError> {
        self.device.write_flag(self.progress.mark(lane.number), step as u32 + 1, lane.stream)
    }

    /// The first stream tells that the run is complete.
    fn count(&self) -> Result<(), CudaError> {
        let complete = self.epoch.wrapping_sub(self.before);
        self.device.write_flag(self.progress.count(), complete, self.first)
    }

    /// Waits for the end of all that was issued. Whether that takes too long is for the guard of the job to say.
    fn finish(&self) -> Result<(), CudaError> {
        let begin = Instant::now();
        loop {
            if self.device.is_idle(self.first).map_err(|it| it.near(self.plan(), self.earliest()))? {
                self.progress.end();
                return Ok(());
            }
            if begin.elapsed() < Duration::from_millis(20) {
                std::thread::yield_now();
                continue;
            }
            if let Some((communicator, error)) = self.comms.trouble() {
                let queue = self.plan().communicators.iter().position(|it| it == communicator);
                let at = queue.and_then(|it| self.progress.queues().get(it).copied());
                return Err(error.near(self.plan(), at.and_then(|it| self.plan().code.get(it as usize))));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The first instruction that no stream has come past, where streams tell.
    fn earliest(&self) -> Option<&Inst> {
        let at = self.progress.streams().into_iter().chain(self.progress.queues()).min()?;
        self.plan().code.get(at as usize)
    }

    /// Between two runs: all ranks have ended the last one before any of them touches outputs and inputs again, and all are
    /// done with that before any begins the next.
    fn reset(&mut self) -> Result<(), CudaError> {
        self.meet()?;
        self.poison()?;
        self.restore()?;
        self.meet()
    }

    /// The first streams of all ranks wait for each other, without their hosts.
    fn meet(&mut self) -> Result<(), CudaError> {
        let (rank, world) = (self.plan().rank, self.plan().world);
        if world == 1 || !self.memory.is_mapped() {
            return Ok(());
        }
        self.barriers = self.barriers.wrapping_add(1);
        let (number, most) = (u64::from(self.barriers), FLAG_BLOCK as usize);
        let flag =
            |of: usize, with: usize| self.memory.symmetric[with] + self.memory.layout.barrier(of) as u64;
        let others: Vec<usize> = (0..world).filter(|it| *it != rank).collect();
        for others in others.chunks(most) {
            let mut words = vec![number, others.len() as u64];
            words.extend(others.iter().map(|it| flag(rank, *it)));
            words.resize(2 + most, 0);
            words.extend(others.iter().map(|it| flag(*it, rank)));
            words.resize(2 + 2 * most, 0);
            self.device.launch(self.executable.common(Common::Meet), 1, FLAG_BLOCK, &words, self.first)?;
        }
        Ok(())
    }
}
