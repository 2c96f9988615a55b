//! Checks that a tool that a signal stops reports its progress, writes its results so far, and ends with 128
//! plus the number of the signal.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};

use crate::{
    ROOT, ranks,
    timeout::{Deadline, RunWithTimeout},
};

/// Time limit for what must happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const SIGNALS: [(&str, i32); 3] = [("INT", 130), ("TERM", 143), ("HUP", 129)];

/// Returns the trials about signals.
pub fn trials() -> Vec<Trial> {
    let stops = SIGNALS.into_iter().flat_map(|(signal, code)| {
        [
            Trial::test(format!("signals::the_simulator_says_how_far_it_came_{signal}"), move || {
                a_simulation_stops(signal, code)
            }),
            Trial::test(format!("signals::reading_stops_{signal}"), move || reading_stops(signal, code)),
            Trial::test(format!("signals::an_early_signal_stops_{signal}"), move || {
                an_early_signal_stops(signal, code)
            }),
            Trial::test(format!("signals::a_reduction_keeps_the_smallest_program_{signal}"), move || {
                a_reduction_stops(signal, code)
            }),
        ]
    });
    let others = [
        Trial::test("signals::the_simulator_reports_and_goes_on", the_simulator_reports_and_goes_on),
        Trial::test("signals::a_launcher_gets_one_verdict", a_launcher_gets_one_verdict),
        Trial::test(
            "signals::a_launcher_that_kills_leaves_a_verdict",
            a_launcher_that_kills_leaves_a_verdict,
        ),
        Trial::test("signals::a_batch_says_what_is_not_run", a_batch_says_what_is_not_run),
        Trial::test("signals::an_ignored_signal_stays_ignored", an_ignored_signal_stays_ignored),
        Trial::test("signals::a_second_signal_ends_at_once", a_second_signal_ends_at_once),
    ];
    stops.chain(others).collect()
}

/// A tool that runs until it is stopped.
struct Tool(Child);

impl Tool {
    fn start(tool: &str, arguments: &[&str]) -> Result<Self, Failed> {
        let mut command = Command::new(tool);
        command.args(arguments).current_dir(ROOT).env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    fn send(&self, signal: &str) -> Result<(), Failed> {
        let id = self.0.id().to_string();
        if Command::new("kill")
            .args([&format!("-{signal}"), "--", &id])
            .output_with_timeout()?
            .status
            .success()
        {
            Ok(())
        } else {
            Err(format!("cannot send SIG{signal}").into())
        }
    }

    /// Reads lines of standard output until one contains a text.
    fn read_until(&mut self, text: &str) -> Result<String, Failed> {
        let mut found = String::new();
        let _deadline = Deadline::of(&self.0);
        let mut out = BufReader::with_capacity(1, self.0.stdout.as_mut().ok_or("no standard output")?);
        while !found.contains(text) {
            if out.read_line(&mut found)? == 0 {
                return Err(format!("{found}\nno `{text}`").into());
            }
        }
        Ok(found)
    }

    /// Returns the exit code, standard output and standard error.
    fn end(self) -> Result<(Option<i32>, String, String), Failed> {
        ranks::end(vec![self.0], SOON)?.pop().ok_or_else(|| "no process".into())
    }
}

impl Tool {
    fn simulation(more: &[&str]) -> Result<Self, Failed> {
        let arguments =
            ["tests/cases/overlap/ring.hir", "--schedule=seed:0..100000", "--max-work=1000", "--device=sim"];
        let mut tool = Self::start(env!("CARGO_BIN_EXE_hir-run"), &[&arguments[..], more].concat())?;
        tool.read_until("simulated ranks")?;
        Ok(tool)
    }
}

fn check(holds: bool, end: &(Option<i32>, String, String)) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("{end:#?}").into()) }
}

fn a_simulation_stops(signal: &str, code: i32) -> Result<(), Failed> {
    let json = std::env::temp_dir().join(format!("hir-stopped-{signal}-{}.json", std::process::id()));
    let tool = Tool::simulation(&["-J", &json.display().to_string()])?;
    thread::sleep(Duration::from_millis(300));
    tool.send(signal)?;
    let end = tool.end()?;
    let last = end.1.lines().last().unwrap_or_default();
    let count = last.strip_prefix("[STOPPED] after ").and_then(|it| it.split_once(" of 100000 schedules"));
    let is_said = count.is_some_and(|(count, rest)| {
        count.parse::<u32>().is_ok_and(|count| rest == if count > 0 { ", no difference" } else { "" })
    });
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&json)?)?;
    fs::remove_file(json)?;
    check(written["exit_code"] == code && written["verdict"] == last, &end)?;
    check(end.0 == Some(code) && is_said && end.1.contains(&format!("# SIG{signal}\n")), &end)
}

