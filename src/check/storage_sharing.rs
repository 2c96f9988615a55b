//! Whether an allocator may give the storage of a tensor to another one, by the rules of `storage`: an order of steps that says so may belong to
//! another program.

use super::replay::{NextRun, NoSuchStorage, ReplayedStorage};
use hir_plan::{Allocation, BufferNo, InstKind, Plan, World};

/// Why an allocator does not give the storage of a tensor to another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotShared {
    /// There is no such rank or tensor.
    #[error(transparent)]
    NoSuchStorage(#[from] NoSuchStorage),
    /// The program does not allocate the tensor, or not from a pool.
    #[error(
        "`{0}` is no tensor that the program allocates from a pool: an input, symmetric memory or a tensor without elements"
    )]
    NoAllocation(String),
    /// Both are one tensor.
    #[error("`{0}` has its own storage anyway")]
    Itself(String),
    /// The tensors are in different pools.
    #[error(
        "`{0}` and `{1}` are in different pools of the allocator: those of different streams or names, or for small and large requests"
    )]
    Pools(String, String),
    /// The first tensor is not freed before the other one is allocated.
    #[error("`{0}` is not freed before `{1}` is allocated")]
    Live(String, String),
    /// The storage is not free when the run ends.
    #[error("`{0}` is not free when the program ends: it is an output, or a communication holds it")]
    Kept(String),
    /// The caller allocates on another stream.
    #[error("`{0}` is allocated on another stream than the one on which the caller continues")]
    CallerStream(String),
}

/// Tests whether an allocator may place storage like this.
///
/// # Errors
/// Why it does not.
pub fn may_share(first: &World, next: Option<NextRun<'_>>, it: &ReplayedStorage) -> Result<(), NotShared> {
    let last = match next {
        Some(NextRun::Other(world, _)) => world,
        Some(NextRun::Same | NextRun::Captured) | None => first,
    };
    let [plan, last] = it.plans(first, last)?;
    let earlier = Allocated::of(plan, it.earlier)?;
    let Some(later) = it.later else { return earlier.may_go_to_caller() };
    let later = Allocated::of(last, later)?;
    let is_one_program = !matches!(next, Some(NextRun::Other(..)));
    if is_one_program && it.later == Some(it.earlier) {
        return Err(NotShared::Itself(earlier.name()));
    }
    if earlier.pool() != later.pool() {
        return Err(NotShared::Pools(earlier.name(), later.name()));
    }
    // Runs that are issued get all storage that the run before has freed, and what its end frees; runs that are replayed have one placement.
    let is_shared = match next {
        None => earlier.is_freed_before(&later),
        Some(NextRun::Other(..)) => !earlier.is_held(),
        Some(NextRun::Same | NextRun::Captured) => {
            !earlier.is_held() || earlier.is_freed_before(&later) || later.is_freed_before(&earlier)
        }
    };
    if is_shared { Ok(()) } else { Err(NotShared::Live(earlier.name(), later.name())) }
}

/// A tensor that a program allocates.
struct Allocated<'a> {
    plan: &'a Plan,
    allocation: &'a Allocation,
}

impl<'a> Allocated<'a> {
    fn of(plan: &'a Plan, number: BufferNo) -> Result<Self, NotShared> {
        let all = plan.allocations.iter().filter(|it| !it.is_empty && !it.is_symmetric);
        let allocation = all.into_iter().find(|it| it.buffer == number);
        let allocation = allocation
            .ok_or_else(|| NotShared::NoAllocation(plan.buffers[number as usize].name.to_string()))?;
        Ok(Self { plan, allocation })
    }

    fn name(&self) -> String {
        self.plan.buffers[self.allocation.buffer as usize].name.to_string()
    }

    /// Returns the stream of the pool, whether it is the one for small requests, and its name.
    fn pool(&self) -> (&hir_plan::PlanStream, bool, Option<&String>) {
        let pool = self.allocation.pool;
        let named = pool.named.map(|it| &self.plan.pools[it as usize]);
        (&self.plan.streams[pool.stream as usize], pool.is_small, named)
    }

    fn is_freed_before(&self, later: &Self) -> bool {
        self.allocation.freed.is_some_and(|it| it.number < later.allocation.frees_before)
    }

    /// Returns whether a communication holds the storage to the end of the job.
    fn is_held(&self) -> bool {
        self.allocation.freed.is_none() && self.allocation.is_held
    }

    fn may_go_to_caller(&self) -> Result<(), NotShared> {
        let is_kept = || self.plan.caller_buffers().any(|it| it == self.allocation.buffer);
        if self.allocation.freed.is_none() && (self.allocation.is_held || is_kept()) {
            return Err(NotShared::Kept(self.name()));
        }
        let exit = self.plan.code.iter().rfind(|it| matches!(it.kind, InstKind::ReadOutputs));
        let is_of_exit = exit.is_some_and(|it| it.stream == self.allocation.pool.stream);
        if is_of_exit { Ok(()) } else { Err(NotShared::CallerStream(self.name())) }
    }
}
