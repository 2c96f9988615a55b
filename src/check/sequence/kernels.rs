//! Kernels of communicators that ranks may start in contradictory orders if runs of several programs follow each other.

use grammar::{Code, Diagnostic, Source};

use super::SequencedProgram;
use crate::{
    access_checks::Grouping,
    diagnostics::DiagnosticBuilder,
    finding::Checks,
    kernels_of_runs::{CycleOfPrograms, cycle_of_programs},
    not_compared::NotCompared,
    order_edits::{before, edit_in_next_run},
    plan_index::PlanIndexes,
    progress_diagnostics::{FOLLOW_ACROSS_RUNS, RUNS_IN_ISSUE_ORDER},
    race_side::stream_of,
    repair_help,
};
use hir_plan::{
    Plan, World,
    sync::{CommOrderEdge, InstRef, LaunchOrder, comm_order_cycle},
};

/// Ranks may start kernels of communicators in contradictory orders if runs of programs follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceOrder(CycleOfPrograms);

/// Returns kernels that ranks may start in contradictory orders if runs of the programs follow each other in any order and number. `None` if
/// there are none, or if a program by itself has such kernels.
///
/// # Errors
/// The reason why the order of kernels was not checked.
pub fn order_of_sequence(
    programs: &[SequencedProgram<'_>],
    checks: Checks,
) -> Result<Option<SequenceOrder>, NotCompared> {
    // Kernels that start in issue order do so in all runs. Sequences in which a run may not follow what ran before are not compared.
    if checks.launch_order() == LaunchOrder::Implicit || !programs.iter().all(|it| it.is_entered_before_exit)
    {
        return Ok(None);
    }
    for queues in checks.all_p2p_queues() {
        let pairs: Vec<Option<World>> = programs.iter().map(|it| it.with_queues(queues)).collect();
        let worlds: Vec<&World> =
            programs.iter().zip(&pairs).map(|it| it.1.as_ref().unwrap_or(it.0.world)).collect();
        let has_own = |it: &&World| comm_order_cycle(it, LaunchOrder::Explicit) != Ok(None);
        if worlds.iter().any(has_own) {
            return Ok(None);
        }
        let plans: Vec<&[Plan]> = worlds.iter().map(|it| it.plans()).collect();
        let found = cycle_of_programs(&plans, Grouping::Large)?;
        if let Some(mut found) = found {
            found.cycle.p2p = queues;
            let is_of_several = found.programs.iter().any(|it| *it != found.programs[0]);
            return Ok(is_of_several.then_some(SequenceOrder(found)));
        }
    }
    Ok(None)
}

/// The names, texts and plans of programs.
#[derive(Clone, Copy, Debug)]
pub struct Programs<'a> {
    /// The names in reports.
    pub names: &'a [&'a str],
    /// The texts.
    pub sources: &'a [&'a Source],
    /// The plans.
    pub worlds: &'a [&'a World],
}

impl SequenceOrder {
    /// Returns the program whose text the diagnostic marks: the first one that has such a kernel.
    pub fn program(&self) -> usize {
        self.0.cycle.edges.iter().map(|it| self.program_of(it.runs[0])).min().unwrap_or_default()
    }

    /// Formats it as a diagnostic in the text of `program`.
    pub fn diagnostic(&self, all: &Programs<'_>) -> Diagnostic {
        let edges = &self.0.cycle.edges;
        let name = |run: u32| all.names[self.program_of(run)];
        let is_repeated =
            |run: u32| self.0.programs.iter().filter(|it| **it == self.program_of(run)).count() > 1;
        let place = |run: u32| {
            let number = if is_repeated(run) { format!(", run {}", run + 1) } else { String::new() };
            format!("`{}`{number}", name(run))
        };
        let plan = |at: InstRef, run: u32| &all.worlds[self.program_of(run)][at.rank];
        let origin = |at: InstRef, run: u32| plan(at, run).code[at.inst].origin;
        let text = |at: InstRef, run: u32| {
            format!("{} of {}", plan(at, run).describe_origin(origin(at, run)), place(run))
        };
        let verb = |it: &CommOrderEdge| if it.is_unordered { "may start" } else { "starts" };
        let orders: Vec<String> = edges
            .iter()
            .map(|it| {
                let (first, second) = (text(it.first, it.runs[0]), text(it.second, it.runs[1]));
                format!("rank {} {} {first} before {second}", it.first.rank, verb(it))
            })
            .collect();
        let marked = self.program();
        let own = edges.iter().filter(|it| self.program_of(it.runs[0]) == marked);
        let mut labels = own.map(|it| {
            let line = plan(it.first, it.runs[0]).origins[origin(it.first, it.runs[0]) as usize].line;
            let label =
                format!("rank {} {} this before {}", it.first.rank, verb(it), text(it.second, it.runs[1]));
            (all.sources[marked].line_or_header(line), label)
        });
        let (span, label) = labels.next().unwrap_or_default();
        let message = "ranks may use communicators of programs that follow each other in contradictory orders: nothing orders them";
        let count = self.0.cycle.run_count();
        let runs: Vec<String> = (0..count).map(|it| format!("`{}`", name(it))).collect();
        let mut found = Diagnostic::new(Code::CommunicatorOrder, span, message, label)
            .note(orders.join("\n"))
            .note(format!("the runs: {}", runs.join(", then ")));
        found.labels.extend(labels);
        let help = edges.iter().find_map(|it| self.help(it, all));
        found = found.help(help.unwrap_or_else(|| FOLLOW_ACROSS_RUNS.to_owned())).note(RUNS_IN_ISSUE_ORDER);
        self.0.cycle.p2p.note().into_iter().fold(found, Diagnostic::note)
    }

    fn program_of(&self, run: u32) -> usize {
        self.0.programs[run as usize]
    }

    /// Returns the edit by which a rank starts two kernels in the order in which it issues them, and the program that it changes.
    fn help(&self, edge: &CommOrderEdge, all: &Programs<'_>) -> Option<String> {
        let ([later, earlier], rank) = (edge.runs.map(|it| self.program_of(it)), edge.first.rank);
        let [next, this] = [later, earlier].map(|it| all.worlds[it]);
        let indexes = PlanIndexes::new(this);
        let place = (stream_of(&next[rank], edge.first.inst), before(&next[rank], edge.first.inst));
        let edit = edge.is_swapped().then(|| edit_in_next_run(indexes.of(rank), edge.second.inst, place))?;
        let edited = if edit.is_at_end() { earlier } else { later };
        let indexes = PlanIndexes::new(all.worlds[edited]);
        let texts =
            DiagnosticBuilder::new(all.worlds[edited], std::slice::from_ref(all.sources[edited]), &indexes);
        let (help, _) = repair_help::help_of_edit(&edit, &texts.edit_context(rank)?);
        Some(format!("in `{}`, {help}", all.names[edited]))
    }
}
