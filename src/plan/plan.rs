//! The instructions of a rank, with what they refer to.

use std::sync::Arc;

use grammar::StmtId;

use crate::{
    Buffer, CommNames, Communicator, Inst, InstKind, IoBinding, LoopExit, PeerCollective, PlanStream,
    SkippedComm, View, ViewOnRank,
};

/// What the caller does with the tensors of a program when it has ended.
#[derive(Clone, Copy)]
pub struct CallerUses<'a> {
    /// The names of tensors, besides outputs, that it reads (`Plan::live_out`).
    pub kept: &'a [&'a str],
    /// Whether it compares the parts of an output separately: by position in the header, and name.
    pub is_compared_per_rank: &'a dyn Fn(usize, &str) -> bool,
    /// The number of iterations after which conditions end loops; `None` if that is not known.
    pub iterations: Option<usize>,
}

impl Default for CallerUses<'_> {
    /// It reads the outputs, and compares each as a whole.
    fn default() -> Self {
        Self { kept: &[], is_compared_per_rank: &|_, _| false, iterations: None }
    }
}

/// The instructions and data of one rank.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Plan {
    /// This rank.
    pub rank: usize,
    /// The number of ranks.
    pub world: usize,
    /// Identifies the program: the lowest rank that runs the same program. Statements of different programs
    /// are not comparable.
    pub program_id: usize,
    /// The streams. Stream 0 is current at entry.
    pub streams: Vec<PlanStream>,
    /// The buffers.
    pub buffers: Vec<Buffer>,
    /// The communicators.
    pub communicators: Vec<Communicator>,
    /// The instructions, in issue order.
    pub code: Vec<Inst>,
    /// The source locations of instructions. Ranks that take the same branches share the list.
    pub origins: Arc<Vec<Origin>>,
    /// Loop iterations, each with a reference to the enclosing one. Ranks that take the same branches share
    /// the list.
    pub iterations: Arc<Vec<LoopIteration>>,
    /// The inputs of the program, in header order. They are filled before the first instruction.
    pub inputs: Vec<IoBinding>,
    /// The outputs of the program, in header order. The last instruction reads them.
    pub outputs: Vec<IoBinding>,
    /// All tensors of the container that are bound when the program ends.
    pub bound_at_exit: Vec<IoBinding>,
    /// Buffers, besides those of the outputs, whose contents are read after the program has ended and must be
    /// preserved.
    pub live_out: Vec<BufferNo>,
    /// The storage that statements allocate, in program order.
    pub allocations: Vec<Allocation>,
    /// The pools that ALLOCATE statements name (`pool=`).
    pub pools: Vec<String>,
    /// The ALLOCATE statements in loops that have no effect in some iterations, because their name is bound.
    pub skipped_allocations: Vec<SkippedAllocation>,
    /// The writes into what a copy made its result a view of.
    pub overwritten_views: Vec<OverwrittenView>,
    /// The views of the shards of all ranks that its statements make, in program order.
    pub gathered_views: Vec<GatheredView>,
    /// The views that are mapped instead (`World::with_mapped_views`).
    pub mapped_views: Vec<MappedView>,
    /// The Waits for communications of the CUDA backend that have no order with what this rank executes itself.
    pub waits_for_peers: Vec<WaitForPeers>,
    /// The buffers that PyTorch may free before the program waits for the communications that hold them (`held_operands`).
    pub early_releases: Vec<EarlyRelease>,
    /// Whether the rank executes a Deallocate.
    pub deallocates: bool,
    /// The collectives that an executor may run as one kernel, in the order of their instructions.
    pub peer_collectives: Vec<PeerCollective>,
    /// Where the host may leave loops, by ascending event.
    pub exits: Vec<LoopExit>,
    /// The number of events that `RecordEvent` records.
    pub event_count: usize,
    /// The number of works that `Collective` and `P2pGroup` post.
    pub work_count: usize,
    /// The communications that this rank does not post and other ranks may post.
    pub skips: Vec<SkippedComm>,
    /// The names of the program's communications, for reports.
    pub comm_names: Arc<CommNames>,
    /// The smallest world that contains all meshes and teams of the program; 0 if the plan comes from no program.
    pub smallest_world: usize,
}

/// An index into `Plan::buffers`.
pub type BufferNo = u32;
/// An index into `Plan::streams`.
pub type StreamNo = u32;
/// An index into `Plan::communicators`.
pub type CommunicatorNo = u32;
/// The number of an event of the rank.
pub type EventNo = u32;
/// The number of a posted communication of the rank.
pub type WorkNo = u32;

