//! Which dimension of an operand becomes which dimension of the result.

use grammar::{
    attr, dim_map, flagged_dims,
    ir::{AxisKind, ExprId, OpStmt, Program, TensorId},
    ops::Rule,
    selected_dim,
};

use crate::analysis::sharding::{Dim, Sharding, same};

/// What becomes of an operand's dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It is this dimension of the result, index by index.
    Kept(usize),
    /// The operator sums over it, or combines it in another way.
    Summed,
    /// The operator needs all of it, or repeats it.
    Whole,
}

/// What becomes of the dimensions of the operand at `position` among the tensors that the operator reads; `None` where
/// the operator moves elements in a way that is not told by dimensions.
pub(crate) fn fates(
    program: &Program,
    stmt: &OpStmt,
    args: &[TensorId],
    position: usize,
) -> Option<Vec<Fate>> {
    let out = stmt.out_tensor()?;
    let arg = *args.get(position)?;
    let count = program.dimensions(arg).count();
    // The result's own dimensions: those that count partial sums have no counterpart.
    let plain: Vec<usize> =
        (0..program.dimensions(out).count()).filter(|at| !is_partial(program, out, *at)).collect();
    let kept = |at: Option<&usize>| at.map_or(Fate::Whole, |at| Fate::Kept(*at));
    // Counted from the last dimension, as batches are.
    let from_end = |back: usize| plain.len().checked_sub(back).and_then(|at| plain.get(at));
    let fates = match stmt.op.row().rule {
        Rule::Same | Rule::Cast | Rule::Pointwise => (0..count).map(Fate::Kept).collect(),
        Rule::Linear => match position {
            0 => (0..count)
                .map(|at| if at + 1 == count { Fate::Summed } else { kept(plain.get(at)) })
                .collect(),
            1 => vec![kept(plain.last()), Fate::Summed],
            _ => vec![kept(plain.last())],
        },
        Rule::Matmul => {
            let other = program.dimensions(*args.get(1 - position.min(1))?).count();
            // One-dimensional operands have no dimension of their own in the result.
            let columns = usize::from(position == 0 && other > 1 || position == 1 && count > 1);
            let rows = usize::from(position == 0 && count > 1 || position == 1 && other > 1);
            let batches = |at: usize| kept(from_end(count - 2 - at + rows + columns));
            match (position, count) {
                (_, 1) => vec![Fate::Summed],
                (0, _) => (0..count)
                    .map(|at| match count - at {
                        1 => Fate::Summed,
                        2 => kept(from_end(1 + columns)),
                        _ => batches(at),
                    })
                    .collect(),
                _ => (0..count)
                    .map(|at| match count - at {
                        1 => kept(from_end(1)),
                        2 => Fate::Summed,
                        _ => batches(at),
                    })
                    .collect(),
            }
        }
        Rule::Reduce => {
            let mut at = 0;
            let logical = &program.tensors[out].domains.logical;
            let fate = |axis: &_| {
                if program.axes[*axis].kind == AxisKind::Reduction {
                    return Fate::Summed;
                }
                at += 1;
                Fate::Kept(at - 1)
            };
            logical.iter().map(fate).collect()
        }
        Rule::Broadcast => {
            let new = flagged_dims(program, stmt, out);
            (0..new.len()).filter(|at| !new[*at]).map(Fate::Kept).collect()
        }
        Rule::Squeeze => {
            let mut at = 0;
            let fate = |gone: bool| {
                at += usize::from(!gone);
                if gone { Fate::Summed } else { Fate::Kept(at - 1) }
            };
            flagged_dims(program, stmt, arg).into_iter().map(fate).collect()
        }
        Rule::Permute => {
            let numbers: Vec<u32> = program.dimensions(out).map(|it| program.axes[it].number).collect();
            let mut sorted = numbers.clone();
            sorted.sort_unstable();
            sorted.iter().map(|number| kept(numbers.iter().position(|it| it == number).as_ref())).collect()
        }
        Rule::Slice => {
            let ranges = stmt.get(attr::RANGES)?;
            let is = |expr: ExprId, value| program.constant(expr) == Some(value);
            let takes_all = |at: usize, [start, stop, step]: [ExprId; 3]| {
                let whole = extent(program, arg, at).is_some_and(|it| same(program, it, stop));
                is(start, 0) && is(step, 1) && whole
            };
            let fate = |(at, range)| if takes_all(at, range) { Fate::Kept(at) } else { Fate::Whole };
            ranges.iter().copied().enumerate().map(fate).collect()
        }
        Rule::Reshape => reshape(program, arg, out)?,
        Rule::Free => {
            let to = |dim: Option<usize>| dim.map_or(Fate::Whole, Fate::Kept);
            dim_map(program, stmt, position)?.into_iter().map(to).collect()
        }
        Rule::Select => {
            let gone = selected_dim(program, stmt, arg);
            let fate = |at| match gone {
                Some(gone) if at == gone => Fate::Whole,
                Some(gone) if at > gone => Fate::Kept(at - 1),
                Some(_) | None => Fate::Kept(at),
            };
            (0..count).map(fate).collect()
        }
        Rule::Generate | Rule::Shard | Rule::Communicate => return None,
    };
    let is_one = |tensor, dim| extent(program, tensor, dim).and_then(|it| program.constant(it)) == Some(1);
    let unless_repeated = |(at, fate)| match fate {
        Fate::Kept(to) if is_one(arg, at) && !is_one(out, to) => Fate::Whole,
        fate => fate,
    };
    let fates: Vec<Fate> = Vec::into_iter(fates).enumerate().map(unless_repeated).collect();
    (fates.len() == count).then_some(fates)
}

