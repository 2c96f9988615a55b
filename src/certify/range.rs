//! On which inputs partial operators give finite numbers: backward bounds.
//!
//! A recorder keeps how each element was computed. From a bound of a result, the bounds of its operands follow that suffice for it, down to a
//! box of the inputs. They suffice for every element below a fault, so on this box none of them is infinite or NaN. Sums of several elements
//! give each an equal part of a bound, and products of two the square root of one.

use super::*;

/// The largest finite number of the floating-point types but half precision and double precision, less what they round.
pub(crate) const LARGEST: f64 = 3.38e38;
/// The least positive number; products below `NORMAL` may be 0.
const LEAST: f64 = 1e-45;
const NORMAL: f64 = 1.2e-38;
/// The largest number of operands that are recorded.
const MOST: usize = 1 << 22;

/// The numbers from `low` to `high` whose magnitude is at least `least`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    low: f64,
    high: f64,
    least: f64,
}

const FINITE: Bounds = within(LARGEST);
const ANY: Bounds = within(f64::INFINITY);
const TRUTH: Bounds = Bounds { low: 0.0, high: 1.0, least: 0.0 };

pub(crate) const fn within(most: f64) -> Bounds {
    Bounds { low: -most, high: most, least: 0.0 }
}

impl Bounds {
    const fn new(low: f64, high: f64) -> Self {
        Self { low, high, least: 0.0 }
    }

    /// Returns the numbers of both.
    fn meet(self, other: Self) -> Self {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        Self { low, high, least: self.least.max(other.least) }
    }

    fn has(self, other: Self) -> bool {
        let least = if other.low > 0.0 { other.low } else { (-other.high).max(other.least) };
        self.low <= other.low && other.high <= self.high && self.least <= least
    }

    fn is_empty(self) -> bool {
        self.low > self.high || self.least > self.low.abs().max(self.high.abs())
    }

    /// Returns the factors by which a number gives these.
    fn over(self, factor: f64) -> Self {
        // A zero is positive, as its reciprocal is then.
        let (low, high) = (self.low / factor + 0.0, self.high / factor + 0.0);
        let least = if factor.abs() < 1.0 && self.least > 0.0 { self.least.max(NORMAL) } else { self.least };
        let least = if least <= LEAST { least } else { least / factor.abs() };
        Self { low: low.min(high), high: low.max(high), least }
    }

    /// Returns the magnitudes, or the positive numbers, of which two have a product that is one of these.
    fn root(self) -> Self {
        let least = if self.least > 0.0 { self.least.max(NORMAL).sqrt() } else { 0.0 };
        match self.low {
            low if low < 0.0 => Self { least, ..within(self.high.min(-low).max(0.0).sqrt()) },
            low => Self { low: low.sqrt(), high: self.high.max(0.0).sqrt(), least },
        }
    }

    /// Returns the part of the numbers that half has, without those below its normal ones if 0 is not among them.
    fn in_half(self) -> Self {
        const NORMAL: f64 = 6.2e-5;
        let it = self.meet(within(largest(DType::Half)));
        Self {
            low: if it.low > 0.0 { it.low.max(NORMAL) } else { it.low },
            high: if it.high < 0.0 { it.high.min(-NORMAL) } else { it.high },
            least: if it.least > 0.0 { it.least.max(NORMAL) } else { 0.0 },
        }
    }

    fn times(self, other: Self) -> Self {
        let all = [self.low, self.high].map(|a| [other.low, other.high].map(|b| a * b)).concat();
        Self::new(all.iter().copied().fold(f64::MAX, f64::min), all.into_iter().fold(f64::MIN, f64::max))
    }

    fn plus(self, other: Self) -> Self {
        Self::new(self.low + other.low, self.high + other.high)
    }
}

/// How an element was computed, from elements.
#[derive(Clone)]
pub(crate) enum Made {
    /// An input of the program, by its number.
    Input(usize),
    Number(f64),
    /// A sum of products.
    Products(Vec<[Form; 2]>),
    /// One of these.
    Selected(Vec<Form>),
    /// By an operator, in a type.
    By(Op, DType, Vec<Form>),
}

/// All elements that were computed in a run.
#[derive(Default)]
pub(crate) struct Recorder {
    /// By form: its number, in the order of computation, and a range that it has where it is finite.
    known: FxHashMap<Form, (usize, Bounds)>,
    made: Vec<(Form, Made)>,
    operands: usize,
    /// By limit of numbers: what has to be below it.
    limited: FxHashMap<Form, (f64, FxHashSet<Form>)>,
    /// Whether a type has less than 24 bits, is half, and is a float of 8 bits.
    is_coarse: bool,
    has_half: bool,
    has_bytes: bool,
}

