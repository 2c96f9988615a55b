//! Tests the rendezvous of the processes of a job: who may join, where, by when, and what must be the same on
//! all ranks.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Failed, Trial};

use crate::{
    ROOT,
    ranks::{LIMIT, end, expect, port, rank},
    rng::Rng,
    wire,
};

/// A program that ends soon.
const QUICK: &str = "samples/allgather.hir";

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("rendezvous::inputs_that_differ_are_named", inputs_that_differ_are_named),
        Trial::test("rendezvous::an_input_that_one_rank_lacks", an_input_that_one_rank_lacks),
        Trial::test("rendezvous::own_parts_may_differ", own_parts_may_differ),
        // The host may not have IPv6.
        Trial::test("rendezvous::ranks_meet_on_ipv6", ranks_meet_on_ipv6)
            .with_ignored_flag(TcpListener::bind(("::1", 0)).is_err()),
        Trial::test("rendezvous::strangers_do_not_delay_a_job", strangers_do_not_delay_a_job),
        Trial::test("rendezvous::reports_the_rank_that_was_stopped_before", || {
            is_stopped_before(1, "ranks [1] of 3 did not join")
        }),
        Trial::test("rendezvous::a_stopped_rank_0_is_named", || is_stopped_before(0, "did not find rank 0")),
        Trial::test("rendezvous::another_secret_does_not_join", another_secret_does_not_join),
        Trial::test("rendezvous::several_hosts_need_a_secret", several_hosts_need_a_secret),
        Trial::test("rendezvous::a_port_in_use_is_named", a_port_in_use_is_named),
        Trial::test("rendezvous::a_rank_that_starts_twice_is_named", a_rank_that_starts_twice_is_named),
        Trial::test("rendezvous::any_bytes_are_refused", any_bytes_are_refused),
        Trial::test("rendezvous::a_signal_stops_ranks_that_wait", a_signal_stops_ranks_that_wait),
        Trial::test(
            "rendezvous::a_rank_0_that_is_killed_has_one_verdict",
            a_rank_0_that_is_killed_has_one_verdict,
        ),
        Trial::test("rendezvous::a_changed_bit_ends_all_ranks", a_changed_bit_ends_all_ranks),
        Trial::test("rendezvous::no_rank_outlives_its_launcher", no_rank_outlives_its_launcher),
    ]
}

/// Writes a float32 file in numpy's format.
fn npy(path: &Path, shape: &str, values: &[f32]) -> Result<(), Failed> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|it| it.to_le_bytes()));
    Ok(fs::write(path, bytes)?)
}

/// Creates a program with a replicated input and a sharded one, and a folder for each of its two ranks.
fn program(name: &str) -> Result<(PathBuf, String), Failed> {
    let folder = std::env::temp_dir().join(format!("hir-rendezvous-{name}-{}", std::process::id()));
    for at in 0..2 {
        fs::create_dir_all(folder.join(at.to_string()))?;
    }
    let path = folder.join("add.hir");
    let text = "%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1}), T1_g_float[ideviceIdx.x1{2}, iS2{2}] \
                (DeviceMesh{0 1})) -> (T0_g_float[iS0{4}] (DeviceMesh{0 1}), T1_g_float[ideviceIdx.x1{2}, iS2{2}] \
                (DeviceMesh{0 1})) :\n} // %HostIrContainer\n";
    fs::write(&path, text)?;
    let path = path.display().to_string();
    Ok((folder, path))
}

fn in_folders(folder: &Path, arguments: &[&str]) -> Result<Vec<Child>, Failed> {
    let port = port()?;
    let start = |at: usize| rank(at, 2, port, arguments).current_dir(folder.join(at.to_string())).spawn();
    Ok((0..2).map(start).collect::<Result<_, _>>()?)
}

fn inputs_that_differ_are_named() -> Result<(), Failed> {
    let (folder, path) = program("differ")?;
    for (input, shape, tensor) in [("T0=@x.npy", "4,", "T0"), ("T1=@x.npy", "2, 2", "T1")] {
        let mut values = [1.0, 2.0, 3.0, 4.0];
        for at in 0..2 {
            values[3] += at as f32;
            npy(&folder.join(at.to_string()).join("x.npy"), shape, &values)?;
        }
        let ends = end(in_folders(&folder, &[&path, "--input", input])?, LIMIT)?;
        expect(ends.iter().all(|it| it.0 == Some(6) && !it.1.contains("[SUCCESS]")), &ends)?;
        let cause = format!("the contents of input {tensor} of rank 1 differ from rank 0's");
        expect(ends[0].2.contains(&cause) && ends[0].2.contains("rank 1: @x.npy"), &ends)?;
        // Equal contents in separate files.
        for at in 0..2 {
            npy(&folder.join(at.to_string()).join("x.npy"), shape, &values)?;
        }
        let ends = end(in_folders(&folder, &[&path, "--input", input])?, LIMIT)?;
        expect(ends.iter().all(|it| it.0 == Some(0)), &ends)?;
    }
    Ok(fs::remove_dir_all(&folder)?)
}

