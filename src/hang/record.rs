//! What a dump says, in a compact form: one log for each rank, whose records refer to interned groups, signatures and stacks.

use std::{
    fmt,
    hash::Hash,
    sync::{Mutex, PoisonError},
};

use grammar::words::CommunicationType;
use rustc_hash::FxHashMap;

/// A rank of the world.
pub type Rank = u32;

/// The largest rank that is read.
pub const MAX_RANK: Rank = 999_999;

macro_rules! ids {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        $($(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);

        impl From<u32> for $name {
            fn from(number: u32) -> Self {
                Self(number)
            }
        }

        impl $name {
            /// Returns the position in the table of all of them.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        })+
    };
}

ids! {
    /// A process group.
    GroupId;
    /// What a call does and on what.
    SignatureId;
    /// The stack of a call.
    StackId;
    /// A name of a file or function.
    NameId;
}

/// A process group: its name and description with the backend that recorded it, and its members.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Group {
    /// `0` for the world, `1`, `2` … in the order of creation, or a hash.
    pub name: String,
    /// `default_pg`, `mesh_tp`, the `group_desc` of `new_group`, or `undefined`.
    pub description: String,
    /// `nccl`, `gloo` …
    pub backend: String,
    /// The ranks of the world that are members, in the order of their ranks in the group; `None` if the dump does not say.
    pub members: Option<Vec<Rank>>,
}

impl Group {
    /// Returns the description, if it is not one that PyTorch gives to every group.
    pub fn own_description(&self) -> Option<&str> {
        Some(self.description.as_str()).filter(|it| !matches!(*it, "" | "default_pg" | "undefined"))
    }
}

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Kind {
    /// All members get the reduction.
    AllReduce,
    /// All members get the values of the root.
    Broadcast,
    /// The root gets the reduction.
    Reduce,
    /// All members get the parts of all.
    AllGather,
    /// Each member gets its part of the reduction.
    ReduceScatter,
    /// Each member gets a part of each other one.
    AllToAll,
    /// The root gets the parts of all.
    Gather,
    /// Each member gets its part from the root.
    Scatter,
    /// All members wait for each other.
    Barrier,
    /// A message to another rank.
    Send,
    /// A message from another rank.
    Recv,
    /// The end of a group of calls that are issued as one.
    Coalesced,
    /// An operation that hir compares by its name and sizes only.
    #[default]
    Other,
}

impl Kind {
    /// Returns the kind of a name as in `profiling_name`, without backend and peers, or of one of NCCL in small letters.
    pub fn of(name: &str) -> Self {
        let name = name.trim_start_matches('_');
        let is = |stem: &str| name.starts_with(stem);
        match name {
            "send" => Self::Send,
            "recv" | "recv_any_source" | "recvAnysource" => Self::Recv,
            "coalesced" => Self::Coalesced,
            _ if is("all_reduce_barrier") || is("barrier") => Self::Barrier,
            _ if is("all_reduce") || is("allreduce") => Self::AllReduce,
            _ if is("broadcast") => Self::Broadcast,
            _ if is("reduce_scatter") || is("reducescatter") => Self::ReduceScatter,
            _ if is("reduce") => Self::Reduce,
            _ if is("all_gather") || is("allgather") => Self::AllGather,
            _ if is("all_to_all") || is("alltoall") => Self::AllToAll,
            _ if is("gather") => Self::Gather,
            _ if is("scatter") => Self::Scatter,
            _ => Self::Other,
        }
    }

    /// Returns the collective as Python names it.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::Send | Self::Recv | Self::Coalesced | Self::Other => return None,
        })
    }

    /// Returns the collective of the language, whose facts say which member needs which others.
    pub fn collective(self) -> Option<CommunicationType> {
        Some(match self {
            Self::AllReduce => CommunicationType::Allreduce,
            Self::Broadcast => CommunicationType::Broadcast,
            Self::Reduce => CommunicationType::Reduce,
            Self::AllGather => CommunicationType::Allgather,
            Self::ReduceScatter => CommunicationType::ReduceScatter,
            Self::AllToAll => CommunicationType::AllToAll,
            Self::Gather => CommunicationType::Gather,
            Self::Scatter => CommunicationType::Scatter,
            Self::Barrier | Self::Send | Self::Recv | Self::Coalesced | Self::Other => return None,
        })
    }

    /// Whether no member completes it without all others.
    pub fn needs_all(self) -> bool {
        self == Self::Barrier || self.collective().is_some_and(|it| !it.is_rooted())
    }

    /// Returns what a record of this kind does not hold, and ranks must agree in.
    pub fn hidden(self) -> Option<&'static str> {
        match self {
            Self::Broadcast | Self::Scatter => Some("the root (`src=`)"),
            Self::Reduce => Some("the root (`dst=`) and the operator (`op=`)"),
            Self::Gather => Some("the root (`dst=`)"),
            Self::AllReduce | Self::ReduceScatter => Some("the operator (`op=`)"),
            Self::AllToAll => Some("the split sizes (`input_split_sizes=`, `output_split_sizes=`)"),
            Self::Send | Self::Recv => Some("the tag (`tag=`)"),
            Self::AllGather | Self::Barrier | Self::Coalesced | Self::Other => None,
        }
    }
}

