//! Element by element comparison: for equality, by f64 shadows, or within tolerances.

use std::fmt;

use grammar::dtype::DType;

use crate::io::{
    data::{
        Data, ShadowedTensor,
        shadow::{Estimate, SHADOW_RTOL, number_to_f64},
    },
    shape_match::{is_permutation, is_regrouping},
    shard::unravel_index,
};

/// How far a result may be from what is expected: `|got - expected| <= atol + rtol · |expected|`, as in numpy. Zeros mean
/// equal values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RtolAtol {
    /// Relative to the expected value.
    pub rtol: f64,
    /// Absolute.
    pub atol: f64,
}

impl RtolAtol {
    /// Equal values.
    pub const EXACT: Self = Self { rtol: 0.0, atol: 0.0 };

    /// The defaults of `torch.testing.assert_close` for an element type: relative and absolute; integers are equal.
    pub fn of(dtype: DType) -> Self {
        let (rtol, atol) = match dtype {
            DType::Half => (1e-3, 1e-5),
            DType::BFloat => (1.6e-2, 1e-5),
            DType::Float => (1.3e-6, 1e-5),
            DType::Double => (1e-7, 1e-7),
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

/// The factor on a program's own rounding error within which another engine's result may be off. The rounding error of an
/// element is the larger of its own and of what nine of ten elements of its tensor stay within.
pub const ROUNDING_FACTOR: f64 = 8.0;

/// How near results have to be to what is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// Equal.
    Equal,
    /// As near as the user says.
    Within(RtolAtol),
    /// Two programs on the simulator: equal where both are exact, else by their shadows.
    Shadows,
    /// Rounded results of one plan on two engines: within `ROUNDING_FACTOR` times the rounding error, and equal where all
    /// engines compute the same bits.
    Engines,
    /// Rounded results of two programs: `Tolerance::of` the element type and `ROUNDING_FACTOR` times the rounding error.
    Rounded,
}

/// A comparison of two tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// What is wrong, if anything is.
    pub mismatch: Option<Mismatch>,
    /// Whether all values are equal.
    pub is_equal: bool,
    /// Elements that were accepted because rounding decides whether they have a finite value.
    pub undetermined: usize,
    /// What the comparison allowed, for the verdict.
    pub tolerance_text: String,
}

/// The element that is furthest off, and how many are.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Its index, slowest dimension first.
    pub index: Vec<usize>,
    /// Its place in row-major order.
    pub flat_index: usize,
    /// What was expected.
    pub expected: String,
    /// What came.
    pub got: String,
    /// How many elements are too far off.
    pub count: usize,
    /// Of how many.
    pub total: usize,
    /// The largest absolute error of an element.
    pub max_abs: f64,
    /// The largest relative error of an element that is too far off.
    pub max_rel: f64,
    /// How far off the element might be.
    pub tolerance: f64,
    /// How that was found.
    pub tolerance_text: String,
}

