//! Tests jobs of several processes, started as torchrun starts them. They agree on one verdict. When a rank
//! is lost, the other ranks name it and end. The same holds for jobs on GPUs, which are emulated here.

mod children;
mod hosts;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use children::{
    a_child_that_stays_is_not_waited_for, a_failing_child_ends_all, a_killed_child_is_named,
    a_parent_forwards_requests_for_a_report, a_stopped_child_ends_all, children_run_a_job, is_stopped_by,
};
use hosts::{
    clocks_of_hosts_may_differ, hosts_run_the_same_version, hosts_share_no_memory, two_hosts_run_a_job,
};
use libtest_mimic::{Failed, Trial};

use crate::timeout::{Deadline, RunWithTimeout};
use crate::{
    ROOT,
    cases::{MPIRUN, lacks_mpirun},
    emulator,
};

/// A program, and enough schedules to keep it running for longer than any test waits.
const ENDLESS: &[&str] = &[
    "tests/cases/overlap/ring.hir",
    "--schedule=seed:0..100000",
    "--max-work=1000",
    "--device=sim",
    "-T",
    "5",
];
/// The same on GPUs.
const ENDLESS_ON_GPUS: &[&str] =
    &["tests/cases/launch/loop.hir", "--device=cuda", "-T", "5", "-n", "1000000"];
/// These jobs, with their numbers of ranks, and the number of lines that rank 0 prints before all ranks run.
const SIMULATED: (&[&str], usize, usize) = (ENDLESS, 8, 1);
const ON_GPUS: (&[&str], usize, usize) = (ENDLESS_ON_GPUS, 4, 3);
/// Time within which a lost job must end.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// Time within which a job with a stopped rank must end: `-T` seconds until the rank counts as silent, and
/// five more.
const STOPPED: Duration = Duration::from_secs(5 + 5);

pub fn trials() -> Vec<Trial> {
    let on_gpus = [
        Trial::test("gpus::reports_the_rank_that_was_killed", || {
            loses(ON_GPUS, 2, Some("KILL"), "rank 2 is silent: its connection closed")
        }),
        Trial::test("gpus::reports_the_rank_that_is_stopped", || {
            loses(ON_GPUS, 1, Some("STOP"), "rank 1 is silent for")
        }),
        Trial::test("gpus::a_stopped_child_ends_all", || a_stopped_child_ends_all(2)),
        Trial::test("gpus::a_stopped_first_child_ends_all", || a_stopped_child_ends_all(0)),
        Trial::test("gpus::an_interrupt_of_all_is_reported_once", || is_stopped_by("INT", 130, true)),
        Trial::test("gpus::an_interrupt_of_the_parent_ends_all", || is_stopped_by("INT", 130, false)),
        Trial::test("gpus::a_parent_that_is_terminated_says_so", || is_stopped_by("TERM", 143, false)),
        Trial::test("gpus::all_that_are_terminated_say_so_once", || is_stopped_by("TERM", 143, true)),
        Trial::test("gpus::a_parent_forwards_requests_for_a_report", a_parent_forwards_requests_for_a_report),
        Trial::test("gpus::a_deadlock_of_hosts_does_not_run", a_deadlock_of_hosts_does_not_run),
        Trial::test("gpus::a_report_may_be_asked_for", || {
            loses(ON_GPUS, 3, Some("USR1"), "rank 3: report requested (SIGUSR1)")
        }),
        Trial::test("gpus::reports_the_rank_that_blocks_the_others", reports_the_rank_that_blocks_the_others),
        Trial::test("gpus::a_gpu_is_for_one_rank", a_gpu_is_for_one_rank),
        Trial::test("gpus::every_line_is_in_the_table", every_line_is_in_the_table),
        Trial::test("gpus::two_hosts_run_a_job", two_hosts_run_a_job),
        Trial::test("gpus::hosts_share_no_memory", hosts_share_no_memory),
        Trial::test("gpus::clocks_of_hosts_may_differ", clocks_of_hosts_may_differ),
        Trial::test(
            "gpus::links_that_are_no_nvlink_get_small_packets",
            links_that_are_no_nvlink_get_small_packets,
        ),
        Trial::test(
            "gpus::waits_flush_remote_writes_where_the_gpu_can",
            waits_flush_remote_writes_where_the_gpu_can,
        ),
    ];
    let on_gpus = on_gpus.into_iter().map(|it| it.with_ignored_flag(emulator::is_missing()));
    let trials = vec![
        Trial::test("ranks::hosts_run_the_same_version", hosts_run_the_same_version),
        Trial::test("ranks::each_writes_its_own_part", each_writes_its_own_part),
        Trial::test("ranks::parts_need_files_of_their_own", parts_need_files_of_their_own),
        Trial::test("ranks::each_judges_its_own_part", each_judges_its_own_part),
        Trial::test("ranks::a_failure_of_one_rank_ends_all", a_failure_of_one_rank_ends_all),
        Trial::test("ranks::reports_the_rank_that_was_killed", || {
            loses(SIMULATED, 1, Some("KILL"), "rank 1 is silent: its connection closed")
        }),
        Trial::test("ranks::rank_0_is_named_too", || {
            loses(SIMULATED, 0, Some("KILL"), "rank 0 is silent: its connection closed")
        }),
        Trial::test("ranks::reports_the_rank_that_is_stopped", || {
            loses(SIMULATED, 2, Some("STOP"), "rank 2 is silent for")
        }),
        Trial::test("ranks::a_report_may_be_asked_for", || {
            loses(SIMULATED, 1, Some("USR1"), "rank 1: report requested (SIGUSR1)")
        }),
        Trial::test("ranks::a_rank_that_is_terminated_reports_it", || {
            ["INT", "TERM", "HUP"].into_iter().try_for_each(|signal| {
                loses(SIMULATED, 1, Some(signal), &format!("rank 1: received SIG{signal}"))
            })
        }),
        Trial::test("ranks::reports_the_rank_that_does_not_connect", reports_the_rank_that_does_not_connect),
        Trial::test("ranks::children_end_with_their_parent", || loses(SIMULATED, 0, None, "")),
        Trial::test("ranks::a_failing_child_ends_all", a_failing_child_ends_all),
        Trial::test("ranks::a_killed_child_is_named", a_killed_child_is_named),
        Trial::test("ranks::a_child_that_stays_is_not_waited_for", a_child_that_stays_is_not_waited_for),
        Trial::test("ranks::children_run_a_job", children_run_a_job),
        Trial::test("ranks::mpirun_loses_a_rank", mpirun_loses_a_rank).with_ignored_flag(lacks_mpirun()),
    ];
    trials.into_iter().chain(on_gpus).collect()
}

