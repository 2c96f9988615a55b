//! The happens-before order of the instructions of all ranks, derived from the plans.
//!
//! `walk` visits all instructions of all ranks, each after all instructions that happen before it, with its
//! clock: the number of instructions of every actor that have ended when it begins. X happens before Y if and
//! only if the clock of Y counts X as ended. The clocks are vector clocks (Mattern 1989) with one component
//! for each *actor*: a stream of a rank, or a rank's queue of one communicator.
//!
//! `waits` defines the order: the guaranteed one. `ShareMemHandles` and `Barrier` order hosts and are not visited.
//!
//! Invariant: each signal (`SignalId`) is set once in each run. The walk does not distinguish two
//! instructions that set the same signal.

use std::{ops::ControlFlow, rc::Rc};

pub use super::machine::first_actors;
use super::{
    InstRef, MemoryGroups, WaitOrder, World,
    machine::Machine,
    memory_groups::{actor_count, total_actors},
};

mod clock;
mod dot;
mod graph;
#[cfg(test)]
mod tests;

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

impl std::fmt::Display for OrderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deadlock => "some instructions wait for something that never happens",
            Self::TooLarge => "the ranks have too many streams",
        })
    }
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
    let mut visit = |at| {
        visit(at);
        ControlFlow::Continue(())
    };
    walk_ignoring(world, &|_| false, &mut visit).map(drop)
}

/// Like `walk`, but some synchronization instructions have no effect, and the walk ends with the visit that breaks. `is_dropped` is called for
/// each instruction that records an event, or waits for an event, a work or a signal.
///
/// # Errors
/// As for `walk`, as far as the walk goes.
pub fn walk_ignoring(
    world: &World,
    is_dropped: &dyn Fn(InstRef) -> bool,
    visit: &mut dyn FnMut(Occurrence) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, OrderError> {
    let known = Rc::new(vec![0; clock_len(total_actors(world))?]);
    let clock = |actor| Clock::new(&known, 0, actor);
    let mut machine = Machine::new(world, WaitOrder::Guaranteed, is_dropped, clock);
    let run = machine.run_until(&mut |InstRef { rank, inst }, actor, clock| {
        visit(Occurrence { rank, inst, actor, number: clock.ended + 1, clock: clock.clone() })
    });
    match run {
        ControlFlow::Continue(false) => Err(OrderError::Deadlock),
        ControlFlow::Continue(true) => Ok(ControlFlow::Continue(())),
        ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
    }
}

/// Which orders between the instructions of a group of ranks count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupOrders {
    /// The own order of the group (`MemoryGroups`).
    Own,
    /// All, also those that lead through other groups. The instructions of all ranks are executed.
    All,
}

/// Visits the instructions of a group, as `walk` does with those of the world. Actors have the numbers of `groups`, and clocks
/// count those of the group only.
///
/// # Errors
/// As for `walk`.
pub fn walk_group(
    world: &World,
    (groups, group): (&MemoryGroups, usize),
    orders: GroupOrders,
    visit: &mut dyn FnMut(Occurrence),
) -> Result<(), OrderError> {
    let own = groups.actors(group);
    let known = Rc::new(vec![0; clock_len(own.len())?]);
    let clock = |actor| Clock::new(&known, own.start, actor);
    let mut see = |InstRef { rank, inst }, actor, clock: &Clock| {
        if own.contains(&actor) {
            visit(Occurrence { rank, inst, actor, number: clock.ended + 1, clock: clock.clone() });
        }
    };
    let has_finished = match orders {
        GroupOrders::Own if !groups.is_whole() => {
            let mut machine = Machine::of_group(world, (groups, group), |actor| clock(own.start + actor));
            machine.run(&mut |at, actor, clock| see(at, own.start + actor, clock))
        }
        GroupOrders::Own | GroupOrders::All => {
            let numbers = groups.numbers(world);
            let number = |actor: u32| numbers[actor as usize];
            let mut machine =
                Machine::new(world, WaitOrder::Guaranteed, &|_| false, |actor| clock(number(actor)));
            machine.run(&mut |at, actor, clock| see(at, number(actor), clock))
        }
    };
    if has_finished { Ok(()) } else { Err(OrderError::Deadlock) }
}

/// Visits the instructions of one rank, as `walk` does with those of the world, in the order that its streams and queues alone make.
/// Actors are numbered from 0: the streams, and then the queues.
///
/// # Errors
/// The rank has too many streams and communicators.
pub fn walk_rank(world: &World, rank: usize, visit: &mut dyn FnMut(Occurrence)) -> Result<(), OrderError> {
    let known = Rc::new(vec![0; clock_len(actor_count(&world[rank]) as usize)?]);
    let mut machine = Machine::of_ranks(world, &[rank], |actor| Clock::new(&known, 0, actor));
    machine.run(&mut |InstRef { rank, inst }, actor, clock| {
        visit(Occurrence { rank, inst, actor, number: clock.ended + 1, clock: clock.clone() });
    });
    Ok(())
}

/// Returns the number of actors, which is the length of each clock, if the clocks are not too large.
fn clock_len(actors: usize) -> Result<usize, OrderError> {
    if actors.saturating_mul(actors) > MAX_CLOCK_ENTRIES { Err(OrderError::TooLarge) } else { Ok(actors) }
}
