//! Collectives over peer memory that one kernel may execute: what one member does, in phases.
//!
//! A transport describes such a collective by its phases, and the instructions of the plan are derived from them
//! (`Phase::append_to`), never the reverse. The plan keeps both. An executor that has a kernel for the collective
//! reads the phases. All others read the instructions: the order of signals and accesses within a collective
//! determines races, deadlocks and lifetimes, so each signal and access is an instruction of its own. If the collective were
//! one instruction, schedules, reports and records of progress would need a second index, for the position within it.

use std::ops::Range;

use super::{InstKind, ReduceOp, SignalId};
use crate::{View, ViewOnRank};

/// A collective that an executor may run as one kernel. This does not change results.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerCollective {
    /// The indices of its instructions in `Plan::code`: consecutive, on one stream, and at least one.
    pub range: Range<usize>,
    /// What they do.
    pub phases: PeerPhases,
    /// The shape of the output on this rank, if the kernel shall also compute the elementwise operations and the
    /// reductions of rows that follow on the stream (`epilogue=true`).
    pub epilogue: Option<Vec<usize>>,
    /// The team among those of all ranks, whose collectives share signal pads; `None` if a queue executes all of them, or packets contain the
    /// signals.
    pub pads: Option<u32>,
}

/// What one member of a collective does.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerPhases {
    /// Accesses the inputs and outputs of its peers. The first phase has no transfers: it sets Ready for the
    /// peers that access this member's memory, and waits for Ready from those whose memory it accesses. The second phase
    /// makes the transfers and sets Done. If it has no waits for Done, the stream that waits for the collective has them.
    Memory([Phase; 2]),
    /// Writes packets to slots of its peers. The packets contain the signals, so either all members of a team run the kernel
    /// or none does.
    Packets {
        /// The format of the packets.
        format: PacketFormat,
        /// The index of the collective among those of its team.
        index: u32,
        /// The phases. The outputs on other ranks are slots.
        phases: Vec<Phase>,
    },
}

/// The format of the packets that a kernel exchanges. The names are those of NCCL's protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PacketFormat {
    /// 16 bytes: 4 bytes of data, a flag of 4 bytes, 4 bytes of data, the flag.
    Ll,
    /// 128 bytes: 120 bytes of data, the flag twice.
    Ll128,
}

/// A part of a collective: its transfers, then its signals, then its waits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phase {
    /// The accesses.
    pub transfers: Vec<Transfer>,
    /// The signals that are set.
    pub signals: Vec<SignalId>,
    /// The signals that are awaited.
    pub waits: Vec<SignalId>,
}

/// A copy or a reduction of elements, to one or more destinations.
#[derive(Clone, Debug, PartialEq)]
pub enum Transfer {
    /// Copies an input to each output.
    Copy {
        /// The elements.
        from: ViewOnRank,
        /// The destinations.
        to: Vec<ViewOnRank>,
    },
    /// Reduces inputs, and copies the result.
    Reduce {
        /// The reduction operation.
        op: ReduceOp,
        /// The operands, in the order of the reduction.
        parts: Vec<ViewOnRank>,
        /// The result, on this rank.
        out: ViewOnRank,
        /// The destinations of the copies.
        copies: Vec<ViewOnRank>,
    },
}

impl PeerPhases {
    /// Returns the phases.
    pub fn all(&self) -> &[Phase] {
        match self {
            Self::Memory(phases) => phases,
            Self::Packets { phases, .. } => phases,
        }
    }
}

impl PeerCollective {
    /// Returns the reduction whose result an epilogue may use: the only transfer of the last phase.
    pub fn result(&self) -> Option<&Transfer> {
        match self.phases.all().last()?.transfers.as_slice() {
            [it @ Transfer::Reduce { copies, .. }] if copies.is_empty() => Some(it),
            _ => None,
        }
    }

    /// Returns the instruction that stands for the kernel in reports, an index into `Plan::code`: the first `WaitSignal` of
    /// the first phase, or, if that phase has none, the first instruction of the collective.
    pub fn first_wait(&self) -> usize {
        let first = self.phases.all().first().filter(|it| !it.waits.is_empty());
        let before =
            |it: &Phase| it.transfers.iter().map(|it| it.outputs().count()).sum::<usize>() + it.signals.len();
        self.range.start + first.map_or(0, before)
    }
}

impl Phase {
    /// Appends the instructions that do the same.
    pub(crate) fn append_to(&self, code: &mut Vec<InstKind>) {
        self.transfers.iter().for_each(|it| it.append_to(code));
        code.extend(self.signals.iter().map(|it| InstKind::Signal { signal: *it }));
        code.extend(self.waits.iter().map(|it| InstKind::WaitSignal { signal: *it }));
    }

    /// Returns the number of instructions. A reduction counts once for each operand.
    pub(crate) fn size(&self) -> usize {
        let transfer = |it: &Transfer| it.inputs().len() + it.outputs().count() - 1;
        self.transfers.iter().map(transfer).sum::<usize>() + self.signals.len() + self.waits.len()
    }

    /// Returns all views of the accesses.
    pub fn views(&self) -> impl Iterator<Item = &View> {
        self.transfers.iter().flat_map(|it| it.inputs().iter().chain(it.outputs())).map(|it| &it.view)
    }

    /// Adds a copy. A copy of the elements that the last transfer copies or computes is one more destination of it.
    pub(crate) fn copy(&mut self, elements: ViewOnRank, destination: ViewOnRank) {
        match self.transfers.last_mut() {
            Some(
                Transfer::Copy { from: last, to: all } | Transfer::Reduce { out: last, copies: all, .. },
            ) if *last == elements => {
                all.push(destination);
            }
            Some(_) | None => {
                self.transfers.push(Transfer::Copy { from: elements, to: vec![destination] });
            }
        }
    }
}

impl Transfer {
    /// Returns the operation of a reduction.
    pub fn op(&self) -> Option<ReduceOp> {
        match self {
            Self::Copy { .. } => None,
            Self::Reduce { op, .. } => Some(*op),
        }
    }

    /// Returns the operands.
    pub fn inputs(&self) -> &[ViewOnRank] {
        match self {
            Self::Copy { from, .. } => std::slice::from_ref(from),
            Self::Reduce { parts, .. } => parts,
        }
    }

    /// Returns all destinations. They receive the same elements.
    pub fn outputs(&self) -> impl Iterator<Item = &ViewOnRank> {
        let (out, copies) = match self {
            Self::Copy { to, .. } => (None, to),
            Self::Reduce { out, copies, .. } => (Some(out), copies),
        };
        out.into_iter().chain(copies)
    }

    /// Appends the instructions: the reduction, then the copies.
    fn append_to(&self, code: &mut Vec<InstKind>) {
        let (from, copies) = match self {
            Self::Copy { from, to } => (from, to),
            Self::Reduce { op, parts, out, copies } => {
                let view = Box::new(out.view.clone());
                code.push(InstKind::PeerReduce { op: *op, parts: parts.clone(), out: view });
                (out, copies)
            }
        };
        let copy = |to: &ViewOnRank| InstKind::Copy { from: from.clone().into(), to: to.clone().into() };
        code.extend(copies.iter().map(copy));
    }
}
