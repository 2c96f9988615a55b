//! Operators on whole tensors, each from its definition in the op table.

use grammar::{
    attr, flagged_dims,
    ir::{AxisKind, ExprId, OpStmt, Operand, Parallel, TensorId},
    ops::{Effect, Op, Rule},
    selected_dim,
};

use super::{Eraser, Result};
use crate::plan::{Arg, Gemm, InstKind, Number, Place, Reduce, ReduceOp, View, scalar::Value};

/// The instructions that compute `target`, a new buffer of the logical shape of `out`, from whole operands.
pub(super) fn instructions(
    eraser: &Eraser<'_>,
    it: &OpStmt,
    args: &[TensorId],
    views: &[View],
    out: TensorId,
    target: &View,
) -> Result<Vec<InstKind>> {
    let ctx = Ctx { eraser, it, args, views, out, target };
    if it.op.row().effect == Effect::Map {
        return ctx.map();
    }
    match it.op.row().rule {
        Rule::Linear | Rule::Matmul => ctx.product(),
        Rule::Reduce => ctx.reduction(),
        Rule::Generate => ctx.generated(),
        Rule::Free if it.op == Op::Cat => ctx.cat(),
        Rule::Free if it.op == Op::TensorConstruct => ctx.construct(ctx.scalar(0)?, target),
        Rule::Same
        | Rule::Permute
        | Rule::Broadcast
        | Rule::Squeeze
        | Rule::Reshape
        | Rule::Pointwise
        | Rule::Slice
        | Rule::Select => {
            let from = ctx.rearranged()?;
            if from.shape != target.shape {
                return Err(eraser.misfit(it.op, &from.shape, &target.shape));
            }
            Ok(vec![copy(from, target.clone())])
        }
        Rule::Free | Rule::Cast | Rule::Shard | Rule::Communicate => Err(eraser.unsupported(it.op)),
    }
}

fn copy(from: View, to: View) -> InstKind {
    let place = |view| Box::new(Place { rank: 0, view });
    InstKind::Copy { from: place(from), to: place(to) }
}

pub(super) struct Ctx<'c, 'p> {
    pub(super) eraser: &'c Eraser<'p>,
    pub(super) it: &'c OpStmt,
    args: &'c [TensorId],
    views: &'c [View],
    out: TensorId,
    target: &'c View,
}

impl Ctx<'_, '_> {
    // ---- operands

    fn operand(&self, at: usize) -> Result<&View> {
        self.views.get(at).ok_or_else(|| self.eraser.unsupported(self.it.op))
    }

    fn int(&self, expr: ExprId) -> Result<i64> {
        self.eraser.scalars.int(expr).map_err(|it| self.eraser.scalar_fault(it))
    }

    /// An integer from 0 up to `most`.
    fn index(&self, expr: ExprId, most: usize) -> Result<usize> {
        let value = self.int(expr)?;
        let index = usize::try_from(value).ok().filter(|it| *it <= most);
        index.ok_or_else(|| {
            let message = format!("`{}`: {value} is not between 0 and {most}", self.it.op.name());
            self.eraser.refused(grammar::codes::Code::BadIndex, message)
        })
    }

    pub(super) fn number(&self, expr: ExprId) -> Result<Number> {
        let value = self.eraser.scalars.eval(expr).map_err(|it| self.eraser.scalar_fault(it))?;
        Ok(match value {
            Value::Int(value) => Number::Int(value),
            Value::Bool(value) => Number::Bool(value),
            Value::Float(value) => Number::Float(value),
        })
    }

    fn scalar(&self, at: usize) -> Result<ExprId> {
        match self.it.args.get(at) {
            Some(Operand::Scalar(expr)) => Ok(*expr),
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => Err(self.eraser.unsupported(self.it.op)),
        }
    }

    /// A view whose dimensions of extent 1 repeat to `shape`.
    fn stretched(&self, view: &View, shape: &[usize]) -> Result<View> {
        let mut wide = view.clone();
        let fits = view.shape.len() == shape.len()
            && view.shape.iter().zip(shape).all(|(have, want)| have == want || *have == 1);
        if !fits {
            return Err(self.eraser.misfit(self.it.op, &view.shape, shape));
        }
        for (at, want) in shape.iter().enumerate().filter(|(at, want)| view.shape[*at] != **want) {
            (wide.shape[at], wide.strides[at]) = (*want, 0);
        }
        Ok(wide)
    }

    // ---- element by element

    fn map(&self) -> Result<Vec<InstKind>> {
        let mut views = self.views.iter();
        let mut args = Vec::new();
        for operand in &self.it.args {
            args.push(match operand {
                Operand::Tensor(_) => {
                    let Some(view) = views.next() else { return Err(self.eraser.unsupported(self.it.op)) };
                    Arg::View(self.stretched(view, &self.target.shape)?)
                }
                Operand::Scalar(expr) => Arg::Number(self.number(*expr)?),
                Operand::Stream(_) => return Err(self.eraser.unsupported(self.it.op)),
            });
        }
        Ok(vec![InstKind::Map { op: self.it.op, args, out: Box::new(self.target.clone()) }])
    }

