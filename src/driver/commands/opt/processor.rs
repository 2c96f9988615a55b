//! Processes the parts of a file, and the programs of each part.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    exit_code::exit_of_rejection,
    session::is_allowable,
    tool::{Reporter, certificate::certificate, dump::Dumper, expect, statistics::Statistics},
};
use grammar::{Code, Diagnostic, Program, Source, apply_bindings, codes::Check, has_errors};
use hir_check::{Checks, FixLimit};
use hir_plan::{assume_scalars, limits::Limits, lint};
use hir_process::{exit::Exit, interrupt::Activity};
use hir_sim::WorkBudget;
use passes::{PassCall, PassError};

use super::{
    options::{FixMode, Options},
    part_failure::PartFailure,
    witness::SequenceWitness,
};

/// The result of processing one part of the input.
#[derive(Default)]
pub struct PartOutcome {
    /// The text for standard output.
    pub text: String,
    /// Diagnostics about the part.
    pub diagnostics: Vec<Diagnostic>,
    /// A fault in an option of the command line, `--set` or `--passes`, with the text of the option.
    pub bad_option: Option<Box<(Source, Diagnostic)>>,
    /// A summary for each program without faults. Printed after the diagnostics.
    pub summaries: Vec<String>,
    /// Why it has no result.
    pub failure: Option<PartFailure>,
    /// What the faults that the check has found mean for the rest of the text.
    pub consequence: Option<String>,
}

impl PartOutcome {
    /// Returns whether it has no result because the check has found faults.
    fn found_faults(&self) -> bool {
        self.failure.as_ref().is_some_and(|it| it.exit() == Exit::Check)
    }
}

/// The state of hir-opt while it processes a file.
pub struct Processor<'o> {
    /// The work that all simulated runs may do.
    pub work: &'o WorkBudget,
    /// What the tool does, for signal handlers.
    pub activity: Activity,
    /// The command line.
    pub options: &'o Options,
    /// Limits on plans.
    pub limits: Limits,
    /// Standard error.
    pub screen: Reporter,
    /// The passes to run.
    pub calls: Vec<PassCall>,
    /// Prints programs between passes.
    pub dumper: Dumper<'o>,
    /// Remarks of the passes about the current program.
    pub remarks: Vec<Diagnostic>,
    /// The statistics of `--statistics`.
    pub statistics: Statistics,
    /// The time of parsing, for `--timing`.
    pub reading: Duration,
    /// Index of the current container, in a text with several.
    pub container: Option<usize>,
    /// The name of the text that `--fix` has edited.
    pub edited: Option<String>,
    /// Whether the file of `--crash-reproducer` is written.
    pub has_reproducer: bool,
    /// Whether the file of `--witness` is written.
    pub has_witness: bool,
    /// The witness of a race with a program of `--with`.
    pub sequence_witness: Option<SequenceWitness>,
    /// What the check has looked for in the current program, if it could look for all of it.
    pub searched: Option<Checks>,
    /// Whether the process ends after this file.
    pub is_last: bool,
    /// Whether programs without faults are reported, too.
    pub reports_success: bool,
}

impl<'o> Processor<'o> {
    /// Creates the state for the only file of a process. `activity` is what signal handlers name.
    pub fn new(
        options: &'o Options,
        calls: Vec<PassCall>,
        work: &'o WorkBudget,
        activity: Activity,
        screen: &Reporter,
    ) -> Self {
        let stderr = screen.session().stderr.clone();
        Self {
            work,
            activity,
            options,
            limits: options.world.limits(),
            screen: screen.clone(),
            calls,
            dumper: Dumper::new(&options.dumps, options.print.unwrap_or_default(), stderr),
            remarks: Vec::new(),
            statistics: Statistics::default(),
            reading: Duration::ZERO,
            container: None,
            edited: None,
            has_reproducer: false,
            has_witness: false,
            sequence_witness: None,
            searched: None,
            is_last: true,
            reports_success: true,
        }
    }
}

