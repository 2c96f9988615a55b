//! What cuDNN does not compute, computes wrongly, or computes with other bits in each run, although it may make a plan. Sources: the checks of
//! cudnn-frontend's attention nodes, its pull request 628 and issue 1072, and the release notes of cuDNN 9.13 and 9.18.

use hir_executor::{AttentionTask, DeviceTensor};

use super::ALIGNMENT;
use crate::{ExecutorError, Result};

/// The GPUs on which the form of the gradients' graph has kernels whose results are equal in each run.
const CAPABILITY_OF_GRADIENTS: i32 = 90;
/// Gradients may be NaN where keys do not fill tiles, or where there are few rows, and logarithms of sums are small.
const KEYS: usize = 128;
const FEWEST_ROWS: usize = 16;
/// The first version whose gradients of rows of more than `WIDE` elements are right.
const FIRST_VERSION_OF_WIDE_ROWS: usize = 91300;
const WIDE: usize = 128;

fn refuse(why: String) -> Result<()> {
    Err(ExecutorError::Environment(format!("for cuDNN, {why}")))
}

/// Refuses attentions and gradients.
pub(super) fn check(task: &AttentionTask) -> Result<()> {
    // A factor that is not positive would turn hidden scores, -∞, into others.
    let factor = task.scale as f32;
    if !(factor > 0.0 && factor.is_finite()) {
        return refuse(format!("its scale {} is not a positive number", task.scale));
    }
    for it in &task.tensors {
        let of_dims = || it.shape.iter().zip(&it.strides).filter(|(extent, _)| **extent > 1);
        // Only the sums have fewer dimensions than four.
        let is_dense = it.shape.len() < 4 || it.strides[3] == 1;
        let outer = |it: &DeviceTensor| it.strides.len().min(3);
        let is_aligned = it.shape.len() < 4
            || it.strides[..outer(it)]
                .iter()
                .zip(&it.shape)
                .all(|(stride, extent)| *extent == 1 || (stride * it.dtype.size()).is_multiple_of(ALIGNMENT));
        if !is_dense || !is_aligned || of_dims().any(|(_, stride)| *stride == 0) {
            return refuse(format!(
                "its rows have to be contiguous and aligned to {ALIGNMENT} bytes, and none may be repeated"
            ));
        }
        if it.shape.get(3).is_some_and(|it| !it.is_multiple_of(8)) {
            return refuse("rows have to be multiples of 8 elements".to_owned());
        }
    }
    Ok(())
}

/// Refuses gradients.
pub(super) fn check_gradient(task: &AttentionTask, version: usize, capability: i32) -> Result<()> {
    let [query, key, value, ..] = &task.tensors[..] else { return Ok(()) };
    if capability != CAPABILITY_OF_GRADIENTS {
        return refuse("gradients need a GPU of compute capability 9.0".to_owned());
    }
    if !key.shape[2].is_multiple_of(KEYS) || query.shape[2] < FEWEST_ROWS {
        return refuse(format!("gradients need a multiple of {KEYS} keys, and at least {FEWEST_ROWS} rows"));
    }
    if version < FIRST_VERSION_OF_WIDE_ROWS && key.shape[3].max(value.shape[3]) > WIDE {
        return refuse(format!("gradients of rows of more than {WIDE} elements need version 9.13"));
    }
    Ok(())
}
