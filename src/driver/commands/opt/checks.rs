//! Runs the checks of `--check` and makes the edits of `--fix=check`.

use std::time::Instant;

use crate::exit_code::exit_of_rejection;
use grammar::{
    bindings::apply_bindings,
    codes::{Code, Severity},
    count_text,
    diagnostic::Diagnostic,
    ir::Program,
    source::Source,
    span::LineIndex,
};
use hir_check::{Checks, ExcessNotSearched};
use hir_process::exit::Exit;

use super::{
    part_failure::PartFailure,
    processor::{PartOutcome, Processor},
};

/// The maximum number of remarks of `--check` that are printed. Each shows source lines.
const MAX_REMARKS: usize = 256;

impl Processor<'_> {
    /// Applies the edits that fix races in all programs of a text, and prints each edit. `name` is the name
    /// of the edited text in messages.
    pub fn fix_findings(&self, mut text: String, name: &str) -> String {
        self.activity.set("while fixing what the check finds");
        let plan = |program: &mut Program, lines: &LineIndex| {
            apply_bindings(program, &self.options.set).ok()?;
            let ranks = self.options.world.ranks.unwrap_or(0).max(hir_plan::smallest_world(program));
            hir_plan::build_with_limits(program, lines, ranks, &self.options.world.limits()).ok()
        };
        for number in 0..grammar::read(&text).0.len() {
            let fixed = hir_check::fix(&text, number, self.options.checks(), &plan);
            for edit in &fixed.edits {
                self.screen.message(format!("{name}, line {}: {}", edit.line, edit.description));
            }
            text = fixed.text;
        }
        text
    }

    /// Checks all programs of a text. Returns false, with the reasons in `outcome`, if any has a fault.
    pub fn check_all(&mut self, programs: &mut [Program], part: &Source, outcome: &mut PartOutcome) -> bool {
        programs.iter_mut().all(|program| match apply_bindings(program, &self.options.set) {
            Ok(()) => {
                let checks = self.options.checks();
                self.check(program, part, checks, outcome).is_some()
            }
            Err(fault) => {
                outcome.bad_option = Some(fault);
                false
            }
        })
    }

    /// Checks the program after the passes. Returns `None` if it has a fault, with the reason in `outcome`.
    pub fn check(
        &mut self,
        program: &Program,
        part: &Source,
        checks: Checks,
        outcome: &mut PartOutcome,
    ) -> Option<()> {
        let start = Instant::now();
        self.activity.set("while checking");
        // Findings refer to lines of the checked program, so it is printed and parsed again after passes.
        let printed;
        let (source, program) = if self.calls.is_empty() {
            (part, program)
        } else {
            let text = grammar::print(program);
            let source = Source::new(format!("{} (after the passes)", part.name), text);
            let program = source.programs().0.pop()?;
            printed = (source, program);
            (&printed.0, &printed.1)
        };
        let before = outcome.diagnostics.len();
        let Some(world) = self.plan_all_ranks(program, source, outcome) else {
            if source.name != part.name {
                // Their positions are those of the printed program.
                let faults = outcome.diagnostics.split_off(before);
                self.screen.report_diagnostics(source, &faults);
                let message = "the program after the passes cannot be planned".to_owned();
                outcome.failure.get_or_insert(PartFailure::new(exit_of_rejection(&faults), message));
            }
            return None;
        };
        let report = hir_check::check(&world, checks);
        if let Some(how) = report.groups_text(world.len()) {
            self.screen.message(how);
        }
        for reason in &report.not_checked {
            self.screen.message(format!("not checked: {reason}"));
        }
        for reason in &report.not_searched {
            if !matches!(reason, ExcessNotSearched::Races | ExcessNotSearched::Views) {
                self.screen.message(format!("not searched for excess: {reason}"));
            }
        }
        let (sequence_faults, not_compared) =
            self.check_sequences((program, source), &world, checks, outcome)?;
        for reason in &not_compared {
            self.screen.message(format!("not checked: {reason}"));
        }
        let sources = std::slice::from_ref(source);
        let exit = match &self.options.witness {
            None => Exit::Check,
            Some(path) => {
                let written = self.write_witness(path, &world, &report, sources, &sequence_faults);
                written.err().unwrap_or(Exit::Check)
            }
        };
        let all = report.diagnostics(&world, sources).into_iter().map(|it| it.1);
        let mut remarks = 0;
        let mut found: Vec<Diagnostic> = all.collect();
        found.extend(sequence_faults);
        // A program that cannot proceed has nothing to gain from remarks on its speed.
        let deadlocks = found.iter().any(|it| it.code == Code::CheckedDeadlock);
        found.retain(|it| !(deadlocks && it.severity() == Severity::Remark));
        let allowed = self.screen.session().remove_allowed(source, &mut found);
        self.searched = Some(Checks { excess: checks.excess && report.not_searched.is_empty(), ..checks })
            .filter(|_| !deadlocks && report.not_checked.is_empty());
        found.retain(|it| {
            remarks += usize::from(it.severity() == Severity::Remark);
            it.severity() != Severity::Remark || remarks <= MAX_REMARKS
        });
        if let Some(left) = remarks.checked_sub(MAX_REMARKS).filter(|it| *it > 0) {
            self.screen.message(format!("not printed: {left} remarks beyond the first {MAX_REMARKS}"));
        }
        let errors = format_count(&found, Severity::Error, "fault");
        let others = [(Severity::Warning, "warning"), (Severity::Remark, "remark")];
        let others: Vec<String> =
            others.into_iter().filter_map(|(severity, word)| format_count(&found, severity, word)).collect();
        let others: Vec<String> =
            others.into_iter().chain((allowed > 0).then(|| format!("{allowed} allowed"))).collect();
        let more: String = others.iter().map(|it| format!(", {it}")).collect();
        if source.name == part.name {
            outcome.diagnostics.extend(found);
        } else {
            self.screen.report_diagnostics(source, &found);
        }
        let instructions: usize = world.iter().map(|it| it.code.len()).sum();
        let container = self.container.map_or(String::new(), |it| format!("container {it}, "));
        let world = format!(
            "{container}{}, {}, {:.3} s",
            count_text(world.len(), "rank"),
            count_text(instructions, "instruction"),
            start.elapsed().as_secs_f64()
        );
        let unsearched = report.not_searched.iter().find_map(|it| match it {
            ExcessNotSearched::Races => Some("the program has races"),
            ExcessNotSearched::Views => {
                Some("some views have too many pieces to compare, so races are unknown")
            }
            ExcessNotSearched::Groups | ExcessNotSearched::Waits { .. } | ExcessNotSearched::Writes => None,
        });
        let failure = if let Some(errors) = errors {
            format!("the check found {errors}{more} ({world})")
        } else if !report.not_checked.is_empty() || !not_compared.is_empty() {
            format!("the check is incomplete{more} ({world})")
        } else if let Some(reason) = unsearched {
            let why = format!("waits and writes were not examined, because {reason}: run `--check=race`");
            match (checks.is_excess_only(), others.is_empty()) {
                (true, true) => why,
                (true, false) => format!("{}; {why}", others.join(", ")),
                (false, _) => format!("the check found no other fault{more} ({world}); {why}"),
            }
        } else {
            outcome.summaries.push(format!("the check found no fault{more} ({world})"));
            return Some(());
        };
        outcome.failure = Some(PartFailure::new(exit, failure));
        None
    }
}

/// Formats the number of diagnostics of a severity, or returns `None` if there are none.
fn format_count(found: &[Diagnostic], severity: Severity, word: &str) -> Option<String> {
    let count = found.iter().filter(|it| it.severity() == severity).count();
    (count > 0).then(|| count_text(count, word))
}
