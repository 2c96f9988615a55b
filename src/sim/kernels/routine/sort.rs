//! Sorts lines of a tensor.

use std::cmp::Ordering;

use grammar::DType;

use super::lines;
use crate::kernels::{Result, shadow_lanes::undetermined};
use hir_tensor::{
    data::{
        Data, Shadow, WrittenMask,
        shadow::{EXACT, ORDERED, ROUNDED},
    },
    dense::DenseTensor,
};

/// Returns the first `shape[dim]` elements of each line in the order, and their indices. If rounding may change the order of
/// two neighbours, their indices are undetermined. A line with an unwritten element has unwritten results.
pub(super) fn sort(
    (dim, is_descending): (usize, bool),
    input: &DenseTensor,
    shape: &[usize],
    indices: DType,
) -> Result<Vec<DenseTensor>> {
    let (values, count) = (input.data.to_f64(), shape[dim]);
    // Integers beyond 2^53 are not compared as floats.
    let integers = input.data.dtype().is_integral().then(|| input.data.to_i128());
    let compare = |a: usize, b: usize| {
        let ascending = match &integers {
            Some(it) => it[a].cmp(&it[b]),
            None => match (values[a].is_nan(), values[b].is_nan()) {
                (false, false) => values[a].partial_cmp(&values[b]).unwrap_or(Ordering::Equal),
                (a, b) => a.cmp(&b),
            },
        };
        if is_descending { ascending.reverse() } else { ascending }
    };
    let len: usize = shape.iter().product();
    let (mut picked, mut numbers) = (vec![0; len], vec![0; len]);
    let (mut written, mut is_unsure) = (vec![true; len], vec![false; len]);
    let (starts, step) = lines(&input.shape, dim);
    let (targets, _) = lines(shape, dim);
    for (start, target) in starts.zip(targets) {
        let mut order: Vec<usize> = (0..input.shape[dim]).map(|it| start + it * step).collect();
        let is_written = order.iter().all(|it| input.written.get(*it));
        order.sort_by(|a, b| compare(*a, *b));
        let near = |a: usize, b: usize| {
            let error = |at| {
                let it = input.shadow.as_ref()?;
                Some(it.rounding_error(at, values[at], input.data.dtype()))
            };
            let errors = error(a).unwrap_or(0.0) + error(b).unwrap_or(0.0);
            errors > 0.0 && (values[a] - values[b]).abs() <= 4.0 * errors
        };
        for rank in 0..count {
            let at = target + rank * step;
            let place = order[rank];
            (picked[at], numbers[at], written[at]) = (place, (place - start) / step.max(1), is_written);
            is_unsure[at] = rank > 0 && near(order[rank - 1], place)
                || order.get(rank + 1).is_some_and(|next| near(place, *next));
        }
    }
    let written = WrittenMask::from_flags(written);
    let values = DenseTensor {
        shape: shape.to_vec(),
        data: input.data.pick(&picked),
        written: written.clone(),
        shadow: input.shadow.as_ref().map(|it| it.pick(&picked)),
    };
    let mut data = Data::zeros(indices, len)?;
    for (at, number) in numbers.iter().enumerate() {
        data.set(at, hir_plan::Number::Int(*number as i64));
    }
    let shadow = is_unsure.contains(&true).then(|| {
        let exact = data.to_f64();
        let other = |at: usize| if is_unsure[at] { undetermined(exact[at], exact[at]) } else { exact[at] };
        let lane: Vec<f64> = (0..len).map(other).collect();
        Shadow::from_lanes(
            [EXACT, ORDERED, ROUNDED].map(|it| if it == EXACT { exact.clone() } else { lane.clone() }),
        )
    });
    Ok(vec![values, DenseTensor { shape: shape.to_vec(), data, written, shadow }])
}
