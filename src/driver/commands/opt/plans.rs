//! Plans all ranks, and prints their plans and their happens-before graph.

use crate::{auto::edits::Estimates, run::timelines::Estimate};
use grammar::{Program, Source, apply_bindings};
use hir_check::Finding;
use hir_plan::{
    Plan, World,
    sync::happens_before::{HappensBeforeGraph, OrderError},
    timeline::estimator::Planned,
};

use super::{
    part_failure::PartFailure,
    processor::{PartOutcome, Processor},
};

impl Processor<'_> {
    /// Plans all ranks. Returns `None` on failure, with the reason in `outcome`.
    pub fn plan_all_ranks(
        &self,
        program: &Program,
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<World> {
        let smallest = hir_plan::smallest_world(program);
        let ranks = self.options.world.ranks.unwrap_or(smallest);
        if ranks < smallest {
            outcome.failure = Some(PartFailure::TooFewRanks { program: None, smallest, ranks });
            return None;
        }
        if let Some(rank) = self.options.rank.filter(|rank| *rank >= ranks) {
            outcome.failure = Some(PartFailure::NoSuchRank { rank, ranks });
            return None;
        }
        self.activity.set("while planning");
        match hir_plan::build_with_limits(program, &part.lines, ranks, &self.options.world.limits()) {
            Ok(world) => Some(world),
            Err(faults) => {
                outcome.diagnostics.extend(faults);
                None
            }
        }
    }

    /// Plans all ranks, writes the files of `--timeline`, and returns what the options print instead of the program;
    /// `Some(None)` if they print the program. Returns `None` on failure, with the reason in `outcome`.
    pub fn print_plans(
        &self,
        program: &Program,
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<Option<String>> {
        let world = self.plan_all_ranks(program, part, outcome)?;
        let overlap = if self.options.timelines.is_requested() {
            let (report, (timeline, gains)) = self.write_timelines((program, &world), part, outcome)?;
            let is_asked = self.options.timelines.overlap;
            let edits = is_asked.then(|| self.estimates(&world, part).report(program, &world, &timeline));
            let table = gains.map(|it| it.table()).unwrap_or_default();
            let lines = edits.into_iter().flatten().chain(table);
            lines.fold(report, |report, it| report + &it + "\n")
        } else {
            String::new()
        };
        if self.options.print_plan {
            Some(Some(self.format_plans(&world)))
        } else if self.options.communication {
            Some(Some(hir_plan::communication_table(program, &world)))
        } else if self.options.print_hb {
            Self::format_order_graph(&world, part, outcome).map(Some)
        } else {
            // With `-o`, the file gets the program, and the report goes to standard error.
            let Some(report) = self.options.timelines.overlap.then_some(overlap) else { return Some(None) };
            if self.options.output.is_none() {
                return Some(Some(report));
            }
            outcome.summaries.extend(report.lines().map(str::to_owned));
            Some(None)
        }
    }

    fn estimates<'a>(&'a self, world: &World, part: &'a Source) -> Estimates<'a> {
        Estimates {
            lines: &part.lines,
            ranks: world.len(),
            limits: &self.limits,
            machine: self.options.timelines.machine(),
        }
    }

    /// Makes the edit of `--fix=overlap`: that with the least estimated time. Returns the text of the
    /// program, or `None` on failure, with the reason in `outcome`.
    pub fn shorten(&self, program: &mut Program, part: &Source, outcome: &mut PartOutcome) -> Option<String> {
        if let Err(fault) = apply_bindings(program, &self.options.set) {
            outcome.bad_option = Some(fault);
            return None;
        }
        self.activity.set("while shortening the program");
        let world = self.plan_all_ranks(program, part, outcome)?;
        match self.estimates(&world, part).edits(program, &world).map(|it| it.into_iter().next()) {
            Ok(Some(edit)) => {
                outcome
                    .summaries
                    .push(format!("`{}`: the run takes {:.1} µs (estimated)", edit.passes, edit.time));
                *program = edit.program;
            }
            Ok(None) => {
                let reshards = world.iter().any(Plan::reshards);
                let lower =
                    if reshards { "; `--passes @auto` compares ways to lower the program" } else { "" };
                outcome.summaries.push(format!("no edit makes the estimated time shorter{lower}"));
            }
            Err(why) => outcome.summaries.push(why.to_string()),
        }
        Some(grammar::print(program))
    }

    /// Returns the plans as text.
    fn format_plans(&self, plans: &[Plan]) -> String {
        let shown = plans.iter().filter(|it| self.options.rank.is_none_or(|rank| rank == it.rank));
        shown.map(hir_plan::plan_text).collect()
    }

    /// Writes the estimated timeline, and returns the report on overlap and the times. Returns `None` on failure, with the
    /// reason in `outcome`.
    fn write_timelines(
        &self,
        (program, world): (&Program, &World),
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<(String, Estimate)> {
        let text = Planned { program, lines: &part.lines, limits: &self.limits };
        match self.options.timelines.write_estimated(world, Some(text), &[&part.name]) {
            Ok((report, estimate)) => {
                outcome.summaries.extend(report.files);
                let container = self.container.map(|it| format!("container {it}:"));
                let lines = container.into_iter().chain(report.overlap).map(|it| it + "\n");
                Some((lines.collect(), estimate))
            }
            Err(failure) => {
                outcome.failure = Some(PartFailure::Timelines(failure));
                None
            }
        }
    }

    /// Returns the happens-before graph. Returns `None` on failure, with the reason in `outcome`.
    fn format_order_graph(world: &World, part: &Source, outcome: &mut PartOutcome) -> Option<String> {
        if let Some(deadlock) = world.deadlock() {
            let found = Finding::Deadlock(Box::new(deadlock));
            outcome.diagnostics.push(found.diagnostic(world, std::slice::from_ref(part)).1);
            outcome.failure = Some(PartFailure::OrderOfDeadlock);
            return None;
        }
        match HappensBeforeGraph::of(world) {
            Ok(graph) => Some(graph.dot(world)),
            Err(OrderError::TooLarge | OrderError::Deadlock) => {
                outcome.failure = Some(PartFailure::OrderTooLarge);
                None
            }
        }
    }
}