    // ---- from indices

    fn generated(&self) -> Result<Vec<InstKind>> {
        let to = Box::new(self.target.clone());
        let mut wanted = Vec::new();
        for extent in self.it.generated_shape().unwrap_or_default() {
            wanted.push(self.index(extent, usize::MAX)?);
        }
        if wanted != to.shape {
            return Err(self.eraser.misfit(self.it.op, &to.shape, &wanted));
        }
        match self.it.op {
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
            _ => Err(self.eraser.unsupported(self.it.op)),
        }
    }

    // ---- the same elements elsewhere

    fn rearranged(&self) -> Result<View> {
        let (view, program) = (self.operand(0)?, self.eraser.program);
        let mut from = view.clone();
        match self.it.op.row().rule {
            Rule::Same => (),
            Rule::Permute => {
                // Axes of the result are numbered in the operand's order.
                let numbers: Vec<u32> =
                    program.dimensions(self.out).map(|axis| program.axes[axis].number).collect();
                if numbers.len() != view.shape.len() {
                    return Err(self.eraser.misfit(self.it.op, &view.shape, &self.target.shape));
                }
                for (to, number) in numbers.iter().enumerate() {
                    let at = numbers.iter().filter(|it| *it < number).count();
                    (from.shape[to], from.strides[to]) = (view.shape[at], view.strides[at]);
                }
            }
            Rule::Broadcast => {
                let flags = flagged_dims(program, self.it, self.out);
                if flags.iter().filter(|it| !**it).count() != view.shape.len() {
                    return Err(self.eraser.misfit(self.it.op, &view.shape, &self.target.shape));
                }
                let mut dims = view.shape.iter().copied().zip(view.strides.iter().copied());
                let all = flags.iter().map(|new| if *new { (1, 0) } else { dims.next().unwrap_or((1, 0)) });
                (from.shape, from.strides) = all.unzip();
            }
            Rule::Squeeze => {
                let flags = flagged_dims(program, self.it, self.args[0]);
                let gone = |at: usize| flags.get(at).copied().unwrap_or(false);
                if (0..view.shape.len()).any(|at| gone(at) && view.shape[at] != 1) {
                    return Err(self.eraser.misfit(self.it.op, &view.shape, &self.target.shape));
                }
                let kept = (0..view.shape.len()).filter(|at| !gone(*at));
                (from.shape, from.strides) = kept.map(|at| (view.shape[at], view.strides[at])).unzip();
            }
            Rule::Reshape => {
                if view.len() != self.target.len() {
                    return Err(self.eraser.misfit(self.it.op, &view.shape, &self.target.shape));
                }
                // Values are row-major.
                from = View::contiguous(view.buffer, self.target.shape.clone());
            }
            Rule::Pointwise if self.it.op == Op::Expand => {
                from = self.stretched(view, &self.target.shape)?;
            }
            Rule::Slice => {
                let Some(ranges) = self.it.get(attr::RANGES) else {
                    return Err(self.eraser.unsupported(self.it.op));
                };
                if ranges.len() != view.shape.len() {
                    return Err(self.eraser.misfit(self.it.op, &view.shape, &self.target.shape));
                }
                for (dim, [start, stop, step]) in ranges.iter().enumerate() {
                    let extent = view.shape[dim];
                    let (start, stop) = (self.index(*start, extent)?, self.index(*stop, extent)?);
                    let step = self.index(*step, usize::MAX)?.max(1);
                    from.offset += start * view.strides[dim];
                    from.shape[dim] = stop.saturating_sub(start).div_ceil(step);
                    // A step beyond the extent leaves one element at most.
                    from.strides[dim] *= step.min(extent.max(1));
                }
            }
            Rule::Select => {
                let Some(index) = self.it.get(attr::INDEX) else {
                    return Err(self.eraser.unsupported(self.it.op));
                };
                let Some(dim) = selected_dim(program, self.it, self.args[0]) else {
                    // A reduction axis is no dimension.
                    return Ok(from);
                };
                let most = view.shape[dim].saturating_sub(1);
                from.offset += self.index(index, most)? * view.strides[dim];
                from.shape.remove(dim);
                from.strides.remove(dim);
            }
            Rule::Free
            | Rule::Cast
            | Rule::Pointwise
            | Rule::Linear
            | Rule::Matmul
            | Rule::Reduce
            | Rule::Shard
            | Rule::Communicate
            | Rule::Generate => return Err(self.eraser.unsupported(self.it.op)),
        }
        Ok(from)
    }

    fn cat(&self) -> Result<Vec<InstKind>> {
        let dim = self.int(self.scalar(self.it.args.len().saturating_sub(1))?)?;
        let dim = usize::try_from(dim).ok().filter(|it| *it < self.target.shape.len());
        let Some(dim) = dim else { return Err(self.eraser.unsupported(self.it.op)) };
        let (mut start, mut code) = (0, Vec::new());
        for view in self.views {
            let mut to = self.target.clone();
            let len = view.shape.get(dim).copied().unwrap_or(0);
            to.shape[dim] = len;
            to.offset += start * to.strides[dim];
            start += len;
            if view.shape != to.shape {
                return Err(self.eraser.misfit(self.it.op, &view.shape, &self.target.shape));
            }
            code.push(copy(view.clone(), to));
        }
        if start != self.target.shape[dim] {
            return Err(self.eraser.misfit(self.it.op, &[start], &[self.target.shape[dim]]));
        }
        Ok(code)
    }

