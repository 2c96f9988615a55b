//! The happens-before order of the instructions of all ranks, derived from the plans.
//!
//! `walk` visits all instructions of all ranks, each after all instructions that happen before it, with its
//! clock: the number of instructions of every actor that have ended when it begins. X happens before Y if and
//! only if the clock of Y counts X as ended. The clocks are vector clocks (Mattern 1989) with one component
//! for each *actor*: a stream of a rank, or a rank's queue of one communicator.
//!
//! `waits` defines the order: the guaranteed one. `ShareMemHandles` and `Barrier` order hosts, add nothing to it and are
//! not visited.
//!
//! Invariant: each signal (`SignalId`) is set once in each run. The walk does not distinguish two
//! instructions that set the same signal.

use std::rc::Rc;

pub use super::machine::first_actors;
use super::{InstRef, WaitOrder, World, machine::Machine};

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

/// Like `walk`, but some synchronization instructions have no effect. `is_dropped` is called for each
/// instruction that records an event, or waits for an event, a work or a signal.
///
/// # Errors
/// As for `walk`.
pub fn walk_ignoring(
    world: &World,
    is_dropped: &dyn Fn(InstRef) -> bool,
    visit: &mut dyn FnMut(Occurrence),
) -> Result<(), OrderError> {
    let count = actor_count(world)?;
    let known = Rc::new(vec![0; count]);
    let clock = |actor| Clock { known: Rc::clone(&known), actor, ended: 0 };
    let mut machine = Machine::new(world, WaitOrder::Guaranteed, is_dropped, clock);
    let has_finished = machine.run(&mut |InstRef { rank, inst }, actor, clock| {
        visit(Occurrence { rank, inst, actor, number: clock.ended + 1, clock: clock.clone() });
    });
    if has_finished { Ok(()) } else { Err(OrderError::Deadlock) }
}

/// Returns the number of actors, which is the length of each clock.
fn actor_count(world: &World) -> Result<usize, OrderError> {
    let count = world.iter().map(|it| it.streams.len() + it.communicators.len()).sum::<usize>();
    if count.saturating_mul(count) > MAX_CLOCK_ENTRIES { Err(OrderError::TooLarge) } else { Ok(count) }
}
