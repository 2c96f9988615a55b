//! The report of a deadlock: its cause, and what every blocked rank waits for.

use std::{borrow::Cow, collections::BTreeSet, fmt, sync::Arc};

use grammar::{Code, Diagnostic, Span, StmtId};

use super::{
    HostRule,
    blocked_wait::{BlockedWait, short_ranks, wait_lines},
};
use crate::{Plan, iteration_text};

/// A state in which no actor can continue although instructions remain. `Display` prints the full report.
#[derive(Clone, Debug, PartialEq)]
pub struct Deadlock {
    /// The cause.
    pub cause: Cause,
    /// The waits of blocked ranks, by rank. Waits that follow from others of the same rank are omitted.
    pub waits: Vec<BlockedWait>,
    /// The communications that ranks do not post and others wait for.
    pub skips: Vec<MissingPost>,
    /// Number of ranks.
    pub world: usize,
    /// The smallest world that contains all meshes and teams, if the rank that never reaches a ShareMemHandles, or never creates a
    /// communicator, is not in it.
    pub needed_ranks: Option<usize>,
    /// What it needs besides the default assumptions.
    pub note: Option<&'static str>,
    /// The rules by which hosts block that it needs.
    pub hosts: Vec<HostRule>,
    /// The plans whose instructions the waits name, if hosts wait in more of them than in the plans of the program.
    pub plans: Option<Arc<[Plan]>>,
}

/// The cause of a deadlock.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Ranks wait for each other.
    Cycle {
        /// Each rank waits for the next, and the last for the first.
        ranks: Vec<usize>,
        /// The instructions in which a rank waits for the next one: rank and statement.
        steps: Vec<(usize, String)>,
        /// The pattern, if all instructions of the cycle are transfers in the same direction.
        head_to_head: Option<HeadToHead>,
    },
    /// A wait that no rank will ever satisfy.
    NeverSatisfied {
        /// The wait, an index into `Deadlock::waits`.
        wait: usize,
        /// The event that never happens:
        /// `rank 1 never receives what rank 0 sends in P2PCommunication 3 (send, line 9)`.
        what: String,
        /// The numbers of matching operations that both ranks post, if they explain the cause.
        counts: Option<String>,
        /// What to change, if the cause suggests it.
        help: Option<String>,
    },
}

/// A cycle of transfers in the same direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadToHead {
    /// Every rank sends before it receives.
    Sends,
    /// Every rank receives before it sends.
    Receives,
    /// Like `Sends`, with the CUDA backend's put protocol.
    Puts,
    /// Like `Receives`, with the CUDA backend's get protocol.
    Gets,
}

/// The maximum number of ranks that are listed as waiting for one communication.
const MAX_WAITING: usize = 16;

/// The maximum number of ranks of a cycle in the first line.
const MAX_CYCLE: usize = 16;

/// A communication that ranks do not post and others wait for. `Display` prints the ranks, the verb and the
/// communication.
#[derive(Clone, Debug, PartialEq)]
pub struct MissingPost {
    /// The ranks.
    pub ranks: BTreeSet<usize>,
    /// The statement.
    pub stmt: StmtId,
    /// The verb for one rank and for several: `never posts`, `never post`.
    pub verb: [&'static str; 2],
    /// The communication: `P2PCommunication 38 (send, line 21)`.
    pub what: String,
    /// The reason, before and after the ranks to which it applies: `` `IF Manual ( rank != 3 )` (line 20) is
    /// false`` and `` in streamIdx=1..7``.
    pub reason: [String; 2],
    /// The waits for it, as indices into `Deadlock::waits`.
    pub waits: BTreeSet<usize>,
    /// What to change.
    pub help: String,
}

impl fmt::Display for MissingPost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = self.verb[usize::from(self.ranks.len() > 1)];
        write!(f, "{} {verb} {}", short_ranks(&self.ranks), self.what)
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        self.counts().map_or(Ok(()), |it| write!(f, "\n{it}"))?;
        write!(f, "\nhelp: {}", self.help())?;
        self.details().iter().try_for_each(|it| write!(f, "\n{it}"))
    }
}

impl Deadlock {
    /// Returns the first line of the report.
    pub fn message(&self) -> String {
        format!("deadlock: {}", self.headline())
    }

    /// Returns what the report has besides the message and the help, line by line.
    pub fn notes(&self) -> Vec<String> {
        let model = self.hosts.iter().map(|it| it.note()).chain(self.note).map(str::to_owned);
        self.counts().map(str::to_owned).into_iter().chain(self.details()).chain(model).collect()
    }

    /// Returns how many communications the ranks post, if that is the cause.
    fn counts(&self) -> Option<&str> {
        match &self.cause {
            Cause::NeverSatisfied { counts, .. } => counts.as_deref(),
            Cause::Cycle { .. } => None,
        }
    }

