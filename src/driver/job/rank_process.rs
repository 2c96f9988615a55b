//! Runs one rank process of a launched job, so that all processes run the same programs and exit with the
//! same code.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use grammar::Source;

use super::{digests, lost_job::report_without_plans};
use crate::{
    run::{failure::JobFailure, inputs::InputFlag, program_files::ProgramFiles},
    session::{Report, Session, Verdict},
    source,
    tool::Reporter,
};
use hir_executor::Machine;
use hir_launch::{
    LaunchError,
    environment::LaunchInfo,
    handshake::JobManifest,
    job_rank::{JobRank, RankEnd},
    watchdog::EndProcess,
};
use hir_process::exit::Exit;

/// The result of a run in one process.
pub struct RunVerdict {
    /// The exit code.
    pub exit: Exit,
    /// The lines on standard output before the last one.
    pub notes: Vec<String>,
    /// The last line on standard output; `None` if standard error already has the message.
    pub line: Option<Verdict>,
    /// A one-line summary for the reports of other ranks.
    pub summary: String,
    /// What was measured on GPUs, on the rank that reports it.
    pub measured: Measured,
    /// What the file of `-J` has beside the program, the exit code and the verdict.
    pub facts: serde_json::Map<String, serde_json::Value>,
}

/// What a run on GPUs has measured for the report on several pipelines.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The median of the timed runs, in microseconds.
    pub median: Option<f64>,
    /// Why the timed runs were issued step by step, if the plan cannot be captured.
    pub capture_obstacle: Option<String>,
    /// With `--tune` or `--tuning`: the kind of machine.
    pub machine: Option<Machine>,
}

impl RunVerdict {
    /// Returns a verdict that prints nothing.
    pub fn without_line(exit: Exit) -> Self {
        Self {
            exit,
            notes: Vec::new(),
            line: None,
            summary: String::new(),
            measured: Measured::default(),
            facts: serde_json::Map::new(),
        }
    }

    /// Returns a verdict with the last line on standard output.
    pub fn with_line(exit: Exit, line: Verdict) -> Self {
        Self { summary: line.to_string(), line: Some(line), ..Self::without_line(exit) }
    }

    /// Returns the verdict with this exit code, whose line has this text.
    pub fn of(exit: Exit, text: impl Into<String>) -> Self {
        Self::with_line(exit, Verdict::of(exit, text))
    }

    /// Returns what is printed last.
    pub fn lines(&self) -> impl Iterator<Item = Report> {
        let notes = self.notes.iter().cloned().map(Report::Note);
        notes.chain(self.line.clone().map(Report::Verdict))
    }
}

/// Collects everything that must be equal on all ranks: versions, options, program texts, and contents of
/// global inputs. A file that cannot be read is returned as the failure and is part of the manifest too, so
/// that all ranks agree on it.
pub fn manifest(
    session: &Session,
    options: String,
    (texts, fusions): (&ProgramFiles, &[String]),
    reference: Option<&str>,
    inputs: &[InputFlag],
) -> (JobManifest, Option<JobFailure>) {
    let mut manifest = JobManifest::default();
    manifest.add("the versions", "", format!("hir {}\n", crate::tool::version()));
    manifest.add("the options", "", options);
    let programs = texts.paths().iter().map(|it| ("the programs", it.as_str()));
    let mut failure = None;
    for (what, path) in programs.chain(reference.map(|it| ("the references", it))) {
        let wrong = match path {
            "-" => JobFailure::Usage(
                "every rank reads the program, so it cannot be standard input: use a file".to_owned(),
            ),
            _ => match source::open_program(session, path, fusions) {
                Ok(source) => {
                    manifest.add(what, path, canonical_text(&source));
                    continue;
                }
                Err((path, fault)) => JobFailure::CannotRead { path, cause: fault.to_string() },
            },
        };
        manifest.add(what, path, format!("{wrong}\n"));
        failure = failure.or(Some(wrong));
    }
    let missing = digests::add_input_digests(&mut manifest, inputs, &session.files);
    (manifest, failure.or(missing))
}

/// Returns the canonical text of the programs, or the text itself if it does not parse.
pub(super) fn canonical_text(source: &Source) -> String {
    let (programs, diagnostics) = source.programs();
    if grammar::diagnostic::has_errors(&diagnostics) {
        source.text.as_str().to_owned()
    } else {
        programs.iter().map(grammar::print).collect()
    }
}

