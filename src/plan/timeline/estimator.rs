//! How a tool estimates the times of programs: what is the same for all programs that it reads.

use std::fmt;

use grammar::{ir::Program, span::LineIndex};

use super::{
    Timeline,
    cost::{CostModel, FusedInsts},
    estimate::estimate_with,
    gain::{Gain, gains},
    machine::Machine,
    shipped::default_machine,
};
use crate::{Plan, World, limits::Limits, sync::happens_before::OrderError};

/// A machine, and what this package cannot know: passes, and the executor of GPUs.
#[derive(Clone, Copy)]
pub struct Estimator<'a> {
    /// The machine with whose times everything is estimated.
    pub machine: &'a Machine,
    /// Lowers a program whose statements reshard; `None` if it cannot be lowered.
    pub lower: fn(&Program) -> Option<Program>,
    /// Returns, by rank, the instructions that the executor runs in the kernel of another one.
    pub fused: fn(&World) -> Vec<FusedInsts>,
}

impl Default for Estimator<'_> {
    /// The default machine, on which each instruction is a kernel, and a resharding statement gathers its operands.
    fn default() -> Self {
        Self { machine: default_machine(), lower: |_| None, fused: |_| Vec::new() }
    }
}

impl fmt::Debug for Estimator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimator").field("gpu", &self.machine.gpu).finish_non_exhaustive()
    }
}

/// The text of a world whose ranks all run one program.
#[derive(Clone, Copy)]
pub struct Planned<'p> {
    /// The program.
    pub program: &'p Program,
    /// The lines of its text.
    pub lines: &'p LineIndex,
    /// The limits on its plans.
    pub limits: &'p Limits,
}

impl Estimator<'_> {
    /// Estimates when each instruction of all ranks runs. If statements reshard, the timeline is that of the lowered program, and
    /// its source says so: until then, nothing says how they communicate.
    ///
    /// # Errors
    /// The world has too many streams.
    pub fn timeline(&self, world: &World, text: Option<Planned<'_>>) -> Result<Timeline, OrderError> {
        self.estimated(world, text, estimate_with, |it| it)
    }

    /// As `timeline`, with what each communication costs.
    ///
    /// # Errors
    /// The world has too many streams.
    pub fn gains(
        &self,
        world: &World,
        text: Option<Planned<'_>>,
        admits: &mut dyn FnMut(usize) -> bool,
    ) -> Result<(Timeline, Vec<Gain>), OrderError> {
        self.estimated(world, text, |world, model| gains(world, model, admits), |it| &mut it.0)
    }

    /// Estimates a world, lowered if statements reshard, in one of these ways.
    fn estimated<T>(
        &self,
        world: &World,
        text: Option<Planned<'_>>,
        mut estimate: impl FnMut(&World, &CostModel<'_>) -> Result<T, OrderError>,
        timeline: fn(&mut T) -> &mut Timeline,
    ) -> Result<T, OrderError> {
        let mut of_world = |world: &World| {
            // The nominal GPU shows schedules, and no executor.
            let fused = if self.machine.is_nominal() { Vec::new() } else { (self.fused)(world) };
            estimate(world, &CostModel { machine: self.machine, fused: &fused, load: 0.0 })
        };
        if !world.iter().any(Plan::reshards) {
            return of_world(world);
        }
        let lowered = text.and_then(|it| {
            let program = (self.lower)(it.program)?;
            crate::build_with_limits(&program, it.lines, world.len(), it.limits).ok()
        });
        let mut found = of_world(lowered.as_ref().unwrap_or(world))?;
        timeline(&mut found).source += match lowered {
            Some(_) => ", of the program as `@lower` lowers it",
            None => {
                "; a statement that reshards counts as a gather of its operands and the whole computation on each rank"
            }
        };
        Ok(found)
    }
}
