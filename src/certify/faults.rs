//! What may make an element infinite or NaN although all inputs are finite: values of partial operators, such as a logarithm.
//!
//! `signature` compares what elements are there. This file has the faults of which `range` says for which inputs they are finite, in a run
//! that records them.

use super::*;

/// A set of faults: its number in `FaultSets`. 0 is the empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Faults(u32);

impl Faults {
    pub(crate) const NONE: Self = Self(0);
}

/// The largest number of faults of an element that are told apart. A larger set is one fault, of which nothing is known.
const MOST: usize = 1 << 14;

/// All sets of one run.
pub(crate) struct FaultSets {
    sets: Vec<Rc<[Form]>>,
    numbers: FxHashMap<Rc<[Form]>, Faults>,
    unions: FxHashMap<Vec<Faults>, Faults>,
    /// The operators whose values are faults.
    names: FxHashMap<Form, &'static str>,
}

impl Default for FaultSets {
    fn default() -> Self {
        let none: Rc<[Form]> = Rc::new([]);
        let numbers = FxHashMap::from_iter([(none.clone(), Faults(0))]);
        Self { sets: vec![none], numbers, unions: FxHashMap::default(), names: FxHashMap::default() }
    }
}

impl FaultSets {
    /// Returns the set of one fault. `value` identifies it; `name` is the operator.
    pub(crate) fn one(&mut self, value: Form, name: &'static str) -> Faults {
        self.names.entry(value).or_insert(name);
        self.number(vec![value])
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

    /// Returns the faults that only one of two sets has, or all if they are equal.
    pub(crate) fn difference(&self, a: Faults, b: Faults) -> BTreeSet<Form> {
        let [one, other] = [a, b].map(|it| self.faults(it));
        let differs = |it: &&Form| a == b || !(one.contains(it) && other.contains(it));
        one.iter().chain(other.iter()).filter(differs).copied().collect()
    }

    /// Returns the name of the operator of a fault; the hash of a large set has none.
    pub(crate) fn name(&self, fault: Form) -> &'static str {
        self.names.get(&fault).copied().unwrap_or("operator")
    }

    /// Returns whether a set has a fault of this name.
    pub(crate) fn has(&self, it: Faults, name: &str) -> bool {
        self.faults(it).iter().any(|it| self.names.get(it).is_some_and(|own| *own == name))
    }

    fn faults(&self, it: Faults) -> &Rc<[Form]> {
        &self.sets[it.0 as usize]
    }

    fn number(&mut self, mut faults: Vec<Form>) -> Faults {
        faults.sort_unstable();
        faults.dedup();
        if faults.len() > MOST {
            let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one(&faults);
            faults = vec![[digest; 2]];
        }
        let faults: Rc<[Form]> = faults.into();
        let next = Faults(self.sets.len() as u32);
        let number = *self.numbers.entry(faults.clone()).or_insert(next);
        if number == next {
            self.sets.push(faults);
        }
        number
    }
}

/// Returns whether an operator gives finite numbers for finite operands, as far as sums and products do.
pub(crate) fn is_total(op: Op) -> bool {
    use Op::{
        Abs, Add, Asinh, Atan, Atan2, Cast, Ceil, Clamp, Complex, Cos, Erf, Erfc, FMax, FMin, Floor, Frac,
        Imag, Lerp, Max, Min, Mul, Neg, Real, Relu, Round, Sigmoid, Silu, Sin, Sub, Tanh, Threshold, Trunc,
        Where,
    };
    let is_elementwise = op.def().class == OpClass::Elementwise;
    let is_other = !is_elementwise && !matches!(op.def().type_rule, TypeRule::SdpaBwd | TypeRule::Unchecked);
    let elementwise = [
        Add, Sub, Mul, Neg, Abs, Max, Min, FMax, FMin, Where, Clamp, Threshold, Lerp, Relu, Sigmoid, Silu,
        Tanh, Erf, Erfc, Sin, Cos, Atan, Atan2, Asinh, Floor, Ceil, Round, Trunc, Frac, Cast, Complex, Real,
        Imag,
    ];
    is_other || elementwise.contains(&op)
}
