//! The field of integers modulo a prime, and the functions of its elements that stand for operators.
//!
//! Each run draws a prime of 61 bits and a key, so that no text can be written for them. Sums and products are those of the field, in
//! which a constant is the number that it is: an integer times a power of two. Every other operator is an unknown function, also the
//! reciprocal: `Algebra::apply` hashes its name and its operands with the key, and its values count as further random inputs.
//!
//! The *size* of values bounds their degree as polynomials of inputs, of values of unknown functions and of constants, and the
//! logarithm of the sum of their coefficients, which are integers.

use super::*;

/// Marks an element that is no number of the field. Arithmetic does not hold for it.
const OPAQUE: u64 = 1 << 63;

/// An element of the field, from 0 up to the prime, or an opaque one: an infinity, a quotient by zero, what nothing has written, and what
/// is computed from them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Element(u64);

impl Element {
    pub(crate) const ONE: Self = Self(1);

    fn is_opaque(&self) -> bool {
        self.0 & OPAQUE != 0
    }

    pub(crate) fn opaque(self) -> Self {
        Self(self.0 | OPAQUE)
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
    /// Returns the function of a word of a reduction, or of an elementwise operator, for operands of a type. The product of truth values is
    /// their `and`. The field has no NaN, which distinguishes `fmax` from `max`.
    pub(crate) fn named(word: &str, of: DType) -> Option<Self> {
        Some(match (word, of.class()) {
            ("SUM" | "add" | "+" | "AVG", Class::Bool) | ("AVG", Class::Int) => return None,
            ("SUM" | "add" | "+", _) => Self::Sum,
            ("AVG", _) => Self::Average,
            ("PRODUCT" | "mul" | "*", _) | ("logical_and" | "&&", Class::Bool) => Self::Product,
            ("MIN" | "min" | "fmin" | "BAND" | "bitwise_and" | "&", Class::Bool) => Self::Product,
            ("logical_or" | "||", Class::Bool) => Self::Or,
            ("MAX" | "max" | "fmax" | "BOR" | "bitwise_or" | "|", Class::Bool) => Self::Or,
            ("MIN" | "min" | "fmin", _) => Self::Unknown("min"),
            ("MAX" | "max" | "fmax", _) => Self::Unknown("max"),
            ("BAND" | "bitwise_and" | "&", _) => Self::Unknown("and"),
            ("BOR" | "bitwise_or" | "|", _) => Self::Unknown("or"),
            ("BXOR" | "bitwise_xor" | "^", _) => Self::Unknown("xor"),
            _ => return None,
        })
    }

    /// Returns whether a value changes no maximum, or no minimum, of elements of a type.
    pub(crate) fn is_neutral(self, value: Value, of: DType) -> bool {
        match (self, value, of.class()) {
            (Self::Unknown("max"), Value::Int(it), Class::Int) => i128::from(it) == *limits(of).start(),
            (Self::Unknown("min"), Value::Int(it), Class::Int) => i128::from(it) == *limits(of).end(),
            (Self::Unknown("max"), Value::Float(it), Class::Float) => it == f64::NEG_INFINITY,
            (Self::Unknown("min"), Value::Float(it), Class::Float) => it == f64::INFINITY,
            _ => false,
        }
    }

    /// Returns the size of what it makes of `count` elements of a size.
    pub(crate) fn size(self, of_one: u64, count: usize) -> u64 {
        match self {
            Self::Product => of_one.saturating_mul(count as u64),
            Self::Or => of_one.saturating_add(1).saturating_mul(count as u64).saturating_add(1),
            // An average has a constant factor.
            Self::Sum | Self::Average => {
                of_one.saturating_add(1 + u64::from(usize::BITS - count.leading_zeros()))
            }
            Self::Unknown(_) => of_one,
        }
    }
}

/// Returns the integers of a type.
pub(crate) fn limits(of: DType) -> RangeInclusive<i128> {
    let bits = 8 * of.size().clamp(1, 8);
    if of.name().starts_with('u') { 0..=(1 << bits) - 1 } else { -(1 << (bits - 1))..=(1 << (bits - 1)) - 1 }
}

/// The prime of one run, and its unknown functions.
pub(crate) struct Algebra {
    prime: u64,
    key: u64,
    /// The largest size of values.
    pub(crate) size: Cell<u64>,
    /// How many bits the constants have, at most, before or behind the point.
    bits: Cell<u64>,
    /// The constants by which something is divided.
    divisors: RefCell<FxHashSet<Element>>,
    /// The values of unknown functions, and what is compared with them.
    values: RefCell<FxHashSet<Element>>,
    /// The elements that a value of an idempotent function combines, by its name and the value.
    made_of: RefCell<FxHashMap<(&'static str, Element), Vec<Element>>>,
}

impl Algebra {
    pub(crate) fn new(key: u64) -> Self {
        let odd = |at: u64| hash(key, ("prime", at)) >> 4 | 1 << 60 | 1;
        Self {
            prime: (0..).map(odd).find(|it| is_prime(*it)).unwrap_or((1 << 61) - 1),
            key,
            size: Cell::new(1),
            bits: Cell::default(),
            divisors: RefCell::default(),
            values: RefCell::default(),
            made_of: RefCell::default(),
        }
    }

