//! Code shared by the command-line tools: reports on standard error, colours, usage errors, and internal
//! errors. What a tool prints goes to its session.
//!
//! Invariant: standard output contains only results; if its reader closes it, a tool ends without an error.

pub mod certificate;
mod config;
pub mod dump;
pub mod edits;
pub mod expect;
pub mod flags;
pub mod help;
pub mod listing;
pub mod model_flags;
pub mod progress;
pub mod remarks;
pub mod reproducer;
pub mod startup;
pub mod statistics;
pub mod usage;

use std::{
    fmt::Display,
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use clap::ValueEnum;
use grammar::{
    Diagnostic, Source, has_errors,
    render::{Format, Style, github_error, json_message, render},
    visible_name, visible_text,
};
use passes::PassCall;

use crate::{
    auto,
    session::{OutputStream, Session},
    source,
};
use flags::TextFlags;
use hir_process::{atomic_file, exit::Exit, interrupt, threads};

/// When to colour reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Color {
    /// On a terminal, or if FORCE_COLOR is set, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Reports of a tool on the standard error of its session.
#[derive(Clone)]
pub struct Reporter {
    session: Arc<Session>,
    format: Format,
    style: Style,
    quiet: bool,
    errors_only: bool,
    /// The file that messages without a place are about, if there are several.
    file: Option<Arc<str>>,
    /// Whether an error with a place was reported.
    has_error: Arc<AtomicBool>,
}

impl Reporter {
    /// Creates a reporter of a session.
    pub fn new(session: &Arc<Session>, format: Format, color: Color) -> Self {
        let color = match color {
            Color::Always => true,
            Color::Never => false,
            // By the convention of no-color.org, an empty value counts as unset.
            Color::Auto => {
                let is_set = |name| std::env::var_os(name).is_some_and(|it| !it.is_empty());
                let shows = || session.stderr.is_terminal() && !is_dumb_terminal();
                !is_set("NO_COLOR") && (is_set("FORCE_COLOR") || shows())
            }
        };
        if format == Format::Sarif {
            session.open_log();
        }
        let style = Style { color, width: columns(&session.stderr) };
        Self {
            session: Arc::clone(session),
            format,
            style,
            quiet: false,
            errors_only: false,
            file: None,
            has_error: Arc::default(),
        }
    }

    /// Returns the session of the tool.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns a reporter without output, for a rank whose reports another rank prints.
    pub fn silent(&self) -> Self {
        Self { quiet: true, ..self.clone() }
    }

    /// Returns a reporter that leaves out warnings and remarks, because they were printed before.
    pub fn errors_only(&self) -> Self {
        Self { errors_only: true, ..self.clone() }
    }

    /// Returns a reporter whose messages name the file that they are about.
    pub fn about(&self, file: &str) -> Self {
        Self { file: Some(file.into()), has_error: Arc::default(), ..self.clone() }
    }

    /// Prints diagnostics about a text.
    pub fn report_diagnostics(&self, source: &Source, diagnostics: &[Diagnostic]) {
        let mut diagnostics = diagnostics.to_vec();
        self.session.remove_allowed(source, &mut diagnostics);
        let diagnostics = diagnostics.as_slice();
        if self.quiet || self.errors_only && !has_errors(diagnostics) {
            return;
        }
        if has_errors(diagnostics) {
            self.has_error.store(true, Ordering::Relaxed);
        }
        self.session.add_to_log(source, diagnostics);
        if self.format == Format::Sarif {
            return;
        }
        let mut text = Vec::new();
        let drawn = render(diagnostics, &source.name, &source.text, self.format, self.style, &mut text);
        let _ = drawn.and_then(|()| (&self.session.stderr).write_all(&text));
    }

    /// Prints a JSON object in one line on standard error, if diagnostics are such lines.
    pub fn report_json(&self, object: &serde_json::Value) {
        if self.format == Format::Json && !self.quiet {
            let _ = (&self.session.stderr).write_all(format!("{object}\n").as_bytes());
        }
    }

    /// Reports the edits that turn a text into another one, where standard error is for programs.
    pub fn report_edits(&self, source: &Source, before: &str, after: &str) {
        match self.format {
            Format::Json | Format::Sarif | Format::Github => {
                self.report_diagnostics(source, &edits::edits(before, after));
            }
            Format::Human | Format::Short => (),
        }
    }

    /// Prints a message that does not refer to a position in a text.
    pub fn message(&self, message: impl Display) {
        self.report(&message.to_string(), Message::Note);
    }

    /// Prints lines of text; formats for programs have them as one message.
    pub fn print_text(&self, text: &str) {
        match self.format {
            Format::Json | Format::Sarif => self.message(text),
            Format::Human | Format::Short | Format::Github => {
                let _ = (&self.session.stderr).write_all(text.as_bytes());
            }
        }
    }

    /// Reports a verdict on a program that standard output has, if standard error is for programs and has no error that says the same.
    pub fn report_verdict(&self, file: Option<&String>, exit: Exit, text: &str) {
        let is_said = self.has_error.load(Ordering::Relaxed);
        match self.format {
            Format::Json | Format::Sarif | Format::Github if !is_said => {
                let own = Self { file: file.map(|it| it.as_str().into()), ..self.clone() };
                own.fail(exit, text);
            }
            Format::Json | Format::Sarif | Format::Github | Format::Human | Format::Short => (),
        }
    }

    /// Prints a message and returns the exit code that it explains.
    pub fn fail(&self, exit: Exit, message: impl Display) -> Exit {
        let kind = match exit {
            Exit::Success => Message::Note,
            _ if exit.is_verdict() && self.has_error.load(Ordering::Relaxed) => Message::Summary,
            _ => Message::Error,
        };
        self.report(&message.to_string(), kind);
        exit
    }

    fn report(&self, message: &str, kind: Message) {
        if !self.quiet {
            print_message(&self.session, self.format, self.file.as_deref(), message, kind);
        }
    }

    /// Parses the value of `--passes`; an error is printed with its position in the text.
    ///
    /// # Errors
    /// Returns the exit code for an invalid pipeline.
    pub fn parse_pipeline(&self, flag: &str, text: &str) -> Result<Vec<PassCall>, Exit> {
        parse_pipeline(text).map_err(|fault| {
            self.report_diagnostics(&Source::new(flag.to_owned(), text.to_owned()), &[*fault]);
            Exit::Usage
        })
    }

    /// Ends the output of a tool: writes the log of `sarif`, also an empty one if this process `reports` for its job.
    /// Returns the exit code: that of a failure if standard output or standard error did not accept everything. `say`
    /// gets the fault of standard error, which cannot deliver it.
    pub fn finish(&self, exit: Exit, reports: bool, say: impl FnOnce(&str)) -> Exit {
        let _ = (&self.session.stdout).flush();
        let exit = match self.session.stdout.error() {
            Some(fault) if exit == Exit::Success => {
                self.fail(Exit::Environment, format!("cannot write standard output: {fault}"))
            }
            Some(_) | None => exit,
        };
        self.session.close_log(exit, reports);
        // Without its log, the exit code of a verdict says nothing to the reader of logs.
        let is_due = exit == Exit::Success || self.format == Format::Sarif && exit.is_verdict();
        match self.session.stderr.error().filter(|_| is_due) {
            Some(fault) => {
                say(&format!("cannot write standard error: {fault}"));
                Exit::Environment
            }
            None => exit,
        }
    }

    /// Reads a program file, or standard input for `-`, with its fusions; a failure is reported.
    ///
    /// # Errors
    /// Returns the exit code for a file that cannot be read.
    pub fn open_source(&self, path: &str, text: &TextFlags) -> Result<Source, Exit> {
        source::open_program(&self.session, path, &text.fusions)
            .map_err(|(path, fault)| self.fail_to_read(path, &fault))
    }

    /// Reports that a file cannot be read, and returns the exit code.
    pub fn fail_to_read(&self, path: impl Display, fault: &io::Error) -> Exit {
        let path = visible_name(&path.to_string());
        let message = if fault.kind() == io::ErrorKind::IsADirectory {
            format!("cannot read `{path}`: it is a folder; `hir check {path}` checks its programs")
        } else {
            format!("cannot read `{path}`: {fault}")
        };
        self.fail(Exit::Environment, message)
    }

    /// Handles signals as `interrupt::watch` does, with this reporter; a failure is reported.
    ///
    /// # Errors
    /// Returns the exit code if the operating system rejects the handlers.
    pub fn watch_signals(
        &self,
        report: impl Fn(&Self) + Send + 'static,
        mut end: impl FnMut(&Self, i32) -> bool + Send + 'static,
    ) -> Result<(), Exit> {
        let (screen, screen_at_end) = (self.clone(), self.clone());
        interrupt::watch(move || report(&screen), move |signal| end(&screen_at_end, signal))
            .map_err(|fault| self.fail(Exit::Environment, format!("cannot handle signals: {fault}")))
    }

    /// Starts the threads of the process that compute large tensors; a failure is reported.
    ///
    /// # Errors
    /// Returns the exit code if the operating system refuses a thread.
    pub fn start_workers(&self) -> Result<(), Exit> {
        threads::start_workers().map_err(|fault| self.fail(Exit::Environment, fault))
    }

    /// Writes a result to a file, or to standard output if no file is given.
    pub fn write_result(&self, text: &str, file: Option<&Path>) -> Exit {
        let bytes = grammar::encode(text);
        let (result, name) = match file.filter(|it| *it != Path::new("-")) {
            Some(path) => (atomic_file::write(path, &bytes), path.display().to_string()),
            None => {
                let mut out = &self.session.stdout;
                (out.write_all(&bytes).and_then(|()| out.flush()), "standard output".to_owned())
            }
        };
        match result {
            Ok(()) => Exit::Success,
            Err(fault) if fault.kind() == io::ErrorKind::BrokenPipe => Exit::Success,
            Err(fault) => self.fail(Exit::Environment, format!("cannot write {name}: {fault}")),
        }
    }
}

/// Parses a pipeline.
///
/// # Errors
/// Returns the error, with its position in `text`.
pub fn parse_pipeline(text: &str) -> Result<Vec<PassCall>, Box<Diagnostic>> {
    let all = auto::catalog();
    all.parse(text).map_err(|fault| {
        let word = fault.span().text(text);
        let is_pass = all.pass(word).is_some();
        let is_explained = is_pass || fault.help.is_some();
        let tools = usage::tools_with(word).filter(|_| !is_explained);
        Box::new(match tools {
            Some(tools) => fault.help(format!("`--{word}` is a flag of {tools}, not a pass")),
            None => fault,
        })
    })
}

/// What a message without a place says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Message {
    Note,
    /// The errors that were reported with their places are counted.
    Summary,
    Error,
}

