//! Files with an order of steps, for `--schedule=@FILE`.
//!
//! A file has one line per step: the rank, the index of the instruction in the rank's plan, and the
//! step of the instruction. `#` begins a comment. Other lines say what the run has besides the program:
//!
//! ```text
//! runs 2                  the program runs twice, without a barrier between the runs
//! captured                the program runs, then its captured graph, which lacks what the capture does not record
//! next other.hir          another program follows: a path as hir-run opens it, up to the end of the line
//! shared T4 T5            the two programs share these tensors besides inputs and outputs
//! storage 0 1 3           on rank 0, buffer 3 has the storage of buffer 1
//! storage 0 1 caller      on rank 0, the caller gets the storage of buffer 1 at the end
//! semaphores              each transfer over peer memory has a semaphore of one word
//! ```

use std::{collections::BTreeSet, fmt::Write, path::Path, sync::Arc};

use grammar::count_text;

use crate::run::failure::{JobFailure, Result};
use hir_check::{NextRun, ReplayedStorage, WitnessSetting};
use hir_plan::{
    Plan, World,
    sync::{InstRef, Step},
};
use hir_process::input_file::InputFiles;

/// A program that runs after the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextProgram {
    /// Its file.
    pub file: String,
    /// The names of the tensors that it shares with the first one besides inputs and outputs.
    pub shared: BTreeSet<String>,
}

/// A file with an order of steps.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ScheduleFile {
    /// What the run needs besides the order.
    pub setting: WitnessSetting,
    /// The program of the second run, if it is another one.
    pub next: Option<NextProgram>,
    /// The line of `shared`.
    shared_line: usize,
    /// The lines of `setting.storage`.
    storage_lines: Vec<usize>,
    /// The steps, each with its line.
    steps: Vec<(usize, Step)>,
    /// The path in messages.
    name: String,
}

/// What a line of a file says.
enum Line {
    Empty,
    Step(Step),
    SecondRun,
    Graph,
    Next(String),
    Shared(BTreeSet<String>),
    Storage(ReplayedStorage),
    Semaphores,
}

impl Line {
    /// Parses a line; `None` if it is none of a file.
    fn parse(text: &str) -> Option<Self> {
        if let Some(file) = text.strip_prefix("next ").map(str::trim).filter(|it| !it.is_empty()) {
            return Some(Self::Next(file.to_owned()));
        }
        let text = text.split('#').next().unwrap_or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        Some(match words.as_slice() {
            [] => Self::Empty,
            ["runs", "2"] => Self::SecondRun,
            ["captured"] => Self::Graph,
            ["shared", names @ ..] => Self::Shared(names.iter().map(|it| (*it).to_owned()).collect()),
            ["storage", rank, earlier, later] => Self::Storage(ReplayedStorage {
                rank: rank.parse().ok()?,
                earlier: earlier.parse().ok()?,
                later: if *later == "caller" { None } else { Some(later.parse().ok()?) },
            }),
            ["semaphores"] => Self::Semaphores,
            [rank, inst, part] => Self::Step(Step {
                inst_ref: InstRef { rank: rank.parse().ok()?, inst: inst.parse().ok()? },
                index: part.parse().ok()?,
            }),
            _ => return None,
        })
    }
}

impl ScheduleFile {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, has a line that no file has, or has lines that contradict each other.
    pub fn read(path: &Path, files: &InputFiles) -> Result<Self> {
        let name = path.display().to_string();
        let cannot = |fault: &dyn std::fmt::Display| JobFailure::CannotRead {
            path: name.clone(),
            cause: fault.to_string(),
        };
        let bytes = files.read(path).map_err(|it| cannot(&it))?;
        let text = String::from_utf8(bytes).map_err(|it| cannot(&it))?;
        let mut file = Self { name: path.display().to_string(), ..Self::default() };
        let mut shared = BTreeSet::new();
        for (number, line) in (1..).zip(text.lines()) {
            let has_second_run = file.setting.has_second_run;
            let fault = match Line::parse(line) {
                Some(Line::Empty) => None,
                Some(Line::Step(it)) => {
                    file.steps.push((number, it));
                    None
                }
                Some(it @ (Line::SecondRun | Line::Graph | Line::Next(_))) => {
                    file.setting.has_second_run = true;
                    file.setting.is_captured |= matches!(it, Line::Graph);
                    if let Line::Next(next) = it {
                        file.next = Some(NextProgram { file: next, shared: BTreeSet::new() });
                    }
                    has_second_run.then_some("an earlier line says what follows the first run")
                }
                Some(Line::Shared(it)) => {
                    let is_known = it.is_empty() || std::mem::replace(&mut file.shared_line, number) > 0;
                    shared.extend(it);
                    is_known.then_some("`shared` is one line, with a name at least")
                }
                Some(Line::Storage(it)) => {
                    let is_known = file.setting.storage.iter().any(|known| known.takes_place_of(&it));
                    file.setting.storage.push(it);
                    file.storage_lines.push(number);
                    is_known.then_some("an earlier line says which storage this tensor gets")
                }
                Some(Line::Semaphores) => std::mem::replace(&mut file.setting.has_semaphores, true)
                    .then_some("an earlier line says the same"),
                None => Some(
                    "expected rank, instruction and step, three numbers, or `runs 2`, `captured`, `next FILE`, \
                     `shared NAME…`, `storage RANK EARLIER LATER` or `semaphores`",
                ),
            };
            if let Some(fault) = fault {
                return Err(file.fault(number, fault));
            }
        }
        match &mut file.next {
            Some(next) => next.shared = shared,
            None if file.shared_line > 0 => {
                let fault = "the tensors are shared with another program, and no line `next FILE` names one";
                return Err(file.fault(file.shared_line, fault));
            }
            None => (),
        }
        Ok(file)
    }

