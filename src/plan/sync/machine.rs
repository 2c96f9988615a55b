//! Executes the actors of all ranks without memory: each runs as far as the events of `waits` allow.
//!
//! Events stay true and actors do not compete for resources, so all schedules end in the same state, and one schedule
//! decides: every actor runs as far as it can. `happens_before` executes with clocks; `deadlock_detection` looks at the
//! actors that do not finish.

use rustc_hash::FxHashMap;

use super::{
    Actor, CommKey, CommNo, Event, InstRef, MemoryGroups, WaitOrder, Waits, World, memory_groups::actor_count,
};
use crate::{Plan, SyncEffect};

/// What an actor knows of the progress of all actors: a clock, or nothing.
pub(super) trait Progress: Clone {
    /// Adds the progress that another actor knows.
    fn join(&mut self, other: &Self);
    /// Counts an instruction of the actor that has ended.
    fn end_instruction(&mut self);
    /// Prepares for being joined into that of several actors.
    fn share(&mut self);
}

impl Progress for () {
    fn join(&mut self, (): &Self) {}

    fn end_instruction(&mut self) {}

    fn share(&mut self) {}
}

/// All actors, and the events between them.
pub(super) struct Machine<P> {
    /// The streams and queues, numbered as `first_actors` says; then the hosts, unless the order is the guaranteed one.
    pub actors: Vec<ActorState<P>>,
    /// Indices into `events`.
    pub tokens: Vec<u32>,
    pub events: Vec<EventState<P>>,
}

/// An actor with the instructions that it executes.
pub(super) struct ActorState<P> {
    pub rank: usize,
    pub items: Vec<Item>,
    /// The first item that has not ended.
    pub next: usize,
    /// Whether that item has begun.
    begun: bool,
    progress: P,
    /// While the machine is built: the event of the last host instruction that an item of this actor needs.
    issued_by: Option<u32>,
}

/// An instruction of an actor. `tokens` are the bounds of four consecutive ranges of `Machine::tokens`: the events of
/// `Waits`.
pub(super) struct Item {
    pub inst: u32,
    /// True if the stream only posts a communication here. The queue's item for the communication is visited
    /// instead.
    pub is_post: bool,
    pub tokens: [u32; 5],
}

/// An event that happens when all its signalling items have signalled it.
pub(super) struct EventState<P> {
    /// The joined progress of the items that have signalled it, kept as long as an item needs it.
    progress: Option<P>,
    /// The number of items that have not signalled it yet.
    missing: u32,
    /// The number of items that still need it.
    uses: u32,
    waiters: Vec<usize>,
}

/// Returns, by rank, the actor of its stream 0. The actors of its other streams follow, and then those of its
/// communicator queues.
pub fn first_actors(plans: &[Plan]) -> Vec<u32> {
    let mut next = 0;
    let first = |plan: &Plan| {
        let actor = next;
        next += actor_count(plan);
        actor
    };
    plans.iter().map(first).collect()
}

impl<P: Progress> Machine<P> {
    /// Distributes the instructions of all ranks over their actors. Synchronization instructions for which `is_dropped`
    /// holds wait for nothing and record nothing. `progress` returns what an actor knows at the beginning.
    pub fn new(
        world: &World,
        order: WaitOrder,
        is_dropped: &dyn Fn(InstRef) -> bool,
        progress: impl Fn(u32) -> P,
    ) -> Self {
        let mut machine = Self::of_actors(world.plans(), &progress);
        let hosts = if order == WaitOrder::Guaranteed { 0 } else { world.len() };
        (0..hosts).for_each(|rank| machine.add_actor(rank, &progress));
        let arrivals = Arrivals::of_all(world, order, &mut machine);
        Builder::new(world, order, machine, arrivals).finish(world.plans(), is_dropped)
    }

    /// As `new`, for the own order of a group (`memory_groups`): without ranks of other groups, and without what happens on
    /// them. The actors of the group are numbered from 0.
    pub fn of_group(
        world: &World,
        (groups, group): (&MemoryGroups, usize),
        progress: impl Fn(u32) -> P,
    ) -> Self {
        let plans = || groups.groups()[group].iter().map(|rank| &world[*rank]);
        let machine = Self::of_actors(plans(), &progress);
        let arrivals = Arrivals::OfGroup { groups, group, known: FxHashMap::default() };
        Builder::new(world, WaitOrder::Guaranteed, machine, arrivals).finish(plans(), &|_| false)
    }

