//! Finds the first statement of a block that has to stay behind a Wait, for all Waits of the block in one pass.
//!
//! The statements are indexed by what they access. For each access, the communications that are open and conflict with
//! it are sorted by the index of their next Wait: the first such statement before this Wait conflicts with one of them.

use std::collections::BTreeSet;

use grammar::{BlockId, Program, TensorId};
use rustc_hash::FxHashMap;

use super::{StreamSegment, WaitOrder, awaited_work, pending::PendingWork};
use crate::analysis::memory_effects::MemoryEffects;

/// An access of a statement to an alias class.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Access {
    Reads(TensorId),
    Writes(TensorId),
    Drops(TensorId),
}

/// The statements of a block, and the communications that are open at the current position.
pub(super) struct BlockScan<'s> {
    storage: &'s MemoryEffects,
    /// The accesses of the statements that are not Waits, as indices of `stmts`.
    accesses: FxHashMap<Access, usize>,
    /// For each access, the indices of the statements with it, in ascending order.
    stmts: Vec<Vec<usize>>,
    /// The indices of the statements that use streams.
    streams: Vec<usize>,
    /// The indices of the Waits for each number.
    waits: FxHashMap<u32, Vec<usize>>,
    /// For each open communication, the index of its next Wait; `usize::MAX` if there is none.
    ends: FxHashMap<u32, usize>,
    /// The same, sorted by index.
    by_end: BTreeSet<(usize, u32)>,
    /// For each access, the open communications that conflict with it, sorted by the index of their next Wait.
    conflicting: Vec<BTreeSet<(usize, u32)>>,
    /// Accesses that open communications conflict with, sorted by the index of the next statement with the access.
    next: BTreeSet<(usize, usize)>,
    /// The segment of the current position, by its first index.
    segment: Option<usize>,
    /// Whether work of another segment may be pending.
    is_concurrent: bool,
    /// The first statement of the segment, from the last Wait on, that conflicts with another stream, or the first one
    /// that uses streams.
    concurrent_stop: usize,
}

impl<'s> BlockScan<'s> {
    /// Indexes the statements of a block. `pending` holds before the statement with the index `from`.
    pub(super) fn new(
        program: &Program,
        storage: &'s MemoryEffects,
        (block, from): (BlockId, usize),
        pending: &PendingWork,
    ) -> Self {
        let mut scan = Self {
            storage,
            accesses: FxHashMap::default(),
            stmts: Vec::new(),
            streams: Vec::new(),
            waits: FxHashMap::default(),
            ends: FxHashMap::default(),
            by_end: BTreeSet::new(),
            conflicting: Vec::new(),
            next: BTreeSet::new(),
            segment: None,
            is_concurrent: false,
            concurrent_stop: 0,
        };
        for (at, stmt) in program.block(block).iter().enumerate() {
            if let Some(number) = awaited_work(program, *stmt) {
                scan.waits.entry(number).or_default().push(at);
                continue;
            }
            let effects = storage.effects(program, *stmt);
            if effects.uses_streams {
                scan.streams.push(at);
            }
            let dropped = effects.deallocates.iter().map(|it| Access::Drops(storage.alias_class(*it)));
            let reads = effects.accesses.reads.iter().map(|it| Access::Reads(*it));
            let writes = effects.accesses.writes.iter().map(|it| Access::Writes(*it));
            for access in reads.chain(writes).chain(dropped) {
                let new = scan.stmts.len();
                let index = *scan.accesses.entry(access).or_insert(new);
                if index == new {
                    scan.stmts.push(Vec::new());
                }
                // Several names of a statement may be in one alias class.
                if scan.stmts[index].last() != Some(&at) {
                    scan.stmts[index].push(at);
                }
            }
        }
        scan.conflicting = vec![BTreeSet::new(); scan.stmts.len()];
        pending.open().for_each(|number| scan.open(number, from));
        scan
    }

    /// Takes over the states that have changed in `pending` since `mark`. The next statement has the index `from`.
    pub(super) fn update(&mut self, pending: &PendingWork, mark: usize, from: usize) {
        for number in pending.changed_since(mark) {
            if pending.is_open(number) { self.open(number, from) } else { self.close(number) }
        }
    }

