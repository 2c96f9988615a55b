//! Selects the process that prints the report of a lost job when rank 0, which prints it otherwise, is lost.
//!
//! The other ranks have no connection to each other. The first process of a host that binds an abstract socket named after the run
//! prints the report. The name is random, so that nobody else takes it before, and nothing is left of it when the process ends.

use std::{
    io,
    os::{linux::net::SocketAddrExt, unix::net},
    thread,
    time::{Duration, Instant},
};

/// How long a claim is held, for processes that notice the loss later.
const HELD: Duration = Duration::from_secs(1);

/// The right to print the report. Dropping it takes until the others have noticed the loss.
pub struct ReportClaim {
    _socket: Option<net::UnixListener>,
    since: Instant,
}

impl Drop for ReportClaim {
    fn drop(&mut self) {
        thread::sleep(HELD.saturating_sub(self.since.elapsed()));
    }
}

/// Returns a claim in the first process of this host that calls it for a run, and in every process if there are no abstract sockets.
pub(super) fn claim(run: u128) -> Option<ReportClaim> {
    let name = format!("hir-report-{run:032x}");
    let socket = net::SocketAddr::from_abstract_name(name).and_then(|it| net::UnixListener::bind_addr(&it));
    match socket {
        Err(fault) if fault.kind() == io::ErrorKind::AddrInUse => None,
        it => Some(ReportClaim { _socket: it.ok(), since: Instant::now() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_claims_the_report_of_a_run() {
        let run = u128::from(std::process::id()) << 64;
        let first = claim(run);
        assert!(first.is_some() && claim(run).is_none());
        // Another run of the same job has a report of its own, and a claim ends with its process.
        assert!(claim(run + 1).is_some());
        drop(first);
        assert!(claim(run).is_some());
    }
}
