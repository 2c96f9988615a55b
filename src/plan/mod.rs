//! The plan: what one rank will do, with nothing left to decide.
//!
//! `build` turns a program, a world and symbol bindings into one `Plan` a rank: loops are unrolled, predicates and
//! scalars folded, streams and events numbered, every tensor is a strided view of a numbered buffer, every peer and
//! team is concrete. `sync` then matches the communications of all ranks and checks that they agree, and `transport` replaces those
//! that no library moves. The simulator, the GPU executor and the checker read plans and nothing else.
//!
//! Meaning of the instructions, in one place: instructions on one stream run in the order of issue; `Record`/`Join`
//! order streams of one rank; `Collective` and `Transfer` run on their communicator's queue, in order of posting,
//! after everything issued before them on the posting stream, and a stream waits for them only where a `Wait` says so;
//! `Signal`/`Await` order streams of two ranks; `Exchange` and `Barrier` block the issuing host.
//!
//! Invariant: a plan holds plain data: no names to look up, no expression to evaluate.

mod access;
mod algorithm;
mod build;
mod caching_allocator;
mod collective_semantics;
mod comm;
mod comm_names;
mod comm_options;
mod compute;
mod construct;
mod context;
mod effect;
mod host_unit;
mod index;
mod inst;
mod io;
pub mod limits;
mod print;
mod queue_streams;
mod reshard;
pub(crate) mod scalar;
mod shape;
mod size;
mod skip;
pub mod sync;
mod teams;
#[cfg(test)]
pub(crate) mod tests;
mod transport;
mod unbound;
mod view;
mod views;
mod world;

pub use access::{Access, Communication};
pub use collective_semantics::{OutputPiece, PieceSource};
pub use comm_names::CommNames;
pub use effect::{ExecutionSite, InstClass, SyncEffect, WorkInfo};
pub use inst::{
    Arg, Backend, Collective, CollectiveKind, Communicator, Direction, Gemm, Inst, InstKind, MemHandle,
    Number, P2pOp, Reduce, ReduceOp, Reshard, SignalId, SignalKind, Transfer,
};
pub use print::{inst_text, plan_text, view_text};
pub use queue_streams::queue_streams;
pub(crate) use shape::leaf_axes;
pub use skip::{MAX_SKIPS, SkipReason, SkippedComm, SkippedRole};
pub use view::{AxisPiece, Buffer, IoBinding, PrintedAxis, Shard, ShardLayout, View, ViewKey, ViewOnRank};
pub use world::{build, build_per_rank, build_with_limits, smallest_world};

use std::{ops::Range, sync::Arc};

use grammar::ir::StmtId;

/// What one rank does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// The first rank that runs the same program: statements of two programs have nothing to do with each other.
    pub program_id: usize,
    /// Streams by number, with the name that reports show. Stream 0 is the one current at entry.
    pub streams: Vec<String>,
    /// Storage by number.
    pub buffers: Vec<Buffer>,
    /// Communicators by number.
    pub communicators: Vec<Communicator>,
    /// Instructions in the order of issue.
    pub code: Vec<Inst>,
    /// Where instructions come from, by number; ranks that take the same branches share the list.
    pub origins: Arc<Vec<Origin>>,
    /// Loop iterations, by number, each naming the enclosing one; shared as `origins`.
    pub iterations: Arc<Vec<LoopIteration>>,
    /// The program's inputs, in header order; filled before the first instruction.
    pub inputs: Vec<IoBinding>,
    /// The program's outputs, in header order; read by the last instruction.
    pub outputs: Vec<IoBinding>,
    /// Every tensor of the container that is bound when the program ends.
    pub bound_at_exit: Vec<IoBinding>,
    /// Buffers besides those of the outputs that somebody reads when all has run: what is in them has to stay.
    pub live_out: Vec<BufferNo>,
    /// The storage that statements allocate, in the order of the program.
    pub allocations: Vec<Allocation>,
    /// ALLOCATE statements of loops that have no effect in some iterations, since their name is bound.
    pub skipped_allocations: Vec<SkippedAllocation>,
    /// Whether the rank executes a Deallocate.
    pub deallocates: bool,
    /// Ranges of `code` that an executor may run as one kernel, or ignore: the meaning is the same. Ranges are disjoint, ascending and
    /// not empty; the instructions of one follow each other on one stream: an all-reduce over peer memory with its signals.
    pub kernels: Vec<Range<usize>>,
    /// Number of events that `Record` sets.
    pub event_count: usize,
    /// Number of works that `Collective` and `Transfer` post.
    pub work_count: usize,
    /// Communications that this rank does not post, and others may.
    pub skips: Vec<SkippedComm>,
    /// What reports call the program's communications.
    pub comm_names: Arc<CommNames>,
}

