//! Assigns offsets in a segment. Buffers that need their own memory come first. The others follow in the
//! order of their first use: each takes a gap between live buffers, or extends the segment. A gap that one buffer of
//! the same size has left is preferred: instructions that access two buffers at the same place access the same
//! elements, and can be fused (`executable::fusion`), unlike those of buffers that overlap in part.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    ALIGNMENT,
    lifetime::{Lifetime, are_reusable},
};

/// Maximum number of free ranges examined for one buffer: bounds the time, which would otherwise be
/// quadratic.
const LOOKS: usize = 4096;

/// A buffer, on all ranks that assign it the same offset.
pub(super) struct LiveBuffer<'a> {
    /// Length in bytes.
    pub bytes: usize,
    /// Its lifetime on each of these ranks.
    pub lifetimes: Vec<&'a Lifetime>,
}

/// Memory outside of the segment that buffers may use for a part of the run.
pub(super) struct LentMemory<'a> {
    /// Byte offset in the memory of the caller.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// When its owner uses it.
    pub lifetime: &'a Lifetime,
    pub when: LentWhen,
}

/// When memory is lent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LentWhen {
    BeforeFirstUse,
    AfterLastUse,
}

/// Where a buffer is.
#[derive(Clone, Copy)]
pub(super) enum Offset {
    /// Byte offset from the start of the segment.
    Segment(usize),
    /// Byte offset in the memory of the caller.
    Lent(usize),
}

/// The offsets of the buffers in a segment.
pub(super) struct SegmentOffsets {
    /// Indexed by buffer.
    pub offsets: Vec<Offset>,
    pub ends: SegmentEnds,
}

/// The size of a segment, in bytes.
pub(super) struct SegmentEnds {
    /// End of the last buffer.
    pub end: usize,
    /// End of the last buffer if no memory were reused.
    pub end_without_reuse: usize,
}

/// Where lent memory begins among the offsets: behind all segments.
const LENT: usize = 1 << 62;

/// A range that its last buffer does not use any more, in the visiting order of `walk`. Maps are keyed by its
/// start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FreeRange {
    end: usize,
    user: RangeUser,
}

/// Who uses a range before or after it is free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RangeUser {
    /// The last buffer that has used it.
    last_buffer: Option<usize>,
    /// Index of the lent memory to which it belongs.
    lent: Option<usize>,
}

impl LiveBuffer<'_> {
    /// Returns true if no instruction accesses the buffer.
    fn is_unused(&self) -> bool {
        let is_unused = |it: &&Lifetime| {
            !it.needs_own_memory && !it.is_callers && (self.bytes == 0 || it.first_use.is_none())
        };
        self.lifetimes.iter().all(is_unused)
    }

    /// Returns true if the buffer shares no memory with others. This includes a buffer that only some of the
    /// ranks access: on the ranks without an access, a later user of the memory is not ordered after an
    /// earlier one.
    fn needs_own_memory(&self) -> bool {
        self.lifetimes.iter().any(|it| it.needs_own_memory || it.is_callers || it.first_use.is_none())
    }

    /// Returns the positions of its first and last access on the first of its ranks.
    fn span(&self) -> Option<(usize, usize)> {
        let it = self.lifetimes.first()?;
        Some((it.first_use?, it.last_use))
    }

    fn ends_before(&self, other: &Self) -> bool {
        self.lifetimes.iter().zip(&other.lifetimes).all(|(mine, theirs)| mine.ends_before(theirs))
    }

    /// Returns true if the owner of lent memory does not use it while this buffer lives.
    fn may_use(&self, lent: &LentMemory) -> bool {
        self.lifetimes.iter().all(|it| match lent.when {
            LentWhen::BeforeFirstUse => it.ends_before(lent.lifetime),
            LentWhen::AfterLastUse => lent.lifetime.ends_before(it),
        })
    }
}

