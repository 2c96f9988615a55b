//! Runs a program on simulated ranks, under each schedule, and judges its outputs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use grammar::{count_text, shell_word};
use hir_plan::IoBinding;
use hir_process::exit::Exit;
use hir_sim::{Schedule, ScheduleSet, SimOptions, SimOutcome};
use hir_tensor::{data::Data, generate::InputKind};

use super::task::{Task, print_outputs};
use crate::{
    job::rank_process::RunVerdict,
    run::{
        command_line::Expect,
        compare::format_3_digits,
        exact_range,
        failure::{JobFailure, Result},
        files::write_file,
        inputs::InputSpec,
        output,
        replay::ReplayRun,
        schedule_file::{self, ScheduleFile},
        schedules::ScheduleIter,
        unwritten::UnwrittenReads,
        verdict::{self, Expectation, ExpectationSource, OutputVerdict},
    },
    session::{Report, Verdict},
    tool::progress::Progress,
};

/// The time between two updates of the progress of a simulation.
const REFRESH: Duration = Duration::from_millis(100);

/// Runs a program on simulated ranks.
///
/// # Errors
/// A failure that prevents a verdict.
pub fn simulate(
    task: &Task<'_>,
    mut input_spec: InputSpec,
    say: &mut dyn FnMut(Report),
) -> Result<RunVerdict> {
    let options = task.options;
    if let ScheduleSet::File(path) = &options.schedule {
        let file = ScheduleFile::read(path, &task.setup.session.files)?;
        if !file.setting.is_plain() {
            if options.reference.is_some() || !options.expect.is_empty() {
                return Err(JobFailure::Usage(format!(
                    "`{}` has more than one program in program order, which `--reference` and `--expect` are not compared with",
                    path.display()
                )));
            }
            let by_rank = options.local_names();
            let inputs = (&mut input_spec, task.limits());
            let replay = ReplayRun::new(&file, task.world, task.setup, &by_rank, inputs)?;
            let task = Task { world: &Arc::clone(&replay.world), ..*task };
            return run(&task, input_spec, Some(replay), say);
        }
    }
    run(task, input_spec, None, say)
}

/// Runs the program of a task, or a replay.
fn run(
    task: &Task<'_>,
    mut input_spec: InputSpec,
    replay: Option<ReplayRun>,
    say: &mut dyn FnMut(Report),
) -> Result<RunVerdict> {
    task.check_memory(&input_spec)?;
    task.monitor.activity.set("while computing the expected outputs");
    let Task { options, world, .. } = task;
    let runs = ScheduleIter::new(&options.schedule, world, &task.setup.session.files);
    let is_plain = options.schedule.is_program();
    // Other schedules are compared with one run under schedule `program`.
    let known = runs.as_ref().ok().and_then(ScheduleIter::remaining);
    let count = known.unwrap_or(1) + usize::from(!is_plain);
    let work = hir_sim::work(world, 1);
    task.work.check(work.saturating_mul(count as u64)).map_err(|it| task.exceeds(&it))?;
    let (notes, semaphores, inputs, mut expectations) = match replay {
        Some(it) => (it.notes, it.semaphores, it.inputs, it.expectations),
        None => {
            let inputs = input_spec.fill(world)?;
            (Vec::new(), Arc::default(), inputs, task.expectations(&input_spec)?)
        }
    };
    let expects_sim = options.expect.iter().any(|it| matches!(it, Expect::Sim));
    if !is_plain && (expectations.is_empty() || expects_sim) {
        expectations.extend(verdict::program_order_expectations(world, inputs.clone(), task.limits())?);
    }
    say_what_runs(task, notes.into_iter().chain(input_spec.notes.drain(..)), say);
    let sim = SimOptions {
        progress_query: Some(Arc::clone(&task.monitor.inquiry)),
        watch: output::watched_views(world, &options.output, task.owner)?,
        semaphores,
        ..verdict::simulation_options(world, options.world.memory_bytes())
    };
    if sim.without_shadows && !expectations.is_empty() {
        say(Report::note(
            "the f64 shadows of the results exceed `--memory-limit`: rounded results are compared within the tolerances of their element types",
        ));
    }
    Simulation { task, input_spec, inputs, expectations, sim, work }.run_all(runs?, say)
}

