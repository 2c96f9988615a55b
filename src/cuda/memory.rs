//! The memory segments of this rank, and the symmetric segments of its peers, mapped by CUDA IPC.

use std::sync::Arc;

use grammar::{DType, dtype::Class};

use super::{
    ExecutorError, ProcessGroup, Result,
    buffer_assignment::{
        ALIGNMENT, BufferAssignment, BufferSlice, CALLER_BASE, PortMemory, REGISTER_BASE, RankAssignment,
        SHARED_BASE, SHARED_DISTANCE, Segment, TEMPORARY_BASE,
    },
    device::{Device, Stream},
    discover,
};
use hir_plan::{Buffer, BufferNo, Plan, View, World};

/// The memory segments and their addresses.
pub(super) struct DeviceMemory {
    world: Arc<World>,
    pub assignment: BufferAssignment,
    /// This rank.
    pub rank: usize,
    /// The address of every rank's symmetric segment in this process; 0 if it is not mapped.
    pub symmetric: Vec<u64>,
    private: u64,
    /// Where the next temporary memory begins in that of the caller; `None` if the caller passes none.
    temporary_end: Option<usize>,
    /// Destination of the copies that touch peers' memory.
    touched: u64,
    /// Whether every rank has mapped the segments of all others.
    mapped: bool,
    /// The ranks that could not map the memory of another one, which the plan does not need.
    pub unmapped: Vec<usize>,
    /// Whether the GPUs of all ranks are connected by NVLink.
    has_nvlink: bool,
    /// Number of bytes allocated by this process.
    pub allocated: usize,
}

impl DeviceMemory {
    /// Allocates this rank's segments. `layout` assigns memory to buffers.
    pub fn new(
        device: &Device,
        world: &Arc<World>,
        rank: usize,
        stream: Stream,
        (layout, ports): (BufferAssignment, PortMemory),
    ) -> Result<Self> {
        let own: &RankAssignment = layout
            .ranks
            .get(rank)
            .ok_or_else(|| ExecutorError::Internal(format!("no plan for rank {rank}")))?;
        let (private, temporary_end) = match ports {
            PortMemory::Segments => (device.allocate(rank, own.private_bytes)?, None),
            PortMemory::Caller { .. } => (TEMPORARY_BASE, Some(own.private_bytes)),
        };
        let segment = device.allocate(rank, layout.symmetric_bytes)?;
        let touched = device.allocate(rank, size_of::<u32>())?;
        let allocated = layout.symmetric_bytes + if temporary_end.is_none() { own.private_bytes } else { 0 };
        device.memset(segment, 0, layout.symmetric_bytes, stream)?;
        device.synchronize(stream)?;
        let mut symmetric = vec![0; world.len()];
        symmetric[rank] = segment;
        let world = Arc::clone(world);
        Ok(Self {
            world,
            assignment: layout,
            rank,
            symmetric,
            private,
            temporary_end,
            touched,
            mapped: false,
            has_nvlink: false,
            unmapped: Vec::new(),
            allocated,
        })
    }

    /// Exports this rank's symmetric segment and maps those of the peers. All ranks have to call this.
    pub fn map_peers(&mut self, device: &Device, peers: &dyn ProcessGroup, stream: Stream) -> Result<()> {
        if self.world.len() == 1 {
            return Ok(());
        }
        let segment = self.symmetric[self.rank];
        let mut mine = device.export_ipc(segment)?.to_vec();
        mine.extend([segment, self.assignment.symmetric_bytes as u64].map(u64::to_le_bytes).concat());
        mine.extend(device.uuid()?);
        mine.extend(discover::host_id().into_bytes());
        let theirs = peers.all_gather(&mine)?;
        let mut has_nvlink = true;
        let mut has_failed = false;
        for (rank, it) in theirs.iter().enumerate() {
            let (Some(handle), Some(address), Some(bytes), Some(uuid), Some(host)) =
                (it.first_chunk::<64>(), it.get(64..72), it.get(72..80), it.get(80..96), it.get(96..))
            else {
                return Err(ExecutorError::Internal(format!("rank {rank} sent no memory handle")));
            };
            if bytes != &mine[72..80] {
                return Err(ExecutorError::Environment(format!(
                    "rank {rank} assigns its buffers differently: the ranks run different programs"
                )));
            }
            let is_used = self.assignment.share_memory(self.rank, rank);
            let is_near = host == &mine[96..];
            has_nvlink &= !is_used || is_near && device.has_nvlink_to(uuid)?;
            if !is_near {
                if is_used {
                    return Err(ExecutorError::Environment(across_hosts(self.rank, rank)));
                }
                continue;
            }
            if rank == self.rank {
                continue;
            }
            let address = address.first_chunk::<8>().map_or(0, |it| u64::from_le_bytes(*it));
            match device.import_ipc(rank, address, *handle) {
                Ok(address) => self.symmetric[rank] = address,
                Err(error) if is_used => {
                    return Err(ExecutorError::Environment(format!(
                        "rank {} cannot map the memory of rank {rank}: {error}",
                        self.rank
                    )));
                }
                // NCCL finds its own transport.
                Err(_) => has_failed = true,
            }
        }
        let others = self.symmetric.iter().enumerate().filter(|(rank, it)| *rank != self.rank && **it != 0);
        device.touch(self.touched, others.map(|it| *it.1), stream)?;
        let mapped = self.symmetric.iter().all(|it| *it != 0);
        let all = peers.all_gather(&[mapped, has_nvlink, has_failed].map(u8::from))?;
        self.unmapped = (0..all.len()).filter(|rank| all[*rank].get(2) == Some(&1)).collect();
        self.mapped = all.iter().all(|it| it.first() == Some(&1));
        self.has_nvlink = all.iter().all(|it| it.get(1) == Some(&1));
        Ok(())
    }

