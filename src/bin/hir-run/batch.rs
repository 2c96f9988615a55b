//! The programs of a job: one, or those of a file of command lines.
//!
//! ```text
//! # batch.txt: hir-run --batch batch.txt --ranks 8 --device=cuda -n 20
//! layer.hir --passes @lower
//! layer.hir --passes @overlap-allgather-linear -G
//! ```
//!
//! What stands beside `--batch` is said of every program. Each is told as if it ran alone, between its command line and its
//! exit code. What one rank alone fails at ends the job, as the others cannot know where it stands; what all ranks refuse or
//! find wrong ends only the program. A program that has the plans of the one before it finds them ready on the GPUs.
//! Communicators are shared: a message that a program sends and nobody receives may meet the next program.

use std::{
    ffi::OsString,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use hir::{exit::Exit, input_file, tool::print_line};

use crate::{
    command_lines::{self, BatchLine},
    gpus,
    options::Options,
};

/// A program of a job.
pub struct JobProgram {
    /// What is asked for.
    pub options: Options,
    /// Its command line, and the number of it and of all, where there are several.
    line: Option<(String, String)>,
}

impl JobProgram {
    /// What all ranks have to be given alike.
    pub fn canonical_options(&self) -> String {
        let place = self.line.as_ref().map_or(String::new(), |(_, place)| format!("{place}\n"));
        place + &self.options.canonical_options()
    }
}

/// The programs of a job; `words` are its command line, without the name of the tool.
///
/// # Errors
/// A file that does not read, a line that is no command line.
pub fn read_programs(job: &Options, words: Vec<OsString>) -> Result<Vec<JobProgram>, (Exit, String)> {
    let Some(path) = &job.batch else {
        return Ok(vec![JobProgram { options: job.clone(), line: None }]);
    };
    let shown = path.display();
    let cannot = |fault: std::io::Error| (Exit::Environment, format!("cannot read `{shown}`: {fault}"));
    if !std::fs::metadata(path).map_err(cannot)?.is_file() && gpus::should_spawn_ranks(job) {
        return Err((Exit::Usage, format!("`{shown}` is read once by each rank: it has to be a file")));
    }
    let text = String::from_utf8(input_file::read(path).map_err(cannot)?)
        .map_err(|_| (Exit::Environment, format!("cannot read `{shown}`: it is not a text")))?;
    let common = command_lines::without_batch(words);
    let wrong = |number: usize, why: &str| (Exit::Usage, format!("{shown}:{number}: {why}"));
    let lines = command_lines::parse_batch(&text, &common).map_err(|it| wrong(it.0, &it.1))?;
    let all = lines.len();
    let entry = |(at, line): (usize, BatchLine)| {
        let BatchLine { number, text, options } = line;
        let only = [(options.batch.is_some(), "--batch"), (options.timeout != job.timeout, "--timeout")];
        if let Some((_, name)) = only.into_iter().find(|it| it.0) {
            return Err(wrong(number, &format!("{name} is for the whole job, not for one of its programs")));
        }
        Ok(JobProgram { options, line: Some((text, format!("program {} of {all}", at + 1))) })
    };
    match lines.is_empty() {
        true => Err((Exit::Usage, format!("`{shown}` has no command line"))),
        false => lines.into_iter().enumerate().map(entry).collect(),
    }
}

/// How many programs of a job have begun, and what is said when one has ended.
#[derive(Clone)]
pub struct BatchProgress {
    started: Arc<AtomicUsize>,
    all: usize,
    /// Whether they are those of a file.
    is_batch: bool,
}

impl BatchProgress {
    /// None yet.
    pub fn of(programs: &[JobProgram]) -> Self {
        let is_batch = programs.iter().any(|it| it.line.is_some());
        Self { started: Arc::default(), all: programs.len(), is_batch }
    }

    /// What whoever ends the job in the middle of a program says last.
    pub fn exit_reporter(&self) -> impl Fn(Exit) + Send + 'static {
        let count = self.clone();
        move |exit| count.report_exit(exit, true)
    }

    /// Tells the exit code of the program that has begun last, and whether no other follows.
    fn report_exit(&self, exit: Exit, is_end: bool) {
        if !self.is_batch {
            return;
        }
        print_line(&format!("# exit code {}", exit as u8));
        let more = self.all - self.started.load(Relaxed).min(self.all);
        if is_end && more > 0 {
            print_line(&format!("# {more} more are not run: nothing can be relied on after this"));
        }
    }
}

/// Runs them in order, until `run` breaks; it is told which is the last. The exit code is that of the first that is no success.
///
/// # Errors
/// The first error of `run`.
pub fn run_each<E>(
    programs: &[JobProgram],
    tells: bool,
    count: &BatchProgress,
    mut run: impl FnMut(&JobProgram, bool) -> Result<ControlFlow<Exit, Exit>, E>,
) -> Result<Exit, E> {
    let mut first = Exit::Success;
    for (at, entry) in programs.iter().enumerate() {
        count.started.store(at + 1, Relaxed);
        if let Some((line, _)) = entry.line.as_ref().filter(|_| tells) {
            print_line(&format!("$ hir-run {line}"));
        }
        let end = run(entry, at + 1 == programs.len())?;
        let (ControlFlow::Break(exit) | ControlFlow::Continue(exit)) = end;
        if tells {
            count.report_exit(exit, end.is_break());
        }
        if first == Exit::Success {
            first = exit;
        }
        if end.is_break() {
            break;
        }
    }
    Ok(first)
}