/// Compares by position in row-major order. One shape may be the other one with neighbouring dimensions split or merged.
///
/// # Errors
/// Another shape, as a message.
pub fn compare(
    got: ShadowedTensor<'_>,
    expected: ShadowedTensor<'_>,
    agreement: Tolerance,
) -> Result<Comparison, String> {
    let (mine, theirs) = (&got.tensor.data, &expected.tensor.data);
    let (have, want) = (&got.tensor.shape, &expected.tensor.shape);
    if !is_regrouping(have, want) {
        let hint = if is_permutation(have, want) { "; transposed?" } else { "" };
        return Err(format!("it has shape {have:?} and {want:?} was expected{hint}"));
    }
    let is_exact = got.shadow.is_none() && expected.shadow.is_none();
    let agreement = match agreement {
        Tolerance::Shadows if is_exact => Tolerance::Equal,
        Tolerance::Engines if expected.shadow.is_none() => Tolerance::Equal,
        other => other,
    };
    let judge = ElementComparer::new(got, expected, agreement);
    let mut found =
        Comparison { mismatch: None, is_equal: true, undetermined: 0, tolerance_text: judge.allowed() };
    let mut worst: Option<(f64, f64, usize)> = None;
    let (mut count, mut max_rel) = (0, 0f64);
    for at in 0..mine.len() {
        if are_equal(mine, theirs, at) && agreement != Tolerance::Shadows {
            continue;
        }
        let (a, b, tolerance) = judge.element(at);
        found.is_equal &= are_equal(mine, theirs, at);
        let error = if a == b || a.is_nan() && b.is_nan() { 0.0 } else { abs_or_infinity(a - b) };
        let is_near = match agreement {
            // Equal numbers may be integers that binary64 does not tell apart.
            Tolerance::Equal => false,
            _ if tolerance == f64::INFINITY => {
                found.undetermined += 1;
                true
            }
            _ => error <= tolerance,
        };
        if is_near {
            continue;
        }
        count += 1;
        max_rel = max_rel.max(if error == 0.0 { 0.0 } else { abs_or_infinity(error / b.abs()) });
        if worst.is_none_or(|(most, ..)| error > most) {
            worst = Some((error, tolerance, at));
        }
    }
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

/// What is computed once for two tensors.
struct ElementComparer<'a> {
    got: ShadowedTensor<'a>,
    expected: ShadowedTensor<'a>,
    agreement: Tolerance,
    /// The rounding error that nine of ten elements stay within.
    typical_rounding: f64,
}

impl<'a> ElementComparer<'a> {
    fn new(got: ShadowedTensor<'a>, expected: ShadowedTensor<'a>, agreement: Tolerance) -> Self {
        let mut judge = Self { got, expected, agreement, typical_rounding: 0.0 };
        if matches!(agreement, Tolerance::Engines | Tolerance::Rounded) {
            let len = got.tensor.data.len();
            let mut errors: Vec<f64> = (0..len).map(|at| judge.rounding(at)).collect();
            errors.retain(|it| *it > 0.0 && it.is_finite());
            if !errors.is_empty() {
                let at = errors.len() * 9 / 10;
                judge.typical_rounding = *errors.select_nth_unstable_by(at, f64::total_cmp).1;
            }
        }
        judge
    }

    /// The two values of an element, and how far they may be apart; infinity where that is not determined.
    fn element(&self, at: usize) -> (f64, f64, f64) {
        let (mine, theirs) = (&self.got.tensor.data, &self.expected.tensor.data);
        let (a, b) = (number_to_f64(mine.get(at)), number_to_f64(theirs.get(at)));
        let rounding = || match self.rounding(at) {
            0.0 => 0.0,
            it => ROUNDING_FACTOR * it.max(self.typical_rounding),
        };
        // Nothing is near infinity.
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

    /// The rounding error of an element, of whichever tensor has a shadow.
    fn rounding(&self, at: usize) -> f64 {
        let of = |it: ShadowedTensor<'_>| {
            it.shadow.map_or(0.0, |shadow| shadow.rounding_error(at, number_to_f64(it.tensor.data.get(at))))
        };
        of(self.got).max(of(self.expected))
    }

    fn allowed(&self) -> String {
        let dtype = self.got.tensor.data.dtype();
        let rounding = match self.typical_rounding {
            0.0 => String::new(),
            it => format!("{ROUNDING_FACTOR} times the rounding error of {it:.1e}"),
        };
        match self.agreement {
            Tolerance::Equal => "exact".to_owned(),
            Tolerance::Within(it) => it.to_string(),
            Tolerance::Shadows => format!("f64 shadow, rtol {SHADOW_RTOL:e}"),
            Tolerance::Engines if rounding.is_empty() => "exact".to_owned(),
            Tolerance::Engines => rounding,
            Tolerance::Rounded => {
                let own = format!("{}: {}", dtype.short_name(), RtolAtol::of(dtype));
                if rounding.is_empty() { own } else { format!("{own}, {rounding}") }
            }
        }
    }

