//! Reads the programs of a job: a single one, those of a file of command lines, or one with several pipelines.
//!
//! ```text
//! # batch.txt: hir-run --batch batch.txt --ranks 8 --device=cuda -n 20
//! layer.hir --passes @lower
//! layer.hir --passes @overlap-allgather-linear --step-by-step
//! ```
//!
//! Options next to `--batch` apply to every program. Each program reports as if it ran alone, between its
//! command line and its exit code. An error on a single rank ends the job, because the other ranks cannot
//! know its state; an error or wrong result that all ranks agree on ends only the program. If a program has
//! the same plans as the previous one, the GPUs reuse them. Communicators are shared: a message that a
//! program sends and never receives may be received by the next program.

use std::{
    ffi::OsString,
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use crate::{
    job::rank_process::{Measured, RunVerdict},
    run::{
        batch_file::{self, BadLine, BatchLine},
        command_line::Options,
        failure::{JobFailure, Result},
        files::write_file,
        option_files::{OptionFile, check_option_files},
    },
    session::{Report, Session, Verdict},
    tool::Reporter,
};
use hir_launch::stop;
use hir_process::exit::Exit;

use super::{
    failure::json_text,
    gpus,
    pipelines::{PipelineRun, PipelineTimes},
};

/// A program of a job.
pub struct JobProgram {
    /// The options of the program.
    pub options: Options,
    /// Where it comes from.
    pub step: JobStep,
}

/// Where a program of a job comes from.
pub enum JobStep {
    /// The command line of the job.
    Only,
    /// A line of a batch file.
    Line {
        /// The text of the line.
        text: String,
        /// Its position: `program 1 of 2`.
        position: String,
    },
    /// The check of what all pipelines need, such as the program and the files of options, before pipelines are measured
    /// for minutes. It runs no program.
    Check,
    /// One of the pipelines of `--tune-passes`.
    Pipeline(PipelineRun),
    /// The report on all pipelines. It runs no program.
    Report,
}

impl JobProgram {
    /// Returns the options that must be equal on all ranks.
    pub fn canonical_options(&self) -> String {
        let position = match &self.step {
            JobStep::Only => String::new(),
            JobStep::Line { position, .. } => format!("{position}\n"),
            JobStep::Pipeline(it) => format!("pipeline {}, round {}\n", it.number + 1, it.round + 1),
            JobStep::Check => "the check before all pipelines\n".to_owned(),
            JobStep::Report => "the report on all pipelines\n".to_owned(),
        };
        position + &self.options.canonical_options()
    }

    /// Returns the reporter of the program's diagnostics. Warnings about a pipeline are the same in both rounds.
    pub fn reporter(&self, screen: &Reporter) -> Reporter {
        match self.pipeline() {
            Some(it) if it.round > 0 => screen.errors_only(),
            Some(_) | None => screen.clone(),
        }
    }

    /// Returns the pipeline that the program runs with, if several are measured.
    pub fn pipeline(&self) -> Option<&PipelineRun> {
        match &self.step {
            JobStep::Pipeline(it) => Some(it),
            JobStep::Only | JobStep::Line { .. } | JobStep::Check | JobStep::Report => None,
        }
    }

    /// Returns the verdict on a program that failed. With several pipelines, only the report on all of them has a line.
    pub fn verdict(&self, failed: RunVerdict) -> RunVerdict {
        match (&self.step, failed.exit) {
            (JobStep::Only | JobStep::Line { .. }, _) | (_, Exit::Hang | Exit::WrongResult) => failed,
            (JobStep::Pipeline(_) | JobStep::Check | JobStep::Report, _) => {
                RunVerdict { notes: Vec::new(), line: None, ..failed }
            }
        }
    }

    /// Returns true if the files are those of the program before. All pipelines have one program.
    pub fn continues(&self) -> bool {
        match &self.step {
            JobStep::Only | JobStep::Line { .. } | JobStep::Check => false,
            JobStep::Pipeline(_) | JobStep::Report => true,
        }
    }

    /// Returns the line that is printed before the program runs.
    fn title(&self) -> Option<Report> {
        match &self.step {
            JobStep::Line { text, .. } => Some(Report::Output(format!("$ hir-run {text}"))),
            JobStep::Pipeline(it) if !self.options.diagnostics.quiet => {
                let passes = if it.passes.is_empty() { "no passes" } else { &it.passes };
                Some(Report::Note(format!(
                    "round {}, pipeline {} of {}: {passes}",
                    it.round + 1,
                    it.number + 1,
                    it.count
                )))
            }
            JobStep::Only | JobStep::Check | JobStep::Pipeline(_) | JobStep::Report => None,
        }
    }
}

/// Reads the programs of a job. `words` is the command line without the name of the tool.
///
/// # Errors
/// The batch file cannot be read, or one of its lines is not a valid command line.
pub fn read_programs(job: &Options, session: &Session, words: Vec<OsString>) -> Result<Vec<JobProgram>> {
    let Some(path) = &job.batch else {
        return Ok(vec![JobProgram { options: job.clone(), step: JobStep::Only }]);
    };
    let shown = path.display();
    let cannot = |cause: String| JobFailure::CannotRead { path: shown.to_string(), cause };
    if !std::fs::metadata(path).map_err(|it| cannot(it.to_string()))?.is_file()
        && gpus::should_spawn_ranks(job)
    {
        return Err(JobFailure::Usage(format!(
            "`{shown}` must be a regular file, because each rank reads it"
        )));
    }
    let text = String::from_utf8(session.files.read(path).map_err(|it| cannot(it.to_string()))?)
        .map_err(|_| cannot("it is not UTF-8 text".to_owned()))?;
    let common = batch_file::without_batch(words);
    let wrong = |line: BadLine| JobFailure::Usage(format!("{shown}:{line}"));
    let lines = batch_file::parse_batch(&text, &common).map_err(wrong)?;
    batch_file::check_destinations(&lines).map_err(wrong)?;
    let all = lines.len();
    let entry = |(at, line): (usize, BatchLine)| {
        let BatchLine { number, text, options } = line;
        let only = [
            (options.batch.is_some(), "--batch"),
            (!options.tune_passes.is_empty(), "--tune-passes"),
            (options.timeout != job.timeout, "--timeout"),
        ];
        let batch = OptionFile { option: "the batch file", path };
        let refused = |reason| wrong(BadLine { number, reason });
        check_option_files(&options.option_files(), &[batch]).map_err(refused)?;
        if let Some((_, name)) = only.into_iter().find(|it| it.0) {
            let reason = format!("{name} applies to the whole job and cannot be set for one of its programs");
            return Err(refused(reason.into()));
        }
        Ok(JobProgram {
            options,
            step: JobStep::Line { text, position: format!("program {} of {all}", at + 1) },
        })
    };
    if lines.is_empty() {
        Err(JobFailure::Usage(format!("`{shown}` contains no command line")))
    } else {
        lines.into_iter().enumerate().map(entry).collect()
    }
}

/// Counts the programs that have started, and reports exit codes and what was measured.
#[derive(Clone)]
pub struct BatchProgress {
    session: Arc<Session>,
    started: Arc<AtomicUsize>,
    all: usize,
    /// True if the programs come from a batch file.
    is_batch: bool,
    /// With `--tune-passes`, the table of the pipelines that have run.
    table: Option<Arc<Mutex<Vec<Report>>>>,
    /// For each program, its files, and that of `-J`.
    files: Arc<Vec<(Vec<String>, Option<PathBuf>)>>,
}

impl BatchProgress {
    /// Creates a counter for programs of which none has started.
    pub fn of(programs: &[JobProgram], session: &Arc<Session>) -> Self {
        let is_batch = programs.iter().any(|it| matches!(it.step, JobStep::Line { .. }));
        let all = programs.iter().filter(|it| !matches!(it.step, JobStep::Report)).count();
        let table = programs.iter().any(|it| it.pipeline().is_some()).then(Arc::default);
        let files = programs.iter().map(|it| {
            let json = it.pipeline().is_none().then(|| it.options.json.clone()).flatten();
            (it.options.texts().paths().to_vec(), json)
        });
        let files = Arc::new(files.collect());
        Self { session: Arc::clone(session), started: Arc::default(), all, is_batch, table, files }
    }

    /// Returns a function that reports the exit code, and writes the file of `-J`, when the job ends in the middle of a program.
    pub fn exit_reporter(&self) -> impl Fn(Exit, &Verdict) + Send + 'static {
        let count = self.clone();
        move |exit, verdict| {
            count.report_exit(exit, true);
            // This launcher kills the process before a file is complete.
            if stop::kills_at_once(exit) {
                return;
            }
            let now = count.files.get(count.started.load(Relaxed).saturating_sub(1));
            if let Some((programs, Some(path))) = now {
                let text = json_text(programs, exit, verdict.to_string(), serde_json::Map::new());
                if let Err(failure) = write_file(path, &text) {
                    count.session.notice(&failure.summary());
                }
            }
        }
    }

    /// Reports the exit code of the program that started last. `is_end` is set if no other program follows.
    fn report_exit(&self, exit: Exit, is_end: bool) {
        if self.is_batch {
            self.session.print(&Report::Note(format!("exit code {}", exit as u8)));
        }
        let more = self.all - self.started.load(Relaxed).min(self.all);
        if !is_end {
            return;
        }
        let why = if exit.is_signal() {
            "the job was stopped"
        } else {
            "the state of the job is undefined after this failure"
        };
        if self.is_batch && more > 0 {
            self.session.print(&Report::Note(format!("{more} more are not run: {why}")));
        }
        if let Some(table) = &self.table {
            table.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|it| self.session.print(it));
            if more > 0 {
                self.session.print(&Report::Note(format!("the other pipelines are not measured: {why}")));
            }
        }
    }
}

