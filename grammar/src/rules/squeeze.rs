//! `squeeze`.

use super::{Rule, check::Check};
use crate::ir::TensorId;

/// The operand has one axis for each flag; flagged axes have extent 1 and are removed.
pub(super) struct Squeeze;

impl Rule for Squeeze {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(arg), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let pairs = check.mapped(0);
        check.flags(args, arg, out, pairs);
    }
}
