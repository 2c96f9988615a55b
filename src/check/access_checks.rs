//! The checks that compare accesses to memory: races, unwritten elements, unread writes, and semaphores.
//!
//! The clocks of a world have an entry for each stream and communicator of all ranks, so comparing all ranks at once takes
//! time and memory quadratic in their number. In a large world, each group of ranks that share no memory is checked by
//! itself, in its own order (`hir_plan::sync::MemoryGroups`, which says what that proves). A group in which anything is found then is checked
//! again with all orders, so that what is reported is a fault of the world.

use super::{
    conflict::{Party, Race},
    excess::UnreadWrites,
    execution_fault::PostedAgain,
    finding::Checks,
    memory::{UnwrittenRead, WriteTracker},
    ordering_model::AccessRules,
    race::RaceDetector,
    semaphores::SemaphoreWatch,
    storage::{IssuedRuns, SharedStorage},
};
use hir_plan::{
    Plan, World,
    sync::{
        InstRef, MemoryGroups,
        happens_before::{GroupOrders, Occurrence, OrderError, walk_group},
        is_large_world,
    },
};

/// The maximum number of groups that are checked again with all orders. Each takes a walk over the whole world.
const MAX_WHOLE_WALKS: usize = 4;

/// When groups are checked by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    /// In a large world.
    Large,
    /// In any world; all groups with faults are checked again with all orders.
    Always,
}

impl Grouping {
    /// Returns the groups of ranks that are checked by themselves: one of all ranks, unless the world is large.
    pub fn groups(self, plans: &[Plan]) -> MemoryGroups {
        if self == Self::Large && !is_large_world(plans) {
            MemoryGroups::whole(plans)
        } else {
            MemoryGroups::of(plans)
        }
    }

    fn max_whole_walks(self) -> usize {
        match self {
            Self::Large => MAX_WHOLE_WALKS,
            Self::Always => usize::MAX,
        }
    }
}

/// What is found in the accesses of all ranks.
#[derive(Default)]
pub(super) struct AccessChecks<'p> {
    pub races: Vec<Race>,
    /// Number of pairs of views that are too large to compare.
    pub not_compared: usize,
    pub unwritten_reads: Vec<UnwrittenRead>,
    /// Number of reads and writes with too many pieces to record.
    pub not_recorded: usize,
    /// The transfers that are posted again too early.
    pub posted_again: Vec<PostedAgain>,
    /// The writes that nothing reads, if all instructions were visited in one order.
    pub unread: Option<UnreadWrites<'p>>,
    /// Number of groups that have faults in their own order, and were not checked with all orders.
    pub undecided: usize,
}

impl<'p> AccessChecks<'p> {
    /// Checks all groups.
    ///
    /// # Errors
    /// A group has too many streams, or no order of its instructions was found.
    pub fn of(
        world: &'p World,
        checks: Checks,
        (grouping, groups): (Grouping, &MemoryGroups),
    ) -> Result<Self, OrderError> {
        let mut found = Self { unread: checks.excess.then(|| UnreadWrites::new(world)), ..Self::default() };
        let mut own = Trackers::new(world, checks, groups);
        let mut doubtful = Vec::new();
        for group in 0..groups.groups().len() {
            let unread = found.unread.as_mut();
            let of_group = own.walk((groups, group), GroupOrders::Own, unread)?;
            if !of_group.is_free_of_races() && !groups.is_whole() {
                found.unread = None;
            }
            if groups.is_whole() || of_group.is_clean() {
                found.add(of_group);
            } else {
                doubtful.push(group);
            }
        }
        for group in doubtful.iter().take(grouping.max_whole_walks()) {
            let mut all = Trackers::new(world, checks, groups);
            found.add(all.walk((groups, *group), GroupOrders::All, None)?);
        }
        found.undecided = doubtful.len().saturating_sub(grouping.max_whole_walks());
        Ok(found)
    }

    /// Returns whether no race was found, and no pair of accesses was left out.
    pub fn is_free_of_races(&self) -> bool {
        self.races.is_empty() && self.not_compared == 0 && self.undecided == 0
    }

    /// Returns whether nothing was found, and nothing was left out.
    pub fn is_clean(&self) -> bool {
        let Self { races, not_compared, unwritten_reads, not_recorded, posted_again, unread: _, undecided } =
            self;
        races.is_empty()
            && unwritten_reads.is_empty()
            && posted_again.is_empty()
            && *not_compared + *not_recorded + *undecided == 0
    }

