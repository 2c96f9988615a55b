//! What operators compute, on elements of the field.
//!
//! Copies, sums, products, quotients and selections are exact. Conversions between floating-point types change nothing, since rounding
//! is not part of the model. Integers are integers of 64 bits. Every other elementwise operator is an unknown function of its
//! operands, and so is the exponential of an attention.

use grammar::{
    arithmetic::{Constant, fold_infix},
    attr,
    dtype::{Class, DType},
    flagged_dims,
    ir::{AxisKind, ExprId, InfixOp, OpStmt, Operand, Program, TensorId},
    ops::{Op, OpClass, TypeRule},
    permutation,
    rules::{Aliasing, OperandView},
    scalars::Value,
    selected_dim, slice_takes_all,
    words::ReductionOp,
};

use crate::{
    field::{Algebra, Combine, Element},
    part::Part,
    unroll::is_integral,
    view::{Values, View},
};

/// A statement with its operands and the parts of its results that it computes.
pub(crate) struct Call<'a> {
    pub(crate) program: &'a Program,
    pub(crate) stmt: &'a OpStmt,
    pub(crate) args: &'a [Values],
    /// Where the operands are in whole tensors.
    pub(crate) arg_parts: &'a [Part],
    pub(crate) outs: &'a [(TensorId, Part)],
    pub(crate) shapes: &'a [Vec<usize>],
    pub(crate) value: &'a dyn Fn(ExprId) -> Option<Value>,
    pub(crate) algebra: &'a Algebra,
}

/// The reason why a statement is not certified.
pub(crate) type Computed<T> = Result<T, String>;

fn misfit<T>() -> Computed<T> {
    Err("the shapes of its operands do not match".to_owned())
}

