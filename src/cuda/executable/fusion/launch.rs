//! The kernel of fused instructions, if they can be fused: they access the same elements of what they share, and a kernel has the
//! registers for them.

use crate::kernels::{
    self, DeviceView, ElementwiseOp, Launch, RowOp, ScalarFunction, defining_row_op as defining_op,
};

use super::{Candidate, RowsOfCollective};

/// Maximum number of views that a kernel reads and writes.
const MAX_VIEWS: usize = 12;
/// Maximum number of bytes that fused copies write.
const MAX_COPIED_BYTES: usize = 1 << 20;

/// Returns the kernel for these instructions if they can be fused.
pub(super) fn fused_launch(candidates: &[Candidate]) -> Option<Launch> {
    let ops = candidates.iter().map(|it| it.op.clone()).collect();
    let wide = || candidates.iter().map(|it| it.wide.as_ref().unwrap_or(&it.op).clone()).collect();
    // Without a reduction, values of rows would be computed for each element.
    let has_rows = candidates.iter().any(|it| matches!(it.op, RowOp::Reduce(_)));
    let has_wide = has_rows && candidates.iter().any(|it| it.wide.is_some());
    launch_of(candidates, ops).or_else(|| if has_wide { launch_of(candidates, wide()) } else { None })
}

/// Returns the operation of a copy that converts nothing.
fn copy_of<'a>(it: &Candidate<'a>) -> Option<ElementwiseOp<'a>> {
    let RowOp::Map(op) = &it.op else { return None };
    let is_same = |from: &DeviceView| op.function == ScalarFunction::Convert && from.dtype == op.out.dtype;
    op.views().next().is_some_and(is_same).then(|| op.clone())
}

/// Returns the kernel for these instructions if they are small copies of one shape.
pub(super) fn copies_launch(candidates: &[Candidate]) -> Option<Launch> {
    let copies: Vec<ElementwiseOp> = candidates.iter().map(copy_of).collect::<Option<_>>()?;
    let shape = &copies.first()?.out.view.shape;
    let bytes: usize = copies.iter().map(|it| it.out.view.len() * it.out.dtype.size()).sum();
    let ops: Vec<RowOp> = copies.iter().cloned().map(RowOp::Map).collect();
    let fits = bytes <= MAX_COPIED_BYTES && view_count(&ops) <= MAX_VIEWS && is_free_of_overlaps(&ops);
    if !fits || copies.iter().any(|it| it.out.view.shape != *shape) {
        return None;
    }
    kernels::elementwise_launch(&copies).ok().flatten()
}

/// Returns the kernel for these operations of the candidates.
fn launch_of(candidates: &[Candidate], mut ops: Vec<RowOp>) -> Option<Launch> {
    let within = |at: &u32| candidates.iter().any(|it| it.at == *at);
    for (op, candidate) in ops.iter_mut().zip(candidates) {
        let readers = candidate.readers.as_deref().unwrap_or_default();
        let is_stored = readers.is_empty() || !readers.iter().all(within);
        match op {
            RowOp::Map(it) | RowOp::MapRows(it, _) => it.is_stored = is_stored,
            RowOp::Reduce(it) => it.is_stored = is_stored,
        }
    }
    let ops = kernels::with_row_maps(ops);
    if !is_connected(&ops) || !is_free_of_overlaps(&ops) || view_count(&ops) > MAX_VIEWS {
        return None;
    }
    if let Some(RowsOfCollective { packets, peers_read, .. }) = candidates.first()?.collective {
        let overwrites = |it: &RowOp| it.is_stored() && Some(it.out().view.buffer) == *peers_read;
        return if ops.iter().any(overwrites) {
            None
        } else {
            kernels::collective_rows_launch(&ops, packets)
        };
    }
    let mut maps = Vec::with_capacity(ops.len());
    for op in &ops {
        match op {
            RowOp::Map(it) => maps.push(it.clone()),
            RowOp::MapRows(..) | RowOp::Reduce(_) => return kernels::row_launch(&ops),
        }
    }
    // An unsupported operation is reported when its instruction is lowered on its own.
    kernels::elementwise_launch(&maps).ok().flatten()
}

/// Returns true if all operations work on elements of one shape and, at every cut, the second part uses a result of the first, or, without
/// reductions, reads from memory what the first reads.
fn is_connected(ops: &[RowOp]) -> bool {
    let shares_reads = ops.iter().all(|it| matches!(it, RowOp::Map(_)));
    let from_memory = |at: usize, it: &DeviceView| defining_op(&ops[..at], it).is_none();
    let reads = |at: usize, view: &DeviceView| {
        ops[at].views().iter().any(|it| from_memory(at, it) && it.has_same_elements(view))
    };
    let crosses = |cut: usize, at: usize| {
        let from = |it: &&DeviceView| match defining_op(&ops[..at], it) {
            Some(from) => from < cut,
            None => shares_reads && (0..cut).any(|earlier| reads(earlier, it)),
        };
        ops[at].views().iter().any(from)
    };
    let shape = |it: &RowOp| it.shape() == ops[0].shape();
    ops.iter().all(shape) && (1..ops.len()).all(|cut| (cut..ops.len()).any(|at| crosses(cut, at)))
}

/// Returns true if operations that access the same memory access the same elements of it.
fn is_free_of_overlaps(ops: &[RowOp]) -> bool {
    ops.iter().enumerate().all(|(at, op)| {
        let (earlier, out) = (&ops[..at], op.out());
        let written = |it: &RowOp| it.is_stored() && it.out().may_partially_overlap(out);
        // An operand in a register is not read from memory.
        let read = |(at, it): (usize, &RowOp)| {
            let is_read =
                |it: &&DeviceView| defining_op(&ops[..at], it).is_none() && it.may_partially_overlap(out);
            it.views().iter().any(is_read)
        };
        // An operand that was partly overwritten after its definition is neither in a register nor unchanged in
        // memory. A result that is not stored overwrites nothing, but an operand may contain it.
        let torn = |view: &&DeviceView| {
            let since = defining_op(earlier, view).map_or(0, |it| it + 1);
            let overwrites = |it: &&RowOp| it.is_stored() || it.out().view.buffer == view.view.buffer;
            earlier[since..].iter().filter(overwrites).any(|it| it.out().may_partially_overlap(view))
        };
        let clashes = op.is_stored() && (earlier.iter().any(written) || earlier.iter().enumerate().any(read));
        !clashes && !op.views().iter().any(torn)
    })
}

/// Returns the number of views that the operations read and write. A view that two operations read counts
/// twice.
fn view_count(ops: &[RowOp]) -> usize {
    let from_memory = |(at, it): (usize, &RowOp)| {
        it.views().into_iter().filter(|it| defining_op(&ops[..at], it).is_none()).count()
    };
    let read: usize = ops.iter().enumerate().map(from_memory).sum();
    read + ops.iter().filter(|it| it.is_stored()).count()
}
