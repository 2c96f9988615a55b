//! Runs a program with each pipeline of `--tune-passes`, in turns, as the programs of one job. `--tune` stores the fastest
//! one, and `--tuning` applies it.

use std::path::Path;

use crate::{
    auto,
    job::{
        gpu::JobGroup,
        rank_process::{Measured, RunVerdict},
        tuning::{
            self,
            pipelines::{self, StoredPipeline, TunedProgram, store_pipeline},
        },
    },
    run::{
        command_line::{Device, Expect, Options},
        failure::{JobFailure, Result},
        files::write_file,
        pipeline_tuning::{
            MeasuredPipeline, Measurement, ROUNDS,
            alternatives::{Alternative, all_alternatives},
            exit_code,
            given_values::{GivenValues, check_reference},
            json, report, table,
        },
        prepare::{self, LoadedPrograms},
    },
    session::{Report, Session},
    tool::parse_pipeline,
};
use hir_executor::{Machine, ProcessGroup, RankDevice, SingleProcess};
use hir_launch::job_rank::JobRank;
use hir_process::exit::Exit;

use grammar::{Code, Diagnostic, Program, Source};
use passes::{PassCall, Settings, Verify};

use super::{
    batch::{JobProgram, JobStep},
    gpus::{device_count, gpu_of_rank},
};

/// Number of timed runs of a round if `-n` is not given.
const RUNS: usize = 20;

/// A run of a program with one of several pipelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineRun {
    /// The position of the pipeline, from 0, and the number of pipelines.
    pub number: usize,
    pub count: usize,
    /// The round, from 0.
    pub round: usize,
    /// The text of the pipeline, with the passes of `--passes`.
    pub passes: String,
}

/// Returns the runs of all pipelines of `--tune-passes`, and the report at the end. The second round has the opposite
/// order.
///
/// # Errors
/// A text is not a pipeline, there are too many, or an option does not fit.
pub fn programs(job: &Options, session: &Session) -> Result<Vec<JobProgram>> {
    job.validate()?;
    let refused = |message: String| JobFailure::Usage(message);
    let reads = |name: &str| job.texts().paths().iter().any(|it| it == name);
    if reads("-") || job.reference.as_deref() == Some("-") {
        let message =
            "`--tune-passes` reads the program more than once, so it cannot be standard input: use a file";
        return Err(refused(message.to_owned()));
    }
    let texts =
        all_alternatives(&job.tune_passes).map_err(|why| refused(format!("`--tune-passes`: {why}")))?;
    PassesText::new(job, None).parse()?;
    let mut pipelines: Vec<(Alternative, Vec<PassCall>)> = Vec::new();
    let parse = |it: &Alternative| {
        parse_pipeline(&it.text).map_err(|fault| JobFailure::bad_option(it.locate(0, *fault)))
    };
    let mut all = Vec::new();
    for it in texts {
        let mut calls = parse(&it)?;
        auto::use_machine(&mut calls, job.timelines.machine.as_ref(), || None);
        match calls.as_slice() {
            [call] if call.pass.name == auto::PASS.name => {
                let ways = best_ways(job, session, call).map_err(|fault| match fault {
                    JobFailure::BadOption(_, fault) => JobFailure::bad_option(it.locate(0, *fault)),
                    other => other,
                })?;
                all.extend(ways);
            }
            _ => all.push(it),
        }
    }
    for it in all {
        let calls = parse(&it)?;
        // Another text may stand for the same passes: `@lower`, `@lower{}`.
        if pipelines.iter().all(|it| it.1 != calls) {
            pipelines.push((it, calls));
        }
    }
    let pipelines: Vec<Alternative> = pipelines.into_iter().map(|it| it.0).collect();
    let runs = if job.iters > 0 { job.iters } else { RUNS };
    let run = |round: usize, (number, pipeline): (usize, &Alternative)| {
        let mut options = job.clone();
        if !pipeline.text.is_empty() {
            options.passes.push(pipeline.text.clone());
            options.pipeline = Some(pipeline.clone());
        }
        (options.iters, options.json) = (runs, None);
        // The second round repeats the first one.
        options.reports_failures_only = round > 0 || job.diagnostics.quiet;
        let passes = options.passes().unwrap_or_default();
        let run = PipelineRun { number, count: pipelines.len(), round, passes };
        JobProgram { options, step: JobStep::Pipeline(run) }
    };
    let mut all = vec![JobProgram { options: job.clone(), step: JobStep::Check }];
    for round in 0..ROUNDS {
        let mut order: Vec<(usize, &Alternative)> = pipelines.iter().enumerate().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        all.extend(order.into_iter().map(|it| run(round, it)));
    }
    let options = Options { iters: runs, ..job.clone() };
    all.push(JobProgram { options, step: JobStep::Report });
    Ok(all)
}