/// Prints a message that does not refer to a position in a text, but possibly to a file.
fn print_message(session: &Session, format: Format, file: Option<&str>, message: &str, kind: Message) {
    let is_error = kind != Message::Note;
    let named = || file.map_or_else(|| message.to_owned(), |file| format!("{file}: {message}"));
    session.note_in_log(&named(), is_error);
    let line = match (format, kind) {
        (Format::Sarif, _) => return,
        (Format::Json, _) => json_message(session.tool, file, message, is_error),
        (Format::Github, Message::Error) => github_error(session.tool, file, message),
        (Format::Human | Format::Short, _) | (Format::Github, Message::Note | Message::Summary) => {
            let place = file.map(|it| format!("{}: ", visible_name(it))).unwrap_or_default();
            format!("{}: {place}{}", session.tool, visible_text(message))
        }
    };
    let _ = writeln!(&session.stderr, "{line}");
}

/// Returns whether the terminal can only print lines: no colours, and no line that changes.
fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|it| it == "dumb")
}

/// Returns the version of the tools, with the commit and its date if this is a release build.
pub(crate) const fn version() -> &'static str {
    env!("HIR_VERSION")
}

/// Returns the number of columns for reports on standard error: those of the terminal, or else of COLUMNS.
fn columns(stderr: &OutputStream) -> usize {
    let default = Style::default().width;
    if !stderr.is_terminal() {
        return default;
    }
    let size = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |it| usize::from(it.ws_col));
    let stated = || std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
    Some(size).filter(|it| *it > 0).or_else(stated).unwrap_or(default)
}

