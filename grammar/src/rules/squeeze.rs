//! `squeeze`.

use super::{Rule, check::Check, infer::Operands};
use crate::{
    attr,
    ir::{Axis, TensorId},
};

/// The operand has one axis for each flag; flagged axes have extent 1 and are removed.
pub(super) struct Squeeze;

impl Rule for Squeeze {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(arg), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let pairs = check.mapped(0);
        check.flags(args, arg, out, pairs);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (flags, dims) = (operands.stmt.get(attr::FLAGS)?, operands.dims(0)?);
        let kept = dims.into_iter().zip(flags).filter(|(_, gone)| !**gone);
        Some(kept.map(|(axis, _)| axis).collect())
    }
}
