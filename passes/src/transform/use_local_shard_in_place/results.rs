//! Computes a rank's own shard where it is needed.
//!
//! Before:
//! ```text
//! T6 = ShardByStream(T3, stream_index=i84)
//! T6 = linear(T5, T1)
//! T8 = HirAliasSelect( T7, axis = iS10{8}, index = rank )
//! IF Manual ( i84 == rank ):
//!   T8 = Set( T6 )
//! ELSE:
//!   P2PCommunication 37 (type=send, buffer=T6, peer=i84, backend=CUDA)
//! ```
//! After:
//! ```text
//! IF Manual ( i84 == rank ):
//!   T6 = HirAliasSelect( T7, axis = iS10{8}, index = rank )
//! ELSE:
//!   T6 = ShardByStream(T3, stream_index=i84)
//! T6 = linear(T5, T1)
//! T8 = HirAliasSelect( T7, axis = iS10{8}, index = rank )
//! IF Manual ( i84 == rank ):
//! ELSE:
//!   P2PCommunication 37 (type=send, buffer=T6, peer=i84, backend=CUDA)
//! ```
//!
//! T3 is not an input or output, and no other name of its storage is accessed, so no statement reads the slice
//! that is no longer written. Between the view and the branch there are only computations and views, and none of
//! them uses the storage of T7.

use grammar::{AccessMode, BlockId, If, Op, OpClass, OpStmt, Operand, Program, Stmt, StmtId, TensorId};
use rustc_hash::FxHashSet;

use super::{UsesByStorage, is_deallocate, is_view};
use crate::analysis::sharding::Sharding;

/// A copy of a result to the place where a rank keeps its own shard.
pub(super) struct ResultCopy {
    /// The index in the block of the view that the result is written to.
    view: usize,
    /// The index in the block of the view that the copy writes to.
    place: usize,
    /// The branch, and its side that copies.
    branch: StmtId,
    side: BlockId,
    copy: StmtId,
    /// The tensors that the copy reads and writes.
    name: TensorId,
    place_name: TensorId,
}

/// Finds a copy of a result that can be removed, in the branch at index `at`.
pub(super) fn find_result_copy(
    program: &Program,
    uses: &mut UsesByStorage,
    (body, block): (BlockId, BlockId),
    at: usize,
) -> Option<ResultCopy> {
    let stmts = program.block(block);
    let Stmt::If(branch) = &program.stmts[stmts[at]] else { return None };
    let If { then_block: then, else_block: Some(other), .. } = branch else { return None };
    [(*then, *other), (*other, *then)].into_iter().find_map(|(side, other)| {
        let (copy, drops) = program.block(side).split_first()?;
        let it = program.stmts[*copy].op().filter(|it| it.op == Op::Set)?;
        let (name, place_name) = (Program::tensors_of(&it.args).next()?, it.out_tensor()?);
        let last_view_of = |name| {
            let binds = |it: &OpStmt| is_view(it) && it.out_tensor() == Some(name);
            stmts[..at].iter().rposition(|stmt| program.stmts[*stmt].op().is_some_and(binds))
        };
        let (view, place) = (last_view_of(name)?, last_view_of(place_name)?);
        let found = ResultCopy { view, place, branch: stmts[at], side, copy: *copy, name, place_name };
        // The view of the place is made again where the view of the result is. After that, nothing changes what
        // it stands for.
        let is_safe = place > view
            && drops.iter().all(|stmt| is_deallocate(program, *stmt))
            && has_same_type(program, name, place_name)
            && is_straight(program, &stmts[view..at])
            && begins_with_write(program, &stmts[view + 1..at], name)
            && result_is_unread(program, uses, (body, block), other, at, &found)
            && place_is_unused(program, uses, &stmts[view..at], &found);
        is_safe.then_some(found)
    })
}

fn has_same_type(program: &Program, a: TensorId, b: TensorId) -> bool {
    let it = |tensor: TensorId| (program.tensors[tensor].dtype, program.is_split_by_stream(tensor));
    let sharding = Sharding::of(program, a);
    it(a) == it(b) && sharding.is_some() && sharding == Sharding::of(program, b)
}

/// Returns whether statements only compute and name tensors: nothing between them orders the copy after other work,
/// and no branch, loop or assignment changes what a view stands for.
fn is_straight(program: &Program, stmts: &[StmtId]) -> bool {
    stmts.iter().all(|stmt| {
        program.stmts[*stmt].op().is_some_and(|it| match it.op.def().class {
            grammar::local_classes!() => true,
            grammar::other_classes!() => false,
        })
    })
}