/// Assigns offsets from `start` on, or in lent memory.
///
/// # Errors
/// Returns the index of the buffer at which the total size overflows.
pub(super) fn assign_offsets(
    buffers: &[LiveBuffer],
    start: usize,
    lent: &[LentMemory],
) -> Result<SegmentOffsets, usize> {
    let mut end_without_reuse = start;
    let mut sizes = Vec::with_capacity(buffers.len());
    for (at, it) in buffers.iter().enumerate() {
        let size = it.bytes.checked_next_multiple_of(ALIGNMENT).ok_or(at)?;
        end_without_reuse = end_without_reuse.checked_add(size).ok_or(at)?;
        sizes.push(size);
    }
    let mut offsets = vec![start; buffers.len()];
    let mut end = start;
    let (mut idle, mut sharing) = (Vec::new(), Vec::new());
    for (at, it) in buffers.iter().enumerate() {
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
    sharing.sort_by_key(|at| (buffers[*at].span(), *at));
    let followed = are_reused(buffers, &sharing);
    let mut free: BTreeMap<usize, FreeRange> = BTreeMap::new();
    for (at, it) in lent.iter().enumerate() {
        let (from, size) = (LENT + it.offset, it.bytes / ALIGNMENT * ALIGNMENT);
        free.insert(
            from,
            FreeRange { end: from + size, user: RangeUser { last_buffer: None, lent: Some(at) } },
        );
    }
    // Ranges still in use, keyed by the position of their buffer's last access.
    let mut in_use: BinaryHeap<Reverse<(usize, usize, FreeRange)>> = BinaryHeap::new();
    for (at, followed) in sharing.into_iter().zip(followed) {
        let (size, Some((first, last))) = (sizes[at], buffers[at].span()) else { continue };
        while let Some(Reverse((_, from, range))) = in_use.peek().copied().filter(|it| it.0.0 < first) {
            in_use.pop();
            free.insert(from, range);
        }
        let is_free = |it: RangeUser| {
            it.last_buffer.is_none_or(|it| buffers[it].ends_before(&buffers[at]))
                && it.lent.is_none_or(|it| buffers[at].may_use(&lent[it]))
        };
        let offset = find_gap(&free, size, end, is_free);
        let until = offset + size;
        let taken: Vec<usize> = free.range(offset..until).map(|(from, _)| *from).collect();
        let mut owner = None;
        for from in taken {
            let range = free.remove(&from);
            owner = owner.or(range.and_then(|it| it.user.lent));
            if let Some(rest) = range.filter(|it| it.end > until) {
                free.insert(until, rest);
            }
        }
        if followed {
            let user = RangeUser { last_buffer: Some(at), lent: owner };
            in_use.push(Reverse((last, offset, FreeRange { end: until, user })));
        }
        offsets[at] = offset;
        if offset < LENT {
            end = end.max(until);
        }
    }
    // Unused buffers lie inside the segment, too.
    let own = offsets.iter().zip(&sizes).filter(|(offset, _)| **offset < LENT);
    let end = own.map(|(offset, size)| offset + size).fold(end, usize::max);
    let offset = |it: usize| if it < LENT { Offset::Segment(it) } else { Offset::Lent(it - LENT) };
    let offsets = offsets.into_iter().map(offset).collect();
    Ok(SegmentOffsets { offsets, ends: SegmentEnds { end, end_without_reuse } })
}

/// Returns, for each buffer in `which`, whether another buffer can reuse its memory on all ranks. Other
/// buffers leave no free range.
fn are_reused(buffers: &[LiveBuffer], which: &[usize]) -> Vec<bool> {
    let ranks = buffers.first().map_or(0, |it| it.lifetimes.len());
    let mut all = vec![true; which.len()];
    for rank in 0..ranks {
        let uses: Vec<&Lifetime> = which.iter().map(|at| buffers[*at].lifetimes[rank]).collect();
        all.iter_mut().zip(are_reusable(&uses)).for_each(|(all, one)| *all &= one);
    }
    all
}

/// Returns the offset for `size` bytes: the first free range of exactly this size; else the first run of adjacent free
/// ranges that holds them; else the start of a run that ends at `end`, which the buffer extends; else `end`.
fn find_gap(
    free: &BTreeMap<usize, FreeRange>,
    size: usize,
    end: usize,
    is_free: impl Fn(RangeUser) -> bool,
) -> usize {
    let same = free.iter().take(LOOKS).find(|(from, it)| it.end - *from == size && is_free(it.user));
    if let Some((from, _)) = same {
        return *from;
    }
    let mut run: Option<(usize, usize)> = None;
    let mut last = end;
    for (from, range) in free.iter().take(LOOKS) {
        if !is_free(range.user) {
            run = None;
            continue;
        }
        let start = run.filter(|(_, to)| to == from).map_or(*from, |(start, _)| start);
        if range.end - start >= size {
            return start;
        }
        if range.end == end {
            last = start;
        }
        run = Some((start, range.end));
    }
    last
}
