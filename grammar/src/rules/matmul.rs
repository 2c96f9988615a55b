//! `matmul`.

use super::{Rule, check::Check, infer::Operands};
use crate::ir::{Axis, TensorId};

/// `a[…, m, k] · b[…, k, n]`.
pub(super) struct Matmul;

impl Rule for Matmul {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (&[a, b], Some(out)) = (args, check.stmt.out_tensor()) else { return };
        let (a_dims, b_dims, mut out_dims) = (check.dims(a), check.dims(b), check.dims(out));
        out_dims.retain(|axis| !check.program.is_partial(out, *axis));
        if let (&[.., _, k], &[.., k2, _]) = (&a_dims[..], &b_dims[..]) {
            if let (true, [n, last]) = (check.unequal(k, k2), &b_dims[..])
                && !check.unequal(k, *last)
                && out_dims.last().is_some_and(|it| !check.unequal(*it, *n))
            {
                let rule = "`matmul` takes `[k, n]`; `linear` takes `[n, k]`: did you mean `linear`?";
                return check.transposed_weight(b, &b_dims, rule);
            }
            let wanted = a_dims.len().max(b_dims.len());
            if out_dims.len() != wanted {
                return check.rank_error(out, out_dims.len(), wanted);
            }
            check.equal_axes(a, k, b, k2);
            // Rows and columns only; the planner compares batch dimensions when their extents are known.
            for (position, arg) in [(0, a), (1, b)] {
                let pair = check.mapped(position).pop();
                pair.into_iter().for_each(|(axis, its)| check.equal_axes(arg, axis, out, its));
            }
        }
        check.equal_types(&[a, b, out]);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (a, b) = (operands.dims(0)?, operands.dims(1)?);
        let ([batches @ .., rows, _], [others @ .., _, columns]) = (a.as_slice(), b.as_slice()) else {
            return None;
        };
        let batches = if batches.len() < others.len() { others } else { batches };
        Some(batches.iter().chain([rows, columns]).cloned().collect())
    }
}
