//! Compares tensors element by element: for equality, by f64 shadows, or within tolerances.

use std::fmt;

use grammar::DType;

use hir_tensor::{
    data::{
        Data, ShadowedTensor,
        shadow::{Estimate, SHADOW_RTOL, number_to_f64},
    },
    shape_match::{is_permutation, is_regrouping},
    shard::unravel_index,
};

/// Relative and absolute tolerance: `|got - expected| <= atol + rtol · |expected|`, as in numpy. Zeros
/// require equal values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RtolAtol {
    /// Tolerance relative to the expected value.
    pub rtol: f64,
    /// Absolute tolerance.
    pub atol: f64,
}

impl RtolAtol {
    /// Requires equal values.
    pub const EXACT: Self = Self { rtol: 0.0, atol: 0.0 };

    /// Returns the defaults of `torch.testing.assert_close` for an element type. Integers must be equal.
    pub fn of(dtype: DType) -> Self {
        let (rtol, atol) = match dtype {
            DType::Half => (1e-3, 1e-5),
            DType::BFloat => (1.6e-2, 1e-5),
            DType::Float => (1.3e-6, 1e-5),
            DType::Double => (1e-7, 1e-7),
            // A unit in the last place.
            DType::E4M3 => (0.125, 1e-5),
            DType::E5M2 => (0.25, 1e-5),
            DType::E2M1 => (0.5, 1e-5),
            _ => return Self::EXACT,
        };
        Self { rtol, atol }
    }
}

impl fmt::Display for RtolAtol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rtol {:e}, atol {:e}", self.rtol, self.atol)
    }
}

/// Results of another engine may differ by this factor times the rounding error of the program. The rounding
/// error of an element is its own or the 90th percentile over its tensor, whichever is larger.
pub const ROUNDING_FACTOR: f64 = 8.0;

/// The rule by which results are compared with expected values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Values must be equal.
    Equal,
    /// Values must agree within the user's tolerance.
    Within(RtolAtol),
    /// Two programs on the simulator: equal if both are exact, otherwise compared by their f64 shadows.
    Shadows,
    /// Rounded results of one plan on two engines: within `ROUNDING_FACTOR` times the rounding error, and
    /// equal where all engines compute the same bits.
    Engines,
    /// Rounded results of two programs: within `RtolAtol::of` the element type plus `ROUNDING_FACTOR` times
    /// the rounding error.
    Rounded,
}

/// The result of comparing two tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The mismatch, if the tensors do not agree.
    pub mismatch: Option<Mismatch>,
    /// True if all values are equal.
    pub is_equal: bool,
    /// The largest difference, by rounding alone, of what the tensors hold, if it is beyond `RtolAtol::of` the element type; otherwise 0.
    pub rounded_difference: f64,
    /// Number of elements that are accepted because rounding decides whether their value is finite.
    pub undetermined: usize,
    /// The tolerance, formatted for the verdict.
    pub tolerance_text: ToleranceText,
    /// How much the comparison shows.
    pub evidence: Evidence,
}

/// How much a comparison of two tensors shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Number of elements that show something: finite ones whose tolerance is 0 or below `scale`.
    pub decided: usize,
    /// Number of elements that are not finite.
    pub not_finite: usize,
    /// Number of all elements.
    pub total: usize,
    /// The largest finite expected value.
    pub scale: f64,
    /// The largest tolerance of an element that shows something.
    pub tolerance: f64,
    /// The typical rounding errors of both tensors, if what the first one holds is less precise.
    pub less_precise: Option<[f64; 2]>,
}

impl Evidence {
    /// Returns the number of significant decimal digits that were compared; `None` if values are equal.
    pub fn digits(&self) -> Option<f64> {
        (self.tolerance > 0.0).then(|| (self.scale / self.tolerance).log10().max(0.0))
    }

