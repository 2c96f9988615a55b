//! The mangler: edits programs (`mangle`), runs the tools on them with random passes and options, and judges how each
//! run ends. It is an ignored test, because it runs as long as it is asked to:
//!
//! ```text
//! HIR_MANGLE=100000 HIR_SEED=7 HIR_THREADS=16 HIR_TOOLS=target/release HIR_FINDINGS=/tmp/findings \
//!     cargo test --test suite -- --ignored mangler
//! ```
//!
//! It prints a table of verdicts. Each finding is kept as a program and a file `.command`; of findings with the same
//! message, three are kept. The same seed gives the same inputs, whatever the number of threads; `HIR_FIRST=50000` skips
//! those before, so that several machines can share a seed.
//!
//! | verdict | meaning |
//! | --- | --- |
//! | `panic`, `internal error`, `signal` | the reader panics; a tool ends with exit code 101 or by a signal |
//! | `time` | a tool computes for more than 10 s, or 70 s if it simulates: the budget of work allows 30 s of a whole core |
//! | `2 GB` | a tool needs more memory |
//! | `no end` | a tool does not end and does not compute |
//! | `cascade` | one edit gives more than five errors |
//! | `reading` | a text that was read is not read again as printed, or `--fix` changes its meaning |
//! | `fix twice` | `--fix` changes its own result |
//! | `printing` | the output of a pass list is not read without an error |
//! | `canonicalize` | it changes a simulated result |
//! | `differs` | two runs on different numbers of threads print different texts |
//! | `exit code` | a refused text has another exit code than 1 |

mod commands;
mod process;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Instant,
};

use commands::CommandLine;
use grammar::{diagnostic::has_errors, ir::Program};
use libtest_mimic::{Failed, Trial};
use process::Ended;

use crate::{
    ROOT, cascades,
    cases::ENVIRONMENT,
    files, invariants,
    mangle::{Corpus, EDITS, edited},
    rng::Rng,
    setting::number_or,
};

/// Default number of inputs.
const INPUTS: usize = 2_000;
/// Maximum number of texts of an input, and the number of commands on a text that is read.
const TEXTS: usize = 4;
const COMMANDS: usize = 3;
/// Maximum number of findings with the same message that are kept.
const KEPT: usize = 3;
/// Reports that replace the program on standard output, or whose text cannot be read again.
const NO_PROGRAM: [&str; 5] = ["--print-plan", "--print-hb", "--overlap", "--print=2025", "--fix=check"];

/// Returns the trial of this file. `cases` are programs to edit.
pub fn trial(cases: &[PathBuf]) -> Trial {
    let mut paths = cases.to_vec();
    paths.extend(files(&Path::new(ROOT).join("docs/examples"), "hir"));
    Trial::test("mangler", move || mangle_all(&paths)).with_ignored_flag(true)
}

/// What all threads share.
struct Mangler {
    programs: Vec<String>,
    corpus: Corpus,
    tools: PathBuf,
    findings: PathBuf,
    texts: AtomicUsize,
    processes: AtomicUsize,
    /// Numbers of findings by verdict and message.
    counts: Mutex<BTreeMap<(&'static str, String), usize>>,
}

/// A verdict on an input, with the command and its message.
struct Finding {
    verdict: &'static str,
    command: String,
    message: String,
}

fn mangle_all(paths: &[PathBuf]) -> Result<(), Failed> {
    let text = |name| std::env::var(name).ok();
    let (count, seed, first) =
        (number_or("HIR_MANGLE", INPUTS), number_or("HIR_SEED", 0), number_or("HIR_FIRST", 0));
    let threads = number_or("HIR_THREADS", thread::available_parallelism().map_or(1, usize::from));
    let built = Path::new(env!("CARGO_BIN_EXE_hir-opt")).parent().unwrap_or(Path::new(ROOT));
    let tools = text("HIR_TOOLS").map_or(built.to_owned(), |it| Path::new(ROOT).join(it));
    let findings = text("HIR_FINDINGS").map_or(std::env::temp_dir().join("hir-mangler"), PathBuf::from);
    fs::create_dir_all(&findings)?;
    let programs = paths.iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    let mangler = Mangler {
        programs,
        corpus: cascades::corpus(),
        tools,
        findings,
        texts: AtomicUsize::new(0),
        processes: AtomicUsize::new(0),
        counts: Mutex::default(),
    };
    let (start, next) = (Instant::now(), AtomicUsize::new(first));
    let work = |at: usize| -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("hir-mangler-{}-{at}", std::process::id()));
        fs::create_dir_all(&folder)?;
        loop {
            let input = next.fetch_add(1, Relaxed);
            if input >= first + count {
                return fs::remove_dir_all(&folder);
            }
            let mut rng = Rng((seed as u64) << 40 ^ (input as u64).wrapping_mul(0x9e37_79b9));
            mangler.input(&mut rng, &folder)?;
        }
    };
    thread::scope(|scope| -> io::Result<()> {
        let workers: Vec<_> = (0..threads.max(1)).map(|at| scope.spawn(move || work(at))).collect();
        workers.into_iter().try_for_each(|it| it.join().unwrap_or_else(|_| Err(io::Error::other("lost"))))
    })?;
    mangler.report(count, start)
}

