//! The state of all ranks and what may happen next in it.
//!
//! A host issues its instructions onto streams and never waits, but in `Exchange` and `Barrier`. A stream runs its
//! instructions in order; posting a communication runs on the stream and releases the item of the same instruction on
//! the communicator's queue. Hosts, streams and queues are *actors*; each has one next thing to do, its head, and is
//! ready when that may happen now.
//!
//! Invariant: what an actor waits for only ever becomes true, so a ready actor stays ready until it is chosen; ready
//! sets are kept by wake-ups, and no step looks at more than its own neighbours.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    InstRef, Schedule, SimError, SimOutcome, collective::TeamCollective, conditions::Conditions,
    memory::Memory, schedule::ReadySet,
};
use crate::{
    io::dense::DenseTensor,
    plan::{
        CommunicatorNo, Plan, StreamNo, SyncEffect,
        sync::{CommMatching, CommNo, Position, WorldState},
    },
};

/// Something that becomes true once and stays true.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Condition {
    /// An event of a rank is set.
    Event(usize, u32),
    /// A work of a rank is complete.
    Work(usize, u32),
    /// All parts of a communication have arrived; a signal is raised.
    Comm(CommNo),
}

/// What has become of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InstState {
    /// It has not run on its stream.
    Pending,
    /// The stream has released it on the communicator's queue.
    Posted,
    /// It is complete.
    Done,
}

/// A host's program counter.
#[derive(Clone, Default)]
pub(super) struct HostState {
    /// The instruction to issue next.
    pub next: usize,
    /// Whether it is a host instruction that has begun.
    pub is_inside_inst: bool,
}

/// What issues or runs instructions.
pub(super) struct Actor {
    /// Its rank.
    pub rank: usize,
    /// What it is.
    pub kind: ActorKind,
    /// Instructions that were issued to it and are not complete, with the time of issue; the first is the head.
    pub items: VecDeque<(usize, u64)>,
    /// How far a head that needs other actors has come.
    pub in_flight: Option<InFlight>,
    pub(super) ready: bool,
}

impl Actor {
    fn new(rank: usize, role: ActorKind) -> Self {
        Self { rank, kind: role, items: VecDeque::new(), in_flight: None, ready: false }
    }
}

/// Kinds of actors.
#[derive(Clone, Copy)]
pub(super) enum ActorKind {
    /// Issues instructions.
    Host,
    /// Runs them.
    Stream,
    /// Runs the communications of a communicator.
    Queue,
}

/// A head that has begun, and needs other actors or another step.
pub(super) enum InFlight {
    /// A collective or a resharding operator that has arrived at its communication, which runs for all members at once.
    Collective,
    /// A transfer whose sides have arrived at their messages, each of which runs for both sides at once.
    Transfer {
        /// Sides that have not run.
        left: usize,
        /// Messages to send whose receiver has arrived.
        ready: VecDeque<Message>,
    },
    /// A collective that this member runs by itself: whether it has read what it gives.
    CollectiveMember {
        /// Whether it has.
        has_read_input: bool,
    },
    /// A transfer whose sides run one by one.
    TransferSides {
        /// Sides that have not run.
        left: usize,
        /// Steps that may happen (`plan::sync::Step::part`).
        ready: VecDeque<u32>,
    },
    /// A copy whose first half has been done.
    HalfCopy,
}

/// A side of a transfer at the head of a queue.
#[derive(Clone, Copy)]
pub(super) struct SideRef {
    /// The queue.
    pub queue: usize,
    /// Which side of the transfer.
    pub side: usize,
}

/// Both sides of a message.
#[derive(Clone, Copy)]
pub(super) struct Message {
    /// The side that sends.
    pub send: SideRef,
    /// The side that receives.
    pub recv: SideRef,
}

/// A collective that some members have begun and not all have ended.
pub(super) struct InFlightCollective<'a> {
    /// What they have posted and given.
    pub team: TeamCollective<'a>,
    /// By member.
    pub members: Vec<MemberState>,
    /// Members that have not ended.
    pub left: usize,
}

/// A member of such a collective.
#[derive(Clone, Default)]
pub(super) struct MemberState {
    /// Whether it has begun.
    pub has_read_input: bool,
    /// Actors that wait until it has.
    pub waiting: Vec<usize>,
}

