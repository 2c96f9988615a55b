//! On which inputs partial operators give finite numbers: backward bounds.
//!
//! A recorder keeps how each element was computed. From a bound of a result, the bounds of its operands follow that suffice for it, down to a
//! box of the inputs. They suffice for every element below a fault, so on this box none of them is infinite or NaN. Sums of several elements
//! give each an equal part of a bound, and products of two the square root of one.

use super::*;

/// The largest number of operands that are recorded.
const MOST: usize = 1 << 22;

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
    /// The largest of these.
    Largest(Vec<Form>),
    /// By an operator, in a type. Without operands, nothing is known of them.
    By(Op, DType, Vec<Form>),
}

/// The difference of an element and a maximum of it and others, an exponential of one, or a sum of such exponentials.
#[derive(Clone)]
struct Shifted {
    largest: Form,
    /// What the maximum was subtracted from.
    of: Vec<Form>,
    is_exponential: bool,
}

/// By element, the last ones first, which operands precede: the bounds that it has to have.
type Needs = BTreeMap<usize, Bounds>;

/// All elements that were computed in a run.
#[derive(Default)]
pub(crate) struct Recorder {
    /// By form: its number, in the order of computation, and a range that it has where it is finite.
    known: FxHashMap<Form, (usize, Bounds)>,
    made: Vec<(Form, Made)>,
    operands: usize,
    shifted: FxHashMap<Form, Shifted>,
    /// The scores of attentions, with the logarithms of their sums.
    pub(crate) attentions: FxHashSet<u64>,
    /// By limit of numbers: what has to be below it.
    limited: FxHashMap<Form, (f64, FxHashSet<Form>)>,
    /// Whether a type has less than 24 bits, is half, has more range than single precision, and is complex or a float of 8 bits.
    is_coarse: bool,
    has_half: bool,
    has_double: bool,
    has_others: bool,
}

impl Recorder {
    /// Records an element unless it is known, or an operand is not.
    pub(crate) fn record(&mut self, form: Form, made: Made) {
        let (count, range) = match &made {
            Made::Input(_) => (1, Some(FINITE)),
            Made::Number(it) => (1, it.is_finite().then_some(Bounds::new(*it, *it))),
            Made::Products(terms) => {
                let term = |[a, b]: &[Form; 2]| {
                    let product = self.range(*a)?.times(self.range(*b)?);
                    Some(if a == b { product.meet(Bounds::new(0.0, f64::MAX)) } else { product })
                };
                let none = Bounds::new(0.0, 0.0);
                (terms.len(), terms.iter().map(term).try_fold(none, |all, it| Some(all.plus(it?))))
            }
            Made::Selected(all) | Made::Largest(all) => {
                let ranges = all.iter().map(|it| self.range(*it));
                (all.len(), ranges.reduce(|a, b| Some(a?.hull(b?))).flatten())
            }
            Made::By(op, to, all) => {
                (all.len(), all.iter().all(|it| self.range(*it).is_some()).then(|| range_of(*op, *to)))
            }
        };
        let Some(mut range) = range.filter(|_| !self.known.contains_key(&form) && self.operands <= MOST)
        else {
            return;
        };
        self.operands += count;
        if let Some(it) = self.shifted_of(&made) {
            // The exponential of 0 is one of those of all elements.
            let has_largest = self.elements(it.largest).iter().all(|own| it.of.contains(own));
            let exponentials = Bounds::new(has_largest.into(), it.of.len() as f64);
            range = range.meet(if it.is_exponential { exponentials } else { Bounds::new(f64::MIN, 0.0) });
            self.shifted.insert(form, it);
        }
        self.known.insert(form, (self.made.len(), range.meet(FINITE)));
        self.made.push((form, made));
    }

    fn range(&self, it: Form) -> Option<Bounds> {
        self.known.get(&it).map(|it| it.1)
    }