impl Processor<'_> {
    /// Processes all parts of a file and writes the result.
    pub fn process_file(&mut self, source: Source) -> Exit {
        if self.options.fix.is_some() && !source.is_host_ir() {
            let message = format!(
                "`--fix` edits Host IR: write the program of `{}` with `-o FILE.hir` first",
                source.name
            );
            return self.screen.fail(Exit::Usage, message);
        }
        let parts = match self.options.split_input_file {
            false => vec![source],
            true => match parts_of(&source) {
                Ok(parts) => parts,
                Err(fault) => {
                    self.screen.report_diagnostics(&source, &[fault]);
                    return Exit::Rejected;
                }
            },
        };
        let mut texts = Vec::with_capacity(parts.len());
        let mut worst = Exit::Success;
        for mut part in parts {
            let (mut is_edited, mut limit) = (false, None);
            if let Some(fixes) = self.options.fix
                && grammar::is_fixable(&part.programs().1)
            {
                let text = Source::own_text(&grammar::fix(&part.text)).to_owned();
                // Remaining diagnostics refer to the edited text, which the user has not seen or which goes
                // to a file.
                let mut name = format!("{} (fixed)", part.name);
                let text = match fixes {
                    FixMode::Reading | FixMode::Overlap => text,
                    FixMode::Check => {
                        let file = self.options.output.as_deref().filter(|it| *it != Path::new("-"));
                        name = file.map_or(name, |it| it.display().to_string());
                        let (text, reached) = self.fix_findings(text, &name);
                        limit = reached;
                        text
                    }
                };
                let before = Source::own_text(&part.text);
                is_edited = text != before;
                self.screen.report_edits(&part, before, &text);
                self.edited = is_edited.then(|| name.clone());
                part = if is_edited { Source::new(name, text) } else { part };
            }
            let mut outcome = self.process_part(&part, is_edited, limit);
            self.report_unused_allows(&part, &mut outcome);
            let exit = self.report(&part, &outcome);
            worst = if worst == Exit::Success { exit } else { worst };
            texts.push(outcome.text);
        }
        let text = if self.options.prints_result() {
            match <[String; 1]>::try_from(texts) {
                Ok([only]) => only,
                Err(texts) => texts.join(&format!("{}\n", expect::SEPARATOR)),
            }
        } else {
            String::new()
        };
        if text.is_empty() && worst != Exit::Success {
            return worst;
        }
        self.activity.print_result(true, || ());
        match self.screen.write_result(&text, self.options.output.as_deref()) {
            Exit::Success => worst,
            exit => exit,
        }
    }

    /// Returns the file with the text of the current program before the passes.
    pub fn program_file(&self) -> String {
        self.edited.clone().unwrap_or_else(|| self.options.file.clone())
    }

    /// Adds warnings about comments that allow nothing. With passes, the check has no comments; of several programs, all were checked if none
    /// has a fault. A program that is rejected has other problems first.
    fn report_unused_allows(&self, part: &Source, outcome: &mut PartOutcome) {
        let is_rejected = outcome.diagnostics.iter().any(|it| it.is_error() && !is_allowable(it.code));
        if is_rejected || !self.calls.is_empty() {
            return;
        }
        self.screen.session().remove_allowed(part, &mut outcome.diagnostics);
        let searched = self.searched.filter(|_| self.container.is_none() || outcome.failure.is_none());
        let is_searched = |code: Code| searched.is_some_and(|it| looks_for(it, code));
        outcome.diagnostics.extend(self.screen.session().unused_allows(part, is_searched));
    }

    /// Prints the results of a part, or compares them with the expected diagnostics.
    fn report(&self, part: &Source, outcome: &PartOutcome) -> Exit {
        if let Some((source, fault)) = outcome.bad_option.as_deref() {
            self.screen.report_diagnostics(part, &outcome.diagnostics);
            self.screen.report_diagnostics(source, std::slice::from_ref(fault));
            return Exit::Usage;
        }
        if self.options.verify_diagnostics {
            let mut faults = expect::mismatches(part, &outcome.diagnostics);
            let failure = outcome.failure.iter().filter(|it| it.exit() == Exit::InternalError);
            faults.extend(failure.map(ToString::to_string));
            faults.iter().chain(&outcome.summaries).for_each(|it| self.screen.message(it));
            return if faults.is_empty() { Exit::Success } else { Exit::Rejected };
        }
        self.screen.report_diagnostics(part, &outcome.diagnostics);
        if self.reports_success {
            outcome.summaries.iter().for_each(|it| self.screen.message(it));
        }
        match &outcome.failure {
            Some(failure) => {
                let consequence = outcome.consequence.iter().map(|it| format!("; {it}"));
                self.screen.fail(failure.exit(), failure.to_string() + &consequence.collect::<String>())
            }
            None if has_errors(&outcome.diagnostics) => exit_of_rejection(&outcome.diagnostics),
            None => Exit::Success,
        }
    }

    /// Processes a part. `is_edited` is set if `--fix` has changed its text, `limit` if its search for edits ended at a bound.
    fn process_part(&mut self, part: &Source, is_edited: bool, limit: Option<FixLimit>) -> PartOutcome {
        self.searched = None;
        let record = &self.screen.session().crash_record;
        record.record_command(self.reproducer_flags());
        record.record_program(&part.text);
        let start = Instant::now();
        let (mut programs, diagnostics) = part.programs();
        self.reading += start.elapsed();
        let mut outcome = PartOutcome { diagnostics, ..PartOutcome::default() };
        if has_errors(&outcome.diagnostics) {
            return outcome;
        }
        if let Some(fixes) = self.options.fix {
            if fixes == FixMode::Check && !self.check_all(&mut programs, part, &mut outcome) {
                // Edits that were made are kept even if other faults remain.
                if outcome.found_faults() {
                    let consequence = if is_edited {
                        outcome.text = Source::own_text(&part.text).to_owned();
                        "the text is written with the edits made so far"
                    } else {
                        "no edit was made, and no text is written"
                    };
                    let limit = limit.map(|it| format!("; {}", it.text(is_edited)));
                    outcome.consequence = Some(consequence.to_owned() + &limit.unwrap_or_default());
                }
                return outcome;
            }
            if fixes == FixMode::Overlap {
                let texts = programs.iter_mut().map(|it| self.shorten(it, part, &mut outcome));
                let text = texts.collect::<Option<String>>().unwrap_or_default();
                return PartOutcome { text, ..outcome };
            }
            return PartOutcome { text: Source::own_text(&part.text).to_owned(), ..outcome };
        }
        let mut text = String::new();
        let count = programs.len();
        for (number, program) in programs.iter_mut().enumerate() {
            self.container = (count > 1).then_some(number);
            match self.process_program(program, part, &mut outcome) {
                Some(it) if text.is_empty() => text = it,
                Some(it) => text += &it,
                None => {
                    let left = count - 1 - number;
                    if left > 0 && outcome.found_faults() {
                        let rest = match left {
                            1 => format!("container {} is", count - 1),
                            _ => format!("containers {} to {} are", number + 1, count - 1),
                        };
                        outcome.consequence =
                            Some(format!("{rest} not checked, because container {number} stops the check"));
                    }
                    return outcome;
                }
            }
        }
        // Dropping a large program takes long.
        if self.is_last {
            std::mem::forget(programs);
        }
        PartOutcome { text, ..outcome }
    }

    /// Processes one program and returns its output text. Returns `None` on failure, with the reason in
    /// `outcome`.
    fn process_program(
        &mut self,
        program: &mut Program,
        part: &Source,
        outcome: &mut PartOutcome,
    ) -> Option<String> {
        if let Err(fault) = apply_bindings(program, &self.options.set) {
            outcome.bad_option = Some(fault);
            return None;
        }
        let world = &self.options.world;
        if world.assume {
            outcome.diagnostics.extend(assume_scalars(program, part, world.ranks, &world.limits()));
        }
        let of_one = [
            (!self.options.timelines.timeline.is_empty(), "`--timeline` draws one program"),
            (self.options.certificate.is_some(), "`--certificate` is about one program"),
        ];
        if let (Some(_), Some((_, what))) = (self.container, of_one.into_iter().find(|it| it.0)) {
            outcome.failure = Some(PartFailure::SeveralPrograms(what));
            return None;
        }
        let original = self.options.certificate.as_ref().map(|path| (path, grammar::print(program)));
        // The planner and the checker report these as errors.
        let needs_plans = self.options.print_plan
            || self.options.print_hb
            || self.options.communication
            || self.options.timelines.is_requested();
        if !needs_plans && self.options.check.is_none() {
            outcome.diagnostics.extend(lint(program, &part.lines, self.options.world.ranks));
        }
        let result =
            if self.options.bisect { self.bisect(program, part) } else { self.run_passes(program, part) };
        let remarks = std::mem::take(&mut self.remarks);
        outcome.diagnostics.extend(self.options.remarks.select(&remarks, &self.calls).cloned());
        if let Err(failure) = result {
            if let PassError::BadOption(fault) = failure.error {
                let stated = Source::new("--passes".to_owned(), self.options.passes.join(","));
                outcome.bad_option = Some(Box::new((stated, fault)));
                return None;
            }
            outcome.diagnostics.extend_from_slice(failure.error.diagnostics());
            outcome.failure = Some(PartFailure::Passes(failure));
            return None;
        }
        if let Some(message) = self.options.remarks.failure_message(&remarks) {
            outcome.failure = Some(PartFailure::Remarks(message));
            return None;
        }
        if self.options.check.is_some() {
            let checks = self.options.checks();
            self.check(program, part, checks, outcome)?;
        }
        if let Some((path, original)) = original {
            let written = match certificate(path, self.options.world.ranks, &original, program) {
                Ok(it) => self.screen.write_result(&it.text, Some(path)),
                Err((source, fault)) => {
                    let exit = Exit::from_code(hir_certify::exit_code(&fault));
                    self.screen.report_diagnostics(&source, &[*fault]);
                    exit
                }
            };
            if written != Exit::Success {
                outcome.failure = Some(PartFailure::NoCertificate { path: path.clone(), exit: written });
                return None;
            }
        }
        if needs_plans && let Some(text) = self.print_plans(program, part, outcome)? {
            return Some(text);
        }
        if !self.options.prints_result() {
            return Some(String::new());
        }
        let (text, losses) = grammar::print_as(program, self.options.print.unwrap_or_default());
        outcome.diagnostics.extend(losses);
        Some(text)
    }
}

