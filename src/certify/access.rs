//! Which elements of its operands an element of a result depends on.
//!
//! Operators have a meaning on whole tensors only: the dimension maps of `grammar` and the attributes of the statement say which indices
//! of an operand belong to an index of a result. A rank computes the elements of its part, for which it has to hold these elements.

use super::*;

/// A statement with the parts of tensors that it reads and writes on a rank.
#[derive(Clone)]
pub(crate) struct Statement<'p> {
    pub(crate) program: &'p Program,
    pub(crate) stmt: &'p OpStmt,
    pub(crate) args: Vec<(TensorId, Part)>,
    pub(crate) outs: Vec<(TensorId, Part)>,
    /// The values of the scalars that the statement states, and of the extents of its tensors.
    pub(crate) values: FxHashMap<ExprId, Value>,
}

/// A result, or the reason why the statement is not certified.
pub(crate) type Computed<T> = Result<T, &'static str>;

pub(crate) const MISFIT: &str = "the shapes of its operands do not match";

/// The elements of an operand on which an element of a result depends.
pub(crate) enum Access {
    Dims(Vec<Dim>),
    /// The element with the same row-major number, between these shapes.
    Reshaped(Vec<usize>, Vec<usize>),
}

/// The indices in one dimension of an operand: `len` of them from `start + step * (index / by)` on, where `index` is that of dimension `to`
/// of the result. None beyond its extent.
#[derive(Clone, Copy)]
pub(crate) struct Dim {
    pub(crate) to: Option<usize>,
    pub(crate) by: usize,
    start: i64,
    step: i64,
    len: usize,
    extent: usize,
}

impl Access {
    /// Returns the elements for one element of the result.
    pub(crate) fn block(&self, index: &[usize]) -> Vec<Range<usize>> {
        let range = |it: &Dim| {
            let at = it.to.map_or(0, |to| index[to] / it.by) as i64;
            let start = usize::try_from(it.start.saturating_add(it.step.saturating_mul(at)));
            start.ok().filter(|start| *start < it.extent).map_or(0..0, |start| start..start + it.len)
        };
        match self {
            Self::Dims(dims) => dims.iter().map(range).collect(),
            Self::Reshaped(from, to) => {
                unravel(ravel(index, to), from).into_iter().map(|at| at..at + 1).collect()
            }
        }
    }
}