/// Number of pipelines for which `@auto` stands.
const BEST_WAYS: usize = 4;

/// Returns the pipelines for which `@auto` stands: the best by its estimates. Every process finds the same ones.
fn best_ways(job: &Options, session: &Session, call: &PassCall) -> Result<Vec<Alternative>> {
    let before = PassesText::new(job, None).parse()?;
    let rewrite = |program: &mut Program, source: &Source| {
        let settings = Settings { verify: Verify::Structural, roundtrip: false };
        passes::run(program, &before, settings, &mut |_| {})
            .map_err(|failure| JobFailure::Rejected(source.clone(), failure.error.diagnostics().to_vec()))
    };
    let setup = job.preparation(session, None, &rewrite);
    let LoadedPrograms { programs, .. } = prepare::check(&job.texts(), &setup)?;
    let Some(program) = programs.first() else { return Ok(Vec::new()) };
    let ways = auto::ways(program, &call.arguments).map_err(|fault| match fault.code {
        Code::BadOption => {
            JobFailure::bad_option((Source::new("--tune-passes".to_owned(), String::new()), fault))
        }
        _ => JobFailure::Unsuitable(format!("`@auto`: {}", fault.message)),
    })?;
    let texts: Vec<String> = ways.into_iter().take(BEST_WAYS).map(|it| it.passes).collect();
    all_alternatives(&texts).map_err(|why| JobFailure::Usage(format!("`--tune-passes`: {why}")))
}

/// Checks what does not depend on the pipeline: the program, the reference, the number of ranks, the GPUs and the values
/// of options, and, on the rank that reads and writes it, the table of `--tune` or `--tuning`.
///
/// # Errors
/// The first fault. All ranks call this, and agree on the faults that are found before their GPUs are initialized.
pub fn check(
    job: &Options,
    session: &Session,
    member: Option<&JobRank>,
    gpu: &mut Option<Box<dyn RankDevice>>,
) -> Result<RunVerdict> {
    let (world, rank) = member.map_or((None, 0), |it| (Some(it.channel.world), it.channel.rank));
    let setup = job.preparation(session, world, &|_, _| Ok(()));
    let LoadedPrograms { programs, ranks } = prepare::check(&job.texts(), &setup)?;
    if let Some(path) = &job.reference {
        check_reference(path, &setup, &programs)?;
    }
    let group = member.map(JobGroup);
    let peers: &dyn ProcessGroup = group.as_ref().map_or(&SingleProcess, |it| it);
    let gpu = gpu_of_rank(ranks, peers, gpu)?;
    let expected = job.expect.iter().filter_map(|it| match it {
        Expect::Given(it) => Some(it),
        Expect::Sim | Expect::Unsharded => None,
    });
    let files = &session.files;
    GivenValues { files, inputs: &job.input, expected: expected.collect() }.check(&programs, rank)?;
    if rank == 0 {
        job.tune.as_deref().map_or(Ok(()), |path| tuning::check(files, path))?;
        if let Some(path) = &job.tuning {
            tuning::check_existing(files, path, &gpu.machine()?)?;
        }
    }
    Ok(RunVerdict::without_line(Exit::Success))
}

