//! Generated inputs. A value depends only on the seed, the input and the element's position in the whole
//! tensor.
//!
//! Invariant: sharding never changes a value; each rank generates its own shard.

use grammar::{InvalidOption, Named};
use std::str::FromStr;

use grammar::DType;
use rayon::prelude::*;

use crate::data::{Data, Element, UnsupportedDtype, each};
use hir_plan::{Number, ShardLayout};

grammar::named_enum! {
    /// The kind of generated inputs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum InputKind {
        /// Small integers, possibly sparse, chosen so that sums of products are representable.
        Exact = "exact",
        /// -1 or 1, which no term of a sum hides; 0 or 1 for Booleans, 1 for unsigned types.
        Signs = "signs",
        /// Uniform in [-1, 1), rounded to the type; small integers for integer types.
        Random = "random",
        /// Uniform in [-1, 0), so that a maximum is below 0; negative small integers for integer types.
        Negative = "negative",
        /// The opposites of these, so that a minimum is above 0.
        Positive = "positive",
        /// The rank that holds the element; 0 in a whole tensor.
        Rank = "rank",
        /// Zero.
        Zeros = "zeros",
    }
}

/// Parses the value of `--inputs`.
impl FromStr for InputKind {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let unknown = || {
            format!("unknown inputs `{text}`: expected `exact`, `random`, `signs`, `negative`, `positive`, `rank` or `zeros`")
                .into()
        };
        Self::of_name(text).ok_or_else(unknown)
    }
}

/// The distribution of the integers of `exact` inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExactRange {
    /// Values are uniform in -magnitude ..= magnitude.
    pub magnitude: u32,
    /// Fraction of elements that are drawn; the others are 0. It is below 1 only if the magnitude is 1; a
    /// drawn value is then -1 or 1.
    pub density: f64,
}

impl ExactRange {
    /// Returns the range for which a sum of `terms` products of two operands is an integer of at most
    /// 2^`significand_bits`.
    ///
    /// The range is dense with the largest magnitude v of 4, 3, 2, 1 for which `terms`·v² ≤ 2^p; no sum can
    /// then be larger. If even v = 1 is too large, the values are -1, 0 and 1 with the density q for which
    /// the expected number of nonzero products, `terms`·q², is 2^p / 4. That number has a binomial
    /// distribution, so a sum beyond 2^p would need four times as many products as expected, all of the same
    /// sign. The simulator checks for overflow in any case.
    pub fn for_terms(terms: usize, significand_bits: u32) -> Self {
        let (terms, limit) = (terms as f64, 2f64.powi(significand_bits.min(64) as i32));
        let dense = (1..=4).rev().find(|&it| terms * f64::from(it * it) <= limit);
        match dense {
            Some(magnitude) => Self { magnitude, density: 1.0 },
            None => Self { magnitude: 1, density: (limit / 4.0 / terms).sqrt() },
        }
    }

    fn draw(self, bits: u64) -> f64 {
        if self.density < 1.0 {
            // 53 bits decide whether the element is drawn; another bit selects the sign.
            return if to_unit_interval(bits) < self.density { 1.0 - 2.0 * (bits & 1) as f64 } else { 0.0 };
        }
        let values = 2 * u64::from(self.magnitude) + 1;
        (((bits >> 32) * values) >> 32) as f64 - f64::from(self.magnitude)
    }
}

/// A generator of the inputs of a program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InputGenerator {
    /// The kind of values.
    pub kind: InputKind,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The integers of `InputKind::Exact`.
    pub exact: ExactRange,
}

impl InputGenerator {
    /// Returns the chance that a product of two inputs is at most `tolerance` in size, so that a sum without it is not told from one with it.
    /// Integers of type `exact` are 0 with a chance that its range has; of two factors uniform in [-1, 1), the product is at most t
    /// with the chance t·(1 - ln t).
    pub fn missed_product(&self, tolerance: f64) -> f64 {
        let least = match self.kind {
            InputKind::Exact if self.exact.density < 1.0 => 1.0 - self.exact.density.powi(2),
            InputKind::Exact => {
                let values = f64::from(2 * self.exact.magnitude + 1);
                1.0 - ((values - 1.0) / values).powi(2)
            }
            InputKind::Random | InputKind::Negative | InputKind::Positive if tolerance > 0.0 => {
                tolerance * (1.0 - tolerance.ln())
            }
            InputKind::Random | InputKind::Negative | InputKind::Positive | InputKind::Signs => 0.0,
            InputKind::Rank | InputKind::Zeros => 1.0,
        };
        if tolerance < 1.0 { least } else { 1.0 }
    }

