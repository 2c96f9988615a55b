//! What operators that work element by element compute for one element.
//!
//! A function of floats is evaluated in binary64, and says whether its value is the true one: `map` tells what exact means.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

use grammar::ops::Op;

use super::Precision;

/// A function of integers; `None` where it divides by zero.
pub(super) type Integer = fn([i128; 3]) -> Option<i128>;

pub(super) fn integer(op: Op) -> Option<Integer> {
    Some(match op {
        Op::Add => |[a, b, _]| Some(a + b),
        Op::Sub => |[a, b, _]| Some(a - b),
        Op::Mul => |[a, b, _]| Some(a.wrapping_mul(b)),
        Op::Div => |[a, b, _]| a.checked_div(b),
        Op::Mod | Op::Fmod => |[a, b, _]| a.checked_rem(b),
        // The sign of the right operand, as nvFuser's `remainder` has it for all types.
        Op::Remainder => |[a, b, _]| {
            let rest = a.checked_rem(b)?;
            Some(if rest != 0 && (b < 0) != (rest < 0) { rest + b } else { rest })
        },
        Op::CeilDiv => |[a, b, _]| {
            let down = a.checked_div(b)?;
            Some(down + i128::from(a % b != 0 && (a < 0) == (b < 0)))
        },
        // Counts beyond the width shift everything out.
        Op::Shl => |[a, b, _]| Some(if (0..128).contains(&b) { a.wrapping_shl(b as u32) } else { 0 }),
        Op::Shr => |[a, b, _]| Some(a >> if (0..127).contains(&b) { b } else { 127 }),
        Op::Eq => |[a, b, _]| Some(i128::from(a == b)),
        Op::Ne => |[a, b, _]| Some(i128::from(a != b)),
        Op::Lt => |[a, b, _]| Some(i128::from(a < b)),
        Op::Le => |[a, b, _]| Some(i128::from(a <= b)),
        Op::Gt => |[a, b, _]| Some(i128::from(a > b)),
        Op::Ge => |[a, b, _]| Some(i128::from(a >= b)),
        Op::LogicalAnd => |[a, b, _]| Some(i128::from(a != 0 && b != 0)),
        Op::LogicalOr => |[a, b, _]| Some(i128::from(a != 0 || b != 0)),
        Op::LogicalNot => |[a, ..]| Some(i128::from(a == 0)),
        Op::BitAnd => |[a, b, _]| Some(a & b),
        Op::BitOr => |[a, b, _]| Some(a | b),
        Op::BitXor => |[a, b, _]| Some(a ^ b),
        Op::BitNot => |[a, ..]| Some(!a),
        Op::Max | Op::FMax => |[a, b, _]| Some(a.max(b)),
        Op::Min | Op::FMin => |[a, b, _]| Some(a.min(b)),
        Op::Pow => |[a, b, _]| Some(power(a, b)),
        Op::Gcd => |[a, b, _]| Some(gcd(a.abs(), b.abs())),
        Op::Neg => |[a, ..]| Some(-a),
        Op::Abs => |[a, ..]| Some(a.abs()),
        Op::Relu => |[a, ..]| Some(a.max(0)),
        Op::Ceil | Op::Floor | Op::Round | Op::Trunc => |[a, ..]| Some(a),
        Op::BitCeil => |[a, ..]| Some(if a <= 1 { 1 } else { (a as u128).next_power_of_two() as i128 }),
        Op::SignBit => |[a, ..]| Some(i128::from(a < 0)),
        Op::IsFinite | Op::IsReal => |_| Some(1),
        Op::IsInf | Op::IsNan | Op::IsNegInf | Op::IsPosInf => |_| Some(0),
        Op::Where => |[a, b, c]| Some(if a != 0 { b } else { c }),
        Op::Clamp => |[a, b, c]| Some(if a < b { b } else { a.min(c) }),
        Op::Threshold => |[a, b, c]| Some(if a <= b { c } else { a }),
        _ => return None,
    })
}

/// A function of floats, by how its rounding is judged.
#[derive(Clone, Copy)]
pub(super) enum Float {
    /// Its binary64 value is the true one.
    Exact(fn([f64; 3]) -> f64),
    /// Tells whether its binary64 value is the true one.
    Checked(fn([f64; 3]) -> (f64, bool)),
    /// Its binary64 value is the true one where binary32 holds it.
    Rounded(fn([f64; 3]) -> f64),
    /// A comparison.
    Test(fn([f64; 3]) -> bool),
}

impl Float {
    pub fn at(self, operands: [f64; 3]) -> (f64, bool) {
        match self {
            Self::Exact(function) => (function(operands), true),
            Self::Checked(function) => function(operands),
            Self::Rounded(function) => {
                let value = function(operands);
                (value, value.is_nan() || f64::from(value as f32) == value)
            }
            Self::Test(function) => (f64::from(u8::from(function(operands))), true),
        }
    }
}

