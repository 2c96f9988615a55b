//! Operators whose operands have dimensions that correspond to those of the result: products, reductions, and unknown functions.

use grammar::{
    DimMap, OperandMap, attr, dims_of_first_result,
    dtype::DType,
    ir::{Attr, ExprId},
    operand_map,
    ops::Op,
    scalars::Value,
    words::ReductionOp,
};
use ndarray::{ArrayView1, Axis, IxDyn, indices};

use super::{Call, Computed, Tensor, fit, misfit};
use crate::{
    field::{Combine, Element},
    tensor::{Array, array, reshape},
    unroll::is_integral,
};

/// Returns an operand in the dimensions of a result, with extent 1 for those that it does not have, and one more that has all elements on
/// which an element of the result depends.
pub(super) fn aligned<T: Clone>(from: &Array<T>, maps: &[DimMap], rank: usize) -> Option<Array<T>> {
    let place = |map: &DimMap| match map {
        DimMap::Parallel(to) | DimMap::InGroups { to, .. } | DimMap::Broadcast(to) => *to,
        DimMap::Reduction | DimMap::RequiresWhole => rank,
    };
    let mut shape = vec![1; rank + 1];
    let fits = maps.len() == from.ndim() && maps.iter().all(|it| place(it) <= rank);
    let mut order: Vec<usize> = (0..from.ndim()).filter(|_| fits).collect();
    order.iter().for_each(|at| shape[place(&maps[*at])] *= from.shape()[*at]);
    order.sort_by_key(|at| place(&maps[*at]));
    reshape(&fits.then(|| from.clone().permuted_axes(order))?, &shape)
}

