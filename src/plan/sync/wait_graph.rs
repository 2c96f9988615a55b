//! Who waits for whom in a state of all ranks: the wait-for graph, whose cycles are deadlocks.
//!
//! A host issues instructions and waits only where handles are shared and at barriers. A stream runs its instructions in order; a
//! communication that it posts runs on its communicator's queue, in the order of issue. Hosts, streams and queues are *actors*:
//! each has one next thing to do, its *head*. What a head waits for are instructions of this or other ranks; each of those is
//! held up by the head of another actor.
//!
//! This is the blocking order: what an executor may do. All members of a collective wait for each other, as in the simulator;
//! NCCL may let a broadcast's root go on. `order` has what every executor guarantees.

use super::{CommKey, CommMatching, CommRole, InstRef};
use crate::plan::{
    Communication, CommunicatorNo, Direction, ExecutionSite, Plan, SignalId, StreamNo, SyncEffect,
};

/// How far a rank is in its plan. Instructions are named by their index in `Plan::code`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Which run of the plan the host issues, from 0.
    pub round: u32,
    /// The instruction that the host issues now, or is blocked in; the plan's length: all are issued.
    pub issued: usize,
    /// By stream: all its instructions before this one are complete, its communications posted. Empty: not known.
    pub streams: Vec<usize>,
    /// By communicator: all its communications before this one are complete. Empty: not known.
    pub queues: Vec<usize>,
}

/// How far every rank is; `None` where that is not known.
pub type WorldState = Vec<Option<Position>>;

/// Something that does one thing after another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Actor {
    /// A rank's host.
    Host(usize),
    /// A rank's stream.
    Stream(usize, StreamNo),
    /// A rank's queue of a communicator.
    Queue(usize, CommunicatorNo),
}

impl Actor {
    /// Whose it is.
    pub fn rank(self) -> usize {
        match self {
            Self::Host(rank) | Self::Stream(rank, _) | Self::Queue(rank, _) => rank,
        }
    }
}

/// An instruction that has to run before a head may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The rank that has to run it.
    pub rank: usize,
    /// Which; `None`: there is none.
    pub inst: Option<usize>,
    /// Its part in which communication, if it has one.
    pub part: Option<(CommKey, CommRole)>,
}

