//! Which dimensions of operands are dimensions of the result, for operators of `Rule::Free` that work along one axis:
//! cat, pad, scan, sorting and indexing.

use crate::{
    attr,
    ir::{AxisKind, ExprId, OpStmt, Operand, Program, TensorId},
    ops::Op,
};

/// For each dimension of the operand at `position` among the tensors that the statement reads (positional ones first):
/// the dimension of the result that it is, index by index; `None` inside where the operator needs all of it. `None`:
/// nothing is known about the operator's dimensions.
pub fn dim_map(program: &Program, stmt: &OpStmt, position: usize) -> Option<Vec<Option<usize>>> {
    let out = stmt.out_tensor()?;
    let keyed = stmt.attrs.iter().filter_map(|(_, attr)| attr.tensor());
    let arg = Program::tensors_of(&stmt.args).chain(keyed).nth(position)?;
    let (mine, theirs) = (extents(program, arg), extents(program, out));
    let same = |a: usize, b: usize| match (mine.get(a), theirs.get(b)) {
        (Some(a), Some(b)) => {
            a == b || program.constant(*a).is_some() && program.constant(*a) == program.constant(*b)
        }
        _ => false,
    };
    // All dimensions but one, where both sides have the same extent.
    let others = |dim: usize| -> Vec<Option<usize>> {
        (0..mine.len()).map(|at| (at != dim && same(at, at)).then_some(at)).collect()
    };
    let all = mine.len();
    // As `others`, of operators that begin at index 0 of a longer operand: then no dimension is the same as another one.
    let all_others = |dim: usize| {
        let is_one = |at: usize| mine.get(at).and_then(|it| program.constant(*it)) == Some(1);
        (0..all).all(|at| at == dim || same(at, at) || is_one(at)).then(|| others(dim))
    };
    let along = |value: ExprId| {
        let (dim, rank) = (program.constant(value)?, theirs.len() as i64);
        usize::try_from(if dim < 0 { dim + rank } else { dim }).ok()
    };
    let dim = || along(stmt.get(attr::DIM)?);
    match stmt.op {
        Op::Cat => match stmt.args.last() {
            Some(Operand::Scalar(dim)) => Some(others(along(*dim)?)),
            _ => None,
        },
        Op::Pad => {
            let widths = stmt.get(attr::WIDTHS)?;
            let is_zero = |at: usize| widths.get(at).is_some_and(|it| program.constant(*it) == Some(0));
            let stays = |at: usize| same(at, at) && is_zero(2 * at) && is_zero(2 * at + 1);
            Some((0..mine.len()).map(|at| stays(at).then_some(at)).collect())
        }
        Op::Scan | Op::ArgSort | Op::TopK => Some(others(dim()?)),
        Op::Scatter => all_others(dim()?),
        Op::IndexSelect if position == 0 => Some(others(dim()?)),
        Op::IndexSelect => {
            let dim = dim()?;
            Some((0..mine.len()).map(|_| (mine.len() == 1 && same(0, dim)).then_some(dim)).collect())
        }
        Op::TakeAlongAxis | Op::TorchGather if position == 0 => all_others(dim()?),
        Op::TakeAlongAxis | Op::TorchGather => Some(others(all)),
        Op::Embedding if stmt.args.len() > 2 => None,
        Op::Embedding if position == 0 => Some(others(all)),
        Op::Embedding => {
            // A maximal norm is one of whole rows.
            let last = theirs.len().checked_sub(1)?;
            let is_plain = stmt.get(attr::MAX_NORM).is_none() && same(1, last);
            Some((0..mine.len()).map(|at| (at == 1 && is_plain).then_some(last)).collect())
        }
        _ => None,
    }
}

/// For each dimension of `wide`, whether a broadcast adds it or a squeeze drops it: `flags =`. Older dialects leave that
/// out, and the broadcast axes tell.
pub fn flagged_dims(program: &Program, stmt: &OpStmt, wide: TensorId) -> Vec<bool> {
    match stmt.get(attr::FLAGS) {
        Some(flags) => flags.to_vec(),
        None => program.dimensions(wide).map(|axis| program.axes[axis].kind == AxisKind::Broadcast).collect(),
    }
}

/// The dimension of the operand that `axis =` of a select names; `None`: a reduction axis.
pub fn selected_dim(program: &Program, stmt: &OpStmt, arg: TensorId) -> Option<usize> {
    let axis = stmt.get(attr::AXIS)?;
    program.dimensions(arg).position(|it| it == axis)
}

fn extents(program: &Program, tensor: TensorId) -> Vec<ExprId> {
    let axes = program.dimensions(tensor).map(|axis| &program.axes[axis]);
    axes.map(|axis| axis.expanded.unwrap_or(axis.extent)).collect()
}
