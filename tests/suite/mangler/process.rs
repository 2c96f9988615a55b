//! Runs a tool with limits on its time and its memory.

use std::{
    fs::{self, File},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};

/// The number of ticks in a second.
const TICKS: u64 = 100;
/// The limit on the time that passes.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The memory, in KiB, beyond which a process is killed, and the address space, in bytes, that it never exceeds.
const MEMORY_LIMIT: u64 = 2 << 20;
const ADDRESS_SPACE: u64 = 12 << 30;
/// Maximum number of bytes of an output that is read.
const OUTPUT_LIMIT: usize = 8 << 20;

/// How a process ended.
pub struct Ended {
    /// Why it was killed, if it was.
    pub killed: Option<&'static str>,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Returns the verdict on the end of the process by itself: a limit, a signal, or an internal error.
    pub fn verdict(&self) -> Option<&'static str> {
        match (self.killed, self.status.signal(), self.status.code()) {
            (Some(limit), ..) => Some(limit),
            (None, Some(_), _) => Some("signal"),
            (None, None, Some(101)) => Some("internal error"),
            (None, None, _) => None,
        }
    }
}

/// Runs a command whose output goes to two files of a folder. Its threads may compute for `seconds` in all: it shares the
/// machine with other processes, so the time that passes says little.
pub fn run(command: &mut Command, folder: &Path, seconds: u64) -> io::Result<Ended> {
    let [out, err] = ["stdout", "stderr"].map(|it| folder.join(it));
    command.stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?).process_group(0);
    let mut child = command.spawn()?;
    let limit = Rlimit { current: Some(ADDRESS_SPACE), maximum: Some(ADDRESS_SPACE) };
    let _ = prlimit(Some(Pid::from_child(&child)), Resource::As, limit);
    let (killed, status) = wait(&mut child, seconds)?;
    Ok(Ended { killed, status, stdout: text(&out)?, stderr: text(&err)? })
}

/// Waits for the end of a process, and kills it at a limit.
fn wait(child: &mut Child, seconds: u64) -> io::Result<(Option<&'static str>, ExitStatus)> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(500);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((None, status));
        }
        let limit = if cpu_ticks(child.id()) > seconds * TICKS {
            Some("time")
        } else if start.elapsed() > TIME_LIMIT {
            Some("no end")
        } else {
            (resident_memory(child.id()) > MEMORY_LIMIT).then_some("2 GB")
        };
        if let Some(limit) = limit {
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            return Ok((Some(limit), child.wait()?));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Returns the time that the threads of a process have computed, in ticks: the 14th and 15th field of `stat`, of which
/// the second is a name in parentheses (man 5 proc).
fn cpu_ticks(id: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    behind_name.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok()).sum()
}

/// Returns the largest memory of a process so far, in KiB; 0 as long as it has not replaced the program of this process,
/// whose memory it shares until then.
fn resident_memory(id: u32) -> u64 {
    let program = |id: &str| fs::read_link(format!("/proc/{id}/exe")).ok();
    if program(&id.to_string()) == program("self") {
        return 0;
    }
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    line.and_then(|it| it.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

fn text(path: &Path) -> io::Result<String> {
    let mut bytes = fs::read(path)?;
    bytes.truncate(OUTPUT_LIMIT);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
