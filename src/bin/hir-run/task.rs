//! A program that is ready to run, and what is asked of it.

use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use hir::{
    atomic_file,
    exit::Exit,
    interrupt::{self, Activity},
    plan::{
        IoBinding, Plan,
        sync::{CommMatching, deadlocked_state},
    },
    run::{
        RunError,
        inputs::InputSpec,
        output, per_rank,
        prepare::{JobFailure, PrepareOptions, Prepared},
        rank_process::RunVerdict,
        schedules::{self, ScheduleIter},
        unsharded,
        unwritten::UnwrittenReads,
        verdict::{self, Expectation, ExpectationSource, OutputRef},
    },
    sim::{self, ProgressQuery, Schedule},
    tool::{Reporter, sarif_log},
};

use crate::options::{Expect, Options};

/// A program that is ready to run, and what is asked of it.
pub struct Task<'a> {
    /// The command line.
    pub options: &'a Options,
    /// How the program was prepared; references are prepared alike.
    pub setup: &'a PrepareOptions<'a>,
    /// The program.
    pub prepared: &'a Prepared,
    /// Its plans, by rank.
    pub plans: &'a Arc<Vec<Plan>>,
    /// The names of its texts.
    pub names: &'a [&'a str],
    /// The rank that this process is, where each rank has a process.
    pub owner: Option<usize>,
    /// For who stops the tool or asks how far it is.
    pub monitor: &'a RunMonitor,
    /// When the tool began.
    pub start: Instant,
    /// Standard error; silent on other ranks than the one that prints the report.
    pub screen: Reporter,
}

/// How long a run has to answer who asks how far it is: an instruction may take long.
const INQUIRY_TIMEOUT: Duration = Duration::from_millis(500);

/// What a run shows to who stops it or asks how far it is.
#[derive(Clone, Default)]
pub struct RunMonitor {
    /// What the tool does.
    pub activity: Activity,
    /// Asks the simulator.
    inquiry: Arc<ProgressQuery>,
}

impl RunMonitor {
    /// Ends the process where a signal stops it, with what it has done so far; `last` then says what ends with it. SIGUSR1
    /// prints how far every simulated rank is.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn watch(&self, last: impl Fn(Exit) + Send + 'static) -> io::Result<()> {
        let (asked, stopped) = (self.clone(), self.activity.clone());
        let report = move || {
            let mut text = asked.inquiry.ask(INQUIRY_TIMEOUT).unwrap_or_default();
            text.insert_str(0, &format!("{}\n", asked.activity.description()));
            let lines: String = text.lines().map(|line| format!("# {line}\n")).collect();
            // A reader that went away has seen enough.
            let _ = io::stdout().lock().write_all(lines.as_bytes());
        };
        let end = move |signal: i32| {
            stopped.stop(|what| {
                let text = format!("# {}\n[STOPPED] {what}\n", interrupt::signal_name(signal));
                let mut out = io::stdout().lock();
                let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
                drop(out);
                let exit = Exit::from_signal(signal);
                last(exit);
                sarif_log::close(exit, true);
            })
        };
        interrupt::watch(report, end)
    }
}

