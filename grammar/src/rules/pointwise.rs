//! Operators that work element by element.

use super::*;

/// Operands broadcast to the shape of the result; all have one element type, except conditions and comparisons.
pub(super) struct Pointwise;

impl Rule for Pointwise {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.broadcasts(args);
        let condition = matches!(check.stmt.op, Op::Where);
        let operands = match (condition, check.stmt.args.first()) {
            (true, Some(Operand::Tensor(_))) => &args[1..],
            _ => args,
        };
        check.equal_types(operands);
        if let (Op::Complex | Op::Real | Op::Imag, [first, ..], Some(out)) =
            (check.stmt.op, args, check.stmt.out_tensor())
        {
            let (whole, part) = if check.stmt.op == Op::Complex { (out, *first) } else { (*first, out) };
            check.complex(whole, part);
        }
        // The absolute value of a complex number is real.
        let is_complex =
            |it: &TensorId| check.program.tensors[*it].dtype.is_some_and(|it| it.part().is_some());
        if let (Op::Abs, [operand], Some(out)) = (check.stmt.op, args, check.stmt.out_tensor())
            && is_complex(operand)
        {
            check.complex(*operand, out);
        }
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let mut found = operands.dims(0)?;
        for position in 1..operands.args.len() {
            let other = operands.dims(position)?;
            if other.len() != found.len() {
                return None;
            }
            for (axis, other) in found.iter_mut().zip(other) {
                if operands.is_one(axis) {
                    *axis = other;
                }
            }
        }
        Some(found)
    }

    fn result_dtype(&self, operands: &Operands<'_>) -> Option<DType> {
        match operands.stmt.op {
            Op::Eq
            | Op::Ne
            | Op::Lt
            | Op::Le
            | Op::Gt
            | Op::Ge
            | Op::LogicalAnd
            | Op::LogicalOr
            | Op::LogicalNot
            | Op::SignBit
            | Op::IsFinite
            | Op::IsInf
            | Op::IsNan
            | Op::IsNegInf
            | Op::IsPosInf
            | Op::IsReal => Some(DType::Bool),
            Op::Complex => DType::ALL.iter().copied().find(|it| it.part() == operands.dtype(0)),
            Op::Real | Op::Imag => operands.dtype(0)?.part(),
            Op::Abs => operands.dtype(0).map(|it| it.part().unwrap_or(it)),
            // The condition has another type.
            Op::Where => {
                operands.dtype(usize::from(matches!(operands.stmt.args.first(), Some(Operand::Tensor(_)))))
            }
            _ => operands.dtype(0),
        }
    }

    fn keeps_each_dim(&self) -> bool {
        true
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        args.iter().for_each(|it| ranks.equal(*it, out));
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::Any
    }
}
