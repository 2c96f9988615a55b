//! The wait-for graph in a given state of all ranks. Its cycles are deadlocks.
//!
//! Each actor has one next instruction, its *head*. A head waits for the events that `waits` defines for an order that may
//! block. Each event happens at an instruction of this or another rank; if that instruction is not
//! complete, the head of an actor blocks it (`blocking_actor`).

use super::{
    Actor, CommGroup, CommKey, CommMatching, CommNo, CommRole, Event, InstRef, Position, WaitOrder, Waits,
    World, WorldState,
};
use crate::{Communication, CommunicatorNo, Direction, ExecutionSite, Plan, SignalId, StreamNo, SyncEffect};

/// An instruction that must execute before a head can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The rank that must execute it.
    pub rank: usize,
    /// The instruction; `None` if the rank has no such instruction.
    pub inst: Option<usize>,
    /// The communication and its role there, if it is a part of one.
    pub part: Option<(CommKey, CommRole)>,
}

/// Returns the ranks of the blockers, ascending and without duplicates.
pub(super) fn ranks_of(blockers: &[Blocker]) -> Vec<usize> {
    let mut ranks: Vec<usize> = blockers.iter().map(|it| it.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The wait-for graph of a state.
pub struct WaitGraph<'a> {
    /// The plans of all ranks with their communications.
    pub world: &'a World,
    /// The plans of all ranks.
    pub plans: &'a [Plan],
    /// Their matched communications.
    pub matched: &'a CommMatching,
    /// The positions of all ranks.
    pub state: &'a WorldState,
    /// Which waits block: any order but `Guaranteed`.
    pub order: WaitOrder,
}

impl<'a> WaitGraph<'a> {
    /// Combines a world with a state. `order` is not `Guaranteed`.
    pub fn new(world: &'a World, state: &'a WorldState, order: WaitOrder) -> Self {
        Self { world, plans: world.plans(), matched: world.matching(), state, order }
    }

    /// Returns all actors, by rank: its host, its streams, its queues.
    pub fn actors(&self) -> impl Iterator<Item = Actor> {
        self.plans.iter().enumerate().flat_map(move |(rank, plan)| {
            let streams = (0..plan.streams.len() as StreamNo).map(move |it| Actor::Stream(rank, it));
            let queues = (0..plan.communicators.len() as CommunicatorNo)
                .filter(move |it| self.matched.queue_of(rank, *it) == Some(*it))
                .map(move |it| Actor::Queue(rank, it));
            std::iter::once(Actor::Host(rank)).chain(streams).chain(queues)
        })
    }

    /// Returns the position of a rank.
    pub fn position(&self, rank: usize) -> Option<&Position> {
        self.state.get(rank)?.as_ref()
    }

    /// Returns the effect of an instruction on synchronization.
    pub fn effect(&self, at: InstRef) -> Option<SyncEffect<'_>> {
        Some(self.plans.get(at.rank)?.code.get(at.inst)?.kind.effect())
    }

    /// Returns the first instruction of an actor that is issued and not complete, as far as that is known;
    /// for a host, the instruction that it is issuing.
    pub fn head(&self, actor: Actor) -> Option<usize> {
        let rank = actor.rank();
        let (plan, position) = (self.plans.get(rank)?, self.position(rank)?);
        let issued = position.issued.min(plan.code.len());
        match actor {
            Actor::Host(_) => (issued < plan.code.len()).then_some(issued),
            Actor::Stream(_, stream) => (*position.streams.get(stream as usize)?..issued).find(|&at| {
                let inst = &plan.code[at];
                inst.stream == stream && !inst.kind.effect().runs_on_host()
            }),
            Actor::Queue(_, queue) => (*position.queues.get(queue as usize)?..issued).find(|&at| {
                let posted = plan.code[at].kind.communication();
                posted.is_some_and(|it| self.matched.queue_of(rank, it.communicator()) == Some(queue))
            }),
        }
    }

    /// Returns whether a rank has issued an instruction, and its stream has executed or posted it.
    pub fn is_posted(&self, at: InstRef) -> bool {
        let (Some(position), Some(plan)) = (self.position(at.rank), self.plans.get(at.rank)) else {
            return false;
        };
        let stream = plan.code.get(at.inst).map_or(0, |it| it.stream as usize);
        at.inst < position.issued && position.streams.get(stream).is_some_and(|passed| at.inst < *passed)
    }

    /// Returns whether an instruction is complete.
    fn is_complete(&self, at: InstRef) -> bool {
        self.effect(at).is_some_and(|it| match it.execution_site() {
            ExecutionSite::Host => self.position(at.rank).is_some_and(|it| at.inst < it.issued),
            ExecutionSite::Stream => self.is_posted(at),
            ExecutionSite::Queue(it) => {
                self.is_posted(at) && self.passed_queue(at, it, at.inst + 1).unwrap_or(true)
            }
        })
    }

    /// Returns whether the queue of a communication has reached `inst` or passed it; `None` if that is not
    /// known.
    fn passed_queue(&self, at: InstRef, it: Communication<'_>, inst: usize) -> Option<bool> {
        let queue = self.matched.queue_of(at.rank, it.communicator())?;
        self.position(at.rank)?.queues.get(queue as usize)?;
        Some(self.head(Actor::Queue(at.rank, queue)).is_none_or(|head| head >= inst))
    }

    /// Returns whether the host of a rank has reached an instruction in the current run of rank `from`, or in
    /// a later run.
    fn has_reached(&self, at: InstRef, from: usize) -> bool {
        let round = self.position(from).map_or(0, |it| it.round);
        self.position(at.rank).is_some_and(|it| (it.round, it.issued) >= (round, at.inst))
    }

    /// Returns whether a part of a communication for which `from` waits has arrived: nothing else of its rank
    /// must execute first.
    fn has_arrived(&self, at: InstRef, from: usize) -> bool {
        let Some((effect, position)) = self.effect(at).zip(self.position(at.rank)) else { return false };
        match effect.execution_site() {
            ExecutionSite::Host => self.has_reached(at, from),
            ExecutionSite::Queue(it) => {
                self.is_posted(at) && self.passed_queue(at, it, at.inst).unwrap_or(true)
            }
            // A resharding operator waits for the other members on its stream.
            ExecutionSite::Stream if matches!(effect, SyncEffect::Reshard(_)) => {
                let stream = Actor::Stream(at.rank, self.plans[at.rank].code[at.inst].stream);
                at.inst < position.issued && self.head(stream).is_none_or(|head| head >= at.inst)
            }
            ExecutionSite::Stream => self.is_posted(at),
        }
    }

    /// Returns the actor whose head blocks an incomplete instruction.
    pub fn blocking_actor(&self, blocker: Blocker) -> Option<Actor> {
        let at = InstRef { rank: blocker.rank, inst: blocker.inst? };
        let (position, plan) = (self.position(at.rank)?, self.plans.get(at.rank)?);
        let inst = plan.code.get(at.inst)?;
        if at.inst >= position.issued {
            return Some(Actor::Host(at.rank));
        }
        match inst.kind.communication() {
            _ if !self.is_posted(at) => Some(Actor::Stream(at.rank, inst.stream)),
            Some(it) if !self.is_complete(at) => {
                self.matched.queue_of(at.rank, it.communicator()).map(|it| Actor::Queue(at.rank, it))
            }
            Some(_) | None => None,
        }
    }

    /// Returns the instructions that the head of an actor waits for, in plan order. For a communication,
    /// these are the parts that have not arrived.
    pub fn blockers(&self, actor: Actor) -> Vec<Blocker> {
        let Some(inst) = self.head(actor) else { return Vec::new() };
        let at = InstRef { rank: actor.rank(), inst };
        let waits = Waits::of(self.world, self.order, actor, inst);
        let missing = |events: &[Event]| events.iter().flat_map(|it| self.missing(at, *it)).collect();
        let before: Vec<Blocker> = missing(&waits.to_begin);
        if before.is_empty() { missing(&waits.to_end) } else { before }
    }

    /// Returns the group whose communicator the host creates in a post, if it does so in this order.
    pub fn created_by(&self, at: InstRef) -> Option<&CommGroup> {
        let is_post = self.plans[at.rank].code[at.inst].kind.communication().is_some();
        let creates = is_post && matches!(self.order, WaitOrder::Hosts { creates: true, .. });
        let group = self.matched.created_by(at).filter(|_| creates)?;
        Some(&self.matched.groups[group as usize])
    }

    /// Returns the instructions that must execute before an event happens for which `at` waits.
    fn missing(&self, at: InstRef, event: Event) -> Vec<Blocker> {
        match event {
            Event::Issued(_) => Vec::new(),
            Event::Posted(it) if self.is_posted(it) => Vec::new(),
            Event::Posted(it) => vec![Blocker { rank: it.rank, inst: Some(it.inst), part: None }],
            Event::Recorded(rank, event) => self.own_blocker(at, self.matched.recording_inst(rank, event)),
            Event::Complete(rank, work) => self.own_blocker(at, self.matched.posting_inst(rank, work)),
            Event::Arrived(comm, _) | Event::AllArrived(comm) => {
                self.other_parts_unless(at, comm, |it| self.has_arrived(it, at.rank))
            }
            Event::AllIssued(comm) => self.other_parts_unless(at, comm, |it| self.has_reached(it, at.rank)),
            Event::Created(group) => {
                let others = self.matched.groups[group as usize].team.iter().filter(|it| **it != at.rank);
                let posts = others.map(|rank| (*rank, self.matched.first_post(*rank, group)));
                let missing = posts.filter(|(_, it)| it.is_none_or(|it| !self.has_reached(it, at.rank)));
                missing.map(|(rank, it)| Blocker { rank, inst: it.map(|it| it.inst), part: None }).collect()
            }
        }
    }

    /// Returns a blocker for an instruction of the same rank that is incomplete or does not exist.
    fn own_blocker(&self, at: InstRef, inst: Option<usize>) -> Vec<Blocker> {
        let rank = at.rank;
        let complete = inst.is_some_and(|inst| self.is_complete(InstRef { rank, inst }));
        if complete { Vec::new() } else { vec![Blocker { rank, inst, part: None }] }
    }

    fn other_parts_unless(
        &self,
        at: InstRef,
        comm: CommNo,
        is_there: impl Fn(InstRef) -> bool,
    ) -> Vec<Blocker> {
        let missing = |it: &Blocker| it.inst.is_none_or(|inst| !is_there(InstRef { rank: it.rank, inst }));
        self.other_parts(at, comm).into_iter().filter(missing).collect()
    }

    /// Returns the parts of a communication other than that of `at`.
    fn other_parts(&self, at: InstRef, number: CommNo) -> Vec<Blocker> {
        let mut blockers = Vec::new();
        let comm = self.matched.comm(number);
        let other = |rank: usize, role: CommRole| {
            let inst = comm.part(rank, role).map(|it| it.inst);
            Blocker { rank, inst, part: Some((comm.key, role)) }
        };
        match comm.key {
            CommKey::Collective(group, _) => {
                let team = self.matched.groups[group as usize].team.iter().enumerate();
                blockers.extend(
                    team.filter(|it| *it.1 != at.rank)
                        .map(|(place, rank)| other(*rank, CommRole::Member(place))),
                );
            }
            CommKey::Barrier(_) => {
                let others = (0..self.plans.len()).filter(|it| *it != at.rank);
                blockers.extend(others.map(|rank| other(rank, CommRole::Member(rank))));
            }
            CommKey::Message(_, from, to, _) | CommKey::Handle(from, to, _) => {
                let is_own = |direction| comm.part(at.rank, CommRole::Side(direction)) == Some(at);
                // A P2P group may contain both sides of a message to its own rank.
                match (is_own(Direction::Send), is_own(Direction::Recv)) {
                    (true, false) => blockers.push(other(to, CommRole::Side(Direction::Recv))),
                    (false, true) => blockers.push(other(from, CommRole::Side(Direction::Send))),
                    (true, true) | (false, false) => (),
                }
            }
            CommKey::Signal(SignalId { from, .. }) => {
                if comm.part(at.rank, CommRole::WaitsForSignal) == Some(at) {
                    blockers.push(other(from, CommRole::Signals));
                }
            }
        }
        blockers
    }
}
