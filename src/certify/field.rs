//! The field of integers modulo the prime 2^61 - 1, and the functions of its elements that stand for operators.
//!
//! Sums and products are those of the field. Two different polynomials of degree `d` agree at a random point with a probability of at
//! most `d / (2^61 - 1)` (Schwartz 1980, Zippel 1979). Every other operator is an unknown function, also the reciprocal:
//! `Algebra::apply` hashes its name and its operands with the key of the run, and its values count as further random inputs.

use std::{
    cell::{Cell, RefCell},
    hash::{DefaultHasher, Hash, Hasher},
    iter::Sum,
    ops::{Add, Mul, Neg, Sub},
    rc::Rc,
};

use rustc_hash::FxHashMap;

const PRIME: u64 = (1 << 61) - 1;

/// An element of the field, from 0 up to the prime.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Element(u64);

impl Element {
    pub(crate) const ONE: Self = Self(1);

    /// Reduces a sum of at most 32 products.
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
        Self(self.0 % limit.min(PRIME))
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
    pub(crate) fn of_real(value: f64) -> Option<Self> {
        let bits = value.abs().to_bits();
        let (exponent, digits) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
        let (exponent, digits) = if exponent == 0 { (1, digits) } else { (exponent, digits | 1 << 52) };
        // The order of 2 is 61. A number is `digits` times 2 to the power `exponent - 1075`.
        let power = Self(1 << (exponent - 1075).rem_euclid(61));
        let magnitude = Self(digits) * power;
        value.is_finite().then_some(if value < 0.0 { -magnitude } else { magnitude })
    }

    /// Returns the reciprocal, by Fermat's theorem; `None` for 0.
    pub(crate) fn reciprocal(self) -> Option<Self> {
        let (mut power, mut result) = (self, Self::ONE);
        for bit in 0..61 {
            if (PRIME - 2) >> bit & 1 == 1 {
                result = result * power;
            }
            power = power * power;
        }
        (self.0 != 0).then_some(result)
    }

    /// Returns the sum of the products of two rows.
    pub(crate) fn dot<'e>(
        a: impl IntoIterator<Item = &'e Self>,
        b: impl IntoIterator<Item = &'e Self>,
    ) -> Self {
        let mut sum = 0;
        for (number, (a, b)) in a.into_iter().zip(b).enumerate() {
            let kept = if number % 31 == 30 { u128::from(Self::reduced(sum).0) } else { sum };
            sum = kept + u128::from(a.0) * u128::from(b.0);
        }
        Self::reduced(sum)
    }
}

impl Add for Element {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let sum = self.0 + other.0;
        Self(if sum >= PRIME { sum - PRIME } else { sum })
    }
}

impl Neg for Element {
    type Output = Self;

    fn neg(self) -> Self {
        Self(if self.0 == 0 { 0 } else { PRIME - self.0 })
    }
}

impl Sub for Element {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Element {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self::reduced(u128::from(self.0) * u128::from(other.0))
    }
}

