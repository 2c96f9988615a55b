//! The kinds of collectives: a table with a row of facts for each `type=` of a `Communication`.
//!
//! Everything else that hir knows of a kind follows from its row: what members contribute and receive
//! (`plan::collective_semantics`, `certify::unroll`), what moves over links, names in plans and reports, and what may be in place.

use CommunicationType::*;
use Contribution::*;
use Members::{All, Other, Root};

use crate::words::CommunicationType;

/// Members of a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// All members.
    All,
    /// The root.
    Root,
    /// The other one of the first two members; in a team of one, the root.
    Other,
}

/// What a result consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contribution {
    /// The input of one member: the root, or the peer of a permutation.
    One,
    /// The inputs of all members, in team order.
    Each,
    /// The reduction of the inputs of all members.
    Reduction,
}

/// What is known of a kind of collective.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveFacts {
    /// Whose inputs are read.
    pub from: Members,
    /// Who gets a result.
    pub to: Members,
    /// What a result consists of.
    pub contribution: Contribution,
    /// Whether a member `i` of `n` gets part `i` of `n` equal parts of that.
    pub is_split: bool,
    /// How often each member sends all but its own part, if the communication moves as little as possible; `None` if the data moves as
    /// a whole.
    sent: Option<usize>,
    /// Whether NCCL accepts an input and an output that overlap, if the collective is in place. Source: NCCL User Guide, In-place
    /// Operations.
    pub may_be_in_place: bool,
    /// Whether the CUDA backend of nvFuser has the communication. That of hir has all of them.
    pub is_in_cuda_backend_of_nvfuser: bool,
    /// The name in sentences.
    pub phrase: &'static str,
}

impl CommunicationType {
    /// Returns what is known of the kind.
    pub const fn facts(self) -> CollectiveFacts {
        let in_place = true;
        let in_nvfuser = true;
        match self {
            Gather => row(All, Root, Each, false, Some(1), (in_place, false), "gather"),
            Allgather => row(All, All, Each, false, Some(1), (in_place, in_nvfuser), "all-gather"),
            Scatter => row(Root, All, One, true, Some(1), (in_place, false), "scatter"),
            Reduce => {
                row(All, Root, Reduction, false, None, (in_place, in_nvfuser), "reduction to other devices")
            }
            Allreduce => row(All, All, Reduction, false, Some(2), (in_place, in_nvfuser), "all-reduce"),
            ReduceScatter => row(All, All, Reduction, true, Some(1), (in_place, false), "reduce-scatter"),
            Broadcast => row(Root, All, One, false, None, (in_place, in_nvfuser), "broadcast"),
            SendRecv => row(Root, Other, One, false, None, (false, false), "transfer to another mesh"),
            AllToAll => row(All, All, Each, true, Some(1), (false, false), "all-to-all"),
            CollectivePermute => row(All, All, One, false, None, (false, false), "permutation"),
        }
    }

    /// Returns the part of the data that each of `members` ranks sends if the communication moves as little as possible, as numerator
    /// and denominator: the ratio of bus bandwidth to algorithm bandwidth of nccl-tests. The data is that of all ranks if each has a part.
    pub fn sent_part(self, members: usize) -> (usize, usize) {
        let members = members.max(1);
        self.facts().sent.map_or((1, 1), |times| (times * (members - 1), members))
    }

    /// Returns whether the communication has a root.
    pub fn is_rooted(self) -> bool {
        self.facts().from == Root || self.facts().to == Root
    }

    /// Returns whether the input of a member is read.
    pub fn reads_input(self, root: Option<usize>, member: usize) -> bool {
        self.facts().from == All || root == Some(member)
    }

    /// Returns whether a member of a team of `n` gets a result.
    pub fn has_result(self, root: Option<usize>, member: usize, n: usize) -> bool {
        match self.facts().to {
            All => true,
            Root => root == Some(member),
            Other => n == 1 || root.is_some_and(|root| member == usize::from(root == 0)),
        }
    }

    /// Returns whether the communication reduces the inputs of the ranks.
    pub fn is_reduction(self) -> bool {
        self.facts().contribution == Reduction
    }

    /// Returns whether every rank of the team gets a result.
    pub fn writes_on_every_rank(self) -> bool {
        self.facts().to == All
    }
}

const fn row(
    from: Members,
    to: Members,
    contribution: Contribution,
    is_split: bool,
    sent: Option<usize>,
    (may_be_in_place, is_in_cuda_backend_of_nvfuser): (bool, bool),
    phrase: &'static str,
) -> CollectiveFacts {
    CollectiveFacts {
        from,
        to,
        contribution,
        is_split,
        sent,
        may_be_in_place,
        is_in_cuda_backend_of_nvfuser,
        phrase,
    }
}
