//! Why nothing may happen any more: what every stuck rank waits for, and the cause.
//!
//! A blocked head waits for instructions of this or other ranks to run; each of those is held up by the head of the
//! actor that it sits on, and so on. The chain ends in a cycle or in something that no rank will ever do: the cause.

use std::fmt;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    InstRef,
    book::{Blocked, Book, Need, names},
    machine::Machine,
    skipped::{self, NeverPosted, Skipped},
};

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

/// Most ranks of one wait whose doings are told.
const MAX_INSTEAD: usize = 3;

/// Most ranks that are named as waiting for one communication.
const MAX_WAITING: usize = 16;

/// Most ranks of a cycle that the first line names.
const MAX_CYCLE: usize = 16;

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

/// Explains a machine in which nothing may happen.
pub(super) fn explain(machine: &Machine<'_>) -> Deadlock {
    let stuck = Stuck::new(machine);
    let chain = stuck.chain();
    let heads = || stuck.heads.iter().flatten();
    let root = |it: &Blocked| it.needs.iter().any(|need| need.inst.is_none() || need.rank != it.at.rank);
    let explained: FxHashSet<usize> = heads().filter(|it| root(it)).map(|it| it.at.rank).collect();
    let told: Vec<&Blocked> =
        heads().filter(|it| root(it) || !explained.contains(&it.at.rank) || chain.blames(it.actor)).collect();
    let cause = match chain.never {
        Some(rank) => {
            let wait = told.iter().position(|it| chain.blames(it.actor)).unwrap_or_default();
            Cause::Never { rank, finished: stuck.book.finished(rank), wait }
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
    let skips = stuck.never_posted(&told);
    let settled = stuck.settled();
    let waits = told.iter().map(|it| Wait { settled: settled[it.actor], ..stuck.wait(it) });
    Deadlock { cause, waits: waits.collect(), skips }
}

/// All heads that cannot run, by actor.
struct Stuck<'a> {
    book: Book<'a>,
    heads: Vec<Option<Blocked>>,
    /// By actor and need: the communication that a rank goes past, where one is known.
    skipped: Vec<Vec<Option<Skipped>>>,
}

/// Heads that hold each other up.
struct Chain<'a> {
    /// A cycle, or the one head that waits for what will never be done.
    links: Vec<&'a Blocked>,
    /// The rank that will never do it.
    never: Option<usize>,
}

impl Chain<'_> {
    /// Whether a head has to be told though others of its rank explain it: the chain never leaves the rank.
    fn blames(&self, actor: usize) -> bool {
        let local = self.links.windows(2).all(|it| it[0].at.rank == it[1].at.rank);
        local && self.links.iter().any(|it| it.actor == actor)
    }
}

impl<'a> Stuck<'a> {
    fn new(machine: &'a Machine<'a>) -> Self {
        let book = Book::new(machine);
        let heads: Vec<Option<Blocked>> = (0..machine.actors.len()).map(|it| book.blocked(it)).collect();
        let of = |it: &Blocked| it.needs.iter().map(|need| book.skipped(it.at, need)).collect();
        let skipped = heads.iter().map(|it| it.as_ref().map_or(Vec::new(), of)).collect();
        Self { book, heads, skipped }
    }

    /// The head that holds up an instruction.
    fn holder(&self, need: Need) -> Option<&Blocked> {
        self.book.holder(need).and_then(|it| self.heads[it].as_ref())
    }

