//! The side of the other ranks in the rendezvous: each tries all ports on which rank 0 may listen,
//! concurrently, until rank 0 proves that it has the job's secret.

use std::{
    io,
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use super::{
    Address, Connection, HANDSHAKE_TIMEOUT, STOP_INTERVAL,
    pending::{self, Pending},
    with_port,
};
use crate::{
    LaunchError, Result,
    message::Message,
    secret::published::ReadFault,
    session::{ANSWER_BYTES, Initiator, JobKey},
};

/// Time for the operating system to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum and maximum pause between two rounds of attempts. Within these limits, the pause is an eighth of
/// the time that has passed.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(20));
/// Additional time for rank 0, whose deadline may be later than this rank's, to report which ranks did not
/// join.
const REPORT_WAIT: Duration = Duration::from_secs(2);

/// A handshake in progress.
struct Attempt {
    to: SocketAddr,
    pending: Pending<ANSWER_BYTES>,
    initiator: Initiator,
}

/// The reason why rank 0 is not found. The order is from the least to the most informative.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum DialFailure {
    Nothing,
    /// The address cannot be resolved, or no process has published a secret.
    Unknown(String),
    NobodyListens,
    Unreachable(String),
    /// The process that listens does not have the secret.
    Refused(SocketAddr),
    /// The process that listens does not answer.
    Unanswered(SocketAddr),
}

impl std::fmt::Display for DialFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => f.write_str("no time was left to connect"),
            Self::Unknown(why) => f.write_str(why),
            Self::NobodyListens => f.write_str("no process listens there"),
            Self::Unreachable(why) => f.write_str(why),
            Self::Refused(at) => write!(
                f,
                "a process of another job, or with another secret or another version of hir, listens at {at}; choose another `HIR_MASTER_PORT`"
            ),
            Self::Unanswered(at) => write!(
                f,
                "{at} accepts the connection and does not answer: rank 0 is stopped or busy, or it is not a process of hir"
            ),
        }
    }
}

/// Connects with rank 0. `key` returns the job key and, if it is known, the port on which rank 0 listens.
///
/// # Errors
/// Returns the most informative reason for which rank 0 is not found at the deadline.
pub(super) fn dial(
    address: &Address,
    rank: usize,
    world: usize,
    (deadline, stop): (Instant, &dyn Fn() -> Option<LaunchError>),
    mut key: impl FnMut() -> Result<(JobKey, Option<u16>), ReadFault>,
) -> Result<Connection> {
    let start = Instant::now();
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut last = DialFailure::Nothing;
    loop {
        if let Some(fault) = stop() {
            return Err(fault);
        }
        // The most informative failure of this round.
        let mut found = DialFailure::Nothing;
        match key() {
            Err(why) => found = DialFailure::Unknown(why.to_string()),
            Ok((key, port)) => match targets(address, port) {
                Err(fault) => found = fault,
                Ok(targets) => {
                    for to in targets {
                        if !attempts.iter().any(|it| it.to == to) {
                            match start_attempt(&key, rank, to, deadline) {
                                Ok(attempt) => attempts.push(attempt),
                                Err(fault) => found = found.max(fault),
                            }
                        }
                    }
                }
            },
        }
        let has_slept = attempts.is_empty();
        let pause = (start.elapsed() / 8).clamp(RETRY_PAUSES.0, RETRY_PAUSES.1);
        let waits = pending::wait_readable(attempts.iter().map(|it| it.pending.as_fd()), pause);
        waits.map_err(|fault| address.fault(format!("rank {rank} cannot wait: {fault}")))?;
        for mut attempt in std::mem::take(&mut attempts) {
            match attempt.pending.receive() {
                Ok(Some(answer)) => match complete_attempt(attempt, &answer) {
                    Ok(connection) => return Ok(connection),
                    Err(fault) => found = found.max(fault),
                },
                Ok(None) if attempt.pending.since.elapsed() > HANDSHAKE_TIMEOUT => {
                    found = found.max(DialFailure::Unanswered(attempt.to));
                }
                Ok(None) => attempts.push(attempt),
                Err(_) => found = found.max(DialFailure::Refused(attempt.to)),
            }
        }
        // Keeps the most informative reason: rank 0 may have given up and closed its port before this rank's
        // deadline.
        if found >= last {
            last = found;
        }
        if Instant::now() >= deadline {
            let unanswered = attempts.first().map(|it| DialFailure::Unanswered(it.to));
            let last = unanswered.unwrap_or(last);
            return Err(address.fault(format!("rank {rank} of {world} did not find rank 0: {last}")));
        }
        // A process that refuses a connection does so at once.
        if attempts.is_empty() && !has_slept {
            std::thread::sleep(pause);
        }
    }
}

