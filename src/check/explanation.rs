//! Explains why nothing orders the two sides of a race, and suggests the edits that do.

use super::{
    conflict::{Party, Race},
    iteration_storage::move_allocate,
    plan_index::{PlanIndex, PlanIndexes},
    race_side::{RaceSide, stream_of},
    reader_edits::edits_of_readers,
    repair::{InsertionPoint, NamedStmt, Repair, WaitedStream},
};
use hir_plan::{BufferNo, InstKind, Plan, PlanStream, StreamNo};
use rustc_hash::FxHashSet;

/// Why two accesses are unordered, and how to order them.
#[derive(Debug, Default, PartialEq)]
pub struct RaceExplanation {
    /// The missing order.
    pub why: Option<String>,
    /// Alternative edits; each one orders the accesses.
    pub edits: Vec<Repair>,
    /// Advice if there are no edits.
    pub advice: Option<String>,
    /// True if the edits change the program of the second side's rank, false if that of the first.
    pub is_in_second: bool,
}

impl RaceExplanation {
    pub(super) fn new(why: impl Into<String>, edit: Repair) -> Self {
        Self { why: Some(why.into()), edits: vec![edit], ..Self::default() }
    }

    /// Explains a race. If both sides are on one rank, `first` is issued before `second`.
    pub fn of(race: &Race, first: &RaceSide<'_>, second: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Self {
        let indexes = &indexes.with_queues(race.p2p);
        if let (Party::Operation(..), Party::Operation(..)) = (first.party, second.party) {
            return Self::within_coalescing();
        }
        if first.party == second.party {
            return Self::within_collective();
        }
        if race.between_runs {
            return Self::between_runs(race, first, second, indexes);
        }
        if let Party::CallerBefore = first.party {
            return Self::entry(first.plan, second, indexes);
        }
        if let Some(reused) = race.reused.filter(|it| it.is_unmapped) {
            return Self::unmapped(&reused, first, indexes);
        }
        if first.plan.rank != second.plan.rank {
            let it = Self::across_ranks(first, second, indexes);
            return match race.reused {
                Some(reused) => it.or_freed_later((&reused, race.is_stream_ordered), first, second, indexes),
                None => it,
            };
        }
        if let Some(reused) = race.reused {
            if second.frees() {
                return Self::freed(&reused, first, second, indexes);
            }
            return Self::reused(race, &reused, (first, second), indexes);
        }
        if let Some(it) = Self::same_buffer_in_all_iterations(race.buffer, first, second, indexes) {
            return it;
        }
        if first.allocates() {
            return Self::allocated(race, first, second);
        }
        let own = move_allocate(race.buffer, (first, second), indexes.of(first.plan.rank));
        let mut it = Self::between_streams(first, second, indexes);
        if let Some(edit) = own.filter(|_| it.edits.len() == 1) {
            it.edits.insert(0, edit);
        }
        it
    }

    /// Explains a race of two operations of one group.
    fn within_coalescing() -> Self {
        Self {
            why: Some(
                "operations between StartCoalescing and EndCoalescing run at the same time".to_owned(),
            ),
            advice: Some(
                "receive into other storage, then copy it with Set (posting the two one after the other deadlocks if all ranks send first)"
                    .to_owned(),
            ),
            ..Self::default()
        }
    }

    /// Explains a collective whose output overlaps its input.
    fn within_collective() -> Self {
        Self {
            why: Some(
                "NCCL accepts an output that overlaps the input only in place: where the part of this rank has the same \
                 place in both"
                    .to_owned(),
            ),
            advice: Some("let the input or the output be a copy (`Set`)".to_owned()),
            ..Self::default()
        }
    }

