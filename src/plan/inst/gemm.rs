//! Matrix products.

use super::Computation;
use crate::View;

/// A matrix product: `out[b…, m, n] = Σₖ a[b…, m, k] · b[b…, k, n] + bias[b…, m, n]`. All views have the same
/// batch dimensions.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// The left operand `[b…, m, k]`.
    pub a: View,
    /// The right operand `[b…, k, n]`.
    pub b: View,
    /// Added before the result is rounded. It has the shape of the result.
    pub bias: Option<View>,
    /// The result `[b…, m, n]`.
    pub out: View,
}

impl Gemm {
    /// Returns the number of products that are summed into one element.
    pub fn depth(&self) -> usize {
        self.a.shape.last().copied().unwrap_or(1)
    }
}

impl Computation for Gemm {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn text(&self, view: &dyn Fn(&View) -> String) -> String {
        let bias = self.bias.as_ref().map_or(String::new(), |bias| format!(" + {}", view(bias)));
        format!("gemm {} <- {} x {}{bias}", view(&self.out), view(&self.a), view(&self.b))
    }

    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool)) {
        [&self.a, &self.b].into_iter().chain(&self.bias).for_each(|it| visit(it, false));
        visit(&self.out, true);
    }

    fn change_views(&mut self, change: &mut dyn FnMut(&mut View)) {
        [&mut self.a, &mut self.b, &mut self.out].into_iter().chain(&mut self.bias).for_each(change);
    }

    fn longest_sum(&self) -> usize {
        self.depth()
    }

    fn multiplications(&self) -> usize {
        self.out.len().saturating_mul(self.depth())
    }

    fn tensor_core_operand(&self) -> Option<&View> {
        Some(&self.a)
    }

    fn moved_bytes(&self, bytes: &dyn Fn(&View) -> f64) -> f64 {
        [&self.a, &self.b, &self.out].into_iter().map(bytes).sum()
    }
}
