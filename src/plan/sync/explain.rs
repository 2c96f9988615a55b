//! Explains a state in which all ranks are blocked: what every blocked actor waits for, and the cause.
//!
//! Following the waits from the first blocked head leads either to a cycle, or to a wait that no rank will
//! ever satisfy.

use std::{cell::Cell, collections::BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Actor, Alignment, Blocker, CommKey, CommRole, InstRef, WaitGraph, WaitOrder, World, WorldState,
    blocked_wait::{BlockedWait, short_ranks},
    deadlock::{Cause, Deadlock, HeadToHead, MissingPost},
    report_text::{self, Names},
    skip_edit,
    skipped::{self, SkippedPost},
    wait_graph::ranks_of,
};
use crate::{Communication, Direction, Plan, SignalId, SignalKind, SyncEffect};

/// The maximum number of awaited ranks whose current work is reported for one wait.
const MAX_CURRENT_WORK: usize = 3;

impl World {
    /// Returns the deadlock of the ranks, if they deadlock.
    pub fn deadlock(&self) -> Option<Deadlock> {
        self.deadlocked_state().map(|state| explain(self, state))
    }
}

/// Explains a state in which no actor can continue.
pub fn explain(world: &World, state: &WorldState) -> Deadlock {
    explain_hosts(world, state, WaitOrder::Blocking, false)
}

/// As `explain`, in any order but the guaranteed one, and with the waits of all blocked hosts if `all`.
pub(super) fn explain_hosts(world: &World, state: &WorldState, order: WaitOrder, all: bool) -> Deadlock {
    let explainer = Explainer::new(WaitGraph::new(world, state, order));
    let mut found = explainer.deadlock();
    if !all {
        return found;
    }
    let hosts = explainer.heads.iter().filter(|it| matches!(it.actor, Actor::Host(_)));
    let new = hosts.filter(|it| found.waits.iter().all(|known| known.inst_ref != it.at));
    let new: Vec<BlockedWait> = new.map(|it| explainer.wait(it)).collect();
    found.waits.extend(new);
    found
}

/// A blocked head.
struct Blocked {
    /// The actor.
    actor: Actor,
    /// The instruction.
    at: InstRef,
    /// The instructions that must execute first.
    blockers: Vec<Blocker>,
}

/// The analysis of a blocked state.
struct Explainer<'a> {
    graph: WaitGraph<'a>,
    heads: Vec<Blocked>,
    /// By actor: the index of its head in `heads`.
    head_of_actor: FxHashMap<Actor, usize>,
    /// By head and blocker: the communication that a rank skips, if it is known.
    skipped: Vec<Vec<Option<SkippedPost>>>,
}

/// Heads that block each other.
struct Chain<'a> {
    /// The heads of a cycle, or the one head with a wait that is never satisfied.
    links: Vec<&'a Blocked>,
    /// The instruction that will never execute.
    never: Option<Blocker>,
}