/// Prints what runs, and notes about its outputs.
fn say_what_runs(task: &Task<'_>, notes: impl Iterator<Item = String>, say: &mut dyn FnMut(Report)) {
    let Task { options, world, names, .. } = task;
    let instructions: usize = world.iter().map(|plan| plan.code.len()).sum();
    say(Report::Note(format!(
        "{}: {}, {instructions} instructions, inputs {} seed {}",
        names.join(", "),
        count_text(world.len(), "simulated rank"),
        options.inputs(),
        options.seed
    )));
    notes.for_each(|note| say(Report::Note(note)));
    if options.schedule.is_program() && options.expect.iter().any(|it| matches!(it, Expect::Sim)) {
        say(Report::note(
            "`--expect=sim` has no effect: it compares GPUs or other schedules with this run of the simulator",
        ));
    }
    if let Some(note) = verdict::final_stream_note(world) {
        say(Report::Note(format!("warning: {note}")));
    }
    task.notes_on_parts().into_iter().for_each(|it| say(Report::Note(it)));
}

/// A program with its inputs and expected outputs.
struct Simulation<'a> {
    task: &'a Task<'a>,
    input_spec: InputSpec,
    inputs: Vec<Vec<Arc<Data>>>,
    expectations: Vec<Expectation>,
    sim: SimOptions,
    /// The work of one run.
    work: u64,
}

