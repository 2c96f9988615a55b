//! Runs layers whose sizes are divisible by nothing but the number of ranks through every applicable
//! pipeline, on emulated GPUs. There is one job for each number of ranks, and every result is compared with
//! that of the simulator.

use std::{
    fs,
    process::{Command, Output},
};

use libtest_mimic::{Failed, Trial};

use super::{ROOT, emulator};
use crate::timeout::RunWithTimeout;

/// A kind of program that `benches/gpu/programs.sh` prints.
struct Layer {
    kind: &'static str,
    /// Its sizes for a number of ranks.
    sizes: fn(usize) -> Vec<usize>,
    /// The pipelines, with the flags that they need.
    pipelines: &'static [&'static str],
}

const LAYERS: [Layer; 14] = [
    Layer {
        kind: "allgather-linear",
        sizes: |d| vec![7 * d, 11, 13],
        pipelines: &[
            "@lower",
            "@overlap{} --set numberOfStreams=2",
            "@overlap-allgather-linear --set numberOfStreams=3",
            "@overlap-allgather-linear-put --set numberOfStreams=2",
            "@overlap-allgather-linear-broadcast --set numberOfStreams=1",
            "@overlap-allgather-linear-permute",
        ],
    },
    Layer {
        kind: "linear-allreduce",
        sizes: |d| vec![15, 7, 3 * d, 3],
        pipelines: &["@lower", "@overlap{} --set numberOfStreams=3", "@overlap-linear-allreduce"],
    },
    Layer {
        kind: "matmul-reduce-scatter",
        sizes: |d| vec![5 * d, 9, 3 * d],
        pipelines: &[
            "@lower",
            "@overlap{} --set numberOfStreams=3",
            "@overlap-matmul-reduce-scatter --set numberOfStreams=2",
        ],
    },
    Layer {
        kind: "column-parallel",
        sizes: |d| vec![7 * d, 5 * d, 13, 3],
        pipelines: &["@lower", "@lower,select-algorithms"],
    },
    Layer {
        kind: "row-parallel",
        sizes: |d| vec![15, 7, 3 * d, 3],
        pipelines: &["@lower", "@lower,select-algorithms"],
    },
    Layer {
        kind: "mlp",
        sizes: |d| vec![5 * d, 9, 3 * d],
        pipelines: &["@lower", "@overlap{} --set numberOfStreams=2"],
    },
    // The sequences are chunks for attention only if the number of ranks divides them.
    Layer {
        kind: "block",
        sizes: |d| vec![6 * d, 6 * d, 5 * d, 2 * d, if d == 5 { 3 } else { d }],
        pipelines: &["@lower,select-algorithms", "@overlap{} --set numberOfStreams=2"],
    },
    Layer { kind: "matmul", sizes: |_| vec![7, 11, 13, 3], pipelines: &["@lower"] },
    Layer { kind: "local-mlp", sizes: |_| vec![7, 11, 13], pipelines: &["@lower"] },
    Layer { kind: "local-block", sizes: |d| vec![6 * d, 6 * d, 5 * d, 2 * d, d], pipelines: &["@lower"] },
    Layer {
        kind: "pipeline-stages",
        sizes: |_| vec![6, 5, 7],
        pipelines: &["@lower", "@overlap-pipeline-stages"],
    },
    Layer { kind: "allgather", sizes: |d| vec![17 * d], pipelines: &["@default"] },
    Layer { kind: "allreduce", sizes: |d| vec![17 * d], pipelines: &["@default"] },
    Layer { kind: "reduce-scatter", sizes: |d| vec![17 * d], pipelines: &["@default"] },
];

pub fn trials() -> Vec<Trial> {
    let trial = |ranks: usize| {
        Trial::test(format!("layers::on_{ranks}_ranks"), move || check(ranks))
            .with_ignored_flag(emulator::is_missing())
    };
    let numbers = Trial::test("layers::arguments_that_are_no_numbers_are_refused", refuses_other_arguments);
    [2, 3, 5].map(trial).into_iter().chain([numbers]).collect()
}

/// Runs `benches/gpu/programs.sh`.
fn print_program(arguments: &[&str]) -> Result<Output, Failed> {
    let mut command = Command::new("bash");
    command.current_dir(ROOT).arg("benches/gpu/programs.sh").args(arguments);
    Ok(command.output_with_timeout()?)
}

fn refuses_other_arguments() -> Result<(), Failed> {
    let wrong = [
        ("linear-allreduce 2 8 8 8 -1", "`-1` is not a number from 0 on"),
        ("linear-allreduce 2 8 8 8 00", "`00` is not a number from 0 on"),
        ("linear-allreduce 2 8 8 8 x", "`x` is not a number from 0 on"),
        ("matmul 0 8 8 8", "`0` is not a number from 1 on"),
        ("mlp 2 8 8.0 8", "`8.0` is not a number from 1 on"),
        ("allreduce 2 64 NCCL - 0", "`0` is not a number from 1 on"),
        ("allreduce 2 64 NCCL - 1 1 99999999999999999999", "is not a number from 0 on"),
    ];
    for (arguments, message) in wrong {
        let output = print_program(&arguments.split(' ').collect::<Vec<_>>())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let is_refused = output.status.code() == Some(2) && output.stdout.is_empty();
        if !is_refused || !errors.starts_with("programs.sh: `") || !errors.contains(message) {
            return Err(format!("{arguments}: {}\n{errors}", output.status).into());
        }
    }
    for arguments in ["linear-allreduce 2 8 8 8 0", "allreduce 2 64 NCCL - 3 2 0"] {
        let output = print_program(&arguments.split(' ').collect::<Vec<_>>())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
    }
    Ok(())
}

fn check(ranks: usize) -> Result<(), Failed> {
    let folder = format!("{}/layers-{ranks}", env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&folder)?;
    let mut lines = Vec::new();
    for Layer { kind, sizes, pipelines } in LAYERS {
        let sizes: Vec<String> = [ranks].into_iter().chain(sizes(ranks)).map(|it| it.to_string()).collect();
        let arguments: Vec<&str> = [kind].into_iter().chain(sizes.iter().map(String::as_str)).collect();
        let output = print_program(&arguments)?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let path = format!("{folder}/{kind}.hir");
        fs::write(&path, output.stdout)?;
        for pipeline in pipelines {
            for issue in ["--step-by-step", ""] {
                lines.push(format!("{path} --passes {pipeline} {issue}"));
            }
        }
    }
    let batch = format!("{folder}/batch.txt");
    fs::write(&batch, lines.join("\n"))?;
    let output = Command::new(env!("CARGO_BIN_EXE_hir-run"))
        .current_dir(ROOT)
        .args(["--batch", &batch, "--ranks", &ranks.to_string(), "--device=cuda", "--expect=sim"])
        .args(["-w", "1", "-n", "2", "--stress", "3"])
        .env_clear()
        .envs(emulator::environment()?)
        .env("HIR_EMULATED_DELAY", "30")
        .output_with_timeout()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let right =
        text.lines().filter(|it| it.starts_with("[SUCCESS]") && it.contains("equal to the simulator"));
    if output.status.success() && right.count() == lines.len() {
        Ok(())
    } else {
        Err(format!("{}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
    }
}
