//! Finds the results of an attention for which engines differ because a weight hides an infinite or NaN value.
//!
//! The product 0 · ∞ is NaN. An engine that leaves out the scores that a mask hides, or that divides by the sum of the
//! weights after the product, does not compute this product.

use super::{Precision, overflow::FiniteRange, shadow_lanes::undetermined};
use hir_tensor::{
    data::{
        Shadow,
        shadow::{EXACT, ORDERED, ROUNDED},
    },
    dense::DenseTensor,
};

/// Returns true if no element is infinite or NaN.
pub fn is_finite(block: &DenseTensor) -> bool {
    block.data.to_f64().iter().all(|it| it.is_finite())
}

/// Marks the elements of `out` that are products of a weight near 0 and a value that is not finite as undetermined.
/// `weights` is `[b…, l, s]`, `value` is `[b…, s, e]`, and `out` is `[b…, l, e]`.
pub fn mark_hidden_values(weights: &DenseTensor, value: &DenseTensor, out: &mut DenseTensor) {
    let ([.., rows, keys], [.., width]) = (&weights.shape[..], &value.shape[..]) else { return };
    let values = value.data.to_f64();
    let weights_data = weights.data.to_f64();
    let smallest = FiniteRange::of(Precision::of([weights.data.dtype()])).smallest_normal();
    let mut hidden = vec![false; out.data.len()];
    for at in (0..values.len()).filter(|at| !values[*at].is_finite()) {
        let (key, column) = (at / width % keys, at % width);
        let first_row = at / (width * keys) * rows;
        for row in first_row..first_row + rows {
            hidden[row * width + column] |= weights_data[row * keys + key].abs() < smallest;
        }
    }
    let given = out.data.to_f64();
    let shadow = out.shadow.take().unwrap_or_else(|| Shadow::of(&out.data));
    let mut lanes = [EXACT, ORDERED, ROUNDED].map(|lane| shadow.lane(lane).to_vec());
    for at in (0..hidden.len()).filter(|at| hidden[*at]) {
        let other = undetermined(lanes[EXACT][at], given[at]);
        (lanes[ORDERED][at], lanes[ROUNDED][at]) = (other, other);
    }
    out.shadow = Some(Shadow::from_lanes(lanes));
}
