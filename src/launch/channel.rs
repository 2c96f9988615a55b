//! The connection between all ranks of a job, up for the whole run.
//!
//! A star: rank 0 is connected with every other rank. One thread a connection receives; one sends a heartbeat several
//! times a second, with a record of how far the rank is (opaque here). A connection that closes without a goodbye, or that is
//! silent too long, is a fault; so is a rank that gives up. The first fault is reported to all, and ends every wait.
//!
//! A peer that holds the secret may still be faulty: what it can make this process hold is bounded by `MAX_PIECES` pieces of
//! `MAX_CONTENT` bytes, by `MAX_PART` and by the sizes that `gather` expects. A peer that sends more ends the job.

use std::{
    net::Shutdown,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_bytes::Bytes;

use super::{
    LaunchError,
    environment::LaunchInfo,
    message::{self, MAX_CONTENT, Message, Operation},
    rendezvous::{self, Address, Connection, SecretSource},
};
use crate::exit::{Exit, FailureExit};

mod shared;

use shared::{HEARTBEAT_INTERVAL, Peer, PeerConnection, Piece, Shared};

/// How long a channel waits.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the ranks to find each other.
    pub rendezvous: Duration,
    /// For a connected rank that says nothing at all.
    pub silence: Duration,
    /// For ranks that are alive to call an `all_gather` that others wait in.
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

/// Most bytes of one rank's part of an `all_gather`.
const MAX_CONTRIBUTION: usize = 64 << 20;
/// Most bytes of all ranks' parts of one `all_gather`.
const MAX_GATHERED: usize = 256 << 20;
/// Most characters of a reason that goes to other ranks.
const MAX_REASON: usize = 16 << 10;

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
    pub fn open(
        launch: &LaunchInfo,
        address: &Address,
        trust: &SecretSource,
        timeouts: Timeouts,
    ) -> Result<Self, LaunchError> {
        let connections =
            rendezvous::connect(address, trust, launch.rank, launch.world, timeouts.rendezvous)?;
        Self::from_connections(launch, connections, timeouts).map_err(|fault| LaunchError::Rendezvous {
            address: address.to_string(),
            message: fault.to_string(),
        })
    }

    /// The channel of a job of one process.
    pub fn single_process() -> Self {
        let launch =
            LaunchInfo { launcher: "none", rank: 0, world: 1, local_rank: 0, local_size: Some(1), job: None };
        let shared = Shared::new(0, Timeouts::default(), Vec::new());
        Self { rank: launch.rank, world: 1, local_rank: 0, shared: Arc::new(shared), threads: Vec::new() }
    }

    fn from_connections(
        launch: &LaunchInfo,
        connections: Vec<Connection>,
        timeouts: Timeouts,
    ) -> std::io::Result<Self> {
        let mut links = Vec::with_capacity(connections.len());
        let mut openers = Vec::with_capacity(connections.len());
        for (at, Connection { stream, sealer, opener }) in connections.into_iter().enumerate() {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(timeouts.silence))?;
            openers.push((stream.try_clone()?, opener));
            let peer = if launch.rank == 0 { at + 1 } else { 0 };
            links.push(PeerConnection { peer, stream, sealer: Mutex::new(sealer) });
        }
        let shared = Arc::new(Shared::new(launch.rank, timeouts, links));
        let mut threads = Vec::with_capacity(shared.connections.len() + 1);
        for (at, (stream, opener)) in openers.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            threads.push(
                thread::Builder::new()
                    .name("hir-listen".to_owned())
                    .spawn(move || shared.receive_loop(at, stream, opener))?,
            );
        }
        if !shared.connections.is_empty() {
            let shared = Arc::clone(&shared);
            let heartbeat = thread::Builder::new().name("hir-heartbeat".to_owned());
            threads.push(heartbeat.spawn(move || shared.heartbeat_loop())?);
        }
        let LaunchInfo { rank, world, local_rank, .. } = *launch;
        Ok(Self { rank, world, local_rank, shared, threads })
    }

    /// Every rank's bytes, by rank, on every rank. All ranks have to call it, in the same order. A part has 64 MiB at most.
    ///
    /// # Errors
    /// The job's fault; ranks that are alive and do not call it.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, LaunchError> {
        let shared = &self.shared;
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        if self.world == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        if mine.len() > MAX_CONTRIBUTION {
            let reason = format!("a part of {} bytes, where {MAX_CONTRIBUTION} are allowed", mine.len());
            return Err(shared.record_fault(self.abort_error(Exit::InternalError, &reason)));
        }
        if self.rank == 0 {
            let all =
                self.collect_contributions(Operation::AllGather, mine.to_vec(), |_| MAX_CONTRIBUTION)?;
            let parts: Vec<&Bytes> = all.iter().map(|it| Bytes::new(it)).collect();
            let bytes = message::encode(&parts).unwrap_or_default();
            if bytes.len() > MAX_GATHERED {
                let reason =
                    format!("an all-gather of {} bytes, where {MAX_GATHERED} are allowed", bytes.len());
                return Err(shared.record_fault(self.abort_error(Exit::InternalError, &reason)));
            }
            for (more, piece) in pieces(&bytes) {
                let message = Message::GatheredData { more, bytes: piece.to_vec() };
                shared.connections.iter().try_for_each(|link| shared.send(link, &message))?;
            }
            return Ok(all);
        }
        self.send_contribution(Operation::AllGather, mine)?;
        let bytes = shared.wait(|state| {
            let bytes = state.take_gathered()?;
            // Rank 0 has consumed the last piece, and says so by this.
            state.credits += 1;
            Some(bytes)
        })?;
        let all: Vec<&Bytes> = message::decode(&bytes).unwrap_or_default();
        if all.len() != self.world {
            let fault = "an all-gather of another number of ranks".to_owned();
            return Err(shared.record_fault(LaunchError::Protocol { rank: 0, fault }));
        }
        Ok(all.into_iter().map(|it| it.to_vec()).collect())
    }

    /// As `all_gather`, of values.
    ///
    /// # Errors
    /// As `all_gather`; a rank that gives something else.
    pub fn all_gather_values<T: Serialize + DeserializeOwned>(
        &self,
        mine: &T,
    ) -> Result<Vec<T>, LaunchError> {
        let failed = |rank: usize, fault: &message::Malformed| {
            self.shared.record_fault(LaunchError::Protocol { rank, fault: fault.to_string() })
        };
        let mine = message::encode(mine).map_err(|fault| failed(self.rank, &fault))?;
        let all = self.all_gather(&mine)?;
        let decode =
            |(rank, bytes): (usize, &Vec<u8>)| message::decode(bytes).map_err(|it| failed(rank, &it));
        all.iter().enumerate().map(decode).collect()
    }

    /// Every rank's bytes, by rank, on rank 0; nothing on the others. All ranks have to call it, in the order of other calls.
    /// Rank `r` gives `sizes[r]` bytes; only rank 0 looks at `sizes`.
    ///
    /// # Errors
    /// As `all_gather`; a rank that gives more or fewer bytes.
    pub fn gather(&self, mine: Vec<u8>, sizes: &[usize]) -> Result<Vec<Vec<u8>>, LaunchError> {
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        if self.rank > 0 {
            return self.send_contribution(Operation::Gather, &mine).map(|()| Vec::new());
        }
        let size = |rank: usize| sizes.get(rank).copied().unwrap_or(0);
        let all = self.collect_contributions(Operation::Gather, mine, size)?;
        match all.iter().enumerate().skip(1).find(|(rank, it)| it.len() != size(*rank)) {
            None => Ok(all),
            Some((rank, it)) => {
                let fault = format!("{} bytes where {} were expected", it.len(), size(rank));
                Err(self.shared.record_fault(LaunchError::Protocol { rank, fault }))
            }
        }
    }

    /// Sends this rank's contribution to rank 0, a piece for each credit.
    fn send_contribution(&self, operation: Operation, mine: &[u8]) -> Result<(), LaunchError> {
        let shared = &self.shared;
        for (more, piece) in pieces(mine) {
            shared.wait(|state| {
                state.credits = state.credits.checked_sub(1)?;
                Some(())
            })?;
            shared.send(
                &shared.connections[0],
                &Message::Contribution { operation, more, bytes: piece.to_vec() },
            )?;
        }
        Ok(())
    }

    /// On rank 0: all contributions, by rank, of `limit(rank)` bytes at most.
    fn collect_contributions(
        &self,
        operation: Operation,
        mine: Vec<u8>,
        limit: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<u8>>, LaunchError> {
        let shared = &self.shared;
        let broken = |rank: usize, fault: &str| {
            shared.record_fault(LaunchError::Protocol { rank, fault: fault.to_owned() })
        };
        let mut all = vec![mine];
        all.resize(self.world, Vec::new());
        loop {
            let (is_complete, pieces) = shared.wait(|state| {
                let mut pieces: Vec<(usize, Piece)> = Vec::new();
                for (at, peer) in state.peers.iter_mut().enumerate() {
                    while !peer.has_contributed
                        && let Some(piece) = peer.pieces.pop_front()
                    {
                        peer.has_contributed = !piece.has_more;
                        pieces.push((at, piece));
                    }
                }
                let is_complete = state.peers.iter().all(|it| it.has_contributed);
                if is_complete {
                    state.peers.iter_mut().for_each(|it| it.has_contributed = false);
                }
                (is_complete || !pieces.is_empty()).then_some((is_complete, pieces))
            })?;
            for (at, piece) in pieces {
                let link = &shared.connections[at];
                if piece.operation != operation {
                    return Err(broken(link.peer, "another operation than rank 0's"));
                }
                let whole = &mut all[link.peer];
                if whole.len() + piece.bytes.len() > limit(link.peer) {
                    return Err(broken(link.peer, "more bytes than it may give"));
                }
                whole.extend(piece.bytes);
                // The answer to an `all_gather` says so for the last piece.
                if piece.has_more || operation == Operation::Gather {
                    shared.send(link, &Message::Credit)?;
                }
            }
            if is_complete {
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

    /// Sets how a heartbeat finds out how far this rank is. It is called from another thread, several times a second, and
    /// must not wait.
    pub fn set_progress_source(&self, record: impl Fn() -> Vec<u8> + Send + 'static) {
        self.shared.lock().progress_record = Box::new(record);
    }

    /// What each rank's last heartbeat contained, by rank, and how old it is; rank 0 hears all, the others only rank 0.
    pub fn progress_records(&self) -> Vec<Option<(Duration, Vec<u8>)>> {
        let mut records: Vec<_> = (0..self.world).map(|_| None).collect();
        let state = self.shared.lock();
        records[self.rank] = Some((Duration::ZERO, (state.progress_record)()));
        for (link, peer) in self.shared.connections.iter().zip(&state.peers) {
            records[link.peer] =
                peer.progress_record.as_ref().map(|(at, bytes)| (at.elapsed(), bytes.clone()));
        }
        records
    }

    /// Gives up, and the whole job with it. The first fault counts.
    pub fn abort(&self, exit: Exit, reason: &str) {
        self.shared.send_heartbeat();
        self.shared.record_fault(self.abort_error(exit, reason));
    }

    fn abort_error(&self, exit: Exit, reason: &str) -> LaunchError {
        let reason = reason.chars().take(MAX_REASON).collect();
        LaunchError::Aborted { rank: self.rank, exit: exit.into(), reason }
    }

    /// Says that the whole job is lost.
    pub fn fail(&self, fault: LaunchError) {
        self.shared.record_fault(fault);
    }

    /// Why the job is lost, if it is.
    pub fn fault(&self) -> Option<LaunchError> {
        self.shared.lock().fault.clone()
    }

    /// On rank 0: sends all the exit code with which the lost job ends.
    pub fn broadcast_exit_code(&self, exit: FailureExit) {
        for link in &self.shared.connections {
            // A rank that does not receive it ends all the same.
            let _ = self.shared.transmit(link, &Message::ExitCode(exit));
        }
    }

    /// The exit code that rank 0 gave, if it gives one in time; a rank 0 that has left, or is silent, is not waited for.
    pub fn wait_for_exit_code(&self, patience: Duration) -> Option<FailureExit> {
        let deadline = Instant::now() + patience;
        let mut state = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let lost = |it: &Peer| it.has_left || it.last_heard.elapsed() > self.shared.timeouts.silence;
            if state.exit_code.is_some() || left.is_zero() || state.peers.iter().any(lost) {
                return state.exit_code;
            }
            state = self.shared.wait_for_change(state, left.min(HEARTBEAT_INTERVAL));
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closing = true;
        // Another thread may be about to send it, and a goodbye must not come first.
        let fault = state.fault.clone();
        drop(state);
        self.shared.changed.notify_all();
        for link in &self.shared.connections {
            if let Some(fault) = &fault {
                let _ = self.shared.transmit(link, &Message::Fault(fault.clone()));
            }
            let _ = self.shared.transmit(link, &Message::Goodbye);
            // The peer may still send: only what it will not read any more is closed.
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Bytes in pieces that fit into a message, at least one, and whether another one follows.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    let last = bytes.len().saturating_sub(1) / MAX_CONTENT;
    (0..=last).map(move |at| (at < last, &bytes[at * MAX_CONTENT..bytes.len().min((at + 1) * MAX_CONTENT)]))
}
