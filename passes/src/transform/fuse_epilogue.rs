//! fuse-epilogue: adds a bias inside the product that it is added to.
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
//! Where `T3` has no other use, all three have one mesh and one sharding that does not split the bias, and nothing but
//! allocations and broadcasts stands between the two statements: no change of the stream, no write that the product could
//! miss. `remove-dead-code` drops the broadcast.
//!
//! `linear` sums in higher precision and rounds once: the product before the sum is no longer rounded to its type. Where
//! nothing rounds, the result is the same to the bit.
//!
//! A cast behind the product stays: `linear` has operands and a result of one type in this language.

use grammar::{
    attr,
    diagnostic::Diagnostic,
    for_each_tensor_use,
    ir::{Axis, AxisId, AxisKind, BlockId, OpStmt, Operand, ParallelType, Program, Stmt, StmtId, TensorId},
    ops::{AccessMode, Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::name_uses::NameUses,
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::blocks::{StmtEdit, rewrite},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "fuse-epilogue",
    description: "add a bias inside the linear layer that it is added to",
    options: &[],
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let names = NameUses::of(program, body);
    let mut blocks = vec![body];
    program.walk(body, &mut |stmt| match &program.stmts[stmt] {
        Stmt::Op(_) | Stmt::Let(..) => (),
        Stmt::For(it) => blocks.push(it.body),
        Stmt::If(it) => blocks.extend([it.then_block].into_iter().chain(it.else_block)),
    });
    let mut fused: FxHashMap<StmtId, OpStmt> = FxHashMap::default();
    let mut dropped: FxHashSet<StmtId> = FxHashSet::default();
    for block in blocks {
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
    rewrite(program, body, &mut |_, stmt| match dropped.contains(&stmt) {
        true => StmtEdit::Remove,
        false => StmtEdit::Keep,
    });
    Ok(Change::from_flag(changed))
}

/// The product that the sum at `at` ends, the statement that does both, and what gave the product storage.
fn fuse_bias(
    program: &Program,
    names: &NameUses,
    block: BlockId,
    at: usize,
) -> Option<(StmtId, OpStmt, Vec<StmtId>)> {
    let stmts = program.block(block);
    let op = |stmt: &StmtId| match &program.stmts[*stmt] {
        Stmt::Op(it) => Some(it),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    };
    let sum = op(&stmts[at]).filter(|it| it.op == Op::Add)?;
    let [Operand::Tensor(lhs), Operand::Tensor(rhs)] = sum.args[..] else { return None };
    let out = sum.out_tensor()?;
    // Back to the product, over statements that neither it nor its operands can tell.
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
            // A broadcast whose result has storage writes into it.
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
        // The sum may write where the product still reads.
        && [x, weight, bias].iter().all(|it| names.alias_class(*it) != names.alias_class(out));
    fits.then(|| {
        let args = vec![Operand::Tensor(x), Operand::Tensor(weight), Operand::Tensor(bias)];
        (product, OpStmt { outs: sum.outs.clone(), args, ..linear.clone() }, allocations)
    })
}

/// The bias that an earlier statement of the block broadcast, if nothing else gives either a meaning.
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

/// The operand of a broadcast that adds axes in front only.
fn broadcast_bias(it: &OpStmt) -> Option<TensorId> {
    let flags = it.get(attr::FLAGS)?;
    let [in_front @ .., last] = flags else { return None };
    match it.args[..] {
        [Operand::Tensor(bias)] if !last && in_front.iter().all(|it| *it) => Some(bias),
        _ => None,
    }
}

/// The statements that give a tensor storage, if nothing else but the product and the sum mentions it.
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

/// Whether two results have the same axes, reductions aside, of which none is split or counts partial sums.
fn have_same_axes(program: &Program, a: TensorId, b: TensorId) -> bool {
    let kept = |tensor: TensorId| -> Vec<Axis> {
        let axes = program.tensors[tensor].loop_domain.iter().map(|axis| program.axes[*axis].clone());
        axes.filter(|axis| axis.kind != AxisKind::Reduction).map(|axis| Axis { number: 0, ..axis }).collect()
    };
    let plain = |tensor: TensorId| {
        let spread_sum = |axis: &AxisId| {
            let axis = &program.axes[*axis];
            let device = matches!(axis.parallel, ParallelType::Device(_));
            device && (axis.kind == AxisKind::Reduction || axis.suffix.contains("rf"))
        };
        program.has_plain_domains(tensor) && !program.tensors[tensor].loop_domain.iter().any(spread_sum)
    };
    let (x, y) = (&program.tensors[a], &program.tensors[b]);
    plain(a) && plain(b) && (x.dtype, &x.mesh) == (y.dtype, &y.mesh) && kept(a) == kept(b)
}

/// Whether the bias is one axis that every rank holds whole, as it does the last axis of the result.
fn is_unsharded_bias(program: &Program, bias: TensorId, out: TensorId) -> bool {
    let bias: Vec<AxisId> = program.dimensions(bias).collect();
    let (&[only], Some(last)) = (&bias[..], program.dimensions(out).last()) else { return false };
    let (only, last) = (&program.axes[only], &program.axes[last]);
    let serial = |axis: &Axis| axis.parallel == ParallelType::Serial && axis.kind == AxisKind::Iteration;
    serial(only) && serial(last) && only.extent == last.extent
}
