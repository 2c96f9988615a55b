//! Finds storage that a caching allocator reuses while something still uses it.
//!
//! An allocator associates one stream with each block, that of its ALLOCATE. It reuses a freed block
//! immediately on that stream, and gives it to the caller once the program has returned. Which block it gives
//! to which tensor is not determined by the program: a tensor may get the storage, or a part of it, of every
//! tensor of its pool that was freed before (`plan::Allocation`). So every use of a tensor must happen before
//! every use of every tensor of the pool that is allocated after the first one is freed. Frameworks hold
//! operands of a communication until the program waits for it, on any stream (`plan::held_operands`). After that the block is free,
//! and is reused without waiting for the stream that waited.
//!
//! Tensors of a pool are freed and allocated one after another, so both are numbered, and one number decides
//! which tensors may share storage with a given one. For each actor, only the uses that decide for some number
//! are kept: of two uses by one actor, the later one decides, unless its tensor is freed later.
//!
//! Two runs that are replayed use the same storage. Of two runs that are issued, the second one may get all storage of a pool that the first
//! one has freed: the frees of the second run are numbered behind those of the first one.
//!
//! Symmetric memory is no block of the allocator (`stream_ordered_frees`).

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::conflict::{Party, ReusedStorage};
use hir_plan::{
    Allocation, BufferNo, Plan, StoragePool,
    sync::{InstRef, happens_before::Occurrence},
};

/// A use of the storage of a buffer; of no buffer, if it is the caller's use of storage that it gets.
#[derive(Clone, Copy)]
struct StorageUse {
    party: Party,
    writes: bool,
    /// The last write to the buffer by the same actor, up to this use.
    written: Option<Party>,
    buffer: Option<BufferNo>,
    /// The statement that frees the buffer, as an index into `Plan::origins`.
    freed_by: Option<u32>,
    /// The number of its instruction on the actor that executes it.
    number: u32,
}

/// When a buffer occupies storage of its pool, in numbers of frees.
#[derive(Clone, Copy)]
struct Occupancy {
    pool: StoragePool,
    /// It may occupy the storage of buffers that are freed before this number.
    from: u32,
    /// Buffers that are allocated after this number may occupy its storage.
    until: u32,
    /// The statement that frees it, as an index into `Plan::origins`.
    freed_by: Option<u32>,
}

/// The number of frees before a second run that is issued. It is more than a run has.
const OF_ONE_RUN: u32 = 1 << 30;
/// The number for buffers that the end of the first run frees: all others are freed before it.
const AT_END: u32 = OF_ONE_RUN - 1;
/// The number for buffers that are never freed, and for what the caller allocates after the program.
const NEVER: u32 = u32::MAX;

/// The uses by one actor of the storage of a pool.
#[derive(Default)]
struct ActorUses {
    /// Number of the last use.
    last: u32,
    /// The last use of buffers whose `until` is at most the key. Numbers of uses increase with the key.
    by_end: BTreeMap<u32, StorageUse>,
    /// The last use of buffers whose `from` is at least the key. Numbers of uses decrease with the key.
    by_start: BTreeMap<u32, StorageUse>,
}

/// The storage of a pool on one rank.
#[derive(Default)]
struct PoolUses {
    actors: BTreeMap<u32, ActorUses>,
    /// The maximum of `from` of all uses.
    latest: u32,
}

/// The storage of all ranks.
#[derive(Default)]
pub struct SharedStorage<'p> {
    plans: &'p [Plan],
    /// By rank and buffer, for each of two runs that are issued; else those of the first run are those of all instructions.
    occupancies: [FxHashMap<(usize, BufferNo), Occupancy>; 2],
    /// The first instruction of the second one of two runs that are issued, by rank.
    second_begins: Vec<usize>,
    pools: FxHashMap<(usize, StoragePool), PoolUses>,
    /// Whether the uses are those of two consecutive runs, in which all tensors have the same storage.
    is_repeated: bool,
}

