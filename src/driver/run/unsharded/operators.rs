//! Plans operators on whole tensors, each from its definition in the operator table.

use std::sync::Arc;

use grammar::{
    Aliasing, AxisKind, Diagnostic, ExprId, Op, OpClass, OpStmt, Operand, OperandView, ParallelType,
    TensorId, TypeRule, attr, flagged_dims, selected_dim,
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
            ctx.check_fits(from.shape == target.shape, &from)?;
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
        self.views.get(at).ok_or_else(|| self.unsupported())
    }

    fn unsupported(&self) -> Box<Diagnostic> {
        self.planner.unsupported(self.stmt.op)
    }

    /// Returns an error if the shape of an operand does not fit another one.
    fn check(&self, fits: bool, have: &[usize], want: &[usize]) -> Result<()> {
        if fits { Ok(()) } else { Err(self.planner.shape_mismatch(self.stmt.op, have, want)) }
    }

    /// Returns an error if an operand does not fit the result.
    fn check_fits(&self, fits: bool, view: &View) -> Result<()> {
        self.check(fits, &view.shape, &self.target.shape)
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
            Some(Operand::Tensor(_) | Operand::Stream(_)) | None => Err(self.unsupported()),
        }
    }

    /// Broadcasts the dimensions of extent 1 of a view to `shape`.
    fn broadcast(&self, view: &View, shape: &[usize]) -> Result<View> {
        let mut wide = view.clone();
        let fits = view.shape.len() == shape.len()
            && view.shape.iter().zip(shape).all(|(have, want)| have == want || *have == 1);
        self.check(fits, &view.shape, shape)?;
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
                    let Some(view) = views.next() else { return Err(self.unsupported()) };
                    Arg::View(self.broadcast(view, &self.target.shape)?)
                }
                Operand::Scalar(expr) => Arg::Number(self.number(*expr)?),
                Operand::Stream(_) => return Err(self.unsupported()),
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
        self.check(wanted == to.shape, &to.shape, &wanted)?;
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
            _ => Err(self.unsupported()),
        }
    }

    // ---- rearranged elements

    fn view_of_operand(&self) -> Result<View> {
        let Aliasing::View(shown) = self.stmt.rule().aliasing() else {
            return Err(self.unsupported());
        };
        let (view, program) = (self.operand(0)?, self.planner.program);
        let mut from = view.clone();
        match shown {
            OperandView::Whole => (),
            OperandView::Permuted => {
                let dims = self.stmt.get(attr::DIMS).unwrap_or_default();
                self.check_fits(dims.len() == view.shape.len(), view)?;
                for (to, dim) in dims.iter().enumerate() {
                    let dim = program.constant(*dim).and_then(|dim| usize::try_from(dim).ok());
                    let at = dim.filter(|at| *at < dims.len()).ok_or_else(|| self.unsupported())?;
                    (from.shape[to], from.strides[to]) = (view.shape[at], view.strides[at]);
                }
            }
            OperandView::Broadcast => {
                let flags = flagged_dims(program, self.stmt, self.out);
                self.check_fits(flags.iter().filter(|it| !**it).count() == view.shape.len(), view)?;
                let mut dims = view.shape.iter().copied().zip(view.strides.iter().copied());
                let all = flags.iter().map(|new| if *new { (1, 0) } else { dims.next().unwrap_or((1, 0)) });
                (from.shape, from.strides) = all.unzip();
            }
            OperandView::Squeezed => {
                let flags = flagged_dims(program, self.stmt, self.args[0]);
                let gone = |at: usize| flags.get(at).copied().unwrap_or(false);
                self.check_fits((0..view.shape.len()).all(|at| !gone(at) || view.shape[at] == 1), view)?;
                let kept = (0..view.shape.len()).filter(|at| !gone(*at));
                (from.shape, from.strides) = kept.map(|at| (view.shape[at], view.strides[at])).unzip();
            }
            OperandView::Reshaped => {
                self.check_fits(view.len() == self.target.len(), view)?;
                // Elements are in row-major order.
                let dtype = self.planner.dtype(self.args[0]);
                (_, from) = Buffer::of_elements(String::new(), dtype, view.buffer, self.target.shape.clone());
                from.offset = view.offset;
            }
            OperandView::Expanded => {
                from = self.broadcast(view, &self.target.shape)?;
            }
            OperandView::Sliced => {
                let ranges = self.stmt.get(attr::RANGES).ok_or_else(|| self.unsupported())?;
                self.check_fits(ranges.len() == view.shape.len(), view)?;
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
                let index = self.stmt.get(attr::INDEX).ok_or_else(|| self.unsupported())?;
                let Some(dim) = selected_dim(program, self.stmt, self.args[0]) else {
                    // A reduction axis is not a dimension of the operand.
                    return Ok(from);
                };
                let most = view.shape[dim].saturating_sub(1);
                from.offset += self.index(index, most)? * view.strides[dim];
                from.shape.remove(dim);
                from.strides.remove(dim);
            }
            OperandView::StreamChunk => return Err(self.unsupported()),
        }
        Ok(from)
    }

    fn cat(&self) -> Result<Vec<InstKind>> {
        let dim = self.int(self.scalar(self.stmt.args.len().saturating_sub(1))?)?;
        let dim = usize::try_from(dim).ok().filter(|it| *it < self.target.shape.len());
        let dim = dim.ok_or_else(|| self.unsupported())?;
        let (mut start, mut code) = (0, Vec::new());
        for view in self.views {
            let mut to = self.target.clone();
            let len = view.shape.get(dim).copied().unwrap_or(0);
            to.shape[dim] = len;
            to.offset += start * to.strides[dim];
            start += len;
            self.check_fits(view.shape == to.shape, view)?;
            code.push(copy(view.clone(), to));
        }
        let extent = self.target.shape[dim];
        self.check(start == extent, &[start], &[extent])?;
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
        self.check_fits(input.shape.len() == logical.len() && kept == self.target.shape, &input)?;
        let op = self.stmt.get(attr::OP).map(ReduceOp::from).ok_or_else(|| self.unsupported())?;
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
        if self.stmt.op.def().type_rule == TypeRule::Linear {
            self.check_fits(b.shape.len() == 2, &b)?;
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
        self.check_fits(rank >= 2 && a.shape.len() <= rank && b.shape.len() <= rank, &a)?;
        insert_outer_dims(&mut a, rank);
        insert_outer_dims(&mut b, rank);
        let (m, n, k) = (out.shape[rank - 2], out.shape[rank - 1], a.shape[rank - 1]);
        self.check(b.shape[rank - 2] == k, &a.shape, &b.shape)?;
        let batch = out.shape[..rank - 2].to_vec();
        let mut a = self.broadcast(&a, &[&batch[..], &[m, k]].concat())?;
        let mut b = self.broadcast(&b, &[&batch[..], &[k, n]].concat())?;
        if let Some((count, stride)) = ranges {
            self.check_fits(count != 0 && k % count == 0, &a)?;
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
                return Err(self.unsupported());
            }
            Some(bias) => {
                let mut wide = bias.clone();
                insert_outer_dims(&mut wide, out.shape.len());
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

/// Inserts dimensions of extent 1 before those of a view of fewer dimensions than `rank`.
fn insert_outer_dims(view: &mut View, rank: usize) {
    while view.shape.len() < rank {
        insert_dim(view, 0, 1, 0);
    }
}
