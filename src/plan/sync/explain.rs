//! Why nobody goes on in a state: what every blocked actor waits for, and the cause.
//!
//! The chain from the first blocked head to what holds it up ends in a cycle, or in something that no rank will ever do.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Actor, Alignment, InstRef, Key, Matched, Need, State, WaitGraph,
    deadlock::{Cause, Deadlock, NeverPosted, Wait, names},
    skipped::{self, Skipped},
};
use crate::plan::{Backend, Communication, Direction, Effect, Meaning, Plan, Slot};

/// Most ranks of one wait whose doings are reported.
const MAX_INSTEAD: usize = 3;

/// Most members of a team that a place names.
const MAX_TEAM: usize = 16;

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
    /// By head and need: the communication that a rank goes past, where one is known.
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
            heads.push(Blocked { actor, at, what: graph.what(actor, at, &needs), needs });
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
        let told: Vec<usize> = (0..self.heads.len())
            .filter(|&it| {
                let it = &self.heads[it];
                root(it) || !explained.contains(&it.at.rank) || chain.blames(it.actor)
            })
            .collect();
        let cause = match chain.never {
            Some(rank) => {
                let blamed = |it: &usize| chain.blames(self.heads[*it].actor);
                let wait = told.iter().position(blamed).unwrap_or_default();
                Cause::Never { rank, finished: self.finished(rank), wait }
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
        let skips = self.never_posted(&told);
        let settled = self.settled();
        let waits = told.iter().map(|&it| Wait { settled: settled[it], ..self.wait(&self.heads[it]) });
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
                return Chain { links: vec![it], never: Some(need.rank) };
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

    /// By head: whether it waits only for what ranks go past, directly or through others.
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

    /// What ranks go past, each lack and its reason once.
    fn never_posted(&self, told: &[usize]) -> Vec<NeverPosted> {
        let mut found: Vec<NeverPosted> = Vec::new();
        for (at, it) in told.iter().enumerate() {
            for skipped in self.skipped[*it].iter().flatten() {
                let rank = skipped.rank;
                let (what, why) = skipped::explain(&self.graph.plans[rank], skipped);
                let same = |it: &&mut NeverPosted| it.rank == rank && it.what == what && it.why == why;
                match found.iter_mut().find(same) {
                    Some(known) => known.waits.push(at),
                    None => found.push(NeverPosted { rank, what, why, waits: vec![at] }),
                }
            }
        }
        found
    }

    /// What is reported of a blocked head.
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
        let plan = &self.graph.plans[it.at.rank];
        let inst = &plan.code[it.at.inst];
        Wait {
            at: it.at,
            line: plan.origins[inst.origin as usize].line,
            iteration: plan.iteration(inst),
            place: self.graph.place(it.actor, it.at),
            what: it.what.clone(),
            instead,
            ranks,
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
        let mut whom: Vec<usize> = there.needs.iter().map(|it| it.rank).collect();
        whom.sort_unstable();
        whom.dedup();
        let whom = if whom == [there.at.rank] { "itself".to_owned() } else { names(&whom) };
        Some(format!("at {}, waiting for {whom}", self.graph.doing(there.at)))
    }

    /// Whether a rank has nothing left to do.
    fn finished(&self, rank: usize) -> bool {
        self.heads.iter().all(|it| it.at.rank != rank)
    }
}

impl WaitGraph<'_> {
    /// What a head waits for, in words.
    fn what(&self, actor: Actor, at: InstRef, needs: &[Need]) -> String {
        match (actor, self.effect(at)) {
            (Actor::Queue(..), _) if !self.is_posted(at) => {
                format!("for {} to come to its posting", self.stream(at))
            }
            (_, Some(Effect::Post(Communication::Transfer(_)))) => {
                let side = |it: &Need| match it.part {
                    Some((Key::Message(_, from, to, _), super::Role::Side(missing))) => match missing {
                        Direction::Recv => format!("to send to rank {to}"),
                        Direction::Send => format!("to receive from rank {from}"),
                    },
                    _ => String::new(),
                };
                let mut words: Vec<String> = needs.iter().map(side).collect();
                words.dedup();
                words.join(" and ")
            }
            (_, Some(Effect::Post(Communication::Collective(_)) | Effect::Reshard(_))) => {
                let missing: Vec<usize> = needs.iter().map(|it| it.rank).collect();
                format!("in {} for {}", self.name(at), names(&missing))
            }
            (_, Some(Effect::Barrier)) => {
                let missing: Vec<usize> = needs.iter().map(|it| it.rank).collect();
                format!("at a barrier for {}", names(&missing))
            }
            (_, Some(Effect::Share(_))) => {
                let words: Vec<String> = needs.iter().map(|it| self.handle(at, it)).collect();
                format!("in ShareMemHandles {}", words.join(" and "))
            }
            (_, Some(Effect::Await(slot))) => says(slot),
            (_, Some(Effect::Join(_))) => self.there(needs, "", "for an event that is never recorded"),
            (_, Some(Effect::Wait(_))) => {
                self.there(needs, "the communication of ", "for a communication that is never posted")
            }
            (_, Some(Effect::Compute | Effect::Record(_) | Effect::Signal(_) | Effect::Finish) | None) => {
                String::new()
            }
        }
    }

    /// `for rank 1 to share P2PCommunication 3 as sender to rank 0`.
    fn handle(&self, at: InstRef, need: &Need) -> String {
        let (Some((Key::Handle(from, to, index), super::Role::Side(side))), Some(Effect::Share(handles))) =
            (need.part, self.effect(at))
        else {
            return String::new();
        };
        let (peer, role) = match side {
            Direction::Send => (from, format!("sender to rank {to}")),
            Direction::Recv => (to, format!("receiver from rank {from}")),
        };
        let same = handles.iter().find(|it| it.peer == peer && it.index == index && it.direction != side);
        let number = same.map_or(0, |it| it.number);
        format!("for rank {peer} to share P2PCommunication {number} as {role}")
    }

    /// `for line 2 on stream 0`, or `never` where there is no such instruction.
    fn there(&self, needs: &[Need], what: &str, never: &str) -> String {
        match needs.first().and_then(|it| Some(InstRef { rank: it.rank, inst: it.inst? })) {
            Some(at) => {
                let plan = &self.plans[at.rank];
                format!("for {what}{} on {}", plan.place(&plan.code[at.inst]), self.stream(at))
            }
            None => never.to_owned(),
        }
    }

    /// `line 19, streamIdx=1, on stream 1`, or `… on NCCL (0 1 2)` for the head of a queue.
    fn place(&self, actor: Actor, at: InstRef) -> String {
        let plan = &self.plans[at.rank];
        let place = plan.place(&plan.code[at.inst]);
        match actor {
            Actor::Host(_) | Actor::Stream(..) => format!("{place}, on {}", self.stream(at)),
            Actor::Queue(rank, communicator) => {
                let it = &self.plans[rank].communicators[communicator as usize];
                let mut team: Vec<String> = it.team.iter().map(ToString::to_string).collect();
                if team.len() > MAX_TEAM {
                    team.splice(MAX_TEAM / 2..team.len() - 1, ["…".to_owned()]);
                }
                let backend = match it.backend {
                    Backend::Nccl => "NCCL",
                    Backend::Ucc => "UCC",
                };
                format!("{place}, on {backend} ({})", team.join(" "))
            }
        }
    }

    /// `line 19, streamIdx=1 (Allgather)`.
    pub(super) fn doing(&self, at: InstRef) -> String {
        let plan = &self.plans[at.rank];
        let (place, name) = (plan.place(&plan.code[at.inst]), self.name(at));
        if name.is_empty() { place } else { format!("{place} ({name})") }
    }

    /// What an instruction is called, where that helps.
    fn name(&self, at: InstRef) -> String {
        match self.effect(at) {
            Some(Effect::Post(Communication::Collective(it))) => it.kind.name(),
            Some(Effect::Post(Communication::Transfer(_))) => "a send or receive".to_owned(),
            Some(Effect::Share(_)) => "ShareMemHandles".to_owned(),
            Some(Effect::Barrier) => "a barrier".to_owned(),
            Some(Effect::Reshard(_)) => "a resharding operator".to_owned(),
            Some(
                Effect::Compute
                | Effect::Record(_)
                | Effect::Join(_)
                | Effect::Wait(_)
                | Effect::Signal(_)
                | Effect::Await(_)
                | Effect::Finish,
            )
            | None => String::new(),
        }
    }

    fn stream(&self, at: InstRef) -> &str {
        let plan = &self.plans[at.rank];
        plan.streams.get(plan.code[at.inst].stream as usize).map_or("no stream", |it| it)
    }
}

/// `for rank 3 to say that it is ready (message 0)`.
fn says(slot: Slot) -> String {
    let says = match slot.meaning {
        Meaning::Ready | Meaning::PutReady | Meaning::TeamReady => "is ready",
        Meaning::Done | Meaning::PutDone | Meaning::TeamDone => "is done",
    };
    format!("for rank {} to say that it {says} (message {})", slot.from, slot.index)
}
