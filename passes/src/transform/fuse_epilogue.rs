//! fuse-epilogue: fuses the addition of a bias into the linear that computes the other addend.
//!
//! Before:
//! ```text
//! T3 = linear(T0, T1)
//! T4 = broadcast( T2, flags = {true, false} )
//! T5 = T3 + T4
//! ```
//! After:
//! ```text
//! T4 = broadcast( T2, flags = {true, false} )
//! T5 = linear(T0, T1, T2)
//! ```
//!
//! The pass does so if `T3` has no other use, all tensors have the same mesh and a sharding that does not
//! split the bias, and only allocations and broadcasts are between the two statements, so that the stream
//! does not change and no statement writes what the linear reads. `remove-dead-code` removes the broadcast.
//!
//! `linear` accumulates in higher precision and rounds once, so the product is no longer rounded to its type
//! before the bias is added. If nothing is rounded, the result is bitwise equal.
//!
//! A cast after the linear is not fused: operands and result of `linear` have the same type in this language.

use grammar::{
    attr,
    diagnostic::Diagnostic,
    for_each_tensor_use,
    ir::{Axis, AxisId, AxisKind, BlockId, OpStmt, Operand, ParallelType, Program, Stmt, StmtId, TensorId},
    ops::{AccessMode, Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{blocks::nested_blocks, name_uses::NameUses},
    pass::{Arguments, Change, Pass, Remarks, module_docs},
    rewrite::blocks::{StmtEdit, rewrite},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "fuse-epilogue",
    description: "fuse the addition of a bias into the preceding linear",
    docs: module_docs(include_str!("fuse_epilogue.rs")),
    options: &[],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let names = NameUses::of(program, body);
    let mut fused: FxHashMap<StmtId, OpStmt> = FxHashMap::default();
    let mut dropped: FxHashSet<StmtId> = FxHashSet::default();
    for block in nested_blocks(program, body) {
        for (at, stmt) in program.block(block).iter().enumerate() {
            if let Some((product, new, storage)) = fuse_bias(program, &names, block, at) {
                dropped.insert(product);
                dropped.extend(storage);
                fused.insert(*stmt, new);
            }
        }
    }
    let changed = !fused.is_empty();
    for (stmt, new) in fused {
        program.stmts[stmt] = Stmt::Op(new);
    }
    rewrite(program, body, &mut |_, stmt| {
        if dropped.contains(&stmt) { StmtEdit::Remove } else { StmtEdit::Keep }
    });
    Ok(Change::from_flag(changed))
}

/// Returns the linear whose result the addition at index `at` uses, the fused statement, and the statements
/// that allocate and deallocate the linear's result.
fn fuse_bias(
    program: &Program,
    names: &NameUses,
    block: BlockId,
    at: usize,
) -> Option<(StmtId, OpStmt, Vec<StmtId>)> {
    let stmts = program.block(block);
    let op = |stmt: &StmtId| program.stmts[*stmt].op();
    let sum = op(&stmts[at]).filter(|it| it.op == Op::Add)?;
    let [Operand::Tensor(lhs), Operand::Tensor(rhs)] = sum.args[..] else { return None };
    let out = sum.out_tensor()?;
    // Search backwards for the linear, past statements that cannot affect it or its operands.
    let (mut product, mut broadcasts) = (None, FxHashMap::default());
    for stmt in stmts[..at].iter().rev() {
        let it = op(stmt)?;
        match (it.op, it.out_tensor()) {
            (Op::Linear, Some(made)) if made == lhs || made == rhs => {
                product = Some((*stmt, it, made));
                break;
            }
            (Op::Broadcast, Some(made)) => _ = broadcasts.insert(made, it),
            (Op::Allocate | Op::AllocateOnce, Some(_)) => (),
            _ => return None,
        }
    }
    let (product, linear, made) = product?;
    let addend = if made == lhs { rhs } else { lhs };
    let [Operand::Tensor(x), Operand::Tensor(weight)] = linear.args[..] else { return None };
    let bias = match broadcasts.get(&addend) {
        Some(it) => broadcast_bias(it)?,
        None => earlier_bias(program, names, stmts, addend).unwrap_or(addend),
    };
    let between = stmts[..at].iter().rev().take_while(|stmt| **stmt != product).filter_map(op);
    for it in between {
        let mut clear = true;
        for_each_tensor_use(program, it, &mut |tensor, mode| {
            clear &= mode != AccessMode::Bind || ![x, weight, bias, made].contains(&tensor);
            // A broadcast writes into its result if the result has storage.
            let written =
                [x, weight, bias].iter().any(|it| names.alias_class(*it) == names.alias_class(tensor));
            clear &= mode != AccessMode::Write || tensor == addend || !written;
        });
        if !clear {
            return None;
        }
    }
    let allocations = private_storage_stmts(program, names, made, product, stmts[at])?;
    let fits = made != addend
        && have_same_axes(program, made, out)
        && [x, weight, addend, bias].iter().all(|it| program.tensors[*it].dtype == program.tensors[out].dtype)
        && [x, weight, addend, bias].iter().all(|it| program.tensors[*it].mesh == program.tensors[out].mesh)
        && is_unsharded_bias(program, bias, out)
        // The addition may write into storage that the linear still reads.
        && [x, weight, bias].iter().all(|it| names.alias_class(*it) != names.alias_class(out));
    fits.then(|| {
        let args = vec![Operand::Tensor(x), Operand::Tensor(weight), Operand::Tensor(bias)];
        (product, OpStmt { outs: sum.outs.clone(), args, ..linear.clone() }, allocations)
    })
}

/// Returns the bias that an earlier statement of the block broadcasts to `addend`, if no other statement
/// binds or writes either.
fn earlier_bias(program: &Program, names: &NameUses, stmts: &[StmtId], addend: TensorId) -> Option<TensorId> {
    let made =
        |stmt: &&StmtId| matches!(&program.stmts[**stmt], Stmt::Op(it) if it.out_tensor() == Some(addend));
    let mut makers = stmts.iter().filter(made);
    let (Some(maker), None) = (makers.next(), makers.next()) else { return None };
    let Stmt::Op(it) = &program.stmts[*maker] else { return None };
    let bias = broadcast_bias(it).filter(|_| it.op == Op::Broadcast)?;
    let named = |tensor| names.uses_of(tensor).iter().filter(|(stmt, _)| stmt != maker);
    let kept = named(bias).chain(named(addend)).all(|(_, mode)| *mode == AccessMode::Read);
    let unwritten = [bias, addend].iter().all(|it| names.writers(*it).all(|writer| writer == *maker));
    (kept && unwritten && names.uses_of(bias).iter().all(|(_, mode)| *mode == AccessMode::Read))
        .then_some(bias)
}

/// Returns the operand of a broadcast that adds only leading axes.
fn broadcast_bias(it: &OpStmt) -> Option<TensorId> {
    let flags = it.get(attr::FLAGS)?;
    let [in_front @ .., last] = flags else { return None };
    match it.args[..] {
        [Operand::Tensor(bias)] if !last && in_front.iter().all(|it| *it) => Some(bias),
        _ => None,
    }
}

/// Returns the statements that allocate and deallocate a tensor, if no other statement but the linear and the
/// addition mentions it.
fn private_storage_stmts(
    program: &Program,
    names: &NameUses,
    tensor: TensorId,
    product: StmtId,
    sum: StmtId,
) -> Option<Vec<StmtId>> {
    if names.is_program_io(tensor) || names.writers(tensor).any(|it| it != product) {
        return None;
    }
    let others = names.uses_of(tensor).iter().map(|(stmt, _)| *stmt);
    let others: FxHashSet<StmtId> = others.filter(|stmt| ![product, sum].contains(stmt)).collect();
    let is_storage = |stmt: &StmtId| match &program.stmts[*stmt] {
        Stmt::Op(it) => match it.op.def().class {
            OpClass::Allocate => it.get(attr::ALIAS).is_none() && it.out_tensor() == Some(tensor),
            OpClass::Deallocate => true,
            OpClass::Compute
            | OpClass::Elementwise
            | OpClass::View
            | OpClass::Communicate
            | OpClass::Wait
            | OpClass::Stream
            | OpClass::Coalescing
            | OpClass::ShareHandles
            | OpClass::HostUnit
            | OpClass::Opaque => false,
        },
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    others.iter().all(is_storage).then(|| others.into_iter().collect())
}

/// Returns whether two results have the same axes, reductions aside, and no axis is split or counts partial
/// sums.
fn have_same_axes(program: &Program, a: TensorId, b: TensorId) -> bool {
    let kept = |tensor: TensorId| -> Vec<Axis> {
        let axes = program.tensors[tensor].loop_domain.iter().map(|axis| program.axes[*axis].clone());
        axes.filter(|axis| axis.kind != AxisKind::Reduction).map(|axis| Axis { number: 0, ..axis }).collect()
    };
    let plain = |tensor: TensorId| {
        let spread_sum = |axis: &AxisId| {
            let axis = &program.axes[*axis];
            let device = matches!(axis.parallel, ParallelType::Device(_));
            device && (axis.kind == AxisKind::Reduction || axis.is_rfactor())
        };
        program.has_plain_domains(tensor) && !program.tensors[tensor].loop_domain.iter().any(spread_sum)
    };
    let (x, y) = (&program.tensors[a], &program.tensors[b]);
    plain(a) && plain(b) && (x.dtype, &x.mesh) == (y.dtype, &y.mesh) && kept(a) == kept(b)
}

/// Returns whether the bias has one axis, and neither it nor the last axis of the result is sharded.
fn is_unsharded_bias(program: &Program, bias: TensorId, out: TensorId) -> bool {
    let bias: Vec<AxisId> = program.dimensions(bias).collect();
    let (&[only], Some(last)) = (&bias[..], program.dimensions(out).last()) else { return false };
    let (only, last) = (&program.axes[only], &program.axes[last]);
    let serial = |axis: &Axis| axis.parallel == ParallelType::Serial && axis.kind == AxisKind::Iteration;
    serial(only) && serial(last) && only.extent == last.extent
}