impl Recorder {
    /// Records an element unless it is known, or an operand is not.
    pub(crate) fn record(&mut self, form: Form, made: Made) {
        let range = |it: &Form| self.known.get(it).map(|it| it.1);
        let hull = |a: Bounds, b: Bounds| Bounds::new(a.low.min(b.low), a.high.max(b.high));
        let (count, range) = match &made {
            Made::Input(_) => (1, Some(FINITE)),
            Made::Number(it) => (1, it.is_finite().then_some(Bounds::new(*it, *it))),
            Made::Products(terms) => {
                let term = |[a, b]: &[Form; 2]| {
                    let product = range(a)?.times(range(b)?);
                    Some(if a == b { product.meet(Bounds::new(0.0, f64::MAX)) } else { product })
                };
                (
                    terms.len(),
                    terms.iter().map(term).try_fold(Bounds::new(0.0, 0.0), |all, it| Some(all.plus(it?))),
                )
            }
            Made::Selected(all) => {
                let mut ranges = all.iter().map(range);
                let first = ranges.next().flatten();
                (all.len(), ranges.fold(first, |all, it| Some(hull(all?, it?))))
            }
            Made::By(op, to, all) => {
                (all.len(), all.iter().all(|it| range(it).is_some()).then(|| range_of(*op, *to)))
            }
        };
        let Some(range) = range.filter(|_| !self.known.contains_key(&form) && self.operands <= MOST) else {
            return;
        };
        self.operands += count;
        self.known.insert(form, (self.made.len(), range.meet(FINITE)));
        self.made.push((form, made));
    }

    pub(crate) fn limit(&mut self, limit: Form, value: Form, most: f64) {
        self.limited.entry(limit).or_insert((most, FxHashSet::default())).1.insert(value);
    }

    pub(crate) fn uses(&mut self, of: Option<DType>) {
        self.is_coarse |= of.and_then(DType::significand_bits).is_some_and(|it| it < 24);
        self.has_half |= of == Some(DType::Half);
        self.has_bytes |= of.is_some_and(|it| it.class() == Class::SmallFloat);
    }

    /// Returns the conditions on the inputs, by their names, on which all of these faults are finite, and at most this magnitude as the inputs
    /// are, unless it is below 1; `None` if they are not known.
    pub(crate) fn conditions(
        &self,
        faults: &BTreeSet<Form>,
        inputs: &[String],
        magnitude: f64,
    ) -> Option<Vec<String>> {
        if self.has_bytes {
            return None;
        }
        // By element, the last ones first, which operands precede.
        let mut needs: BTreeMap<usize, Bounds> = BTreeMap::new();
        // What no condition bounds: finite numbers, or where sums and products are taken for finite, all.
        let any = if magnitude < 1.0 { ANY } else { FINITE };
        let mut boxes = vec![any; inputs.len()];
        for fault in faults {
            if let Some((most, limited)) = self.limited.get(fault) {
                limited.iter().try_for_each(|it| self.need(&mut needs, *it, within(*most)))?;
                continue;
            }
            self.need(&mut needs, *fault, if magnitude < 1.0 { any } else { within(magnitude) })?;
        }
        while let Some((at, need)) = needs.pop_last() {
            let ((value, made), need) = (&self.made[at], need.meet(any));
            let range = self.known.get(value)?.1;
            if need.meet(range).is_empty() {
                return None;
            }
            // What holds for every finite value needs only that.
            let need = if need.has(range) { any } else { need };
            match made {
                Made::Input(number) => boxes[*number] = boxes[*number].meet(need),
                Made::Number(it) => need.has(Bounds::new(*it, *it)).then_some(())?,
                Made::Selected(all) => all.iter().try_for_each(|it| self.need(&mut needs, *it, need))?,
                Made::Products(terms) => self.need_terms(&mut needs, terms, need)?,
                Made::By(_, to, _) if to.class() == Class::Bool => need.has(TRUTH).then_some(())?,
                Made::By(op, to, all) => {
                    let number = |at: usize| {
                        let range = self.known.get(all.get(at)?)?.1;
                        (range.low == range.high).then_some(range.low)
                    };
                    let own = need_of(*op, need.meet(within(largest(*to))), number(1))?;
                    self.need(&mut needs, *all.first()?, own)?;
                }
            }
        }
        let shown = inputs.iter().zip(boxes).map(|(name, it)| self.shown(name, it, magnitude));
        Some(shown.collect::<Option<Vec<_>>>()?.concat())
    }

