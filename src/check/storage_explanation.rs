//! Explains races on storage: with the ALLOCATE, the free, and the tensor that gets the storage next.

use super::{
    conflict::{Race, ReusedStorage},
    explanation::{RaceExplanation, peer_wait, ready_signal_inst},
    plan_index::{PlanIndex, PlanIndexes},
    race_side::{RaceSide, stream_of},
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
    stream_work::is_work_of_stream,
};
use grammar::StmtId;
use hir_plan::{Allocation, InstKind, Plan, PlanStream};

/// How storage is freed with the models in which a free is work of a stream.
const CUDA_FREE: &str = "`cudaFreeAsync` (`--storage=cuda-async` or `pytorch-cuda-async`)";

impl RaceExplanation {
    /// Explains a reuse of storage by the allocator while `first` still uses it.
    pub(super) fn reused(
        race: &Race,
        reused: &ReusedStorage,
        (first, second): (&RaceSide<'_>, &RaceSide<'_>),
        indexes: &PlanIndexes<'_>,
    ) -> Self {
        let (plan, index) = (first.plan, indexes.of(first.plan.rank));
        let allocation = index.allocation(reused.earlier);
        let next = reused.later.and_then(|later| index.alloc(later));
        if let Some((it, next)) =
            allocation.zip(next).filter(|_| !race.is_stream_ordered && second.is_in_program())
        {
            let has_waited =
                |used| index.first_stream_wait(used, it.pool.stream).is_some_and(|wait| wait < next);
            if first.inst_index().is_some_and(has_waited) {
                return Self::reused_elsewhere(next, second);
            }
            if is_used_apart(next, second, index) {
                return Self::reused_apart(next, (first, second), index);
            }
        }
        let stream = allocation.map_or(&PlanStream::Entry, |it| &plan.streams[it.pool.stream as usize]);
        let (insertion, frame) = match next {
            Some(at) => {
                let origin = plan.origins[plan.code[at].origin as usize];
                let statement = NamedStmt { stmt: origin.stmt, name: format!("line {}", origin.line) };
                (InsertionPoint::Before { statement, current: Some(stream.clone()) }, origin.iteration)
            }
            None => (InsertionPoint::end(plan), None),
        };
        let used_by = first.actor_name();
        let why = if race.is_stream_ordered {
            format!(
                "the end of the program frees it with {CUDA_FREE} on {stream}, the stream of its ALLOCATE, which does not wait for {used_by}"
            )
        } else {
            format!(
                "with `--storage=pytorch`, the allocator reuses the storage on {stream}, which does not wait for {used_by}"
            )
        };
        let moved = allocation.and_then(|it| move_deallocate((it, it.freed?.origin), first, index));
        let order = Repair::order_after(first, insertion, next, frame, index);
        let order = if race.is_stream_ordered { on_stream(order, stream, index) } else { order };
        Self { why: Some(why), edits: moved.into_iter().chain([order]).collect(), ..Self::default() }
    }

    /// Explains a reuse of storage that the stream of the ALLOCATE `next` has waited for, and the stream that uses the new tensor has not.
    fn reused_elsewhere(next: usize, second: &RaceSide<'_>) -> Self {
        let (plan, other) = (second.plan, second.stream());
        let (stream, line) = (stream_of(plan, next), plan.origins[plan.code[next].origin as usize].line);
        let why = format!(
            "with `--storage=pytorch`, the ALLOCATE on line {line} may get the storage for {stream}, and {other} does not wait for {stream}"
        );
        let stream = WaitedStream::of(plan, Some(next));
        Self::new(why, Repair::InsertSynchronize { stream, before: InsertionPoint::before(second) })
    }