impl Simulation<'_> {
    /// Runs the program under all schedules, until its outputs are wrong.
    fn run_all(&self, mut runs: ScheduleIter, say: &mut dyn FnMut(Report)) -> Result<RunVerdict> {
        let Task { options, world, .. } = self.task;
        let (all, shows_instructions) = (runs.remaining(), runs.remaining() == Some(1));
        let of_all = all.map_or("orders".to_owned(), |all| format!("of {all} schedules"));
        let difference = if self.expectations.is_empty() { "" } else { ", no difference" };
        let progress = self.progress(all);
        let say = &mut |line: Report| progress.suspend(|| say(line));
        let (mut verdict, mut reads) = (None, UnwrittenReads::default());
        let (mut done, mut last) = (0, Schedule::Program);
        while let Some(schedule) = runs.next() {
            self.task.work.take(self.work).map_err(|it| self.task.exceeds(&it))?;
            let difference = if done == 0 { "" } else { difference };
            self.task.monitor.activity.set(match done + runs.remaining().unwrap_or(1) {
                0 => format!("while simulating schedule {schedule}"),
                _ => format!("after {done} {of_all}{difference}"),
            });
            let simulate = || hir_sim::run(world, self.inputs.clone(), &schedule, &self.sim);
            let outcome =
                if shows_instructions { self.with_progress(&progress, simulate) } else { simulate() };
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(fault) => {
                    self.task.print_unwritten_warnings(&reads);
                    say(Report::Note(format!("schedule {schedule}")));
                    return Err(self.task.fault(fault, Some(&self.input_spec)));
                }
            };
            reads.add(world, &outcome.notes, &schedule, self.task.prepared.sources.len());
            let judged = self.judge(&outcome, say)?;
            if !judged.is_right() {
                self.task.print_unwritten_warnings(&reads);
                say(Report::Note(format!("schedule {schedule}")));
                self.write_witness(&schedule, &judged.line, say)?;
                return Ok(RunVerdict::with_line(judged.exit, judged.line));
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
        self.task.print_unwritten_warnings(&reads);
        let Some(verdict) = verdict else {
            return Ok(RunVerdict::of(Exit::Success, "no schedule to run"));
        };
        if let Some(path) = &options.witness {
            say(Report::Note(format!(
                "no order gives a different result: `{}` is not written",
                path.display()
            )));
        }
        let verdict = self.with_other_inputs(verdict, say)?;
        let schedules = runs.summary(&last, done);
        say(Report::Note(format!("{schedules}, {:.3} s", self.task.start.elapsed().as_secs_f64())));
        Ok(print_outputs(verdict, say))
    }

    /// Compares the program with its reference on further inputs too, if the options select none: with `signs`, no term of a sum is 0, with
    /// `random`, no two are equal, and with `negative` and `positive`, which extremes need, 0 is no maximum and no minimum. Returns the first verdict that is no
    /// success. Inputs of one sign, which some programs do not take, may decide nothing.
    fn with_other_inputs(&self, first: OutputVerdict, say: &mut dyn FnMut(Report)) -> Result<OutputVerdict> {
        let Task { options, world, .. } = self.task;
        let is_computed = |it: &Expectation| matches!(it.source, ExpectationSource::Reference { .. });
        let is_generated = |it: &IoBinding| options.input.iter().all(|flag| flag.name != it.name);
        if !self.expectations.iter().any(is_computed)
            || !world.iter().flat_map(|it| &it.inputs).any(is_generated)
        {
            return Ok(first);
        }
        let generator = self.input_spec.generator;
        let mut missed = generator.missed_product(first.tolerance);
        let mut kinds = vec![options.inputs().name()];
        let others = [InputKind::Signs, InputKind::Random, InputKind::Negative, InputKind::Positive];
        let others = others.into_iter().take(if exact_range::has_extremes(world) { 4 } else { 2 });
        for kind in others.filter(|_| options.inputs.is_none()) {
            // The reference takes as much.
            if self.task.work.take(self.work).is_err() {
                break;
            }
            let mut input_spec = self.input_spec.clone();
            input_spec.generator.kind = kind;
            let expected = self.task.expectations(&input_spec)?;
            let inputs = input_spec.fill(world)?;
            let memory = options.world.memory_bytes();
            let outcome = verdict::simulate(world, inputs.clone(), &Schedule::Program, memory)?;
            let criteria = options.criteria(Some(outcome.notes.exactness.is_exact()), false, &inputs);
            let judged = verdict::judge_outputs(world, &outcome, &expected, &criteria)?;
            let is_one_sided = matches!(kind, InputKind::Negative | InputKind::Positive);
            if is_one_sided && judged.exit == Exit::Undecided {
                continue;
            }
            if judged.exit != Exit::Success {
                say(Report::Note(format!("inputs {kind} seed {}", options.seed)));
                return Ok(judged);
            }
            missed *= input_spec.generator.missed_product(judged.tolerance);
            kinds.push(kind.name());
        }
        say(Report::Note(format!(
            "compared with inputs {}: a dropped product of two inputs is missed with a chance of {}",
            grammar::list_text(kinds.iter(), kinds.len(), "and"),
            format_3_digits(missed)
        )));
        Ok(first)
    }

    /// Returns the progress of so many schedules; of a single one, that of its instructions.
    fn progress(&self, schedules: Option<usize>) -> Progress {
        let is_silent = self.task.options.diagnostics.quiet || self.task.owner.is_some_and(|it| it > 0);
        match schedules {
            Some(1) => {
                let instructions = self.task.world.iter().map(|it| it.code.len()).sum();
                Progress::new(Some(instructions), "instructions", is_silent)
            }
            all => Progress::new(all, "schedules", is_silent),
        }
    }

    /// Compares the outputs of a run with those that are expected, and writes them to files.
    fn judge(&self, outcome: &SimOutcome, say: &mut dyn FnMut(Report)) -> Result<OutputVerdict> {
        let Task { options, world, owner, .. } = self.task;
        let criteria = options.criteria(Some(outcome.notes.exactness.is_exact()), false, &self.inputs);
        let judged = verdict::judge_outputs(world, outcome, &self.expectations, &criteria)?;
        output::write_outputs(world, outcome, &options.output, *owner, say)?;
        Ok(judged)
    }

    /// Shows how many instructions are done while `simulate` runs.
    fn with_progress<R>(&self, progress: &Progress, simulate: impl FnOnce() -> R) -> R {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Without another thread, the progress is not shown.
            let shown = thread::Builder::new().spawn_scoped(scope, || {
                while !is_done.load(Ordering::Acquire) {
                    progress.set(self.task.monitor.inquiry.instructions_done());
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
    ) -> Result<()> {
        let (Some(path), Schedule::Steps { steps, .. }) = (&self.task.options.witness, schedule) else {
            return Ok(());
        };
        let names = self.task.names.join(", ");
        let title = format!("{names}\n{verdict}\nrank, instruction, step of the instruction");
        let text = schedule_file::format_schedule(self.task.world, steps, &title, &[]);
        write_file(path, &text)?;
        say(Report::Note(format!(
            "`--schedule=@{}` runs this order again",
            shell_word(&path.to_string_lossy())
        )));
        Ok(())
    }
}
