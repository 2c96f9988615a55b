//! Completes the help of the tools: examples and exit codes, shell completions and manual pages.

use std::{ffi::OsString, io::Write, path::PathBuf};

use clap::{Arg, ArgAction, Command, Parser, value_parser};
use clap_complete::Shell;

use super::{config, exit_of_print, usage::error_text};
use crate::session::Session;
use hir_process::exit::Exit;

/// Returns the exit codes of all tools, one per line.
fn exit_codes() -> String {
    let lines = Exit::ALL.iter().map(|(exit, meaning)| format!("  {:<4} {meaning}", *exit as u8));
    lines.collect::<Vec<_>>().join("\n")
}

/// Parses the command line of a tool. `--completions SHELL` and `--man` print a completion script or the manual
/// page, and the process exits.
///
/// # Errors
/// Returns the error that clap reports.
pub fn parse_arguments<O: Parser>(session: &Session, examples: &str) -> Result<O, clap::Error> {
    let command = command::<O>(examples);
    let name = OsString::from(session.tool);
    let words: Vec<OsString> =
        std::iter::once(name).chain(session.command_line.arguments.iter().cloned()).collect();
    print_generated(session, command.clone(), &words)?;
    let matches = command.clone().try_get_matches_from(words)?;
    let Some(defaults) = config::read(session, &command, &matches)? else {
        return O::from_arg_matches(&matches);
    };
    let file = defaults.file.clone();
    session.set_defaults(defaults);
    let words = std::iter::once(session.tool.into()).chain(session.arguments_with_defaults());
    let parsed = command.try_get_matches_from(words).and_then(|it| O::from_arg_matches(&it));
    parsed.map_err(|fault| config::error(&file, &error_text(&fault, &[])))
}

/// Returns the command of a tool with the examples, the exit codes and the flags that all tools have.
pub fn command<O: Parser>(examples: &str) -> Command {
    let completions = Arg::new("completions")
        .long("completions")
        .value_name("SHELL")
        .value_parser(value_parser!(Shell))
        .exclusive(true)
        .help_heading("Information")
        .help("Print a completion script for this shell");
    let man = Arg::new("man")
        .long("man")
        .action(ArgAction::SetTrue)
        .exclusive(true)
        .help_heading("Information")
        .help("Print the manual page, in roff");
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help_heading("Information")
        .help("Read default options from FILE instead of the next `hir.toml` above this folder; `none`: from no file");
    let command = O::command();
    // Shells complete the first word: the script of `hir` has its tools.
    let is_part = command.get_name().contains(' ');
    command
        .arg(config)
        .args(Some(completions).filter(|_| !is_part))
        .arg(man)
        .after_long_help(format!("Examples:\n{examples}\n\nExit codes:\n{}", exit_codes()))
}

/// Prints what `--completions` or `--man`, given as the first argument, asks for, and exits.
fn print_generated(session: &Session, command: Command, words: &[OsString]) -> Result<(), clap::Error> {
    let Some("--completions" | "--man") =
        words.get(1).and_then(|it| it.to_str()).map(|it| it.split('=').next().unwrap_or(it))
    else {
        return Ok(());
    };
    // Required arguments of the tool are not required here.
    let relaxed = command.clone().mut_args(|it| it.required(false));
    let matches = relaxed.try_get_matches_from(words)?;
    let mut command = command;
    let tool = command.get_name().to_owned();
    let mut out = Vec::new();
    match matches.try_get_one::<Shell>("completions").unwrap_or_default() {
        Some(shell) => clap_complete::generate(*shell, &mut command, tool, &mut out),
        None => clap_mangen::Man::new(command).render(&mut out)?,
    }
    let mut stdout = &session.stdout;
    let written = stdout.write_all(&out).and_then(|()| stdout.flush());
    exit_of_print(session, written).exit_process()
}
