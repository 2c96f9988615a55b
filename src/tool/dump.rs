//! Shows programs between passes: on standard error, or as numbered files.

use std::{io::Write, path::PathBuf, time::Duration};

use grammar::{ir::Program, nearest, print};
use passes::{Change, PASSES, PassError, PassEvent};
use similar::TextDiff;

use crate::atomic_file;

/// Which programs are shown. Without a list of passes, a flag means all of them.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Programs between passes")]
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
    /// Print after a pass only where it changed the program.
    #[arg(long)]
    print_ir_after_change: bool,
    /// Print what a failing pass left.
    #[arg(long)]
    print_ir_after_failure: bool,
    /// Print what every pass changed: the program, or the lines.
    #[arg(long, value_name = "diff", num_args = 0..=1, require_equals = true, default_missing_value = "whole",
        value_parser = ["whole", "diff"])]
    print_changed: Option<String>,
    /// Write the programs into numbered files instead.
    #[arg(long, value_name = "DIR")]
    print_ir_tree_dir: Option<PathBuf>,
}

impl DumpFlags {
    /// Whether programs go to standard error.
    pub fn prints(&self) -> bool {
        let Self { print_ir_before, print_ir_after, print_changed, print_ir_tree_dir, .. } = self;
        let all = [self.print_ir_before_all, self.print_ir_after_all, self.print_ir_after_change];
        let any = all.into_iter().any(|it| it) || self.print_ir_after_failure;
        let some = print_ir_before.is_some() || print_ir_after.is_some() || print_changed.is_some();
        print_ir_tree_dir.is_none() && (any || some)
    }

    /// Says which name of a list is no pass.
    ///
    /// # Errors
    /// The first such name, in a message.
    pub fn check(&self) -> Result<(), String> {
        let lists =
            [("--print-ir-before", &self.print_ir_before), ("--print-ir-after", &self.print_ir_after)];
        for (flag, list) in lists {
            for name in list.iter().flatten() {
                if PASSES.iter().all(|it| it.name != name) {
                    let near = nearest(name, PASSES.iter().map(|it| it.name));
                    let hint = near.map(|it| format!(": did you mean `{it}`?")).unwrap_or_default();
                    return Err(format!("`{flag}={name}`: unknown pass `{name}`{hint}"));
                }
            }
        }
        Ok(())
    }

    fn before(&self, pass: &str) -> bool {
        self.print_ir_before_all || is_listed(&self.print_ir_before, pass)
    }

    fn after(&self, pass: &str, change: Change) -> bool {
        let named =
            self.print_ir_before.is_some() || self.print_ir_before_all || self.print_ir_after.is_some();
        let all = self.print_ir_after_all
            || self.print_changed.is_some()
            || !named && (self.print_ir_after_change || self.print_ir_tree_dir.is_some());
        let only_changes = self.print_ir_after_change || self.print_changed.is_some();
        (all || is_listed(&self.print_ir_after, pass)) && (change == Change::Changed || !only_changes)
    }

    fn wants_diff(&self) -> bool {
        self.print_changed.as_deref() == Some("diff")
    }
}

fn is_listed(list: &Option<Vec<String>>, pass: &str) -> bool {
    list.as_ref().is_some_and(|names| names.is_empty() || names.iter().any(|it| it == pass))
}

/// Follows the driver's events.
pub struct Dumper<'f> {
    flags: &'f DumpFlags,
    /// The program before the pass that runs, where lines are compared.
    before: String,
    /// Number of the next file.
    file: usize,
    /// Time in passes, by name, in the order of their first run.
    times: Vec<(&'static str, Duration)>,
    /// Time in checks.
    checks: Duration,
    /// What went wrong with a file.
    file_error: Option<String>,
}

impl<'f> Dumper<'f> {
    /// Shows what the flags ask for.
    pub fn new(flags: &'f DumpFlags) -> Self {
        let (times, checks) = (Vec::new(), Duration::ZERO);
        Self { flags, before: String::new(), file: 0, times, checks, file_error: None }
    }

    /// What went wrong with a file of `--print-ir-tree-dir`.
    pub fn file_error(&self) -> Option<&str> {
        self.file_error.as_deref()
    }

    /// Shows what there is to see of an event.
    pub fn handle_event(&mut self, event: PassEvent<'_>) {
        match event {
            PassEvent::Before { call, program } => {
                if self.flags.wants_diff() {
                    self.before = print(program);
                }
                if self.flags.before(call.pass.name) {
                    self.show("Before", call.pass.name, "", &print(program));
                }
            }
            PassEvent::After { call, program, change, time, checks, .. } => {
                let name = call.pass.name;
                match self.times.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, total)) => *total += time,
                    None => self.times.push((name, time)),
                }
                self.checks += checks;
                if self.flags.after(name, change) {
                    self.show("After", name, "", &self.text(program));
                }
            }
            // A program that a panic left half rewritten may not print.
            PassEvent::Failed { error: PassError::Panicked(_), .. } => (),
            PassEvent::Failed { call, program, error: _ } => {
                if self.flags.print_ir_after_failure || self.flags.after(call.pass.name, Change::Changed) {
                    self.show("After", call.pass.name, " Failed", &print(program));
                }
            }
        }
    }

    /// The program, or the lines of it that changed.
    fn text(&self, program: &Program) -> String {
        let after = print(program);
        match self.flags.wants_diff() {
            true => diff(&self.before, &after),
            false => after,
        }
    }

    fn show(&mut self, when: &str, pass: &str, outcome: &str, text: &str) {
        let text = format!("// -----// IR Dump {when} {pass}{outcome} //----- //\n{text}");
        let Some(folder) = &self.flags.print_ir_tree_dir else {
            let _ = std::io::stderr().write_all(text.as_bytes());
            return;
        };
        let when = if when == "Before" { "-before" } else { "" };
        let path = folder.join(format!("{:02}-{pass}{when}.hir", self.file));
        self.file += 1;
        if let Err(fault) = atomic_file::write_in_new_folder(&path, text.as_bytes()) {
            self.file_error = Some(format!("cannot write {}: {fault}", path.display()));
        }
    }

    /// The table of `--timing`.
    pub fn timing(&self, reading: Duration) -> String {
        let mut out = String::from("// -----// Timing //----- //\n");
        let passes: Duration = self.times.iter().map(|(_, time)| *time).sum();
        let rows = [("reading", reading)].into_iter().chain(self.times.iter().copied());
        for (name, time) in rows.chain([("checks", self.checks), ("total", reading + passes + self.checks)]) {
            out += &format!("  {:>9.6} s  {name}\n", time.as_secs_f64());
        }
        out
    }
}

/// The lines that differ, with what stands around them.
pub fn diff(before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().context_radius(2).to_string()
}