    /// Explains a race of two ranks: either one may be the peer of a transfer.
    fn across_ranks(first: &RaceSide<'_>, second: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Self {
        Self::between_ranks(first, second, indexes)
            .or_else(|| Some(Self { is_in_second: true, ..Self::between_ranks(second, first, indexes)? }))
            .unwrap_or_else(|| {
                let why = format!(
                    "no communication orders {} on rank {} and {} on rank {}",
                    first.location(),
                    first.plan.rank,
                    second.location(),
                    second.plan.rank
                );
                Self { why: Some(why), ..Self::default() }
            })
    }

    /// Explains a race of two streams of one rank, or of a stream and a posted communication.
    fn between_streams(first: &RaceSide<'_>, second: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Self {
        let (before, waiting) = match second.party {
            Party::CallerAfter(_) => {
                let stream = format!("the stream that is current at exit ({})", second.stream());
                (InsertionPoint::end(second.plan), stream)
            }
            Party::Inst(_) | Party::Operation(..) | Party::Free(..) | Party::CallerBefore => {
                (InsertionPoint::before(second), second.stream().to_string())
            }
        };
        let why = if first.is_posted() {
            why_not_awaited(first, second, &waiting, indexes.of(first.plan.rank))
        } else {
            let until = if second.is_in_program() { second.location() } else { "the end".to_owned() };
            format!("{waiting} does not wait for {} between {} and {until}", first.stream(), first.location())
        };
        let index = indexes.of(first.plan.rank);
        if let Some(edits) = edits_of_readers(first, second, index) {
            return Self { why: Some(why), edits, ..Self::default() };
        }
        let edit = fork(first, second, index).unwrap_or_else(|| {
            Repair::order_after(first, before, second.inst_index(), second.frame(), index)
        });
        Self::new(why, edit)
    }

    /// Explains an access to an input that does not follow the caller's write.
    fn entry(mine: &Plan, second: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Self {
        let raised = ready_signal_inst(mine, second, indexes);
        if let Some(raised) = raised.filter(|_| second.plan.rank != second.owner) {
            let (name, posts) = (mine.describe_origin(mine.code[raised].origin), stream_of(mine, raised));
            let verb = if second.writes { "write" } else { "read" };
            let why = format!(
                "rank {} may {verb} it once {name} is posted, and {posts} does not wait for the stream that is current at entry before that",
                second.plan.rank
            );
            let statement = NamedStmt::from_origin(mine, mine.code[raised].origin);
            let before = InsertionPoint::Before { statement, current: Some(posts.clone()) };
            let edit = posts.is_in_program().then(|| Repair::synchronize_with_entry(before));
            return Self { why: Some(why), edits: edit.into_iter().collect(), ..Self::default() };
        }
        let is_own = second.plan.rank == second.owner;
        let why = if is_own {
            format!("{} does not wait for the stream that is current at entry", second.stream())
        } else {
            let (mine, theirs) = (mine.rank, second.plan.rank);
            format!(
                "no communication orders the beginning on rank {mine} and {} on rank {theirs}",
                second.location()
            )
        };
        let edit = is_own.then(|| Repair::synchronize_with_entry(InsertionPoint::before(second)));
        Self { why: Some(why), edits: edit.into_iter().collect(), ..Self::default() }
    }

    /// Explains a race on a buffer that all iterations share because the ALLOCATE in the loop is skipped: its
    /// name is already bound.
    fn same_buffer_in_all_iterations(
        buffer: BufferNo,
        first: &RaceSide<'_>,
        second: &RaceSide<'_>,
        indexes: &PlanIndexes<'_>,
    ) -> Option<Self> {
        let plan = Some(first.plan).filter(|it| it.rank == first.owner)?;
        let index = indexes.of(plan.rank);
        let alloc = &plan.code[index.alloc(buffer)?];
        let origin = plan.origins[alloc.origin as usize];
        let frame = origin.iteration?;
        let (name, value) = plan.enclosing_loops(Some(frame)).pop()?;
        // The statement must be in the same loop as the ALLOCATE, and execute in the iteration of the
        // ALLOCATE.
        let value_at = |side: &RaceSide<'_>| {
            let it = plan.origins[side.origin as usize];
            let is_there = index.is_in_iteration(it.stmt, frame);
            let around = plan.enclosing_loops(it.iteration).pop().filter(|it| is_there && it.0 == name);
            around.map(|it| it.1)
        };
        let (one, other) = (value_at(first)?, value_at(second)?);
        let later = [one, other].into_iter().find(|it| *it != value)?;
        let is_alloc = |it: &RaceSide<'_>| it.allocates() || it.fills_with_zeros();
        if one == other || is_alloc(first) || is_alloc(second) {
            return None;
        }
        // If every iteration zeroed the storage, it would lose what earlier iterations accumulated.
        let is_zeroed = matches!(alloc.kind, InstKind::Alloc { zeroed: Some(_), .. });
        // Without an ALLOCATE, the statement that first writes the tensor allocates it.
        let is_allocate = plan.skipped_allocations.iter().any(|it| Some(it.stmt) == origin.stmt);
        let short = (is_allocate && !is_zeroed).then_some(Repair::ShortenAllocate { allocate: origin.stmt });
        let order = Repair::order_after(
            first,
            InsertionPoint::before(second),
            second.inst_index(),
            second.frame(),
            index,
        );
        let edits = short.into_iter().chain([order]).collect();
        let (line, tensor) = (origin.line, &plan.buffers[buffer as usize].name);
        let why = if is_allocate {
            format!(
                "both use one buffer: the ALLOCATE on line {line} has no effect in {name}={later}, where its name is bound"
            )
        } else {
            format!(
                "both use one buffer: no ALLOCATE in the loop gives `{tensor}` new storage, so it keeps the storage from \
                 {name}={value}. If no iteration reads what an earlier one wrote, insert `{tensor} = \
                 ALLOCATE(mem_type=global, zero_init=false)` before line {line}"
            )
        };
        Some(Self { why: Some(why), edits, ..Self::default() })
    }

