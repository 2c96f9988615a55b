//! The dropout of an attention.

use grammar::{DType, Op};

use super::random::{random_bits, uniform};
use crate::{
    Arg, AxisPiece, ShardLayout, View,
    inst_builder::{InstBuilder, float, view},
};

/// Appends the instructions that draw the dropout of an attention with this seed and offset, and returns the numbers that its
/// weights are multiplied with: 0 or 1 / (1 - probability).
pub(crate) fn kept_weights(
    code: &mut InstBuilder,
    probability: f64,
    (keys, layout): (usize, &ShardLayout),
    out: &View,
    (seed, offset): (Arg, Arg),
) -> Option<View> {
    let last = out.shape.len() - 1;
    let mut scores = layout.clone();
    scores.shape[last] = keys;
    scores.pieces[last] = vec![AxisPiece { extent: keys, coordinate: None }];
    let shape = scores.local_shape();
    let part = View::contiguous(0, shape.clone());
    let bits = random_bits(code, &scores, &part, seed, offset).ok()?;
    let keep = code.temporary("dropout", DType::Float, shape.clone());
    uniform(code, &bits, DType::Float, &keep);
    let is_kept = code.temporary("kept weights", DType::Bool, shape);
    code.map(Op::Ge, [view(&keep), float(probability)], &is_kept);
    code.map(Op::Where, [view(&is_kept), float(1.0 / (1.0 - probability)), float(0.0)], &keep);
    Some(keep)
}
