//! Copies of rows whose operand and result lie differently to the words of memory, as of a tensor that is padded or cut at an odd
//! place. A thread loads the two words of the operand that a word of the result overlaps, and shifts them.

use super::{DIMS, DeviceView, Kernel, Launch, shape::MergedDims};

/// The words of a row from which on a kernel is worth while.
const LEAST_BYTES: usize = 128;
/// Bytes of a word.
const WORD: usize = 16;

/// Returns the launch of a copy of rows, which are contiguous in the operand and the result; `merged` has their dimensions. `None` if rows
/// are too short, or there are too many words.
pub(crate) fn shifted_rows_launch([from, to]: [&DeviceView; 2], merged: &MergedDims) -> Option<Launch> {
    let (length, outer) = merged.extents.split_last()?;
    let size = from.dtype.size();
    let bytes = length * size;
    let is_contiguous = merged.strides.iter().all(|it| it.last() == Some(&1));
    if !is_contiguous || bytes < LEAST_BYTES || outer.len() > DIMS {
        return None;
    }
    // A row that begins within a word overlaps one word more.
    let words_of_row = bytes.div_ceil(WORD) + 1;
    let rows: usize = outer.iter().product();
    let count = words_of_row.checked_mul(rows).filter(|it| *it < 1 << 31)?;
    let mut words = vec![from.address, to.address];
    for strides in &merged.strides {
        let mut own: Vec<u64> = strides[..outer.len()].iter().map(|it| (it * size) as u64).collect();
        own.resize(DIMS, 0);
        words.extend(own);
    }
    let mut extents: Vec<u64> = outer.iter().map(|it| *it as u64).collect();
    extents.resize(DIMS, 1);
    words.extend(extents);
    words.extend([outer.len() as u64, rows as u64, bytes as u64, words_of_row as u64]);
    Some(Launch {
        kernel: Kernel::ShiftedRows,
        params: words,
        blocks: (count as u64).div_ceil(u64::from(super::BLOCK)),
    })
}

/// The type of the parameters.
pub(super) const PARAMETERS: &str = "Elementwise<2, 2>";

/// The body.
pub(super) const BODY: &str = "  shifted_rows::copy_shifted_rows(p);\n";

/// The template. Views of rows: the operand and the result. Constants: the bytes of a row, and the words of the result that it may
/// overlap.
pub(super) const TEMPLATE: &str = "
D void copy_shifted_rows(const Elementwise<2, 2>& p) {
  const u32 words = (u32)p.constant[1], count = (u32)p.count * words;
  for (u32 g = blockIdx.x * blockDim.x + threadIdx.x; g < count; g += gridDim.x * blockDim.x) {
    const u32 row = g / words;
    u64 at[2];
    locate<u32, 2, 2>(p, row, at);
    const u64 start = (at[1] & ~15ull) + 16 * (g - row * words), end = at[1] + p.constant[0];
    if (start >= end) continue;
    const u64 source = at[0] + (start - at[1]), from = source & ~15ull;
    const u32 shift = (u32)source & 15;
    // Only words that contain elements of the row are loaded.
    Pack<u32, 4> low = zeros<u32, 4>(), high = zeros<u32, 4>();
    if (from + 16 > at[0]) low = load<u32, 4>(from);
    if (shift && from + 16 < at[0] + p.constant[0]) high = load<u32, 4>(from + 16);
    u32 w[8];
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = low.e[k], w[4 + k] = high.e[k];
    if (shift & 8) {
#pragma unroll
      for (int k = 0; k < 6; ++k) w[k] = w[k + 2];
    }
    if (shift & 4) {
#pragma unroll
      for (int k = 0; k < 5; ++k) w[k] = w[k + 1];
    }
    Pack<u32, 4> y;
#pragma unroll
    for (int k = 0; k < 4; ++k) y.e[k] = (u32)(((u64)w[k + 1] << 32 | w[k]) >> (8 * (shift & 3)));
    if (start >= at[1] && start + 16 <= end) {
      save<u32, 4>(start, y);
    } else {
#pragma unroll
      for (int b = 0; b < 16; ++b)
        if (start + b >= at[1] && start + b < end) *reinterpret_cast<u8*>(start + b) = (u8)(y.e[b / 4] >> (8 * (b % 4)));
    }
  }
}
";
