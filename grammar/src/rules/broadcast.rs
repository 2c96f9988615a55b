//! `broadcast`.

use super::{Rule, check::Check};
use crate::ir::TensorId;

/// The result has one axis for each flag; flagged axes are new.
pub(super) struct Broadcast;

impl Rule for Broadcast {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(arg), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let swap = |(mine, theirs)| (theirs, mine);
        let pairs = check.mapped(0).into_iter().map(swap).collect();
        check.flags(args, out, arg, pairs);
    }
}