    /// Returns the ranks that do not post a communication, and the waits.
    fn details(&self) -> Vec<String> {
        let (headline, mut lines) = (self.headline(), Vec::new());
        for it in &self.skips {
            let text = it.to_string();
            let text =
                if text == headline && self.skips.len() == 1 { String::new() } else { format!("{text}: ") };
            let [reason, rest] = &it.reason;
            lines.push(format!("{text}{reason} on {}{rest}", short_ranks(&it.ranks)));
            lines.push(format!("left waiting {}", self.waiting(&it.waits)));
        }
        let explained = |at: usize| self.skips.iter().any(|it| it.waits.contains(&at));
        let follow =
            self.waits.iter().enumerate().filter(|(at, it)| it.follows_from_skips && !explained(*at)).count();
        lines.extend(wait_lines(self.waits.iter().filter(|it| !self.is_stated(it)), self.world));
        match follow {
            0 => (),
            1 => lines.push("1 more wait follows from this".to_owned()),
            _ => lines.push(format!("{follow} more waits follow from this")),
        }
        lines
    }

    /// Returns whether the headline, or the report of a skipped communication, states a wait.
    fn is_stated(&self, wait: &BlockedWait) -> bool {
        let is_step = |steps: &[(usize, String)]| {
            steps.len() == 2 && steps.iter().any(|it| it.0 == wait.inst_ref.rank && it.1 == wait.place)
        };
        wait.follows_from_skips || matches!(&self.cause, Cause::Cycle { steps, .. } if is_step(steps))
    }

    /// Returns the cause in one line.
    pub fn headline(&self) -> String {
        let (ranks, steps, facing) = match &self.cause {
            Cause::NeverSatisfied { what, .. } => return what.clone(),
            Cause::Cycle { ranks, steps, head_to_head: facing } => (ranks, steps, facing),
        };
        let (kind, other) = match facing {
            Some(HeadToHead::Sends | HeadToHead::Puts) => ("send", "receive"),
            Some(HeadToHead::Receives | HeadToHead::Gets) => ("receive", "send"),
            None => ("", ""),
        };
        match (steps.as_slice(), facing) {
            (_, _) if ranks.len() < 2 => {
                format!("rank {} waits for itself", ranks.first().copied().unwrap_or_default())
            }
            ([(a, one), (b, two)], Some(_)) if one == two => {
                format!("ranks {a} and {b} each wait in {one} for the {other} of the other rank")
            }
            ([(a, one), (b, two)], Some(_)) => {
                format!(
                    "ranks {a} and {b} each wait in a {kind} for the {other} of the other rank: rank {a} in {one}, rank {b} in {two}"
                )
            }
            ([(a, one), (b, two)], None) => {
                format!(
                    "ranks wait for each other: rank {a} in {one} for rank {b}, rank {b} in {two} for rank {a}"
                )
            }
            (_, Some(_)) => format!("each rank {kind}s before it {other}s: {}", cycle_text(ranks)),
            (_, None) => format!("ranks wait for each other: {}", cycle_text(ranks)),
        }
    }

    /// Returns the statement to report: one that a rank does not post, or else the first in which a rank
    /// waits.
    pub fn stmt(&self, plans: &[Plan]) -> Option<StmtId> {
        let plans = self.plans.as_deref().unwrap_or(plans);
        let wait = match &self.cause {
            Cause::Cycle { ranks, .. } => self.waits.iter().position(|it| ranks.contains(&it.inst_ref.rank)),
            Cause::NeverSatisfied { wait, .. } => Some(*wait),
        };
        if let Some(skip) = self.skips.iter().find(|it| wait.is_none_or(|wait| it.waits.contains(&wait))) {
            return Some(skip.stmt);
        }
        let at = self.waits.get(wait?)?.inst_ref;
        let plan = plans.get(at.rank)?;
        plan.origins[plan.code.get(at.inst)?.origin as usize].stmt
    }

    /// Returns the rank and the line of the statement that `stmt` returns.
    pub fn line(&self, plans: &[Plan]) -> Option<(usize, u32)> {
        let stmt = self.stmt(plans)?;
        let skips = self.skips.iter().filter(|it| it.stmt == stmt).flat_map(|it| it.ranks.iter().copied());
        let rank = skips.chain(self.waits.iter().map(|it| it.inst_ref.rank)).next()?;
        let plan = plans.get(rank)?;
        let origin = plan.origins.iter().find(|it| it.stmt == Some(stmt)).map(|it| it.line);
        Some((rank, plan.comm_names.line(stmt).or(origin)?))
    }

    /// Returns a diagnostic at `span`. `message` turns the first line of the report into the message.
    pub fn diagnostic(&self, code: Code, span: Span, plans: &[Plan], message: String) -> Diagnostic {
        let notes = self.notes();
        let mut it = Diagnostic::new(code, span, message, self.label(plans));
        if !notes.is_empty() {
            it = it.note(notes.join("\n"));
        }
        it.help(self.help())
    }