/// Returns the command of one process of a job of `world` processes.
pub(super) fn rank(at: usize, world: usize, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
    command.args(arguments).current_dir(ROOT).env_clear();
    command
        .env("RANK", at.to_string())
        .env("WORLD_SIZE", world.to_string())
        .env("LOCAL_RANK", at.to_string());
    command.env("HIR_MASTER_PORT", port.to_string()).env("NO_COLOR", "1");
    if arguments.contains(&"--device=cuda") {
        // Without an emulator, the processes fail to find the libraries, and the trial reports that.
        command.envs(emulator::environment().unwrap_or_default());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Returns a port on which no process listens now.
pub(super) fn port() -> Result<u16, Failed> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Waits until all processes have ended. Returns the exit code (`None` if killed), standard output and
/// standard error of each.
pub(super) fn end(
    children: Vec<Child>,
    limit: Duration,
) -> Result<Vec<(Option<i32>, String, String)>, Failed> {
    let deadline = Instant::now() + limit;
    let mut ends = Vec::new();
    let mut late = false;
    for mut child in children {
        while !late && child.try_wait()?.is_none() {
            late = Instant::now() > deadline;
            thread::sleep(Duration::from_millis(10));
        }
        if late {
            child.kill()?;
        }
        let output = child.wait_with_output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ends.push((output.status.code(), text(&output.stdout), text(&output.stderr)));
    }
    if late { Err(format!("processes still run after {limit:?}: {ends:#?}").into()) } else { Ok(ends) }
}

pub(super) fn expect(holds: bool, ends: &[(Option<i32>, String, String)]) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("{ends:#?}").into()) }
}

