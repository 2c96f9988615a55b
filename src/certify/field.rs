//! The field of integers modulo a prime, and the functions of its elements that stand for operators.
//!
//! Each run draws a prime of 61 bits and a key, so that no text can be written for them. Sums and products are those of the field, in
//! which a constant is the number that it is: an integer times a power of two. Every other operator is an unknown function, also the
//! reciprocal: `Algebra::apply` hashes its name and its operands with the key, and its values count as further random inputs.
//!
//! The *size* of an element bounds its degree as a polynomial of inputs, of values of unknown functions and of constants, and the
//! binary logarithm of the sum of its coefficients, which are integers. Its *degree* and its *logarithm* are those of the polynomial of inputs
//! and values of unknown functions, with the constants in the coefficients: it is at most `2^logarithm` times the largest of them to
//! the power of the degree.

use super::*;

/// Marks an element that is no number of the field. Arithmetic does not hold for it.
const OPAQUE: u64 = 1 << 63;

/// How an element is computed from rounded numbers: as a polynomial of inputs and of values of unknown functions, and as the same one with
/// positive coefficients, in which each sum is a number of its own. Elements have one form if they are sums of the same products with the same
/// signs, of which none has cancelled; a sum of sums has other terms.
pub(crate) type Form = [u64; 2];

/// An element of the field, or an opaque one: an infinity, -0, a quotient by zero, what nothing has written, and what is computed from them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Element {
    /// The number from 0 up to the prime, and the mark. Elements with the same value are the same.
    pub(crate) value: u64,
    pub(crate) form: Form,
    pub(crate) size: u32,
    pub(crate) degree: u32,
    pub(crate) logarithm: f32,
    /// Whether it is one of an input, which nothing has rounded.
    pub(crate) is_input: bool,
    /// What it is where it is infinite or NaN.
    pub(crate) signature: Signature,
    /// What may make it infinite or NaN, in a run that records it.
    pub(crate) faults: Faults,
}

impl Element {
    pub(crate) const ONE: Self = Self { size: 0, ..Self::number(1, 0) };

    /// A number, an input or a value of an unknown function. A number has the degree 0.
    const fn number(value: u64, degree: u32) -> Self {
        let (signature, faults) = (Signature::FINITE, Faults::NONE);
        Self { value, form: [value; 2], size: 1, degree, logarithm: 0.0, is_input: false, signature, faults }
    }

    fn parts(&self) -> [u64; 3] {
        [self.value, self.form[0], self.form[1]]
    }

    pub(crate) fn is_opaque(&self) -> bool {
        self.value & OPAQUE != 0
    }

