//! Elements for which operators and casts are most error-prone: limits, ties of every rounding, the
//! neighbours of both, and infinities and NaNs.

use std::{collections::BTreeMap, fs, path::Path};

use grammar::dtype::DType;
use hir_tensor::data::{E4m3, E5m2, Element};
use libtest_mimic::Failed;
use safetensors::tensor::TensorView;

use super::DTYPES;
use crate::rng::Rng;

/// Number of elements of random bits, for casts and for pairs each.
const RANDOM: usize = 200;

/// Bits of the significands to which results are rounded.
const PRECISIONS: [i32; 6] = [3, 4, 8, 11, 24, 53];

/// Elements of one type. Each is stored in the low bits of an integer.
pub struct Elements {
    pub dtype: DType,
    pub bits: Vec<u64>,
}

impl Elements {
    /// Reads elements from the bytes of a file.
    pub fn of(dtype: DType, bytes: &[u8]) -> Self {
        let one = |bytes: &[u8]| bytes.iter().rev().fold(0, |bits, &it| bits << 8 | u64::from(it));
        Self { dtype, bits: bytes.chunks_exact(dtype.size()).map(one).collect() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mask = if self.dtype == DType::Bool { 1 } else { u64::MAX };
        let size = self.dtype.size();
        self.bits.iter().flat_map(|it| (it & mask).to_le_bytes().into_iter().take(size)).collect()
    }

    /// Returns the value of a float element.
    fn real(&self, at: usize) -> f64 {
        let bits = self.bits[at];
        match self.dtype {
            DType::Float => f64::from(f32::from_bits(bits as u32)),
            DType::Half => f64::from(half::f16::from_bits(bits as u16)),
            DType::BFloat => f64::from(half::bf16::from_bits(bits as u16)),
            DType::E4M3 => E4m3::from_bits(bits).value(),
            DType::E5M2 => E5m2::from_bits(bits).value(),
            _ => f64::from_bits(bits),
        }
    }

    pub fn is_nan(&self, at: usize) -> bool {
        is_float(self.dtype) && self.real(at).is_nan()
    }

    /// Returns the distance to an element of `other` in units in the last place. `None` if only one of the
    /// two is NaN, or if they are zeros of different signs.
    pub fn ulps(&self, at: usize, other: &Self) -> Option<u64> {
        let (one, two) = (self.bits[at], other.bits[at]);
        if one == two || self.is_nan(at) && other.is_nan(at) {
            return Some(0);
        }
        if self.is_nan(at) || other.is_nan(at) {
            return None;
        }
        let sign = 1u64 << (8 * self.dtype.size() - 1);
        // Orders negative numbers below positive ones.
        let place = |it: u64| if it & sign == 0 { it as i128 } else { -((it & !sign) as i128) };
        let apart = place(one).abs_diff(place(two)) as u64;
        (apart > 0).then_some(apart)
    }

    /// Formats an element with its bits, for messages.
    pub fn text(&self, at: usize) -> String {
        let size = self.dtype.size();
        let bits = self.bits[at] & (u64::MAX >> (64 - 8 * size));
        if is_float(self.dtype) {
            format!("{:e} ({bits:#0width$x})", self.real(at), width = 2 + 2 * size)
        } else {
            format!("{bits:#0width$x}", width = 2 + 2 * size)
        }
    }
}

/// Writes named one-dimensional tensors to a file.
pub fn write(path: &Path, named: &BTreeMap<&'static str, Elements>) -> Result<(), Failed> {
    let bytes: Vec<Vec<u8>> = named.values().map(Elements::bytes).collect();
    let mut views = Vec::new();
    for ((name, it), bytes) in named.iter().zip(&bytes) {
        let known = DTYPES.iter().find(|(dtype, _)| *dtype == it.dtype).ok_or("an unknown type")?;
        views.push((*name, TensorView::new(known.1, vec![it.bits.len()], bytes)?));
    }
    Ok(fs::write(path, safetensors::serialize(views, None)?)?)
}

/// Returns the low bits of the nearest values of a type. Integers wrap.
fn nearest(dtype: DType, numbers: &[f64]) -> Vec<u64> {
    let bits = |it: f64| match dtype {
        DType::Double => it.to_bits(),
        DType::Float => u64::from((it as f32).to_bits()),
        DType::Half => u64::from(half::f16::from_f32(it as f32).to_bits()),
        DType::BFloat => u64::from(half::bf16::from_f32(it as f32).to_bits()),
        DType::E4M3 => E4m3::nearest(it).0.to_bits(),
        DType::E5M2 => E5m2::nearest(it).0.to_bits(),
        _ => it as i128 as u64,
    };
    numbers.iter().map(|it| bits(*it)).collect()
}

fn is_float(dtype: DType) -> bool {
    !dtype.is_integral()
}

/// Returns numbers around the limits of types, with both signs.
fn limits() -> Vec<f64> {
    let mut found = vec![0.0, 0.1, 0.5, 1.0, 1.5, 2.5, 3.7, 1e10, 1e30, 1e300, f64::MAX, f64::INFINITY];
    for exponent in [7, 8, 15, 16, 24, 31, 32, 53, 63, 64] {
        let limit = 2f64.powi(exponent);
        let (below, above) = (limit.next_down(), limit.next_up());
        found.extend([limit, limit - 0.5, limit - 1.0, limit + 0.5, limit + 1.0, below, above]);
    }
    found.extend(found.clone().iter().map(|it| -it));
    found.push(f64::NAN);
    found
}

/// Returns numbers halfway between two values of a type, and their neighbours in binary64 and binary32, with
/// both signs.
fn ties() -> Vec<f64> {
    let mut found = Vec::new();
    let mut around = |tie: f64| {
        let near = |exponent: i32| tie * (1.0 + 2f64.powi(exponent));
        let far = |exponent: i32| tie * (1.0 - 2f64.powi(exponent));
        let both = [-52, -40, -30, -23].into_iter().flat_map(|it| [near(it), far(it)]);
        found.extend(both.chain([tie, tie.next_up(), tie.next_down()]));
    };
    for bits in PRECISIONS {
        for exponent in [0, 7, 15, 127, -14, -126] {
            for step in [1.0, 3.0] {
                around(2f64.powi(exponent) * (1.0 + step * 2f64.powi(-bits)));
            }
        }
        // The last tie before infinity, of binary16 and of the types with the exponent range of binary32.
        for exponent in [16, 128] {
            around(2f64.powi(exponent) * (1.0 - 2f64.powi(-bits - 1)));
        }
    }
    // Ties between subnormal numbers of binary16, bfloat16 and binary32, and below the smallest one.
    for least in [-24, -133, -149] {
        [0.5, 1.5, 2.5, 0.25, 1.0].iter().for_each(|it| around(it * 2f64.powi(least)));
    }
    found.extend(found.clone().iter().map(|it| -it));
    found
}

/// Returns integers around powers of two and halfway between two floats.
fn integers() -> Vec<u64> {
    let mut found = vec![0, 1, 2, 3, 7, 100, u64::MAX];
    for exponent in 1..64 {
        let power = 1u64 << exponent;
        found.extend([power - 1, power, power + 1]);
    }
    for bits in PRECISIONS {
        for shift in [0, 1, 5, 10] {
            let tie = |step: u64| ((1u64 << bits) + step) << shift;
            found.extend([1, 3].into_iter().flat_map(|step| [tie(step) - 1, tie(step), tie(step) + 1]));
        }
    }
    found.extend(found.clone().iter().map(|it| it.wrapping_neg()));
    found
}

/// Returns the special elements of a type, from which pairs are formed.
fn few(dtype: DType) -> Vec<u64> {
    if !is_float(dtype) {
        let bits = 8 * dtype.size() as u32;
        let top = 1u64 << (bits - 1);
        return vec![
            0,
            1,
            2,
            3,
            5,
            7,
            13,
            top - 1,
            top,
            top + 1,
            u64::MAX,
            u64::MAX - 1,
            u64::MAX - 6,
            top / 2,
        ];
    }
    let mut numbers = vec![0.0, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.0, 95.0, 65504.0, f64::INFINITY];
    let (bits, least, top) = match dtype {
        DType::Half => (11, -24, 16),
        DType::BFloat => (8, -133, 128),
        DType::Float => (24, -149, 128),
        _ => (53, -1074, 1024),
    };
    // The smallest and the largest subnormal, the smallest normal, the neighbours of 1, and the largest
    // number.
    let unit = 2f64.powi(1 - bits);
    let normal = 2f64.powi(least + bits - 1);
    let largest = (2.0 - unit) * 2f64.powi(top - 1);
    numbers.extend([f64::from_bits(1), 2f64.powi(least), normal - 2f64.powi(least), normal]);
    numbers.extend([1.0 + unit, 1.0 - unit / 2.0, largest, largest / 3.0]);
    numbers.extend(numbers.clone().iter().map(|it| -it));
    numbers.push(f64::NAN);
    nearest(dtype, &numbers)
}

/// Returns the elements on which casts from a type are tested.
pub fn casts(dtype: DType) -> Vec<u64> {
    let mut found = if is_float(dtype) { nearest(dtype, &[limits(), ties()].concat()) } else { integers() };
    let mut rng = Rng(0xca57);
    found.extend((0..RANDOM).map(|_| rng.bits()));
    found
}

/// Returns the elements on which operators are tested: one column per operand. The columns contain every pair
/// of special elements, then random elements.
pub fn columns(dtype: DType) -> [Vec<u64>; 3] {
    let few = few(dtype);
    let mut columns = [const { Vec::new() }; 3];
    for (at, first) in few.iter().enumerate() {
        for (other, second) in few.iter().enumerate() {
            let third = few[(7 * at + 3 * other + 1) % few.len()];
            columns.iter_mut().zip([*first, *second, third]).for_each(|(column, it)| column.push(it));
        }
    }
    let mut rng = Rng(0x09e4);
    for _ in 0..RANDOM {
        columns.iter_mut().for_each(|it| it.push(rng.bits()));
    }
    // Numbers of similar magnitude, which random bits seldom are.
    let mut numbers = || {
        let small =
            (0..RANDOM).map(|_| (rng.below(4001) as f64 - 2000.0) / if rng.chance(50) { 64.0 } else { 7.0 });
        nearest(dtype, &small.collect::<Vec<_>>())
    };
    columns.iter_mut().for_each(|it| it.extend(numbers()));
    columns
}

impl Rng {
    /// Returns 64 random bits.
    fn bits(&mut self) -> u64 {
        (0..4).fold(0, |bits, _| bits << 16 | self.below(1 << 16) as u64)
    }
}