fn each_writes_its_own_part() -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("hir-ranks-{}", std::process::id()));
    let port = port()?;
    let mut children = Vec::new();
    for at in 0..4 {
        let own = folder.join(at.to_string());
        fs::create_dir_all(&own)?;
        let program = format!("{ROOT}/samples/allgather.hir");
        // The command line is the same on every rank, but each rank has its own folder.
        let arguments = [program.as_str(), "--output", "T1@local=@part.%r.npy", "--output", "T1=@whole.npy"];
        children.push(rank(at, 4, port, &arguments).current_dir(&own).spawn()?);
    }
    let ends = end(children, LIMIT * 2)?;
    expect(ends.iter().all(|it| it.0 == Some(0) && it.2.is_empty()), &ends)?;
    expect(ends[0].1.ends_with("[SUCCESS] ran, complete, not compared\n"), &ends)?;
    expect(ends[1..].iter().all(|it| it.1.is_empty()), &ends)?;
    for at in 0..4 {
        let mut files: Vec<String> = Vec::new();
        for entry in fs::read_dir(folder.join(at.to_string()))? {
            files.push(entry?.file_name().to_string_lossy().into_owned());
        }
        files.sort();
        let mut wanted = vec![format!("part.{at}.npy")];
        wanted.extend((at == 0).then(|| "whole.npy".to_owned()));
        if files != wanted {
            return Err(format!("rank {at} wrote {files:?}").into());
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Ranks that write to the same file would overwrite each other's parts.
fn parts_need_files_of_their_own() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    for name in ["part.npy", "part.safetensors#%r"] {
        let output = format!("T1@local=@{}/{name}", folder.path().display());
        let (port, arguments) = (port()?, [&format!("{ROOT}/samples/allgather.hir"), "--output", &output]);
        let children = (0..4).map(|at| rank(at, 4, port, &arguments).spawn());
        let ends = end(children.collect::<Result<_, _>>()?, LIMIT)?;
        expect(ends.iter().all(|it| it.0 == Some(2)), &ends)?;
        expect(ends[0].2.contains("T1 of rank 0 and T1 of rank 1 have the same destination"), &ends)?;
        expect(fs::read_dir(folder.path())?.next().is_none(), &ends)?;
    }
    Ok(())
}

/// A replicated output of which every rank has its own values, written and compared by rank.
fn each_judges_its_own_part() -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("hir-parts-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let file = format!("T1@local=@{}/y.%r.npy", folder.display());
    let run = |arguments: &[&str]| -> Result<_, Failed> {
        let port = port()?;
        let program = ["tests/cases/io/per-rank-outputs.hir", "--input", "T0@local=2xf32=1 %r"];
        let arguments = [&program[..], arguments].concat();
        let children = (0..4).map(|at| rank(at, 4, port, &arguments).spawn());
        end(children.collect::<Result<_, _>>()?, LIMIT * 2)
    };
    let written = run(&["--output", &file])?;
    expect(written.iter().all(|it| it.0 == Some(0)), &written)?;
    let judged = run(&["--expect", &file])?;
    let verdict =
        format!("[SUCCESS] T1@local: 3 ranks' own parts equal to {} (exact)\n", &file["T1@local=".len()..]);
    expect(judged.iter().all(|it| it.0 == Some(0)) && judged[0].1.ends_with(&verdict), &judged)?;
    expect(judged[0].1.contains("# T1@local: rank 3 holds no part\n"), &judged)?;
    let wrong = run(&["--expect", "T1@local=2xf32=1 1"])?;
    expect(wrong.iter().all(|it| it.0 == Some(3)), &wrong)?;
    expect(wrong[0].1.contains("[FAILED] T1 of rank 0: element [1]"), &wrong)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn a_failure_of_one_rank_ends_all() -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| {
        let folder = if at == 1 { "/proc" } else { "/tmp" };
        let program = format!("{ROOT}/samples/allgather.hir");
        let output = format!("T1@local=@hir-alone-{}.%r.npy", std::process::id());
        rank(at, 4, port, &[&program, "--output", &output]).current_dir(folder).spawn()
    };
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT * 2)?;
    for at in [0, 2, 3] {
        let _ = fs::remove_file(format!("/tmp/hir-alone-{}.{at}.npy", std::process::id()));
    }
    expect(ends.iter().all(|it| it.0 == Some(6)), &ends)?;
    expect(ends[0].1.contains("[FAILED] rank 1 exits with code 6: cannot write"), &ends)?;
    expect(!ends[0].1.contains("[SUCCESS]"), &ends)
}