/// An index into `Plan::buffers`.
pub type BufferNo = u32;
/// An index into `Plan::streams`.
pub type StreamNo = u32;
/// An index into `Plan::communicators`.
pub type CommunicatorNo = u32;
/// An event of the rank.
pub type EventNo = u32;
/// A posted communication of the rank.
pub type WorkNo = u32;

/// Storage of a buffer as a framework's caching allocator would give it. Executors place buffers by `sync::order` and do not read this; the
/// checker does, since frameworks allocate as the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The buffer.
    pub buffer: BufferNo,
    /// Its block: buffers with the same one follow each other in the same memory.
    pub block: u32,
    /// The stream that it is allocated on, which alone the allocator knows of.
    pub stream: StreamNo,
    /// The statement behind which no tensor is bound to it, an index into `Plan::origins`; `None`: the end of the program.
    pub freed_by: Option<u32>,
    /// Whether a communication that nothing waits for keeps it at the end.
    pub is_held: bool,
}

/// An ALLOCATE of a loop that skips a bound name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedAllocation {
    /// The statement.
    pub stmt: StmtId,
    /// How many times the rank executes it without effect.
    pub count: usize,
}

/// Where an instruction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The statement.
    pub stmt: Option<StmtId>,
    /// Its line in the text, from 1; 0 for the end of the program.
    pub line: u32,
    /// The innermost loop iteration, an index into `Plan::frames`.
    pub iteration: Option<u32>,
}

/// One iteration of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopIteration {
    /// The loop's index.
    pub name: Arc<str>,
    /// Its value.
    pub value: i64,
    /// The enclosing iteration.
    pub parent: Option<u32>,
}

impl Plan {
    /// A plan without instructions; origin 0 is the end of the program.
    pub fn empty(rank: usize, world: usize, streams: Vec<String>) -> Self {
        Self {
            rank,
            world,
            program_id: 0,
            streams,
            buffers: Vec::new(),
            communicators: Vec::new(),
            code: Vec::new(),
            origins: Arc::new(vec![Origin { stmt: None, line: 0, iteration: None }]),
            iterations: Arc::default(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            bound_at_exit: Vec::new(),
            live_out: Vec::new(),
            allocations: Vec::new(),
            skipped_allocations: Vec::new(),
            deallocates: false,
            kernels: Vec::new(),
            event_count: 0,
            work_count: 0,
            skips: Vec::new(),
            comm_names: Arc::default(),
        }
    }

    /// Shares with another rank's plan what is equal, and gives back the room that growth left.
    fn share_tables_with(&mut self, other: Option<&Self>) {
        if let Some(other) = other.filter(|it| it.origins == self.origins) {
            self.origins = Arc::clone(&other.origins);
        }
        if let Some(other) = other.filter(|it| it.iterations == self.iterations) {
            self.iterations = Arc::clone(&other.iterations);
        }
        self.code.shrink_to_fit();
        self.buffers.shrink_to_fit();
        self.skips.shrink_to_fit();
        self.allocations.shrink_to_fit();
    }

    /// `line 14, streamIdx=3`: the place of an instruction, as reports print it.
    pub fn location(&self, inst: &Inst) -> String {
        let origin = self.origins[inst.origin as usize];
        if origin.line == 0 {
            return "end of program".to_owned();
        }
        let iteration = self.iteration(inst);
        match iteration.is_empty() {
            true => format!("line {}", origin.line),
            false => format!("line {}, {iteration}", origin.line),
        }
    }

    /// `P2PCommunication 38 (send, line 21, streamIdx=1)` where the statement communicates, `line 14, streamIdx=3` elsewhere.
    pub fn describe_origin(&self, origin: u32) -> String {
        let it = self.origins[origin as usize];
        let iteration = iteration_text(&self.enclosing_loops(it.iteration));
        let name = it.stmt.and_then(|stmt| self.comm_names.text(stmt, &iteration));
        name.unwrap_or_else(|| match (it.line, iteration.is_empty()) {
            (0, _) => "the end of the program".to_owned(),
            (line, true) => format!("line {line}"),
            (line, false) => format!("line {line}, {iteration}"),
        })
    }

    /// `i=0 j=3`: the iteration of an instruction, outermost loop first; empty outside loops.
    pub fn iteration(&self, inst: &Inst) -> String {
        iteration_text(&self.enclosing_loops(self.origins[inst.origin as usize].iteration))
    }

    /// The indices of the loops around an iteration, itself included, and their values, outermost loop first.
    pub fn enclosing_loops(&self, mut frame: Option<u32>) -> Vec<(Arc<str>, i64)> {
        let mut found = Vec::new();
        while let Some(it) = frame.map(|at| &self.iterations[at as usize]) {
            found.push((Arc::clone(&it.name), it.value));
            frame = it.parent;
        }
        found.reverse();
        found
    }
}

/// `i=0 j=3`: indices of loops and their values.
pub(crate) fn iteration_text(loops: &[(Arc<str>, i64)]) -> String {
    loops.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
