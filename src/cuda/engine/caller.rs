//! Runs a plan in the memory and in the stream order of a caller that uses the GPU, too.
//!
//! The caller passes the addresses of all inputs and outputs, and of temporary memory. Where no other rank accesses a buffer, commands use the
//! caller's memory itself (`PortMemory::Caller`); the others are copied. A run begins after the work on the caller's stream,
//! and later work on this stream begins after the run. Nothing waits on the host, except in the first run and when a graph is
//! captured: a run whose addresses repeat becomes a graph, which later runs with these addresses launch.

use std::{rc::Rc, sync::Arc};

use super::{Engine, IssueMode, ProgressWords};
use crate::{
    ExecutorError, ProcessGroup, Result,
    buffer_assignment::{PortMemory, Segment},
    device::{Device, Event, Stream},
    executable::{BoundMemory, CallerBuffer, CallerMemory, workspaces},
    graph::Graph,
    library_state::LibraryState,
};
use grammar::DType;
use hir_executor::{CallerPort, CallerPorts, LoadOptions, PortBuffer};
use hir_plan::{BufferNo, IoBinding, Plan, View, World};

/// How a buffer of the caller is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Commands use it: the index in `CallerMemory::buffers`.
    Direct(usize),
    /// It is copied to this address before the run, or from it after the run. The address may stand for another one.
    Copied { address: u64, bytes: usize },
}

/// Number of runs in succession that have the same addresses before such a run is captured.
const RUNS_BEFORE_CAPTURE: usize = 2;
/// Maximum number of captured runs of a program, which keep memory of the driver.
const MOST_GRAPHS: usize = 4;

/// A plan that runs for a caller.
pub(crate) struct CallerProgram {
    engine: Engine,
    memory: CallerMemory,
    ports: CallerPorts,
    /// Indexed by `CallerPorts::buffers`.
    uses: Vec<Use>,
    entry: Event,
    exit: Event,
    /// Whether some rank reads an input of another one, which therefore has to be complete when any rank starts.
    has_shared_inputs: bool,
    is_warm: bool,
    /// Why runs that the caller allows to be captured are issued step by step.
    capture_obstacle: Option<ExecutorError>,
    /// Whether runs are captured: the caller allows it, and the plans of all ranks can be captured.
    captures: bool,
    /// The captured runs, with the addresses that they use.
    graphs: Vec<(Vec<u64>, Graph)>,
    /// The addresses of the last run, and the number of runs before it that had them, too.
    last: (Vec<u64>, usize),
}

impl CallerProgram {
    /// Prepares this rank's plan. All ranks have to call this.
    ///
    /// # Errors
    /// As for `Engine::new`; or ranks share memory, and not all of it is mapped.
    pub fn new(
        world: &Arc<World>,
        peers: &dyn ProcessGroup,
        device: Rc<Device>,
        libraries: &mut LibraryState,
        LoadOptions { captures, donated }: LoadOptions,
    ) -> Result<Self> {
        let (rank, attention) = (peers.rank(), libraries.attention.clone());
        let workspaces = world.get(rank).map(|it| workspaces(it, attention.as_deref())).transpose()?;
        let workspaces = &workspaces.unwrap_or_default();
        let memory = PortMemory::Caller { rank, donated, workspaces };
        let engine = Engine::with_ports(world, peers, device, libraries, false, memory)?;
        let assignment = &engine.memory.assignment;
        if assignment.shares_memory() && !engine.has_device_barrier() {
            return Err(ExecutorError::Environment(
                "ranks share memory, but not every rank can map the memory of all others".to_owned(),
            ));
        }
        let plan = engine.plan();
        let temporary = engine.memory.temporary_bytes();
        let memory = CallerMemory::of(plan, assignment, temporary, &engine.executable.commands)?;
        let (ports, uses) = ports(plan, &engine, &memory)?;
        let is_shared = |plan: &Plan, it: &IoBinding| {
            let view = it.shard.view.as_ref();
            view.is_some_and(|it| assignment.ranks[plan.rank].buffers[it.buffer as usize].segment.is_mapped())
        };
        let has_shared_inputs = world.iter().any(|plan| plan.inputs.iter().any(|it| is_shared(plan, it)));
        let capture_obstacle = engine.capture_obstacle().filter(|_| captures);
        let (entry, exit) = (engine.device.event(false)?, engine.device.event(false)?);
        Ok(Self {
            engine,
            memory,
            ports,
            uses,
            entry,
            exit,
            has_shared_inputs,
            is_warm: false,
            captures: captures && capture_obstacle.is_none(),
            capture_obstacle,
            graphs: Vec::new(),
            last: (Vec::new(), 0),
        })
    }

