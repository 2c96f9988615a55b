//! Where every buffer of every rank lies, told from the plans alone: all processes come to the same layout, and nothing
//! about it is exchanged.
//!
//! A rank has two segments. Buffers that another rank touches lie in the symmetric one, behind the flags that others raise
//! here; its size is the same on all ranks, and so are the offsets where ranks have the same buffers. The others lie in the
//! private one. No offset is used twice: every buffer has its own place for the whole run.

use rustc_hash::FxHashMap;

use crate::plan::{BufferNo, InstKind, Plan, Slot};

/// Buffers begin at multiples of this many bytes: what cuBLASLt likes best.
pub const ALIGNMENT: usize = 256;
/// Segments that other processes map are as long as a multiple of this: the driver then gives them pages of their own.
const SHARED: usize = 2 << 20;
/// Bytes from flag to flag.
const FLAG: usize = 32;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Whether it lies in the symmetric segment.
    pub symmetric: bool,
    /// Bytes from the segment's start.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Where one rank's buffers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLayout {
    /// By buffer.
    pub spots: Vec<Spot>,
    /// Bytes of the private segment.
    pub private: usize,
}

/// Where all ranks' buffers and flags are.
#[derive(Clone, Debug)]
pub struct WorldLayout {
    /// By rank.
    pub ranks: Vec<RankLayout>,
    /// Bytes of every symmetric segment.
    pub symmetric: usize,
    /// Bytes of a symmetric segment that flags take.
    pub flags: usize,
    slots: FxHashMap<Slot, usize>,
    /// Whether any rank touches another's memory or flags.
    pub has_peers: bool,
}

impl WorldLayout {
    /// Lays out a world.
    ///
    /// # Errors
    /// More bytes than a number holds, or an element type without a size: rank and buffer.
    pub fn of(plans: &[Plan]) -> Result<Self, (usize, BufferNo)> {
        let mut shared: Vec<Vec<bool>> = plans.iter().map(|it| vec![false; it.buffers.len()]).collect();
        let mut slots: FxHashMap<Slot, usize> = FxHashMap::default();
        // The first flags are those of the barrier between runs, one for each rank.
        let mut flags: Vec<usize> = vec![plans.len() * FLAG; plans.len()];
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
                let (InstKind::Signal { slot } | InstKind::Await { slot }) = &inst.kind else { continue };
                has_peers |= slot.from != slot.to;
                if let (Some(end), false) = (flags.get_mut(slot.to), slots.contains_key(slot)) {
                    slots.insert(*slot, *end);
                    *end += FLAG;
                }
            }
        }
        let flags = flags.into_iter().max().unwrap_or(0).next_multiple_of(ALIGNMENT);
        let mut ranks = Vec::with_capacity(plans.len());
        let mut symmetric = flags;
        for (plan, shared) in plans.iter().zip(&shared) {
            let (mut own, mut private) = (flags, 0usize);
            let mut spots = Vec::with_capacity(plan.buffers.len());
            for (number, (buffer, symmetric)) in plan.buffers.iter().zip(shared).enumerate() {
                let fault = (plan.rank, number as BufferNo);
                let size = Some(buffer.dtype.size()).filter(|it| *it > 0).ok_or(fault)?;
                let bytes = buffer.len.checked_mul(size).ok_or(fault)?;
                let end = if *symmetric { &mut own } else { &mut private };
                spots.push(Spot { symmetric: *symmetric, offset: *end, bytes });
                let next = end.checked_add(bytes).and_then(|it| it.checked_next_multiple_of(ALIGNMENT));
                *end = next.ok_or(fault)?;
            }
            symmetric = symmetric.max(own);
            ranks.push(RankLayout { spots, private });
        }
        let symmetric = symmetric.next_multiple_of(SHARED);
        Ok(Self { ranks, symmetric, flags, slots, has_peers })
    }

    /// Bytes from the start of the symmetric segment of `slot.to`.
    pub fn slot(&self, slot: &Slot) -> Option<usize> {
        self.slots.get(slot).copied()
    }

    /// The flag that `from` raises on another rank at the barrier between runs: bytes from the start of that rank's
    /// symmetric segment.
    pub fn barrier(&self, from: usize) -> usize {
        from * FLAG
    }

    /// The layout of one rank for people: a line for each buffer, then the sums.
    pub fn show(&self, plan: &Plan) -> Vec<String> {
        let Some(rank) = self.ranks.get(plan.rank) else { return Vec::new() };
        let mut lines = vec![format!("{:<10} {:<12} {:>14} {:>14}", "buffer", "segment", "offset", "bytes")];
        for (spot, buffer) in rank.spots.iter().zip(&plan.buffers) {
            let segment = if spot.symmetric { "symmetric" } else { "private" };
            lines.push(format!("{:<10} {segment:<12} {:>14} {:>14}", buffer.name, spot.offset, spot.bytes));
        }
        lines.push(format!(
            "rank {}: {} bytes symmetric ({} of flags), {} private, peak {}",
            plan.rank,
            self.symmetric,
            self.flags,
            rank.private,
            self.symmetric + rank.private
        ));
        lines
    }
}

/// Buffers of a rank that some rank writes while the program runs.
pub(super) fn written(plans: &[Plan], rank: usize) -> Vec<bool> {
    let mut flags = vec![false; plans.get(rank).map_or(0, |it| it.buffers.len())];
    for plan in plans {
        for inst in &plan.code {
            if let InstKind::Alloc { buffer, .. } = inst.kind
                && plan.rank == rank
            {
                flags[buffer as usize] = true;
            }
            for it in inst.kind.accesses(plan.rank).iter().filter(|it| it.written && it.rank == rank) {
                flags[it.view.buffer as usize] = true;
            }
        }
    }
    flags
}