impl Mangler {
    /// Makes one input, judges it and keeps what is found. Most edits give a text that is refused, so several are tried
    /// until the tools have something to do.
    fn input(&self, rng: &mut Rng, folder: &Path) -> io::Result<()> {
        let file = folder.join("input.hir");
        for _ in 0..TEXTS {
            let (text, edits, was_read) = self.text(rng);
            self.texts.fetch_add(1, Relaxed);
            let mut found = judge_reading(&text, edits, was_read);
            fs::write(&file, &text)?;
            let programs = if found.iter().any(|it| it.verdict == "panic") { None } else { read(&text) };
            let is_refused = programs.is_none();
            match programs {
                Some(programs) => {
                    for _ in 0..COMMANDS {
                        found.extend(self.judge_tools(&programs, &file, folder, rng)?);
                    }
                }
                // The library has refused the text; the tool is asked now and then.
                None if rng.chance(5) => found.extend(self.judge_refusal(&file, folder)?),
                None => (),
            }
            found.into_iter().try_for_each(|it| self.keep(&it, &text))?;
            if !is_refused {
                break;
            }
        }
        Ok(())
    }

    /// Runs a tool on a text that the library refuses.
    fn judge_refusal(&self, file: &Path, folder: &Path) -> io::Result<Option<Finding>> {
        let line = CommandLine { tool: "hir-opt", arguments: Vec::new() };
        let ended = self.run(&line, file, folder, None)?;
        let is_odd = ended.status.code() != Some(1);
        Ok(line.finding(&ended, ended.verdict().or(is_odd.then_some("exit code"))))
    }

    /// Returns a program with up to three edits, their number, and whether the program was read without an error.
    fn text(&self, rng: &mut Rng) -> (String, usize, bool) {
        let mut text = rng.choose_cloned(&self.programs);
        let was_read = cascades::errors(&text) == 0;
        let wanted = [0, 1, 1, 1, 2, 3][rng.below(6)];
        let mut made = 0;
        for _ in 0..wanted {
            let edit = rng.choose_cloned(&EDITS);
            if let Some(changed) = edited(&text, edit, &self.corpus, rng) {
                (text, made) = (changed, made + 1);
            }
        }
        (text, made, was_read)
    }

    /// Runs the tools on a text that is read without an error.
    fn judge_tools(
        &self,
        programs: &[Program],
        file: &Path,
        folder: &Path,
        rng: &mut Rng,
    ) -> io::Result<Vec<Finding>> {
        let mut found = Vec::new();
        match rng.below(10) {
            0..=4 => {
                let line = commands::hir_opt(rng);
                let ended = self.run(&line, file, folder, None)?;
                let has_program = !line.arguments.iter().any(|it| NO_PROGRAM.contains(&it.as_str()));
                let is_unread = || {
                    let printed = ended.stdout.contains("%HostIrContainer");
                    ended.status.success() && has_program && printed && read(&ended.stdout).is_none()
                };
                let verdict = ended.verdict().or_else(|| is_unread().then_some("printing"));
                found.extend(line.finding(&ended, verdict));
            }
            5 | 6 => {
                let mut line = commands::hir_run(rng);
                let outputs =
                    programs.first().map_or(Vec::new(), |it| Program::tensors_of(&it.outputs).collect());
                let names = outputs.iter().filter_map(|it| Some(programs.first()?.tensor_name(*it)));
                line.arguments.extend(names.take(4).map(|it| format!("--output={it}=-")));
                let ended = self.run(&line, file, folder, Some(1))?;
                found.extend(line.finding(&ended, ended.verdict()));
                if ended.verdict().is_none() {
                    let again = self.run(&line, file, folder, Some(3))?;
                    let differs = without_times(&again.stdout) != without_times(&ended.stdout)
                        || again.status.code() != ended.status.code();
                    found.extend(line.finding(&again, again.verdict().or(differs.then_some("differs"))));
                }
            }
            7 | 8 => {
                let mut line = commands::hir_run(rng);
                line.arguments.retain(|it| !it.starts_with("--passes") && !it.starts_with("--check"));
                line.arguments.push("--passes=canonicalize".to_owned());
                line.arguments.push(format!("--reference={}", file.display()));
                let ended = self.run(&line, file, folder, None)?;
                let is_wrong = ended.status.code() == Some(3);
                found.extend(line.finding(&ended, ended.verdict().or(is_wrong.then_some("canonicalize"))));
            }
            _ => {
                let line = commands::hir_reduce(rng);
                let ended = self.run(&line, file, folder, None)?;
                found.extend(line.finding(&ended, ended.verdict()));
            }
        }
        Ok(found)
    }

