//! Rank 0's side of the rendezvous: admits connections concurrently, each with its own deadline, until every
//! rank has joined.
//!
//! A connection that has not authenticated costs a few bytes of memory, and the number of these connections
//! is bounded. So nobody can delay the ranks by connecting without sending anything.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    os::fd::AsFd,
    thread,
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
    secret::Secret,
    session::{self, HELLO_BYTES, HandshakeError, InvalidRecord, JOIN_BYTES, JobKey, Opener, Sealer},
};

/// Maximum number of connections that have not completed the handshake. At the limit, a new connection
/// replaces the oldest one, preferably one that has sent no valid greeting.
const MAX_PENDING: usize = 256;
/// Maximum number of connections to accept before serving the pending ones.
const MAX_ACCEPTED: usize = 32;
/// Time to read the last message of a rank that has joined and leaves.
const LAST_MESSAGE_WAIT: Duration = Duration::from_secs(1);
/// Pause after an error of the listener itself, as in a process that has too many files open.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Listens on the interface that the address names, and on no other. Returns the listener and its port.
///
/// # Errors
/// Returns an error if the address is not one of this host, if other hosts cannot reach it, or if no port is
/// free.
pub(super) fn bind(address: &Address) -> Result<(TcpListener, u16)> {
    let resolved: Vec<SocketAddr> = (address.host.as_str(), address.port)
        .to_socket_addrs()
        .map_err(|fault| address.fault(format!("rank 0 cannot resolve the address: {fault}")))?
        .collect();
    let usable = |it: &&SocketAddr| !(address.is_multi_host && it.ip().is_loopback());
    let interfaces: Vec<&SocketAddr> = resolved.iter().filter(usable).collect();
    if interfaces.is_empty() {
        let message = "on rank 0's host this is the loopback interface, which other hosts cannot reach: name another one in \
                       `HIR_MASTER_ADDR`";
        return Err(address.fault(message.to_owned()));
    }
    let mut last = None;
    for port in address.candidates() {
        for interface in &interfaces {
            match TcpListener::bind(with_port(**interface, port)) {
                Ok(listener) => return Ok((listener, port)),
                Err(fault) => last = Some(fault),
            }
        }
    }
    let why = match last {
        Some(fault) if fault.kind() == io::ErrorKind::AddrNotAvailable => {
            "this is not an address of rank 0's host; name one in `HIR_MASTER_ADDR`".to_owned()
        }
        Some(fault) => format!("{fault}; choose another `HIR_MASTER_PORT`"),
        None => "choose another `HIR_MASTER_PORT`".to_owned(),
    };
    Err(address.fault(format!("rank 0 cannot listen: {why}")))
}

/// A connection that is not admitted yet.
enum Candidate {
    /// A connection that has not sent a greeting.
    Unknown(Pending<HELLO_BYTES>),
    /// A connection that claims to be `rank` and has been answered.
    Answered { pending: Pending<JOIN_BYTES>, rank: usize, sealer: Sealer, opener: Opener },
}

impl Candidate {
    fn since(&self) -> Instant {
        match self {
            Self::Unknown(it) => it.since,
            Self::Answered { pending, .. } => pending.since,
        }
    }
}

/// The result of advancing a candidate.
enum CandidateStatus {
    Waiting(Candidate),
    Joined(usize, Connection),
    Refused(HandshakeError),
    /// The other end has closed the connection.
    Left,
}

/// Counts of the connections that were not admitted.
#[derive(Default)]
struct Rejected {
    /// Connections that do not follow hir's protocol or send nothing.
    strangers: usize,
    /// Connections that have another secret or version, or belong to another job.
    unauthenticated: usize,
}

impl Rejected {
    fn count(&mut self, reason: HandshakeError) {
        match reason {
            HandshakeError::NotHir => self.strangers += 1,
            HandshakeError::Unauthenticated => self.unauthenticated += 1,
        }
    }
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let connections = |count: usize| match count {
            1 => "1 connection".to_owned(),
            _ => format!("{count} connections"),
        };
        if self.unauthenticated > 0 {
            let count = connections(self.unauthenticated);
            write!(f, "; {count} had another secret or another version of hir, or belonged to another job")?;
        }
        if self.strangers > 0 {
            write!(f, "; {} did not authenticate", connections(self.strangers))?;
        }
        Ok(())
    }
}