    /// Generates the shard of input number `position` that `layout` assigns to `rank`.
    ///
    /// # Errors
    /// Rejects element types that `Data` does not support.
    pub fn fill(
        &self,
        position: usize,
        dtype: DType,
        layout: &ShardLayout,
        rank: usize,
    ) -> Result<Data, UnsupportedDtype> {
        let (starts, len) = layout.global_runs();
        let data = Data::zeros(dtype, starts.len() * len)?;
        Ok(self.draw(position, data, &starts, len, rank))
    }

    /// Generates the shard of an input that is used as indices: numbers from 0 to below `most`. With `InputKind::Zeros`, and
    /// with `InputKind::Rank`, whose values may be no indices, all are 0.
    ///
    /// # Errors
    /// As `fill`.
    pub fn fill_indices(
        &self,
        position: usize,
        dtype: DType,
        layout: &ShardLayout,
        most: usize,
    ) -> Result<Data, UnsupportedDtype> {
        let key = mix(mix(self.seed).wrapping_add(position as u64));
        let indices = layout.global_indices();
        let mut data = Data::zeros(dtype, indices.len())?;
        if !matches!(self.kind, InputKind::Zeros | InputKind::Rank) {
            for (at, index) in indices.into_iter().enumerate() {
                let bits = mix(key.wrapping_add((index as u64).wrapping_mul(GOLDEN_GAMMA)));
                data.set(at, Number::Int(((u128::from(bits) * most as u128) >> 64) as i64));
            }
        }
        Ok(data)
    }

    /// Generates the whole tensor of input number `position`.
    ///
    /// # Errors
    /// As `fill`.
    pub fn whole(&self, position: usize, dtype: DType, shape: &[usize]) -> Result<Data, UnsupportedDtype> {
        let len = shape.iter().product();
        Ok(self.draw(position, Data::zeros(dtype, len)?, &[0], len, 0))
    }

    /// Generates runs of `len` elements that begin at `starts` in the whole tensor.
    fn draw(&self, position: usize, mut data: Data, starts: &[usize], len: usize, rank: usize) -> Data {
        let key = mix(mix(self.seed).wrapping_add(position as u64));
        each!(&mut data, to => self.draw_runs(to, key, starts, len, rank));
        data
    }

    /// Generates runs on several threads, since each value depends only on the element's position in the
    /// whole tensor.
    fn draw_runs<T: Element>(&self, to: &mut [T], key: u64, starts: &[usize], len: usize, rank: usize) {
        to.par_chunks_mut(len.max(1)).zip(starts).for_each(|(run, start)| {
            run.par_chunks_mut(CHUNK_LEN).enumerate().for_each(|(at, part)| {
                let first = start + at * CHUNK_LEN;
                let bits = |index: usize| mix(key.wrapping_add((index as u64).wrapping_mul(GOLDEN_GAMMA)));
                self.draw_into(part, (first..).map(bits), rank);
            });
        });
    }

    fn draw_into<T: Element>(&self, to: &mut [T], bits: impl Iterator<Item = u64>, rank: usize) {
        let unsigned = !T::FLOAT && T::from_f64(-1.0).0.to_f64() == 0.0;
        let value = |bits| match (self.kind, T::DTYPE) {
            (InputKind::Zeros, _) => 0.0,
            (InputKind::Rank, _) => rank as f64,
            (_, DType::Bool) => (bits >> 63) as f64,
            (InputKind::Signs, _) if unsigned => 1.0,
            (InputKind::Signs, _) => 1.0 - 2.0 * (bits >> 63) as f64,
            (InputKind::Random, _) if T::FLOAT => 2.0 * to_unit_interval(bits) - 1.0,
            // Other and larger ones than `Exact` draws, which every integer type holds.
            (InputKind::Random, _) if unsigned => WIDE.draw(mix(bits)).abs(),
            (InputKind::Random, _) => WIDE.draw(mix(bits)),
            (InputKind::Negative, _) if T::FLOAT => to_unit_interval(bits) - 1.0,
            (InputKind::Positive, _) if T::FLOAT => 1.0 - to_unit_interval(bits),
            (InputKind::Negative, _) if !unsigned => -self.exact.draw(bits).abs().max(1.0),
            (InputKind::Negative | InputKind::Positive, _) => self.exact.draw(bits).abs().max(1.0),
            _ if unsigned => self.exact.draw(bits).abs(),
            _ => self.exact.draw(bits),
        };
        for (slot, bits) in to.iter_mut().zip(bits) {
            *slot = T::from_f64(value(bits)).0;
        }
    }
}

/// The integers of `InputKind::Random`.
const WIDE: ExactRange = ExactRange { magnitude: 100, density: 1.0 };

/// Number of elements that a thread generates at a time.
const CHUNK_LEN: usize = 1 << 16;

