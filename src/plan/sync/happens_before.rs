//! The happens-before order of the instructions of all ranks, derived from the plans.
//!
//! `walk` visits all instructions of all ranks, each after all instructions that happen before it, with its
//! clock: the number of instructions of every actor that have ended when it begins. X happens before Y if and
//! only if the clock of Y counts X as ended. The clocks are vector clocks (Mattern 1989) with one component
//! for each *actor*: a stream of a rank, or a rank's queue of one communicator.
//!
//! The order contains only what every executor guarantees:
//!
//! * The instructions of an actor execute one after another.
//! * A queue waits for the instructions that precede the post on the posting stream. `Wait` waits for the
//!   work, `WaitEvent` for the event recorded before it, and `WaitSignal` for the signal.
//! * A member's part of a communication ends after the parts whose data it receives have begun, and waits for
//!   no others: the root of a broadcast waits for no member, members of an allgather wait for all, and a
//!   member that receives no elements waits for none. The simulator lets all members meet, but NCCL does not.
//! * A `Reshard` ends after all members of its team have begun. Only the simulator executes it.
//! * `ShareMemHandles` and `Barrier` order hosts, and streams run behind their hosts. They add nothing to the
//!   order and are not visited.
//!
//! Invariant: each signal (`SignalId`) is set once in each run. The walk does not distinguish two
//! instructions that set the same signal.

use std::rc::Rc;

use super::{InstRef, World};
use crate::Plan;

mod build;
mod clock;
mod dot;
mod graph;
#[cfg(test)]
mod tests;

use build::RunBuilder;
pub use clock::{Clock, Occurrence};
pub use graph::{HappensBeforeGraph, Node};

/// The maximum number of entries in the clocks of all actors together: 16,384 actors, 1 GiB. Each clock has
/// one entry for each actor.
const MAX_CLOCK_ENTRIES: usize = 1 << 28;

/// The reason why no order exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderError {
    /// Some instructions wait for something that never happens.
    Deadlock,
    /// There are too many actors: their clocks would be too large.
    TooLarge,
}

/// Returns, by rank, the actor of its stream 0. The actors of its other streams follow, and then those of its
/// communicator queues.
pub fn first_actors(plans: &[Plan]) -> Vec<u32> {
    let mut next = 0;
    let first = |plan: &Plan| {
        let actor = next;
        next += (plan.streams.len() + plan.communicators.len()) as u32;
        actor
    };
    plans.iter().map(first).collect()
}

/// Visits every instruction of all ranks except `ShareMemHandles` and `Barrier`, each after all instructions
/// that happen before it. The order of visits is deterministic.
///
/// Time is proportional to the number of instructions, plus the number of actors for each instruction that
/// waits. Memory is proportional to the number of instructions, plus the number of actors for each
/// instruction that others wait for at one time.
///
/// # Errors
/// The plans deadlock (reported after some visits), or the world has too many streams (reported before any
/// visit).
pub fn walk(world: &World, visit: &mut dyn FnMut(Occurrence)) -> Result<(), OrderError> {
    walk_ignoring(world, &|_| false, visit)
}

/// Like `walk`, but some synchronisation instructions have no effect. `is_dropped` is called for each
/// instruction that records an event, or waits for an event, a work or a signal.
///
/// # Errors
/// As for `walk`.
pub fn walk_ignoring(
    world: &World,
    is_dropped: &dyn Fn(InstRef) -> bool,
    visit: &mut dyn FnMut(Occurrence),
) -> Result<(), OrderError> {
    let mut run = Run::of(world, is_dropped)?;
    let mut ready: Vec<usize> = (0..run.actors.len()).rev().collect();
    let mut left = run.actors.iter().filter(|it| !it.items.is_empty()).count();
    while let Some(actor) = ready.pop() {
        left -= usize::from(run.run(actor, &mut ready, visit));
    }
    match left {
        0 => Ok(()),
        _ => Err(OrderError::Deadlock),
    }
}

/// A stream or a queue.
struct Actor {
    rank: usize,
    items: Vec<Item>,
    next: usize,
    /// Whether the next item has begun.
    begun: bool,
    clock: Clock,
}

/// An instruction of an actor. `tokens` are the bounds of four consecutive ranges of `Run::tokens`: the
/// events that must have happened for it to begin, those that happen when it begins, those that must have
/// happened for it to end, and those that happen when it ends.
struct Item {
    inst: u32,
    /// True if the stream only posts a communication here. The queue's item for the communication is visited
    /// instead.
    is_post: bool,
    tokens: [u32; 5],
}

/// An event that happens once, when all its signalling items have signalled it.
struct Event {
    /// The joined clock of the items that have signalled it, kept as long as an item needs it.
    clock: Option<Clock>,
    /// The number of items that have not signalled it yet.
    missing: u32,
    /// The number of items that still need it.
    uses: u32,
    waiters: Vec<usize>,
}

