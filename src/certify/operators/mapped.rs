//! Operators whose operands have dimensions that correspond to those of the result: products, reductions, and unknown functions.

use super::*;

/// Returns an operand in the dimensions of a result, with extent 1 for those that it does not have, and one more that has all elements on
/// which an element of the result depends.
pub(super) fn aligned<T: Clone>(from: &Array<T>, maps: &[DimMap], rank: usize) -> Option<Array<T>> {
    let place = |at: &usize| match maps[*at] {
        DimMap::Parallel(to) | DimMap::InGroups { to, .. } | DimMap::Broadcast(to) => to,
        DimMap::Reduction | DimMap::RequiresWhole => rank,
    };
    let mut order: Vec<usize> = (0..maps.len()).collect();
    if maps.len() != from.ndim() || order.iter().any(|at| place(at) > rank) {
        return None;
    }
    let mut shape = vec![1; rank + 1];
    order.iter().for_each(|at| shape[place(at)] *= from.shape()[*at]);
    order.sort_by_key(place);
    reshape(&from.clone().permuted_axes(order), &shape)
}

/// Returns the sums of the products of corresponding elements along the last dimension.
fn contracted(shape: &[usize], a: &Tensor, b: &Tensor) -> Option<Tensor> {
    let (rank, wide) = (shape.len(), [shape, &[*a.shape().last()?]].concat());
    let (a, b) = (a.broadcast(&wide[..])?, b.broadcast(&wide[..])?);
    let rows = a.lanes(Axis(rank)).into_iter().zip(b.lanes(Axis(rank)));
    Some(array(shape, rows.map(|(a, b)| Element::dot(a.iter().zip(b))).collect()))
}

