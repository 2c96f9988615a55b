//! Runs the emulated programs that have several ranks or streams once more, with random delays of all work on
//! the emulated GPUs. Streams and ranks then proceed in other orders, and the results must still be those of
//! the simulator. `HIR_EMULATED_DELAY=5000` sets longer delays.
//!
//! One program of each file runs, the one with the most passes; a run of the suite makes a quarter of the files (`part`). Programs with the same number of ranks share
//! a job, as with `hir-run --batch`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use libtest_mimic::{Failed, Trial};

use super::{
    ROOT,
    cases::ENVIRONMENT,
    emulated::{self, Run},
    emulator,
};
use crate::{part, timeout::RunWithTimeout};

/// Default maximum delay of a piece of work, in microseconds: longer than most pieces of work take.
const DELAY: &str = "300";
/// A run makes one in so many files.
const SAMPLE: usize = 4;

/// Returns a trial for each number of ranks.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let mut by_ranks: BTreeMap<usize, Vec<Run>> = BTreeMap::new();
    for (number, (case, runs, refusal)) in emulated::runs(cases).into_iter().enumerate() {
        if !part::includes_one_in(SAMPLE, number) {
            continue;
        }
        let text = fs::read_to_string(case).unwrap_or_default();
        let fits = |it: &Run| {
            let any = |of: &dyn Fn(&str) -> bool| it.arguments.iter().any(|it| of(it));
            let is_parallel = it.ranks > 1 || text.contains("Stream") || any(&|it| it.contains("stream"));
            // The time-out would apply to the job of all programs, so programs with `-T` are left out.
            refusal.is_none() && is_parallel && !it.is_large() && !any(&|it| it.starts_with("-T"))
        };
        let passes = |it: &Run| it.arguments.iter().map(String::len).sum::<usize>();
        let run = runs.into_iter().filter(fits).max_by_key(passes);
        run.into_iter().for_each(|it| by_ranks.entry(it.ranks).or_default().push(it));
    }
    let trial = |(ranks, runs): (usize, Vec<Run>)| {
        Trial::test(format!("delayed::on_{ranks}_ranks"), move || check_runs(ranks, &runs))
            .with_ignored_flag(emulator::is_missing())
    };
    by_ranks.into_iter().map(trial).collect()
}

/// Runs programs. Resharding operators are lowered in a second job, with the passes that the refusals name.
fn check_runs(ranks: usize, runs: &[Run]) -> Result<(), Failed> {
    let (results, errors) = run_job(ranks, runs)?;
    // The refusals, in the order of the job.
    let mut refusals = errors.lines().filter_map(emulated::suggested_passes);
    let (mut lowered, mut wrong) = (Vec::new(), Vec::new());
    for (run, text) in runs.iter().zip(results) {
        match text.ends_with("# exit code 1").then(|| refusals.next()).flatten() {
            Some(passes) => lowered.push(run.with_passes(passes)),
            None => wrong.extend(difference(run, &text)),
        }
    }
    if !lowered.is_empty() {
        let (results, _) = run_job(ranks, &lowered)?;
        wrong.extend(lowered.iter().zip(results).filter_map(|(run, text)| difference(run, &text)));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{} of {} programs:\n{}", wrong.len(), runs.len(), wrong.join("\n")).into())
    }
}

fn difference(run: &Run, text: &str) -> Option<String> {
    let done = text.ends_with("# exit code 0") && emulated::matches_simulator(text);
    (!done).then(|| format!("{} ranks, {:?}\n{text}", run.ranks, run.arguments))
}

/// Returns what the job prints for each program, up to its exit code, and its standard error.
fn run_job(ranks: usize, runs: &[Run]) -> Result<(Vec<String>, String), Failed> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let batch = folder.path().join("programs.txt");
    let line = |it: &Run| shlex::try_join(it.arguments.iter().map(String::as_str));
    let lines: Vec<String> = runs.iter().map(line).collect::<Result<_, _>>()?;
    fs::write(&batch, lines.join("\n"))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.arg("--batch").arg(&batch).args(["--device=cuda", "--check=off", "--expect=sim", "-n", "1"]);
    if ranks > 1 {
        command.arg("--ranks").arg(ranks.to_string());
    }
    command.current_dir(Path::new(ROOT)).env_clear().envs(ENVIRONMENT.iter().copied());
    command.env_remove("CUDA_VISIBLE_DEVICES").env("HIR_EMULATED_DELAY", DELAY);
    let output = command.envs(emulator::environment()?).output_with_timeout()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut results = Vec::new();
    let mut program = String::new();
    for line in text.lines() {
        program += line;
        if line.starts_with("# exit code ") {
            results.push(std::mem::take(&mut program));
        } else {
            program.push('\n');
        }
    }
    if results.len() == runs.len() {
        Ok((results, errors))
    } else {
        let (ended, last) = (results.len(), results.last().map_or("", String::as_str));
        let arguments = runs.get(ended.saturating_sub(1)).map(|it| &it.arguments);
        let message = format!(
            "{ended} of {} programs ended, {arguments:?} with\n{last}\n{program}\n{errors}",
            runs.len()
        );
        Err(message.into())
    }
}
