//! Why nobody goes on in a state: what every blocked actor waits for, and the cause.
//!
//! The chain from the first blocked head to what holds it up ends in a cycle, or in something that no rank will ever do.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Actor, Alignment, InstRef, Key, Matched, Need, Role, State, WaitGraph,
    deadlock::{Cause, Deadlock, Facing, NeverPosted, Wait, names},
    skipped::{self, Skipped},
    wait_graph::ranks_of,
    words,
};
use crate::plan::{Direction, Meaning, Plan, Slot};

/// Most ranks of one wait whose doings are reported.
const MAX_INSTEAD: usize = 3;

/// Explains a state in which nothing may happen.
pub fn explain(plans: &[Plan], matched: &Matched, state: &State) -> Deadlock {
    Explainer::new(WaitGraph { plans, matched, state, hosts_connect: false }).deadlock()
}

/// A head that cannot run.
struct Blocked {
    /// Whose head it is.
    actor: Actor,
    /// The instruction.
    at: InstRef,
    /// What it waits for.
    what: String,
    /// What has to run first.
    needs: Vec<Need>,
}

/// All heads that cannot run.
struct Explainer<'a> {
    graph: WaitGraph<'a>,
    heads: Vec<Blocked>,
    /// By actor: its head in `heads`.
    of: FxHashMap<Actor, usize>,
    /// By head and need: the communication that a rank does not post, where one is known.
    skipped: Vec<Vec<Option<Skipped>>>,
}

/// Heads that hold each other up.
struct Chain<'a> {
    /// A cycle, or the one head that waits for what will never be done.
    links: Vec<&'a Blocked>,
    /// What will never be done.
    never: Option<Need>,
}

impl Chain<'_> {
    /// Whether a head has to be reported though others of its rank explain it: the chain never leaves the rank.
    fn blames(&self, actor: Actor) -> bool {
        let local = self.links.windows(2).all(|it| it[0].at.rank == it[1].at.rank);
        local && self.links.iter().any(|it| it.actor == actor)
    }
}

impl<'a> Explainer<'a> {
    fn new(graph: WaitGraph<'a>) -> Self {
        let mut heads = Vec::new();
        let mut of = FxHashMap::default();
        for actor in graph.actors() {
            let (Some(inst), needs) = (graph.head(actor), graph.needs(actor)) else { continue };
            let at = InstRef { rank: actor.rank(), inst };
            of.insert(actor, heads.len());
            let what = words::awaited(&graph, actor, at, &needs);
            heads.push(Blocked { actor, at, what, needs });
        }
        let mut alignment = Alignment::new(graph.plans, graph.matched);
        let skipped = heads
            .iter()
            .map(|it| it.needs.iter().map(|need| alignment.skipped(it.at, need)).collect())
            .collect();
        Self { graph, heads, of, skipped }
    }

    fn deadlock(&self) -> Deadlock {
        let chain = self.chain();
        let root = |it: &Blocked| it.needs.iter().any(|need| need.inst.is_none() || need.rank != it.at.rank);
        let explained: FxHashSet<usize> =
            self.heads.iter().filter(|it| root(it)).map(|it| it.at.rank).collect();
        let reported: Vec<usize> = (0..self.heads.len())
            .filter(|&it| {
                let it = &self.heads[it];
                root(it) || !explained.contains(&it.at.rank) || chain.blames(it.actor)
            })
            .collect();
        let skips = self.never_posted(&reported);
        let cause = match (chain.never, chain.links.first()) {
            (Some(need), Some(head)) => {
                let blamed = |it: &usize| chain.blames(self.heads[*it].actor);
                let wait = reported.iter().position(blamed).unwrap_or_default();
                let skip = skips.iter().find(|it| it.waits.contains(&wait));
                let what = match skip {
                    Some(it) => format!("rank {} {}", it.rank, it.what),
                    None => words::never(&self.graph, head.at, &need),
                };
                let counts = if skip.is_some() { None } else { words::counts(&self.graph, head.at, &need) };
                Cause::Never { wait, what, counts }
            }
            (None, _) | (_, None) => self.cycle(&chain),
        };
        let settled = self.settled();
        let waits = reported.iter().map(|&it| Wait { settled: settled[it], ..self.wait(&self.heads[it]) });
        Deadlock { cause, waits: waits.collect(), skips }
    }

    /// The head that holds up an instruction.
    fn holder(&self, need: Need) -> Option<usize> {
        self.graph.holder(need).and_then(|it| self.of.get(&it).copied())
    }