fn an_input_that_one_rank_lacks() -> Result<(), Failed> {
    let (folder, path) = program("lacks")?;
    npy(&folder.join("0/x.npy"), "4,", &[1.0; 4])?;
    let ends = end(in_folders(&folder, &[&path, "--input", "T0=@x.npy"])?, LIMIT)?;
    expect(ends.iter().all(|it| it.0 == Some(6)), &ends)?;
    expect(
        ends[0].2.contains("input T0 of rank 1 differ") && ends[0].2.contains("cannot read `x.npy`"),
        &ends,
    )?;
    Ok(fs::remove_dir_all(&folder)?)
}

fn own_parts_may_differ() -> Result<(), Failed> {
    let (folder, path) = program("own")?;
    for at in 0..2 {
        for part in 0..2 {
            let file = folder.join(at.to_string()).join(format!("x.{part}.npy"));
            npy(&file, "1, 2", &[at as f32, part as f32])?;
        }
    }
    let ends = end(in_folders(&folder, &[&path, "--input", "T1@local=@x.%r.npy"])?, LIMIT)?;
    expect(ends.iter().all(|it| it.0 == Some(0)), &ends)?;
    Ok(fs::remove_dir_all(&folder)?)
}

fn ranks_meet_on_ipv6() -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| rank(at, 4, port, &[QUICK]).env("HIR_MASTER_ADDR", "::1").spawn();
    let ends = end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    expect(ends.iter().all(|it| it.0 == Some(0)), &ends)
}

fn strangers_do_not_delay_a_job() -> Result<(), Failed> {
    let (port, start) = (port()?, Instant::now());
    let first = rank(0, 4, port, &[QUICK, "-T", "10"]).spawn()?;
    let mut silent = Vec::new();
    while silent.len() < 20 && start.elapsed() < LIMIT {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(it) => silent.push(it),
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
    let others = (1..4).map(|at| rank(at, 4, port, &[QUICK, "-T", "10"]).spawn());
    let children = std::iter::once(Ok(first)).chain(others).collect::<Result<_, _>>()?;
    let ends = end(children, LIMIT)?;
    expect(silent.len() == 20 && ends.iter().all(|it| it.0 == Some(0)), &ends)
}

/// Tests a process that is stopped from the start.
fn is_stopped_before(victim: usize, wanted: &str) -> Result<(), Failed> {
    let (port, start) = (port()?, Instant::now());
    let mut children = Vec::new();
    for at in (0..3).filter(|it| *it != victim) {
        children.push(rank(at, 3, port, &[QUICK, "-T", "3"]).spawn()?);
    }
    let whole = rank(victim, 3, port, &[QUICK, "-T", "3"]);
    let mut stopped = Command::new("sh");
    stopped.args(["-c", "kill -STOP $$; exec \"$0\" \"$@\""]).arg(whole.get_program()).args(whole.get_args());
    let set = whole.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut stopped = stopped.current_dir(ROOT).env_clear().envs(set).spawn()?;
    let ends = end(children, LIMIT);
    stopped.kill()?;
    stopped.wait()?;
    let ends = ends?;
    let says = |it: &(Option<i32>, String, String)| it.0 == Some(6) && it.2.contains(wanted);
    expect(ends.iter().all(says) && start.elapsed() < Duration::from_secs(10), &ends)
}

fn another_secret_does_not_join() -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| {
        let secret = if at == 1 { "0123456789abcdef" } else { "fedcba9876543210" };
        rank(at, 3, port, &[QUICK, "-T", "3"]).env("HIR_JOB_SECRET", secret.repeat(2)).spawn()
    };
    let ends = end((0..3).map(start).collect::<Result<_, _>>()?, LIMIT)?;
    // Rank 0 has the verdict.
    expect(ends.iter().all(|it| it.0 == Some(6)) && ends[1..].iter().all(|it| it.1.is_empty()), &ends)?;
    expect(ends[0].1.starts_with("[FAILED] rendezvous at ") && ends[0].1.lines().count() == 1, &ends)?;
    expect(
        ends[0].2.contains("ranks [1] of 3 did not join; ") && ends[0].2.contains("another secret"),
        &ends,
    )?;
    expect(ends[1].2.contains("another secret"), &ends)
}