impl Call<'_> {
    /// Returns the elements of each result.
    pub(crate) fn compute(&self) -> Computed<Vec<Vec<Element>>> {
        let (op, rule) = (self.stmt.op, self.stmt.op.def().type_rule);
        let one = |it: Computed<Vec<Element>>| it.map(|it| vec![it]);
        if op.def().class == OpClass::Elementwise {
            return one(self.elementwise());
        }
        match (rule, op) {
            (TypeRule::Linear | TypeRule::Matmul, _) => one(self.product()),
            (TypeRule::Reduce, _) => one(self.reduce()),
            (TypeRule::Generate, _) => one(self.generate()),
            (_, Op::TensorConstruct) => match self.stmt.args[..] {
                [Operand::Scalar(it)] if self.shapes[0].iter().product::<usize>() == 1 => {
                    one(Ok(vec![self.element(it)?]))
                }
                _ => Err("hir-certify does not know arrays of scalars".to_owned()),
            },
            (_, Op::Cat) => one(self.cat()),
            (_, Op::Pad) => one(self.pad()),
            (_, Op::Embedding) => one(self.embedding()),
            (_, Op::IndexPutAccumulate) => one(self.add_rows()),
            (_, Op::IndexSelect | Op::TakeAlongAxis | Op::TorchGather) => one(self.take()),
            (_, Op::Welford) => self.statistics(),
            (_, Op::TopK | Op::ArgSort | Op::Scan) => self.of_rows(),
            (_, Op::Sdpa) => self.attention(),
            (_, Op::SdpaBwd) => self.attention_gradient(),
            _ if matches!(self.stmt.rule().aliasing(), Aliasing::View(_)) => one(self.rearrange()),
            _ => Err(format!("hir-certify does not know what `{}` computes", op.name())),
        }
    }

    /// Returns a bound for the degree of the results.
    pub(crate) fn degree(&self) -> u64 {
        let degrees = || self.args.iter().map(|it| it.degree);
        let (op, rule) = (self.stmt.op, self.stmt.op.def().type_rule);
        let is_product = op.def().class != OpClass::Elementwise
            || matches!(op, Op::Mul | Op::Div | Op::Reciprocal | Op::Lerp | Op::Where);
        let is_sum = matches!(
            op,
            Op::Add | Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot | Op::Cat | Op::Pad | Op::Embedding
        ) || matches!(self.stmt.rule().aliasing(), Aliasing::View(_))
            || rule == TypeRule::Reduce && self.stmt.get(attr::OP) != Some(ReductionOp::Mul);
        let terms = self.args.first().map_or(1, |it| it.data.len() as u64);
        match (op, is_sum, is_product) {
            (_, true, _) => degrees().max().unwrap_or(0).max(1),
            (Op::Reduction, ..) => degrees().sum::<u64>().saturating_mul(terms),
            // The reciprocal and the weights of an attention are values of unknown functions.
            (_, false, true) => degrees().fold(2, u64::saturating_add),
            (_, false, false) => 1,
        }
    }

    fn arg(&self, at: usize) -> Computed<&Values> {
        self.args.get(at).ok_or_else(|| "an operand is missing".to_owned())
    }

    fn scalar(&self, expr: ExprId) -> Computed<Value> {
        (self.value)(expr).ok_or_else(|| "a scalar has no value that hir-certify can compute".to_owned())
    }

    fn size(&self, expr: ExprId) -> Computed<usize> {
        match self.scalar(expr)? {
            Value::Int(it) => usize::try_from(it).map_err(|_| "an index is negative".to_owned()),
            Value::Bool(_) | Value::Float(_) => Err("an index is no integer".to_owned()),
        }
    }

    fn element(&self, expr: ExprId) -> Computed<Element> {
        Ok(match self.scalar(expr)? {
            Value::Int(it) => Element::of_integer(it),
            it @ (Value::Bool(_) | Value::Float(_)) => self.algebra.real(it.real()),
        })
    }

    fn dtype(&self, tensor: TensorId) -> DType {
        self.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    /// Returns the elements of an operand, repeated to a shape.
    fn repeated(&self, from: &Values, shape: &[usize]) -> Computed<Values> {
        from.view().broadcast(shape).map_or_else(misfit, |it| Ok(from.gather(&it)))
    }

    // ---- element by element

    fn elementwise(&self) -> Computed<Vec<Element>> {
        let (shape, mut tensors) = (&self.shapes[0], self.args.iter());
        let mut columns = Vec::new();
        let mut integral = true;
        for operand in &self.stmt.args {
            match operand {
                Operand::Tensor(tensor) => {
                    integral &= is_integral(self.program, *tensor);
                    columns.push(Ok(self.repeated(tensors.next().ok_or("an operand is missing")?, shape)?));
                }
                Operand::Scalar(it) => {
                    integral &= !matches!(self.scalar(*it)?, Value::Float(_));
                    columns.push(Err(self.element(*it)?));
                }
                Operand::Stream(_) => return misfit(),
            }
        }
        let row =
            |at: usize| columns.iter().map(move |it| it.as_ref().map_or_else(|it| *it, |it| it.data[at]));
        let mut operands = Vec::new();
        let each = |at| {
            operands.clear();
            operands.extend(row(at));
            self.function(integral, &operands)
        };
        Ok((0..shape.iter().product()).map(each).collect())
    }

    fn function(&self, integral: bool, operands: &[Element]) -> Element {
        let (op, algebra) = (self.stmt.op, self.algebra);
        let unknown = || algebra.apply(op, operands.iter().copied());
        let is_bool = self.dtype(self.outs[0].0) == DType::Bool;
        let combine = |name| algebra.combine(Combine::lattice(name, is_bool), integral, operands);
        match (op, operands) {
            (Op::Add, [a, b]) => *a + *b,
            (Op::Sub, [a, b]) => *a - *b,
            (Op::Mul, [a, b]) => *a * *b,
            (Op::Neg, [a]) => -*a,
            (Op::Div, [a, b]) if !integral => match self.stmt.args[1] {
                Operand::Scalar(_) => *a * b.reciprocal().unwrap_or_else(|| algebra.reciprocal(*b)),
                Operand::Tensor(_) | Operand::Stream(_) => *a * algebra.reciprocal(*b),
            },
            (Op::Reciprocal, [a]) => algebra.reciprocal(*a),
            (Op::Lerp, [a, b, c]) => *a + *c * (*b - *a),
            // Truth values are 0 and 1.
            (Op::Where, [condition, a, b]) => *condition * *a + (Element::ONE - *condition) * *b,
            (Op::LogicalNot, [a]) => Element::ONE - *a,
            (Op::LogicalAnd, _) => combine("and"),
            (Op::LogicalOr, _) => combine("or"),
            (Op::Max | Op::FMax, _) => combine("max"),
            (Op::Min | Op::FMin, _) => combine("min"),
            (Op::Cast, [a]) => self.cast(*a),
            (_, [a, b]) if integral => {
                let known = a.integer().zip(b.integer()).zip(infix(op));
                let folded =
                    known.and_then(|((a, b), op)| fold_infix(op, Constant::Int(a), Constant::Int(b)));
                folded.map_or_else(unknown, |it| Element::of_integer(it.as_int()))
            }
            _ => unknown(),
        }
    }

    fn cast(&self, value: Element) -> Element {
        let to = self.dtype(self.outs[0].0);
        let from = self.stmt.tensor_operands().first().map_or(to, |it| self.dtype(*it));
        let is_float = |it: DType| matches!(it.class(), Class::Float | Class::SmallFloat);
        match (from.class(), to.class(), value.integer()) {
            (Class::Int | Class::Bool, Class::Int, Some(it)) => {
                let lost = 64 - 8 * to.size().clamp(1, 8);
                Element::of_integer(it << lost >> lost)
            }
            (Class::Int, Class::Bool, Some(it)) => Element::of_integer(i64::from(it != 0)),
            (Class::Bool, Class::Int | Class::Bool, _) => value,
            (Class::Int | Class::Bool | Class::Float | Class::SmallFloat, ..) if is_float(to) => value,
            _ => self.algebra.apply(("cast", from.name(), to.name()), [value]),
        }
    }

    // ---- rearrangements

    fn rearrange(&self) -> Computed<Vec<Element>> {
        let (from, args) = (self.arg(0)?, self.stmt.tensor_operands());
        let view = rearranged(
            self.program,
            self.stmt,
            self.value,
            &from.view(),
            args[0],
            self.outs[0].0,
            &self.shapes[0],
        );
        match view {
            Some(view) if view.shape == self.shapes[0] => Ok(from.gather(&view).data.to_vec()),
            _ => misfit(),
        }
    }

    fn cat(&self) -> Computed<Vec<Element>> {
        let Some(Operand::Scalar(dim)) = self.stmt.args.last() else { return misfit() };
        let (dim, shape) = (self.size(*dim)?, &self.shapes[0]);
        if dim >= shape.len() {
            return misfit();
        }
        let whole = View::contiguous(0, shape.clone());
        let (mut found, mut start) = (vec![Element::default(); whole.len()], 0);
        for it in self.args {
            let len = it.shape.get(dim).copied().unwrap_or(0);
            if it.shape.len() != shape.len() || start + len > shape[dim] {
                return misfit();
            }
            place(&mut found, &whole.narrow(dim, start, len), it)?;
            start += len;
        }
        if start == shape[dim] { Ok(found) } else { misfit() }
    }

    fn pad(&self) -> Computed<Vec<Element>> {
        let (from, shape) = (self.arg(0)?, &self.shapes[0]);
        let widths = self.stmt.get(attr::WIDTHS).unwrap_or_default();
        if widths.len() != 2 * shape.len() || from.shape.len() != shape.len() {
            return misfit();
        }
        let (mut source, mut target) = (from.view(), View::contiguous(0, shape.clone()));
        let mut found = vec![Element::default(); target.len()];
        for dim in 0..shape.len() {
            let width = |at: usize| match self.scalar(widths[2 * dim + at])? {
                Value::Int(it) => Ok(i128::from(it)),
                Value::Bool(_) | Value::Float(_) => misfit(),
            };
            let (before, behind) = (width(0)?, width(1)?);
            let (has, wanted) = (from.shape[dim] as i128, shape[dim] as i128);
            let (first, len) = ((-before).max(0), wanted - before.max(0) - behind.max(0));
            if before + behind + has != wanted || len < 0 || first + len > has {
                return misfit();
            }
            source = source.narrow(dim, first as usize, len as usize);
            target = target.narrow(dim, before.max(0) as usize, len as usize);
        }
        place(&mut found, &target, &from.gather(&source))?;
        Ok(found)
    }

    fn generate(&self) -> Computed<Vec<Element>> {
        let (part, shape) = (&self.outs[0].1, &self.shapes[0]);
        if part.shape() != *shape {
            return misfit();
        }
        let scalar = |at: usize| match self.stmt.args.get(at) {
            Some(Operand::Scalar(it)) => self.element(*it),
            _ => misfit(),
        };
        let indices = part.indices();
        match self.stmt.op {
            Op::Full => Ok(vec![scalar(0)?; indices.len()]),
            Op::Iota => {
                let (start, step) = (scalar(1)?, scalar(2)?);
                Ok(indices.into_iter().map(|it| start + step * Element::of_integer(it as i64)).collect())
            }
            Op::Eye => {
                let columns = part.whole.last().copied().unwrap_or(1);
                let is_one = |it: usize| i64::from(it / columns == it % columns);
                Ok(indices.into_iter().map(|it| Element::of_integer(is_one(it))).collect())
            }
            op => {
                // Random numbers: an unknown function of the seed, the offset, the limits and the index.
                let mut state: Vec<Element> = Vec::new();
                state.extend(self.args.iter().flat_map(|it| it.data.iter()));
                self.stmt.scalars(&mut |it| state.extend(self.element(it)));
                let number = |it| self.algebra.apply((op, it), state.iter().copied());
                Ok(indices.into_iter().map(number).collect())
            }
        }
    }

    // ---- indices

    /// Returns an element that is an index below `extent`.
    fn index(&self, it: Element, extent: usize) -> Computed<usize> {
        let index = it.integer().and_then(|it| usize::try_from(it).ok()).filter(|it| *it < extent);
        index.ok_or_else(|| "an index is outside of the axis, or is computed from unknown values".to_owned())
    }

    /// Selects rows of the table. A device axis of partial sums has zeros for the rows that other devices have.
    fn embedding(&self) -> Computed<Vec<Element>> {
        let (index, table) = (self.arg(0)?, self.arg(1)?);
        let [rows, width] = table.shape[..] else { return misfit() };
        let (Some(range), true) = (self.arg_parts.get(1).and_then(|it| it.range(0)), self.args.len() == 2)
        else {
            return misfit();
        };
        let out = self.outs[0].0;
        let is_partial = |it| self.program.is_partial(out, it);
        let partial = self.program.dimensions(out).position(is_partial).map_or(1, |dim| self.shapes[0][dim]);
        let all = self.arg_parts[1].whole[0];
        if partial != 1
            || range.len() != rows
            || self.shapes[0].iter().product::<usize>() != index.data.len() * width
        {
            return Err("its rows are divided in a way that hir-certify does not know".to_owned());
        }
        let mut found = Vec::new();
        for it in index.data.iter() {
            let row = self.index(*it, all)?;
            match row.checked_sub(range.start).filter(|it| *it < rows) {
                Some(at) => found.extend(&table.data[at * width..(at + 1) * width]),
                None => found.resize(found.len() + width, Element::default()),
            }
        }
        Ok(found)
    }

    /// Adds rows to those that the indices name.
    fn add_rows(&self) -> Computed<Vec<Element>> {
        let (base, index, rows) = (self.arg(0)?, self.arg(1)?, self.arg(2)?);
        let mut found = base.data.to_vec();
        let width: usize = base.shape.iter().skip(1).product();
        if base.shape != self.shapes[0] || rows.data.len() != index.data.len() * width {
            return misfit();
        }
        for (it, row) in index.data.iter().zip(rows.data.chunks(width.max(1))) {
            let at = self.index(*it, base.shape[0])? * width;
            found[at..].iter_mut().zip(row).for_each(|(sum, it)| *sum = *sum + *it);
        }
        Ok(found)
    }

    fn take(&self) -> Computed<Vec<Element>> {
        let (from, index, shape) = (self.arg(0)?, self.arg(1)?, &self.shapes[0]);
        let dim = self.size(self.stmt.get(attr::DIM).ok_or("its `dim` is missing")?)?;
        let fits = |(at, extent): (usize, &usize)| at == dim || *extent == 1 || *extent >= shape[at];
        if from.shape.len() != shape.len() || dim >= shape.len() || !from.shape.iter().enumerate().all(fits) {
            return misfit();
        }
        let index = if self.stmt.op == Op::IndexSelect {
            let mut wide = vec![1; shape.len()];
            wide[dim] = index.data.len();
            Values { shape: wide, ..index.clone() }
        } else {
            index.clone()
        };
        let index = self.repeated(&index, shape)?;
        let mut source = from.view();
        for at in (0..shape.len()).filter(|at| *at != dim && from.shape[*at] == 1) {
            source.strides[at] = 0;
        }
        let step = source.strides[dim];
        (source.shape, source.strides[dim]) = (shape.clone(), 0);
        let pick =
            |(base, it): (usize, &Element)| Ok(from.data[base + step * self.index(*it, from.shape[dim])?]);
        source.offsets().into_iter().zip(index.data.iter()).map(pick).collect()
    }

    // ---- sums

    /// Returns the dimensions of the operand that the first result lacks.
    fn reduced(&self) -> Vec<usize> {
        let logical = &self.program.tensors[self.outs[0].0].domains.logical;
        let is_reduced = |at: &usize| self.program.axes[logical[*at]].kind == AxisKind::Reduction;
        (0..logical.len()).filter(is_reduced).collect()
    }

    /// Returns the elements that are combined into each element of the first result.
    fn groups(&self) -> Computed<Vec<Vec<Element>>> {
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

    fn reduce(&self) -> Computed<Vec<Element>> {
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

    fn statistics(&self) -> Computed<Vec<Vec<Element>>> {
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
    fn of_rows(&self) -> Computed<Vec<Vec<Element>>> {
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
    fn product(&self) -> Computed<Vec<Element>> {
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
        let order =
            |dim: usize| std::iter::once(dim).chain((0..target.shape.len()).filter(move |at| *at != dim));
        target = partial
            .map_or_else(|| target.unsqueeze(0), |dim| target.permute(&order(dim).collect::<Vec<_>>()));
        if right.shape.len() == 1 {
            (right, target) = (right.unsqueeze(1), target.unsqueeze(target.shape.len()));
        }
        if left.shape.len() == 1 {
            (left, target) = (left.unsqueeze(0), target.unsqueeze(target.shape.len() - 1));
        }
        let (Some(k), Some(dims)) = (left.shape.last().copied(), target.shape.len().checked_sub(2)) else {
            return misfit();
        };
        let divided = |it: &View, dim: usize| {
            let it = it.split(dim, parts);
            it.permute(
                &std::iter::once(dim).chain((0..it.shape.len()).filter(|at| *at != dim)).collect::<Vec<_>>(),
            )
        };
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

    // ---- attention

    /// Returns the shape of an attention: the number of heads, the heads that share keys and values, rows, keys, columns, width.
    fn heads(&self, query: &Values, key: &Values, value: &Values) -> Computed<[usize; 6]> {
        let ([outer @ .., rows, columns], [others @ .., keys, its], [more @ .., _, width]) =
            (&query.shape[..], &key.shape[..], &value.shape[..])
        else {
            return misfit();
        };
        let (heads, shared): (usize, usize) = (outer.iter().product(), others.iter().product());
        let split = outer.len().saturating_sub(1);
        if its != columns
            || others != more
            || outer.len() != others.len()
            || shared == 0
            || heads % shared != 0
            || outer[..split] != others[..split]
        {
            return misfit();
        }
        let dropout = self.stmt.get(attr::DROPOUT_P).map(|it| self.scalar(it)).transpose()?;
        if dropout.is_some_and(|it| it.real() != 0.0) {
            return Err("hir-certify does not know attentions with a dropout".to_owned());
        }
        Ok([heads, heads / shared, *rows, *keys, *columns, *width])
    }

    fn scale(&self, columns: usize) -> Computed<Element> {
        let root = (columns.max(1) as f64).sqrt().recip();
        self.stmt.get(attr::SCALE).map_or_else(|| Ok(self.algebra.real(root)), |it| self.element(it))
    }

    fn is_causal(&self) -> Computed<bool> {
        let value = self.stmt.get(attr::IS_CAUSAL).map(|it| self.scalar(it)).transpose()?;
        Ok(value.is_some_and(|it| it.real() != 0.0))
    }

    fn attention(&self) -> Computed<Vec<Vec<Element>>> {
        let (query, key, value) = (self.arg(0)?, self.arg(1)?, self.arg(2)?);
        let [heads, group, rows, keys, columns, width] = self.heads(query, key, value)?;
        let scores: Vec<usize> = [&query.shape[..query.shape.len() - 1], &[keys]].concat();
        let added = |tensor: Option<TensorId>| {
            let Some(at) =
                tensor.and_then(|it| self.stmt.tensor_operands().iter().rposition(|arg| *arg == it))
            else {
                return Ok(None);
            };
            self.repeated(self.arg(at)?, &scores).map(Some)
        };
        let mask = self.stmt.get(attr::MASK);
        let is_truth = mask.is_some_and(|it| self.dtype(it) == DType::Bool);
        let (bias, mask) = (added(self.stmt.get(attr::BIAS))?, added(mask)?);
        let (scale, is_causal) = (self.scale(columns)?, self.is_causal()?);
        let (mut out, mut logarithms) = (Vec::new(), Vec::new());
        for row in 0..heads * rows {
            let (first, own) = (row / rows / group * keys, &query.data[row * columns..(row + 1) * columns]);
            let (mut sum, mut weighted) = (Element::default(), vec![Element::default(); width]);
            for at in (0..keys).filter(|at| !is_causal || *at <= row % rows) {
                let its = &key.data[(first + at) * columns..(first + at + 1) * columns];
                let mut score = Element::dot(own, its) * scale;
                score = bias.as_ref().map_or(score, |it| score + it.data[row * keys + at]);
                let masked = mask.as_ref().map(|it| it.data[row * keys + at]);
                score = masked.filter(|_| !is_truth).map_or(score, |it| score + it);
                let weight = self.algebra.apply("weight", [score])
                    * masked.filter(|_| is_truth).unwrap_or(Element::ONE);
                sum = sum + weight;
                let values = &value.data[(first + at) * width..(first + at + 1) * width];
                weighted.iter_mut().zip(values).for_each(|(all, it)| *all = *all + weight * *it);
            }
            let share = self.algebra.reciprocal(sum);
            out.extend(weighted.into_iter().map(|it| it * share));
            logarithms.push(self.algebra.apply("logarithm of a sum", [sum]));
        }
        // The state of random numbers is the seed 0 and the offset.
        let offset = self.stmt.get(attr::RNG_OFFSET).map_or(Ok(Element::default()), |it| self.element(it))?;
        let state = [Element::default(), offset].map(|it| vec![it]);
        let mut found = [out, logarithms].into_iter().chain(state);
        let sized = |shape: &Vec<usize>| match found.next() {
            Some(it) if it.len() == shape.iter().product::<usize>() => Ok(it),
            Some(it) if it.len() == 1 => Ok(vec![it[0]; shape.iter().product()]),
            _ => misfit(),
        };
        self.shapes.iter().map(sized).collect()
    }

    /// The gradients of the query, the keys and the values, for weights that are an unknown function of the score and of the
    /// logarithm of their sum.
    fn attention_gradient(&self) -> Computed<Vec<Vec<Element>>> {
        let [gradient, query, key, value, out, sums, ..] = self.args else {
            return Err("hir-certify does not know this form of `sdpa_bwd`".to_owned());
        };
        let [heads, group, rows, keys, columns, width] = self.heads(query, key, value)?;
        if gradient.shape != out.shape
            || out.data.len() != heads * rows * width
            || sums.data.len() != heads * rows
        {
            return misfit();
        }
        let (scale, is_causal) = (self.scale(columns)?, self.is_causal()?);
        let [mut dq, mut dk, mut dv] = [query, key, value].map(|it| vec![Element::default(); it.data.len()]);
        let add = |to: &mut [Element], by: Element, from: &[Element]| {
            to.iter_mut().zip(from).for_each(|(sum, it)| *sum = *sum + by * *it);
        };
        for row in 0..heads * rows {
            let (first, q, o) = (
                row / rows / group * keys,
                row * columns..(row + 1) * columns,
                row * width..(row + 1) * width,
            );
            let given = &gradient.data[o.clone()];
            let dot = Element::dot(given, &out.data[o]);
            for at in (0..keys).filter(|at| !is_causal || *at <= row % rows) {
                let (k, v) = (
                    (first + at) * columns..(first + at + 1) * columns,
                    (first + at) * width..(first + at + 1) * width,
                );
                let score = Element::dot(&query.data[q.clone()], &key.data[k.clone()]) * scale;
                let weight = self.algebra.apply("weight of a sum", [score, sums.data[row]]);
                let slope = (Element::dot(given, &value.data[v.clone()]) - dot) * weight * scale;
                add(&mut dv[v], weight, given);
                add(&mut dq[q.clone()], slope, &key.data[k.clone()]);
                add(&mut dk[k], slope, &query.data[q.clone()]);
            }
        }
        Ok(vec![dq, dk, dv])
    }
}

/// Writes the elements of a tensor to the places of a view.
fn place(to: &mut [Element], view: &View, from: &Values) -> Computed<()> {
    if view.shape != from.shape {
        return misfit();
    }
    view.offsets().into_iter().zip(from.data.iter()).for_each(|(at, it)| to[at] = *it);
    Ok(())
}

/// Returns the result of an operator that only rearranges elements, as a view of its operand; `None` for other operators, and if the
/// elements have to be copied or are outside of the operand.
pub(crate) fn rearranged(
    program: &Program,
    stmt: &OpStmt,
    value: &dyn Fn(ExprId) -> Option<Value>,
    view: &View,
    arg: TensorId,
    out: TensorId,
    shape: &[usize],
) -> Option<View> {
    let Aliasing::View(shown) = stmt.rule().aliasing() else { return None };
    let integer = |it| match value(it) {
        Some(Value::Int(it)) => Some(it),
        Some(Value::Bool(_) | Value::Float(_)) | None => None,
    };
    let size = |it| usize::try_from(integer(it)?).ok();
    let mut view = view.clone();
    match shown {
        OperandView::Whole => Some(view),
        OperandView::Permuted => {
            let order = permutation(program, stmt);
            (order.len() == view.shape.len()).then(|| view.permute(&order))
        }
        OperandView::Broadcast => {
            for (dim, _) in flagged_dims(program, stmt, out).iter().enumerate().filter(|it| *it.1) {
                view = if dim <= view.shape.len() { view.unsqueeze(dim) } else { return None };
            }
            Some(view)
        }
        OperandView::Squeezed => {
            for (dim, _) in flagged_dims(program, stmt, arg).iter().enumerate().rev().filter(|it| *it.1) {
                view = if view.shape.get(dim) == Some(&1) { view.select(dim, 0) } else { return None };
            }
            Some(view)
        }
        OperandView::Sliced => {
            for (dim, [start, stop, step]) in stmt.get(attr::RANGES)?.iter().enumerate() {
                if slice_takes_all(program, stmt, arg, dim, &integer) {
                    continue;
                }
                let (start, stop, step) = (size(*start)?, size(*stop)?, size(*step)?.max(1));
                let extent = *view.shape.get(dim)?;
                if start > stop || stop > extent {
                    return None;
                }
                view = view.narrow(dim, start, (stop - start).div_ceil(step));
                view.strides[dim] *= step.min(extent.max(1));
            }
            Some(view)
        }
        OperandView::Selected => {
            let Some(dim) = selected_dim(program, stmt, arg) else { return Some(view) };
            let extent = *view.shape.get(dim)?;
            let index = if extent == 1 { 0 } else { size(stmt.get(attr::INDEX)?)? };
            (index < extent).then(|| view.select(dim, index))
        }
        OperandView::Reshaped => view.reshape(shape),
        OperandView::Expanded => view.broadcast(shape),
        OperandView::StreamChunk => None,
    }
}

fn infix(op: Op) -> Option<InfixOp> {
    Some(match op {
        Op::Div => InfixOp::Div,
        Op::Mod => InfixOp::Rem,
        Op::Shl => InfixOp::Shl,
        Op::Shr => InfixOp::Shr,
        Op::BitAnd => InfixOp::BitAnd,
        Op::BitOr => InfixOp::BitOr,
        Op::BitXor => InfixOp::BitXor,
        Op::Eq => InfixOp::Eq,
        Op::Ne => InfixOp::Ne,
        Op::Lt => InfixOp::Lt,
        Op::Le => InfixOp::Le,
        Op::Gt => InfixOp::Gt,
        Op::Ge => InfixOp::Ge,
        _ => return None,
    })
}
