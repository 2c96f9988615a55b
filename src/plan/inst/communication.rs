//! Communications between ranks: collectives, P2P groups, signals and memory handles.

use grammar::CommunicationType;
/// The direction of a message, seen from this rank.
pub use grammar::P2pType as Direction;

use crate::{CommunicatorNo, ReduceOp, View, WorkNo};

/// A collective. The parts of the members match by their position in the queue of the communicator.
///
/// `collective_semantics` defines the input and output elements of each member.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// The communicator to whose queue it is posted.
    pub communicator: CommunicatorNo,
    /// The kind of collective.
    pub kind: CollectiveKind,
    /// The elements that this rank contributes; `None` if it contributes nothing.
    pub input: Option<View>,
    /// Where this rank receives elements; `None` if it receives nothing.
    pub output: Option<View>,
    /// The work number that `Wait` refers to.
    pub work: WorkNo,
}

impl Collective {
    /// Returns whether this rank stores something.
    pub fn receives(&self) -> bool {
        self.output.as_ref().is_some_and(|it| !it.is_empty())
    }

    /// Returns the members of a team of `n` whose inputs a member stores, in team order. It writes its output after these have begun.
    pub fn givers(&self, member: usize, n: usize) -> Vec<usize> {
        if self.receives() { self.kind.source_members(member, n) } else { Vec::new() }
    }
}

/// A kind of collective with its parameters: those that the kind has are set. Roots and peers are positions in the team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveKind {
    /// The type of the collective in a program.
    pub of: CommunicationType,
    /// The root.
    pub root: Option<usize>,
    /// The reduction operation.
    pub op: Option<ReduceOp>,
    /// The peers of a member of a permutation.
    pub peers: Option<PermutePeers>,
}

/// To and from which members a member of a permutation sends and receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermutePeers {
    /// The member that receives this rank's input.
    pub send: usize,
    /// The member whose input this rank receives.
    pub recv: usize,
}

impl CollectiveKind {
    /// Returns a kind with those of the parameters that it has.
    pub fn new(of: CommunicationType, root: usize, op: ReduceOp) -> Self {
        let (root, op) = (of.is_rooted().then_some(root), of.is_reduction().then_some(op));
        Self { of, root, op, peers: None }
    }

    /// Returns a permutation.
    pub fn permute(send: usize, recv: usize) -> Self {
        let peers = Some(PermutePeers { send, recv });
        Self { of: CommunicationType::CollectivePermute, root: None, op: None, peers }
    }
}

/// Sends and receives that are posted as one operation and complete as one, like an NCCL group. Each send
/// matches a receive of its peer in the order of posting, separately for each pair of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct P2pGroup {
    /// The communicator to whose queue it is posted.
    pub communicator: CommunicatorNo,
    /// The sends and receives.
    pub ops: Vec<P2pOp>,
    /// Whether a group of the program posts them, and not a single statement.
    pub is_coalesced: bool,
    /// The work number that `Wait` refers to.
    pub work: WorkNo,
}

/// A send or a receive of a P2P group.
#[derive(Clone, Debug, PartialEq)]
pub struct P2pOp {
    /// Whether this rank sends or receives.
    pub direction: Direction,
    /// The other rank, as a world rank.
    pub peer: usize,
    /// The elements to send, or where to store the received elements.
    pub view: View,
    /// The statement that posts it, an index into `Plan::origins`. In a coalesced P2P group it differs from
    /// the statement that posts the P2P group.
    pub origin: u32,
}

/// A signal: a word in the memory of `to`, or several, that `from` sets once in each run. Executors that repeat a plan
/// compare the words with the number of the run instead of resetting them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SignalId {
    /// The rank that sets it.
    pub from: usize,
    /// The rank that waits for it. The signal is in this rank's memory.
    pub to: usize,
    /// What the signal means.
    pub kind: SignalKind,
    /// The index of the message between `from` and `to`; for a collective (`TeamReady` and following), the
    /// index of the collective among those of its team.
    pub index: u32,
}

/// The meaning of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SignalKind {
    /// `to` may read or write the buffer on `from`.
    Ready,
    /// `from` has finished its access to the buffer on `to`.
    Done,
    /// Like `Ready`, for the put protocol: the receiver sets it.
    PutReady,
    /// Like `Done`, for the put protocol: the sender sets it.
    PutDone,
    /// Like `Ready`, for a collective over peer memory. The field numbers the teams that have such
    /// collectives.
    TeamReady(u32),
    /// Like `Done`, for a collective over peer memory. The field is the number of the team.
    TeamDone(u32),
    /// `from` has written its data for the collective to its slot on `to`. The field is the number of the team.
    TeamData(u32),
    /// Like `TeamData`, for the reduced share that `from` sends to all members. The field is the number of the
    /// team.
    TeamResult(u32),
}

/// A memory handle that `ShareMemHandles` publishes and expects.
#[derive(Clone, Debug, PartialEq)]
pub struct MemHandle {
    /// Whether this rank sends or receives.
    pub direction: Direction,
    /// The other rank.
    pub peer: usize,
    /// The index of the exchange between this sender and this receiver.
    pub index: u32,
    /// The number of the P2PCommunication, for reports.
    pub number: u32,
}

impl MemHandle {
    /// Returns what both sides of the exchange have in common: sender, receiver, and the index of the
    /// exchange between them. `rank` is the rank of this handle.
    pub fn exchange_key(&self, rank: usize) -> (usize, usize, u32) {
        match self.direction {
            Direction::Send => (rank, self.peer, self.index),
            Direction::Recv => (self.peer, rank, self.index),
        }
    }
}
