//! `embedding`: rows of a table.

use super::*;

/// `out[…, h] = weight[in[…], h]`: the product of the indices, as rows with a single 1, and the table. If the rows of the table
/// are sharded, the result has a dimension of partial sums, in which the rows of other devices are 0.
pub(super) struct Embedding;

impl Rule for Embedding {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (&[index, weight], Some(out)) = (args, check.stmt.out_tensor()) else { return };
        check.integers(index, "the indices");
        let (rows, table) = (check.dims(index), check.dims(weight));
        let dims: Vec<AxisId> =
            check.dims(out).into_iter().filter(|axis| !check.program.is_partial(out, *axis)).collect();
        if table.len() != 2 {
            return check.rank_error(weight, table.len(), 2);
        }
        if dims.len() != rows.len() + 1 {
            return check.rank_error(out, dims.len(), rows.len() + 1);
        }
        for (axis, other) in rows.iter().zip(&dims) {
            check.equal_axes(index, *axis, out, *other);
        }
        check.equal_axes(weight, table[1], out, dims[rows.len()]);
        check.equal_types(&[weight, out]);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (mut found, weight) = (operands.dims(0)?, operands.dims(1)?);
        found.push(weight.last()?.clone());
        Some(found)
    }

    fn result_dtype(&self, operands: &Operands<'_>) -> Option<DType> {
        operands.dtype(1)
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let own = operand.own_dims();
        let dims = match operand.position {
            0 => {
                (0..operand.operand_extents.len()).map(|at| parallel_or_whole(own.get(at).copied())).collect()
            }
            // With a maximum norm, each element depends on its whole row.
            1 if operand.stmt.get(attr::MAX_NORM).is_some() => vec![DimMap::RequiresWhole; 2],
            1 => vec![DimMap::Reduction, parallel_or_whole(own.last().copied())],
            _ => return None,
        };
        Some(OperandMap::Dims(dims))
    }

    fn unmapped_dim(&self, program: &Program, stmt: &OpStmt, axis: AxisId) -> ResultDim {
        let is_partial = stmt.out_tensor().is_some_and(|out| program.is_partial(out, axis));
        if is_partial { ResultDim::Partial } else { ResultDim::RequiresWhole }
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], _: TensorId, ranks: &mut RankFacts) {
        ranks.known.extend(args.get(1).map(|it| (*it, 2)));
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::AtLeastOne
    }
}
