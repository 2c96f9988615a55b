//! Operators as expressions of `a`, `b` and `c`, which are of the computed type.

use grammar::ops::Op;

use super::Computed;
use crate::plan::ReduceOp;

/// An operator's expression; `None` where the kernels lack it.
pub(super) fn operator(op: Op, computed: Computed) -> Option<String> {
    match computed.is_float() {
        true => float(op, computed),
        false => integer(op).map(str::to_owned),
    }
}

fn integer(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Add => "a + b",
        Op::Sub => "a - b",
        Op::Mul => "a * b",
        Op::Div => "quotient(a, b)",
        Op::Mod | Op::Fmod => "rest(a, b)",
        Op::Remainder => "remainder_of(a, b)",
        Op::CeilDiv => "ceil_div(a, b)",
        Op::Shl => "shifted_left(a, b)",
        Op::Shr => "shifted_right(a, b)",
        Op::LogicalAnd => "a != 0 && b != 0",
        Op::LogicalOr => "a != 0 || b != 0",
        Op::LogicalNot => "a == 0",
        Op::BitAnd => "a & b",
        Op::BitOr => "a | b",
        Op::BitXor => "a ^ b",
        Op::BitNot => "~a",
        Op::Max | Op::FMax => "larger_number(a, b)",
        Op::Min | Op::FMin => "smaller_number(a, b)",
        Op::Pow => "power(a, b)",
        Op::Gcd => "common(a, b)",
        Op::Neg => "(C)0 - a",
        Op::Abs => "a < 0 ? (C)0 - a : a",
        Op::Relu => "a < 0 ? (C)0 : a",
        Op::Ceil | Op::Floor | Op::Round | Op::Trunc => "a",
        Op::BitCeil => "next_power(a)",
        Op::SignBit => "a < 0",
        Op::IsFinite | Op::IsReal => "1",
        Op::IsInf | Op::IsNan | Op::IsNegInf | Op::IsPosInf => "0",
        Op::Clamp => "a < b ? b : a < c ? a : c",
        _ => return shared(op),
    })
}

/// What reads the same for all types.
fn shared(op: Op) -> Option<&'static str> {
    Some(match op {
        Op::Eq => "a == b",
        Op::Ne => "a != b",
        Op::Lt => "a < b",
        Op::Le => "a <= b",
        Op::Gt => "a > b",
        Op::Ge => "a >= b",
        Op::Where => "a != 0 ? b : c",
        Op::Threshold => "a <= b ? c : a",
        _ => return None,
    })
}

