//! Finds the statements that a Wait orders after work other than its own communication.
//!
//! A communication begins after all work that its stream and its communicator have before it. So a Wait for it also
//! orders later statements of the waiting stream after earlier communications that nothing waits for yet, and, in a
//! program with several streams, after the work of other streams.
//!
//! Invariant: the absence of a conflict is certain. Otherwise, a conflict may exist.

mod limits;
mod pending;

use std::ops::Range;

use grammar::{BlockId, OpClass, OpStmt, Program, Stmt, StmtId, TensorId, attr};
use hir_ir::{
    blocks::nested_blocks,
    streams::{block_sets_stream, sets_stream},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    loop_carried::{MentionCounts, loop_carried_dep},
    memory_effects::{MemoryEffects, ReadWriteSet, StmtEffects},
};
use limits::BlockScan;
use pending::PendingWork;

/// The communications that are pending at the beginning of each block with Waits, and the accesses of all streams.
#[derive(Default)]
pub struct WaitOrder {
    has_streams: bool,
    at_entry: FxHashMap<BlockId, PendingWork>,
    /// The blocks of loops that set the stream and whose iterations may conflict.
    in_conflicting_loop: FxHashSet<BlockId>,
    /// The bodies of loops that set the stream and whose iterations do not conflict.
    independent_loops: FxHashSet<BlockId>,
    all: AccessCounts,
}

/// The number of statements that read and write each alias class, the communications that they post, and the number of
/// Waits.
#[derive(Default)]
struct AccessCounts {
    reads: FxHashMap<TensorId, usize>,
    writes: FxHashMap<TensorId, usize>,
    posts: FxHashSet<u32>,
    waits: usize,
}

/// The statements of a block between two statements that set the stream: they run on one stream.
pub struct StreamSegment {
    block: BlockId,
    range: Range<usize>,
    own: AccessCounts,
}

impl WaitOrder {
    /// Analyzes the statements of the program's container.
    pub fn of(program: &Program, storage: &MemoryEffects) -> Self {
        let mut order = Self::default();
        let Some(body) = program.body else { return order };
        order.has_streams = block_sets_stream(program, body);
        if order.has_streams {
            program.stmts_in(body).for_each(|stmt| order.all.add(program, storage, stmt));
            // The caller writes the inputs before the first statement, and reads the outputs after the last one.
            let classes = |operands| Program::tensors_of(operands).map(|it| storage.alias_class(it));
            classes(&program.inputs).for_each(|class| *order.all.writes.entry(class).or_default() += 1);
            classes(&program.outputs).for_each(|class| *order.all.reads.entry(class).or_default() += 1);
            let mentions = MentionCounts::of(program);
            for stmt in program.stmts_in(body) {
                let Stmt::For(found) = &program.stmts[stmt] else { continue };
                if !block_sets_stream(program, found.body) {
                    continue;
                }
                match loop_carried_dep(program, storage, &mentions, found) {
                    Some(_) => order.in_conflicting_loop.extend(nested_blocks(program, found.body)),
                    None => _ = order.independent_loops.insert(found.body),
                }
            }
        }
        let (mut with_waits, mut pending) = (FxHashSet::default(), PendingWork::default());
        blocks_with_waits(program, body, &mut with_waits);
        order.enter(program, body, &mut pending, &with_waits);
        order
    }

    /// Stores what is pending at the beginning of a block and of the blocks nested in it, if they contain Waits.
    fn enter(
        &mut self,
        program: &Program,
        block: BlockId,
        pending: &mut PendingWork,
        with_waits: &FxHashSet<BlockId>,
    ) {
        if !with_waits.contains(&block) {
            return;
        }
        let at_entry = if self.has_streams { pending.copy() } else { pending.copy_open() };
        self.at_entry.insert(block, at_entry);
        let mark = pending.mark();
        for stmt in program.block(block) {
            // An iteration may follow another one, but it does not matter which communications of other iterations
            // are open if iterations do not conflict.
            let repeats = match &program.stmts[*stmt] {
                Stmt::For(it) => !self.independent_loops.contains(&it.body),
                Stmt::If(_) | Stmt::Op(_) | Stmt::Let(..) => false,
            };
            if repeats {
                pending.apply(program, *stmt);
            }
            for inner in program.inner_blocks(*stmt) {
                self.enter(program, inner, pending, with_waits);
            }
            if !repeats {
                pending.apply(program, *stmt);
            }
        }
        pending.undo(mark);
    }

    /// Returns, for each Wait of a block by its index, the index of the first statement that has to stay behind it,
    /// if there is one, because the Wait orders it after work other than its own communication.
    pub fn limits(
        &self,
        program: &Program,
        storage: &MemoryEffects,
        block: BlockId,
    ) -> FxHashMap<usize, usize> {
        let mut limits = FxHashMap::default();
        let mut pending = self.pending_at_entry(block);
        let mut scan = BlockScan::new(program, storage, (block, 0), &pending);
        let (mut segment, mut mark) = (None, 0);
        for (at, stmt) in program.block(block).iter().enumerate() {
            if let Some(number) = awaited_work(program, *stmt) {
                self.move_to(program, storage, &mut segment, block, at);
                scan.enter_segment(segment.as_ref(), &pending, mark);
                mark = pending.mark();
                let limit = scan.limit(program, self, block, (at, number), segment.as_ref());
                limits.extend(limit.map(|it| (at, it)));
            }
            let before = pending.mark();
            pending.apply(program, *stmt);
            scan.update(&pending, before, at + 1);
        }
        limits
    }

