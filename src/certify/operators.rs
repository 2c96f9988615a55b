//! What operators compute from the elements on which a result depends.
//!
//! Copies, sums, products, quotients and selections are exact. Conversions between floating-point types change nothing, since rounding
//! is not part of the model. Integers are integers of 64 bits. Every other operator is an unknown function of its operands.

use super::*;

/// A result of a statement, with its operands.
struct Call<'a> {
    of: &'a Statement<'a>,
    result: usize,
    operands: Vec<Reader<'a>>,
    algebra: &'a Algebra,
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

fn dtype(program: &Program, tensor: TensorId) -> DType {
    program.tensors[tensor].dtype.unwrap_or(DType::Float)
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
        let is_bool = of.stmt.args.iter().all(|it| match it {
            Operand::Tensor(it) => dtype(of.program, *it) == DType::Bool,
            Operand::Scalar(it) => matches!(of.scalars.eval(*it), Ok(Value::Bool(_))),
            Operand::Stream(_) => false,
        });
        let word = of.stmt.get(attr::OP).map_or(of.stmt.op.def().mnemonic, |it| it.text());
        Ok(Self { of, result, operands, algebra, how: Combine::named(word, is_bool) })
    }

    fn values(&self) -> Computed<Values> {
        let data = self.of.outs[self.result].1.indices().map(|index| self.element(&index));
        let data = data.collect::<Computed<_>>()?;
        // A rank computes with all that it holds, unless the operator selects.
        let is_unused = |it: &Reader<'_>| it.used.borrow().contains(&false);
        if self.of.stmt.op != Op::Pad && self.operands.iter().any(is_unused) {
            return Err("its operands have elements on which the result does not depend");
        }
        Ok(Values { data, degree: self.degree() })
    }

    /// Returns a bound for the degree of the result.
    fn degree(&self) -> u64 {
        let degrees = || self.operands.iter().map(|it| it.values.degree);
        let (highest, sum) = (degrees().fold(1, u64::max), degrees().fold(2, u64::saturating_add));
        let lens = self.operands.iter().map(|it| it.values.data.len() + 1);
        match (self.of.stmt.op.def().type_rule, self.of.stmt.op, self.how) {
            (TypeRule::Reduce, _, Some(how)) => how.degree(highest, lens.sum()),
            (TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding, ..)
            | (_, Op::Div | Op::Where, _)
            | (_, _, Some(Combine::Product | Combine::Or)) => sum,
            (_, Op::Sub | Op::Neg | Op::Cast | Op::LogicalNot | Op::Cat | Op::Pad, _)
            | (_, _, Some(Combine::Sum | Combine::Average | Combine::Unknown(_))) => highest,
            _ => 1,
        }
    }

    /// Returns an element of the result, by its index in the whole tensor.
    fn element(&self, index: &[usize]) -> Computed<Element> {
        let Statement { stmt, .. } = self.of;
        match (stmt.op.def().type_rule, stmt.op) {
            (_, Op::Cat | Op::Pad) => {
                let rows = self.operands.iter().map(|it| it.all(index)).collect::<Computed<Vec<_>>>()?;
                match rows.concat()[..] {
                    [only] => Ok(only),
                    [] if stmt.op == Op::Pad => Ok(Element::default()),
                    _ => Err(MISFIT),
                }
            }
            (TypeRule::AlongAxis | TypeRule::Sdpa | TypeRule::SdpaBwd, _) => self.unknown(index),
            _ if self.result > 0 => Err(MISFIT),
            _ if stmt.op.def().class == OpClass::Elementwise => self.elementwise(index),
            (TypeRule::Linear | TypeRule::Matmul | TypeRule::Embedding, _) => self.product(index),
            (TypeRule::Reduce, _) => {
                let how = self.how.ok_or("its `op` is unknown")?;
                let to = dtype(self.of.program, self.of.outs[0].0);
                let initial = stmt.get(attr::INITIAL_VALUE).filter(|it| {
                    let known = self.of.scalars.int(*it).ok();
                    known.is_none() || known != how.neutral(to)
                });
                let mut all = self.operands.first().ok_or(MISFIT)?.all(index)?;
                all.extend(initial.map(|it| self.scalar(it)).transpose()?);
                Ok(self.algebra.combine(how, &all))
            }
            (TypeRule::Generate, _) | (_, Op::TensorConstruct) => self.generated(index),
            _ => Err("hir-certify does not know what it computes"),
        }
    }

    fn scalar(&self, expr: ExprId) -> Computed<Element> {
        match self.of.scalars.eval(expr) {
            Ok(Value::Int(it)) => Ok(Element::of_integer(it)),
            Ok(it @ (Value::Bool(_) | Value::Float(_))) => Ok(self.algebra.real(it.real())),
            Err(_) => Err("a scalar has no value that hir-certify can compute"),
        }
    }

    /// Returns an element for all scalars and words of the statement, such as `largest=True`.
    fn attributes(&self) -> Computed<Element> {
        let mut scalars = Vec::new();
        self.of.stmt.scalars(&mut |it| scalars.push(self.scalar(it)));
        let words = self.of.stmt.attrs.iter().map(|(name, it)| match it {
            Attr::Word(it) => format!("{name}={}", it.text()),
            Attr::Name(it) => format!("{name}={it}"),
            _ => name.to_string(),
        });
        let words: Vec<String> = words.collect();
        Ok(self.algebra.apply(words, &scalars.into_iter().collect::<Computed<Vec<_>>>()?))
    }

    fn elementwise(&self, index: &[usize]) -> Computed<Element> {
        let Statement { program, stmt, args, outs, .. } = self.of;
        let (mut tensors, algebra) = (self.operands.iter(), self.algebra);
        let operand = |it: &Operand| match it {
            Operand::Tensor(_) => tensors.next().ok_or(MISFIT)?.only(index),
            Operand::Scalar(it) => self.scalar(*it),
            Operand::Stream(_) => Err(MISFIT),
        };
        let operands = stmt.args.iter().map(operand).collect::<Computed<Vec<_>>>()?;
        if let Some(how) = self.how {
            return Ok(algebra.combine(how, &operands));
        }
        let to = dtype(program, outs[0].0);
        let from = args.first().map_or(to, |it| dtype(program, it.0));
        let is_float = |it: DType| matches!(it.class(), Class::Float | Class::SmallFloat);
        let is_rounded = is_float(to) && !matches!(from.class(), Class::Complex | Class::Composite);
        Ok(match (stmt.op, &operands[..]) {
            (Op::Sub, [a, b]) => *a + Element::MINUS_ONE * *b,
            (Op::Neg, [a]) => Element::MINUS_ONE * *a,
            (Op::Div, [a, b]) if is_float(to) => {
                let known = b.reciprocal().filter(|_| matches!(stmt.args[1], Operand::Scalar(_)));
                *a * known.unwrap_or_else(|| algebra.apply(Op::Reciprocal, &[*b]))
            }
            (Op::Where, [condition, a, b]) => *condition * *a + condition.negated() * *b,
            (Op::LogicalNot, [a]) if from == DType::Bool => a.negated(),
            (Op::Cast, [a]) if is_rounded || from == to => *a,
            (op @ (Op::Cast | Op::BitCast), all) => algebra.apply((op, from.name(), to.name()), all),
            (op, all) => algebra.apply(op, all),
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
        let factor = |index, row| self.algebra.apply("is the row", &[index, Element::of_integer(row as i64)]);
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
        Ok(Element::dot(a.iter().zip(&*b)) + bias.unwrap_or_default())
    }

    /// Elements that follow from their index in the whole tensor.
    fn generated(&self, index: &[usize]) -> Computed<Element> {
        let Statement { stmt, outs, .. } = self.of;
        let operand = |at: usize| match stmt.args.get(at) {
            Some(Operand::Scalar(it)) => self.scalar(*it),
            _ => Err(MISFIT),
        };
        let number = Element::of_integer(ravel(index, &outs[0].1.whole) as i64);
        Ok(match stmt.op {
            Op::Full | Op::TensorConstruct => operand(0)?,
            Op::Iota => operand(1)? + operand(2)? * number,
            Op::Eye => Element::of_integer(i64::from(index.first() == index.last())),
            // Random numbers: an unknown function of the seed, the offset, the limits and the index.
            op => {
                let seed = self.operands.iter().flat_map(|it| &*it.values.data).copied();
                self.algebra.apply(op, &seed.chain([self.attributes()?, number]).collect::<Vec<_>>())
            }
        })
    }

    /// An unknown function of what the result depends on, and of the index in dimensions, or in groups of them, that no operand has.
    fn unknown(&self, index: &[usize]) -> Computed<Element> {
        let (Statement { stmt, outs, .. }, result) = (self.of, self.result);
        if stmt.get(attr::DROPOUT_P).is_some_and(|it| self.scalar(it) != Ok(Element::default())) {
            return Err("hir-certify does not know attentions with a dropout");
        }
        // The state of random numbers is the seed 0 and the offset.
        if stmt.op == Op::Sdpa && result > 1 {
            let offset = stmt.get(attr::RNG_OFFSET).filter(|_| result == 3);
            return offset.map_or(Ok(Element::default()), |it| self.scalar(it));
        }
        // By dimension: how many consecutive indices no operand distinguishes.
        let mut alike = outs[result].1.whole.clone();
        for operand in &self.operands {
            let dims = if let Access::Dims(dims) = &operand.access { &dims[..] } else { &[] };
            let known = dims.iter().filter_map(|it| Some((it.to?, it.by)));
            known.for_each(|(to, by)| alike[to] = alike[to].min(by));
        }
        let place: Vec<usize> = index.iter().zip(&alike).map(|(at, alike)| at % alike).collect();
        let mut all = vec![self.attributes()?, Element::of_integer(ravel(&place, &alike) as i64)];
        for operand in &self.operands {
            all.extend(&*operand.row(index, 0, |it| vec![self.algebra.apply("operand", &it)])?);
        }
        Ok(self.algebra.apply((stmt.op, result), &all))
    }
}
