//! What every rank was doing when the job was lost: one text that names the cause first.
//!
//! A rank waits on a host, on a stream, or on a communicator's queue, for instructions of its own or of other ranks. From
//! the first rank that waits, `Notes` follows these waits to a rank that is itself held up by nobody, or round a circle.
//! Where nobody waits so, hosts may be waiting for each other at communications: NCCL connects ranks in their first call.

use std::collections::HashSet;

use super::{
    LaunchError,
    progress::{Progress, Run},
};
use crate::exit::Exit;
use crate::plan::{Communicator, Direction, Handle, InstKind, Plan, StreamNo, Transfer};

/// The report: the cause, then a line for what each rank was doing. `records` by rank, `None` where nothing is known.
pub fn report(fault: &LaunchError, records: &[Option<Vec<u8>>], plans: &[Plan]) -> String {
    let progress: Vec<Option<Progress>> =
        records.iter().map(|it| it.as_deref().and_then(Progress::decode)).collect();
    let mut notes = Notes { plans, progress: &progress, hosts_meet: false };
    let stuck = matches!(fault, LaunchError::Late { .. } | LaunchError::Stalled { .. });
    let asked =
        matches!(Exit::from(fault.exit()), Exit::Hang | Exit::HungUp | Exit::Interrupted | Exit::Terminated)
            && matches!(fault, LaunchError::Aborted { .. });
    let mut cause = None;
    if stuck || asked {
        cause = notes.cause();
        notes.hosts_meet = cause.is_none();
        cause = cause.or_else(|| notes.cause());
    }
    let mut text = match cause {
        // Whoever is asked may be in the middle of a run where nothing is wrong.
        Some(cause) if asked => format!("{fault}\n{cause}"),
        Some(cause) => format!("{cause}\n{fault}"),
        None => fault.to_string(),
    };
    let lost = match fault {
        LaunchError::Gone { rank } | LaunchError::Silent { rank, .. } => Some(*rank),
        _ => None,
    };
    let mut told: Vec<(Vec<usize>, String)> = Vec::new();
    for rank in 0..records.len() {
        let line = match lost == Some(rank) {
            true if notes.run(rank).is_some() => format!("was last {}", notes.doing(rank)),
            _ => notes.doing(rank),
        };
        match told.iter_mut().find(|(_, other)| *other == line) {
            Some((ranks, _)) => ranks.push(rank),
            None => told.push((vec![rank], line)),
        }
    }
    told.iter().for_each(|(ranks, line)| text += &format!("\n{}: {line}", names(ranks)));
    text
}

/// `rank 1`, `ranks 1 2 3`.
fn names(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, numbers.join(" "))
}

/// Something that does one thing after another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Actor {
    Host(usize),
    Stream(usize, StreamNo),
    Queue(usize, usize),
}

impl Actor {
    fn rank(self) -> usize {
        match self {
            Self::Host(rank) | Self::Stream(rank, _) | Self::Queue(rank, _) => rank,
        }
    }
}

/// An instruction that has to come first: of which rank, and which; `None`: it has none.
type Need = (usize, Option<usize>);

struct Notes<'a> {
    plans: &'a [Plan],
    progress: &'a [Option<Progress>],
    /// Whether a host that issues a communication is taken to wait for the other members' hosts.
    hosts_meet: bool,
}

