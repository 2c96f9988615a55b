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

use crate::plan::{BufferNo, InstKind, Plan, Slot};

mod lifetime;
mod places;

use lifetime::{Lifetime, lifetimes};
use places::{Places, Tenant, place};

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
    /// Bytes of both segments if no place were used twice.
    pub apart: usize,
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
        for (plan, shared) in plans.iter().zip(&shared) {
            let mut spots = Vec::with_capacity(plan.buffers.len());
            for (number, (buffer, symmetric)) in plan.buffers.iter().zip(shared).enumerate() {
                let fault = (plan.rank, number as BufferNo);
                let size = Some(buffer.dtype.size()).filter(|it| *it > 0).ok_or(fault)?;
                let bytes = buffer.len.checked_mul(size).ok_or(fault)?;
                spots.push(Spot { symmetric: *symmetric, offset: 0, bytes });
            }
            ranks.push(RankLayout { spots, private: 0, apart: 0 });
        }
        let lifetimes = lifetimes(plans);
        // Where ranks have the same symmetric buffers, each lies at one offset on all of them.
        let mut alike: BTreeMap<Vec<usize>, Vec<usize>> = BTreeMap::new();
        for (rank, it) in ranks.iter().enumerate() {
            let sizes = it.spots.iter().filter(|it| it.symmetric).map(|it| it.bytes).collect();
            alike.entry(sizes).or_default().push(rank);
        }
        let (mut symmetric, mut apart) = (flags, flags);
        for members in alike.values() {
            let places = settle(&mut ranks, members, true, &lifetimes, flags)?;
            (symmetric, apart) = (symmetric.max(places.end), apart.max(places.apart));
        }
        let [symmetric, apart] = [symmetric, apart].map(|it| it.next_multiple_of(SHARED));
        for rank in 0..ranks.len() {
            let places = settle(&mut ranks, &[rank], false, &lifetimes, 0)?;
            (ranks[rank].private, ranks[rank].apart) = (places.end, apart.saturating_add(places.apart));
        }
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
            "rank {}: {} bytes symmetric ({} of flags), {} private, peak {}, without reuse {}",
            plan.rank,
            self.symmetric,
            self.flags,
            rank.private,
            self.symmetric + rank.private,
            rank.apart
        ));
        lines
    }
}

/// Gives the buffers of one segment their places, the same on all of `members`, which have as many and as long ones.
fn settle(
    ranks: &mut [RankLayout],
    members: &[usize],
    symmetric: bool,
    lifetimes: &[Vec<Lifetime>],
    start: usize,
) -> Result<Places, (usize, BufferNo)> {
    let numbers = |rank: &usize| -> Vec<usize> {
        let spots = ranks[*rank].spots.iter().enumerate();
        spots.filter(|(_, it)| it.symmetric == symmetric).map(|(number, _)| number).collect()
    };
    let numbers: Vec<Vec<usize>> = members.iter().map(numbers).collect();
    let tenant = |at: usize| Tenant {
        bytes: ranks[members[0]].spots[numbers[0][at]].bytes,
        uses: members.iter().zip(&numbers).map(|(rank, numbers)| &lifetimes[*rank][numbers[at]]).collect(),
    };
    let count = numbers.first().map_or(0, Vec::len);
    let tenants: Vec<Tenant> = (0..count).map(tenant).collect();
    let places = place(&tenants, start).map_err(|at| (members[0], numbers[0][at] as BufferNo))?;
    for (rank, numbers) in members.iter().zip(&numbers) {
        for (number, offset) in numbers.iter().zip(&places.offsets) {
            ranks[*rank].spots[*number].offset = *offset;
        }
    }
    Ok(places)
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
