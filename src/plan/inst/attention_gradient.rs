//! The operands and results of the gradients of an attention.

use super::{Attention, Computation, Number, computation::list};
use crate::View;

/// Gradients of an attention on views of one rank, or of a part of its batch and rows.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionGradient {
    /// The attention. Its result and `logsumexp` are operands.
    pub attention: Attention,
    /// The gradient of the result: `[b…, l, e]`.
    pub result: View,
    /// The gradient of the query: `[b…, l, k]`.
    pub query: View,
    /// The gradient of the keys: `[b…, s, k]`, without the last dimension of the batch if its heads share keys.
    pub key: View,
    /// The gradient of the values: `[b…, s, e]`, likewise.
    pub value: View,
    /// Whether the heads of the last dimension of the batch share keys and values.
    pub shares_keys: bool,
}

impl AttentionGradient {
    /// The largest number of scores that GPUs have in memory for the instructions that define the gradients: 1 GB with the four arrays of
    /// scores that their kernels have.
    pub const MAX_SCORES: usize = 1 << 26;

    /// Returns the results: the gradients of the query, the keys and the values.
    pub fn gradients(&self) -> [&View; 3] {
        [&self.query, &self.key, &self.value]
    }
}

impl Computation for AttentionGradient {
    fn name(&self) -> &'static str {
        "sdpa_bwd"
    }

    fn text(&self, view: &dyn Fn(&View) -> String) -> String {
        let Attention { query, key, value, bias, mask, keep, is_causal, scale, out, logsumexp, .. } =
            &self.attention;
        let part = |word: &str, it: &Option<View>| {
            it.as_ref().map_or(String::new(), |it| format!(", {word} {}", view(it)))
        };
        format!(
            "sdpa_bwd {} <- {}{}{}{}{}{}, scale {}",
            list(self.gradients(), view),
            list([&self.result, query, key, value, out], view),
            part("logsumexp", logsumexp),
            part("bias", bias),
            part("mask", mask),
            part("dropout", keep),
            if *is_causal { ", causal" } else { "" },
            Number::Float(*scale).plan_text()
        )
    }

    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool)) {
        visit(&self.result, false);
        self.attention.visit_views(&mut |it, _| visit(it, false));
        self.gradients().into_iter().for_each(|it| visit(it, true));
    }

    fn change_views(&mut self, change: &mut dyn FnMut(&mut View)) {
        self.attention.change_views(change);
        [&mut self.result, &mut self.query, &mut self.key, &mut self.value].into_iter().for_each(change);
    }

    /// The number of scores of a row, or of rows that share keys, or of columns of the query.
    fn longest_sum(&self) -> usize {
        let rows = self.query.shape.iter().rev().skip(1).take(1 + usize::from(self.shares_keys)).product();
        self.attention.longest_sum().max(rows)
    }

    /// Without regard to a mask. There are five products: `q · kᵀ`, `ds · k` and `dsᵀ · q` with the columns of the query, and
    /// `do · vᵀ` and `weightsᵀ · do` with those of the result.
    fn multiplications(&self) -> usize {
        let with_columns =
            self.query.len().saturating_mul(3).saturating_add(self.result.len().saturating_mul(2));
        with_columns.saturating_mul(self.attention.keys())
    }

    fn part_of_multiplications(&self) -> f64 {
        self.attention.part_of_multiplications()
    }

    fn tensor_core_operand(&self) -> Option<&View> {
        self.attention.tensor_core_operand()
    }
}
