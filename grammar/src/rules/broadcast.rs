//! `broadcast`.

use super::{Rule, check::Check, infer::Operands};
use crate::{
    attr,
    ir::{Axis, AxisKind, ParallelType, TensorId},
};

/// The result has one axis for each flag; flagged axes are new.
pub(super) struct Broadcast;

impl Rule for Broadcast {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(arg), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let swap = |(mine, theirs)| (theirs, mine);
        let pairs = check.mapped(0).into_iter().map(swap).collect();
        check.flags(args, out, arg, pairs);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let flags = operands.stmt.get(attr::FLAGS)?;
        let one = operands.program.intern_int(1);
        let mut rest = operands.dims(0)?.into_iter();
        let found = flags.iter().map(|is_new| match is_new {
            true => Some(Axis::new(AxisKind::Broadcast, ParallelType::Serial, 0, one)),
            false => rest.next(),
        });
        found.collect()
    }
}
