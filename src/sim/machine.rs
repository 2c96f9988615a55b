//! The state of all ranks, and which instructions may run next.
//!
//! `plan::sync::Waits` defines what hosts, streams and queues wait for. A communication is issued to its stream and to its
//! communicator's queue; when the stream posts it, the queue may run it. The next instruction of
//! an actor is its head, and the actor is ready if its head may run now.
//!
//! Invariant: an event stays true once it has happened, so a ready actor stays ready until it is chosen.
//! Wake-ups maintain the ready set, so a step visits only the actors that it affects.

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    InstRef, Schedule, SimError, SimOutcome, collective::TeamCollective, events::Events, memory::Memory,
    schedule::ReadySet, step::SharedOutputs,
};
use hir_plan::{
    CommunicatorNo, Plan, SignalId, StreamNo, SyncEffect, World,
    sync::{Actor, CommMatching, CommNo, Event, Position, WaitOrder, Waits, WorldState},
};
use hir_tensor::dense::DenseTensor;

/// The state of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InstState {
    /// It has not run on its stream.
    Pending,
    /// Its stream has posted it to the communicator's queue.
    Posted,
    /// It is complete.
    Done,
}

/// The program counter of a host.
#[derive(Clone, Default)]
pub(super) struct HostState {
    /// The instruction to issue next.
    pub next: usize,
    /// True if the next instruction is a host instruction that has started.
    pub is_inside_inst: bool,
}

/// An actor with its instructions.
pub(super) struct ActorState {
    /// The actor.
    pub actor: Actor,
    /// Incomplete instructions that were issued to the actor, with their issue times. The first one is the
    /// head.
    pub items: VecDeque<(usize, u64)>,
    /// The state of a head that has started.
    pub in_flight: Option<InFlight>,
    pub(super) ready: bool,
}

impl ActorState {
    fn new(actor: Actor) -> Self {
        Self { actor, items: VecDeque::new(), in_flight: None, ready: false }
    }

    /// Returns the rank of the actor.
    pub fn rank(&self) -> usize {
        self.actor.rank()
    }
}

/// The state of a head that has started and needs other actors or another step.
pub(super) enum InFlight {
    /// A collective or a resharding operator that has arrived. It runs for all members at once.
    Collective,
    /// A P2P group whose sends and receives have arrived. Each message runs for both sides at once.
    P2pGroup {
        /// The number of sends and receives that have not run.
        left: usize,
        /// Messages to send whose receiver has arrived.
        ready: VecDeque<Message>,
    },
    /// A collective that this member runs on its own.
    CollectiveMember {
        /// True if the member has read its input.
        has_read_input: bool,
    },
    /// A P2P group whose sends and receives run one by one.
    P2pOps {
        /// The number of sends and receives that have not run.
        left: usize,
        /// Steps that may run (`plan::sync::Step::part`).
        ready: VecDeque<u32>,
        /// By side: the receive that may begin after it (`plan::sync::next_receives`).
        next: Vec<Option<usize>>,
    },
    /// A copy whose first half has run.
    HalfCopy,
}

/// A send or a receive of the P2P group at the head of a queue.
#[derive(Clone, Copy)]
pub(super) struct SideRef {
    /// The queue.
    pub queue: usize,
    /// Its index in `P2pGroup::ops`.
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

/// A collective that some members have started and not all have completed.
pub(super) struct InFlightCollective<'a> {
    /// The members' collectives and the inputs read so far.
    pub team: TeamCollective<'a>,
    /// The state of each member.
    pub members: Vec<MemberState>,
    /// The number of members that have not completed.
    pub left: usize,
}

/// The state of a member of a collective in flight.
#[derive(Clone, Default)]
pub(super) struct MemberState {
    /// True if the member has read its input.
    pub has_read_input: bool,
    /// Actors that wait until it has.
    pub waiting: Vec<usize>,
}

