//! What an element is where operators give infinities or NaNs although all inputs are finite.
//!
//! An equal value of the field says nothing about them: `x + 0 log(y)` is `x` in the field, and NaN for some `y`. So elements are the same if
//! their values and their *signatures* are.
//!
//! An element is a finite number plus a sum of terms. A term is a product of *faults*, of a finite coefficient, and of the conditions under which
//! `where` selects it. A fault is a value of a partial operator, such as a logarithm, or of an unknown function of elements that have faults.
//! Its name is a random number for its form and for the signatures of all operands. The terms are what infinities and NaNs follow from: sums may be
//! in any order, and a finite factor may be distributed. Of two terms that cancel in the field, both are kept: their difference may be NaN. A sum of
//! which each addend has faults is one fault in a product with another one, since this product may not be distributed: (1 - 1) inf is NaN, as
//! inf - inf is, but (2 - 1) inf is not. A product of two faults is one fault: it may be 0 where both are finite.
//!
//! Operands, coefficients and conditions count by their forms: a number that rounds to 0 has an infinite quotient and makes NaN of an infinity,
//! which the same number in another form only scales.
//!
//! The signature is the sum of the terms with a random factor for each coefficient. There are an odd and an even one: the factors of a coefficient and
//! of its opposite are opposite for the odd one, and the same for the even one, in which no terms with opposite signs cancel. A condition counts as
//! itself, since the sum for a condition and its opposite is that for none.
//!
//! Sums and products are no partial operators: a certificate holds as far as no finite ones overflow. That elements depend on those of
//! half-precision numbers is a part of their signature. A conversion to half precision, or from double precision, is a fault.

use super::*;

/// The terms of an element that may be infinite or NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Signature {
    /// Their odd and their even sum; with a `core`, the factors of the coefficient of the only term.
    sum: [u64; 2],
    /// The name of the fault of a single term.
    core: u64,
    /// Whether it depends on sums and products of half precision.
    is_half: bool,
}

impl Signature {
    pub(crate) const FINITE: Self = Self { sum: [0; 2], core: 0, is_half: false };

    pub(crate) fn is_finite(self) -> bool {
        self.sum == [0; 2]
    }
}

/// What distinguishes elements: the value, the terms, whether they depend on half precision, and the form.
pub(crate) type Identity = (u64, [u64; 2], bool, Form);

/// The name of the fault of sums and products of half-precision numbers.
const HALF: &str = "half-precision number";

impl Algebra {
    /// Returns whether two elements are the same, also where they are infinite or NaN.
    pub(crate) fn is_same(&self, a: &Element, b: &Element) -> bool {
        self.is_equal(a, b) && a.signature.is_half == b.signature.is_half
    }

    /// Returns whether two elements have the same value and the same terms.
    pub(crate) fn is_equal(&self, a: &Element, b: &Element) -> bool {
        a.value == b.value && self.terms(a.signature) == self.terms(b.signature)
    }

    pub(crate) fn identity(&self, it: &Element) -> Identity {
        (it.value, self.terms(it.signature), it.signature.is_half, it.form)
    }

    /// Returns one of elements with the same value and the same terms, which depends on all.
    pub(crate) fn merged(&self, all: &[Element]) -> Element {
        let forms: BTreeSet<Form> = all.iter().map(|it| it.form).collect();
        let form = if forms.len() == 1 { all[0].form } else { self.rounded_form(&forms) };
        self.record(form, || Made::Selected(forms.into_iter().collect()));
        let is_half = all.iter().any(|it| it.signature.is_half);
        let it = Element { form, faults: self.union(all.iter()), ..all[0] };
        Element { signature: Signature { is_half, ..it.signature }, ..it }
    }

    /// Returns the sums of the terms.
    pub(crate) fn terms(&self, it: Signature) -> [u64; 2] {
        if it.core == 0 {
            return it.sum;
        }
        it.sum.map(|factor| self.times(factor, it.core))
    }

    pub(crate) fn times(&self, a: u64, b: u64) -> u64 {
        (u128::from(a) * u128::from(b) % u128::from(self.prime)) as u64
    }

    fn plus(&self, a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
        [0, 1].map(|at| (a[at] + b[at]) % self.prime)
    }