    // ---- arithmetic

    pub(crate) fn sum(&self, all: &[Element]) -> Element {
        if all.iter().any(Element::is_opaque) {
            return self.apply("sum", all);
        }
        let sum: u128 = all.iter().map(|it| u128::from(it.0)).sum();
        Element((sum % u128::from(self.prime)) as u64)
    }

    pub(crate) fn product(&self, all: &[Element]) -> Element {
        if all.iter().any(Element::is_opaque) {
            return self.apply("product", all);
        }
        Element(all.iter().fold(1, |product, it| multiply(product, it.0, self.prime)))
    }

    /// Returns the sum of the products of two rows.
    pub(crate) fn dot(&self, a: &[Element], b: &[Element]) -> Element {
        if a.iter().chain(b).any(Element::is_opaque) {
            return self.apply("dot", &[a, b].concat());
        }
        let add = |sum: u128, (a, b): (&Element, &Element)| {
            let sum = sum + u128::from(a.0) * u128::from(b.0);
            if sum >> 127 == 0 { sum } else { sum % u128::from(self.prime) }
        };
        Element((a.iter().zip(b).fold(0, add) % u128::from(self.prime)) as u64)
    }

    pub(crate) fn minus(&self, it: Element) -> Element {
        self.product(&[Element(self.prime - 1), it])
    }

    /// Returns the other truth value; they are 0 and 1.
    pub(crate) fn negated(&self, it: Element) -> Element {
        self.sum(&[Element::ONE, self.minus(it)])
    }

    /// Returns the reciprocal of a constant, by Fermat's theorem; `None` for what is no other number than 0.
    pub(crate) fn reciprocal(&self, it: Element) -> Option<Element> {
        self.divisors.borrow_mut().insert(it);
        (it.0 != 0 && !it.is_opaque()).then(|| Element(power(it.0, self.prime - 2, self.prime)))
    }

    // ---- constants

    pub(crate) fn integer(&self, value: i64) -> Element {
        self.bits.set(self.bits.get().max(64 - u64::from(value.unsigned_abs().leading_zeros())));
        Element(i128::from(value).rem_euclid(i128::from(self.prime)) as u64)
    }

    /// Returns the element of a number. Infinities and NaN are opaque.
    pub(crate) fn real(&self, value: f64) -> Element {
        if !value.is_finite() {
            return self.random(("no number", value.is_nan(), value < 0.0)).opaque();
        }
        let bits = value.abs().to_bits();
        let (exponent, digits) = ((bits >> 52) as i64, bits & ((1 << 52) - 1));
        let (exponent, digits) = if exponent == 0 { (1, digits) } else { (exponent, digits | 1 << 52) };
        // A number is `digits` times 2 to the power `exponent - 1075`.
        let zeros = digits.trailing_zeros().min(52);
        let (exponent, digits) = (exponent - 1075 + i64::from(zeros), digits >> zeros);
        let base = if exponent < 0 { self.prime.div_ceil(2) } else { 2 };
        if digits != 0 {
            self.bits.set(self.bits.get().max(exponent.unsigned_abs() + 53));
        }
        let magnitude = multiply(digits, power(base, exponent.unsigned_abs(), self.prime), self.prime);
        if value < 0.0 { self.minus(Element(magnitude)) } else { Element(magnitude) }
    }

