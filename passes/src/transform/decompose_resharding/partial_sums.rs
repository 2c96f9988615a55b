//! Adds partial sums before they are reduced over devices.
//!
//! The gradient of an input that several matmuls read is a sum of partial sums:
//! ```text
//! T3 = reduction( T1[…, ideviceIdx.x{2}rf] )
//! T4 = reduction( T2[…, ideviceIdx.x{2}rf] )
//! T5 = T3 + T4;
//! ```
//! One reduction does for both: `T6 = T1 + T2`, `T5 = reduction( T6 )`. If a loop adds a reduction to the same tensor in each
//! iteration, it adds the partial sums instead, and one reduction follows the loop.

use grammar::{
    BlockId, DType, DimMap, Expr, Memory, Op, OpStmt, Operand, Program, RedOp, Stmt, StmtId, TensorId,
    TypeRule, attr,
};
use hir_ir::{
    blocks::nested_blocks,
    build::{self, IrBuilder},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    collective_red_op,
    device_reduction::{reduces_in_one_step, reduction_stmt, set_reduction_axes},
    readers,
    slices::mentions_slice,
};
use crate::{
    analysis::{
        dim_map,
        name_uses::write_counts,
        sharding::{Dim, Sharding, same_extent},
    },
    pass::Remarks,
};

/// A sum over devices that is one collective.
#[derive(Clone)]
struct DeviceSum {
    stmt: StmtId,
    partial: TensorId,
    from: Sharding,
    /// The dimensions of `partial` that are summed.
    dims: Vec<usize>,
    to: Sharding,
}

/// Merges reductions over devices. Returns true if anything changed.
pub(super) fn add_before_reduction(
    program: &mut Program,
    fresh: &mut IrBuilder,
    body: BlockId,
    remarks: &mut Remarks,
) -> bool {
    let mut merger = Merger {
        write_counts: write_counts(program, &|_| true),
        readers: readers(program, body),
        io: Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs)).collect(),
        program,
        fresh,
        remarks,
    };
    let mut changed = false;
    // Innermost blocks first: the reduction behind a loop may merge with others.
    for block in nested_blocks(merger.program, body) {
        changed |= merger.out_of_loops(block);
        changed |= merger.in_block(block);
    }
    changed
}

struct Merger<'p> {
    program: &'p mut Program,
    fresh: &'p mut IrBuilder,
    remarks: &'p mut Remarks,
    write_counts: FxHashMap<TensorId, usize>,
    readers: FxHashMap<TensorId, Vec<StmtId>>,
    io: FxHashSet<TensorId>,
}