    /// Follows the first head to the cause.
    fn chain(&self) -> Chain<'_> {
        let mut links: Vec<&Blocked> = self.heads.iter().flatten().take(1).collect();
        let mut position = FxHashMap::default();
        while let Some(it) = links.last().copied() {
            position.insert(it.actor, links.len() - 1);
            if let Some(need) = it.needs.iter().find(|it| it.inst.is_none()) {
                return Chain { links: vec![it], never: Some(need.rank) };
            }
            let Some(next) = it.needs.iter().find_map(|&it| self.holder(it)) else { break };
            if let Some(&start) = position.get(&next.actor) {
                return Chain { links: links.split_off(start), never: None };
            }
            links.push(next);
        }
        Chain { links, never: None }
    }

    /// By actor: whether its head waits only for what ranks go past, directly or through others.
    fn settled(&self) -> Vec<bool> {
        // What is left over has another need, or is part of a cycle.
        let mut settled = vec![false; self.heads.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for it in self.heads.iter().flatten().filter(|it| !it.needs.is_empty()) {
                let holds = |(need, skipped): (&Need, &Option<Skipped>)| match need.inst {
                    None => skipped.is_some(),
                    Some(_) => self.holder(*need).is_some_and(|it| settled[it.actor]),
                };
                if !settled[it.actor] && it.needs.iter().zip(&self.skipped[it.actor]).all(holds) {
                    settled[it.actor] = true;
                    changed = true;
                }
            }
        }
        settled
    }

    /// What ranks go past, each lack and its reason once.
    fn never_posted(&self, told: &[&Blocked]) -> Vec<NeverPosted> {
        let mut found: Vec<NeverPosted> = Vec::new();
        for (at, it) in told.iter().enumerate() {
            for skipped in self.skipped[it.actor].iter().flatten() {
                let rank = skipped.rank;
                let (what, why) = skipped::explain(&self.book.machine.plans[rank], skipped);
                let same = |it: &&mut NeverPosted| it.rank == rank && it.what == what && it.why == why;
                match found.iter_mut().find(same) {
                    Some(known) => known.waits.push(at),
                    None => found.push(NeverPosted { rank, what, why, waits: vec![at] }),
                }
            }
        }
        found
    }

    /// What is told of a blocked head.
    fn wait(&self, it: &Blocked) -> Wait {
        let mut ranks: Vec<usize> = it.needs.iter().map(|it| it.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let first = |&rank: &usize| it.needs.iter().find(|it| it.rank == rank);
        let mut instead: Vec<String> =
            ranks.iter().filter_map(first).filter_map(|need| self.instead(it, *need)).collect();
        if instead.len() > MAX_INSTEAD {
            instead.truncate(MAX_INSTEAD);
            instead.push("…".to_owned());
        }
        let (line, place) = (self.book.line(it.at), self.book.place(it));
        let plan = &self.book.machine.plans[it.at.rank];
        let iteration = plan.iteration(&plan.code[it.at.inst]);
        Wait { at: it.at, line, iteration, place, what: it.what.clone(), instead, ranks, settled: false }
    }

    /// What a rank does that a head waits for; `None` for its own rank, whose waits are told anyway.
    fn instead(&self, it: &Blocked, need: Need) -> Option<String> {
        let rank = need.rank;
        if rank == it.at.rank {
            return None;
        }
        let there = self.busy(if need.inst.is_some() { need } else { self.book.last(rank) });
        match (need.inst, there) {
            (Some(_), there) => there.map(|there| format!("rank {rank} is {there}")),
            (None, _) if self.book.finished(rank) => Some(format!("rank {rank} has finished")),
            (None, Some(there)) => Some(format!("rank {rank} never does, it is {there}")),
            (None, None) => Some(format!("rank {rank} never does")),
        }
    }

    /// `at line 3, waiting for rank 2`: the head that holds up an instruction, past those that wait for others of the
    /// same rank.
    fn busy(&self, mut need: Need) -> Option<String> {
        let mut there = self.holder(need)?;
        for _ in 0..self.heads.len() {
            match there.needs.first() {
                Some(next) if next.rank == there.at.rank && next.inst.is_some() => need = *next,
                Some(_) | None => break,
            }
            match self.holder(need) {
                Some(it) => there = it,
                None => break,
            }
        }
        let mut whom: Vec<usize> = there.needs.iter().map(|it| it.rank).collect();
        whom.sort_unstable();
        whom.dedup();
        let whom = if whom == [there.at.rank] { "itself".to_owned() } else { names(&whom) };
        Some(format!("at {}, waiting for {whom}", self.book.doing(there.at)))
    }
}
