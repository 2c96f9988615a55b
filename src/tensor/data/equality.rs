//! Equality of elements for verdicts: between results and expected values, and between ranks.

use std::hash::{DefaultHasher, Hasher};

use rayon::prelude::*;

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

    /// Returns a digest of all elements: elements of one type with the same values have the same digest. Threads share the work.
    pub fn digest_of_values(&self) -> u64 {
        each!(self, v => {
            let parts: Vec<u64> = v.par_chunks(CHUNK_LEN).map(chunk_digest).collect();
            let mut hasher = DefaultHasher::new();
            parts.iter().for_each(|it| hasher.write_u64(*it));
            hasher.finish()
        })
    }
}

/// The magnitude from which binary64 rounds integers.
const EXACT_INTEGERS: f64 = (1u64 << 53) as f64;

/// The number of elements that a thread hashes at a time.
const CHUNK_LEN: usize = 1 << 16;

/// Returns the digest of some elements, in which all zeros are equal, and all NaNs.
fn chunk_digest<T: Element>(elements: &[T]) -> u64 {
    let [zero, nan] = [0.0, f64::NAN].map(|it| T::from_f64(it).0);
    let mut bytes = Vec::with_capacity(size_of_val(elements));
    for element in elements {
        let value = element.to_f64();
        let element = match T::FLOAT {
            true if value == 0.0 => zero,
            true if value.is_nan() => nan,
            true | false => *element,
        };
        bytes.extend_from_slice(&element.to_bits().to_le_bytes()[..T::DTYPE.size()]);
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_agrees_with_the_comparison() {
        let values = [0.0, -0.0, f32::NAN, -f32::NAN, 1.0, -1.0, f32::from_bits(1), f32::INFINITY];
        let hash = |it: f32| Data::F32(vec![it]).digest_of_values();
        for (a, b) in values.iter().flat_map(|a| values.map(|b| (*a, b))) {
            let is_same = Data::F32(vec![a]).has_same_value(0, &Data::F32(vec![b]));
            assert_eq!(is_same, a == b || a.is_nan() && b.is_nan());
            assert_eq!(hash(a) == hash(b), is_same, "{a} {b}");
        }
        assert!(!Data::U64(vec![u64::MAX]).has_same_value(0, &Data::U64(vec![u64::MAX - 1])));
    }
}