/// Returns whether the first statement that mentions a tensor writes it without reading it.
fn begins_with_write(program: &Program, stmts: &[StmtId], name: TensorId) -> bool {
    let modes = |stmt: &StmtId| -> Vec<AccessMode> {
        let uses = program.op(*stmt).into_iter().flat_map(|it| it.tensor_uses(program));
        uses.filter(|it| it.0 == name).map(|it| it.1).collect()
    };
    stmts.iter().map(modes).find(|it| !it.is_empty()).is_some_and(|it| it == [AccessMode::Write])
}

/// Returns whether nothing reads the rank's own part of the storage that the result is written to, except the
/// copy.
fn result_is_unread(
    program: &Program,
    uses: &mut UsesByStorage,
    (body, block): (BlockId, BlockId),
    other: BlockId,
    at: usize,
    found: &ResultCopy,
) -> bool {
    [found.name, found.place_name].into_iter().for_each(|name| uses.refresh(program, body, name));
    let storage = &uses.storage;
    let class = storage.alias_class(found.name);
    let mut ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
    if class == storage.alias_class(found.place_name) || ports.any(|it| storage.alias_class(it) == class) {
        return false;
    }
    let mut near: FxHashSet<StmtId> = program.block(block)[found.view..at].iter().copied().collect();
    near.insert(found.copy);
    near.extend(program.stmts_in(other));
    let mut safe = true;
    for stmt in uses.stmts_of_class(class) {
        let Some(it) = program.stmts[*stmt].op() else { continue };
        let harmless = match it.op.def().class {
            // Sharing the handles of the storage does not read it.
            OpClass::View | OpClass::Allocate | OpClass::Deallocate | OpClass::ShareHandles => true,
            OpClass::Compute
            | OpClass::Elementwise
            | OpClass::Communicate
            | OpClass::Wait
            | OpClass::Stream
            | OpClass::Condition
            | OpClass::Coalescing
            | OpClass::HostUnit
            | OpClass::Opaque => false,
        };
        for (tensor, mode) in it.tensor_uses(program) {
            let binds_name = tensor == found.name && mode == AccessMode::Bind;
            let is_own_view = *stmt == program.block(block)[found.view];
            safe &= storage.alias_class(tensor) != class
                || harmless && (!binds_name || is_own_view)
                || tensor == found.name && near.contains(stmt);
        }
    }
    safe
}

/// Returns whether the statements use the storage of the place only to make the view that the copy writes to.
fn place_is_unused(program: &Program, uses: &UsesByStorage, stmts: &[StmtId], found: &ResultCopy) -> bool {
    let class = uses.storage.alias_class(found.place_name);
    let place = found.place - found.view;
    stmts.iter().enumerate().all(|(number, stmt)| {
        let Some(it) = program.stmts[*stmt].op() else { return false };
        number == place || it.mentions(program).all(|it| uses.storage.alias_class(it) != class)
    })
}

/// Makes the result a view of the place on the side that copied it.
pub(super) fn compute_in_place(
    program: &mut Program,
    uses: &mut UsesByStorage,
    block: BlockId,
    found: &ResultCopy,
) {
    for name in [found.name, found.place_name] {
        uses.stale.insert(uses.storage.alias_class(name));
    }
    let (view, place) = (program.block(block)[found.view], program.block(block)[found.place]);
    let (Some(it), Stmt::If(branch)) =
        (program.stmts[place].op().cloned(), program.stmts[found.branch].clone())
    else {
        return;
    };
    let span = program.stmt_span(found.copy);
    let own = OpStmt { outs: vec![Operand::Tensor(found.name)], ..it };
    let own = program.add_stmt(Stmt::Op(own), span);
    let (own, other) = (program.blocks.push(vec![own]), program.blocks.push(vec![view]));
    let (then_block, else_block) =
        if found.side == branch.then_block { (own, Some(other)) } else { (other, Some(own)) };
    let branch = If { then_block, else_block, ..branch };
    program.blocks[block][found.view] = program.add_stmt(Stmt::If(branch), span);
    program.blocks[found.side].retain(|stmt| *stmt != found.copy);
    // An empty ELSE is not printed.
    if program.blocks[found.side].is_empty()
        && let Stmt::If(it) = &mut program.stmts[found.branch]
    {
        it.else_block = it.else_block.filter(|block| *block != found.side);
    }
}
