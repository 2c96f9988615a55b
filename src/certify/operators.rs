//! What operators compute from the elements on which a result depends.
//!
//! Copies, sums, products, quotients and selections are exact. Conversions between floating-point types change nothing, since rounding
//! is not part of the model. Integers are integers of 64 bits. Every other operator is an unknown function of its operands.

use super::*;

/// A statement with its operands.
struct Call<'a> {
    of: &'a Statement<'a>,
    args: &'a [Values],
    algebra: &'a Algebra,
}

/// An operand of a result.
struct Reader<'a> {
    access: Access,
    part: &'a Part,
    data: &'a [Element],
    /// The rows that were read before, by the first indices of their blocks.
    rows: RefCell<FxHashMap<Vec<usize>, Rc<[Element]>>>,
}

/// Computes an element of a result from the operands and from its index.
type Function<'a> = Box<dyn Fn(&[Reader<'_>], &[usize]) -> Computed<Element> + 'a>;

impl Reader<'_> {
    /// Returns what a function makes of the elements on which an element of the result depends, in row-major order. The function depends
    /// on `key`, too.
    fn row(
        &self,
        index: &[usize],
        key: Option<usize>,
        function: impl FnOnce(Vec<Element>) -> Vec<Element>,
    ) -> Computed<Rc<[Element]>> {
        let block = self.access.block(index);
        let key: Vec<usize> = block.iter().map(|it| it.start).chain(key).collect();
        if let Some(known) = self.rows.borrow().get(&key) {
            return Ok(known.clone());
        }
        let places = self.part.positions(&block);
        let places = places.ok_or("it needs elements of other ranks, which hir-certify does not gather")?;
        let row: Rc<[Element]> = function(places.iter().map(|at| self.data[*at]).collect()).into();
        if block.iter().any(|it| it.len() > 1) {
            self.rows.borrow_mut().insert(key, row.clone());
        }
        Ok(row)
    }

    fn all(&self, index: &[usize]) -> Computed<Rc<[Element]>> {
        self.row(index, None, |it| it)
    }

    fn only(&self, index: &[usize]) -> Computed<Element> {
        if let [only] = self.all(index)?[..] { Ok(only) } else { Err(MISFIT) }
    }
}

/// Returns whether the elements of a tensor are integers or truth values.
pub(crate) fn is_integral(program: &Program, tensor: TensorId) -> bool {
    program.tensors[tensor].dtype.is_some_and(|it| matches!(it.class(), Class::Int | Class::Bool))
}

/// Returns how an elementwise operator combines its operands, if it does so as a reduction does.
fn combination(op: Op, is_bool: bool) -> Option<Combine> {
    Some(Combine::Lattice(match op {
        Op::LogicalAnd => "and",
        Op::LogicalOr => "or",
        Op::BitAnd | Op::Min | Op::FMin if is_bool => "and",
        Op::BitOr | Op::Max | Op::FMax if is_bool => "or",
        Op::BitAnd => "and of bits",
        Op::BitOr => "or of bits",
        Op::BitXor => "xor",
        Op::Max | Op::FMax => "max",
        Op::Min | Op::FMin => "min",
        _ => return None,
    }))
}

/// Returns what a statement computes from the parts that its rank holds.
pub(crate) fn results(of: &Statement<'_>, algebra: &Algebra, args: &[Values]) -> Result<Vec<Values>, String> {
    let call = Call { of, args, algebra };
    let why = |why| format!("`{}` is not certified: {why}", of.stmt.op.name());
    (0..of.outs.len()).map(|result| call.result(result).map_err(why)).collect()
}

