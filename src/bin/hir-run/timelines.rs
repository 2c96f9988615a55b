//! Writes timelines and prints how communication and computation overlap.

use hir::{
    cuda::{InstTime, RunTimes},
    exit::Exit,
    plan::{Plan, sync::happens_before::OrderError},
    run::prepare::JobFailure,
    timeline::{
        Timeline,
        estimate::{MeasuredTime, estimate, measured},
        overlap::Overlap,
    },
};

use crate::{options::Options, task::write_file};

/// The maximum number of instructions of an estimated timeline.
const MAX_INSTRUCTIONS: usize = 4_000_000;

/// Returns true if the command line asks for a timeline or a report on overlap.
pub fn are_requested(options: &Options) -> bool {
    options.overlap || !options.timeline.is_empty()
}

/// Estimates a timeline from the plans and writes it as the command line asks.
///
/// # Errors
/// The plans are too large, or a file cannot be written.
pub fn write_estimated(
    options: &Options,
    plans: &[Plan],
    names: &[&str],
    say: &mut dyn FnMut(String),
) -> Result<(), JobFailure> {
    check_size(plans)?;
    write(options, &estimate(plans).map_err(too_many_streams)?, names, say)
}

/// Writes the timeline of a run on GPUs as the command line asks.
///
/// # Errors
/// Those of `write_estimated`.
pub fn write_measured(
    options: &Options,
    plans: &[Plan],
    names: &[&str],
    times: &RunTimes,
    say: &mut dyn FnMut(String),
) -> Result<(), JobFailure> {
    check_size(plans)?;
    let time = |it: &InstTime| MeasuredTime { inst: it.inst, begin: it.begin, end: it.end };
    let ranks: Vec<Vec<MeasuredTime>> = times.ranks.iter().map(|it| it.iter().map(time).collect()).collect();
    let clocks = match plans.len() {
        1 => String::new(),
        _ => format!("; the clocks of two ranks differ by at most {:.1} µs", times.error),
    };
    let source = format!("measured in one run, issued command by command with an event beside each{clocks}");
    write(options, &measured(plans, &ranks, source).map_err(too_many_streams)?, names, say)
}

/// Writes a timeline as the command line asks.
///
/// # Errors
/// A file cannot be written, or a picture would be too large.
pub fn write(
    options: &Options,
    timeline: &Timeline,
    names: &[&str],
    say: &mut dyn FnMut(String),
) -> Result<(), JobFailure> {
    let report = Overlap::of(timeline).report(timeline);
    if options.overlap {
        report.iter().for_each(|line| say(format!("# {line}")));
    }
    let ranks = timeline.rows.last().map_or(0, |it| it.rank + 1);
    let names: Vec<&str> = names.iter().map(|it| it.rsplit('/').next().unwrap_or(it)).collect();
    let title = format!("{}, {ranks} ranks", names.join(" "));
    for file in &options.timeline {
        let text = file
            .text(timeline, &title, &report)
            .map_err(|fault| JobFailure::Other(Exit::Usage, format!("`{}`: {fault}", file.path.display())))?;
        write_file(&file.path, &text)?;
        say(format!("# timeline in `{}`", file.path.display()));
    }
    Ok(())
}

fn check_size(plans: &[Plan]) -> Result<(), JobFailure> {
    let instructions: usize = plans.iter().map(|it| it.code.len()).sum();
    match instructions > MAX_INSTRUCTIONS {
        false => Ok(()),
        true => Err(JobFailure::Other(
            Exit::Usage,
            format!(
                "no timeline: {instructions} instructions exceed the limit of {MAX_INSTRUCTIONS}; reduce `--ranks`"
            ),
        )),
    }
}

fn too_many_streams(_: OrderError) -> JobFailure {
    JobFailure::Other(
        Exit::Usage,
        "no timeline: the ranks have too many streams; reduce `--ranks`".to_owned(),
    )
}
