//! Runs a prepared program on the simulator and computes its expected outputs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::job::rank_process::RunVerdict;
use crate::run::{
    RunError,
    command_line::{Expect, Options},
    failure::JobFailure,
    files::write_file,
    inputs::{InputSpec, unknown_output},
    output, per_rank,
    prepare::{PrepareOptions, Prepared},
    replay::ReplayRun,
    schedule_file::{self, ScheduleFile},
    schedules::ScheduleIter,
    unsharded,
    unwritten::UnwrittenReads,
    verdict::{self, Expectation, ExpectationSource, OutputRef},
};
use crate::session::{Report, Verdict};
use crate::tool::{Reporter, progress::Progress};
use grammar::{count_text, diagnostic::Diagnostic};
use hir_plan::{IoBinding, World};
use hir_process::{
    exit::Exit,
    interrupt::{self, Activity},
};
use hir_sim::{OverBudget, ProgressQuery, Schedule, ScheduleSet, SimError, SimLimits, WorkBudget};

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

/// The time between two updates of the progress of a simulation.
const REFRESH: Duration = Duration::from_millis(100);

/// The state that signal handlers report.
#[derive(Clone, Default)]
pub struct RunMonitor {
    /// The current activity of the tool.
    pub activity: Activity,
    /// Sends progress requests to the simulator.
    inquiry: Arc<ProgressQuery>,
}