/// What a rank allocates in each of two runs, which are issued one after the other, and the first instruction of the second one.
pub struct IssuedRuns {
    /// The allocations, numbered as in the plan of both runs.
    pub allocated: [Vec<Allocation>; 2],
    /// The index of the instruction in the plan of both runs.
    pub second_begins: usize,
}

/// Two uses of the same storage by different tensors, which no synchronization orders.
pub struct StorageConflict {
    /// The use by the tensor that occupies the storage first (of two runs: in the first run), and whether it
    /// writes.
    pub earlier: (Party, bool),
    /// The use by the tensor that occupies it later, and whether it writes.
    pub later: (Party, bool),
    /// The two tensors.
    pub reused: ReusedStorage,
}

impl<'p> SharedStorage<'p> {
    /// Creates the state before the first instruction.
    pub fn new(plans: &'p [Plan]) -> Self {
        Self::of(plans, false)
    }

    fn of(plans: &'p [Plan], is_repeated: bool) -> Self {
        let mut it = Self { plans, is_repeated, ..Self::default() };
        for plan in plans {
            it.add_run((plan.rank, 0), &plan.allocations, &plan.caller_buffers().collect());
        }
        it
    }

    /// Creates the state before the first instruction of two runs that are issued one after the other, which `plans` has as one. The
    /// caller has let go of the outputs of the first one.
    pub fn of_issued_runs(plans: &'p [Plan], runs: &[IssuedRuns]) -> Self {
        let none = FxHashSet::default();
        let mut it = Self::new(&[]);
        it.plans = plans;
        for (plan, runs) in plans.iter().zip(runs) {
            (0..).zip(&runs.allocated).for_each(|(run, all)| it.add_run((plan.rank, run), all, &none));
            it.second_begins.push(runs.second_begins);
        }
        it
    }

    /// Adds what a rank allocates in a run. The caller keeps the storage of `kept`.
    fn add_run(&mut self, (rank, run): (usize, usize), all: &[Allocation], kept: &FxHashSet<BufferNo>) {
        let first = run as u32 * OF_ONE_RUN;
        for it in all.iter().filter(|it| !it.is_empty && !it.is_symmetric) {
            // A capture frees what only communications hold where the program drops it.
            let freed = it.freed.or(it.left.filter(|_| self.is_repeated));
            let until = match freed {
                // `early_releases` follows what recorded streams delay.
                _ if it.is_recorded => NEVER,
                Some(freed) => first + freed.number,
                None if it.is_held || kept.contains(&it.buffer) => NEVER,
                None => first + AT_END,
            };
            let freed_by = freed.map(|it| it.origin);
            let occupancy = Occupancy { pool: it.pool, from: first + it.frees_before, until, freed_by };
            self.occupancies[run].insert((rank, it.buffer), occupancy);
        }
    }

    /// Creates the state before the first instruction of two consecutive runs with the same storage. A single
    /// run has no conflict.
    pub fn of_two_runs(plans: &'p [Plan]) -> Self {
        Self::of(plans, true)
    }

    /// Records an access to a buffer after all accesses that happen before it, and returns its conflicts.
    pub fn access(
        &mut self,
        it: &Occurrence,
        (party, writes): (Party, bool),
        rank: usize,
        buffer: BufferNo,
    ) -> Vec<StorageConflict> {
        let is_second = self.second_begins.get(it.rank).is_some_and(|begin| it.inst >= *begin);
        let of_run = &self.occupancies[usize::from(is_second)];
        let Some(occupancy) = of_run.get(&(rank, buffer)).copied() else { return Vec::new() };
        if let Party::CallerBefore | Party::CallerAfter(_) = party {
            return Vec::new();
        }
        let (freed_by, number) = (occupancy.freed_by, it.number);
        let new = StorageUse { party, writes, written: None, buffer: Some(buffer), freed_by, number };
        self.add(it, rank, occupancy, new)
    }