/// The events that an item needs and signals.
#[derive(Default)]
struct Deps {
    to_begin: Vec<u32>,
    begun: Vec<u32>,
    to_end: Vec<u32>,
    ended: Vec<u32>,
}

/// All actors, and the events between them.
struct Run {
    actors: Vec<Actor>,
    tokens: Vec<u32>,
    events: Vec<Event>,
}

impl Event {
    fn with_signals(missing: u32) -> Self {
        Self { clock: None, missing, uses: 0, waiters: Vec::new() }
    }
}

impl Run {
    fn of(world: &World, is_dropped: &dyn Fn(InstRef) -> bool) -> Result<Self, OrderError> {
        let count = world.iter().map(|it| it.streams.len() + it.communicators.len()).sum::<usize>();
        if count.saturating_mul(count) > MAX_CLOCK_ENTRIES {
            return Err(OrderError::TooLarge);
        }
        let known = Rc::new(vec![0; count]);
        let mut run = Self { actors: Vec::with_capacity(count), tokens: Vec::new(), events: Vec::new() };
        let mut reader = RunBuilder::new(world.matching());
        for (plan, first) in world.iter().zip(first_actors(world)) {
            let first = first as usize;
            for actor in first..first + plan.streams.len() + plan.communicators.len() {
                let clock = Clock { known: Rc::clone(&known), actor: actor as u32, ended: 0 };
                run.actors.push(Actor { rank: plan.rank, items: Vec::new(), next: 0, begun: false, clock });
            }
            reader.plan(plan, first, is_dropped, &mut run);
        }
        run.events = reader.events;
        for it in &run.actors {
            for item in &it.items {
                for needed in [item.tokens[0]..item.tokens[1], item.tokens[2]..item.tokens[3]] {
                    for token in needed {
                        run.events[run.tokens[token as usize] as usize].uses += 1;
                    }
                }
            }
        }
        Ok(run)
    }

    fn push(&mut self, actor: usize, inst: usize, posts: bool, deps: &Deps) {
        let mut tokens = [self.tokens.len() as u32; 5];
        for (at, some) in [&deps.to_begin, &deps.begun, &deps.to_end, &deps.ended].into_iter().enumerate() {
            self.tokens.extend(some);
            tokens[at + 1] = self.tokens.len() as u32;
        }
        self.actors[actor].items.push(Item { inst: inst as u32, is_post: posts, tokens });
    }

    /// Runs an actor as far as possible. Returns true if the actor has finished.
    fn run(&mut self, at: usize, ready: &mut Vec<usize>, visit: &mut dyn FnMut(Occurrence)) -> bool {
        while let Some(item) = self.actors[at].items.get(self.actors[at].next) {
            let (inst, posts, [start, begin, middle, end, stop]) =
                (item.inst as usize, item.is_post, item.tokens);
            if !self.actors[at].begun {
                if !self.acquire_events(at, start, begin) {
                    return false;
                }
                let it = &mut self.actors[at];
                it.begun = true;
                if !posts {
                    let (rank, before) = (it.rank, it.clock.clone());
                    visit(Occurrence {
                        rank,
                        inst,
                        actor: at as u32,
                        number: before.ended + 1,
                        clock: before,
                    });
                }
                self.signal_events(at, begin, middle, ready);
            }
            if !self.acquire_events(at, middle, end) {
                return false;
            }
            let it = &mut self.actors[at];
            it.begun = false;
            it.next += 1;
            it.clock.ended += 1;
            self.signal_events(at, end, stop, ready);
        }
        self.actors[at].next == self.actors[at].items.len() && self.actors[at].next > 0
    }

    /// Joins the clocks of all events of a range into the actor's clock. Returns false and changes nothing if
    /// an event has not happened; the event then wakes the actor up.
    fn acquire_events(&mut self, at: usize, from: u32, to: u32) -> bool {
        let tokens = &self.tokens[from as usize..to as usize];
        if let Some(missing) = tokens.iter().find(|it| self.events[**it as usize].missing > 0) {
            self.events[*missing as usize].waiters.push(at);
            return false;
        }
        for token in tokens {
            let event = &mut self.events[*token as usize];
            if let Some(clock) = &event.clock {
                self.actors[at].clock.join(clock);
            }
            event.uses -= 1;
            if event.uses == 0 {
                event.clock = None;
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
            let clock = &self.actors[at].clock;
            event.missing -= 1;
            match &mut event.clock {
                None => event.clock = Some(clock.clone()),
                Some(all) => {
                    all.join(clock);
                    // All members will share this vector.
                    if event.missing == 0 {
                        all.store_own_count();
                    }
                }
            }
            if event.missing == 0 {
                ready.append(&mut event.waiters);
            }
        }
    }
}