    /// Returns the memory that a run needs.
    pub fn ports(&self) -> &CallerPorts {
        &self.ports
    }

    /// Returns notes for the user.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.engine.notes();
        for it in self.ports.buffers.iter().filter(|it| it.is_copied && it.len > 0) {
            let what = if it.is_input { "input" } else { "output" };
            let bytes = it.len * it.dtype.size();
            notes.push(format!(
                "the {what} `{}` is copied ({bytes} bytes): other ranks access its memory",
                it.name
            ));
        }
        notes.extend(self.capture_obstacle.iter().map(|it| {
            format!("runs cannot be replayed as a CUDA graph, so all are issued step by step: {it}")
        }));
        notes
    }

    /// Returns the bytes of shared memory that it needs.
    pub fn shared_bytes(&self) -> usize {
        self.engine.memory.assignment.shared_bytes
    }

    /// Returns the main stream of its runs.
    pub fn main_stream(&self) -> Stream {
        self.engine.main_stream
    }

    /// Returns whether it has run.
    pub fn is_warm(&self) -> bool {
        self.is_warm
    }

    /// Returns whether it has captured a run.
    pub fn has_graphs(&self) -> bool {
        !self.graphs.is_empty()
    }

    /// Returns the progress, for use by another thread.
    pub fn progress(&self) -> Arc<ProgressWords> {
        Arc::clone(&self.engine.progress)
    }

    /// Issues a run behind the work on the caller's stream; later work on the stream waits for it. All ranks have to issue
    /// the same runs in the same order. The first run waits for the work on the stream and for the other ranks. `shared` has the addresses of
    /// the shared segments of all ranks.
    ///
    /// # Errors
    /// An address is missing or not aligned, or a call fails.
    pub fn run(
        &mut self,
        addresses: &[u64],
        shared: &[u64],
        stream: Stream,
        peers: &dyn ProcessGroup,
    ) -> Result<()> {
        if addresses.len() != self.uses.len() {
            return Err(ExecutorError::Internal(format!(
                "{} addresses were passed for {} buffers",
                addresses.len(),
                self.uses.len()
            )));
        }
        let of_shared = |it: &CallerBuffer| match it.what {
            BoundMemory::Shared(rank) => shared.get(rank).copied().unwrap_or(0),
            BoundMemory::Port(_) | BoundMemory::Temporary => 0,
        };
        let mut direct: Vec<u64> = self.memory.buffers.iter().map(of_shared).collect();
        for (it, address) in self.uses.iter().zip(addresses) {
            if let Use::Direct(buffer) = it {
                direct[*buffer] = *address;
            }
        }
        let graph = self.graph(&direct)?;
        let engine = &self.engine;
        if !self.is_warm {
            // The first calls write to outputs, which the caller's earlier work may still use.
            engine.device.synchronize(stream)?;
            self.warm_up(&direct, peers)?;
            peers.barrier()?;
            self.is_warm = true;
        }
        let engine = &mut self.engine;
        let main = engine.main_stream;
        engine.device.record(self.entry, stream)?;
        engine.device.wait_event(main, self.entry)?;
        // Behind the barrier, all ranks have completed the last run.
        if engine.memory.assignment.shares_memory() {
            engine.device_barrier()?;
        }
        self.copy(addresses, &direct, true)?;
        if self.has_shared_inputs {
            self.engine.device_barrier()?;
        }
        match graph {
            Some(at) => self.engine.replay(&self.graphs[at].1)?,
            None => _ = self.engine.issue(IssueMode::Plain)?,
        }
        self.copy(addresses, &direct, false)?;
        self.engine.count_run()?;
        self.engine.device.record(self.exit, main)?;
        self.engine.device.wait_event(stream, self.exit)
    }

    /// Makes the first calls of libraries for a run with these addresses. Where results lie in inputs, these keep their values until the run: other
    /// memory takes the place of all that the caller passes.
    fn warm_up(&mut self, addresses: &[u64], peers: &dyn ProcessGroup) -> Result<()> {
        let (rank, engine) = (self.engine.memory.rank, &mut self.engine);
        let slices = &engine.memory.assignment.ranks[rank].buffers;
        let lends = slices.iter().any(|it| it.segment == Segment::Lent);
        let of_caller = slices.iter().filter(|it| lends && it.segment == Segment::Caller);
        let Some(largest) = of_caller.map(|it| it.bytes).max() else { return engine.warm_up(peers) };
        let device = Rc::clone(&engine.device);
        device.with_memory(rank, largest, |address| {
            let of_caller = self.memory.buffers.iter().zip(addresses);
            let others = of_caller
                .map(|(it, own)| match it.what {
                    BoundMemory::Port(_) => address,
                    BoundMemory::Temporary | BoundMemory::Shared(_) => *own,
                })
                .collect::<Vec<_>>();
            engine.executable.bind(&mut self.memory, &others)?;
            engine.warm_up(peers)?;
            engine.executable.bind(&mut self.memory, addresses)
        })
    }

    /// Returns the index of the captured run with these addresses, which it captures if they repeat. Without one, makes the
    /// commands use the addresses.
    fn graph(&mut self, addresses: &[u64]) -> Result<Option<usize>> {
        self.last.1 = if self.last.0 == addresses { self.last.1 + 1 } else { 0 };
        if self.last.1 == 0 {
            self.last.0 = addresses.to_vec();
        }
        let is_shared = |it: &CallerBuffer| matches!(it.what, BoundMemory::Shared(_));
        let shared: Vec<usize> =
            (0..addresses.len()).filter(|at| is_shared(&self.memory.buffers[*at])).collect();
        // Shared memory that has grown does not get its old addresses again.
        self.graphs.retain(|it| shared.iter().all(|at| it.0[*at] == addresses[*at]));
        let known = self.graphs.iter().position(|it| it.0 == addresses);
        if known.is_some() {
            return Ok(known);
        }
        self.engine.executable.bind(&mut self.memory, addresses)?;
        if !self.captures || self.last.1 < RUNS_BEFORE_CAPTURE || self.graphs.len() == MOST_GRAPHS {
            return Ok(None);
        }
        let graph = self.engine.capture(false)?;
        self.graphs.push((addresses.to_vec(), graph));
        Ok(Some(self.graphs.len() - 1))
    }

    /// Copies the inputs that are not used in place, or such outputs; `direct` has the addresses that are bound.
    fn copy(&self, addresses: &[u64], direct: &[u64], inputs: bool) -> Result<()> {
        let device = &self.engine.device;
        for ((port, it), callers) in self.ports.buffers.iter().zip(&self.uses).zip(addresses) {
            let Use::Copied { address, bytes } = *it else { continue };
            if port.is_input != inputs || bytes == 0 {
                continue;
            }
            let address = self.memory.resolve(address, direct);
            let (to, from) = if inputs { (address, *callers) } else { (*callers, address) };
            device.copy(to, from, bytes, self.engine.main_stream)?;
        }
        Ok(())
    }
}