/// Runs the programs in order until `run` breaks. `run` is called with a flag that is set for the last program and with
/// the results of the pipelines so far, and returns the exit code and what was measured. A pipeline that has
/// failed does not run again. Returns the first exit code that is not a success; the exit codes of pipelines are combined
/// by the report.
///
/// # Errors
/// The first error of `run`.
pub fn run_each<E>(
    programs: &[JobProgram],
    (prints_lines, ranks): (bool, usize),
    count: &BatchProgress,
    mut run: impl FnMut(&JobProgram, bool, &PipelineTimes) -> Result<(ControlFlow<Exit, Exit>, Measured), E>,
) -> Result<Exit, E> {
    let mut first = Exit::Success;
    let mut times = PipelineTimes::of(programs, ranks);
    for (at, entry) in programs.iter().enumerate() {
        count.started.store(at + 1, Relaxed);
        if times.is_skipped(entry) {
            continue;
        }
        entry.title().iter().filter(|_| prints_lines).for_each(|it| count.session.print(it));
        let (end, measured) = run(entry, at + 1 == programs.len(), &times)?;
        let (ControlFlow::Break(exit) | ControlFlow::Continue(exit)) = end;
        times.add(entry, exit, measured);
        if let Some(table) = count.table.as_ref().filter(|_| entry.pipeline().is_some()) {
            *table.lock().unwrap_or_else(PoisonError::into_inner) = times.table(&entry.options);
        }
        if prints_lines {
            // The report contains the table.
            count.report_exit(exit, end.is_break() && !matches!(entry.step, JobStep::Report));
        }
        if first == Exit::Success && (entry.pipeline().is_none() || end.is_break()) {
            first = exit;
        }
        if end.is_break() {
            break;
        }
    }
    Ok(first)
}
