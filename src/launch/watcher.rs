//! Prints the verdict of a job whose launcher kills all ranks at once, so that none of them can.
//!
//! Hydra, the launcher of MPICH, sends SIGKILL to the process group of every rank as soon as one is killed. It first forwards what is
//! written to the pipes that the ranks had. Rank 0 therefore starts a process in a group of its own, whose standard input ends with rank 0.
//! This process reports that the job is lost, unless rank 0 ends it before.

use std::{
    fs,
    os::{fd::OwnedFd, unix::process::CommandExt},
    process::{Child, Command, Stdio},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use hir_process::{exit::Exit, interrupt};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{LaunchError, environment, environment::LaunchInfo, stop};

/// Set for the process that watches rank 0.
const VARIABLE: &str = "HIR_WATCHES_RANKS";
/// Interval between two looks for ranks that the launcher has not started yet.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The process that watches rank 0.
static STARTED: Mutex<Option<Child>> = Mutex::new(None);

/// Ends the process that watches rank 0 when it is dropped.
pub struct Watcher(());

impl Watcher {
    /// Lets `command`, which calls `wait_for_loss`, watch this process, if this is rank 0 and its launcher is Hydra. If the
    /// process does not start, the job has no verdict when its launcher kills it, and runs nevertheless.
    pub fn start(launch: &LaunchInfo, command: impl FnOnce() -> Option<Command>) -> Self {
        let is_needed = launch.rank == 0 && is_of_hydra();
        let start =
            |mut it: Command| it.env(VARIABLE, "1").process_group(0).stdin(Stdio::piped()).spawn().ok();
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        *started = is_needed.then(command).flatten().and_then(start);
        Self(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        dismiss();
    }
}

/// Ends the process that watches this one, because this one has printed the verdict.
pub fn dismiss() {
    if let Some(mut child) = STARTED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns whether the process that watches rank 0 reports a fault, so that no other rank does.
pub(super) fn reports(fault: &LaunchError) -> bool {
    matches!(fault, LaunchError::Gone { rank: 0 }) && is_of_hydra()
}

pub(super) fn is_of_hydra() -> bool {
    std::env::var_os("HYDI_CONTROL_FD").is_some()
}

/// Waits until rank 0 is lost, in the process that watches it, and returns what the verdict says. Returns `None` in any other process.
pub fn wait_for_loss() -> Option<String> {
    std::env::var_os(VARIABLE)?;
    // Rank 0 reports the signals that all processes receive.
    let _ = interrupt::store_first_signal(&Arc::default());
    LazyLock::force(&stop::OUTPUT);
    let launch = environment::detect(|name| std::env::var(name).ok()).ok().flatten();
    // The launcher of another host may be the first that kills.
    let local = launch.filter(|it| it.local_size == Some(it.world));
    let first = wait_for_end_of_input(local.as_ref());
    if stop::launcher_output(Exit::Hang).is_some() {
        return Some("the launcher has ended".to_owned());
    }
    let unknown = "the launcher has killed all ranks: the process of one was killed or has ended".to_owned();
    Some(first.map_or(unknown, |rank| LaunchError::Gone { rank }.to_string()))
}

/// Returns the rank that ended before all others, if it is known.
fn wait_for_end_of_input(launch: Option<&LaunchInfo>) -> Option<usize> {
    let input = std::io::stdin();
    let variable = launch.and_then(|it| environment::rank_variable(it.launcher));
    let launcher = variable.and_then(|it| stop::chain_to_launcher(it).last().map(|it| it.1));
    let mut ranks: Vec<(usize, OwnedFd)> = Vec::new();
    // The ranks that ended first, more than one if this process noticed them together.
    let mut first: Vec<usize> = Vec::new();
    loop {
        let are_missing = first.is_empty() && launch.is_some_and(|it| ranks.len() < it.world);
        if let (true, Some(variable), Some(launcher)) = (are_missing, variable, launcher) {
            ranks = ranks_of(launcher, variable);
        }
        let watched = if first.is_empty() { &ranks[..] } else { &[] };
        let mut fds: Vec<_> = watched.iter().map(|it| PollFd::new(&it.1, PollFlags::IN)).collect();
        fds.push(PollFd::new(&input, PollFlags::IN));
        let ended = poll(&mut fds, are_missing.then_some(&LOOK_INTERVAL));
        let is_ready = |it: &PollFd<'_>| ended.is_ok() && !it.revents().is_empty();
        let is_over = fds.pop().is_some_and(|it| is_ready(&it));
        first.extend(watched.iter().zip(&fds).filter(|it| is_ready(it.1)).map(|it| it.0.0));
        if is_over {
            return if let [rank] = first[..] { Some(rank) } else { None };
        }
    }
}

/// Returns the ranks that a launcher has started, as children whose environment has a variable.
fn ranks_of(launcher: u32, variable: &str) -> Vec<(usize, OwnedFd)> {
    let children = fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children"));
    let rank = |process: &str| {
        let rank = stop::variable_of(process.parse().ok()?, variable)?.parse().ok()?;
        Some((rank, pidfd_open(Pid::from_raw(process.parse().ok()?)?, PidfdFlags::empty()).ok()?))
    };
    children.unwrap_or_default().split_whitespace().filter_map(rank).collect()
}