    /// Returns why the comparison shows too little: no element or less than half of the finite ones show something, or the first tensor is
    /// less precise.
    pub fn doubt(&self) -> Option<String> {
        let Self { decided, not_finite, total, scale, .. } = *self;
        if decided > 0 && 2 * decided >= total - not_finite || total == 0 {
            let [own, other] = self.less_precise?.map(format_3_digits);
            return Some(format!(
                "its rounding errors of {own} exceed those of what it is compared with, {other}"
            ));
        }
        let unknown = total - decided - not_finite;
        Some(match unknown {
            0 => format!("{not_finite} of {total} elements are not finite"),
            _ => format!(
                "the error bounds of {unknown} of {total} elements exceed the largest value, {}",
                format_3_digits(scale)
            ),
        })
    }
}

/// A tensor whose typical rounding error exceeds that of the expected one, and the precision of its type, by this factor has lost precision.
const LOST_PRECISION: f64 = 4.0;

/// The element with the largest error, and error statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Index of the element, slowest dimension first.
    pub index: Vec<usize>,
    /// Index of the element in row-major order.
    pub flat_index: usize,
    /// Expected value.
    pub expected: String,
    /// Actual value.
    pub got: String,
    /// Number of elements outside the tolerance.
    pub count: usize,
    /// Number of all elements.
    pub total: usize,
    /// The largest absolute error of an element.
    pub max_abs: f64,
    /// The largest relative error among the elements outside the tolerance.
    pub max_rel: f64,
    /// The tolerance for this element, as an absolute error.
    pub tolerance: f64,
    /// The tolerance rule, formatted for the verdict.
    pub tolerance_text: ToleranceText,
}

/// Two tensors have different shapes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has shape {got:?}, expected {expected:?}{}", if is_permutation(got, expected) { "; is it transposed?" } else { "" })]
pub struct ShapesDiffer {
    /// The shape of the first one.
    pub got: Vec<usize>,
    /// The shape of the second one.
    pub expected: Vec<usize>,
}

/// Compares two tensors in row-major order. Their shapes must be equal, except that adjacent dimensions may
/// be split or merged.
///
/// # Errors
/// The shapes do not match.
pub fn compare(
    got: ShadowedTensor<'_>,
    expected: ShadowedTensor<'_>,
    agreement: Tolerance,
) -> Result<Comparison, ShapesDiffer> {
    let (mine, theirs) = (&got.tensor.data, &expected.tensor.data);
    let (have, want) = (&got.tensor.shape, &expected.tensor.shape);
    if !is_regrouping(have, want) {
        return Err(ShapesDiffer { got: have.clone(), expected: want.clone() });
    }
    let is_exact = got.shadow.is_none() && expected.shadow.is_none();
    let agreement = match agreement {
        Tolerance::Shadows if is_exact => Tolerance::Equal,
        Tolerance::Engines if expected.shadow.is_none() => Tolerance::Equal,
        other => other,
    };
    let judge = ElementComparer::new(got, expected, agreement);
    let mut found = Comparison {
        mismatch: None,
        is_equal: true,
        rounded_difference: 0.0,
        undetermined: 0,
        tolerance_text: judge.allowed(),
        evidence: Evidence::default(),
    };
    let mut worst: Option<(f64, f64, usize)> = None;
    let (mut count, mut max_rel) = (0, 0f64);
    for at in 0..mine.len() {
        if mine.has_same_value(at, theirs) && agreement != Tolerance::Shadows {
            continue;
        }
        found.is_equal &= mine.has_same_value(at, theirs);
        let is_unexplained = judge.is_beyond_rounding(at);
        let (a, b, tolerance) = if is_unexplained { judge.held(at) } else { judge.element(at) };
        let error = if a == b || a.is_nan() && b.is_nan() { 0.0 } else { abs_or_infinity(a - b) };
        let is_near = match agreement {
            // Values that are equal as binary64 may be different 64-bit integers.
            Tolerance::Equal => false,
            _ if is_unexplained => false,
            _ if tolerance == f64::INFINITY => {
                found.undetermined += 1;
                true
            }
            _ => error <= tolerance,
        };
        if is_near {
            if agreement == Tolerance::Shadows {
                found.rounded_difference = found.rounded_difference.max(judge.rounded_difference(at));
            }
            continue;
        }
        count += 1;
        max_rel = max_rel.max(if error == 0.0 { 0.0 } else { abs_or_infinity(error / b.abs()) });
        if worst.is_none_or(|(most, ..)| error > most) {
            worst = Some((error, tolerance, at));
        }
    }
    found.evidence = judge.evidence(found.rounded_difference > 0.0);
    found.mismatch = worst.map(|(max_abs, tolerance, flat)| Mismatch {
        index: unravel_index(flat, &got.tensor.shape),
        flat_index: flat,
        expected: judge.text(expected, flat),
        got: judge.text(got, flat),
        count,
        total: mine.len(),
        max_abs,
        max_rel,
        tolerance,
        tolerance_text: found.tolerance_text.clone(),
    });
    Ok(found)
}