    fn need(&self, needs: &mut BTreeMap<usize, Bounds>, value: Form, need: Bounds) -> Option<()> {
        let at = self.known.get(&value)?.0;
        // Elements do not know their types: where some are half, each has to fit into its range, and is not 0 by underflow.
        let need = if self.has_half { need.in_half() } else { need };
        let all = needs.entry(at).or_insert(ANY);
        *all = all.meet(need);
        Some(())
    }

    fn need_terms(
        &self,
        needs: &mut BTreeMap<usize, Bounds>,
        terms: &[[Form; 2]],
        need: Bounds,
    ) -> Option<()> {
        let range = |it: Form| self.known.get(&it).map_or(FINITE, |it| it.1);
        let number = |it: Form| Some(range(it).low).filter(|low| *low == range(it).high);
        let known = |[a, b]: &[Form; 2]| Some(number(*a)? * number(*b)?);
        let sum: f64 = terms.iter().filter_map(known).sum();
        let rest: Vec<_> = terms.iter().filter(|it| known(it).is_none()).collect();
        // Several terms that are not 0 together are positive together.
        let is_shared = need.least > 0.0 && (rest.len() > 1 || sum != 0.0);
        let rounded = need.least.max(1e-6 * sum.abs());
        let low = if is_shared { need.low.max(if sum == 0.0 { 0.0 } else { rounded }) } else { need.low };
        let least = if is_shared && sum != 0.0 { 0.0 } else { need.least };
        let count = rest.len().max(1) as f64;
        let part = Bounds { low: (low - sum) / count, high: (need.high - sum) / count, least };
        if rest.is_empty() {
            return need.has(Bounds::new(sum, sum)).then_some(());
        }
        for &&[a, b] in &rest {
            let (one, other) = if number(a).is_some() { (b, a) } else { (a, b) };
            let is_within = |it: Form| range(it).low >= 0.0 && range(it).high < 1e9;
            match number(other) {
                // The product of 0 and a number.
                Some(0.0) if part.least == 0.0 && part.has(Bounds::new(0.0, 0.0)) => {
                    self.need(needs, one, ANY)?
                }
                Some(0.0) => return None,
                Some(factor) => self.need(needs, one, part.over(factor))?,
                None if part.least == 0.0
                    && part.low <= 0.0
                    && part.high >= 0.0
                    && one != other
                    && (is_within(one) || is_within(other)) =>
                {
                    let (bounded, free) = if is_within(one) { (one, other) } else { (other, one) };
                    self.need(needs, bounded, ANY)?;
                    self.need(needs, free, part.over(range(bounded).high.max(1.0)))?;
                }
                None => [one, other].iter().try_for_each(|it| self.need(needs, *it, part.root()))?,
            }
        }
        Some(())
    }

    /// Returns the conditions of a box, with three digits that are in it.
    fn shown(&self, name: &str, it: Bounds, most: f64) -> Option<Vec<String>> {
        let margin = if self.is_coarse { 0.02 } else { 1e-4 };
        let digits = |number: f64, is_upper: bool| {
            let number = number + number.abs() * if is_upper { -margin } else { margin };
            let exponent = number.abs().log10().floor() - 2.0;
            let scaled = number / 10.0_f64.powf(exponent);
            let scaled = if is_upper { scaled.floor() } else { scaled.ceil() };
            if number == 0.0 { "0".to_owned() } else { number_text(scaled * 10.0_f64.powf(exponent)) }
        };
        let mut all = Vec::new();
        let most = if most < 1.0 { LARGEST } else { most };
        let is_finite = |it: f64| it.abs() < most.min(0.99 * LARGEST);
        let is_positive = it.low >= 0.0 && it.least > 0.0;
        match it {
            Bounds { low, high, .. } if low == -high && is_finite(high) => {
                all.push(format!("|{name}| <= {}", digits(high, true)))
            }
            Bounds { low, high, .. } => {
                let lower =
                    format!("{name} >= {}", digits(low.max(if is_positive { it.least } else { low }), false));
                let above = || format!("{name} > 0");
                let is_above = is_positive && low.max(it.least) <= LEAST;
                all.extend(is_above.then(above).or(is_finite(low).then_some(lower)));
                all.extend(is_finite(high).then(|| format!("{name} <= {}", digits(high, true))));
            }
        }
        if it.least > 0.0 && !is_positive {
            all.push(if it.least <= LEAST {
                format!("{name} != 0")
            } else {
                format!("|{name}| >= {}", digits(it.least, false))
            });
        }
        (!it.is_empty()).then_some(all)
    }
}

