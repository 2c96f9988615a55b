//! Operators with operands of indices.

use grammar::{attr, ops::Op};

use super::{Call, Computed, misfit};
use crate::{field::Element, view::Values};

impl Call<'_> {
    /// Returns an element that is an index below `extent`.
    pub(super) fn index(&self, it: Element, extent: usize) -> Computed<usize> {
        let index = it.integer().and_then(|it| usize::try_from(it).ok()).filter(|it| *it < extent);
        index.ok_or_else(|| "an index is outside of the axis, or is computed from unknown values".to_owned())
    }

    /// Selects rows of the table. A device axis of partial sums has zeros for the rows that other devices have.
    pub(super) fn embedding(&self) -> Computed<Vec<Element>> {
        let (index, table) = (self.arg(0)?, self.arg(1)?);
        let [rows, width] = table.shape[..] else { return misfit() };
        let (Some(range), true) = (self.arg_parts.get(1).and_then(|it| it.range(0)), self.args.len() == 2)
        else {
            return misfit();
        };
        let out = self.outs[0].0;
        let is_partial = |it| self.program.is_partial(out, it);
        let partial = self.program.dimensions(out).position(is_partial).map_or(1, |dim| self.shapes[0][dim]);
        let all = self.arg_parts[1].whole[0];
        if partial != 1
            || range.len() != rows
            || self.shapes[0].iter().product::<usize>() != index.data.len() * width
        {
            return Err("its rows are divided in a way that hir-certify does not know".to_owned());
        }
        let mut found = Vec::new();
        for it in index.data.iter() {
            let row = self.index(*it, all)?;
            match row.checked_sub(range.start).filter(|it| *it < rows) {
                Some(at) => found.extend(&table.data[at * width..(at + 1) * width]),
                None => found.resize(found.len() + width, Element::default()),
            }
        }
        Ok(found)
    }

    /// Adds rows to those that the indices name.
    pub(super) fn add_rows(&self) -> Computed<Vec<Element>> {
        let (base, index, rows) = (self.arg(0)?, self.arg(1)?, self.arg(2)?);
        let mut found = base.data.to_vec();
        let width: usize = base.shape.iter().skip(1).product();
        if base.shape != self.shapes[0] || rows.data.len() != index.data.len() * width {
            return misfit();
        }
        for (it, row) in index.data.iter().zip(rows.data.chunks(width.max(1))) {
            let at = self.index(*it, base.shape[0])? * width;
            found[at..].iter_mut().zip(row).for_each(|(sum, it)| *sum = *sum + *it);
        }
        Ok(found)
    }

    pub(super) fn take(&self) -> Computed<Vec<Element>> {
        let (from, index, shape) = (self.arg(0)?, self.arg(1)?, &self.shapes[0]);
        let dim = self.size(self.stmt.get(attr::DIM).ok_or("its `dim` is missing")?)?;
        let fits = |(at, extent): (usize, &usize)| at == dim || *extent == 1 || *extent >= shape[at];
        if from.shape.len() != shape.len() || dim >= shape.len() || !from.shape.iter().enumerate().all(fits) {
            return misfit();
        }
        let index = if self.stmt.op == Op::IndexSelect {
            let mut wide = vec![1; shape.len()];
            wide[dim] = index.data.len();
            Values { shape: wide, ..index.clone() }
        } else {
            index.clone()
        };
        let index = self.repeated(&index, shape)?;
        let mut source = from.view();
        for at in (0..shape.len()).filter(|at| *at != dim && from.shape[*at] == 1) {
            source.strides[at] = 0;
        }
        let step = source.strides[dim];
        (source.shape, source.strides[dim]) = (shape.clone(), 0);
        let pick =
            |(base, it): (usize, &Element)| Ok(from.data[base + step * self.index(*it, from.shape[dim])?]);
        source.offsets().into_iter().zip(index.data.iter()).map(pick).collect()
    }
}