/// Reads the table of `--tuning`, which must exist on the simulator too, and returns what it has for a program without
/// passes, unless `--device=sim` or the host has no GPU. Rank 0 decides, and all ranks of a job get the same.
///
/// # Errors
/// The table cannot be read, or a rank does not answer.
pub fn stored_pipeline(
    options: &Options,
    session: &Session,
    member: Option<&JobRank>,
) -> Result<Option<StoredPipeline>> {
    let has_passes = !options.passes.is_empty() || !options.tune_passes.is_empty();
    let Some(path) = &options.tuning else { return Ok(None) };
    let on_gpus = || match options.device() {
        Device::Sim => false,
        Device::Cuda => true,
        Device::Auto => device_count() > 0,
    };
    let ranks = member.map_or(options.world.ranks.unwrap_or(1), |it| it.channel.world);
    let program = || (!has_passes && on_gpus()).then(|| tuned_program(options, session, ranks)).flatten();
    pipelines::stored(&session.files, path, program, member)
}

/// Returns what a table knows a program by; `None` if it is standard input or cannot be read.
fn tuned_program(options: &Options, session: &Session, ranks: usize) -> Option<TunedProgram> {
    let (files, how) = (options.texts(), (ranks, !options.step_by_step));
    let is_stdin = files.paths().iter().any(|it| it == "-");
    (!is_stdin).then(|| {
        let files = (&files, &options.text.fusions[..]);
        TunedProgram::read(session, files, options.container, &options.set, how)
    })?
}

/// The text of the passes of a run.
pub struct PassesText<'a> {
    /// The text.
    pub text: String,
    /// The option or the table that it is from.
    origin: String,
    /// The pipeline of `--tune-passes` with which it ends.
    pipeline: Option<&'a Alternative>,
}

impl<'a> PassesText<'a> {
    /// Returns the text for `stored` passes of the table of `--tuning`, or else for those of the options.
    pub fn new(options: &'a Options, stored: Option<String>) -> Self {
        match stored.zip(options.tuning.as_ref()) {
            Some((text, path)) => {
                Self { text, origin: format!("pipeline in {}", path.display()), pipeline: None }
            }
            None => Self {
                text: options.passes().unwrap_or_default(),
                origin: "--passes".to_owned(),
                pipeline: options.pipeline.as_ref(),
            },
        }
    }

    /// Parses the text.
    ///
    /// # Errors
    /// The text is not a pipeline.
    pub fn parse(&self) -> Result<Vec<PassCall>> {
        parse_pipeline(&self.text).map_err(|fault| JobFailure::bad_option(self.locate(*fault)))
    }

    /// Returns the text of the option that a diagnostic about `text` refers to, and the diagnostic with positions in it.
    pub fn locate(&self, fault: Diagnostic) -> (Source, Diagnostic) {
        let pipeline = self.pipeline.map(|it| (it, self.text.len().saturating_sub(it.text.len())));
        match pipeline.filter(|(_, start)| fault.span().start as usize >= *start) {
            Some((it, start)) => it.locate(start, fault),
            None => (Source::new(self.origin.clone(), self.text.clone()), fault),
        }
    }
}

/// Returns false for notes that `--quiet` omits.
fn is_due(job: &Options, line: &Report) -> bool {
    !(job.diagnostics.quiet && matches!(line, Report::Note(_)))
}

/// The results of all pipelines.
pub struct PipelineTimes {
    pipelines: Vec<MeasuredPipeline>,
    ranks: usize,
    /// The GPU, driver and cuBLASLt with which the pipelines were measured, for the table of `--tune`. Only rank 0 has it,
    /// after the first pipeline.
    machine: Option<Machine>,
    /// The exit code of `JobStep::Check`, which runs before all pipelines. If it is not a success, no pipeline is
    /// measured.
    check: Exit,
}

