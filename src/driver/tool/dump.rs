//! Prints programs between passes to standard error or to numbered files.

use grammar::InvalidOption;
use std::{io::Write, path::PathBuf, time::Duration};

use grammar::{Dialect, Program, nearest, print_as};
use passes::{Change, FORMER_NAMES, PassError, PassEvent};

use crate::{auto, session::OutputStream};
use similar::TextDiff;

use hir_process::atomic_file;

/// Selects the programs to print. A flag without a list of passes applies to all passes.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Printing between passes")]
pub struct DumpFlags {
    /// Print the program before these passes.
    #[arg(long, value_name = "PASS,…", num_args = 0.., require_equals = true, value_delimiter = ',')]
    print_ir_before: Option<Vec<String>>,
    /// Print the program after these passes.
    #[arg(long, value_name = "PASS,…", num_args = 0.., require_equals = true, value_delimiter = ',')]
    print_ir_after: Option<Vec<String>>,
    /// Print the program before every pass.
    #[arg(long)]
    print_ir_before_all: bool,
    /// Print the program after every pass.
    #[arg(long)]
    print_ir_after_all: bool,
    /// Print after a pass only if it changed the program.
    #[arg(long)]
    print_ir_after_change: bool,
    /// Print the program in the state in which a failing pass left it.
    #[arg(long)]
    print_ir_after_failure: bool,
    /// Print the program after every pass that changed it; `=diff` prints only the changed lines
    /// [without a value: whole].
    #[arg(long, value_name = "diff", num_args = 0..=1, require_equals = true, default_missing_value = "whole",
        value_parser = ["whole", "diff"])]
    print_changed: Option<String>,
    /// Write the programs to numbered files in this directory instead of standard error.
    #[arg(long, value_name = "DIR")]
    print_ir_tree_dir: Option<PathBuf>,
}

impl DumpFlags {
    /// Returns whether programs are printed to standard error.
    pub fn prints(&self) -> bool {
        let Self { print_ir_before, print_ir_after, print_changed, print_ir_tree_dir, .. } = self;
        let all = [self.print_ir_before_all, self.print_ir_after_all, self.print_ir_after_change];
        let any = all.into_iter().any(|it| it) || self.print_ir_after_failure;
        let some = print_ir_before.is_some() || print_ir_after.is_some() || print_changed.is_some();
        print_ir_tree_dir.is_none() && (any || some)
    }

    /// Returns whether programs are written to files.
    pub fn writes_files(&self) -> bool {
        self.print_ir_tree_dir.is_some()
    }

    /// Checks that all listed names are passes.
    ///
    /// # Errors
    /// Returns a message about the first unknown name.
    pub fn check(&self) -> Result<(), InvalidOption> {
        let lists =
            [("--print-ir-before", &self.print_ir_before), ("--print-ir-after", &self.print_ir_after)];
        let all = auto::catalog();
        for (flag, list) in lists {
            for name in list.iter().flatten() {
                if all.pass(name).is_none() {
                    // A former name may stand for a pass with options.
                    let present =
                        FORMER_NAMES.iter().find(|it| it.0 == name).and_then(|it| it.1.split('{').next());
                    let near = present.or_else(|| nearest(name, all.passes.iter().map(|it| it.name)));
                    let hint = near.map(|it| format!(": did you mean `{it}`?")).unwrap_or_default();
                    return Err(format!("`{flag}={name}`: unknown pass `{name}`{hint}").into());
                }
            }
        }
        Ok(())
    }

    fn before(&self, pass: &str) -> bool {
        self.print_ir_before_all || is_listed(&self.print_ir_before, pass)
    }

    fn after(&self, pass: &str, is_change: impl FnOnce() -> bool) -> bool {
        let named =
            self.print_ir_before.is_some() || self.print_ir_before_all || self.print_ir_after.is_some();
        let all = self.print_ir_after_all
            || self.print_changed.is_some()
            || !named && (self.print_ir_after_change || self.print_ir_tree_dir.is_some());
        let only_changes = self.print_ir_after_change || self.print_changed.is_some();
        (all || is_listed(&self.print_ir_after, pass)) && (!only_changes || is_change())
    }

    fn wants_diff(&self) -> bool {
        self.print_changed.as_deref() == Some("diff")
    }
}

fn is_listed(list: &Option<Vec<String>>, pass: &str) -> bool {
    list.as_ref().is_some_and(|names| names.is_empty() || names.iter().any(|it| it == pass))
}

