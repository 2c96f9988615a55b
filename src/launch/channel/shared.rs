//! What the threads of a channel share: connections, what came over them, and the first fault.

use std::{
    collections::VecDeque,
    io,
    net::{Shutdown, TcpStream},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{MAX_GATHERED, Timeouts};
use crate::{
    exit::FailureExit,
    launch::{
        LaunchError,
        message::{Message, Operation},
        session::{Opener, Sealer},
    },
};

/// Between two heartbeats of a rank.
pub(super) const BEAT: Duration = Duration::from_millis(200);
/// Most pieces of one rank that rank 0 holds and has not consumed; the rank waits for a `Credit` before it sends more.
pub(super) const MAX_PIECES: usize = 4;

pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) timeouts: Timeouts,
    pub(super) links: Vec<Link>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// A connection: on rank 0 one to each other rank, else one to rank 0.
pub(super) struct Link {
    pub(super) peer: usize,
    pub(super) stream: TcpStream,
    /// Held while a message is being sent.
    pub(super) sealer: Mutex<Sealer>,
}

pub(super) struct State {
    /// What is known of the peer of each link.
    pub(super) peers: Vec<Peer>,
    /// All ranks' parts of an `all_gather`, as far as rank 0 has sent them.
    gathered: Vec<u8>,
    /// Whether `gathered` is complete.
    is_gathered: bool,
    /// Pieces that this rank may send to rank 0 now.
    pub(super) credits: usize,
    /// Since when this rank waits for others in a common step.
    pub(super) waiting: Option<Instant>,
    pub(super) fault: Option<LaunchError>,
    pub(super) verdict: Option<FailureExit>,
    pub(super) closing: bool,
    pub(super) record: Box<dyn Fn() -> Vec<u8> + Send>,
}

/// A piece of a rank's contribution.
pub(super) struct Piece {
    pub(super) received: Instant,
    pub(super) operation: Operation,
    pub(super) more: bool,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Peer {
    pub(super) heard: Instant,
    pub(super) record: Option<(Instant, Vec<u8>)>,
    pub(super) pieces: VecDeque<Piece>,
    /// Whether it has given all of its contribution to the step that rank 0 is in.
    pub(super) given: bool,
    pub(super) left: bool,
}

impl State {
    /// All ranks' parts, once they are complete.
    pub(super) fn take_gathered(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.is_gathered).then(|| std::mem::take(&mut self.gathered))
    }

    /// Takes what a peer says; whether it has left, or why it breaks the protocol.
    fn take(&mut self, rank: usize, at: usize, message: Message) -> Result<bool, &'static str> {
        let now = Instant::now();
        let peer = &mut self.peers[at];
        match message {
            Message::Heartbeat(record) => peer.record = Some((now, record)),
            Message::Goodbye => {
                peer.left = true;
                return Ok(true);
            }
            Message::Part { operation, more, bytes } if rank == 0 => {
                if peer.pieces.len() == MAX_PIECES {
                    return Err("more pieces than it may send");
                }
                peer.pieces.push_back(Piece { received: now, operation, more, bytes });
            }
            Message::Credit if rank > 0 && self.credits < MAX_PIECES => self.credits += 1,
            Message::Parts { more, bytes } if rank > 0 && !self.is_gathered => {
                if self.gathered.len() + bytes.len() > MAX_GATHERED {
                    return Err("more bytes of an all-gather than it may send");
                }
                self.gathered.extend(bytes);
                self.is_gathered = !more;
            }
            Message::Verdict(exit) if rank > 0 => self.verdict = Some(exit),
            Message::Join
            | Message::Welcome
            | Message::Part { .. }
            | Message::Credit
            | Message::Parts { .. }
            | Message::Verdict(_)
            | Message::Fault(_) => return Err("a message that it may not send now"),
        }
        Ok(false)
    }
}

