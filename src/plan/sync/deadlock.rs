//! A deadlock as reports show it: the cause, and what every stuck rank waits for.

use std::fmt;

use super::InstRef;

/// Nothing may happen and not all is done. Displays as the whole report.
#[derive(Clone, Debug, PartialEq)]
pub struct Deadlock {
    /// Why.
    pub cause: Cause,
    /// What stuck ranks wait for, by rank; waits that others of the same rank explain are left out.
    pub waits: Vec<Wait>,
    /// Communications that ranks go past, and that others wait for.
    pub skips: Vec<NeverPosted>,
}

/// The root of a deadlock.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Each of these ranks waits for the next, the last for the first.
    Cycle(Vec<usize>),
    /// Nobody will ever do what a head waits for.
    Never {
        /// The rank that would have to.
        rank: usize,
        /// Whether all that it had to do is done.
        finished: bool,
        /// Who waits, an index into `Deadlock::waits`.
        wait: usize,
    },
}

/// A blocked host, stream or communicator's queue.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// The instruction that cannot run.
    pub at: InstRef,
    /// Its line; 0 for the end of the program.
    pub line: u32,
    /// The values of the loops around it: `streamIdx=1`; empty outside of loops.
    pub iteration: String,
    /// Its line and iteration, and what it is on: `line 19, streamIdx=1, on stream 1`.
    pub place: String,
    /// What it waits for: `in Allgather for rank 1`.
    pub what: String,
    /// What those are doing that it waits for.
    pub instead: Vec<String>,
    /// The ranks that it waits for.
    pub ranks: Vec<usize>,
    /// Whether all that it waits for would come if ranks posted what `Deadlock::skips` lists.
    pub settled: bool,
}

/// Most ranks that are named as waiting for one communication.
const MAX_WAITING: usize = 16;

/// Most ranks of a cycle that the first line names.
const MAX_CYCLE: usize = 16;

/// A communication that a rank goes past, and that others wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct NeverPosted {
    /// The rank.
    pub rank: usize,
    /// What it does not do: `never posts P2PCommunication 38 (send, line 21)`.
    pub what: String,
    /// Why not: `` `IF Manual ( rank != 3 )` (line 20) is false there in streamIdx=1..7``.
    pub why: String,
    /// Who waits for it, indices into `Deadlock::waits`.
    pub waits: Vec<usize>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Cycle(ranks) if ranks.len() < 2 => {
                write!(f, "deadlock: rank {} waits for itself", ranks.first().copied().unwrap_or_default())?;
            }
            Cause::Cycle(ranks) => {
                f.write_str("deadlock: ranks wait for each other: ")?;
                ranks.iter().take(MAX_CYCLE).try_for_each(|it| write!(f, "{it} → "))?;
                if ranks.len() > MAX_CYCLE {
                    f.write_str("… → ")?;
                }
                write!(f, "{}", ranks.first().copied().unwrap_or_default())?;
            }
            Cause::Never { rank, finished, wait } => {
                let does = if *finished { "has finished without" } else { "never does" };
                let first = self.waits.get(*wait);
                let (who, place) = first.map_or((0, ""), |it| (it.at.rank, it.place.as_str()));
                let who = if who == *rank { "it".to_owned() } else { format!("rank {who}") };
                match self.skips.iter().find(|it| it.waits.contains(wait)) {
                    Some(it) => write!(f, "deadlock: rank {} {}", it.rank, it.what)?,
                    None => write!(f, "deadlock: rank {rank} {does} what {who} waits for at {place}")?,
                }
            }
        }
        let mut told: Vec<(Vec<usize>, String)> = Vec::new();
        for it in &self.skips {
            write!(f, "\nrank {} {}: {}", it.rank, it.what, it.why)?;
            write!(f, "\nleft waiting {}", self.waiting(&it.waits))?;
        }
        let explained = |at: usize| self.skips.iter().any(|it| it.waits.contains(&at));
        let follow = self.waits.iter().enumerate().filter(|(at, it)| it.settled && !explained(*at)).count();
        for it in self.waits.iter().filter(|it| !it.settled) {
            let text = it.text();
            match told.iter_mut().find(|(_, other)| *other == text) {
                Some((ranks, _)) => ranks.push(it.at.rank),
                None => told.push((vec![it.at.rank], text)),
            }
        }
        told.iter().try_for_each(|(ranks, text)| write!(f, "\n{}: {text}", names(ranks)))?;
        match follow {
            0 => Ok(()),
            1 => f.write_str("\n1 more wait follows from this"),
            _ => write!(f, "\n{follow} more waits follow from this"),
        }
    }
}

impl Deadlock {
    /// `at line 22: rank 0 (streamIdx=3), 1 (streamIdx=2)`.
    fn waiting(&self, waits: &[usize]) -> String {
        let mut lines: Vec<(u32, Vec<String>)> = Vec::new();
        for it in waits.iter().filter_map(|at| self.waits.get(*at)) {
            let who = match it.iteration.is_empty() {
                true => it.at.rank.to_string(),
                false => format!("{} ({})", it.at.rank, it.iteration),
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

impl Wait {
    /// All but the rank.
    fn text(&self) -> String {
        let mut text = format!("{}: waits {}", self.place, self.what);
        for it in &self.instead {
            text += "; ";
            text += it;
        }
        text
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.at.rank, self.text())
    }
}

/// `rank 1`, `ranks 1 2 3`.
pub fn names(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(" "))
}
