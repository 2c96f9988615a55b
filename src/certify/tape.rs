//! What one rank executes: its statements with all scalars evaluated, all names resolved to views of buffers, and what they wait for.

use std::rc::Rc;

use grammar::{
    ir::{StmtId, TensorId},
    words::{Backend, CommunicationType},
};
use rustc_hash::FxHashMap;

use crate::{
    field::{Algebra, Combine},
    part::Part,
    tensor::{Values, View},
};

/// Where an input or output is, and which part of it; `None` on a rank that has no part.
pub(crate) type Port = Option<(View, Part)>;

/// Computes the elements that are written from those that are read.
pub(crate) type Function<'p> = Box<dyn Fn(&Algebra, &[Values]) -> Result<Vec<Values>, String> + 'p>;

/// The steps of a rank, in the order in which its host issues them.
#[derive(Default)]
pub(crate) struct Tape<'p> {
    pub(crate) steps: Vec<Step<'p>>,
    /// How many chains there are. The steps of a chain run one after another: those of a stream, or of a queue of communications.
    pub(crate) chains: usize,
    /// How many times the host exchanges memory handles with all ranks.
    pub(crate) exchanges: usize,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
}

#[derive(Default)]
pub(crate) struct Step<'p> {
    /// `None`: the caller of the program.
    pub(crate) stmt: Option<StmtId>,
    pub(crate) chain: usize,
    /// The steps of the rank that end before this one begins, with the one before it on its chain.
    pub(crate) after: Vec<usize>,
    /// What it accesses, and whether it writes there; as many further steps of the chain as `lasts` belong to the access.
    pub(crate) accesses: Vec<(View, bool)>,
    pub(crate) lasts: u32,
    /// `None`: what is read is copied.
    pub(crate) function: Option<Function<'p>>,
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
    /// The communication that it begins, with the position of the rank among the members.
    pub(crate) begins: Option<(usize, usize)>,
    /// The communication that it ends, which all members have to have begun, with the members whose data the rank receives.
    pub(crate) ends: Option<(usize, Vec<usize>)>,
}

/// What the ranks of a program share.
#[derive(Default)]
pub(crate) struct Shared {
    /// The number of elements of each buffer of a rank or a communication. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    pub(crate) meetings: Vec<Meeting>,
    by_channel: FxHashMap<(Channel, usize), usize>,
    /// The statements that compute with the parts of each rank, and those that do not.
    pub(crate) local: FxHashMap<(StmtId, TensorId), bool>,
}

/// What the members of a communication have to agree on: its root, how it combines elements, whether they are integers, and how many one
/// member sends to another one.
pub(crate) type Kind = (CommunicationType, usize, Combine, bool, usize);

/// A communication.
pub(crate) struct Meeting {
    kind: Kind,
    pub(crate) members: usize,
    /// The first of its buffers.
    buffer: usize,
}

impl Shared {
    pub(crate) fn allocate(&mut self, len: usize) -> usize {
        self.buffers.push(len);
        self.buffers.len() - 1
    }

    /// Returns the communication that is posted to a channel as the n-th one, and the first of its `count` buffers of `len` elements;
    /// `None` if another rank posts one of another kind there.
    pub(crate) fn meet(
        &mut self,
        place: (Channel, usize),
        kind: Kind,
        (count, len): (usize, usize),
    ) -> Option<(usize, usize)> {
        let (next, members) = (self.meetings.len(), place.0.ranks().len());
        let at = *self.by_channel.entry(place).or_insert(next);
        if at == next {
            self.meetings.push(Meeting { kind, members, buffer: self.buffers.len() });
            self.buffers.extend(vec![len; count]);
        }
        (self.meetings[at].kind == kind).then_some((at, self.meetings[at].buffer))
    }
}

/// Where the steps of ranks meet, or the steps of a chain follow each other, in the order of posting.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// `None`: the stream that is current at entry.
    Stream(Option<i64>),
    Team(Backend, Rc<[usize]>),
    /// From the first rank to the second one.
    Pair(Backend, usize, usize),
    /// An operand of a statement that the ranks of a team execute together.
    Statement(StmtId, usize, Rc<[usize]>),
}

impl Channel {
    /// Returns the ranks that meet.
    pub(crate) fn ranks(&self) -> Rc<[usize]> {
        match self {
            Self::Stream(_) => [].into(),
            Self::Team(_, team) | Self::Statement(.., team) => team.clone(),
            Self::Pair(_, from, to) => [*from, *to].into(),
        }
    }
}