    /// Returns the faults of elements, in a run that records them.
    pub(crate) fn union<'a>(&self, all: impl Iterator<Item = &'a Element>) -> Faults {
        if self.recorder.is_none() {
            Faults::NONE
        } else {
            self.sets.borrow_mut().union(all.map(|it| it.faults))
        }
    }

    /// Returns a value of an unknown function of elements: a fault if one of them has some.
    pub(crate) fn depending(&self, it: Element, on: &[Element]) -> Element {
        let faults = self.union(on.iter());
        if on.iter().all(|it| it.signature.is_finite()) {
            let is_half = on.iter().any(|it| it.signature.is_half);
            return Element { signature: Signature { is_half, ..it.signature }, faults, ..it };
        }
        Element { faults, ..self.fault(it, on, "function") }
    }

    /// Returns an element as a fault with a name. `on` are its operands, or itself.
    fn fault(&self, it: Element, on: &[Element], name: &str) -> Element {
        let all: Vec<[u64; 2]> = on.iter().map(|it| self.terms(it.signature)).collect();
        let core = self.drawn((name, it.form, all));
        let is_half = on.iter().any(|it| it.signature.is_half);
        Element { signature: Signature { sum: [1; 2], core, is_half }, size: it.size.max(1), ..it }
    }

    /// Returns a value that a partial operator may make infinite or NaN.
    pub(crate) fn partial(&self, it: Element, name: &'static str) -> Element {
        self.faulty(it, it.form, name)
    }

    /// Returns an element with a fault of this number, unless that is finite.
    fn faulty(&self, it: Element, number: Form, name: &'static str) -> Element {
        if self.finite.contains(&number) {
            return it;
        }
        Element { faults: self.named(it, number, name), ..self.fault(it, &[it], name) }
    }

    /// Returns the faults of an element and one more, in a run that records them.
    fn named(&self, it: Element, number: Form, name: &'static str) -> Faults {
        let own = self.recorder.as_ref().map(|_| self.sets.borrow_mut().one(number, name));
        self.union([it, Element::default().with(own.unwrap_or_default())].iter())
    }

    /// Returns a sum or product of half-precision numbers, or an element of another type.
    pub(crate) fn in_range(&self, it: Element, of: DType) -> Element {
        let limit = if of == DType::Half { self.limit(HALF, it.form, HALF) } else { [0; 2] };
        if of != DType::Half || self.finite.contains(&limit) {
            return it;
        }
        self.limit_magnitude(it, 15.99);
        let signature = Signature { is_half: true, ..it.signature };
        Element { signature, faults: self.named(it, limit, HALF), ..it }
    }

    /// Returns a conversion to a type with less numbers.
    pub(crate) fn narrowed(&self, it: Element, name: &'static str) -> Element {
        self.faulty(it, self.limit((name, it.form), it.form, name), name)
    }

    /// Records that a number has a limit if a fault, whose number is the result, is finite.
    fn limit(&self, fault: impl Hash, form: Form, name: &str) -> Form {
        let limit = self.rounded_form(("limit", fault));
        let most = largest(if name.ends_with("double precision") { DType::Float } else { DType::Half });
        self.recorder.iter().for_each(|of| of.borrow_mut().limit(limit, form, most));
        limit
    }

    /// Returns what a truth value selects.
    pub(crate) fn selected(&self, condition: Element, a: Element, b: Element) -> Element {
        let other = self.negated(condition);
        let result = self.dot(&[condition, other], &[a, b]);
        let [one, two] = [a, b].map(|it| self.terms(it.signature));
        let under = |it: [u64; 2], when: Element| it.map(|it| self.times(it, when.form[0]));
        // A selection is exact.
        let form = self.plus(under(a.form, condition), under(b.form, other));
        self.record(form, || Made::Selected(vec![a.form, b.form]));
        let sum = if one == two { one } else { self.plus(under(one, condition), under(two, other)) };
        let signature = Signature { sum, core: 0, is_half: result.signature.is_half };
        let result = Element { signature, form, ..result };
        if condition.signature.is_finite() {
            return result;
        }
        // The even sum of a condition is that of its opposite.
        self.fault(result, &[result], &format!("where {}", self.terms(condition.signature)[1]))
    }

    /// Returns the signature of the sum of the products of two rows.
    pub(crate) fn signature_of_products(&self, a: &[Element], b: &[Element]) -> Signature {
        let is_half = a.iter().chain(b).any(|it| it.signature.is_half);
        let is_term = |it: &(&Element, &Element)| !(it.0.signature.is_finite() && it.1.signature.is_finite());
        let mut terms = a.iter().zip(b).filter(is_term).map(|(a, b)| match (a.signature, b.signature) {
            (one, _) if one.is_finite() => self.scaled(*b, a.form),
            (_, other) if other.is_finite() => self.scaled(*a, b.form),
            _ => {
                let [one, other] = [a, b].map(|it| self.as_factor(it));
                let sum = [0, 1].map(|at| self.times(one.sum[at], other.sum[at]));
                // A product of two finite numbers may be 0, so that of three depends on their order.
                let cores = BTreeSet::from([one, other].map(|it| (it.core, it.sum[1])));
                Signature { sum, core: self.drawn(("product", cores)), is_half }
            }
        });
        if a.len() == 1 {
            return Signature { is_half, ..terms.next().unwrap_or(Signature::FINITE) };
        }
        let sum = terms.fold([0; 2], |sum, it| self.plus(sum, self.terms(it)));
        Signature { sum, core: 0, is_half }
    }

    /// Returns a signature as that of a single term.
    fn as_factor(&self, it: &Element) -> Signature {
        let core = |sum| self.drawn(("sum", it.form, sum));
        match it.signature {
            one if one.core != 0 => one,
            other => Signature { sum: [1; 2], core: core(other.sum), ..other },
        }
    }

    /// Returns the signature of the product with a finite coefficient.
    fn scaled(&self, it: Element, coefficient: Form) -> Signature {
        let (magnitude, is_negative) = self.magnitude_of(coefficient);
        let random = |at: u64| self.drawn(("factor", at, magnitude));
        let of = |at| if magnitude == [1, 1] { 1 } else { random(at) };
        let factor = [if is_negative { self.prime - of(0) } else { of(0) }, of(1)];
        Signature { sum: [0, 1].map(|at| self.times(it.signature.sum[at], factor[at])), ..it.signature }
    }
}
