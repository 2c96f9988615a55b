//! Tests of jobs that run many programs on emulated GPUs: what a program inherits from the programs before
//! it, and what ends a job.

use std::{fs, process::Command, time::Duration};

use libtest_mimic::{Failed, Trial};

use crate::timeout::RunWithTimeout;
use crate::{
    ROOT, emulator,
    ranks::{LIMIT, end, expect, port, rank},
};

pub fn trials() -> Vec<Trial> {
    let trials = vec![
        Trial::test("batch::programs_share_a_job", programs_share_a_job),
        Trial::test("batch::a_plan_is_kept_for_the_next_program", a_plan_is_kept_for_the_next_program),
        Trial::test("batch::a_deadlock_in_a_batch_does_not_end_it", a_deadlock_in_a_batch_does_not_end_it),
        Trial::test("batch::a_plan_is_kept_by_all_or_none", a_plan_is_kept_by_all_or_none),
        Trial::test("batch::a_gpu_that_fails_ends_its_job", a_gpu_that_fails_ends_its_job),
    ];
    trials.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing())).collect()
}

/// Programs with several backends and issue modes run one after the other; all ranks fail or refuse some of
/// them. Memory is reused, released when another program needs more, and refused to a program that needs more
/// than there is.
fn programs_share_a_job() -> Result<(), Failed> {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let large = |name: &str, count: usize| {
        let text = format!(
            "%HostIrContainer {{ (T0_g_float[iS0{{4}}] (DeviceMesh{{0 1 2 3}})) -> (T1_g_float[iS1{{4}}] (DeviceMesh{{0 1 2 3}})) :\n  \
             T2_g_float[iS2{{{count}}}] (DeviceMesh{{0 1 2 3}}) = ALLOCATE(mem_type=global, zero_init=false)\n  \
             T1_g_float[iS1{{4}}] (DeviceMesh{{0 1 2 3}})\n     = T0_g_float[iS0{{4}}] (DeviceMesh{{0 1 2 3}})\n     \
             + T0_g_float[iS0{{4}}] (DeviceMesh{{0 1 2 3}});\n}} // %HostIrContainer\n"
        );
        let path = format!("{folder}/{name}.hir");
        fs::write(&path, text).map(|()| path)
    };
    let (large, huge) = (large("large", 25_000_000)?, large("huge", 50_000_000)?);
    let programs = [
        ("tests/cases/comm/allreduce-operators.hir -n 2 --stress 3", 0),
        // Not lowered, so GPUs refuse it.
        ("samples/allgather.hir", 1),
        ("tests/cases/comm/p2p-cuda-get.hir -n 2", 0),
        ("samples/row-parallel-streams.hir --set i0=12 -n 2 --step-by-step", 0),
        ("samples/row-parallel-streams.hir", 1),
        ("samples/row-parallel-streams.hir --set i0=15 -n 2 -G", 0),
        (&large, 0),
        (&huge, 6),
        ("tests/cases/launch/loop.hir --expect \"T1=2xf32=0.5 0.5\"", 3),
        ("samples/row-parallel-streams.hir --set i0=15 -n 2 -G", 0),
        // Some ranks cannot write.
        ("tests/cases/launch/loop.hir --output T1@local=@/dev/null/%r.npy", 6),
        // Only rank 0 would read the file.
        ("tests/cases/launch/loop.hir --expect T1=@tests/cases/launch/absent.npy", 6),
        ("tests/cases/comm/p2p-cuda-put.hir", 0),
    ];
    let path = format!("{folder}/programs.txt");
    fs::write(&path, programs.map(|it| it.0).join("\n"))?;
    let port = port()?;
    let arguments = ["--batch", &path, "--device=cuda", "--expect=sim", "-w", "1"];
    let start = |at: usize| rank(at, 4, port, &arguments).env("HIR_EMULATED_MEMORY", "150000000").spawn();
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, Duration::from_secs(120))?;
    let exits = ends[0].1.lines().filter_map(|it| it.strip_prefix("# exit code ")).collect::<Vec<_>>();
    let wanted = programs.map(|it| it.1.to_string());
    expect(exits == wanted && ends.iter().all(|it| it.0 == Some(1)), &ends)?;
    expect(
        ends[0]
            .2
            .matches("200000512 bytes of GPU memory are wanted; 150000000 of 150000000 are free")
            .count()
            == 1,
        &ends,
    )
}

