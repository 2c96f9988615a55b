//! What one rank executes: its statements with all scalars evaluated, all names resolved to views of buffers, and what they wait for.

use std::rc::Rc;

use grammar::{
    ir::{ExprId, StmtId, TensorId},
    scalars::Value,
    words::{Backend, CommunicationType},
};
use rustc_hash::FxHashMap;

use crate::{field::Combine, part::Part, tensor::View};

/// The steps of a rank, in the order in which its host issues them.
#[derive(Default)]
pub(crate) struct Tape {
    pub(crate) steps: Vec<Step>,
    /// How many chains there are. The steps of a chain run one after another: those of a stream, or of a queue of communications.
    pub(crate) chains: usize,
    /// How many times the host exchanges memory handles with all ranks.
    pub(crate) exchanges: usize,
    /// Where the inputs and outputs are, and which parts of them; `None` on a rank that has no part.
    pub(crate) inputs: Vec<Option<(View, Part)>>,
    pub(crate) outputs: Vec<Option<(View, Part)>>,
}

#[derive(Default)]
pub(crate) struct Step {
    /// `None`: the caller of the program.
    pub(crate) stmt: Option<StmtId>,
    pub(crate) chain: usize,
    /// The steps of the rank that end before this one begins, with the one before it on its chain.
    pub(crate) after: Vec<usize>,
    /// What it reads and writes. What the beginning of communications does lasts to their end, the next step of the chain.
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
    pub(crate) effects: Vec<Effect>,
    /// The communications that it begins, each with the position of the rank among the members.
    pub(crate) begins: Vec<(usize, usize)>,
    /// The communications that it ends, which all members have to have begun, each with the members whose data the rank receives.
    pub(crate) ends: Vec<(usize, Vec<usize>)>,
}

impl Step {
    /// Adds what another step does at the same time.
    pub(crate) fn extend(&mut self, other: Step) {
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
        self.effects.extend(other.effects);
        self.begins.extend(other.begins);
        self.ends.extend(other.ends);
    }
}

/// A function of elements that are read, whose results are written.
pub(crate) struct Effect {
    pub(crate) function: Function,
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
}

#[derive(Clone, PartialEq)]
pub(crate) enum Function {
    /// The caller writes the inputs.
    Enter,
    /// The caller reads the outputs and overwrites the inputs.
    Exit,
    Zero,
    Copy,
    /// Nothing is written: two operands have to be equal.
    Equal,
    /// The operands are combined element by element; whether they are integers.
    Reduce(Combine, bool),
    Statement(Box<Compute>),
}

/// A statement with the tensors that it reads and writes.
#[derive(Clone, PartialEq)]
pub(crate) struct Compute {
    pub(crate) stmt: StmtId,
    pub(crate) args: Vec<(TensorId, Part)>,
    pub(crate) outs: Vec<(TensorId, Part)>,
    /// The shapes of the results.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// The values of the scalars that the statement states, and of the extents of its tensors.
    pub(crate) values: FxHashMap<ExprId, Value>,
}

/// What the ranks of a program share.
#[derive(Default)]
pub(crate) struct Shared {
    /// The number of elements of each buffer of a rank or a communication. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    pub(crate) meetings: Vec<Meeting>,
    by_channel: FxHashMap<(Channel, usize), usize>,
}

/// A communication.
#[derive(Clone)]
pub(crate) struct Meeting {
    kind: Kind,
    pub(crate) members: usize,
    /// The first of its buffers.
    pub(crate) buffer: usize,
}

impl Shared {
    pub(crate) fn allocate(&mut self, len: usize) -> usize {
        self.buffers.push(len);
        self.buffers.len() - 1
    }

    /// Returns the number of the communication that is posted to a channel as the n-th one, which has `count` buffers of `len` elements;
    /// `None` if another rank posts one of another kind there.
    pub(crate) fn meet(
        &mut self,
        place: (Channel, usize),
        kind: Kind,
        count: usize,
        len: usize,
    ) -> Option<usize> {
        let (next, members) = (self.meetings.len(), place.0.ranks().len());
        let at = *self.by_channel.entry(place).or_insert(next);
        if at == next {
            self.meetings.push(Meeting { kind, members, buffer: self.buffers.len() });
            self.buffers.extend(vec![len; count]);
        }
        (self.meetings[at].kind == kind).then_some(at)
    }
}

/// What the members of a communication have to agree on.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Kind {
    pub(crate) kind: CommunicationType,
    pub(crate) root: usize,
    pub(crate) combine: Combine,
    /// Whether the elements are integers.
    pub(crate) integral: bool,
    /// The number of elements that one member sends to another one.
    pub(crate) len: usize,
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