/// The state of all ranks, their memory and their synchronization.
pub(super) struct Machine<'a> {
    /// The plans with their communications.
    pub world: &'a World,
    /// The states of the hosts, by rank.
    pub hosts: Vec<HostState>,
    /// Hosts, streams and queues, rank by rank.
    pub actors: Vec<ActorState>,
    /// The states of the instructions, by rank.
    pub inst_states: Vec<Vec<InstState>>,
    /// The number of parts that have arrived, by communication.
    pub arrived: Vec<u32>,
    /// True if every participant of a communication waits until all have arrived. NCCL does not guarantee
    /// this, so most schedules do not assume it. It exposes deadlocks.
    pub is_synchronous: bool,
    /// Sends and receives that arrived before the other side of their message.
    pub unmatched_sides: FxHashMap<CommNo, SideRef>,
    /// Messages that have been sent but not received.
    pub sent_messages: FxHashMap<CommNo, DenseTensor>,
    /// Collectives that some members have started and not all have completed.
    pub in_flight_collectives: FxHashMap<CommNo, InFlightCollective<'a>>,
    /// The events that have happened, and their waiters.
    pub events: Events,
    /// Memory for `waits`.
    pub waits: Waits,
    /// The ready actors.
    pub ready: ReadySet,
    /// The number of instructions issued so far.
    pub issued: u64,
    /// The memory of each rank.
    pub memories: Vec<Memory>,
    /// The outputs that several ranks may share.
    pub shared_outputs: SharedOutputs,
    /// The results so far.
    pub outcome: SimOutcome,
    /// The semaphores of one word (`SimOptions::semaphores`).
    pub semaphores: Arc<FxHashMap<SignalId, (usize, bool)>>,
    /// The semaphores whose transfer is posted and has not ended.
    pub posted_semaphores: FxHashSet<usize>,
    /// The posts whose value is lost.
    pub lost_posts: Vec<InstRef>,
    /// The number of instructions that are complete.
    pub completed: usize,
    /// For each rank, the instructions of other ranks that write to its memory.
    pub remote_writes: Vec<Vec<InstRef>>,
    /// The first actor of each rank: its host, followed by its streams.
    first_actor: Vec<usize>,
    /// The queue of each communicator, by rank.
    queues: Vec<Vec<usize>>,
}

impl<'a> Machine<'a> {
    /// Creates the state before the first instruction. See the field for `is_synchronous`.
    ///
    /// # Errors
    /// `SimError::Internal` if a team is not a set of ranks, or a rank is not in the team of its
    /// communicator.
    pub fn new(
        world: &'a World,
        memories: Vec<Memory>,
        schedule: &Schedule,
        is_synchronous: bool,
    ) -> Result<Self, SimError> {
        let (plans, matched) = (world.plans(), world.matching());
        check_teams(plans, matched)?;
        let program = Schedule::Program;
        // Given steps apply only to programs that complete.
        let schedule =
            if is_synchronous && matches!(schedule, Schedule::Steps { .. }) { &program } else { schedule };
        let mut machine = Self {
            world,
            hosts: vec![HostState::default(); plans.len()],
            actors: Vec::new(),
            inst_states: plans.iter().map(|it| vec![InstState::Pending; it.code.len()]).collect(),
            arrived: vec![0; matched.comms.len()],
            is_synchronous,
            unmatched_sides: FxHashMap::default(),
            sent_messages: FxHashMap::default(),
            in_flight_collectives: FxHashMap::default(),
            events: Events::new(world),
            waits: Waits::default(),
            ready: ReadySet::new(schedule, 0, 0),
            issued: 0,
            memories,
            shared_outputs: SharedOutputs::default(),
            outcome: SimOutcome::new(plans),
            semaphores: Arc::default(),
            posted_semaphores: FxHashSet::default(),
            lost_posts: Vec::new(),
            completed: 0,
            remote_writes: remote_writes(plans),
            first_actor: Vec::new(),
            queues: Vec::new(),
        };
        for (rank, plan) in plans.iter().enumerate() {
            machine.first_actor.push(machine.actors.len());
            machine.actors.push(ActorState::new(Actor::Host(rank)));
            let streams = (0..plan.streams.len()).map(|it| Actor::Stream(rank, it as StreamNo));
            machine.actors.extend(streams.map(ActorState::new));
            let mut queues: Vec<usize> = Vec::new();
            for communicator in 0..plan.communicators.len() as CommunicatorNo {
                let first =
                    matched.queue_of(rank, communicator).and_then(|it| queues.get(it as usize).copied());
                queues.push(first.unwrap_or(machine.actors.len()));
                if first.is_none() {
                    machine.actors.push(ActorState::new(Actor::Queue(rank, communicator)));
                }
            }
            machine.queues.push(queues);
        }
        let steps: usize = plans.iter().map(|it| 2 * it.code.len()).sum();
        machine.ready = ReadySet::new(schedule, machine.actors.len(), steps as u64);
        Ok(machine)
    }