/// 2^64 divided by the golden ratio, the increment of SplitMix64.
const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Performs a SplitMix64 step: increment, then the finaliser (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014; constants of Vigna's splitmix64.c).
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(GOLDEN_GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the next number of the SplitMix64 generator and advances its state.
pub fn split_mix(state: &mut u64) -> u64 {
    let bits = mix(*state);
    *state = state.wrapping_add(GOLDEN_GAMMA);
    bits
}

/// Converts the upper 53 bits to a number in [0, 1).
fn to_unit_interval(bits: u64) -> f64 {
    (bits >> 11) as f64 / 2f64.powi(53)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hir_plan::AxisPiece;

    fn generator(kind: InputKind, terms: usize) -> InputGenerator {
        InputGenerator { kind, seed: 7, exact: ExactRange::for_terms(terms, 8) }
    }

    #[test]
    fn splitmix_reference_values() {
        // The first outputs of Vigna's splitmix64.c from state 0.
        let mut state = 0;
        assert_eq!(mix(state), 0xe220_a839_7b1d_cdaf);
        assert_eq!(split_mix(&mut state), 0xe220_a839_7b1d_cdaf);
        assert_eq!(split_mix(&mut state), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn ranges_keep_sums_representable() {
        assert_eq!(ExactRange::for_terms(16, 8), ExactRange { magnitude: 4, density: 1.0 });
        assert_eq!(ExactRange::for_terms(17, 8), ExactRange { magnitude: 3, density: 1.0 });
        assert_eq!(ExactRange::for_terms(256, 8), ExactRange { magnitude: 1, density: 1.0 });
        assert_eq!(ExactRange::for_terms(1024, 8), ExactRange { magnitude: 1, density: 0.25 });
        assert_eq!(ExactRange::for_terms(0, 24), ExactRange { magnitude: 4, density: 1.0 });
    }

    #[test]
    fn sharding_never_changes_a_value() -> Result<(), UnsupportedDtype> {
        for kind in [InputKind::Exact, InputKind::Random, InputKind::Zeros] {
            let generator = generator(kind, 64);
            let whole = generator.whole(1, DType::Float, &[4, 6])?;
            for rank in 0..2 {
                let pieces = [
                    vec![AxisPiece { extent: 4, coordinate: None }],
                    vec![
                        AxisPiece { extent: 2, coordinate: Some(rank) },
                        AxisPiece { extent: 3, coordinate: None },
                    ],
                ];
                let layout = ShardLayout { shape: vec![4, 6], pieces: pieces.to_vec() };
                let part = generator.fill(1, DType::Float, &layout, rank)?;
                assert_eq!(part, whole.pick(&layout.global_indices()));
            }
        }
        Ok(())
    }

    #[test]
    fn draws_what_the_kind_says() -> Result<(), UnsupportedDtype> {
        let values =
            |kind, terms, dtype| generator(kind, terms).whole(0, dtype, &[4000]).map(|it| it.to_f64());
        let dense = values(InputKind::Exact, 16, DType::BFloat)?;
        assert!((-4..=4).all(|it| dense.contains(&f64::from(it))));
        assert!(dense.iter().all(|it| it.fract() == 0.0 && it.abs() <= 4.0));
        let sparse = values(InputKind::Exact, 1024, DType::Half)?;
        let drawn = sparse.iter().filter(|it| it.abs() == 1.0).count();
        assert!((900..1100).contains(&drawn), "{drawn} of 4000 at density 0.25");
        assert!(sparse.iter().all(|it| it.abs() <= 1.0) && sparse.contains(&1.0) && sparse.contains(&-1.0));
        let random = values(InputKind::Random, 1, DType::Double)?;
        assert!(random.iter().all(|it| (-1.0..1.0).contains(it)));
        assert!((random.iter().sum::<f64>() / 4000.0).abs() < 0.05);
        assert!(values(InputKind::Random, 1, DType::UInt8)?.iter().all(|it| (0.0..=100.0).contains(it)));
        let integers = values(InputKind::Random, 1, DType::Int32)?;
        assert!(integers.contains(&-100.0) && integers.contains(&100.0));
        let bits = values(InputKind::Exact, 1, DType::Bool)?.iter().sum::<f64>();
        assert!((1800.0..2200.0).contains(&bits));
        assert_eq!(
            generator(InputKind::Rank, 1).fill(0, DType::Int32, &ShardLayout::whole(&[2]), 5)?,
            Data::I32(vec![5, 5])
        );
        Ok(())
    }

    #[test]
    fn seeds_and_positions_differ() -> Result<(), UnsupportedDtype> {
        let one = generator(InputKind::Random, 1);
        let other = InputGenerator { seed: 8, ..one };
        let draw = |it: InputGenerator, position| it.whole(position, DType::Float, &[8]);
        assert_eq!(draw(one, 0)?, draw(one, 0)?);
        assert_ne!(draw(one, 0)?, draw(one, 1)?);
        assert_ne!(draw(one, 0)?, draw(other, 0)?);
        assert_eq!("rank".parse(), Ok(InputKind::Rank));
        assert!("x".parse::<InputKind>().is_err());
        Ok(())
    }
}