    /// An element as it is compared.
    fn text(&self, side: ShadowedTensor<'_>, at: usize) -> String {
        let data = &side.tensor.data;
        match side.shadow.filter(|_| self.agreement == Tolerance::Shadows && !data.dtype().is_integral()) {
            Some(shadow) => Data::F64(vec![shadow.estimate(at).value]).text(0),
            None => data.text(at),
        }
    }
}

/// Whether two elements are equal: integers by all their bits, zeros of either sign, a NaN where one is expected.
fn are_equal(a: &Data, b: &Data, at: usize) -> bool {
    if a.same_bits(at, b) {
        return true;
    }
    if a.dtype() == b.dtype() && a.dtype().is_integral() {
        return false;
    }
    let (a, b) = (number_to_f64(a.get(at)), number_to_f64(b.get(at)));
    a == b || a.is_nan() && b.is_nan()
}

/// The magnitude of an error; infinity where it is not a number.
fn abs_or_infinity(error: f64) -> f64 {
    if error.is_nan() { f64::INFINITY } else { error.abs() }
}

/// Three digits: `8`, `0.889`, `1.3e-6`.
fn format_3_digits(number: f64) -> String {
    let rounded = format!("{number:.2e}").parse().unwrap_or(number);
    match rounded == 0.0 || (1e-3..1e6).contains(&rounded.abs()) || !rounded.is_finite() {
        true => rounded.to_string(),
        false => format!("{rounded:e}"),
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
    use crate::{
        io::{
            data::{NdArray, Shadow},
            dense::DenseTensor,
        },
        sim::kernels::{Exactness, convert},
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
    fn integers_at_their_limits_are_told_apart() {
        assert!(!is_near(vec![u64::MAX], vec![u64::MAX - 1], Tolerance::Equal));
        assert!(!is_near(vec![i64::MAX], vec![i64::MAX - 1], Tolerance::Equal));
        assert!(!is_near(vec![i64::MAX], vec![i64::MAX - 1], Tolerance::Shadows));
        assert!(is_near(vec![0f32], vec![-0f32], Tolerance::Equal));
        assert!(!is_near(vec![1f32], vec![1.000_000_1f32], Tolerance::Equal));
    }

    #[test]
    fn the_worst_element_is_shown_wherever_it_is() -> Result<(), String> {
        let expected = tensor(vec![2f32; 200]);
        let mut got = expected.clone();
        for (at, value) in [(70, 2.5), (150, 4.0), (199, 1.0)] {
            got.data.set(at, crate::plan::Number::Float(value));
        }
        got.shape = vec![2, 100];
        let found = compare((&got).into(), (&expected).into(), Tolerance::Equal)?;
        let text = found.mismatch.map(|it| it.to_string());
        let wanted = "element [1, 50] expected 2 got 4; 3 of 200 elements differ, max abs error 2, max rel error 1, \
                      tolerance 0 (exact)";
        assert_eq!(text.as_deref(), Some(wanted));
        got.data.set(0, crate::plan::Number::Float(f64::NAN));
        let found = compare((&got).into(), (&expected).into(), Tolerance::Equal)?;
        assert_eq!(found.mismatch.map(|it| it.index), Some(vec![0, 0]));
        Ok(())
    }

    #[test]
    fn engines_agree_within_the_rounding_error() -> Result<(), String> {
        let expected = tensor(vec![1f32, 1f32]);
        // The first element is 2^-10 off; the second is the same on all engines.
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
    fn a_cast_that_rounds_twice_differs() -> Result<(), String> {
        // Just above the middle of 1 and 1.0078125, where binary32 has no number: by way of it, the cast gives 1.
        let value = 1.003_906_25 + 1e-12;
        let from = DenseTensor::full(vec![1], Data::F64(vec![value]));
        let cast = convert(&from, DType::BFloat, &mut Exactness::default()).map_err(|it| it.to_string())?;
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
