//! `pad` and `repeat`.

use grammar::attr;

use super::{OperatorCall, Result, misfit};
use crate::{Number, View, inst_builder::InstBuilder};

impl OperatorCall<'_> {
    /// Zeros around the operand; a negative width removes elements.
    pub(super) fn pad(&self, code: &mut InstBuilder) -> Result<()> {
        let (input, out) = (self.operand(0)?, self.result(0)?);
        let widths = self.stmt.get(attr::WIDTHS).unwrap_or_default();
        let widths = widths.iter().map(|it| self.integer(*it)).collect::<Result<Vec<i64>>>()?;
        if widths.len() != 2 * input.shape.len() || input.shape.len() != out.shape.len() {
            let why = "it needs two widths for each dimension";
            return Err(self.unsupported(why));
        }
        let (mut from, mut to) = (input.clone(), out.clone());
        for dim in 0..input.shape.len() {
            let (before, after) = (widths[2 * dim], widths[2 * dim + 1]);
            let extent = i128::from(before) + i128::from(after) + input.shape[dim] as i128;
            if extent != out.shape[dim] as i128 {
                let mut wanted = out.shape.clone();
                wanted[dim] = usize::try_from(extent).unwrap_or(0);
                return Err(misfit(out, &wanted));
            }
            // The kept indices of the operand, and where the first of them is in the result.
            let first = before.saturating_neg().max(0);
            let last = (input.shape[dim] as i64).saturating_sub(after.saturating_neg().max(0)).max(first);
            from = from.narrow(dim, (first as usize).min(input.shape[dim]), (last - first) as usize);
            let kept = (last - first) as usize;
            let start = (before.max(0) as usize).min(out.shape[dim] - kept);
            for (start, count) in [(0, start), (start + kept, out.shape[dim] - start - kept)] {
                if count > 0 {
                    code.fill(&to.narrow(dim, start, count), Number::Int(0));
                }
            }
            to = to.narrow(dim, start, kept);
        }
        code.copy(&from, &to);
        Ok(())
    }

    /// The operand, repeated along the dimensions in which the result is longer.
    pub(super) fn repeat(&self, code: &mut InstBuilder) -> Result<()> {
        let (input, out) = (self.operand(0)?, self.result(0)?);
        if input.shape.len() != out.shape.len() {
            return Err(misfit(input, &out.shape));
        }
        let (mut from, mut to) = (input.clone(), out.clone());
        for dim in (0..input.shape.len()).rev() {
            let (have, want) = (input.shape[dim], out.shape[dim]);
            if have == want {
                continue;
            }
            if have == 0 || want % have != 0 {
                return Err(misfit(input, &out.shape));
            }
            to = repetitions(&to, dim, want / have, have * out.strides[dim]);
            from = repetitions(&from, dim, want / have, 0);
        }
        code.copy(&from, &to);
        Ok(())
    }
}

/// Splits a dimension into `count` parts at a distance of `stride`.
fn repetitions(view: &View, dim: usize, count: usize, stride: usize) -> View {
    let mut view = view.clone();
    if stride > 0 {
        view.shape[dim] /= count;
    }
    view.shape.insert(dim, count);
    view.strides.insert(dim, stride);
    view
}