    /// Explains a reuse of storage if the stream that uses the new tensor waits neither for `first` nor for the stream of the ALLOCATE `next`.
    fn reused_apart(
        next: usize,
        (first, second): (&RaceSide<'_>, &RaceSide<'_>),
        index: PlanIndex<'_>,
    ) -> Self {
        let (plan, other, used_by) = (second.plan, second.stream(), first.actor_name());
        let (stream, line) = (stream_of(plan, next), plan.origins[plan.code[next].origin as usize].line);
        let why = format!(
            "with `--storage=pytorch`, the ALLOCATE on line {line} may get the storage for {stream}, and {other} waits neither for {stream} nor for \
             {used_by}"
        );
        let before = InsertionPoint::before(second);
        Self::new(why, Repair::order_after(first, before, second.inst_index(), second.frame(), index))
    }

    /// Explains a use that the free on the stream of the ALLOCATE does not follow.
    pub(super) fn freed(
        reused: &ReusedStorage,
        first: &RaceSide<'_>,
        second: &RaceSide<'_>,
        indexes: &PlanIndexes<'_>,
    ) -> Self {
        let (plan, index) = (second.plan, indexes.of(second.plan.rank));
        let (stream, line) = (second.stream(), second.line());
        let used_by = first.actor_name();
        let why =
            format!("{CUDA_FREE} on line {line} is work of {stream}, which does not wait for {used_by}");
        let allocation = index.allocation(reused.earlier);
        let is_own = first.plan.rank == plan.rank;
        let moved = allocation.filter(|_| is_own);
        let moved = moved.and_then(|it| move_deallocate((it, it.unbound?.origin), first, index));
        // The Synchronize has to block the stream of the ALLOCATE.
        let order = allocation.filter(|_| is_own).and_then(|it| {
            let here = plan.code.partition_point(|it| it.origin < second.origin);
            // The Wait that releases it, or the Deallocate.
            let released = it.freed.filter(|it| Some(it.origin) == reused.freed_by).map(|it| it.current);
            let stream = released.or_else(|| it.unbound.map(|it| it.current))?;
            let current = plan.streams[stream as usize].clone();
            let before = InsertionPoint::before(second).with_current(current);
            let order = Repair::order_after(first, before, Some(here), second.frame(), index);
            let blocked = &plan.streams[it.pool.stream as usize];
            let order = on_stream(order, blocked, index);
            let is_current = stream == it.pool.stream;
            (is_current || order.blocked_stream() == Some(blocked)).then_some(order)
        });
        let advice = format!("let {stream} wait for {used_by} before line {line}, or free the storage later");
        let edits = moved.into_iter().chain(order).collect();
        Self { why: Some(why), edits, advice: Some(advice), ..Self::default() }
    }

