//! CUDA expressions of operators on `a`, `b` and `c` of the compute type.

use std::fmt::Display;

use grammar::Op;

use super::ComputeType;
use hir_plan::ReduceOp;
use hir_tensor::elementwise::elementwise;

/// Returns the expression of an operator; `None` if the kernels do not support it.
pub(super) fn operator_expression(op: Op, computed: ComputeType) -> Option<String> {
    let row = elementwise(op)?;
    match computed {
        ComputeType::F32 => Some(row.float?.cuda.replace('@', "f")),
        ComputeType::F64 => Some(row.float?.cuda.replace('@', "")),
        ComputeType::I64 | ComputeType::U64 => Some(row.integer?.cuda.to_owned()),
    }
}

/// Returns the expression that reduces `a` and `b`; `None` for bitwise operations on floats.
pub(super) fn reduction_expression(op: ReduceOp, computed: ComputeType) -> Option<&'static str> {
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

/// Returns the expression of the result of a reduction. `r` is what the operands reduce to, and `count` the
/// expression of their number.
pub(super) fn result_expression(op: ReduceOp, count: impl Display) -> String {
    match op {
        ReduceOp::Avg => format!("r / (C){count}"),
        ReduceOp::Sum
        | ReduceOp::Product
        | ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::FMin
        | ReduceOp::FMax
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => "r".to_owned(),
    }
}

/// Returns the identity element of a reduction.
pub(super) fn identity_expression(op: ReduceOp, computed: ComputeType) -> &'static str {
    let is_float = computed.is_float();
    match op {
        // Not 0, because 0 + -0 is 0.
        ReduceOp::Sum | ReduceOp::Avg if is_float => "(C)-0.0f",
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Or | ReduceOp::Xor => "(C)0",
        ReduceOp::Product => "(C)1",
        ReduceOp::Min if is_float => "(C)__int_as_float(0x7f800000)",
        ReduceOp::Max if is_float => "(C)__int_as_float(0xff800000)",
        ReduceOp::FMin | ReduceOp::FMax if is_float => "(C)__int_as_float(0x7fc00000)",
        ReduceOp::Min | ReduceOp::FMin if computed == ComputeType::U64 => "~(C)0",
        ReduceOp::Min | ReduceOp::FMin => "(C)(~0ull >> 1)",
        ReduceOp::Max | ReduceOp::FMax if computed == ComputeType::U64 => "(C)0",
        ReduceOp::Max | ReduceOp::FMax => "(C)(1ull << 63)",
        ReduceOp::And => "~(C)0",
    }
}
