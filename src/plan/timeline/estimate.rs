//! Computes a timeline from the plans of all ranks, with estimated or measured times.
//!
//! In an estimate, communications of different communicators and copies do not slow each other or kernels down,
//! and issuing takes no time. If the plans deadlock, what never ends has no end.

use super::{Timeline, cost::assumptions, items::items_of, times::Times};
use crate::{
    Plan,
    sync::{
        CommMatching, deadlocked_state,
        happens_before::{HappensBeforeGraph, OrderError},
    },
};

/// When an instruction ran, in microseconds on a clock that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredTime {
    /// The index of the instruction in `Plan::code`.
    pub inst: u32,
    /// When it began.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
}

/// Estimates when each instruction of all ranks runs.
///
/// Time is proportional to the number of instructions and of orders between them, times the logarithm of the
/// number of instructions.
///
/// # Errors
/// The world has too many streams.
pub fn estimate(plans: &[Plan]) -> Result<Timeline, OrderError> {
    timeline(plans, None, assumptions())
}

/// Returns the timeline of a run whose times were measured, by rank. Instructions without a time take none:
/// they only order others, or run in the kernel of another instruction. `source` says where the times come
/// from.
///
/// # Errors
/// The world has too many streams.
pub fn measured(
    plans: &[Plan],
    measured: &[Vec<MeasuredTime>],
    source: String,
) -> Result<Timeline, OrderError> {
    timeline(plans, Some(measured), source)
}

fn timeline(
    plans: &[Plan],
    measured: Option<&[Vec<MeasuredTime>]>,
    source: String,
) -> Result<Timeline, OrderError> {
    let matched = CommMatching::from_plans(plans);
    let graph = HappensBeforeGraph::from_plans(plans, &matched)?;
    let state = deadlocked_state(plans, &matched);
    let items = items_of(plans, &graph, state.as_ref(), measured);
    let times = Times::of(&graph, &items, plans.len());
    Ok(times.timeline(plans, state.as_ref(), source))
}