impl Merger<'_> {
    /// Replaces sums of reductions in a block by a reduction of a sum.
    fn in_block(&mut self, block: BlockId) -> bool {
        let mut sums: FxHashMap<TensorId, DeviceSum> = FxHashMap::default();
        let mut gone: FxHashSet<StmtId> = FxHashSet::default();
        let mut new: Vec<StmtId> = Vec::new();
        for stmt in self.program.block(block).to_vec() {
            if let Some((out, sum)) = self.device_sum(stmt) {
                sums.insert(out, sum);
            } else if let Some((out, [a, b])) = self.added(stmt, &sums) {
                gone.extend([a.stmt, b.stmt]);
                let sum = self.merge(stmt, out, &a, &b, &mut new);
                sums.insert(out, sum);
                continue;
            }
            new.push(stmt);
        }
        if gone.is_empty() {
            return false;
        }
        new.retain(|stmt| !gone.contains(stmt));
        self.program.blocks[block] = new;
        true
    }

    /// Returns the result of a statement that adds two reductions over the same devices, which nothing else reads.
    fn added(
        &self,
        stmt: StmtId,
        sums: &FxHashMap<TensorId, DeviceSum>,
    ) -> Option<(TensorId, [DeviceSum; 2])> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        let ([Operand::Tensor(a), Operand::Tensor(b)], Op::Add | Op::Sub) = (&it.args[..], it.op) else {
            return None;
        };
        let out = it.out_tensor().filter(|it| self.is_written_once(*it))?;
        let of = |it: &TensorId| sums.get(it).filter(|_| self.is_read_once(*it));
        let (a, b) = (of(a)?, of(b)?);
        let goal = Sharding::of(self.program, out)?;
        let fits = self.is_alike(a, b) && self.is_aligned(&a.to, &goal) && self.has_same_type(a.partial, out);
        fits.then(|| (out, [a.clone(), b.clone()]))
    }

    /// Emits the sum of the partial sums of `a` and `b`, and its reduction.
    fn merge(
        &mut self,
        stmt: StmtId,
        out: TensorId,
        a: &DeviceSum,
        b: &DeviceSum,
        new: &mut Vec<StmtId>,
    ) -> DeviceSum {
        let span = self.program.stmt_span(stmt);
        let partial = a.from.new_tensor(self.program, self.fresh, a.partial, Memory::Global);
        let Stmt::Op(added) = self.program.stmts[stmt].clone() else { return a.clone() };
        let args = vec![Operand::Tensor(a.partial), Operand::Tensor(b.partial)];
        let add = OpStmt { outs: vec![Operand::Tensor(partial)], args, ..added };
        new.push(build::add(self.program, add, span));
        set_reduction_axes(self.program, self.fresh, out, &a.from, &a.dims);
        let Stmt::Op(like) = self.program.stmts[a.stmt].clone() else { return a.clone() };
        let reduction = reduction_stmt(self.program, &like, partial, out);
        let reduction = build::add(self.program, reduction, span);
        new.push(reduction);
        let name = self.program.tensor_name(out);
        let message = format!("partial sums are added before they are reduced over devices, for `{name}`");
        self.remarks.note(span, message, "one reduction instead of two");
        DeviceSum { stmt: reduction, partial, ..a.clone() }
    }

    /// Replaces reductions that the loops of a block add to the same tensor in each iteration by a reduction behind the loop.
    fn out_of_loops(&mut self, block: BlockId) -> bool {
        let mut new: Vec<StmtId> = Vec::new();
        let mut changed = false;
        for stmt in self.program.block(block).to_vec() {
            let accumulated = self.accumulated(stmt);
            changed |= !accumulated.is_empty();
            let mut behind = Vec::new();
            for it in accumulated {
                new.push(self.accumulate_partial_sums(stmt, &it));
                // The reduction and the addition are the same statements as before, behind the loop.
                behind.extend([it.sum.stmt, it.add]);
            }
            new.push(stmt);
            new.append(&mut behind);
        }
        if changed {
            self.program.blocks[block] = new;
        }
        changed
    }

    /// Returns the additions of a loop that can add partial sums instead.
    fn accumulated(&self, stmt: StmtId) -> Vec<Accumulation> {
        let Stmt::For(it) = &self.program.stmts[stmt] else { return Vec::new() };
        let body = self.program.block(it.body);
        let computes = |stmt: StmtId| match &self.program.stmts[stmt] {
            Stmt::Op(it) => it.computes() || it.op == Op::Select,
            Stmt::For(it) => it.axis.is_none(),
            Stmt::Let(..) | Stmt::If(_) => true,
        };
        if it.axis.is_some() || !self.program.stmts_in(it.body).all(computes) {
            return Vec::new();
        }
        let sums: FxHashMap<TensorId, DeviceSum> =
            body.iter().filter_map(|it| self.device_sum(*it)).collect();
        body.iter().filter_map(|add| self.accumulation(*add, &sums, it.body)).collect()
    }

    /// Returns the addition of a reduction to a tensor that no other statement of the loop mentions.
    fn accumulation(
        &self,
        add: StmtId,
        sums: &FxHashMap<TensorId, DeviceSum>,
        body: BlockId,
    ) -> Option<Accumulation> {
        let Stmt::Op(it) = &self.program.stmts[add] else { return None };
        let total = it.out_tensor()?;
        let (Op::Add, [Operand::Tensor(a), Operand::Tensor(b)]) = (it.op, &it.args[..]) else { return None };
        let term = match (*a == total, *b == total) {
            (true, false) => *b,
            (false, true) => *a,
            (true, true) | (false, false) => return None,
        };
        let sum = sums.get(&term)?;
        let goal = Sharding::of(self.program, total)?;
        let ops = self.program.stmts_in(body).filter_map(|stmt| self.program.op(stmt));
        let fits = self.is_read_once(term)
            && ops.filter(|it| it.mentions(self.program).any(|it| it == total)).count() == 1
            && self.is_aligned(&sum.to, &goal)
            && self.has_same_type(sum.partial, total);
        fits.then(|| Accumulation { add, total, sum: sum.clone() })
    }

    /// Makes the loop add partial sums. Returns the statement that makes the first value of their sum.
    fn accumulate_partial_sums(&mut self, stmt: StmtId, it: &Accumulation) -> StmtId {
        let Accumulation { add, total, sum } = it;
        let span = self.program.stmt_span(*add);
        let (program, from) = (&mut *self.program, &sum.from);
        let partial = from.new_tensor(program, self.fresh, sum.partial, Memory::Global);
        let dtype = program.tensors[partial].dtype.unwrap_or(DType::Float);
        let zero = if dtype.is_integral() { Expr::Int(0) } else { Expr::Float(dtype, "0".to_owned()) };
        let zero = program.intern_expr(zero);
        let zeros = OpStmt {
            outs: vec![Operand::Tensor(partial)],
            args: vec![Operand::Scalar(zero)],
            attrs: vec![attr::SHAPE.with(from.dims.iter().map(|dim| dim.extent).collect())],
            ..build::op(Op::Full)
        };
        let added = OpStmt {
            outs: vec![Operand::Tensor(partial)],
            args: vec![Operand::Tensor(partial), Operand::Tensor(sum.partial)],
            ..build::op(Op::Add)
        };
        let added = build::add(program, added, span);
        if let Stmt::For(it) = &program.stmts[stmt] {
            let body = &mut program.blocks[it.body];
            body.retain(|stmt| *stmt != sum.stmt);
            body.iter_mut().filter(|stmt| *stmt == add).for_each(|stmt| *stmt = added);
        }
        if let Stmt::Op(reduction) = &mut program.stmts[sum.stmt] {
            reduction.args = vec![Operand::Tensor(partial)];
        }
        let name = program.tensor_name(*total);
        let message = format!(
            "the loop adds partial sums, which are reduced over devices once behind it, for `{name}`"
        );
        self.remarks.note(span, message, "one reduction instead of one in each iteration");
        build::add(self.program, zeros, span)
    }

    /// Returns the result of a statement and the sum if it is a sum over devices that one collective computes.
    fn device_sum(&self, stmt: StmtId) -> Option<(TensorId, DeviceSum)> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        if it.op.def().type_rule != TypeRule::Reduce || collective_red_op(self.program, it)? != RedOp::Sum {
            return None;
        }
        let (out, partial) = (it.out_tensor()?, *it.tensor_operands().first()?);
        if !self.is_written_once(out) || !self.is_written_once(partial) || mentions_slice(self.program, stmt)
        {
            return None;
        }
        let (from, to) = (Sharding::of(self.program, partial)?, Sharding::of(self.program, out)?);
        let maps = dim_map::dim_map(self.program, it, 0)?;
        let dims: Vec<usize> = (0..maps.len()).filter(|at| maps[*at] == DimMap::Reduction).collect();
        let is_one = from.mesh == to.mesh && reduces_in_one_step(self.program, &from, &dims, &to);
        is_one.then_some((out, DeviceSum { stmt, partial, from, dims, to }))
    }

    /// Returns whether two sums are over the same devices, with results of the same sharding.
    fn is_alike(&self, a: &DeviceSum, b: &DeviceSum) -> bool {
        a.dims == b.dims
            && self.is_aligned(&a.from, &b.from)
            && self.is_aligned(&a.to, &b.to)
            && self.has_same_type(a.partial, b.partial)
    }

    fn is_aligned(&self, a: &Sharding, b: &Sharding) -> bool {
        let is_same = |(a, b): (&Dim, &Dim)| {
            same_extent(self.program, a.extent, b.extent)
                && a.pieces.iter().all(|piece| piece.device().is_some())
                && Sharding::are_aligned(self.program, a, b)
        };
        a.mesh == b.mesh && a.dims.len() == b.dims.len() && a.dims.iter().zip(&b.dims).all(is_same)
    }

    fn has_same_type(&self, a: TensorId, b: TensorId) -> bool {
        self.program.tensors[a].dtype == self.program.tensors[b].dtype
    }

    fn is_read_once(&self, tensor: TensorId) -> bool {
        self.readers.get(&tensor).is_some_and(|it| it.len() == 1) && !self.io.contains(&tensor)
    }

    fn is_written_once(&self, tensor: TensorId) -> bool {
        let is_input = Program::tensors_of(&self.program.inputs).any(|it| it == tensor);
        !is_input && self.write_counts.get(&tensor).is_none_or(|count| *count <= 1)
    }
}

/// The addition of a sum over devices to a tensor, in each iteration of a loop.
struct Accumulation {
    add: StmtId,
    total: TensorId,
    sum: DeviceSum,
}