pub(super) fn float(op: Op, precision: Precision) -> Option<Float> {
    use Float::{Checked, Exact, Rounded, Test};
    Some(match op {
        Op::Add => Checked(|[a, b, _]| sum(a, b)),
        Op::Sub => Checked(|[a, b, _]| sum(a, -b)),
        Op::Mul => Checked(|[a, b, _]| product(a, b)),
        Op::Div => Checked(|[a, b, _]| quotient(a, b)),
        Op::Reciprocal => Checked(|[a, ..]| quotient(1.0, a)),
        Op::Sqrt => Checked(|[a, ..]| {
            let root = a.sqrt();
            (root, root.mul_add(root, -a) == 0.0)
        }),
        Op::Lerp => match precision {
            Precision::Single => Checked(|it| lerp(it, |it| f64::from(it as f32))),
            Precision::Double => Checked(|it| lerp(it, |it| it)),
        },
        Op::Remainder => Checked(|[a, b, _]| {
            let rest = a % b;
            if rest != 0.0 && (b < 0.0) != (rest < 0.0) { sum(rest, b) } else { (rest, true) }
        }),
        Op::Mod | Op::Fmod => Exact(|[a, b, _]| a % b),
        Op::Neg => Exact(|[a, ..]| -a),
        Op::Abs => Exact(|[a, ..]| a.abs()),
        Op::Ceil => Exact(|[a, ..]| a.ceil()),
        Op::Floor => Exact(|[a, ..]| a.floor()),
        Op::Round => Exact(|[a, ..]| a.round_ties_even()),
        Op::Trunc => Exact(|[a, ..]| a.trunc()),
        Op::Frac => Exact(|[a, ..]| a - a.trunc()),
        Op::Max => Exact(|[a, b, _]| if a.is_nan() || a >= b { a } else { b }),
        Op::Min => Exact(|[a, b, _]| if a.is_nan() || a <= b { a } else { b }),
        // +0 is larger than -0, as CUDA has it.
        Op::FMax => Exact(|[a, b, _]| match () {
            () if a == b && a.is_sign_negative() => b,
            () if a == b => a,
            () => a.max(b),
        }),
        Op::FMin => Exact(|[a, b, _]| match () {
            () if a == b && a.is_sign_negative() => a,
            () if a == b => b,
            () => a.min(b),
        }),
        Op::Relu => Exact(|[a, ..]| if a <= 0.0 { 0.0 } else { a }),
        Op::Where => Exact(|[a, b, c]| if a != 0.0 { b } else { c }),
        Op::Threshold => Exact(|[a, b, c]| if a <= b { c } else { a }),
        Op::Clamp => Exact(|[a, b, c]| match () {
            () if a < b => b,
            () if a > c => c,
            () => a,
        }),
        Op::NextAfter => match precision {
            Precision::Single => Exact(|[a, b, _]| f64::from(libm::nextafterf(a as f32, b as f32))),
            Precision::Double => Exact(|[a, b, _]| libm::nextafter(a, b)),
        },
        Op::Pow => Rounded(|[a, b, _]| a.powf(b)),
        Op::Atan2 => Rounded(|[a, b, _]| a.atan2(b)),
        Op::Acos => Rounded(|[a, ..]| a.acos()),
        // libm's has values below 1.
        Op::Acosh => Rounded(|[a, ..]| if a < 1.0 { f64::NAN } else { libm::acosh(a) }),
        Op::Asin => Rounded(|[a, ..]| a.asin()),
        // Those of the standard library lose digits near 0 and 1, and overflow.
        Op::Asinh => Rounded(|[a, ..]| libm::asinh(a)),
        Op::Atan => Rounded(|[a, ..]| a.atan()),
        Op::Atanh => Rounded(|[a, ..]| libm::atanh(a)),
        Op::Cos => Rounded(|[a, ..]| a.cos()),
        Op::Cosh => Rounded(|[a, ..]| a.cosh()),
        Op::Exp => Rounded(|[a, ..]| a.exp()),
        Op::Exp2 => Rounded(|[a, ..]| a.exp2()),
        Op::Expm1 => Rounded(|[a, ..]| a.exp_m1()),
        Op::Erf => Rounded(|[a, ..]| libm::erf(a)),
        Op::Erfc => Rounded(|[a, ..]| libm::erfc(a)),
        Op::ErfInv => Rounded(|[a, ..]| erfinv(a)),
        Op::ErfcInv => Rounded(|[a, ..]| erfcinv(a)),
        Op::LGamma => Rounded(|[a, ..]| libm::lgamma(a)),
        Op::Log => Rounded(|[a, ..]| a.ln()),
        Op::Log10 => Rounded(|[a, ..]| a.log10()),
        Op::Log1p => Rounded(|[a, ..]| a.ln_1p()),
        Op::Log2 => Rounded(|[a, ..]| a.log2()),
        Op::Rsqrt => Rounded(|[a, ..]| a.sqrt().recip()),
        // The exponential overflows where that of the precision does.
        Op::Sigmoid => match precision {
            Precision::Single => Rounded(|[a, ..]| 1.0 / (1.0 + f64::from((-a).exp() as f32))),
            Precision::Double => Rounded(|[a, ..]| 1.0 / (1.0 + (-a).exp())),
        },
        Op::Silu => match precision {
            Precision::Single => Rounded(|[a, ..]| a / (1.0 + f64::from((-a).exp() as f32))),
            Precision::Double => Rounded(|[a, ..]| a / (1.0 + (-a).exp())),
        },
        Op::Sin => Rounded(|[a, ..]| a.sin()),
        Op::Sinh => Rounded(|[a, ..]| a.sinh()),
        Op::Tan => Rounded(|[a, ..]| a.tan()),
        Op::Tanh => Rounded(|[a, ..]| a.tanh()),
        Op::Eq => Test(|[a, b, _]| a == b),
        Op::Ne => Test(|[a, b, _]| a != b),
        Op::Lt => Test(|[a, b, _]| a < b),
        Op::Le => Test(|[a, b, _]| a <= b),
        Op::Gt => Test(|[a, b, _]| a > b),
        Op::Ge => Test(|[a, b, _]| a >= b),
        Op::LogicalAnd => Test(|[a, b, _]| a != 0.0 && b != 0.0),
        Op::LogicalOr => Test(|[a, b, _]| a != 0.0 || b != 0.0),
        Op::LogicalNot => Test(|[a, ..]| a == 0.0),
        Op::SignBit => Test(|[a, ..]| a.is_sign_negative()),
        Op::IsFinite => Test(|[a, ..]| a.is_finite()),
        Op::IsInf => Test(|[a, ..]| a.is_infinite()),
        Op::IsNan => Test(|[a, ..]| a.is_nan()),
        Op::IsNegInf => Test(|[a, ..]| a == f64::NEG_INFINITY),
        Op::IsPosInf => Test(|[a, ..]| a == f64::INFINITY),
        Op::IsReal => Test(|_| true),
        _ => return None,
    })
}

