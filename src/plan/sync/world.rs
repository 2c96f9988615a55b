//! The world: the plans of all ranks with their matched communications.

use std::{ops::Deref, sync::OnceLock};

use rustc_hash::FxHashSet;

use super::{CommMatching, CommNo};
use crate::Plan;

/// The plans of all ranks with their matched communications. Planning makes it once. The checker, the simulator, timelines,
/// deadlock detection and the assignment of buffers read it. It dereferences to its plans, by rank.
///
/// Invariant: `matching` is the matching of `plans`. Therefore neither can be changed.
#[derive(Clone, Debug, Default)]
pub struct World {
    plans: Vec<Plan>,
    matching: CommMatching,
    /// As `early_exits`.
    early_exits: Vec<World>,
    /// The state in which the plans deadlock, when it is known (`World::deadlocked_state`).
    pub(super) deadlocked: OnceLock<Option<WorldState>>,
    /// The communications for which NCCL may connect ranks, when they are known (`World::connections`).
    pub(super) connections: OnceLock<FxHashSet<CommNo>>,
}

impl World {
    /// Matches the communications of the plans of all ranks.
    pub fn new(plans: Vec<Plan>) -> Self {
        let matching = CommMatching::from_plans(&plans);
        Self::with_matching(plans, matching)
    }

    /// Combines plans with `matching`, which `CommMatching::from_plans` has returned for the same instructions.
    pub(crate) fn with_matching(plans: Vec<Plan>, matching: CommMatching) -> Self {
        Self { plans, matching, ..Self::default() }
    }

    /// Adds the worlds whose loops with conditions end after `EARLY_EXITS` iterations.
    pub(crate) fn with_early_exits(self, early_exits: Vec<World>) -> Self {
        Self { early_exits, ..self }
    }

    /// Returns the worlds in which conditions end loops after `EARLY_EXITS` iterations; none if no loop has a condition. What holds in these
    /// and in this world, whose loops have all iterations, holds wherever loops end.
    pub fn early_exits(&self) -> &[World] {
        &self.early_exits
    }

    /// Returns the plans, by rank.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// Returns the matched communications of all ranks.
    pub fn matching(&self) -> &CommMatching {
        &self.matching
    }
}

impl Deref for World {
    type Target = [Plan];

    fn deref(&self) -> &[Plan] {
        &self.plans
    }
}

/// The progress of a rank in its plan. Instructions are indices into `Plan::code`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The run of the plan that the host issues, from 0.
    pub round: u32,
    /// The instruction that the host is issuing, or in which it is blocked; the length of the plan if all are
    /// issued.
    pub issued: usize,
    /// By stream: all its instructions before this one are complete, and its communications are posted. Empty
    /// if not known.
    pub streams: Vec<usize>,
    /// By communicator: all its communications before this one are complete. Empty if not known.
    pub queues: Vec<usize>,
}

/// The positions of all ranks; `None` if a position is not known.
pub type WorldState = Vec<Option<Position>>;
