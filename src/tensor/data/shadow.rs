//! The f64 shadow of a tensor: its values without rounding to the element type, but with its range.
//!
//! Rounded values have a shadow from the first inexact operation on. A shadow has three lanes, which undergo
//! the same operations in binary64:
//!
//! * `EXACT`: no rounding other than that of binary64. Programs are compared with each other by this lane.
//! * `ORDERED`: as `EXACT`, but each operation that binary64 rounds also gets a relative error of 2^-40 of
//!   the magnitude of its terms. The distance between `ORDERED` and `EXACT` exceeds the effect of another
//!   order of summation, also if terms cancel.
//! * `ROUNDED`: each operation gets a relative error of the precision in which an engine computes or stores.
//!   The distances of this lane and of the rounded value from `EXACT` are samples of the rounding error of
//!   engines. The lane equals the rounded value if all engines compute the same bits.
//!
//! For an operation that is not continuous (a comparison, `floor`, a cast to an integer), the lanes `ORDERED`
//! and `ROUNDED` take the result that differs most within four times the distance of the operands' lanes. An
//! outcome that depends on rounding therefore counts as an error of the size of the jump. An integer whose
//! lanes are equal has no shadow.

use grammar::DType;

use super::{
    Data, NdArray,
    strided::{gather, scatter},
};
use hir_plan::{Number, View};

/// Number of lanes.
pub const LANES: usize = 3;
/// The lane without rounding other than that of binary64.
pub const EXACT: usize = 0;
/// The lane with the errors that another order of summation in binary64 may cause.
pub const ORDERED: usize = 1;
/// The lane with the errors that an engine may cause.
pub const ROUNDED: usize = 2;

/// The relative error of an operation in lane `ORDERED`: 2^13 times that of binary64.
pub const ORDER_ERROR: f64 = 1.0 / (1u64 << 40) as f64;

/// The relative tolerance between two shadows of the same value.
pub const SHADOW_RTOL: f64 = 1e-9;

/// The shadow of a tensor: its lanes, with elements in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    lanes: [Vec<f64>; LANES],
}

impl Shadow {
    /// Creates the shadow of exact values.
    pub fn of(data: &Data) -> Self {
        let values = data.to_f64();
        Self { lanes: [values.clone(), values.clone(), values] }
    }

    /// Creates a shadow from lanes of equal length.
    pub fn from_lanes(lanes: [Vec<f64>; LANES]) -> Self {
        Self { lanes }
    }

    /// Returns the values of one lane.
    pub fn lane(&self, lane: usize) -> &[f64] {
        &self.lanes[lane]
    }

    /// Returns whether all lanes equal the values of `data`.
    pub fn equals_data(&self, data: &Data) -> bool {
        let values = data.to_f64();
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits();
        self.lanes.iter().all(|lane| lane.len() == values.len() && lane.iter().zip(&values).all(same))
    }

    /// Returns the elements of `view` as a dense shadow.
    pub fn gather(&self, view: &View) -> Self {
        Self { lanes: self.each(|lane| gather(lane, view)) }
    }

    /// Returns the elements at `indices`, in that order.
    pub fn pick(&self, indices: &[usize]) -> Self {
        Self { lanes: self.each(|lane| indices.iter().map(|&at| lane[at]).collect()) }
    }

    /// Writes dense elements to `view`.
    pub fn scatter(&mut self, view: &View, from: &Self) {
        for (to, from) in self.lanes.iter_mut().zip(&from.lanes) {
            scatter(to, view, from);
        }
    }

    /// Writes element `i` to `indices[i]` if `chosen[i]`.
    pub fn put(&mut self, indices: &[usize], chosen: &[bool], from: &Self) {
        for (to, from) in self.lanes.iter_mut().zip(&from.lanes) {
            for ((&at, _), &it) in indices.iter().zip(chosen).zip(from).filter(|((_, chosen), _)| **chosen) {
                to[at] = it;
            }
        }
    }

    /// Returns element `i` in binary64 and a bound of the error that another order of summation may cause;
    /// the error is infinite if the value is not determined.
    pub fn estimate(&self, i: usize) -> Estimate {
        let exact = self.lanes[EXACT][i];
        Estimate { value: exact, error: distance(exact, self.lanes[ORDERED][i]) }
    }

    /// Returns the rounding error of element `i` of type `dtype`: the larger of the distances of `rounded` and of the lane
    /// `ROUNDED` from the exact value. It is 0 if all engines compute the same bits, and infinite if rounding
    /// decides whether there is a value.
    pub fn rounding_error(&self, i: usize, rounded: f64, dtype: DType) -> f64 {
        let (exact, sample) = (self.lanes[EXACT][i], self.lanes[ROUNDED][i]);
        // The lane `ROUNDED` is rounded to binary64, as a result of this type is, so both may be equal by chance. The
        // errors of the lane `ORDERED` are larger.
        let least = match dtype {
            DType::Double => distance(exact, self.lanes[ORDERED][i]) * (f64::EPSILON / 2.0 / ORDER_ERROR),
            _ => 0.0,
        };
        if least == 0.0 && (sample == rounded || sample.is_nan() && rounded.is_nan()) {
            return 0.0;
        }
        distance(exact, sample).max(distance(exact, rounded)).max(least)
    }

