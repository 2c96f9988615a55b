//! All tools in one: `hir opt`, `hir run`, `hir reduce` and `hir hang`.

use std::{ffi::OsString, process::ExitCode};

use clap::{Parser, Subcommand};
use hir::{
    driver::{commands, session::CommandLine},
    process::out_of_memory::Allocator,
};

/// Reads, checks, rewrites and runs multi-GPU programs, and explains why a job hangs.
#[derive(Parser)]
#[command(name = "hir", version)]
struct Options {
    #[command(subcommand)]
    tool: Tool,
}

/// The tools; each has its own `--help`.
#[derive(Subcommand)]
enum Tool {
    /// Explain why a PyTorch job hangs, from the dumps of its flight recorder.
    #[command(disable_help_flag = true)]
    Hang(Arguments),
    /// Check, rewrite and print a Host IR program (as `hir-opt`).
    #[command(disable_help_flag = true)]
    Opt(Arguments),
    /// Reduce a failing program while it still fails in the same way (as `hir-reduce`).
    #[command(disable_help_flag = true)]
    Reduce(Arguments),
    /// Run a program on simulated ranks or on GPUs (as `hir-run`).
    #[cfg(all(feature = "cuda", feature = "launch"))]
    #[command(disable_help_flag = true)]
    Run(Arguments),
}

#[derive(clap::Args)]
struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    words: Vec<OsString>,
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator { tool: "hir" };

fn main() -> ExitCode {
    let line = |tool: &str, arguments: Arguments| CommandLine {
        start: std::env::current_exe().into_iter().map(Into::into).chain([tool.into()]).collect(),
        arguments: arguments.words,
    };
    let exit = match Options::parse().tool {
        Tool::Hang(arguments) => commands::hang::main_with(line("hang", arguments)),
        Tool::Opt(arguments) => commands::opt::main_with(line("opt", arguments)),
        Tool::Reduce(arguments) => commands::reduce::main_with(line("reduce", arguments)),
        #[cfg(all(feature = "cuda", feature = "launch"))]
        Tool::Run(arguments) => commands::run::main_with(line("run", arguments)),
    };
    exit.into()
}
