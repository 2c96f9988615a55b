//! What operators compute from the elements on which a result depends.
//!
//! Copies, sums, products, quotients and selections are exact, if their operands and their result have one type. The floating-point types
//! are one, since rounding is not part of the model. Every other operator is an unknown function of its operands, named by the types.

use super::*;

/// A result of a statement, with its operands.
struct Call<'a> {
    of: &'a Statement<'a>,
    result: usize,
    operands: Vec<Reader<'a>>,
    algebra: &'a Algebra,
    /// By operand, the values of scalars; those of tensors are not read.
    constants: Vec<Computed<Element>>,
    /// An element for all scalars and words of the statement, such as `largest=True`.
    attributes: Computed<Element>,
    /// The types of the operands and of the result.
    types: Vec<DType>,
    /// Whether the result has the type of the operands that it consists of, so that nothing is converted.
    is_exact: bool,
    /// How it combines its operands, if it does so as reductions do.
    how: Option<Combine>,
}

/// What was made of blocks of elements and of a key.
type Rows = FxHashMap<(Vec<Range<usize>>, usize), Rc<[Element]>>;

/// An operand of a result.
struct Reader<'a> {
    access: Access,
    part: &'a Part,
    values: &'a Values,
    /// Which elements the result uses; empty if none was read.
    used: RefCell<Vec<bool>>,
    rows: RefCell<Rows>,
}

impl Reader<'_> {
    /// Returns the elements on which an element of the result depends, in row-major order.
    fn all(&self, index: &[usize]) -> Computed<Vec<Element>> {
        let places = self.part.positions(&self.access.block(index)).ok_or(NOT_HELD)?;
        let mut used = self.used.borrow_mut();
        used.resize(self.values.data.len(), false);
        places.iter().for_each(|at| used[*at] = true);
        Ok(places.iter().map(|at| self.values.data[*at]).collect())
    }

    fn only(&self, index: &[usize]) -> Computed<Element> {
        if let [only] = self.all(index)?[..] { Ok(only) } else { Err(MISFIT) }
    }

    /// Returns what a function makes of the elements and of `key`, which is computed once.
    fn row(
        &self,
        index: &[usize],
        key: usize,
        function: impl FnOnce(Vec<Element>) -> Vec<Element>,
    ) -> Computed<Rc<[Element]>> {
        let key = (self.access.block(index), key);
        if let Some(known) = self.rows.borrow().get(&key) {
            return Ok(known.clone());
        }
        let row: Rc<[Element]> = function(self.all(index)?).into();
        self.rows.borrow_mut().insert(key, row.clone());
        Ok(row)
    }
}

/// Returns the type of a tensor in which hir-certify computes: rounding does not distinguish floating-point types.
fn dtype(program: &Program, tensor: TensorId) -> DType {
    match program.tensors[tensor].dtype.unwrap_or(DType::Float) {
        DType::Index => DType::Int64,
        it if matches!(it.class(), Class::Float | Class::SmallFloat) && it != DType::E2M1x2 => DType::Float,
        it => it,
    }
}

/// Returns the type of a scalar beside others of the type `to`, which it has if that can represent it.
fn dtype_of_scalar(value: Value, to: DType) -> DType {
    match (value, to.class()) {
        (Value::Bool(_), Class::Bool | Class::Int | Class::Float | Class::Complex)
        | (Value::Int(_) | Value::Float(_), Class::Float | Class::Complex) => to,
        (Value::Int(it), Class::Int) if limits(to).contains(&it.into()) => to,
        (Value::Bool(_), _) => DType::Bool,
        (Value::Int(_), _) => DType::Int64,
        (Value::Float(_), _) => DType::Float,
    }
}

fn constant(of: &Statement<'_>, algebra: &Algebra, expr: ExprId) -> Computed<Element> {
    match of.scalars.eval(expr) {
        Ok(Value::Int(it)) => Ok(algebra.integer(it)),
        Ok(it @ (Value::Bool(_) | Value::Float(_))) => Ok(algebra.real(it.real())),
        Err(_) => Err("a scalar has no value that hir-certify can compute"),
    }
}

/// Returns what a statement computes from the parts that its rank holds.
pub(crate) fn results(of: &Statement<'_>, algebra: &Algebra, args: &[Values]) -> Result<Vec<Values>, String> {
    let why = |why| format!("`{}` is not certified: {why}", of.stmt.op.name());
    let result = |at| Call::new(of, at, algebra, args)?.values();
    (0..of.outs.len()).map(|at| result(at).map_err(why)).collect()
}

