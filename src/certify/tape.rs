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
    /// The number of elements of each buffer. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    pub(crate) steps: Vec<Step>,
    /// How many chains there are. The steps of a chain run one after another: those of a stream, or of a queue of communications.
    pub(crate) chains: usize,
    /// How many times the host exchanges memory handles with all ranks.
    pub(crate) exchanges: usize,
    /// `None` on a rank that has no part.
    pub(crate) inputs: Vec<Option<Port>>,
    pub(crate) outputs: Vec<Option<Port>>,
}

/// Where an input or output is, and which part of it.
pub(crate) type Port = (View, Part);

impl Tape {
    /// Returns the communications that a step ends.
    pub(crate) fn ended(&self, at: usize) -> Option<&[Transfer]> {
        match (&self.steps[at].action, &self.steps.get(at.wrapping_sub(1))?.action) {
            (Action::End, Action::Begin(transfers)) => Some(transfers),
            _ => None,
        }
    }

    /// Returns what a step reads and writes.
    pub(crate) fn views(&self, at: usize) -> impl Iterator<Item = &View> {
        let step = &self.steps[if self.ended(at).is_some() { at - 1 } else { at }];
        step.reads.iter().chain(&step.writes)
    }
}

pub(crate) struct Step {
    /// `None`: the caller of the program.
    pub(crate) stmt: Option<StmtId>,
    pub(crate) chain: usize,
    /// The steps of the rank that end before this one begins, with the one before it on its chain.
    pub(crate) after: Vec<usize>,
    pub(crate) reads: Vec<View>,
    pub(crate) writes: Vec<View>,
    pub(crate) action: Action,
}

pub(crate) enum Action {
    /// The caller writes the inputs.
    Enter,
    /// The caller reads the outputs and overwrites the inputs.
    Exit,
    /// Fills a buffer with zeros.
    Zero,
    Copy,
    Compute(Box<Compute>),
    /// Begins communications: reads their inputs.
    Begin(Vec<Transfer>),
    /// Ends what the step before it has begun, once all members have begun it: writes the outputs.
    End,
}

/// A statement with the operands that the step reads and the results that it writes.
#[derive(Clone, PartialEq)]
pub(crate) struct Compute {
    pub(crate) stmt: StmtId,
    pub(crate) args: Vec<(TensorId, Part)>,
    pub(crate) outs: Vec<(TensorId, Part)>,
    /// The shapes of the results.
    pub(crate) shapes: Vec<Vec<usize>>,
    /// The values of the scalars that the statement states.
    pub(crate) values: FxHashMap<ExprId, Value>,
}

/// A rank's side of a communication.
pub(crate) struct Transfer {
    pub(crate) channel: Channel,
    /// The number of the communication among those of all ranks.
    pub(crate) meeting: usize,
    /// The position of the rank in the team; of two ranks, the sender is 0.
    pub(crate) me: usize,
    /// The member whose input the output has; `None`: those of all members that have one.
    pub(crate) from: Option<usize>,
    pub(crate) input: Option<View>,
    pub(crate) output: Option<View>,
    /// What part of a tensor the input is, if the members assemble one.
    pub(crate) part: Option<Part>,
}

/// The communications of all ranks.
#[derive(Default)]
pub(crate) struct Meetings {
    pub(crate) all: Vec<Meeting>,
    by_channel: FxHashMap<(Channel, usize), usize>,
}

pub(crate) struct Meeting {
    pub(crate) kind: Kind,
    pub(crate) members: usize,
}

impl Meetings {
    /// Returns the number of the communication that is posted to a channel as the n-th one; `None` if another rank posts one of another
    /// kind there.
    pub(crate) fn find(&mut self, channel: &Channel, number: usize, kind: Kind) -> Option<usize> {
        let next = self.all.len();
        let at = *self.by_channel.entry((channel.clone(), number)).or_insert(next);
        if at == next {
            self.all.push(Meeting { kind, members: channel.ranks().len() });
            return Some(at);
        }
        (self.all[at].kind == kind).then_some(at)
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

#[derive(Clone, PartialEq)]
pub(crate) enum Kind {
    Collective {
        kind: CommunicationType,
        root: usize,
        combine: Combine,
        /// Whether the elements are integers.
        integral: bool,
    },
    /// A transfer between two ranks, or a permutation of the inputs of a team.
    Transfer,
    /// All members get the tensor of this shape whose parts they have.
    Assemble(Vec<usize>),
}
