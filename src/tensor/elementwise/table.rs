//! The table of elementwise operators, one row each. CUDA expressions may call the functions of
//! `cuda/kernels/prelude.cu`.

use grammar::Op;

use super::{
    Elementwise, FloatEval,
    FloatEval::{Checked, Exact, Predicate, Rounded},
    FloatFunction, IntegerFunction,
    functions::{erfcinv, erfinv, gcd, lerp, philox, power, product, quotient, sum},
};

const fn row(op: Op) -> Elementwise {
    Elementwise { op, integer: None, float: None }
}

impl Elementwise {
    const fn integer(self, function: fn([i128; 3]) -> Option<i128>, cuda: &'static str) -> Self {
        Self { integer: Some(IntegerFunction { function, cuda }), ..self }
    }

    const fn float(self, function: FloatEval, cuda: &'static str) -> Self {
        self.float_by_precision([function, function], cuda)
    }

    /// Adds a float function that depends on the precision: one for binary32, one for binary64.
    const fn float_by_precision(self, [single, double]: [FloatEval; 2], cuda: &'static str) -> Self {
        let is_discontinuous = matches!(single, Predicate(_));
        let float = FloatFunction { single, double, cuda, is_discontinuous, is_composed: false };
        Self { float: Some(float), ..self }
    }

    const fn discontinuous(self) -> Self {
        match self.float {
            Some(float) => Self { float: Some(FloatFunction { is_discontinuous: true, ..float }), ..self },
            None => self,
        }
    }

    const fn composed(self) -> Self {
        match self.float {
            Some(float) => Self { float: Some(FloatFunction { is_composed: true, ..float }), ..self },
            None => self,
        }
    }
}

