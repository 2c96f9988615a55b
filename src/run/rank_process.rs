//! One rank of a launched job: what a run needs around it so that all processes do the same and end alike.

use std::{io::Write, ops::ControlFlow, time::Duration};

use super::{
    digests,
    inputs::InputFlag,
    prepare::{JobFailure, ProgramFiles},
};
use crate::{
    exit::Exit,
    input_file,
    launch::{
        LaunchError, environment::LaunchInfo, handshake::JobManifest, job_rank::JobRank, watchdog::EndProcess,
    },
    source::Source,
    tool::{Reporter, print_line, sarif_log},
};

/// How a run ends: its exit code, and its last line.
pub struct RunVerdict {
    /// The exit code.
    pub exit: Exit,
    /// What standard output ends with; `None` where standard error has said it.
    pub line: Option<String>,
    /// The same for other ranks' reports, in a line.
    pub summary: String,
}

/// What all ranks have to hold alike: versions, options, texts of programs, contents of global inputs; and why there is no more
/// to hold, which they have to agree on too.
pub fn manifest(
    options: String,
    texts: &ProgramFiles,
    reference: Option<&str>,
    inputs: &[InputFlag],
) -> (JobManifest, Option<JobFailure>) {
    let mut manifest = JobManifest::default();
    let version = format!("hir {}\n", env!("CARGO_PKG_VERSION"));
    manifest.add("the versions", "", version);
    manifest.add("the options", "", options);
    let paths: &[String] = match texts {
        ProgramFiles::One(path) => std::slice::from_ref(path),
        ProgramFiles::PerRank(paths) => paths,
    };
    let programs = paths.iter().map(|it| ("the programs", it.as_str()));
    let mut failure = None;
    for (what, path) in programs.chain(reference.map(|it| ("the references", it))) {
        let wrong = match path {
            "-" => (
                Exit::Usage,
                "every rank reads the program, and standard input is for one: name a file".to_owned(),
            ),
            _ => match Source::open(path) {
                Ok(source) => {
                    manifest.add(what, path, canonical_text(&source));
                    continue;
                }
                Err(fault) => (Exit::Environment, format!("cannot read `{path}`: {fault}")),
            },
        };
        manifest.add(what, path, format!("{}\n", wrong.1));
        failure = failure.or(Some(JobFailure::Other(wrong.0, wrong.1)));
    }
    let missing = digests::add_input_digests(&mut manifest, inputs);
    (manifest, failure.or(missing))
}

/// The programs as they are printed; a text that does not read, as it is.
fn canonical_text(source: &Source) -> String {
    let (programs, diagnostics) = source.programs();
    match grammar::diagnostic::has_errors(&diagnostics) {
        true => source.text.clone(),
        false => programs.iter().map(grammar::print).collect(),
    }
}

/// One rank of a job: finds the others, lets `programs` run what there is to run, and ends with the exit code of all. Where the
/// job is lost, rank 0's report ends with what `last` says.
pub fn join(
    launch: &LaunchInfo,
    timeout: Duration,
    screen: Reporter,
    last: impl Fn(Exit) + Send + 'static,
    programs: impl FnOnce(&JobRank) -> Result<Exit, LaunchError>,
) -> Exit {
    let member = match JobRank::join(launch, timeout, |name| std::env::var(name).ok(), end_handler(last)) {
        Ok(member) => member,
        Err(fault) => return screen.fail(fault.exit().into(), &fault.to_string()),
    };
    programs(&member).unwrap_or_else(|fault| {
        // The watchdog ends the process; should it not, this does.
        member.watchdog.wait_for_end();
        fault.exit().into()
    })
}

/// Runs a program of a job, the `last` one perhaps: compares manifests with those of the other ranks, runs (or fails as all of
/// them do), and comes to the exit code of all. Rank 0 tells. Breaks where no other program can follow.
///
/// # Errors
/// The job is lost.
pub fn run(
    member: &JobRank,
    screen: Reporter,
    last: bool,
    manifest: impl FnOnce() -> (JobManifest, Option<JobFailure>),
    run: impl FnOnce(Option<JobFailure>) -> RunVerdict,
) -> Result<ControlFlow<Exit, Exit>, LaunchError> {
    let rank = member.channel.rank;
    member.begin_program();
    // What is compared with other ranks now is what is read again below.
    input_file::forget_read_files();
    let (manifest, failure) = manifest();
    let difference = member.compare_manifests(&manifest)?;
    // Ranks of different jobs have nothing more to do with each other.
    let last = last || difference.is_some();
    let verdict = match difference {
        Some(difference) => {
            if rank == 0 {
                screen.message(&difference);
            }
            RunVerdict { exit: Exit::Environment, line: None, summary: String::new() }
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
    match (verdict.exit == Exit::Success, others.split_first()) {
        // A verdict holds for all ranks or for none.
        (true, Some((first, more))) => {
            more.iter().for_each(|line| screen.message(line));
            print_report(first, "[FAILED]");
        }
        (_, _) => {
            others.iter().for_each(|line| screen.message(line));
            verdict.line.iter().for_each(|line| print_line(line));
        }
    }
    Ok(end)
}

/// Ends this process of a job that is lost, with its report and what `last` says where it is the one to tell.
pub fn end_handler(last: impl Fn(Exit) + Send + 'static) -> EndProcess {
    Box::new(move |exit, report| {
        let exit = Exit::from(exit);
        if let Some(it) = report {
            print_report(&it, if exit.is_signal() { "[STOPPED]" } else { "[FAILED]" });
            last(exit);
            sarif_log::close(exit, true);
        }
        exit.exit_process()
    })
}

/// Prints a report whose first line is the verdict.
fn print_report(report: &str, tag: &str) {
    let (verdict, notes) = report.split_once('\n').unwrap_or((report, ""));
    let mut out = std::io::stdout().lock();
    // Whoever reads this may be gone too; the process ends all the same.
    let _ = notes.lines().try_for_each(|line| writeln!(out, "# {line}"));
    let _ = writeln!(out, "{tag} {verdict}").and_then(|()| out.flush());
}