/// A tolerance for the verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct ToleranceText {
    /// The rule; empty if rounding alone is allowed.
    rule: String,
    /// The rounding error of the program; 0 if none is allowed.
    rounding: f64,
    /// Whether `rounding` is that of one of several tensors.
    is_largest: bool,
}

impl ToleranceText {
    /// Returns the tolerances with different rules, each with the largest rounding error, in the order of their first occurrence.
    pub fn merged<'t>(all: impl Iterator<Item = &'t Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for it in all {
            match merged.iter_mut().find(|known| known.rule == it.rule) {
                None => merged.push(it.clone()),
                Some(known) => {
                    known.is_largest |= known.rounding != it.rounding;
                    known.rounding = known.rounding.max(it.rounding);
                }
            }
        }
        merged
    }
}

impl fmt::Display for ToleranceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.rule.is_empty() { "" } else { ", " };
        let up_to = if self.is_largest { "up to " } else { "" };
        match self.rounding {
            0.0 if self.rule.is_empty() => write!(f, "exact"),
            0.0 => write!(f, "{}", self.rule),
            it => write!(
                f,
                "{}{separator}{ROUNDING_FACTOR} times the rounding error of {up_to}{it:.1e}",
                self.rule
            ),
        }
    }
}

/// Two tensors and the data that their comparison computes once.
struct ElementComparer<'a> {
    got: ShadowedTensor<'a>,
    expected: ShadowedTensor<'a>,
    agreement: Tolerance,
    /// The 90th percentile of the finite rounding errors above 0.
    typical_rounding: f64,
}

impl<'a> ElementComparer<'a> {
    fn new(got: ShadowedTensor<'a>, expected: ShadowedTensor<'a>, agreement: Tolerance) -> Self {
        let mut judge = Self { got, expected, agreement, typical_rounding: 0.0 };
        if matches!(agreement, Tolerance::Engines | Tolerance::Rounded) {
            judge.typical_rounding = judge.typical(|at| judge.rounding(at));
        }
        judge
    }

    /// Returns the 90th percentile of the finite errors above 0; 0 if there are none.
    fn typical(&self, error: impl Fn(usize) -> f64) -> f64 {
        let mut errors: Vec<f64> = (0..self.got.tensor.data.len()).map(error).collect();
        errors.retain(|it| *it > 0.0 && it.is_finite());
        let at = errors.len() * 9 / 10;
        if errors.is_empty() { 0.0 } else { *errors.select_nth_unstable_by(at, f64::total_cmp).1 }
    }

