//! The plan: what one rank will do, with nothing left to decide.
//!
//! `build` turns a program, a world and symbol bindings into one `Plan` a rank: loops are unrolled, predicates and
//! scalars folded, streams and events numbered, every tensor is a strided view of a numbered buffer, every peer and
//! team is concrete. `link` then matches what ranks say about each other (sizes, peers' views). The simulator, the GPU
//! executor and the checker read plans and nothing else.
//!
//! Meaning of the instructions, in one place: instructions on one stream run in the order of issue; `Record`/`Join`
//! order streams of one rank; `Collective` and `Transfer` run on their communicator's queue, in order of posting,
//! after everything issued before them on the posting stream, and a stream waits for them only where a `Wait` says so;
//! `Signal`/`Await` order streams of two ranks; `Exchange` and `Barrier` block the issuing host.
//!
//! Invariant: a plan holds plain data: no names to look up, no expression to evaluate.

mod bind;
mod build;
mod comm;
mod compute;
pub mod limits;
mod link;
mod ports;
mod reshard;
mod scalar;
mod shape;
mod show;
mod team;
mod unit;
mod world;

pub use show::{inst_text, show, view_text};
pub use world::{build, build_each, smallest_world};

use grammar::{dtype::DType, ir::StmtId, ops::Op};

/// What one rank does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Streams by number, with the name that reports show. Stream 0 is the one current at entry.
    pub streams: Vec<String>,
    /// Storage by number.
    pub buffers: Vec<Buffer>,
    /// Communicators by number.
    pub communicators: Vec<Communicator>,
    /// Instructions in the order of issue.
    pub code: Vec<Inst>,
    /// Where instructions come from, by number.
    pub origins: Vec<Origin>,
    /// Loop iterations, by number, each naming the enclosing one.
    pub frames: Vec<Frame>,
    /// The program's inputs, in header order; filled before the first instruction.
    pub inputs: Vec<Port>,
    /// The program's outputs, in header order; read by the last instruction.
    pub outputs: Vec<Port>,
    /// Every tensor of the container that is bound when the program ends.
    pub named: Vec<Port>,
    /// Number of events that `Record` sets.
    pub events: usize,
    /// Number of works that `Collective` and `Transfer` post.
    pub works: usize,
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

/// Storage of one element type, zero-based.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The tensor's name, for reports.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub len: usize,
}

/// A strided window into a buffer; row-major when `strides` are those of `shape`.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The storage.
    pub buffer: BufferNo,
    /// First element.
    pub offset: usize,
    /// Extents, slowest first.
    pub shape: Vec<usize>,
    /// Elements between neighbours along each dimension; 0 repeats.
    pub strides: Vec<usize>,
}

impl View {
    /// The whole of a row-major buffer.
    pub fn contiguous(buffer: BufferNo, shape: Vec<usize>) -> Self {
        let mut strides = vec![1; shape.len()];
        for at in (1..shape.len()).rev() {
            strides[at - 1] = strides[at] * shape[at];
        }
        Self { buffer, offset: 0, shape, strides }
    }

    /// Number of elements. Where operands repeat it can be far beyond what any buffer holds.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |len: usize, extent| len.saturating_mul(*extent))
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A view in this rank's memory or in a peer's.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The rank whose buffer it is.
    pub rank: usize,
    /// The view, in that rank's numbering.
    pub view: View,
}

/// A backend and a team.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Communicator {
    /// Whose queue.
    pub backend: Backend,
    /// World ranks in team order.
    pub team: Vec<usize>,
}

/// Who moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// NCCL.
    Nccl,
    /// UCC.
    Ucc,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// What to do.
    pub kind: InstKind,
    /// The stream it is issued on. Host instructions (`Exchange`, `Barrier`) block the host instead.
    pub stream: StreamNo,
    /// An index into `Plan::origins`.
    pub origin: u32,
}