impl Sum for Element {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

/// How a reduction combines elements, in any order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Combine {
    Sum,
    Average,
    Product,
    /// Associative and commutative functions by name: `max`, `min`, `and`, `or` and `xor`. All but the last one are idempotent.
    /// The field has no NaN, which distinguishes `fmax` from `max`.
    Lattice(&'static str),
}

impl Combine {
    /// Returns a function by name. The maximum of truth values is `or`, and the minimum is `and`.
    pub(crate) fn lattice(name: &'static str, is_bool: bool) -> Self {
        Self::Lattice(match name {
            "max" if is_bool => "or",
            "min" if is_bool => "and",
            _ => name,
        })
    }
}

/// The elements that a result of a lattice function combines, by the name of the function and the result.
type LatticeElements = FxHashMap<(&'static str, Element), Rc<[Element]>>;

/// The unknown functions of one run.
pub(crate) struct Algebra {
    key: u64,
    /// The elements of the positive and the negative infinity.
    infinities: [Element; 2],
    /// How many values of unknown functions were computed.
    applied: Cell<u64>,
    /// The elements of which the results of lattice functions are made.
    made_of: RefCell<LatticeElements>,
}

impl Algebra {
    pub(crate) fn new(key: u64) -> Self {
        let (applied, made_of, infinities) = Default::default();
        let it = Self { key, applied, made_of, infinities };
        let infinities = [it.apply("infinity", []), it.apply("negative infinity", [])];
        Self { infinities, ..it }
    }

    /// Returns the value of an unknown function.
    pub(crate) fn apply(&self, function: impl Hash, operands: impl IntoIterator<Item = Element>) -> Element {
        self.applied.set(self.applied.get() + 1);
        let mut hasher = DefaultHasher::new();
        (self.key, function).hash(&mut hasher);
        operands.into_iter().for_each(|it| hasher.write_u64(it.0));
        Element(hasher.finish() % PRIME)
    }

    /// Returns a bound for the probability that two programs with different outputs of this degree agree, as the exponent of two.
    ///
    /// They can agree because two different operands of unknown functions agree, of which there are pairs, or because two outputs do.
    pub(crate) fn error_exponent(&self, degree: u64, outputs: usize) -> f64 {
        let applied = self.applied.get() as f64;
        (degree.max(1) as f64 * (applied * applied / 2.0 + outputs as f64)).log2() - 61.0
    }

    /// Returns the element of a number. Infinities and NaN are unknown elements.
    pub(crate) fn real(&self, value: f64) -> Element {
        let unknown = self.infinities[usize::from(value < 0.0)];
        Element::of_real(value).unwrap_or(if value.is_nan() { self.apply("NaN", []) } else { unknown })
    }

    pub(crate) fn reciprocal(&self, of: Element) -> Element {
        self.apply("reciprocal", [of])
    }

    /// Combines elements. `integral` says that they are integers, of which a maximum is known.
    pub(crate) fn combine(&self, how: Combine, integral: bool, all: &[Element]) -> Element {
        match how {
            Combine::Sum => all.iter().copied().sum(),
            Combine::Average => {
                let count = Element::of_integer(all.len() as i64);
                all.iter().copied().sum::<Element>() * count.reciprocal().unwrap_or_default()
            }
            Combine::Product => all.iter().fold(Element::ONE, |product, it| product * *it),
            Combine::Lattice(name) => self.lattice(name, integral, all),
        }
    }

    fn lattice(&self, name: &'static str, integral: bool, all: &[Element]) -> Element {
        let integers = || all.iter().map(|it| it.integer()).collect::<Option<Vec<i64>>>();
        if let Some(known) = integral.then(integers).flatten() {
            let chosen = known.into_iter().reduce(match name {
                "max" => i64::max,
                "min" => i64::min,
                "and" => |a, b| a & b,
                "xor" => |a, b| a ^ b,
                _ => |a, b| a | b,
            });
            return chosen.map(Element::of_integer).unwrap_or_default();
        }
        let (neutral, absorbing) = match name {
            "max" => (self.real(f64::NEG_INFINITY), None),
            "min" => (self.real(f64::INFINITY), None),
            "and" => (Element::ONE, Some(Element::default())),
            "xor" => (Element::default(), None),
            _ => (Element::default(), Some(Element::ONE)),
        };
        let made_of = self.made_of.borrow();
        let parts = |it: &Element| made_of.get(&(name, *it)).map_or_else(|| vec![*it], |it| it.to_vec());
        let mut set: Vec<Element> = all.iter().flat_map(parts).filter(|it| *it != neutral).collect();
        drop(made_of);
        set.sort_unstable();
        if name != "xor" {
            set.dedup();
        }
        match set[..] {
            [] => neutral,
            [only] => only,
            _ if absorbing.is_some_and(|it| set.contains(&it)) => absorbing.unwrap_or_default(),
            _ => {
                let value = self.apply(("lattice", name), set.iter().copied());
                self.made_of.borrow_mut().insert((name, value), set.into());
                value
            }
        }
    }
}