/// Returns whether a check finds diagnostics with this code, or reading the text does.
pub(in crate::commands) fn looks_for(checks: Checks, code: Code) -> bool {
    match code.check() {
        Some(Check::Race) => checks.race,
        Some(Check::Memory) => checks.memory,
        Some(Check::Deadlock | Check::Reading) => true,
        Some(Check::Repeat) => checks.repeat,
        Some(Check::Communicators) => checks.comm,
        Some(Check::Capture) => checks.capture,
        Some(Check::Excess) => checks.excess,
        None => false,
    }
}

/// Returns the parts of a text that separators divide.
fn parts_of(source: &Source) -> Result<Vec<Source>, Diagnostic> {
    let own = Source::own_text(&source.text);
    // Every part can use the fusions of the command line.
    let fusions = source.text.get(own.len()..).unwrap_or("");
    let own = Source::new(source.name.clone(), own.to_owned());
    // Every part keeps its line numbers: it is preceded by as many empty lines.
    let mut lines_before = 0;
    let part = |text: &str| {
        let with_lines = "\n".repeat(lines_before) + text + fusions;
        lines_before += text.lines().count() + 1;
        Source::new(source.name.clone(), with_lines).with_reader(source.reader)
    };
    Ok(expect::split_input(&own)?.into_iter().map(part).collect())
}
