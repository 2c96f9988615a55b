//! Statements that compute no tensor: streams, storage, groups, and work that is described elsewhere.

use super::*;

/// No results that follow from operands.
pub(super) struct Statement;

impl Rule for Statement {
    fn check(&self, _: &mut Check<'_, '_>, _: &[TensorId]) {}
}