/// What an instruction does. The simulator's arm defines each.
#[derive(Clone, Debug, PartialEq)]
pub enum InstKind {
    /// The buffer comes into being, unwritten, or zero.
    Alloc {
        /// Which.
        buffer: BufferNo,
        /// Whether its elements become 0.
        zero: bool,
    },
    /// Elements move between views of equal shape, possibly to or from a peer's memory; the element type converts.
    Copy {
        /// Source.
        from: Place,
        /// Destination.
        to: Place,
    },
    /// Every element becomes `value`.
    Fill {
        /// Destination.
        to: View,
        /// The value.
        value: Number,
    },
    /// `out[i…] = start + step · i` along the only dimension.
    Iota {
        /// Destination, one dimension.
        to: View,
        /// First value.
        start: i64,
        /// Difference of neighbours.
        step: i64,
    },
    /// A matrix product.
    Gemm(Gemm),
    /// Element by element; operands have the result's shape (stride 0 where they repeat).
    Map {
        /// The function.
        op: Op,
        /// Operands.
        args: Vec<Arg>,
        /// Result.
        out: View,
    },
    /// Combines along axes.
    Reduce(Reduce),
    /// Combines equally shaped views of several ranks in the order given: the CUDA backend's reductions.
    Combine {
        /// How.
        op: ReduceOp,
        /// Operands.
        parts: Vec<Place>,
        /// Result.
        out: View,
    },
    /// Posts a collective.
    Collective(Collective),
    /// Posts sends and receives as one.
    Transfer(Transfer),
    /// The stream waits for a posted work.
    Wait {
        /// Which.
        work: WorkNo,
    },
    /// Raises a flag that a peer (or this rank) polls.
    Signal {
        /// Which.
        slot: Slot,
    },
    /// The stream waits until a flag that lives on this rank is raised.
    Await {
        /// Which.
        slot: Slot,
    },
    /// Sets an event once everything issued on the stream so far is done.
    Record {
        /// Which.
        event: EventNo,
    },
    /// The stream waits for an event.
    Join {
        /// Which.
        event: EventNo,
    },
    /// The host publishes handles and blocks until each peer has published the matching one.
    Exchange {
        /// The transfers whose handles are exchanged.
        handles: Vec<Handle>,
    },
    /// The host blocks until the hosts of all ranks of the world have come to their barrier of the same number.
    Barrier,
    /// Assembles operands from all ranks, applies an operator to them as a whole, scatters the result. Simulator only.
    Reshard(Box<Reshard>),
    /// The caller reads the outputs. The last instruction of every plan, on the stream current at exit.
    Finish,
}

/// A scalar constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

/// An operand of `Map`.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Elements.
    View(View),
    /// The same value for every element.
    Number(Number),
}

/// `out[b…, m, n] = Σₖ a[b…, m, k] · b[b…, k, n] + bias[b…, m, n]`; all views have the same batch dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// Left operand `[b…, m, k]`.
    pub a: View,
    /// Right operand `[b…, k, n]`.
    pub b: View,
    /// Added before the one rounding; has the result's shape.
    pub bias: Option<View>,
    /// Result `[b…, m, n]`.
    pub out: View,
}

/// `out` = `input` combined along `axes`, starting from `init`; `out` has the other axes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// How.
    pub op: ReduceOp,
    /// The value to start from.
    pub init: Number,
    /// Operand.
    pub input: View,
    /// The operand's axes that vanish, ascending.
    pub axes: Vec<usize>,
    /// Result.
    pub out: View,
}

/// How elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Product.
    Product,
    /// Minimum; a NaN wins.
    Min,
    /// Maximum; a NaN wins.
    Max,
    /// Minimum; a number wins over a NaN.
    FMin,
    /// Maximum; a number wins over a NaN.
    FMax,
    /// Sum divided by the number of operands.
    Avg,
    /// Bits of all.
    And,
    /// Bits of any.
    Or,
    /// Bits of an odd number.
    Xor,
}