impl Task<'_> {
    /// That the simulator may hold what all ranks hold.
    ///
    /// # Errors
    /// More than `--memory-limit`.
    pub fn check_memory(&self) -> Result<(), JobFailure> {
        self.prepared.check_memory(self.plans, self.options.memory_limit())
    }

    /// Commentary on tensors that are judged and written by rank.
    pub fn notes_on_parts(&self) -> Vec<String> {
        per_rank::notes(self.plans, &self.options.local_names())
    }

    /// Prints the warnings about reads of unwritten memory.
    pub fn print_unwritten_warnings(&self, reads: &UnwrittenReads) {
        let warnings = reads.warnings(&self.prepared.sources);
        for (source, warnings) in self.prepared.sources.iter().zip(&warnings) {
            self.screen.report_diagnostics(source, warnings);
        }
    }

    /// Runs it on simulated ranks.
    ///
    /// # Errors
    /// What goes wrong on the way to a verdict.
    pub fn simulate(
        &self,
        mut filling: InputSpec,
        say: &mut dyn FnMut(String),
    ) -> Result<RunVerdict, JobFailure> {
        self.check_memory()?;
        self.monitor.activity.set("while computing what is expected");
        let Self { options, plans, names, .. } = self;
        let inputs = filling.fill(plans)?;
        let mut expectations = self.expectations(&filling)?;
        let expects_sim = options.expect.iter().any(|it| matches!(it, Expect::Sim));
        let is_plain = options.schedule.is_program();
        if !is_plain && (expectations.is_empty() || expects_sim) {
            expectations.extend(verdict::program_order_expectations(plans, inputs.clone())?);
        }
        let instructions: usize = plans.iter().map(|plan| plan.code.len()).sum();
        say(format!(
            "# {}: {} simulated rank{}, {instructions} instructions, inputs {} seed {}",
            names.join(", "),
            plans.len(),
            if plans.len() == 1 { "" } else { "s" },
            options.inputs,
            options.seed
        ));
        filling.notes.drain(..).for_each(|note| say(format!("# {note}")));
        if is_plain && expects_sim {
            say("# `--expect=sim` is for GPUs and other schedules: this is what the simulator finds"
                .to_owned());
        }
        if let Some(note) = verdict::final_stream_note(plans) {
            say(format!("# warning: {note}"));
        }
        self.notes_on_parts().into_iter().for_each(&mut *say);
        let watch = output::watched_views(plans, &options.output, self.owner)?;
        let mut verdict = None;
        let mut reads = UnwrittenReads::default();
        let difference = if expectations.is_empty() { "" } else { ", no difference" };
        let inquiry = Some(Arc::clone(&self.monitor.inquiry));
        let matched = CommMatching::from_plans(plans);
        let deadlocks = Some(deadlocked_state(plans, &matched).is_some());
        let sim = sim::SimOptions {
            progress_query: inquiry,
            deadlocks,
            ..verdict::simulation_options(plans, watch)
        };
        let mut runs = ScheduleIter::new(&options.schedule, plans, &matched)?;
        let all = runs.remaining().map_or("orders".to_owned(), |all| format!("of {all} schedules"));
        let (mut done, mut last) = (0, Schedule::Program);
        while let Some(schedule) = runs.next() {
            let difference = if done == 0 { "" } else { difference };
            self.monitor.activity.set(match done + runs.remaining().unwrap_or(1) {
                0 => format!("while simulating schedule {schedule}"),
                _ => format!("after {done} {all}{difference}"),
            });
            let outcome = match sim::run(plans, &matched, inputs.clone(), &schedule, &sim) {
                Ok(outcome) => outcome,
                Err(fault) => {
                    self.print_unwritten_warnings(&reads);
                    say(format!("# schedule {schedule}"));
                    return Err(RunError::from(fault).into());
                }
            };
            reads.add(plans, &outcome.notes, &schedule, self.prepared.sources.len());
            let criteria = options.criteria(Some(outcome.notes.exactness.is_exact()), false);
            let judged = verdict::judge_outputs(plans, &outcome, &expectations, &criteria)?;
            output::write_outputs(plans, &outcome, &options.output, self.owner, say)?;
            if judged.exit != Exit::Success {
                self.print_unwritten_warnings(&reads);
                say(format!("# schedule {schedule}"));
                self.write_witness(&schedule, &judged.line, say)?;
                return Ok(RunVerdict {
                    exit: judged.exit,
                    summary: judged.line.clone(),
                    line: Some(judged.line),
                });
            }
            if let (None, Some(at)) = (&verdict, outcome.notes.first_inexact) {
                let count = outcome.notes.exactness.inexact();
                say(format!(
                    "# {count} inexact rounding{}, the first at rank {}, {}",
                    if count == 1 { "" } else { "s" },
                    at.rank,
                    hir::sim::describe(plans, at)
                ));
            }
            verdict = Some(judged);
            (done, last) = (done + 1, schedule);
        }
        self.print_unwritten_warnings(&reads);
        let Some(verdict) = verdict else {
            return Ok(RunVerdict { exit: Exit::Success, line: None, summary: String::new() });
        };
        if let Some(path) = &options.witness {
            say(format!("# no order gives another result: `{}` is not written", path.display()));
        }
        let schedules = runs.summary(&last, done);
        say(format!("# {schedules}, {:.3} s", self.start.elapsed().as_secs_f64()));
        Ok(print_outputs(verdict, say))
    }

    /// Writes the order under which a run fails.
    fn write_witness(
        &self,
        schedule: &Schedule,
        verdict: &str,
        say: &mut dyn FnMut(String),
    ) -> Result<(), JobFailure> {
        let (Some(path), Schedule::Steps { steps, .. }) = (&self.options.witness, schedule) else {
            return Ok(());
        };
        let title =
            format!("{}\n{verdict}\nrank, instruction, step of the instruction", self.names.join(", "));
        let text = schedules::format_steps(self.plans, steps, &title);
        atomic_file::write(path, text.as_bytes()).map_err(|fault| {
            JobFailure::Other(Exit::Environment, format!("cannot write {}: {fault}", path.display()))
        })?;
        say(format!("# `--schedule=@{}` runs this order again", path.display()));
        Ok(())
    }

    /// What outputs are compared with.
    ///
    /// # Errors
    /// A reference that does not run, a file that does not read.
    pub fn expectations(&self, filling: &InputSpec) -> Result<Vec<Expectation>, JobFailure> {
        let Self { options, setup, plans, .. } = self;
        let mut found = Vec::new();
        if let Some(path) = &options.reference {
            let setup =
                PrepareOptions { passes: &|_, _| Ok(()), container: None, is_reference: true, ..**setup };
            found = verdict::reference_expectations(path, &setup, options.memory_limit(), filling, plans)?;
        }
        if options.expect.iter().any(|it| matches!(it, Expect::Unsharded)) {
            let limit = options.memory_limit();
            found.extend(unsharded::unsharded_expectations(
                &self.prepared.sources,
                setup,
                limit,
                filling,
                plans,
            )?);
        }
        let given = options.expect.iter().filter_map(|it| match it {
            Expect::Given(flag) => Some(flag),
            Expect::Sim | Expect::Unsharded => None,
        });
        for flag in given {
            let ports: Vec<(usize, &IoBinding)> = plans
                .iter()
                .flat_map(|plan| plan.outputs.iter().map(|port| (plan.rank, port)))
                .filter(|(_, port)| port.name == flag.name)
                .collect();
            let position =
                plans.iter().find_map(|it| it.outputs.iter().position(|port| port.name == flag.name));
            let (Some((_, port)), Some(position)) = (ports.first(), position) else {
                let names: Vec<&str> = plans
                    .iter()
                    .take(1)
                    .flat_map(|plan| &plan.outputs)
                    .map(|port| port.name.as_str())
                    .collect();
                let message = format!(
                    "`--expect {}`: the program has no such output; it has {}",
                    flag.name,
                    names.join(", ")
                );
                return Err(JobFailure::Other(Exit::Usage, message));
            };
            let origin = match flag.value.starts_with('@') {
                true => flag.value.clone(),
                false => "the values given".to_owned(),
            };
            let mut expect = |output: OutputRef, rank: usize, port: &IoBinding| {
                let tensor = flag.load("--expect", rank, port)?.tensor;
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

/// The outputs and the verdict.
pub fn print_outputs(verdict: verdict::OutputVerdict, say: &mut dyn FnMut(String)) -> RunVerdict {
    say(format!("# {:<10} {:>6} {:>20}", "output", "dtype", "shape"));
    for output in &verdict.outputs {
        let tensor = &output.whole.tensor;
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        say(format!("  {:<10} {:>6} {:>20}", output.name, tensor.data.dtype().short_name(), shape.join("x")));
    }
    RunVerdict { exit: verdict.exit, summary: verdict.line.clone(), line: Some(verdict.line) }
}
