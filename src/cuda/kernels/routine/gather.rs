//! `gather`: elements at indices.

use super::{LEAST_LINES, Lines, Template, step, widest};
use crate::{
    kernels::{BLOCK, DIMS, DeviceView},
    unsupported::Unsupported,
};

/// Bytes of a line of the source that a block of `gather_in_block` keeps in shared memory.
const LINE_BYTES: usize = 32 << 10;
/// Elements of a line that the threads of a block have: `STRIP` in `routine.cu`.
const STRIP: usize = 16 * BLOCK as usize;
/// Bytes of the source that stay in the L2 cache while single elements of them are read.
const CACHED_BYTES: usize = 8 << 20;
/// Bytes of a sector, the unit in which memory is read.
const SECTOR: usize = 32;

pub(super) fn gather(
    dim: usize,
    first: Option<usize>,
    [source, index, out]: [&DeviceView; 3],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    if gathers_in_block(dim, [source, index, out]) {
        let lines = Lines::along(dim, out.view, &[source, out])?;
        let (extent, length) = (source.view.shape[dim], out.view.shape[dim]);
        let mut words = lines.words(1);
        words.extend([
            index.address,
            step(index, dim),
            length as u64,
            extent as u64,
            first.unwrap_or(0) as u64,
        ]);
        let capacity = extent.next_power_of_two().max(256);
        let widths = [widest(&lines, &[0], 16), widest(&lines, &[1], 16)];
        let threads = lines.count() * length.div_ceil(STRIP) * BLOCK as usize;
        return Ok((Template::GatherInBlock { is_part: first.is_some(), capacity, widths }, threads, words));
    }
    let mut lines = Lines::of(out.view, &[source, index, out]);
    // The dimension of the source is addressed by the index.
    lines.views[0].strides[dim] = 0;
    let mut lines = lines.merged()?;
    let last = lines.dims.extents.len() - 1;
    let [of_source, of_index, _] = [0, 1, 2].map(|at| lines.dims.strides[at][last]);
    let has_one_index = of_index == 0;
    let rows = source.view.strides[dim];
    if !has_one_index {
        lines.split_for_cache(source.view.shape[dim]);
    }
    let mut width = lines.width(if has_one_index { &[0, 2] } else { &[0, 1, 2] });
    while has_one_index && width > 1 && (of_source != 1 || !rows.is_multiple_of(width)) {
        width /= 2;
    }
    let count = lines.count() / width;
    let mut words = lines.words(width);
    words.push(source.view.shape[dim] as u64);
    words.extend([step(source, dim), first.unwrap_or(0) as u64]);
    words.push((of_source * source.dtype.size()) as u64);
    let template = Template::Gather {
        is_part: first.is_some(),
        width,
        has_one_index,
        uses_32_bit_index: count < 1 << 31,
    };
    Ok((template, count, words))
}

/// Returns whether all of many lines, which fit into shared memory, have one index.
fn gathers_in_block(dim: usize, [source, index, out]: [&DeviceView; 3]) -> bool {
    let (extent, length) = (source.view.shape[dim], out.view.shape[dim]);
    let mut dims = index.view.shape.iter().zip(&index.view.strides).enumerate();
    let has_one_index = dims.all(|(at, (extent, stride))| at == dim || *extent == 1 || *stride == 0);
    let is_contiguous = source.view.strides[dim] == 1 && out.view.strides[dim] == 1;
    let lines = out.view.len() / length.max(1);
    has_one_index
        && is_contiguous
        && extent > 0
        && extent * source.dtype.size() <= LINE_BYTES
        && length >= BLOCK as usize
        && lines >= LEAST_LINES
        && lines * length.div_ceil(STRIP) < 1 << 31
}

impl Lines {
    /// Splits the last dimension, if the elements of a source with this extent of its dimension would not stay in the L2 cache: the first
    /// part is slower than the dimension that the index addresses, so that sectors are read again while they are there.
    fn split_for_cache(&mut self, extent: usize) {
        let (dims, size) = (&self.dims, self.sizes[0]);
        let last = dims.extents.len() - 1;
        let own = (0..last).rev().find(|at| dims.strides[0][*at] == 0);
        let (Some(own), 1) = (own, dims.strides[0][last]) else { return };
        let mut length = dims.extents[last];
        while extent * length * size > CACHED_BYTES && length.is_multiple_of(2) && length * size > 4 * SECTOR
        {
            length /= 2;
        }
        let parts = dims.extents[last] / length;
        if parts == 1 || dims.extents.len() == DIMS {
            return;
        }
        self.dims.extents[last] = length;
        self.dims.extents.insert(own, parts);
        for strides in &mut self.dims.strides {
            let step = strides[last] * length;
            strides.insert(own, step);
        }
    }
}