/// Knuth's TwoSum: the residual is exact unless something overflows.
fn sum(a: f64, b: f64) -> (f64, bool) {
    let value = a + b;
    let part = value - a;
    let residual = (a - (value - part)) + (b - part);
    (value, residual == 0.0 || !(a.is_finite() && b.is_finite()))
}

fn product(a: f64, b: f64) -> (f64, bool) {
    let value = a * b;
    (value, a.mul_add(b, -value) == 0.0 || !(a.is_finite() && b.is_finite()))
}

fn quotient(a: f64, b: f64) -> (f64, bool) {
    let value = a / b;
    (value, value.mul_add(b, -a) == 0.0 || !(a.is_finite() && b.is_finite()))
}

/// From the nearer end, as nvFuser's `lerp` has it: a weight of 1 gives `b` itself. Every step is rounded.
fn lerp([a, b, weight]: [f64; 3], round: fn(f64) -> f64) -> (f64, bool) {
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

/// By squaring, wrapping. A negative exponent gives 0 but for the bases 1 and -1, as in nvFuser's `pow`.
fn power(base: i128, exponent: i128) -> i128 {
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

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The inverse of `erf`.
fn erfinv(y: f64) -> f64 {
    match y.abs() {
        it if it <= 0.5 => erfinv_centre(y),
        it => erfinv_tail(1.0 - it).copysign(y),
    }
}

/// The inverse of `erfc`.
fn erfcinv(z: f64) -> f64 {
    match z {
        _ if z < 0.5 => erfinv_tail(z),
        _ if z > 1.5 => -erfinv_tail(2.0 - z),
        _ => erfinv_centre(1.0 - z),
    }
}

/// `erf(x) = y` for |y| ≤ 1/2: Newton's method from the tangent at 0; erf' = 2/√π · exp(-x²).
fn erfinv_centre(y: f64) -> f64 {
    let mut x = y / FRAC_2_SQRT_PI;
    for _ in 0..6 {
        x -= (libm::erf(x) - y) / (FRAC_2_SQRT_PI * (-x * x).exp());
    }
    x
}

/// `erfc(x) = z` for z < 1/2: Newton's method on the logarithm, which is concave, so that it neither overshoots twice
/// nor loses digits where erfc is tiny; from the leading term of erfc(x) ~ exp(-x²) / (x √π).
fn erfinv_tail(z: f64) -> f64 {
    if z == 0.0 {
        return f64::INFINITY;
    }
    let target = z.ln();
    let first = (-target).sqrt();
    if z < 1e-290 {
        // `erfc` loses digits there: by its asymptotic series, of which the sixth term is beyond binary64.
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
