//! `topk` and `argsort`.

use grammar::{Op, attr};

use super::{OperatorCall, Result, misfit};
use crate::{RoutineKind, inst_builder::InstBuilder};

impl OperatorCall<'_> {
    /// `topk` returns the first elements in the order and their indices, `argsort` all indices.
    pub(super) fn sort(&self, code: &mut InstBuilder) -> Result<()> {
        let (input, out) = (self.operand(0)?, self.result(0)?);
        let dim = self.dim(input.shape.len())?;
        let is = |key| self.stmt.get(key) == Some(grammar::words::PyBool::True);
        let mut wanted = input.shape.clone();
        let (outs, is_descending) = if self.stmt.op == Op::TopK {
            let count = self.integer(self.scalar_arg(1)?)?;
            let count = usize::try_from(count).ok().filter(|it| *it <= input.shape[dim]);
            let why = "its `k` is not between 0 and the extent of its dimension";
            wanted[dim] = count.ok_or_else(|| self.unsupported(why))?;
            (vec![out.clone(), self.result(1)?.clone()], is(attr::LARGEST))
        } else {
            let values = code.temporary("sorted", self.operand_dtype(0), out.shape.clone());
            (vec![values, out.clone()], is(attr::DESCENDING))
        };
        if let Some(other) = outs.iter().find(|it| it.shape != wanted) {
            return Err(misfit(other, &wanted));
        }
        let kind = RoutineKind::Sort { dim, is_descending };
        code.routine(kind, vec![input.clone()], outs);
        Ok(())
    }
}
