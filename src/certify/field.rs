//! The field of integers modulo the prime 2^61 - 1, and the functions of its elements that stand for operators.
//!
//! Sums and products are those of the field. Two different polynomials of degree `d` agree at a random point with a probability of at
//! most `d / (2^61 - 1)` (Schwartz 1980, Zippel 1979). Every other operator is an unknown function, also the reciprocal:
//! `Algebra::apply` hashes its name and its operands with the key of the run, and its values count as further random inputs.

use super::*;

const PRIME: u64 = (1 << 61) - 1;

/// An element of the field, from 0 up to the prime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Element(u64);

impl Element {
    pub(crate) const ONE: Self = Self(1);

    /// Reduces a sum of products.
    fn reduced(wide: u128) -> Self {
        let folded = (wide & u128::from(PRIME)) + (wide >> 61);
        let folded = (folded & u128::from(PRIME)) as u64 + (folded >> 61) as u64;
        Self(if folded >= PRIME { folded % PRIME } else { folded })
    }

    /// Returns another element for each number, as SplitMix64 does (Steele, Lea, Flood 2014).
    pub(crate) fn following(self, number: usize) -> Self {
        let mixed = self.0.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ mixed >> 31) % PRIME)
    }

    /// Returns an integer below a limit.
    pub(crate) fn below(self, limit: u64) -> Self {
        Self(self.0 % limit)
    }

    pub(crate) fn of_integer(value: i64) -> Self {
        Self(i128::from(value).rem_euclid(i128::from(PRIME)) as u64)
    }

    /// Returns the integer that the element represents, if its magnitude is below 2^40; `None` for the others, among which are those of
    /// unknown functions.
    pub(crate) fn integer(self) -> Option<i64> {
        let value = if self.0 > PRIME / 2 { self.0 as i64 - PRIME as i64 } else { self.0 as i64 };
        (value.unsigned_abs() >> 40 == 0).then_some(value)
    }

    /// Returns the element of a finite number, which is an integer times a power of two; `None` for the others.
    fn of_real(value: f64) -> Option<Self> {
        let bits = value.abs().to_bits();
        let (exponent, digits) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
        let (exponent, digits) = if exponent == 0 { (1, digits) } else { (exponent, digits | 1 << 52) };
        // The order of 2 is 61. A number is `digits` times 2 to the power `exponent - 1075`.
        let magnitude = Self(digits) * Self(1 << (exponent - 1075).rem_euclid(61));
        value.is_finite().then_some(if value < 0.0 { Self(0) - magnitude } else { magnitude })
    }

    /// Returns the reciprocal, by Fermat's theorem; `None` for 0.
    pub(crate) fn reciprocal(self) -> Option<Self> {
        let square = |power: Self, bit: u64| {
            let power = power * power;
            if (PRIME - 2) >> bit & 1 == 1 { power * self } else { power }
        };
        (self.0 != 0).then(|| (0..61).rev().fold(Self::ONE, square))
    }

    /// Returns the sum of the products of two rows.
    pub(crate) fn dot<'e>(pairs: impl Iterator<Item = (&'e Self, &'e Self)>) -> Self {
        let add = |sum: u128, (a, b): (&Self, &Self)| {
            let sum = sum + u128::from(a.0) * u128::from(b.0);
            if sum >> 127 == 0 { sum } else { u128::from(Self::reduced(sum).0) }
        };
        Self::reduced(pairs.fold(0, add))
    }
}

impl Add for Element {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let sum = self.0 + other.0;
        Self(if sum >= PRIME { sum - PRIME } else { sum })
    }
}

impl Sub for Element {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + Self(if other.0 == 0 { 0 } else { PRIME - other.0 })
    }
}

impl Mul for Element {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self::reduced(u128::from(self.0) * u128::from(other.0))
    }
}

/// How a reduction combines elements, in any order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Combine {
    Sum,
    Average,
    Product,
    /// Associative and commutative functions by name: `max`, `min`, `and` and `or` of truth values or of bits, and `xor`. All but the last
    /// one are idempotent.
    /// The field has no NaN, which distinguishes `fmax` from `max`.
    Lattice(&'static str),
}

impl Combine {
    /// Returns the function of a word of a reduction, by its end: `BAND`, `logical_and`. The maximum of truth values is `or`, and the
    /// minimum is `and`.
    pub(crate) fn named(name: &str, is_bool: bool) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let is = |ends: &[&str]| ends.iter().any(|it| name.ends_with(it));
        let of =
            |truth, bits| Self::Lattice(if is_bool || name.starts_with("logical") { truth } else { bits });
        Some(match () {
            () if is(&["sum", "add"]) => Self::Sum,
            () if is(&["avg"]) => Self::Average,
            () if is(&["product", "mul"]) => Self::Product,
            () if is(&["xor"]) => Self::Lattice("xor"),
            () if is(&["or"]) || is_bool && is(&["max"]) => of("or", "or of bits"),
            () if is(&["and"]) || is_bool && is(&["min"]) => of("and", "and of bits"),
            () if is(&["max"]) => Self::Lattice("max"),
            () if is(&["min"]) => Self::Lattice("min"),
            () => return None,
        })
    }
}

