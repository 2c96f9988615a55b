//! What operators compute from the elements on which a result depends.
//!
//! Copies, sums, products, quotients and selections are exact, if their operands and their result have one type. The floating-point types
//! are one, since rounding is not part of the model. Every other operator is an unknown function of its operands, named by the types.

use super::{TypeRule as Rule, *};

const CONVERTS: &str = "its operands and its result have different element types, or numbers of 8 bits";

/// A result of a statement, with its operands.
struct Call<'a> {
    of: &'a Statement<'a>,
    result: usize,
    operands: Vec<Reader<'a>>,
    algebra: &'a Algebra,
    /// By operand, the values of scalars.
    constants: Vec<Option<Element>>,
    /// An element for all scalars and words of the statement, such as `largest=True`.
    attributes: Element,
    /// The types of the operands and of the result.
    types: Vec<DType>,
    to: DType,
    /// Whether the result has the type of the operands that it consists of, so that nothing is converted.
    is_exact: bool,
    /// How it combines its operands, if it does so as reductions do.
    how: Option<Combine>,
}

/// What was made of blocks of elements and of a key.
type Rows = FxHashMap<(Vec<Range<usize>>, usize), Rc<[Element]>>;

/// An operand of a result.
struct Reader<'a> {
    access: Vec<Dim>,
    part: &'a Part,
    values: &'a Values,
    /// Which elements the result uses; empty if none was read.
    used: RefCell<Vec<bool>>,
    rows: RefCell<Rows>,
}

impl Reader<'_> {
    /// Returns the elements on which an element of the result depends, in row-major order.
    fn all(&self, index: &[usize]) -> Computed<Values> {
        let places = self.part.positions(&block(&self.access, index)).ok_or(NOT_HELD)?;
        let mut used = self.used.borrow_mut();
        used.resize(self.values.len(), false);
        places.iter().for_each(|at| used[*at] = true);
        Ok(at(self.values, &places))
    }

    fn only(&self, index: &[usize]) -> Computed<Element> {
        if let [only] = self.all(index)?[..] { Ok(only) } else { Err(MISFIT.into()) }
    }

    /// Returns what is made of the elements and of `key`, which is computed once.
    fn row(&self, index: &[usize], key: usize, make: impl Fn(Values) -> Values) -> Computed<Rc<[Element]>> {
        let key = (block(&self.access, index), key);
        if let Some(known) = self.rows.borrow().get(&key) {
            return Ok(known.clone());
        }
        let row: Rc<[Element]> = make(self.all(index)?).into();
        Ok(self.rows.borrow_mut().entry(key).or_insert(row).clone())
    }
}

/// Returns the type as which a type counts: rounding does not distinguish those of floating-point numbers. Those of at most 8 bits have a
/// largest number or lack a zero.
pub(crate) fn merged(dtype: DType) -> DType {
    match dtype {
        DType::Index => DType::Int64,
        it if it.class() == Class::Float => DType::Float,
        it => it,
    }
}

/// Returns the type of a scalar beside others of the type `to`, which it has if that can represent it.
fn dtype_of_scalar(value: Value, to: DType) -> DType {
    match (value, to.class()) {
        (_, Class::Float | Class::Complex) | (Value::Bool(_), Class::Bool | Class::Int) => to,
        (Value::Int(it), Class::Int) if limits(to).contains(&it.into()) => to,
        (Value::Int(_), _) => DType::Int64,
        _ => DType::Float,
    }
}

