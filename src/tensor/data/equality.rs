//! Equality of elements for verdicts: between results and expected values, and between ranks.

use std::hash::Hasher;

use super::{Data, Element, each, shadow::number_to_f64};

impl Data {
    /// Returns whether element `i` has the same value in both: zeros of either sign are equal, and a NaN equals
    /// every NaN. Integers of one type are compared by their bits, others as integers where binary64 may round them, and other
    /// types by their binary64 values.
    pub fn has_same_value(&self, i: usize, other: &Self) -> bool {
        if self.same_bits(i, other) {
            return true;
        }
        if self.dtype() == other.dtype() && self.dtype().is_integral() {
            return false;
        }
        let (a, b) = (number_to_f64(self.get(i)), number_to_f64(other.get(i)));
        let is_rounded =
            a.abs() >= EXACT_INTEGERS && self.dtype().is_integral() != other.dtype().is_integral();
        a == b && (!is_rounded || self.integer(i) == other.integer(i)) || a.is_nan() && b.is_nan()
    }

    /// Returns whether element `i` has different values in both that no rounding explains: one is infinite or a NaN, or both are
    /// integers that only binary64, and so a shadow, does not distinguish.
    pub fn differs_beyond_rounding(&self, i: usize, other: &Self) -> bool {
        let (a, b) = (number_to_f64(self.get(i)), number_to_f64(other.get(i)));
        !self.has_same_value(i, other) && (!a.is_finite() || !b.is_finite() || a == b)
    }

    fn integer(&self, i: usize) -> i128 {
        each!(self, v => v[i].to_i128())
    }

    /// Hashes all elements so that elements of one type with the same value have the same hash.
    pub fn hash_values(&self, hasher: &mut impl Hasher) {
        each!(self, v => v.iter().for_each(|it| hasher.write_u64(value_bits(*it))));
    }
}

/// The magnitude from which binary64 rounds integers.
const EXACT_INTEGERS: f64 = (1u64 << 53) as f64;

/// Returns the bits of an element, the same for all zeros and for all NaNs.
fn value_bits<T: Element>(element: T) -> u64 {
    let value = element.to_f64();
    match T::FLOAT {
        true if value == 0.0 => 0,
        true if value.is_nan() => u64::MAX,
        true | false => element.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;

    #[test]
    fn the_hash_agrees_with_the_comparison() {
        let values = [0.0, -0.0, f32::NAN, -f32::NAN, 1.0, -1.0, f32::from_bits(1), f32::INFINITY];
        let hash = |it: f32| {
            let mut hasher = DefaultHasher::new();
            Data::F32(vec![it]).hash_values(&mut hasher);
            hasher.finish()
        };
        for (a, b) in values.iter().flat_map(|a| values.map(|b| (*a, b))) {
            let is_same = Data::F32(vec![a]).has_same_value(0, &Data::F32(vec![b]));
            assert_eq!(is_same, a == b || a.is_nan() && b.is_nan());
            assert_eq!(hash(a) == hash(b), is_same, "{a} {b}");
        }
        assert!(!Data::U64(vec![u64::MAX]).has_same_value(0, &Data::U64(vec![u64::MAX - 1])));
    }
}