impl<'a> Call<'a> {
    fn new(of: &'a Statement<'a>, result: usize, algebra: &'a Algebra, args: &'a [Values]) -> Computed<Self> {
        let reader = |(at, values)| {
            let (access, part) = (of.access(at, result)?, &of.args[at].1);
            Ok(Reader { access, part, values, used: RefCell::default(), rows: RefCell::default() })
        };
        let operands = args.iter().enumerate().map(reader).collect::<Computed<Vec<_>>>()?;
        let (stmt, to) = (of.stmt, dtype(of.program, of.outs[result].0));
        let scalar = |it: &Operand| match it {
            Operand::Scalar(it) => constant(of, algebra, *it),
            Operand::Tensor(_) | Operand::Stream(_) => Err(MISFIT),
        };
        let mut scalars = Vec::new();
        stmt.scalars(&mut |it| scalars.push(constant(of, algebra, it)));
        let words = stmt.attrs.iter().map(|(name, it)| match it {
            Attr::Word(it) => format!("{name}={}", it.text()),
            Attr::Name(it) => format!("{name}={it}"),
            Attr::Bool(_) | Attr::DType(_) => format!("{name}={it:?}"),
            _ => name.to_string(),
        });
        let words: Vec<String> = words.collect();
        let attributes =
            scalars.into_iter().collect::<Computed<Vec<_>>>().map(|it| algebra.apply(words, &it));
        // Scalars have the type of the first tensor, or of the result.
        let beside = of.args.iter().skip(usize::from(stmt.op == Op::Where)).last();
        let beside = beside.map_or(to, |it| dtype(of.program, it.0));
        let of_scalar = |it| of.scalars.eval(it).map_or(DType::Bool, |it| dtype_of_scalar(it, beside));
        let mut types: Vec<DType> = of.args.iter().map(|it| dtype(of.program, it.0)).collect();
        if stmt.op.def().class == OpClass::Elementwise || stmt.op.def().type_rule == TypeRule::Generate {
            let type_of = |it: &Operand| match it {
                Operand::Tensor(it) => dtype(of.program, *it),
                Operand::Scalar(it) => of_scalar(*it),
                Operand::Stream(_) => to,
            };
            types = stmt.args.iter().map(type_of).collect();
        }
        let (condition, combined) = match stmt.op {
            Op::Where | Op::Embedding => types.split_at(1.min(types.len())),
            _ => types.split_at(0),
        };
        let is_exact = combined.iter().all(|it| *it == to)
            && (stmt.op != Op::Where || condition == [DType::Bool])
            && !matches!(to.class(), Class::SmallFloat | Class::Composite);
        types.push(to);
        let word = stmt.get(attr::OP).map_or(stmt.op.def().mnemonic, |it| it.text());
        let how = Combine::named(word, to).filter(|_| is_exact);
        let constants = stmt.args.iter().map(scalar).collect();
        Ok(Self { of, result, operands, algebra, constants, attributes, types, is_exact, how })
    }

    fn values(&self) -> Computed<Values> {
        let data = self.of.outs[self.result].1.indices().map(|index| self.element(&index));
        let data = data.collect::<Computed<_>>()?;
        // A rank computes with all that it holds, unless the operator selects.
        let is_unused = |it: &Reader<'_>| it.used.borrow().contains(&false);
        if self.of.stmt.op != Op::Pad && self.operands.iter().any(is_unused) {
            return Err("its operands have elements on which the result does not depend");
        }
        Ok(Values { data, size: self.size() })
    }

    /// Returns the size of the result.
    fn size(&self) -> u64 {
        let sizes = || self.operands.iter().map(|it| it.values.size);
        let (highest, sum) = (sizes().fold(1, u64::max), sizes().fold(2, u64::saturating_add));
        let lens = self.operands.iter().map(|it| it.values.data.len() + 1);
        let count: usize = lens.chain([2]).sum();
        match (self.of.stmt.op.def().type_rule, self.of.stmt.op, self.how) {
            (TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding, ..) => Combine::Sum.size(sum, count),
            (TypeRule::Reduce, _, Some(how)) => how.size(highest, count),
            (_, Op::Div | Op::Where, _) | (_, _, Some(Combine::Product | Combine::Or)) => {
                sum.saturating_add(1)
            }
            (_, _, Some(how)) => how.size(highest, self.of.stmt.args.len()),
            (_, Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot | Op::Cat | Op::Pad, _) => {
                Combine::Sum.size(highest, 2)
            }
            (TypeRule::Generate, ..) => 2,
            _ => 1,
        }
    }

