//! The f64 shadow of a tensor: its values as they would be without rounding to their type.
//!
//! A shadow stands beside rounded values from the first inexact operation on. It has three lanes, which go through the same
//! operations in binary64:
//!
//! * `EXACT`: no other rounding than that of binary64. Programs are compared with each other by this lane.
//! * `ORDERED`: as `EXACT`, but every operation that binary64 rounds also gets a relative error of 2^-40 of the magnitude
//!   of its terms. Its distance from `EXACT` exceeds what another order of summation changes there, also where terms cancel.
//! * `ROUNDED`: every operation gets a relative error of the precision that an engine computes or stores in, so its distance
//!   from `EXACT`, as that of the rounded value, is a sample of the rounding error of engines. It equals the rounded value
//!   where all engines give the same bits.
//!
//! An operation that is not continuous (a comparison, `floor`, a cast to an integer) takes in the lanes `ORDERED` and
//! `ROUNDED` the result that differs most within four times the distance of its operands' lanes. So an outcome that
//! rounding decides counts as an error of the size of the jump. An integer whose lanes are equal has no shadow.

use super::{
    Data, NdArray,
    strided::{gather, scatter},
};
use crate::plan::{Number, View};

/// Number of lanes.
pub const LANES: usize = 3;
/// No other rounding than that of binary64.
pub const EXACT: usize = 0;
/// With the errors that another order of summation in binary64 may make.
pub const ORDERED: usize = 1;
/// With the errors that an engine may make.
pub const ROUNDED: usize = 2;

/// The relative error of an operation in lane `ORDERED`: 2^13 times that of binary64.
pub const ORDER_ERROR: f64 = 1.0 / (1u64 << 40) as f64;

/// The relative tolerance for two shadows of one value.
pub const SHADOW_RTOL: f64 = 1e-9;

/// The lanes of a tensor's elements, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    lanes: [Vec<f64>; LANES],
}

impl Shadow {
    /// The shadow of values that are exact.
    pub fn of(data: &Data) -> Self {
        let values = data.to_f64();
        Self { lanes: [values.clone(), values.clone(), values] }
    }

    /// A shadow of equally long lanes.
    pub fn from_lanes(lanes: [Vec<f64>; LANES]) -> Self {
        Self { lanes }
    }

    /// The values of one lane.
    pub fn lane(&self, lane: usize) -> &[f64] {
        &self.lanes[lane]
    }

    /// Whether all lanes hold the values of `data`.
    pub fn equals_data(&self, data: &Data) -> bool {
        let values = data.to_f64();
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits();
        self.lanes.iter().all(|lane| lane.len() == values.len() && lane.iter().zip(&values).all(same))
    }

    /// The elements of `view`, dense.
    pub fn gather(&self, view: &View) -> Self {
        Self { lanes: self.each(|lane| gather(lane, view)) }
    }

    /// The elements at `indices`, in that order.
    pub fn pick(&self, indices: &[usize]) -> Self {
        Self { lanes: self.each(|lane| indices.iter().map(|&at| lane[at]).collect()) }
    }

    /// Writes dense elements to `view`.
    pub fn scatter(&mut self, view: &View, from: &Self) {
        for (to, from) in self.lanes.iter_mut().zip(&from.lanes) {
            scatter(to, view, from);
        }
    }

    /// Writes element `i` to `indices[i]` where `chosen[i]`.
    pub fn put(&mut self, indices: &[usize], chosen: &[bool], from: &Self) {
        for (to, from) in self.lanes.iter_mut().zip(&from.lanes) {
            for ((&at, _), &it) in indices.iter().zip(chosen).zip(from).filter(|((_, chosen), _)| **chosen) {
                to[at] = it;
            }
        }
    }

    /// Element `i` as binary64 has it, and how far another order of summation may move it; infinity where it is not
    /// determined.
    pub fn estimate(&self, i: usize) -> Estimate {
        let exact = self.lanes[EXACT][i];
        Estimate { value: exact, error: distance(exact, self.lanes[ORDERED][i]) }
    }

    /// How far element `i` is from the value without rounding: of `rounded`, and of the lane that samples other engines,
    /// the larger. 0 where all engines give the same bits; infinity where rounding decides whether there is a value.
    pub fn rounding_error(&self, i: usize, rounded: f64) -> f64 {
        let (exact, sample) = (self.lanes[EXACT][i], self.lanes[ROUNDED][i]);
        if sample == rounded || sample.is_nan() && rounded.is_nan() {
            return 0.0;
        }
        distance(exact, sample).max(distance(exact, rounded))
    }

    fn each(&self, part: impl Fn(&Vec<f64>) -> Vec<f64>) -> [Vec<f64>; LANES] {
        [part(&self.lanes[EXACT]), part(&self.lanes[ORDERED]), part(&self.lanes[ROUNDED])]
    }
}

/// A value and the error that the order of summation may make in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value.
    pub value: f64,
    /// A bound of the error; infinity where nothing is known.
    pub error: f64,
}

impl Estimate {
    /// Element `i` of a tensor with or without a shadow.
    pub fn of(data: &Data, shadow: Option<&Shadow>, i: usize) -> Self {
        match shadow {
            Some(it) => it.estimate(i),
            None => Self { value: number_to_f64(data.get(i)), error: 0.0 },
        }
    }

    /// How far the two may be apart: relative `SHADOW_RTOL` and the errors of both. Infinity where one is not determined;
    /// what is not finite has no neighbours.
    pub fn tolerance(self, other: Self) -> f64 {
        let largest = self.value.abs().max(other.value.abs());
        let relative = if largest.is_finite() { SHADOW_RTOL * largest } else { 0.0 };
        relative + self.error + other.error
    }

    /// Whether the two are one value, as far as binary64 tells.
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
    /// The values without rounding; `None` where the rounded values are exact.
    pub shadow: Option<&'a Shadow>,
}

impl<'a> From<&'a NdArray> for ShadowedTensor<'a> {
    fn from(tensor: &'a NdArray) -> Self {
        Self { tensor, shadow: None }
    }
}

/// A number as binary64.
pub fn number_to_f64(number: Number) -> f64 {
    match number {
        Number::Int(it) => it as f64,
        Number::Float(it) => it,
        Number::Bool(it) => f64::from(u8::from(it)),
    }
}

/// 0 between two NaNs and equal infinities; infinity where one of the two is not finite.
fn distance(a: f64, b: f64) -> f64 {
    match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false => Some((a - b).abs()).filter(|it| it.is_finite()).unwrap_or(f64::INFINITY),
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
        assert_eq!(shadow(1.0, 1.0, 1.25).rounding_error(0, 1.125), 0.25);
        assert_eq!(shadow(1.0, 1.0, 1.125).rounding_error(0, 1.25), 0.25);
        // All engines give 1.125.
        assert_eq!(shadow(1.0, 1.0, 1.125).rounding_error(0, 1.125), 0.0);
        assert_eq!(shadow(1.0, 1.0, 1.1).rounding_error(0, f64::INFINITY), f64::INFINITY);
    }
}
