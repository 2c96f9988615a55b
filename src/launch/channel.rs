//! The connection between all ranks of a job, up for the whole run.
//!
//! A star: rank 0 is connected with every other rank. One thread a connection receives; one sends a pulse several times
//! a second, with a record of how far the rank is (opaque here). A connection that closes without a goodbye, or that is
//! silent too long, is a fault; so is a rank that gives up. The first fault is told to all, and ends every wait.

use std::{
    net::{Shutdown, TcpStream},
    sync::{Arc, Mutex},
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

mod shared;

use shared::{BEAT, Link, Peer, Shared};

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
