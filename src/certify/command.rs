//! The command line of `hir-certify` and `hir certify`.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches, Parser, value_parser};
use clap_complete::Shell;
use grammar::{
    bindings::{Binding, apply_bindings},
    codes::Code,
    count_text,
    diagnostic::{Diagnostic, has_errors},
    escape_control,
    ir::Program,
    render::{Format, Style, github_error, json_message, render},
    sarif::{Invocation, Log},
    source::Source,
};

use super::{Claim, certify};

/// How the programs are evaluated.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Settings {
    /// The number of evaluations, each on other inputs. Each lowers the probability of an error.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// The number of ranks. Default: all ranks of meshes and teams.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Repeats the evaluations of this number. Default: random ones, for which no text can have been written.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Certifies that a lowered program computes what its original computes, for all inputs and on all ranks.
///
/// Evaluates both programs on random elements of a prime field: sums and products are exact, other operators are unknown functions.
/// Exits with 0 if the programs agree, with 3 if they differ, and with 1 if a statement cannot be certified, which is named.
#[derive(Parser)]
#[command(name = "hir certify", version)]
struct Options {
    /// The lowered program; without `--original`, a certificate that `hir-opt --certificate` has written: the original, and then the
    /// lowered program.
    file: PathBuf,
    /// The program before lowering.
    #[arg(long, value_name = "FILE")]
    original: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Set a symbol of the programs that have it, as for `hir run`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
    /// The format of diagnostics, as for `hir check`.
    #[arg(long, default_value = "human", value_name = "human|short|json|sarif|github")]
    error_format: Format,
}

const TOOL: &str = "hir certify";

/// Exit codes, those of all tools.
const REJECTED: u8 = 1;
const USAGE: u8 = 2;
const WRONG_RESULT: u8 = 3;
const ENVIRONMENT: u8 = 6;
const CHECK: u8 = 7;
const ON_A_RANGE: u8 = 9;

/// Returns the command with its options.
pub fn command() -> Command {
    Options::command().args(information_options())
}

/// Returns the options that every command has: `--completions` and `--man`.
pub fn information_options() -> [Arg; 2] {
    let of = |name: &'static str| Arg::new(name).long(name).help_heading("Information");
    let shell = of("completions").value_name("SHELL").value_parser(value_parser!(Shell));
    let man = of("man").action(ArgAction::SetTrue);
    [shell.help("Print a completion script for this shell"), man.help("Print the manual page, in roff")]
}

/// Returns what `--completions` or `--man` prints if the arguments of a command have one of them: the completion script of `whole`, which is
/// the command or has it as a part, or the manual page of the command.
///
/// # Errors
/// The shell is missing or not known.
pub fn information(
    command: impl FnOnce() -> Command,
    whole: impl FnOnce() -> Command,
    arguments: &[OsString],
) -> Result<Option<Vec<u8>>, clap::Error> {
    let name = |it: &OsString| it.to_string_lossy().split('=').next().map(str::to_owned).unwrap_or_default();
    let is_information = |it: &OsString| ["--completions", "--man"].contains(&name(it).as_str());
    let Some(at) = arguments.iter().take_while(|it| *it != "--").position(is_information) else {
        return Ok(None);
    };
    let count = if arguments[at] == "--completions" { 2 } else { 1 };
    // Arguments that the command requires are not required here.
    let options = Command::new("hir").args(information_options());
    let words = std::iter::once("hir".into()).chain(arguments.iter().skip(at).take(count).cloned());
    let (asked, mut out) = (options.try_get_matches_from(words)?, Vec::new());
    match asked.get_one::<Shell>("completions") {
        Some(shell) => {
            let mut whole = whole();
            let name = whole.get_name().to_owned();
            clap_complete::generate(*shell, &mut whole, name, &mut out);
        }
        None => clap_mangen::Man::new(command()).render(&mut out)?,
    }
    Ok(Some(out))
}

/// The files and streams of a run of the tool: those of a process, or those of a session in it.
pub struct System<'a> {
    /// Reads a file.
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
    /// What is certified.
    pub stdout: &'a mut dyn Write,
    /// Why it is not.
    pub stderr: &'a mut dyn Write,
}

/// Runs the tool with these arguments, and returns its exit code.
pub fn main_with(arguments: impl Iterator<Item = OsString>, system: System<'_>) -> u8 {
    let arguments: Vec<OsString> = arguments.collect();
    let options = match information(command, || command().name("hir-certify"), &arguments) {
        Ok(Some(text)) => return exit_of_write(system.stdout.write_all(&text)),
        Ok(None) => {
            let words = std::iter::once("hir certify".into()).chain(arguments);
            command().try_get_matches_from(words).and_then(|it| Options::from_arg_matches(&it))
        }
        Err(fault) => Err(fault),
    };
    let options = match options {
        Ok(it) => it,
        // Nothing is left to do if a message cannot be written.
        Err(fault) => {
            let printed = fault.print();
            return if fault.use_stderr() { USAGE } else { printed.map_or(ENVIRONMENT, |()| 0) };
        }
    };
    let found = run(&options, system.read);
    // Nothing is left to do if a message cannot be written.
    let _ = report(found.as_ref().err(), options.error_format, system.stderr);
    match found {
        Ok(text) => exit_of_write(system.stdout.write_all(text.as_bytes())),
        Err(failure) => failure.code,
    }
}

/// A closed pipe is no failure: its reader has seen enough.
fn exit_of_write(written: io::Result<()>) -> u8 {
    match written {
        Err(fault) if fault.kind() != io::ErrorKind::BrokenPipe => ENVIRONMENT,
        Ok(()) | Err(_) => 0,
    }
}