    pub(crate) fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    pub(crate) fn opaque(self) -> Self {
        Self { value: self.value | OPAQUE, ..self }
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
    /// An unknown function of elements of a type that is associative and commutative. It is idempotent, but for `xor`.
    Unknown(&'static str, DType),
}

impl Combine {
    /// Returns the function of a word of a reduction, or of an elementwise operator, for operands of a type. The product of truth values is
    /// their `and`.
    pub(crate) fn named(word: &'static str, of: DType) -> Option<Self> {
        Some(match (word, of.class()) {
            (_, Class::SmallFloat) => return None,
            ("SUM" | "add" | "+", Class::Int | Class::Float | Class::Complex) => Self::Sum,
            ("AVG", Class::Float | Class::Complex) => Self::Average,
            ("PRODUCT" | "mul" | "*", _) | ("logical_and" | "&&", Class::Bool) => Self::Product,
            ("MIN" | "min" | "fmin" | "BAND" | "bitwise_and" | "&", Class::Bool) => Self::Product,
            ("logical_or" | "||", Class::Bool) => Self::Or,
            ("MAX" | "max" | "fmax" | "BOR" | "bitwise_or" | "|", Class::Bool) => Self::Or,
            ("MIN", _) => Self::Unknown("min", merged(of)),
            ("MAX", _) => Self::Unknown("max", merged(of)),
            ("min" | "max" | "fmin" | "fmax", _) => Self::Unknown(word, merged(of)),
            ("BAND" | "bitwise_and" | "&", _) => Self::Unknown("and", merged(of)),
            ("BOR" | "bitwise_or" | "|", _) => Self::Unknown("or", merged(of)),
            ("BXOR" | "bitwise_xor" | "^", _) => Self::Unknown("xor", merged(of)),
            _ => return None,
        })
    }

    /// Returns whether a value changes no maximum, or no minimum, of elements of a type.
    pub(crate) fn is_neutral(self, value: Value, of: DType) -> bool {
        let Self::Unknown(name, _) = self else { return false };
        let ((least, most), is_max) = (limits(of).into_inner(), name.ends_with("max"));
        let is_known = is_max || name.ends_with("min");
        match (value, of.class()) {
            (Value::Int(it), Class::Int) => is_known && i128::from(it) == if is_max { least } else { most },
            (Value::Float(it), Class::Float) => is_known && it.is_infinite() && is_max == (it < 0.0),
            _ => false,
        }
    }
}

/// Returns the integers of a type.
pub(crate) fn limits(of: DType) -> RangeInclusive<i128> {
    let bits = 8 * of.size().clamp(1, 8);
    if of.name().starts_with('u') { 0..=(1 << bits) - 1 } else { -(1 << (bits - 1))..=(1 << (bits - 1)) - 1 }
}

/// Returns a number if a type has it, and if it is a multiple of 2^-8 below 2^16, else NaN.
fn exact(number: f64, of: DType) -> f64 {
    let digits = (number * 256.0).abs();
    let bits = of.significand_bits().unwrap_or(24).min(24);
    let kept = digits as u64 >> (digits as u64).trailing_zeros().min(24);
    if digits < 2.0_f64.powi(24) && digits.fract() == 0.0 && kept >> bits == 0 { number } else { f64::NAN }
}

/// The elements that a value of an idempotent function combines, by its name, its type, and what identifies the value.
type Parts = FxHashMap<(&'static str, DType, Identity), Vec<Element>>;

/// The prime of one run, and its unknown functions.
#[derive(Default)]
pub(crate) struct Algebra {
    pub(crate) prime: u64,
    pub(crate) key: u64,
    /// The largest size of elements.
    size: Cell<u32>,
    /// The least magnitude of inputs and values of functions, as the exponent of two, for which a sum or product may overflow.
    pub(crate) magnitude: Cell<f32>,
    /// How many bits the constants have, at most, before or behind the point.
    bits: Cell<u64>,
    /// The constants by which something is divided.
    divisors: RefCell<FxHashSet<u64>>,
    /// The values of unknown functions, and what is compared with them.
    pub(crate) values: RefCell<FxHashSet<u64>>,
    made_of: RefCell<Parts>,
    /// What depends on no input, by the form: the number, or NaN if it is not known.
    numbers: RefCell<FxHashMap<Form, f64>>,
    pub(crate) sets: RefCell<FaultSets>,
    /// The faults that are finite.
    pub(crate) finite: BTreeSet<Form>,
    /// How elements are computed, in a run that records it.
    pub(crate) recorder: Option<RefCell<Recorder>>,
}

impl Algebra {
    /// Makes the field of a key. A run records how elements are computed if it knows which faults are finite.
    pub(crate) fn new(key: u64, finite: Option<&BTreeSet<Form>>) -> Self {
        let candidate = |at: u64| hash(key, ("prime", at)) >> 4 | 1 << 60 | 1;
        let prime = (0..).map(candidate).find(|it| primal_check::miller_rabin(*it)).unwrap_or((1 << 61) - 1);
        let numbers = [([0; 2], 0.0), ([1; 2], 1.0), ([prime - 1, 1], -1.0)];
        let recorder = finite.map(|_| RefCell::default());
        let it = Self {
            prime,
            key,
            numbers: RefCell::new(numbers.into_iter().collect()),
            magnitude: 127.0.into(),
            recorder,
            finite: finite.cloned().unwrap_or_default(),
            ..Self::default()
        };
        for (form, number) in numbers {
            it.record(form, || Made::Number(number));
        }
        it
    }

    /// Records how an element was computed.
    pub(crate) fn record(&self, form: Form, made: impl FnOnce() -> Made) {
        if let Some(it) = &self.recorder {
            self.values.borrow_mut().insert(form[0]);
            it.borrow_mut().record(form, made());
        }
    }

    // ---- arithmetic

    /// Returns the sum of the products of two rows.
    pub(crate) fn dot(&self, a: &[Element], b: &[Element]) -> Element {
        if a.iter().chain(b).any(Element::is_opaque) {
            return self.apply("dot", &[a, b].concat());
        }
        let (signature, faults) = (self.signature_of_products(a, b), self.union(a.iter().chain(b)));
        let (mut sums, mut size, mut degree, mut logarithm) = ([0_u128; 3], 0, 0, f32::MIN);
        for (a, b) in a.iter().zip(b) {
            for (sum, (a, b)) in sums.iter_mut().zip(a.parts().into_iter().zip(b.parts())) {
                *sum += u128::from(a) * u128::from(b);
                if *sum >> 127 != 0 {
                    *sum %= u128::from(self.prime);
                }
            }
            size = a.size.saturating_add(b.size).max(size);
            degree = a.degree.saturating_add(b.degree).max(degree);
            logarithm = logarithm.max(a.logarithm + b.logarithm);
        }
        // The sum of the coefficients is at most as many times that of the largest product.
        let factor = a.len().next_power_of_two().trailing_zeros();
        let logarithm = logarithm.max(-1000.0) + (a.len().max(1) as f32).log2();
        let size = size.saturating_add(factor);
        self.size.set(self.size.get().max(size));
        let [value, odd, even] = sums.map(|it| (it % u128::from(self.prime)) as u64);
        // Sums of numbers are numbers if all of their parts are exact.
        let exact = |it| exact(it, DType::Float);
        let known = a.iter().zip(b).try_fold((0.0, 0.0), |(sum, span), (a, b)| {
            let term = exact(self.number(a)?) * exact(self.number(b)?);
            Some((sum + exact(term), span + term.abs()))
        });
        let known = known.map(|(sum, span)| sum + 0.0 * exact(span));
        let number = |it: f64| [value, if it < 0.0 { self.prime - value } else { value }];
        // A product keeps what it is; sums of the same terms in another order are rounded otherwise.
        let mut terms: Vec<u64> = a.iter().zip(b).map(|(a, b)| self.times(a.form[1], b.form[1])).collect();
        terms.retain(|it| *it != 0);
        terms.sort_unstable();
        let even = if terms.len() > 1 { self.drawn(("sum", terms)) } else { even };
        let form = known.filter(|it| !it.is_nan()).map_or([odd, even], number);
        known.map(|it| *self.numbers.borrow_mut().entry(form).or_insert(it));
        self.record(form, || Made::Products(a.iter().zip(b).map(|(a, b)| [a.form, b.form]).collect()));
        let result = Element { value, form, size, degree, logarithm, is_input: false, signature, faults };
        self.limit_magnitude(result, 127.0);
        result
    }

    /// Returns an element in another form, which rounds it.
    pub(crate) fn renamed(&self, it: Element, form: Form) -> Element {
        self.record(form, || Made::Selected(vec![it.form]));
        Element { form, ..it }
    }

    /// Returns a random form for what is rounded.
    pub(crate) fn rounded_form(&self, of: impl Hash) -> Form {
        [self.drawn(of); 2]
    }

    /// Returns a form without its sign, and whether it had one.
    pub(crate) fn magnitude_of(&self, [odd, even]: Form) -> (Form, bool) {
        let is_negative = odd > self.prime / 2;
        ([if is_negative { self.prime - odd } else { odd }, even], is_negative)
    }

    /// Records for which magnitudes a sum of products is below a power of two.
    pub(crate) fn limit_magnitude(&self, it: Element, most: f32) {
        if it.degree > 0 {
            self.magnitude.set(self.magnitude.get().min((most - it.logarithm) / it.degree as f32));
        }
    }

    pub(crate) fn sum(&self, all: &[Element]) -> Element {
        self.dot(all, &vec![Element::ONE; all.len()])
    }

    pub(crate) fn product(&self, a: Element, b: Element) -> Element {
        self.dot(&[a], &[b])
    }

    pub(crate) fn minus(&self, it: Element) -> Element {
        let one = Element { form: [self.prime - 1, 1], ..Element::number(self.prime - 1, 0) };
        self.product(Element { size: 0, ..one }, it)
    }

    /// Returns the other truth value; they are 0 and 1.
    pub(crate) fn negated(&self, it: Element) -> Element {
        let form = it.form.map(|it| (1 + self.prime - it) % self.prime);
        self.renamed(self.sum(&[Element::ONE, self.minus(it)]), form)
    }

    /// Returns the reciprocal: of a constant by Fermat's theorem, else an unknown function. That of 0 is opaque.
    pub(crate) fn reciprocal(&self, it: Element, is_constant: bool) -> Element {
        let number = self.number(&it).filter(|_| !it.is_opaque());
        if !is_constant && number.is_none_or(f64::is_nan) || it.value == 0 || it.is_opaque() {
            let unknown = self.partial(self.apply("reciprocal", &[it]), "division");
            self.record(unknown.form, || Made::By(Op::Reciprocal, DType::Float, vec![it.form]));
            return if it.value == 0 { unknown.opaque() } else { unknown };
        }
        self.divisors.borrow_mut().insert(it.value);
        let value = power(it.value, self.prime - 2, self.prime);
        if let Some(number) = number {
            self.record([value; 2], || Made::Number(number.recip()));
            self.numbers.borrow_mut().entry([value; 2]).or_insert(exact(number.recip(), DType::Float));
        }
        Element { logarithm: -it.logarithm, ..Element::number(value, 0) }
    }

    // ---- constants

    /// Returns the element of a number in a type. Infinities, NaN and -0, whose quotients differ from those of 0, are opaque.
    pub(crate) fn constant(&self, value: Value, of: DType) -> Element {
        let it = if let Value::Int(it) = value { self.integer(it) } else { self.real(value.real()) };
        self.record(it.form, || Made::Number(value.real()));
        let logarithm = value.real().abs().log2().max(-1000.0) as f32;
        self.rounded(Element { logarithm, ..it }, value.real(), of)
    }

    /// Returns an element that is a number, or an opaque one if its type rounds it to an infinity, to 0, or to another number that is exact.
    fn rounded(&self, it: Element, number: f64, of: DType) -> Element {
        self.numbers.borrow_mut().entry(it.form).or_insert(number);
        let limit = if of == DType::Half { 65_504.0 } else { 3.38e38 };
        let fits = number == 0.0 || (0.02 / limit..=limit).contains(&number.abs());
        let fits = fits && (exact(number, DType::Float).is_nan() || !exact(number, of).is_nan());
        if of.is_integral() || fits {
            it
        } else {
            self.depending(self.random(("rounded", it.value, of)), &[it]).opaque()
        }
    }

    /// Returns what an operator gives in another type, which rounds. That of an opaque element is equal to nothing.
    pub(crate) fn converted(&self, it: Element, of: DType, by: Op) -> Element {
        let unique = self.values.borrow().len();
        let renamed = || self.renamed(it, self.rounded_form((by, of, it.form)));
        let other = || if it.is_opaque() { self.apply(("converted", unique), &[it]) } else { renamed() };
        self.number(&it).map_or_else(other, |number| self.rounded(it, number, of))
    }

    fn number(&self, it: &Element) -> Option<f64> {
        self.numbers.borrow().get(&it.form).copied()
    }

    /// Returns the result of an operator. What depends on no input may be infinite or NaN for all of them, so a result of a type is opaque
    /// unless it and its operands are exact. `None`: it is finite as its operands are.
    pub(crate) fn checked(&self, it: Element, operands: &[&[Element]], of: Option<DType>) -> Element {
        let mut all = operands.iter().copied().flatten().map(|it| self.number(it));
        let is_exact = |it| of.is_none_or(|of| of.is_integral() || !exact(it, of).is_nan());
        let are_exact = all.try_fold(true, |all, it| Some(is_exact(it?) && all));
        // Sums of integers are not rounded.
        let is_integer =
            of.is_some_and(DType::is_integral) && operands.concat().iter().all(|it| self.is_exact(it));
        let it =
            if is_integer && !it.is_opaque() { self.renamed(it, self.integer_form(it.value)) } else { it };
        let Some(are_exact) = are_exact else { return it };
        self.numbers.borrow_mut().entry(it.form).or_insert(f64::NAN);
        // Generators have no operands, and finite numbers.
        let fits = are_exact && self.number(&it).is_some_and(is_exact) || operands.concat().is_empty();
        if fits { it } else { self.depending(self.random(("inexact", it.value, of)), &[it]).opaque() }
    }

    fn real(&self, value: f64) -> Element {
        if !value.is_finite() || value.to_bits() == (-0.0_f64).to_bits() {
            return self.random(("no number", value.to_string())).opaque();
        }
        // A number is `digits` times 2 to the power `exponent`.
        let (digits, exponent, sign) = num_traits::Float::integer_decode(value);
        let zeros = digits.trailing_zeros().min(52);
        let exponent = if digits == 0 { 0 } else { i64::from(exponent) + i64::from(zeros) };
        self.bits.set(self.bits.get().max(exponent.unsigned_abs() + 53));
        let base = if exponent < 0 { self.prime.div_ceil(2) } else { 2 };
        let factor = power(base, exponent.unsigned_abs(), self.prime);
        let magnitude = u128::from(digits >> zeros) * u128::from(factor) % u128::from(self.prime);
        let magnitude = Element::number(magnitude as u64, 0);
        if sign < 0 { self.minus(magnitude) } else { magnitude }
    }

    /// Returns whether nothing has rounded an element, but in sums.
    fn is_exact(&self, it: &Element) -> bool {
        it.form == [it.value; 2] || it.form == self.integer_form(it.value)
    }

    /// Returns the form of an integer, which nothing rounds.
    fn integer_form(&self, value: u64) -> Form {
        [value, value.min(self.prime.wrapping_sub(value))]
    }

    pub(crate) fn integer(&self, value: i64) -> Element {
        self.bits.set(self.bits.get().max(64 - u64::from(value.unsigned_abs().leading_zeros())));
        let logarithm = (value.unsigned_abs() as f32).log2().max(-1000.0);
        let value = i128::from(value).rem_euclid(i128::from(self.prime)) as u64;
        Element { logarithm, form: self.integer_form(value), ..Element::number(value, 0) }
    }

    // ---- unknown functions

    /// Returns a random element for a name. Names with operands are functions, for which `apply` is.
    pub(crate) fn random(&self, name: impl Hash) -> Element {
        Element::number(hash(self.key, name) % self.prime, 1)
    }

    /// Returns a random number for a name, which is not 0 and counts in the bound.
    pub(crate) fn drawn(&self, name: impl Hash) -> u64 {
        let it = self.random(name).value.max(1);
        self.values.borrow_mut().insert(it);
        it
    }

    /// Returns the value of an unknown function.
    pub(crate) fn apply(&self, function: impl Hash, operands: &[Element]) -> Element {
        let own: Vec<u64> = operands.iter().map(|it| it.value).collect();
        let forms: Vec<Form> = operands.iter().map(|it| it.form).collect();
        let is_own = operands.iter().all(|it| self.is_exact(it));
        let value = Element::number(self.drawn((&function, own)), 1);
        let form = if is_own { value.form } else { self.rounded_form((&function, forms)) };
        let value = Element { form, ..value };
        let value = self.depending(value, operands);
        if operands.iter().any(Element::is_opaque) { value.opaque() } else { value }
    }

    /// Returns a bound for the probability that two programs that differ agree on outputs, as the exponent of two.
    ///
    /// They can agree because two different operands of unknown functions agree, of which there are pairs, or because two outputs do. The
    /// names of faults and the forms count as operands, and an output has a value and two sums of terms. Two
    /// polynomials of size `s` agree at a random point with a probability of at most `1.07 s / 2^60`, unless the prime divides their
    /// coefficients. A coefficient of them is a number of at most `s (1 + bits)` bits, over powers of two and of divisors, so that
    /// less than `s (1 + bits) / 60` of 2^54.6 primes divide it.
    pub(crate) fn error_exponent(&self, outputs: usize) -> f64 {
        let applied = self.values.borrow().len() as f64;
        let bits = 2 * self.bits.get() + 64 * self.divisors.borrow().len() as u64;
        let size =
            if self.size.get() == u32::MAX { f64::INFINITY } else { f64::from(self.size.get().max(1)) };
        let pairs = applied * applied / 2.0 + 3.0 * outputs.max(1) as f64;
        (size * (2 + bits) as f64 * pairs).log2() - 60.0
    }

    /// Returns what elements of a type give.
    pub(crate) fn combine(&self, how: Combine, all: &[Element], of: DType) -> Element {
        let is_selected = matches!(how, Combine::Unknown(..));
        self.checked(self.combined(how, all), &[all], Some(of).filter(|_| !is_selected))
    }

    fn combined(&self, how: Combine, all: &[Element]) -> Element {
        let product = |a: Element, b: Element| self.product(a, b);
        let count = || self.reciprocal(self.integer(all.len() as i64), true);
        match how {
            Combine::Sum => self.sum(all),
            Combine::Average => self.product(self.sum(all), count()),
            Combine::Product => all.iter().copied().fold(Element::ONE, product),
            Combine::Or => self.negated(all.iter().map(|it| self.negated(*it)).fold(Element::ONE, product)),
            Combine::Unknown(name, of) => {
                // Only a NaN distinguishes `fmax` from `max`.
                let may_be_nan = |it: &Element| it.is_opaque() || it.signature != Signature::FINITE;
                let name = if all.iter().any(may_be_nan) { name } else { name.trim_start_matches('f') };
                let mut made_of = self.made_of.borrow_mut();
                let key = |it: &Element| (name, of, self.identity(it));
                let parts = |it: &Element| made_of.get(&key(it)).cloned().unwrap_or(vec![*it]);
                let mut set: Vec<Element> = all.iter().flat_map(parts).collect();
                set.sort_by_cached_key(|it| self.identity(it));
                let is_kept = |it: &&[Element]| name != "xor" || it.len() % 2 == 1 && it[0].value != 0;
                let all = set.chunk_by(|a, b| self.is_equal(a, b)).filter(is_kept);
                let set: Vec<Element> = all.map(|it| self.merged(it)).collect();
                if set.len() == 1 || name == "xor" && set.is_empty() {
                    return set.first().copied().unwrap_or_default();
                }
                self.values.borrow_mut().extend(set.iter().map(|it| it.value));
                let value = self.apply((name, of), &set);
                // A maximum of no floats is an infinity.
                let value = if set.is_empty() && !of.is_integral() { value.opaque() } else { value };
                if name.ends_with(['x', 'n']) {
                    let made = if name.ends_with('x') { Made::Largest } else { Made::Selected };
                    self.record(value.form, || made(set.iter().map(|it| it.form).collect()));
                }
                made_of.insert(key(&value), set);
                value
            }
        }
    }
}

pub(crate) fn hash(key: u64, name: impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((key, name))
}

pub(crate) fn power(base: u64, exponent: u64, prime: u64) -> u64 {
    let multiply = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(prime)) as u64;
    (0..u64::BITS).rev().fold(1, |power, bit| {
        let square = multiply(power, power);
        if exponent >> bit & 1 == 1 { multiply(square, base) } else { square }
    })
}
