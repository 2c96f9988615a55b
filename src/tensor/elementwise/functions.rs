//! Functions that do not fit into an expression.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// Knuth's TwoSum. The residual is exact unless an intermediate value overflows.
pub(super) fn sum(a: f64, b: f64) -> (f64, bool) {
    let value = a + b;
    let part = value - a;
    let residual = (a - (value - part)) + (b - part);
    (value, residual == 0.0 || !(a.is_finite() && b.is_finite()))
}

pub(super) fn product(a: f64, b: f64) -> (f64, bool) {
    let value = a * b;
    (value, a.mul_add(b, -value) == 0.0 || !(a.is_finite() && b.is_finite()))
}

pub(super) fn quotient(a: f64, b: f64) -> (f64, bool) {
    let value = a / b;
    (value, value.mul_add(b, -a) == 0.0 || !(a.is_finite() && b.is_finite()))
}

/// Interpolates from the nearer end, like nvFuser's `lerp`, so that a weight of 1 returns exactly `b`. Rounds
/// every step.
pub(super) fn lerp([a, b, weight]: [f64; 3], round: fn(f64) -> f64) -> (f64, bool) {
    let rounded = |(value, exact): (f64, bool)| {
        let near = round(value);
        (near, exact && (near == value || value.is_nan()))
    };
    let (difference, first) = rounded(sum(b, -a));
    let is_near = weight < 0.5;
    let (part, second) = if is_near { (weight, true) } else { rounded(sum(1.0, -weight)) };
    let (step, third) = rounded(product(difference, part));
    let (value, fourth) = if is_near { sum(a, step) } else { sum(b, -step) };
    (value, first && second && third && fourth)
}

/// Computes powers by squaring, with wrapping. A negative exponent returns 0 except for the bases 1 and -1,
/// like nvFuser's `pow`.
pub(super) fn power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match (base, exponent % 2) {
            (1, _) | (-1, 0) => 1,
            (-1, _) => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut left) = (1i128, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    result
}

/// Returns words 0 and 1 of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) for the key
/// `seed` and the counter `offset` (words 0 and 1), `index` (words 2 and 3).
pub(super) fn philox(index: u64, seed: u64, offset: u64) -> i128 {
    let words = |it: u64| [it as u32, (it >> 32) as u32];
    let ([mut k0, mut k1], [mut c0, mut c1], [mut c2, mut c3]) = (words(seed), words(offset), words(index));
    for _ in 0..10 {
        let [low, high] = words(u64::from(c0) * 0xd251_1f53);
        let [other_low, other_high] = words(u64::from(c2) * 0xcd9e_8d57);
        [c0, c1, c2, c3] = [other_high ^ c1 ^ k0, other_low, high ^ c3 ^ k1, low];
        (k0, k1) = (k0.wrapping_add(0x9e37_79b9), k1.wrapping_add(0xbb67_ae85));
    }
    i128::from(((u64::from(c1) << 32) | u64::from(c0)) as i64)
}

pub(super) fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the inverse of `erf`.
pub(super) fn erfinv(y: f64) -> f64 {
    match y.abs() {
        it if it <= 0.5 => erfinv_centre(y),
        it => erfinv_tail(1.0 - it).copysign(y),
    }
}

/// Returns the inverse of `erfc`.
pub(super) fn erfcinv(z: f64) -> f64 {
    match z {
        _ if z < 0.5 => erfinv_tail(z),
        _ if z > 1.5 => -erfinv_tail(2.0 - z),
        _ => erfinv_centre(1.0 - z),
    }
}

/// Solves `erf(x) = y` for |y| ≤ 1/2 with Newton's method, starting from the tangent at 0; erf' = 2/√π ·
/// exp(-x²).
fn erfinv_centre(y: f64) -> f64 {
    let mut x = y / FRAC_2_SQRT_PI;
    for _ in 0..6 {
        x -= (libm::erf(x) - y) / (FRAC_2_SQRT_PI * (-x * x).exp());
    }
    x
}

/// Solves `erfc(x) = z` for z < 1/2 with Newton's method on the logarithm. The logarithm is concave, so the
/// iteration neither overshoots twice nor loses digits where erfc is tiny. The start is the leading term of
/// erfc(x) ~ exp(-x²) / (x √π).
fn erfinv_tail(z: f64) -> f64 {
    if z == 0.0 {
        return f64::INFINITY;
    }
    let target = z.ln();
    let first = (-target).sqrt();
    if z < 1e-290 {
        // `erfc` loses digits here. The asymptotic series is used instead; its sixth term is below the
        // precision of binary64.
        return (0..8).fold(first, |x, _| {
            let part = 0.5 / (x * x);
            let series = 1.0 - part * (1.0 - 3.0 * part * (1.0 - 5.0 * part * (1.0 - 7.0 * part)));
            (-target - (x * PI.sqrt()).ln() + series.ln()).sqrt()
        });
    }
    let mut x = (-target - (first * PI.sqrt()).ln()).max(0.1).sqrt();
    for _ in 0..8 {
        let erfc = libm::erfc(x);
        x += (erfc.ln() - target) * erfc / (FRAC_2_SQRT_PI * (-x * x).exp());
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_has_the_known_answers() {
        // The vectors of Random123 1.09, `kat_vectors`, philox4x32 10.
        let bits = |index, seed, offset| philox(index, seed, offset) as u64;
        assert_eq!(bits(0, 0, 0), 0xe169_c58d_6627_e8d5);
        assert_eq!(bits(u64::MAX, u64::MAX, u64::MAX), 0x41c8_3b0e_408f_276d);
        assert_eq!(
            bits(0x0370_7344_1319_8a2e, 0x299f_31d0_a409_3822, 0x85a3_08d3_243f_6a88),
            0x94fd_cceb_d16c_fe09
        );
    }

    #[test]
    fn inverse_error_functions() {
        for x in [1e-10, 0.01, 0.3, 0.4769, 0.5, 1.0, 2.0, 3.0] {
            assert!((erfinv(libm::erf(x)) - x).abs() < 1e-11 * x.max(1.0), "{x}: {}", erfinv(libm::erf(x)));
            assert_eq!(erfinv(-libm::erf(x)), -erfinv(libm::erf(x)));
        }
        for x in [-2.0, -0.1, 0.1, 0.6, 2.0, 5.0, 10.0, 26.0] {
            assert!((erfcinv(libm::erfc(x)) - x).abs() < 1e-12 * x.abs().max(1.0), "{x}");
        }
        assert_eq!(
            [erfinv(1.0), erfinv(-1.0), erfcinv(0.0)],
            [f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY]
        );
        assert!(erfinv(1.1).is_nan() && erfcinv(-0.1).is_nan() && erfinv(f64::NAN).is_nan());
    }
}