    /// Returns the plans of all ranks.
    pub fn plans(&self) -> &[Plan] {
        &self.world
    }

    /// Returns the address and the size of the private segment.
    pub fn private_segment(&self) -> (u64, usize) {
        (self.private, self.assignment.ranks[self.rank].private_bytes)
    }

    /// Returns true if every rank has mapped the segments of all others.
    pub fn is_mapped(&self) -> bool {
        self.mapped
    }

    /// Returns true if every rank knows that the GPUs of all ranks are connected by NVLink. All ranks get the same
    /// result.
    pub fn has_nvlink(&self) -> bool {
        self.has_nvlink
    }

    /// Returns the address of a rank's buffer; for memory of the caller and shared memory, the one that stands for it.
    pub fn buffer_address(&self, rank: usize, buffer: u32) -> Result<u64> {
        let slice = self.assignment.ranks.get(rank).and_then(|it| it.buffers.get(buffer as usize));
        slice
            .and_then(|it| self.slice_address(rank, it))
            .ok_or_else(|| ExecutorError::Internal(format!("buffer {buffer} of rank {rank} is not mapped")))
    }

    /// Returns the address and the bytes of the workspace of an instruction; 0 bytes if it has none.
    pub fn workspace(&self, inst: usize) -> (u64, usize) {
        let all = &self.assignment.ranks[self.rank].workspaces;
        let slice = all.iter().find(|(at, _)| *at == inst).map(|(_, slice)| slice);
        slice.and_then(|it| Some((self.slice_address(self.rank, it)?, it.bytes))).unwrap_or_default()
    }

    fn slice_address(&self, rank: usize, slice: &BufferSlice) -> Option<u64> {
        let base = match slice.segment {
            Segment::Symmetric => self.symmetric.get(rank).copied().filter(|it| *it != 0)?,
            Segment::Shared => shared_base(rank),
            _ if rank != self.rank => return None,
            Segment::Registers => REGISTER_BASE,
            Segment::Caller | Segment::Lent => CALLER_BASE,
            Segment::Private => self.private,
        };
        Some(base + slice.offset as u64)
    }

    /// Returns the address of a view's first element. The view has to lie inside its buffer.
    pub fn view_address(&self, rank: usize, view: &View) -> Result<u64> {
        let outside = || ExecutorError::Internal(format!("{view:?} is not inside the memory of rank {rank}"));
        let buffer =
            self.world.get(rank).and_then(|it| it.buffers.get(view.buffer as usize)).ok_or_else(outside)?;
        if view.bounds().is_some_and(|(_, last)| last >= buffer.len) {
            return Err(outside());
        }
        Ok(self.buffer_address(rank, view.buffer)? + (view.offset * buffer.dtype.size()) as u64)
    }

    /// Returns the element type of a view for which `view_address` has succeeded.
    pub fn view_dtype(&self, rank: usize, view: &View) -> DType {
        let buffer = self.world.get(rank).and_then(|it| it.buffers.get(view.buffer as usize));
        buffer.map_or(DType::Float, |it| it.dtype)
    }

    /// Returns whether the caller passes memory for each run.
    pub fn is_callers(&self) -> bool {
        self.temporary_end.is_some()
    }

    /// Returns the bytes of temporary memory that the caller passes for a run.
    pub fn temporary_bytes(&self) -> usize {
        self.temporary_end.unwrap_or(0)
    }

    /// As `allocate_scratch`, for memory of which nothing is kept from run to run. If the caller passes it, the address stands for it.
    pub fn allocate_temporary(&mut self, device: &Device, bytes: usize) -> Result<u64> {
        let Some(end) = self.temporary_end else { return self.allocate_scratch(device, bytes) };
        let start = end.next_multiple_of(ALIGNMENT);
        self.temporary_end = Some(start + bytes);
        Ok(TEMPORARY_BASE + start as u64)
    }

    /// Allocates additional memory for this rank.
    pub fn allocate_scratch(&mut self, device: &Device, bytes: usize) -> Result<u64> {
        self.allocated += bytes;
        device.allocate(self.rank, bytes)
    }
}

/// Returns the start of the addresses that stand for the shared memory of a rank.
pub(super) fn shared_base(rank: usize) -> u64 {
    SHARED_BASE + rank as u64 * SHARED_DISTANCE
}

/// Returns the error for a rank's buffer without a size.
pub(super) fn without_size(world: &World, (rank, buffer): (usize, BufferNo)) -> ExecutorError {
    let Buffer { name, dtype, .. } = &world[rank].buffers[buffer as usize];
    let message = match dtype.class() {
        Class::SmallFloat => {
            format!("no kernel computes with element type `{}`, which `{name}` has", dtype.short_name())
        }
        _ => format!("the size of buffer `{name}` in bytes is undefined or too large"),
    };
    ExecutorError::Unsupported { rank, place: "memory".to_owned(), message }
}

/// Returns the error for ranks of different hosts that share memory.
fn across_hosts(rank: usize, peer: usize) -> String {
    format!(
        "ranks {rank} and {peer} share memory, but are on different hosts: only NCCL sends data from host to host. Use \
         `backend=NCCL` without `algo=` for communications between them: pipelines without `-put` and `backend=cuda` \
         lower to these, and `--passes select-algorithms{{table=*=nccl}}` replaces other algorithms"
    )
}
