//! Attentions that cuDNN computes on emulated GPUs, compared with the simulator. Each call of cuDNN may fail: while plans are made, hir's
//! kernels take the attention and a note says why; while they run, the verdict is that of a failed call.

use std::{
    path::Path,
    process::{Command, Output},
};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, emulator, failing_calls::functions_of};
use crate::timeout::RunWithTimeout;

const PROGRAMS: [&str; 3] = [
    "tests/cases/cuda/attention-of-a-library.hir",
    "tests/cases/cuda/attention-gradient-of-a-library.hir",
    "tests/cases/ops/attention-masked-row.hir",
];

/// Attentions that cuDNN does not compute.
const REFUSED: &str = "tests/cases/cuda/attention-of-no-library.hir";

/// What a run prints if cuDNN has computed an attention.
const TITLE: &str = "# cuDNN 9.19.0 (";
/// What it prints if hir's kernels have, because cuDNN failed.
const NOTE: &str = "no library computes the attention: ";

pub fn trials() -> Vec<Trial> {
    let trials = [
        Trial::test("attention_library::equal_the_simulator", equal_the_simulator),
        Trial::test("attention_library::calls_may_fail", calls_may_fail),
        Trial::test("attention_library::other_versions", other_versions),
        Trial::test("attention_library::others_are_refused", others_are_refused),
    ];
    trials.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing())).collect()
}

/// Runs a program step by step and as a graph.
fn run(program: &str, environment: &[(&str, &str)]) -> Result<Output, Failed> {
    let mut variables = emulator::environment()?;
    let library = variables.iter().find(|it| it.0 == "HIR_CUDA").map(|it| it.1.clone()).unwrap_or_default();
    variables.push(("HIR_CUDNN".to_owned(), library));
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command
        .arg(program)
        .args(["--inputs", "random", "--device=cuda", "--expect=sim", "-w", "0", "-n", "1", "-G"])
        .current_dir(ROOT)
        .envs(variables)
        .envs(environment.iter().copied());
    Ok(command.output_with_timeout()?)
}

fn equal_the_simulator() -> Result<(), Failed> {
    PROGRAMS.iter().try_for_each(|program| {
        let output = run(program, &[])?;
        let text = String::from_utf8_lossy(&output.stdout);
        let is_right = output.status.success() && text.contains("equal to the simulator");
        if is_right && text.contains(TITLE) && !text.contains(NOTE) {
            Ok(())
        } else {
            Err(format!("{program}: {output:?}").into())
        }
    })
}

fn calls_may_fail() -> Result<(), Failed> {
    let (mut noted, mut failed) = (0, 0);
    for function in functions_of(&Path::new(ROOT).join("tests/gpu/emulator/cudnn.cpp"))? {
        let output = run(PROGRAMS[0], &[("HIR_EMULATED_FAIL", &function), ("HIR_EMULATED_FAIL_RANK", "0")])?;
        let text = String::from_utf8_lossy(&output.stdout);
        match output.status.code() {
            Some(0) if text.contains(NOTE) && text.contains(&function) => noted += 1,
            // What cannot be freed is lost.
            Some(0) if function == "cudnnBackendDestroyDescriptor" => {}
            Some(5 | 6) if text.contains(&function) => failed += 1,
            code => return Err(format!("{function}: {code:?}\n{text}").into()),
        }
    }
    if noted >= 4 && failed >= 3 { Ok(()) } else { Err(format!("{noted} noted, {failed} failed").into()) }
}

fn other_versions() -> Result<(), Failed> {
    // (the version, the program, the exit code, words of the note or the verdict)
    let cases = [
        ("90500", PROGRAMS[0], 6, "cuDNN 9.5.0 ("),
        ("91000", PROGRAMS[0], 6, "neither 9.10.0 nor 9.10.1"),
        ("91400", REFUSED, 0, "a multiple of 128 keys"),
    ];
    cases.iter().try_for_each(|(version, program, code, words)| {
        let output = run(program, &[("HIR_EMULATED_CUDNN", version)])?;
        let text = String::from_utf8_lossy(&output.stdout);
        if output.status.code() == Some(*code) && text.contains(words) {
            Ok(())
        } else {
            Err(format!("version {version}: {output:?}").into())
        }
    })
}

/// What cuDNN does not compute, hir's kernels do.
fn others_are_refused() -> Result<(), Failed> {
    let output = run(REFUSED, &[])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words =
        ["its scale -0.5 is not a positive number", "a multiple of 128 keys", "equal to the simulator"];
    if output.status.success() && words.iter().all(|it| text.contains(it)) {
        Ok(())
    } else {
        Err(format!("{output:?}").into())
    }
}
