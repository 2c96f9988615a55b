//! Tests jobs of two hosts.

use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, process, process::Command};

use libtest_mimic::Failed;

use super::{LIMIT, end, expect, port, rank};
use crate::{ROOT, timeout::RunWithTimeout};

/// What a process has printed, and its exit code.
type End = (Option<i32>, String, String);

/// Starts four ranks, two on each of two hosts with two GPUs, without the launcher's local rank.
fn on_two_hosts(arguments: &[&str]) -> Result<Vec<End>, Failed> {
    with_second_host(arguments, |_| ())
}

/// The same, with a change of the commands of the second host.
fn with_second_host(arguments: &[&str], change: impl Fn(&mut Command)) -> Result<Vec<End>, Failed> {
    let port = port()?;
    let start = |at: usize| {
        let mut command = rank(at, 4, port, arguments);
        command
            .env_remove("LOCAL_RANK")
            .env("HIR_HOSTID", ["first", "second"][at / 2])
            .env("CUDA_VISIBLE_DEVICES", ["0,1", "2,3"][at / 2]);
        if at / 2 == 1 {
            change(&mut command);
        }
        command.spawn()
    };
    end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)
}

/// A library that makes the time of day seven hours late, and no other clock.
const LATE: &str = "
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
extern \"C\" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const long status = syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME) time->tv_sec -= 7 * 3600;
  return static_cast<int>(status);
}
";

/// Limits, silence and secrets do not depend on the time of day, and the times of all hosts are those of one clock.
pub(super) fn clocks_of_hosts_may_differ() -> Result<(), Failed> {
    let folder = env::temp_dir().join(format!("hir-clocks-{}", process::id()));
    fs::create_dir_all(&folder)?;
    let (source, library) = (folder.join("late.cpp"), folder.join("late.so"));
    fs::write(&source, LATE)?;
    let mut compiler = Command::new("c++");
    let built = compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output_with_timeout()?;
    // A library that changes nothing would let the test pass.
    let seconds = |late: bool| -> Result<i64, Failed> {
        let mut command = Command::new("date");
        if late {
            command.env("LD_PRELOAD", &library);
        }
        Ok(String::from_utf8_lossy(&command.arg("+%s").output()?.stdout).trim().parse()?)
    };
    if !built.status.success() || seconds(false)? - seconds(true)? < 6 * 3600 {
        return Err(format!("{built:?}").into());
    }
    let timeline = folder.join("t.json");
    let written = timeline.display().to_string();
    for device in [&["--device=cuda", "--timeline", &written][..], &["--device=sim"]] {
        let arguments =
            [&["tests/cases/launch/two-hosts.hir", "--inputs=exact", "-T", "5"][..], device].concat();
        let ends = with_second_host(&arguments, |it| {
            it.env("LD_PRELOAD", &library);
        })?;
        expect(ends.iter().all(|it| it.0 == Some(0)) && ends[0].1.contains("[SUCCESS]"), &ends)?;
    }
    let trace: serde_json::Value = serde_json::from_str(&fs::read_to_string(&timeline)?)?;
    let times = trace["traceEvents"].as_array().into_iter().flatten().filter_map(|it| it["ts"].as_f64());
    let last = times.fold(0.0, f64::max);
    if last == 0.0 || last > 20e6 {
        return Err(format!("the last of the times, in microseconds: {last}").into());
    }
    Ok(fs::remove_dir_all(&folder)?)
}

/// The program of the second host is one of another commit.
pub(super) fn hosts_run_the_same_version() -> Result<(), Failed> {
    let path = Path::new(env!("CARGO_BIN_EXE_hir-run"));
    let said = Command::new(path).arg("--version").output_with_timeout()?.stdout;
    let said = String::from_utf8_lossy(&said);
    let version = said.trim_end().trim_start_matches("hir-run ");
    let other = version.replace(')', "!");
    let mut bytes = fs::read(path)?;
    let found = bytes.windows(version.len()).enumerate().filter(|it| it.1 == version.as_bytes());
    for at in found.map(|it| it.0).collect::<Vec<_>>() {
        bytes[at..at + version.len()].copy_from_slice(other.as_bytes());
    }
    let changed = env::temp_dir().join(format!("hir-run-of-another-version-{}", process::id()));
    fs::write(&changed, bytes)?;
    fs::set_permissions(&changed, PermissionsExt::from_mode(0o700))?;
    let arguments = ["samples/allgather.hir", "-T", "5"];
    let port = port()?;
    let start = |at: usize| {
        let command = rank(at, 4, port, &arguments);
        let mut other = Command::new(if at < 2 { path } else { &changed });
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        other.args(command.get_args()).current_dir(ROOT).env_clear().envs(set);
        other.stdout(process::Stdio::piped()).stderr(process::Stdio::piped()).spawn()
    };
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    let words = [
        "the versions of ranks 2, 3 differ from rank 0's".to_owned(),
        format!("-hir {version}"),
        format!("+hir {other}"),
    ];
    let verdicts: usize = ends.iter().map(|it| it.1.matches("[FAILED]").count()).sum();
    let is_named = words.iter().all(|it| ends[0].2.contains(it));
    expect(ends.iter().all(|it| it.0 == Some(6)) && verdicts == 1 && is_named, &ends)?;
    Ok(fs::remove_file(&changed)?)
}

pub(super) fn two_hosts_run_a_job() -> Result<(), Failed> {
    let flags = ["--device=cuda", "--inputs=exact", "--expect=sim", "-w1", "-n3", "--stress=3"];
    for issue in [&["--step-by-step"][..], &[]] {
        let arguments = [&["tests/cases/launch/two-hosts.hir"], &flags[..], issue].concat();
        let ends = on_two_hosts(&arguments)?;
        let is_right = ends.iter().all(|it| it.0 == Some(0));
        expect(
            is_right && ends[0].1.contains("[SUCCESS] 24 elements equal to the simulator (exact)"),
            &ends,
        )?;
    }
    Ok(())
}

pub(super) fn hosts_share_no_memory() -> Result<(), Failed> {
    let ends = on_two_hosts(&["tests/cases/transport/teams.hir", "--device=cuda"])?;
    let is_named =
        ends.iter().any(|it| (it.1.clone() + &it.2).contains("are on different hosts: only NCCL sends data"));
    expect(is_named && ends.iter().all(|it| it.0 == Some(6)), &ends)
}
