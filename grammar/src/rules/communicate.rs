//! Collectives.

use super::*;

/// The sizes and element types that the type of communication requires. `verify` checks teams and roots.
pub(super) struct Communicate;

impl Rule for Communicate {
    fn check(&self, check: &mut Check<'_, '_>, _: &[TensorId]) {
        if let (Some(input), Some(output)) = (check.stmt.get(attr::INPUT), check.stmt.get(attr::OUTPUT)) {
            check.equal_types(&[input, output]);
        }
    }
}