impl Shared {
    pub(super) fn new(rank: usize, timeouts: Timeouts, links: Vec<Link>) -> Self {
        let now = Instant::now();
        let peer =
            |_: &Link| Peer { heard: now, record: None, pieces: VecDeque::new(), given: false, left: false };
        let state = State {
            peers: links.iter().map(peer).collect(),
            gathered: Vec::new(),
            is_gathered: false,
            credits: MAX_PIECES,
            waiting: None,
            fault: None,
            verdict: None,
            closing: false,
            record: Box::new(Vec::new),
        };
        Self { rank, timeouts, links, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sleep<'a>(&self, state: MutexGuard<'a, State>, left: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for what others send; how long, rank 0 decides in `late`.
    pub(super) fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T, LaunchError> {
        let mut state = self.lock();
        state.waiting = Some(Instant::now());
        let outcome = loop {
            // What has come counts, even if its sender was lost since.
            if let Some(it) = ready(&mut state) {
                break Ok(it);
            }
            if let Some(fault) = &state.fault {
                break Err(fault.clone());
            }
            if let Some(at) = state.peers.iter().position(|it| it.left && it.pieces.is_empty() && !it.given) {
                drop(state);
                let fault = self.fail(LaunchError::Gone { rank: self.links[at].peer });
                state = self.lock();
                break Err(fault);
            }
            state = self.sleep(state, BEAT);
        };
        state.waiting = None;
        outcome
    }

    /// Ranks that have kept others waiting too long; only rank 0 knows.
    fn late(&self, state: &State, now: Instant) -> Option<LaunchError> {
        let came = |it: &Peer| it.pieces.front().map(|it| it.received);
        let first = state.peers.iter().filter_map(came).chain(state.waiting).min()?;
        if self.rank != 0 || now.duration_since(first) <= self.timeouts.step {
            return None;
        }
        let mine = state.waiting.is_none().then_some(0);
        let absent = self.links.iter().zip(&state.peers).filter(|(_, it)| it.pieces.is_empty() && !it.given);
        let ranks: Vec<usize> = mine.into_iter().chain(absent.map(|(link, _)| link.peer)).collect();
        // All are there: the last one has come just now.
        (!ranks.is_empty())
            .then_some(LaunchError::Late { ranks, seconds: now.duration_since(first).as_secs() })
    }

    pub(super) fn transmit(&self, link: &Link, message: &Message) -> io::Result<()> {
        let mut sealer = link.sealer.lock().unwrap_or_else(PoisonError::into_inner);
        Self::transmit_held(link, &mut sealer, message)
    }

    fn transmit_held(link: &Link, sealer: &mut Sealer, message: &Message) -> io::Result<()> {
        let records = sealer.seal(message)?;
        io::Write::write_all(&mut &link.stream, &records).inspect_err(|_| {
            // Half a message may be on its way: nothing can follow it.
            let _ = link.stream.shutdown(Shutdown::Both);
        })
    }

    /// Sends what the job cannot go on without.
    pub(super) fn send(&self, link: &Link, message: &Message) -> Result<(), LaunchError> {
        self.transmit(link, message).map_err(|_| self.fail(LaunchError::Gone { rank: link.peer }))
    }

    /// Records a fault, if it is the first, and reports it to the others. Returns the first.
    pub(super) fn fail(&self, fault: LaunchError) -> LaunchError {
        let mut state = self.lock();
        if let Some(first) = &state.fault {
            return first.clone();
        }
        state.fault = Some(fault.clone());
        drop(state);
        self.changed.notify_all();
        for link in &self.links {
            let _ = self.transmit(link, &Message::Fault(fault.clone()));
        }
        fault
    }

    /// Receives from one peer, until it leaves.
    pub(super) fn listen(&self, at: usize, mut stream: TcpStream, mut opener: Opener) {
        let rank = self.links[at].peer;
        loop {
            let received = opener.read(&mut stream);
            let mut state = self.lock();
            state.peers[at].heard = Instant::now();
            let broken = |fault: &str| LaunchError::Protocol { rank, fault: fault.to_owned() };
            let fault = match received {
                Ok(Message::Fault(fault)) => {
                    drop(state);
                    self.fail(fault);
                    continue;
                }
                Ok(message) => match state.take(self.rank, at, message) {
                    Ok(false) => None,
                    Ok(true) => {
                        drop(state);
                        self.changed.notify_all();
                        return;
                    }
                    Err(fault) => Some(broken(fault)),
                },
                Err(fault) => Some(LaunchError::of_connection(rank, &fault)),
            };
            let Some(fault) = fault else {
                drop(state);
                self.changed.notify_all();
                continue;
            };
            // Nothing that this peer sends is of use any more.
            let is_over = state.closing || state.fault.is_some();
            state.peers[at].left = true;
            drop(state);
            if !is_over {
                self.fail(fault);
            }
            self.changed.notify_all();
            return;
        }
    }

    pub(super) fn heartbeat_once(&self) {
        let record = (self.lock().record)();
        for link in &self.links {
            // A message on its way is a sign of life too.
            if let Ok(mut sealer) = link.sealer.try_lock() {
                let _ = Self::transmit_held(link, &mut sealer, &Message::Heartbeat(record.clone()));
            }
        }
    }

    /// Sends heartbeats, and watches for theirs, until the channel closes.
    pub(super) fn heartbeats(&self) {
        let mut last = Instant::now();
        loop {
            self.heartbeat_once();
            let mut state = self.lock();
            let until = Instant::now() + BEAT;
            while !state.closing && Instant::now() < until {
                state = self.sleep(state, until.saturating_duration_since(Instant::now()));
            }
            if state.closing {
                return;
            }
            // Whoever was stopped itself has heard nobody and cannot tell.
            let now = Instant::now();
            if now.duration_since(last) > self.timeouts.silence / 2 {
                state.peers.iter_mut().for_each(|it| it.heard = now);
            }
            last = now;
            let silent = |it: &Peer| !it.left && now.duration_since(it.heard) > self.timeouts.silence;
            let lost = state.peers.iter().position(silent).map(|at| {
                let seconds = now.duration_since(state.peers[at].heard).as_secs();
                LaunchError::Silent { rank: self.links[at].peer, seconds }
            });
            let fault = lost.or_else(|| self.late(&state, now)).filter(|_| state.fault.is_none());
            drop(state);
            fault.map(|it| self.fail(it));
        }
    }
}
