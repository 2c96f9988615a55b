//! Why a rank has to stop although nothing in the job has failed: it received a signal, or its launcher has ended.
//!
//! The launcher is the nearest ancestor process to which the rank's variable was not given. A process between it and the rank, such as
//! a shell, has the variable. The launcher has ended if a process of this chain has another parent than at the start.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hir_process::{exit::Exit, interrupt};
use rustix::fs::{Mode, OFlags, fstat, open};

use super::{LaunchError, environment, environment::LaunchInfo, watcher};

/// Interval between two looks at the launcher.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What stops a rank.
pub(super) struct Stop {
    rank: usize,
    /// The signal that stops this process, or 0.
    signal: Arc<AtomicUsize>,
    /// The processes from this one to the child of the launcher, each with its parent.
    chain: Vec<(u32, u32)>,
    looked: Mutex<Instant>,
}

impl Stop {
    /// Notices signals and the end of the launcher from now on. Without a launcher, only signals.
    ///
    /// # Errors
    /// Returns the operating system's error if a signal handler cannot be set up.
    pub(super) fn watch(launch: Option<&LaunchInfo>) -> io::Result<Self> {
        let signal = Arc::default();
        interrupt::store_first_signal(&signal)?;
        let chain = launch.and_then(|it| environment::rank_variable(it.launcher)).map(chain_to_launcher);
        let (rank, chain) = (launch.map_or(0, |it| it.rank), chain.unwrap_or_default());
        if rank == 0 {
            LazyLock::force(&OUTPUT);
        }
        Ok(Self { rank, signal, chain, looked: Mutex::new(Instant::now()) })
    }

    /// Returns the process of the launcher, if it is known.
    pub(super) fn launcher(&self) -> Option<u32> {
        self.chain.last().map(|it| it.1)
    }

    /// Returns the exit code and the reason, if this rank has to stop.
    pub(super) fn cause(&self) -> Option<(Exit, String)> {
        let signal = self.signal.load(Relaxed) as i32;
        if signal != 0 {
            return Some((Exit::from_signal(signal), format!("received {}", interrupt::signal_name(signal))));
        }
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() < LOOK_INTERVAL {
            return None;
        }
        *looked = Instant::now();
        let is_lost = self.chain.iter().any(|(process, parent)| parent_of(*process) != Some(*parent));
        is_lost.then(|| (Exit::Hang, "its launcher has ended".to_owned()))
    }

    /// Returns the cause as the fault that ends the job.
    pub(super) fn fault(&self) -> Option<LaunchError> {
        let (exit, reason) = self.cause()?;
        Some(LaunchError::Aborted { rank: self.rank, exit: exit.into(), reason })
    }
}

/// The standard output of the launcher, and the processes of which one is the parent of the other until the launcher ends. `None` where
/// the launcher is on another host.
pub(super) static OUTPUT: LazyLock<Option<(File, u32, u32)>> = LazyLock::new(|| {
    let launch = environment::detect(|name| std::env::var(name).ok()).ok()??;
    let (child, launcher) = *chain_to_launcher(environment::rank_variable(launch.launcher)?).last()?;
    // Hydra has a process between the launcher and the ranks.
    let above = parent_of(launcher).filter(|_| watcher::is_of_hydra());
    let (child, launcher) = above.map_or((child, launcher), |it| (launcher, it));
    let path = format!("/proc/{launcher}/fd/1");
    let is_shown = fs::read_link(&path).is_ok_and(|it| it != Path::new("/dev/null"));
    // A pipe without a reader is not waited for.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = is_shown.then(|| open(path.as_str(), flags, Mode::empty()).ok()).flatten()?;
    Some((file.into(), child, launcher))
});

/// Returns the standard output of a launcher that forwards nothing from its processes any more: it has ended or, as PRRTE, the `mpirun`
/// of Open MPI 5, has received the signal with which a job exits.
pub fn launcher_output(exit: Exit) -> Option<&'static File> {
    let (file, child, launcher) = OUTPUT.as_ref()?;
    // Two open descriptions of one file have offsets of their own: writes to one may overwrite those to the other.
    let own = fstat(io::stdout()).ok()?;
    if fstat(file).is_ok_and(|it| (it.st_dev, it.st_ino) == (own.st_dev, own.st_ino)) {
        return None;
    }
    (kills_at_once(exit) || parent_of(*child) != Some(*launcher)).then_some(file)
}

/// Returns whether the launcher ends its processes as soon as one exits with a code: PRRTE, after a signal.
pub fn kills_at_once(exit: Exit) -> bool {
    exit.is_signal() && std::env::var_os("PRTE_LAUNCHED").is_some()
}

/// Returns the processes from this one to the child of the launcher, each with its parent.
pub(super) fn chain_to_launcher(variable: &str) -> Vec<(u32, u32)> {
    let mut chain = Vec::new();
    let mut process = std::process::id();
    while let Some(parent) = parent_of(process).filter(|it| *it > 1) {
        chain.push((process, parent));
        if variable_of(parent, variable).is_none() {
            return chain;
        }
        process = parent;
    }
    // The launcher is not visible from here, as in a container.
    Vec::new()
}

/// Returns a variable with which a process was started.
pub(super) fn variable_of(process: u32, name: &str) -> Option<String> {
    let variables = fs::read(format!("/proc/{process}/environ")).ok()?;
    let value = |it: &[u8]| {
        Some(String::from_utf8_lossy(it.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?).into_owned())
    };
    variables.split(|it| *it == 0).find_map(value)
}

/// Returns the parent of a process; `None` if it has ended.
fn parent_of(process: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    status.lines().find_map(|it| it.strip_prefix("PPid:"))?.trim().parse().ok()
}
