//! Operators that move elements, or write them by their indices.

use grammar::{
    attr, flagged_dims,
    ir::{ExprId, OpStmt, Operand, Program, TensorId},
    ops::Op,
    permutation,
    rules::{Aliasing, OperandView},
    scalars::Value,
    selected_dim, slice_takes_all,
};

use super::{Call, Computed, misfit};
use crate::{
    field::Element,
    view::{Values, View},
};

impl Call<'_> {
    pub(super) fn rearrange(&self) -> Computed<Vec<Element>> {
        let (from, args) = (self.arg(0)?, self.stmt.tensor_operands());
        let view = rearranged(
            self.program,
            self.stmt,
            self.value,
            &from.view(),
            args[0],
            self.outs[0].0,
            &self.shapes[0],
        );
        match view {
            Some(view) if view.shape == self.shapes[0] => Ok(from.gather(&view).data.to_vec()),
            _ => misfit(),
        }
    }

    pub(super) fn cat(&self) -> Computed<Vec<Element>> {
        let Some(Operand::Scalar(dim)) = self.stmt.args.last() else { return misfit() };
        let (dim, shape) = (self.size(*dim)?, &self.shapes[0]);
        if dim >= shape.len() {
            return misfit();
        }
        let whole = View::contiguous(0, shape.clone());
        let (mut found, mut start) = (vec![Element::default(); whole.len()], 0);
        for it in self.args {
            let len = it.shape.get(dim).copied().unwrap_or(0);
            if it.shape.len() != shape.len() || start + len > shape[dim] {
                return misfit();
            }
            place(&mut found, &whole.narrow(dim, start, len), it)?;
            start += len;
        }
        if start == shape[dim] { Ok(found) } else { misfit() }
    }

    pub(super) fn pad(&self) -> Computed<Vec<Element>> {
        let (from, shape) = (self.arg(0)?, &self.shapes[0]);
        let widths = self.stmt.get(attr::WIDTHS).unwrap_or_default();
        if widths.len() != 2 * shape.len() || from.shape.len() != shape.len() {
            return misfit();
        }
        let (mut source, mut target) = (from.view(), View::contiguous(0, shape.clone()));
        let mut found = vec![Element::default(); target.len()];
        for dim in 0..shape.len() {
            let width = |at: usize| match self.scalar(widths[2 * dim + at])? {
                Value::Int(it) => Ok(i128::from(it)),
                Value::Bool(_) | Value::Float(_) => misfit(),
            };
            let (before, behind) = (width(0)?, width(1)?);
            let (has, wanted) = (from.shape[dim] as i128, shape[dim] as i128);
            let (first, len) = ((-before).max(0), wanted - before.max(0) - behind.max(0));
            if before + behind + has != wanted || len < 0 || first + len > has {
                return misfit();
            }
            source = source.narrow(dim, first as usize, len as usize);
            target = target.narrow(dim, before.max(0) as usize, len as usize);
        }
        place(&mut found, &target, &from.gather(&source))?;
        Ok(found)
    }

    pub(super) fn generate(&self) -> Computed<Vec<Element>> {
        let (part, shape) = (&self.outs[0].1, &self.shapes[0]);
        if part.shape() != *shape {
            return misfit();
        }
        let scalar = |at: usize| match self.stmt.args.get(at) {
            Some(Operand::Scalar(it)) => self.element(*it),
            _ => misfit(),
        };
        let indices = part.indices();
        match self.stmt.op {
            Op::Full => Ok(vec![scalar(0)?; indices.len()]),
            Op::Iota => {
                let (start, step) = (scalar(1)?, scalar(2)?);
                Ok(indices.into_iter().map(|it| start + step * Element::of_integer(it as i64)).collect())
            }
            Op::Eye => {
                let columns = part.whole.last().copied().unwrap_or(1);
                let is_one = |it: usize| i64::from(it / columns == it % columns);
                Ok(indices.into_iter().map(|it| Element::of_integer(is_one(it))).collect())
            }
            op => {
                // Random numbers: an unknown function of the seed, the offset, the limits and the index.
                let mut state: Vec<Element> = Vec::new();
                state.extend(self.args.iter().flat_map(|it| it.data.iter()));
                self.stmt.scalars(&mut |it| state.extend(self.element(it)));
                let number = |it| self.algebra.apply((op, it), state.iter().copied());
                Ok(indices.into_iter().map(number).collect())
            }
        }
    }
}

/// Writes the elements of a tensor to the places of a view.
fn place(to: &mut [Element], view: &View, from: &Values) -> Computed<()> {
    if view.shape != from.shape {
        return misfit();
    }
    view.offsets().into_iter().zip(from.data.iter()).for_each(|(at, it)| to[at] = *it);
    Ok(())
}

/// Returns the result of an operator that only rearranges elements, as a view of its operand; `None` for other operators, and if the
/// elements have to be copied or are outside of the operand.
pub(crate) fn rearranged(
    program: &Program,
    stmt: &OpStmt,
    value: &dyn Fn(ExprId) -> Option<Value>,
    view: &View,
    arg: TensorId,
    out: TensorId,
    shape: &[usize],
) -> Option<View> {
    let Aliasing::View(shown) = stmt.rule().aliasing() else { return None };
    let integer = |it| match value(it) {
        Some(Value::Int(it)) => Some(it),
        Some(Value::Bool(_) | Value::Float(_)) | None => None,
    };
    let size = |it| usize::try_from(integer(it)?).ok();
    let mut view = view.clone();
    match shown {
        OperandView::Whole => Some(view),
        OperandView::Permuted => {
            let order = permutation(program, stmt);
            (order.len() == view.shape.len()).then(|| view.permute(&order))
        }
        OperandView::Broadcast => {
            for (dim, _) in flagged_dims(program, stmt, out).iter().enumerate().filter(|it| *it.1) {
                view = if dim <= view.shape.len() { view.unsqueeze(dim) } else { return None };
            }
            Some(view)
        }
        OperandView::Squeezed => {
            for (dim, _) in flagged_dims(program, stmt, arg).iter().enumerate().rev().filter(|it| *it.1) {
                view = if view.shape.get(dim) == Some(&1) { view.select(dim, 0) } else { return None };
            }
            Some(view)
        }
        OperandView::Sliced => {
            for (dim, [start, stop, step]) in stmt.get(attr::RANGES)?.iter().enumerate() {
                if slice_takes_all(program, stmt, arg, dim, &integer) {
                    continue;
                }
                let (start, stop, step) = (size(*start)?, size(*stop)?, size(*step)?.max(1));
                let extent = *view.shape.get(dim)?;
                if start > stop || stop > extent {
                    return None;
                }
                view = view.narrow(dim, start, (stop - start).div_ceil(step));
                view.strides[dim] *= step.min(extent.max(1));
            }
            Some(view)
        }
        OperandView::Selected => {
            let Some(dim) = selected_dim(program, stmt, arg) else { return Some(view) };
            let extent = *view.shape.get(dim)?;
            let index = if extent == 1 { 0 } else { size(stmt.get(attr::INDEX)?)? };
            (index < extent).then(|| view.select(dim, index))
        }
        OperandView::Reshaped => view.reshape(shape),
        OperandView::Expanded => view.broadcast(shape),
        OperandView::StreamChunk => None,
    }
}
