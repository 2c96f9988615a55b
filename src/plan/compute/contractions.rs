//! Reductions and matrix products: how the shapes and shardings of their operands become views of equal rank.

use grammar::{AxisKind, DType, OpStmt, ReductionOp, TensorId, TypeRule, attr};

use crate::{
    Gemm, InstKind, Number, Reduce, ReduceOp, View,
    context::{PlanBuilder, Result},
};

impl PlanBuilder<'_> {
    pub(super) fn reduce(
        &self,
        stmt: &OpStmt,
        views: &[View],
        out: TensorId,
        target: &View,
    ) -> Result<InstKind> {
        let Some(input) = views.first() else { return Err(self.unsupported(stmt.op, "it has no operand")) };
        let logical = &self.program.tensors[out].domains.logical;
        let reduced = |axis: &_| self.program.axes[*axis].kind == AxisKind::Reduction;
        let axes: Vec<usize> = (0..logical.len()).filter(|at| reduced(&logical[*at])).collect();
        let kept: Vec<usize> =
            (0..input.shape.len()).filter(|at| !axes.contains(at)).map(|at| input.shape[at]).collect();
        if input.shape.len() != logical.len() || kept != target.shape {
            return Err(self.shape_mismatch(stmt.op, &input.shape, &target.shape));
        }
        let Some(op) = stmt.get(attr::OP) else {
            return Err(self.unsupported(stmt.op, "its `op` is missing"));
        };
        // `ReduceOp` has no logical operators; on bool, they are those of bits.
        let is_logical = matches!(op, ReductionOp::LogicalAnd | ReductionOp::LogicalOr);
        if is_logical && self.plan.buffers[input.buffer as usize].dtype != DType::Bool {
            return Err(
                self.unsupported(stmt.op, "`logical_and` and `logical_or` need an operand of type bool")
            );
        }
        let op = ReduceOp::from(op);
        let init = match stmt.get(attr::INITIAL_VALUE) {
            Some(expr) => self.value(expr, "the initial value")?.into(),
            None => Number::Int(0),
        };
        let it = Reduce { op, init, input: input.clone(), axes, out: target.clone() };
        Ok(InstKind::Reduce(Box::new(it)))
    }

    /// Lowers `linear` and `matmul` to `Gemm`. A device axis of partial sums in the result (`rf`) splits `k`:
    /// each of its indices sums its own part, as an additional batch dimension.
    pub(super) fn gemm(
        &self,
        stmt: &OpStmt,
        views: &[View],
        out: TensorId,
        target: &View,
    ) -> Result<InstKind> {
        let [a, b, bias @ ..] = views else { return Err(self.unsupported(stmt.op, "operands are missing")) };
        let misfit = |view: &View| self.shape_mismatch(stmt.op, &view.shape, &target.shape);
        let (mut a, mut b, mut target) = (a.clone(), b.clone(), target.clone());
        if stmt.op.def().type_rule == TypeRule::Linear {
            if b.shape.len() != 2 {
                return Err(misfit(&b));
            }
            b = b.permute(&[1, 0]);
        }
        let partial = self.partial_dim(out);
        let parts = partial.map(|dim| {
            let last = target.shape.len() - 1;
            let order: Vec<usize> = std::iter::once(dim).chain((0..=last).filter(|at| *at != dim)).collect();
            target = target.permute(&order);
            target.shape[0]
        });
        // A one-dimensional left operand is a row, and a one-dimensional right operand is a column.
        if b.shape.len() == 1 {
            b = b.unsqueeze(1);
            target = target.unsqueeze(target.shape.len());
        }
        if a.shape.len() == 1 {
            a = a.unsqueeze(0);
            target = target.unsqueeze(target.shape.len().saturating_sub(1));
        }
        let (a_rank, b_rank) = (a.shape.len(), b.shape.len());
        if a_rank.min(b_rank).min(target.shape.len()) < 2 || a.shape[a_rank - 1] != b.shape[b_rank - 2] {
            return Err(self.shape_mismatch(stmt.op, &a.shape, &b.shape));
        }
        if let Some(parts) = parts {
            if a.shape[a_rank - 1] % parts.max(1) != 0 {
                return Err(misfit(&a));
            }
            a = split_dim(&a, a_rank - 1, parts);
            b = split_dim(&b, b_rank - 2, parts);
        }
        let batch = target.shape[..target.shape.len() - 2].to_vec();
        let padded = |view: &View| {
            let mut view = view.clone();
            let at = usize::from(parts.is_some());
            while view.shape.len() < batch.len() + 2 {
                view = view.unsqueeze(at);
            }
            view
        };
        let (a, b) = (padded(&a), padded(&b));
        let given = |at: usize| [&a, &b].iter().any(|view| view.shape.get(at) == batch.get(at));
        if !(0..batch.len()).all(given) {
            return Err(misfit(&a));
        }
        let widen = |view: &View| {
            let mut shape = batch.clone();
            shape.extend(&view.shape[view.shape.len() - 2..]);
            view.expand(&shape)
        };
        let (a, b) = (widen(&a).ok_or_else(|| misfit(&a))?, widen(&b).ok_or_else(|| misfit(&b))?);
        let (m, n) = (a.shape[batch.len()], b.shape[batch.len() + 1]);
        if target.shape[batch.len()..] != [m, n] {
            return Err(self.shape_mismatch(stmt.op, &[m, n], &target.shape));
        }
        let bias = match bias {
            [] => None,
            [_, ..] if parts.is_some_and(|parts| parts > 1) => {
                return Err(self.unsupported(stmt.op, "a bias would be added once for every partial sum"));
            }
            [bias, ..] => Some(bias.broadcast(&target.shape).ok_or_else(|| misfit(bias))?),
        };
        Ok(InstKind::Gemm(Box::new(Gemm { a, b, bias, out: target })))
    }

    /// Returns the dimension of a result that indexes partial sums over devices.
    fn partial_dim(&self, out: TensorId) -> Option<usize> {
        self.program.dimensions(out).position(|axis| self.program.is_partial(out, axis))
    }
}

/// Splits a dimension into `parts` equal ranges. The index of the range becomes the first dimension of the
/// result.
fn split_dim(view: &View, dim: usize, parts: usize) -> View {
    let mut view = view.clone();
    let len = view.shape[dim] / parts.max(1);
    let stride = view.strides[dim];
    view.shape[dim] = len;
    view.shape.insert(0, parts);
    view.strides.insert(0, stride * len);
    view
}
