//! Sums, and what is computed of rows: reductions, statistics, products.

use grammar::{
    attr,
    dtype::DType,
    ir::{AxisKind, ExprId},
    ops::TypeRule,
    scalars::Value,
    words::ReductionOp,
};

use super::{Call, Computed, misfit};
use crate::{
    field::{Combine, Element},
    unroll::is_integral,
    view::View,
};

impl Call<'_> {
    /// Returns the dimensions of the operand that the first result lacks.
    pub(super) fn reduced(&self) -> Vec<usize> {
        let logical = &self.program.tensors[self.outs[0].0].domains.logical;
        let is_reduced = |at: &usize| self.program.axes[logical[*at]].kind == AxisKind::Reduction;
        (0..logical.len()).filter(is_reduced).collect()
    }

    /// Returns the elements that are combined into each element of the first result.
    pub(super) fn groups(&self) -> Computed<Vec<Vec<Element>>> {
        let (from, axes) = (self.arg(0)?, self.reduced());
        let kept: Vec<usize> = (0..from.shape.len()).filter(|at| !axes.contains(at)).collect();
        let order = [&kept[..], &axes].concat();
        if order.len() != from.shape.len()
            || !kept.iter().map(|at| from.shape[*at]).eq(self.shapes[0].iter().copied())
        {
            return misfit();
        }
        let count: usize = axes.iter().map(|at| from.shape[*at]).product();
        let moved = from.gather(&from.view().permute(&order));
        let group = |at: usize| moved.data[at * count..(at + 1) * count].to_vec();
        Ok((0..self.shapes[0].iter().product()).map(group).collect())
    }

    pub(super) fn reduce(&self) -> Computed<Vec<Element>> {
        let is_bool = self.dtype(self.outs[0].0) == DType::Bool;
        let how = match self.stmt.get(attr::OP).ok_or("its `op` is missing")? {
            ReductionOp::Add => Combine::Sum,
            ReductionOp::Mul => Combine::Product,
            ReductionOp::Max | ReductionOp::FMax => Combine::lattice("max", is_bool),
            ReductionOp::Min | ReductionOp::FMin => Combine::lattice("min", is_bool),
            ReductionOp::BitAnd | ReductionOp::LogicalAnd => Combine::Lattice("and"),
            ReductionOp::BitOr | ReductionOp::LogicalOr => Combine::Lattice("or"),
            ReductionOp::BitXor => Combine::Lattice("xor"),
        };
        // The lowest or highest integer is neutral.
        let is_extreme =
            |it: &ExprId| matches!((self.value)(*it), Some(Value::Int(it)) if it.unsigned_abs() >> 31 != 0);
        let initial = self.stmt.get(attr::INITIAL_VALUE).filter(|it| !is_extreme(it));
        let initial = initial.map(|it| self.element(it)).transpose()?;
        let integral = self.stmt.tensor_operands().first().is_some_and(|it| is_integral(self.program, *it));
        let all = |mut group: Vec<Element>| {
            group.extend(initial);
            self.algebra.combine(how, integral, &group)
        };
        Ok(self.groups()?.into_iter().map(all).collect())
    }

    pub(super) fn statistics(&self) -> Computed<Vec<Vec<Element>>> {
        let groups = self.groups()?;
        let count = Element::of_integer(groups.first().map_or(0, Vec::len) as i64);
        let mean = |it: &Vec<Element>| self.algebra.combine(Combine::Average, false, it);
        let means: Vec<Element> = groups.iter().map(mean).collect();
        let square = |(group, mean): (&Vec<Element>, &Element)| {
            group.iter().map(|it| (*it - *mean) * (*it - *mean)).sum()
        };
        let squares = groups.iter().zip(&means).map(square).collect();
        let counts = vec![count; groups.len()];
        if self.args.len() == 1 { Ok(vec![means, squares, counts]) } else { misfit() }
    }

    /// Operators that compute each row of an axis from the row: unknown functions of it and of the position in the result.
    pub(super) fn of_rows(&self) -> Computed<Vec<Vec<Element>>> {
        let from = self.arg(0)?;
        let last = from.shape.len().saturating_sub(1);
        let dim = self.stmt.get(attr::DIM).map_or(Ok(last), |it| self.size(it))?;
        let mut options = Vec::new();
        self.stmt.scalars(&mut |it| options.extend(self.element(it)));
        // The words of attributes, such as `largest=True`.
        let words: Vec<String> = self
            .stmt
            .attrs
            .iter()
            .map(|(name, it)| match it {
                grammar::ir::Attr::Word(it) => format!("{name}={}", it.text()),
                grammar::ir::Attr::Name(it) => format!("{name}={it}"),
                _ => String::new(),
            })
            .collect();
        let mut found = Vec::new();
        for (number, shape) in self.shapes.iter().enumerate() {
            let rest = |shape: &[usize]| {
                [shape.get(..dim), shape.get(dim + 1..)]
                    .into_iter()
                    .flatten()
                    .flatten()
                    .copied()
                    .collect::<Vec<_>>()
            };
            if dim >= shape.len() || shape.len() != from.shape.len() || rest(shape) != rest(&from.shape) {
                return misfit();
            }
            let target = View::contiguous(0, shape.clone());
            let mut values = vec![Element::default(); target.len()];
            let rows = |it: &View| {
                View { strides: rest(&it.strides), shape: rest(&it.shape), ..it.clone() }.offsets()
            };
            for (source, base) in rows(&from.view()).into_iter().zip(rows(&target)) {
                let row = (0..from.shape[dim]).map(|at| from.data[source + at * from.view().strides[dim]]);
                let row = self.algebra.apply((self.stmt.op, &words), options.iter().copied().chain(row));
                for at in 0..shape[dim] {
                    values[base + at * target.strides[dim]] = self.algebra.apply((number, at), [row]);
                }
            }
            found.push(values);
        }
        Ok(found)
    }

    /// `linear` and `matmul`. A device axis of partial sums of the result divides the summed dimension.
    pub(super) fn product(&self) -> Computed<Vec<Element>> {
        let (a, b, out) = (self.arg(0)?, self.arg(1)?, self.outs[0].0);
        let (mut left, mut right, mut target) =
            (a.view(), b.view(), View::contiguous(0, self.shapes[0].clone()));
        let mut found = vec![Element::default(); target.len()];
        let is_linear = self.stmt.op.def().type_rule == TypeRule::Linear;
        if is_linear && right.shape.len() == 2 {
            right = right.permute(&[1, 0]);
        }
        let partial = self.program.dimensions(out).position(|it| self.program.is_partial(out, it));
        let parts = partial.map_or(1, |dim| target.shape[dim]);
        // The index of the partial sum is the first dimension.
        target = partial.map_or_else(|| target.unsqueeze(0), |dim| target.to_front(dim));
        if right.shape.len() == 1 {
            (right, target) = (right.unsqueeze(1), target.unsqueeze(target.shape.len()));
        }
        if left.shape.len() == 1 {
            (left, target) = (left.unsqueeze(0), target.unsqueeze(target.shape.len() - 1));
        }
        let (Some(k), Some(dims)) = (left.shape.last().copied(), target.shape.len().checked_sub(2)) else {
            return misfit();
        };
        let divided = |it: &View, dim: usize| it.split(dim, parts).to_front(dim);
        if right.shape.len() < 2
            || dims == 0
            || right.shape[right.shape.len() - 2] != k
            || k % parts.max(1) != 0
        {
            return misfit();
        }
        let (m, n, k) = (target.shape[dims], target.shape[dims + 1], k / parts.max(1));
        let batch = &target.shape[..dims];
        let wide = |it: View, last: [usize; 2]| {
            let mut it = it;
            while it.shape.len() < dims + 2 {
                it = it.unsqueeze(1);
            }
            it.broadcast(&[batch, &last].concat()).map_or_else(misfit, Ok)
        };
        let left = wide(divided(&left, left.shape.len() - 1), [m, k])?;
        let right = wide(divided(&right, right.shape.len() - 2), [k, n])?;
        let columns = right.permute(&(0..dims).chain([dims + 1, dims]).collect::<Vec<_>>());
        let (rows, columns) = (a.gather(&left).data, b.gather(&columns).data);
        let bias = match self.args.get(2) {
            Some(_) if parts > 1 => return misfit(),
            Some(it) => Some(self.repeated(it, &target.shape)?),
            None => None,
        };
        for (at, place) in target.offsets().into_iter().enumerate() {
            let (row, column) = (at / n * k, (at / (m * n) * n + at % n) * k);
            let sum = Element::dot(&rows[row..row + k], &columns[column..column + k]);
            found[place] = bias.as_ref().map_or(sum, |it| sum + it.data[at]);
        }
        Ok(found)
    }
}