fn targets(address: &Address, port: Option<u16>) -> Result<Vec<SocketAddr>, DialFailure> {
    let resolved = (address.host.as_str(), address.port).to_socket_addrs();
    let unknown = |fault| DialFailure::Unknown(format!("the address cannot be resolved: {fault}"));
    let resolved = resolved.map_err(unknown)?;
    let interfaces: Vec<SocketAddr> = resolved.collect();
    let ports: Vec<u16> = port.map_or_else(|| address.candidates().collect(), |it| vec![it]);
    Ok(ports.iter().flat_map(|port| interfaces.iter().map(|it| with_port(*it, *port))).collect())
}

fn start_attempt(
    key: &JobKey,
    rank: usize,
    to: SocketAddr,
    deadline: Instant,
) -> Result<Attempt, DialFailure> {
    let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT_TIMEOUT);
    let stream =
        TcpStream::connect_timeout(&to, left.max(RETRY_PAUSES.0)).map_err(|fault| match fault.kind() {
            io::ErrorKind::ConnectionRefused => DialFailure::NobodyListens,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                DialFailure::Unreachable(format!("{to} does not answer"))
            }
            _ => DialFailure::Unreachable(format!("{to}: {fault}")),
        })?;
    let (initiator, hello) = Initiator::new(key, rank).map_err(|it| DialFailure::Unknown(it.to_string()))?;
    let mut pending = Pending::new(stream, Instant::now()).map_err(|_| DialFailure::Refused(to))?;
    pending.send(&hello).map_err(|_| DialFailure::Refused(to))?;
    Ok(Attempt { to, pending, initiator })
}

fn complete_attempt(attempt: Attempt, answer: &[u8; ANSWER_BYTES]) -> Result<Connection, DialFailure> {
    let refused = DialFailure::Refused(attempt.to);
    let (sealer, opener) = attempt.initiator.finish(answer).map_err(|_| refused.clone())?;
    let stream = attempt.pending.into_stream().map_err(|_| refused.clone())?;
    let mut connection = Connection { stream, sealer, opener };
    connection.send(&Message::Join).map_err(|_| refused)?;
    Ok(connection)
}

/// Waits until all ranks have joined. Also returns the number of this run.
///
/// # Errors
/// Returns the fault that rank 0 reports, or an error if rank 0 sends nothing.
pub(super) fn await_welcome(
    mut connection: Connection,
    address: &Address,
    rank: usize,
    (patience, stop): (Duration, &dyn Fn() -> Option<LaunchError>),
) -> Result<(Connection, u128)> {
    let start = Instant::now();
    let lost = |fault: io::Error| match fault.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => address.fault(format!(
            "rank 0 admitted rank {rank} and then sent nothing for {} s: its process is stopped or busy",
            start.elapsed().as_secs()
        )),
        // Rank 0 sends its reason for giving up to all that have the secret. So it was killed.
        _ => LaunchError::of_connection([rank, 0], &fault),
    };
    let is_over = || start.elapsed() > patience + REPORT_WAIT;
    connection.stream.set_write_timeout(Some(REPORT_WAIT)).map_err(lost)?;
    while !is_over() {
        if let Some(fault) = stop() {
            let _ = connection.send(&Message::Fault(fault.clone()));
            return Err(fault);
        }
        let mut readable = false;
        let mut poll = || {
            pending::wait_readable([connection.stream.as_fd()].into_iter(), STOP_INTERVAL)?;
            connection.stream.set_nonblocking(true)?;
            readable =
                !connection.stream.peek(&mut [0]).is_err_and(|it| it.kind() == io::ErrorKind::WouldBlock);
            connection.stream.set_nonblocking(false)
        };
        poll().map_err(lost)?;
        if readable {
            break;
        }
    }
    let left = (patience + REPORT_WAIT).saturating_sub(start.elapsed()).max(RETRY_PAUSES.0);
    connection.stream.set_read_timeout(Some(left)).map_err(lost)?;
    match connection.receive() {
        Ok(Message::Welcome(run)) => {
            connection.stream.set_read_timeout(None).map_err(lost)?;
            Ok((connection, run))
        }
        Ok(Message::Fault(fault)) => Err(fault),
        Ok(_) => Err(LaunchError::Protocol { rank: 0, fault: "sent no welcome".to_owned() }),
        Err(fault) => {
            let fault = lost(fault);
            // If rank 0 continues later, it learns that this rank gave up and was not killed.
            let _ = connection.send(&Message::Fault(fault.clone()));
            Err(fault)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link-local address of IPv6 needs the interface.
    #[test]
    fn the_scope_of_an_address_is_kept() {
        let job = String::new();
        let address = Address { host: "fe80::1%1".to_owned(), port: 9, ports: 2, job, is_multi_host: true };
        let found = targets(&address, None).unwrap_or_default();
        let has_scope = |it: &SocketAddr| matches!(it, SocketAddr::V6(it) if it.scope_id() == 1);
        let scopes: Vec<_> = found.iter().map(|it| (it.port(), has_scope(it))).collect();
        assert_eq!(scopes, [(9, true), (10, true)]);
    }
}
