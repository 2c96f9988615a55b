//! What the command-line tools share: reports on standard error, colour, usage errors, our own bugs.
//!
//! Invariant: standard output carries results only; a reader of it that goes away ends a tool quietly.

pub mod dump;
pub mod expect;
pub mod listing;
pub mod remarks;
pub mod reproducer;
pub mod sarif_log;
pub mod stack;
pub mod statistics;

use std::{
    io::{self, IsTerminal, Write},
    path::Path,
    sync::OnceLock,
};

use clap::ValueEnum;
use grammar::{
    diagnostic::Diagnostic,
    render::{Format, render},
};
use passes::PassCall;

use crate::{atomic_file, exit::Exit, plan::limits::MAX_RANKS, source::Source, tool_name::set_tool_name};

/// When reports are coloured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Standard error, as a tool uses it.
#[derive(Clone, Copy, Debug)]
pub struct Reporter {
    tool: &'static str,
    format: Format,
    color: bool,
    quiet: bool,
}

impl Reporter {
    /// The screen of a tool.
    pub fn new(tool: &'static str, format: Format, color: Color) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            // By the convention of no-color.org, an empty value is none.
            Color::Auto => {
                io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty())
            }
        };
        if format == Format::Sarif {
            sarif_log::open();
        }
        Self { tool, format, color, quiet: false }
    }

    /// The name of the tool.
    pub fn tool(&self) -> &'static str {
        self.tool
    }

    /// The screen of a rank whose reports another rank makes.
    pub fn silent(self) -> Self {
        Self { quiet: true, ..self }
    }

    /// Draws diagnostics about a text.
    pub fn report_diagnostics(&self, source: &Source, diagnostics: &[Diagnostic]) {
        if self.quiet {
            return;
        }
        if self.format == Format::Sarif {
            return sarif_log::add(source, diagnostics);
        }
        let mut text = Vec::new();
        let drawn = render(diagnostics, &source.name, &source.text, self.format, self.color, &mut text);
        // Where standard error is closed, nobody is there to be told.
        let _ = drawn.and_then(|()| io::stderr().write_all(&text));
    }

    /// One line that no place in a text belongs to.
    pub fn message(&self, message: &str) {
        self.report(message, false);
    }

    /// A line, and the exit code that it explains.
    pub fn fail(&self, exit: Exit, message: &str) -> Exit {
        self.report(message, exit != Exit::Success);
        exit
    }

    fn report(&self, message: &str, is_error: bool) {
        match self.format {
            _ if self.quiet => (),
            Format::Sarif => sarif_log::note(message, is_error),
            Format::Human | Format::Short | Format::Json => {
                let _ = writeln!(io::stderr(), "{}: {message}", self.tool);
            }
        }
    }

    /// The passes of `--passes`; a fault is drawn with a caret into its text.
    ///
    /// # Errors
    /// The exit code of a text that is no pipeline.
    pub fn parse_pipeline(&self, text: &str) -> Result<Vec<PassCall>, Exit> {
        passes::parse(text).map_err(|fault| {
            self.report_diagnostics(&Source::new("--passes".to_owned(), text.to_owned()), &[fault]);
            Exit::Usage
        })
    }

    /// How a tool ends that has printed lines: no success where standard output did not take all of them.
    pub fn finish(&self, exit: Exit) -> Exit {
        record_stdout_error(io::stdout().flush().as_ref().copied());
        match STDOUT_ERROR.get() {
            Some(fault) if exit == Exit::Success => {
                self.fail(Exit::Environment, &format!("cannot write standard output: {fault}"))
            }
            Some(_) | None => exit,
        }
    }

    /// Writes a result to a file, or to standard output where none is given.
    pub fn write_result(&self, text: &str, file: Option<&Path>) -> Exit {
        let (result, name) = match file.filter(|it| *it != Path::new("-")) {
            Some(path) => (atomic_file::write(path, text.as_bytes()), path.display().to_string()),
            None => {
                let mut out = io::stdout().lock();
                (out.write_all(text.as_bytes()).and_then(|()| out.flush()), "standard output".to_owned())
            }
        };
        match result {
            Ok(()) => Exit::Success,
            Err(fault) if fault.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
            Err(fault) => self.fail(Exit::Environment, &format!("cannot write {name}: {fault}")),
        }
    }
}

/// What the system said when standard output first refused a line.
static STDOUT_ERROR: OnceLock<String> = OnceLock::new();

/// Prints a line on standard output. A reader that went away has seen enough; any other refusal is for `Screen::finish` to report.
pub fn print_line(line: &str) {
    record_stdout_error(writeln!(io::stdout(), "{line}").as_ref().copied());
}

/// Standard output for what is not in lines; refusals are noted as `print` notes them.
#[derive(Clone, Copy, Debug)]
pub struct ResultOutput;

impl Write for ResultOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        with_error_recorded(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        with_error_recorded(io::stdout().flush())
    }
}

/// Standard error, unless it goes where standard output goes.
pub fn stderr_if_separate() -> Option<Box<dyn Write + Send>> {
    let (out, err) = (rustix::fs::fstat(io::stdout()), rustix::fs::fstat(io::stderr()));
    let place = |it: rustix::fs::Stat| (it.st_dev, it.st_ino);
    let is_one = out.is_ok_and(|out| err.is_ok_and(|err| place(out) == place(err)));
    (!is_one).then(|| Box::new(io::stderr()) as _)
}

fn with_error_recorded<T>(written: io::Result<T>) -> io::Result<T> {
    record_stdout_error(written.as_ref().map(|_| ()));
    written
}

fn record_stdout_error(written: Result<(), &io::Error>) {
    if let Err(fault) = written
        && fault.kind() != io::ErrorKind::BrokenPipe
    {
        STDOUT_ERROR.get_or_init(|| fault.to_string());
    }
}

/// The number of `--ranks`.
///
/// # Errors
/// What is no number of ranks of a world.
pub fn parse_ranks(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|it| (1..=MAX_RANKS).contains(it));
    number.ok_or_else(|| format!("expected a number from 1 to {MAX_RANKS}"))
}

/// Reports what clap found: help goes out in full, a wrong command line in one line.
pub fn report_usage_error(tool: &str, error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        return match error.print() {
            Err(fault) if fault.kind() != io::ErrorKind::BrokenPipe => {
                let _ = writeln!(io::stderr(), "{tool}: cannot write standard output: {fault}");
                Exit::Environment
            }
            Ok(()) | Err(_) => Exit::Success,
        };
    }
    let _ = writeln!(io::stderr(), "{tool}: {} (see `{tool} --help`)", usage_error_text(error));
    Exit::Usage
}

/// What is wrong with a command line, in one line.
pub fn usage_error_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let told: Vec<&str> = told.map(|line| line.trim_start_matches("error: ")).collect();
    told.join("; ").replace(":; ", ": ")
}

/// The arguments of the command line, to be printed: of one that is not UTF-8, such as the name of a file, parts are replaced.
pub fn arguments() -> Vec<String> {
    std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect()
}

/// Makes a panic say that it is ours, and what to send us; the process then ends with 101. To be called first in `main`.
pub fn install_panic_hook(tool: &'static str) {
    set_tool_name(tool);
    std::panic::set_hook(Box::new(move |panic| {
        let _ = writeln!(
            io::stderr(),
            "{tool}: internal error, a bug of {tool} {version} and not of your program: {panic}\n\
             {tool}: please report it with the program and this command line: {tool} {line}",
            version = env!("CARGO_PKG_VERSION"),
            line = arguments().join(" "),
        );
    }));
}
