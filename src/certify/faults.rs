//! What may make an element infinite or NaN although all inputs are finite: values of partial operators, such as a logarithm.
//!
//! An equal value of the field says nothing about them: `x + 0 log(y)` is `x` in the field, and NaN for some `y`. So elements are the same if
//! their values and their sets of faults are. A fault is a value of a partial operator, and a condition: the element depends on the fault where
//! the condition, a product of truth values, is not 0. `where` gives each fault of a branch the condition of this branch, while a product with a
//! truth value gives it none: the product of an infinity and 0 is NaN.
//!
//! Sums and products are no partial operators: a certificate holds as far as no finite ones overflow. Those of half-precision numbers, and
//! conversions to them, are one fault, of their type: an element with it depends on numbers that are at most 65,504.

use super::*;

/// A set of faults: its number in `FaultSets`. 0 is the empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Faults(u32);

impl Faults {
    pub(crate) const NONE: Self = Self(0);
}

/// A value of a partial operator, and the condition in the field.
type Fault = (u64, u64);

/// The condition that always holds.
const ALWAYS: u64 = 1;

/// The largest number of faults of an element that are told apart. Larger sets are known by their hash, so they are equal only if they were
/// made of the same sets.
const MOST: usize = 1 << 14;

/// All sets of one run.
pub(crate) struct FaultSets {
    sets: Vec<Rc<[Fault]>>,
    numbers: FxHashMap<Rc<[Fault]>, Faults>,
    unions: FxHashMap<Vec<Faults>, Faults>,
    /// The operators whose values are faults.
    names: FxHashMap<u64, &'static str>,
}

impl Default for FaultSets {
    fn default() -> Self {
        let none: Rc<[Fault]> = Rc::new([]);
        let numbers = FxHashMap::from_iter([(none.clone(), Faults(0))]);
        Self { sets: vec![none], numbers, unions: FxHashMap::default(), names: FxHashMap::default() }
    }
}

impl FaultSets {
    /// Returns the set of one fault that always counts. `value` identifies it; `name` is the operator.
    pub(crate) fn one(&mut self, value: u64, name: &'static str) -> Faults {
        self.names.entry(value).or_insert(name);
        self.number(vec![(value, ALWAYS)])
    }

    /// Returns the union.
    pub(crate) fn union(&mut self, all: impl Iterator<Item = Faults>) -> Faults {
        let mut all: Vec<Faults> = all.filter(|it| *it != Faults::NONE).collect();
        all.sort_unstable();
        all.dedup();
        if all.len() < 2 {
            return all.first().copied().unwrap_or_default();
        }
        if let Some(known) = self.unions.get(&all) {
            return *known;
        }
        let faults = all.iter().flat_map(|it| self.faults(*it).iter().copied()).collect();
        let found = self.number(faults);
        self.unions.insert(all, found);
        found
    }

    /// Returns the faults of what a condition selects. `both` returns the condition that two others hold.
    pub(crate) fn selected(
        &mut self,
        [first, second]: [(Faults, u64); 2],
        both: impl Fn(u64, u64) -> u64,
    ) -> Faults {
        if first.0 == second.0 {
            return first.0;
        }
        let [a, b] = [first.0, second.0].map(|it| Rc::clone(self.faults(it)));
        let conditions = |all: &[Fault], value: u64| -> Vec<u64> {
            all.iter().filter(|it| it.0 == value).map(|it| it.1).collect()
        };
        let mut found = Vec::new();
        for (own, other, condition) in [(&a, &b, first.1), (&b, &a, second.1)] {
            for (value, when) in own.iter() {
                // What both branches depend on alike does not depend on the selection.
                let is_alike = conditions(own, *value) == conditions(other, *value);
                let when = if is_alike { *when } else { both(*when, condition) };
                found.extend((when != 0).then_some((*value, when)));
            }
        }
        self.number(found)
    }

    /// Returns the faults that only one of two sets has, or under another condition.
    pub(crate) fn difference(&self, a: Faults, b: Faults) -> BTreeSet<u64> {
        let [a, b] = [a, b].map(|it| self.faults(it));
        let differs = |it: &&Fault| !(a.contains(it) && b.contains(it));
        a.iter().chain(b.iter()).filter(differs).map(|it| it.0).collect()
    }

    /// Returns the name of the operator of a fault; the hash of a large set has none.
    pub(crate) fn name(&self, fault: u64) -> &'static str {
        self.names.get(&fault).copied().unwrap_or("operator")
    }

    /// Returns whether a set has a fault of this name.
    pub(crate) fn has(&self, it: Faults, name: &str) -> bool {
        self.faults(it).iter().any(|it| self.names.get(&it.0).is_some_and(|own| *own == name))
    }

    fn faults(&self, it: Faults) -> &Rc<[Fault]> {
        &self.sets[it.0 as usize]
    }

    fn number(&mut self, mut faults: Vec<Fault>) -> Faults {
        faults.sort_unstable();
        faults.dedup();
        // What always counts also counts under a condition; `ALWAYS` is the least condition.
        faults.dedup_by(|next, kept| next.0 == kept.0 && kept.1 == ALWAYS);
        if faults.len() > MOST {
            let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one(&faults);
            faults = vec![(digest, ALWAYS)];
        }
        let faults: Rc<[Fault]> = faults.into();
        let next = Faults(self.sets.len() as u32);
        let number = *self.numbers.entry(faults.clone()).or_insert(next);
        if number == next {
            self.sets.push(faults);
        }
        number
    }
}

/// Returns whether an elementwise operator gives finite numbers for finite operands, as far as sums and products do.
pub(crate) fn is_total(op: Op) -> bool {
    matches!(
        op,
        Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Neg
            | Op::Abs
            | Op::Max
            | Op::Min
            | Op::FMax
            | Op::FMin
            | Op::Where
            | Op::Clamp
            | Op::Threshold
            | Op::Lerp
            | Op::Relu
            | Op::Sigmoid
            | Op::Silu
            | Op::Tanh
            | Op::Erf
            | Op::Erfc
            | Op::Sin
            | Op::Cos
            | Op::Atan
            | Op::Atan2
            | Op::Asinh
            | Op::Floor
            | Op::Ceil
            | Op::Round
            | Op::Trunc
            | Op::Frac
            | Op::Cast
            | Op::Complex
            | Op::Real
            | Op::Imag
    )
}
