//! Operators that work along one axis: `cat`, `pad`, `scan`, sorting and indexing.

use super::*;

/// The other axes of the result are those of the operand. Extents are compared when the planner knows the axis.
pub(super) struct AlongAxis;

impl Rule for AlongAxis {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let base = args.first().copied().or(check.stmt.get(attr::IN));
        let (Some(base), Some(out)) = (base, check.stmt.out_tensor()) else { return };
        match check.stmt.op {
            Op::IndexSelect | Op::TakeAlongAxis | Op::TorchGather => {
                if let Some(index) = args.get(1) {
                    check.integers(*index, "the indices");
                }
                check.equal_types(&[base, out]);
            }
            Op::Scatter => {
                if let Some(index) = check.stmt.get(attr::IDX) {
                    check.integers(index, "the indices");
                }
                check.equal_types(&[base, out]);
            }
            Op::ArgSort => check.integers(out, "the indices"),
            _ => check.equal_types(&[base, out]),
        }
        let (have, want) = (check.dims(out).len(), check.dims(base).len());
        if have != want {
            check.rank_error(out, have, want);
        }
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let dims = along_one_axis(operand)?;
        Some(OperandMap::Dims(dims.into_iter().map(parallel_or_whole).collect()))
    }

    fn runs_on_outermost_parts(&self) -> bool {
        true
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::Unknown
    }

    fn part_operands(&self, stmt: &OpStmt) -> PartOperands {
        match stmt.op {
            // Indices select elements of a whole table.
            Op::IndexSelect | Op::TakeAlongAxis | Op::TorchGather => PartOperands::AtLeastOne,
            _ => PartOperands::All,
        }
    }
}

/// Returns for each dimension of the operand the corresponding dimension of the result; `None` inside the
/// vector if the operator needs the whole dimension.
fn along_one_axis(operand: &MappedOperand<'_>) -> Option<Vec<Option<usize>>> {
    // Maps all dimensions except `dim` whose extents are equal on both sides.
    let others = |dim: usize| -> Vec<Option<usize>> {
        (0..operand.operand_extents.len())
            .map(|at| (at != dim && operand.is_same(at, at)).then_some(at))
            .collect()
    };
    let all = operand.operand_extents.len();
    // As `others`, for operators that may use only a prefix of a longer operand, from index 0. Returns
    // `None` if an extent other than that of `dim` differs and is not 1.
    let all_others = |dim: usize| {
        (0..all)
            .all(|at| at == dim || operand.is_same(at, at) || operand.is_one(&operand.operand_extents, at))
            .then(|| others(dim))
    };
    let along = |value: ExprId| {
        let (dim, rank) = ((operand.value)(value)?, operand.result_extents.len() as i64);
        usize::try_from(if dim < 0 { dim + rank } else { dim }).ok()
    };
    let dim = || along(operand.stmt.get(attr::DIM)?);
    match operand.stmt.op {
        Op::Cat => match operand.stmt.args.last() {
            Some(Operand::Scalar(dim)) => Some(others(along(*dim)?)),
            _ => None,
        },
        Op::Pad => {
            let widths = operand.stmt.get(attr::WIDTHS)?;
            let is_zero = |at: usize| widths.get(at).is_some_and(|it| (operand.value)(*it) == Some(0));
            let stays = |at: usize| operand.is_same(at, at) && is_zero(2 * at) && is_zero(2 * at + 1);
            Some((0..operand.operand_extents.len()).map(|at| stays(at).then_some(at)).collect())
        }
        Op::Scan | Op::ArgSort | Op::TopK => Some(others(dim()?)),
        Op::Scatter => all_others(dim()?),
        Op::IndexSelect if operand.position == 0 => Some(others(dim()?)),
        Op::IndexSelect => {
            let dim = dim()?;
            Some(
                (0..operand.operand_extents.len())
                    .map(|_| (operand.operand_extents.len() == 1 && operand.is_same(0, dim)).then_some(dim))
                    .collect(),
            )
        }
        Op::TakeAlongAxis | Op::TorchGather if operand.position == 0 => all_others(dim()?),
        Op::TakeAlongAxis | Op::TorchGather => Some(others(all)),
        _ => None,
    }
}