/// The elements that a result of a lattice function combines, by the name of the function and the result.
type LatticeElements = FxHashMap<(&'static str, Element), Rc<[Element]>>;

/// The unknown functions of one run.
#[derive(Default)]
pub(crate) struct Algebra {
    key: u64,
    /// How many values of unknown functions were computed.
    applied: Cell<u64>,
    /// The elements of which the results of lattice functions are made.
    made_of: RefCell<LatticeElements>,
}

impl Algebra {
    pub(crate) fn new(key: u64) -> Self {
        Self { key, ..Self::default() }
    }

    fn hash(&self, function: impl Hash, operands: impl IntoIterator<Item = Element>) -> Element {
        let mut hasher = DefaultHasher::new();
        (self.key, function).hash(&mut hasher);
        operands.into_iter().for_each(|it| hasher.write_u64(it.0));
        Element(hasher.finish() % PRIME)
    }

    /// Returns the value of an unknown function.
    pub(crate) fn apply(&self, function: impl Hash, operands: impl IntoIterator<Item = Element>) -> Element {
        self.applied.set(self.applied.get() + 1);
        self.hash(function, operands)
    }

    /// Returns a bound for the probability that two programs with different outputs of this degree agree, as the exponent of two.
    ///
    /// They can agree because two different operands of unknown functions agree, of which there are pairs, or because two outputs do.
    pub(crate) fn error_exponent(&self, degree: u64, outputs: usize) -> f64 {
        let applied = self.applied.get() as f64;
        (degree.max(1) as f64 * (applied * applied / 2.0 + outputs.max(1) as f64)).log2() - 61.0
    }

    /// Returns the element of a number. Infinities and NaN are unknown elements.
    pub(crate) fn real(&self, value: f64) -> Element {
        Element::of_real(value).unwrap_or_else(|| self.hash(("no number", value.is_nan(), value < 0.0), []))
    }

    /// Combines elements. `integral` says that they are integers, of which a maximum is known.
    pub(crate) fn combine(&self, how: Combine, integral: bool, all: &[Element]) -> Element {
        let sum = || all.iter().fold(Element::default(), |sum, it| sum + *it);
        match how {
            Combine::Sum => sum(),
            Combine::Average => {
                sum() * Element::of_integer(all.len() as i64).reciprocal().unwrap_or_default()
            }
            Combine::Product => all.iter().fold(Element::ONE, |product, it| product * *it),
            Combine::Lattice(name) => self.lattice(name, integral, all),
        }
    }

    fn lattice(&self, name: &'static str, integral: bool, all: &[Element]) -> Element {
        let (zero, bits) = (Element::default(), Element::of_integer(-1));
        let (neutral, absorbing, of_integers): (_, _, fn(i64, i64) -> i64) = match name {
            "max" => (self.real(f64::NEG_INFINITY), None, i64::max),
            "min" => (self.real(f64::INFINITY), None, i64::min),
            "and" => (Element::ONE, Some(zero), |a, b| a & b),
            "and of bits" => (bits, Some(zero), |a, b| a & b),
            "xor" => (zero, None, |a, b| a ^ b),
            "or" => (zero, Some(Element::ONE), |a, b| a | b),
            _ => (zero, Some(bits), |a, b| a | b),
        };
        let known = || all.iter().map(|it| it.integer()).collect::<Option<Vec<i64>>>();
        if let Some(known) = integral.then(known).flatten() {
            return known.into_iter().reduce(of_integers).map_or(zero, Element::of_integer);
        }
        let mut made_of = self.made_of.borrow_mut();
        let parts = |it: &Element| made_of.get(&(name, *it)).map_or_else(|| vec![*it], |it| it.to_vec());
        let mut set: Vec<Element> = all.iter().flat_map(parts).filter(|it| *it != neutral).collect();
        set.sort_unstable();
        if name != "xor" {
            set.dedup();
        }
        match (set.as_slice(), absorbing.filter(|it| set.contains(it))) {
            ([], _) => neutral,
            ([only], _) => *only,
            (_, Some(absorbing)) => absorbing,
            _ => {
                let value = self.apply(("lattice", name), set.iter().copied());
                made_of.insert((name, value), set.into());
                value
            }
        }
    }
}