    /// Takes over the segment of the current position.
    pub(super) fn enter_segment(
        &mut self,
        segment: Option<&StreamSegment>,
        pending: &PendingWork,
        mark: usize,
    ) {
        let Some(it) = segment else { return };
        let is_foreign = |number: u32| !it.own.posts.contains(&number);
        if self.segment != Some(it.range.start) {
            self.segment = Some(it.range.start);
            self.concurrent_stop = 0;
            self.is_concurrent = pending.posted().any(is_foreign);
        }
        self.is_concurrent |= pending.changed_since(mark).any(is_foreign);
    }

    /// Returns the index of the first statement behind index `at` that has to stay behind a Wait for `number`.
    pub(super) fn limit(
        &mut self,
        program: &Program,
        order: &WaitOrder,
        block: BlockId,
        (at, number): (usize, u32),
        segment: Option<&StreamSegment>,
    ) -> Option<usize> {
        let last_end = self.by_end.iter().rev().find(|(_, it)| *it != number).map(|it| it.0);
        if last_end.is_none() && !self.is_concurrent {
            return None;
        }
        // No Wait moves past a statement that uses its own communication, or streams.
        let streams = first_from(&self.streams, at + 1);
        let own = self.conflicts(number);
        let own = own.into_iter().filter_map(|it| first_from(&self.stmts[it], at + 1)).min();
        let mut limit = [streams, own, self.first_use_of_open(at + 1)].into_iter().flatten().min();
        if self.is_concurrent {
            if self.concurrent_stop <= at {
                let stmts = program.block(block);
                let end = streams.unwrap_or(stmts.len());
                let stops = |it: &usize| {
                    awaited_work(program, stmts[*it]).is_none()
                        && order.conflicts_with_other_streams(
                            segment,
                            self.storage,
                            &self.storage.effects(program, stmts[*it]),
                        )
                };
                self.concurrent_stop = (at + 1..end).find(stops).unwrap_or(end);
            }
            let stop = Some(self.concurrent_stop).filter(|it| *it < program.block(block).len());
            limit = limit.into_iter().chain(stop).min();
        }
        // After the Waits for all other communications, no statement has to stay behind this one.
        limit.filter(|it| self.is_concurrent || last_end.is_some_and(|end| *it < end))
    }

    /// Returns the first statement from index `from` on that conflicts with an open communication whose Wait comes later.
    fn first_use_of_open(&mut self, from: usize) -> Option<usize> {
        while let Some((at, access)) = self.next.first().copied() {
            let last = self.conflicting[access].last().map(|it| it.0);
            if at >= from && last.is_some_and(|it| it > at) {
                return Some(at);
            }
            self.next.pop_first();
            // If all Waits come before the statement, the access counts again when a communication is opened.
            if at < from && last.is_some() {
                self.next.extend(first_from(&self.stmts[access], from).map(|it| (it, access)));
            }
        }
        None
    }

    /// Returns the accesses in the block that conflict with a communication.
    fn conflicts(&self, number: u32) -> Vec<usize> {
        let work = self.storage.work_accesses(number);
        let used = work.reads.union(&work.writes).flat_map(|it| [Access::Writes(*it), Access::Drops(*it)]);
        let written = work.writes.iter().map(|it| Access::Reads(*it));
        used.chain(written).filter_map(|it| self.accesses.get(&it).copied()).collect()
    }

    fn open(&mut self, number: u32, from: usize) {
        if self.ends.contains_key(&number) {
            return;
        }
        let end = self.waits.get(&number).and_then(|it| first_from(it, from)).unwrap_or(usize::MAX);
        self.ends.insert(number, end);
        self.by_end.insert((end, number));
        for access in self.conflicts(number) {
            self.conflicting[access].insert((end, number));
            self.next.extend(first_from(&self.stmts[access], from).map(|it| (it, access)));
        }
    }

    fn close(&mut self, number: u32) {
        let Some(end) = self.ends.remove(&number) else { return };
        self.by_end.remove(&(end, number));
        for access in self.conflicts(number) {
            self.conflicting[access].remove(&(end, number));
        }
    }
}

/// Returns the first index that is not less than `from`.
fn first_from(indices: &[usize], from: usize) -> Option<usize> {
    indices.get(indices.partition_point(|it| *it < from)).copied()
}
