//! `Set.Permute`. `dims` states the axis of the operand that each axis of the result is. Where a text does not have it, as those of
//! nvFuser, the numbers of the result's axes state the order in which the operand has them, and the reader adds `dims`.

use super::*;

/// How the text of a permutation states it.
const RULE: &str = "for each axis of the result, the number of the operand's axis, from 0";

/// The same axes in another order.
pub(super) struct Permute;

impl Rule for Permute {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.ranks(args, 0);
        let (Some(first), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let rank = check.dims(first).len();
        let is_order = |order: &[usize]| (0..order.len()).all(|at| order.contains(&at));
        if let Some(dims) = check.stmt.get(attr::DIMS)
            && (dims.len() != rank || !order_of(check.program, dims).is_some_and(|it| is_order(&it)))
        {
            let message =
                format!("`Set.Permute`: `dims` is not an order of {}", count_text(rank, "dimension"));
            let help = format!("write each number from 0 to {} once: {RULE}", rank.saturating_sub(1));
            check.error(Code::ShapeMismatch, message, "not an order");
            if let Some(it) = check.acc.last_mut() {
                it.help = Some(help.into_boxed_str());
            }
            return;
        }
        let errors = check.acc.len();
        check.equal_pairs(first, out, check.mapped(0));
        if check.acc.len() > errors {
            let help = match check.fitting_dims(first, out) {
                Some(dims) => format!("write `{dims}`: {RULE}"),
                None => "the result has the axes of the operand in another order".to_owned(),
            };
            check.acc[errors].help = Some(help.into_boxed_str());
        }
        check.equal_types(&[first, out]);
        check.warn_of_identity(first, out);
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let order = permutation(operand.program, operand.stmt);
        let dim = |at| parallel_or_whole(order.iter().position(|from| *from == at));
        Some(OperandMap::Dims((0..order.len()).map(dim).collect()))
    }

    fn unmapped_dim(&self, _: &Program, _: &OpStmt, _: AxisId) -> ResultDim {
        ResultDim::Broadcast
    }

    fn add_ranks(&self, _: &Program, args: &[TensorId], out: TensorId, ranks: &mut RankFacts) {
        ranks.equal(args[0], out);
    }

    fn aliasing(&self) -> Aliasing {
        Aliasing::View(OperandView::Permuted)
    }

    fn part_operands(&self, _: &OpStmt) -> PartOperands {
        PartOperands::All
    }

    fn keeps_meaning_without(&self, _: &LostDim<'_>) -> bool {
        true
    }

    fn axes_state(&self) -> AxesState {
        AxesState::Order
    }
}

impl Check<'_, '_> {
    /// Returns the attribute with which the result has the extents of the operand's axes; `None` if there is none. Of axes with
    /// equal extents, the earlier ones correspond to each other.
    fn fitting_dims(&self, operand: TensorId, out: TensorId) -> Option<String> {
        let mut free: Vec<Option<i64>> = self.dims(operand).iter().map(|it| self.constant(*it)).collect();
        let mut order = Vec::new();
        for axis in self.dims(out) {
            let extent = Some(self.constant(axis)?);
            let at = free.iter().position(|it| *it == extent)?;
            free[at] = None;
            order.push(at);
        }
        (order.len() == free.len()).then(|| dims_text(&order))
    }

    /// Warns of a permutation that keeps the order of the axes.
    fn warn_of_identity(&mut self, operand: TensorId, out: TensorId) {
        let order = permutation(self.program, self.stmt);
        let is_in_unit = self.program.tensors[out].unit.is_some();
        if is_in_unit || order.len() < 2 || self.dims(operand).len() != order.len() || !order.is_sorted() {
            return;
        }
        let name = self.program.tensor_name(out);
        let message =
            format!("this `Set.Permute` moves nothing: `{name}` has the axes in the order of the operand");
        let mut swapped = order;
        let last = swapped.len() - 1;
        swapped.swap(last - 1, last);
        let it = Diagnostic::new(Code::IdentityPermute, self.place(out), message, "the same order");
        self.acc.push(it.help(format!(
            "`{}` exchanges the last two axes: {RULE}; write `Set` for a copy",
            dims_text(&swapped)
        )));
    }
}

/// Returns for each dimension of a permutation's result the corresponding dimension of the operand.
pub fn permutation(program: &Program, stmt: &OpStmt) -> Vec<usize> {
    let stated = stmt.get(attr::DIMS).and_then(|dims| order_of(program, dims));
    stated.unwrap_or_else(|| stmt.out_tensor().map_or_else(Vec::new, |out| order_by_numbers(program, out)))
}

/// Returns the numbers that `dims` lists; `None` if one is not a constant.
fn order_of(program: &Program, dims: &[ExprId]) -> Option<Vec<usize>> {
    dims.iter().map(|dim| program.constant(*dim).and_then(|dim| usize::try_from(dim).ok())).collect()
}

/// Returns the order that the numbers of the axes state: they are numbered in the order of the operand, and listed in that of the
/// result.
fn order_by_numbers(program: &Program, out: TensorId) -> Vec<usize> {
    let numbers: Vec<u32> = program.dimensions(out).map(|axis| program.axes[axis].number).collect();
    let rank = |number: &u32| numbers.iter().filter(|it| *it < number).count();
    numbers.iter().map(rank).collect()
}

/// Adds `dims` to all permutations that do not have it.
pub(crate) fn state_permutations(program: &mut Program) {
    for id in program.stmts.ids() {
        let Stmt::Op(stmt) = &program.stmts[id] else { continue };
        if stmt.op != Op::Permute || stmt.get(attr::DIMS).is_some() {
            continue;
        }
        let order = permutation(program, stmt);
        let dims: Vec<ExprId> = order.iter().map(|dim| program.intern_int(*dim as i64)).collect();
        if let Stmt::Op(stmt) = &mut program.stmts[id] {
            stmt.set(attr::DIMS, dims);
        }
    }
}

fn dims_text(order: &[usize]) -> String {
    let order: Vec<String> = order.iter().map(usize::to_string).collect();
    format!("dims = {{{}}}", order.join(", "))
}
