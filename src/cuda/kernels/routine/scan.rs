//! `scan`: combines each element with those before it.

use super::{Lines, Template, step, widest};
use crate::{
    kernels::{BLOCK, ComputeType, DeviceView},
    unsupported::Unsupported,
};
use hir_plan::{ReduceOp, RoutineKind};

/// Elements of a line that a block of `scan_by_rows` has: `ROWS` in `scan.cu`, with `R` rows of a thread.
pub(super) const ROWS_OF_THREAD: usize = 16;
const ROWS: usize = 8 * ROWS_OF_THREAD;
/// Packs of lines that a block of `scan_by_rows` has.
const PACKS: usize = 32;
/// The elements of a line from which on several blocks have parts of it.
const LEAST_LENGTH: usize = 4 * ROWS;
/// Bytes before the words that the blocks exchange: their counter.
const COUNTER_BYTES: usize = 16;

/// How several blocks share lines that lie beside each other.
struct RowScan {
    lines: Lines,
    /// Lines of a pack.
    width: usize,
    /// Bytes of the memory in which the blocks exchange numbers.
    bytes: usize,
    /// Number of blocks.
    blocks: usize,
}

impl RowScan {
    fn of(dim: usize, computed: ComputeType, [input, out]: [&DeviceView; 2]) -> Option<Self> {
        let length = input.view.shape[dim];
        if !(LEAST_LENGTH..1 << 31).contains(&length) {
            return None;
        }
        let lines = Lines::along(dim, input.view, &[input, out]).ok()?;
        let size = if computed == ComputeType::F32 { 4 } else { 8 };
        let is_aligned = |it: &DeviceView, width: usize| it.view.strides[dim].is_multiple_of(width);
        let mut width = lines.width(&[0, 1]).min(16 / size);
        while width > 1 && !(is_aligned(input, width) && is_aligned(out, width)) {
            width /= 2;
        }
        let last = lines.dims.extents.len() - 1;
        if lines.dims.strides.iter().any(|it| it[last] != 1) {
            width = 1;
        }
        let packs = lines.count() / width;
        let (strips, chunks) = (packs.div_ceil(PACKS), length.div_ceil(ROWS));
        let blocks = strips * chunks;
        let bytes = COUNTER_BYTES + blocks * PACKS * width * size / 4 * 8;
        (packs >= PACKS / 2 && blocks < 1 << 31).then_some(Self { lines, width, bytes, blocks })
    }
}

/// Returns the bytes of memory, which have to be 0, in which the blocks of a routine exchange numbers.
pub(crate) fn exchanged_bytes(kind: RoutineKind, inputs: &[DeviceView], outs: &[DeviceView]) -> usize {
    let (RoutineKind::Scan { dim, .. }, [input], [out]) = (kind, inputs, outs) else { return 0 };
    if input.view.strides[dim] == 1 && out.view.strides[dim] == 1 {
        return 0;
    }
    let computed = super::compute_type(&[input.dtype, out.dtype]);
    RowScan::of(dim, computed, [input, out]).map_or(0, |it| it.bytes)
}

/// `exchanged` is the address of as many bytes as `exchanged_bytes` returns.
pub(super) fn scan(
    dim: usize,
    op: ReduceOp,
    (computed, exchanged): (ComputeType, u64),
    [input, out]: [&DeviceView; 2],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    let length = input.view.shape[dim];
    let steps = [input, out].map(|it| step(it, dim));
    let is_contiguous = input.view.strides[dim] == 1 && out.view.strides[dim] == 1;
    if let (false, Some(it)) = (is_contiguous, RowScan::of(dim, computed, [input, out])) {
        let mut words = it.lines.words(it.width);
        words.push(length as u64);
        words.extend(steps);
        words.push(exchanged);
        return Ok((Template::ScanByRows { op, width: it.width }, it.blocks * BLOCK as usize, words));
    }
    let lines = Lines::along(dim, input.view, &[input, out])?;
    let has_block = is_contiguous && length >= 64 && lines.count() < 1 << 31;
    let width = has_block.then(|| widest(&lines, &[0, 1], 8));
    let mut words = lines.words(1);
    words.push(length as u64);
    words.extend(steps);
    let threads = lines.count() * if width.is_some() { BLOCK as usize } else { 1 };
    Ok((Template::Scan { op, width }, if length == 0 { 0 } else { threads }, words))
}