    /// Returns the next instruction of an actor.
    pub fn head(&self, actor: usize) -> Option<usize> {
        let it = &self.actors[actor];
        match it.actor {
            Actor::Host(rank) => {
                let next = self.hosts[rank].next;
                (next < self.world[rank].code.len()).then_some(next)
            }
            Actor::Stream(..) | Actor::Queue(..) => it.items.front().map(|&(inst, _)| inst),
        }
    }

    /// Returns the actor that issues a rank's instructions.
    pub fn host_of(&self, rank: usize) -> usize {
        self.first_actor[rank]
    }

    /// Returns the actor that runs a stream of a rank. The plan must have the stream.
    pub fn stream_of(&self, rank: usize, stream: StreamNo) -> usize {
        self.first_actor[rank] + 1 + stream as usize
    }

    /// Returns the actor that runs the communications of a communicator of a rank.
    ///
    /// # Errors
    /// `SimError::Internal` if the plan has no such communicator.
    pub fn queue_of(&self, rank: usize, communicator: CommunicatorNo) -> Result<usize, SimError> {
        let queue = self.queues[rank].get(communicator as usize).copied();
        queue.ok_or_else(|| SimError::Internal(format!("rank {rank} has no communicator {communicator}")))
    }

    /// Returns the position of every rank.
    pub fn state(&self) -> WorldState {
        let position = |(rank, plan): (usize, &Plan)| {
            let issued = self.hosts[rank].next;
            let next = |actor: usize| self.head(actor).unwrap_or(issued);
            let streams = (0..plan.streams.len()).map(|it| next(self.stream_of(rank, it as StreamNo)));
            let queues = self.queues[rank].iter().map(|it| next(*it)).collect();
            Some(Position { round: 0, issued, streams: streams.collect(), queues })
        };
        self.world.iter().enumerate().map(position).collect()
    }

    /// Returns true if an event has happened.
    pub fn has_happened(&self, event: Event) -> bool {
        match event {
            Event::Issued(at) => at.inst < self.hosts[at.rank].next,
            Event::Posted(at) => self.inst_states[at.rank][at.inst] != InstState::Pending,
            Event::Recorded(..) | Event::Complete(..) | Event::AllArrived(_) => {
                self.events.has_happened(event)
            }
            // The simulator waits in the blocking order, in which hosts do not connect. `member` counts arrivals itself.
            Event::Arrived(..) | Event::AllIssued(_) | Event::Created(_) => true,
        }
    }

    /// Returns the events around the head of an actor, if it has one.
    pub fn waits(&mut self, actor: usize) -> Option<Waits> {
        let inst = self.head(actor)?;
        let mut waits = std::mem::take(&mut self.waits);
        waits.set(self.world, WaitOrder::Blocking, self.actors[actor].actor, inst);
        Some(waits)
    }

    /// Returns the synchronization effect of an instruction.
    pub fn effect(&self, rank: usize, inst: usize) -> SyncEffect<'a> {
        self.world[rank].code[inst].kind.effect()
    }
}

/// Checks that teams are sets of ranks of the world, and that each rank is in the teams of its communicators.
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

/// Returns, for each rank, the instructions of other ranks that write to its memory.
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
