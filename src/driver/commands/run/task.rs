//! A prepared program with its options, and its expected outputs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    job::rank_process::RunVerdict,
    run::{
        RunError,
        command_line::{Expect, Options},
        failure::{JobFailure, Result},
        inputs::{InputSpec, unknown_output},
        output, per_rank,
        prepare::{PrepareOptions, Prepared},
        unsharded,
        unwritten::UnwrittenReads,
        verdict::{self, Expectation, ExpectationSource, OutputRef},
    },
    session::{Report, Verdict},
    tool::Reporter,
};
use grammar::Diagnostic;
use hir_plan::{IoBinding, World};
use hir_process::{
    exit::Exit,
    interrupt::{self, Activity},
};
use hir_sim::{OverBudget, ProgressQuery, SimError, SimLimits, WorkBudget};

/// A prepared program with its options.
pub struct Task<'a> {
    /// The work that all simulated runs may do.
    pub work: &'a WorkBudget,
    /// The command line.
    pub options: &'a Options,
    /// The options with which the program was prepared. References use the same.
    pub setup: &'a PrepareOptions<'a>,
    /// The prepared program.
    pub prepared: &'a Prepared,
    /// The plans of all ranks.
    pub world: &'a Arc<World>,
    /// The names of its source files.
    pub names: &'a [&'a str],
    /// The rank of this process, in a job with one process per rank.
    pub owner: Option<usize>,
    /// Receives signals and progress requests.
    pub monitor: &'a RunMonitor,
    /// Start time of the tool.
    pub start: Instant,
    /// Standard error. Silent in processes that do not print the report.
    pub screen: &'a Reporter,
}

/// The time that a run has to answer a progress request. A single instruction may take longer.
const INQUIRY_TIMEOUT: Duration = Duration::from_millis(500);

/// The state that signal handlers report.
#[derive(Clone, Default)]
pub struct RunMonitor {
    /// The current activity of the tool.
    pub activity: Activity,
    /// Sends progress requests to the simulator.
    pub inquiry: Arc<ProgressQuery>,
}

impl RunMonitor {
    /// Installs signal handlers. A signal that stops the process prints the activity so far and then calls
    /// `last`. SIGUSR1 prints the progress of every simulated rank.
    ///
    /// # Errors
    /// Returns the exit code if the operating system rejects the handlers; `screen` reports the error.
    pub fn watch(
        &self,
        screen: &Reporter,
        last: impl Fn(Exit, &Verdict) + Send + 'static,
    ) -> Result<(), Exit> {
        let (current, stopped) = (self.clone(), self.activity.clone());
        let report = move |screen: &Reporter| {
            let progress = current.inquiry.ask(INQUIRY_TIMEOUT).unwrap_or_default();
            let activity = current.activity.description();
            screen
                .session()
                .print_all([activity.as_str()].into_iter().chain(progress.lines()).map(Report::note));
        };
        let end = move |screen: &Reporter, signal: i32| {
            stopped.stop(|what| {
                let exit = Exit::from_signal(signal);
                let name = Report::note(interrupt::signal_name(signal));
                let verdict = Verdict::of(exit, what);
                screen.session().print_all([name, Report::Verdict(verdict.clone())]);
                last(exit, &verdict);
                screen.session().close_log(exit, true);
            })
        };
        screen.watch_signals(report, end)
    }
}