    fn number(&self, it: Form) -> Option<f64> {
        self.range(it).filter(|it| it.low == it.high).map(|it| it.low)
    }

    pub(crate) fn made_of(&self, it: Form) -> Option<&Made> {
        Some(&self.made[self.known.get(&it)?.0].1)
    }

    /// Returns of what an element is the largest.
    fn elements(&self, it: Form) -> &[Form] {
        if let Some(Made::Largest(all)) = self.made_of(it) { all } else { &[] }
    }

    fn shifted_of(&self, made: &Made) -> Option<Shifted> {
        let is = |it: Form, wanted: f64| self.number(it) == Some(wanted);
        let terms = match made {
            Made::By(Op::Exp, _, of) => {
                let difference = self.shifted.get(of.first()?).filter(|it| !it.is_exponential)?;
                return Some(Shifted { is_exponential: true, ..difference.clone() });
            }
            Made::Products(terms) if terms.iter().all(|it| is(it[1], 1.0)) => terms.iter().map(|it| it[0]),
            _ => return None,
        };
        let terms: Vec<Form> = terms.filter(|it| !is(*it, 0.0)).collect();
        let parts = terms.iter().map(|it| self.shifted.get(it).filter(|it| it.is_exponential));
        if let Some(parts) = parts.collect::<Option<Vec<_>>>() {
            let largest = parts.first()?.largest;
            let of = parts.iter().flat_map(|it| &it.of).copied().collect();
            let is_one = parts.iter().all(|it| it.largest == largest);
            return is_one.then_some(Shifted { largest, of, is_exponential: true });
        }
        let &[of, negated] = &terms[..] else { return None };
        let Made::Products(factors) = self.made_of(negated)? else { return None };
        let &[[sign, largest]] = &factors[..] else { return None };
        let is_difference = is(sign, -1.0) && self.elements(largest).contains(&of);
        is_difference.then_some(Shifted { largest, of: vec![of], is_exponential: false })
    }

    pub(crate) fn limit(&mut self, limit: Form, value: Form, most: f64) {
        self.limited.entry(limit).or_insert((most, FxHashSet::default())).1.insert(value);
    }

    pub(crate) fn uses(&mut self, of: Option<DType>) {
        self.is_coarse |= of.and_then(DType::significand_bits).is_some_and(|it| it < 24);
        self.has_half |= of == Some(DType::Half);
        self.has_double |= of == Some(DType::Double);
        self.has_others |= of.is_some_and(|it| matches!(it.class(), Class::SmallFloat | Class::Complex));
    }

