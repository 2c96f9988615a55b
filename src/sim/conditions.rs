//! What has become true, and which actors wait for what has not.
//!
//! A world of many ranks has millions of conditions. Events and works are numbered by rank and take a byte each; the others
//! stand in a set once they are true, and an actor that waits is listed until then.

use rustc_hash::{FxHashMap, FxHashSet};

use super::machine::Condition;
use crate::plan::Plan;

/// The conditions of all ranks.
#[derive(Default)]
pub(super) struct Conditions {
    /// By rank and number.
    events: Vec<Vec<bool>>,
    /// By rank and number.
    works: Vec<Vec<bool>>,
    others: FxHashSet<Condition>,
    waiters: FxHashMap<Condition, Vec<usize>>,
}

impl Conditions {
    /// Nothing is true yet.
    pub(super) fn new(plans: &[Plan]) -> Self {
        Self {
            events: plans.iter().map(|it| vec![false; it.events]).collect(),
            works: plans.iter().map(|it| vec![false; it.works]).collect(),
            ..Self::default()
        }
    }

    /// Whether a condition holds.
    pub(super) fn holds(&self, condition: Condition) -> bool {
        let is_set = |all: &[Vec<bool>], rank: usize, number: u32| {
            all.get(rank).and_then(|it| it.get(number as usize)).copied().unwrap_or(false)
        };
        match condition {
            Condition::Event(rank, number) => is_set(&self.events, rank, number),
            Condition::Work(rank, number) => is_set(&self.works, rank, number),
            Condition::Slot(_) | Condition::Handle(..) | Condition::Barrier(_) => {
                self.others.contains(&condition)
            }
        }
    }

    /// An actor is to be woken up once a condition holds.
    pub(super) fn await_it(&mut self, condition: Condition, actor: usize) {
        self.waiters.entry(condition).or_default().push(actor);
    }

    /// Makes a condition true, and returns the actors to wake up.
    pub(super) fn raise(&mut self, condition: Condition) -> Vec<usize> {
        let set = |all: &mut [Vec<bool>], rank: usize, number: u32| {
            if let Some(it) = all.get_mut(rank).and_then(|it| it.get_mut(number as usize)) {
                *it = true;
            }
        };
        match condition {
            Condition::Event(rank, number) => set(&mut self.events, rank, number),
            Condition::Work(rank, number) => set(&mut self.works, rank, number),
            Condition::Slot(_) | Condition::Handle(..) | Condition::Barrier(_) => {
                self.others.insert(condition);
            }
        }
        self.waiters.remove(&condition).unwrap_or_default()
    }
}
