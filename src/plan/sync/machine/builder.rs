//! Builds a machine: distributes the instructions of plans over actors, and numbers the events between them.

use rustc_hash::FxHashMap;

use super::{Item, Machine, Progress};
use crate::{
    Plan, SyncEffect,
    sync::{
        Actor, CommKey, CommNo, Event, GroupNo, InstRef, MemoryGroups, WaitOrder, Waits, World,
        memory_groups::actor_count,
    },
};

/// The events that parts of communications have arrived.
pub(super) enum Arrivals<'w> {
    /// Of the whole world, by communication: the event that all parts have arrived. Those of its parts are before it, the first
    /// part last.
    Of(Vec<u32>),
    /// Of a group, whose parts count alone: by communication and part, or `None` for all parts.
    OfGroup { groups: &'w MemoryGroups, group: usize, known: FxHashMap<(CommNo, Option<u32>), u32> },
    /// Left out.
    None,
}

impl Arrivals<'_> {
    /// Returns the events of all communications of a world.
    pub(super) fn of_all<P: Progress>(world: &World, order: WaitOrder, machine: &mut Machine<P>) -> Self {
        let matching = world.matching();
        let mut arrivals = Vec::with_capacity(matching.comms.len());
        for comm in &matching.comms {
            let parts = matching.expected_parts(comm);
            let singles = match comm.key {
                CommKey::Collective(..) if order == WaitOrder::Guaranteed => parts,
                CommKey::Message(..) if order == WaitOrder::Guaranteed => 1,
                CommKey::Collective(..)
                | CommKey::Message(..)
                | CommKey::Signal(_)
                | CommKey::Handle(..)
                | CommKey::Barrier(_) => 0,
            };
            for _ in 0..singles {
                machine.add_event(1);
            }
            arrivals.push(machine.add_event(parts as u32));
        }
        Self::Of(arrivals)
    }

    /// Returns the token of the event that a part of a communication has arrived, or all parts; `None` if it is left out.
    fn token<P: Progress>(
        &mut self,
        world: &World,
        machine: &mut Machine<P>,
        (comm, part): (CommNo, Option<u32>),
    ) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Of(arrivals) => Some(arrivals[comm as usize] - part.map_or(0, |part| part + 1)),
            Self::OfGroup { groups, group, known } => {
                if let Some(known) = known.get(&(comm, part)) {
                    return Some(*known);
                }
                let matched = world.matching().comm(comm);
                let ranks = groups.groups()[*group].iter();
                let parts: Vec<u32> = ranks.filter_map(|rank| matched.arriving_part(*rank)).collect();
                let missing = match part {
                    None => parts.len(),
                    Some(part) => usize::from(parts.contains(&part)),
                };
                (missing > 0)
                    .then(|| *known.entry((comm, part)).or_insert_with(|| machine.add_event(missing as u32)))
            }
        }
    }
}

/// The state while a machine is built.
pub(super) struct Builder<'w, P> {
    world: &'w World,
    order: WaitOrder,
    machine: Machine<P>,
    arrivals: Arrivals<'w>,
    /// By group of NCCL: the event that all members have issued their first communication.
    created: FxHashMap<GroupNo, u32>,
    /// By communication in which NCCL connects its parts: the event that the hosts of all parts have issued it.
    connected: FxHashMap<CommNo, u32>,
    /// By number: the events and the works of the current rank that are known so far.
    recorded: Vec<Option<u32>>,
    complete: Vec<Option<u32>>,
    /// By barrier: the event that all work for which hosts have waited before it has ended.
    met: FxHashMap<CommNo, u32>,
    /// The barriers that the host of the current rank has passed, and by stream, how many of them its last instruction follows.
    passed: (Vec<CommNo>, Vec<usize>),
    /// The end of the last instruction in which the host of the current rank waits.
    issued: Option<u32>,
    /// The posting of the current instruction.
    posted: Option<u32>,
    waits: Waits,
}