fn float(op: Op, computed: Computed) -> Option<String> {
    // `@` ends the name of a mathematical function: `expf` computes in binary32, `exp` in binary64.
    let text = match op {
        Op::Add => "a + b",
        Op::Sub => "a - b",
        Op::Mul => "a * b",
        Op::Div => "a / b",
        Op::Reciprocal => "(C)1 / a",
        Op::Sqrt => "sqrt@(a)",
        Op::Rsqrt => "(C)1 / sqrt@(a)",
        Op::Lerp => "c < (C)0.5f ? a + c * (b - a) : b - (b - a) * ((C)1 - c)",
        Op::Mod | Op::Fmod => "fmod@(a, b)",
        Op::Remainder => "remainder_of(a, b)",
        Op::Neg => "-a",
        Op::Abs => "fabs@(a)",
        Op::Ceil => "ceil@(a)",
        Op::Floor => "floor@(a)",
        Op::Round => "rint@(a)",
        Op::Trunc => "trunc@(a)",
        Op::Frac => "a - trunc@(a)",
        Op::Max => "larger(a, b)",
        Op::Min => "smaller(a, b)",
        Op::FMax => "larger_number(a, b)",
        Op::FMin => "smaller_number(a, b)",
        Op::Relu => "a <= 0 ? (C)0 : a",
        Op::Clamp => "a < b ? b : a > c ? c : a",
        Op::NextAfter => "nextafter@(a, b)",
        Op::Pow => "pow@(a, b)",
        Op::Atan2 => "atan2@(a, b)",
        Op::Acos => "acos@(a)",
        Op::Acosh => "acosh@(a)",
        Op::Asin => "asin@(a)",
        Op::Asinh => "asinh@(a)",
        Op::Atan => "atan@(a)",
        Op::Atanh => "atanh@(a)",
        Op::Cos => "cos@(a)",
        Op::Cosh => "cosh@(a)",
        Op::Exp => "exp@(a)",
        Op::Exp2 => "exp2@(a)",
        Op::Expm1 => "expm1@(a)",
        Op::Erf => "erf@(a)",
        Op::Erfc => "erfc@(a)",
        Op::ErfInv => "erfinv@(a)",
        Op::ErfcInv => "erfcinv@(a)",
        Op::LGamma => "lgamma@(a)",
        Op::Log => "log@(a)",
        Op::Log10 => "log10@(a)",
        Op::Log1p => "log1p@(a)",
        Op::Log2 => "log2@(a)",
        Op::Sigmoid => "(C)1 / ((C)1 + exp@(-a))",
        Op::Silu => "a / ((C)1 + exp@(-a))",
        Op::Sin => "sin@(a)",
        Op::Sinh => "sinh@(a)",
        Op::Tan => "tan@(a)",
        Op::Tanh => "tanh@(a)",
        Op::LogicalAnd => "a != 0 && b != 0",
        Op::LogicalOr => "a != 0 || b != 0",
        Op::LogicalNot => "a == 0",
        Op::SignBit => "copysign@((C)1, a) < 0",
        Op::IsFinite => "a - a == 0",
        Op::IsInf => "a == a && a - a != 0",
        Op::IsNan => "a != a",
        Op::IsNegInf => "a < 0 && a == a && a - a != 0",
        Op::IsPosInf => "a > 0 && a == a && a - a != 0",
        Op::IsReal => "1",
        _ => shared(op)?,
    };
    Some(text.replace('@', if computed == Computed::F32 { "f" } else { "" }))
}

/// `a` and `b` combined; `None` for bits of floats.
pub(super) fn step(op: ReduceOp, computed: Computed) -> Option<&'static str> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Avg => "a + b",
        ReduceOp::Product => "a * b",
        ReduceOp::Min => "smaller(a, b)",
        ReduceOp::Max => "larger(a, b)",
        ReduceOp::FMin => "smaller_number(a, b)",
        ReduceOp::FMax => "larger_number(a, b)",
        ReduceOp::And | ReduceOp::Or | ReduceOp::Xor if computed.is_float() => return None,
        ReduceOp::And => "a & b",
        ReduceOp::Or => "a | b",
        ReduceOp::Xor => "a ^ b",
    })
}

/// What changes nothing when it is combined with.
pub(super) fn neutral(op: ReduceOp, computed: Computed) -> &'static str {
    let is_float = computed.is_float();
    match op {
        // Not 0: 0 + -0 is 0.
        ReduceOp::Sum | ReduceOp::Avg if is_float => "(C)-0.0f",
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Or | ReduceOp::Xor => "(C)0",
        ReduceOp::Product => "(C)1",
        ReduceOp::Min if is_float => "(C)__int_as_float(0x7f800000)",
        ReduceOp::Max if is_float => "(C)__int_as_float(0xff800000)",
        ReduceOp::FMin | ReduceOp::FMax if is_float => "(C)__int_as_float(0x7fc00000)",
        ReduceOp::Min | ReduceOp::FMin if computed == Computed::U64 => "~(C)0",
        ReduceOp::Min | ReduceOp::FMin => "(C)(~0ull >> 1)",
        ReduceOp::Max | ReduceOp::FMax if computed == Computed::U64 => "(C)0",
        ReduceOp::Max | ReduceOp::FMax => "(C)(1ull << 63)",
        ReduceOp::And => "~(C)0",
    }
}