/// The storage of a buffer as a caching allocator of a framework would allocate it. Executors assign
/// addresses from the happens-before order and ignore it. The checker uses it, since frameworks allocate
/// while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The buffer.
    pub buffer: BufferNo,
    /// The pool that provides its storage.
    pub pool: StoragePool,
    /// True if it has no storage of the pool: no elements, or a view that maps the shards of all ranks.
    pub is_empty: bool,
    /// Number of buffers of the stream that are freed before this one is allocated. Those of the pool may have used its
    /// storage.
    pub frees_before: u32,
    /// Whether it is symmetric memory.
    pub is_symmetric: bool,
    /// Where no tensor is bound to the buffer any more; `None` for the end of the program.
    pub unbound: Option<Unbound>,
    /// Where the buffer is freed if communications hold their operands; `None` for the end of the program.
    pub freed: Option<Freed>,
    /// Whether a communication that nothing waits for, or a handle of its memory, still holds the buffer at the end.
    pub is_held: bool,
    /// Whether the work of recorded streams delays its free (`EarlyRelease::recorded`).
    pub is_recorded: bool,
    /// Where only communications of NCCL hold the buffer for which nothing waits. A capture frees it there.
    pub left: Option<Freed>,
}

/// A buffer that is freed once something has ended for which no stream waits: communications that hold it, where the program calls the next
/// one, or the work of streams that the program has recorded (`RecordStream`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyRelease {
    /// Where it may be freed.
    pub freed: Freed,
    /// The buffer.
    pub buffer: BufferNo,
    /// The communications.
    pub works: Vec<WorkNo>,
    /// The event of each recorded stream where the buffer is freed.
    pub recorded: Vec<EventNo>,
}

/// A pool of storage. Buffers of different pools never share storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoragePool {
    /// The stream on which the buffers are allocated. The allocator knows of no other stream that uses them.
    pub stream: StreamNo,
    /// Whether it is the pool for small requests.
    pub is_small: bool,
    /// The pool that the ALLOCATE names, an index into `Plan::pools`.
    pub named: Option<u32>,
}

/// The point from which no tensor is bound to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unbound {
    /// The statement, an index into `Plan::origins`.
    pub origin: u32,
    /// The stream that is current there.
    pub current: StreamNo,
}

/// The point at which a buffer is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// The statement after which no tensor is bound to the buffer and no communication holds it, an index into `Plan::origins`.
    pub origin: u32,
    /// Number of buffers of the same stream that are freed before.
    pub number: u32,
    /// The stream that is current there.
    pub current: StreamNo,
}

/// An ALLOCATE in a loop that is skipped when its name is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SkippedAllocation {
    /// The statement.
    pub stmt: StmtId,
    /// The number of times the rank executes the statement without effect.
    pub count: usize,
}

/// A write into the result of a copy that was made a view of its operand, which changes, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverwrittenView {
    /// The write, as an index into `Plan::origins`.
    pub origin: u32,
    /// Whether it is the copy itself, in a later iteration of its loop; else another statement, and the operand is an input.
    pub is_copy: bool,
    /// The name of the result of the copy.
    pub name: String,
    /// The name of the tensor whose elements are written.
    pub base: String,
}

/// A communication that gathers the shards of all ranks, for a statement that makes a view of them (`SymmetricContiguousView`).
#[derive(Clone, Debug, PartialEq)]
pub struct GatheredView {
    /// The communication.
    pub work: WorkNo,
    /// The shard of this rank.
    pub shard: View,
    /// The whole buffer that gets the shards, one after another.
    pub view: View,
}

/// A buffer that stands for the shards of all ranks in their own memory: a read of it reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct MappedView {
    /// The buffer.
    pub buffer: BufferNo,
    /// Whether the shards follow each other from its first element on.
    pub is_whole: bool,
    /// The shards, in the order of ranks. All have the same number of elements.
    pub shards: Vec<ViewOnRank>,
    /// The instruction in which hosts exchange the handles, if each run does so again.
    pub exchange: Option<usize>,
}

/// A Wait for a communication of the CUDA backend on another stream than that of the post. It waits until peers have accessed the memory of this
/// rank. What this rank copies or reduces is work of the stream of the post, which it does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForPeers {
    /// The statement that posts the communication, as an index into `Plan::origins`.
    pub post: u32,
    /// The Wait, as an index into `Plan::origins`.
    pub wait: u32,
    /// The stream that waits.
    pub stream: StreamNo,
}

/// The source location of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The statement.
    pub stmt: Option<StmtId>,
    /// The line of the statement in the text, from 1; 0 for the end of the program.
    pub line: u32,
    /// The innermost loop iteration, an index into `Plan::iterations`.
    pub iteration: Option<u32>,
}