impl Task<'_> {
    /// Checks that the simulator may allocate the memory of all ranks.
    ///
    /// # Errors
    /// More memory than `--memory-limit` is needed.
    pub fn check_memory(&self, inputs: &InputSpec) -> Result<()> {
        let Self { options, prepared, world, .. } = self;
        let others = usize::from(options.reference.is_some())
            + usize::from(!options.schedule.is_program())
            + options.expect.iter().filter(|it| matches!(it, Expect::Unsharded)).count();
        let written = output::held_bytes(world, &options.output);
        prepared.check_memory(world, options.world.memory_bytes(), inputs.differs_by_rank(), others, written)
    }

    /// Returns what the simulated runs may use.
    pub fn limits(&self) -> SimLimits<'_> {
        SimLimits { memory: self.options.world.memory_bytes(), work: self.work }
    }

    /// Returns the failure for work that the simulated runs may not do.
    pub fn exceeds(&self, budget: &OverBudget) -> JobFailure {
        let fault = budget.diagnostic(self.prepared.header);
        JobFailure::Rejected(self.prepared.sources[0].clone(), vec![fault])
    }

    /// Returns the failure for a fault of a simulated run, and where it has a code, the statement and the inputs behind it.
    pub fn fault(&self, fault: SimError, inputs: Option<&InputSpec>) -> JobFailure {
        let SimError::Program { code: Some(code), rank, line, .. } = fault else {
            return RunError::from(fault).into();
        };
        let sources = &self.prepared.sources;
        let source = &sources[rank.min(sources.len() - 1)];
        let span = source.line_or_header(line);
        let mut it = Diagnostic::new(code, span, fault.to_string(), "fails with the values of this run");
        let generated =
            inputs.map_or_else(Vec::new, |it| it.generated_behind_indices(self.world, rank, line));
        if !generated.is_empty() {
            let names = grammar::list_text(generated.iter().map(|it| format!("`{it}`")), 3, "and");
            it = it.note(format!(
                "hir-run has generated the values of {names}, from which the indices are computed"
            ));
            it = it.help(format!("give values that fit: `--input {}=…`", generated[0]));
        }
        JobFailure::Faulty(source.clone(), Box::new(it))
    }

    /// Returns notes about tensors that are judged or written per rank.
    pub fn notes_on_parts(&self) -> Vec<String> {
        per_rank::notes(self.world, &self.options.local_names())
    }

    /// Prints warnings about reads of unwritten memory.
    pub fn print_unwritten_warnings(&self, reads: &UnwrittenReads) {
        let warnings = reads.warnings(&self.prepared.sources);
        for (source, warnings) in self.prepared.sources.iter().zip(&warnings) {
            self.screen.report_diagnostics(source, warnings);
        }
    }

    /// Returns the tensors that outputs are compared with.
    ///
    /// # Errors
    /// A reference fails, or a file cannot be read.
    pub fn expectations(&self, input_spec: &InputSpec) -> Result<Vec<Expectation>> {
        let Self { options, setup, world, .. } = self;
        let mut found = Vec::new();
        if let Some(path) = &options.reference {
            let setup =
                PrepareOptions { passes: &|_, _| Ok(()), container: None, is_reference: true, ..**setup };
            found = verdict::reference_expectations(path, &setup, self.limits(), input_spec, world)?;
        }
        if options.expect.iter().any(|it| matches!(it, Expect::Unsharded)) {
            found.extend(unsharded::unsharded_expectations(
                &self.prepared.sources,
                setup,
                self.limits(),
                input_spec,
                world,
            )?);
        }
        let given = options.expect.iter().filter_map(|it| match it {
            Expect::Given(flag) => Some(flag),
            Expect::Sim | Expect::Unsharded => None,
        });
        for flag in given {
            let ports: Vec<(usize, &IoBinding)> = world
                .iter()
                .flat_map(|plan| plan.outputs.iter().map(|port| (plan.rank, port)))
                .filter(|(_, port)| port.name == flag.name)
                .collect();
            let position =
                world.iter().find_map(|it| it.outputs.iter().position(|port| port.name == flag.name));
            let (Some((_, port)), Some(position)) = (ports.first(), position) else {
                let names: Vec<&str> = world
                    .iter()
                    .take(1)
                    .flat_map(|plan| &plan.outputs)
                    .map(|port| port.name.as_str())
                    .collect();
                return Err(unknown_output(flag, &names).into());
            };
            let origin =
                if flag.value.starts_with('@') { flag.value.clone() } else { "the values given".to_owned() };
            let mut expect = |output: OutputRef, rank: usize, port: &IoBinding| {
                let tensor = flag.load(&setup.session.files, "--expect", rank, port)?.tensor;
                found.push(Expectation {
                    source_name: origin.clone(),
                    output,
                    tensor,
                    shadow: None,
                    source: ExpectationSource::UserProvided,
                });
                Ok::<_, JobFailure>(())
            };
            if !flag.local {
                expect(OutputRef::Name(flag.name.clone()), 0, port)?;
                continue;
            }
            // Ranks outside the mesh have no part.
            for (rank, port) in ports.iter().filter(|(_, port)| port.shard.view.is_some()) {
                expect(OutputRef::RankPart(position, *rank), *rank, port)?;
            }
        }
        Ok(found)
    }
}

/// Prints the table of outputs and returns the verdict of the run.
pub fn print_outputs(verdict: verdict::OutputVerdict, say: &mut dyn FnMut(Report)) -> RunVerdict {
    say(Report::Note(format!("{:<10} {:>6} {:>20}", "output", "dtype", "shape")));
    for output in &verdict.outputs {
        let tensor = &output.whole.tensor;
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        say(Report::Output(format!(
            "  {:<10} {:>6} {:>20}",
            output.name,
            tensor.data.dtype().short_name(),
            shape.join("x")
        )));
    }
    RunVerdict::with_line(verdict.exit, verdict.line)
}
