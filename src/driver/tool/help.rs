//! Completes the help of the tools: examples and exit codes, shell completions and manual pages.

use std::{ffi::OsString, io::Write, path::PathBuf};

use clap::{Arg, Command, Parser, value_parser};
use hir_certify::{information, information_options};

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
    print_information(session, || command.clone(), || command.clone())?;
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
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .help_heading("Information")
        .help("Read default options from FILE instead of the next `hir.toml` above this folder; `none`: from no file");
    let help = format!("Examples:\n{examples}\n\nExit codes:\n{}", exit_codes());
    O::command().arg(config).args(information_options()).after_long_help(help)
}

/// Prints what `--completions` or `--man` asks for, and exits. `whole` returns the command that shells complete.
///
/// # Errors
/// Returns the error that clap reports.
pub fn print_information(
    session: &Session,
    command: impl FnOnce() -> Command,
    whole: impl FnOnce() -> Command,
) -> Result<(), clap::Error> {
    let Some(text) = information(command, whole, &session.command_line.arguments)? else { return Ok(()) };
    let mut stdout = &session.stdout;
    exit_of_print(session, stdout.write_all(&text).and_then(|()| stdout.flush())).exit_process()
}