    /// Records the end of a rank. The caller continues on the stream of `ReadOutputs` and gets the storage
    /// that was allocated on it.
    pub fn finish(&mut self, it: &Occurrence) -> Vec<StorageConflict> {
        let at = InstRef { rank: it.rank, inst: it.inst };
        let stream = self.plans[it.rank].code[it.inst].stream;
        let new = StorageUse {
            party: Party::CallerAfter(at),
            writes: true,
            written: None,
            buffer: None,
            freed_by: None,
            number: it.number,
        };
        let named = (0..self.plans[it.rank].pools.len() as u32).map(Some);
        let pools = [None]
            .into_iter()
            .chain(named)
            .flat_map(|named| [true, false].map(|is_small| StoragePool { stream, is_small, named }));
        let all: Vec<_> =
            pools.map(|pool| Occupancy { pool, from: NEVER, until: NEVER, freed_by: None }).collect();
        all.into_iter().flat_map(|occupancy| self.add(it, it.rank, occupancy, new)).collect()
    }

    /// Compares a use with those that were visited before, and stores it.
    fn add(
        &mut self,
        it: &Occurrence,
        rank: usize,
        occupancy: Occupancy,
        new: StorageUse,
    ) -> Vec<StorageConflict> {
        let pool = self.pools.entry((rank, occupancy.pool)).or_default();
        let mut found = Vec::new();
        for (actor, uses) in &pool.actors {
            let ended = it.clock.ended(*actor);
            // Uses by buffers that are freed before this one is allocated must have ended.
            if *actor != it.actor && uses.last > ended {
                let last = uses.by_end.range(..occupancy.from).next_back();
                found.extend(last.filter(|it| it.1.number > ended).map(|it| (*it.1, new)));
            }
            // A use by a buffer that is allocated after this one is freed must not be visited before. In the
            // second run, such a use belongs to the first run and must have ended.
            if pool.latest > occupancy.until {
                let last = uses.by_start.range(occupancy.until.saturating_add(1)..).next();
                let conflict = |it: (&u32, &StorageUse)| {
                    if self.is_repeated {
                        (it.1.number > ended).then_some((*it.1, new))
                    } else {
                        Some((new, if new.writes { *it.1 } else { it.1.as_write() }))
                    }
                };
                found.extend(last.and_then(conflict));
            }
        }
        pool.latest = pool.latest.max(occupancy.from);
        pool.actors.entry(it.actor).or_default().add(occupancy, new);
        let is_issued = !self.second_begins.is_empty();
        found.into_iter().filter_map(|(earlier, later)| conflict(earlier, later, is_issued)).collect()
    }
}

impl ActorUses {
    /// Stores a use. It is the last one of the actor.
    fn add(&mut self, occupancy: Occupancy, mut new: StorageUse) {
        let known = [self.by_end.get(&occupancy.until), self.by_start.get(&occupancy.from)];
        let before = known.into_iter().flatten().find(|it| it.buffer == new.buffer);
        new.written = if new.writes { Some(new.party) } else { before.and_then(|it| it.written) };
        self.last = new.number;
        self.by_end.split_off(&occupancy.until);
        self.by_end.insert(occupancy.until, new);
        self.by_start = self.by_start.split_off(&occupancy.from);
        self.by_start.insert(occupancy.from, new);
    }
}

impl StorageUse {
    /// Returns the last write up to this use, or this use if the actor has not written.
    fn as_write(&self) -> Self {
        self.written.map_or(*self, |party| Self { party, writes: true, ..*self })
    }
}

fn conflict(earlier: StorageUse, later: StorageUse, is_issued: bool) -> Option<StorageConflict> {
    let reused = ReusedStorage {
        earlier: earlier.buffer?,
        later: later.buffer,
        freed_by: earlier.freed_by,
        by_next_run: is_issued,
        by_next_call: false,
        in_capture: false,
        is_unmapped: false,
    };
    Some(StorageConflict {
        earlier: (earlier.party, earlier.writes),
        later: (later.party, later.writes),
        reused,
    })
}
