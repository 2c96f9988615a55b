//! Holds what the threads of a channel share: the connections, the data received over them, and the first
//! fault.

use std::{
    collections::VecDeque,
    io,
    net::{Shutdown, TcpStream},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::MAX_GATHERED;
use crate::{
    LaunchError, Result,
    message::{Message, Operation},
    session::{Opener, Sealer},
};
use hir_process::exit::FailureExit;

/// Interval between two heartbeats of a rank.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of pieces of one rank that rank 0 holds and has not consumed. A rank waits for a `Credit`
/// before it sends more.
pub(super) const MAX_PIECES: usize = 4;

/// The time limits of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time for the ranks to find each other.
    pub rendezvous: Duration,
    /// Time after which a connected rank that sends nothing is considered lost.
    pub silence: Duration,
    /// Time for ranks that are alive to call an `all_gather` in which other ranks wait.
    pub step: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            rendezvous: Duration::from_secs(60),
            silence: Duration::from_secs(10),
            step: Duration::from_secs(600),
        }
    }
}

pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) timeouts: Timeouts,
    pub(super) connections: Vec<PeerConnection>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// The connection to a peer. Rank 0 has one to each other rank; the other ranks have one to rank 0.
pub(super) struct PeerConnection {
    pub(super) peer: usize,
    pub(super) stream: TcpStream,
    /// Locked while a message is being sent.
    pub(super) sealer: Mutex<Sealer>,
}

pub(super) struct State {
    /// State of the peer of each connection.
    pub(super) peers: Vec<Peer>,
    /// The contributions of all ranks to an `all_gather`, as far as rank 0 has sent them.
    gathered: Vec<u8>,
    /// Set when `gathered` is complete.
    is_gathered: bool,
    /// Number of pieces that this rank may send to rank 0 now.
    pub(super) credits: usize,
    /// Start of this rank's current wait for others in a collective call.
    pub(super) waiting_since: Option<Instant>,
    pub(super) fault: Option<LaunchError>,
    pub(super) exit_code: Option<FailureExit>,
    pub(super) is_closing: bool,
    /// Set when this rank has sent its last message. A closed connection is then the end of rank 0.
    pub(super) is_leaving: bool,
    pub(super) progress_record: Box<dyn Fn() -> Vec<u8> + Send>,
}

/// A piece of a rank's contribution.
pub(super) struct Piece {
    pub(super) received_at: Instant,
    pub(super) operation: Operation,
    pub(super) has_more: bool,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Peer {
    pub(super) last_heard: Instant,
    pub(super) progress_record: Option<(Instant, Vec<u8>)>,
    pub(super) pieces: VecDeque<Piece>,
    /// Set when the peer has sent its whole contribution to the collective call that rank 0 is in.
    pub(super) has_contributed: bool,
    pub(super) has_left: bool,
}

impl State {
    /// Returns the contributions of all ranks once they are complete.
    pub(super) fn take_gathered(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.is_gathered).then(|| std::mem::take(&mut self.gathered))
    }

    /// Handles a message of a peer. Returns true if the peer has left, or an error that describes how it
    /// violated the protocol.
    fn handle_message(&mut self, rank: usize, at: usize, message: Message) -> Result<bool, &'static str> {
        let now = Instant::now();
        let peer = &mut self.peers[at];
        match message {
            Message::Heartbeat(record) => peer.progress_record = Some((now, record)),
            Message::Goodbye => {
                peer.has_left = true;
                return Ok(true);
            }
            Message::Contribution { operation, more, bytes } if rank == 0 => {
                if peer.pieces.len() == MAX_PIECES {
                    return Err("sent more pieces than its credits allow");
                }
                peer.pieces.push_back(Piece { received_at: now, operation, has_more: more, bytes });
            }
            Message::Credit if rank > 0 && self.credits < MAX_PIECES => self.credits += 1,
            Message::GatheredData { more, bytes } if rank > 0 && !self.is_gathered => {
                if self.gathered.len() + bytes.len() > MAX_GATHERED {
                    return Err("sent more bytes of an all-gather than allowed");
                }
                self.gathered.extend(bytes);
                self.is_gathered = !more;
            }
            Message::ExitCode(exit) if rank > 0 => self.exit_code = Some(exit),
            Message::Join
            | Message::Welcome(_)
            | Message::Contribution { .. }
            | Message::Credit
            | Message::GatheredData { .. }
            | Message::ExitCode(_)
            | Message::Fault(_) => return Err("sent a message that is not allowed now"),
        }
        Ok(false)
    }
}