/// Returns what a statement computes from the parts that its rank holds.
pub(crate) fn results(of: &Statement<'_>, algebra: &Algebra, args: &[Values]) -> Computed<Vec<Values>> {
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
        let (stmt, rule, out) = (of.stmt, of.stmt.op.def().type_rule, of.outs[result].0);
        let tensors = of.args.iter().chain(&of.outs).map(|it| of.program.tensors[it.0].dtype);
        algebra.recorder.iter().for_each(|it| tensors.clone().for_each(|of| it.borrow_mut().uses(of)));
        let mut scalars = Vec::new();
        let value = |it| if stmt.op == Op::TensorConstruct { Ok(Value::Int(0)) } else { of.value(it) };
        stmt.scalars(&mut |it| scalars.push(value(it).map(|it| algebra.constant(it, DType::Double))));
        let scalars = scalars.into_iter().collect::<Computed<Vec<_>>>()?;
        let words = stmt.attrs.iter().map(|(name, it)| (name, it.is_same_everywhere().then_some(it)));
        // The numbers of a generator depend on the type.
        let generated = (rule == Rule::Generate).then_some(of.program.tensors[out].dtype);
        let attributes = algebra.apply((generated, words.collect::<Vec<_>>()), &scalars);
        let text = |it: TensorId| of.program.tensors[it].dtype.unwrap_or(DType::Float);
        let dtype = |it: TensorId| merged(text(it));
        // Scalars have the type of the last tensor that is no condition, or of the result.
        let (to, skipped) = (text(out), usize::from(matches!(stmt.op, Op::Where | Op::Embedding)));
        let beside = text(of.args.iter().skip(skipped).last().map_or(out, |it| it.0));
        let (mut types, mut constants) = (Vec::new(), Vec::new());
        for it in &stmt.args {
            let constant = if let Operand::Scalar(it) = *it { Some(value(it)?) } else { None };
            let own = it.tensor().map_or(merged(to), dtype);
            types.push(constant.map_or(own, |it| dtype_of_scalar(it, merged(beside))));
            constants.push(constant.map(|it| algebra.constant(it, beside)));
        }
        if stmt.op.def().class != OpClass::Elementwise && !of.args.is_empty() {
            types = of.args.iter().map(|it| dtype(it.0)).collect();
        }
        let (condition, combined) = types.split_at(skipped.min(types.len()));
        let is_exact = combined.iter().all(|it| *it == merged(to))
            && (stmt.op != Op::Where || condition == [DType::Bool])
            && (stmt.op == Op::Cat || !matches!(to.class(), Class::SmallFloat | Class::Composite));
        types.push(merged(to));
        let word = stmt.get(attr::OP).map_or(stmt.op.def().mnemonic, |it| it.text());
        let how = Combine::named(word, to).filter(|_| is_exact);
        Ok(Self { of, result, operands, algebra, constants, attributes, types, to, is_exact, how })
    }

    fn values(&self) -> Computed<Values> {
        let data = self.of.outs[self.result].1.indices().map(|index| self.element(&index));
        let data: Values = data.collect::<Computed<_>>()?;
        // A rank computes with all that it holds, unless the operator selects.
        let is_used = |it: &Reader<'_>| self.of.stmt.op == Op::Pad || !it.used.borrow().contains(&false);
        let why = "its operands have elements on which the result does not depend";
        require(self.operands.iter().all(is_used), why)?;
        // A gradient with the logarithms of sums of the same scores has no exponential above 1.
        let mut of_stmt = self.of.args.iter().zip(&self.operands);
        let logarithms = of_stmt.find(|it| self.of.stmt.get(attr::LOGSUM_EXP) == Some(it.0.0));
        match (&self.algebra.recorder, logarithms) {
            (Some(of), None) if (self.of.stmt.op, self.result) == (Op::Sdpa, 1) => {
                of.borrow_mut().attentions.insert(self.attention(0, &data));
            }
            (Some(of), Some((_, it))) if of.borrow().attentions.contains(&self.attention(1, it.values)) => {
                let made = || Made::By(Op::SdpaBwd, self.to, Vec::new());
                data.iter().for_each(|it| self.algebra.record(it.form, made));
            }
            _ => {}
        }
        Ok(data)
    }

    /// Returns an element of the result, by its index in the whole tensor.
    fn element(&self, index: &[usize]) -> Computed<Element> {
        use Rule::{AlongAxis, Generate, Sdpa, SdpaBwd, Unchecked, Welford};
        let (Statement { stmt, outs, .. }, algebra) = (self.of, self.algebra);
        let constant = |at: usize| self.constants.get(at).copied().flatten().ok_or_else(|| MISFIT.into());
        match (stmt.op.def().type_rule, stmt.op) {
            (_, Op::Cat | Op::Pad) if self.is_exact => {
                let rows = self.operands.iter().map(|it| it.all(index)).collect::<Computed<Vec<_>>>()?;
                match rows.concat()[..] {
                    [only] => Ok(self.converted(only)),
                    [] if stmt.op == Op::Pad => Ok(Element::default()),
                    _ => Err(MISFIT.into()),
                }
            }
            (_, Op::Full) if self.is_exact => constant(0),
            (_, Op::TensorConstruct | Op::Constant) => self.written(index),
            (_, Op::Iota) if self.is_exact => {
                let at = algebra.constant(Value::Int(ravel(index, &outs[0].1.whole) as i64), DType::Int64);
                let number = algebra.dot(&[constant(1)?, constant(2)?], &[Element::ONE, at]);
                Ok(algebra.converted(number, self.to, stmt.op))
            }
            // Their numbers may be infinite.
            (_, Op::Full | Op::Iota | Op::RngNormalGeneral) => self.unknown(index).map(Element::opaque),
            (_, Op::Eye) if self.is_exact => Ok(algebra.integer(i64::from(index.first() == index.last()))),
            (_, Op::Cat | Op::Pad) => Err(CONVERTS.into()),
            // Integers are not rounded, nor are inputs that nothing has computed.
            (_, Op::BitCast) if self.types[0].class() != Class::Int && !self.is_input(index)? => {
                Err("hir-certify does not know the bits of an element".into())
            }
            (Sdpa, _) if constant(3).is_ok() => Err("its options have no key".into()),
            (AlongAxis | Sdpa | SdpaBwd | Generate | Unchecked | Welford, _) => self.unknown(index),
            _ if self.result > 0 => Err(MISFIT.into()),
            _ if stmt.op.def().class == OpClass::Elementwise => self.elementwise(index),
            _ if !self.is_exact => self.unknown(index).map(Element::opaque),
            (Rule::Linear | Rule::Matmul | Rule::Embedding, _) => self.product(index),
            (Rule::Reduce, _) => {
                let how = self.how.ok_or("hir-certify does not know its `op` of these elements")?;
                let initial = stmt.get(attr::INITIAL_VALUE).map(|it| self.of.value(it)).transpose()?;
                let initial = initial.filter(|it| !how.is_neutral(*it, self.to));
                let fits = initial.is_none_or(|it| dtype_of_scalar(it, self.to) == self.to);
                require(fits, "its initial value is no element of its type")?;
                let mut all = self.operands.first().ok_or(MISFIT)?.all(index)?;
                all.extend(initial.map(|it| algebra.constant(it, self.to)));
                Ok(self.narrowed(algebra.combine(how, &all, self.to)))
            }
            _ => Err("hir-certify does not know what it computes".into()),
        }
    }

    /// Returns the element of an array of scalars, or of the bytes of elements.
    fn written(&self, index: &[usize]) -> Computed<Element> {
        let Statement { stmt, outs, program, .. } = self.of;
        let value = match (stmt.get(attr::BYTES), stmt.args.first()) {
            (Some(bytes), _) => {
                let size = self.to.size();
                let at = ravel(index, &outs[0].1.whole).saturating_mul(size);
                let mut own = [0; 8];
                let bytes = bytes.get(at..at.saturating_add(size)).filter(|it| it.len() <= own.len());
                bytes.ok_or(MISFIT)?.iter().zip(&mut own).for_each(|(from, to)| *to = *from);
                let (bits, unused) = (u64::from_le_bytes(own), 64_usize.saturating_sub(8 * size) as u32);
                match (self.to, self.to.class()) {
                    (DType::Double, _) => Value::Float(f64::from_bits(bits)),
                    (DType::Float, _) => Value::Float(f32::from_bits(bits as u32).into()),
                    (DType::BFloat, _) => Value::Float(f32::from_bits((bits as u32) << 16).into()),
                    (_, Class::Bool) => Value::Bool(bits != 0),
                    (it, Class::Int) if limits(it).start() == &0 => {
                        Value::Int(i64::try_from(bits).map_err(|_| "a number of its bytes is too large")?)
                    }
                    (_, Class::Int) => Value::Int((bits << unused) as i64 >> unused),
                    _ => return self.unknown(index).map(Element::opaque),
                }
            }
            (None, Some(Operand::Scalar(array))) => {
                let items = |array: ExprId, at: &usize| match &program.exprs[array] {
                    ir::Expr::Call(ir::Function::Array, items) => items.get(*at).copied().ok_or(MISFIT),
                    _ => Err("hir-certify knows arrays only where they are written"),
                };
                self.of.value(index.iter().try_fold(*array, items)?)?
            }
            _ => return Err(MISFIT.into()),
        };
        let fits = self.to.class() != Class::SmallFloat
            && dtype_of_scalar(value, merged(self.to)) == merged(self.to);
        require(fits, CONVERTS).map(|()| self.algebra.constant(value, self.to))
    }

    /// Returns the types of the operands; the condition of a selection and the indices of an embedding are no part of the result.
    fn converted_types(&self) -> impl Iterator<Item = Option<DType>> {
        let skipped = usize::from(matches!(self.of.stmt.op, Op::Where | Op::Embedding));
        let parts = self.of.args.iter().skip(skipped);
        parts.map(|arg| self.of.program.tensors[arg.0].dtype)
    }

    /// Returns an element in the type of the result, to which it is converted if an operand has another one.
    fn converted(&self, it: Element) -> Element {
        if self.converted_types().all(|it| it == Some(self.to)) {
            return it;
        }
        self.narrowed(Element { is_input: false, ..self.algebra.converted(it, self.to, self.of.stmt.op) })
    }

    /// Returns what an operator gives in the type of the result, which may have less numbers than those of the operands.
    fn narrowed(&self, it: Element) -> Element {
        let part = |it: DType| it.part().unwrap_or(it);
        let has = |of: fn(DType) -> bool| self.converted_types().flatten().any(|it| of(part(it)));
        let name = match part(self.to) {
            DType::Half if has(|it| it != DType::Half) => "conversion to half precision",
            DType::Float | DType::BFloat if has(|it| it == DType::Double) => {
                "conversion from double precision"
            }
            to => return self.algebra.in_range(it, to),
        };
        self.algebra.narrowed(it, name)
    }

    /// Returns whether an operand has elements of inputs.
    fn is_input(&self, index: &[usize]) -> Computed<bool> {
        let all = self.operands.iter().map(|it| it.all(index)).collect::<Computed<Vec<_>>>()?;
        Ok(all.concat().iter().all(|it| it.is_input))
    }

    /// An unknown function of elements, named by the operator and the types.
    fn apply(&self, all: &[Element]) -> Element {
        let (op, def) = (self.of.stmt.op, self.of.stmt.op.def());
        let value = self.algebra.apply((op, &self.types, self.result), all);
        let is_elementwise = def.class == OpClass::Elementwise;
        // Numbers of 8 bits have a small limit.
        let is_limited = self.to.class() == Class::SmallFloat;
        let is_partial = is_limited || !(is_total(op) || self.to.is_integral());
        if is_elementwise || !is_partial {
            let forms = all.iter().filter(|_| is_elementwise).map(|it| it.form);
            self.algebra.record(value.form, || Made::By(op, self.to, forms.collect()));
        }
        let rounded = || self.algebra.renamed(value, self.algebra.rounded_form((op, self.to, value.form)));
        let value = if merged(self.to) == self.to { value } else { rounded() };
        self.narrowed(if is_partial { self.algebra.partial(value, def.mnemonic) } else { value })
    }

    /// Returns a number for the scores of an attention and for the logarithms of their sums.
    fn attention(&self, query: usize, logarithms: &[Element]) -> u64 {
        let (stmt, forms) = (self.of.stmt, |it: &[Element]| it.iter().map(|it| it.form).collect::<Vec<_>>());
        let options = [attr::IS_CAUSAL, attr::SCALE].map(|key| stmt.get(key).map(|it| self.of.value(it)));
        let place = |key| self.of.args.iter().position(|it| stmt.get(key) == Some(it.0));
        let scores = [Some(query), Some(query + 1), place(attr::BIAS), place(attr::MASK)];
        let scores = scores.map(|at| self.operands.get(at?).map(|it| (&it.part.held, forms(it.values))));
        self.algebra.drawn(("attention", format!("{options:?}"), scores, forms(logarithms)))
    }

    fn elementwise(&self, index: &[usize]) -> Computed<Element> {
        let (stmt, algebra, mut tensors) = (self.of.stmt, self.algebra, self.operands.iter());
        let operand = |it: &Option<Element>| it.map_or_else(|| tensors.next().ok_or(MISFIT)?.only(index), Ok);
        let operands = self.constants.iter().map(operand).collect::<Computed<Vec<_>>>()?;
        if let Some(how) = self.how {
            // Beside a NaN, `fmax` gives the infinity.
            let is_neutral = |it: &Operand| match it {
                Operand::Scalar(it) if matches!(stmt.op, Op::Max | Op::Min) => {
                    self.of.value(*it).is_ok_and(|it| how.is_neutral(it, self.to))
                }
                Operand::Scalar(_) | Operand::Tensor(_) | Operand::Stream(_) => false,
            };
            let kept = operands.iter().zip(&stmt.args).filter(|it| !is_neutral(it.1)).map(|it| *it.0);
            let converted = self.converted(algebra.combine(how, &kept.collect::<Vec<_>>(), self.to));
            let is_half = self.converted_types().all(|it| it == Some(DType::Half));
            return Ok(if is_half { algebra.in_range(converted, self.to) } else { converted });
        }
        let to = self.to.class();
        // These give a finite number, or one of their operands.
        let is_truth =
            (stmt.op, self.types[0]) == (Op::Cast, DType::Bool) && matches!(to, Class::Int | Class::Float);
        let is_finite = self.is_exact && matches!(stmt.op, Op::Where | Op::Neg | Op::Abs | Op::Cast);
        let result = match (stmt.op, &operands[..]) {
            // A truth value is a number.
            (Op::Cast, [a]) if self.is_exact || is_truth => *a,
            _ if !self.is_exact => self.apply(&operands),
            (Op::LogicalNot, [a]) if to == Class::Bool => algebra.negated(*a),
            // It selects: the product of an infinity and 0 is another value.
            (Op::Where, all) if all.iter().any(Element::is_opaque) => self.apply(all),
            (Op::Where, [c, a, b]) => algebra.selected(*c, *a, *b),
            (Op::Sub, [a, b]) if to != Class::Bool => algebra.sum(&[*a, algebra.minus(*b)]),
            (Op::Neg, [a]) if to != Class::Bool => algebra.minus(*a),
            (Op::Div, [a, b]) if to == Class::Float => {
                let quotient = algebra.reciprocal(*b, self.constants[1].is_some());
                algebra.product(*a, quotient)
            }
            (Op::Mod | Op::Fmod | Op::Remainder, [_, b]) if b.value == 0 => self.apply(&operands).opaque(),
            (_, all) => self.apply(all),
        };
        let result = algebra.checked(result, &[&operands], (!is_finite && !is_truth).then_some(self.to));
        Ok(if is_finite { self.converted(result) } else { self.narrowed(result) })
    }

    /// Sums of products of the first two operands, and a bias. An index has a factor for each row of a table: an unknown function of the
    /// index and of the row's index.
    fn product(&self, index: &[usize]) -> Computed<Element> {
        let (Statement { stmt, outs, .. }, [a, b, biases @ ..]) = (self.of, &self.operands[..]) else {
            return Err(MISFIT.into());
        };
        // Without a key, the limit of the norm is the fourth operand.
        let is_known = stmt.get(attr::MAX_NORM).is_none() && stmt.args.len() <= 3 && self.to != DType::Bool;
        require(is_known, "hir-certify does not know normalised tables and sums of truth values")?;
        let rows = block(&b.access, index).first().cloned().filter(|_| stmt.op == Op::Embedding);
        let number = |it: usize| self.algebra.integer(it as i64);
        let height = number(b.part.whole.first().copied().unwrap_or(0));
        let factor = |it, row| self.algebra.apply("is the row", &[it, number(row), height]);
        let factors = |all: Vec<Element>| match &rows {
            Some(rows) => all.iter().flat_map(|it| rows.clone().map(|row| factor(*it, row))).collect(),
            None => all,
        };
        // Beside the first row, another term says whether the table has the row.
        let is_row = |it| self.algebra.apply("is a row", &[it, height]);
        let bias = match &rows {
            Some(rows) => (rows.start == 0).then(|| a.only(index).map(is_row)),
            None => biases.first().map(|it| it.only(index)),
        };
        let (bias, first) = (bias.transpose()?, rows.as_ref().map_or(0, |it| it.start));
        let (a, b) = (a.row(index, first, factors)?, b.row(index, 0, |it| it)?);
        let is_partial = self.of.partial(outs[0].0).is_some_and(|dim| outs[0].1.whole[dim] > 1);
        require(a.len() == b.len() && (biases.is_empty() || !is_partial), MISFIT)?;
        let product = self.algebra.dot(&a, &b);
        let result = bias.map_or(product, |it| self.algebra.sum(&[product, it]));
        let result = self.algebra.checked(result, &[&a, &b, bias.as_slice()], Some(self.to));
        Ok(self.narrowed(result))
    }

    /// An unknown function of what the result depends on, and of the index in dimensions, or in groups of them, that no operand has.
    fn unknown(&self, index: &[usize]) -> Computed<Element> {
        let (Statement { stmt, outs, .. }, algebra) = (self.of, self.algebra);
        let number = |it: ExprId| Ok(algebra.constant(self.of.value(it)?, DType::Double));
        let has_dropout = stmt.get(attr::DROPOUT_P).map(number).transpose()?.is_some_and(|it| it.value != 0);
        // The state of random numbers is the seed 0 and the offset.
        if stmt.op == Op::Sdpa && self.result > 1 {
            let offset = stmt.get(attr::RNG_OFFSET).filter(|_| self.result == 3);
            return offset.map_or(Ok(Element::default()), number);
        }
        // By dimension: how many consecutive indices no operand distinguishes.
        let mut alike = outs[self.result].1.whole.clone();
        let known = self.operands.iter().flat_map(|it| &it.access).filter_map(|it| Some((it.to?, it.by)));
        // Random numbers are those of the place in the whole tensor.
        known.filter(|_| !has_dropout).for_each(|(to, by)| alike[to] = alike[to].min(by));
        // `topk` gives as many elements as its second operand says.
        let (k, whole) = (self.constants.get(1).copied().flatten(), &outs[self.result].1.whole);
        let is_k = |n: usize| k.is_some_and(|k| k.value == algebra.integer(n as i64).value);
        let selects = |(dim, n): (&Dim, &usize)| dim.to.is_some() || *n <= dim.extent && is_k(*n);
        let fits = |it: &Reader<'_>| it.access.iter().zip(whole).all(selects);
        require(stmt.op != Op::TopK || self.operands.iter().all(fits), MISFIT)?;
        let place: Vec<usize> = index.iter().zip(&alike).map(|(at, alike)| at % alike).collect();
        let mut all = vec![self.attributes, algebra.integer(ravel(&place, &alike) as i64)];
        // The range of a generator has the type of its numbers.
        all.extend(self.constants.iter().flatten().filter(|_| self.operands.is_empty()));
        for operand in &self.operands {
            let shape: Vec<usize> = block(&operand.access, index).iter().map(Range::len).collect();
            let digest = |it: Values| vec![algebra.checked(algebra.apply(&shape, &it), &[&it], None)];
            all.extend(&*operand.row(index, 0, digest)?);
        }
        Ok(algebra.checked(self.apply(&all), &[&all[2..]], Some(self.to)))
    }
}
