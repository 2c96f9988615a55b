//! The state of all ranks and what may happen next in it.
//!
//! A host issues its instructions onto streams and never waits, but in `Exchange` and `Barrier`. A stream runs its
//! instructions in order; posting a communication runs on the stream and releases the item of the same instruction on
//! the communicator's queue. Hosts, streams and queues are *actors*; each has one next thing to do, its head, and is
//! ready when that may happen now.
//!
//! Invariant: what an actor waits for only ever becomes true, so a ready actor stays ready until it is chosen; ready
//! sets are kept by wake-ups, and no step looks at more than its own neighbours.

use std::{collections::VecDeque, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Fault, InstRef, Outcome, Schedule, conditions::Conditions, memory::Memory, schedule::Ready};
use crate::plan::{
    Backend, Direction, Effect, Handle, Plan, Slot, StreamNo,
    sync::{Position, State},
};

/// Something that becomes true once and stays true.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Condition {
    /// An event of a rank is set.
    Event(usize, u32),
    /// A work of a rank is complete.
    Work(usize, u32),
    /// A flag is raised.
    Slot(Slot),
    /// One side's handle of a channel is published: sender, receiver, index, side.
    Handle(usize, usize, u32, Direction),
    /// All hosts have come to their barrier of this ordinal.
    Barrier(usize),
}

/// What has become of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// It has not run on its stream.
    Pending,
    /// The stream has released it on the communicator's queue.
    Posted,
    /// It is complete.
    Done,
}

/// A host's program counter.
#[derive(Clone, Default)]
pub(super) struct Host {
    /// The instruction to issue next.
    pub next: usize,
    /// Whether it is a host instruction that has begun.
    pub inside: bool,
    /// Barriers that it has come to.
    pub barriers: usize,
}

/// What issues or runs instructions.
pub(super) struct Actor {
    /// Its rank.
    pub rank: usize,
    /// What it is.
    pub role: Role,
    /// Instructions that were issued to it and are not complete, with the time of issue; the first is the head.
    pub items: VecDeque<(usize, u64)>,
    /// How far a head that needs other actors has come.
    pub open: Option<Open>,
    pub(super) ready: bool,
}

impl Actor {
    fn new(rank: usize, role: Role) -> Self {
        Self { rank, role, items: VecDeque::new(), open: None, ready: false }
    }
}

/// Kinds of actors.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// Issues instructions.
    Host,
    /// Runs them.
    Stream,
    /// Runs the communications of a group.
    Queue(usize),
}

/// A head that needs other actors.
pub(super) enum Open {
    /// It has come to its meeting.
    Meeting,
    /// Sides of a transfer find partners one by one.
    Transfer {
        /// Sides that have a partner.
        bound: Vec<bool>,
        /// Sides that have not run.
        left: usize,
        /// Sends that have a partner and have not run.
        pairs: VecDeque<Pair>,
    },
}

/// A send and its receive.
pub(super) struct Pair {
    /// The side of the sender's head.
    pub send: usize,
    /// The receiver's queue.
    pub receiver: usize,
    /// The side of the receiver's head.
    pub recv: usize,
}

/// The ranks that communicate by a queue of their own: a communicator, or a team that reshards.
pub(super) struct Group {
    /// World ranks, in team order.
    pub team: Arc<[usize]>,
    /// The queue of each member that has one, by rank.
    pub queues: FxHashMap<usize, usize>,
    /// Meetings that each member has issued, by rank.
    pub posted: FxHashMap<usize, usize>,
}

/// A meeting: the group and which of its meetings.
pub(super) type Ticket = (usize, usize);

/// All ranks, their memory and their synchronisation.
pub(super) struct Machine<'a> {
    /// What the ranks do.
    pub plans: &'a [Plan],
    /// Program counters, by rank.
    pub hosts: Vec<Host>,
    /// Hosts, streams and queues, rank by rank.
    pub actors: Vec<Actor>,
    /// Who communicates with whom.
    pub groups: Vec<Group>,
    /// The groups of the plans' communicators, by rank.
    pub group_numbers: Vec<Vec<usize>>,
    /// What has become of the instructions, by rank.
    pub progress: Vec<Vec<Progress>>,
    /// The meetings of issued collectives and reshards.
    pub tickets: FxHashMap<InstRef, Ticket>,
    /// Actors that have come to a meeting.
    pub meetings: FxHashMap<Ticket, Vec<usize>>,
    /// Hosts that have come to each barrier.
    pub barriers: Vec<usize>,
    /// What is true and who waits for it.
    pub conditions: Conditions,
    /// The actors that may go on.
    pub ready: Ready,
    /// Instructions issued so far.
    pub issued: u64,
    /// Storage, by rank.
    pub memories: Vec<Memory>,
    /// The results so far.
    pub outcome: Outcome,
    /// Instructions of other ranks that write to each rank's memory.
    pub intrusions: Vec<Vec<InstRef>>,
    /// The first actor of each rank: its host, before its streams.
    first: Vec<usize>,
    group_of: FxHashMap<(Option<Backend>, Arc<[usize]>), usize>,
}

