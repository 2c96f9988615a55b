//! The time that a thread has computed, which does not depend on other processes.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time that this thread has computed so far.
pub fn cpu_time() -> Duration {
    let it = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(it.tv_sec.unsigned_abs(), u32::try_from(it.tv_nsec).unwrap_or(0))
}