    /// As `new`, for some ranks, without any orders between ranks. The actors of these ranks are numbered from 0.
    pub fn of_ranks(world: &World, ranks: &[usize], progress: impl Fn(u32) -> P) -> Self {
        let plans = || ranks.iter().map(|rank| &world[*rank]);
        let machine = Self::of_actors(plans(), &progress);
        Builder::new(world, WaitOrder::Guaranteed, machine, Arrivals::None).finish(plans(), &|_| false)
    }

    /// Returns the streams and queues of some ranks, without instructions.
    fn of_actors<'p>(plans: impl IntoIterator<Item = &'p Plan>, progress: &impl Fn(u32) -> P) -> Self {
        let mut machine = Self { actors: Vec::new(), tokens: Vec::new(), events: Vec::new() };
        for plan in plans {
            (0..actor_count(plan)).for_each(|_| machine.add_actor(plan.rank, progress));
        }
        machine
    }

    fn add_actor(&mut self, rank: usize, progress: &impl Fn(u32) -> P) {
        let progress = progress(self.actors.len() as u32);
        self.actors.push(ActorState {
            rank,
            items: Vec::new(),
            next: 0,
            begun: false,
            progress,
            issued_by: None,
        });
    }

    fn add_event(&mut self, missing: u32) -> u32 {
        self.events.push(EventState { progress: None, missing, uses: 0, waiters: Vec::new() });
        self.events.len() as u32 - 1
    }

    /// Returns the event with a number of the current rank. A number that its plan does not count has an event of its own.
    fn known_or_new(&mut self, known: &mut [Option<u32>], number: u32) -> u32 {
        match known.get_mut(number as usize) {
            Some(it) => *it.get_or_insert_with(|| self.add_event(1)),
            None => self.add_event(1),
        }
    }

    /// Runs all actors as far as they can. Calls `visit` for each instruction that begins on its stream or on its queue,
    /// with its actor and what that knows. Returns whether all actors finish.
    pub fn run(&mut self, visit: &mut dyn FnMut(InstRef, u32, &P)) -> bool {
        let mut ready: Vec<usize> = (0..self.actors.len()).rev().collect();
        while let Some(actor) = ready.pop() {
            self.run_actor(actor, &mut ready, visit);
        }
        self.actors.iter().all(|it| it.next == it.items.len())
    }

    fn run_actor(&mut self, at: usize, ready: &mut Vec<usize>, visit: &mut dyn FnMut(InstRef, u32, &P)) {
        while let Some(item) = self.actors[at].items.get(self.actors[at].next) {
            let (inst, is_post, [start, begin, middle, end, stop]) =
                (item.inst as usize, item.is_post, item.tokens);
            if !self.actors[at].begun {
                if !self.acquire_events(at, start, begin) {
                    return;
                }
                let it = &mut self.actors[at];
                it.begun = true;
                if !is_post {
                    visit(InstRef { rank: it.rank, inst }, at as u32, &it.progress);
                }
                self.signal_events(at, begin, middle, ready);
            }
            if !self.acquire_events(at, middle, end) {
                return;
            }
            let it = &mut self.actors[at];
            it.begun = false;
            it.next += 1;
            it.progress.end_instruction();
            self.signal_events(at, end, stop, ready);
        }
    }

    /// Joins the progress of all events of a range into that of the actor. Returns false and changes nothing if
    /// an event has not happened; the event then wakes the actor up.
    fn acquire_events(&mut self, at: usize, from: u32, to: u32) -> bool {
        let tokens = &self.tokens[from as usize..to as usize];
        if let Some(missing) = tokens.iter().find(|it| self.events[**it as usize].missing > 0) {
            self.events[*missing as usize].waiters.push(at);
            return false;
        }
        for token in tokens {
            let event = &mut self.events[*token as usize];
            if let Some(progress) = &event.progress {
                self.actors[at].progress.join(progress);
            }
            event.uses -= 1;
            if event.uses == 0 {
                event.progress = None;
            }
        }
        true
    }

    /// Signals all events of a range.
    fn signal_events(&mut self, at: usize, from: u32, to: u32, ready: &mut Vec<usize>) {
        for token in &self.tokens[from as usize..to as usize] {
            let event = &mut self.events[*token as usize];
            // A signal that is set a second time is ignored.
            if event.uses == 0 || event.missing == 0 {
                continue;
            }
            let progress = &self.actors[at].progress;
            event.missing -= 1;
            match &mut event.progress {
                None => event.progress = Some(progress.clone()),
                Some(all) => {
                    all.join(progress);
                    // All members share the progress.
                    if event.missing == 0 {
                        all.share();
                    }
                }
            }
            if event.missing == 0 {
                ready.append(&mut event.waiters);
            }
        }
    }
}

