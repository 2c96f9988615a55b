//! The connection between all ranks of a job, up for the whole run.
//!
//! A star: rank 0 is connected with every other rank. One thread a connection receives; one sends a pulse several times
//! a second, with a record of how far the rank is (opaque here). A connection that closes without a goodbye, or that is
//! silent too long, is a fault; so is a rank that gives up. The first fault is told to all, and ends every wait.

use std::{
    collections::VecDeque,
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    LaunchError,
    environment::Launch,
    rendezvous::{self, Address},
    wire::{self, Kind},
};
use crate::exit::Exit;

/// How patient a channel is.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the ranks to find each other.
    pub rendezvous: Duration,
    /// For a connected rank that says nothing at all.
    pub silence: Duration,
    /// For ranks that live to come to an `all_gather` that others wait in.
    pub step: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            rendezvous: Duration::from_secs(60),
            silence: Duration::from_secs(10),
            step: Duration::from_secs(600),
        }
    }
}

/// Bytes that a rank sends at once for a `gather`.
const PIECE: usize = 16 << 20;

/// Between two pulses of a rank.
const BEAT: Duration = Duration::from_millis(200);

/// The side channel between the ranks of a job.
pub struct Channel {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    patience: Patience,
    links: Vec<Link>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A connection: on rank 0 one to each other rank, else one to rank 0.
struct Link {
    peer: usize,
    stream: TcpStream,
    /// Held while a frame is being sent.
    sending: Mutex<()>,
}

struct State {
    /// What is known of the peer of each link.
    peers: Vec<Peer>,
    /// `all_gather`s that rank 0 has sent round and nobody took yet.
    gathered: VecDeque<Vec<u8>>,
    /// Since when this rank waits for others to come to a common step.
    waiting: Option<Instant>,
    fault: Option<LaunchError>,
    verdict: Option<u8>,
    closing: bool,
    record: Box<dyn Fn() -> Vec<u8> + Send>,
}

struct Peer {
    heard: Instant,
    record: Option<(Instant, Vec<u8>)>,
    parts: VecDeque<(Instant, Vec<u8>)>,
    /// Whether it has given all of its part of the `gather` that rank 0 is in.
    given: bool,
    left: bool,
}

impl Channel {
    /// Connects this process with the other ranks of its job.
    ///
    /// # Errors
    /// Ranks that are not found in time.
    pub fn open(launch: &Launch, address: &Address, patience: Patience) -> Result<Self, LaunchError> {
        let streams = rendezvous::connect(address, launch.rank, launch.size, patience.rendezvous)?;
        Self::over(launch, streams, patience).map_err(|fault| LaunchError::Rendezvous {
            address: address.to_string(),
            message: fault.to_string(),
        })
    }

    /// The channel of a job of one process.
    pub fn alone() -> Self {
        let launch =
            Launch { family: "none", rank: 0, size: 1, local_rank: 0, local_size: Some(1), job: None };
        let shared = Shared::new(0, Patience::default(), Vec::new());
        Self { rank: launch.rank, world: 1, local_rank: 0, shared: Arc::new(shared), threads: Vec::new() }
    }

    fn over(launch: &Launch, streams: Vec<TcpStream>, patience: Patience) -> std::io::Result<Self> {
        let mut links = Vec::with_capacity(streams.len());
        for (at, stream) in streams.into_iter().enumerate() {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(patience.silence))?;
            links.push(Link {
                peer: if launch.rank == 0 { at + 1 } else { 0 },
                stream,
                sending: Mutex::new(()),
            });
        }
        let shared = Arc::new(Shared::new(launch.rank, patience, links));
        let mut threads = Vec::with_capacity(shared.links.len() + 1);
        for (at, link) in shared.links.iter().enumerate() {
            let (stream, shared) = (link.stream.try_clone()?, Arc::clone(&shared));
            threads.push(
                thread::Builder::new()
                    .name("hir-listen".to_owned())
                    .spawn(move || shared.listen(at, stream))?,
            );
        }
        if !shared.links.is_empty() {
            let shared = Arc::clone(&shared);
            threads.push(thread::Builder::new().name("hir-pulse".to_owned()).spawn(move || shared.pulse())?);
        }
        let Launch { rank, size: world, local_rank, .. } = *launch;
        Ok(Self { rank, world, local_rank, shared, threads })
    }

