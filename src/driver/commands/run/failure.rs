//! What hir-run reports about a failure: its diagnostics and its verdict.

use crate::exit_code::exit_code;
use crate::job::rank_process::RunVerdict;
use crate::run::failure::JobFailure;
use crate::tool::Reporter;
use grammar::count_text;
use hir_process::exit::Exit;

/// Reports a failure before there is a job, with its verdict.
pub fn print_failure(screen: &Reporter, failure: &JobFailure) -> Exit {
    let verdict = report_failure(screen, failure);
    screen.session().print_all(verdict.lines());
    verdict.exit
}

/// Reports a failure that prevents a run, or ends it, and returns the verdict that says so.
pub fn report_failure(screen: &Reporter, failure: &JobFailure) -> RunVerdict {
    let (exit, text) = (exit_code(failure), verdict_text(failure));
    let verdict = RunVerdict { summary: failure.summary(), ..RunVerdict::of(exit, text) };
    match (failure, exit) {
        (JobFailure::Rejected(source, diagnostics), _) => screen.report_diagnostics(source, diagnostics),
        (JobFailure::BadOption(source, fault), _) => {
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