/// A running job loses a rank to a signal, or all its ranks lose their parent process. The remaining ranks
/// must report it and end.
fn loses(
    (arguments, world, lines): (&[&str], usize, usize),
    victim: usize,
    signal: Option<&str>,
    wanted: &str,
) -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| {
        let mut command = rank(at, world, port, arguments);
        if signal.is_none() {
            command.env("HIR_PARENT_DEATH", "stdin");
        }
        command.spawn()
    };
    let mut children: Vec<Child> = (0..world).map(start).collect::<Result<_, _>>()?;
    // Rank 0 prints a line when all ranks have agreed and, on GPUs, more lines when all are ready.
    let mut said = BufReader::new(children[0].stdout.take().ok_or("no standard output")?);
    let mut first = String::new();
    let deadline = Deadline::of(&children[0]);
    for _ in 0..lines {
        said.read_line(&mut first)?;
    }
    drop(deadline);
    let since = Instant::now();
    match signal {
        Some(name) => {
            let process = children[victim].id().to_string();
            send(name, &process)?;
            // Slurm sends two of them at the limit of time.
            if name == "TERM" {
                thread::sleep(Duration::from_millis(50));
                send(name, &process)?;
            }
        }
        // When a parent process ends, the operating system closes its ends of the pipes.
        None => children.iter_mut().for_each(|it| drop(it.stdin.take())),
    }
    let reader = thread::spawn(move || {
        let mut rest = String::new();
        said.read_to_string(&mut rest).map(|_| rest)
    });
    let stopped = (signal == Some("STOP")).then(|| children.remove(victim));
    let ends = end(children, LIMIT);
    if let Some(mut it) = stopped {
        it.kill()?;
        it.wait()?;
    }
    let ends = ends?;
    expect(signal != Some("STOP") || since.elapsed() < STOPPED, &ends)?;
    let report = reader.join().map_err(|_| "no report")??;
    let text: String = ends.iter().map(|it| it.1.as_str()).chain([report.as_str()]).collect();
    let (tag, code) = match signal {
        Some("INT") => ("[STOPPED]", 130),
        Some("TERM") => ("[STOPPED]", 143),
        Some("HUP") => ("[STOPPED]", 129),
        Some(_) | None => ("[FAILED]", 4),
    };
    let codes = ends.iter().filter(|it| it.0 == Some(code)).count();
    let killed = usize::from(signal == Some("KILL"));
    expect(codes + killed == ends.len(), &ends)?;
    let cause = format!("{tag} {wanted}");
    let reports = text.matches(tag).count();
    match signal {
        Some(_) if reports != 1 => Err(format!("{text}\n{reports} reports").into()),
        Some(_) if !text.contains(&cause) => Err(format!("{text}\nno `{cause}`").into()),
        _ => Ok(()),
    }
}

/// Sends a signal to a process or, with `-`, to the process group that it leads.
fn send(signal: &str, to: &str) -> Result<(), Failed> {
    if Command::new("kill").args([&format!("-{signal}"), "--", to]).output_with_timeout()?.status.success() {
        Ok(())
    } else {
        Err(format!("cannot send SIG{signal} to {to}").into())
    }
}

/// A deadlock that follows from the plans is reported before anything runs, without waiting for the time-out.
fn reports_the_rank_that_blocks_the_others() -> Result<(), Failed> {
    let (port, start) = (port()?, Instant::now());
    let arguments = ["tests/cases/deadlock/one-rank-skips.hir", "--device=cuda", "-T", "600"];
    let start_rank = |at: usize| rank(at, 4, port, &arguments).spawn();
    let ends = end((0..4).map(start_rank).collect::<Result<_, _>>()?, LIMIT)?;
    let cause = "[FAILED] deadlock: rank 3 never posts Communication 3 (Allreduce, line 7)";
    expect(ends.iter().all(|it| it.0 == Some(4)), &ends)?;
    expect(ends[0].1.contains(cause) && ends[1..].iter().all(|it| it.1.is_empty()), &ends)?;
    expect(start.elapsed() < LIMIT, &ends)
}

fn a_gpu_is_for_one_rank() -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| {
        let gpu = if at == 2 { "0" } else { ["0", "1", "2", "3"][at] };
        rank(at, 4, port, &["tests/cases/launch/loop.hir", "--device=cuda"])
            .env("CUDA_VISIBLE_DEVICES", gpu)
            .spawn()
    };
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    expect(ends.iter().all(|it| it.0 == Some(6)), &ends)?;
    // All ranks detect it together, so no rank aborts, and rank 0 alone reports it and gives the verdict.
    let verdict = ends[0].1.lines().last().unwrap_or_default();
    expect(
        ends[0].2.contains("ranks 0 and 2 both use GPU-")
            && verdict.starts_with("[FAILED] ranks 0 and 2 both use GPU-")
            && ends[1..].iter().all(|it| it.1.is_empty() && it.2.is_empty()),
        &ends,
    )
}

/// Packets of 128 bytes are for NVLink only.
fn links_that_are_no_nvlink_get_small_packets() -> Result<(), Failed> {
    for (pcie, is_noted) in [("0", false), ("1", true)] {
        let port = port()?;
        let arguments = ["tests/cases/transport/packets-in-a-loop.hir", "--device=cuda", "--expect=sim"];
        let start = |at: usize| rank(at, 3, port, &arguments).env("HIR_EMULATED_PCIE", pcie).spawn();
        let ends = end((0..3).map(start).collect::<Result<_, _>>()?, LIMIT)?;
        let note = "LL128 collectives use packets of 16 bytes: some GPUs are not connected by NVLink";
        expect(
            ends.iter().all(|it| it.0 == Some(0))
                && (ends[0].1.clone() + &ends[0].2).contains(note) == is_noted,
            &ends,
        )?;
    }
    Ok(())
}

