//! `hir`: all tools in one, as subcommands.

use std::{ffi::OsString, os::unix::process::CommandExt, path::Path};

use clap::{Command, error::ErrorKind};
use grammar::{escape_control, shell_word};
use hir_executor::backend;
use hir_process::exit::Exit;

use super::run_tool;
use crate::{
    session::{CommandLine, Session},
    tool::{
        flags::DiagnosticFlags,
        help::{command, print_information},
        report_usage_error,
    },
};

/// A tool.
struct Tool {
    name: &'static str,
    about: &'static str,
    /// Its options.
    command: fn() -> Command,
    run: fn(CommandLine) -> Exit,
}

/// Makes a tool of its module: its options, its examples and, unless it runs in another way, what `run_tool` does with them.
macro_rules! tool {
    ($module:ident, $about:literal) => {
        tool!($module, $about, |line| {
            let name = concat!("hir ", stringify!($module));
            run_tool::<super::$module::Options>(
                name,
                line,
                super::$module::EXAMPLES,
                |it| &it.diagnostics,
                super::$module::run,
            )
        })
    };
    ($module:ident, $about:literal, $run:expr) => {
        Tool {
            name: stringify!($module),
            about: $about,
            command: || command::<super::$module::Options>(super::$module::EXAMPLES),
            run: $run,
        }
    };
}

/// The tools that only a program with an executor of GPUs has.
const RUNS: [&str; 4] = ["calibrate", "overlap", "run", "tune"];

/// Returns the tools, by name; each has its own `--help`.
fn tools() -> Vec<Tool> {
    let mut all = Vec::from([
        #[cfg(feature = "launch")]
        tool!(calibrate, "Measure the times of a machine, for estimates"),
        tool!(
            check,
            "Check files and folders of Host IR programs for races, deadlocks and unwritten outputs"
        ),
        tool!(explain, "Explain the code of a diagnostic, or list all codes"),
        tool!(hang, "Explain why a PyTorch job hangs, from the dumps of its flight recorder"),
        tool!(lsp, "Serve Host IR programs to an editor over the Language Server Protocol"),
        tool!(mcp, "Serve agents over the Model Context Protocol"),
        tool!(opt, "Check, rewrite and print a Host IR program (as `hir-opt`)", super::opt::main_with),
        tool!(reduce, "Reduce a failing program while it still fails in the same way"),
        #[cfg(feature = "launch")]
        tool!(run, "Run a program on simulated ranks or on GPUs (as `hir-run`)", super::run::main_with),
        #[cfg(feature = "launch")]
        tool!(tune, "Measure which algorithm of each collective is the fastest on this machine"),
    ]);
    all.push(Tool {
        name: "certify",
        about: "Certify that a lowered program computes what its original computes (as `hir-certify`)",
        command: hir_certify::command,
        run: super::certify::main_with,
    });
    #[cfg(feature = "launch")]
    all.push(Tool {
        name: "overlap",
        about: "Report how communication and computation overlap, and what each communication costs: measured on GPUs, estimated without",
        command: overlap,
        run: |mut line| {
            let is_trace =
                |it: &OsString| it.to_str().is_some_and(|it| it == "--trace" || it.starts_with("--trace="));
            let has_traces = line.arguments.iter().any(is_trace);
            let help = line.arguments.iter().find(|it| *it == "--help" || *it == "-h").cloned();
            if let Some(help) = help.filter(|_| !has_traces) {
                let session = Session::of_process("hir overlap", line);
                return match overlap().try_get_matches_from(["hir overlap".into(), help]) {
                    Ok(_) => Exit::Usage,
                    Err(fault) => report_usage_error(&session, &fault, |_| ()),
                };
            }
            if has_traces {
                let examples = super::trace::EXAMPLES;
                let run = super::trace::run;
                return run_tool::<super::trace::Options>("hir overlap", line, examples, |it| &it.diagnostics, run);
            }
            // How further ranks are started.
            line.start.pop();
            line.start.push("run".into());
            line.arguments.insert(0, "--overlap".into());
            line.arguments.insert(0, "--no-values".into());
            super::run::main_with(line)
        },
    });
    // Without an executor of GPUs, a program measures and runs nothing.
    all.retain(|it| backend().is_ok() || !RUNS.contains(&it.name));
    all.sort_by_key(|it| it.name);
    all
}