/// One iteration of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopIteration {
    /// The loop.
    pub stmt: StmtId,
    /// The name of the loop index.
    pub name: Arc<str>,
    /// The value of the loop index.
    pub value: i64,
    /// The enclosing iteration.
    pub parent: Option<u32>,
}

impl Plan {
    /// Returns whether operators reshard, so that the program is not lowered.
    pub fn reshards(&self) -> bool {
        self.code.iter().any(|it| matches!(it.kind, InstKind::Reshard(_)))
    }

    /// Returns the loop of an iteration, and the iteration around it.
    pub fn loop_of(&self, frame: u32) -> (StmtId, Option<u32>) {
        let it = &self.iterations[frame as usize];
        (it.stmt, it.parent)
    }

    /// Returns where the host may leave a loop once it has waited for an event.
    pub fn exit_at(&self, event: EventNo) -> Option<&LoopExit> {
        self.exits.binary_search_by_key(&event, |it| it.event).ok().map(|at| &self.exits[at])
    }

    /// Returns the collective of `peer_collectives` that contains the instruction at an index.
    pub fn peer_collective_at(&self, at: usize) -> Option<&PeerCollective> {
        let next = self.peer_collectives.partition_point(|it| it.range.end <= at);
        self.peer_collectives.get(next).filter(|it| it.range.contains(&at))
    }

    /// Returns a plan without instructions. Origin 0 is the end of the program.
    pub fn empty(rank: usize, world: usize, streams: Vec<PlanStream>) -> Self {
        Self {
            rank,
            world,
            streams,
            origins: Arc::new(vec![Origin { stmt: None, line: 0, iteration: None }]),
            ..Self::default()
        }
    }

    /// Returns the buffers that the caller can read or write before or after the program: those of inputs and outputs, and
    /// `live_out`. A buffer may occur more than once.
    pub fn caller_buffers(&self) -> impl Iterator<Item = BufferNo> {
        let bindings = self.inputs.iter().chain(&self.outputs).filter_map(|it| it.shard.view.as_ref());
        bindings.map(|it| it.buffer).chain(self.live_out.iter().copied())
    }

    /// Returns the instruction that reads the outputs.
    pub fn exit(&self) -> Option<usize> {
        self.code.iter().rposition(|it| matches!(it.kind, InstKind::ReadOutputs))
    }

    /// Shares equal tables with the plan of another rank, and releases unused capacity.
    pub(crate) fn share_tables_with(&mut self, other: Option<&Self>) {
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

    /// Returns the location of an instruction for reports: `line 14, streamIdx=3`.
    pub fn location(&self, inst: &Inst) -> String {
        self.location_of_origin(inst.origin)
    }

    /// Returns the location of a statement, an index into `origins`: `line 14, streamIdx=3`.
    pub(crate) fn location_of_origin(&self, origin: u32) -> String {
        let origin = self.origins[origin as usize];
        if origin.line == 0 {
            return "end of program".to_owned();
        }
        let iteration = iteration_text(&self.enclosing_loops(origin.iteration));
        if iteration.is_empty() {
            format!("line {}", origin.line)
        } else {
            format!("line {}, {iteration}", origin.line)
        }
    }

    /// Returns a description of a statement: `P2PCommunication 38 (send, line 21, streamIdx=1)` for a
    /// communication, `line 14, streamIdx=3` for other statements.
    pub fn describe_origin(&self, origin: u32) -> String {
        self.describe_origin_within(origin, &[])
    }

    /// As `describe_origin`, without the iteration if it is that of `loops`.
    pub(crate) fn describe_origin_within(&self, origin: u32, loops: &[(Arc<str>, i64)]) -> String {
        let it = self.origins[origin as usize];
        let own = self.enclosing_loops(it.iteration);
        let iteration = if own == loops { String::new() } else { iteration_text(&own) };
        let name = it.stmt.and_then(|stmt| self.comm_names.text(stmt, &iteration));
        name.unwrap_or_else(|| match (it.line, iteration.is_empty()) {
            (0, _) => "the end of the program".to_owned(),
            (line, true) => format!("line {line}"),
            (line, false) => format!("line {line}, {iteration}"),
        })
    }

    /// Returns the iteration of an instruction, outermost loop first: `i=0 j=3`. Empty outside loops.
    pub fn iteration(&self, inst: &Inst) -> String {
        iteration_text(&self.enclosing_loops(self.origins[inst.origin as usize].iteration))
    }

    /// Returns the indices and values of the loops that enclose an iteration, including its own loop,
    /// outermost first.
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

/// Formats loop indices and their values: `i=0 j=3`.
pub fn iteration_text(loops: &[(Arc<str>, i64)]) -> String {
    loops.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