    // ---- sums

    fn reduction(&self) -> Result<Vec<InstKind>> {
        let (input, program) = (self.operand(0)?.clone(), self.eraser.program);
        let logical = &program.tensors[self.out].domains.logical;
        let is_gone = |at: &usize| program.axes[logical[*at]].kind == AxisKind::Reduction;
        let axes: Vec<usize> = (0..logical.len()).filter(is_gone).collect();
        let kept: Vec<usize> = (0..input.shape.len()).filter(|at| !axes.contains(at)).collect();
        let kept: Vec<usize> = kept.into_iter().map(|at| input.shape[at]).collect();
        if input.shape.len() != logical.len() || kept != self.target.shape {
            return Err(self.eraser.misfit(self.it.op, &input.shape, &self.target.shape));
        }
        let Some(op) = self.it.get(attr::OP).map(ReduceOp::from) else {
            return Err(self.eraser.unsupported(self.it.op));
        };
        let init = match self.it.get(attr::INITIAL_VALUE) {
            Some(expr) => self.number(expr)?,
            None => Number::Int(0),
        };
        let it = Reduce { op, init, input, axes, out: self.target.clone() };
        Ok(vec![InstKind::Reduce(Box::new(it))])
    }

    /// linear and matmul. A device axis of partial sums (`rf`) is an ordinary dimension of the result: each of its indices
    /// sums its own range of `k`.
    fn product(&self) -> Result<Vec<InstKind>> {
        let (mut a, mut b, mut out) =
            (self.operand(0)?.clone(), self.operand(1)?.clone(), self.target.clone());
        let misfit = |view: &View| self.eraser.misfit(self.it.op, &view.shape, &self.target.shape);
        if self.it.op.row().rule == Rule::Linear {
            if b.shape.len() != 2 {
                return Err(misfit(&b));
            }
            b.shape.reverse();
            b.strides.reverse();
        }
        let ranges = self.partial().map(|dim| (out.shape.remove(dim), out.strides.remove(dim)));
        // A vector is a row on the left and a column on the right.
        if b.shape.len() == 1 {
            insert(&mut b, 1, 1, 0);
            let end = out.shape.len();
            insert(&mut out, end, 1, 0);
        }
        if a.shape.len() == 1 {
            insert(&mut a, 0, 1, 0);
            let row = out.shape.len().saturating_sub(1);
            insert(&mut out, row, 1, 0);
        }
        let rank = out.shape.len();
        if rank < 2 || a.shape.len() > rank || b.shape.len() > rank {
            return Err(misfit(&a));
        }
        while a.shape.len() < rank {
            insert(&mut a, 0, 1, 0);
        }
        while b.shape.len() < rank {
            insert(&mut b, 0, 1, 0);
        }
        let (m, n, k) = (out.shape[rank - 2], out.shape[rank - 1], a.shape[rank - 1]);
        if b.shape[rank - 2] != k {
            return Err(self.eraser.misfit(self.it.op, &a.shape, &b.shape));
        }
        let batch = out.shape[..rank - 2].to_vec();
        let mut a = self.stretched(&a, &[&batch[..], &[m, k]].concat())?;
        let mut b = self.stretched(&b, &[&batch[..], &[k, n]].concat())?;
        if let Some((count, stride)) = ranges {
            if count == 0 || k % count != 0 {
                return Err(misfit(&a));
            }
            let len = k / count;
            (a.shape[rank - 1], b.shape[rank - 2]) = (len, len);
            let (a_step, b_step) = (a.strides[rank - 1] * len, b.strides[rank - 2] * len);
            insert(&mut a, 0, count, a_step);
            insert(&mut b, 0, count, b_step);
            insert(&mut out, 0, count, stride);
        }
        let bias = match self.views.get(2) {
            None => None,
            Some(_) if ranges.is_some_and(|(count, _)| count > 1) => {
                return Err(self.eraser.unsupported(self.it.op));
            }
            Some(bias) => {
                let mut wide = bias.clone();
                while wide.shape.len() < out.shape.len() {
                    insert(&mut wide, 0, 1, 0);
                }
                Some(self.stretched(&wide, &out.shape)?)
            }
        };
        Ok(vec![InstKind::Gemm(Box::new(Gemm { a, b, bias, out }))])
    }

    /// The dimension of the result that counts partial sums.
    fn partial(&self) -> Option<usize> {
        let program = self.eraser.program;
        program.dimensions(self.out).position(|axis| {
            let it = &program.axes[axis];
            matches!(it.parallel, Parallel::Device(_)) && it.suffix.contains("rf")
        })
    }
}

/// A new dimension.
fn insert(view: &mut View, at: usize, extent: usize, stride: usize) {
    view.shape.insert(at, extent);
    view.strides.insert(at, stride);
}
