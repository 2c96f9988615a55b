//! `linear`.

use super::*;

/// `x[…, k] · w[n, k]ᵀ + b[n]`.
pub(super) struct Linear;

impl Rule for Linear {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (&[x, weight, ref bias @ ..], Some(out)) = (args, check.stmt.out_tensor()) else { return };
        let (x_dims, w_dims) = (check.dims(x), check.dims(weight));
        // A product that is split over devices along k has a device axis of partial sums.
        let partial = |axis: &AxisId| check.program.is_partial(out, *axis);
        let out_dims: Vec<AxisId> = check.dims(out).into_iter().filter(|axis| !partial(axis)).collect();
        if w_dims.len() != 2 {
            return check.rank_error(weight, w_dims.len(), 2);
        }
        if out_dims.len() != x_dims.len() || x_dims.is_empty() {
            return check.rank_error(out, out_dims.len(), x_dims.len());
        }
        let last = x_dims.len() - 1;
        if check.unequal(x_dims[last], w_dims[1]) && !check.unequal(x_dims[last], w_dims[0]) {
            return check.transposed_weight(
                weight,
                &w_dims,
                "`linear` multiplies by the transposed weight, so the weight is `[n, k]`",
            );
        }
        check.equal_axes(x, x_dims[last], weight, w_dims[1]);
        for (position, arg) in [(1, weight), (0, x)] {
            for (a, b) in check.mapped(position) {
                check.equal_axes(arg, a, out, b);
            }
        }
        for bias in bias {
            match check.dims(*bias)[..] {
                [only] => check.equal_axes(*bias, only, out, out_dims[last]),
                ref other => check.rank_error(*bias, other.len(), 1),
            }
        }
        check.types_of_product(args, out);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (mut found, weight) = (operands.dims(0)?, operands.dims(1)?);
        let [columns, _] = weight.as_slice() else { return None };
        *found.last_mut()? = columns.clone();
        Some(found)
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let (own, count) = (operand.own_dims(), operand.operand_extents.len());
        let columns = parallel_or_whole(own.last().copied());
        let rows = |at: usize| {
            if at + 1 == count { DimMap::Reduction } else { parallel_or_whole(own.get(at).copied()) }
        };
        let dims = match operand.position {
            0 => (0..count).map(rows).collect(),
            1 => vec![columns, DimMap::Reduction],
            _ => vec![columns],
        };
        Some(OperandMap::Dims(dims))
    }

    fn unmapped_dim(&self, program: &Program, stmt: &OpStmt, axis: AxisId) -> ResultDim {
        partial_or_broadcast(program, stmt, axis)
    }

    fn is_matrix_product(&self) -> bool {
        true
    }

    fn add_ranks(&self, program: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.known.extend(args.get(1).map(|it| (*it, 2)));
        ranks.known.extend(args.get(2).map(|it| (*it, 1)));
        ranks.equations.push((args[0], out, partial_sums(program, out), RankCount::WithoutReductions));
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::Any
    }

    fn keeps_meaning_without(&self, lost: &LostDim<'_>) -> bool {
        // The columns are those of the weight, which is a matrix.
        !lost.maps.get(1).is_some_and(|maps| maps.contains(&DimMap::Parallel(lost.dim)))
    }
}
