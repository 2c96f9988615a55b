//! Why nothing may happen any more: what every stuck rank waits for, and the cause.
//!
//! A blocked head waits for instructions of this or other ranks to run; each of those is held up by the head of the
//! actor that it sits on, and so on. The chain ends in a cycle or in something that no rank will ever do: the cause.

use std::fmt;

use rustc_hash::FxHashSet;

use super::{
    InstRef,
    book::{Blocked, Book, Need, names},
    machine::Machine,
};

/// Nothing may happen and not all is done. Displays as the whole report.
#[derive(Clone, Debug, PartialEq)]
pub struct Deadlock {
    /// Why.
    pub cause: Cause,
    /// What stuck ranks wait for, by rank; waits that others of the same rank explain are left out.
    pub waits: Vec<Wait>,
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
    /// Its line and iteration, and what it is on: `line 19, streamIdx=1, on stream 1`.
    pub place: String,
    /// What it waits for: `in Allgather on NCCL (0 1 2) for rank 1`.
    pub what: String,
    /// What those are doing that it waits for.
    pub instead: Vec<String>,
    /// The ranks that it waits for.
    pub ranks: Vec<usize>,
}

/// Most ranks of one wait whose doings are told.
const MAX_INSTEAD: usize = 3;

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::Cycle(ranks) if ranks.len() < 2 => {
                write!(f, "deadlock: rank {} waits for itself", ranks.first().copied().unwrap_or_default())?;
            }
            Cause::Cycle(ranks) => {
                f.write_str("deadlock: ranks wait for each other: ")?;
                ranks.iter().try_for_each(|it| write!(f, "{it} → "))?;
                write!(f, "{}", ranks.first().copied().unwrap_or_default())?;
            }
            Cause::Never { rank, finished, wait } => {
                let does = if *finished { "has finished without" } else { "never does" };
                let wait = self.waits.get(*wait);
                let (who, place) = wait.map_or((0, ""), |it| (it.at.rank, it.place.as_str()));
                write!(f, "deadlock: rank {rank} {does} what rank {who} waits for at {place}")?;
            }
        }
        let mut told: Vec<(Vec<usize>, String)> = Vec::new();
        for it in &self.waits {
            let text = it.text();
            match told.iter_mut().find(|(_, other)| *other == text) {
                Some((ranks, _)) => ranks.push(it.at.rank),
                None => told.push((vec![it.at.rank], text)),
            }
        }
        told.iter().try_for_each(|(ranks, text)| write!(f, "\n{}: {text}", names(ranks)))
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

/// Explains a machine in which nothing may happen.
pub(super) fn explain(machine: &Machine<'_>) -> Deadlock {
    let book = Book::new(machine);
    let stuck: Vec<Blocked> = (0..machine.actors.len()).filter_map(|it| book.blocked(it)).collect();
    let chain = Chain::new(&book, &stuck);
    let root = |it: &Blocked| it.needs.iter().any(|need| need.inst.is_none() || need.rank != it.at.rank);
    let explained: FxHashSet<usize> = stuck.iter().filter(|it| root(it)).map(|it| it.at.rank).collect();
    let told: Vec<&Blocked> = stuck
        .iter()
        .filter(|it| root(it) || !explained.contains(&it.at.rank) || chain.blames(it.actor))
        .collect();
    let cause = match chain.never {
        Some(rank) => {
            let wait = told.iter().position(|it| chain.blames(it.actor)).unwrap_or_default();
            Cause::Never { rank, finished: book.finished(rank), wait }
        }
        None => {
            let mut ranks: Vec<usize> = chain.links.iter().map(|it| it.at.rank).collect();
            ranks.dedup();
            if ranks.len() > 1 && ranks.first() == ranks.last() {
                ranks.pop();
            }
            Cause::Cycle(ranks)
        }
    };
    Deadlock { cause, waits: told.into_iter().map(|it| wait(&book, &stuck, it)).collect() }
}

/// Heads that hold each other up.
struct Chain<'a> {
    /// A cycle, or the one head that waits for what will never be done.
    links: Vec<&'a Blocked>,
    /// The rank that will never do it.
    never: Option<usize>,
}

impl<'a> Chain<'a> {
    /// Follows the first stuck head to the cause.
    fn new(book: &Book<'_>, stuck: &'a [Blocked]) -> Self {
        let mut links: Vec<&Blocked> = stuck.first().into_iter().collect();
        while let Some(it) = links.last().copied() {
            let holder = |need: &Need| stuck.iter().find(|other| Some(other.actor) == book.holder(*need));
            let never = it.needs.iter().find(|it| it.inst.is_none());
            match (never, it.needs.iter().find_map(holder)) {
                (Some(need), _) => return Self { links: vec![it], never: Some(need.rank) },
                (None, Some(next)) => {
                    if let Some(start) = links.iter().position(|link| link.actor == next.actor) {
                        return Self { links: links.split_off(start), never: None };
                    }
                    links.push(next);
                }
                (None, None) => break,
            }
        }
        Self { links, never: None }
    }

    /// Whether a head has to be told though others of its rank explain it: the chain never leaves the rank.
    fn blames(&self, actor: usize) -> bool {
        let local = self.links.windows(2).all(|it| it[0].at.rank == it[1].at.rank);
        local && self.links.iter().any(|it| it.actor == actor)
    }
}

/// What is told of a blocked head.
fn wait(book: &Book<'_>, stuck: &[Blocked], it: &Blocked) -> Wait {
    let mut instead = Vec::new();
    let mut ranks: Vec<usize> = Vec::new();
    for need in &it.needs {
        if ranks.contains(&need.rank) {
            continue;
        }
        ranks.push(need.rank);
        if need.inst.is_none() {
            let does = if book.finished(need.rank) { "has finished" } else { "never does" };
            instead.push(format!("rank {} {does}", need.rank));
        } else if need.rank != it.at.rank
            && let Some(there) = root_of(book, stuck, *need)
        {
            let mut for_whom: Vec<usize> = there.needs.iter().map(|it| it.rank).collect();
            for_whom.dedup();
            let (rank, doing) = (need.rank, book.doing(there.at));
            instead.push(format!("rank {rank} is at {doing}, waiting for {}", names(&for_whom)));
        }
    }
    if instead.len() > MAX_INSTEAD {
        instead.truncate(MAX_INSTEAD);
        instead.push("…".to_owned());
    }
    let line = book.line(it.at);
    Wait { at: it.at, line, place: book.place(it), what: it.what.clone(), instead, ranks }
}

/// The head that holds up an instruction, past those that wait for others of the same rank.
fn root_of<'a>(book: &Book<'_>, stuck: &'a [Blocked], mut need: Need) -> Option<&'a Blocked> {
    let mut res = None;
    for _ in 0..stuck.len() {
        let Some(holder) = stuck.iter().find(|it| Some(it.actor) == book.holder(need)) else { break };
        res = Some(holder);
        match holder.needs.first() {
            Some(next) if next.rank == holder.at.rank => need = *next,
            Some(_) | None => break,
        }
    }
    res
}
