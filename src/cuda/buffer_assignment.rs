//! Where every buffer of every rank lies, told from the plans alone: all processes come to the same layout, and nothing
//! about it is exchanged.
//!
//! A rank has two segments. Buffers that another rank touches lie in the symmetric one, behind the flags that others raise
//! here; its size is the same on all ranks, and so are the offsets where ranks have the same buffers. The others lie in the
//! private one.
//!
//! A buffer takes the place of another where every instruction that touches the other, peers' included, happens before
//! every one that touches it (`plan::sync::order`): names do not matter, `Deallocate` neither, and what nobody waits for keeps
//! its buffers to the end of the run. Inputs, outputs and flags have places of their own, and so has what is read before
//! the run writes it. Runs follow each other behind a barrier of all ranks, so the order within one is enough.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::plan::{BufferNo, InstKind, Plan, SignalId};

mod lifetime;
mod offsets;

use lifetime::{Lifetime, lifetimes};
use offsets::{LiveBuffer, SegmentOffsets, assign_offsets};

/// Buffers begin at multiples of this many bytes: what cuBLASLt likes best.
pub const ALIGNMENT: usize = 256;
/// Segments that other processes map are as long as a multiple of this: the driver then gives them pages of their own.
const SEGMENT_GRANULARITY: usize = 2 << 20;
/// Bytes from flag to flag.
const SIGNAL_STRIDE: usize = 32;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSlice {
    /// Whether it lies in the symmetric segment.
    pub is_symmetric: bool,
    /// Bytes from the segment's start.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Where one rank's buffers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankAssignment {
    /// By buffer.
    pub buffers: Vec<BufferSlice>,
    /// Bytes of the private segment.
    pub private_bytes: usize,
    /// Bytes of both segments if no place were used twice.
    pub bytes_without_reuse: usize,
}

/// Where all ranks' buffers and flags are.
#[derive(Clone, Debug)]
pub struct BufferAssignment {
    /// By rank.
    pub ranks: Vec<RankAssignment>,
    /// Bytes of every symmetric segment.
    pub symmetric_bytes: usize,
    /// Bytes of a symmetric segment that flags take.
    pub signal_bytes: usize,
    signal_offsets: FxHashMap<SignalId, usize>,
    /// Whether any rank touches another's memory or flags.
    pub uses_peer_memory: bool,
}

impl BufferAssignment {
    /// Lays out a world.
    ///
    /// # Errors
    /// More bytes than a number holds, or an element type without a size: rank and buffer.
    pub fn of(plans: &[Plan]) -> Result<Self, (usize, BufferNo)> {
        let mut shared: Vec<Vec<bool>> = plans.iter().map(|it| vec![false; it.buffers.len()]).collect();
        let mut slots: FxHashMap<SignalId, usize> = FxHashMap::default();
        // The first flags are those of the barrier between runs, one for each rank.
        let mut flags: Vec<usize> = vec![plans.len() * SIGNAL_STRIDE; plans.len()];
        let mut has_peers = false;
        for plan in plans {
            for inst in &plan.code {
                for it in inst.kind.accesses(plan.rank) {
                    if it.rank != plan.rank {
                        has_peers = true;
                        let flags = shared.get_mut(it.rank);
                        if let Some(it) = flags.and_then(|flags| flags.get_mut(it.view.buffer as usize)) {
                            *it = true;
                        }
                    }
                }
                let (InstKind::Signal { signal: slot } | InstKind::WaitSignal { signal: slot }) = &inst.kind
                else {
                    continue;
                };
                has_peers |= slot.from != slot.to;
                if let (Some(end), false) = (flags.get_mut(slot.to), slots.contains_key(slot)) {
                    slots.insert(*slot, *end);
                    *end += SIGNAL_STRIDE;
                }
            }
        }
        let flags = flags.into_iter().max().unwrap_or(0).next_multiple_of(ALIGNMENT);
        let mut ranks = Vec::with_capacity(plans.len());
        for (plan, shared) in plans.iter().zip(&shared) {
            let mut spots = Vec::with_capacity(plan.buffers.len());
            for (number, (buffer, symmetric)) in plan.buffers.iter().zip(shared).enumerate() {
                let fault = (plan.rank, number as BufferNo);
                let size = Some(buffer.dtype.size()).filter(|it| *it > 0).ok_or(fault)?;
                let bytes = buffer.len.checked_mul(size).ok_or(fault)?;
                spots.push(BufferSlice { is_symmetric: *symmetric, offset: 0, bytes });
            }
            ranks.push(RankAssignment { buffers: spots, private_bytes: 0, bytes_without_reuse: 0 });
        }
        let lifetimes = lifetimes(plans);
        // Where ranks have the same symmetric buffers, each lies at one offset on all of them.
        let mut alike: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for (rank, it) in ranks.iter().enumerate() {
            let sizes = it.buffers.iter().filter(|it| it.is_symmetric).map(|it| it.bytes).collect();
            alike.entry(sizes).or_default().push(rank);
        }
        let (mut symmetric, mut apart) = (flags, flags);
        for members in alike.values() {
            let places = assign_segment(&mut ranks, members, true, &lifetimes, flags)?;
            (symmetric, apart) = (symmetric.max(places.end), apart.max(places.end_without_reuse));
        }
        let [symmetric, apart] = [symmetric, apart].map(|it| it.next_multiple_of(SEGMENT_GRANULARITY));
        for rank in 0..ranks.len() {
            let places = assign_segment(&mut ranks, &[rank], false, &lifetimes, 0)?;
            (ranks[rank].private_bytes, ranks[rank].bytes_without_reuse) =
                (places.end, apart.saturating_add(places.end_without_reuse));
        }
        Ok(Self {
            ranks,
            symmetric_bytes: symmetric,
            signal_bytes: flags,
            signal_offsets: slots,
            uses_peer_memory: has_peers,
        })
    }

