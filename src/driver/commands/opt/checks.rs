//! Runs the checks of `--check` and makes the edits of `--fix=check`.

use std::time::Instant;

use grammar::{Code, Diagnostic, LineIndex, Program, Severity, Source, apply_bindings};
use hir_check::{Checks, ExcessNotSearched, FixLimit, Rule, assumptions};
use hir_process::exit::Exit;

use super::{
    part_failure::{CheckVerdict, Counts, NoOrder, PartFailure},
    processor::{PartOutcome, Processor},
};

/// The maximum number of remarks of `--check` that are printed. Each shows source lines.
const MAX_REMARKS: usize = 256;

impl Processor<'_> {
    /// Applies the edits that fix races in all programs of a text, and prints each edit. `name` is the name
    /// of the edited text in messages. Returns also the bound at which the search for edits ended, if it did.
    pub fn fix_findings(&self, mut text: String, name: &str) -> (String, Option<FixLimit>) {
        self.activity.set("while fixing what the check finds");
        let plan = |program: &mut Program, lines: &LineIndex| {
            apply_bindings(program, &self.options.set).ok()?;
            let ranks = self.options.world.ranks.unwrap_or(0).max(hir_plan::smallest_world(program));
            hir_plan::build_with_limits(program, lines, ranks, &self.options.world.limits()).ok()
        };
        let mut limit = None;
        for number in 0..grammar::read(&text).0.len() {
            let fixed = hir_check::fix(&text, number, self.options.checks(), &plan);
            for edit in &fixed.edits {
                self.screen.message(format!("{name}, line {}: {}", edit.line, edit.description));
            }
            text = fixed.text;
            limit = limit.or(fixed.limit);
        }
        (text, limit)
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
                outcome.failure.get_or_insert(PartFailure::NotPlanned(faults));
            }
            return None;
        };
        let report = hir_check::check(&world, checks);
        let assumed = self.options.models.explain_assumptions.then(|| assumptions(&world, checks));
        for rule in assumed.into_iter().flatten() {
            let Rule { name, text, source, .. } = rule;
            self.screen.message(format!("assumes `{name}`: {text} ({source}; tried: {})", rule.tried()));
        }
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
        let mut found: Vec<Diagnostic> =
            report.diagnostics(&world, sources).into_iter().map(|it| it.1).collect();
        found.extend(sequence_faults);
        // A program that cannot proceed has nothing to gain from remarks on its speed.
        let deadlocks = found.iter().any(|it| it.code == Code::CheckedDeadlock);
        found.retain(|it| !(deadlocks && it.severity() == Severity::Remark));
        let allowed = self.screen.session().remove_allowed(source, &mut found);
        self.searched = Some(Checks { excess: checks.excess && report.not_searched.is_empty(), ..checks })
            .filter(|_| !deadlocks && report.not_checked.is_empty());
        self.limit_remarks(&mut found);
        let count = |severity| found.iter().filter(|it| it.severity() == severity).count();
        let mut counts = Counts {
            faults: count(Severity::Error),
            warnings: count(Severity::Warning),
            remarks: count(Severity::Remark),
            allowed,
            container: self.container,
            ranks: world.len(),
            instructions: world.iter().map(|it| it.code.len()).sum(),
            time: start.elapsed(),
            rules: None,
        };
        if source.name == part.name {
            outcome.diagnostics.extend(found);
        } else {
            self.screen.report_diagnostics(source, &found);
        }
        let verdict = if counts.faults > 0 {
            CheckVerdict::Faults
        } else if !report.not_checked.is_empty() || !not_compared.is_empty() {
            CheckVerdict::Incomplete
        } else if let Some(reason) = report.not_searched.iter().find_map(NoOrder::of) {
            CheckVerdict::ExcessNotSearched { reason, is_excess_only: checks.is_excess_only() }
        } else {
            counts.rules = Some(self.options.models.verdict_holds_for());
            outcome.summaries.push(format!("the check found no fault{counts}"));
            return Some(());
        };
        outcome.failure = Some(PartFailure::Check { verdict, counts, exit });
        None
    }

    /// Removes the remarks after the first `MAX_REMARKS`, with a message.
    fn limit_remarks(&self, found: &mut Vec<Diagnostic>) {
        let mut remarks = 0;
        found.retain(|it| {
            remarks += usize::from(it.severity() == Severity::Remark);
            it.severity() != Severity::Remark || remarks <= MAX_REMARKS
        });
        if let Some(left) = remarks.checked_sub(MAX_REMARKS).filter(|it| *it > 0) {
            self.screen.message(format!("not printed: {left} remarks beyond the first {MAX_REMARKS}"));
        }
    }
}
