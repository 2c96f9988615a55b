//! Finds results that depend on the order of a reduction because partial results overflow or underflow.
//!
//! Engines reduce in other orders than the simulator. Rounding then changes a result by a small relative error, but an
//! overflow can decide between 0, infinity and NaN: in binary32, (0 · 1e30) · 1e30 is 0, and 0 · (1e30 · 1e30) is NaN.

use grammar::DType;

use super::Precision;

/// The finite numbers of a floating-point format.
#[derive(Clone, Copy, Debug)]
pub(super) struct FiniteRange {
    /// The base-2 logarithm of the smallest normal number.
    lowest: f64,
    /// The base-2 logarithm above which numbers round to infinity, a little too small.
    highest: f64,
}

impl FiniteRange {
    /// Returns the range of the partial results of a precision.
    pub(super) fn of(precision: Precision) -> Self {
        match precision {
            Precision::Single => Self { lowest: -126.0, highest: 127.999 },
            Precision::Double => Self { lowest: -1022.0, highest: 1023.999 },
        }
    }

    /// Returns the range of partial results that may also be stored with type `dtype`.
    pub(super) fn stored_as(self, dtype: DType) -> Self {
        match dtype {
            DType::Half => Self { lowest: -14.0, highest: 15.999 },
            _ => self,
        }
    }

    /// Returns the smallest normal number.
    pub(super) fn smallest_normal(self) -> f64 {
        self.lowest.exp2()
    }

    /// Returns true if partial sums may overflow in some orders only. `sum` is the sum of the terms, and `magnitude` the sum
    /// of their magnitudes.
    pub(super) fn sum_depends_on_order(self, sum: f64, magnitude: f64) -> bool {
        // Terms of one sign have partial sums below the sum, in every order.
        sum.is_finite() && magnitude.log2() >= self.highest && sum.abs() < 0.999 * magnitude
    }
}

/// The magnitudes of the factors of a product.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FactorMagnitudes {
    /// The base-2 logarithm of the product of the finite factors above 1: no partial product of finite factors is larger.
    above_one: f64,
    /// The base-2 logarithm of the product of the factors between 0 and 1: no partial product of such factors is smaller.
    below_one: f64,
    has_zero: bool,
    has_infinity: bool,
}

impl FactorMagnitudes {
    /// Adds a factor.
    pub(super) fn with(self, factor: f64) -> Self {
        let exponent = factor.abs().log2();
        match () {
            () if factor.is_nan() => self,
            () if factor == 0.0 => Self { has_zero: true, ..self },
            () if factor.is_infinite() => Self { has_infinity: true, ..self },
            () => Self {
                above_one: self.above_one + exponent.max(0.0),
                below_one: self.below_one + exponent.min(0.0),
                ..self
            },
        }
    }

    /// Returns true if partial products may overflow or underflow in some orders only.
    pub(super) fn depend_on_order(self, range: FiniteRange) -> bool {
        let product = self.above_one + self.below_one;
        // If all factors are above 1, or below 1, no partial product is larger, or smaller, than the product.
        let overflows = self.above_one >= range.highest && (self.has_zero || self.below_one < 0.0);
        // Between the smallest normal number and 0, the rounding errors of partial products are large.
        let underflows = self.below_one <= range.lowest
            && (self.has_infinity || self.above_one > 0.0 || product > 2.0 * range.lowest);
        overflows || underflows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depends(factors: &[f64]) -> bool {
        let all = factors.iter().fold(FactorMagnitudes::default(), |all, it| all.with(*it));
        all.depend_on_order(FiniteRange::of(Precision::Single))
    }

    #[test]
    fn the_order_decides_products_that_overflow() {
        assert!(depends(&[0.0, 1e30, 1e30]));
        assert!(depends(&[1e-30, 1e30, 1e30]));
        assert!(depends(&[1e-30, 1e-30, 1e30]));
        assert!(depends(&[1e-30, 1e-30, f64::INFINITY]));
        // Infinite, 0, or in range in every order.
        assert!(!depends(&[1e30, 1e30, -1e30]));
        assert!(!depends(&[1e-30, 1e-30, 1e-30]));
        assert!(!depends(&[0.0, 1e30, f64::INFINITY]));
        assert!(!depends(&[0.0, -2.0, 0.5]));
        assert!(!depends(&[1e-20, 1e-10, 1e15, 1e20]));
    }

    #[test]
    fn the_order_decides_sums_that_overflow() {
        let single = FiniteRange::of(Precision::Single);
        assert!(single.sum_depends_on_order(3e38, 9e38));
        assert!(!single.sum_depends_on_order(9e38, 9e38));
        assert!(!single.sum_depends_on_order(1e38, 3e38));
        assert!(single.stored_as(DType::Half).sum_depends_on_order(0.0, 1e5));
    }
}