impl Call<'_> {
    fn result(&self, result: usize) -> Computed<Values> {
        let Statement { stmt, outs, args, .. } = self.of;
        let degrees = || self.args.iter().map(|it| it.degree);
        let (highest, product) = (degrees().fold(1, u64::max), degrees().fold(2, u64::saturating_add));
        let is_linear = combination(stmt.op, false).is_some()
            || matches!(stmt.op, Op::Add | Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot);
        let (function, degree) = match (stmt.op.def().type_rule, stmt.op) {
            (_, Op::Cat | Op::Pad) => (self.moved(), highest),
            (TypeRule::AlongAxis | TypeRule::Sdpa | TypeRule::SdpaBwd, _) => (self.unknown(result)?, 1),
            _ if result > 0 => return Err(MISFIT),
            (_, Op::Mul | Op::Div | Op::Lerp | Op::Where) => (self.elementwise()?, product),
            _ if stmt.op.def().class == OpClass::Elementwise => {
                (self.elementwise()?, if is_linear { highest } else { 1 })
            }
            (TypeRule::Linear | TypeRule::Matmul, _) => (self.product()?, product),
            (TypeRule::Embedding, _) => (self.product()?, highest.saturating_add(1)),
            (TypeRule::Reduce, _) => {
                let len = self.args.first().map_or(0, |it| it.data.len()) as u64;
                let is_product = stmt.get(attr::OP) == Some(ReductionOp::Mul);
                (self.reduction()?, if is_product { product.saturating_mul(len) } else { highest })
            }
            (TypeRule::Generate, _) => (self.generated()?, highest),
            (_, Op::TensorConstruct) => {
                let element = self.operand(0)?;
                (Box::new(move |_: &[Reader<'_>], _: &[usize]| Ok(element)) as Function<'_>, 1)
            }
            _ if matches!(stmt.rule().aliasing(), Aliasing::View(_)) => (self.moved(), highest),
            _ => return Err("hir-certify does not know what it computes"),
        };
        let reader = |at: usize| {
            let (access, data) = (self.of.access(at, result)?, &*self.args[at].data);
            Ok(Reader { access, part: &args[at].1, data, rows: RefCell::default() })
        };
        let readers = (0..args.len()).map(reader).collect::<Computed<Vec<_>>>()?;
        let data = outs[result].1.indices().map(|index| function(&readers, &index));
        Ok(Values { data: data.collect::<Computed<_>>()?, degree })
    }

    // ---- scalars

    fn scalar(&self, expr: ExprId) -> Computed<Value> {
        self.of.values.get(&expr).copied().ok_or("a scalar has no value that hir-certify can compute")
    }

    fn element(&self, expr: ExprId) -> Computed<Element> {
        Ok(match self.scalar(expr)? {
            Value::Int(it) => Element::of_integer(it),
            it @ (Value::Bool(_) | Value::Float(_)) => self.algebra.real(it.real()),
        })
    }

    /// Returns a scalar operand.
    fn operand(&self, at: usize) -> Computed<Element> {
        if let Some(Operand::Scalar(it)) = self.of.stmt.args.get(at) {
            self.element(*it)
        } else {
            Err(MISFIT)
        }
    }

    /// Returns an element for all scalars and words of the statement, such as `largest=True`.
    fn attributes(&self) -> Computed<Element> {
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

    fn dtype(&self, tensor: TensorId) -> DType {
        self.of.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    // ---- elementwise operators

    fn elementwise(&self) -> Computed<Function<'_>> {
        let Statement { program, stmt, args, outs, .. } = self.of;
        let to = self.dtype(outs[0].0);
        let types = [args.first().map_or(to, |it| self.dtype(it.0)), to];
        let (how, mut integral, mut operands) = (combination(stmt.op, to == DType::Bool), true, Vec::new());
        for operand in &stmt.args {
            operands.push(match operand {
                Operand::Tensor(tensor) => {
                    integral &= is_integral(program, *tensor);
                    None
                }
                Operand::Scalar(it) => {
                    integral &= !matches!(self.scalar(*it)?, Value::Float(_));
                    Some(self.element(*it)?)
                }
                Operand::Stream(_) => return Err(MISFIT),
            });
        }
        Ok(Box::new(move |readers, index| {
            let mut readers = readers.iter();
            let operand = |scalar: &Option<Element>| match scalar {
                Some(it) => Ok(*it),
                None => readers.next().ok_or(MISFIT)?.only(index),
            };
            let row = operands.iter().map(operand).collect::<Computed<Vec<_>>>()?;
            Ok(match how {
                Some(how) => self.algebra.combine(how, integral, &row),
                None => self.function(integral, types, &row),
            })
        }))
    }

    fn function(&self, integral: bool, types: [DType; 2], operands: &[Element]) -> Element {
        let (op, algebra) = (self.of.stmt.op, self.algebra);
        let unknown = || algebra.apply(op, operands.iter().copied());
        match (op, operands) {
            (Op::Add, [a, b]) => *a + *b,
            (Op::Sub, [a, b]) => *a - *b,
            (Op::Mul, [a, b]) => *a * *b,
            (Op::Neg, [a]) => Element::default() - *a,
            (Op::Div, [a, b]) if !integral => {
                let known = b.reciprocal().filter(|_| matches!(self.of.stmt.args[1], Operand::Scalar(_)));
                *a * known.unwrap_or_else(|| algebra.apply(Op::Reciprocal, [*b]))
            }
            (Op::Lerp, [a, b, c]) => *a + *c * (*b - *a),
            // Truth values are 0 and 1.
            (Op::Where, [condition, a, b]) => *condition * *a + (Element::ONE - *condition) * *b,
            (Op::LogicalNot, [a]) => Element::ONE - *a,
            (Op::Cast, [a]) => self.cast(types, *a),
            (_, [a, b]) if integral => {
                let known = a.integer().zip(b.integer()).zip(InfixOp::from_text(op.def().mnemonic));
                let folded =
                    known.and_then(|((a, b), op)| fold_infix(op, Constant::Int(a), Constant::Int(b)));
                folded.map_or_else(unknown, |it| Element::of_integer(it.as_int()))
            }
            _ => unknown(),
        }
    }

    fn cast(&self, [from, to]: [DType; 2], value: Element) -> Element {
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

    // ---- other operators

    /// The only element on which the result depends; outside of what is padded, zero.
    fn moved(&self) -> Function<'_> {
        Box::new(|readers, index| {
            let rows = readers.iter().map(|it| it.all(index)).collect::<Computed<Vec<_>>>()?;
            match rows.concat()[..] {
                [only] => Ok(only),
                [] if self.of.stmt.op == Op::Pad => Ok(Element::default()),
                _ => Err(MISFIT),
            }
        })
    }

    /// Sums of products of the first two operands, and a bias. An index has a factor for each row of a table: an unknown function of the
    /// index and of the row's index.
    fn product(&self) -> Computed<Function<'_>> {
        let Statement { stmt, outs, .. } = self.of;
        if stmt.get(attr::MAX_NORM).is_some() {
            return Err("hir-certify does not know tables that are normalised");
        }
        let partial = self.of.partial(outs[0].0).is_some_and(|dim| outs[0].1.whole[dim] > 1);
        Ok(Box::new(move |readers, index| {
            let [a, b, biases @ ..] = readers else { return Err(MISFIT) };
            let a = if stmt.op == Op::Embedding {
                let rows = b.access.block(index).first().cloned().ok_or(MISFIT)?;
                let factor =
                    |(index, row)| self.algebra.apply("is the row", [index, Element::of_integer(row as i64)]);
                let factors = |it: Vec<Element>| {
                    it.into_iter().flat_map(|it| rows.clone().map(move |row| (it, row))).map(factor).collect()
                };
                a.row(index, Some(rows.start), factors)?
            } else {
                a.all(index)?
            };
            let b = b.all(index)?;
            let bias = biases.first().map(|it| it.only(index)).transpose()?;
            if a.len() != b.len() || bias.is_some() && partial {
                return Err(MISFIT);
            }
            Ok(Element::dot(a.iter().zip(&*b)) + bias.unwrap_or_default())
        }))
    }

    fn reduction(&self) -> Computed<Function<'_>> {
        let Statement { program, stmt, outs, args, .. } = self.of;
        let name = stmt.get(attr::OP).ok_or("its `op` is missing")?.text();
        let how = Combine::named(name, self.dtype(outs[0].0) == DType::Bool).ok_or("its `op` is unknown")?;
        // The lowest or highest integer is neutral.
        let is_extreme =
            |it: &ExprId| matches!(self.scalar(*it), Ok(Value::Int(it)) if it.unsigned_abs() >> 31 != 0);
        let initial = stmt.get(attr::INITIAL_VALUE).filter(|it| !is_extreme(it));
        let initial = initial.map(|it| self.element(it)).transpose()?;
        let integral = args.first().is_some_and(|it| is_integral(program, it.0));
        Ok(Box::new(move |readers, index| {
            let row = readers.first().ok_or(MISFIT)?.all(index)?;
            let all: Vec<Element> = row.iter().copied().chain(initial).collect();
            Ok(self.algebra.combine(how, integral, &all))
        }))
    }

    /// Elements that follow from their index in the whole tensor.
    fn generated(&self) -> Computed<Function<'_>> {
        let whole = &self.of.outs[0].1.whole;
        let number = |index: &[usize]| ravel(index, whole);
        Ok(match self.of.stmt.op {
            Op::Full => {
                let value = self.operand(0)?;
                Box::new(move |_, _| Ok(value))
            }
            Op::Iota => {
                let (start, step) = (self.operand(1)?, self.operand(2)?);
                Box::new(move |_, index| Ok(start + step * Element::of_integer(number(index) as i64)))
            }
            Op::Eye => {
                let is_one = |index: &[usize]| index.first() == index.last() && index.len() == 2;
                Box::new(move |_, index| Ok(Element::of_integer(i64::from(is_one(index)))))
            }
            op => {
                // Random numbers: an unknown function of the seed, the offset, the limits and the index.
                let seed = self.args.iter().flat_map(|it| &*it.data).copied();
                let state = self.algebra.apply(op, seed.chain([self.attributes()?]));
                Box::new(move |_, index| Ok(state.following(number(index))))
            }
        })
    }

    /// An unknown function of what the result depends on, and of the index in dimensions, or in groups of them, that no operand has.
    fn unknown(&self, result: usize) -> Computed<Function<'_>> {
        let (stmt, shape) = (self.of.stmt, &self.of.outs[result].1.whole);
        let dropout = stmt.get(attr::DROPOUT_P).map(|it| self.scalar(it)).transpose()?;
        if dropout.is_some_and(|it| it.real() != 0.0) {
            return Err("hir-certify does not know attentions with a dropout");
        }
        // The state of random numbers is the seed 0 and the offset.
        if stmt.op == Op::Sdpa && result > 1 {
            let offset = stmt.get(attr::RNG_OFFSET).filter(|_| result == 3);
            let state = offset.map_or(Ok(Element::default()), |it| self.element(it))?;
            return Ok(Box::new(move |_, _| Ok(state)));
        }
        let attributes = self.attributes()?;
        // By dimension: how many consecutive indices no operand distinguishes.
        let mut alike = shape.clone();
        for at in 0..self.args.len() {
            if let Access::Dims(dims) = self.of.access(at, result)? {
                let known = dims.iter().filter_map(|it| Some((it.to?, it.by)));
                known.for_each(|(to, by)| alike[to] = alike[to].min(by));
            }
        }
        Ok(Box::new(move |readers, index| {
            let hash = |it| vec![self.algebra.apply("operand", it)];
            let rows = readers.iter().map(|it| it.row(index, None, hash)).collect::<Computed<Vec<_>>>()?;
            let place: Vec<usize> = index.iter().zip(&alike).map(|(at, alike)| at % alike).collect();
            let place = Element::of_integer(ravel(&place, &alike) as i64);
            Ok(self.algebra.apply((stmt.op, result), [attributes, place].into_iter().chain(rows.concat())))
        }))
    }
}
