//! Inserts an ALLOCATE for each tensor that statements write and nothing allocates.

use grammar::{AccessMode, BlockId, Program, Stmt, StmtId, TensorId};
use hir_ir::build;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CarriedNames, Insertions, TensorUses, deallocate::keeps_handle, depth_outside_loops, insert,
    may_become_view, storage_users::StorageUsers, stream_order::StreamOrder,
};
use crate::analysis::{
    coalescing::CoalescingBrackets,
    memory_effects::{allocation_index, fully_written_tensors},
    stmt_path::StmtPaths,
};

/// Returns the names that a statement writes.
fn written_tensors(program: &Program, stmt: StmtId) -> Vec<TensorId> {
    let uses = program.op(stmt).into_iter().flat_map(|it| it.tensor_uses(program));
    uses.filter(|it| it.1 == AccessMode::Write).map(|it| it.0).collect()
}

/// Inserts an ALLOCATE before the first use of each written name that has no storage.
pub(super) fn insert_allocations(program: &mut Program, body: BlockId) -> bool {
    let places = StmtPaths::of(program, body);
    let uses = TensorUses::of(program, &places);
    let users = StorageUsers::of(program, &places, &uses, &StreamOrder::of(program, &places));
    let mut insertions = Insertions::default();
    // Statements with their allocation index: several names may be mentioned first in one statement.
    let mut indices: FxHashMap<StmtId, usize> = FxHashMap::default();
    let binds = |stmt| fully_written_tensors(program, stmt);
    let mut carried = CarriedNames::new(program, &places, &binds);
    let mut wanted: Vec<(BlockId, usize, StmtId, TensorId)> = Vec::new();
    let mut brackets = CoalescingBrackets::default();
    let mut done: FxHashSet<TensorId> = uses.bound.clone();
    for stmt in &places.order {
        for tensor in written_tensors(program, *stmt) {
            if !done.insert(tensor) || stays_view(program, &places, &uses, tensor) {
                continue;
            }
            let mentioned = &places.uses[&tensor];
            let mut depth = if uses.outputs.contains(&tensor) { 0 } else { places.common_depth(mentioned) };
            depth = carried.depth_outside_loops(tensor, *stmt, depth);
            // Storage of its own in every iteration would have another handle in every iteration.
            if keeps_handle(program, &places, &uses, tensor, &users.users(tensor)) {
                depth = depth_outside_loops(&places, *stmt, depth);
            }
            let place = places.block_at(*stmt, depth).zip(places.index_range(mentioned, depth));
            let Some((block, (first, _))) = place else { continue };
            let bracket = brackets.around(program, block, first);
            let before = bracket.map_or(first, |(start, _)| start);
            let first = program.block(block)[before];
            let at = *indices.entry(first).or_insert_with(|| allocation_index(program, block, before));
            wanted.push((block, at, *stmt, tensor));
        }
    }
    for (block, at, stmt, tensor) in wanted {
        let span = program.stmt_span(stmt);
        let new = build::allocate(program, tensor);
        let new = build::add(program, new, span);
        insertions.entry(block).or_default().push((at, new));
    }
    insert(program, insertions)
}

/// Returns whether a name without storage stays a view of the tensor that is copied to it. With storage of its own, it would
/// not show later writes to this tensor, nor this tensor writes to the name.
fn stays_view(program: &Program, places: &StmtPaths, uses: &TensorUses, tensor: TensorId) -> bool {
    let writes = &uses.writes[&tensor];
    let copies = |stmt: &&StmtId| matches!(&program.stmts[**stmt], Stmt::Op(it) if may_become_view(it));
    let Some(copy) = writes.iter().find(copies) else { return false };
    // A statement after the copy would write into the operand's storage too, unless only one of the two runs.
    writes.len() == 1
        || writes.iter().filter(|it| *it != copy).any(|other| {
            let pair = [*copy, *other];
            places.index_range(&pair, places.common_depth(&pair)).is_some_and(|(first, last)| first != last)
        })
}
