//! Plans operators on whole tensors, each from its definition in the operator table.

use std::sync::Arc;

use grammar::{
    attr, flagged_dims,
    ir::{AxisKind, ExprId, OpStmt, Operand, ParallelType, TensorId},
    ops::{Op, OpClass, TypeRule},
    rules::{Aliasing, OperandView},
    selected_dim,
};

use super::{Result, UnshardedPlanner};
use hir_plan::{Arg, Buffer, Gemm, InstKind, Number, Reduce, ReduceOp, View, ViewOnRank};

/// Returns the instructions that compute `target`, a new buffer with the logical shape of `out`, from whole
/// operands.
pub(super) fn instructions(
    planner: &UnshardedPlanner<'_>,
    it: &OpStmt,
    args: &[TensorId],
    views: &[View],
    out: TensorId,
    target: &View,
) -> Result<Vec<InstKind>> {
    let ctx = OperatorLowering { planner, stmt: it, args, views, out, target };
    if it.op.def().class == OpClass::Elementwise {
        return ctx.elementwise();
    }
    match it.op.def().type_rule {
        TypeRule::Linear | TypeRule::Matmul => ctx.matmul(),
        TypeRule::Reduce => ctx.reduction(),
        TypeRule::Generate => ctx.generated(),
        TypeRule::AlongAxis if it.op == Op::Cat => ctx.cat(),
        TypeRule::Unchecked if it.op == Op::TensorConstruct => ctx.construct(ctx.scalar(0)?, target),
        _ => {
            let from = ctx.view_of_operand()?;
            if from.shape != target.shape {
                return Err(planner.shape_mismatch(it.op, &from.shape, &target.shape));
            }
            Ok(vec![copy(from, target.clone())])
        }
    }
}

pub(super) fn copy(from: View, to: View) -> InstKind {
    let place = |view| Box::new(ViewOnRank { rank: 0, view });
    InstKind::Copy { from: place(from), to: place(to) }
}

pub(super) struct OperatorLowering<'c, 'p> {
    pub(super) planner: &'c UnshardedPlanner<'p>,
    pub(super) stmt: &'c OpStmt,
    args: &'c [TensorId],
    views: &'c [View],
    out: TensorId,
    target: &'c View,
}

impl OperatorLowering<'_, '_> {
    // ---- operands

    fn operand(&self, at: usize) -> Result<&View> {
        self.views.get(at).ok_or_else(|| self.planner.unsupported(self.stmt.op))
    }

    fn int(&self, expr: ExprId) -> Result<i64> {
        self.planner.scalars.int(expr).map_err(|it| self.planner.scalar_fault(it))
    }

    /// Evaluates an integer and checks that it is between 0 and `most`.
    fn index(&self, expr: ExprId, most: usize) -> Result<usize> {
        let value = self.int(expr)?;
        let index = usize::try_from(value).ok().filter(|it| *it <= most);
        index.ok_or_else(|| {
            let message = format!("`{}`: {value} is not between 0 and {most}", self.stmt.op.name());
            self.planner.diagnostic(grammar::codes::Code::BadIndex, message)
        })
    }

    pub(super) fn number(&self, expr: ExprId) -> Result<Number> {
        let value = self.planner.scalars.eval(expr).map_err(|it| self.planner.scalar_fault(it))?;
        Ok(value.into())
    }

    fn scalar(&self, at: usize) -> Result<ExprId> {
        match self.stmt.args.get(at) {
            Some(Operand::Scalar(expr)) => Ok(*expr),
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => {
                Err(self.planner.unsupported(self.stmt.op))
            }
        }
    }

