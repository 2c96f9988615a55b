//! `sort`: the first elements in the order, and their indices.

use super::{Lines, Template, step, widest};
use crate::{
    kernels::{BLOCK, ComputeType, DeviceView},
    unsupported::Unsupported,
};

/// Elements that a block sorts: `ALL` in `sort_in_block`.
const SORTED: usize = 2048;
/// Threads of a warp.
const WARP: usize = 32;
/// Elements of a line that a warp sorts in registers.
const SORTED_BY_WARP: usize = 1024;
/// Elements of a line of which a warp takes the first ones, and their most.
const TOP_OF_WARP: usize = 512;
const MOST_KEPT: usize = 32;

pub(super) fn sort(
    dim: usize,
    is_descending: bool,
    computed: ComputeType,
    [input, values, indices]: [&DeviceView; 3],
) -> Result<(Template, usize, Vec<u64>), Unsupported> {
    let (extent, kept) = (input.view.shape[dim], values.view.shape[dim]);
    let lines = Lines::along(dim, input.view, &[input, values, indices])?;
    let count = lines.count();
    let mut words = lines.words(1);
    words.extend([extent, kept].map(|it| it as u64));
    words.extend([input, values, indices].map(|it| step(it, dim)));
    let of_thread = extent.next_power_of_two().div_ceil(WARP);
    let length = extent.next_power_of_two().max(2);
    let (template, threads) =
        if computed == ComputeType::F32 && extent <= TOP_OF_WARP && kept <= MOST_KEPT.min(extent / 2) {
            let width = widest(&lines, &[0], of_thread);
            (Template::TopInWarp { is_descending, of_thread, width }, count * WARP)
        } else if computed == ComputeType::F32 && extent <= SORTED_BY_WARP {
            (Template::SortInWarp { is_descending, of_thread }, count * WARP)
        } else if length <= SORTED {
            let threads = count.div_ceil(SORTED / length) * BLOCK as usize;
            (Template::Sort { is_descending, length: Some(length) }, threads)
        } else {
            (Template::Sort { is_descending, length: None }, count * extent)
        };
    Ok((template, if extent == 0 || kept == 0 { 0 } else { threads }, words))
}