/// Returns the command line of `hir overlap`: that of `hir run`, and `--trace`, with which it has options of its own.
#[cfg(feature = "launch")]
fn overlap() -> Command {
    let of_traces = command::<super::trace::Options>(super::trace::EXAMPLES);
    let trace = of_traces.get_arguments().find(|it| it.get_id() == "trace").cloned();
    let about = of_traces.get_long_about().cloned().unwrap_or_default();
    let own = command::<super::run::Options>(super::trace::EXAMPLES).name("hir overlap").long_about(about);
    // `hir run` has the name as an alias of `--timeline`.
    let own = own.mut_arg("timeline", |it| it.alias(None::<&str>).visible_alias(None::<&str>));
    own.args(trace.map(|it| it.required(false)))
}

/// Becomes `python3 -m hir` with these arguments, with the Python beside this program. Returns if there is none.
fn run_in_python(command_line: CommandLine) -> Exit {
    let python = std::env::current_exe().unwrap_or_default().with_file_name("python3");
    let fault = std::process::Command::new(python).args(["-m", "hir"]).args(&command_line.arguments).exec();
    let message = format!(
        "this is a tool of the Python package, which `python -m hir` runs; no `python3` is beside this program: {fault}"
    );
    let session = Session::of_process("hir", command_line);
    DiagnosticFlags::default().reporter(&session).fail(Exit::Environment, message)
}

/// Runs the tool that the first argument names. The process ends with an invalid first argument.
pub fn main_with(command_line: CommandLine) -> Exit {
    let of_package = |it: &OsString| ["compare", "job", "jax"].iter().any(|name| it == name);
    if command_line.arguments.first().is_some_and(of_package) {
        return run_in_python(command_line);
    }
    let CommandLine { mut start, mut arguments } = command_line;
    if let [help, tool] = arguments.as_mut_slice()
        && help == "help"
    {
        (*help, *tool) = (tool.clone(), "--help".into());
    }
    let tools = tools();
    let part = |it: &Tool| (it.command)().name(it.name).about(it.about);
    let whole = || {
        let about = "Reads, checks, rewrites and runs multi-GPU programs, and explains why a job hangs";
        let own =
            Command::new("hir").version(crate::tool::version()).about(about).arg_required_else_help(true);
        own.args(hir_certify::information_options()).subcommands(tools.iter().map(part))
    };
    let tool = arguments.first().and_then(|first| tools.iter().find(|it| *first == *it.name));
    let Some(tool) = tool else {
        let shown = arguments.iter().map(|it| escape_control(&it.to_string_lossy()).into());
        let words: Vec<OsString> = std::iter::once("hir".into()).chain(shown).collect();
        let is_file = arguments.first().is_some_and(|it| Path::new(it).is_file());
        let runs = arguments.first().is_some_and(|it| RUNS.iter().any(|name| it == name));
        let session = Session::of_process("hir", CommandLine { start, arguments });
        if let Some(file) = words.get(1).filter(|_| is_file) {
            let file = file.to_string_lossy();
            let file = shell_word(&file);
            let message = format!(
                "`{file}` is a file: `hir check {file}` checks it, `hir run {file}` runs it, `hir opt {file}` prints it"
            );
            whole().error(ErrorKind::InvalidSubcommand, message).exit();
        }
        if let Some(name) = words.get(1).filter(|_| runs) {
            let name = name.to_string_lossy();
            let message = format!(
                "this program was built without `hir {name}`: the package `hir` has it with its default features"
            );
            whole().error(ErrorKind::InvalidSubcommand, message).exit();
        }
        let printed = print_information(&session, whole, whole);
        // With the name of a tool, one would have been found.
        return match printed.and_then(|()| whole().try_get_matches_from(words)) {
            Ok(_) => Exit::Usage,
            Err(fault) if fault.use_stderr() => fault.exit(),
            Err(fault) => report_usage_error(&session, &fault, |_| ()),
        };
    };
    if start.is_empty() {
        start.extend(std::env::current_exe().map(Into::into));
    }
    start.push(arguments.remove(0));
    let line = CommandLine { start, arguments };
    match print_information(&Session::of_process("hir", line.clone()), tool.command, whole) {
        Ok(()) => (tool.run)(line),
        Err(fault) => fault.exit(),
    }
}
