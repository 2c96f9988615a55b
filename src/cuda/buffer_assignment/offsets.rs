//! Gives buffers their places in a segment. Those that have one to themselves come first; of the others, in the order of
//! first use, each takes the first gap that is free by then and large enough, or more room at the end.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    ALIGNMENT,
    lifetime::{Lifetime, are_reusable},
};

/// Most rooms that are looked at for one buffer: time does not grow with the square of their number.
const LOOKS: usize = 4096;

/// A buffer on all ranks that give it one place.
pub(super) struct LiveBuffer<'a> {
    /// Its length in bytes.
    pub bytes: usize,
    /// Its use on each of them.
    pub lifetimes: Vec<&'a Lifetime>,
}

/// Where tenants are.
pub(super) struct SegmentOffsets {
    /// By tenant.
    pub offsets: Vec<usize>,
    /// Where the last of them ends.
    pub end: usize,
    /// Where it would end if each had its place to itself.
    pub end_without_reuse: usize,
}

/// Room that its last tenant has left, in the order in which moments are visited; its start is the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FreeRange {
    end: usize,
    last_buffer: usize,
}

impl LiveBuffer<'_> {
    /// Whether there is nothing that anybody touches.
    fn is_unused(&self) -> bool {
        self.lifetimes.iter().all(|it| !it.needs_own_memory && (self.bytes == 0 || it.first_use.is_none()))
    }

    /// Whether it has its place to itself. Where some ranks do not touch it and others do, who comes after it there need
    /// not come after who was before it.
    fn needs_own_memory(&self) -> bool {
        self.lifetimes.iter().any(|it| it.needs_own_memory || it.first_use.is_none())
    }

    /// The moments at which it is first and last touched, on the first of its ranks.
    fn span(&self) -> Option<(usize, usize)> {
        let it = self.lifetimes.first()?;
        Some((it.first_use?, it.last_use))
    }

    fn ends_before(&self, other: &Self) -> bool {
        self.lifetimes.iter().zip(&other.lifetimes).all(|(mine, theirs)| mine.ends_before(theirs))
    }
}

/// Places from `start` on.
///
/// # Errors
/// The tenant by which all of them together have more bytes than a number holds.
pub(super) fn assign_offsets(tenants: &[LiveBuffer], start: usize) -> Result<SegmentOffsets, usize> {
    let mut apart = start;
    let mut sizes = Vec::with_capacity(tenants.len());
    for (at, it) in tenants.iter().enumerate() {
        let size = it.bytes.checked_next_multiple_of(ALIGNMENT).ok_or(at)?;
        apart = apart.checked_add(size).ok_or(at)?;
        sizes.push(size);
    }
    let mut offsets = vec![start; tenants.len()];
    let mut end = start;
    let (mut idle, mut sharing) = (Vec::new(), Vec::new());
    for (at, it) in tenants.iter().enumerate() {
        if it.is_unused() {
            idle.push(at);
        } else if it.needs_own_memory() {
            offsets[at] = end;
            end += sizes[at];
        } else {
            sharing.push(at);
        }
    }
    for at in idle {
        offsets[at] = end;
    }
    sharing.sort_by_key(|at| (tenants[*at].span(), *at));
    let followed = are_reused(tenants, &sharing);
    let mut rooms: BTreeMap<usize, FreeRange> = BTreeMap::new();
    // Rooms whose tenants are still there, by the moment at which they leave.
    let mut held: BinaryHeap<Reverse<(usize, usize, FreeRange)>> = BinaryHeap::new();
    for (at, followed) in sharing.into_iter().zip(followed) {
        let (size, Some((first, last))) = (sizes[at], tenants[at].span()) else { continue };
        while let Some(Reverse((_, from, room))) = held.peek().copied().filter(|it| it.0.0 < first) {
            held.pop();
            rooms.insert(from, room);
        }
        let offset = find_gap(&rooms, size, end, |it| tenants[it].ends_before(&tenants[at]));
        let until = offset + size;
        let taken: Vec<usize> = rooms.range(offset..until).map(|(from, _)| *from).collect();
        for from in taken {
            if let Some(rest) = rooms.remove(&from).filter(|it| it.end > until) {
                rooms.insert(until, rest);
            }
        }
        if followed {
            held.push(Reverse((last, offset, FreeRange { end: until, last_buffer: at })));
        }
        (offsets[at], end) = (offset, end.max(until));
    }
    // What nothing touches lies inside the segment all the same.
    let end = offsets.iter().zip(&sizes).map(|(offset, size)| offset + size).fold(end, usize::max);
    Ok(SegmentOffsets { offsets, end, end_without_reuse: apart })
}

/// For each of `which`, whether a tenant comes after it on all ranks: the others leave no room.
fn are_reused(tenants: &[LiveBuffer], which: &[usize]) -> Vec<bool> {
    let ranks = tenants.first().map_or(0, |it| it.lifetimes.len());
    let mut all = vec![true; which.len()];
    for rank in 0..ranks {
        let uses: Vec<&Lifetime> = which.iter().map(|at| tenants[*at].lifetimes[rank]).collect();
        all.iter_mut().zip(are_reusable(&uses)).for_each(|(all, one)| *all &= one);
    }
    all
}

/// Where `size` bytes have room: the first run of free rooms that hold them; else a run at the end, which grows; else the
/// end.
fn find_gap(
    rooms: &BTreeMap<usize, FreeRange>,
    size: usize,
    end: usize,
    is_free: impl Fn(usize) -> bool,
) -> usize {
    let mut run: Option<(usize, usize)> = None;
    for (from, room) in rooms.iter().take(LOOKS) {
        if !is_free(room.last_buffer) {
            run = None;
            continue;
        }
        let start = run.filter(|(_, to)| to == from).map_or(*from, |(start, _)| start);
        if room.end - start >= size {
            return start;
        }
        run = Some((start, room.end));
    }
    run.filter(|(_, to)| *to == end).map_or(end, |(start, _)| start)
}