/// What a call does and on what.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Signature {
    /// The operation as PyTorch names it, such as `all_reduce`.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The shapes of the inputs.
    pub inputs: Vec<Vec<i64>>,
    /// The shapes of the outputs.
    pub outputs: Vec<Vec<i64>>,
    /// The element types of the inputs.
    pub input_types: Vec<String>,
    /// The element types of the outputs.
    pub output_types: Vec<String>,
    /// For `Kind::Coalesced`: the calls of the group.
    pub parts: Vec<SignatureId>,
}

impl Signature {
    /// Returns the number of elements of all inputs, or of all outputs if there is no input.
    pub fn elements(&self) -> i64 {
        total(if self.inputs.is_empty() { &self.outputs } else { &self.inputs })
    }

    /// Returns the element type, if there is one.
    pub fn element_type(&self) -> Option<&str> {
        self.input_types.first().or(self.output_types.first()).map(String::as_str)
    }
}

/// Returns the number of elements of a shape.
pub fn count(shape: &[i64]) -> i64 {
    shape.iter().fold(1, |product: i64, it| product.saturating_mul(*it))
}

/// Returns the number of elements of several shapes.
pub fn total(shapes: &[Vec<i64>]) -> i64 {
    shapes.iter().map(|it| count(it)).fold(0, i64::saturating_add)
}

/// A frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// The file.
    pub file: NameId,
    /// The function.
    pub function: NameId,
    /// The line, from 1.
    pub line: u32,
}

/// The stack of a call, innermost frame first; empty if the dump has none.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<Frame>,
}

/// The other rank of a send or recv.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// The record is of a collective.
    None,
    /// A receive from whichever rank sends.
    Any,
    /// A rank of the world.
    Rank(Rank),
}

/// How far an operation got.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Issued, and not seen to start.
    Scheduled,
    /// Seen to start.
    Started,
    /// Completed.
    Completed,
}

/// The place of a record in a group of calls that are issued as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Batch {
    /// Issued alone.
    Alone,
    /// One of the calls of a group, whose state is that of its end.
    Member,
    /// The record that ends a group of collectives.
    CollectiveEnd,
    /// The record that ends a group of sends and receives.
    P2pEnd,
    /// The record that ends a group of collectives whose first ones the ring buffer may have overwritten.
    CutEnd,
}

/// One record.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was called.
    pub signature: SignatureId,
    /// In which group.
    pub group: GroupId,
    /// From where.
    pub stack: StackId,
    /// Its number among the records of its rank.
    pub number: u32,
    /// Its number among the collectives of the group; for a send or recv, that of the last collective.
    pub seq: u32,
    /// Its number among the sends and receives of the group on this rank.
    pub p2p_seq: u32,
    /// Its number among the operations of the group.
    pub op: u32,
    /// The other rank.
    pub peer: Peer,
    /// How far it got.
    pub state: State,
    /// Whether it is out of the list of the watchdog.
    pub retired: bool,
    /// Whether it finished: by its state, or by what its recorder says instead.
    pub done: bool,
    /// Its place in a group of calls.
    pub batch: Batch,
    /// When it was called: nanoseconds since 1970, by the clock of the host.
    pub created: i64,
    /// When its start was noticed; 0 if it was not.
    pub started: i64,
    /// When its completion was noticed; 0 if it was not.
    pub completed: i64,
    /// Whether it was noticed at or after the time-out of the call.
    pub outlived: bool,
    /// Whether it was noticed after half of this time.
    pub waited_long: bool,
}

impl Record {
    /// Whether it is a collective of its group: not a message, nor a part or the end of a batch of messages.
    pub fn is_collective(&self) -> bool {
        self.peer == Peer::None && matches!(self.batch, Batch::Alone | Batch::CollectiveEnd | Batch::CutEnd)
    }
}