/// All ranks, their memory and their synchronisation.
pub(super) struct Machine<'a> {
    /// What the ranks do.
    pub plans: &'a [Plan],
    /// Program counters, by rank.
    pub hosts: Vec<HostState>,
    /// Hosts, streams and queues, rank by rank.
    pub actors: Vec<Actor>,
    /// What has become of the instructions, by rank.
    pub inst_states: Vec<Vec<InstState>>,
    /// Who communicates with whom.
    pub matched: &'a CommMatching,
    /// Parts that have arrived, by communication.
    pub arrived: Vec<u32>,
    /// Whether nobody goes on from a communication before all who take part are there. NCCL does not promise it, so most schedules do
    /// not count on it; it shows deadlocks.
    pub is_synchronous: bool,
    /// Sides of messages that have arrived before the other side.
    pub unmatched_sides: FxHashMap<CommNo, SideRef>,
    /// Messages that have been sent and not been received.
    pub sent_messages: FxHashMap<CommNo, DenseTensor>,
    /// Collectives that some members have begun and not all have ended.
    pub in_flight_collectives: FxHashMap<CommNo, InFlightCollective<'a>>,
    /// What is true and who waits for it.
    pub conditions: Conditions,
    /// The actors that may go on.
    pub ready: ReadySet,
    /// Instructions issued so far.
    pub issued: u64,
    /// Storage, by rank.
    pub memories: Vec<Memory>,
    /// The results so far.
    pub outcome: SimOutcome,
    /// Instructions of other ranks that write to each rank's memory.
    pub remote_writes: Vec<Vec<InstRef>>,
    /// The first actor of each rank: its host, before its streams.
    first_actor: Vec<usize>,
    /// The queues of the plans' communicators, by rank.
    queues: Vec<Vec<usize>>,
}

impl<'a> Machine<'a> {
    /// All ranks before their first instruction. `meets`: see the field.
    ///
    /// # Errors
    /// `Fault::Internal`: a team that is not a set of ranks, or a communicator of others.
    pub fn new(
        plans: &'a [Plan],
        matched: &'a CommMatching,
        memories: Vec<Memory>,
        schedule: &Schedule,
        meets: bool,
    ) -> Result<Self, SimError> {
        let world = plans.len();
        check_teams(plans, matched)?;
        let program = Schedule::Program;
        // Steps are those of a program that comes to its end.
        let schedule = if meets && matches!(schedule, Schedule::Steps { .. }) { &program } else { schedule };
        let mut machine = Self {
            plans,
            hosts: vec![HostState::default(); world],
            actors: Vec::new(),
            inst_states: plans.iter().map(|it| vec![InstState::Pending; it.code.len()]).collect(),
            matched,
            arrived: vec![0; matched.comms.len()],
            is_synchronous: meets,
            unmatched_sides: FxHashMap::default(),
            sent_messages: FxHashMap::default(),
            in_flight_collectives: FxHashMap::default(),
            conditions: Conditions::new(plans, matched),
            ready: ReadySet::new(schedule, 0, 0),
            issued: 0,
            memories,
            outcome: SimOutcome::new(plans),
            remote_writes: remote_writes(plans),
            first_actor: Vec::new(),
            queues: Vec::new(),
        };
        for (rank, plan) in plans.iter().enumerate() {
            machine.first_actor.push(machine.actors.len());
            machine.actors.push(Actor::new(rank, ActorKind::Host));
            machine.actors.extend(plan.streams.iter().map(|_| Actor::new(rank, ActorKind::Stream)));
            let mut queues: Vec<usize> = Vec::new();
            for communicator in 0..plan.communicators.len() as CommunicatorNo {
                let first =
                    matched.queue_of(rank, communicator).and_then(|it| queues.get(it as usize).copied());
                queues.push(first.unwrap_or(machine.actors.len()));
                if first.is_none() {
                    machine.actors.push(Actor::new(rank, ActorKind::Queue));
                }
            }
            machine.queues.push(queues);
        }
        let steps: usize = plans.iter().map(|it| 2 * it.code.len()).sum();
        machine.ready = ReadySet::new(schedule, machine.actors.len(), steps as u64);
        Ok(machine)
    }

    /// The instruction that an actor has to do next.
    pub fn head(&self, actor: usize) -> Option<usize> {
        let it = &self.actors[actor];
        match it.kind {
            ActorKind::Host => {
                let next = self.hosts[it.rank].next;
                (next < self.plans[it.rank].code.len()).then_some(next)
            }
            ActorKind::Stream | ActorKind::Queue => it.items.front().map(|&(inst, _)| inst),
        }
    }

