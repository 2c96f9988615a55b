//! Finds the last use of each tensor and inserts a Deallocate after it.

use grammar::{
    attr, for_each_tensor_use,
    ir::{BlockId, OpStmt, Operand, Program, Stmt, StmtId, TensorId},
    ops::{Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Insertions, TensorUses, depth_outside_carrying_loops, depth_outside_loops, insert, may_become_view,
    stream_order::CurrentStreams,
};
use crate::{
    analysis::{
        bindings, coalescing::CoalescingBrackets, maybe_bound::maybe_bound,
        memory_effects::fully_written_tensors, posted_work::for_each_posted_communication,
        stmt_path::StmtPaths,
    },
    rewrite::builder,
};

/// Inserts a Deallocate after the last use of each name.
pub(super) fn insert_deallocations(program: &mut Program, body: BlockId) -> bool {
    let places = StmtPaths::of(program, body);
    let uses = TensorUses::of(program, &places);
    let users = StorageUsers::of(program, &places, &uses);
    let maybe_bound = maybe_bound(program);
    let streams = CurrentStreams::of(program, body);
    let mut wanted: Vec<(usize, TensorId, BlockId, usize)> = Vec::new();
    let mut queries: FxHashMap<StmtId, Vec<TensorId>> = FxHashMap::default();
    let mut brackets = CoalescingBrackets::default();
    let names = places.uses.keys().copied();
    let is_ours = |it: &TensorId| {
        !uses.io_tensors.contains(it)
            && !uses.dropped.contains(it)
            && (uses.bound.contains(it) || uses.writes.contains_key(it))
    };
    for tensor in names.filter(is_ours) {
        let (count, stmts) = users.last_uses(&places, tensor);
        let Some(first) = stmts.first().copied() else { continue };
        let depth = places.common_depth(&stmts);
        let binds = |stmt| fully_defined_tensors(program, &maybe_bound, stmt);
        let mut depth = depth_outside_carrying_loops(program, &places, tensor, first, depth, &binds);
        if keeps_handle(program, &places, &uses, tensor, &stmts) {
            depth = depth_outside_loops(&places, first, depth);
        }
        let place = places.block_at(first, depth).zip(places.index_range(&stmts, depth));
        let Some((block, (start, last))) = place else { continue };
        let used: FxHashSet<StmtId> = stmts.iter().copied().collect();
        let last = streams.index_behind_waits(program, (block, start..last + 1), &used);
        let bracket = brackets.around(program, block, last);
        let last = bracket.map_or(last, |(_, end)| end);
        queries.entry(program.block(block)[last]).or_default().push(tensor);
        wanted.push((count, tensor, block, last));
    }
    let certain = bindings::bound_after(program, &queries);
    wanted.retain(|(_, tensor, block, last)| certain.contains(&(program.block(*block)[*last], *tensor)));
    // Views come before the tensors that they alias; the tensor numbers make the order deterministic.
    wanted.sort_by_key(|(count, tensor, ..)| (*count, program.tensors[*tensor].number, *tensor));
    let mut insertions = Insertions::default();
    for (_, tensor, block, last) in wanted {
        let span = program.stmt_span(program.block(block)[last]);
        let new = OpStmt { args: vec![Operand::Tensor(tensor)], ..builder::op(Op::Deallocate) };
        let new = builder::add(program, new, span);
        insertions.entry(block).or_default().push((last + 1, new));
    }
    insert(program, insertions)
}

/// Returns whether the tensor keeps its storage, and its memory handle, from one iteration to the next: a long
/// ALLOCATE (`Op::AllocateOnce`) allocates it, or no statement binds it. If the name were deallocated in between, the
/// next iteration would use other storage, whose handle the peers do not expect. `stmts` use the storage.
pub(super) fn keeps_handle(
    program: &Program,
    places: &StmtPaths,
    uses: &TensorUses,
    tensor: TensorId,
    stmts: &[StmtId],
) -> bool {
    let is = |stmt: &StmtId, what: &dyn Fn(&OpStmt) -> bool| match &program.stmts[*stmt] {
        Stmt::Op(it) => what(it),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    let allocated = |it: &OpStmt| it.op == Op::AllocateOnce && it.out_tensor() == Some(tensor);
    let shared = |it: &OpStmt| it.op.def().class == OpClass::ShareHandles;
    let users = || places.uses.get(&tensor).into_iter().flatten();
    (!uses.bound.contains(&tensor) || users().any(|stmt| is(stmt, &allocated)))
        && stmts.iter().any(|stmt| is(stmt, &shared))
}

/// Returns the names that a statement binds, or writes as a whole, without reading their previous contents.
fn fully_defined_tensors(program: &Program, maybe_bound: &FxHashSet<StmtId>, stmt: StmtId) -> Vec<TensorId> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Vec::new() };
    // A copy binds a name without storage, and otherwise writes where the name was bound to, perhaps in an earlier
    // iteration.
    let is_copy_in_place = may_become_view(it) && maybe_bound.contains(&stmt);
    if it.op == Op::AllocateOnce || is_copy_in_place {
        return Vec::new();
    }
    let mut fresh = fully_written_tensors(program, stmt);
    if matches!(it.op.def().class, OpClass::View | OpClass::Allocate) {
        fresh.extend(it.out_tensor());
    }
    fresh
}

