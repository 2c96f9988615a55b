//! What one rank executes: its statements with all scalars evaluated and all names resolved to views of buffers.

use std::rc::Rc;

use grammar::{
    ir::{ExprId, StmtId, TensorId},
    scalars::Value,
    words::{Backend, CommunicationType},
};
use rustc_hash::FxHashMap;

use crate::{field::Combine, part::Part, view::View};

/// The steps of a rank, in the order in which its host issues them.
pub(crate) struct Tape {
    /// The number of elements of each buffer. A buffer is allocated once.
    pub(crate) buffers: Vec<usize>,
    pub(crate) steps: Vec<Step>,
    /// The stream that is current at exit.
    pub(crate) last_stream: usize,
    /// `None` on a rank that has no part.
    pub(crate) inputs: Vec<Option<(View, Part)>>,
    pub(crate) outputs: Vec<Option<(View, Part)>>,
}

pub(crate) struct Step {
    pub(crate) stmt: StmtId,
    /// The number of the stream on which it is issued. Stream 0 is current at entry.
    pub(crate) stream: usize,
    pub(crate) kind: StepKind,
}

pub(crate) enum StepKind {
    /// Fills a buffer with zeros.
    Zero(usize),
    Compute(Box<Compute>),
    Post(Box<[Transfer]>),
    /// The stream waits for what a step posted.
    Wait(usize),
    /// The stream waits for what was issued on another one.
    Synchronize(usize),
    /// The host exchanges handles with all ranks.
    Exchange,
}

/// A statement with results.
pub(crate) struct Compute {
    pub(crate) args: Vec<Operand>,
    pub(crate) outs: Vec<Operand>,
    /// The ranks that execute it together, on whole tensors; `None` if the rank computes with its own parts.
    pub(crate) team: Option<Rc<[usize]>>,
    /// The values of the scalars that it states.
    pub(crate) values: FxHashMap<ExprId, Value>,
}

pub(crate) struct Operand {
    pub(crate) tensor: TensorId,
    /// `None` if the rank holds no part.
    pub(crate) view: Option<View>,
    pub(crate) part: Part,
}

/// A rank's side of a collective or of a transfer between two ranks.
pub(crate) struct Transfer {
    pub(crate) channel: Channel,
    /// How many transfers the rank has posted to the channel before, as sender or as receiver.
    pub(crate) number: usize,
    /// The position of the rank in the team; of two ranks, the sender is 0.
    pub(crate) me: usize,
    pub(crate) kind: TransferKind,
    pub(crate) input: Option<View>,
    pub(crate) output: Option<View>,
}

/// Where transfers meet, in the order of posting.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    Team(Backend, Rc<[usize]>),
    /// From the first rank to the second one.
    Pair(Backend, usize, usize),
}

impl Channel {
    /// Returns the ranks that meet.
    pub(crate) fn ranks(&self) -> Vec<usize> {
        match self {
            Self::Team(_, team) => team.to_vec(),
            Self::Pair(_, from, to) => vec![*from, *to],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum TransferKind {
    Collective {
        kind: CommunicationType,
        root: usize,
        combine: Combine,
        integral: bool,
    },
    /// The member whose input this one receives.
    Permute(usize),
    Pair,
}

impl TransferKind {
    /// Returns whether a member of a team of `n` contributes its input.
    pub(crate) fn reads(self, me: usize) -> bool {
        use CommunicationType as Kind;
        match self {
            Self::Pair => me == 0,
            Self::Permute(_) => true,
            Self::Collective { kind: Kind::Broadcast | Kind::Scatter | Kind::SendRecv, root, .. } => {
                me == root
            }
            Self::Collective { .. } => true,
        }
    }

    /// Returns whether a member of a team of `n` receives anything.
    pub(crate) fn writes(self, me: usize, n: usize) -> bool {
        use CommunicationType as Kind;
        match self {
            Self::Pair => me == 1,
            Self::Collective { kind: Kind::Gather | Kind::Reduce, root, .. } => me == root,
            Self::Collective { kind: Kind::SendRecv, root, .. } => n == 1 || me == usize::from(root == 0),
            Self::Permute(_) | Self::Collective { .. } => true,
        }
    }

    /// Returns the members whose inputs the output of a member contains.
    pub(crate) fn sources(self, me: usize, n: usize) -> Vec<usize> {
        match self {
            Self::Permute(from) => vec![from],
            _ if !self.writes(me, n) => Vec::new(),
            _ => (0..n).filter(|it| self.reads(*it)).collect(),
        }
    }
}
