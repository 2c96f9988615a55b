//! Operators that move elements, or compute them from their indices.

use grammar::{
    OperandMap, attr,
    ir::{ExprId, OpStmt, Operand, Program, TensorId},
    operand_map,
    ops::Op,
    rules::{Aliasing, OperandView},
    selected_dim, slice_takes_all,
};
use ndarray::{ArrayView, Axis, IxDyn, Slice, concatenate};

use super::{Call, Computed, Tensor, fit, mapped::aligned, misfit};
use crate::{
    field::Element,
    tensor::{Array, reshape},
};

impl Call<'_> {
    pub(super) fn rearrange(&self) -> Computed<Tensor> {
        let from = fit(self.compute.args.first())?.0;
        let integer = |it| self.integer(it).ok();
        fit(rearranged(self.program, self.stmt, &integer, self.arg(0)?, from, self.shape()))
    }

    pub(super) fn cat(&self) -> Computed<Tensor> {
        let Some(Operand::Scalar(dim)) = self.stmt.args.last() else { return misfit() };
        let parts: Vec<_> = self.args.iter().map(|it| it.data.view()).collect();
        joined(fit(usize::try_from(self.integer(*dim)?).ok())?, &parts)
    }

    pub(super) fn pad(&self) -> Computed<Tensor> {
        let mut found = self.arg(0)?.clone();
        let widths = self.stmt.get(attr::WIDTHS).unwrap_or_default();
        for (dim, widths) in widths.chunks(2).enumerate() {
            let [before, behind] = [self.integer(widths[0])?, self.integer(widths[1])?];
            let mut shape = found.shape().to_vec();
            let stop = fit(shape.get(dim))?.saturating_add_signed(behind.min(0) as isize);
            let start = usize::try_from(-before).unwrap_or(0);
            let len = i128::from(before) + i128::from(behind) + shape[dim] as i128;
            if start > stop || self.shape().get(dim).is_none_or(|it| *it as i128 != len) {
                return misfit();
            }
            found.slice_axis_inplace(Axis(dim), Slice::from(start..stop));
            let [before, behind] = [before, behind].map(|width| {
                shape[dim] = usize::try_from(width).unwrap_or(0);
                Tensor::default(&shape[..])
            });
            found = joined(dim, &[before.view(), found.view(), behind.view()])?;
        }
        Ok(found)
    }

    pub(super) fn generate(&self) -> Computed<Tensor> {
        let part = &self.compute.outs[0].1;
        let scalar = |at: usize| match self.stmt.args.get(at) {
            Some(Operand::Scalar(it)) => self.element(*it),
            _ => misfit(),
        };
        let element: Box<dyn Fn(usize) -> Element> = match self.stmt.op {
            Op::Full => {
                let value = scalar(0)?;
                Box::new(move |_| value)
            }
            Op::Iota => {
                let (start, step) = (scalar(1)?, scalar(2)?);
                Box::new(move |it| start + step * Element::of_integer(it as i64))
            }
            Op::Eye => {
                let columns = part.whole.last().copied().unwrap_or(1);
                Box::new(move |it| Element::of_integer(i64::from(it / columns == it % columns)))
            }
            op => {
                // Random numbers: an unknown function of the seed, the offset, the limits and the index.
                let seed = self.args.iter().flat_map(|it| &it.data).copied();
                let state = self.algebra.apply(op, seed.chain([self.attributes()?]));
                Box::new(move |it| state.following(it))
            }
        };
        Ok(part.places().map(|it| element(*it)).into_shared())
    }
}

fn joined(dim: usize, parts: &[ArrayView<'_, Element, IxDyn>]) -> Computed<Tensor> {
    fit(concatenate(Axis(dim), parts).ok().map(|it| it.into_shared()))
}

/// Returns the result of an operator that only rearranges elements; `None` for other operators, and if the operand does not fit.
pub(crate) fn rearranged<T: Clone>(
    program: &Program,
    stmt: &OpStmt,
    integer: &dyn Fn(ExprId) -> Option<i64>,
    from: &Array<T>,
    arg: TensorId,
    shape: &[usize],
) -> Option<Array<T>> {
    let Aliasing::View(shown) = stmt.rule().aliasing() else { return None };
    let size = |it| usize::try_from(integer(it)?).ok();
    let mut it = from.clone();
    match shown {
        OperandView::Sliced => {
            for (dim, [start, stop, step]) in stmt.get(attr::RANGES)?.iter().enumerate() {
                if slice_takes_all(program, stmt, arg, dim, &integer) {
                    continue;
                }
                let (start, stop, step) = (size(*start)?, size(*stop)?, size(*step)?.max(1));
                if start > stop || stop > *it.shape().get(dim)? {
                    return None;
                }
                let range = Slice::new(start as isize, Some(stop as isize), step as isize);
                it.slice_axis_inplace(Axis(dim), range);
            }
            Some(it)
        }
        OperandView::Selected => {
            let Some(dim) = selected_dim(program, stmt, arg) else { return Some(it) };
            let extent = *it.shape().get(dim)?;
            let index = if extent == 1 { 0 } else { size(stmt.get(attr::INDEX)?)? };
            (index < extent).then(|| it.index_axis_move(Axis(dim), index))
        }
        OperandView::Reshaped => reshape(&it, shape),
        OperandView::StreamChunk => None,
        OperandView::Whole
        | OperandView::Permuted
        | OperandView::Broadcast
        | OperandView::Squeezed
        | OperandView::Expanded => {
            let Some(OperandMap::Dims(maps)) = operand_map(program, stmt, 0, integer) else { return None };
            let it = aligned(&it, &maps, shape.len())?;
            let it = (it.shape().last() == Some(&1)).then(|| it.index_axis_move(Axis(shape.len()), 0))?;
            if it.shape() == shape { Some(it) } else { it.broadcast(shape).map(|it| it.to_shared()) }
        }
    }
}