/// Joins the job as one rank, runs `programs`, and returns the exit code of the job. If the job is lost,
/// `last` runs after rank 0's report.
pub fn join(
    launch: &LaunchInfo,
    timeout: Duration,
    screen: &Reporter,
    last: impl Fn(Exit, &Verdict) + Send + 'static,
    programs: impl FnOnce(&JobRank) -> Result<Exit, LaunchError>,
) -> Exit {
    let member = match JobRank::join(
        launch,
        timeout,
        |name| std::env::var(name).ok(),
        report_without_plans(),
        end_handler(screen.session(), last),
    ) {
        Ok(member) => member,
        Err((fault, claim)) => {
            let message = fault.to_string();
            if launch.rank == 0 || claim.is_some() {
                let exit = fault.exit().into();
                let verdict = Verdict::of(exit, message.lines().next().unwrap_or_default());
                screen.session().print_end(exit, [Report::Verdict(verdict)]);
            }
            let exit = screen.fail(fault.exit().into(), &message);
            drop(claim);
            return exit;
        }
    };
    programs(&member).unwrap_or_else(|fault| {
        // The watchdog ends the process. If it does not, this does.
        member.watchdog.wait_for_end();
        fault.exit().into()
    })
}

/// Where a program stands in its job.
#[derive(Clone, Copy, Debug)]
pub struct ProgramPlace {
    /// True if its files are those of the program before it, and must not have changed.
    pub continues: bool,
    /// True for the last program.
    pub last: bool,
}

/// Runs one program of a job. Compares manifests with the other ranks, runs the program or returns the common
/// failure, and agrees on the exit code. Rank 0 prints the report. Breaks if no other program can follow.
///
/// # Errors
/// The job is lost.
pub fn run(
    member: &JobRank,
    screen: &Reporter,
    place: ProgramPlace,
    manifest: impl FnOnce() -> (JobManifest, Option<JobFailure>),
    run: impl FnOnce(Option<JobFailure>) -> RunVerdict,
) -> Result<ControlFlow<Exit, Exit>, LaunchError> {
    let rank = member.channel.rank;
    member.begin_program(report_without_plans());
    // The files that are compared with other ranks now are read again below.
    if !place.continues {
        screen.session().files.forget();
    }
    let (manifest, failure) = manifest();
    let difference = member.compare_manifests(&manifest)?;
    // Ranks of different jobs cannot continue together.
    let last = place.last || difference.is_some();
    let verdict = match difference {
        Some(difference) => {
            if rank == 0 {
                screen.message(&difference);
            }
            let line = difference.lines().next().map(Verdict::failed);
            RunVerdict { line, ..RunVerdict::without_line(Exit::Environment) }
        }
        None => {
            member.set_phase("running the program");
            run(failure)
        }
    };
    let (end, others) = member.agree_on_exit_code(verdict.exit, &verdict.summary, last)?;
    if rank > 0 {
        return Ok(end);
    }
    let text = |RankEnd { rank, exit, summary }: &RankEnd| {
        format!("rank {rank} exits with code {}: {summary}", *exit as u8)
    };
    match (verdict.exit == Exit::Success, others.split_first()) {
        // A success is reported only if all ranks succeed.
        (true, Some((first, more))) => {
            more.iter().for_each(|it| screen.message(text(it)));
            screen.session().print(&Report::Verdict(Verdict::failed(text(first))));
        }
        (_, _) => {
            others.iter().for_each(|it| screen.message(text(it)));
            screen.session().print_all(verdict.lines());
        }
    }
    Ok(end)
}

/// Returns the handler that ends this process when the job is lost. If this process has the report, it prints
/// it and calls `last`.
pub fn end_handler(session: &Arc<Session>, last: impl Fn(Exit, &Verdict) + Send + 'static) -> EndProcess {
    let session = Arc::clone(session);
    Box::new(move |exit, report, claim| {
        let exit = Exit::from(exit);
        if let Some(it) = report {
            let (notes, verdict) = (it.notes.into_iter().map(Report::Note), Verdict::of(exit, it.cause));
            session.print_end(exit, notes.chain([Report::Verdict(verdict.clone())]));
            last(exit, &verdict);
            session.close_log(exit, true);
        }
        drop(claim);
        exit.exit_process()
    })
}
