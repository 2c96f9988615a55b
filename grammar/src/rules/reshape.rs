//! `reshape`.

use super::*;

/// The result has the number of elements of the operand, in row-major order.
pub(super) struct Reshape;

impl Rule for Reshape {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        let (Some(first), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let count = |dims: Vec<AxisId>| {
            dims.into_iter().try_fold(1i64, |count, axis| count.checked_mul(check.constant(axis)?))
        };
        if let (Some(a), Some(b)) = (count(check.dims(first)), count(check.dims(out)))
            && a != b
        {
            let message = format!("`reshape`: the operand has {a} elements and the result has {b}");
            check.error(Code::ShapeMismatch, message, "expected the same number of elements");
        }
        check.equal_types(&[first, out]);
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        Some(OperandMap::Groups(groups(operand)?))
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Reshaped)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }
}

/// Returns the smallest groups of dimensions that have equal numbers of elements on both sides, or `None`
/// if extents are not known or the groups do not match.
fn groups(operand: &MappedOperand<'_>) -> Option<Vec<DimGroup>> {
    let values =
        |extents: &[ExprId]| extents.iter().map(|it| (operand.value)(*it)).collect::<Option<Vec<_>>>();
    let (from, to) = (values(&operand.operand_extents)?, values(&operand.result_extents)?);
    let nothing = from.contains(&0) && to.contains(&0);
    // No elements are in any order: all dimensions are a group if smaller ones do not match.
    let all = || vec![DimGroup { operand: 0..from.len(), result: 0..to.len() }];
    matching_groups(&from, &to).or_else(|| nothing.then(all))
}

fn matching_groups(from: &[i64], to: &[i64]) -> Option<Vec<DimGroup>> {
    let mut groups = Vec::new();
    let (mut a, mut b) = (0, 0);
    while a < from.len() || b < to.len() {
        let (first_a, first_b) = (a, b);
        let (mut size_a, mut size_b) = (1i64, 1i64);
        loop {
            // An empty side has its dimensions up to the empty one, and the other one goes on to its own.
            let is_shorter = size_b == 0 || size_a != 0 && size_a <= size_b;
            if is_shorter && a < from.len() {
                (size_a, a) = (size_a.checked_mul(from[a])?, a + 1);
            } else {
                (size_b, b) = (size_b.checked_mul(*to.get(b)?)?, b + 1);
            }
            if size_a == size_b {
                break;
            }
        }
        groups.push(DimGroup { operand: first_a..a, result: first_b..b });
    }
    Some(groups)
}