    fn each(&self, part: impl Fn(&Vec<f64>) -> Vec<f64>) -> [Vec<f64>; LANES] {
        [part(&self.lanes[EXACT]), part(&self.lanes[ORDERED]), part(&self.lanes[ROUNDED])]
    }
}

/// A value with a bound of the error that the order of summation may cause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// A bound of the error; infinite if nothing is known.
    pub error: f64,
}

impl Estimate {
    /// Returns the estimate of element `i` of a tensor with or without a shadow.
    pub fn of(data: &Data, shadow: Option<&Shadow>, i: usize) -> Self {
        match shadow {
            Some(it) => it.estimate(i),
            None => Self { value: number_to_f64(data.get(i)), error: 0.0 },
        }
    }

    /// Returns the tolerance between the two values: relative `SHADOW_RTOL` plus the errors of both. It is
    /// infinite if one of the values is not determined; the relative part is 0 if one of the values is not
    /// finite.
    pub fn tolerance(self, other: Self) -> f64 {
        let largest = self.value.abs().max(other.value.abs());
        let relative = if largest.is_finite() { SHADOW_RTOL * largest } else { 0.0 };
        relative + self.error + other.error
    }

    /// Returns whether the two values are equal within the tolerance.
    pub fn agrees(self, other: Self) -> bool {
        let (a, b) = (self.value, other.value);
        let tolerance = self.tolerance(other);
        a == b || a.is_nan() && b.is_nan() || tolerance == f64::INFINITY || (a - b).abs() <= tolerance
    }
}

/// A tensor and its shadow.
#[derive(Clone, Copy, Debug)]
pub struct ShadowedTensor<'a> {
    /// The rounded values.
    pub tensor: &'a NdArray,
    /// The values without rounding; `None` if the rounded values are exact.
    pub shadow: Option<&'a Shadow>,
}

impl<'a> From<&'a NdArray> for ShadowedTensor<'a> {
    fn from(tensor: &'a NdArray) -> Self {
        Self { tensor, shadow: None }
    }
}

/// Converts a number to binary64.
pub fn number_to_f64(number: Number) -> f64 {
    match number {
        Number::Int(it) => it as f64,
        Number::Float(it) => it,
        Number::Bool(it) => f64::from(u8::from(it)),
    }
}

/// Returns the absolute difference: 0 between two NaNs and between equal infinities, otherwise infinity if
/// one value is not finite.
fn distance(a: f64, b: f64) -> f64 {
    if a == b || a.is_nan() && b.is_nan() {
        0.0
    } else {
        Some((a - b).abs()).filter(|it| it.is_finite()).unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shadow(exact: f64, ordered: f64, rounded: f64) -> Shadow {
        Shadow::from_lanes([vec![exact], vec![ordered], vec![rounded]])
    }

    #[test]
    fn shadows_agree_within_a_relative_tolerance() {
        let is_near = |a: f64, b: f64| shadow(a, a, a).estimate(0).agrees(shadow(b, b, b).estimate(0));
        assert!(is_near(1.0, 1.0 + 0.9e-9) && is_near(-1e20, -1e20 * (1.0 - 0.9e-9)));
        assert!(!is_near(1.0, 1.0 + 1.1e-9) && !is_near(1e-30, 2e-30) && !is_near(0.0, 1e-300));
        assert!(is_near(f64::NAN, f64::NAN) && is_near(f64::INFINITY, f64::INFINITY));
        assert!(!is_near(f64::NAN, 1.0) && !is_near(1.0, f64::INFINITY));
        assert!(!is_near(f64::NEG_INFINITY, f64::INFINITY));
    }

    #[test]
    fn what_cancels_agrees_within_the_error_of_its_terms() {
        // Terms of about 1 that cancel: the lanes differ by 2^-40.
        let one = shadow(1e-17, 1e-12, 0.0).estimate(0);
        assert!(one.agrees(shadow(-3e-17, -3e-17, 0.0).estimate(0)));
        assert!(!one.agrees(shadow(1e-11, 1e-11, 0.0).estimate(0)));
        // Rounding decides whether there is a value.
        assert!(shadow(0.0, f64::NAN, 0.0).estimate(0).agrees(shadow(3.0, 3.0, 3.0).estimate(0)));
    }

    #[test]
    fn rounding_is_the_larger_of_both_samples() {
        let error = |it: Shadow, rounded| it.rounding_error(0, rounded, DType::Float);
        assert_eq!(error(shadow(1.0, 1.0, 1.25), 1.125), 0.25);
        assert_eq!(error(shadow(1.0, 1.0, 1.125), 1.25), 0.25);
        // All engines give 1.125.
        assert_eq!(error(shadow(1.0, 1.0, 1.125), 1.125), 0.0);
        assert_eq!(error(shadow(1.0, 1.0, 1.1), f64::INFINITY), f64::INFINITY);
        // In binary64, two errors may cancel. In other types, this is one operation whose result is rounded correctly.
        let cancelled = shadow(1.0, 1.0 + ORDER_ERROR, 1.0);
        assert_eq!(cancelled.rounding_error(0, 1.0, DType::Double), f64::EPSILON / 2.0);
        assert_eq!(error(cancelled, 1.0), 0.0);
    }
}