/// Waits for all other ranks, and returns their connections by rank, from rank 1. Informs every rank that has
/// joined of the outcome.
///
/// # Errors
/// Returns an error if ranks have not joined at the deadline or have left, or if this rank has to stop.
pub(super) fn admit(
    listener: &TcpListener,
    address: &Address,
    key: &JobKey,
    limits: (Instant, &dyn Fn() -> Option<LaunchError>),
) -> Result<Vec<Connection>> {
    let run = Secret::random()?.bytes().iter().fold(0, |run, it| run << 8 | u128::from(*it));
    let mut joined: Vec<Option<Connection>> = (1..key.world).map(|_| None).collect();
    let mut candidates = Vec::new();
    let complete = admit_into((joined.as_mut_slice(), &mut candidates), listener, address, key, limits);
    let message = match &complete {
        Ok(()) => Message::Welcome(run),
        Err(fault) => Message::Fault(fault.clone()),
    };
    for connection in joined.iter_mut().flatten() {
        // If a rank is lost again already, the channel notices it later.
        let _ = connection.send(&message);
    }
    // Those whose last message has not arrived yet learn the reason, too.
    for candidate in candidates.into_iter().filter(|_| complete.is_err()) {
        if let Candidate::Answered { mut pending, mut sealer, .. } = candidate {
            let _ = sealer.seal(&message).and_then(|it| pending.send(&it));
        }
    }
    complete.map(|()| joined.into_iter().flatten().collect())
}

fn admit_into(
    (joined, candidates): (&mut [Option<Connection>], &mut Vec<Candidate>),
    listener: &TcpListener,
    address: &Address,
    key: &JobKey,
    (deadline, stop): (Instant, &dyn Fn() -> Option<LaunchError>),
) -> Result<()> {
    let lost = |fault: io::Error| address.fault(format!("rank 0 cannot listen: {fault}"));
    listener.set_nonblocking(true).map_err(lost)?;
    let mut rejected = Rejected::default();
    while joined.iter().any(Option::is_none) {
        if let Some(fault) = stop() {
            return Err(fault);
        }
        let now = Instant::now();
        if now >= deadline {
            rejected.strangers += candidates.len();
            let missing: Vec<usize> =
                (1..).zip(&*joined).filter(|(_, it)| it.is_none()).map(|(rank, _)| rank).collect();
            return Err(address.fault(format!("ranks {missing:?} of {} did not join{rejected}", key.world)));
        }
        let soonest = candidates.iter().map(|it| it.since() + HANDSHAKE_TIMEOUT).chain([deadline]).min();
        let patience = soonest.unwrap_or(deadline).saturating_duration_since(now).min(STOP_INTERVAL);
        let unknown = candidates.iter().map(|it| match it {
            Candidate::Unknown(it) => it.as_fd(),
            Candidate::Answered { pending, .. } => pending.as_fd(),
        });
        let known = joined.iter().flatten().map(|it| it.stream.as_fd());
        pending::wait_readable([listener.as_fd()].into_iter().chain(unknown).chain(known), patience)
            .map_err(lost)?;
        accept(listener, candidates, &mut rejected);
        for candidate in std::mem::take(candidates) {
            let late = candidate.since().elapsed() > HANDSHAKE_TIMEOUT;
            match advance(candidate, key) {
                CandidateStatus::Waiting(_) if late => rejected.strangers += 1,
                CandidateStatus::Waiting(it) => candidates.push(it),
                CandidateStatus::Refused(reason) => rejected.count(reason),
                CandidateStatus::Left => rejected.strangers += 1,
                CandidateStatus::Joined(rank, mut connection) => match joined.get_mut(rank - 1) {
                    Some(place @ None) => *place = Some(connection),
                    _ => {
                        let fault = address.fault(format!("two processes claim to be rank {rank}"));
                        let _ = connection.send(&Message::Fault(fault.clone()));
                        return Err(fault);
                    }
                },
            }
        }
        if let Some(fault) =
            joined.iter_mut().zip(1..).find_map(|(it, rank)| departure_fault(it.as_mut()?, rank))
        {
            return Err(fault);
        }
    }
    Ok(())
}