/// Returns the name of a file for messages.
fn shown(path: &Path) -> String {
    escape_control(&path.display().to_string())
}

/// Writes why nothing is certified.
fn report(failure: Option<&Failure>, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let mut log = Log::default();
    match (failure.map(|it| &it.why), format) {
        (Some(Why::Message(text)), Format::Sarif) => log.add_notification(text, true),
        (Some(Why::Diagnostics(of, all)), Format::Sarif) => log.add(all, &of.name, &of.text),
        (Some(Why::Message(text)), Format::Json) => {
            writeln!(out, "{}", json_message(TOOL, None, text, true))?
        }
        (Some(Why::Message(text)), Format::Github) => writeln!(out, "{}", github_error(TOOL, None, text))?,
        (Some(Why::Message(text)), Format::Human | Format::Short) => writeln!(out, "{TOOL}: {text}")?,
        (Some(Why::Diagnostics(of, all)), _) => {
            render(all, &of.name, &of.text, format, Style::default(), out)?;
        }
        (None, _) => {}
    }
    if format == Format::Sarif {
        let code = failure.map_or(0, |it| it.code);
        let ending = Invocation { code, is_success: ![USAGE, ENVIRONMENT].contains(&code) };
        writeln!(out, "{}", log.text(TOOL, env!("CARGO_PKG_VERSION"), Some(ending)))?;
    }
    Ok(())
}

/// Returns the exit code for what is wrong with a program.
pub fn exit_code(fault: &Diagnostic) -> u8 {
    match fault.code {
        Code::ProgramsDiffer => WRONG_RESULT,
        Code::CheckedDeadlock | Code::Race => CHECK,
        Code::CertifiedOnRange => ON_A_RANGE,
        _ => REJECTED,
    }
}

/// Why nothing is certified, with the exit code.
struct Failure {
    code: u8,
    why: Why,
}

enum Why {
    Message(String),
    Diagnostics(Source, Vec<Diagnostic>),
}

fn fail(code: u8, message: String) -> Failure {
    Failure { code, why: Why::Message(message) }
}

fn rejected(code: u8, source: Source, all: Vec<Diagnostic>) -> Failure {
    Failure { code, why: Why::Diagnostics(source, all) }
}

impl Claim {
    /// Returns what was compared in so many runs, the condition, and what is known of the order.
    pub fn lines(&self, runs: u32) -> [String; 3] {
        let names = [(self.ranks, "rank"), (self.outputs, "output"), (self.elements, "element")];
        let [ranks, outputs, elements] = names.map(|(count, name)| count_text(count, name));
        let (runs, bound) = (count_text(runs as usize, "run"), self.error_exponent.ceil());
        [
            format!(
                "{ranks}, {outputs} with {elements}, {runs}; probability of an error at most 2^{bound:.0}"
            ),
            format!("for finite inputs; {}", self.magnitude_text()),
            format!("no deadlock, and no race between its {} memory accesses", self.accesses),
        ]
    }
}

/// Returns the text about what is certified.
fn run(options: &Options, read: &dyn Fn(&Path) -> io::Result<Vec<u8>>) -> Result<String, Failure> {
    let start = Instant::now();
    let files = options.original.iter().chain([&options.file]);
    let files = files.map(|it| programs(it, read(it), options));
    let (mut sources, programs): (Vec<_>, Vec<_>) = files.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let programs: Vec<Program> = programs.into_iter().flatten().collect();
    let claim = certify(&programs[0], &programs[1], &options.settings).map_err(|it| {
        let of = sources.swap_remove(if it.is_of_original { 0 } else { sources.len() - 1 });
        rejected(exit_code(&it.diagnostic), of, vec![*it.diagnostic])
    })?;
    let original = options.original.as_ref().map_or("its first program".to_owned(), |it| shown(it));
    let (file, seconds) = (shown(&options.file), start.elapsed().as_secs_f64());
    let [compared, condition, order] = claim.lines(options.settings.runs);
    Ok(format!(
        "certified: {file} computes what {original} computes\n# {compared}; {seconds:.3} s\n# {condition}\n# {order}\n"
    ))
}

/// Returns the programs of a file: one with `--original`, else two.
fn programs(
    path: &Path,
    bytes: io::Result<Vec<u8>>,
    options: &Options,
) -> Result<(Source, Vec<Program>), Failure> {
    let name = path.display().to_string();
    // Places in a text are numbers of 32 bits.
    let checked = |it: Vec<u8>| u32::try_from(it.len()).map(|_| it).map_err(io::Error::other);
    let bytes = bytes.and_then(checked);
    let bytes = bytes.map_err(|it| fail(ENVIRONMENT, format!("cannot read `{}`: {it}", shown(path))))?;
    let text = grammar::decode(bytes);
    let source = hir_front::source(name, text);
    let (mut programs, diagnostics) = source.programs();
    if has_errors(&diagnostics) {
        return Err(rejected(REJECTED, source, diagnostics));
    }
    let expected = if options.original.is_some() { 1 } else { 2 };
    if programs.len() != expected {
        let (name, found) = (shown(path), count_text(programs.len(), "program"));
        let message =
            format!("`{name}` has {found}; expected {expected}: with `--original` one, without it two");
        return Err(fail(USAGE, message));
    }
    let set = |it: &Binding| Binding { is_optional: true, ..it.clone() };
    for program in &mut programs {
        let set: Vec<Binding> = options.set.iter().map(set).collect();
        apply_bindings(program, &set).map_err(|it| rejected(USAGE, it.0, vec![it.1]))?;
    }
    Ok((source, programs))
}
