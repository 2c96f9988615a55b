//! The time of the gradients of an attention on a measured machine: of the products that define them, and of the kernels between those.

use grammar::dtype::DType;
use rustc_hash::FxHashMap;

use super::{
    machine::Machine,
    work::{Work, WorkKind, work_of_product},
};
use crate::{AttentionGradient, BufferNo, InstKind, Plan};

/// Returns microseconds; `None` if a table of the machine is missing.
pub(super) fn microseconds(plan: &Plan, it: &AttentionGradient, machine: &Machine) -> Option<f64> {
    let first = plan.buffers.len() as BufferNo;
    let dtype = plan.dtype_of(&it.attention.query);
    let (code, temporaries) = it.composition(plan.rank, dtype, first, AttentionGradient::MAX_SCORES);
    let dtype = |it: BufferNo| match plan.buffers.get(it as usize) {
        Some(buffer) => buffer.dtype,
        None => temporaries[(it - first) as usize].dtype,
    };
    let mut all = 0.0;
    for kernel in code.chunk_by(|a, b| !matches!((a, b), (InstKind::Gemm(_), _) | (_, InstKind::Gemm(_)))) {
        let work = match kernel {
            [InstKind::Gemm(it)] => work_of_product(it, dtype(it.a.buffer)),
            _ => one_kernel(kernel, &dtype),
        };
        all += machine.microseconds(&work?)?;
    }
    Some(all)
}

/// Returns the work of instructions that the executor fuses: it reads and writes each buffer once.
fn one_kernel(code: &[InstKind], dtype: &dyn Fn(BufferNo) -> DType) -> Option<Work> {
    let mut bytes: FxHashMap<(BufferNo, usize), usize> = FxHashMap::default();
    for it in code {
        it.visit_accesses(0, &mut |it| {
            let view = it.view;
            let accessed = view.distinct_len() * dtype(view.buffer).size();
            let known = bytes.entry((view.buffer, view.offset)).or_default();
            *known = accessed.max(*known);
        });
    }
    Work::of_bytes(WorkKind::Elementwise, bytes.into_values().sum())
}