    /// Follows the first head to the cause.
    fn chain(&self) -> Chain<'_> {
        let mut links: Vec<&Blocked> = self.heads.iter().take(1).collect();
        let mut position = FxHashMap::default();
        while let Some(it) = links.last().copied() {
            position.insert(it.actor, links.len() - 1);
            if let Some(need) = it.needs.iter().find(|it| it.inst.is_none()) {
                return Chain { links: vec![it], never: Some(*need) };
            }
            let Some(next) = it.needs.iter().find_map(|&it| self.holder(it)) else { break };
            let next = &self.heads[next];
            if let Some(&start) = position.get(&next.actor) {
                return Chain { links: links.split_off(start), never: None };
            }
            links.push(next);
        }
        Chain { links, never: None }
    }

    /// The cause of a chain that is a cycle.
    fn cycle(&self, chain: &Chain<'_>) -> Cause {
        let mut ranks: Vec<usize> = chain.links.iter().map(|it| it.at.rank).collect();
        ranks.dedup();
        if ranks.len() > 1 && ranks.first() == ranks.last() {
            ranks.pop();
        }
        // The heads that wait for another rank.
        let next = |at: usize| chain.links[(at + 1) % chain.links.len()];
        let steps = (0..chain.links.len()).filter(|it| next(*it).at.rank != chain.links[*it].at.rank);
        let steps: Vec<&Blocked> = steps.map(|it| chain.links[it]).collect();
        let kind = |it: &&Blocked| match it.needs.first()?.part? {
            (Key::Message(..), Role::Side(Direction::Recv)) => Some(Facing::Sends),
            (Key::Message(..), Role::Side(Direction::Send)) => Some(Facing::Receives),
            (Key::Signal(Slot { meaning: Meaning::PutReady, .. }), _) => Some(Facing::Puts),
            (Key::Signal(Slot { meaning: Meaning::Ready, .. }), _) => Some(Facing::Gets),
            _ => None,
        };
        let first = steps.first().and_then(kind);
        let facing = first.filter(|_| steps.iter().all(|it| kind(it) == first));
        let steps = steps.iter().map(|it| (it.at.rank, words::describe(self.graph.plans, it.at))).collect();
        Cause::Cycle { ranks, steps, facing }
    }

    /// By head: whether it waits only for what ranks do not post, directly or through others.
    fn settled(&self) -> Vec<bool> {
        // What is left over has another need, or is part of a cycle.
        let mut settled = vec![false; self.heads.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for (at, it) in self.heads.iter().enumerate().filter(|it| !it.1.needs.is_empty()) {
                let holds = |(need, skipped): (&Need, &Option<Skipped>)| match need.inst {
                    None => skipped.is_some(),
                    Some(_) => self.holder(*need).is_some_and(|it| settled[it]),
                };
                if !settled[at] && it.needs.iter().zip(&self.skipped[at]).all(holds) {
                    settled[at] = true;
                    changed = true;
                }
            }
        }
        settled
    }

    /// What ranks do not post, each with its reason once.
    fn never_posted(&self, reported: &[usize]) -> Vec<NeverPosted> {
        let mut found: Vec<NeverPosted> = Vec::new();
        for (at, it) in reported.iter().enumerate() {
            for skipped in self.skipped[*it].iter().flatten() {
                let rank = skipped.rank;
                let (what, why) = skipped::explain(&self.graph.plans[rank], skipped);
                let same = |it: &&mut NeverPosted| it.rank == rank && it.what == what && it.why == why;
                match found.iter_mut().find(same) {
                    Some(known) => known.waits.push(at),
                    None => {
                        let stmt = self.graph.plans[rank].skips[skipped.skip].stmt;
                        found.push(NeverPosted { rank, stmt, what, why, waits: vec![at] });
                    }
                }
            }
        }
        found
    }

    /// What is reported of a blocked head.
    fn wait(&self, it: &Blocked) -> Wait {
        let ranks = ranks_of(&it.needs);
        let first = |&rank: &usize| it.needs.iter().find(|it| it.rank == rank);
        let mut instead: Vec<String> =
            ranks.iter().filter_map(first).filter_map(|need| self.instead(it, *need)).collect();
        if instead.len() > MAX_INSTEAD {
            instead.truncate(MAX_INSTEAD);
            instead.push("…".to_owned());
        }
        let plan = &self.graph.plans[it.at.rank];
        let inst = &plan.code[it.at.inst];
        Wait {
            at: it.at,
            line: plan.origins[inst.origin as usize].line,
            iteration: plan.iteration(inst),
            place: words::place(&self.graph, it.actor, it.at),
            what: it.what.clone(),
            instead,
            settled: false,
        }
    }

    /// What a rank does that a head waits for; `None` for its own rank, whose waits are reported anyway.
    fn instead(&self, it: &Blocked, need: Need) -> Option<String> {
        let rank = need.rank;
        if rank == it.at.rank {
            return None;
        }
        let last = || {
            let inst = self.graph.plans.get(rank).and_then(|it| it.code.len().checked_sub(1));
            Need { rank, inst, part: None }
        };
        let there = self.busy(if need.inst.is_some() { need } else { last() });
        match (need.inst, there) {
            (Some(_), there) => there.map(|there| format!("rank {rank} is {there}")),
            (None, _) if self.finished(rank) => Some(format!("rank {rank} has finished")),
            (None, Some(there)) => Some(format!("rank {rank} never does, it is {there}")),
            (None, None) => Some(format!("rank {rank} never does")),
        }
    }

    /// `at line 3, waiting for rank 2`: the head that holds up an instruction, past those that wait for others of the
    /// same rank.
    fn busy(&self, mut need: Need) -> Option<String> {
        let mut there = &self.heads[self.holder(need)?];
        for _ in 0..self.heads.len() {
            match there.needs.first() {
                Some(next) if next.rank == there.at.rank && next.inst.is_some() => need = *next,
                Some(_) | None => break,
            }
            match self.holder(need) {
                Some(it) => there = &self.heads[it],
                None => break,
            }
        }
        let whom = ranks_of(&there.needs);
        let whom = if whom == [there.at.rank] { "itself".to_owned() } else { names(&whom) };
        Some(format!("at {}, waiting for {whom}", words::describe(self.graph.plans, there.at)))
    }

    /// Whether a rank has nothing left to do.
    fn finished(&self, rank: usize) -> bool {
        self.heads.iter().all(|it| it.at.rank != rank)
    }
}