fn accept(listener: &TcpListener, candidates: &mut Vec<Candidate>, rejected: &mut Rejected) {
    for _ in 0..MAX_ACCEPTED {
        match listener.accept() {
            Ok((stream, _)) => {
                if candidates.len() >= MAX_PENDING {
                    let is_unknown = |it: &Candidate| matches!(it, Candidate::Unknown(_));
                    candidates.remove(candidates.iter().position(is_unknown).unwrap_or(0));
                    rejected.strangers += 1;
                }
                if let Ok(pending) = Pending::new(stream, Instant::now()) {
                    candidates.push(Candidate::Unknown(pending));
                }
            }
            Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => return,
            // The peer was gone before its connection was accepted, or this process has too many files open.
            Err(_) => {
                thread::sleep(ACCEPT_RETRY_PAUSE);
                return;
            }
        }
    }
}

fn advance(candidate: Candidate, key: &JobKey) -> CandidateStatus {
    match candidate {
        Candidate::Unknown(mut pending) => {
            let hello = match pending.receive() {
                Ok(Some(hello)) => hello,
                Ok(None) => return CandidateStatus::Waiting(Candidate::Unknown(pending)),
                Err(_) => return CandidateStatus::Left,
            };
            match session::answer(key, &hello) {
                Err(reason) => CandidateStatus::Refused(reason),
                Ok((rank, answer, sealer, opener)) => match pending.send(&answer) {
                    Err(_) => CandidateStatus::Left,
                    Ok(()) => {
                        let pending = pending.expect();
                        advance(Candidate::Answered { pending, rank, sealer, opener }, key)
                    }
                },
            }
        }
        Candidate::Answered { mut pending, rank, mut sealer, mut opener } => {
            let join = match pending.receive() {
                Ok(Some(join)) => join,
                Ok(None) => {
                    return CandidateStatus::Waiting(Candidate::Answered { pending, rank, sealer, opener });
                }
                Err(_) => return CandidateStatus::Left,
            };
            match (opener.read(&mut join.as_slice()), pending.into_stream()) {
                (Ok(Message::Join), Ok(stream)) => {
                    CandidateStatus::Joined(rank, Connection { stream, sealer, opener })
                }
                (Err(_) | Ok(_), Ok(mut stream)) => {
                    // If it has the secret after all, it must not take the closed connection for the end of rank 0.
                    let altered = io::Error::new(io::ErrorKind::InvalidData, InvalidRecord);
                    let fault = Message::Fault(LaunchError::of_connection([0, rank], &altered));
                    let _ = sealer.seal(&fault).and_then(|it| stream.write_all(&it));
                    CandidateStatus::Refused(HandshakeError::Unauthenticated)
                }
                (_, Err(_)) => CandidateStatus::Left,
            }
        }
    }
}

/// Returns the reason why a rank that has joined no longer waits for the others, if it has left.
fn departure_fault(connection: &mut Connection, rank: usize) -> Option<LaunchError> {
    let is_waiting = |stream: &TcpStream| {
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        peeked.map(|_| ())
    };
    match is_waiting(&connection.stream) {
        Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => return None,
        Err(_) => return Some(LaunchError::Gone { rank }),
        Ok(()) => (),
    }
    // It has sent the reason for which it leaves, or its process has ended.
    let _ = connection.stream.set_read_timeout(Some(LAST_MESSAGE_WAIT));
    match connection.opener.read(&mut &connection.stream) {
        Ok(Message::Fault(fault)) => Some(fault),
        Ok(_) => {
            Some(LaunchError::Protocol { rank, fault: "sent a message before all had joined".to_owned() })
        }
        Err(fault) => Some(LaunchError::of_connection([0, rank], &fault)),
    }
}