impl Statement<'_> {
    pub(crate) fn integer(&self, expr: ExprId) -> Option<i64> {
        if let Value::Int(it) = self.values.get(&expr)? { Some(*it) } else { None }
    }

    fn map(&self, at: usize) -> Option<OperandMap> {
        operand_map(self.program, self.stmt, at, &|it| self.integer(it))
    }

    /// Returns the access of a result to an operand.
    pub(crate) fn access(&self, at: usize, result: usize) -> Computed<Access> {
        let Self { program, stmt, .. } = *self;
        let (arg, Part { whole: from, .. }) = self.args.get(at).ok_or(MISFIT)?;
        let to = &self.outs[result].1.whole;
        let maps = match self.map(at) {
            Some(OperandMap::Dims(it)) if it.len() == from.len() => it,
            Some(OperandMap::Groups(_)) if from.iter().product::<usize>() == to.iter().product::<usize>() => {
                return Ok(Access::Reshaped(from.clone(), to.clone()));
            }
            Some(_) => return Err(MISFIT),
            None => return Err("hir-certify does not know how its result depends on its operands"),
        };
        let all = |dim: usize| Dim { to: None, by: 1, start: 0, step: 0, len: from[dim], extent: from[dim] };
        let shifted = |dim, start| Dim { to: Some(dim), start, step: 1, len: 1, ..all(dim) };
        let mut dims = (0..from.len())
            .map(|dim| self.dim(maps[dim], all(dim), result))
            .collect::<Option<Vec<_>>>()
            .ok_or(MISFIT)?;
        let size = |it| usize::try_from(self.integer(it)?).ok();
        match stmt.op {
            Op::Slice => {
                for (dim, [start, stop, step]) in stmt.get(attr::RANGES).ok_or(MISFIT)?.iter().enumerate() {
                    if slice_takes_all(program, stmt, *arg, dim, &|it| self.integer(it)) {
                        continue;
                    }
                    let [start, stop, step] = [*start, *stop, *step].map(|it| size(it).ok_or(MISFIT));
                    let (start, stop, step) = (start?, stop?, step?);
                    let fits = start <= stop && stop <= from[dim] && step > 0;
                    if !fits || (stop - start).div_ceil(step) != to[dim] {
                        return Err(MISFIT);
                    }
                    dims[dim] = Dim { step: step as i64, ..shifted(dim, start as i64) };
                }
            }
            Op::Select | Op::HirAliasSelect => {
                if let Some(dim) = selected_dim(program, stmt, *arg) {
                    let index = if from[dim] == 1 { Some(0) } else { stmt.get(attr::INDEX).and_then(size) };
                    let start = index.filter(|it| *it < from[dim]).ok_or(MISFIT)? as i64;
                    dims[dim] = Dim { start, len: 1, ..all(dim) };
                }
            }
            Op::Cat => {
                let Some(Operand::Scalar(dim)) = stmt.args.last() else { return Err(MISFIT) };
                let dim = size(*dim).filter(|it| *it < from.len()).ok_or(MISFIT)?;
                let extents = self.args.iter().map(|it| it.1.whole.get(dim).copied().unwrap_or(0));
                if extents.clone().sum::<usize>() != to[dim] {
                    return Err(MISFIT);
                }
                dims[dim] = shifted(dim, -(extents.take(at).sum::<usize>() as i64));
            }
            Op::Pad => {
                let widths = stmt.get(attr::WIDTHS).unwrap_or_default();
                for (dim, sides) in widths.chunks_exact(2).enumerate() {
                    let [before, after] = [0, 1].map(|it| self.integer(sides[it]).ok_or(MISFIT));
                    let (before, sum) = (before?, i128::from(before?) + i128::from(after?));
                    if from.get(dim).map(|it| *it as i128 + sum) != to.get(dim).map(|it| *it as i128) {
                        return Err(MISFIT);
                    }
                    dims[dim] = shifted(dim, before.saturating_neg());
                }
            }
            _ => {}
        }
        Ok(Access::Dims(dims))
    }

    /// Returns the dimension of partial sums of a product, which divides the summed dimension of the operands.
    pub(crate) fn partial(&self, out: TensorId) -> Option<usize> {
        let rule = self.stmt.op.def().type_rule;
        let is_product = matches!(rule, TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding);
        let mut dims = self.program.dimensions(out);
        dims.position(|it| is_product && self.program.is_partial(out, it))
    }

    /// Returns the access along one dimension of an operand; `all` is that to all of the dimension.
    fn dim(&self, map: DimMap, all: Dim, result: usize) -> Option<Dim> {
        let (out, Part { whole, .. }) = &self.outs[result];
        let own = dims_of_first_result(self.program, self.stmt, result);
        let place = |to: usize| own.iter().position(|it| *it == Some(to));
        let (to, groups) = match map {
            DimMap::Parallel(to) => (place(to), Some(all.extent)),
            DimMap::InGroups { to, count } => (place(to), usize::try_from(count).ok()),
            DimMap::Reduction => (self.partial(*out), self.partial(*out).map(|at| whole[at])),
            // The index in the only group does not matter.
            DimMap::Broadcast(to) => return Some(Dim { to: place(to), ..all }),
            DimMap::RequiresWhole => (None, None),
        };
        let (Some(at), Some(groups)) = (to, groups) else { return Some(all) };
        let is_same = matches!(map, DimMap::Parallel(_)) && whole[at] != all.extent;
        let fits = !is_same && all.extent.is_multiple_of(groups) && whole[at].is_multiple_of(groups);
        let [len, by] = [all.extent, whole[at]].map(|it| it / groups.max(1));
        fits.then_some(Dim { to, by: by.max(1), step: len as i64, len, ..all })
    }

    /// Returns whether a rank computes its part of the first result from its parts of the operands, if it holds all elements that it needs:
    /// it holds no others of corresponding dimensions, and all indices of those that cannot be divided.
    pub(crate) fn is_aligned(&self) -> bool {
        let Some((out, to)) = self.outs.first() else { return true };
        if self.args.iter().map(|it| &it.1).chain([to]).all(|it| it.shape() == it.whole) {
            return true;
        }
        let is_copy = self.stmt.op.def().type_rule == TypeRule::Same;
        let mut all = Vec::new();
        for (at, (_, from)) in self.args.iter().enumerate() {
            let maps = match self.map(at) {
                Some(OperandMap::Groups(_)) => return from.len() == to.len(),
                Some(OperandMap::Dims(it)) if it.len() == from.whole.len() => it,
                Some(OperandMap::Dims(_)) | None => return false,
            };
            for (dim, map) in maps.iter().enumerate() {
                let other = match map {
                    DimMap::Parallel(at) | DimMap::InGroups { to: at, .. } => Some(*at),
                    DimMap::Reduction => self.partial(*out),
                    DimMap::Broadcast(_) | DimMap::RequiresWhole => None,
                };
                let share = |other: usize| {
                    from.held[dim].len() * to.whole[other] == to.held[other].len() * from.whole[dim]
                };
                if !is_copy && !other.is_none_or(share) {
                    return false;
                }
            }
            all.push(maps);
        }
        let mut results =
            result_dims(self.program, self.stmt, &all).into_iter().zip(to.held.iter().zip(&to.whole));
        results.all(|(it, (held, extent))| it != ResultDim::RequiresWhole || held.len() == *extent)
    }

    /// Returns the positions in the first operand of the elements of the first result, if it consists of elements of the operand.
    pub(crate) fn moved(&self) -> Option<Vec<usize>> {
        let (access, from) = (self.access(0, 0).ok()?, &self.args[0].1);
        let position = |index: Vec<usize>| match from.positions(&access.block(&index))?[..] {
            [only] => Some(only),
            _ => None,
        };
        self.outs[0].1.indices().map(position).collect()
    }
}