fn several_hosts_need_a_secret() -> Result<(), Failed> {
    let mut command = rank(0, 2, port()?, &[QUICK]);
    let child = command.env("LOCAL_WORLD_SIZE", "1").env("HIR_MASTER_ADDR", "192.0.2.1").spawn()?;
    let ends = end(vec![child], LIMIT)?;
    let named = ends[0].2.contains("`HIR_JOB_SECRET`") && ends[0].2.contains("`HIR_JOB_SECRET_FILE`");
    expect(ends[0].0 == Some(6) && named, &ends)
}

fn a_port_in_use_is_named() -> Result<(), Failed> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    let ends = end(vec![rank(0, 2, port, &[QUICK, "-T", "3"]).spawn()?], LIMIT)?;
    let wanted = format!("rendezvous at 127.0.0.1:{port}: rank 0 cannot listen: ");
    expect(ends[0].0 == Some(6) && ends[0].2.contains(&wanted), &ends)?;
    expect(ends[0].2.contains("choose another `HIR_MASTER_PORT`"), &ends)
}

/// All ranks have the secret. The last one is missing, so that both processes of the other one meet rank 0.
fn a_rank_that_starts_twice_is_named() -> Result<(), Failed> {
    for (twice, wanted) in [(0, "cannot listen"), (1, "two processes claim to be rank 1")] {
        let port = port()?;
        let start = |at: usize| {
            let mut command = rank(at, 3, port, &[QUICK, "-T", "3"]);
            command.env("HIR_JOB_SECRET", "0123456789abcdef".repeat(2)).spawn()
        };
        let ends = end([0, 1, twice].into_iter().map(start).collect::<Result<_, _>>()?, LIMIT)?;
        expect(ends.iter().all(|it| it.0 == Some(6)), &ends)?;
        expect(ends.iter().any(|it| it.2.contains(wanted)), &ends)?;
    }
    Ok(())
}

/// A short version of what `fuzz/targets/wire.rs` tests for hours.
fn any_bytes_are_refused() -> Result<(), Failed> {
    let mut rng = Rng(7);
    for _ in 0..300 {
        let length = rng.below(100);
        let bytes: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
        wire::run(&bytes)?;
        // Small byte values form valid messages more often.
        let bytes: Vec<u8> = bytes.iter().map(|it| it % 10).collect();
        wire::run(&bytes)?;
    }
    Ok(())
}

/// Ranks that wait for another one end with the signal, and leave no secret.
fn a_signal_stops_ranks_that_wait() -> Result<(), Failed> {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let folder = std::env::temp_dir().join(format!("hir-stopped-{signal}-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let port = port()?;
        let start = |at: usize| {
            let mut command = rank(at, 3, port, &[QUICK, "-T", "20"]);
            command.env_remove("HIR_JOB_SECRET").env("XDG_RUNTIME_DIR", &folder).spawn()
        };
        let children = (0..2).map(start).collect::<Result<Vec<_>, _>>()?;
        // Rank 0 has published its secret.
        let published = || fs::read_dir(folder.join("hir")).is_ok_and(|mut it| it.next().is_some());
        let begin = Instant::now();
        while !published() && begin.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(1000));
        let stopped = Instant::now();
        Command::new("kill").args([format!("-{signal}"), children[0].id().to_string()]).status()?;
        let ends = end(children, LIMIT)?;
        expect(
            ends.iter().all(|it| it.0 == Some(code)) && stopped.elapsed() < Duration::from_secs(5),
            &ends,
        )?;
        expect(ends[0].1 == format!("[STOPPED] rank 0: received SIG{signal}\n") && !published(), &ends)?;
        fs::remove_dir_all(&folder)?;
    }
    Ok(())
}

/// Rank 0 is killed while ranks wait for the last one.
fn a_rank_0_that_is_killed_has_one_verdict() -> Result<(), Failed> {
    let port = port()?;
    let start = |at: usize| rank(at, 4, port, &[QUICK, "-T", "20"]).spawn();
    let mut children = (0..3).map(start).collect::<Result<Vec<_>, _>>()?;
    thread::sleep(Duration::from_millis(1500));
    children[0].kill()?;
    let ends = end(children, LIMIT)?;
    let verdicts: usize = ends.iter().map(|it| it.1.matches("[FAILED] rank 0 is silent").count()).sum();
    expect(verdicts == 1 && ends[1..].iter().all(|it| it.0 == Some(4)), &ends)
}