/// The `mpirun` of Open MPI 5 forwards nothing once it has received a signal: rank 0 writes to what `mpirun` writes to. Another rank
/// writes nothing.
fn a_launcher_gets_one_verdict() -> Result<(), Failed> {
    for rank in ["0", "1"] {
        let script = format!(
            "PRTE_LAUNCHED=1 OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=2 HIR_MASTER_PORT={} \
             {} samples/allgather.hir > /dev/null & echo $!; wait $!",
            ranks::port()?,
            env!("CARGO_BIN_EXE_hir-run")
        );
        let mut launcher = Tool::start("sh", &["-c", &script])?;
        let process = launcher.read_until("\n")?.trim().to_owned();
        wait_for_handler(process.parse()?, 15)?;
        Command::new("kill").args(["-TERM", &process]).output_with_timeout()?;
        let end = launcher.end()?;
        let wanted = if rank == "0" { 1 } else { 0 };
        check(end.0 == Some(143) && end.1.matches("[STOPPED] ").count() == wanted, &end)?;
    }
    Ok(())
}

/// Hydra, the launcher of MPICH, kills the process groups of all ranks as soon as one is killed.
fn a_launcher_that_kills_leaves_a_verdict() -> Result<(), Failed> {
    let start = |rank: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hir-run"));
        command.arg("samples/allgather.hir").current_dir(ROOT).process_group(0);
        command.envs([("HYDI_CONTROL_FD", "7"), ("PMI_RANK", rank), ("PMI_SIZE", "2")]);
        command.env("HIR_MASTER_PORT", ranks::port()?.to_string());
        Ok::<_, Failed>(Tool(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?))
    };
    for (rank, wanted) in [("0", 1), ("1", 0)] {
        let tool = start(rank)?;
        let since = Instant::now();
        while wanted == 1 && !has_child(tool.0.id())? && since.elapsed() < SOON {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(100));
        Command::new("kill").args(["-KILL", "--", &format!("-{}", tool.0.id())]).output_with_timeout()?;
        let end = tool.end()?;
        check(end.0.is_none() && end.1.matches("[FAILED] the launcher has killed").count() == wanted, &end)?;
    }
    // A rank 0 that has printed a verdict leaves nothing behind, which would hold the pipe of standard output.
    let tool = start("0")?;
    wait_for_handler(tool.0.id(), 15)?;
    tool.send("TERM")?;
    let end = tool.end()?;
    check(end.0 == Some(143) && end.1.lines().filter(|it| it.starts_with('[')).count() == 1, &end)
}

fn has_child(process: u32) -> Result<bool, Failed> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        if !fs::read_to_string(task?.path().join("children"))?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn reading_stops(signal: &str, code: i32) -> Result<(), Failed> {
    let tool = Tool::start(env!("CARGO_BIN_EXE_hir-opt"), &["-"])?;
    // SIGUSR1 is the last signal that a tool registers.
    wait_for_handler(tool.0.id(), 10)?;
    tool.send(signal)?;
    let mut tool = tool;
    let input = tool.0.stdin.take();
    let end = tool.end()?;
    drop(input);
    let wanted = format!("hir-opt: stopped by SIG{signal} while reading `-`: no result is written\n");
    check(end.0 == Some(code) && end.1.is_empty() && end.2 == wanted, &end)
}

/// Signals before the work of a tool begins, and those of a tool that does not watch them: this one reads its first file.
fn an_early_signal_stops(signal: &str, code: i32) -> Result<(), Failed> {
    let mut tool = Tool::start(env!("CARGO_BIN_EXE_hir"), &["certify", "/dev/stdin"])?;
    let input = tool.0.stdin.take();
    wait_for_handler(tool.0.id(), (code - 128) as u32)?;
    tool.send(signal)?;
    let end = tool.end()?;
    drop(input);
    let wanted = format!("hir certify: [STOPPED] received SIG{signal}\n");
    check(end.0 == Some(code) && end.1.is_empty() && end.2 == wanted, &end)
}

