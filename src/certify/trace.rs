//! What the ranks of a program execute: their statements with all scalars evaluated, all names resolved to views of buffers, and what they
//! wait for.
//!
//! A rank issues steps to its chains. A step is a member of an action: a statement of one rank is an action with one member, and a
//! communication one whose members are ranks.

use super::*;

/// Where an input or output is, and which part of it; `None` on a rank that has no part.
pub(crate) type Port = Option<(View, Part)>;

/// Computes what a step writes from what each member of its action reads.
pub(crate) type Function<'p> = Box<dyn Fn(&Algebra, &[Vec<Values>]) -> Computed<Vec<Values>> + 'p>;

/// What all ranks of a program execute.
#[derive(Default)]
pub(crate) struct Trace<'p> {
    pub(crate) steps: Vec<Step<'p>>,
    /// By action: the steps of its members; `None` for a rank that has not posted it.
    pub(crate) actions: Vec<Vec<Option<usize>>>,
    /// By chain: what its next steps wait for.
    pub(crate) chains: Vec<BTreeSet<usize>>,
    /// The number of elements of each buffer. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    /// By rank: the inputs, and then the outputs.
    pub(crate) ports: Vec<Vec<Port>>,
    /// How many actions a member has posted to a channel, and the action that is the n-th one there.
    pub(crate) counts: FxHashMap<(Channel, usize), usize>,
    pub(crate) posted: FxHashMap<(Channel, Option<Kind>, usize), usize>,
    /// How many steps, iterations, and elements of buffers there are.
    pub(crate) work: usize,
    /// The actions in an order that satisfies all dependences: the steps of their members.
    pub(crate) order: Vec<Vec<usize>>,
}

/// What a rank does for a statement. The steps of a chain, a stream or a queue of communications of a rank, run one after another, but
/// those of a group together: what waits for one of them waits for all. A step ends when all members have begun its action.
#[derive(Default)]
pub(crate) struct Step<'p> {
    pub(crate) chain: usize,
    /// The steps that have to end before it begins.
    pub(crate) after: BTreeSet<usize>,
    pub(crate) rank: usize,
    /// `None`: the caller of the program.
    pub(crate) stmt: Option<ir::StmtId>,
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
    /// `None`: what it reads is copied.
    pub(crate) function: Option<Function<'p>>,
    pub(crate) action: usize,
    /// Its position among the members, and those whose data it receives or for which it waits.
    pub(crate) me: usize,
    pub(crate) sources: Vec<usize>,
    /// Whether it accesses memory only when its sources have begun.
    pub(crate) is_late: bool,
    /// Whether it copies between its memory and that of its peer.
    pub(crate) copies: bool,
}

/// The statement of a communication, its algorithm and its protocol.
type How = (Op, Algorithm, Option<MulticastProtocol>);

/// What the members of an action agree on: how it is executed, the communication, the position of its root or 0, how elements are
/// combined, how many of them one member sends to another one, and their type.
pub(crate) type Kind = (How, CommunicationType, usize, Option<Combine>, usize, DType);

/// Where the steps of ranks meet, or the steps of a chain follow each other, in the order of posting.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// `None`: the stream that is current at entry.
    Stream(Option<i64>),
    Captured(ir::Stream),
    /// A team, or the transfers from the first of these ranks to the second one.
    Team(Backend, Rc<[usize]>, Option<[usize; 2]>),
    /// The exchanges of memory handles of transfers from the first rank to the second one.
    Handle([usize; 2]),
    /// A statement that a stream has posted, for a pair of ranks or for all.
    Post(Option<ir::StmtId>, usize, Option<[usize; 2]>),
    /// The transfers by the handle that this action has exchanged, and by a protocol.
    Copy(usize, P2pProtocol),
    /// The hosts of all ranks.
    Hosts,
}