    fn run(
        &self,
        line: &CommandLine,
        file: &Path,
        folder: &Path,
        threads: Option<usize>,
    ) -> io::Result<Ended> {
        self.processes.fetch_add(1, Relaxed);
        let mut words = line.tool.split(' ');
        let mut command = Command::new(self.tools.join(words.next().unwrap_or_default()));
        command.args(words);
        command.arg(file).args(&line.arguments).current_dir(folder);
        command.env_clear().envs(ENVIRONMENT.iter().copied());
        // The mangler itself has a thread for each processor.
        command.env("RAYON_NUM_THREADS", threads.unwrap_or(2).to_string());
        process::run(&mut command, folder, line.seconds())
    }

    /// Counts a finding, and writes it unless there are enough of its kind.
    fn keep(&self, finding: &Finding, text: &str) -> io::Result<()> {
        let kind = (finding.verdict, without_numbers(&finding.message));
        let count = {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(kind).or_insert(0);
            *count += 1;
            *count
        };
        if count > KEPT {
            return Ok(());
        }
        let name = format!("{}-{:016x}", finding.verdict.replace(' ', "-"), cascades::hash(text));
        let path = self.findings.join(name);
        let program = path.with_extension("hir");
        let command = finding.command.replace("%s", &program.display().to_string());
        fs::write(&program, text)?;
        fs::write(path.with_extension("command"), format!("{command}\n{}\n", finding.message))
    }

    /// Prints the table; fails if something was found.
    fn report(&self, count: usize, start: Instant) -> Result<(), Failed> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verdicts: BTreeMap<&str, usize> = BTreeMap::new();
        counts.iter().for_each(|((verdict, _), number)| *verdicts.entry(verdict).or_default() += number);
        let (texts, processes) = (self.texts.load(Relaxed), self.processes.load(Relaxed));
        let mut text =
            format!("{count} inputs, {texts} texts, {processes} processes, {:.0?}\n", start.elapsed());
        verdicts.iter().for_each(|(verdict, number)| _ = writeln!(text, "{number:>6} {verdict}"));
        for ((verdict, message), number) in counts.iter() {
            let _ = writeln!(text, "{number:>6} {verdict}: {message}");
        }
        if counts.is_empty() {
            let _ = write!(io::stderr(), "{text}");
            return Ok(());
        }
        Err(format!("{text}{}", self.findings.display()).into())
    }
}

impl CommandLine {
    /// Returns a finding with this command if there is a verdict.
    fn finding(&self, ended: &Ended, verdict: Option<&'static str>) -> Option<Finding> {
        let arguments: Vec<String> = self.arguments.iter().map(|it| format!("'{it}'")).collect();
        let lines = || ended.stderr.lines().chain(ended.stdout.lines());
        let marks = ["panicked at", "rror", "[FAILED]"];
        let line = marks.iter().find_map(|mark| lines().find(|it| it.contains(mark)));
        let line = line.or_else(|| ended.stderr.lines().last()).unwrap_or_default();
        let message = format!("{} {}", self.tool, line.chars().take(160).collect::<String>());
        let command = format!("{} %s {}", self.tool, arguments.join(" "));
        verdict.map(|verdict| Finding { verdict, command, message })
    }
}

/// Returns the programs of a text without errors.
fn read(text: &str) -> Option<Vec<Program>> {
    let (programs, diagnostics) = grammar::read(text);
    let is_sound = !has_errors(&diagnostics) && programs.iter().all(|it| !has_errors(&grammar::verify(it)));
    is_sound.then_some(programs)
}

/// Judges what the library does with a text.
fn judge_reading(text: &str, edits: usize, was_read: bool) -> Vec<Finding> {
    let finding = |verdict, command: &str, message: String| Finding {
        verdict,
        command: format!("hir-opt %s{command}"),
        message,
    };
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let mut found = Vec::new();
        if let Err(fault) = invariants::read(text) {
            found.push(finding("reading", " --fix", fault.lines().next().unwrap_or_default().to_owned()));
        }
        let errors = cascades::errors(text);
        if edits == 1 && was_read && errors > cascades::LIMIT {
            found.push(finding("cascade", " --error-format=json", format!("{errors} errors")));
        }
        let fixed = grammar::fix(text);
        if errors == 0 && grammar::fix(&fixed) != fixed {
            found.push(finding("fix twice", " --fix", String::new()));
        }
        found
    }));
    judged.unwrap_or_else(|_| vec![finding("panic", "", "the reader panics".to_owned())])
}

/// Returns a text with `#` for each number.
fn without_numbers(text: &str) -> String {
    let mut shape = String::new();
    for letter in text.chars() {
        if !letter.is_ascii_digit() {
            shape.push(letter);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

/// Returns the lines of a report that have no times.
fn without_times(text: &str) -> Vec<&str> {
    let has_time = |line: &str| [" s", " ms", " us", " µs"].iter().any(|it| line.trim_end().ends_with(it));
    text.lines().filter(|it| !has_time(it) && !it.contains(" s,") && !it.contains(" ms")).collect()
}
