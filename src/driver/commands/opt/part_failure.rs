//! Why a part of the input has no result.

use std::{fmt, path::PathBuf, time::Duration};

use grammar::{Diagnostic, count_text};
use hir_check::ExcessNotSearched;
use hir_plan::limits::too_few_ranks_text;
use hir_process::exit::Exit;
use passes::PipelineError;

use crate::{
    exit_code::{exit_code, exit_of_rejection},
    run::failure::JobFailure,
};

/// Why a part has no result, in addition to the diagnostics about it. `Display` is a sentence without a period.
#[derive(Debug, thiserror::Error)]
pub enum PartFailure {
    /// A program needs more ranks than `--ranks`.
    #[error("{}", too_few_ranks_text(.program.as_deref().unwrap_or("the program"), *.smallest, *.ranks))]
    TooFewRanks {
        /// The program of `--with`, if it is not the one that is checked.
        program: Option<String>,
        /// The number of ranks that it needs.
        smallest: usize,
        /// The number of ranks that there are.
        ranks: usize,
    },
    /// `--rank` names a rank that the program does not have.
    #[error("`--rank {rank}`: the {} rank is {}", if *.ranks == 1 { "only" } else { "largest" }, .ranks - 1)]
    NoSuchRank {
        /// The value of `--rank`.
        rank: usize,
        /// The number of ranks, at least 1.
        ranks: usize,
    },
    /// A deadlock has no happens-before graph.
    #[error("`--print-hb`: the program deadlocks")]
    OrderOfDeadlock,
    /// The happens-before graph is too large.
    #[error("`--print-hb`: the world has too many streams and communicators")]
    OrderTooLarge,
    /// The timelines cannot be written.
    #[error("{}", .0.summary())]
    Timelines(#[source] JobFailure),
    /// An option needs one program, and the text has several.
    #[error("{0}, but the text has several containers: copy one of them into a file")]
    SeveralPrograms(&'static str),
    /// A pass fails.
    #[error(transparent)]
    Passes(Box<PipelineError>),
    /// `--remarks=error` rejects the remarks.
    #[error("{0}")]
    Remarks(String),
    /// The program after the passes cannot be planned, for these reasons.
    #[error("the program after the passes cannot be planned")]
    NotPlanned(Vec<Diagnostic>),
    /// The certificate is not written, which a message explains.
    #[error("no certificate is written to `{}`", .path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// The exit code of the reason.
        exit: Exit,
    },
    /// A program of `--with` cannot be read, bound or planned, which a message explains.
    #[error("`--with {name}` cannot be checked")]
    WithUnreadable {
        /// The file.
        name: String,
        /// The exit code of the reason.
        exit: Exit,
    },
    /// A file of `--with` is not one program without errors.
    #[error("`--with {0}` is not one program without errors")]
    WithRejected(String),
    /// A program of `--with` fails its own check.
    #[error("`--with {0}` has a fault of its own, or could not be checked")]
    WithFaulty(String),
    /// The check does not succeed.
    #[error("{}", .verdict.text(.counts))]
    Check {
        /// What the check says.
        verdict: CheckVerdict,
        /// What it found.
        counts: Counts,
        /// `Exit::Check`, or why the file of `--witness` is not written.
        exit: Exit,
    },
}

impl PartFailure {
    /// Returns how the process ends.
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoSuchRank { .. } | Self::OrderTooLarge | Self::SeveralPrograms(_) => Exit::Usage,
            Self::TooFewRanks { .. } => Exit::Environment,
            Self::Remarks(_) | Self::WithRejected(_) => Exit::Rejected,
            Self::OrderOfDeadlock | Self::WithFaulty(_) => Exit::Check,
            Self::Timelines(failure) => exit_code(failure),
            Self::Passes(failure) if failure.error.is_bug() => Exit::InternalError,
            Self::Passes(failure) => exit_of_rejection(failure.error.diagnostics()),
            Self::NotPlanned(diagnostics) => exit_of_rejection(diagnostics),
            Self::NoCertificate { exit, .. }
            | Self::WithUnreadable { exit, .. }
            | Self::Check { exit, .. } => *exit,
        }
    }
}

/// Why a check does not succeed.
#[derive(Clone, Copy, Debug)]
pub enum CheckVerdict {
    /// It found faults.
    Faults,
    /// It could not check everything.
    Incomplete,
    /// It did not examine waits and writes.
    ExcessNotSearched {
        /// Why not.
        reason: NoOrder,
        /// Whether nothing else was to be checked.
        is_excess_only: bool,
    },
}

/// Why the order of accesses does not say which waits and writes are unneeded.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum NoOrder {
    /// The program has races.
    #[error("the program has races")]
    Races,
    /// It is unknown whether there are races.
    #[error("some views have too many pieces to compare, so races are unknown")]
    Views,
}

impl NoOrder {
    /// Returns the reason, if waits and writes were not examined because of it.
    pub fn of(reason: &ExcessNotSearched) -> Option<Self> {
        match reason {
            ExcessNotSearched::Races => Some(Self::Races),
            ExcessNotSearched::Views => Some(Self::Views),
            ExcessNotSearched::Groups | ExcessNotSearched::Waits { .. } | ExcessNotSearched::Writes => None,
        }
    }
}

impl CheckVerdict {
    fn text(self, counts: &Counts) -> String {
        match self {
            Self::Faults => format!("the check found {}{counts}", count_text(counts.faults, "fault")),
            Self::Incomplete => format!("the check is incomplete{counts}"),
            Self::ExcessNotSearched { reason, is_excess_only } => {
                let why = format!("waits and writes were not examined, because {reason}: run `--check=race`");
                let others = counts.others();
                match (is_excess_only, others.is_empty()) {
                    (true, true) => why,
                    (true, false) => format!("{}; {why}", others.join(", ")),
                    (false, _) => format!("the check found no other fault{counts}; {why}"),
                }
            }
        }
    }
}

/// The number of findings of a check, and the size of what was checked. `Display` is what follows the verdict.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Number of faults.
    pub faults: usize,
    /// Number of warnings.
    pub warnings: usize,
    /// Number of remarks that are printed.
    pub remarks: usize,
    /// Number of findings that comments or `hir.toml` allow.
    pub allowed: usize,
    /// The number of the program in a text with several.
    pub container: Option<usize>,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of instructions of all ranks.
    pub instructions: usize,
    /// How long the check took.
    pub time: Duration,
    /// The rules for which the program has no fault, if it has none.
    pub rules: Option<String>,
}

impl Counts {
    /// Returns what else than faults was found, one text for each kind.
    fn others(&self) -> Vec<String> {
        let found = [(self.warnings, "warning"), (self.remarks, "remark")].into_iter();
        let found = found.filter(|it| it.0 > 0).map(|(count, word)| count_text(count, word));
        found.chain((self.allowed > 0).then(|| format!("{} allowed", self.allowed))).collect()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.others().iter().try_for_each(|it| write!(f, ", {it}"))?;
        f.write_str(" (")?;
        self.container.map_or(Ok(()), |it| write!(f, "container {it}, "))?;
        let (ranks, instructions) =
            (count_text(self.ranks, "rank"), count_text(self.instructions, "instruction"));
        write!(f, "{ranks}, {instructions}, {:.3} s", self.time.as_secs_f64())?;
        self.rules.as_ref().map_or(Ok(()), |it| write!(f, "; rules of {it}"))?;
        f.write_str(")")
    }
}