/// The emulated driver refuses a wait that has the flag where the GPU cannot flush, or lacks it where it can.
fn waits_flush_remote_writes_where_the_gpu_can() -> Result<(), Failed> {
    for issue in [&[][..], &["-n", "3"]] {
        let port = port()?;
        let program = "tests/cases/transport/cuda-reduce-scatter.hir";
        let arguments = [&[program, "--device=cuda", "--expect=sim"], issue].concat();
        let start = |at: usize| rank(at, 4, port, &arguments).env("HIR_EMULATED_FLUSH", "1").spawn();
        let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)?;
        expect(ends.iter().all(|it| it.0 == Some(0)), &ends)?;
    }
    Ok(())
}

/// On a framework's hosts, ranks would wait for each other here. The hosts on GPUs would not wait, but the
/// program still hangs, so it is refused.
fn a_deadlock_of_hosts_does_not_run() -> Result<(), Failed> {
    let port = port()?;
    let arguments = ["tests/cases/deadlock/cuda-not-shared-by-peer.hir", "--device=cuda"];
    let start = |at: usize| rank(at, 2, port, &arguments).spawn();
    let ends = end((0..2).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    let cause = "[FAILED] deadlock: rank 0 never executes ShareMemHandles (line 6)\n";
    expect(ends.iter().all(|it| it.0 == Some(4)) && ends[0].1.ends_with(cause), &ends)
}

fn every_line_is_in_the_table() -> Result<(), Failed> {
    let arguments = ["tests/cases/cuda/chain.hir", "--device=cuda", "-n", "1"];
    let ends = end(vec![rank(0, 1, port()?, &arguments).spawn()?], LIMIT)?;
    // Returns the line, the work and, if it has no time of its own, the line whose time includes it.
    let row = |it: &str| match it.split_whitespace().collect::<Vec<&str>>()[..] {
        [line, what, "1", _, "in", "line", other, "-", "-"] => Some(format!("{line} {what} in {other}")),
        [line, what, "1", _, time, _, _] if time.parse::<f64>().is_ok() => Some(format!("{line} {what}")),
        _ => None,
    };
    let rows: Vec<String> = ends[0].1.lines().filter_map(row).collect();
    let wanted = [
        "5 +",
        "8 relu in 5",
        "10 cast in 5",
        "12 * in 5",
        "15 cast in 5",
        "17 + in 5",
        "20 * in 5",
        "23 - in 5",
        "26 cast in 5",
    ];
    expect(rows == wanted, &ends)?;
    // A line with several kinds of work has one row per kind.
    let port = port()?;
    let start =
        |at: usize| rank(at, 8, port, &["tests/cases/overlap/ring.hir", "--device=cuda", "-n", "1"]).spawn();
    let ends = end((0..8).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    let has = |what: &str| ends[0].1.contains(&format!("\n  {:>6} {what:<14} {:>6} ", 31, 7));
    expect(["copy", "signal", "wait_signal"].into_iter().all(has), &ends)
}

fn reports_the_rank_that_does_not_connect() -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| rank(at, 3, port, &["samples/allgather.hir", "-T", "5"]).spawn();
    let ends = end([0, 2].into_iter().map(start).collect::<Result<_, _>>()?, LIMIT)?;
    expect(ends.iter().all(|it| it.0 == Some(6)), &ends)?;
    expect(ends.iter().all(|it| it.2.contains("ranks [1] of 3 did not join")), &ends)
}

/// mpirun ends the other processes about a second after the loss, so the report must come sooner.
fn mpirun_loses_a_rank() -> Result<(), Failed> {
    let start = Instant::now();
    let script =
        "[ $OMPI_COMM_WORLD_RANK = 2 ] && { rank=$$; (sleep 1; kill -9 $rank) & }; exec \"$0\" \"$@\"";
    let mut command = Command::new("mpirun");
    command.args(["-np", "8", "sh", "-c", script, env!("CARGO_BIN_EXE_hir-run")]).args(ENDLESS);
    let output = command.current_dir(ROOT).envs(MPIRUN.iter().copied()).output_with_timeout()?;
    let output_text = String::from_utf8_lossy(&output.stdout);
    let named = output_text.contains("[FAILED] rank 2 is silent: its connection closed");
    if named && !output.status.success() && start.elapsed() < LIMIT {
        Ok(())
    } else {
        Err(format!("{:?} {output:?}", start.elapsed()).into())
    }
}
