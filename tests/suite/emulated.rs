//! Compares the GPU executor with the simulator: every program of the cases and samples that succeeds there
//! runs step by step and as a graph, on one process per rank. A case with a line `// REFUSED ON GPUS: words`
//! must be refused instead, with these words. Every run of the suite tests the samples and the cases of `tests/cases/cuda`,
//! and a part of the others (`part`), and a quarter of those that have several ranks or streams in another way (`delayed`).
//!
//! The GPUs and NVIDIA's libraries are emulated (`tests/gpu/emulator`), so this needs a C++ compiler and no
//! GPU. Without a compiler the trials are ignored; with `HIR_REQUIRE_CXX=1` they fail. Only
//! `tests/gpu/run.sh` tests what real GPUs are needed for: speed, and the rules of NVIDIA's libraries.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use hir_process::exit::Exit;
use libtest_mimic::{Failed, Trial};

use super::{
    ROOT,
    cases::{ENVIRONMENT, split},
    emulator, shown,
};
use crate::{is_sample, part, setting, timeout::RunWithTimeout};

/// The files that have a trial. The list shows when a file loses its trial because it no longer succeeds.
const TRIAL_LIST: &str = "tests/suite/emulated.txt";

/// The files that all parts contain, besides the samples.
const ALWAYS: &str = "tests/cases/cuda/";

/// Products of matrices of a million elements.
const LARGE: [&str; 3] = [
    "tests/cases/published/ring-0044.hir",
    "tests/cases/published/pairs-0039.hir",
    "tests/cases/unbound/ring-cuda-ipc-linear.hir",
];

/// Returns a trial for each file with a program that runs.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut names = Vec::new();
    for (number, (case, runs, refusal)) in runs(cases).into_iter().enumerate() {
        let name = shown(&case);
        let is_left_out = !is_sample(&case) && !name.starts_with(ALWAYS) && !part::includes(number);
        names.push(name.clone());
        let check = move || match &refusal {
            None => runs.iter().try_for_each(Run::check),
            Some(words) => runs.iter().try_for_each(|it| it.check_refused(words)),
        };
        let trial = Trial::test(format!("emulated {name}"), check);
        trials.push(trial.with_ignored_flag(is_left_out || emulator::is_missing()));
    }
    trials.push(Trial::test("emulated_programs_are_those_of_the_list", move || are_listed(&names)));
    trials
}

/// Returns the files with programs that run, those programs, and the message with which GPUs refuse them, if
/// they do.
pub fn runs(cases: &[PathBuf]) -> Vec<(PathBuf, BTreeSet<Run>, Option<String>)> {
    let mut found = Vec::new();
    for case in cases {
        let snapshot = fs::read_to_string(format!("{}.snap", case.display())).unwrap_or_default();
        let all: Vec<(Run, bool)> =
            snapshot.split("\n$ ").filter_map(|it| Run::from_transcript(it, case)).collect();
        // A program that fails under some schedule may fail here.
        let (right, wrong): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, succeeds)| *succeeds);
        let wrong: BTreeSet<Run> = wrong.into_iter().map(|it| it.0).collect();
        let runs: BTreeSet<Run> = right.into_iter().map(|it| it.0).filter(|it| !wrong.contains(it)).collect();
        if runs.is_empty() {
            continue;
        }
        let text = fs::read_to_string(case).unwrap_or_default();
        let refusal = text.lines().find_map(|it| it.strip_prefix("// REFUSED ON GPUS: ")).map(str::to_owned);
        found.push((case.clone(), runs, refusal));
    }
    found
}

fn are_listed(names: &[String]) -> Result<(), Failed> {
    let path = Path::new(ROOT).join(TRIAL_LIST);
    let found: String = names.iter().map(|it| format!("{it}\n")).collect();
    if setting::updates() {
        return Ok(fs::write(path, found)?);
    }
    let listed = fs::read_to_string(path)?;
    let differ = |one: &str, other: &str| {
        one.lines().filter(|it| other.lines().all(|line| line != *it)).collect::<Vec<_>>().join(", ")
    };
    if listed == found {
        Ok(())
    } else {
        Err(format!(
            "{TRIAL_LIST} is out of date: no longer running: {}; not listed: {}: `INSTA_UPDATE=always` writes it",
            differ(&listed, &found),
            differ(&found, &listed)
        )
        .into())
    }
}

/// Returns the passes that a refusal of resharding operators names.
pub fn suggested_passes(text: &str) -> Option<&str> {
    let text = text.split("a resharding operator runs on the simulator only").nth(1)?;
    text.split("`--passes ").nth(1)?.split('`').next()
}

/// Returns true if a run is equal to that of the simulator, or has no result to compare.
pub fn matches_simulator(text: &str) -> bool {
    ["equal to the simulator", "[SUCCESS] ran, complete"].iter().any(|it| text.contains(it))
}

/// A program on a number of ranks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    pub ranks: usize,
    pub arguments: Vec<String>,
}

/// Arguments with a value that select the simulator's schedule, the reference, and the output.
const DROPPED: [&str; 10] = [
    "--schedule",
    "--reference",
    "--device",
    "--ranks",
    "--output",
    "--trace",
    "--json",
    "--expect",
    "-n",
    "-J",
];

