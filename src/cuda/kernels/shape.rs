//! Shapes as kernels take them: without extents of 1, and with adjacent dimensions merged if they are
//! contiguous in all operands.

use super::DIMS;
use crate::unsupported::Unsupported;

/// Merged extents and strides, slowest dimension first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MergedDims {
    pub extents: Vec<usize>,
    /// Indexed by operand; in elements.
    pub strides: Vec<Vec<usize>>,
}

/// Returns the values, such as extents or strides, of the dimensions that a reduction along `axes` keeps, and of those that
/// it reduces.
pub(super) fn split_dims(axes: &[usize], values: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let chosen = |reduced: bool| -> Vec<usize> {
        (0..values.len()).filter(|it| axes.contains(it) == reduced).map(|it| values[it]).collect()
    };
    (chosen(false), chosen(true))
}

/// Merges the dimensions of operands of the same shape. The result for a single element has one dimension.
pub(crate) fn merge_dims(shape: &[usize], operands: &[&[usize]]) -> MergedDims {
    let mut it = MergedDims { extents: Vec::new(), strides: vec![Vec::new(); operands.len()] };
    for (dim, &extent) in shape.iter().enumerate().filter(|(_, extent)| **extent != 1) {
        let joins =
            !it.extents.is_empty()
                && it.strides.iter().zip(operands).all(|(known, strides)| {
                    known.last().is_some_and(|outer| *outer == strides[dim] * extent)
                });
        if joins {
            if let Some(last) = it.extents.last_mut() {
                *last *= extent;
            }
            it.strides.iter_mut().zip(operands).for_each(|(known, strides)| {
                known.pop();
                known.push(strides[dim]);
            });
        } else {
            it.extents.push(extent);
            it.strides.iter_mut().zip(operands).for_each(|(known, strides)| known.push(strides[dim]));
        }
    }
    if it.extents.is_empty() {
        it.extents.push(1);
        it.strides.iter_mut().for_each(|known| known.push(0));
    }
    it
}

/// Merges the dimensions of operands whose elements may be processed in any order. The dimensions are in the order of
/// the memory of the last operand, the result, so that neighbouring threads write neighbours in memory.
pub(crate) fn merge_dims_in_any_order(shape: &[usize], operands: &[&[usize]]) -> MergedDims {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if let Some(result) = operands.last() {
        order.sort_by_key(|dim| std::cmp::Reverse(result[*dim]));
    }
    let in_order = |values: &[usize]| -> Vec<usize> { order.iter().map(|dim| values[*dim]).collect() };
    let operands: Vec<Vec<usize>> = operands.iter().map(|it| in_order(it)).collect();
    merge_dims(&in_order(shape), &operands.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

impl MergedDims {
    /// Rejects more dimensions than a kernel's parameters hold.
    pub fn checked(self) -> Result<Self, Unsupported> {
        if self.extents.len() > DIMS {
            Err(format!("views have {} separate dimensions; kernels support {DIMS}", self.extents.len())
                .into())
        } else {
            Ok(self)
        }
    }

    /// Returns the widest access in elements, up to `most`, that all operands allow in the last dimension. An
    /// operand whose last stride is 1 needs an address and strides that are multiples of the access.
    pub fn width(&self, most: usize, addresses: &[u64], sizes: &[usize]) -> usize {
        let last = self.extents.len() - 1;
        let fits = |width: usize| {
            self.extents[last].is_multiple_of(width)
                && self.strides.iter().zip(addresses).zip(sizes).all(|((strides, address), size)| {
                    match strides[last] {
                        0 => true,
                        1 => {
                            (*address as usize).is_multiple_of(width * size)
                                && strides[..last].iter().all(|it| it.is_multiple_of(width))
                        }
                        _ => false,
                    }
                })
        };
        let mut width = most;
        while width > 1 && !fits(width) {
            width /= 2;
        }
        width.max(1)
    }

    /// Returns the extents, the last one in groups of `width`, padded to `DIMS`.
    pub fn extent_words(&self, width: usize) -> Vec<u64> {
        let mut words: Vec<u64> = self.extents.iter().map(|it| *it as u64).collect();
        if let Some(last) = words.last_mut() {
            *last /= width as u64;
        }
        words.resize(DIMS, 1);
        words
    }

    /// Returns an operand's strides in bytes, the last one between groups of `width`, padded to `DIMS`.
    pub fn stride_words(&self, operand: usize, size: usize, width: usize) -> Vec<u64> {
        let mut words: Vec<u64> = self.strides[operand].iter().map(|it| (it * size) as u64).collect();
        if let Some(last) = words.last_mut() {
            *last *= width as u64;
        }
        words.resize(DIMS, 0);
        words
    }
}