/// The records of one rank, in the order of the calls.
#[derive(Clone, Debug)]
pub struct RankLog {
    /// The rank.
    pub rank: Rank,
    /// The file that they come from, for messages.
    pub file: String,
    /// The records.
    pub records: Vec<Record>,
    /// All groups of the rank, also those without records.
    pub groups: Vec<GroupId>,
    /// The number of records that the ring buffer has overwritten.
    pub lost: u64,
    /// Whether records between others are left out.
    pub has_gaps: bool,
    /// Whether records are left out because they have completed, and not because a ring buffer has overwritten them.
    pub only_active: bool,
    /// Whether it is of lines that PyTorch has printed, and not of a dump.
    pub from_log: bool,
    /// Whether the records have stacks.
    pub has_stacks: bool,
    /// False if the recorder does not report completion.
    pub reports_completion: bool,
    /// What `pg_status` says of each group: it counts also the operations whose records are lost.
    pub status: Vec<GroupStatus>,
}

/// The last operations of a group, with its sends and receives; -1 if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupStatus {
    /// The number of the group in the process.
    pub group: u32,
    /// The group, if a record names it with this number.
    pub of: Option<GroupId>,
    /// The last one that the host has enqueued.
    pub enqueued: i64,
    /// The last one whose completion was noticed.
    pub completed: i64,
}

/// Numbers equal values alike. Threads may share it.
pub(crate) struct Interner<T> {
    inner: Mutex<Table<T>>,
}

struct Table<T> {
    numbers: FxHashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { inner: Mutex::new(Table { numbers: FxHashMap::default(), values: Vec::new() }) }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(crate) fn intern(&self, value: T) -> u32 {
        let mut table = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = table.numbers.get(&value) {
            return *number;
        }
        let number = table.values.len() as u32;
        table.values.push(value.clone());
        table.numbers.insert(value, number);
        number
    }

    pub(crate) fn into_values(self) -> Vec<T> {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).values
    }
}

/// The tables that the records of all ranks refer to, while they are filled.
#[derive(Default)]
pub(crate) struct Interners {
    pub(crate) groups: Interner<Group>,
    pub(crate) signatures: Interner<Signature>,
    pub(crate) stacks: Interner<Stack>,
    pub(crate) names: Interner<String>,
}

/// Two groups of the same members that ranks have made in different orders: what is the first one on some is the second one on others.
#[derive(Clone, Debug)]
pub struct Crosswise {
    /// The names of the groups.
    pub names: [String; 2],
    /// Their descriptions on the ranks of the first side; on the others, they are exchanged.
    pub descriptions: [String; 2],
    /// The ranks of the two sides.
    pub sides: [Vec<Rank>; 2],
}

/// The records of all ranks.
#[derive(Debug, Default)]
pub struct Records {
    /// The logs, by rank.
    pub ranks: Vec<RankLog>,
    /// The groups.
    pub groups: Vec<Group>,
    /// The signatures.
    pub signatures: Vec<Signature>,
    /// The stacks.
    pub stacks: Vec<Stack>,
    /// The names of files and functions.
    pub names: Vec<String>,
    /// Groups that ranks have made in different orders.
    pub crosswise: Vec<Crosswise>,
}

impl RankLog {
    /// Whether the ring buffer has overwritten records.
    pub fn is_cut(&self) -> bool {
        self.lost > 0 && !self.only_active
    }
}

impl Records {
    /// Returns the log of a rank, if it has a dump.
    pub fn log(&self, rank: Rank) -> Option<&RankLog> {
        self.ranks.binary_search_by_key(&rank, |it| it.rank).ok().map(|at| &self.ranks[at])
    }

    /// Returns a group.
    pub fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.index()]
    }

    /// Returns a signature.
    pub fn signature(&self, id: SignatureId) -> &Signature {
        &self.signatures[id.index()]
    }

    /// Returns a stack.
    pub fn stack(&self, id: StackId) -> &Stack {
        &self.stacks[id.index()]
    }

    /// Returns a name.
    pub fn name(&self, id: NameId) -> &str {
        self.names.get(id.index()).map_or("", String::as_str)
    }
}

impl fmt::Display for Group {
    /// `group 1 (tp)`; the world is `group 0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.name)?;
        match self.own_description() {
            None => Ok(()),
            Some(description) => write!(f, " ({description})"),
        }
    }
}