/// Prints programs and collects times from the events of the pass driver.
pub struct Dumper<'f> {
    flags: &'f DumpFlags,
    /// Where programs are printed that do not go to files.
    stderr: OutputStream,
    /// The form of the printed programs.
    form: Dialect,
    /// The program before the current pass, if a diff is printed.
    before: String,
    /// Number of the next file.
    file: usize,
    /// Time spent in each pass, in the order of their first runs.
    times: Vec<(&'static str, Duration)>,
    /// Time spent in checks.
    checks: Duration,
    /// The last error in writing a file.
    file_error: Option<String>,
}

impl<'f> Dumper<'f> {
    /// Creates a dumper that prints what the flags select, in the short form or in the canonical one.
    pub fn new(flags: &'f DumpFlags, form: Dialect, stderr: OutputStream) -> Self {
        let (times, checks) = (Vec::new(), Duration::ZERO);
        // A dump is read back: a dialect that loses information is for the result only.
        let form = if form == Dialect::Short { form } else { Dialect::Canonical };
        Self { flags, stderr, form, before: String::new(), file: 0, times, checks, file_error: None }
    }

    /// Returns the first error in writing a file of `--print-ir-tree-dir`.
    pub fn file_error(&self) -> Option<&str> {
        self.file_error.as_deref()
    }

    /// Prints the program and records the times of an event.
    pub fn handle_event(&mut self, event: PassEvent<'_>) {
        match event {
            PassEvent::Before { call, program } => {
                if self.flags.wants_diff() {
                    self.before = short(program);
                }
                if self.flags.before(call.pass.name) {
                    self.show("Before", call.pass.name, "", &print_as(program, self.form).0);
                }
            }
            PassEvent::After { call, program, change, time, checks, .. } => {
                let name = call.pass.name;
                match self.times.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, total)) => *total += time,
                    None => self.times.push((name, time)),
                }
                self.checks += checks;
                if self.flags.after(name, || change.get() == Change::Changed) {
                    self.show("After", name, "", &self.text(program));
                }
            }
            // A program that a pass left incomplete when it panicked may not be printable.
            PassEvent::Failed { error: PassError::Panicked(_), .. } => (),
            PassEvent::Failed { call, program, error: _ } => {
                if self.flags.print_ir_after_failure || self.flags.after(call.pass.name, || true) {
                    self.show("After", call.pass.name, " Failed", &print_as(program, self.form).0);
                }
            }
        }
    }

    /// Returns the program or, for a diff, its changed lines.
    fn text(&self, program: &Program) -> String {
        if self.flags.wants_diff() {
            text_diff(&self.before, &short(program))
        } else {
            print_as(program, self.form).0
        }
    }

    fn show(&mut self, when: &str, pass: &str, outcome: &str, text: &str) {
        let text = format!("// -----// IR Dump {when} {pass}{outcome} //----- //\n{text}");
        let Some(folder) = &self.flags.print_ir_tree_dir else {
            let _ = self.stderr.write_all(text.as_bytes());
            return;
        };
        let when = if when == "Before" { "-before" } else { "" };
        let path = folder.join(format!("{:02}-{pass}{when}.hir", self.file));
        self.file += 1;
        if let Err(fault) = atomic_file::write_in_new_folder(&path, text.as_bytes()) {
            let message = || format!("cannot write {}: {fault}", path.display());
            self.file_error.get_or_insert_with(message);
        }
    }

    /// Returns the table of `--timing`.
    pub fn timing(&self, reading: Duration) -> String {
        let mut out = String::from("// -----// Timing //----- //\n");
        let passes: Duration = self.times.iter().map(|(_, time)| *time).sum();
        let rows = [("reading", reading)].into_iter().chain(self.times.iter().copied());
        for (name, time) in rows.chain([("checks", self.checks), ("sum", reading + passes + self.checks)]) {
            out += &format!("  {:>9.6} s  {name}\n", time.as_secs_f64());
        }
        out
    }
}

fn short(program: &Program) -> String {
    print_as(program, Dialect::Short).0
}

/// Returns a unified diff of two programs in the short form, with two lines of context.
pub fn diff(before: &Program, after: &Program) -> String {
    text_diff(&short(before), &short(after))
}

fn text_diff(before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().context_radius(2).to_string()
}