/// Programs whose values no comparison with other orders can judge.
const UNJUDGED: [&str; 1] = ["tests/cases/cuda/order-decides-overflow.hir"];

impl Run {
    /// Returns the run of a snapshot's command and whether it succeeded, from the command and its output.
    fn from_transcript(transcript: &str, case: &Path) -> Option<(Self, bool)> {
        let (command, printed) = transcript.split_once('\n')?;
        let command = command.strip_prefix("$ ").unwrap_or(command).strip_prefix("hir-run ")?;
        let ranks = printed.split(" simulated rank").next()?.rsplit(' ').next()?.parse().ok()?;
        let mut arguments = Vec::new();
        let folder = shown(case.parent()?);
        let mut words = split(command).into_iter();
        while let Some(word) = words.next() {
            let name = word.split('=').next().unwrap_or(&word);
            if name == "-G" {
                continue;
            }
            if DROPPED.contains(&name) {
                let value = if word.contains('=') { Some(word.clone()) } else { words.next() };
                // An output that is compared rank by rank stays so.
                let Some(value) = value.filter(|it| it.contains("@local=")) else { continue };
                if value.contains("%t") {
                    return None;
                }
                arguments.extend((value != word).then(|| word.clone()));
                arguments.push(value.replace("%S", &folder).replace("%s", &shown(case)));
                continue;
            }
            // The cases themselves test files of another run, one program per rank, and commands that run
            // nothing.
            if word.contains("%t") || ["--program", "--memory"].contains(&name) {
                return None;
            }
            arguments.push(word.replace("%S", &folder).replace("%s", &shown(case)));
        }
        Some((Self { ranks, arguments }, printed.starts_with("exit: 0\n") && printed.contains("[SUCCESS]")))
    }

    /// Runs the program. Resharding operators are lowered first, with the passes that the refusal names.
    fn check(&self) -> Result<(), Failed> {
        let (done, text) = self.run(None)?;
        let (done, text) = match suggested_passes(&text) {
            Some(passes) => self.run(Some(passes))?,
            None => (done, text),
        };
        if done && (matches_simulator(&text) || self.is_unjudged() && text.contains("[UNDECIDED]")) {
            Ok(())
        } else {
            Err(format!("{} ranks, {:?}\n{text}", self.ranks, self.arguments).into())
        }
    }

    fn is_unjudged(&self) -> bool {
        self.arguments.iter().any(|it| UNJUDGED.contains(&it.as_str()))
    }

    /// Returns whether each run takes many seconds, so that few are made.
    pub fn is_large(&self) -> bool {
        self.arguments.iter().any(|it| LARGE.contains(&it.as_str()))
    }

    /// Runs the program, which all ranks must refuse with these words, so that no rank waits for another.
    fn check_refused(&self, words: &str) -> Result<(), Failed> {
        let (done, text) = self.run(None)?;
        let message = format!(": {words}");
        if !done && text.lines().any(|it| it.ends_with(&message)) && !text.contains("is silent") {
            Ok(())
        } else {
            Err(format!("{} ranks, {:?}, not refused\n{text}", self.ranks, self.arguments).into())
        }
    }

    /// Returns the run with `passes` after its own passes.
    pub fn with_passes(&self, passes: &str) -> Self {
        let mut run = self.clone();
        match run.arguments.iter().position(|it| it == "--passes") {
            Some(at) => run.arguments[at + 1] += &format!(",{passes}"),
            None => run.arguments.extend(["--passes".to_owned(), passes.to_owned()]),
        }
        run
    }

    /// Runs the program on emulated GPUs: once step by step for the verdict, then as a captured graph, with
    /// random stream delays too. Returns whether it succeeds, and its output and exit status. `passes` follow
    /// those of the arguments.
    fn run(&self, passes: Option<&str>) -> Result<(bool, String), Failed> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
        let run = passes.map_or(self.clone(), |it| self.with_passes(it));
        let runs = if self.is_large() { "-w 0 -n 1" } else { "-w 1 -n 2 --stress 3" };
        command
            .args(&run.arguments)
            .args("--device=cuda --check=off --expect=sim".split(' '))
            .args(runs.split(' '));
        if !run.arguments.iter().any(|it| it == "--step-by-step") {
            command.arg("-G");
        }
        // This adds hundreds of runs, so only samples do it.
        if self.arguments.iter().any(|it| it.starts_with("samples/")) {
            command.arg("--profile-host");
        }
        if self.ranks > 1 {
            command.arg("--ranks").arg(self.ranks.to_string());
        }
        command
            .current_dir(ROOT)
            .env_clear()
            .envs(ENVIRONMENT.iter().copied())
            .env_remove("CUDA_VISIBLE_DEVICES");
        command.envs(emulator::environment()?);
        let output = command.output_with_timeout().map_err(|fault| fault.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let expected = if self.is_unjudged() { Exit::Undecided } else { Exit::Success };
        let is_expected = output.status.code() == Some(expected as i32);
        Ok((is_expected, format!("{text}{}", output.status)))
    }
}