    /// Tests whether programs fit the file: `first`, and what follows it.
    ///
    /// # Errors
    /// No program has a shared tensor, or an allocator does not place the tensors of the programs like this.
    pub fn check_sharing(&self, first: &World, next: Option<NextRun<'_>>) -> Result<()> {
        let other = match next {
            Some(NextRun::Other(world, _)) => world.plans(),
            Some(NextRun::Same | NextRun::Captured) | None => &[],
        };
        let has =
            |name: &str| first.iter().chain(other).flat_map(|it| &it.buffers).any(|it| *it.name == *name);
        let shared = self.next.iter().flat_map(|it| &it.shared);
        if let Some(name) = shared.into_iter().find(|it| !has(it)) {
            return Err(self.fault(self.shared_line, &format!("the programs have no tensor `{name}`")));
        }
        for (line, it) in self.storage_lines.iter().zip(&self.setting.storage) {
            hir_check::may_share(first, next, it).map_err(|fault| {
                let advice = "the order belongs to another program. `hir-opt FILE --check --witness ORDER` writes one for this program";
                self.fault(*line, &format!("on rank {}, {fault}: {advice}", it.rank))
            })?;
        }
        Ok(())
    }

    fn fault(&self, line: usize, fault: &str) -> JobFailure {
        JobFailure::Usage(format!("`{}`, line {line}: {fault}", self.name))
    }

    /// Returns the steps.
    ///
    /// # Errors
    /// The plans do not have an instruction.
    pub fn steps_in(&self, plans: &[Plan]) -> Result<Arc<[Step]>> {
        for (line, step) in &self.steps {
            let InstRef { rank, inst } = step.inst_ref;
            let count = plans.get(rank).map_or(0, |it| it.code.len());
            if inst >= count {
                let message = format!(
                    "`{}`, line {line}: instruction {inst} of rank {rank} does not exist: the program has {}, and {count} \
                     instructions there",
                    self.name,
                    count_text(plans.len(), "rank")
                );
                return Err(JobFailure::Usage(message));
            }
        }
        Ok(self.steps.iter().map(|it| it.1).collect())
    }
}

/// Formats a file for `@FILE`, with a comment for each step. `title` becomes the leading comment, and `setting` follows it.
pub fn format_schedule(plans: &[Plan], steps: &[Step], title: &str, setting: &[String]) -> String {
    let mut text = String::new();
    title.lines().for_each(|line| _ = writeln!(text, "# {line}"));
    setting.iter().for_each(|line| _ = writeln!(text, "{line}"));
    for it in steps {
        let InstRef { rank, inst } = it.inst_ref;
        let kind = hir_plan::inst_text(&plans[rank], &plans[rank].code[inst]);
        _ = writeln!(text, "{rank} {inst} {}  # {}: {kind}", it.index, hir_sim::describe(plans, it.inst_ref));
    }
    text
}

/// Returns the lines of a file that say what a run has besides the program.
pub fn setting_lines(setting: &WitnessSetting, next: Option<&NextProgram>) -> Vec<String> {
    let mut lines = Vec::new();
    match next {
        Some(it) => {
            lines.push(format!("next {}", it.file));
            let shared: String = it.shared.iter().map(|it| format!(" {it}")).collect();
            lines.extend((!it.shared.is_empty()).then(|| format!("shared{shared}")));
        }
        None if setting.is_captured => lines.push("captured".to_owned()),
        None if setting.has_second_run => lines.push("runs 2".to_owned()),
        None => (),
    }
    lines.extend(setting.storage.iter().map(|it| {
        let later = it.later.map_or("caller".to_owned(), |it| it.to_string());
        format!("storage {} {} {later}", it.rank, it.earlier)
    }));
    lines.extend(setting.has_semaphores.then(|| "semaphores".to_owned()));
    lines
}
