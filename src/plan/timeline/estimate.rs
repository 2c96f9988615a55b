//! Computes a timeline from the plans of all ranks, with estimated or measured times.
//!
//! In an estimate, communications of different communicators and copies do not slow each other or kernels down,
//! and issuing takes no time. If the plans deadlock, what never ends has no end.

use super::{Timeline, cost::assumptions, items::items_of, times::Times};
use crate::{
    World,
    sync::happens_before::{HappensBeforeGraph, OrderError},
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
pub fn estimate(world: &World) -> Result<Timeline, OrderError> {
    timeline(world, None, assumptions())
}

/// Returns the timeline of a run whose times were measured, by rank. Instructions without a time take none:
/// they only order others, or run in the kernel of another instruction. `source` says where the times come
/// from.
///
/// # Errors
/// The world has too many streams.
pub fn measured(
    world: &World,
    measured: &[Vec<MeasuredTime>],
    source: String,
) -> Result<Timeline, OrderError> {
    timeline(world, Some(measured), source)
}

fn timeline(
    world: &World,
    measured: Option<&[Vec<MeasuredTime>]>,
    source: String,
) -> Result<Timeline, OrderError> {
    let graph = HappensBeforeGraph::of(world)?;
    let state = world.deadlocked_state();
    let items = items_of(world, &graph, state, measured);
    let times = Times::of(&graph, &items, world.len());
    Ok(times.timeline(world, state, source))
}
