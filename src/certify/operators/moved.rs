//! Operators that move elements, or compute them from their indices.

use super::{mapped::aligned, *};

impl Call<'_> {
    pub(super) fn rearrange(&self) -> Computed<Tensor> {
        let from = self.of.args.first().ok_or(MISFIT)?.0;
        let integer = |it| self.integer(it);
        let found = rearranged(self.of.program, self.of.stmt, &integer, self.arg(0)?, from, self.shape());
        found.ok_or(MISFIT)
    }

    pub(super) fn cat(&self) -> Computed<Tensor> {
        let Some(Operand::Scalar(dim)) = self.of.stmt.args.last() else { return Err(MISFIT) };
        let dim = self.integer(*dim).and_then(|it| usize::try_from(it).ok()).ok_or(MISFIT)?;
        let parts: Vec<_> = self.args.iter().map(|it| it.data.view()).collect();
        // `concatenate` accepts any number of dimensions, but not a dimension that a part lacks.
        if parts.iter().any(|it| it.ndim() <= dim) {
            return Err(MISFIT);
        }
        Ok(concatenate(Axis(dim), &parts).map_err(|_| MISFIT)?.into_shared())
    }

    pub(super) fn pad(&self) -> Computed<Tensor> {
        let (from, widths) = (self.arg(0)?, self.of.stmt.get(attr::WIDTHS).unwrap_or_default());
        let widths = widths.iter().map(|it| self.integer(*it)).collect::<Option<Vec<i64>>>().ok_or(MISFIT)?;
        let fits = |(dim, extent): (usize, &usize)| {
            let added = widths.chunks(2).nth(dim).map_or(0, |it| it.iter().map(|it| i128::from(*it)).sum());
            self.shape().get(dim).is_some_and(|it| *it as i128 == *extent as i128 + added)
        };
        if from.ndim() != self.shape().len() || !from.shape().iter().enumerate().all(fits) {
            return Err(MISFIT);
        }
        let element = |mut index: IxDyn| {
            let dims = index.slice_mut().iter_mut().zip(widths.iter().step_by(2));
            dims.for_each(|(at, before)| *at = at.wrapping_add_signed(-*before as isize));
            from.get(index).copied().unwrap_or_default()
        };
        Ok(Tensor::from_shape_fn(self.shape(), element))
    }

    pub(super) fn generate(&self) -> Computed<Tensor> {
        let part = &self.of.outs[0].1;
        let element: Box<dyn Fn(usize) -> Element> = match self.of.stmt.op {
            Op::Full => {
                let value = self.operand(0)?;
                Box::new(move |_| value)
            }
            Op::Iota => {
                let (start, step) = (self.operand(1)?, self.operand(2)?);
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
                let (start, stop, step) = (size(*start)?, size(*stop)?, size(*step)?);
                if start > stop || stop > *it.shape().get(dim)? || step == 0 {
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
