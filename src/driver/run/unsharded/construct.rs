//! Plans tensors of host scalars: one `Fill` for each element.

use grammar::{Expr, ExprId, Function, Program};

use super::{Result, UnshardedPlanner, operators::OperatorLowering};
use hir_plan::{InstKind, View};

/// Returns the items of the array `{a, b}`, or of the array that a symbol names.
pub(super) fn array_items<'p>(
    program: &'p Program,
    planner: &UnshardedPlanner<'_>,
    expr: ExprId,
) -> Option<&'p [ExprId]> {
    let value = match &program.exprs[expr] {
        Expr::Symbol(symbol) => {
            planner.arrays.get(symbol).or_else(|| program.definitions.get(symbol)).copied()?
        }
        _ => expr,
    };
    match &program.exprs[value] {
        Expr::Call(Function::Array, items) => Some(items),
        _ => None,
    }
}

impl OperatorLowering<'_, '_> {
    /// Fills `to` from an array, an array of arrays, or one scalar.
    pub(super) fn construct(&self, value: ExprId, to: &View) -> Result<Vec<InstKind>> {
        let Some(items) = array_items(self.planner.program, self.planner, value) else {
            if !to.shape.is_empty() {
                return Err(self.planner.shape_mismatch(self.stmt.op, &to.shape, &[]));
            }
            return Ok(vec![InstKind::Fill { to: Box::new(to.clone()), value: self.number(value)? }]);
        };
        if to.shape.first() != Some(&items.len()) {
            return Err(self.planner.shape_mismatch(self.stmt.op, &to.shape, &[items.len()]));
        }
        let mut fills = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let part = View {
                buffer: to.buffer,
                offset: to.offset + at * to.strides[0],
                shape: to.shape[1..].to_vec(),
                strides: to.strides[1..].to_vec(),
            };
            fills.extend(self.construct(*item, &part)?);
        }
        Ok(fills)
    }
}
