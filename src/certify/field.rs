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
    pub(crate) const MINUS_ONE: Self = Self(PRIME - 1);

    /// Reduces a sum of products.
    fn reduced(wide: u128) -> Self {
        let prime = u128::from(PRIME);
        let folded = (wide & prime) + (wide >> 61);
        Self(((folded & prime) + (folded >> 61)) as u64 % PRIME)
    }

    /// Returns an integer below a limit.
    pub(crate) fn below(self, limit: u64) -> Self {
        Self(self.0 % limit)
    }

    pub(crate) fn of_integer(value: i64) -> Self {
        Self(i128::from(value).rem_euclid(i128::from(PRIME)) as u64)
    }

    /// Returns the element of a finite number, which is an integer times a power of two; `None` for the others.
    fn of_real(value: f64) -> Option<Self> {
        let bits = value.abs().to_bits();
        let (exponent, digits) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
        let (exponent, digits) = if exponent == 0 { (1, digits) } else { (exponent, digits | 1 << 52) };
        // The order of 2 is 61. A number is `digits` times 2 to the power `exponent - 1075`.
        let magnitude = Self(digits) * Self(1 << (exponent - 1075).rem_euclid(61));
        value.is_finite().then_some(if value < 0.0 { Self::MINUS_ONE * magnitude } else { magnitude })
    }

    /// Returns the reciprocal, by Fermat's theorem; `None` for 0.
    pub(crate) fn reciprocal(self) -> Option<Self> {
        let square = |power: Self, bit: u64| {
            let power = power * power;
            if (PRIME - 2) >> bit & 1 == 1 { power * self } else { power }
        };
        (self.0 != 0).then(|| (0..61).rev().fold(Self::ONE, square))
    }

    /// Returns the other truth value; they are 0 and 1.
    pub(crate) fn negated(self) -> Self {
        Self::ONE + Self::MINUS_ONE * self
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
        Self((self.0 + other.0) % PRIME)
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
    /// Of truth values.
    Or,
    /// An unknown function that is associative and commutative. It is idempotent, but for `xor`.
    Unknown(&'static str),
}

impl Combine {
    /// Returns the function of a word of a reduction, or of an elementwise operator. `is_bool` says that all operands are truth values, of
    /// which `and` is the product. The field has no NaN, which distinguishes `fmax` from `max`.
    pub(crate) fn named(word: &str, is_bool: bool) -> Option<Self> {
        Some(match (word, is_bool) {
            ("SUM" | "add" | "+", false) => Self::Sum,
            ("AVG", false) => Self::Average,
            ("PRODUCT" | "mul" | "*", _) | ("logical_and" | "&&", true) => Self::Product,
            ("MIN" | "min" | "fmin" | "BAND" | "bitwise_and" | "&", true) => Self::Product,
            ("logical_or" | "||", true) => Self::Or,
            ("MAX" | "max" | "fmax" | "BOR" | "bitwise_or" | "|", true) => Self::Or,
            ("MIN" | "min" | "fmin", false) => Self::Unknown("min"),
            ("MAX" | "max" | "fmax", false) => Self::Unknown("max"),
            ("BAND" | "bitwise_and" | "&", false) => Self::Unknown("and"),
            ("BOR" | "bitwise_or" | "|", false) => Self::Unknown("or"),
            ("BXOR" | "bitwise_xor" | "^", _) => Self::Unknown("xor"),
            _ => return None,
        })
    }

    /// Returns the integer of a type that changes no maximum, or no minimum.
    pub(crate) fn neutral(self, dtype: DType) -> Option<i64> {
        let unused = 64 - 8 * dtype.size().clamp(1, 8);
        match self {
            Self::Unknown("max") => Some(i64::MIN >> unused),
            Self::Unknown("min") => Some(i64::MAX >> unused),
            _ => None,
        }
    }

    /// Returns a bound for the degree of what it makes of `count` elements of a degree.
    pub(crate) fn degree(self, of_one: u64, count: usize) -> u64 {
        match self {
            Self::Product | Self::Or => of_one.saturating_mul(count as u64),
            Self::Sum | Self::Average | Self::Unknown(_) => of_one,
        }
    }
}

/// The unknown functions of one run.
#[derive(Default)]
pub(crate) struct Algebra {
    key: u64,
    /// How many values of unknown functions were computed.
    applied: Cell<u64>,
    /// The elements that a value of an idempotent function combines, by its name and the value.
    made_of: RefCell<FxHashMap<(&'static str, Element), Vec<Element>>>,
}

impl Algebra {
    pub(crate) fn new(key: u64) -> Self {
        Self { key, ..Self::default() }
    }

    /// Returns a random element for a name. Names with operands are functions, for which `apply` is.
    pub(crate) fn random(&self, name: impl Hash) -> Element {
        let mut hasher = DefaultHasher::new();
        (self.key, name).hash(&mut hasher);
        Element(hasher.finish() % PRIME)
    }

    /// Returns the value of an unknown function.
    pub(crate) fn apply(&self, function: impl Hash, operands: &[Element]) -> Element {
        self.applied.set(self.applied.get() + 1);
        self.random((function, operands))
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
        Element::of_real(value).unwrap_or_else(|| self.random(("no number", value.is_nan(), value < 0.0)))
    }

    pub(crate) fn combine(&self, how: Combine, all: &[Element]) -> Element {
        let zero = Element::default();
        let sum = || all.iter().fold(zero, |sum, it| sum + *it);
        match how {
            Combine::Sum => sum(),
            Combine::Average => {
                sum() * Element::of_integer(all.len() as i64).reciprocal().unwrap_or_default()
            }
            Combine::Product => all.iter().fold(Element::ONE, |product, it| product * *it),
            Combine::Or => all.iter().fold(Element::ONE, |none, it| none * it.negated()).negated(),
            Combine::Unknown(name) => {
                let mut made_of = self.made_of.borrow_mut();
                let parts = |it: &Element| made_of.get(&(name, *it)).cloned().unwrap_or_else(|| vec![*it]);
                let mut set: Vec<Element> = all.iter().flat_map(parts).collect();
                set.sort_unstable();
                let is_kept = |it: &&[Element]| name != "xor" || it.len() % 2 == 1 && it[0] != zero;
                set = set.chunk_by(|a, b| a == b).filter(is_kept).map(|it| it[0]).collect();
                if set.len() < 2 {
                    return set.first().copied().unwrap_or(zero);
                }
                let value = self.apply(name, &set);
                made_of.insert((name, value), set);
                value
            }
        }
    }
}