/// The names and statements that keep the storage of each name in use, besides the name itself.
pub(super) struct StorageUsers {
    /// The views of each name.
    views: FxHashMap<TensorId, Vec<TensorId>>,
    /// The Waits for communications that use each name.
    waits: FxHashMap<TensorId, Vec<StmtId>>,
}

impl StorageUsers {
    pub(super) fn of(program: &Program, places: &StmtPaths, uses: &TensorUses) -> Self {
        let mut views: FxHashMap<TensorId, Vec<TensorId>> = FxHashMap::default();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let effect = it.op.def().class;
            let unbound = |out: TensorId| {
                effect == OpClass::Compute && !uses.bound.contains(&out) && may_become_view(it)
            };
            let is_view = matches!(effect, OpClass::View | OpClass::Allocate);
            if let Some(out) = it.out_tensor().filter(|out| is_view || unbound(*out)) {
                for_each_tensor_use(program, it, &mut |base, _| {
                    if base != out {
                        views.entry(base).or_default().push(out);
                    }
                });
            }
        }
        let mut posted: FxHashMap<u32, Vec<TensorId>> = FxHashMap::default();
        for_each_posted_communication(program, &mut |number, it| {
            let used = posted.entry(number).or_default();
            for_each_tensor_use(program, it, &mut |tensor, _| used.push(tensor));
        });
        let mut waits: FxHashMap<TensorId, Vec<StmtId>> = FxHashMap::default();
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            if let (OpClass::Wait, Some(number)) = (it.op.def().class, it.get(attr::WORK)) {
                for tensor in posted.get(&number).into_iter().flatten() {
                    waits.entry(*tensor).or_default().push(*stmt);
                }
            }
        }
        Self { views, waits }
    }

    /// Returns the number of names that share the storage of `tensor` (the tensor and its views), and all
    /// statements that use this storage.
    pub(super) fn last_uses(&self, places: &StmtPaths, tensor: TensorId) -> (usize, Vec<StmtId>) {
        let mut names = vec![tensor];
        let mut at = 0;
        while let Some(name) = names.get(at).copied() {
            at += 1;
            for view in self.views.get(&name).into_iter().flatten() {
                if !names.contains(view) {
                    names.push(*view);
                }
            }
        }
        let mut stmts: Vec<StmtId> = Vec::new();
        for name in &names {
            stmts.extend(places.uses.get(name).into_iter().flatten());
            stmts.extend(self.waits.get(name).into_iter().flatten());
        }
        (names.len(), stmts)
    }
}