/// Dimensions fall into groups of the same size on both sides. What cuts the first dimension of a group cuts the first one
/// of its counterpart, if it divides both; the others are needed whole.
fn reshape(program: &Program, arg: TensorId, out: TensorId) -> Option<Vec<Fate>> {
    let (arg, out) = (Sharding::of(program, arg)?, Sharding::of(program, out)?);
    let extents = |sharding: &Sharding| -> Option<Vec<i64>> {
        sharding.dims.iter().map(|dim| program.constant(dim.extent)).collect()
    };
    let (from, to) = (extents(&arg)?, extents(&out)?);
    let parts = |dim: &Dim| -> Option<i64> {
        dim.pieces.iter().try_fold(1i64, |parts, piece| parts.checked_mul(program.constant(piece.count)?))
    };
    let mut fates = vec![Fate::Whole; from.len()];
    let (mut a, mut b) = (0, 0);
    while a < from.len() || b < to.len() {
        let (first_a, first_b) = (a, b);
        let (mut size_a, mut size_b) = (1i64, 1i64);
        loop {
            match size_a <= size_b && a < from.len() {
                true => (size_a, a) = (size_a.checked_mul(from[a])?, a + 1),
                false if b < to.len() => (size_b, b) = (size_b.checked_mul(to[b])?, b + 1),
                false => return None,
            }
            if size_a == size_b {
                break;
            }
        }
        let wide = |extents: &[i64], first: usize, end: usize| (first..end).find(|at| extents[*at] != 1);
        let (Some(a), Some(b)) = (wide(&from, first_a, a), wide(&to, first_b, b)) else { continue };
        let (of_a, of_b) = (parts(&arg.dims[a])?, parts(&out.dims[b])?);
        let divides = |parts: i64| parts > 0 && from[a] % parts == 0 && to[b] % parts == 0;
        if divides(of_a) && divides(of_b) {
            fates[a] = Fate::Kept(b);
        }
    }
    Some(fates)
}

/// The tensors that an operator reads, positional ones first.
pub(crate) fn operands(stmt: &OpStmt) -> Vec<TensorId> {
    let keyed = stmt.attrs.iter().filter_map(|(_, attr)| attr.tensor());
    Program::tensors_of(&stmt.args).chain(keyed).collect()
}

/// The extent of a dimension.
pub(crate) fn extent(program: &Program, tensor: TensorId, dim: usize) -> Option<ExprId> {
    let axis = program.dimensions(tensor).nth(dim)?;
    Some(program.axes[axis].expanded.unwrap_or(program.axes[axis].extent))
}

/// Whether a dimension counts partial sums over devices.
pub(crate) fn is_partial(program: &Program, tensor: TensorId, dim: usize) -> bool {
    program.dimensions(tensor).nth(dim).is_some_and(|axis| program.is_partial(tensor, axis))
}
