//! hir-opt: reads Host IR, runs passes on it and prints canonical text.

mod checks;
mod options;
mod part_failure;
mod pass_pipeline;
mod plans;
mod processor;
mod reproducer;
mod sequences;
mod witness;

use grammar::InvalidOption;
use std::io::Write;

use crate::{
    auto,
    session::CommandLine,
    tool::{Reporter, listing, reproducer::crash_reproducer, startup::start_tool},
};
use hir_plan::limits::DEFAULT_MAX_WORK_OF_TRIALS;
use hir_process::{
    exit::Exit,
    interrupt::{self, Activity},
    out_of_memory,
};
use hir_sim::WorkBudget;

use options::VerifyEach;
pub(super) use options::{EXAMPLES, Options};
use pass_pipeline::pipeline_text;
pub(super) use processor::{Processor, looks_for};

/// Runs hir-opt.
pub fn main_with(command_line: CommandLine) -> Exit {
    start_tool("hir-opt", command_line, |session| {
        let options = match reproducer::parse_options(session) {
            Ok(options) => options,
            Err(exit) => {
                session.close_log(exit, true);
                return exit;
            }
        };
        let screen = options.diagnostics.reporter(session);
        let path = options.crash_reproducer.as_deref();
        let work = || run(&options, &screen).unwrap_or_else(|exit| exit);
        let exit = crash_reproducer::run_guarded(&screen, path, work);
        // Standard output contains only the program.
        screen.finish(exit, true, |_| ())
    })
}

fn run(options: &Options, screen: &Reporter) -> Result<Exit, Exit> {
    if let Some(text) = listing(options).map_err(|message| screen.fail(Exit::Usage, message))? {
        return Ok(screen.write_result(&text, options.output.as_deref()));
    }
    let mut calls = screen.parse_pipeline("--passes", &options.passes.join(","))?;
    if !auto::use_machine(&mut calls, options.timelines.machine.as_ref(), || None)
        && !options.timelines.is_requested()
        && options.fix.is_none()
    {
        let message = "`--machine` is for estimates: add `--overlap`, `--timeline` or one of the passes `auto` and `select-algorithms`";
        return Err(screen.fail(Exit::Usage, message));
    }
    options.validate().map_err(|message| screen.fail(Exit::Usage, message))?;
    if options.dump_pass_pipeline {
        let _ = writeln!(&screen.session().stderr, "{}", pipeline_text(&calls));
    }
    let activity = start_reading(options.world.memory_limit, &options.file, screen)?;
    if options.bisect || options.verify_each == VerifyEach::Semantic {
        screen.start_workers()?;
    }
    let source = screen.open_source(&options.file, &options.text)?;
    let work = WorkBudget::of_billions(options.world.max_work(DEFAULT_MAX_WORK_OF_TRIALS));
    let mut processor = Processor::new(options, calls, &work, activity, screen);
    let exit = processor.process_file(source);
    if options.run_reproducer.is_some() && exit == Exit::Success {
        screen.message("the reproducer no longer fails");
    }
    if options.statistics {
        let _ = write!(&screen.session().stderr, "{}", processor.statistics.table());
    }
    if options.timing {
        let _ = write!(&screen.session().stderr, "{}", processor.dumper.timing(processor.reading));
    }
    match processor.dumper.file_error() {
        Some(fault) => Err(screen.fail(Exit::Environment, fault)),
        None => Ok(exit),
    }
}

/// Limits the memory of the process and handles its signals. `what` is read first. Returns the activity that the messages of
/// signals name.
///
/// # Errors
/// Returns the exit code if the operating system rejects the handlers.
pub(super) fn start_reading(memory_gib: u32, what: &str, screen: &Reporter) -> Result<Activity, Exit> {
    out_of_memory::limit_memory(memory_gib);
    let activity = Activity::default();
    activity.set(format!("while reading `{what}`"));
    let (current, stopped) = (activity.clone(), activity.clone());
    screen.watch_signals(
        move |screen| screen.message(current.description()),
        move |screen, signal| {
            stopped.stop(|what| {
                let name = interrupt::signal_name(signal);
                screen.message(format!("stopped by {name} {what}: no result is written"));
                screen.session().close_log(Exit::from_signal(signal), true);
            })
        },
    )?;
    Ok(activity)
}

/// Returns the text of `--explain`, `--list-passes` or `--list-ops`, if one of them is set.
fn listing(options: &Options) -> Result<Option<String>, InvalidOption> {
    Ok(match (&options.explain, &options.list_passes) {
        (Some(Some(code)), _) => Some(listing::explanation(code)?),
        (Some(None), _) => Some(listing::codes()),
        (None, Some(Some(name))) => Some(listing::pass(name)?),
        (None, Some(None)) => Some(listing::passes()),
        (None, None) => options.list_ops.then(listing::operators),
    })
}