    /// Explains a race with a transfer over peer memory. `far` is the peer's copy, which runs between two
    /// signals: `near`'s rank sends the first and waits for the second.
    fn between_ranks(near: &RaceSide<'_>, far: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Option<Self> {
        let (mine, theirs) = (near.plan, far.plan);
        // The peer's copy accesses the memory of another rank.
        if theirs.rank == far.owner {
            return None;
        }
        let here = near.issue_index()?;
        let index = indexes.of(mine.rank);
        let raised = ready_signal_inst(mine, far, indexes)?;
        let name = mine.describe_origin(mine.code[raised].origin);
        let verb = if far.writes { "write" } else { "read" };
        if here < raised {
            // This rank accesses the memory before it signals that it is ready.
            let posts = stream_of(mine, raised);
            let before =
                if near.is_posted() { mine.describe_origin(near.origin) } else { near.stream().to_string() };
            return Some(Self::new(
                format!(
                    "rank {} may {verb} it once {name} is posted, and nothing waits for {before} before that",
                    theirs.rank
                ),
                Repair::order_after(
                    near,
                    InsertionPoint::Before {
                        statement: NamedStmt::from_origin(mine, mine.code[raised].origin),
                        current: Some(posts).filter(|it| it.is_in_program()).cloned(),
                    },
                    Some(raised),
                    mine.origins[mine.code[raised].origin as usize].iteration,
                    index,
                ),
            ));
        }
        let awaited = peer_wait(mine, far, indexes);
        let stream = near.stream();
        Some(match awaited {
            None => Self::new(
                format!(
                    "rank {} may still {verb} it: rank {} does not wait for {name}",
                    theirs.rank, mine.rank
                ),
                Repair::insert_wait(
                    index,
                    mine.code[raised].origin,
                    InsertionPoint::before(near),
                    near.frame(),
                ),
            ),
            Some(at) if at > here => Self::new(
                format!(
                    "rank {} may still {verb} it: the Wait for {name} comes after this access, at {}",
                    theirs.rank,
                    mine.location(&mine.code[at])
                ),
                Repair::move_wait(mine, at, InsertionPoint::before(near)),
            ),
            Some(at) => {
                let other = stream_of(mine, at);
                Self::new(
                    format!(
                        "the Wait for {name} is at {}, on {other}, and {stream} does not wait for {other} after it",
                        mine.location(&mine.code[at])
                    ),
                    Repair::InsertSynchronize {
                        stream: WaitedStream::of(mine, Some(at)),
                        before: InsertionPoint::before(near),
                    },
                )
            }
        })
    }
}

