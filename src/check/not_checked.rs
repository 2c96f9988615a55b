//! What a check leaves out.

use grammar::count_text;
use hir_plan::sync::TooManyComms;

/// A part of a check that could not run, and the reason. Its text is the part of a sentence behind a colon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotChecked {
    /// The two sides of a transfer meet on no communicator of a pair.
    #[error(
        "`--p2p=pair`: one side of a transfer is in a group, and the other is not, so that they run on different \
         communicators: put both or none between StartCoalescing and EndCoalescing, or check with `--p2p=communicator`"
    )]
    MixedTransfers,
    /// Hosts that exchange memory handles wait for each other.
    #[error(
        "accesses to `SymmetricContiguousView`: hosts exchange handles there, and wait for each other in a cycle; check \
         with `--check-model=hir` for hir-run, which exchanges none"
    )]
    HostsOfViews,
    /// The order of communicators.
    #[error("the order of communicators: {0}")]
    Communicators(TooManyComms),
    /// The order of communicators of several runs.
    #[error("the order of communicators of several runs: {0}")]
    CommunicatorsOfRuns(TooManyComms),
    /// The clocks of ranks that share memory are too many.
    #[error(
        "races and memory: the ranks that share memory have too many streams and communicators together; use a smaller mesh"
    )]
    TooLarge,
    /// The program does not run to its end.
    #[error("races and memory: no order of all instructions was found")]
    NoOrder,
    /// The clocks of two runs are too many, or they do not run to their end.
    #[error("two runs: no order of all their instructions was found")]
    NoOrderOfRuns,
    /// Races beyond the first ones, with their number.
    #[error("races beyond the first {0}")]
    MoreRaces(usize),
    /// Pairs of views.
    #[error("{0} pairs of views that have too many pieces to compare")]
    Views(usize),
    /// Pairs of views of two runs.
    #[error("{0} pairs of views of two runs that have too many pieces to compare")]
    ViewsOfRuns(usize),
    /// Reads and writes.
    #[error("{0} reads and writes that have too many pieces to record")]
    Accesses(usize),
    /// Groups of ranks.
    #[error(
        "races and memory of {}: they are free of faults only if orders count that lead through ranks of other groups, if at all",
        count_text(*.0, "further group of ranks")
    )]
    Groups(usize),
}

impl NotChecked {
    /// Returns whether a check that leaves this out leaves out no less than one that leaves out `other`.
    pub(super) fn includes(self, other: Self) -> bool {
        match (self, other) {
            (Self::MoreRaces(own), Self::MoreRaces(other)) => own <= other,
            (Self::Views(own), Self::Views(other))
            | (Self::ViewsOfRuns(own), Self::ViewsOfRuns(other))
            | (Self::Accesses(own), Self::Accesses(other))
            | (Self::Groups(own), Self::Groups(other)) => own >= other,
            _ => self == other,
        }
    }
}