/// Returns the exit code of a tool that has only printed a text, and reports why it could not print it.
fn exit_of_print(session: &Session, printed: io::Result<()>) -> Exit {
    match printed {
        Err(fault) if fault.kind() != io::ErrorKind::BrokenPipe => {
            session.notice(&format!("cannot write standard output: {fault}"));
            Exit::Environment
        }
        Ok(()) | Err(_) => Exit::Success,
    }
}

/// Reports a result of clap: prints help in full, and an error in the command line as one line, which `say` gets, too.
pub fn report_usage_error(session: &Session, error: &clap::Error, say: impl FnOnce(&str)) -> Exit {
    if !error.use_stderr() {
        return exit_of_print(session, error.print());
    }
    let arguments = session.argument_texts();
    let (message, format) = (usage::error_text(error, &arguments), requested_format(&arguments));
    if format == Format::Sarif {
        session.open_log();
    }
    let help = format!("{message} (see `{} --help`)", session.tool);
    print_message(session, format, None, &help, Message::Error);
    session.close_log(Exit::Usage, true);
    say(&message);
    Exit::Usage
}

/// Returns the format that the command line, which may be invalid, asks for.
fn requested_format(arguments: &[String]) -> Format {
    let option = "--error-format";
    let joined = arguments.iter().filter_map(|it| it.strip_prefix(option)?.strip_prefix('='));
    let separate = arguments.windows(2).filter(|it| it[0] == option).map(|it| it[1].as_str());
    joined.chain(separate).find_map(|it| it.parse().ok()).unwrap_or_default()
}

/// Returns the name of an option's value.
pub fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
}