impl PipelineTimes {
    /// Creates the results of programs that have not run, on this many ranks.
    pub fn of(programs: &[JobProgram], ranks: usize) -> Self {
        let runs = programs.iter().filter_map(JobProgram::pipeline);
        let pipelines =
            runs.filter(|it| it.round == 0).map(|it| MeasuredPipeline::new(it.passes.clone())).collect();
        Self { pipelines, ranks, machine: None, check: Exit::Success }
    }

    /// Adds the result of a program: the exit code on which all ranks agree, and what was measured.
    pub fn add(&mut self, program: &JobProgram, exit: Exit, measured: Measured) {
        if matches!(program.step, JobStep::Check) {
            self.check = exit;
        }
        let Some(run) = program.pipeline() else { return };
        if let Some(it) = self.pipelines.get_mut(run.number) {
            it.add(run.round, exit, measured.median);
            it.not_captured = measured.capture_obstacle.or(it.not_captured.take());
        }
        self.machine = measured.machine.or(self.machine.take());
    }

    /// Returns true if a program need not run, because it failed with the same pipeline before, or because the check
    /// before all of them failed. All ranks agree.
    pub fn is_skipped(&self, program: &JobProgram) -> bool {
        let Some(run) = program.pipeline() else { return false };
        let has_failed = self.pipelines.get(run.number).is_some_and(|it| it.exit != Exit::Success);
        self.check != Exit::Success || has_failed
    }

    fn measurement(&self, job: &Options) -> Measurement {
        Measurement {
            runs: job.iters,
            warmup: job.warmup,
            graph: !job.step_by_step,
            ranks: self.ranks,
            compares: !job.expect.is_empty() || job.reference.is_some(),
        }
    }

    /// Returns the table of what has been measured so far, for a job that ends before the report.
    pub fn table(&self, job: &Options) -> Vec<Report> {
        let lines = table(&self.pipelines, self.measurement(job));
        lines.into_iter().filter(|it| is_due(job, it)).collect()
    }

    /// Prints the table, writes the files of `-J` and `--tune`, and returns the verdict of the job. Only rank 0 `reports`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn report(&self, job: &Options, session: &Session, reports: bool) -> Result<RunVerdict> {
        let how = self.measurement(job);
        if self.check != Exit::Success {
            return Ok(RunVerdict::of(self.check, "no pipeline was measured"));
        }
        let exit = exit_code(&self.pipelines);
        if !reports {
            return Ok(RunVerdict::without_line(exit));
        }
        let (lines, verdict) = report(&self.pipelines, how);
        for line in lines.iter().filter(|it| is_due(job, it)) {
            session.print(line);
        }
        if let Some(path) = &job.json {
            let value = json(&self.pipelines, how, job.texts().paths());
            let written = write_file(path, &format!("{value:#}\n"));
            // A wrong result is the more important failure.
            match (written, exit) {
                (Err(failure), Exit::Success) => return Err(failure),
                (Err(failure), _) => session.print(&Report::Note(failure.summary())),
                (Ok(()), _) => (),
            }
        }
        match (&job.tune, exit) {
            (Some(path), Exit::Success) => self.store(path, job, session)?,
            (Some(path), _) if !job.diagnostics.quiet => {
                session.print(&Report::Note(format!("`{}` is not written", path.display())));
            }
            (Some(_) | None, _) => (),
        }
        Ok(RunVerdict::of(exit, verdict))
    }

    /// Adds the fastest pipeline to a table.
    fn store(&self, path: &Path, job: &Options, session: &Session) -> Result<()> {
        let program = tuned_program(job, session, self.ranks);
        let Some((machine, program)) = self.machine.as_ref().zip(program) else { return Ok(()) };
        let notes = store_pipeline(&session.files, path, machine, program, &self.pipelines)?;
        notes.into_iter().filter(|_| !job.diagnostics.quiet).for_each(|it| session.print(&Report::Note(it)));
        Ok(())
    }
}