/// Rank 1 connects with rank 0 through this process, which changes a bit of what it reads for the `chunk`th time in one direction: 0
/// is that to rank 0. Returns whether it has done so.
fn change_bit(port: u16, direction: usize, chunk: usize) -> io::Result<Arc<AtomicBool>> {
    let (listener, is_done) = (TcpListener::bind(("127.0.0.2", port))?, Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&is_done);
    let forward = move |at: usize, mut from: TcpStream, mut to: TcpStream, done: &AtomicBool| {
        let mut bytes = [0; 65536];
        for count in 0.. {
            let Ok(length @ 1..) = from.read(&mut bytes) else { break };
            bytes[length - 1] ^= u8::from((at, count) == (direction, chunk) && !done.swap(true, Relaxed));
            if to.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    };
    thread::spawn(move || {
        for near in listener.incoming() {
            // Rank 0 may not listen yet. Rank 1 then tries again.
            let far = TcpStream::connect(("127.0.0.1", port)).and_then(|it| Ok((it.try_clone()?, it)));
            let (Ok((near, also)), Ok((far, too))) = (near.and_then(|it| Ok((it.try_clone()?, it))), far)
            else {
                continue;
            };
            for (at, from, to) in [(0, near, far), (1, too, also)] {
                let done = Arc::clone(&done);
                thread::spawn(move || forward(at, from, to, &done));
            }
        }
    });
    Ok(is_done)
}

/// The last records are those in which ranks leave.
fn a_changed_bit_ends_all_ranks() -> Result<(), Failed> {
    let (folder, path) = program("changed")?;
    // The first ones belong to the handshake, after which ranks connect again.
    for (direction, first) in [(0, 2), (1, 1)] {
        for chunk in first.. {
            let port = port()?;
            let is_done = change_bit(port, direction, chunk)?;
            let start = |at: usize| {
                let mut command = rank(at, 2, port, &[&path, "-T", "10"]);
                command.env("HIR_MASTER_ADDR", ["127.0.0.1", "127.0.0.2"][at]).spawn()
            };
            let ends = end((0..2).map(start).collect::<Result<_, _>>()?, LIMIT)?;
            let code = if is_done.load(Relaxed) { 6 } else { 0 };
            let verdicts: usize =
                ends.iter().map(|it| it.1.lines().filter(|it| it.starts_with('[')).count()).sum();
            expect(ends.iter().all(|it| it.0 == Some(code)) && verdicts == 1, &ends)?;
            if code == 0 {
                expect(chunk > first + 2, &ends)?;
                break;
            }
        }
    }
    Ok(fs::remove_dir_all(folder)?)
}

/// A shell stands for a launcher: it has no rank, and its children have.
fn no_rank_outlives_its_launcher() -> Result<(), Failed> {
    let (port, folder) = (port()?, std::env::temp_dir().join(format!("hir-launcher-{}", std::process::id())));
    fs::create_dir_all(&folder)?;
    let mut script = String::new();
    // Of five ranks, two wait for the others; four of four run.
    for (at, world, port) in [
        (0, 5, port),
        (1, 5, port),
        (0, 4, port + 40),
        (1, 4, port + 40),
        (2, 4, port + 40),
        (3, 4, port + 40),
    ] {
        script += &format!(
            "RANK={at} WORLD_SIZE={world} LOCAL_RANK={at} LOCAL_WORLD_SIZE={world} TORCHELASTIC_RUN_ID={port} MASTER_PORT={port} \
             sh -c '\"$HIR\" {QUICK} --device=sim --schedule=seed:0..100000 -T 30 >/dev/null 2>&1; echo $? >{}' & ",
            folder.join(format!("{world}-{at}")).display()
        );
    }
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script} wait")]).env("HIR", env!("CARGO_BIN_EXE_hir-run"));
    let mut launcher = command.current_dir(ROOT).stdout(Stdio::piped()).spawn()?;
    thread::sleep(Duration::from_secs(2));
    launcher.kill()?;
    launcher.wait()?;
    let begin = Instant::now();
    let ended = || fs::read_dir(&folder).map(Iterator::count).unwrap_or(0);
    while ended() < 6 && begin.elapsed() < Duration::from_secs(5) {
        thread::sleep(Duration::from_millis(50));
    }
    let codes: Vec<String> =
        fs::read_dir(&folder)?.filter_map(|it| fs::read_to_string(it.ok()?.path()).ok()).collect();
    fs::remove_dir_all(&folder)?;
    // Rank 0 of each job has opened it.
    let mut said = String::new();
    launcher.stdout.take().ok_or("no standard output")?.read_to_string(&mut said)?;
    let verdicts =
        said.lines().filter(|it| it.starts_with("[FAILED] ") && it.ends_with("its launcher has ended"));
    if codes.len() == 6 && codes.iter().all(|it| it.trim() == "4") && verdicts.count() == 2 {
        Ok(())
    } else {
        Err(format!("{codes:?}\n{said}").into())
    }
}
