//! What hir-run reports about a failure: its diagnostics and its verdict.

use std::path::Path;

use crate::{
    exit_code::exit_code,
    job::rank_process::RunVerdict,
    run::{failure::JobFailure, files::write_file},
    tool::Reporter,
};
use grammar::count_text;
use hir_launch::environment;
use hir_process::exit::Exit;

use super::batch::{JobProgram, JobStep};

/// Reports a failure before there is a job, with its verdict.
pub fn print_failure(screen: &Reporter, failure: &JobFailure) -> Exit {
    let verdict = report_failure(screen, failure);
    screen.session().print_all(verdict.lines().filter(|_| environment::is_first()));
    verdict.exit
}

/// Reports a failure that prevents a run, or ends it, and returns the verdict that says so.
pub fn report_failure(screen: &Reporter, failure: &JobFailure) -> RunVerdict {
    let (exit, text) = (exit_code(failure), verdict_text(failure));
    let verdict = RunVerdict { summary: failure.summary(), ..RunVerdict::of(exit, text) };
    match (failure, exit) {
        (JobFailure::Rejected(source, diagnostics), _) => screen.report_diagnostics(source, diagnostics),
        (
            JobFailure::BadOption(source, fault)
            | JobFailure::NotCertified(source, fault)
            | JobFailure::Faulty(source, fault),
            _,
        ) => {
            screen.report_diagnostics(source, std::slice::from_ref(fault));
        }
        // The report comes first: the last line is the verdict.
        (_, Exit::Hang | Exit::WrongResult) => {
            let notes = failure.to_string().lines().skip(1).map(str::to_owned).collect();
            return RunVerdict { notes, ..verdict };
        }
        (_, _) => {
            screen.fail(exit, failure);
        }
    }
    verdict
}

/// Ends a program on the process that reports on it: writes the file of `-J`, and reports a verdict that no diagnostic has
/// where standard error is for programs.
pub fn finish_program(entry: &JobProgram, screen: &Reporter, verdict: RunVerdict) -> RunVerdict {
    // With invalid options, the file may be one that is not to be replaced.
    let json = entry.options.json.as_deref().filter(|_| verdict.exit != Exit::Usage);
    let verdict = match (&entry.step, json) {
        (JobStep::Only | JobStep::Line { .. }, Some(path)) => write_json(path, entry, screen, verdict),
        (JobStep::Only | JobStep::Line { .. }, None)
        | (JobStep::Check | JobStep::Pipeline(_) | JobStep::Report, _) => verdict,
    };
    if let (Exit::Hang | Exit::WrongResult, Some(line)) = (verdict.exit, &verdict.line) {
        screen.report_verdict(entry.options.texts().paths().first(), verdict.exit, &line.text);
    }
    verdict
}

/// Writes the file of `-J`. If that fails, a success becomes a failure.
fn write_json(path: &Path, entry: &JobProgram, screen: &Reporter, mut verdict: RunVerdict) -> RunVerdict {
    let line = verdict.line.as_ref().map_or_else(|| verdict.summary.clone(), ToString::to_string);
    let facts = std::mem::take(&mut verdict.facts);
    match write_file(path, &json_text(entry.options.texts().paths(), verdict.exit, line, facts)) {
        Err(failure) if verdict.exit == Exit::Success => report_failure(screen, &failure),
        Err(failure) => {
            verdict.notes.push(failure.summary());
            verdict
        }
        Ok(()) => verdict,
    }
}

/// Returns the text of the file of `-J`.
pub fn json_text(
    programs: &[String],
    exit: Exit,
    line: String,
    mut facts: serde_json::Map<String, serde_json::Value>,
) -> String {
    let mut value = serde_json::Map::from_iter([
        ("program".to_owned(), programs.into()),
        ("exit_code".to_owned(), (exit as u8).into()),
        ("verdict".to_owned(), line.into()),
    ]);
    value.append(&mut facts);
    format!("{:#}\n", serde_json::Value::Object(value))
}

/// Returns the text of the verdict on a program that failed: what a reader of standard output alone has to know.
fn verdict_text(failure: &JobFailure) -> String {
    match failure {
        JobFailure::Rejected(_, diagnostics) => {
            let errors = || diagnostics.iter().filter(|it| it.is_error());
            let first = errors().next().map_or("the program is rejected".to_owned(), |it| {
                format!("{}: {}", it.code.text(), it.message)
            });
            let more = match errors().map(|it| 1 + it.alike as usize).sum::<usize>() {
                0 | 1 => String::new(),
                count => format!(", and {}", count_text(count - 1, "more error")),
            };
            format!("not run: {first}{more}")
        }
        _ if exit_code(failure) == Exit::Usage => format!("not run: {}", failure.summary()),
        _ => failure.summary(),
    }
}
