//! Finds the last use of each tensor and inserts a Deallocate after it.

use grammar::{BlockId, Op, OpClass, OpStmt, Operand, Program, Stmt, StmtId, TensorId};
use hir_ir::{blocks, build};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    CarriedNames, Insertions, TensorUses, depth_outside_loops, insert, may_become_view,
    storage_users::{StorageUsers, Users},
    stream_order::StreamOrder,
};
use crate::analysis::{
    bindings, coalescing::CoalescingBrackets, memory_effects::fully_written_tensors, stmt_path::StmtPaths,
};

/// Inserts a Deallocate after the last use of each name.
pub(super) fn insert_deallocations(program: &mut Program, body: BlockId) -> bool {
    let places = StmtPaths::of(program, body);
    let uses = TensorUses::of(program, &places);
    let streams = StreamOrder::of(program, &places);
    let users = StorageUsers::of(program, &places, &uses, &streams);
    let maybe_bound = bindings::analyze_bindings(program).maybe_bound;
    let of_new_storage = copies_of_new_storage(program, body, &uses);
    // A copy binds a name without storage, and otherwise writes where the name was bound to, perhaps in an earlier
    // iteration.
    let in_place = |stmt: StmtId, it: &OpStmt| {
        may_become_view(it) && maybe_bound.contains(&stmt) && !of_new_storage.contains(&stmt)
    };
    let binds = |stmt| fully_defined_tensors(program, &in_place, stmt);
    let mut carried = CarriedNames::new(program, &places, &binds);
    let mut wanted: Vec<(usize, TensorId, BlockId, usize)> = Vec::new();
    let mut queries: FxHashMap<StmtId, Vec<TensorId>> = FxHashMap::default();
    let mut brackets = CoalescingBrackets::default();
    let names = places.uses.keys().copied();
    let is_ours = |it: &TensorId| {
        !uses.io_tensors.contains(it)
            && !uses.dropped.contains(it)
            && !uses.symmetric.contains(it)
            && (uses.bound.contains(it) || uses.writes.contains_key(it))
    };
    for tensor in names.filter(is_ours) {
        let of_storage = users.users(tensor);
        let Some(ends @ [first, _]) = of_storage.ends(&places) else { continue };
        let mut depth = carried.depth_outside_loops(tensor, first, places.common_depth(&ends));
        if keeps_handle(program, &places, &uses, tensor, &of_storage) {
            depth = depth_outside_loops(&places, first, depth);
        }
        let place = places.block_at(first, depth).zip(places.index_range(&ends, depth));
        let Some((block, (_, last))) = place else { continue };
        let last = streams.index_behind_waits(program, &places, (block, last), first, &of_storage);
        let bracket = brackets.around(program, block, last);
        let last = bracket.map_or(last, |(_, end)| end);
        queries.entry(program.block(block)[last]).or_default().push(tensor);
        wanted.push((of_storage.names, tensor, block, last));
    }
    let certain = bindings::bound_after(program, &queries);
    wanted.retain(|(_, tensor, block, last)| certain.contains(&(program.block(*block)[*last], *tensor)));
    // Views come before the tensors that they alias; the tensor numbers make the order deterministic.
    wanted.sort_by_key(|(count, tensor, ..)| (*count, program.tensors[*tensor].number, *tensor));
    let mut insertions = Insertions::default();
    for (_, tensor, block, last) in wanted {
        let span = program.stmt_span(program.block(block)[last]);
        let new = OpStmt { args: vec![Operand::Tensor(tensor)], ..build::op(Op::Deallocate) };
        let new = build::add(program, new, span);
        insertions.entry(block).or_default().push((last + 1, new));
    }
    insert(program, insertions)
}

/// Returns whether the tensor keeps its storage, and its memory handle, from one iteration to the next: a long
/// ALLOCATE (`Op::AllocateOnce`) allocates it, or no statement binds it. If the name were deallocated in between, the
/// next iteration would use other storage, whose handle the peers do not expect.
pub(super) fn keeps_handle(
    program: &Program,
    places: &StmtPaths,
    uses: &TensorUses,
    tensor: TensorId,
    users: &Users,
) -> bool {
    let is_it = |it: &OpStmt| it.op == Op::AllocateOnce && it.out_tensor() == Some(tensor);
    let allocates = |stmt: &StmtId| program.op(*stmt).is_some_and(is_it);
    let mentions = || places.uses.get(&tensor).into_iter().flatten();
    users.shares_handle && (!uses.bound.contains(&tensor) || mentions().any(allocates))
}

/// Returns the names that a statement binds, or writes as a whole, without reading their previous contents.
fn fully_defined_tensors(
    program: &Program,
    in_place: &dyn Fn(StmtId, &OpStmt) -> bool,
    stmt: StmtId,
) -> Vec<TensorId> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Vec::new() };
    if it.op == Op::AllocateOnce || in_place(stmt, it) {
        return Vec::new();
    }
    let mut fresh = fully_written_tensors(program, stmt);
    if matches!(it.op.def().class, OpClass::View | OpClass::Allocate) {
        fresh.extend(it.out_tensor());
    }
    fresh
}

/// Returns the copies of storage that an ALLOCATE before them in their block makes, into names that nothing else writes. No
/// iteration reads the storage of an earlier one, so that the name may be bound again in each.
fn copies_of_new_storage(program: &Program, body: BlockId, uses: &TensorUses) -> FxHashSet<StmtId> {
    let mut found = FxHashSet::default();
    for block in blocks::nested_blocks(program, body) {
        let mut new: FxHashSet<TensorId> = FxHashSet::default();
        for stmt in program.block(block) {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let Some(out) = it.out_tensor() else { continue };
            let is_only_writer =
                || !uses.bound.contains(&out) && uses.writes.get(&out).is_some_and(|it| it[..] == [*stmt]);
            let copies_new = || Program::tensors_of(&it.args).next().is_some_and(|it| new.contains(&it));
            if it.op == Op::Allocate {
                new.insert(out);
            } else if may_become_view(it) && copies_new() && is_only_writer() {
                found.insert(*stmt);
                new.insert(out);
            }
        }
    }
    found
}
