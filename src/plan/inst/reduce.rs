//! Reductions along axes.

use super::{Computation, Number, ReduceOp};
use crate::View;

/// A reduction of `input` along `axes`, starting from `init`. `out` has the remaining axes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// The reduction operation.
    pub op: ReduceOp,
    /// The initial value.
    pub init: Number,
    /// The operand.
    pub input: View,
    /// The axes of the operand that are reduced, ascending.
    pub axes: Vec<usize>,
    /// The result.
    pub out: View,
}

impl Computation for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn text(&self, view: &dyn Fn(&View) -> String) -> String {
        let (out, op, input, init) =
            (view(&self.out), self.op.name(), view(&self.input), self.init.plan_text());
        format!("reduce {out} <- {op} {input} over {:?} from {init}", self.axes)
    }

    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool)) {
        visit(&self.input, false);
        visit(&self.out, true);
    }

    fn change_views(&mut self, change: &mut dyn FnMut(&mut View)) {
        [&mut self.input, &mut self.out].into_iter().for_each(change);
    }

    fn longest_sum(&self) -> usize {
        self.axes.iter().map(|axis| self.input.shape[*axis]).product()
    }
}