    /// Returns the conditions on the inputs, by their names, on which all of these faults are finite, and at most this magnitude as the inputs
    /// are, unless it is below 1; `None` if they are not known.
    pub(crate) fn conditions(
        &self,
        faults: &BTreeSet<Form>,
        inputs: &[String],
        magnitude: f64,
    ) -> Option<Vec<String>> {
        // Complex numbers have no order, and numbers of double precision are larger than what is taken for finite here.
        if self.has_others || self.has_double && magnitude < 1.0 {
            return None;
        }
        let mut needs = Needs::new();
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
                Made::Selected(all) | Made::Largest(all) => {
                    all.iter().try_for_each(|it| self.need(&mut needs, *it, need))?
                }
                Made::Products(terms) => self.need_terms(&mut needs, terms, need)?,
                Made::By(_, to, _) if to.class() == Class::Bool => need.has(TRUTH).then_some(())?,
                Made::By(_, _, all) if all.is_empty() => need.has(any).then_some(())?,
                Made::By(op, to, all) => {
                    let own = need_of(*op, need.meet(within(largest(*to))))?;
                    self.need(&mut needs, *all.first()?, own)?;
                }
            }
        }
        let shown = inputs.iter().zip(boxes).map(|(name, it)| self.shown(name, it, magnitude));
        Some(shown.collect::<Option<Vec<_>>>()?.concat())
    }

    fn need(&self, needs: &mut Needs, value: Form, need: Bounds) -> Option<()> {
        let at = self.known.get(&value)?.0;
        // Elements do not know their types. In each of them, what is to be a normal number is no 0 by underflow.
        let (normal, most) = match () {
            () if self.has_half => (6.2e-5, largest(DType::Half)),
            () if self.is_coarse || self.has_double => (NORMAL, f64::INFINITY),
            () => (0.0, f64::INFINITY),
        };
        let need = need.meet(within(most)).normal(normal);
        let all = needs.entry(at).or_insert(ANY);
        *all = all.meet(need);
        Some(())
    }

    fn need_terms(&self, needs: &mut Needs, terms: &[[Form; 2]], need: Bounds) -> Option<()> {
        let known = |[a, b]: &[Form; 2]| Some(self.number(*a)? * self.number(*b)?);
        let sum: f64 = terms.iter().filter_map(known).sum();
        let rest: Vec<_> = terms.iter().filter(|it| known(it).is_none()).collect();
        // Several terms that are not 0 together are positive together.
        let is_shared = need.least > 0.0 && (rest.len() > 1 || sum != 0.0);
        let error = if self.is_coarse { 1e-2 } else { 1e-6 } * rest.len() as f64;
        let rounded = need.least.max(error * sum.abs());
        let low = if is_shared { need.low.max(if sum == 0.0 { 0.0 } else { rounded }) } else { need.low };
        let least = if is_shared && sum != 0.0 { 0.0 } else { need.least };
        let count = rest.len().max(1) as f64;
        let part = Bounds { low: (low - sum) / count, high: (need.high - sum) / count, least };
        if rest.is_empty() {
            return need.has(Bounds::new(sum, sum)).then_some(());
        }
        let has_zero = part.least == 0.0 && part.low <= 0.0 && part.high >= 0.0;
        let small = |it: Form| self.range(it).filter(|it| it.low >= 0.0 && it.high < 1e9);
        for &&[a, b] in &rest {
            let (one, other) = if self.number(a).is_some() { (b, a) } else { (a, b) };
            let (bounded, free) = if small(one).is_some() { (one, other) } else { (other, one) };
            match (self.number(other), small(bounded).filter(|_| has_zero && one != other)) {
                (Some(0.0), _) => self.need(needs, one, Some(ANY).filter(|_| has_zero)?)?,
                (Some(factor), _) => self.need(needs, one, part.over(factor))?,
                (None, Some(Bounds { high, .. })) => {
                    self.need(needs, bounded, ANY)?;
                    self.need(needs, free, part.over(high.max(1.0)))?;
                }
                (None, None) if part.high < 0.0 => return None,
                (None, None) => [one, other].iter().try_for_each(|it| self.need(needs, *it, part.root()))?,
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
        let Bounds { low, high, least } = it;
        let lowest = if is_positive { low.max(least) } else { low };
        if low == -high && is_finite(high) {
            all.push(format!("|{name}| <= {}", digits(high, true)));
        } else {
            let above = || format!("{name} > 0");
            let lower = is_finite(low).then(|| format!("{name} >= {}", digits(lowest, false)));
            all.extend((is_positive && lowest <= LEAST).then(above).or(lower));
            all.extend(is_finite(high).then(|| format!("{name} <= {}", digits(high, true))));
        }
        if least > 0.0 && !is_positive {
            let apart = || format!("|{name}| >= {}", digits(least, false));
            all.push(if least <= LEAST { format!("{name} != 0") } else { apart() });
        }
        (!it.is_empty()).then_some(all)
    }
}

/// Returns a number with three digits.
pub(crate) fn number_text(number: f64) -> String {
    let short = format!("{number:.2e}").parse().unwrap_or(number);
    if (1e-3..1e5).contains(&number.abs()) { format!("{short}") } else { format!("{short:e}") }
}
