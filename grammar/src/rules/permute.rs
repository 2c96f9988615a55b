//! `Set.Permute`. The numbers of the result's axes state the order in which the operand has them.

use super::*;

/// How the text of a permutation states it.
const RULE: &str =
    "the axes of the result are listed in its own order and numbered in the order of the operand";

/// The same axes in another order.
pub(super) struct Permute;

impl Rule for Permute {
    fn check(&self, check: &mut Check<'_, '_>, args: &[TensorId]) {
        check.ranks(args, 0);
        let (Some(first), Some(out)) = (args.first().copied(), check.stmt.out_tensor()) else { return };
        let errors = check.acc.len();
        check.equal_pairs(first, out, check.mapped(0));
        if check.acc.len() > errors {
            let help = match check.numbered_axes(first, out) {
                Some(axes) => {
                    format!(
                        "number the axes of `{}` as in `[{axes}]`: {RULE}",
                        check.program.tensor_name(out)
                    )
                }
                None => format!("{RULE}, and the extents have to be equal"),
            };
            check.acc[errors].help = Some(help.into_boxed_str());
        }
        check.equal_types(&[first, out]);
        check.warn_of_identity(first, out);
    }

    fn operand_map(&self, operand: &MappedOperand<'_>) -> Option<OperandMap> {
        let order = permutation(operand.program, operand.out);
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
    /// Returns the axes of the result with numbers that give them the extents of the operand's axes; `None` if the two
    /// have other extents. Of axes with equal extents, the earlier ones correspond to each other.
    fn numbered_axes(&self, operand: TensorId, out: TensorId) -> Option<String> {
        let (mut free, theirs) = (self.dims(operand), self.dims(out));
        let operand_dims = free.clone();
        let mut numbers: Vec<u32> = theirs.iter().map(|it| self.program.axes[*it].number).collect();
        numbers.sort_unstable();
        let mut texts = Vec::new();
        for axis in &theirs {
            let extent = self.constant(*axis)?;
            let at = free.iter().position(|it| self.constant(*it) == Some(extent))?;
            let source = free.remove(at);
            let number = numbers.get(operand_dims.iter().position(|it| *it == source)?)?;
            texts.push(axis_text_with_number(self.program, *axis, *number));
        }
        free.is_empty().then(|| texts.join(", "))
    }

    /// Warns of a permutation whose numbers ascend, so that it moves nothing.
    fn warn_of_identity(&mut self, operand: TensorId, out: TensorId) {
        let order = permutation(self.program, out);
        let is_in_unit = self.program.tensors[out].unit.is_some();
        if is_in_unit || order.len() < 2 || self.dims(operand).len() != order.len() || !order.is_sorted() {
            return;
        }
        let name = self.program.tensor_name(out);
        let message = format!("this `Set.Permute` moves nothing: the axis numbers of `{name}` ascend");
        let mut swapped = self.dims(out);
        let last = swapped.len() - 1;
        swapped.swap(last - 1, last);
        let texts: Vec<String> = swapped.iter().map(|it| axis_text(self.program, *it)).collect();
        let label = format!("`{name}` has the axes in the order of the operand");
        let it = Diagnostic::new(Code::IdentityPermute, self.place(out), message, label);
        self.acc.push(it.help(format!(
            "{RULE}: `[{}]` exchanges the last two; write `Set` for a copy",
            texts.join(", ")
        )));
    }
}

/// Returns for each dimension of a permutation's result the corresponding dimension of the operand.
///
/// The axes of the result are numbered in the order of the operand and listed in the order of the result.
pub fn permutation(program: &Program, out: TensorId) -> Vec<usize> {
    let numbers: Vec<u32> = program.dimensions(out).map(|axis| program.axes[axis].number).collect();
    let rank = |number: &u32| numbers.iter().filter(|it| *it < number).count();
    numbers.iter().map(rank).collect()
}