    /// Bytes from the start of the symmetric segment of `slot.to`.
    pub fn signal_offset(&self, slot: &SignalId) -> Option<usize> {
        self.signal_offsets.get(slot).copied()
    }

    /// The flag that `from` raises on another rank at the barrier between runs: bytes from the start of that rank's
    /// symmetric segment.
    pub fn barrier_signal_offset(&self, from: usize) -> usize {
        from * SIGNAL_STRIDE
    }

    /// The layout of one rank for people: a line for each buffer, then the sums.
    pub fn describe(&self, plan: &Plan) -> Vec<String> {
        let Some(rank) = self.ranks.get(plan.rank) else { return Vec::new() };
        let mut lines = vec![format!("{:<10} {:<12} {:>14} {:>14}", "buffer", "segment", "offset", "bytes")];
        for (spot, buffer) in rank.buffers.iter().zip(&plan.buffers) {
            let segment = if spot.is_symmetric { "symmetric" } else { "private" };
            lines.push(format!("{:<10} {segment:<12} {:>14} {:>14}", buffer.name, spot.offset, spot.bytes));
        }
        lines.push(format!(
            "rank {}: {} bytes symmetric ({} of flags), {} private, peak {}, without reuse {}",
            plan.rank,
            self.symmetric_bytes,
            self.signal_bytes,
            rank.private_bytes,
            self.symmetric_bytes + rank.private_bytes,
            rank.bytes_without_reuse
        ));
        lines
    }
}

/// Gives the buffers of one segment their places, the same on all of `members`, which have as many and as long ones.
fn assign_segment(
    ranks: &mut [RankAssignment],
    members: &[usize],
    symmetric: bool,
    lifetimes: &[Vec<Lifetime>],
    start: usize,
) -> Result<SegmentOffsets, (usize, BufferNo)> {
    let numbers = |rank: &usize| -> Vec<usize> {
        let spots = ranks[*rank].buffers.iter().enumerate();
        spots.filter(|(_, it)| it.is_symmetric == symmetric).map(|(number, _)| number).collect()
    };
    let numbers: Vec<Vec<usize>> = members.iter().map(numbers).collect();
    let tenant = |at: usize| LiveBuffer {
        bytes: ranks[members[0]].buffers[numbers[0][at]].bytes,
        lifetimes: members
            .iter()
            .zip(&numbers)
            .map(|(rank, numbers)| &lifetimes[*rank][numbers[at]])
            .collect(),
    };
    let count = numbers.first().map_or(0, Vec::len);
    let tenants: Vec<LiveBuffer> = (0..count).map(tenant).collect();
    let places = assign_offsets(&tenants, start).map_err(|at| (members[0], numbers[0][at] as BufferNo))?;
    for (rank, numbers) in members.iter().zip(&numbers) {
        for (number, offset) in numbers.iter().zip(&places.offsets) {
            ranks[*rank].buffers[*number].offset = *offset;
        }
    }
    Ok(places)
}

/// Buffers of a rank that some rank writes while the program runs.
pub(super) fn written_buffers(plans: &[Plan], rank: usize) -> Vec<bool> {
    let mut flags = vec![false; plans.get(rank).map_or(0, |it| it.buffers.len())];
    for plan in plans {
        for inst in &plan.code {
            if let InstKind::Alloc { buffer, .. } = inst.kind
                && plan.rank == rank
            {
                flags[buffer as usize] = true;
            }
            for it in inst.kind.accesses(plan.rank).iter().filter(|it| it.is_write && it.rank == rank) {
                flags[it.view.buffer as usize] = true;
            }
        }
    }
    flags
}