impl Notes<'_> {
    fn run(&self, rank: usize) -> Option<(&Plan, &Run)> {
        let run = self.progress.get(rank)?.as_ref()?.run.as_ref()?;
        self.plans.get(rank).map(|plan| (plan, run))
    }

    /// The first instruction of an actor that is not complete, as far as that is known.
    fn head(&self, actor: Actor) -> Option<usize> {
        let (plan, run) = self.run(actor.rank())?;
        let issued = plan.code.len().min(run.issued as usize);
        let first = |from: &[u32], at: usize| from.get(at).map(|it| issued.min(*it as usize));
        match actor {
            Actor::Host(_) => (issued < plan.code.len()).then_some(issued),
            Actor::Stream(_, stream) => (first(&run.streams, stream as usize)?..issued)
                .find(|&at| plan.code[at].stream == stream && !on_host(&plan.code[at].kind)),
            Actor::Queue(rank, queue) => (first(&run.queues, queue)?..issued)
                .find(|&at| self.queue(rank, at) == Some(queue) && self.posted(rank, at)),
        }
    }

    /// The communicator of a communication.
    fn queue(&self, rank: usize, at: usize) -> Option<usize> {
        let posted = self.plans.get(rank)?.code.get(at)?.kind.communication()?;
        Some(posted.communicator() as usize)
    }

    /// Whether a rank has issued an instruction, and its stream has passed it.
    fn posted(&self, rank: usize, at: usize) -> bool {
        self.run(rank).is_some_and(|(plan, run)| {
            let stream = plan.code.get(at).map_or(0, |it| it.stream as usize);
            at < run.issued as usize && run.streams.get(stream).is_some_and(|passed| at < *passed as usize)
        })
    }

    /// What holds up an instruction that is not complete.
    fn holder(&self, (rank, at): Need) -> Option<Actor> {
        let at = at?;
        let (plan, run) = self.run(rank)?;
        if at >= run.issued as usize {
            return Some(Actor::Host(rank));
        }
        match self.posted(rank, at) {
            false => Some(Actor::Stream(rank, plan.code.get(at)?.stream)),
            true => self.queue(rank, at).map(|queue| Actor::Queue(rank, queue)),
        }
    }

    /// What the head of an actor waits for.
    fn needs(&self, actor: Actor) -> Vec<Need> {
        let rank = actor.rank();
        let (Some(at), Some((plan, run))) = (self.head(actor), self.run(rank)) else { return Vec::new() };
        let find = |rank: usize, wanted: &dyn Fn(&InstKind) -> bool| {
            let code = self.plans.get(rank).map_or(&[][..], |it| &it.code);
            (rank, code.iter().position(|it| wanted(&it.kind)))
        };
        let late = |it: &Need| it.1.is_none_or(|at| !self.posted(it.0, at));
        // A host that has come to the instruction, in this run or by a later one, is there.
        let absent = |it: &Need| match (it.1, self.run(it.0)) {
            (Some(at), Some((_, other))) => (other.round, other.issued as usize) < (run.round, at),
            _ => true,
        };
        let on_queue = matches!(actor, Actor::Queue(..));
        let on_cpu = matches!(actor, Actor::Host(_));
        let meets = on_cpu && self.hosts_meet && self.queue(rank, at).is_some();
        // A host goes on where a stream waits.
        if on_cpu && !on_host(&plan.code[at].kind) && !meets {
            return Vec::new();
        }
        let is_away = |it: &Need| if on_queue { late(it) } else { absent(it) };
        match &plan.code[at].kind {
            InstKind::Join { event } => {
                vec![find(rank, &|it| matches!(it, InstKind::Record { event: other } if other == event))]
            }
            InstKind::Wait { work } => {
                vec![find(rank, &|it| it.communication().is_some_and(|it| it.work() == *work))]
            }
            InstKind::Await { slot } => {
                vec![find(slot.from, &|it| matches!(it, InstKind::Signal { slot: other } if other == slot))]
            }
            InstKind::Exchange { handles } => {
                let mirror = |handle: &Handle| {
                    let same = |other: &Handle| {
                        other.exchange(handle.peer) == handle.exchange(rank)
                            && other.direction == handle.direction.mirror()
                    };
                    let shares = |it: &InstKind| matches!(it, InstKind::Exchange { handles } if handles.iter().any(same));
                    find(handle.peer, &shares)
                };
                handles.iter().map(mirror).filter(absent).collect()
            }
            InstKind::Barrier => {
                let ordinal = barriers(plan).position(|it| it == at).unwrap_or(0);
                let there = |rank: usize| (rank, barriers(&self.plans[rank]).nth(ordinal));
                (0..self.plans.len()).map(there).filter(absent).collect()
            }
            InstKind::Collective(it) if on_queue || meets => {
                let communicator = &plan.communicators[it.communicator as usize];
                let ordinal = self.meetings(rank, communicator).iter().position(|it| *it == at).unwrap_or(0);
                let there = |&rank: &usize| (rank, self.meetings(rank, communicator).get(ordinal).copied());
                communicator.team.iter().map(there).filter(is_away).collect()
            }
            InstKind::Transfer(it) if on_queue || meets => {
                self.partners(rank, at, it).into_iter().filter(is_away).collect()
            }
            // Posting waits for nobody, and these run by themselves.
            InstKind::Collective(_)
            | InstKind::Transfer(_)
            | InstKind::Alloc { .. }
            | InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Iota { .. }
            | InstKind::Gemm(_)
            | InstKind::Map { .. }
            | InstKind::Reduce(_)
            | InstKind::Combine { .. }
            | InstKind::Signal { .. }
            | InstKind::Record { .. }
            | InstKind::Reshard(_)
            | InstKind::Finish => Vec::new(),
        }
    }

    /// A rank's collectives on a communicator.
    fn meetings(&self, rank: usize, communicator: &Communicator) -> Vec<usize> {
        let Some(plan) = self.plans.get(rank) else { return Vec::new() };
        let same = |at: &usize| {
            matches!(&plan.code[*at].kind, InstKind::Collective(it)
                if plan.communicators[it.communicator as usize] == *communicator)
        };
        (0..plan.code.len()).filter(same).collect()
    }

    /// The transfers of peers that the sides of a transfer match.
    fn partners(&self, rank: usize, at: usize, transfer: &Transfer) -> Vec<Need> {
        let plan = &self.plans[rank];
        let communicator = &plan.communicators[transfer.communicator as usize];
        // All sides of one rank to another one, in order of posting.
        let sides = |from: usize, to: usize, direction: Direction| {
            let plan = self.plans.get(from);
            let code = plan.map_or(&[][..], |it| &it.code).iter().enumerate();
            code.flat_map(move |(at, inst)| {
                let on = |it: &Transfer| plan.map(|p| &p.communicators[it.communicator as usize]);
                let sides = if let InstKind::Transfer(it) = &inst.kind
                    && on(it) == Some(communicator)
                {
                    &it.sides[..]
                } else {
                    &[]
                };
                sides.iter().filter(move |it| it.peer == to && it.direction == direction).map(move |_| at)
            })
        };
        let mut needs = Vec::new();
        for direction in [Direction::Send, Direction::Recv] {
            let mut peers: Vec<usize> =
                transfer.sides.iter().filter(|it| it.direction == direction).map(|it| it.peer).collect();
            peers.sort_unstable();
            peers.dedup();
            for peer in peers {
                let mine = sides(rank, peer, direction).enumerate().filter(|(_, it)| *it == at);
                needs.extend(mine.map(|(which, _)| (peer, sides(peer, rank, direction.mirror()).nth(which))));
            }
        }
        needs
    }

    fn actors(&self) -> impl Iterator<Item = Actor> {
        self.plans.iter().enumerate().flat_map(|(rank, plan)| {
            let streams = (0..plan.streams.len()).map(move |it| Actor::Stream(rank, it as StreamNo));
            let queues = (0..plan.communicators.len()).map(move |it| Actor::Queue(rank, it));
            std::iter::once(Actor::Host(rank)).chain(streams).chain(queues)
        })
    }

    /// The last step to another rank on the way from a wait to what holds it up.
    fn cause(&self) -> Option<String> {
        let waits = |it: &Actor| self.needs(*it).iter().any(|(rank, _)| *rank != it.rank());
        let mut actor = self.actors().find(waits)?;
        let mut seen = HashSet::new();
        let mut last = None;
        while seen.insert(actor) {
            let needs = self.needs(actor);
            let Some(need) = needs.first().copied() else { break };
            if need.0 != actor.rank() {
                last = Some((actor, need));
            }
            match self.holder(need) {
                Some(next) => actor = next,
                None => break,
            }
        }
        let (waiting, (culprit, missing)) = last?;
        let at = self.head(waiting)?;
        let mut others: Vec<usize> = self
            .actors()
            .filter(|it| self.needs(*it).contains(&(culprit, missing)))
            .map(Actor::rank)
            .collect();
        others.dedup();
        let verb = if others.len() == 1 { "waits" } else { "wait" };
        let (others, now) = (names(&others), self.doing(culprit));
        Some(match missing {
            None => format!(
                "rank {culprit} has no part in {}, where {others} {verb} for it; it is {now}",
                self.place(waiting.rank(), at)
            ),
            Some(missing) => {
                let issued = self.run(culprit).is_some_and(|(_, run)| missing < run.issued as usize);
                let place = self.place(culprit, missing);
                match issued {
                    true => format!("rank {culprit} has not come to {place}: {now}; {others} {verb} in it"),
                    false => {
                        format!("rank {culprit} never issued {place}: it is {now}; {others} {verb} in it")
                    }
                }
            }
        })
    }

    /// `line 14, i=3 (Allgather)`.
    fn place(&self, rank: usize, at: usize) -> String {
        let Some((plan, inst)) = self.plans.get(rank).and_then(|it| Some((it, it.code.get(at)?))) else {
            return "the end".to_owned();
        };
        let what = match &inst.kind {
            InstKind::Collective(it) => Some(it.kind.word()),
            InstKind::Transfer(_) => Some("send or receive"),
            InstKind::Exchange { .. } => Some("ShareMemHandles"),
            InstKind::Barrier => Some("barrier"),
            InstKind::Signal { .. } => Some("signal"),
            InstKind::Alloc { .. }
            | InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Iota { .. }
            | InstKind::Gemm(_)
            | InstKind::Map { .. }
            | InstKind::Reduce(_)
            | InstKind::Combine { .. }
            | InstKind::Wait { .. }
            | InstKind::Await { .. }
            | InstKind::Record { .. }
            | InstKind::Join { .. }
            | InstKind::Reshard(_)
            | InstKind::Finish => None,
        };
        plan.place(inst) + &what.map_or(String::new(), |it| format!(" ({it})"))
    }

    /// `at line 9; stream 1 waits at line 8 for rank 2`.
    fn doing(&self, rank: usize) -> String {
        let Some((plan, run)) = self.run(rank) else {
            let phase = self.progress.get(rank).and_then(Option::as_ref).map(|it| it.phase.as_str());
            return match phase {
                Some(phase) if !phase.is_empty() => phase.to_owned(),
                _ => "nothing is known of it".to_owned(),
            };
        };
        let mut text = match self.head(Actor::Host(rank)) {
            Some(at) => format!("at {}", self.place(rank, at)),
            None => "at the end".to_owned(),
        };
        if run.round > 0 {
            text += &format!(" of run {}", run.round);
        }
        if run.streams.is_empty() {
            text += &format!("; the GPU has completed {} runs", run.complete);
        }
        let whom = |needs: &[Need]| {
            let mut ranks: Vec<usize> = needs.iter().map(|it| it.0).collect();
            ranks.sort_unstable();
            ranks.dedup();
            names(&ranks)
        };
        for actor in self.actors().filter(|it| it.rank() == rank) {
            let (Some(at), needs) = (self.head(actor), self.needs(actor)) else { continue };
            let place = self.place(rank, at);
            text += &match (actor, needs.as_slice()) {
                (Actor::Host(_), []) => continue,
                (Actor::Host(_), needs) => format!(", waiting for {}", whom(needs)),
                (Actor::Stream(_, stream), []) => format!("; {} runs {place}", plan.streams[stream as usize]),
                (Actor::Stream(_, stream), [(other, Some(first))]) if *other == rank => {
                    let name = &plan.streams[stream as usize];
                    format!("; {name} waits at {place} for {}", self.place(rank, *first))
                }
                (Actor::Stream(_, stream), needs) => {
                    format!("; {} waits at {place} for {}", plan.streams[stream as usize], whom(needs))
                }
                (Actor::Queue(..), []) => format!("; {place} is under way"),
                (Actor::Queue(..), needs) => format!("; {place} waits for {}", whom(needs)),
            };
        }
        text
    }
}

fn on_host(kind: &InstKind) -> bool {
    matches!(kind, InstKind::Exchange { .. } | InstKind::Barrier)
}

fn barriers(plan: &Plan) -> impl Iterator<Item = usize> {
    plan.code.iter().enumerate().filter(|(_, it)| it.kind == InstKind::Barrier).map(|(at, _)| at)
}