/// A collective. Members match by position in their communicator's queue.
///
/// Views are flattened in row-major order; `n` is the team's size. What each leaves on team member `i`:
/// Broadcast: `root`'s input. Allgather: all inputs, in team order. Gather: the same on `root`, nothing elsewhere.
/// Scatter: part `i` of `n` of `root`'s input. Allreduce: all inputs combined. Reduce: the same on `root`.
/// ReduceScatter: part `i` of all inputs combined. AllToAll: part `i` of every input, in team order.
/// SendRecv: member 0's or 1's input (`root`), on the other; a copy where the team has one member.
/// Permute: the input of `recv_peer`.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// The queue.
    pub communicator: CommunicatorNo,
    /// What is done.
    pub kind: CollectiveKind,
    /// What this rank gives; `None` where it gives nothing.
    pub input: Option<View>,
    /// What this rank gets; `None` where it gets nothing.
    pub output: Option<View>,
    /// The work that `Wait` names.
    pub work: WorkNo,
}

/// Types of collectives, with what the type needs. Roots and peers count within the team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// One to all.
    Broadcast {
        /// Who gives.
        root: usize,
    },
    /// All to one.
    Gather {
        /// Who gets.
        root: usize,
    },
    /// All to all, everything.
    Allgather,
    /// One to all, a part each.
    Scatter {
        /// Who gives.
        root: usize,
    },
    /// Combined at one.
    Reduce {
        /// Who gets.
        root: usize,
        /// How.
        op: ReduceOp,
    },
    /// Combined at all.
    Allreduce {
        /// How.
        op: ReduceOp,
    },
    /// Combined, a part each.
    ReduceScatter {
        /// How.
        op: ReduceOp,
    },
    /// One to one.
    SendRecv {
        /// Who gives.
        root: usize,
    },
    /// A part of each to each.
    AllToAll,
    /// Each to one.
    Permute {
        /// Who gets this rank's input.
        send_peer: usize,
        /// Whose input this rank gets.
        recv_peer: usize,
    },
}

/// Sends and receives that are posted as one and complete as one. Each side matches the peer's other side in order of
/// posting, a pair at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// The queue.
    pub communicator: CommunicatorNo,
    /// The sides.
    pub sides: Vec<Side>,
    /// The work that `Wait` names.
    pub work: WorkNo,
}

/// One side of a transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// Whether this rank gives or gets.
    pub direction: Direction,
    /// The other rank, a world rank.
    pub peer: usize,
    /// What is given, or where it goes.
    pub view: View,
}

/// Give or get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// This rank gives.
    Send,
    /// This rank gets.
    Recv,
}

/// A flag in the memory of `to`, raised by `from`, once a run. Executors that run a plan again compare with the run's
/// number instead of resetting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Who raises it.
    pub from: usize,
    /// On whose memory it lives, and who polls it.
    pub to: usize,
    /// What it says.
    pub meaning: Meaning,
    /// Which message between the two.
    pub index: u32,
}

/// What a raised flag tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Meaning {
    /// The buffer on `from` may be read or written by `to`.
    Ready,
    /// `from` has finished with the buffer on `to`.
    Done,
    /// As `Ready`, of a put: the receiver says so.
    PutReady,
    /// As `Done`, of a put: the sender says so.
    PutDone,
    /// As `Ready`, of a collective over peer memory.
    TeamReady,
    /// As `Done`, of a collective over peer memory.
    TeamDone,
}

/// A handle that `Exchange` publishes and expects.
#[derive(Clone, Debug, PartialEq)]
pub struct Handle {
    /// This rank's side.
    pub direction: Direction,
    /// The other rank.
    pub peer: usize,
    /// Which exchange on this channel (sender, receiver).
    pub index: u32,
    /// The P2PCommunication's number, for reports.
    pub number: u32,
}

