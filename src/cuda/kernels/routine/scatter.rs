//! `scatter`: writes or adds values at indices.

use super::{LEAST_LINES, Lines, Template, step, widest};
use crate::{
    kernels::{BLOCK, ComputeType, DeviceView},
    unsupported::Unsupported,
};
use hir_plan::RoutineKind;

/// Bytes of the numbers of a line that a block of `scatter_in_block` keeps in shared memory.
const LINE_BYTES: usize = 16 << 10;
/// Parts of a line, of `LINE_BYTES` each, up to which blocks of `scatter_in_block` read all indices for each.
const MOST_RANGES: usize = 4;
/// Rows of the result that a block of `scatter_rows` has: `ROWS` in `scatter.cu`.
const ROWS: usize = 16;

/// Returns whether the kernel of a scatter reads the base itself.
pub(crate) fn reads_base(kind: RoutineKind, inputs: &[DeviceView], outs: &[DeviceView]) -> bool {
    let (RoutineKind::Scatter { dim, .. }, [_, index, _], [out]) = (kind, inputs, outs) else { return false };
    scatters_rows(dim, index) || scatters_in_block(dim, index, out)
}

/// Returns whether all of many lines along a dimension have one index.
fn scatters_rows(dim: usize, index: &DeviceView) -> bool {
    if index.view.len() < LEAST_LINES * index.view.shape[dim] {
        return false;
    }
    let mut dims = index.view.shape.iter().zip(&index.view.strides).enumerate();
    dims.all(|(at, (extent, stride))| at == dim || *extent == 1 || *stride == 0)
}

/// Returns whether a block handles a line: the elements of a line, and not neighbouring lines, are neighbours.
fn scatters_in_block(dim: usize, index: &DeviceView, out: &DeviceView) -> bool {
    let (length, extent) = (index.view.shape[dim], out.view.shape[dim]);
    // 8 bytes: the largest number.
    let ranges = (8 * extent).div_ceil(LINE_BYTES);
    let lines = index.view.len() / length.max(1);
    let is_small = length.max(extent) < 1 << 31 && lines * ranges < 1 << 31;
    index.view.strides[dim] == 1 && length >= 32 && ranges <= MOST_RANGES && is_small
}

pub(super) fn scatter(
    dim: usize,
    accumulates: bool,
    computed: ComputeType,
    [base, index, value, out]: [&DeviceView; 4],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    let (length, extent) = (index.view.shape[dim], out.view.shape[dim]);
    let steps = |all: &[&DeviceView]| all.iter().map(|it| step(it, dim)).collect::<Vec<u64>>();
    if scatters_rows(dim, index) {
        let rows = Lines::along(dim, value.view, &[base, value, out])?;
        let mut width = rows.width(&[0, 1, 2]);
        let last = rows.dims.extents.len() - 1;
        let is_contiguous = rows.dims.strides.iter().all(|it| it[last] == 1);
        let is_aligned = |it: &&DeviceView, width: usize| it.view.strides[dim].is_multiple_of(width);
        while width > 1 && !(is_contiguous && [base, value, out].iter().all(|it| is_aligned(it, width))) {
            width /= 2;
        }
        let packs = (rows.count() / width).div_ceil(BLOCK as usize) * BLOCK as usize;
        let mut words = rows.words(width);
        words.extend([index.address, step(index, dim), length as u64]);
        words.extend(steps(&[base, value, out]));
        words.push(extent as u64);
        let template = Template::ScatterRows { accumulates, width };
        return Ok((template, packs * extent.div_ceil(ROWS), words));
    }
    if scatters_in_block(dim, index, out) {
        let lines = Lines::along(dim, index.view, &[base, index, value, out])?;
        let mut words = lines.words(1);
        words.extend([length as u64, extent as u64]);
        words.extend(steps(&[base, index, value, out]));
        let most = LINE_BYTES / if computed == ComputeType::F32 { 4 } else { 8 };
        let capacity = extent.next_power_of_two().clamp(256, most);
        // A thread writes 16 bytes of the line in shared memory at once.
        let widths = [widest(&lines, &[1, 2], 8), widest(&lines, &[0, 3], most / 1024)];
        let threads = lines.count() * extent.div_ceil(capacity) * BLOCK as usize;
        return Ok((Template::ScatterInBlock { accumulates, capacity, widths }, threads, words));
    }
    let lines = Lines::along(dim, index.view, &[index, value, out])?;
    let mut words = lines.words(1);
    words.push(length as u64);
    words.extend(steps(&[index, value, out]));
    words.push(extent as u64);
    let threads = if length == 0 { 0 } else { lines.count() };
    Ok((Template::Scatter { accumulates }, threads, words))
}