    /// Returns an element of the result, by its index in the whole tensor.
    fn element(&self, index: &[usize]) -> Computed<Element> {
        let Statement { stmt, .. } = self.of;
        match (stmt.op.def().type_rule, stmt.op) {
            (_, Op::Cat | Op::Pad) if self.is_exact => {
                let rows = self.operands.iter().map(|it| it.all(index)).collect::<Computed<Vec<_>>>()?;
                match rows.concat()[..] {
                    [only] => Ok(only),
                    [] if stmt.op == Op::Pad => Ok(Element::default()),
                    _ => Err(MISFIT),
                }
            }
            (TypeRule::AlongAxis | TypeRule::Sdpa | TypeRule::SdpaBwd, op)
                if !matches!(op, Op::Cat | Op::Pad) =>
            {
                self.unknown(index)
            }
            _ if self.result > 0 => Err(MISFIT),
            _ if stmt.op.def().class == OpClass::Elementwise => self.elementwise(index),
            (TypeRule::Generate, _) | (_, Op::TensorConstruct) => self.generated(index),
            _ if !self.is_exact => Err("its operands and its result have different element types"),
            (TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding, _) => self.product(index),
            (TypeRule::Reduce, _) => {
                let how = self.how.ok_or("hir-certify does not know its `op` of these elements")?;
                let to = dtype(self.of.program, self.of.outs[0].0);
                let value = |it| self.of.scalars.eval(it).map_err(|_| "its initial value is unknown");
                let initial = stmt.get(attr::INITIAL_VALUE).map(|it| Ok((it, value(it)?))).transpose()?;
                let initial = initial.filter(|it| !how.is_neutral(it.1, to));
                if initial.is_some_and(|it| dtype_of_scalar(it.1, to) != to) {
                    return Err("its initial value is no element of its type");
                }
                let mut all = self.operands.first().ok_or(MISFIT)?.all(index)?;
                all.extend(initial.map(|it| constant(self.of, self.algebra, it.0)).transpose()?);
                Ok(self.algebra.combine(how, &all))
            }
            _ => Err("hir-certify does not know what it computes"),
        }
    }

    /// An unknown function of elements, named by the operator and the types.
    fn apply(&self, all: &[Element]) -> Element {
        self.algebra.apply((self.of.stmt.op, &self.types, self.result), all)
    }

    fn elementwise(&self, index: &[usize]) -> Computed<Element> {
        let (stmt, algebra, mut tensors) = (self.of.stmt, self.algebra, self.operands.iter());
        let operand = |(it, constant): (&Operand, &Computed<Element>)| match it {
            Operand::Tensor(_) => tensors.next().ok_or(MISFIT)?.only(index),
            Operand::Scalar(_) | Operand::Stream(_) => *constant,
        };
        let operands = stmt.args.iter().zip(&self.constants).map(operand).collect::<Computed<Vec<_>>>()?;
        if let Some(how) = self.how {
            return Ok(algebra.combine(how, &operands));
        }
        let to = self.types.last().map_or(Class::Composite, |it| it.class());
        Ok(match (stmt.op, &operands[..]) {
            (Op::Cast, [a]) if self.is_exact => *a,
            // A truth value is a number.
            (Op::Cast, [a]) if self.types[0] == DType::Bool && matches!(to, Class::Int | Class::Float) => *a,
            _ if !self.is_exact => self.apply(&operands),
            (Op::LogicalNot, [a]) if to == Class::Bool => algebra.negated(*a),
            (Op::Where, [condition, a, b]) => algebra.sum(&[
                algebra.product(&[*condition, *a]),
                algebra.product(&[algebra.negated(*condition), *b]),
            ]),
            (Op::Sub, [a, b]) if to != Class::Bool => algebra.sum(&[*a, algebra.minus(*b)]),
            (Op::Neg, [a]) if to != Class::Bool => algebra.minus(*a),
            (Op::Div, [a, b]) if to == Class::Float => {
                let is_constant = matches!(stmt.args[1], Operand::Scalar(_));
                let known = if is_constant { algebra.reciprocal(*b) } else { None };
                let unknown = algebra.apply(Op::Reciprocal, &[*b]);
                let is_zero = *b == Element::default();
                let unknown = if is_zero { unknown.opaque() } else { unknown };
                algebra.product(&[*a, known.unwrap_or(unknown)])
            }
            (_, all) => self.apply(all),
        })
    }

