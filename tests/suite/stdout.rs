//! Checks that a tool that ends with 0 has written all requested output, in the order in which its ranks
//! wrote it.

use std::{fs::File, io::Read, path::Path, process::Command, thread};

use hir_launch::spawn::{self, Job};
use hir_process::exit::Exit;
use libtest_mimic::{Failed, Trial};

use super::{ROOT, emulator};
use crate::timeout::RunWithTimeout;

/// A device that refuses every byte.
const FULL: &str = "/dev/full";

pub fn trials() -> Vec<Trial> {
    let is_missing = !Path::new(FULL).exists();
    vec![
        Trial::test("stdout::a_full_device_is_no_success", a_full_device_is_no_success)
            .with_ignored_flag(is_missing),
        Trial::test("stdout::what_ranks_print_arrives", what_ranks_print_arrives)
            .with_ignored_flag(is_missing || emulator::is_missing()),
        Trial::test("stdout::a_lost_report_is_no_success", a_lost_report_is_no_success)
            .with_ignored_flag(is_missing),
        Trial::test("stdout::a_closed_pipe_is_no_failure", a_closed_pipe_is_no_failure),
        Trial::test("stdout::lines_of_a_rank_stay_in_order", lines_of_a_rank_stay_in_order),
    ]
}

fn is_refused(mut command: Command) -> Result<(), Failed> {
    let full = File::options().write(true).open(FULL)?;
    let output = command.current_dir(ROOT).output_into_with_timeout(full.into())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(6) && said.contains("cannot write standard output") {
        Ok(())
    } else {
        Err(format!("{command:?} ends with {:?}: {said}", output.status.code()).into())
    }
}

fn a_closed_pipe_is_no_failure() -> Result<(), Failed> {
    const PROGRAM: &str = "docs/examples/mlp.hir";
    for line in [&["opt", PROGRAM][..], &["certify", "--original", PROGRAM, PROGRAM], &["opt", "--help"]] {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir"));
        let status = command.args(line).current_dir(ROOT).stdout(writer).status()?;
        if status.code() != Some(0) {
            return Err(format!("{line:?} ends with {status}").into());
        }
    }
    Ok(())
}

/// The process that starts the ranks prints their output.
fn what_ranks_print_arrives() -> Result<(), Failed> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.args(["tests/cases/launch/loop.hir", "--device=cuda", "--ranks", "4", "-n", "1"]);
    command.envs(emulator::environment().unwrap_or_default());
    is_refused(command)
}

fn lines_of_a_rank_stay_in_order() -> Result<(), Failed> {
    let (mut out, end) = std::io::pipe()?;
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done";
    let job = Job { program: "sh".into(), arguments: vec!["-c".into(), script.into()], ranks: 2 };
    let reader = thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let exit = spawn::run(&job, end, None)?;
    let text = reader.join().map_err(|_| "lost")??;
    let written: Vec<String> = (1..10).flat_map(|it| [format!("o{it}"), format!("e{it}")]).collect();
    let own =
        |prefix: &'static str| text.lines().filter_map(move |it| it.strip_prefix(prefix)).collect::<Vec<_>>();
    let first: Vec<&str> = text.lines().filter(|it| !it.starts_with('[')).collect();
    if exit == Exit::Success && first == written && own("[1] ") == written {
        Ok(())
    } else {
        Err(format!("{exit:?} {text}").into())
    }
}

fn a_full_device_is_no_success() -> Result<(), Failed> {
    let (run, opt) = (env!("CARGO_BIN_EXE_hir-run"), env!("CARGO_BIN_EXE_hir-opt"));
    let program = "samples/allgather.hir";
    for (tool, arguments) in [
        (run, &[program, "--device=sim"][..]),
        (run, &[program, "--device=sim", "--output", "T1=-"]),
        (run, &[program, "--memory"]),
        (run, &["--help"]),
        (run, &["--version"]),
        (opt, &["--help"]),
        (opt, &["--list-passes"]),
        (opt, &["--explain", "E0401"]),
        (opt, &[program, "--print-plan", "--rank", "0"]),
        (opt, &[program, "--dump-pass-pipeline", "--passes", "unroll"]),
        (env!("CARGO_BIN_EXE_hir"), &["reduce", "--help"]),
        (opt, &[program]),
    ] {
        let mut command = Command::new(tool);
        command.args(arguments);
        is_refused(command)?;
    }
    Ok(())
}

/// Standard error has the diagnostics, the log of `sarif`, and the programs between passes.
fn a_lost_report_is_no_success() -> Result<(), Failed> {
    let (run, opt) = (env!("CARGO_BIN_EXE_hir-run"), env!("CARGO_BIN_EXE_hir-opt"));
    let (program, race) = ("samples/allgather.hir", "tests/cases/check/race-streams.hir");
    let sarif = "--error-format=sarif";
    for (tool, arguments, expected) in [
        (opt, &[program, sarif][..], 6),
        (opt, &[race, "--check", sarif], 6),
        (run, &[race, sarif], 6),
        (run, &[program, "--device=sim", sarif], 6),
        (env!("CARGO_BIN_EXE_hir"), &["reduce", race, "--oracle", "race", sarif], 6),
        (opt, &[program, "--check"], 6),
        (opt, &[program, "--passes", "unroll", "--print-ir-after-all"], 6),
        (opt, &[program, "--passes", "unroll", "--statistics"], 6),
        // Without the text of its diagnostics, a verdict is still one.
        (opt, &[race, "--check"], 7),
        (opt, &["--no-such-option", sarif], 2),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec \"$0\" \"$@\" 2>{FULL}"), tool]).args(arguments);
        let output = command.current_dir(ROOT).output_with_timeout()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let has_said = tool != run || said.trim_end().ends_with("(os error 28)");
        if output.status.code() != Some(expected) || !has_said {
            return Err(format!("{command:?} ends with {:?}: {said}", output.status.code()).into());
        }
    }
    Ok(())
}
