//! Executes the actors of all ranks without memory: each runs as far as the events of `waits` allow.
//!
//! Events stay true and actors do not compete for resources, so all schedules end in the same state, and one schedule
//! decides: every actor runs as far as it can. `happens_before` executes with clocks; `deadlock_detection` looks at the
//! actors that do not finish.

mod builder;

use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

use self::builder::{Arrivals, Builder};
use super::{InstRef, MemoryGroups, WaitOrder, World, memory_groups::actor_count};
use crate::Plan;

/// Called for each instruction that begins, with its actor and what that knows. It ends the run if it breaks.
pub(super) type Visit<'v, P> = dyn FnMut(InstRef, u32, &P) -> ControlFlow<()> + 'v;

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
        let mut visit = |inst, actor, progress: &P| {
            visit(inst, actor, progress);
            ControlFlow::Continue(())
        };
        self.run_until(&mut visit) == ControlFlow::Continue(true)
    }

    /// Like `run`, but ends with the visit that breaks.
    pub fn run_until(&mut self, visit: &mut Visit<'_, P>) -> ControlFlow<(), bool> {
        let mut ready: Vec<usize> = (0..self.actors.len()).rev().collect();
        while let Some(actor) = ready.pop() {
            self.run_actor(actor, &mut ready, visit)?;
        }
        ControlFlow::Continue(self.actors.iter().all(|it| it.next == it.items.len()))
    }

    fn run_actor(&mut self, at: usize, ready: &mut Vec<usize>, visit: &mut Visit<'_, P>) -> ControlFlow<()> {
        while let Some(item) = self.actors[at].items.get(self.actors[at].next) {
            let (inst, is_post, [start, begin, middle, end, stop]) =
                (item.inst as usize, item.is_post, item.tokens);
            if !self.actors[at].begun {
                if !self.acquire_events(at, start, begin) {
                    return ControlFlow::Continue(());
                }
                let it = &mut self.actors[at];
                it.begun = true;
                if !is_post {
                    visit(InstRef { rank: it.rank, inst }, at as u32, &it.progress)?;
                }
                self.signal_events(at, begin, middle, ready);
            }
            if !self.acquire_events(at, middle, end) {
                return ControlFlow::Continue(());
            }
            let it = &mut self.actors[at];
            it.begun = false;
            it.next += 1;
            it.progress.end_instruction();
            self.signal_events(at, end, stop, ready);
        }
        ControlFlow::Continue(())
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
