//! What the threads of a channel share: connections, what came over them, and the first fault.

use std::{
    collections::VecDeque,
    net::TcpStream,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::Patience;
use crate::launch::{
    LaunchError,
    wire::{self, Kind},
};

/// Between two pulses of a rank.
pub(super) const BEAT: Duration = Duration::from_millis(200);

pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) patience: Patience,
    pub(super) links: Vec<Link>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// A connection: on rank 0 one to each other rank, else one to rank 0.
pub(super) struct Link {
    pub(super) peer: usize,
    pub(super) stream: TcpStream,
    /// Held while a frame is being sent.
    pub(super) sending: Mutex<()>,
}

pub(super) struct State {
    /// What is known of the peer of each link.
    pub(super) peers: Vec<Peer>,
    /// `all_gather`s that rank 0 has sent round and nobody took yet.
    pub(super) gathered: VecDeque<Vec<u8>>,
    /// Since when this rank waits for others to come to a common step.
    pub(super) waiting: Option<Instant>,
    pub(super) fault: Option<LaunchError>,
    pub(super) verdict: Option<u8>,
    pub(super) closing: bool,
    pub(super) record: Box<dyn Fn() -> Vec<u8> + Send>,
}

pub(super) struct Peer {
    pub(super) heard: Instant,
    pub(super) record: Option<(Instant, Vec<u8>)>,
    pub(super) parts: VecDeque<(Instant, Vec<u8>)>,
    /// Whether it has given all of its part of the `gather` that rank 0 is in.
    pub(super) given: bool,
    pub(super) left: bool,
}

impl Shared {
    pub(super) fn new(rank: usize, patience: Patience, links: Vec<Link>) -> Self {
        let now = Instant::now();
        let peer =
            |_: &Link| Peer { heard: now, record: None, parts: VecDeque::new(), given: false, left: false };
        let state = State {
            peers: links.iter().map(peer).collect(),
            gathered: VecDeque::new(),
            waiting: None,
            fault: None,
            verdict: None,
            closing: false,
            record: Box::new(Vec::new),
        };
        Self { rank, patience, links, state: Mutex::new(state), changed: Condvar::new() }
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
            if let Some(at) = state.peers.iter().position(|it| it.left && it.parts.is_empty() && !it.given) {
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
        let came = |it: &Peer| it.parts.front().map(|(at, _)| *at);
        let first = state.peers.iter().filter_map(came).chain(state.waiting).min()?;
        if self.rank != 0 || now.duration_since(first) <= self.patience.step {
            return None;
        }
        let mine = state.waiting.is_none().then_some(0);
        let absent = self.links.iter().zip(&state.peers).filter(|(_, it)| it.parts.is_empty() && !it.given);
        let ranks: Vec<usize> = mine.into_iter().chain(absent.map(|(link, _)| link.peer)).collect();
        // All are there: the last one has come just now.
        (!ranks.is_empty())
            .then_some(LaunchError::Late { ranks, seconds: now.duration_since(first).as_secs() })
    }

    pub(super) fn transmit(&self, link: &Link, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        let _held = link.sending.lock().unwrap_or_else(PoisonError::into_inner);
        wire::write(&mut &link.stream, kind, bytes)
    }

    /// Sends what the job cannot go on without.
    pub(super) fn send(&self, link: &Link, kind: Kind, bytes: &[u8]) -> Result<(), LaunchError> {
        self.transmit(link, kind, bytes).map_err(|_| self.fail(LaunchError::Gone { rank: link.peer }))
    }

    /// Records a fault, if it is the first, and tells the others. Returns the first.
    pub(super) fn fail(&self, fault: LaunchError) -> LaunchError {
        let mut state = self.lock();
        if let Some(first) = &state.fault {
            return first.clone();
        }
        state.fault = Some(fault.clone());
        drop(state);
        self.changed.notify_all();
        let bytes = wire::encode(&fault);
        for link in &self.links {
            let _ = self.transmit(link, Kind::Fault, &bytes);
        }
        fault
    }

    /// Receives from one peer, until it leaves.
    pub(super) fn listen(&self, at: usize, mut stream: TcpStream) {
        let rank = self.links[at].peer;
        loop {
            let frame = wire::read(&mut stream);
            let mut state = self.lock();
            let now = Instant::now();
            state.peers[at].heard = now;
            match frame {
                Ok((Kind::Pulse, bytes)) => state.peers[at].record = Some((now, bytes)),
                Ok((Kind::Part, bytes)) => state.peers[at].parts.push_back((now, bytes)),
                Ok((Kind::Parts, bytes)) => state.gathered.push_back(bytes),
                Ok((Kind::Verdict, bytes)) => state.verdict = bytes.first().copied(),
                Ok((Kind::Fault, bytes)) => {
                    let fault = wire::decode(&bytes).unwrap_or(LaunchError::Gone { rank });
                    drop(state);
                    self.fail(fault);
                }
                Ok((Kind::Bye, _)) => {
                    state.peers[at].left = true;
                    drop(state);
                    self.changed.notify_all();
                    return;
                }
                Err(_) => {
                    let over = state.closing || state.fault.is_some();
                    state.peers[at].left = true;
                    drop(state);
                    if !over {
                        self.fail(LaunchError::Gone { rank });
                    }
                    self.changed.notify_all();
                    return;
                }
            }
            self.changed.notify_all();
        }
    }

    pub(super) fn pulse_once(&self) {
        let record = (self.lock().record)();
        for link in &self.links {
            // A frame on its way is a sign of life too.
            if let Ok(_held) = link.sending.try_lock() {
                let _ = wire::write(&mut &link.stream, Kind::Pulse, &record);
            }
        }
    }

    /// Sends pulses, and listens for theirs, until the channel closes.
    pub(super) fn pulse(&self) {
        let mut last = Instant::now();
        loop {
            self.pulse_once();
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
            if now.duration_since(last) > self.patience.silence / 2 {
                state.peers.iter_mut().for_each(|it| it.heard = now);
            }
            last = now;
            let silent = |it: &Peer| !it.left && now.duration_since(it.heard) > self.patience.silence;
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