impl Shared {
    pub(super) fn new(rank: usize, timeouts: Timeouts, links: Vec<PeerConnection>) -> Self {
        let now = Instant::now();
        let peer = |_: &PeerConnection| Peer {
            last_heard: now,
            progress_record: None,
            pieces: VecDeque::new(),
            has_contributed: false,
            has_left: false,
        };
        let state = State {
            peers: links.iter().map(peer).collect(),
            gathered: Vec::new(),
            is_gathered: false,
            credits: MAX_PIECES,
            waiting_since: None,
            fault: None,
            exit_code: None,
            is_closing: false,
            is_leaving: false,
            progress_record: Box::new(Vec::new),
        };
        Self { rank, timeouts, connections: links, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait_for_change<'a>(
        &self,
        state: MutexGuard<'a, State>,
        left: Duration,
    ) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits until `ready` returns a value from what peers have sent. `check_late` on rank 0 bounds the wait.
    pub(super) fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T> {
        let mut state = self.lock();
        state.waiting_since = Some(Instant::now());
        let outcome = loop {
            // Data that has arrived is valid even if its sender was lost afterwards.
            if let Some(it) = ready(&mut state) {
                break Ok(it);
            }
            if let Some(fault) = &state.fault {
                break Err(fault.clone());
            }
            if let Some(at) =
                state.peers.iter().position(|it| it.has_left && it.pieces.is_empty() && !it.has_contributed)
            {
                drop(state);
                let fault = self.record_fault(LaunchError::Gone { rank: self.connections[at].peer });
                state = self.lock();
                break Err(fault);
            }
            state = self.wait_for_change(state, HEARTBEAT_INTERVAL);
        };
        state.waiting_since = None;
        outcome
    }

    /// Returns a fault that names the ranks that others have waited for too long. Only rank 0 can know them.
    fn check_late(&self, state: &State, now: Instant) -> Option<LaunchError> {
        let came = |it: &Peer| it.pieces.front().map(|it| it.received_at);
        let first = state.peers.iter().filter_map(came).chain(state.waiting_since).min()?;
        if self.rank != 0 || now.duration_since(first) <= self.timeouts.step {
            return None;
        }
        let mine = state.waiting_since.is_none().then_some(0);
        let absent = self
            .connections
            .iter()
            .zip(&state.peers)
            .filter(|(_, it)| it.pieces.is_empty() && !it.has_contributed);
        let ranks: Vec<usize> = mine.into_iter().chain(absent.map(|(link, _)| link.peer)).collect();
        // If no rank is missing, the last one has just arrived.
        (!ranks.is_empty())
            .then_some(LaunchError::Late { ranks, seconds: now.duration_since(first).as_secs() })
    }

    pub(super) fn transmit(&self, link: &PeerConnection, message: &Message) -> io::Result<()> {
        let mut sealer = link.sealer.lock().unwrap_or_else(PoisonError::into_inner);
        Self::transmit_locked(link, &mut sealer, message)
    }

    fn transmit_locked(link: &PeerConnection, sealer: &mut Sealer, message: &Message) -> io::Result<()> {
        let records = sealer.seal(message)?;
        io::Write::write_all(&mut &link.stream, &records).inspect_err(|_| {
            // The message may be truncated on the wire, so nothing can follow it.
            let _ = link.stream.shutdown(Shutdown::Both);
        })
    }

    /// Sends a message that the job requires. A failure to send it is a fault.
    pub(super) fn send(&self, link: &PeerConnection, message: &Message) -> Result<()> {
        self.transmit(link, message).map_err(|_| self.record_fault(LaunchError::Gone { rank: link.peer }))
    }

    /// Records a fault, unless one is recorded already, and reports it to the other ranks. Returns the first
    /// fault.
    pub(super) fn record_fault(&self, fault: LaunchError) -> LaunchError {
        let mut state = self.lock();
        if let Some(first) = &state.fault {
            return first.clone();
        }
        state.fault = Some(fault.clone());
        drop(state);
        self.changed.notify_all();
        for link in &self.connections {
            let _ = self.transmit(link, &Message::Fault(fault.clone()));
        }
        fault
    }

    /// Receives messages from one peer until it leaves.
    pub(super) fn receive_loop(&self, at: usize, mut stream: TcpStream, mut opener: Opener) {
        let rank = self.connections[at].peer;
        loop {
            let received = opener.read(&mut stream);
            let mut state = self.lock();
            state.peers[at].last_heard = Instant::now();
            let broken = |fault: &str| LaunchError::Protocol { rank, fault: fault.to_owned() };
            let fault = match received {
                Ok(Message::Fault(fault)) => {
                    drop(state);
                    self.record_fault(fault);
                    continue;
                }
                Ok(message) => match state.handle_message(self.rank, at, message) {
                    Ok(false) => None,
                    Ok(true) => {
                        drop(state);
                        self.changed.notify_all();
                        return;
                    }
                    Err(fault) => Some(broken(fault)),
                },
                Err(fault) => Some(LaunchError::of_connection([self.rank, rank], &fault)),
            };
            let Some(fault) = fault else {
                drop(state);
                self.changed.notify_all();
                continue;
            };
            // Everything that this peer sends from here on is ignored.
            let is_end = state.is_leaving && matches!(fault, LaunchError::Gone { .. });
            let is_over = is_end || state.is_closing || state.fault.is_some();
            drop(state);
            if !is_over {
                self.record_fault(fault);
            }
            // A process that waits for this peer may end now: the fault has been sent.
            self.lock().peers[at].has_left = true;
            self.changed.notify_all();
            return;
        }
    }

    pub(super) fn send_heartbeat(&self) {
        let state = self.lock();
        if state.is_leaving {
            return;
        }
        let record = (state.progress_record)();
        drop(state);
        for link in &self.connections {
            // If the sealer is locked, another message is being sent, which shows just as well that this rank
            // is alive.
            if let Ok(mut sealer) = link.sealer.try_lock() {
                let _ = Self::transmit_locked(link, &mut sealer, &Message::Heartbeat(record.clone()));
            }
        }
    }

    /// Sends heartbeats, and watches for heartbeats of the peers, until the channel closes.
    pub(super) fn heartbeat_loop(&self) {
        let mut last = Instant::now();
        loop {
            self.send_heartbeat();
            let mut state = self.lock();
            let until = Instant::now() + HEARTBEAT_INTERVAL;
            while !state.is_closing && Instant::now() < until {
                state = self.wait_for_change(state, until.saturating_duration_since(Instant::now()));
            }
            if state.is_closing {
                return;
            }
            // If this process itself was stopped, it received no heartbeats and cannot judge its peers.
            let now = Instant::now();
            if now.duration_since(last) > self.timeouts.silence / 2 {
                state.peers.iter_mut().for_each(|it| it.last_heard = now);
            }
            last = now;
            let silent =
                |it: &Peer| !it.has_left && now.duration_since(it.last_heard) > self.timeouts.silence;
            let lost = state.peers.iter().position(silent).map(|at| {
                let seconds = now.duration_since(state.peers[at].last_heard).as_secs();
                LaunchError::Silent { rank: self.connections[at].peer, seconds }
            });
            let fault = lost.or_else(|| self.check_late(&state, now)).filter(|_| state.fault.is_none());
            drop(state);
            fault.map(|it| self.record_fault(it));
        }
    }
}