impl<'w, P: Progress> Builder<'w, P> {
    pub(super) fn new(
        world: &'w World,
        order: WaitOrder,
        machine: Machine<P>,
        arrivals: Arrivals<'w>,
    ) -> Self {
        let (recorded, complete) = (Vec::new(), Vec::new());
        Self {
            world,
            order,
            machine,
            arrivals,
            created: FxHashMap::default(),
            connected: FxHashMap::default(),
            recorded,
            complete,
            met: FxHashMap::default(),
            passed: (Vec::new(), Vec::new()),
            issued: None,
            posted: None,
            waits: Waits::default(),
        }
    }

    /// Distributes the instructions of some plans, whose actors the machine has in their order.
    pub(super) fn finish<'p>(
        mut self,
        plans: impl IntoIterator<Item = &'p Plan>,
        is_dropped: &dyn Fn(InstRef) -> bool,
    ) -> Machine<P> {
        let mut first = 0;
        for plan in plans {
            self.add_plan(plan, first, is_dropped);
            first += actor_count(plan) as usize;
        }
        let mut machine = self.machine;
        for item in machine.actors.iter().flat_map(|it| &it.items) {
            for needed in [item.tokens[0]..item.tokens[1], item.tokens[2]..item.tokens[3]] {
                for token in needed {
                    machine.events[machine.tokens[token as usize] as usize].uses += 1;
                }
            }
        }
        machine
    }

    /// Distributes a rank's instructions over its actors: the streams from `first` on, then the queues.
    fn add_plan(&mut self, plan: &Plan, first: usize, is_dropped: &dyn Fn(InstRef) -> bool) {
        let rank = plan.rank;
        self.recorded = vec![None; plan.event_count];
        self.complete = vec![None; plan.work_count];
        self.issued = None;
        self.passed = (Vec::new(), vec![0; plan.streams.len()]);
        for (inst, it) in plan.code.iter().enumerate() {
            let at = InstRef { rank, inst };
            let effect = it.kind.effect();
            if effect.runs_on_host() {
                if self.order != WaitOrder::Guaranteed {
                    let host = self.machine.actors.len() - self.world.len() + rank;
                    self.push(host, Actor::Host(rank), at, false, false);
                } else if let SyncEffect::Barrier = effect {
                    self.passed.0.extend(self.world.matching().ordering_barrier(at));
                }
                continue;
            }
            let is_dropped = match effect {
                SyncEffect::RecordEvent(_)
                | SyncEffect::WaitEvent(_)
                | SyncEffect::Wait(_)
                | SyncEffect::WaitSignal(_) => is_dropped(at),
                crate::host_effects!()
                | SyncEffect::Compute
                | SyncEffect::Signal(_)
                | SyncEffect::Post(_)
                | SyncEffect::Reshard(_)
                | SyncEffect::ReadOutputs => false,
            };
            let communication = it.kind.communication();
            if communication.is_some() && self.blocks_host(at) {
                let host = self.machine.actors.len() - self.world.len() + rank;
                self.push(host, Actor::Host(rank), at, false, false);
            }
            let stream = first + it.stream as usize;
            self.push(stream, Actor::Stream(rank, it.stream), at, communication.is_some(), is_dropped);
            if let Some(it) = communication {
                let number = it.communicator();
                let number = self.world.matching().queue_of(rank, number).unwrap_or(number);
                let queue = first + plan.streams.len() + number as usize;
                self.push(queue, Actor::Queue(rank, number), at, false, false);
            }
        }
    }

    /// Returns whether a host may block in a post.
    fn blocks_host(&self, at: InstRef) -> bool {
        let WaitOrder::Hosts { creates, connects } = self.order else { return false };
        let matching = self.world.matching();
        let is_new = |it: &CommNo| self.world.connections().contains(it);
        creates && matching.created_by(at).is_some() || connects && matching.comms_of(at).iter().any(is_new)
    }

    /// Adds an instruction to an actor. In a blocking order, instructions without events are left out: no actor waits in
    /// them or for them.
    fn push(&mut self, number: usize, actor: Actor, at: InstRef, is_post: bool, is_dropped: bool) {
        let mut waits = std::mem::take(&mut self.waits);
        if is_dropped {
            waits.clear();
        } else {
            waits.set(self.world, self.order, actor, at.inst);
        }
        let mut tokens = [self.machine.tokens.len() as u32; 5];
        if let Actor::Stream(_, stream) = actor {
            self.follow_barriers(stream as usize);
        }
        for (phase, events) in
            [&waits.to_begin, &waits.begun, &waits.to_end, &waits.ended].into_iter().enumerate()
        {
            for event in events {
                let is_needed = phase % 2 == 0;
                let token = if is_needed { self.needed(number, *event) } else { self.signalled(*event) };
                self.machine.tokens.extend(token);
            }
            tokens[phase + 1] = self.machine.tokens.len() as u32;
        }
        if self.order == WaitOrder::Guaranteed
            && !is_dropped
            && let Actor::Stream(..) = actor
            && let Some(barrier) = self.world.matching().barrier_behind(at)
        {
            let token = self.met(barrier);
            self.machine.events[token as usize].missing += 1;
            self.machine.tokens.push(token);
            tokens[4] += 1;
        }
        self.waits = waits;
        if self.order == WaitOrder::Guaranteed || tokens[0] < tokens[4] {
            self.machine.actors[number].items.push(Item { inst: at.inst as u32, is_post, tokens });
        }
    }

    /// Lets the next item of a stream follow what hosts have waited for before the barriers that its host has passed.
    fn follow_barriers(&mut self, stream: usize) {
        let Some(known) = self.passed.1.get_mut(stream) else { return };
        let from = std::mem::replace(known, self.passed.0.len());
        for at in from..self.passed.0.len() {
            let token = self.met(self.passed.0[at]);
            self.machine.tokens.push(token);
        }
    }

    /// Returns the token of the event that all work for which hosts have waited before a barrier has ended.
    fn met(&mut self, barrier: CommNo) -> u32 {
        let machine = &mut self.machine;
        *self.met.entry(barrier).or_insert_with(|| machine.add_event(0))
    }

    /// Returns the token of an event that an item of an actor needs; `None` if it has happened when the actor reaches the item.
    fn needed(&mut self, actor: usize, event: Event) -> Option<u32> {
        match event {
            // A host issues everything up to the next instruction in which it waits.
            Event::Issued(_) => {
                let known = std::mem::replace(&mut self.machine.actors[actor].issued_by, self.issued);
                self.issued.filter(|_| known != self.issued)
            }
            Event::Posted(_) => self.posted,
            // An event that is not known here is recorded by a dropped instruction.
            Event::Recorded(_, number) if self.order == WaitOrder::Guaranteed => {
                *self.recorded.get(number as usize)?
            }
            Event::Recorded(..)
            | Event::Complete(..)
            | Event::Arrived(..)
            | Event::AllArrived(_)
            | Event::AllIssued(_)
            | Event::Created(_) => self.signalled(event),
        }
    }

    /// Returns the token of an event that happens at an item; `None` if it is left out.
    fn signalled(&mut self, event: Event) -> Option<u32> {
        Some(match event {
            Event::Issued(_) => *self.issued.insert(self.machine.add_event(1)),
            Event::Posted(_) => *self.posted.insert(self.machine.add_event(1)),
            Event::Recorded(_, number) => self.machine.known_or_new(&mut self.recorded, number),
            Event::Complete(_, number) => self.machine.known_or_new(&mut self.complete, number),
            Event::Arrived(comm, part) => {
                return self.arrivals.token(self.world, &mut self.machine, (comm, Some(part)));
            }
            Event::AllArrived(comm) => {
                return self.arrivals.token(self.world, &mut self.machine, (comm, None));
            }
            Event::AllIssued(comm) => {
                let (matching, machine) = (self.world.matching(), &mut self.machine);
                let parts = matching.expected_parts(matching.comm(comm)) as u32;
                *self.connected.entry(comm).or_insert_with(|| machine.add_event(parts))
            }
            Event::Created(group) => {
                let members = self.world.matching().groups[group as usize].team.len();
                let machine = &mut self.machine;
                *self.created.entry(group).or_insert_with(|| machine.add_event(members as u32))
            }
        })
    }
}