/// The rows, in the order of the operator table.
pub(super) static TABLE: &[Elementwise] = &[
    row(Op::Add).integer(|[a, b, _]| Some(a + b), "a + b").float(Checked(|[a, b, _]| sum(a, b)), "a + b"),
    row(Op::Sub).integer(|[a, b, _]| Some(a - b), "a - b").float(Checked(|[a, b, _]| sum(a, -b)), "a - b"),
    row(Op::Mul)
        .integer(|[a, b, _]| Some(a.wrapping_mul(b)), "a * b")
        .float(Checked(|[a, b, _]| product(a, b)), "a * b"),
    row(Op::Div)
        .integer(|[a, b, _]| a.checked_div(b), "quotient(a, b)")
        .float(Checked(|[a, b, _]| quotient(a, b)), "a / b"),
    row(Op::Mod)
        .integer(|[a, b, _]| a.checked_rem(b), "rest(a, b)")
        .float(Exact(|[a, b, _]| a % b), "fmod@(a, b)")
        .discontinuous(),
    // A shift count that is not below the width shifts out all bits.
    row(Op::Shl).integer(
        |[a, b, _]| Some(if (0..128).contains(&b) { a.wrapping_shl(b as u32) } else { 0 }),
        "shifted_left(a, b)",
    ),
    row(Op::Shr)
        .integer(|[a, b, _]| Some(a >> if (0..127).contains(&b) { b } else { 127 }), "shifted_right(a, b)"),
    row(Op::Eq)
        .integer(|[a, b, _]| Some(i128::from(a == b)), "a == b")
        .float(Predicate(|[a, b, _]| a == b), "a == b"),
    row(Op::Ne)
        .integer(|[a, b, _]| Some(i128::from(a != b)), "a != b")
        .float(Predicate(|[a, b, _]| a != b), "a != b"),
    row(Op::Lt)
        .integer(|[a, b, _]| Some(i128::from(a < b)), "a < b")
        .float(Predicate(|[a, b, _]| a < b), "a < b"),
    row(Op::Le)
        .integer(|[a, b, _]| Some(i128::from(a <= b)), "a <= b")
        .float(Predicate(|[a, b, _]| a <= b), "a <= b"),
    row(Op::Gt)
        .integer(|[a, b, _]| Some(i128::from(a > b)), "a > b")
        .float(Predicate(|[a, b, _]| a > b), "a > b"),
    row(Op::Ge)
        .integer(|[a, b, _]| Some(i128::from(a >= b)), "a >= b")
        .float(Predicate(|[a, b, _]| a >= b), "a >= b"),
    row(Op::LogicalAnd)
        .integer(|[a, b, _]| Some(i128::from(a != 0 && b != 0)), "a != 0 && b != 0")
        .float(Predicate(|[a, b, _]| a != 0.0 && b != 0.0), "a != 0 && b != 0"),
    row(Op::LogicalOr)
        .integer(|[a, b, _]| Some(i128::from(a != 0 || b != 0)), "a != 0 || b != 0")
        .float(Predicate(|[a, b, _]| a != 0.0 || b != 0.0), "a != 0 || b != 0"),
    row(Op::BitAnd).integer(|[a, b, _]| Some(a & b), "a & b"),
    row(Op::BitOr).integer(|[a, b, _]| Some(a | b), "a | b"),
    row(Op::BitXor).integer(|[a, b, _]| Some(a ^ b), "a ^ b"),
    row(Op::Max)
        .integer(|[a, b, _]| Some(a.max(b)), "larger_number(a, b)")
        .float(Exact(|[a, b, _]| if a.is_nan() || a >= b { a } else { b }), "larger(a, b)"),
    row(Op::Min)
        .integer(|[a, b, _]| Some(a.min(b)), "smaller_number(a, b)")
        .float(Exact(|[a, b, _]| if a.is_nan() || a <= b { a } else { b }), "smaller(a, b)"),
    // +0 is larger than -0, as in CUDA.
    row(Op::FMax).integer(|[a, b, _]| Some(a.max(b)), "larger_number(a, b)").float(
        Exact(|[a, b, _]| match () {
            () if a == b && a.is_sign_negative() => b,
            () if a == b => a,
            () => a.max(b),
        }),
        "larger_number(a, b)",
    ),
    row(Op::FMin).integer(|[a, b, _]| Some(a.min(b)), "smaller_number(a, b)").float(
        Exact(|[a, b, _]| match () {
            () if a == b && a.is_sign_negative() => a,
            () if a == b => b,
            () => a.min(b),
        }),
        "smaller_number(a, b)",
    ),
    row(Op::Pow)
        .integer(|[a, b, _]| Some(power(a, b)), "power(a, b)")
        .float(Rounded(|[a, b, _]| a.powf(b)), "pow@(a, b)"),
    row(Op::Atan2).float(Rounded(|[a, b, _]| a.atan2(b)), "atan2@(a, b)").discontinuous(),
    row(Op::Fmod)
        .integer(|[a, b, _]| a.checked_rem(b), "rest(a, b)")
        .float(Exact(|[a, b, _]| a % b), "fmod@(a, b)")
        .discontinuous(),
    // The result has the sign of the right operand, like nvFuser's `remainder` for all types.
    row(Op::Remainder)
        .integer(
            |[a, b, _]| {
                let rest = a.checked_rem(b)?;
                Some(if rest != 0 && (b < 0) != (rest < 0) { rest + b } else { rest })
            },
            "remainder_of(a, b)",
        )
        .float(
            Checked(|[a, b, _]| {
                let rest = a % b;
                if rest != 0.0 && (b < 0.0) != (rest < 0.0) { sum(rest, b) } else { (rest, true) }
            }),
            "remainder_of(a, b)",
        )
        .discontinuous()
        .composed(),
    row(Op::NextAfter)
        .float_by_precision(
            [
                Exact(|[a, b, _]| f64::from(libm::nextafterf(a as f32, b as f32))),
                Exact(|[a, b, _]| libm::nextafter(a, b)),
            ],
            "nextafter@(a, b)",
        )
        .discontinuous(),
    row(Op::Gcd).integer(|[a, b, _]| Some(gcd(a.abs(), b.abs())), "common(a, b)"),
    row(Op::CeilDiv).integer(
        |[a, b, _]| {
            let down = a.checked_div(b)?;
            Some(down + i128::from(a % b != 0 && (a < 0) == (b < 0)))
        },
        "ceil_div(a, b)",
    ),
    row(Op::Neg).integer(|[a, ..]| Some(-a), "(C)0 - a").float(Exact(|[a, ..]| -a), "-a"),
    row(Op::LogicalNot)
        .integer(|[a, ..]| Some(i128::from(a == 0)), "a == 0")
        .float(Predicate(|[a, ..]| a == 0.0), "a == 0"),
    row(Op::BitNot).integer(|[a, ..]| Some(!a), "~a"),
    row(Op::Abs)
        .integer(|[a, ..]| Some(a.abs()), "a < 0 ? (C)0 - a : a")
        .float(Exact(|[a, ..]| a.abs()), "fabs@(a)"),
    row(Op::Acos).float(Rounded(|[a, ..]| a.acos()), "acos@(a)"),
    // libm's acosh also returns values for arguments below 1.
    row(Op::Acosh).float(Rounded(|[a, ..]| if a < 1.0 { f64::NAN } else { libm::acosh(a) }), "acosh@(a)"),
    row(Op::Asin).float(Rounded(|[a, ..]| a.asin()), "asin@(a)"),
    // The standard library's asinh and atanh lose digits near 0 and 1, and overflow.
    row(Op::Asinh).float(Rounded(|[a, ..]| libm::asinh(a)), "asinh@(a)"),
    row(Op::Atan).float(Rounded(|[a, ..]| a.atan()), "atan@(a)"),
    row(Op::Atanh).float(Rounded(|[a, ..]| libm::atanh(a)), "atanh@(a)"),
    row(Op::Ceil)
        .integer(|[a, ..]| Some(a), "a")
        .float(Exact(|[a, ..]| a.ceil()), "ceil@(a)")
        .discontinuous(),
    row(Op::Cos).float(Rounded(|[a, ..]| a.cos()), "cos@(a)"),
    row(Op::Cosh).float(Rounded(|[a, ..]| a.cosh()), "cosh@(a)"),
    row(Op::Exp).float(Rounded(|[a, ..]| a.exp()), "exp@(a)"),
    row(Op::Exp2).float(Rounded(|[a, ..]| a.exp2()), "exp2@(a)"),
    row(Op::Expm1).float(Rounded(|[a, ..]| a.exp_m1()), "expm1@(a)"),
    row(Op::Erf).float(Rounded(|[a, ..]| libm::erf(a)), "erf@(a)"),
    row(Op::Erfc).float(Rounded(|[a, ..]| libm::erfc(a)), "erfc@(a)"),
    row(Op::ErfInv).float(Rounded(|[a, ..]| erfinv(a)), "erfinv@(a)"),
    row(Op::ErfcInv).float(Rounded(|[a, ..]| erfcinv(a)), "erfcinv@(a)"),
    row(Op::Floor)
        .integer(|[a, ..]| Some(a), "a")
        .float(Exact(|[a, ..]| a.floor()), "floor@(a)")
        .discontinuous(),
    row(Op::Frac).float(Exact(|[a, ..]| a - a.trunc()), "a - trunc@(a)").discontinuous(),
    row(Op::LGamma).float(Rounded(|[a, ..]| libm::lgamma(a)), "lgamma@(a)"),
    row(Op::Log).float(Rounded(|[a, ..]| a.ln()), "log@(a)"),
    row(Op::Log10).float(Rounded(|[a, ..]| a.log10()), "log10@(a)"),
    row(Op::Log1p).float(Rounded(|[a, ..]| a.ln_1p()), "log1p@(a)"),
    row(Op::Log2).float(Rounded(|[a, ..]| a.log2()), "log2@(a)"),
    row(Op::Reciprocal).float(Checked(|[a, ..]| quotient(1.0, a)), "(C)1 / a"),
    row(Op::Relu)
        .integer(|[a, ..]| Some(a.max(0)), "a < 0 ? (C)0 : a")
        .float(Exact(|[a, ..]| if a <= 0.0 { 0.0 } else { a }), "a <= 0 ? (C)0 : a"),
    row(Op::Rsqrt).float(Rounded(|[a, ..]| a.sqrt().recip()), "(C)1 / sqrt@(a)"),
    row(Op::Round)
        .integer(|[a, ..]| Some(a), "a")
        .float(Exact(|[a, ..]| a.round_ties_even()), "rint@(a)")
        .discontinuous(),
    // The exponential must overflow where it does in the given precision.
    row(Op::Sigmoid).float_by_precision(
        [
            Rounded(|[a, ..]| 1.0 / (1.0 + f64::from((-a).exp() as f32))),
            Rounded(|[a, ..]| 1.0 / (1.0 + (-a).exp())),
        ],
        "(C)1 / ((C)1 + exp@(-a))",
    ),
    row(Op::SignBit)
        .integer(|[a, ..]| Some(i128::from(a < 0)), "a < 0")
        .float(Predicate(|[a, ..]| a.is_sign_negative()), "copysign@((C)1, a) < 0"),
    row(Op::Silu).float_by_precision(
        [
            Rounded(|[a, ..]| a / (1.0 + f64::from((-a).exp() as f32))),
            Rounded(|[a, ..]| a / (1.0 + (-a).exp())),
        ],
        "a / ((C)1 + exp@(-a))",
    ),
    row(Op::Sin).float(Rounded(|[a, ..]| a.sin()), "sin@(a)"),
    row(Op::Sinh).float(Rounded(|[a, ..]| a.sinh()), "sinh@(a)"),
    row(Op::Sqrt).float(
        Checked(|[a, ..]| {
            let root = a.sqrt();
            (root, root.mul_add(root, -a) == 0.0)
        }),
        "sqrt@(a)",
    ),
    row(Op::Tan).float(Rounded(|[a, ..]| a.tan()), "tan@(a)"),
    row(Op::Tanh).float(Rounded(|[a, ..]| a.tanh()), "tanh@(a)"),
    row(Op::Trunc)
        .integer(|[a, ..]| Some(a), "a")
        .float(Exact(|[a, ..]| a.trunc()), "trunc@(a)")
        .discontinuous(),
    row(Op::BitCeil).integer(
        |[a, ..]| Some(if a <= 1 { 1 } else { (a as u128).next_power_of_two() as i128 }),
        "next_power(a)",
    ),
    row(Op::IsFinite).integer(|_| Some(1), "1").float(Predicate(|[a, ..]| a.is_finite()), "a - a == 0"),
    row(Op::IsInf)
        .integer(|_| Some(0), "0")
        .float(Predicate(|[a, ..]| a.is_infinite()), "a == a && a - a != 0"),
    row(Op::IsNan).integer(|_| Some(0), "0").float(Predicate(|[a, ..]| a.is_nan()), "a != a"),
    row(Op::IsNegInf)
        .integer(|_| Some(0), "0")
        .float(Predicate(|[a, ..]| a == f64::NEG_INFINITY), "a < 0 && a == a && a - a != 0"),
    row(Op::IsPosInf)
        .integer(|_| Some(0), "0")
        .float(Predicate(|[a, ..]| a == f64::INFINITY), "a > 0 && a == a && a - a != 0"),
    row(Op::IsReal).integer(|_| Some(1), "1").float(Predicate(|_| true), "1"),
    row(Op::Where)
        .integer(|[a, b, c]| Some(if a != 0 { b } else { c }), "a != 0 ? b : c")
        .float(Exact(|[a, b, c]| if a != 0.0 { b } else { c }), "a != 0 ? b : c")
        .discontinuous(),
    row(Op::Clamp)
        .integer(|[a, b, c]| Some(a.max(b).min(c)), "a < b ? (b < c ? b : c) : a < c ? a : c")
        .float(
            Exact(|[a, b, c]| {
                let raised = if a < b { b } else { a };
                if raised > c { c } else { raised }
            }),
            "a < b ? (b > c ? c : b) : a > c ? c : a",
        ),
    row(Op::Lerp)
        .float_by_precision(
            [Checked(|it| lerp(it, |it| f64::from(it as f32))), Checked(|it| lerp(it, |it| it))],
            "c < (C)0.5f ? a + c * (b - a) : b - (b - a) * ((C)1 - c)",
        )
        .composed(),
    row(Op::Threshold)
        .integer(|[a, b, c]| Some(if a <= b { c } else { a }), "a <= b ? c : a")
        .float(Exact(|[a, b, c]| if a <= b { c } else { a }), "a <= b ? c : a")
        .discontinuous(),
    row(Op::Philox).integer(|[a, b, c]| Some(philox(a as u64, b as u64, c as u64)), "(C)philox(a, b, c)"),
];
