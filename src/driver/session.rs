//! What one run of a tool has of its own: where it prints, what it reports, and the files that it has read.
//!
//! A tool has one session. A process that runs several jobs, one after the other or at the same time, has one for each. What the
//! operating system gives only once to a process is not part of a session: signal handlers, memory limits and the
//! allocator (`hir_process`), which the tools in `src/bin` install.
//!
//! ```
//! use hir_driver::session::{OutputStream, Report, Session};
//!
//! let session = Session::new("my-tool", OutputStream::stdout(), OutputStream::to(std::io::sink()));
//! session.print(&Report::note("one rank"));
//! ```

mod allowed;
mod baseline;
mod crash_record;
mod output_stream;
mod report;
mod sarif_log;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    io::Write,
    path::Path,
    sync::{Arc, MutexGuard, OnceLock},
};

use grammar::{Code, Diagnostic, Source, sarif::Log, shell_word, visible_text};

use allowed::Allowed;
#[cfg(feature = "launch")]
use hir_launch::stop;
use hir_process::{exit::Exit, input_file::InputFiles};
use sarif_log::SarifLog;

pub use allowed::remove_allowed_by_comments;
pub(crate) use allowed::{AllowEntry, is_allowable, parse_code};
pub(crate) use baseline::{Baseline, Changes};
pub use crash_record::CrashRecord;
pub use output_stream::OutputStream;
pub use report::{Report, Verdict};

/// How a tool was started.
#[derive(Clone, Debug, Default)]
pub struct CommandLine {
    /// The program that runs the tool, and its arguments before those of the tool: how `hir-run` starts further ranks. Empty
    /// for the executable of this process.
    pub start: Vec<OsString>,
    /// The arguments of the tool.
    pub arguments: Vec<OsString>,
}

impl CommandLine {
    /// Returns the command line of this process, whose executable is the tool.
    pub fn of_process() -> Self {
        Self { start: Vec::new(), arguments: std::env::args_os().skip(1).collect() }
    }
}

/// Options that a file sets and the command line does not have.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    /// The file.
    pub(crate) file: String,
    /// The words of the command line that set them.
    pub(crate) arguments: Vec<String>,
}

/// The state of one run of a tool.
pub struct Session {
    /// The name of the tool, for messages.
    pub tool: &'static str,
    /// How the tool was started.
    pub command_line: CommandLine,
    /// Notes, results and the verdict (`Report`).
    pub stdout: OutputStream,
    /// Diagnostics, and what options print beside the result.
    pub stderr: OutputStream,
    /// The files that the run has read.
    pub files: Arc<InputFiles>,
    /// What the reproducer of an internal error contains.
    pub crash_record: CrashRecord,
    log: SarifLog,
    allowed: Allowed,
    defaults: OnceLock<Defaults>,
}

impl Session {
    /// Creates a session that prints to these streams.
    pub fn new(tool: &'static str, stdout: OutputStream, stderr: OutputStream) -> Arc<Self> {
        Self::with_command_line(tool, CommandLine::default(), stdout, stderr)
    }

    fn with_command_line(
        tool: &'static str,
        command_line: CommandLine,
        stdout: OutputStream,
        stderr: OutputStream,
    ) -> Arc<Self> {
        let notices = stderr.clone();
        let files = Arc::new(InputFiles::with_notices(move |text| print_notice(tool, &notices, text)));
        Arc::new(Self {
            tool,
            command_line,
            stdout,
            stderr,
            files,
            crash_record: CrashRecord::default(),
            log: SarifLog::default(),
            allowed: Allowed::default(),
            defaults: OnceLock::new(),
        })
    }

    /// Creates the session of a tool, which prints to the streams of its process.
    pub fn of_process(tool: &'static str, command_line: CommandLine) -> Arc<Self> {
        Self::with_command_line(tool, command_line, OutputStream::stdout(), OutputStream::stderr())
    }

    /// Returns the arguments for printing; parts that are not UTF-8 are replaced.
    pub fn argument_texts(&self) -> Vec<String> {
        self.command_line.arguments.iter().map(|it| it.to_string_lossy().into_owned()).collect()
    }

    /// Sets the options of a file.
    pub(crate) fn set_defaults(&self, defaults: Defaults) {
        let _ = self.defaults.set(defaults);
    }

    /// Returns the options of a file.
    pub(crate) fn defaults(&self) -> Option<&Defaults> {
        self.defaults.get()
    }

    /// Returns the arguments of the tool behind those of a file.
    pub fn arguments_with_defaults(&self) -> Vec<OsString> {
        let defaults = self.defaults().into_iter().flat_map(|it| &it.arguments).map(OsString::from);
        defaults.chain(self.command_line.arguments.iter().cloned()).collect()
    }

