//! Which elements of its operands an element of a result depends on.
//!
//! Operators have a meaning on whole tensors only: the dimension maps of `grammar` and the attributes of the statement say which indices
//! of an operand belong to an index of a result. A rank computes the elements of its part, for which it has to hold these elements.

use super::*;

/// A statement with the parts of tensors that it reads and writes on a rank, and the values of its scalars.
pub(crate) struct Statement<'p> {
    pub(crate) program: &'p Program,
    pub(crate) stmt: &'p OpStmt,
    pub(crate) scalars: Scalars<'p>,
    pub(crate) args: Vec<(TensorId, Part)>,
    pub(crate) outs: Vec<(TensorId, Part)>,
}

pub(crate) const MISFIT: &str = "the shapes of its operands do not match";

pub(crate) const NOT_HELD: &str = "it needs elements of other ranks, which hir-certify does not gather";

/// The indices in one dimension of an operand: `len` of them from `start + step * (index / by)` on, where `index` is that of dimension `to`
/// of the result. None beyond its extent.
#[derive(Clone, Copy)]
pub(crate) struct Dim {
    pub(crate) to: Option<usize>,
    pub(crate) by: usize,
    start: i64,
    step: i64,
    len: usize,
    pub(crate) extent: usize,
}

/// Returns the elements of an operand on which an element of the result depends, by the accesses in each dimension.
pub(crate) fn block(dims: &[Dim], index: &[usize]) -> Vec<Range<usize>> {
    let range = |it: &Dim| {
        let at = it.to.map_or(0, |to| index[to] / it.by) as i64;
        let start = usize::try_from(it.start.saturating_add(it.step.saturating_mul(at)));
        start.ok().filter(|start| *start < it.extent).map_or(0..0, |start| start..start + it.len)
    };
    dims.iter().map(range).collect()
}

impl Statement<'_> {
    /// Returns the value of a scalar.
    pub(crate) fn value(&self, scalar: ExprId) -> Computed<Value> {
        self.scalars.eval(scalar).map_err(|_| "a scalar has no value that hir-certify can compute".into())
    }

    /// Returns the accesses of a result to an operand, in each of its dimensions.
    pub(crate) fn access(&self, at: usize, result: usize) -> Computed<Vec<Dim>> {
        let Self { program, stmt, .. } = *self;
        let ((arg, Part { whole: from, .. }), to) = (&self.args[at], &self.outs[result].1.whole);
        let maps = match operand_map(program, stmt, at, &|it| self.scalars.int(it).ok()) {
            Some(OperandMap::Dims(it)) if it.len() == from.len() => it,
            Some(_) => return Err(MISFIT.into()),
            // It may depend on all of the operand.
            None => vec![DimMap::RequiresWhole; from.len()],
        };
        let all = |dim: usize| Dim { to: None, by: 1, start: 0, step: 0, len: from[dim], extent: from[dim] };
        let shifted = |dim, start| Dim { to: Some(dim), start, step: 1, len: 1, ..all(dim) };
        let dims = maps.iter().enumerate().map(|(dim, map)| self.dim(*map, all(dim), result));
        let mut dims = dims.collect::<Option<Vec<_>>>().ok_or(MISFIT)?;
        let known = |it: ExprId| self.scalars.int(it).map_err(|_| MISFIT.to_owned());
        match stmt.op {
            Op::Slice => {
                let ranges = stmt.get(attr::RANGES).unwrap_or_default().iter().enumerate();
                for (dim, [start, stop, step]) in ranges.take(from.len().min(to.len())) {
                    let (start, stop, step) = (known(*start)?, known(*stop)?, known(*step)?);
                    let is_inside = start >= 0 && stop <= from[dim] as i64 && step > 0;
                    let count = || (start..stop).step_by(step as usize).count();
                    require(is_inside && count() == to[dim], MISFIT)?;
                    dims[dim] = Dim { step, ..shifted(dim, start) };
                }
            }
            Op::Select | Op::HirAliasSelect => {
                if let Some((dim, axis)) = selected_dim(program, stmt, *arg).zip(stmt.get(attr::AXIS)) {
                    // A broadcast axis, and the part of one that ranks divide, have one index, with any number.
                    let (kind, extent) = (program.axes[axis].kind, program.axes[axis].extent);
                    let is_any = kind == AxisKind::Broadcast || size(&self.scalars, extent) > Some(1);
                    let index = stmt.get(attr::INDEX).filter(|_| from[dim] > 1 || !is_any);
                    dims[dim] = Dim { start: index.map_or(Ok(0), known)?, len: 1, ..all(dim) };
                }
            }
            Op::Cat => {
                let Some(Operand::Scalar(dim)) = stmt.args.last() else { return Err(MISFIT.into()) };
                let dim = size(&self.scalars, *dim).filter(|it| *it < from.len()).ok_or(MISFIT)?;
                let before = self.args[..at].iter().map(|it| it.1.whole.get(dim).copied().unwrap_or(0));
                dims[dim] = shifted(dim, -(before.sum::<usize>() as i64));
            }
            Op::Pad => {
                let widths = stmt.get(attr::WIDTHS).unwrap_or_default().chunks_exact(2);
                for (dim, sides) in widths.enumerate().take(from.len().min(to.len())) {
                    let (before, after) = (known(sides[0])?, known(sides[1])?);
                    let sum = before.saturating_add(after).saturating_add(from[dim] as i64);
                    require(sum == to[dim] as i64, MISFIT)?;
                    dims[dim] = shifted(dim, before.saturating_neg());
                }
            }
            _ => {}
        }
        Ok(dims)
    }

    /// Returns the dimension of partial sums of a product, which divides the summed dimension of the operands.
    pub(crate) fn partial(&self, out: TensorId) -> Option<usize> {
        let rule = self.stmt.op.def().type_rule;
        let is_product = matches!(rule, TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding);
        self.program.dimensions(out).position(|it| is_product && self.program.is_partial(out, it))
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

    /// Returns the positions in the first operand of the elements of the first result, which consists of elements of the operand. Unless
    /// the operator copies, a rank takes the same share of what it has as the operator takes of the whole tensor.
    pub(crate) fn moved(&self) -> Computed<Vec<usize>> {
        let ((_, from), (_, to)) = self.args.first().zip(self.outs.first()).ok_or(MISFIT)?;
        let rule = self.stmt.op.def().type_rule;
        let [has, takes] = [from, to].map(|it| it.whole.iter().product::<usize>());
        let dims = if rule == TypeRule::Reshape { None } else { Some(self.access(0, 0)?) };
        require(dims.is_some() || has == takes, MISFIT)?;
        let position = |index: Vec<usize>| {
            // A reshape keeps the row-major number.
            let reshaped = || unravel(ravel(&index, &to.whole), &from.whole).into_iter().map(|at| at..at + 1);
            let block = dims.as_ref().map_or_else(|| reshaped().collect(), |dims| block(dims, &index));
            let found = from.positions(&block).ok_or(NOT_HELD)?;
            if let [only] = found[..] { Ok(only) } else { Err(MISFIT.into()) }
        };
        let positions = to.indices().map(position).collect::<Computed<Vec<_>>>()?;
        let used = positions.iter().collect::<FxHashSet<_>>().len();
        let is_share = used * has == from.len() * takes.min(has);
        if rule == TypeRule::Same || is_share { Ok(positions) } else { Err(NOT_HELD.into()) }
    }
}