impl Call<'_> {
    fn maps(&self, at: usize) -> Computed<Vec<DimMap>> {
        match operand_map(self.program, self.stmt, at, &|it| self.integer(it).ok()) {
            Some(OperandMap::Dims(maps)) => Ok(maps),
            Some(OperandMap::Groups(_)) | None => {
                Err("hir-certify does not know how its result depends on its operands".to_owned())
            }
        }
    }

    /// Returns an operand in the dimensions of the first result.
    fn aligned(&self, at: usize) -> Computed<Tensor> {
        fit(aligned(self.arg(at)?, &self.maps(at)?, self.shape().len()))
    }

    /// Returns an element for all scalars and words of the statement, such as `largest=True`.
    pub(super) fn attributes(&self) -> Computed<Element> {
        let mut scalars = Vec::new();
        self.stmt.scalars(&mut |it| scalars.push(it));
        let scalars = scalars.into_iter().map(|it| self.element(it)).collect::<Computed<Vec<_>>>()?;
        let words = self.stmt.attrs.iter().map(|(name, it)| match it {
            Attr::Word(it) => format!("{name}={}", it.text()),
            Attr::Name(it) => format!("{name}={it}"),
            _ => name.to_string(),
        });
        Ok(self.algebra.apply(("attributes", words.collect::<Vec<_>>()), scalars))
    }

    // ---- products

    /// Sums of products of the first two operands. A device axis of partial sums of the result divides the summed dimension.
    pub(super) fn product(&self) -> Computed<Tensor> {
        let (mut a, b, out) = (self.aligned(0)?, self.aligned(1)?, self.compute.outs[0].0);
        if self.stmt.op == Op::Embedding {
            a = self.selected_rows(&a)?;
        }
        let partial = self.program.dimensions(out).position(|it| self.program.is_partial(out, it));
        let (rank, parts) = (self.shape().len(), partial.map_or(1, |dim| self.shape()[dim]));
        let len = a.shape()[rank];
        let divided = |it: Tensor| {
            let shape = [&it.shape()[..rank], &[parts, len / parts.max(1)]].concat();
            let mut it = reshape(&it, &shape)?;
            partial.iter().for_each(|dim| it.swap_axes(*dim, rank));
            Some(it.index_axis_move(Axis(rank), 0))
        };
        let (a, b) = (fit(divided(a))?, fit(divided(b))?);
        let shape = [self.shape(), &[len / parts.max(1)]].concat();
        let (a, b) = (fit(a.broadcast(&shape[..]))?, fit(b.broadcast(&shape[..]))?);
        let rows = a.lanes(Axis(rank)).into_iter().zip(b.lanes(Axis(rank)));
        let mut found = array(self.shape(), rows.map(|(a, b)| Element::dot(a, b)).collect());
        if self.args.len() > 2 {
            let bias = self.aligned(2)?.index_axis_move(Axis(rank), 0);
            let bias = bias.broadcast(self.shape()).filter(|_| parts == 1);
            found.zip_mut_with(&fit(bias)?, |sum, it| *sum = *sum + *it);
        }
        Ok(found)
    }

    /// Returns the factor that an index has for each row of the table: an unknown function of the index and of the row's index.
    fn selected_rows(&self, index: &Tensor) -> Computed<Tensor> {
        if self.stmt.get(attr::MAX_NORM).is_some() {
            return Err("hir-certify does not know tables that are normalised".to_owned());
        }
        let rows = fit(self.compute.args.get(1).and_then(|it| it.1.held.first()))?;
        let factors = index.iter().flat_map(|it| rows.iter().map(|row| self.is_row(*it, *row)));
        let shape = [&index.shape()[..self.shape().len()], &[rows.len()]].concat();
        Ok(array(&shape, factors.collect()))
    }

    fn is_row(&self, index: Element, row: usize) -> Element {
        self.algebra.apply("is the row", [index, Element::of_integer(row as i64)])
    }

    /// Adds rows to those that the indices select.
    pub(super) fn add_rows(&self) -> Computed<Tensor> {
        let (mut found, index, rows) = (self.arg(0)?.clone(), self.arg(1)?, self.arg(2)?);
        let width = |it: &Tensor| it.shape().get(1..).map(<[usize]>::to_vec);
        if width(&found).is_none() || width(&found) != width(rows) || rows.shape()[0] != index.len() {
            return misfit();
        }
        for (number, mut sum) in found.outer_iter_mut().enumerate() {
            for (at, row) in index.iter().zip(rows.outer_iter()) {
                let factor = self.is_row(*at, number);
                sum.zip_mut_with(&row, |sum, it| *sum = *sum + factor * *it);
            }
        }
        Ok(found)
    }

    // ---- reductions

    pub(super) fn reduce(&self) -> Computed<Tensor> {
        let is_bool = self.result_dtype() == DType::Bool;
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
            |it: &ExprId| matches!(self.scalar(*it), Ok(Value::Int(it)) if it.unsigned_abs() >> 31 != 0);
        let initial = self.stmt.get(attr::INITIAL_VALUE).filter(|it| !is_extreme(it));
        let initial = initial.map(|it| self.element(it)).transpose()?;
        let integral = self.compute.args.first().is_some_and(|it| is_integral(self.program, it.0));
        let all = |group: ArrayView1<'_, Element>| {
            let group: Vec<Element> = group.iter().copied().chain(initial).collect();
            self.algebra.combine(how, integral, &group)
        };
        Ok(self.aligned(0)?.map_axis(Axis(self.shape().len()), all).into_shared())
    }

    pub(super) fn statistics(&self) -> Computed<Vec<Tensor>> {
        let (groups, axis) = (self.aligned(0)?, Axis(self.shape().len()));
        let mean = |it: ArrayView1<'_, Element>| self.algebra.combine(Combine::Average, false, &it.to_vec());
        let means = groups.map_axis(axis, mean);
        let mut squares = groups.clone();
        for mut it in squares.axis_iter_mut(axis) {
            it.zip_mut_with(&means, |it, mean| *it = (*it - *mean) * (*it - *mean));
        }
        let squares = squares.map_axis(axis, |it| it.iter().copied().sum());
        let counts = means.map(|_| Element::of_integer(groups.len_of(axis) as i64));
        let all = [means, squares, counts].map(|it| it.into_shared()).into();
        if self.args.len() == 1 { Ok(all) } else { misfit() }
    }

    // ---- unknown functions

    /// Operators that are an unknown function of what their results depend on, and of the index in dimensions that no operand has.
    pub(super) fn unknown(&self) -> Computed<Vec<Tensor>> {
        let dropout = self.stmt.get(attr::DROPOUT_P).map(|it| self.scalar(it)).transpose()?;
        if dropout.is_some_and(|it| it.real() != 0.0) {
            return Err("hir-certify does not know attentions with a dropout".to_owned());
        }
        let maps = (0..self.args.len()).map(|at| self.maps(at)).collect::<Computed<Vec<_>>>()?;
        let attributes = self.attributes()?;
        let result = |number: usize| {
            // The state of random numbers is the seed 0 and the offset.
            if self.stmt.op == Op::Sdpa && number > 1 {
                let offset = self.stmt.get(attr::RNG_OFFSET).filter(|_| number == 3);
                let state = offset.map_or(Ok(Element::default()), |it| self.element(it))?;
                return Ok(Tensor::from_elem(&self.compute.shapes[number][..], state));
            }
            self.unknown_result(number, &maps, attributes)
        };
        (0..self.compute.shapes.len()).map(result).collect()
    }

    fn unknown_result(&self, number: usize, maps: &[Vec<DimMap>], attributes: Element) -> Computed<Tensor> {
        let (shape, whole) = (&self.compute.shapes[number], &self.compute.outs[number].1.whole);
        let own = dims_of_first_result(self.program, self.stmt, number);
        let place = |to: usize| own.iter().position(|it| *it == Some(to));
        let groups = maps.iter().flatten().find_map(|it| match it {
            DimMap::InGroups { to, count } => Some((place(*to)?, usize::try_from(*count).ok()?)),
            _ => None,
        });
        // A dimension in groups becomes two: the group, and the index in it.
        let groups = groups.map(|(at, count)| (at, (count * shape[at] / whole[at].max(1)).max(1)));
        let mut wide = shape.clone();
        groups.iter().for_each(|(at, count)| _ = wide.splice(at..=at, [*count, shape[*at] / count]));
        let parallel = |to: &usize| {
            let place = place(*to).map(|at| at + usize::from(groups.is_some_and(|it| it.0 < at)));
            place.map_or(DimMap::RequiresWhole, DimMap::Parallel)
        };
        let mut is_mapped = vec![false; wide.len()];
        let mut operands = Vec::new();
        for (values, maps) in self.args.iter().zip(maps) {
            let dims = values.data.shape().iter().zip(maps).flat_map(|(extent, map)| match (map, groups) {
                (DimMap::InGroups { to, .. }, Some((_, count))) => {
                    vec![(count, parallel(to)), (extent / count, DimMap::RequiresWhole)]
                }
                (DimMap::Parallel(to) | DimMap::Broadcast(to), _) => vec![(*extent, parallel(to))],
                _ => vec![(*extent, DimMap::RequiresWhole)],
            });
            let (extents, maps): (Vec<usize>, Vec<DimMap>) = dims.unzip();
            for it in &maps {
                if let DimMap::Parallel(to) = it {
                    is_mapped[*to] = true;
                }
            }
            let it = reshape(&values.data, &extents).and_then(|it| aligned(&it, &maps, wide.len()));
            let hash = |it: ArrayView1<'_, Element>| self.algebra.apply("operand", it.iter().copied());
            let it = fit(it)?.map_axis(Axis(wide.len()), hash);
            operands.push(fit(it.broadcast(&wide[..]))?.to_owned());
        }
        let mut columns: Vec<_> = operands.iter().map(|it| it.iter().copied()).collect();
        let element = |index: IxDyn| {
            let own = (0..wide.len()).filter(|at| !is_mapped[*at]);
            let place = own.fold(0, |all, at| all * wide[at] + index[at]);
            let operands = columns.iter_mut().filter_map(Iterator::next).chain([attributes]);
            self.algebra.apply((self.stmt.op, number, place), operands)
        };
        let elements = indices(&wide[..]).into_iter().map(element).collect();
        Ok(array(shape, elements))
    }
}