    /// Sums of products of the first two operands, and a bias. An index has a factor for each row of a table: an unknown function of the
    /// index and of the row's index.
    fn product(&self, index: &[usize]) -> Computed<Element> {
        let (Statement { stmt, outs, .. }, [a, b, biases @ ..]) = (self.of, &self.operands[..]) else {
            return Err(MISFIT);
        };
        if stmt.get(attr::MAX_NORM).is_some() {
            return Err("hir-certify does not know tables that are normalised");
        }
        let rows = &b.access.block(index).first().cloned().filter(|_| stmt.op == Op::Embedding);
        let factor =
            |index, row| self.algebra.apply("is the row", &[index, self.algebra.integer(row as i64)]);
        let factors = |all: Vec<Element>| match rows {
            Some(rows) => all.iter().flat_map(|it| rows.clone().map(|row| factor(*it, row))).collect(),
            None => all,
        };
        let (a, b) =
            (a.row(index, rows.as_ref().map_or(0, |it| it.start), factors)?, b.row(index, 0, |it| it)?);
        let is_partial = self.of.partial(outs[0].0).is_some_and(|dim| outs[0].1.whole[dim] > 1);
        let bias = biases.first().map(|it| it.only(index)).transpose()?;
        if a.len() != b.len() || bias.is_some() && is_partial {
            return Err(MISFIT);
        }
        let product = self.algebra.dot(&a, &b);
        Ok(bias.map_or(product, |it| self.algebra.sum(&[product, it])))
    }

    /// Elements that follow from their index in the whole tensor.
    fn generated(&self, index: &[usize]) -> Computed<Element> {
        let (Statement { stmt, outs, .. }, algebra) = (self.of, self.algebra);
        let operand = |at: usize| self.constants.get(at).copied().unwrap_or(Err(MISFIT));
        let number = algebra.integer(ravel(index, &outs[0].1.whole) as i64);
        Ok(match stmt.op {
            Op::Full | Op::TensorConstruct if self.is_exact => operand(0)?,
            Op::Iota if self.is_exact => algebra.sum(&[operand(1)?, algebra.product(&[operand(2)?, number])]),
            Op::Eye => algebra.integer(i64::from(index.first() == index.last())),
            // Random numbers: an unknown function of the seed, the offset, the limits, the index, and the type, of which they depend.
            op => {
                let to = self.of.program.tensors[outs[0].0].dtype;
                let seed = self.operands.iter().flat_map(|it| &*it.values.data).copied();
                algebra
                    .apply((op, to, &self.types), &seed.chain([self.attributes?, number]).collect::<Vec<_>>())
            }
        })
    }

    /// An unknown function of what the result depends on, and of the index in dimensions, or in groups of them, that no operand has.
    fn unknown(&self, index: &[usize]) -> Computed<Element> {
        let (Statement { stmt, outs, .. }, result) = (self.of, self.result);
        if stmt
            .get(attr::DROPOUT_P)
            .is_some_and(|it| constant(self.of, self.algebra, it) != Ok(Element::default()))
        {
            return Err("hir-certify does not know attentions with a dropout");
        }
        // The state of random numbers is the seed 0 and the offset.
        if stmt.op == Op::Sdpa && result > 1 {
            let offset = stmt.get(attr::RNG_OFFSET).filter(|_| result == 3);
            return offset.map_or(Ok(Element::default()), |it| constant(self.of, self.algebra, it));
        }
        // By dimension: how many consecutive indices no operand distinguishes.
        let mut alike = outs[result].1.whole.clone();
        for operand in &self.operands {
            let dims = if let Access::Dims(dims) = &operand.access { &dims[..] } else { &[] };
            let known = dims.iter().filter_map(|it| Some((it.to?, it.by)));
            known.for_each(|(to, by)| alike[to] = alike[to].min(by));
        }
        let place: Vec<usize> = index.iter().zip(&alike).map(|(at, alike)| at % alike).collect();
        let mut all = vec![self.attributes?, self.algebra.integer(ravel(&place, &alike) as i64)];
        for operand in &self.operands {
            all.extend(&*operand.row(index, 0, |it| vec![self.algebra.apply("operand", &it)])?);
        }
        Ok(self.apply(&all))
    }
}