/// Waits until a process has a handler for the signal with a number.
fn wait_for_handler(process: u32, number: u32) -> Result<(), Failed> {
    let since = Instant::now();
    while since.elapsed() < SOON {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let caught = status.lines().find_map(|it| it.strip_prefix("SigCgt:")).unwrap_or_default();
        if u64::from_str_radix(caught.trim(), 16).is_ok_and(|it| it >> (number - 1) & 1 == 1) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Err("the process installs no signal handler".into())
}

/// The command that tests a program never ends once a smaller program is found.
fn a_reduction_stops(signal: &str, code: i32) -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("hir-signals-{signal}-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let at = |name: &str| folder.join(name).display().to_string();
    let script = "f=$1; d=$2; n=$(wc -c < $f); echo $n >> $d/sizes; \
                  if [ $(wc -l < $d/sizes) -ge 5 ]; then echo $$ > $d/pid; sleep 1000; fi; grep -q relu $f";
    fs::write(at("test.sh"), script)?;
    let oracle = format!("cmd:sh {} %s {}", at("test.sh"), folder.display());
    let source = fs::read_to_string(Path::new(ROOT).join("tests/cases/errors/unreadable-npy.hir"))?;
    let relus: String =
        (2..12).map(|it| format!("  T{it}_g_float[iS{it}{{2}}] = relu(T0_g_float[iS0{{2}}])\n")).collect();
    let text = source.replacen("  T1_g_float", &format!("{relus}  T1_g_float"), 1);
    fs::write(at("a.hir"), &text)?;
    let output = at("small.hir");
    let tool = Tool::start(
        env!("CARGO_BIN_EXE_hir"),
        &["reduce", &at("a.hir"), "--oracle", &oracle, "-o", &output],
    )?;
    let since = Instant::now();
    while !Path::new(&at("pid")).exists() && since.elapsed() < SOON {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(100));
    let child = fs::read_to_string(at("pid"))?;
    tool.send(signal)?;
    let end = tool.end()?;
    check(end.0 == Some(code) && end.2.contains(&format!("stopped by SIG{signal}: ")), &end)?;
    let small = fs::read_to_string(&output)?;
    check(small.contains("relu") && small.len() < text.len(), &end)?;
    // The child has lost its parent, so another process has to reap it.
    let (child, since) = (Path::new("/proc").join(child.trim()), Instant::now());
    while child.exists() && since.elapsed() < SOON {
        thread::sleep(Duration::from_millis(10));
    }
    check(!child.exists(), &end)?;
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn the_simulator_reports_and_goes_on() -> Result<(), Failed> {
    let mut tool = Tool::simulation(&[])?;
    tool.send("USR1")?;
    let first = tool.read_until("instructions done")?;
    let is_said = first.lines().any(|it| it.starts_with("# rank") && it.contains(" at line "));
    if !is_said {
        return Err(first.into());
    }
    tool.send("USR1")?;
    tool.read_until("instructions done")?;
    tool.send("TERM")?;
    let end = tool.end()?;
    check(end.0 == Some(143), &end)
}

fn a_batch_says_what_is_not_run() -> Result<(), Failed> {
    let path = std::env::temp_dir().join(format!("hir-signals-batch-{}.txt", std::process::id()));
    let path = path.display().to_string();
    fs::write(
        &path,
        "tests/cases/overlap/ring.hir --schedule=seed:0..100000 --max-work=1000\ntests/cases/overlap/ring.hir\n",
    )?;
    let mut tool = Tool::start(env!("CARGO_BIN_EXE_hir-run"), &["--batch", &path, "--device=sim"])?;
    tool.read_until("simulated ranks")?;
    tool.send("INT")?;
    let end = tool.end()?;
    fs::remove_file(&path)?;
    let is_reported =
        end.1.contains("\n[STOPPED] ") && end.1.contains("# exit code 130\n# 1 more are not run");
    check(end.0 == Some(130) && is_reported, &end)
}

/// SIGHUP is ignored from the start, as with `nohup`.
fn an_ignored_signal_stays_ignored() -> Result<(), Failed> {
    let script = format!("trap '' HUP; exec {} -", env!("CARGO_BIN_EXE_hir-opt"));
    let mut tool = Tool::start("sh", &["-c", &script])?;
    wait_for_handler(tool.0.id(), 10)?;
    tool.send("HUP")?;
    thread::sleep(Duration::from_millis(300));
    if tool.0.try_wait()?.is_some() {
        return check(false, &tool.end()?);
    }
    tool.send("TERM")?;
    let input = tool.0.stdin.take();
    let end = tool.end()?;
    drop(input);
    check(end.0 == Some(143), &end)
}

/// The reader of standard output has stopped reading, so the tool cannot print anything.
fn a_second_signal_ends_at_once() -> Result<(), Failed> {
    let mut tool = Tool::simulation(&[])?;
    let mut out = tool.0.stdout.take().ok_or("no standard output")?;
    for _ in 0..200 {
        // The reports fill the pipe.
        tool.send("USR1")?;
        thread::sleep(Duration::from_millis(2));
    }
    tool.send("INT")?;
    // Until then, a signal asks for the same.
    thread::sleep(Duration::from_millis(600));
    let _ = tool.send("INT");
    let end = tool.end()?;
    let mut rest = Vec::new();
    out.read_to_end(&mut rest)?;
    check(end.0 == Some(130), &end)
}
