//! The command line of `hir-certify` and `hir certify`.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::{CommandFactory, Parser};
use grammar::{
    bindings::{Binding, apply_bindings},
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    render::{Format, Style, render},
    source::Source,
};

use crate::certificate::{Claim, Fault, Settings, Subject, certify};

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
    /// The number of evaluations, each on other inputs. Each lowers the probability of an error.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The number of ranks. Default: all ranks of meshes and teams.
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Selects the random inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Set a symbol of the programs that have it, as for `hir run`.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
}

/// Exit codes, those of all tools.
const SUCCESS: u8 = 0;
const REJECTED: u8 = 1;
const USAGE: u8 = 2;
const WRONG_RESULT: u8 = 3;
const ENVIRONMENT: u8 = 6;
const CHECK: u8 = 7;

/// Returns the command with its options.
pub fn command() -> clap::Command {
    Options::command()
}

/// Runs the tool with these arguments, and returns its exit code.
pub fn main_with(arguments: impl Iterator<Item = OsString>) -> u8 {
    let words = std::iter::once("hir certify".into()).chain(arguments);
    match Options::try_parse_from(words) {
        Ok(options) => run(&options).unwrap_or_else(|code| code),
        Err(fault) => {
            // Nothing is left to do if the message cannot be written.
            let _ = fault.print();
            if fault.use_stderr() { USAGE } else { SUCCESS }
        }
    }
}

fn run(options: &Options) -> Result<u8, u8> {
    let start = Instant::now();
    let mut programs = Vec::new();
    let count = if options.original.is_some() { 1 } else { 2 };
    for path in options.original.iter().chain([&options.file]) {
        let (source, found) = read(path, count, &options.set)?;
        programs.extend(found.into_iter().map(|it| (source.clone(), it)));
    }
    let [(original_source, original), (lowered_source, lowered)] = &programs[..] else { return Err(USAGE) };
    let settings = Settings { ranks: options.ranks, runs: options.runs, seed: options.seed };
    match certify(original, lowered, &settings) {
        Ok(claim) => {
            let text = describe(&claim, options, start.elapsed().as_secs_f64());
            io::stdout().write_all(text.as_bytes()).map(|()| SUCCESS).map_err(|_| ENVIRONMENT)
        }
        Err(Fault { subject, diagnostic }) => {
            let source = if subject == Subject::Original { original_source } else { lowered_source };
            let code = exit_code(&diagnostic);
            show(&[*diagnostic], source);
            Err(code)
        }
    }
}

/// Returns the exit code for what is wrong with a program.
pub fn exit_code(fault: &Diagnostic) -> u8 {
    match fault.code {
        Code::ProgramsDiffer => WRONG_RESULT,
        Code::CheckedDeadlock | Code::Race => CHECK,
        _ => REJECTED,
    }
}

fn describe(claim: &Claim, options: &Options, seconds: f64) -> String {
    let Claim { ranks, accesses, outputs, elements, error_exponent, integral_inputs } = claim;
    let count = |number: usize, noun: &str| grammar::count_text(number, noun);
    let original =
        options.original.as_ref().map_or("its first program".to_owned(), |it| it.display().to_string());
    let mut text = format!(
        "certified: {} computes what {original} computes\n# {}, {} with {}, {}; probability of an error at most 2^{:.0}; {seconds:.3} s\n",
        options.file.display(),
        count(*ranks, "rank"),
        count(*outputs, "output"),
        count(*elements, "element"),
        count(options.runs as usize, "run"),
        error_exponent.ceil(),
    );
    text += &format!("# no deadlock, and no race between its {accesses} memory accesses\n");
    if *integral_inputs > 0 {
        let inputs = count(*integral_inputs, "input");
        text +=
            &format!("# {inputs} of integers or truth values: certified for the values of the runs only\n");
    }
    text
}

fn read(path: &Path, count: usize, set: &[Binding]) -> Result<(Source, Vec<Program>), u8> {
    let name = path.display().to_string();
    let bytes =
        fs::read(path).map_err(|fault| fail(ENVIRONMENT, &format!("cannot read `{name}`: {fault}")))?;
    if u32::try_from(bytes.len()).is_err() {
        return Err(fail(ENVIRONMENT, &format!("`{name}` has more than 4 GiB")));
    }
    let source = Source::new(name, grammar::decode(bytes));
    let (mut programs, diagnostics) = source.programs();
    let errors: Vec<Diagnostic> = if has_errors(&diagnostics) { diagnostics } else { Vec::new() };
    if !errors.is_empty() {
        show(&errors, &source);
        return Err(REJECTED);
    }
    if programs.len() != count {
        let (name, found) = (&source.name, grammar::count_text(programs.len(), "program"));
        let message =
            format!("`{name}` has {found}; expected {count}: with `--original` one, without it two");
        return Err(fail(USAGE, &message));
    }
    let set: Vec<Binding> = set.iter().map(|it| Binding { is_optional: true, ..it.clone() }).collect();
    for program in &mut programs {
        apply_bindings(program, &set).map_err(|fault| {
            show(&[fault.1], &fault.0);
            USAGE
        })?;
    }
    Ok((source, programs))
}

fn fail(code: u8, message: &str) -> u8 {
    // Nothing is left to do if the message cannot be written.
    let _ = writeln!(io::stderr(), "hir certify: {message}");
    code
}

fn show(diagnostics: &[Diagnostic], source: &Source) {
    let (name, text) = (&source.name, &source.text);
    // As above.
    let _ = render(diagnostics, name, text, Format::Human, Style::default(), &mut io::stderr());
}