    /// Adds what was found in another group.
    pub fn add(&mut self, other: Self) {
        self.races.extend(other.races);
        self.not_compared += other.not_compared;
        self.unwritten_reads.extend(other.unwritten_reads);
        self.not_recorded += other.not_recorded;
        self.posted_again.extend(other.posted_again);
    }
}

/// The state of the checks that were requested, during walks.
pub(super) struct Trackers<'p> {
    world: &'p World,
    races: Option<RaceDetector<'p>>,
    memory: Option<WriteTracker<'p>>,
    semaphores: Option<SemaphoreWatch<'p>>,
    /// The storage that two runs share: as one that is replayed, and as runs that are issued.
    storage: Vec<SharedStorage<'p>>,
}

impl<'p> Trackers<'p> {
    fn new(world: &'p World, checks: Checks, groups: &MemoryGroups) -> Self {
        let races =
            || RaceDetector::with_actors(world, checks.access_rules(), groups.first_actors().to_vec());
        Self {
            world,
            // Waits and writes are judged only if the program has no race.
            races: (checks.race || checks.excess).then(races),
            memory: checks.memory.then(|| WriteTracker::new(world)),
            semaphores: checks.looks_at_semaphores().then(|| SemaphoreWatch::new(world)),
            storage: Vec::new(),
        }
    }

    /// For two runs, as `world`, which allocate `issued` if they are issued. `of_one` is the program if both are of one: then they use the
    /// same semaphores, and the same storage if they are replayed, that which the allocator gives out during the first one.
    pub fn of_two_runs(
        world: &'p World,
        rules: AccessRules,
        groups: &MemoryGroups,
        (of_one, issued): (Option<&'p [Plan]>, &[IssuedRuns]),
    ) -> Self {
        // Where streams execute frees, what is ordered in one run is ordered between runs.
        let reuses = !rules.reuses_in_order() && !rules.frees_in_stream_order();
        let replayed = of_one.map(SharedStorage::of_two_runs);
        let storage = replayed.into_iter().chain([SharedStorage::of_issued_runs(world, issued)]);
        Self {
            world,
            races: Some(RaceDetector::with_actors(world, rules, groups.first_actors().to_vec())),
            memory: None,
            semaphores: of_one.map(|_| SemaphoreWatch::new(world)),
            storage: storage.filter(|_| reuses).collect(),
        }
    }

    /// Walks over a group, and returns what is found there.
    ///
    /// # Errors
    /// The group has too many streams, or no order of its instructions was found.
    pub fn walk(
        &mut self,
        group: (&MemoryGroups, usize),
        orders: GroupOrders,
        mut unread: Option<&mut UnreadWrites<'p>>,
    ) -> Result<AccessChecks<'p>, OrderError> {
        let Self { world, races, memory, semaphores, storage } = self;
        walk_group(world, group, orders, &mut |it: Occurrence| {
            if let Some(races) = races {
                races.visit(&it);
                let party = Party::Inst(InstRef { rank: it.rank, inst: it.inst });
                let shared = !storage.is_empty();
                let accesses = shared.then(|| world[it.rank].code[it.inst].kind.accesses(it.rank));
                for access in accesses.into_iter().flatten() {
                    let by = (party, access.is_write);
                    for storage in &mut *storage {
                        let found = storage.access(&it, by, access.rank, access.view.buffer);
                        races.report_reuse(access.rank, found, false);
                    }
                }
            }
            if let Some(unread) = &mut unread {
                unread.visit(&it);
            }
            if let Some(memory) = memory {
                memory.visit(&it);
            }
            if let Some(semaphores) = semaphores {
                semaphores.visit(&it);
            }
        })?;
        let mut found = AccessChecks::default();
        if let Some(races) = races {
            races.finish();
            found.races = std::mem::take(&mut races.found);
            found.not_compared = std::mem::take(&mut races.not_compared);
        }
        if let Some(memory) = memory {
            (found.unwritten_reads, found.not_recorded) = memory.finish();
        }
        if let Some(semaphores) = semaphores {
            found.posted_again = std::mem::take(&mut semaphores.found);
        }
        Ok(found)
    }
}
