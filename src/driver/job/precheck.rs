//! Checks a program before it runs.
//!
//! Every process of a job runs the check itself. It has the plans of all ranks and the check is
//! deterministic, so all processes reach the same verdict without communication.

use std::time::Instant;

use grammar::{Code, Diagnostic, Source};

use crate::{
    run::command_line::CheckMode,
    session::{Report, Verdict},
    tool::Reporter,
};
use hir_check::{Checks, OrderingModel, check};
use hir_plan::World;

/// The maximum number of instructions, summed over all ranks, that are checked by default.
const MAX_INSTRUCTIONS: usize = 2_000_000;

/// Checks the plans of all ranks. A deadlock is not reported here: the run reports it before it uses a GPU
/// (exit code 4).
///
/// # Errors
/// The verdict on a program with faults.
pub fn check_before_run(
    (mode, model): (CheckMode, OrderingModel),
    sources: &[Source],
    world: &World,
    screen: &Reporter,
    say: &mut dyn FnMut(Report),
) -> Result<(), Verdict> {
    if mode == CheckMode::Off {
        return Ok(());
    }
    let instructions: usize = world.iter().map(|it| it.code.len()).sum();
    if instructions > MAX_INSTRUCTIONS {
        say(Report::Note(format!(
            "not checked: {instructions} instructions exceed the limit of {MAX_INSTRUCTIONS}; use `hir-opt --check`"
        )));
        return Ok(());
    }
    let start = Instant::now();
    let report = check(world, Checks { model, ..Checks::ALL_FAULTS });
    if report.has_deadlock() {
        return Ok(());
    }
    let mut found: Vec<Vec<Diagnostic>> = sources.iter().map(|_| Vec::new()).collect();
    for (text, it) in report.diagnostics(world, sources) {
        // The run reports unwritten reads itself, including those that depend on values.
        if it.code != Code::UnwrittenRead {
            found[text].push(it);
        }
    }
    let sorted = sources.iter().zip(&mut found);
    let allowed: usize = sorted.map(|(source, found)| screen.session().remove_allowed(source, found)).sum();
    for (source, found) in sources.iter().zip(&found) {
        screen.report_diagnostics(source, found);
    }
    let seconds = start.elapsed().as_secs_f64();
    if let Some(how) = report.groups_text(world.len()) {
        say(Report::Note(how));
    }
    for reason in &report.not_checked {
        say(Report::Note(format!("not checked: {reason}")));
    }
    let mut all = found.iter().flatten().filter(|it| it.is_error());
    let Some(first) = all.next() else {
        if report.not_checked.is_empty() {
            let model = if model == OrderingModel::default() { String::new() } else { format!(" ({model})") };
            let found = match allowed {
                0 => "no race, every output written".to_owned(),
                count => format!("no fault but {count} that the text or hir.toml allows"),
            };
            say(Report::Note(format!("check{model}: {found}; {instructions} instructions, {seconds:.3} s")));
        }
        return Ok(());
    };
    let more = match all.count() {
        0 => String::new(),
        1 => " (and 1 more fault)".to_owned(),
        more => format!(" (and {more} more faults)"),
    };
    if mode == CheckMode::Warn {
        say(Report::Note(format!(
            "the check found faults, and the program runs (--check=warn): {}{more}",
            first.message
        )));
        return Ok(());
    }
    let text = format!("{}{more}; `--check=warn` runs the program anyway", first.message);
    Err(Verdict::failed(text))
}
