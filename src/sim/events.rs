//! Stores which events have happened, and which actors wait for those that have not.
//!
//! A world of many ranks has millions of events, so each takes one byte. Waiters are stored only until
//! their event happens.

use rustc_hash::FxHashMap;

use hir_plan::{World, sync::Event};

/// The events of all ranks.
pub(super) struct Events {
    /// By rank and event number.
    recorded: Vec<Vec<bool>>,
    /// By rank and work number.
    complete: Vec<Vec<bool>>,
    /// By communication.
    arrived: Vec<bool>,
    waiters: FxHashMap<Event, Vec<usize>>,
}

impl Events {
    /// Returns the state in which no event has happened.
    pub(super) fn new(world: &World) -> Self {
        Self {
            recorded: world.iter().map(|it| vec![false; it.event_count]).collect(),
            complete: world.iter().map(|it| vec![false; it.work_count]).collect(),
            arrived: vec![false; world.matching().comms.len()],
            waiters: FxHashMap::default(),
        }
    }

    /// Returns true if an event has happened.
    pub(super) fn has_happened(&self, event: Event) -> bool {
        let is_set = |all: &[bool], number: u32| all.get(number as usize).copied().unwrap_or(false);
        match event {
            Event::Recorded(rank, number) => is_set(&self.recorded[rank], number),
            Event::Complete(rank, number) => is_set(&self.complete[rank], number),
            Event::AllArrived(number) => is_set(&self.arrived, number),
            // `Machine` and `member` know these.
            Event::Issued(_)
            | Event::Posted(_)
            | Event::Arrived(..)
            | Event::AllIssued(_)
            | Event::Created(_) => false,
        }
    }

    /// Registers an actor to wake up when an event happens.
    pub(super) fn add_waiter(&mut self, event: Event, actor: usize) {
        self.waiters.entry(event).or_default().push(actor);
    }

    /// Lets an event happen, and returns the actors to wake up.
    pub(super) fn happen(&mut self, event: Event) -> Vec<usize> {
        let flag = match event {
            Event::Recorded(rank, number) => self.recorded[rank].get_mut(number as usize),
            Event::Complete(rank, number) => self.complete[rank].get_mut(number as usize),
            Event::AllArrived(number) => self.arrived.get_mut(number as usize),
            Event::Issued(_)
            | Event::Posted(_)
            | Event::Arrived(..)
            | Event::AllIssued(_)
            | Event::Created(_) => None,
        };
        if let Some(it) = flag {
            *it = true;
        }
        self.waiters.remove(&event).unwrap_or_default()
    }
}