    /// Returns the index of the first statement of a block that has to stay behind a Wait for `number` at index `at`,
    /// or in the branch there.
    pub fn limit_at(
        &self,
        program: &Program,
        storage: &MemoryEffects,
        block: BlockId,
        at: usize,
        number: u32,
    ) -> Option<usize> {
        let mut pending = self.pending_at_entry(block);
        program.block(block)[..=at].iter().for_each(|stmt| pending.apply(program, *stmt));
        let mut scan = BlockScan::new(program, storage, (block, at + 1), &pending);
        let mut segment = None;
        self.move_to(program, storage, &mut segment, block, at);
        scan.enter_segment(segment.as_ref(), &pending, pending.mark());
        scan.limit(program, self, block, (at, number), segment.as_ref())
    }

    fn pending_at_entry(&self, block: BlockId) -> PendingWork {
        self.at_entry.get(&block).map(PendingWork::copy).unwrap_or_default()
    }

    /// Makes the segment that contains the statement at index `at` of a block the current one. It stays `None` in a
    /// program with one stream.
    pub fn move_to(
        &self,
        program: &Program,
        storage: &MemoryEffects,
        segment: &mut Option<StreamSegment>,
        block: BlockId,
        at: usize,
    ) {
        if !self.has_streams || segment.as_ref().is_some_and(|it| it.block == block && it.range.contains(&at))
        {
            return;
        }
        let stmts = program.block(block);
        let sets = |stmt: &StmtId| sets_stream(program, *stmt);
        let from = stmts[..at].iter().rposition(sets).map_or(0, |it| it + 1);
        let to = stmts[at..].iter().position(sets).map_or(stmts.len(), |it| at + it);
        let mut own = AccessCounts::default();
        // In such a loop, the statements of the segment also run on the streams of other iterations.
        if !self.in_conflicting_loop.contains(&block) {
            let inside = stmts[from..to].iter().flat_map(|it| program.stmts_at(*it));
            inside.for_each(|it| own.add(program, storage, it));
        }
        *segment = Some(StreamSegment { block, range: from..to, own });
    }

    /// Returns whether a statement on the stream of a segment may conflict with another stream or the caller.
    pub fn conflicts_with_other_streams(
        &self,
        segment: Option<&StreamSegment>,
        storage: &MemoryEffects,
        effects: &StmtEffects,
    ) -> bool {
        segment.is_some_and(|it| self.all.conflict_outside(&it.own, &with_bound(storage, effects)))
    }

    /// Returns whether a stream other than that of a segment may wait for a communication.
    pub fn others_wait(&self, segment: Option<&StreamSegment>) -> bool {
        segment.is_some_and(|it| self.all.waits > it.own.waits)
    }
}

impl AccessCounts {
    /// Counts a statement, but not those nested in it.
    fn add(&mut self, program: &Program, storage: &MemoryEffects, stmt: StmtId) {
        let Stmt::Op(it) = &program.stmts[stmt] else { return };
        if it.op.def().class == OpClass::Wait {
            self.waits += 1;
            return;
        }
        self.posts.extend(posted_work(program, stmt));
        let accesses = with_bound(storage, &storage.effects(program, stmt));
        accesses.reads.iter().for_each(|it| *self.reads.entry(*it).or_default() += 1);
        accesses.writes.iter().for_each(|it| *self.writes.entry(*it).or_default() += 1);
    }

    /// Returns whether accesses conflict with a statement that is counted here and not in `own`.
    fn conflict_outside(&self, own: &Self, accesses: &ReadWriteSet) -> bool {
        let count = |counts: &FxHashMap<TensorId, usize>, it: &TensorId| counts.get(it).copied().unwrap_or(0);
        let is_read = |it: &TensorId| count(&self.reads, it) > count(&own.reads, it);
        let is_written = |it: &TensorId| count(&self.writes, it) > count(&own.writes, it);
        accesses.reads.iter().any(is_written)
            || accesses.writes.iter().any(|it| is_read(it) || is_written(it))
    }
}

/// Returns the accesses of a statement. The storage of a tensor is bound to the stream of its ALLOCATE, which reuses it after the
/// Deallocate, so both write it.
fn with_bound(storage: &MemoryEffects, effects: &StmtEffects) -> ReadWriteSet {
    let mut accesses = effects.accesses.clone();
    accesses.writes.extend(effects.binds.iter().map(|it| storage.alias_class(*it)));
    accesses
}

/// Collects the blocks that contain a Wait, directly or in a nested block. Returns whether `block` is one of them.
fn blocks_with_waits(program: &Program, block: BlockId, found: &mut FxHashSet<BlockId>) -> bool {
    let mut waits = false;
    for stmt in program.block(block) {
        waits |= awaited_work(program, *stmt).is_some();
        for inner in program.inner_blocks(*stmt) {
            waits |= blocks_with_waits(program, inner, found);
        }
    }
    if waits {
        found.insert(block);
    }
    waits
}

/// Returns the number of the communication that a statement waits for; `None` if it is not a Wait.
pub fn awaited_work(program: &Program, stmt: StmtId) -> Option<u32> {
    program.stmts[stmt].op().filter(|it| it.op.def().class == OpClass::Wait)?.get(attr::WORK)
}

/// Returns the number of a communication, or of a coalesced group, that a statement posts; `None` if it posts none.
pub fn posted_work(program: &Program, stmt: StmtId) -> Option<u32> {
    let posts = |it: &&OpStmt| matches!(it.op.def().class, OpClass::Communicate | OpClass::Coalescing);
    program.stmts[stmt].op().filter(posts)?.number
}