/// The events that parts of communications have arrived.
enum Arrivals<'w> {
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
    fn of_all<P: Progress>(world: &World, order: WaitOrder, machine: &mut Machine<P>) -> Self {
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
struct Builder<'w, P> {
    world: &'w World,
    order: WaitOrder,
    machine: Machine<P>,
    arrivals: Arrivals<'w>,
    /// By communication that creates a communicator: the event that all hosts have issued it.
    initialized: FxHashMap<CommNo, u32>,
    /// By number: the events and the works of the current rank that are known so far.
    recorded: Vec<Option<u32>>,
    complete: Vec<Option<u32>>,
    /// The end of the last instruction in which the host of the current rank waits.
    issued: Option<u32>,
    /// The posting of the current instruction.
    posted: Option<u32>,
    waits: Waits,
}

impl<'w, P: Progress> Builder<'w, P> {
    fn new(world: &'w World, order: WaitOrder, machine: Machine<P>, arrivals: Arrivals<'w>) -> Self {
        let (recorded, complete) = (Vec::new(), Vec::new());
        Self {
            world,
            order,
            machine,
            arrivals,
            initialized: FxHashMap::default(),
            recorded,
            complete,
            issued: None,
            posted: None,
            waits: Waits::default(),
        }
    }

    /// Distributes the instructions of some plans, whose actors the machine has in their order.
    fn finish<'p>(
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
        for (inst, it) in plan.code.iter().enumerate() {
            let at = InstRef { rank, inst };
            let effect = it.kind.effect();
            if effect.runs_on_host() {
                if self.order != WaitOrder::Guaranteed {
                    let host = self.machine.actors.len() - self.world.len() + rank;
                    self.push(host, Actor::Host(rank), at, false, false);
                }
                continue;
            }
            let is_dropped = match effect {
                SyncEffect::RecordEvent(_)
                | SyncEffect::WaitEvent(_)
                | SyncEffect::Wait(_)
                | SyncEffect::WaitSignal(_) => is_dropped(at),
                SyncEffect::ShareMemHandles(_)
                | SyncEffect::Barrier
                | SyncEffect::HostWait(_)
                | SyncEffect::Compute
                | SyncEffect::Signal(_)
                | SyncEffect::Post(_)
                | SyncEffect::Reshard(_)
                | SyncEffect::ReadOutputs => false,
            };
            let communication = it.kind.communication();
            let matching = self.world.matching();
            let connects = |it: &CommNo| matching.is_of_first_post(*it);
            if self.order == WaitOrder::Initializing
                && communication.is_some()
                && matching.comms_of(at).iter().any(connects)
            {
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
        self.waits = waits;
        if self.order == WaitOrder::Guaranteed || tokens[0] < tokens[4] {
            self.machine.actors[number].items.push(Item { inst: at.inst as u32, is_post, tokens });
        }
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
            | Event::AllIssued(_) => self.signalled(event),
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
                let matching = self.world.matching();
                let parts = matching.expected_parts(matching.comm(comm));
                let machine = &mut self.machine;
                *self.initialized.entry(comm).or_insert_with(|| machine.add_event(parts as u32))
            }
        })
    }
}