    /// Returns the label of the reported statement: the ranks that do not post it, or that wait there.
    fn label(&self, plans: &[Plan]) -> String {
        let plans = self.plans.as_deref().unwrap_or(plans);
        let Some(stmt) = self.stmt(plans) else { return "the program ends here".to_owned() };
        let skips: BTreeSet<usize> =
            self.skips.iter().filter(|it| it.stmt == stmt).flat_map(|it| it.ranks.iter().copied()).collect();
        if !skips.is_empty() {
            let verb = if skips.len() == 1 { "does" } else { "do" };
            return format!("{} {verb} not post this", short_ranks(&skips));
        }
        let is_here = |it: &&BlockedWait| {
            let plan = &plans[it.inst_ref.rank];
            plan.code
                .get(it.inst_ref.inst)
                .is_some_and(|it| plan.origins[it.origin as usize].stmt == Some(stmt))
        };
        let ranks: BTreeSet<usize> = self.waits.iter().filter(is_here).map(|it| it.inst_ref.rank).collect();
        let verb = if ranks.len() == 1 { "waits" } else { "wait" };
        format!("{} {verb} here forever", short_ranks(&ranks))
    }

    /// Returns a suggestion for fixing the program.
    pub fn help(&self) -> Cow<'static, str> {
        if let Some(skip) = self.skips.first() {
            return skip.help.clone().into();
        }
        if let Some(needed) = self.needed_ranks {
            let unused = short_ranks(&(needed..self.world).collect());
            let creates = self.note.is_some() || self.hosts.contains(&HostRule::Creation);
            let waits = if creates { "the creation of a communicator" } else { "ShareMemHandles" };
            let verb = if self.world == needed + 1 { "is" } else { "are" };
            return Cow::Owned(format!(
                "{unused} {verb} in no mesh or team of the program, but {waits} waits for all ranks: start only \
                 {needed} ranks (`--ranks {needed}`)"
            ));
        }
        let facing = match &self.cause {
            Cause::NeverSatisfied { help: Some(help), .. } => return help.clone().into(),
            Cause::NeverSatisfied { help: None, .. } => {
                return "add what this statement waits for to the rank that never does it, or remove this statement".into();
            }
            Cause::Cycle { head_to_head: Some(facing), .. } => facing,
            Cause::Cycle { head_to_head: None, .. } if !self.hosts.is_empty() => {
                return self.hosts[0].help().into();
            }
            Cause::Cycle { head_to_head: None, .. } if self.note.is_some() => {
                return HostRule::Creation.help().into();
            }
            Cause::Cycle { head_to_head: None, ranks, .. } if ranks.len() > 1 => {
                return "let all ranks execute these statements in the same order".into();
            }
            Cause::Cycle { head_to_head: None, .. } => {
                return "move the statement that waits behind the one that it waits for".into();
            }
        };
        let help = match facing {
            HeadToHead::Sends => {
                "put the send and the receive between StartCoalescing and EndCoalescing, or let one rank receive first"
            }
            HeadToHead::Receives => {
                "put the send and the receive between StartCoalescing and EndCoalescing, or let one rank send first"
            }
            HeadToHead::Puts => {
                "by protocol=put a send waits for the peer's receive: post the receive first, or use protocol=get"
            }
            HeadToHead::Gets => {
                "by protocol=get a receive waits for the peer's send: post the send first, or use protocol=put"
            }
        };
        Cow::Borrowed(help)
    }

    /// Formats waits by line: `at line 22: ranks 0 (streamIdx=3), 1 (streamIdx=2)`.
    fn waiting(&self, waits: &BTreeSet<usize>) -> String {
        let mut lines: Vec<(u32, Vec<String>)> = Vec::new();
        for it in waits.iter().filter_map(|at| self.waits.get(*at)) {
            let who = if it.iteration.is_empty() {
                it.inst_ref.rank.to_string()
            } else {
                format!("{} ({})", it.inst_ref.rank, iteration_text(&it.iteration))
            };
            match lines.iter_mut().find(|(line, _)| *line == it.line) {
                Some((_, all)) => all.push(who),
                None => lines.push((it.line, vec![who])),
            }
        }
        let shown = lines.into_iter().map(|(line, mut all)| {
            let ranks = if all.len() == 1 { "rank" } else { "ranks" };
            let more = all.len().saturating_sub(MAX_WAITING);
            all.truncate(MAX_WAITING);
            if more > 0 {
                all.push(format!("{more} more"));
            }
            format!("at line {line}: {ranks} {}", all.join(", "))
        });
        shown.collect::<Vec<_>>().join("; ")
    }
}

/// Formats a cycle: `0 → 1 → 0`.
fn cycle_text(ranks: &[usize]) -> String {
    let mut steps: Vec<String> = ranks.iter().take(MAX_CYCLE).map(ToString::to_string).collect();
    if ranks.len() > MAX_CYCLE {
        steps.push("…".to_owned());
    }
    steps.extend(ranks.first().map(ToString::to_string));
    steps.join(" → ")
}