    /// Returns how much the comparison shows. `differs` is true if what the tensors hold differs by more than their type explains.
    fn evidence(&self, differs: bool) -> Evidence {
        let theirs = &self.expected.tensor.data;
        let value = |at: usize| number_to_f64(theirs.get(at));
        let values = || (0..theirs.len()).map(value).filter(|it| it.is_finite());
        let scale = values().fold(0.0, |most: f64, it| most.max(it.abs()));
        let mut found = Evidence { total: theirs.len(), scale, ..Evidence::default() };
        found.not_finite = found.total - values().count();
        for at in (0..found.total).filter(|at| value(*at).is_finite()) {
            let tolerance = if self.agreement == Tolerance::Equal { 0.0 } else { self.element(at).2 };
            // Equal values show something; those of shadows may be equal by rounding.
            let is_equal =
                self.agreement != Tolerance::Shadows && self.got.tensor.data.has_same_value(at, theirs);
            if is_equal || tolerance == 0.0 || tolerance < scale {
                found.decided += 1;
            }
            if tolerance < scale {
                found.tolerance = found.tolerance.max(tolerance);
            }
        }
        if differs && let Some(bits) = theirs.dtype().significand_bits() {
            let of = |it: ShadowedTensor<'_>| {
                let data = &it.tensor.data;
                self.typical(|at| {
                    (number_to_f64(data.get(at)) - Estimate::of(data, it.shadow, at).value).abs()
                })
            };
            let errors = [of(self.got), of(self.expected)];
            let least = errors[1].max(scale * 0.5f64.powi(bits as i32));
            found.less_precise = (errors[0] > LOST_PRECISION * least).then_some(errors);
        }
        found
    }

    /// Returns whether shadows are compared, and what the tensors hold differs by more than rounding.
    fn is_beyond_rounding(&self, at: usize) -> bool {
        self.agreement == Tolerance::Shadows
            && self.got.tensor.data.differs_beyond_rounding(at, &self.expected.tensor.data)
            && self.element(at).2 != f64::INFINITY
    }

    /// Returns the difference of what the tensors hold, or 0 if the defaults of the element type allow it.
    fn rounded_difference(&self, at: usize) -> f64 {
        let (a, b, _) = self.held(at);
        let RtolAtol { rtol, atol } = RtolAtol::of(self.got.tensor.data.dtype());
        let difference = (a - b).abs();
        if difference.is_finite() && difference > atol + rtol * b.abs() { difference } else { 0.0 }
    }

    /// Returns both values of an element as the tensors hold them; none may differ.
    fn held(&self, at: usize) -> (f64, f64, f64) {
        let value = |it: &Data| number_to_f64(it.get(at));
        (value(&self.got.tensor.data), value(&self.expected.tensor.data), 0.0)
    }

    /// Returns both values of an element and the allowed difference. The allowed difference is infinite if
    /// rounding decides whether the value is finite.
    fn element(&self, at: usize) -> (f64, f64, f64) {
        let (mine, theirs) = (&self.got.tensor.data, &self.expected.tensor.data);
        let (a, b, _) = self.held(at);
        let rounding = || match self.rounding(at) {
            0.0 => 0.0,
            it => ROUNDING_FACTOR * it.max(self.typical_rounding),
        };
        // No other value is close to an infinite or NaN expected value.
        let within = |it: RtolAtol| if b.is_finite() { it.atol + it.rtol * b.abs() } else { 0.0 };
        match self.agreement {
            Tolerance::Equal => (a, b, 0.0),
            Tolerance::Within(it) => (a, b, within(it)),
            Tolerance::Engines => (a, b, rounding()),
            Tolerance::Rounded => (a, b, within(RtolAtol::of(mine.dtype())) + rounding()),
            Tolerance::Shadows => {
                let a = Estimate::of(mine, self.got.shadow, at);
                let b = Estimate::of(theirs, self.expected.shadow, at);
                (a.value, b.value, a.tolerance(b))
            }
        }
    }

    /// Returns the rounding error of an element, from the tensors that have a shadow.
    fn rounding(&self, at: usize) -> f64 {
        let of = |it: ShadowedTensor<'_>| {
            let data = &it.tensor.data;
            let value = number_to_f64(data.get(at));
            it.shadow.map_or(0.0, |shadow| shadow.rounding_error(at, value, data.dtype()))
        };
        of(self.got).max(of(self.expected))
    }

    fn allowed(&self) -> ToleranceText {
        let dtype = self.got.tensor.data.dtype();
        let rule = match self.agreement {
            Tolerance::Equal | Tolerance::Engines => String::new(),
            Tolerance::Within(it) => it.to_string(),
            Tolerance::Shadows => format!("f64 shadow, rtol {SHADOW_RTOL:e}"),
            Tolerance::Rounded => format!("{}: {}", dtype.short_name(), RtolAtol::of(dtype)),
        };
        ToleranceText { rule, rounding: self.typical_rounding, is_largest: false }
    }

    /// Formats an element as it is compared: its value, or its shadow.
    fn text(&self, side: ShadowedTensor<'_>, at: usize) -> String {
        let data = &side.tensor.data;
        let is_shadow = self.agreement == Tolerance::Shadows
            && !data.dtype().is_integral()
            && !self.is_beyond_rounding(at);
        match side.shadow.filter(|_| is_shadow) {
            Some(shadow) => Data::F64(vec![shadow.estimate(at).value]).text(0),
            None => data.text(at),
        }
    }
}

