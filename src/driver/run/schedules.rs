//! The schedules of a run: named schedules, all orders of conflicting steps, or one order from a file.

use grammar::count_text;

use crate::run::{
    failure::{JobFailure, Result},
    schedule_file::ScheduleFile,
};
use hir_check::{Orders, StepOrder, Truncation};
use hir_plan::World;
use hir_process::input_file::InputFiles;
use hir_sim::{Schedule, ScheduleSet};

/// An iterator over the schedules of a run.
pub enum ScheduleIter {
    /// Named schedules.
    Named(std::vec::IntoIter<Schedule>),
    /// All orders of the conflicting steps.
    Explored {
        /// The orders.
        orders: Box<Orders>,
        /// Number of orders returned so far.
        taken: usize,
    },
}

impl ScheduleIter {
    /// Creates the schedules for these plans.
    ///
    /// # Errors
    /// The program is too large to enumerate its orders, or a file cannot be read.
    pub fn new(schedules: &ScheduleSet, world: &World, files: &InputFiles) -> Result<Self> {
        match schedules {
            ScheduleSet::List(them) => Ok(Self::Named(them.clone().into_iter())),
            // A program that deadlocks does so in every order, so one schedule is enough.
            ScheduleSet::Explore(_) if world.deadlocked_state().is_some() => {
                Ok(Self::Named(vec![Schedule::Program].into_iter()))
            }
            ScheduleSet::Explore(most) => {
                let steps = StepOrder::of(world).map_err(|it| {
                    let message =
                        format!("`--schedule=explore:{most}`: {it}; `seed:0..{most}` tries some orders");
                    JobFailure::Usage(message)
                })?;
                Ok(Self::Explored { orders: Box::new(Orders::new(steps, *most)), taken: 0 })
            }
            ScheduleSet::File(path) => {
                let steps = ScheduleFile::read(path, files)?.steps_in(world)?;
                let name = format!("@{}", path.display()).into();
                Ok(Self::Named(vec![Schedule::Steps { name, steps }].into_iter()))
            }
        }
    }

    /// Returns the number of remaining schedules, if it is known.
    pub fn remaining(&self) -> Option<usize> {
        match self {
            Self::Named(them) => Some(them.len()),
            Self::Explored { .. } => None,
        }
    }

    /// Returns the summary after all schedules have run: `12 schedules`.
    pub fn summary(&self, last: &Schedule, count: usize) -> String {
        match self {
            Self::Named(_) if count == 1 => format!("schedule {last}"),
            Self::Named(_) => format!("{count} schedules"),
            Self::Explored { orders, .. } => {
                let conflicts = orders.conflicts();
                let of = match conflicts {
                    1 => "1 pair of conflicting accesses that nothing orders".to_owned(),
                    _ => format!("{conflicts} pairs of conflicting accesses that nothing orders"),
                };
                let all = count_text(count, "order");
                match orders.truncation() {
                    None if conflicts == 0 => "1 order: all conflicting accesses are ordered".to_owned(),
                    None => format!("all {all} of {of}"),
                    Some(Truncation::OrderLimit) => {
                        format!("{all} of {of}; there are more: raise the number in `explore:{count}`")
                    }
                    Some(Truncation::MemoryLimit) => {
                        format!("{all} of {of}; the list of orders has reached its memory limit")
                    }
                }
            }
        }
    }
}

impl Iterator for ScheduleIter {
    type Item = Schedule;

    fn next(&mut self) -> Option<Schedule> {
        match self {
            Self::Named(them) => them.next(),
            Self::Explored { orders, taken } => {
                let steps = orders.next()?.into();
                *taken += 1;
                Some(Schedule::Steps { name: format!("explore:{taken}").into(), steps })
            }
        }
    }
}