/// Returns the ports of a plan, and how each of their buffers is used.
fn ports(plan: &Plan, engine: &Engine, memory: &CallerMemory) -> Result<(CallerPorts, Vec<Use>)> {
    let mut found = CallerPorts { buffers: Vec::new(), inputs: Vec::new(), outputs: Vec::new() };
    let mut uses = Vec::new();
    // By entry of `uses`: the buffer of the plan.
    let mut numbers: Vec<BufferNo> = Vec::new();
    for (port, is_input) in
        plan.inputs.iter().map(|it| (it, true)).chain(plan.outputs.iter().map(|it| (it, false)))
    {
        let list = if is_input { &mut found.inputs } else { &mut found.outputs };
        let Some(view) = &port.shard.view else {
            list.push(None);
            continue;
        };
        let direct = memory.buffers.iter().position(|it| it.what == BoundMemory::Port(view.buffer));
        // A copied input is not where an output in the same buffer is.
        let is_known = |at: &usize| {
            numbers[*at] == view.buffer && (direct.is_some() || found.buffers[*at].is_input == is_input)
        };
        let at = match (0..numbers.len()).find(is_known) {
            Some(at) => at,
            None => {
                let buffer = &plan.buffers[view.buffer as usize];
                let (dtype, len, name) = (buffer.dtype, buffer.len, port.name.clone());
                let is_copied = direct.is_none();
                found.buffers.push(PortBuffer { name, dtype, len, is_input, is_copied });
                numbers.push(view.buffer);
                uses.push(match direct {
                    Some(number) => Use::Direct(number),
                    None => Use::Copied {
                        address: engine.memory.buffer_address(plan.rank, view.buffer)?,
                        bytes: buffer.bytes(),
                    },
                });
                numbers.len() - 1
            }
        };
        list.push(Some(caller_port(port, view, at)));
    }
    if let Some(number) = memory.buffers.iter().position(|it| it.what == BoundMemory::Temporary) {
        let (name, len) = ("temporary memory".to_owned(), engine.memory.temporary_bytes());
        found.buffers.push(PortBuffer { name, dtype: DType::UInt8, len, is_input: false, is_copied: false });
        uses.push(Use::Direct(number));
    }
    Ok((found, uses))
}

fn caller_port(port: &IoBinding, view: &View, buffer: usize) -> CallerPort {
    CallerPort {
        name: port.name.clone(),
        buffer,
        offset: view.offset,
        shape: view.shape.clone(),
        strides: view.strides.clone(),
    }
}
