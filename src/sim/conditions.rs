//! Stores which conditions hold, and which actors wait for those that do not hold yet.
//!
//! A world of many ranks has millions of conditions, so each takes one byte. Waiters are stored only until
//! their condition holds.

use rustc_hash::FxHashMap;

use super::machine::Condition;
use hir_plan::World;

/// The conditions of all ranks.
pub(super) struct Conditions {
    /// By rank and event number.
    events: Vec<Vec<bool>>,
    /// By rank and work number.
    works: Vec<Vec<bool>>,
    /// By communication.
    comms: Vec<bool>,
    waiters: FxHashMap<Condition, Vec<usize>>,
}

impl Conditions {
    /// Returns the state in which no condition holds.
    pub(super) fn new(world: &World) -> Self {
        Self {
            events: world.iter().map(|it| vec![false; it.event_count]).collect(),
            works: world.iter().map(|it| vec![false; it.work_count]).collect(),
            comms: vec![false; world.matching().comms.len()],
            waiters: FxHashMap::default(),
        }
    }

    /// Returns true if a condition holds.
    pub(super) fn holds(&self, condition: Condition) -> bool {
        let is_set = |all: &[bool], number: u32| all.get(number as usize).copied().unwrap_or(false);
        match condition {
            Condition::Event(rank, number) => is_set(&self.events[rank], number),
            Condition::Work(rank, number) => is_set(&self.works[rank], number),
            Condition::Comm(number) => is_set(&self.comms, number),
        }
    }

    /// Registers an actor to wake up when a condition holds.
    pub(super) fn add_waiter(&mut self, condition: Condition, actor: usize) {
        self.waiters.entry(condition).or_default().push(actor);
    }

    /// Sets a condition, and returns the actors to wake up.
    pub(super) fn set(&mut self, condition: Condition) -> Vec<usize> {
        let all = match condition {
            Condition::Event(rank, _) => &mut self.events[rank],
            Condition::Work(rank, _) => &mut self.works[rank],
            Condition::Comm(_) => &mut self.comms,
        };
        let (Condition::Event(_, number) | Condition::Work(_, number) | Condition::Comm(number)) = condition;
        if let Some(it) = all.get_mut(number as usize) {
            *it = true;
        }
        self.waiters.remove(&condition).unwrap_or_default()
    }
}