impl Chain<'_> {
    /// Returns whether a head must be reported although other heads of its rank explain it: the chain does
    /// not leave the rank.
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
            let (Some(inst), blockers) = (graph.head(actor), graph.blockers(actor)) else { continue };
            let at = InstRef { rank: actor.rank(), inst };
            of.insert(actor, heads.len());
            heads.push(Blocked { actor, at, blockers });
        }
        let mut alignment = Alignment::new(graph.plans, graph.matched);
        let skipped = heads
            .iter()
            .map(|it| it.blockers.iter().map(|blocker| alignment.skipped(it.at, blocker)).collect())
            .collect();
        Self { graph, heads, head_of_actor: of, skipped }
    }

    fn deadlock(&self) -> Deadlock {
        let chain = self.chain();
        let root = |it: &Blocked| {
            it.blockers.iter().any(|blocker| blocker.inst.is_none() || blocker.rank != it.at.rank)
        };
        let explained: FxHashSet<usize> =
            self.heads.iter().filter(|it| root(it)).map(|it| it.at.rank).collect();
        let reported: Vec<usize> = (0..self.heads.len())
            .filter(|&it| {
                let it = &self.heads[it];
                root(it) || !explained.contains(&it.at.rank) || chain.blames(it.actor)
            })
            .collect();
        let skips = self.missing_posts(&reported);
        let cause = match (chain.never, chain.links.first()) {
            (Some(blocker), Some(head)) => {
                let blamed = |it: &usize| chain.blames(self.heads[*it].actor);
                let wait = reported.iter().position(blamed).unwrap_or_default();
                let skip = skips.iter().find(|it| it.waits.contains(&wait));
                let what = match skip {
                    Some(it) => it.to_string(),
                    None => report_text::never_happens_text(&self.graph, head.at, &blocker),
                };
                let counts =
                    if skip.is_some() { None } else { report_text::counts(&self.graph, head.at, &blocker) };
                let help =
                    if skip.is_some() { None } else { report_text::help(&self.graph, head.at, &blocker) };
                Cause::NeverSatisfied { wait, what, counts, help }
            }
            (None, _) | (_, None) => self.cycle(&chain),
        };
        let settled = self.heads_explained_by_skips();
        let waits = reported
            .iter()
            .map(|&it| BlockedWait { follows_from_skips: settled[it], ..self.wait(&self.heads[it]) });
        let needed_ranks = chain.never.and_then(|it| self.needed_ranks(&it));
        Deadlock {
            cause,
            waits: waits.collect(),
            skips,
            world: self.graph.plans.len(),
            needed_ranks,
            note: None,
            hosts: Vec::new(),
            plans: None,
        }
    }

    /// Returns the smallest world of the programs, if the rank that never reaches a ShareMemHandles or never creates a communicator is not in
    /// it, and the ranks that are not in it do nothing.
    fn needed_ranks(&self, blocker: &Blocker) -> Option<usize> {
        let plans = self.graph.plans;
        let needed = plans.iter().map(|it| it.smallest_world).max().filter(|it| *it > 0)?;
        let is_idle = |it: &Plan| it.buffers.is_empty() && it.communicators.is_empty();
        let is_of_all = matches!(blocker.part, None | Some((CommKey::Barrier(_), _)));
        (is_of_all && blocker.rank >= needed && plans.get(needed..)?.iter().all(is_idle)).then_some(needed)
    }

    /// Returns the head that blocks an instruction.
    fn blocking_head(&self, blocker: Blocker) -> Option<usize> {
        self.graph.blocking_actor(blocker).and_then(|it| self.head_of_actor.get(&it).copied())
    }

    /// Follows the waits from the first head to the cause.
    fn chain(&self) -> Chain<'_> {
        let mut links: Vec<&Blocked> = self.heads.iter().take(1).collect();
        let mut position = FxHashMap::default();
        while let Some(it) = links.last().copied() {
            position.insert(it.actor, links.len() - 1);
            if let Some(blocker) = it.blockers.iter().find(|it| it.inst.is_none()) {
                return Chain { links: vec![it], never: Some(*blocker) };
            }
            let Some(next) = it.blockers.iter().find_map(|&it| self.blocking_head(it)) else { break };
            let next = &self.heads[next];
            if let Some(&start) = position.get(&next.actor) {
                return Chain { links: links.split_off(start), never: None };
            }
            links.push(next);
        }
        Chain { links, never: None }
    }

    /// Returns the cause for a chain that is a cycle.
    fn cycle(&self, chain: &Chain<'_>) -> Cause {
        let mut ranks: Vec<usize> = chain.links.iter().map(|it| it.at.rank).collect();
        ranks.dedup();
        if ranks.len() > 1 && ranks.first() == ranks.last() {
            ranks.pop();
        }
        // Only heads that wait for another rank are reported.
        let next = |at: usize| chain.links[(at + 1) % chain.links.len()];
        let steps = (0..chain.links.len()).filter(|it| next(*it).at.rank != chain.links[*it].at.rank);
        let steps: Vec<&Blocked> = steps.map(|it| chain.links[it]).collect();
        let kind = |it: &&Blocked| match it.blockers.first()?.part? {
            (CommKey::Message(..), CommRole::Side(Direction::Recv)) => Some(HeadToHead::Sends),
            (CommKey::Message(..), CommRole::Side(Direction::Send)) => Some(HeadToHead::Receives),
            (CommKey::Signal(SignalId { kind: SignalKind::PutReady, .. }), _) => Some(HeadToHead::Puts),
            (CommKey::Signal(SignalId { kind: SignalKind::Ready, .. }), _) => Some(HeadToHead::Gets),
            _ => None,
        };
        let first = steps.first().and_then(kind);
        // The sends and receives of one group have no order that could be changed.
        let is_alone = |it: &&Blocked| match self.graph.effect(it.at) {
            Some(SyncEffect::Post(Communication::P2pGroup(group))) => group.ops.len() == 1,
            _ => true,
        };
        let facing = first.filter(|_| steps.iter().all(|it| kind(it) == first && is_alone(it)));
        let steps =
            steps.iter().map(|it| (it.at.rank, report_text::describe(self.graph.plans, it.at))).collect();
        Cause::Cycle { ranks, steps, head_to_head: facing }
    }

    /// Returns, by head, whether it waits only for skipped communications, directly or through other heads.
    fn heads_explained_by_skips(&self) -> Vec<bool> {
        // Heads that remain unmarked have another blocker, or are part of a cycle.
        let mut settled = vec![false; self.heads.len()];
        let mut changed = true;
        while changed {
            changed = false;
            for (at, it) in self.heads.iter().enumerate().filter(|it| !it.1.blockers.is_empty()) {
                let holds = |(blocker, skipped): (&Blocker, &Option<SkippedPost>)| match blocker.inst {
                    None => skipped.is_some(),
                    Some(_) => self.blocking_head(*blocker).is_some_and(|it| settled[it]),
                };
                if !settled[at] && it.blockers.iter().zip(&self.skipped[at]).all(holds) {
                    settled[at] = true;
                    changed = true;
                }
            }
        }
        settled
    }

    /// Returns the skipped communications, with the reported heads that wait for them. Each combination of
    /// description and reason is listed once.
    fn missing_posts(&self, reported: &[usize]) -> Vec<MissingPost> {
        let mut found: Vec<MissingPost> = Vec::new();
        // For each, a skipped post, a rank that waits for it, and all ranks that wait. What differs only by these ranks is one.
        let mut bounds: Vec<(&SkippedPost, &Plan, BTreeSet<usize>, String)> = Vec::new();
        let waiting = |head: usize| &self.graph.plans[self.heads[head].at.rank];
        for (at, head) in reported.iter().enumerate() {
            for skipped in self.skipped[*head].iter().flatten() {
                let rank = skipped.rank;
                let plan = &self.graph.plans[rank];
                let it = skipped::explain(plan, skipped);
                let waiting = waiting(*head);
                let differs = skip_edit::bounds_text(plan, skipped, waiting, "");
                let same = |(known, bounds): &(&mut MissingPost, &mut (_, _, _, String))| {
                    known.what == it.what && known.reason == it.reason && bounds.3 == differs
                };
                match found.iter_mut().zip(&mut bounds).find(same) {
                    Some((known, bounds)) => {
                        known.ranks.insert(rank);
                        known.waits.insert(at);
                        bounds.2.insert(waiting.rank);
                    }
                    None => {
                        bounds.push((skipped, waiting, [waiting.rank].into(), differs));
                        found.push(MissingPost {
                            ranks: [rank].into(),
                            stmt: plan.skips[skipped.skip].stmt,
                            verb: it.verb,
                            what: it.what,
                            reason: it.reason,
                            waits: [at].into(),
                            help: skip_edit::help(plan, skipped, waiting),
                        });
                    }
                }
            }
        }
        for (it, (skipped, waiting, ranks, _)) in found.iter_mut().zip(bounds) {
            let plan = &self.graph.plans[skipped.rank];
            it.reason[1] += &skip_edit::bounds_text(plan, skipped, waiting, &short_ranks(&ranks));
        }
        found
    }

    /// Returns the report of a blocked head.
    fn wait(&self, it: &Blocked) -> BlockedWait {
        let plan = &self.graph.plans[it.at.rank];
        let inst = &plan.code[it.at.inst];
        let iteration = plan.enclosing_loops(plan.origins[inst.origin as usize].iteration);
        let words = Names::Words { own: it.at.rank, iteration: &iteration, last: Cell::default() };
        BlockedWait {
            inst_ref: it.at,
            line: plan.origins[inst.origin as usize].line,
            place: report_text::describe(self.graph.plans, it.at),
            site: report_text::site(&self.graph, it.actor, it.at),
            wait: self.wait_text(&Names::Numbers, it),
            pattern: [words.inst(self.graph.plans, it.at), self.wait_text(&words, it)],
            iteration,
            follows_from_skips: false,
        }
    }

    /// Returns what a head waits for, and what the awaited ranks are doing instead.
    fn wait_text(&self, names: &Names<'_>, it: &Blocked) -> String {
        let awaited = report_text::awaited_text(names, &self.graph, (it.actor, it.at), &it.blockers);
        let mut parts = vec![format!("waits {awaited}")];
        let ranks = ranks_of(&it.blockers);
        let first = |&rank: &usize| it.blockers.iter().find(|it| it.rank == rank);
        let work = |blocker: &Blocker| self.current_work(names, it, *blocker);
        parts.extend(ranks.iter().filter_map(first).filter_map(work));
        if parts.len() > 1 + MAX_CURRENT_WORK {
            parts.truncate(1 + MAX_CURRENT_WORK);
            parts.push("…".to_owned());
        }
        parts.join("; ")
    }

    /// Returns what the awaited rank is doing; `None` if it is the head's own rank, whose waits are reported
    /// separately.
    fn current_work(&self, names: &Names<'_>, it: &Blocked, blocker: Blocker) -> Option<String> {
        let rank = blocker.rank;
        if rank == it.at.rank {
            return None;
        }
        let last = || {
            let inst = self.graph.plans.get(rank).and_then(|it| it.code.len().checked_sub(1));
            Blocker { rank, inst, part: None }
        };
        let there = self.blocked_at(if blocker.inst.is_some() { blocker } else { last() });
        if blocker.inst.is_some() && there.is_none() {
            return None;
        }
        let who = names.rank(rank);
        if blocker.inst.is_none() && self.is_finished(rank) {
            return Some(format!("{who} has finished"));
        }
        let there = there.map(|it| self.blocked_at_text(names, it));
        Some(match (blocker.inst, there) {
            (Some(_), Some(there)) => format!("{who} is {there}"),
            (None, Some(there)) => format!("{who} never does: it is {there}"),
            (_, None) => format!("{who} never does"),
        })
    }

    /// Returns the head that blocks an instruction. Skips heads that wait for others of the same rank.
    fn blocked_at(&self, mut blocker: Blocker) -> Option<&Blocked> {
        let mut there = &self.heads[self.blocking_head(blocker)?];
        for _ in 0..self.heads.len() {
            match there.blockers.first() {
                Some(next) if next.rank == there.at.rank && next.inst.is_some() => blocker = *next,
                Some(_) | None => break,
            }
            match self.blocking_head(blocker) {
                Some(it) => there = &self.heads[it],
                None => break,
            }
        }
        Some(there)
    }

    /// Returns the location of a head, and what it waits for: `at line 3, waiting for rank 2`.
    fn blocked_at_text(&self, names: &Names<'_>, it: &Blocked) -> String {
        let whom = ranks_of(&it.blockers);
        let whom = if whom == [it.at.rank] { "itself".to_owned() } else { names.ranks(&whom) };
        format!("at {}, waiting for {whom}", names.inst(self.graph.plans, it.at))
    }

    /// Returns whether a rank has executed all its instructions.
    fn is_finished(&self, rank: usize) -> bool {
        self.heads.iter().all(|it| it.at.rank != rank)
    }
}