/// A program with the same bindings reuses its plan on the GPU, whatever its other options are. A different
/// program does not.
fn a_plan_is_kept_for_the_next_program() -> Result<(), Failed> {
    let path = format!("{}/kept.txt", env!("CARGO_TARGET_TMPDIR"));
    let layer = "samples/row-parallel-streams.hir -w 1 -n 2 --profile-host --set";
    let programs = [
        ("i0=12 --step-by-step", true),
        ("i0=12 --seed 3 -G", false),
        ("i0=12 --stress 5", false),
        ("i0=12 --inputs random", false),
        ("i0=15 -G", true),
        ("i0=12 -G", true),
    ];
    fs::write(&path, programs.map(|it| format!("{layer} {}", it.0)).join("\n"))?;
    let port = port()?;
    let arguments = ["--batch", &path, "--device=cuda", "--expect=sim"];
    let start = |at: usize| rank(at, 4, port, &arguments).spawn();
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, Duration::from_secs(120))?;
    let phases = ends[0].1.lines().filter(|it| it.starts_with("# rank 0: reading the program"));
    let prepared: Vec<bool> = phases.map(|it| it.contains("preparing the program for its GPU")).collect();
    let equal = ends[0].1.matches("[SUCCESS]").count() == programs.len();
    expect(equal && prepared == programs.map(|it| it.1) && ends.iter().all(|it| it.0 == Some(0)), &ends)
}

/// A program that deadlocks is refused before it runs, so the programs after it run.
fn a_deadlock_in_a_batch_does_not_end_it() -> Result<(), Failed> {
    let path = format!("{}/hangs.txt", env!("CARGO_TARGET_TMPDIR"));
    let good = "tests/cases/launch/loop.hir";
    fs::write(&path, [good, "tests/cases/deadlock/one-rank-skips.hir", good, good].join("\n"))?;
    let port = port()?;
    let arguments = ["--batch", &path, "--device=cuda", "-T", "600"];
    let start = |at: usize| rank(at, 4, port, &arguments).spawn();
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    let cause = "[FAILED] deadlock: rank 3 never posts Communication 3 (Allreduce, line 7)\n# exit code 4\n";
    let text = &ends[0].1;
    expect(text.contains(cause) && text.matches("[SUCCESS]").count() == 3, &ends)?;
    expect(ends.iter().all(|it| it.0 == Some(4)) && ends[1..].iter().all(|it| it.1.is_empty()), &ends)
}

/// Texts that differ only in blanks are one program. A plan that only some ranks have cached is not reused by
/// any rank.
fn a_plan_is_kept_by_all_or_none() -> Result<(), Failed> {
    let folder = |name: &str, blanks: &str| -> Result<String, Failed> {
        let path = format!("{}/{name}", env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(&path)?;
        let text = fs::read_to_string(format!("{ROOT}/tests/cases/launch/loop.hir"))?;
        fs::write(format!("{path}/one.hir"), &text)?;
        fs::write(format!("{path}/two.hir"), format!("{blanks}{text}"))?;
        fs::write(format!("{path}/batch.txt"), "one.hir -n 1\ntwo.hir -n 1 -G\n")?;
        Ok(path)
    };
    let folders = [folder("even", "")?, folder("odd", "\n\n")?];
    let port = port()?;
    let arguments = ["--batch", "batch.txt", "--device=cuda", "--expect=sim"];
    let start = |at: usize| rank(at, 4, port, &arguments).current_dir(&folders[at % 2]).spawn();
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    expect(ends.iter().all(|it| it.0 == Some(0)) && ends[0].1.matches("[SUCCESS]").count() == 2, &ends)
}

fn a_gpu_that_fails_ends_its_job() -> Result<(), Failed> {
    let path = format!("{}/fails.txt", env!("CARGO_TARGET_TMPDIR"));
    fs::write(&path, ["tests/cases/ops/casts.hir"; 3].join("\n"))?;
    let start = || -> Result<Command, Failed> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
        command.current_dir(ROOT).args(["--batch", &path, "--device=cuda"]).env_clear();
        command.envs(emulator::environment()?);
        Ok(command)
    };
    let output = start()?.env("HIR_EMULATED_FAULT", "7").output_with_timeout()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The CUDA context is lost, so no other program is tried.
    let ended =
        out.contains("# exit code 5\n# 2 more are not run") && out.matches("# exit code").count() == 1;
    if output.status.code() == Some(5) && ended && err.contains("CUDA_ERROR_ILLEGAL_ADDRESS") {
        Ok(())
    } else {
        Err(format!("{}\n{out}\n{err}", output.status).into())
    }
}