/// Returns a number with three digits.
pub(crate) fn number_text(number: f64) -> String {
    let short = format!("{number:.2e}").parse().unwrap_or(number);
    if (1e-3..1e5).contains(&number.abs()) { format!("{short}") } else { format!("{short:e}") }
}

pub(crate) fn largest(of: DType) -> f64 {
    if of == DType::Half { 65_504.0 } else { LARGEST }
}

/// Returns a range of what an operator computes from finite numbers, where it is finite.
fn range_of(op: Op, to: DType) -> Bounds {
    match op {
        _ if to.class() == Class::Bool => TRUTH,
        Op::Sigmoid => TRUTH,
        Op::Tanh | Op::Sin | Op::Cos | Op::Erf => within(1.0),
        Op::Exp | Op::Exp2 | Op::Sqrt | Op::Rsqrt | Op::Abs | Op::Relu => Bounds::new(0.0, f64::MAX),
        _ => within(f64::MAX),
    }
}

/// Returns bounds of the first operand on which an operator gives a number within bounds; `number` is the second operand.
fn need_of(op: Op, need: Bounds, number: Option<f64>) -> Option<Bounds> {
    let Bounds { low, high, least } = need;
    let (magnitude, is_free) = (high.min(-low), least == 0.0);
    let exponential = |log: fn(f64) -> f64| {
        let low = if is_free { low } else { low.max(least).max(NORMAL) };
        (high > 0.0).then(|| Bounds::new(if low > 0.0 { log(low) } else { f64::NEG_INFINITY }, log(high)))
    };
    let positive = |low: f64, high: f64| Bounds { low: low.max(0.0), high, least: LEAST };
    match op {
        Op::Exp => exponential(f64::ln),
        Op::Exp2 => exponential(f64::log2),
        Op::Expm1 if is_free && high > -1.0 => {
            let low = if low > -1.0 { low.ln_1p() } else { f64::NEG_INFINITY };
            Some(Bounds::new(low, high.ln_1p()))
        }
        Op::Log if is_free => Some(positive(low.exp(), high.exp())),
        Op::Log2 if is_free => Some(positive(low.exp2(), high.exp2())),
        Op::Log10 if is_free => Some(positive(10.0_f64.powf(low), 10.0_f64.powf(high))),
        Op::Log1p if is_free => Some(Bounds::new(low.exp_m1().max(-0.999), high.exp_m1())),
        Op::Sqrt => Some(Bounds {
            low: low.max(0.0).powi(2),
            high: high.powi(2),
            least: least.powi(2).max(if is_free { 0.0 } else { LEAST }),
        }),
        Op::Rsqrt => {
            let most = if low.max(least) > 0.0 { low.max(least).powi(-2) } else { f64::INFINITY };
            Some(Bounds { low: 0.0, high: most, least: high.powi(-2).max(LEAST) })
        }
        Op::Reciprocal if low < 0.0 && high <= 0.0 => Some(need_of(op, need.over(-1.0), number)?.over(-1.0)),
        Op::Reciprocal if low < 0.0 => {
            let most = if is_free { f64::INFINITY } else { least.recip() };
            Some(Bounds { least: magnitude.recip().max(NORMAL), ..within(most) })
        }
        Op::Reciprocal => {
            let most = if low.max(least) > 0.0 { low.max(least).recip() } else { f64::INFINITY };
            Some(Bounds { low: 0.0, high: most, least: high.recip().max(NORMAL) })
        }
        Op::Pow if high > 0.0 => {
            let exponent = number.filter(|it| *it != 0.0 && is_free)?;
            let (of_low, of_high) = (low.max(0.0).powf(exponent.recip()), high.powf(exponent.recip()));
            if exponent > 0.0 {
                return Some(Bounds::new(of_low, of_high));
            }
            let most = if low > 0.0 { of_low } else { f64::INFINITY };
            Some(Bounds { low: 0.0, high: most, least: of_high.max(NORMAL) })
        }
        Op::Abs if low <= 0.0 => Some(Bounds { least, ..within(high) }),
        Op::Relu if low <= 0.0 && is_free => Some(Bounds::new(f64::NEG_INFINITY, high)),
        Op::Relu => Some(Bounds { low: low.max(0.0), ..need }),
        Op::Silu | Op::Trunc if is_free && magnitude >= 0.0 => Some(within(magnitude)),
        Op::Floor | Op::Ceil | Op::Round if is_free && magnitude >= 1.0 => Some(within(magnitude - 1.0)),
        Op::Tanh | Op::Sigmoid | Op::Sin | Op::Cos | Op::Erf | Op::Atan | Op::Asinh
            if need.has(within(1e3)) =>
        {
            Some(ANY)
        }
        _ => None,
    }
}