/// Returns the edit by which the stream of `second`, in a loop, waits for the stream that is current at entry, if that one has waited for
/// `first`, which is in a loop over several streams: one edit for the streams of all iterations. If `second` is on one stream, the iterations
/// of `first` have to be joined, each where it ends: otherwise a join of the iterations may let it wait for less.
fn fork(first: &RaceSide<'_>, second: &RaceSide<'_>, index: PlanIndex<'_>) -> Option<Repair> {
    let plan = second.plan;
    let (access, here) = (first.inst_index()?, second.inst_index()?);
    let entry = plan.streams.iter().position(|it| *it == PlanStream::Entry)? as StreamNo;
    let streams = |side: &RaceSide<'_>| {
        let stmt = side.plan.origins[side.origin as usize].stmt;
        let all: FxHashSet<StreamNo> =
            stmt.map_or(&[][..], |it| index.of_stmt(it)).iter().map(|it| plan.code[*it].stream).collect();
        all.len()
    };
    let joined = index.first_stream_wait(access, entry).filter(|wait| *wait < here)?;
    let join = plan.origins[plan.code[joined].origin as usize];
    let is_fork = !first.is_posted()
        && second.is_in_program()
        && second.frame().is_some()
        && *second.stream() != PlanStream::Entry
        && second.stream().is_in_program()
        && *first.stream() != PlanStream::Entry
        && streams(first) > 1
        && (streams(second) > 1 || join.iteration == first.frame());
    is_fork.then(|| Repair::InsertSynchronize {
        stream: WaitedStream::Entry { stmt: join.stmt },
        before: InsertionPoint::before(second),
    })
}

/// Says why the posted communication `posted` may still run when `waiting` accesses its storage.
fn why_not_awaited(
    posted: &RaceSide<'_>,
    second: &RaceSide<'_>,
    waiting: &str,
    index: PlanIndex<'_>,
) -> String {
    let plan = posted.plan;
    let name = plan.describe_origin(posted.origin);
    let Some(at) = posted.first_wait(index) else { return format!("nothing waits for {name}") };
    let (location, stream) = (plan.location(&plan.code[at]), stream_of(plan, at));
    if second.inst_index().is_some_and(|it| at >= it) {
        return format!("the Wait for {name} is at {location}, after this access");
    }
    format!(
        "the Wait for {name} is at {location}, on {stream}, and {waiting} does not wait for {stream} after it"
    )
}

/// Returns the instruction that sends the signal for which the peer waits before it copies from or to this
/// rank's memory.
pub(super) fn ready_signal_inst(mine: &Plan, far: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Option<usize> {
    let ready = indexes.of(far.plan.rank).last_signal_from(far.inst_index()?, mine.rank)?;
    indexes.of(mine.rank).signal(ready)
}

/// Returns the instruction by which a stream of this rank's program waits until the peer has copied from or to this rank's memory.
pub(super) fn peer_wait(mine: &Plan, far: &RaceSide<'_>, indexes: &PlanIndexes<'_>) -> Option<usize> {
    let (raised, index) = (ready_signal_inst(mine, far, indexes)?, indexes.of(mine.rank));
    // A wait on a communicator's queue does not block a stream of the program.
    if !stream_of(mine, raised).is_in_program() {
        return index.first_wait_for(raised);
    }
    // After its copy, the peer signals this rank.
    let done = indexes.of(far.plan.rank).next_signal_to(far.inst_index()?, mine.rank)?;
    index.signal_wait(done)
}
