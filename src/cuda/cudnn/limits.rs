//! What cuDNN does not compute, computes wrongly, or computes with other bits in each run, although it may make a plan. Sources: the checks of
//! cudnn-frontend's attention nodes, its pull request 628 and issue 1072, and the release notes of cuDNN 9.13 and 9.18.

use hir_executor::{AttentionTask, DeviceTensor};

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

/// Refuses a task for a version of cuDNN and a compute capability.
pub(super) fn check(task: &AttentionTask, version: usize, capability: i32) -> Result<()> {
    // A factor that is not positive would turn hidden scores, -∞, into others.
    let factor = task.scale as f32;
    if !(factor > 0.0 && factor.is_finite()) {
        return refuse(format!("its scale {} is not a positive number", task.scale));
    }
    if !task.tensors.iter().all(has_plain_rows) {
        return refuse(format!(
            "its rows have to be contiguous and aligned to {} bytes, and none may be repeated",
            AttentionTask::ALIGNMENT
        ));
    }
    if task.tensors.iter().filter_map(|it| it.shape.get(3)).any(|it| !it.is_multiple_of(8)) {
        return refuse("rows have to be multiples of 8 elements".to_owned());
    }
    if task.is_gradient { check_gradient(task, version, capability) } else { Ok(()) }
}

/// Returns whether no element stands for several, and rows are contiguous and aligned. Logarithms of sums have one element in a row.
fn has_plain_rows(it: &DeviceTensor) -> bool {
    let mut dims = it.shape.iter().zip(&it.strides).filter(|(extent, _)| **extent > 1);
    let is_aligned = |stride: usize| (stride * it.dtype.size()).is_multiple_of(AttentionTask::ALIGNMENT);
    let is_of_sums = it.shape.len() < 4;
    let has_rows = || {
        it.strides[3] == 1
            && it.shape[..3]
                .iter()
                .zip(&it.strides)
                .all(|(extent, stride)| *extent == 1 || is_aligned(*stride))
    };
    dims.all(|(_, stride)| *stride != 0) && (is_of_sums || has_rows())
}

fn check_gradient(task: &AttentionTask, version: usize, capability: i32) -> Result<()> {
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