/// The ranks that would have to run what is needed, ascending, each once.
pub(super) fn ranks_of(needs: &[Blocker]) -> Vec<usize> {
    let mut ranks: Vec<usize> = needs.iter().map(|it| it.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The wait-for graph of a state.
pub struct WaitGraph<'a> {
    /// What the ranks do.
    pub plans: &'a [Plan],
    /// Their communications.
    pub matched: &'a CommMatching,
    /// How far they are.
    pub state: &'a WorldState,
    /// Whether a host that issues a communication waits for the hosts of the other members: NCCL connects ranks in their first
    /// call.
    pub hosts_connect: bool,
}

impl WaitGraph<'_> {
    /// All actors: rank by rank its host, its streams, its queues.
    pub fn actors(&self) -> impl Iterator<Item = Actor> {
        self.plans.iter().enumerate().flat_map(move |(rank, plan)| {
            let streams = (0..plan.streams.len() as StreamNo).map(move |it| Actor::Stream(rank, it));
            let queues = (0..plan.communicators.len() as CommunicatorNo)
                .filter(move |it| self.matched.queue_of(rank, *it) == Some(*it))
                .map(move |it| Actor::Queue(rank, it));
            std::iter::once(Actor::Host(rank)).chain(streams).chain(queues)
        })
    }

    /// How far a rank is.
    pub fn position(&self, rank: usize) -> Option<&Position> {
        self.state.get(rank)?.as_ref()
    }

    /// What an instruction does to the synchronisation.
    pub fn effect(&self, at: InstRef) -> Option<SyncEffect<'_>> {
        Some(self.plans.get(at.rank)?.code.get(at.inst)?.kind.effect())
    }

    /// The first instruction of an actor that is issued and not complete, as far as that is known; of a host, the one that it
    /// issues.
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

    /// Whether a rank has issued an instruction, and its stream has run or posted it.
    pub fn is_posted(&self, at: InstRef) -> bool {
        let (Some(position), Some(plan)) = (self.position(at.rank), self.plans.get(at.rank)) else {
            return false;
        };
        let stream = plan.code.get(at.inst).map_or(0, |it| it.stream as usize);
        at.inst < position.issued && position.streams.get(stream).is_some_and(|passed| at.inst < *passed)
    }

    /// Whether an instruction is complete.
    fn is_complete(&self, at: InstRef) -> bool {
        self.effect(at).is_some_and(|it| match it.execution_site() {
            ExecutionSite::Host => self.position(at.rank).is_some_and(|it| at.inst < it.issued),
            ExecutionSite::Stream => self.is_posted(at),
            ExecutionSite::Queue(it) => {
                self.is_posted(at) && self.passed_queue(at, it, at.inst + 1).unwrap_or(true)
            }
        })
    }

    /// Whether a communication's queue is at `inst` or behind it; `None` where that is not known.
    fn passed_queue(&self, at: InstRef, it: Communication<'_>, inst: usize) -> Option<bool> {
        let queue = self.matched.queue_of(at.rank, it.communicator())?;
        self.position(at.rank)?.queues.get(queue as usize)?;
        Some(self.head(Actor::Queue(at.rank, queue)).is_none_or(|head| head >= inst))
    }

    /// Whether the host of a rank has issued an instruction, or is blocked in it, as `from` counts: in the run that it is in, or later.
    fn has_reached(&self, at: InstRef, from: usize) -> bool {
        let round = self.position(from).map_or(0, |it| it.round);
        self.position(at.rank).is_some_and(|it| (it.round, it.issued) >= (round, at.inst))
    }

    /// Whether a part of a communication for which `from` waits is there: nothing of its rank has to come first.
    fn has_arrived(&self, at: InstRef, from: usize) -> bool {
        let Some((effect, position)) = self.effect(at).zip(self.position(at.rank)) else { return false };
        match effect.execution_site() {
            ExecutionSite::Host => self.has_reached(at, from),
            ExecutionSite::Queue(it) => {
                self.is_posted(at) && self.passed_queue(at, it, at.inst).unwrap_or(true)
            }
            // A resharding operator waits on its stream for the other members.
            ExecutionSite::Stream if matches!(effect, SyncEffect::Reshard(_)) => {
                let stream = Actor::Stream(at.rank, self.plans[at.rank].code[at.inst].stream);
                at.inst < position.issued && self.head(stream).is_none_or(|head| head >= at.inst)
            }
            ExecutionSite::Stream => self.is_posted(at),
        }
    }

    /// The actor whose head holds up an instruction that is not complete.
    pub fn blocking_actor(&self, need: Blocker) -> Option<Actor> {
        let at = InstRef { rank: need.rank, inst: need.inst? };
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

    /// What the head of an actor waits for, in the order of the plan: of a communication, what is not there.
    pub fn blockers(&self, actor: Actor) -> Vec<Blocker> {
        let rank = actor.rank();
        let Some(inst) = self.head(actor) else { return Vec::new() };
        let at = InstRef { rank, inst };
        let Some(effect) = self.effect(at) else { return Vec::new() };
        match (actor, effect) {
            (Actor::Host(_), SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier) => self.absent_parts(at),
            (Actor::Host(_), SyncEffect::Post(_)) if self.hosts_connect => self.unissued_parts(at),
            (Actor::Stream(..), SyncEffect::WaitEvent(event)) => {
                self.own_blocker(at, self.matched.recording_inst(rank, event))
            }
            (Actor::Stream(..), SyncEffect::Wait(work)) => {
                self.own_blocker(at, self.matched.posting_inst(rank, work))
            }
            (Actor::Stream(..), SyncEffect::WaitSignal(_) | SyncEffect::Reshard(_)) => self.absent_parts(at),
            (Actor::Queue(..), SyncEffect::Post(_)) => match self.is_posted(at) {
                true => self.absent_parts(at),
                false => vec![Blocker { rank, inst: Some(inst), part: None }],
            },
            (Actor::Host(_) | Actor::Stream(..) | Actor::Queue(..), _) => Vec::new(),
        }
    }

    /// An instruction of the same rank that is not complete, or that there is not.
    fn own_blocker(&self, at: InstRef, inst: Option<usize>) -> Vec<Blocker> {
        let rank = at.rank;
        let complete = inst.is_some_and(|inst| self.is_complete(InstRef { rank, inst }));
        if complete { Vec::new() } else { vec![Blocker { rank, inst, part: None }] }
    }

    /// The other parts of an instruction's communications that are not there.
    fn absent_parts(&self, at: InstRef) -> Vec<Blocker> {
        self.other_parts_unless(at, |it| self.has_arrived(it, at.rank))
    }

    /// The other parts of an instruction's communications that hosts have not issued.
    fn unissued_parts(&self, at: InstRef) -> Vec<Blocker> {
        self.other_parts_unless(at, |it| self.has_reached(it, at.rank))
    }

    fn other_parts_unless(&self, at: InstRef, is_there: impl Fn(InstRef) -> bool) -> Vec<Blocker> {
        let missing = |it: &Blocker| it.inst.is_none_or(|inst| !is_there(InstRef { rank: it.rank, inst }));
        self.other_parts(at).into_iter().filter(missing).collect()
    }

    /// What an instruction's communications consist of, besides itself.
    fn other_parts(&self, at: InstRef) -> Vec<Blocker> {
        let mut needs = Vec::new();
        for number in self.matched.comms_of(at) {
            let comm = self.matched.comm(*number);
            let other = |rank: usize, role: CommRole| {
                let inst = comm.part(rank, role).map(|it| it.inst);
                Blocker { rank, inst, part: Some((comm.key, role)) }
            };
            match comm.key {
                CommKey::Collective(group, _) => {
                    let team = self.matched.groups[group as usize].team.iter().enumerate();
                    needs.extend(
                        team.filter(|it| *it.1 != at.rank)
                            .map(|(place, rank)| other(*rank, CommRole::Member(place))),
                    );
                }
                CommKey::Barrier(_) => {
                    let others = (0..self.plans.len()).filter(|it| *it != at.rank);
                    needs.extend(others.map(|rank| other(rank, CommRole::Member(rank))));
                }
                CommKey::Message(_, from, to, _) | CommKey::Handle(from, to, _) => {
                    let is_own = |direction| comm.part(at.rank, CommRole::Side(direction)) == Some(at);
                    // A transfer may hold both sides of a message to its own rank.
                    match (is_own(Direction::Send), is_own(Direction::Recv)) {
                        (true, false) => needs.push(other(to, CommRole::Side(Direction::Recv))),
                        (false, true) => needs.push(other(from, CommRole::Side(Direction::Send))),
                        (true, true) | (false, false) => (),
                    }
                }
                CommKey::Signal(SignalId { from, .. }) => {
                    if comm.part(at.rank, CommRole::WaitsForSignal) == Some(at) {
                        needs.push(other(from, CommRole::Signals));
                    }
                }
            }
        }
        needs
    }
}
