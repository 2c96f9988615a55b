//! The shared segments of all ranks: memory that peers map, and that the programs of a process use in turn.
//!
//! A run begins behind a barrier of all ranks, on streams that all programs share. So no rank accesses what an earlier program has there, and
//! one segment is enough for all programs: the largest one decides its size.

use super::{
    ExecutorError, ProcessGroup, Result,
    device::{Device, Stream},
    exchange::gather,
};

/// The shared segments.
#[derive(Default)]
pub(super) struct SharedMemory {
    bytes: usize,
    /// By rank: the address of its segment in this process. Empty without segments.
    addresses: Vec<u64>,
}

impl SharedMemory {
    /// Returns the address of each rank's segment in this process; nothing without segments.
    pub fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// Returns the size of each segment in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes all segments at least `bytes` long; `stream` is the main stream of all programs. If they grow, the content is lost, and the addresses
    /// change. `keeps_old` says that a captured graph has the old ones: libraries may release what they have registered of a graph later than
    /// the graph, so this memory stays. All ranks have to call this, and all have ended their earlier runs when it returns: what a first run does
    /// before its barrier disturbs none of them.
    ///
    /// # Errors
    /// There is too little memory, a rank cannot map the memory of another one, or a call fails.
    pub fn grow(
        &mut self,
        device: &Device,
        peers: &dyn ProcessGroup,
        stream: Stream,
        (bytes, keeps_old): (usize, bool),
    ) -> Result<()> {
        device.synchronize(stream)?;
        // Ranks may differ in what they have captured. Behind the exchange, no other rank accesses this rank's memory.
        let all = gather(peers, &(bytes, keeps_old))?;
        let bytes = all.iter().map(|it| it.0).max().unwrap_or(bytes);
        if bytes <= self.bytes {
            return Ok(());
        }
        let old = std::mem::take(&mut self.addresses);
        if std::mem::take(&mut self.bytes) > 0 && !all.iter().any(|it| it.1) {
            device.free_where(|it| old.contains(&it), peers)?;
        }
        let own = device.allocate(peers.rank(), bytes)?;
        let handle = device.export_ipc(own)?;
        let mut addresses = vec![own; peers.world()];
        for (rank, (address, handle)) in gather(peers, &(own, handle.to_vec()))?.into_iter().enumerate() {
            let handle: [u8; 64] = handle
                .try_into()
                .map_err(|_| ExecutorError::Internal(format!("rank {rank} sent no memory handle")))?;
            if rank != peers.rank() {
                addresses[rank] = device.import_ipc(rank, address, handle)?;
            }
        }
        device.touch(own, addresses.iter().copied().filter(|it| *it != own), stream)?;
        // No rank writes to memory that another one still touches.
        peers.barrier()?;
        (self.bytes, self.addresses) = (bytes, addresses);
        Ok(())
    }
}