/// Returns the absolute value of an error, or infinity if it is a NaN.
fn abs_or_infinity(error: f64) -> f64 {
    if error.is_nan() { f64::INFINITY } else { error.abs() }
}

/// Formats a number with three significant digits: `8`, `0.889`, `1.3e-6`.
pub fn format_3_digits(number: f64) -> String {
    let rounded = format!("{number:.2e}").parse().unwrap_or(number);
    if rounded == 0.0 || (1e-3..1e6).contains(&rounded.abs()) || !rounded.is_finite() {
        rounded.to_string()
    } else {
        format!("{rounded:e}")
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, expected, got, count, total, tolerance_text: allowed, .. } = self;
        let (abs, rel, tolerance) =
            (format_3_digits(self.max_abs), format_3_digits(self.max_rel), format_3_digits(self.tolerance));
        write!(
            f,
            "element {index:?} expected {expected} got {got}; {count} of {total} elements differ, max abs error {abs}, \
             max rel error {rel}, tolerance {tolerance} ({allowed})"
        )
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use hir_sim::kernels::{Exactness, convert};
    use hir_tensor::{
        data::{NdArray, Shadow},
        dense::DenseTensor,
    };

    fn tensor(data: impl Into<Data>) -> NdArray {
        let data = data.into();
        NdArray { shape: vec![data.len()], data }
    }

    fn is_near(got: impl Into<Data>, expected: impl Into<Data>, agreement: Tolerance) -> bool {
        let (got, expected) = (tensor(got), tensor(expected));
        compare((&got).into(), (&expected).into(), agreement).is_ok_and(|it| it.mismatch.is_none())
    }

    #[test]
    fn nothing_is_near_infinity() {
        let tolerance = Tolerance::Within(RtolAtol { rtol: 0.5, atol: 0.5 });
        let is_close = |got: f64, expected: f64| is_near(vec![got], vec![expected], tolerance);
        assert!(is_close(1.4, 1.0) && !is_close(3.0, 1.0));
        assert!(is_close(f64::INFINITY, f64::INFINITY) && is_close(f64::NAN, f64::NAN));
        assert!(!is_close(f64::NEG_INFINITY, f64::INFINITY) && !is_close(5.0, f64::INFINITY));
        assert!(!is_close(f64::INFINITY, 5.0) && !is_close(f64::NAN, 5.0) && !is_close(5.0, f64::NAN));
    }

    #[test]
    fn defaults_hold_just_inside_and_fail_just_outside() {
        let singles = |it: f32| is_near(vec![it], vec![100f32], Tolerance::Rounded);
        assert!(singles(100.00013) && !singles(100.00015) && singles(99.99987) && !singles(99.99985));
        let small = |it: f32| is_near(vec![it], vec![0f32], Tolerance::Rounded);
        assert!(small(0.99e-5) && !small(1.01e-5));
        let doubles = |it: f64| is_near(vec![it], vec![1f64], Tolerance::Rounded);
        assert!(doubles(1.000_000_19) && !doubles(1.000_000_21));
        let halves = |it: f32| is_near(vec![f16::from_f32(it)], vec![f16::from_f32(8.0)], Tolerance::Rounded);
        assert!(halves(8.007_812_5) && !halves(8.015_625));
        let brains =
            |it: f32| is_near(vec![bf16::from_f32(it)], vec![bf16::from_f32(8.0)], Tolerance::Rounded);
        assert!(brains(8.125) && !brains(8.187_5));
        assert!(!is_near(vec![1i32], vec![2i32], Tolerance::Rounded));
    }

    #[test]
    fn integers_at_their_limits_are_distinct() {
        assert!(!is_near(vec![u64::MAX], vec![u64::MAX - 1], Tolerance::Equal));
        assert!(!is_near(vec![i64::MAX], vec![i64::MAX - 1], Tolerance::Equal));
        assert!(!is_near(vec![i64::MAX], vec![i64::MAX - 1], Tolerance::Shadows));
        assert!(is_near(vec![0f32], vec![-0f32], Tolerance::Equal));
        assert!(!is_near(vec![1f32], vec![1.000_000_1f32], Tolerance::Equal));
    }

    #[test]
    fn the_worst_element_is_shown_wherever_it_is() -> Result<(), ShapesDiffer> {
        let expected = tensor(vec![2f32; 200]);
        let mut got = expected.clone();
        for (at, value) in [(70, 2.5), (150, 4.0), (199, 1.0)] {
            got.data.set(at, hir_plan::Number::Float(value));
        }
        got.shape = vec![2, 100];
        let found = compare((&got).into(), (&expected).into(), Tolerance::Equal)?;
        let text = found.mismatch.map(|it| it.to_string());
        let wanted = "element [1, 50] expected 2 got 4; 3 of 200 elements differ, max abs error 2, max rel error 1, \
                      tolerance 0 (exact)";
        assert_eq!(text.as_deref(), Some(wanted));
        got.data.set(0, hir_plan::Number::Float(f64::NAN));
        let found = compare((&got).into(), (&expected).into(), Tolerance::Equal)?;
        assert_eq!(found.mismatch.map(|it| it.index), Some(vec![0, 0]));
        Ok(())
    }

    #[test]
    fn engines_agree_within_the_rounding_error() -> Result<(), ShapesDiffer> {
        let expected = tensor(vec![1f32, 1f32]);
        // The rounding error of the first element is 2^-10. All engines compute the same bits for the second.
        let lanes = [vec![1.0, 1.1], vec![1.0, 1.1], vec![1.0 + 2f64.powi(-10), 1.0]];
        let shadow = Shadow::from_lanes(lanes);
        let judged = |got: [f32; 2]| {
            let got = tensor(got.to_vec());
            let expected = ShadowedTensor { tensor: &expected, shadow: Some(&shadow) };
            compare((&got).into(), expected, Tolerance::Engines).map(|it| it.mismatch.is_none())
        };
        assert!(judged([1.0 + 7.9 / 1024.0, 1.0])? && !judged([1.0 + 8.1 / 1024.0, 1.0])?);
        assert!(!judged([1.0, 1.000_000_1])?);
        Ok(())
    }

    #[test]
    fn a_cast_that_rounds_twice_differs() -> Result<(), Box<dyn std::error::Error>> {
        // Just above the midpoint of 1 and 1.0078125, where binary32 has no number: a cast through binary32
        // rounds to 1.
        let value = 1.003_906_25 + 1e-12;
        let from = DenseTensor::full(vec![1], Data::F64(vec![value]));
        let cast = convert(&from, DType::BFloat, &mut Exactness::default())?;
        let expected = tensor(cast.data);
        assert_eq!(expected.data.to_f64(), [1.007_812_5]);
        let judged = |got: f32| {
            let got = tensor(vec![bf16::from_f32(got)]);
            let expected = ShadowedTensor { tensor: &expected, shadow: cast.shadow.as_ref() };
            compare((&got).into(), expected, Tolerance::Engines).map(|it| it.mismatch.is_none())
        };
        assert!(judged(1.007_812_5)? && !judged(value as f32)?);
        Ok(())
    }
}