    /// Broadcasts the dimensions of extent 1 of a view to `shape`.
    fn broadcast(&self, view: &View, shape: &[usize]) -> Result<View> {
        let mut wide = view.clone();
        let fits = view.shape.len() == shape.len()
            && view.shape.iter().zip(shape).all(|(have, want)| have == want || *have == 1);
        if !fits {
            return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, shape));
        }
        for (at, want) in shape.iter().enumerate().filter(|(at, want)| view.shape[*at] != **want) {
            (wide.shape[at], wide.strides[at]) = (*want, 0);
        }
        Ok(wide)
    }

    // ---- elementwise operators

    fn elementwise(&self) -> Result<Vec<InstKind>> {
        let mut views = self.views.iter();
        let mut args = Vec::new();
        for operand in &self.stmt.args {
            args.push(match operand {
                Operand::Tensor(_) => {
                    let Some(view) = views.next() else { return Err(self.planner.unsupported(self.stmt.op)) };
                    Arg::View(self.broadcast(view, &self.target.shape)?)
                }
                Operand::Scalar(expr) => Arg::Number(self.number(*expr)?),
                Operand::Stream(_) => return Err(self.planner.unsupported(self.stmt.op)),
            });
        }
        Ok(vec![InstKind::Map { op: self.stmt.op, args, out: Box::new(self.target.clone()) }])
    }

    // ---- generators

    fn generated(&self) -> Result<Vec<InstKind>> {
        let to = Box::new(self.target.clone());
        if let Some(bytes) = self.stmt.get(attr::BYTES) {
            return Ok(vec![InstKind::Constant { to, bytes: Arc::clone(bytes) }]);
        }
        let mut wanted = Vec::new();
        for extent in self.stmt.generated_shape().unwrap_or_default() {
            wanted.push(self.index(extent, usize::MAX)?);
        }
        if wanted != to.shape {
            return Err(self.planner.shape_mismatch(self.stmt.op, &to.shape, &wanted));
        }
        match self.stmt.op {
            Op::Full => Ok(vec![InstKind::Fill { to, value: self.number(self.scalar(0)?)? }]),
            Op::Iota => {
                let (start, step) = (self.int(self.scalar(1)?)?, self.int(self.scalar(2)?)?);
                Ok(vec![InstKind::Iota { to, start, step }])
            }
            Op::Eye => {
                let rows = to.shape[0];
                let diagonal =
                    Box::new(View { shape: vec![rows], strides: vec![rows + 1], ..self.target.clone() });
                Ok(vec![
                    InstKind::Fill { to, value: Number::Int(0) },
                    InstKind::Fill { to: diagonal, value: Number::Int(1) },
                ])
            }
            _ => Err(self.planner.unsupported(self.stmt.op)),
        }
    }

    // ---- rearranged elements

    fn view_of_operand(&self) -> Result<View> {
        let Aliasing::View(shown) = self.stmt.rule().aliasing() else {
            return Err(self.planner.unsupported(self.stmt.op));
        };
        let (view, program) = (self.operand(0)?, self.planner.program);
        let mut from = view.clone();
        match shown {
            OperandView::Whole => (),
            OperandView::Permuted => {
                let dims = self.stmt.get(attr::DIMS).unwrap_or_default();
                if dims.len() != view.shape.len() {
                    return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape));
                }
                for (to, dim) in dims.iter().enumerate() {
                    let dim = program.constant(*dim).and_then(|dim| usize::try_from(dim).ok());
                    let Some(at) = dim.filter(|at| *at < dims.len()) else {
                        return Err(self.planner.unsupported(self.stmt.op));
                    };
                    (from.shape[to], from.strides[to]) = (view.shape[at], view.strides[at]);
                }
            }
            OperandView::Broadcast => {
                let flags = flagged_dims(program, self.stmt, self.out);
                if flags.iter().filter(|it| !**it).count() != view.shape.len() {
                    return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape));
                }
                let mut dims = view.shape.iter().copied().zip(view.strides.iter().copied());
                let all = flags.iter().map(|new| if *new { (1, 0) } else { dims.next().unwrap_or((1, 0)) });
                (from.shape, from.strides) = all.unzip();
            }
            OperandView::Squeezed => {
                let flags = flagged_dims(program, self.stmt, self.args[0]);
                let gone = |at: usize| flags.get(at).copied().unwrap_or(false);
                if (0..view.shape.len()).any(|at| gone(at) && view.shape[at] != 1) {
                    return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape));
                }
                let kept = (0..view.shape.len()).filter(|at| !gone(*at));
                (from.shape, from.strides) = kept.map(|at| (view.shape[at], view.strides[at])).unzip();
            }
            OperandView::Reshaped => {
                if view.len() != self.target.len() {
                    return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape));
                }
                // Elements are in row-major order.
                let dtype = self.planner.dtype(self.args[0]);
                (_, from) = Buffer::of_elements(String::new(), dtype, view.buffer, self.target.shape.clone());
                from.offset = view.offset;
            }
            OperandView::Expanded => {
                from = self.broadcast(view, &self.target.shape)?;
            }
            OperandView::Sliced => {
                let Some(ranges) = self.stmt.get(attr::RANGES) else {
                    return Err(self.planner.unsupported(self.stmt.op));
                };
                if ranges.len() != view.shape.len() {
                    return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape));
                }
                for (dim, [start, stop, step]) in ranges.iter().enumerate() {
                    let extent = view.shape[dim];
                    let (start, stop) = (self.index(*start, extent)?, self.index(*stop, extent)?);
                    let step = self.index(*step, usize::MAX)?.max(1);
                    from.offset += start * view.strides[dim];
                    from.shape[dim] = stop.saturating_sub(start).div_ceil(step);
                    // A step larger than the extent selects at most one element.
                    from.strides[dim] *= step.min(extent.max(1));
                }
            }
            OperandView::Selected => {
                let Some(index) = self.stmt.get(attr::INDEX) else {
                    return Err(self.planner.unsupported(self.stmt.op));
                };
                let Some(dim) = selected_dim(program, self.stmt, self.args[0]) else {
                    // A reduction axis is not a dimension of the operand.
                    return Ok(from);
                };
                let most = view.shape[dim].saturating_sub(1);
                from.offset += self.index(index, most)? * view.strides[dim];
                from.shape.remove(dim);
                from.strides.remove(dim);
            }
            OperandView::StreamChunk => return Err(self.planner.unsupported(self.stmt.op)),
        }
        Ok(from)
    }

    fn cat(&self) -> Result<Vec<InstKind>> {
        let dim = self.int(self.scalar(self.stmt.args.len().saturating_sub(1))?)?;
        let dim = usize::try_from(dim).ok().filter(|it| *it < self.target.shape.len());
        let Some(dim) = dim else { return Err(self.planner.unsupported(self.stmt.op)) };
        let (mut start, mut code) = (0, Vec::new());
        for view in self.views {
            let mut to = self.target.clone();
            let len = view.shape.get(dim).copied().unwrap_or(0);
            to.shape[dim] = len;
            to.offset += start * to.strides[dim];
            start += len;
            if view.shape != to.shape {
                return Err(self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape));
            }
            code.push(copy(view.clone(), to));
        }
        if start != self.target.shape[dim] {
            return Err(self.planner.shape_mismatch(self.stmt.op, &[start], &[self.target.shape[dim]]));
        }
        Ok(code)
    }

    // ---- reductions and matrix products

    fn reduction(&self) -> Result<Vec<InstKind>> {
        let (input, program) = (self.operand(0)?.clone(), self.planner.program);
        let logical = &program.tensors[self.out].domains.logical;
        let is_gone = |at: &usize| program.axes[logical[*at]].kind == AxisKind::Reduction;
        let axes: Vec<usize> = (0..logical.len()).filter(is_gone).collect();
        let kept: Vec<usize> = (0..input.shape.len()).filter(|at| !axes.contains(at)).collect();
        let kept: Vec<usize> = kept.into_iter().map(|at| input.shape[at]).collect();
        if input.shape.len() != logical.len() || kept != self.target.shape {
            return Err(self.planner.shape_mismatch(self.stmt.op, &input.shape, &self.target.shape));
        }
        let Some(op) = self.stmt.get(attr::OP).map(ReduceOp::from) else {
            return Err(self.planner.unsupported(self.stmt.op));
        };
        let init = match self.stmt.get(attr::INITIAL_VALUE) {
            Some(expr) => self.number(expr)?,
            None => Number::Int(0),
        };
        let it = Reduce { op, init, input, axes, out: self.target.clone() };
        Ok(vec![InstKind::Reduce(Box::new(it))])
    }

    /// Plans linear and matmul. A device axis of partial sums (`rf`) is an ordinary dimension of the result;
    /// each index sums its own range of `k`.
    fn matmul(&self) -> Result<Vec<InstKind>> {
        let (mut a, mut b, mut out) =
            (self.operand(0)?.clone(), self.operand(1)?.clone(), self.target.clone());
        let misfit = |view: &View| self.planner.shape_mismatch(self.stmt.op, &view.shape, &self.target.shape);
        if self.stmt.op.def().type_rule == TypeRule::Linear {
            if b.shape.len() != 2 {
                return Err(misfit(&b));
            }
            b.shape.reverse();
            b.strides.reverse();
        }
        let ranges = self.partial_sum_dim().map(|dim| (out.shape.remove(dim), out.strides.remove(dim)));
        // A vector is a row as the left operand and a column as the right operand.
        if b.shape.len() == 1 {
            insert_dim(&mut b, 1, 1, 0);
            let end = out.shape.len();
            insert_dim(&mut out, end, 1, 0);
        }
        if a.shape.len() == 1 {
            insert_dim(&mut a, 0, 1, 0);
            let row = out.shape.len().saturating_sub(1);
            insert_dim(&mut out, row, 1, 0);
        }
        let rank = out.shape.len();
        if rank < 2 || a.shape.len() > rank || b.shape.len() > rank {
            return Err(misfit(&a));
        }
        while a.shape.len() < rank {
            insert_dim(&mut a, 0, 1, 0);
        }
        while b.shape.len() < rank {
            insert_dim(&mut b, 0, 1, 0);
        }
        let (m, n, k) = (out.shape[rank - 2], out.shape[rank - 1], a.shape[rank - 1]);
        if b.shape[rank - 2] != k {
            return Err(self.planner.shape_mismatch(self.stmt.op, &a.shape, &b.shape));
        }
        let batch = out.shape[..rank - 2].to_vec();
        let mut a = self.broadcast(&a, &[&batch[..], &[m, k]].concat())?;
        let mut b = self.broadcast(&b, &[&batch[..], &[k, n]].concat())?;
        if let Some((count, stride)) = ranges {
            if count == 0 || k % count != 0 {
                return Err(misfit(&a));
            }
            let len = k / count;
            (a.shape[rank - 1], b.shape[rank - 2]) = (len, len);
            let (a_step, b_step) = (a.strides[rank - 1] * len, b.strides[rank - 2] * len);
            insert_dim(&mut a, 0, count, a_step);
            insert_dim(&mut b, 0, count, b_step);
            insert_dim(&mut out, 0, count, stride);
        }
        let bias = match self.views.get(2) {
            None => None,
            Some(_) if ranges.is_some_and(|(count, _)| count > 1) => {
                return Err(self.planner.unsupported(self.stmt.op));
            }
            Some(bias) => {
                let mut wide = bias.clone();
                while wide.shape.len() < out.shape.len() {
                    insert_dim(&mut wide, 0, 1, 0);
                }
                Some(self.broadcast(&wide, &out.shape)?)
            }
        };
        Ok(vec![InstKind::Gemm(Box::new(Gemm { a, b, bias, out }))])
    }

    /// Returns the dimension of the result that indexes partial sums, if any.
    fn partial_sum_dim(&self) -> Option<usize> {
        let program = self.planner.program;
        program.dimensions(self.out).position(|axis| {
            let it = &program.axes[axis];
            matches!(it.parallel, ParallelType::Device(_)) && it.is_rfactor()
        })
    }
}

/// Inserts a dimension at position `at`.
fn insert_dim(view: &mut View, at: usize, extent: usize, stride: usize) {
    view.shape.insert(at, extent);
    view.strides.insert(at, stride);
}