impl<'a> Machine<'a> {
    /// All ranks before their first instruction.
    pub fn new(plans: &'a [Plan], memories: Vec<Memory>, schedule: Schedule) -> Result<Self, Fault> {
        let world = plans.len();
        let mut machine = Self {
            plans,
            hosts: vec![Host::default(); world],
            actors: Vec::new(),
            groups: Vec::new(),
            group_numbers: vec![Vec::new(); world],
            progress: plans.iter().map(|it| vec![Progress::Pending; it.code.len()]).collect(),
            tickets: FxHashMap::default(),
            meetings: FxHashMap::default(),
            barriers: Vec::new(),
            conditions: Conditions::new(plans),
            ready: Ready::new(schedule, 0, 0),
            issued: 0,
            memories,
            outcome: Outcome::new(plans),
            intrusions: intrusions(plans),
            first: Vec::new(),
            group_of: FxHashMap::default(),
        };
        for (rank, plan) in plans.iter().enumerate() {
            machine.first.push(machine.actors.len());
            machine.actors.push(Actor::new(rank, Role::Host));
            machine.actors.extend(plan.streams.iter().map(|_| Actor::new(rank, Role::Stream)));
            for it in &plan.communicators {
                let group = machine.group(Some(it.backend), &it.team)?;
                machine.group_numbers[rank].push(group);
                let next = machine.actors.len();
                if *machine.groups[group].queues.entry(rank).or_insert(next) == next {
                    machine.actors.push(Actor::new(rank, Role::Queue(group)));
                }
            }
        }
        let steps: usize = plans.iter().map(|it| 2 * it.code.len()).sum();
        machine.ready = Ready::new(schedule, machine.actors.len(), steps as u64);
        Ok(machine)
    }

    /// The instruction that an actor has to do next.
    pub fn head(&self, actor: usize) -> Option<usize> {
        let it = &self.actors[actor];
        match it.role {
            Role::Host => {
                let next = self.hosts[it.rank].next;
                (next < self.plans[it.rank].code.len()).then_some(next)
            }
            Role::Stream | Role::Queue(_) => it.items.front().map(|&(inst, _)| inst),
        }
    }

    /// The actor that issues a rank's instructions.
    pub fn host_of(&self, rank: usize) -> usize {
        self.first[rank]
    }

    /// The actor that runs a rank's stream, which the plan must have.
    pub fn stream_of(&self, rank: usize, stream: StreamNo) -> usize {
        self.first[rank] + 1 + stream as usize
    }

    /// The group of a backend and a team; one not seen before is added.
    pub(super) fn group(&mut self, backend: Option<Backend>, team: &Arc<[usize]>) -> Result<usize, Fault> {
        let key = (backend, Arc::clone(team));
        if let Some(&group) = self.group_of.get(&key) {
            return Ok(group);
        }
        let world = self.plans.len();
        let mut seen = FxHashSet::default();
        if !team.iter().all(|rank| *rank < world && seen.insert(*rank)) {
            return Err(Fault::Internal(format!("team {team:?} is not a set of ranks below {world}")));
        }
        let group = self.groups.len();
        self.group_of.insert(key, group);
        let (queues, posted) = (FxHashMap::default(), FxHashMap::default());
        self.groups.push(Group { team: Arc::clone(team), queues, posted });
        Ok(group)
    }

    /// How far every rank is.
    pub fn state(&self) -> State {
        let position = |(rank, plan): (usize, &Plan)| {
            let issued = self.hosts[rank].next;
            let next = |actor: usize| self.head(actor).unwrap_or(issued);
            let streams = (0..plan.streams.len()).map(|it| next(self.stream_of(rank, it as StreamNo)));
            let queue = |group: &usize| self.groups[*group].queues.get(&rank).map_or(issued, |it| next(*it));
            let queues = self.group_numbers[rank].iter().map(queue).collect();
            Some(Position { round: 0, issued, streams: streams.collect(), queues })
        };
        self.plans.iter().enumerate().map(position).collect()
    }

    /// Whether a condition holds.
    pub fn holds(&self, condition: Condition) -> bool {
        self.conditions.holds(condition)
    }

    /// What an instruction does to the synchronisation.
    pub fn effect(&self, rank: usize, inst: usize) -> Effect<'a> {
        self.plans[rank].code[inst].kind.effect()
    }

    /// The conditions that a head waits for by itself: meetings and partners of transfers aside.
    pub fn awaited(&self, actor: usize) -> Vec<Condition> {
        let Actor { rank, role, .. } = self.actors[actor];
        let Some(inst) = self.head(actor) else { return Vec::new() };
        let host = &self.hosts[rank];
        match (role, self.effect(rank, inst)) {
            (Role::Host, Effect::Share(handles)) if host.inside => {
                handles.iter().map(|it| Condition::awaited(rank, it)).collect()
            }
            (Role::Host, Effect::Barrier) if host.inside => vec![Condition::Barrier(host.barriers - 1)],
            (Role::Stream, Effect::Join(event)) => vec![Condition::Event(rank, event)],
            (Role::Stream, Effect::Wait(work)) => vec![Condition::Work(rank, work)],
            (Role::Stream, Effect::Await(slot)) => vec![Condition::Slot(slot)],
            (Role::Host | Role::Stream | Role::Queue(_), _) => Vec::new(),
        }
    }
}

/// Instructions that write to another rank's memory, by that rank.
fn intrusions(plans: &[Plan]) -> Vec<Vec<InstRef>> {
    let mut res = vec![Vec::new(); plans.len()];
    for (rank, plan) in plans.iter().enumerate() {
        for (inst, it) in plan.code.iter().enumerate() {
            for it in it.kind.accesses(rank) {
                if it.written && it.rank != rank && it.rank < plans.len() {
                    res[it.rank].push(InstRef { rank, inst });
                }
            }
        }
    }
    res
}

impl Condition {
    /// What a rank makes true by exchanging a handle.
    pub fn published(rank: usize, handle: &Handle) -> Self {
        let (sender, receiver, index) = handle.exchange(rank);
        Self::Handle(sender, receiver, index, handle.direction)
    }

    /// What a rank waits for when it exchanges a handle.
    pub fn awaited(rank: usize, handle: &Handle) -> Self {
        let (sender, receiver, index) = handle.exchange(rank);
        Self::Handle(sender, receiver, index, handle.direction.mirror())
    }
}
