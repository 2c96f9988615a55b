//! Moves communications up.

use std::ops::Range;

use grammar::{BlockId, Op, OpClass, Program, StmtId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Analyses, EffectKey, takes_stream_time};
use crate::analysis::memory_effects::StmtEffects;

/// Returns the statements of a block with its communications that `wanted` accepts at their highest positions.
pub(super) fn hoist_in_block(
    program: &Program,
    analyses: &Analyses,
    block: BlockId,
    wanted: &dyn Fn(StmtId) -> bool,
) -> Vec<StmtId> {
    let (storage, order) = (&analyses.storage, &analyses.order);
    let stmts = program.block(block);
    let (mut segment, mut above) = (None, Above::default());
    let mut posts = posts(program, analyses, stmts).into_iter().peekable();
    // The communications, each with the number of other statements before it.
    let mut hoisted: Vec<(usize, Range<usize>)> = Vec::new();
    let mut next = 0;
    while next < stmts.len() {
        order.move_to(program, storage, &mut segment, block, next);
        if let Some(post) = posts.next_if(|it| it.stmts.start == next) {
            let moves = stmts[post.stmts.clone()].iter().any(|it| wanted(*it));
            above.barrier = if moves { above.highest_position(&post) } else { above.stmts.len() };
            next = post.stmts.end;
            hoisted.push((above.barrier, post.stmts));
            continue;
        }
        let effects = storage.effects(program, stmts[next]);
        let stays = order.others_wait(segment.as_ref())
            && order.conflicts_with_other_streams(segment.as_ref(), storage, &effects);
        above.push(analyses, stmts[next], &effects, stays, takes_stream_time(program, stmts[next]));
        next += 1;
    }
    let mut hoisted = hoisted.into_iter().peekable();
    let mut new = Vec::with_capacity(stmts.len());
    for (at, stmt) in above.stmts.iter().map(Some).chain([None]).enumerate() {
        while let Some((_, range)) = hoisted.next_if(|(position, _)| *position == at) {
            new.extend_from_slice(&stmts[range]);
        }
        new.extend(stmt);
    }
    new
}

/// A communication, or a coalescing bracket, with the ALLOCATEs directly before it of tensors that it uses.
struct Post {
    /// The indices of its statements in the block.
    stmts: Range<usize>,
    effects: StmtEffects,
    /// The names that its ALLOCATEs bind.
    allocated: FxHashSet<TensorId>,
}

/// Returns the communications of a block in order.
fn posts(program: &Program, analyses: &Analyses, stmts: &[StmtId]) -> Vec<Post> {
    let operator = |at: usize| program.stmts[stmts[at]].op().map(|it| it.op);
    let is_of = |at: usize, class: OpClass| operator(at).is_some_and(|it| it.def().class == class);
    let (mut found, mut next): (Vec<Post>, usize) = (Vec::new(), 0);
    while next < stmts.len() {
        let first = next;
        next += 1;
        if is_of(first, OpClass::Coalescing) {
            match (next..stmts.len()).find(|at| is_of(*at, OpClass::Coalescing)) {
                Some(last) => next = last + 1,
                None => continue,
            }
        } else if !is_of(first, OpClass::Communicate) {
            continue;
        }
        let mut effects = analyses.storage.all_effects(program, &stmts[first..next]);
        let (mut start, mut allocated) = (first, FxHashSet::default());
        let behind = found.last().map_or(0, |it| it.stmts.end);
        while start > behind && operator(start - 1) == Some(Op::Allocate) {
            let allocation = analyses.storage.effects(program, stmts[start - 1]);
            if !allocation.binds.is_subset(&effects.names) {
                break;
            }
            start -= 1;
            effects.symbols.extend(allocation.symbols);
            allocated.extend(allocation.binds);
        }
        found.push(Post { stmts: start..next, effects, allocated });
    }
    found
}

/// The statements above the current position that are not communications.
#[derive(Default)]
struct Above {
    stmts: Vec<StmtId>,
    /// For each effect, the number of statements up to the last one with this effect.
    last: FxHashMap<EffectKey, usize>,
    /// No communication moves before this position: a communication is there, or a statement that no communication
    /// moves before.
    barrier: usize,
    /// The positions of the statements that occupy the stream.
    busy: Vec<usize>,
}

impl Above {
    /// Adds the next statement. No communication moves before it if it `stays`.
    fn push(&mut self, analyses: &Analyses, stmt: StmtId, effects: &StmtEffects, stays: bool, is_busy: bool) {
        self.busy.extend(is_busy.then_some(self.stmts.len()));
        self.stmts.push(stmt);
        let count = self.stmts.len();
        if stays || effects.uses_streams || effects.may_block_host || effects.communicates {
            self.barrier = count;
        }
        self.last.extend(analyses.keys(effects).into_iter().map(|key| (key, count)));
    }

    /// Returns the number of statements that stay before a communication.
    fn highest_position(&self, post: &Post) -> usize {
        let posted = &post.effects;
        let mut keys: Vec<EffectKey> = posted.posts.iter().map(|it| EffectKey::Waits(*it)).collect();
        keys.extend(posted.symbols.iter().map(|it| EffectKey::Assigns(*it)));
        keys.extend(posted.names.iter().map(|it| EffectKey::Binds(*it)));
        keys.extend(post.allocated.iter().map(|it| EffectKey::Mentions(*it)));
        let used = posted.accesses.reads.union(&posted.accesses.writes);
        keys.extend(used.flat_map(|it| [EffectKey::Drops(*it), EffectKey::Writes(*it)]));
        keys.extend(posted.accesses.writes.iter().map(|it| EffectKey::Reads(*it)));
        let lowest = keys.iter().filter_map(|key| self.last.get(key)).chain([&self.barrier]).max();
        let lowest = lowest.copied().unwrap_or(0);
        let first = self.busy.get(self.busy.partition_point(|at| *at < lowest));
        first.copied().unwrap_or(self.stmts.len())
    }
}
