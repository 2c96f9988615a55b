//! Connects all ranks of a job for the whole run.
//!
//! The topology is a star: rank 0 is connected with every other rank. One thread per connection receives
//! messages. One more thread sends a heartbeat several times a second; the heartbeat carries a record of the
//! rank's progress, which is opaque to this module. A connection that closes without a goodbye message, a
//! peer that is silent for too long and a rank that aborts are faults. The first fault is reported to all
//! ranks and ends every wait.
//!
//! A peer that holds the secret may still be faulty. The memory that a peer can make this process allocate is
//! bounded by `MAX_PIECES` pieces of `MAX_CONTENT` bytes, by `MAX_CONTRIBUTION` and by the sizes passed to
//! `gather`. A peer that sends more ends the job.

use std::{
    net::Shutdown,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_bytes::Bytes;

use super::{
    LaunchError, Result,
    environment::LaunchInfo,
    message::{self, MAX_CONTENT, Message, Operation},
    rendezvous::{self, Address, Connection, SecretSource},
};
use hir_process::exit::{Exit, FailureExit};

mod shared;

pub use shared::Timeouts;
use shared::{HEARTBEAT_INTERVAL, Peer, PeerConnection, Piece, Shared};

/// Maximum size of one rank's contribution to an `all_gather`, in bytes.
const MAX_CONTRIBUTION: usize = 64 << 20;
/// Maximum size of all ranks' contributions to one `all_gather`, in bytes.
const MAX_GATHERED: usize = 256 << 20;
/// Maximum number of characters of an abort reason that is sent to other ranks.
const MAX_REASON: usize = 16 << 10;

/// The side channel between the ranks of a job.
pub struct Channel {
    /// Rank of this process.
    pub rank: usize,
    /// Number of ranks.
    pub world: usize,
    /// Rank of this process among the processes of its host, if the launcher sets it.
    pub local_rank: Option<usize>,
    /// The random number of this run of the job. 0 on rank 0, which chose it.
    pub(super) run: u128,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Channel {
    /// Connects this process with the other ranks of its job. `stop` returns why this rank has to stop, if it has to.
    ///
    /// # Errors
    /// Returns an error if this rank has to stop, or if the ranks do not find each other before the time-out.
    pub fn open(
        launch: &LaunchInfo,
        address: &Address,
        trust: &SecretSource,
        timeouts: Timeouts,
        stop: &dyn Fn() -> Option<LaunchError>,
    ) -> Result<Self> {
        let (connections, run) =
            rendezvous::connect(address, trust, launch.rank, launch.world, timeouts.rendezvous, stop)?;
        Self::from_connections(launch, run, connections, timeouts).map_err(|fault| LaunchError::Rendezvous {
            address: address.to_string(),
            message: fault.to_string(),
        })
    }

    /// Returns the channel of a job of one process.
    pub fn single_process() -> Self {
        let launch = LaunchInfo {
            launcher: "none",
            rank: 0,
            world: 1,
            local_rank: Some(0),
            local_size: Some(1),
            job: None,
        };
        let shared = Shared::new(0, Timeouts::default(), Vec::new());
        Self {
            rank: launch.rank,
            world: 1,
            local_rank: Some(0),
            run: 0,
            shared: Arc::new(shared),
            threads: Vec::new(),
        }
    }

    fn from_connections(
        launch: &LaunchInfo,
        run: u128,
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
        Ok(Self { rank, world, local_rank, run, shared, threads })
    }

    /// Returns every rank's bytes, by rank, on every rank. All ranks must call it, in the same order. A
    /// contribution has at most 64 MiB.
    ///
    /// # Errors
    /// Returns the job's fault, or a fault that names ranks that are alive and do not call it.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let shared = &self.shared;
        if let Some(fault) = self.fault() {
            return Err(fault);
        }
        if self.world == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        if mine.len() > MAX_CONTRIBUTION {
            let reason =
                format!("a contribution of {} bytes exceeds the limit of {MAX_CONTRIBUTION}", mine.len());
            return Err(shared.record_fault(self.abort_error(Exit::InternalError, &reason)));
        }
        if self.rank == 0 {
            let all =
                self.collect_contributions(Operation::AllGather, mine.to_vec(), |_| MAX_CONTRIBUTION)?;
            let parts: Vec<&Bytes> = all.iter().map(|it| Bytes::new(it)).collect();
            let bytes = message::encode(&parts).unwrap_or_default();
            if bytes.len() > MAX_GATHERED {
                let reason =
                    format!("an all-gather of {} bytes exceeds the limit of {MAX_GATHERED}", bytes.len());
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
            // The answer implies that rank 0 has consumed the last piece, so no `Credit` follows for it.
            state.credits += 1;
            Some(bytes)
        })?;
        let all: Vec<&Bytes> = message::decode(&bytes).unwrap_or_default();
        if all.len() != self.world {
            let fault = "sent an all-gather with the wrong number of ranks".to_owned();
            return Err(shared.record_fault(LaunchError::Protocol { rank: 0, fault }));
        }
        Ok(all.into_iter().map(|it| it.to_vec()).collect())
    }

    /// Gathers one value of each rank, like `all_gather`.
    ///
    /// # Errors
    /// Fails like `all_gather`, and if a rank sends bytes that do not decode to a `T`.
    pub fn all_gather_values<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>> {
        let failed = |rank: usize, fault: &message::Malformed| {
            self.shared.record_fault(LaunchError::Protocol { rank, fault: fault.to_string() })
        };
        let mine = message::encode(mine).map_err(|fault| failed(self.rank, &fault))?;
        let all = self.all_gather(&mine)?;
        let decode =
            |(rank, bytes): (usize, &Vec<u8>)| message::decode(bytes).map_err(|it| failed(rank, &it));
        all.iter().enumerate().map(decode).collect()
    }

    /// Returns every rank's bytes, by rank, on rank 0, and nothing on the other ranks. All ranks must call
    /// it, in the same order as their other collective calls. Rank `r` sends `sizes[r]` bytes; only rank 0
    /// reads `sizes`.
    ///
    /// # Errors
    /// Fails like `all_gather`, and if a rank sends more or fewer bytes.
    pub fn gather(&self, mine: Vec<u8>, sizes: &[usize]) -> Result<Vec<Vec<u8>>> {
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
                let fault = format!("sent {} bytes, and {} were expected", it.len(), size(rank));
                Err(self.shared.record_fault(LaunchError::Protocol { rank, fault }))
            }
        }
    }

    /// Sends this rank's contribution to rank 0, one piece per credit.
    fn send_contribution(&self, operation: Operation, mine: &[u8]) -> Result<()> {
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

    /// Returns the contributions of all ranks, by rank, each of at most `limit(rank)` bytes. Only rank 0
    /// calls it.
    fn collect_contributions(
        &self,
        operation: Operation,
        mine: Vec<u8>,
        limit: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<u8>>> {
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
                    return Err(broken(link.peer, "takes part in another collective than rank 0"));
                }
                let whole = &mut all[link.peer];
                if whole.len() + piece.bytes.len() > limit(link.peer) {
                    return Err(broken(link.peer, "sent more bytes than expected"));
                }
                whole.extend(piece.bytes);
                // The answer to an `all_gather` implies the credit for its last piece.
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
    /// Fails like `all_gather`.
    pub fn barrier(&self) -> Result<()> {
        self.all_gather(&[]).map(|_| ())
    }

    /// Leaves the job together with the other ranks, behind the last collective call: rank 0 closes the connections once all others
    /// have said goodbye, for which they wait. So what happens to the last messages is a fault on all ranks.
    ///
    /// # Errors
    /// Returns the job's fault.
    pub fn leave(&self) -> Result<()> {
        let shared = &self.shared;
        if self.rank > 0 {
            shared.lock().is_leaving = true;
            shared.send(&shared.connections[0], &Message::Goodbye)?;
        }
        shared.wait(|state| {
            // Those that have left are not missing in the wait.
            state.peers.iter_mut().for_each(|it| it.has_contributed |= it.has_left);
            (state.fault.is_none() && state.peers.iter().all(|it| it.has_left)).then_some(())
        })?;
        shared.lock().is_leaving = true;
        for link in &shared.connections {
            let _sealer = link.sealer.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Sets the function that returns this rank's progress record for heartbeats. Another thread calls it
    /// several times a second, so it must not block.
    pub fn set_progress_source(&self, record: impl Fn() -> Vec<u8> + Send + 'static) {
        self.shared.lock().progress_record = Box::new(record);
    }

    /// Returns the age and content of each rank's last heartbeat, by rank. Rank 0 receives the heartbeats of
    /// all ranks; the other ranks receive only those of rank 0.
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

    /// Aborts the whole job. If a fault is already recorded, that fault remains.
    pub fn abort(&self, exit: Exit, reason: &str) {
        self.shared.send_heartbeat();
        self.shared.record_fault(self.abort_error(exit, reason));
    }

    fn abort_error(&self, exit: Exit, reason: &str) -> LaunchError {
        let reason = reason.chars().take(MAX_REASON).collect();
        LaunchError::Aborted { rank: self.rank, exit: exit.into(), reason }
    }

    /// Reports that the whole job is lost.
    pub fn fail(&self, fault: LaunchError) {
        self.shared.record_fault(fault);
    }

    /// Returns the fault for which the job is lost, if any.
    pub fn fault(&self) -> Option<LaunchError> {
        self.shared.lock().fault.clone()
    }

    /// Sends all ranks the exit code with which the lost job ends. Only rank 0 calls it.
    pub fn broadcast_exit_code(&self, exit: FailureExit) {
        for link in &self.shared.connections {
            // A rank that does not receive the exit code ends with that of its own fault.
            let _ = self.shared.transmit(link, &Message::ExitCode(exit));
        }
    }

    /// Returns the exit code that rank 0 sent, or `None` if none arrives before the time-out. Does not wait
    /// for a rank 0 that has left or is silent.
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
        // Another thread may be about to send the fault, and a goodbye must not precede it.
        let (fault, is_leaving) = (state.fault.clone(), state.is_leaving);
        drop(state);
        self.shared.changed.notify_all();
        for link in &self.shared.connections {
            if let Some(fault) = &fault {
                let _ = self.shared.transmit(link, &Message::Fault(fault.clone()));
            }
            if !is_leaving {
                let _ = self.shared.transmit(link, &Message::Goodbye);
            }
            // Shutting down the connection also discards what the peer still sends; nothing reads it any
            // more.
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Splits bytes into pieces that fit into a message, and returns each with a flag that is set if another
/// piece follows. There is at least one piece.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    let last = bytes.len().saturating_sub(1) / MAX_CONTENT;
    (0..=last).map(move |at| (at < last, &bytes[at * MAX_CONTENT..bytes.len().min((at + 1) * MAX_CONTENT)]))
}