impl RunMonitor {
    /// Installs signal handlers. A signal that stops the process prints the activity so far and then calls
    /// `last`. SIGUSR1 prints the progress of every simulated rank.
    ///
    /// # Errors
    /// Returns the exit code if the operating system rejects the handlers; `screen` reports the error.
    pub fn watch(&self, screen: &Reporter, last: impl Fn(Exit) + Send + 'static) -> Result<(), Exit> {
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
                screen.session().print_all([name, Report::Verdict(Verdict::of(exit, what))]);
                last(exit);
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
    pub fn check_memory(&self, inputs: &InputSpec) -> Result<(), JobFailure> {
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

    fn exceeds(&self, budget: &OverBudget) -> JobFailure {
        let fault = budget.diagnostic(self.prepared.header);
        JobFailure::Rejected(self.prepared.sources[0].clone(), vec![fault])
    }

    /// Returns the failure for a fault of a simulated run, and where it has a code, the statement and the inputs behind it.
    fn fault(&self, fault: SimError, inputs: &InputSpec) -> JobFailure {
        let SimError::Program { code: Some(code), rank, line, .. } = fault else {
            return RunError::from(fault).into();
        };
        let sources = &self.prepared.sources;
        let source = &sources[rank.min(sources.len() - 1)];
        let span = source.line_or_header(line);
        let mut it = Diagnostic::new(code, span, fault.to_string(), "fails with the values of this run");
        let generated = inputs.generated_behind_indices(self.world, rank, line);
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

    /// Runs the program on simulated ranks.
    ///
    /// # Errors
    /// A failure that prevents a verdict.
    pub fn simulate(
        &self,
        mut input_spec: InputSpec,
        say: &mut dyn FnMut(Report),
    ) -> Result<RunVerdict, JobFailure> {
        let options = self.options;
        if let ScheduleSet::File(path) = &options.schedule {
            let file = ScheduleFile::read(path, &self.setup.session.files)?;
            if !file.setting.is_plain() {
                if options.reference.is_some() || !options.expect.is_empty() {
                    return Err(JobFailure::Usage(format!(
                        "`{}` has more than one program in program order, which `--reference` and `--expect` are not compared with",
                        path.display()
                    )));
                }
                let replay = ReplayRun::new(&file, self.world, self.setup, (&mut input_spec, self.limits()))?;
                let task = Task { world: &Arc::clone(&replay.world), ..*self };
                return task.simulate_schedules(input_spec, Some(replay), say);
            }
        }
        self.simulate_schedules(input_spec, None, say)
    }

    fn simulate_schedules(
        &self,
        mut input_spec: InputSpec,
        replay: Option<ReplayRun>,
        say: &mut dyn FnMut(Report),
    ) -> Result<RunVerdict, JobFailure> {
        self.check_memory(&input_spec)?;
        self.monitor.activity.set("while computing the expected outputs");
        let Self { options, world, names, .. } = self;
        let runs = ScheduleIter::new(&options.schedule, world, &self.setup.session.files);
        let is_plain = options.schedule.is_program();
        // Other schedules are compared with one run under schedule `program`.
        let known = runs.as_ref().ok().and_then(ScheduleIter::remaining);
        let count = known.unwrap_or(1) + usize::from(!is_plain);
        let work = hir_sim::work(world, 1);
        self.work.check(work.saturating_mul(count as u64)).map_err(|it| self.exceeds(&it))?;
        let (notes, semaphores, inputs, mut expectations) = match replay {
            Some(it) => (it.notes, it.semaphores, it.inputs, it.expectations),
            None => {
                let inputs = input_spec.fill(world)?;
                (Vec::new(), Arc::default(), inputs, self.expectations(&input_spec)?)
            }
        };
        let expects_sim = options.expect.iter().any(|it| matches!(it, Expect::Sim));
        if !is_plain && (expectations.is_empty() || expects_sim) {
            expectations.extend(verdict::program_order_expectations(world, inputs.clone(), self.limits())?);
        }
        let instructions: usize = world.iter().map(|plan| plan.code.len()).sum();
        say(Report::Note(format!(
            "{}: {}, {instructions} instructions, inputs {} seed {}",
            names.join(", "),
            count_text(world.len(), "simulated rank"),
            options.inputs,
            options.seed
        )));
        notes.into_iter().chain(input_spec.notes.drain(..)).for_each(|note| say(Report::Note(note)));
        if is_plain && expects_sim {
            say(Report::note(
                "`--expect=sim` has no effect: it compares GPUs or other schedules with this run of the simulator",
            ));
        }
        if let Some(note) = verdict::final_stream_note(world) {
            say(Report::Note(format!("warning: {note}")));
        }
        self.notes_on_parts().into_iter().for_each(|it| say(Report::Note(it)));
        let watch = output::watched_views(world, &options.output, self.owner)?;
        let mut verdict = None;
        let mut reads = UnwrittenReads::default();
        let difference = if expectations.is_empty() { "" } else { ", no difference" };
        let inquiry = Some(Arc::clone(&self.monitor.inquiry));
        let sim = hir_sim::SimOptions {
            progress_query: inquiry,
            watch,
            semaphores,
            ..verdict::simulation_options(world, options.world.memory_bytes())
        };
        if sim.without_shadows && !expectations.is_empty() {
            say(Report::note(
                "the f64 shadows of the results exceed `--memory-limit`: rounded results are compared within the tolerances of their element types",
            ));
        }
        let mut runs = runs?;
        let all = runs.remaining().map_or("orders".to_owned(), |all| format!("of {all} schedules"));
        let (mut done, mut last) = (0, Schedule::Program);
        let is_silent = options.diagnostics.quiet || self.owner.is_some_and(|it| it > 0);
        let progress = match runs.remaining() {
            Some(1) => {
                Progress::new(Some(world.iter().map(|it| it.code.len()).sum()), "instructions", is_silent)
            }
            all => Progress::new(all, "schedules", is_silent),
        };
        let shows_instructions = runs.remaining() == Some(1);
        let say = &mut |line: Report| progress.suspend(|| say(line));
        while let Some(schedule) = runs.next() {
            let difference = if done == 0 { "" } else { difference };
            self.work.take(work).map_err(|it| self.exceeds(&it))?;
            self.monitor.activity.set(match done + runs.remaining().unwrap_or(1) {
                0 => format!("while simulating schedule {schedule}"),
                _ => format!("after {done} {all}{difference}"),
            });
            let simulate = || hir_sim::run(world, inputs.clone(), &schedule, &sim);
            let outcome =
                if shows_instructions { self.with_progress(&progress, simulate) } else { simulate() };
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(fault) => {
                    self.print_unwritten_warnings(&reads);
                    say(Report::Note(format!("schedule {schedule}")));
                    return Err(self.fault(fault, &input_spec));
                }
            };
            reads.add(world, &outcome.notes, &schedule, self.prepared.sources.len());
            let criteria = options.criteria(Some(outcome.notes.exactness.is_exact()), false);
            let judged = verdict::judge_outputs(world, &outcome, &expectations, &criteria)?;
            output::write_outputs(world, &outcome, &options.output, self.owner, say)?;
            if !judged.is_right {
                self.print_unwritten_warnings(&reads);
                say(Report::Note(format!("schedule {schedule}")));
                self.write_witness(&schedule, &judged.line, say)?;
                return Ok(RunVerdict::with_line(judged.exit(), judged.line));
            }
            if let (None, Some(at)) = (&verdict, outcome.notes.first_inexact) {
                let count = outcome.notes.exactness.inexact();
                say(Report::Note(format!(
                    "{}, the first at rank {}, {}",
                    count_text(count, "inexact rounding"),
                    at.rank,
                    hir_sim::describe(world, at)
                )));
            }
            verdict = Some(judged);
            (done, last) = (done + 1, schedule);
            if !shows_instructions {
                progress.set(done);
            }
        }
        progress.finish();
        self.print_unwritten_warnings(&reads);
        let Some(verdict) = verdict else {
            return Ok(RunVerdict::of(Exit::Success, "no schedule to run"));
        };
        if let Some(path) = &options.witness {
            say(Report::Note(format!(
                "no order gives a different result: `{}` is not written",
                path.display()
            )));
        }
        let schedules = runs.summary(&last, done);
        say(Report::Note(format!("{schedules}, {:.3} s", self.start.elapsed().as_secs_f64())));
        Ok(print_outputs(verdict, say))
    }

    /// Shows how many instructions are done while `simulate` runs.
    fn with_progress<R>(&self, progress: &Progress, simulate: impl FnOnce() -> R) -> R {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Without another thread, the progress is not shown.
            let shown = thread::Builder::new().spawn_scoped(scope, || {
                while !is_done.load(Ordering::Acquire) {
                    progress.set(self.monitor.inquiry.instructions_done());
                    thread::park_timeout(REFRESH);
                }
            });
            let result = simulate();
            is_done.store(true, Ordering::Release);
            shown.iter().for_each(|it| it.thread().unpark());
            result
        })
    }

    /// Writes the order under which a run failed to the `--witness` file.
    fn write_witness(
        &self,
        schedule: &Schedule,
        verdict: &Verdict,
        say: &mut dyn FnMut(Report),
    ) -> Result<(), JobFailure> {
        let (Some(path), Schedule::Steps { steps, .. }) = (&self.options.witness, schedule) else {
            return Ok(());
        };
        let title =
            format!("{}\n{verdict}\nrank, instruction, step of the instruction", self.names.join(", "));
        let text = schedule_file::format_schedule(self.world, steps, &title, &[]);
        write_file(path, &text)?;
        say(Report::Note(format!("`--schedule=@{}` runs this order again", path.display())));
        Ok(())
    }

    /// Returns the tensors that outputs are compared with.
    ///
    /// # Errors
    /// A reference fails, or a file cannot be read.
    pub fn expectations(&self, input_spec: &InputSpec) -> Result<Vec<Expectation>, JobFailure> {
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
    RunVerdict::with_line(verdict.exit(), verdict.line)
}
