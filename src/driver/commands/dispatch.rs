//! `hir`: all tools in one, as subcommands.

use std::{ffi::OsString, io::Write};

use clap::{Command, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use hir_process::exit::Exit;

use crate::session::CommandLine;

/// Reads, checks, rewrites and runs multi-GPU programs, and explains why a job hangs.
#[derive(Parser)]
#[command(name = "hir", version = crate::tool::version(), arg_required_else_help = true, subcommand_negates_reqs = true)]
struct Options {
    #[command(subcommand)]
    tool: Option<Tool>,
    /// Print a completion script for this shell.
    #[arg(long, value_name = "SHELL", required = true)]
    completions: Option<Shell>,
}

/// The tools; each has its own `--help`.
#[derive(Subcommand)]
enum Tool {
    /// Measure the times of a machine, for estimates.
    #[cfg(all(feature = "cuda", feature = "launch"))]
    #[command(disable_help_flag = true)]
    Calibrate(Arguments),
    /// Certify that a lowered program computes what its original computes (as `hir-certify`).
    #[command(disable_help_flag = true)]
    Certify(Arguments),
    /// Check files and folders of Host IR programs for races, deadlocks and unwritten outputs.
    #[command(disable_help_flag = true)]
    Check(Arguments),
    /// Explain the code of a diagnostic, or list all codes.
    #[command(disable_help_flag = true)]
    Explain(Arguments),
    /// Explain why a PyTorch job hangs, from the dumps of its flight recorder.
    #[command(disable_help_flag = true)]
    Hang(Arguments),
    /// Serve Host IR programs to an editor over the Language Server Protocol.
    #[command(disable_help_flag = true)]
    Lsp(Arguments),
    /// Serve agents over the Model Context Protocol.
    #[command(disable_help_flag = true)]
    Mcp(Arguments),
    /// Check, rewrite and print a Host IR program (as `hir-opt`).
    #[command(disable_help_flag = true)]
    Opt(Arguments),
    /// Run a program and report how its communication and computation overlap (as `hir-run --overlap`).
    #[cfg(all(feature = "cuda", feature = "launch"))]
    #[command(disable_help_flag = true)]
    Overlap(Arguments),
    /// Reduce a failing program while it still fails in the same way (as `hir-reduce`).
    #[command(disable_help_flag = true)]
    Reduce(Arguments),
    /// Run a program on simulated ranks or on GPUs (as `hir-run`).
    #[cfg(all(feature = "cuda", feature = "launch"))]
    #[command(disable_help_flag = true)]
    Run(Arguments),
    /// Measure which algorithm of each collective is the fastest on this machine.
    #[cfg(all(feature = "cuda", feature = "launch"))]
    #[command(disable_help_flag = true)]
    Tune(Arguments),
}

#[derive(clap::Args)]
struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    words: Vec<OsString>,
}

/// Runs the tool that the first argument names. The process ends with an invalid first argument.
pub fn main_with(command_line: CommandLine) -> Exit {
    let CommandLine { start, arguments } = command_line;
    // clap knows nothing of the options of the tools.
    let arguments = match arguments.as_slice() {
        [help, tool] if help == "help" => vec![tool.clone(), "--help".into()],
        _ => arguments,
    };
    let words = std::iter::once("hir".into()).chain(arguments);
    let options = Options::try_parse_from(words).unwrap_or_else(|fault| fault.exit());
    let Some(tool) = options.tool else {
        let mut script = Vec::new();
        options
            .completions
            .iter()
            .for_each(|it| clap_complete::generate(*it, &mut whole(), "hir", &mut script));
        return match std::io::stdout().write_all(&script) {
            Ok(()) => Exit::Success,
            Err(_) => Exit::Environment,
        };
    };
    // How the tool is started again, for further ranks.
    let line = |tool: &str, arguments: Vec<OsString>| {
        let own = || std::env::current_exe().into_iter().map(Into::into).collect();
        let start = if start.is_empty() { own() } else { start.clone() };
        CommandLine { start: start.into_iter().chain([tool.into()]).collect(), arguments }
    };
    match tool {
        #[cfg(all(feature = "cuda", feature = "launch"))]
        Tool::Calibrate(it) => super::calibrate::main_with(line("calibrate", it.words)),
        Tool::Certify(it) => super::certify::main_with(line("certify", it.words)),
        Tool::Check(it) => super::check::main_with(line("check", it.words)),
        Tool::Explain(it) => super::explain::main_with(line("explain", it.words)),
        Tool::Hang(it) => super::hang::main_with(line("hang", it.words)),
        Tool::Lsp(it) => super::lsp::main_with(line("lsp", it.words)),
        Tool::Mcp(it) => super::mcp::main_with(line("mcp", it.words)),
        Tool::Opt(it) => super::opt::main_with(line("opt", it.words)),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        Tool::Overlap(it) => {
            let words = std::iter::once("--overlap".into()).chain(it.words).collect();
            super::run::main_with(line("run", words))
        }
        Tool::Reduce(it) => super::reduce::main_with(line("reduce", it.words)),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        Tool::Run(it) => super::run::main_with(line("run", it.words)),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        Tool::Tune(it) => super::tune::main_with(line("tune", it.words)),
    }
}

/// Returns `hir` with the options of its tools.
fn whole() -> Command {
    let tools = [
        #[cfg(all(feature = "cuda", feature = "launch"))]
        ("calibrate", super::calibrate::Options::command()),
        ("certify", hir_certify::command()),
        ("check", super::check::Options::command()),
        ("explain", super::explain::Options::command()),
        ("hang", super::hang::Options::command()),
        ("opt", super::opt::Options::command()),
        ("reduce", super::reduce::Options::command()),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        ("overlap", crate::run::command_line::Options::command()),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        ("run", crate::run::command_line::Options::command()),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        ("tune", super::tune::Options::command()),
    ];
    Command::new("hir").subcommands(tools.map(|(name, command)| command.name(name)))
}
