//! Estimates the peak memory of a run before it allocates anything.
//!
//! Extents are numbers, so a small program can need any amount of memory. The estimate counts the plans,
//! every buffer of every rank with one byte per element for the written mask, inputs and outputs once more,
//! and the operands and results of the largest instruction at 16 bytes per element, the widest representation
//! in the kernels.

use hir_plan::{InstKind, Plan, View};
use hir_tensor::data::shadow::LANES;

/// Memory that a run needs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Total size in bytes.
    pub bytes: usize,
    /// The largest buffer: its size in bytes, the tensor's name and the rank.
    pub largest: Option<(usize, String, usize)>,
}

/// Returns the size in bytes of the f64 shadows of all buffers if every value is inexact.
pub fn shadow_bytes(plans: &[Plan]) -> usize {
    let buffers = plans.iter().flat_map(|plan| &plan.buffers).filter(|it| !it.dtype.is_integral());
    buffers.fold(0, |sum: usize, it| sum.saturating_add(it.len.saturating_mul(LANES * 8)))
}

/// Bytes of simulator state per instruction: its state, queue entries and conditions.
const STATE: usize = 64;

/// Bytes per element while a kernel computes.
const WORKING: usize = 16;

/// Returns the memory of all ranks together. Sizes saturate instead of overflowing.
pub fn footprint(plans: &[Plan]) -> Footprint {
    let mut all = Footprint::default();
    let mut working = 0;
    for plan in plans {
        for buffer in &plan.buffers {
            let bytes = buffer.len.saturating_mul(buffer.dtype.size().max(1) + 1);
            all.bytes = all.bytes.saturating_add(bytes);
            if all.largest.as_ref().is_none_or(|(most, ..)| bytes > *most) {
                all.largest = Some((bytes, buffer.name.clone(), plan.rank));
            }
        }
        // A small buffer can be a large output, because a view may repeat its elements.
        for port in plan.inputs.iter().chain(&plan.outputs) {
            let elements = port.shard.view.as_ref().map_or(0, View::len);
            all.bytes = all.bytes.saturating_add(elements.saturating_mul(WORKING));
        }
        all.bytes = all.bytes.saturating_add(plan.bytes()).saturating_add(plan.code.len() * STATE);
        let most = plan.code.iter().map(|inst| elements(&inst.kind)).max().unwrap_or(0);
        working = working.max(most.saturating_mul(WORKING));
    }
    all.bytes = all.bytes.saturating_add(working);
    all
}

/// Returns the number of elements of all operands and results of an instruction.
fn elements(kind: &InstKind) -> usize {
    if let InstKind::Reshard(it) = kind {
        let whole = it.buffers.iter().fold(0, |sum: usize, buffer| sum.saturating_add(buffer.len));
        let most = it.body.iter().map(elements).max().unwrap_or(0);
        // The parts of all ranks and the index of every element are stored beside the whole tensor.
        return whole.saturating_mul(3).saturating_add(most);
    }
    let mut sum: usize = 0;
    kind.visit_accesses(0, &mut |it| sum = sum.saturating_add(it.view.len()));
    sum
}
