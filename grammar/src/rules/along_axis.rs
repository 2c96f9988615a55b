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
            Op::TopK => {
                check.equal_types(&[base, out]);
                if let Some(indices) = Program::tensors_of(&check.stmt.outs).nth(1) {
                    check.integers(indices, "the indices");
                }
            }
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
    // As `others`, for operators that use the first elements of a longer operand, from index 0: the dimensions in which all
    // operands, and the result, have the same extent. `takeAlongAxis` broadcasts an extent of 1.
    let in_all = |selected: Option<usize>| -> Vec<Option<usize>> {
        let others: Vec<_> =
            operand.stmt.tensor_operands().into_iter().map(|it| extents(operand.program, it)).collect();
        let is_broadcast = operand.stmt.op == Op::TakeAlongAxis;
        let fits = |at: usize| {
            others.iter().all(|it| {
                let same = it.get(at).zip(operand.result_extents.get(at));
                same.is_some_and(|(a, b)| are_equal(operand.value, *a, *b))
                    || is_broadcast && operand.is_one(it, at)
            })
        };
        (0..operand.operand_extents.len())
            .map(|at| ((selected == Some(at) || fits(at)) && operand.is_same(at, at)).then_some(at))
            .collect()
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
        Op::Scatter => Some(without(in_all(None), dim()?)),
        Op::IndexSelect if operand.position == 0 => Some(others(dim()?)),
        Op::IndexSelect => {
            let dim = dim()?;
            Some(
                (0..operand.operand_extents.len())
                    .map(|_| (operand.operand_extents.len() == 1 && operand.is_same(0, dim)).then_some(dim))
                    .collect(),
            )
        }
        Op::TakeAlongAxis | Op::TorchGather if operand.position == 0 => Some(without(in_all(None), dim()?)),
        Op::TakeAlongAxis | Op::TorchGather => Some(in_all(Some(dim()?))),
        _ => None,
    }
}

/// Returns the maps, with one dimension needed whole.
fn without(mut maps: Vec<Option<usize>>, dim: usize) -> Vec<Option<usize>> {
    if let Some(map) = maps.get_mut(dim) {
        *map = None;
    }
    maps
}