    // ---- unknown functions

    /// Returns a random element for a name. Names with operands are functions, for which `apply` is.
    pub(crate) fn random(&self, name: impl Hash) -> Element {
        Element(hash(self.key, name) % self.prime)
    }

    /// Returns the value of an unknown function.
    pub(crate) fn apply(&self, function: impl Hash, operands: &[Element]) -> Element {
        let value = self.random((function, operands));
        self.values.borrow_mut().insert(value);
        if operands.iter().any(Element::is_opaque) { value.opaque() } else { value }
    }

    /// Returns a bound for the probability that two programs that differ agree on outputs, as the exponent of two.
    ///
    /// They can agree because two different operands of unknown functions agree, of which there are pairs, or because two outputs do. Two
    /// polynomials of size `s` agree at a random point with a probability of at most `1.07 s / 2^60`, unless the prime divides their
    /// coefficients. A coefficient of them is a number of at most `s (1 + bits)` bits, over powers of two and of divisors, so that
    /// less than `s (1 + bits) / 60` of 2^54.6 primes divide it.
    pub(crate) fn error_exponent(&self, outputs: usize) -> f64 {
        let applied = self.values.borrow().len() as f64;
        let bits = 2 * self.bits.get() + 64 * self.divisors.borrow().len() as u64;
        let pairs = applied * applied / 2.0 + outputs.max(1) as f64;
        (self.size.get() as f64 * (2 + bits) as f64 * pairs).log2() - 60.0
    }

    pub(crate) fn combine(&self, how: Combine, all: &[Element]) -> Element {
        let negated = || all.iter().map(|it| self.negated(*it)).collect::<Vec<_>>();
        match how {
            Combine::Sum => self.sum(all),
            Combine::Average => {
                let count = self.reciprocal(self.integer(all.len() as i64));
                self.product(&[self.sum(all), count.unwrap_or_default()])
            }
            Combine::Product => self.product(all),
            Combine::Or => self.negated(self.product(&negated())),
            Combine::Unknown(name) => {
                let mut made_of = self.made_of.borrow_mut();
                let parts = |it: &Element| made_of.get(&(name, *it)).cloned().unwrap_or_else(|| vec![*it]);
                let mut set: Vec<Element> = all.iter().flat_map(parts).collect();
                set.sort_unstable();
                let zero = Element::default();
                let is_kept = |it: &&[Element]| name != "xor" || it.len() % 2 == 1 && it[0] != zero;
                set = set.chunk_by(|a, b| a == b).filter(is_kept).map(|it| it[0]).collect();
                if set.len() < 2 {
                    return set.first().copied().unwrap_or(zero);
                }
                self.values.borrow_mut().extend(&set);
                let value = self.apply(name, &set);
                made_of.insert((name, value), set);
                value
            }
        }
    }
}

fn hash(key: u64, name: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, name).hash(&mut hasher);
    hasher.finish()
}

fn multiply(a: u64, b: u64, modulus: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(modulus)) as u64
}

fn power(base: u64, exponent: u64, modulus: u64) -> u64 {
    let bits = (0..u64::BITS - exponent.leading_zeros()).rev();
    bits.fold(1, |power, bit| {
        let square = multiply(power, power, modulus);
        if exponent >> bit & 1 == 1 { multiply(square, base, modulus) } else { square }
    })
}

/// Returns whether an odd number above 37 is a prime: the test of Miller and Rabin, which these bases decide below 2^81 (Sorenson and
/// Webster 2015).
fn is_prime(odd: u64) -> bool {
    let twos = (odd - 1).trailing_zeros();
    let is_witness = |base: &u64| {
        let first = power(*base, (odd - 1) >> twos, odd);
        let squares = iter::successors(Some(first), |it| Some(multiply(*it, *it, odd)));
        first != 1 && !squares.take(twos as usize).any(|it| it == odd - 1)
    };
    ![2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37].iter().any(is_witness)
}
