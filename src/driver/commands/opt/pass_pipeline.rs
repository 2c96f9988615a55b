//! Runs the passes of `--passes`, or finds the first one that fails.

use crate::run::oracle::{CheckerOracle, SimulationOracle};
use crate::tool::{dump::diff, progress::Progress};
use grammar::{Program, Source};
use passes::{PassCall, PassError, PassEvent, PipelineError, Settings, Verify};

use super::{options::VerifyEach, processor::Processor};

/// Returns the text of a pipeline, as in `--passes`.
pub fn pipeline_text(calls: &[PassCall]) -> String {
    let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
    calls.join(",")
}

impl<'p> Processor<'p> {
    fn oracle<'a>(&self, part: &'a Source) -> SimulationOracle<'a>
    where
        'p: 'a,
    {
        let world = self.options.world;
        SimulationOracle { lines: &part.lines, ranks: world.ranks, limits: world.limits(), work: self.work }
    }

    /// Returns whether an option prints or counts what is in the program before or after a pass.
    fn looks_at_programs(&self) -> bool {
        let options = self.options;
        options.dumps.prints()
            || options.dumps.writes_files()
            || options.statistics
            || options.crash_reproducer.is_some()
    }

    /// Runs the passes. If one fails, writes the program before it as a reproducer.
    pub fn run_passes(&mut self, program: &mut Program, part: &Source) -> Result<(), Box<PipelineError>> {
        let oracle = self.oracle(part);
        let checked = CheckerOracle { planner: oracle, checks: self.options.checks_of_passes() };
        let verify = match self.options.verify_each {
            VerifyEach::Off => Verify::Off,
            VerifyEach::Structural if self.looks_at_programs() => Verify::Structural,
            VerifyEach::Structural => Verify::Concurrent,
            VerifyEach::Semantic => Verify::Semantic(&oracle),
            VerifyEach::Check => Verify::Semantic(&checked),
        };
        let settings = Settings { verify, roundtrip: self.options.verify_roundtrip };
        let mut before = None;
        let (mut begun, all) = (0, self.calls.len());
        let progress = Progress::new(Some(all), "passes verified", self.options.diagnostics.quiet);
        if matches!(verify, Verify::Semantic(_)) {
            self.activity.set("while running the program before the passes");
        }
        let observe = &mut |event: PassEvent<'_>| {
            if let PassEvent::Before { call, .. } = event {
                begun += 1;
                progress.set(begun - 1);
                self.activity.set(format!("in pass {begun} of {all}, `{}`,", call.pass.name));
            }
            if let (PassEvent::Before { call, program }, Some(_)) = (event, &self.options.crash_reproducer) {
                before = Some((call.to_string(), grammar::print(program)));
            }
            if let PassEvent::After { remarks, .. } = event {
                self.remarks.extend_from_slice(remarks);
            }
            if self.options.statistics {
                self.statistics.handle_event(event);
            }
            progress.suspend(|| self.dumper.handle_event(event));
        };
        let result = passes::run(program, &self.calls, settings, observe);
        if let (Err(failure), Some((call, text))) = (&result, before) {
            self.write_reproducer(&call, failure, self.options.verify_each, &text);
        }
        result
    }

    /// Finds the first failing pass and returns its failure. If none fails, runs all passes.
    pub fn bisect(&mut self, program: &mut Program, part: &Source) -> Result<(), Box<PipelineError>> {
        let oracle = self.oracle(part);
        let count = self.calls.len();
        self.activity.set(format!("while looking for the first of {count} passes that fails"));
        let Some(culprit) = passes::bisect(program, &self.calls, &oracle)? else {
            self.screen.message(format!("bisect: none of the {count} passes fails"));
            return self.run_passes(program, part);
        };
        let call = self.calls[culprit.position].to_string();
        self.screen.message(format!(
            "bisect: pass {} of {count}, `{call}`, is the first that fails",
            culprit.position + 1
        ));
        // The program after a panic may be impossible to print.
        if !matches!(culprit.error.error, PassError::Panicked(_)) {
            self.screen.print_text(&diff(&culprit.before, &culprit.after));
        }
        self.write_reproducer(&call, &culprit.error, VerifyEach::Semantic, &grammar::print(&culprit.before));
        Err(Box::new(culprit.error))
    }
}