/// A resharding operator on whole tensors.
///
/// `body` works on buffers of its own, one for each operand, in order, then the result, then temporaries, each
/// contiguous and of the whole tensor's shape. All ranks of the team hold the same `body`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshard {
    /// All ranks that hold a shard of an operand or of the result, ascending.
    pub team: Vec<usize>,
    /// This rank's shards of the operands.
    pub operands: Vec<Shard>,
    /// This rank's shard of the result.
    pub result: Shard,
    /// Buffers of `body`.
    pub buffers: Vec<Buffer>,
    /// Instructions that compute the whole result.
    pub body: Vec<InstKind>,
}

/// One rank's part of a whole tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Shard {
    /// Where the part is; `None` where the rank holds none.
    pub view: Option<View>,
    /// Which part it is.
    pub layout: Layout,
}

/// How a part sits in the whole: each dimension of the whole is a mixed-radix number of `pieces`, slowest first; a piece
/// with a coordinate is fixed on this rank, the others make up the part's own dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The whole tensor's shape.
    pub shape: Vec<usize>,
    /// Pieces of each dimension; their extents multiply to the dimension's.
    pub pieces: Vec<Vec<Piece>>,
}

/// A digit of a dimension's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// How many values it has.
    pub extent: usize,
    /// The value on this rank; `None`: all of them are here.
    pub coordinate: Option<usize>,
}

impl Layout {
    /// A tensor that is whole on this rank.
    pub fn whole(shape: &[usize]) -> Self {
        let pieces = shape.iter().map(|&extent| vec![Piece { extent, coordinate: None }]).collect();
        Self { shape: shape.to_vec(), pieces }
    }

    /// The part's shape.
    pub fn local_shape(&self) -> Vec<usize> {
        let local = |pieces: &Vec<Piece>| {
            pieces.iter().filter(|it| it.coordinate.is_none()).map(|it| it.extent).product()
        };
        self.pieces.iter().map(local).collect()
    }

    /// The index in the whole, row-major, of every element of the part in row-major order.
    pub fn global_indices(&self) -> Vec<usize> {
        // One dimension may be long where another has nothing.
        if self.local_shape().contains(&0) {
            return Vec::new();
        }
        let mut indices = vec![0];
        for pieces in &self.pieces {
            let extent: usize = pieces.iter().map(|it| it.extent).product();
            let mut along = vec![0];
            for piece in pieces {
                let digits = piece.coordinate.map_or(0..piece.extent, |at| at..at + 1);
                along = along
                    .iter()
                    .flat_map(|high| digits.clone().map(move |digit| high * piece.extent + digit))
                    .collect();
            }
            indices =
                indices.iter().flat_map(|high| along.iter().map(move |low| high * extent + low)).collect();
        }
        indices
    }
}

/// An input or output of the program on this rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The tensor's name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// This rank's part.
    pub shard: Shard,
}

/// Where an instruction comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The statement.
    pub stmt: Option<StmtId>,
    /// Its line in the text, from 1; 0 for the end of the program.
    pub line: u32,
    /// The innermost loop iteration, an index into `Plan::frames`.
    pub frame: Option<u32>,
}

/// One iteration of a loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The loop's index.
    pub name: String,
    /// Its value.
    pub value: i64,
    /// The enclosing iteration.
    pub parent: Option<u32>,
}

impl Plan {
    /// `line 14, streamIdx=3`: the place of an instruction, as reports print it.
    pub fn place(&self, inst: &Inst) -> String {
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

    /// `i=0 j=3`: the iteration of an instruction, outermost loop first; empty outside loops.
    pub fn iteration(&self, inst: &Inst) -> String {
        let mut parts = Vec::new();
        let mut frame = self.origins[inst.origin as usize].frame;
        while let Some(it) = frame.map(|at| &self.frames[at as usize]) {
            parts.push(format!("{}={}", it.name, it.value));
            frame = it.parent;
        }
        parts.reverse();
        parts.join(" ")
    }
}