impl Call<'_> {
    fn maps(&self, at: usize) -> Computed<Vec<DimMap>> {
        match operand_map(self.of.program, self.of.stmt, at, &|it| self.integer(it)) {
            Some(OperandMap::Dims(maps)) => Ok(maps),
            Some(OperandMap::Groups(_)) | None => {
                Err("hir-certify does not know how its result depends on its operands")
            }
        }
    }

    /// Returns an operand in the dimensions of the first result.
    fn aligned(&self, at: usize) -> Computed<Tensor> {
        aligned(self.arg(at)?, &self.maps(at)?, self.shape().len()).ok_or(MISFIT)
    }

    /// Returns an element for all scalars and words of the statement, such as `largest=True`.
    pub(super) fn attributes(&self) -> Computed<Element> {
        let mut scalars = Vec::new();
        self.of.stmt.scalars(&mut |it| scalars.push(self.element(it)));
        let words = self.of.stmt.attrs.iter().map(|(name, it)| match it {
            Attr::Word(it) => format!("{name}={}", it.text()),
            Attr::Name(it) => format!("{name}={it}"),
            _ => name.to_string(),
        });
        let words = ("attributes", words.collect::<Vec<_>>());
        Ok(self.algebra.apply(words, scalars.into_iter().collect::<Computed<Vec<_>>>()?))
    }

    // ---- products

    /// Sums of products of the first two operands. A device axis of partial sums of the result divides the summed dimension.
    pub(super) fn product(&self) -> Computed<Tensor> {
        let Compute { program, stmt, outs, .. } = self.of;
        let (mut a, b, rank) = (self.aligned(0)?, self.aligned(1)?, self.shape().len());
        if stmt.op == Op::Embedding {
            a = self.selected_rows(&a)?;
        }
        let partial = program.dimensions(outs[0].0).position(|it| program.is_partial(outs[0].0, it));
        let divided = |it: Tensor| {
            let Some(dim) = partial else { return Some(it) };
            let (parts, len) = (self.shape()[dim], it.shape()[rank]);
            let mut it = reshape(&it, &[&it.shape()[..rank], &[parts, len / parts.max(1)]].concat())?;
            it.swap_axes(dim, rank);
            Some(it.index_axis_move(Axis(rank), 0))
        };
        let (a, b) = divided(a).zip(divided(b)).ok_or(MISFIT)?;
        let found = contracted(self.shape(), &a, &b).ok_or(MISFIT)?;
        if self.args.len() <= 2 {
            return Ok(found);
        }
        let bias = self.aligned(2)?.index_axis_move(Axis(rank), 0);
        if partial.is_some_and(|dim| self.shape()[dim] > 1) {
            return Err(MISFIT);
        }
        map(self.shape(), &[found, bias], |it| it[0] + it[1])
    }

    /// Returns the factor that an index has for each row of the table: an unknown function of the index and of the row's index.
    fn selected_rows(&self, index: &Tensor) -> Computed<Tensor> {
        if self.of.stmt.get(attr::MAX_NORM).is_some() {
            return Err("hir-certify does not know tables that are normalised");
        }
        let rows = self.of.args.get(1).and_then(|it| it.1.held.first()).ok_or(MISFIT)?;
        let factors = index.iter().flat_map(|it| rows.iter().map(|row| self.is_row(*it, *row)));
        let shape = [&index.shape()[..self.shape().len()], &[rows.len()]].concat();
        Ok(array(&shape, factors.collect()))
    }

    fn is_row(&self, index: Element, row: usize) -> Element {
        self.algebra.apply("is the row", [index, Element::of_integer(row as i64)])
    }

    // ---- reductions

    pub(super) fn reduce(&self) -> Computed<Tensor> {
        let Compute { program, stmt, outs, args, .. } = self.of;
        let name = stmt.get(attr::OP).ok_or("its `op` is missing")?.text();
        let how = Combine::named(name, self.dtype(outs[0].0) == DType::Bool).ok_or("its `op` is unknown")?;
        // The lowest or highest integer is neutral.
        let is_extreme =
            |it: &ExprId| matches!(self.scalar(*it), Ok(Value::Int(it)) if it.unsigned_abs() >> 31 != 0);
        let initial = stmt.get(attr::INITIAL_VALUE).filter(|it| !is_extreme(it));
        let initial = initial.map(|it| self.element(it)).transpose()?;
        let integral = args.first().is_some_and(|it| is_integral(program, it.0));
        let all = |group: ArrayView1<'_, Element>| {
            let group: Vec<Element> = group.iter().copied().chain(initial).collect();
            self.algebra.combine(how, integral, &group)
        };
        Ok(self.aligned(0)?.map_axis(Axis(self.shape().len()), all).into_shared())
    }

    // ---- unknown functions

    /// Operators that are an unknown function of what their results depend on, and of the index in dimensions that no operand has.
    pub(super) fn unknown(&self) -> Computed<Vec<Tensor>> {
        let (stmt, shapes) = (self.of.stmt, &self.of.shapes);
        let dropout = stmt.get(attr::DROPOUT_P).map(|it| self.scalar(it)).transpose()?;
        if dropout.is_some_and(|it| it.real() != 0.0) {
            return Err("hir-certify does not know attentions with a dropout");
        }
        let maps = (0..self.args.len()).map(|at| self.maps(at)).collect::<Computed<Vec<_>>>()?;
        let attributes = self.attributes()?;
        let result = |number: usize| {
            // The state of random numbers is the seed 0 and the offset.
            if stmt.op == Op::Sdpa && number > 1 {
                let offset = stmt.get(attr::RNG_OFFSET).filter(|_| number == 3);
                let state = offset.map_or(Ok(Element::default()), |it| self.element(it))?;
                return Ok(Tensor::from_elem(&shapes[number][..], state));
            }
            self.unknown_result(number, &maps, attributes)
        };
        (0..shapes.len()).map(result).collect()
    }

    fn unknown_result(&self, number: usize, maps: &[Vec<DimMap>], attributes: Element) -> Computed<Tensor> {
        let (shape, whole) = (&self.of.shapes[number], &self.of.outs[number].1.whole);
        let own = dims_of_first_result(self.of.program, self.of.stmt, number);
        // By dimension: how many consecutive indices no operand distinguishes.
        let (mut alike, mut operands) = (shape.clone(), Vec::new());
        for (values, maps) in self.args.iter().zip(maps) {
            // A dimension becomes two: the group, and the index in it, on all of which the result depends.
            let (mut extents, mut dims) = (Vec::new(), Vec::new());
            for (extent, map) in values.data.shape().iter().zip(maps) {
                let (to, count) = match map {
                    DimMap::Parallel(to) | DimMap::Broadcast(to) => (Some(*to), None),
                    DimMap::InGroups { to, count } => (Some(*to), usize::try_from(*count).ok()),
                    DimMap::Reduction | DimMap::RequiresWhole => (None, None),
                };
                let to = to.and_then(|to| own.iter().position(|it| *it == Some(to)));
                let groups = to.map_or(1, |at| match count {
                    Some(it) => (it * shape[at] / whole[at].max(1)).max(1),
                    None => *extent,
                });
                extents.extend([groups, extent / groups.max(1)]);
                dims.extend([to.map_or(DimMap::RequiresWhole, DimMap::Parallel), DimMap::RequiresWhole]);
                let len = |at: usize| if count.is_some() { shape[at] / groups } else { 1 };
                to.into_iter().for_each(|at| alike[at] = alike[at].min(len(at)));
            }
            let it = reshape(&values.data, &extents).and_then(|it| aligned(&it, &dims, shape.len()));
            let hash = |it: ArrayView1<'_, Element>| self.algebra.apply("operand", it.iter().copied());
            operands.push(it.ok_or(MISFIT)?.map_axis(Axis(shape.len()), hash));
        }
        let element = |index: IxDyn| {
            let dims = || index.slice().iter().zip(shape);
            let group = |it: &ArrayD<Element>| {
                let at = dims().zip(it.shape()).map(|((at, all), groups)| at * groups / all);
                it.get(&*at.collect::<Vec<_>>()).copied().unwrap_or_default()
            };
            let place = dims().zip(&alike).fold(0, |all, ((at, _), alike)| all * alike + at % alike);
            let place = Element::of_integer(place as i64);
            let known = [attributes, place].into_iter().chain(operands.iter().map(group));
            self.algebra.apply((self.of.stmt.op, number), known)
        };
        Ok(Tensor::from_shape_fn(&shape[..], element))
    }
}