    /// Sets what `hir.toml` allows.
    pub(crate) fn set_allowed(&self, entries: Vec<AllowEntry>) {
        self.allowed.set_entries(entries);
    }

    /// Removes the diagnostics about a text that its comments or `hir.toml` allow, and returns their number.
    pub fn remove_allowed(&self, source: &Source, diagnostics: &mut Vec<Diagnostic>) -> usize {
        self.allowed.remove(source, diagnostics)
    }

    /// Returns how many faults comments, `hir.toml` or a baseline have allowed so far.
    pub(crate) fn allowed_faults(&self) -> usize {
        self.allowed.faults()
    }

    /// Returns the command line of the tool that was started, without its arguments, for messages.
    pub(crate) fn command_text(&self) -> String {
        let mut words = self.command_line.start.iter();
        let Some(program) = words.next() else { return self.tool.to_owned() };
        let program = Path::new(program).file_name().unwrap_or(program);
        let words = std::iter::once(program).chain(words.map(OsString::as_os_str));
        words.map(|it| shell_word(&it.to_string_lossy()).into_owned()).collect::<Vec<_>>().join(" ")
    }

    /// Returns warnings about comments of a text that allow nothing. `is_searched` says which codes were looked for.
    pub fn unused_allows(&self, source: &Source, is_searched: impl Fn(Code) -> bool) -> Vec<Diagnostic> {
        self.allowed.unused(source, is_searched)
    }

    /// Returns the entries of `hir.toml` that allowed nothing so far.
    pub(crate) fn unused_allow_entries(&self) -> Vec<&AllowEntry> {
        self.allowed.unused_entries()
    }

    /// Returns the known findings, which are not reported either.
    pub(crate) fn baseline(&self) -> MutexGuard<'_, Option<Baseline>> {
        self.allowed.baseline()
    }

    /// Prints a line on standard output, with control characters of names replaced.
    pub fn print(&self, line: &Report) {
        let _ = writeln!(&self.stdout, "{}", visible_text(&line.to_string()));
    }

    /// Prints lines as one piece, which no other line interrupts.
    pub fn print_all(&self, lines: impl IntoIterator<Item = Report>) {
        let text: String =
            lines.into_iter().map(|it| format!("{}\n", visible_text(&it.to_string()))).collect();
        let _ = (&self.stdout).write_all(text.as_bytes()).and_then(|()| (&self.stdout).flush());
    }

    /// Prints the end of a job, also where its launcher forwards nothing any more.
    #[cfg(feature = "launch")]
    pub fn print_end(&self, exit: Exit, lines: impl IntoIterator<Item = Report>) {
        let lines: Vec<Report> = lines.into_iter().collect();
        let text: String = lines.iter().map(|it| format!("{}\n", visible_text(&it.to_string()))).collect();
        if stop::launcher_output(exit).is_none_or(|mut it| it.write_all(text.as_bytes()).is_err()) {
            self.print_all(lines);
        }
    }

    /// Prints on standard error what the run waits for, as plain text in every format of diagnostics.
    pub fn notice(&self, text: &str) {
        print_notice(self.tool, &self.stderr, text);
    }

    /// Creates the SARIF log, if there is none. From then on `add_to_log` and `note_in_log` have an effect.
    pub(crate) fn open_log(&self) {
        self.log.open();
    }

    /// Returns a copy of the SARIF log, if there is one.
    pub(crate) fn copy_of_log(&self) -> Option<Log> {
        self.log.copy()
    }

    /// Removes the SARIF log, so that it is not written.
    pub(crate) fn discard_log(&self) {
        self.log.discard();
    }

    /// Adds diagnostics about a text to the SARIF log.
    pub(crate) fn add_to_log(&self, source: &Source, diagnostics: &[Diagnostic]) {
        self.log.add(source, diagnostics);
    }

    /// Adds a message that does not refer to a position in a text to the SARIF log.
    pub(crate) fn note_in_log(&self, message: &str, is_error: bool) {
        self.log.note(message, is_error);
    }

    /// Writes the SARIF log, if there is one, to standard error. An empty log is written only if this process reports for
    /// its job (`reports`).
    pub fn close_log(&self, exit: Exit, reports: bool) {
        let text = self.log.close(self.tool, exit, reports);
        text.iter().for_each(|it| drop((&self.stderr).write_all(it.as_bytes())));
    }
}

fn print_notice(tool: &str, mut stderr: &OutputStream, text: &str) {
    let _ = writeln!(stderr, "{tool}: {text}");
}
