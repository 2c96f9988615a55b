//! `matmul`.

use super::*;

/// `a[…, m, k] · b[…, k, n]`.
pub(super) struct Matmul;

impl Rule for Matmul {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (&[a, b], Some(out)) = (args, check.stmt.out_tensor()) else { return };
        let (a_dims, b_dims, mut out_dims) = (check.dims(a), check.dims(b), check.dims(out));
        out_dims.retain(|axis| !check.program.is_partial(out, *axis));
        if let (&[.., _, k], &[.., k2, _]) = (&a_dims[..], &b_dims[..]) {
            if let (true, [n, last]) = (check.unequal(k, k2), &b_dims[..])
                && !check.unequal(k, *last)
                && out_dims.last().is_some_and(|it| !check.unequal(*it, *n))
            {
                let rule = "`matmul` takes `[k, n]`; `linear` takes `[n, k]`: did you mean `linear`?";
                return check.transposed_weight(b, &b_dims, rule);
            }
            let wanted = a_dims.len().max(b_dims.len());
            if out_dims.len() != wanted {
                return check.rank_error(out, out_dims.len(), wanted);
            }
            check.equal_axes(a, k, b, k2);
            // Rows and columns only; the planner compares batch dimensions when their extents are known.
            for (position, arg) in [(0, a), (1, b)] {
                let pair = check.mapped(position).pop();
                pair.into_iter().for_each(|(axis, its)| check.equal_axes(arg, axis, out, its));
            }
        }
        check.types_of_product(&[a, b], out);
    }

    fn result_axes(&self, operands: &mut Operands<'_>) -> Option<Vec<Axis>> {
        let (a, b) = (operands.dims(0)?, operands.dims(1)?);
        let ([batches @ .., rows, _], [others @ .., _, columns]) = (a.as_slice(), b.as_slice()) else {
            return None;
        };
        let batches = if batches.len() < others.len() { others } else { batches };
        Some(batches.iter().chain([rows, columns]).cloned().collect())
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let args = operand.stmt.tensor_operands();
        let other = operand.program.dimensions(*args.get(1 - operand.position.min(1))?).count();
        let (own, count, is_left) =
            (operand.own_dims(), operand.operand_extents.len(), operand.position == 0);
        // A vector operand contributes no dimension to the result.
        let (left, right) = if is_left { (count, other) } else { (other, count) };
        let (rows, columns) = (usize::from(left > 1), usize::from(right > 1));
        // Dimensions are counted from the last one, because batch dimensions are aligned at the end.
        let from_end =
            |back: usize| parallel_or_whole(own.len().checked_sub(back).and_then(|at| own.get(at).copied()));
        let dim = |at: usize| match (count - at, is_left) {
            _ if count == 1 => DimMap::Reduction,
            (1, true) | (2, false) => DimMap::Reduction,
            (2, true) => from_end(1 + columns),
            (1, false) => from_end(1),
            (back, _) => from_end(back - 2 + rows + columns),
        };
        Some(OperandMap::Dims((0..count).map(dim).collect()))
    }

    fn unmapped_dim(&self, program: &Program, stmt: &OpStmt, axis: AxisId) -> ResultDim {
        partial_or_broadcast(program, stmt, axis)
    }

    fn is_matrix_product(&self) -> bool {
        true
    }

    fn add_ranks(&self, program: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        if let [a, b, ..] = *args {
            ranks.products.push((a, b, out, partial_sums(program, out)));
        }
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::Any
    }

    fn keeps_meaning_without(&self, lost: &LostDim<'_>) -> bool {
        let Some(out) = lost.stmt.out_tensor() else { return false };
        let is_own = |(_, axis): &(usize, AxisId)| !lost.program.is_partial(out, *axis);
        // Without the partial-sum dimension, the last two dimensions are rows and columns.
        let own = lost.program.dimensions(out).enumerate().filter(is_own);
        let is_batch = own.skip_while(|(at, _)| *at != lost.dim).count() > 2;
        let follows = |map: &DimMap| matches!(map, DimMap::Parallel(_) | DimMap::Reduction);
        is_batch && lost.maps.iter().flatten().all(follows)
    }
}