    /// The actor that issues a rank's instructions.
    pub fn host_of(&self, rank: usize) -> usize {
        self.first_actor[rank]
    }

    /// The actor that runs a rank's stream, which the plan must have.
    pub fn stream_of(&self, rank: usize, stream: StreamNo) -> usize {
        self.first_actor[rank] + 1 + stream as usize
    }

    /// The actor that runs the communications of a rank's communicator.
    ///
    /// # Errors
    /// `Fault::Internal`: the plan has no such communicator.
    pub fn queue_of(&self, rank: usize, communicator: CommunicatorNo) -> Result<usize, SimError> {
        let queue = self.queues[rank].get(communicator as usize).copied();
        queue.ok_or_else(|| SimError::Internal(format!("rank {rank} has no communicator {communicator}")))
    }

    /// How far every rank is.
    pub fn state(&self) -> WorldState {
        let position = |(rank, plan): (usize, &Plan)| {
            let issued = self.hosts[rank].next;
            let next = |actor: usize| self.head(actor).unwrap_or(issued);
            let streams = (0..plan.streams.len()).map(|it| next(self.stream_of(rank, it as StreamNo)));
            let queues = self.queues[rank].iter().map(|it| next(*it)).collect();
            Some(Position { round: 0, issued, streams: streams.collect(), queues })
        };
        self.plans.iter().enumerate().map(position).collect()
    }

    /// Whether a condition holds.
    pub fn holds(&self, condition: Condition) -> bool {
        self.conditions.holds(condition)
    }

    /// What an instruction does to the synchronisation.
    pub fn effect(&self, rank: usize, inst: usize) -> SyncEffect<'a> {
        self.plans[rank].code[inst].kind.effect()
    }

    /// The first condition for which a head waits and that does not hold: the parts of collectives and transfers aside, which
    /// arrive when the head is considered.
    pub fn unmet_condition(&self, actor: usize) -> Option<Condition> {
        let Actor { rank, kind: role, .. } = self.actors[actor];
        let inst = self.head(actor)?;
        let comms = || self.matched.comms_of(InstRef { rank, inst }).iter().map(|it| Condition::Comm(*it));
        let absent = |it: &Condition| !self.holds(*it);
        match (role, self.effect(rank, inst)) {
            (ActorKind::Host, SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier)
                if self.hosts[rank].is_inside_inst =>
            {
                comms().find(absent)
            }
            (ActorKind::Stream, SyncEffect::WaitEvent(event)) => {
                Some(Condition::Event(rank, event)).filter(absent)
            }
            (ActorKind::Stream, SyncEffect::Wait(work)) => Some(Condition::Work(rank, work)).filter(absent),
            (ActorKind::Stream, SyncEffect::WaitSignal(_)) => comms().find(absent),
            (ActorKind::Host | ActorKind::Stream | ActorKind::Queue, _) => None,
        }
    }
}

/// Whether teams are sets of ranks of the world, and members of each other's communicators.
fn check_teams(plans: &[Plan], matched: &CommMatching) -> Result<(), SimError> {
    let world = plans.len();
    for team in matched.groups.iter().map(|it| &it.team) {
        let mut seen = FxHashSet::default();
        if !team.iter().all(|rank| *rank < world && seen.insert(*rank)) {
            return Err(SimError::Internal(format!("team {team:?} is not a set of ranks below {world}")));
        }
    }
    for (rank, plan) in plans.iter().enumerate() {
        if let Some(it) = plan.communicators.iter().find(|it| !it.team.contains(&rank)) {
            return Err(SimError::Internal(format!("rank {rank} is not in its team {:?}", it.team)));
        }
    }
    Ok(())
}

/// Instructions that write to another rank's memory, by that rank.
fn remote_writes(plans: &[Plan]) -> Vec<Vec<InstRef>> {
    let mut res = vec![Vec::new(); plans.len()];
    for (rank, plan) in plans.iter().enumerate() {
        for (inst, it) in plan.code.iter().enumerate() {
            for it in it.kind.accesses(rank) {
                if it.is_write && it.rank != rank && it.rank < plans.len() {
                    res[it.rank].push(InstRef { rank, inst });
                }
            }
        }
    }
    res
}
