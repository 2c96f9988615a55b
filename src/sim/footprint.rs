//! How much memory a run takes at most, told before any is taken.
//!
//! A small text can ask for any amount: extents are numbers. What is counted: the plans, every buffer of every rank with a byte an
//! element that says whether it is written, inputs and outputs once more, and what the largest instruction reads and writes, 16
//! bytes an element in the widest of the kernels' forms.

use crate::{
    io::data::shadow::LANES,
    plan::{InstKind, Plan, View},
};

/// What a world holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Footprint {
    /// All of it, in bytes.
    pub bytes: usize,
    /// The largest buffer: its bytes, its tensor's name, the rank.
    pub largest: Option<(usize, String, usize)>,
}

/// Bytes that the f64 shadows of all buffers take where every value is inexact.
pub fn shadow_bytes(plans: &[Plan]) -> usize {
    let buffers = plans.iter().flat_map(|plan| &plan.buffers).filter(|it| !it.dtype.is_integral());
    buffers.fold(0, |sum: usize, it| sum.saturating_add(it.len.saturating_mul(LANES * 8)))
}

/// Bytes that an instruction takes of the simulator's state: its progress, its place in queues, what it makes true.
const STATE: usize = 64;

/// Bytes of an element while a kernel works on it.
const WORKING: usize = 16;

/// The memory of all ranks together. Amounts that are beyond counting stay at the largest number.
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
        // A small buffer can be a large output: a view may repeat its elements.
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

/// Elements of all operands and results of an instruction.
fn elements(kind: &InstKind) -> usize {
    if let InstKind::Reshard(it) = kind {
        let whole = it.buffers.iter().fold(0, |sum: usize, buffer| sum.saturating_add(buffer.len));
        let most = it.body.iter().map(elements).max().unwrap_or(0);
        // The parts of all ranks, and the index of every element, stand beside the whole.
        return whole.saturating_mul(3).saturating_add(most);
    }
    let mut sum: usize = 0;
    kind.visit_accesses(0, &mut |it| sum = sum.saturating_add(it.view.len()));
    sum
}
