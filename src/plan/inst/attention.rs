//! The operands and results of an attention.

use super::{Computation, Number, computation::list};
use crate::View;

/// An attention on views of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// The query `[b…, l, k]`.
    pub query: View,
    /// The keys `[b…, s, k]`.
    pub key: View,
    /// The values `[b…, s, e]`.
    pub value: View,
    /// Added to the scaled scores: `[b…, l, s]`.
    pub bias: Option<View>,
    /// Booleans `[b…, l, s]`; a score whose mask is false is -∞.
    pub mask: Option<View>,
    /// Numbers `[b…, l, s]` that the weights are multiplied with: a dropout.
    pub keep: Option<View>,
    /// Whether row `i` attends to the keys 0 to `i` only.
    pub is_causal: bool,
    /// The index of the first row of `query`, if it is a part of the rows.
    pub first_row: usize,
    /// The factor of the scores.
    pub scale: f64,
    /// The result `[b…, l, e]`.
    pub out: View,
    /// The logarithm of each row's sum of exponentials: `[b…, l]`.
    pub logsumexp: Option<View>,
}

impl Attention {
    /// Returns the operands: the query, the keys, the values, then the bias, the mask and the dropout if there are any.
    pub fn operands(&self) -> impl Iterator<Item = &View> {
        [&self.query, &self.key, &self.value]
            .into_iter()
            .chain(&self.bias)
            .chain(&self.mask)
            .chain(&self.keep)
    }

    /// Returns the results.
    pub fn results(&self) -> impl Iterator<Item = &View> {
        [&self.out].into_iter().chain(&self.logsumexp)
    }

    /// Returns the number of keys of a row of the query.
    pub(super) fn keys(&self) -> usize {
        self.value.shape.iter().rev().nth(1).copied().unwrap_or(1)
    }
}

impl Computation for Attention {
    fn name(&self) -> &'static str {
        "sdpa"
    }

    fn text(&self, view: &dyn Fn(&View) -> String) -> String {
        let part = |word: &str, it: &Option<View>| {
            it.as_ref().map_or(String::new(), |it| format!(", {word} {}", view(it)))
        };
        format!(
            "sdpa {} <- {}{}{}{}{}, scale {}",
            list(self.results(), view),
            list([&self.query, &self.key, &self.value], view),
            part("bias", &self.bias),
            part("mask", &self.mask),
            part("dropout", &self.keep),
            if self.is_causal { ", causal" } else { "" },
            Number::Float(self.scale).plan_text()
        )
    }

    fn visit_views<'p>(&'p self, visit: &mut dyn FnMut(&'p View, bool)) {
        self.operands().for_each(|it| visit(it, false));
        self.results().for_each(|it| visit(it, true));
    }

    fn change_views(&mut self, change: &mut dyn FnMut(&mut View)) {
        let views = [&mut self.query, &mut self.key, &mut self.value, &mut self.out].into_iter();
        views
            .chain(&mut self.bias)
            .chain(&mut self.mask)
            .chain(&mut self.keep)
            .chain(&mut self.logsumexp)
            .for_each(change);
    }

    /// The number of scores of a row, or of columns of the query.
    fn longest_sum(&self) -> usize {
        self.keys().max(self.query.shape.last().copied().unwrap_or(1))
    }

    /// Without regard to a mask: each element of the query and of the result takes one for each key.
    fn multiplications(&self) -> usize {
        self.query.len().saturating_add(self.out.len()).saturating_mul(self.keys())
    }

    fn part_of_multiplications(&self) -> f64 {
        if self.is_causal { 0.5 } else { 1.0 }
    }

    fn tensor_core_operand(&self) -> Option<&View> {
        Some(&self.query)
    }
}