    /// Every rank's bytes, by rank, on every rank. All ranks have to call it, in the same order.
    ///
    /// # Errors
    /// The job's fault; ranks that live and do not come.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, LaunchError> {
        let shared = &self.shared;
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        if self.world == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        if self.rank == 0 {
            let parts = shared.wait(|state| {
                let complete = state.peers.iter().all(|it| !it.parts.is_empty());
                complete.then(|| {
                    state
                        .peers
                        .iter_mut()
                        .filter_map(|it| it.parts.pop_front())
                        .map(|(_, it)| it)
                        .collect::<Vec<_>>()
                })
            })?;
            let all: Vec<&[u8]> = std::iter::once(mine).chain(parts.iter().map(Vec::as_slice)).collect();
            let bytes = wire::join(all.iter().copied());
            shared.links.iter().try_for_each(|link| shared.send(link, Kind::Parts, &bytes))?;
            return Ok(all.into_iter().map(<[u8]>::to_vec).collect());
        }
        shared.send(&shared.links[0], Kind::Part, mine)?;
        let bytes = shared.wait(|state| state.gathered.pop_front())?;
        wire::split(&bytes).filter(|it| it.len() == self.world).ok_or(LaunchError::Gone { rank: 0 })
    }

    /// Every rank's bytes, by rank, on rank 0; nothing on the others, which do not wait. All ranks have to call it, in the
    /// order of other calls. Parts may be of any size.
    ///
    /// # Errors
    /// As `all_gather`.
    pub fn gather(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, LaunchError> {
        let shared = &self.shared;
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        if self.rank > 0 {
            let last = mine.len().saturating_sub(1) / PIECE;
            for at in 0..=last {
                // Each piece says first whether another follows.
                let mut piece = vec![u8::from(at < last)];
                piece.extend(&mine[at * PIECE..mine.len().min((at + 1) * PIECE)]);
                shared.send(&shared.links[0], Kind::Part, &piece)?;
            }
            return Ok(Vec::new());
        }
        let mut all = vec![mine];
        all.resize(self.world, Vec::new());
        loop {
            let pieces = shared.wait(|state| {
                let mut pieces = Vec::new();
                for (link, peer) in shared.links.iter().zip(&mut state.peers) {
                    while !peer.given
                        && let Some((_, piece)) = peer.parts.pop_front()
                    {
                        peer.given = piece.first() != Some(&1);
                        pieces.push((link.peer, piece));
                    }
                }
                let complete = state.peers.iter().all(|it| it.given);
                if complete {
                    state.peers.iter_mut().for_each(|it| it.given = false);
                }
                (complete || !pieces.is_empty()).then_some((complete, pieces))
            })?;
            for (rank, piece) in pieces.1 {
                all[rank].extend(piece.get(1..).unwrap_or_default());
            }
            if pieces.0 {
                return Ok(all);
            }
        }
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As `all_gather`.
    pub fn barrier(&self) -> Result<(), LaunchError> {
        self.all_gather(&[]).map(|_| ())
    }

    /// Sets how a pulse finds out how far this rank is. It is called from another thread, several times a second, and
    /// must not wait.
    pub fn on_pulse(&self, record: impl Fn() -> Vec<u8> + Send + 'static) {
        self.shared.lock().record = Box::new(record);
    }

    /// What each rank's last pulse said, by rank, and how old it is; rank 0 hears all, the others only rank 0.
    pub fn records(&self) -> Vec<Option<(Duration, Vec<u8>)>> {
        let mut records: Vec<_> = (0..self.world).map(|_| None).collect();
        let state = self.shared.lock();
        records[self.rank] = Some((Duration::ZERO, (state.record)()));
        for (link, peer) in self.shared.links.iter().zip(&state.peers) {
            records[link.peer] = peer.record.as_ref().map(|(at, bytes)| (at.elapsed(), bytes.clone()));
        }
        records
    }

    /// Gives up, and the whole job with it. The first fault counts.
    pub fn abort(&self, exit: Exit, reason: &str) {
        self.shared.pulse_once();
        let (rank, reason) = (self.rank, reason.to_owned());
        self.shared.fail(LaunchError::Aborted { rank, exit: exit as u8, reason });
    }

    /// Says that the whole job is lost.
    pub fn fail(&self, fault: LaunchError) {
        self.shared.fail(fault);
    }

    /// Why the job is lost, if it is.
    pub fn fault(&self) -> Option<LaunchError> {
        self.shared.lock().fault.clone()
    }

    /// Rank 0 tells all with which exit code the lost job ends.
    pub fn give_verdict(&self, exit: Exit) {
        for link in &self.shared.links {
            // Whoever does not hear it ends all the same.
            let _ = self.shared.transmit(link, Kind::Verdict, &[exit as u8]);
        }
    }

    /// The exit code that rank 0 gave, if it gives one in time; a rank 0 that has left, or is silent, is not waited for.
    pub fn verdict(&self, patience: Duration) -> Option<Exit> {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let lost = |it: &Peer| it.left || it.heard.elapsed() > self.shared.patience.silence;
            if state.verdict.is_some() || left.is_zero() || state.peers.iter().any(lost) {
                return state.verdict.map(Exit::from_code);
            }
            state = self.shared.sleep(state, left.min(BEAT));
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closing = true;
        // Another thread may be about to tell it, and a goodbye must not come first.
        let fault = state.fault.as_ref().map(wire::encode);
        drop(state);
        self.shared.changed.notify_all();
        for link in &self.shared.links {
            if let Some(fault) = &fault {
                let _ = self.shared.transmit(link, Kind::Fault, fault);
            }
            let _ = self.shared.transmit(link, Kind::Bye, &[]);
            // The peer may still send: only what it will not read any more is closed.
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(rank: usize, patience: Patience, links: Vec<Link>) -> Self {
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, left: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for what others send; how long, rank 0 decides in `late`.
    fn wait<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> Result<T, LaunchError> {
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

    fn transmit(&self, link: &Link, kind: Kind, bytes: &[u8]) -> std::io::Result<()> {
        let _held = link.sending.lock().unwrap_or_else(PoisonError::into_inner);
        wire::write(&mut &link.stream, kind, bytes)
    }

    /// Sends what the job cannot go on without.
    fn send(&self, link: &Link, kind: Kind, bytes: &[u8]) -> Result<(), LaunchError> {
        self.transmit(link, kind, bytes).map_err(|_| self.fail(LaunchError::Gone { rank: link.peer }))
    }

    /// Records a fault, if it is the first, and tells the others. Returns the first.
    fn fail(&self, fault: LaunchError) -> LaunchError {
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
    fn listen(&self, at: usize, mut stream: TcpStream) {
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

    fn pulse_once(&self) {
        let record = (self.lock().record)();
        for link in &self.links {
            // A frame on its way is a sign of life too.
            if let Ok(_held) = link.sending.try_lock() {
                let _ = wire::write(&mut &link.stream, Kind::Pulse, &record);
            }
        }
    }

    /// Sends pulses, and listens for theirs, until the channel closes.
    fn pulse(&self) {
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