    /// Explains a use of symmetric memory that the host has not waited for where it frees the memory.
    pub(super) fn unmapped(reused: &ReusedStorage, first: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Self {
        let plan = indexes.of(first.owner).plan();
        let line = reused.freed_by.map_or(0, |origin| plan.origins[origin as usize].line);
        let (host, used_by) = (first.owner, first.actor_name());
        let whose =
            if first.plan.rank == host { String::new() } else { format!(" of rank {}", first.plan.rank) };
        let why = format!(
            "line {line} unmaps symmetric memory, which waits for no stream (`cuMemUnmap`), and the host has not waited for {used_by}{whose}"
        );
        let advice = format!(
            "insert `Synchronize(host)` before line {line}, on a stream that has waited for {used_by}{whose}, or leave the memory to the caller"
        );
        Self { why: Some(why), advice: Some(advice), ..Self::default() }
    }

    /// Adds the edit by which the program frees storage that a peer uses behind the Wait for the peer, or waits before it frees it. The
    /// free of symmetric memory follows all streams.
    pub(super) fn or_freed_later(
        mut self,
        (reused, is_stream_ordered): (&ReusedStorage, bool),
        first: &RaceSide<'_>,
        second: &RaceSide<'_>,
        indexes: &PlanIndexes<'_>,
    ) -> Self {
        let is_of_second = second.plan.rank == first.owner;
        let (plan, peer) = if is_of_second { (second.plan, first) } else { (first.plan, second) };
        let allocation =
            indexes.of(plan.rank).allocation(reused.earlier).filter(|_| plan.rank == first.owner);
        let index = indexes.of(plan.rank);
        let (Some(it), Some(freed)) = (allocation, reused.freed_by) else {
            let own = allocation.filter(|it| is_stream_ordered && !it.is_symmetric);
            if let Some((it, wait)) = own.zip(peer_wait(plan, peer, indexes)) {
                let (blocked, used_by) = (&plan.streams[it.pool.stream as usize], stream_of(plan, wait));
                let line = plan.origins[plan.code[wait].origin as usize].line;
                self.why = Some(format!(
                    "the end of the program frees it with {CUDA_FREE} on {blocked}, the stream of its ALLOCATE, which does not wait for {used_by}, the \
                     stream of the Wait on line {line}"
                ));
                let stream = WaitedStream::of(plan, Some(wait));
                let order = Repair::InsertSynchronize { stream, before: InsertionPoint::end(plan) };
                self.edits = vec![on_stream(order, blocked, index)];
                self.is_in_second = is_of_second;
            }
            return self;
        };
        match peer_wait(plan, peer, indexes) {
            Some(wait) if it.is_symmetric || plan.code[wait].stream == it.pool.stream => {
                self.edits.splice(0..0, free_behind(plan, freed, wait));
            }
            // Another stream waits, and that of the ALLOCATE may wait for it later.
            Some(wait) => {
                let joined = index.first_stream_wait(wait, it.pool.stream);
                let behind = joined.zip(it.unbound).and_then(|(at, free)| free_behind(plan, free.origin, at));
                if is_stream_ordered {
                    self.edits = order_free(index, (it, freed), wait).into_iter().collect();
                }
                self.edits.splice(0..0, behind);
            }
            None => {
                let wait = wait_before_free(it, freed, (plan, peer), indexes);
                let blocked = &plan.streams[it.pool.stream as usize];
                let placed = |edit| if is_stream_ordered { on_stream(edit, blocked, index) } else { edit };
                self.edits = wait.map(placed).into_iter().collect();
            }
        }
        self.is_in_second = is_of_second;
        self
    }

    /// Explains a use of storage that the stream of its ALLOCATE may still use.
    pub(super) fn allocated(race: &Race, first: &RaceSide<'_>, second: &RaceSide<'_>) -> Self {
        let (stream, other, line) = (first.stream(), second.stream(), first.line());
        let why = if race.is_stream_ordered {
            format!(
                "`cudaMallocAsync` (`--storage=cuda-async` or `pytorch-cuda-async`) on line {line} is work of {stream}: another stream may use the storage only after it, and {other} does \
                 not wait for it"
            )
        } else {
            format!(
                "with `--storage=pytorch`, the allocator may give the ALLOCATE on line {line} storage that earlier work on {stream} still uses, such as its workspace, and {other} does not wait for that work"
            )
        };
        Self::new(
            why,
            Repair::InsertSynchronize {
                stream: WaitedStream::of(first.plan, first.inst_index()),
                before: InsertionPoint::before(second),
            },
        )
    }
}

/// Returns whether no edit of another finding lets the stream of `second` wait for that of the ALLOCATE `next` of its tensor, which it does not:
/// the ALLOCATE follows no work that it needs, and no earlier access to the tensor on the stream of the ALLOCATE races with `second`. An edit
/// before the ALLOCATE then orders no use of `second`.
fn is_used_apart(next: usize, second: &RaceSide<'_>, index: PlanIndex<'_>) -> bool {
    let plan = index.plan();
    let (Some(here), InstKind::Alloc { buffer, .. }) = (second.inst_index(), &plan.code[next].kind) else {
        return false;
    };
    let (allocates, waiting) = (plan.code[next].stream, plan.code[here].stream);
    let is_ordered = |at: usize| index.first_stream_wait(at, waiting).is_some_and(|wait| wait <= here);
    let needs_work = || {
        let works = plan.code[..next].iter().rposition(|it| {
            it.stream == allocates && !it.kind.effect().runs_on_host() && is_work_of_stream(plan, it)
        });
        works.is_some_and(|it| !is_ordered(it))
    };
    let races = |at: &usize| {
        let is_between = next < *at && *at < here && plan.code[*at].stream == allocates;
        is_between && (second.writes || index.own_accesses(*at, *buffer).any(|it| it.is_write))
    };
    allocates != waiting && !is_ordered(next) && !needs_work() && !index.own_uses(*buffer).iter().any(races)
}

/// Returns the edit that lets `blocked` wait, if an edit inserts a Synchronize or a Wait, or moves a Wait, where another stream is current.
fn on_stream(edit: Repair, blocked: &PlanStream, index: PlanIndex<'_>) -> Repair {
    let executes =
        |wait: StmtId| index.of_stmt(wait).first().is_some_and(|it| stream_of(index.plan(), *it) == blocked);
    if edit.insertion().and_then(InsertionPoint::current).is_none_or(|it| it == blocked) {
        return edit;
    }
    edit.on_stream(blocked, &executes)
}

/// Returns the edit that moves the Deallocate of an allocation, which is the statement `freed`, behind the statement by which the stream of the
/// allocation waits for `first`; `None` if that stream does not wait in the iteration of the Deallocate.
fn move_deallocate(
    (allocation, freed): (&Allocation, u32),
    first: &RaceSide<'_>,
    index: PlanIndex<'_>,
) -> Option<Repair> {
    let wait = index.first_stream_wait(first.inst_index()?, allocation.pool.stream)?;
    free_behind(first.plan, freed, wait)
}

/// Returns the edit that moves the Deallocate `freed` behind the statement of the instruction `wait`; `None` if it is there, or if they are in
/// different iterations.
fn free_behind(plan: &Plan, freed: u32, wait: usize) -> Option<Repair> {
    let wait = plan.code[wait].origin;
    let [from, after] = [freed, wait].map(|it| plan.origins[it as usize]);
    (freed < wait && from.iteration == after.iteration)
        .then_some(Repair::MoveDeallocate { deallocate: from.stmt, after: after.stmt })
}

/// Returns the edit by which the stream of an allocation waits for `wait`, an instruction of another stream, before the statement `freed`.
fn order_free(index: PlanIndex<'_>, (allocation, freed): (&Allocation, u32), wait: usize) -> Option<Repair> {
    let plan = index.plan();
    let released = allocation.freed.filter(|it| it.origin == freed).map(|it| it.current);
    let current = released.or_else(|| allocation.unbound.map(|it| it.current))?;
    let current = Some(plan.streams[current as usize].clone());
    let before = InsertionPoint::Before { statement: NamedStmt::from_origin(plan, freed), current };
    let edit = if plan.code[wait].origin < freed {
        Repair::InsertSynchronize { stream: WaitedStream::of(plan, Some(wait)), before }
    } else {
        Repair::move_wait(plan, wait, before)
    };
    Some(on_stream(edit, &plan.streams[allocation.pool.stream as usize], index))
}

/// Returns the edit that inserts a Wait for what `peer` accesses before the Deallocate `freed`.
fn wait_before_free(
    allocation: &Allocation,
    freed: u32,
    (plan, peer): (&Plan, &RaceSide<'_>),
    indexes: &PlanIndexes<'_>,
) -> Option<Repair> {
    let raised = ready_signal_inst(plan, peer, indexes)?;
    let current = allocation.unbound.map(|it| plan.streams[it.current as usize].clone());
    let before = InsertionPoint::Before { statement: NamedStmt::from_origin(plan, freed), current };
    let frame = plan.origins[freed as usize].iteration;
    Some(Repair::insert_wait(indexes.of(plan.rank), plan.code[raised].origin, before, frame))
}
