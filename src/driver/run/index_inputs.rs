//! Finds the inputs that a program uses as indices, so that generated values are inside of their dimension.

use rustc_hash::FxHashMap;

use hir_plan::{BufferNo, GroupedDim, InstKind, Plan, Routine, RoutineKind, View};

/// The values of an input that is used as indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexRange {
    /// From 0 to below this number.
    Below(usize),
    /// The ends of this many groups of equal size, in a dimension of this extent.
    Ends { groups: usize, extent: usize },
}

/// Returns, by position, the inputs whose elements are indices of some statement, as they are or copied.
pub(super) fn index_inputs(plans: &[Plan]) -> FxHashMap<usize, IndexRange> {
    let mut found = FxHashMap::default();
    for plan in plans {
        let buffer = |(at, port): (usize, &hir_plan::IoBinding)| Some((port.shard.view.as_ref()?.buffer, at));
        let mut inputs: FxHashMap<BufferNo, usize> =
            plan.inputs.iter().enumerate().filter_map(buffer).collect();
        for inst in &plan.code {
            match &inst.kind {
                InstKind::Reshard(it) => {
                    let operands = (0..).zip(&it.operands);
                    let own = operands.filter_map(|(number, shard)| {
                        Some((number, *inputs.get(&shard.view.as_ref()?.buffer)?))
                    });
                    let mut inner = own.collect();
                    it.body.iter().for_each(|kind| visit(kind, &mut inner, &mut found));
                }
                kind => visit(kind, &mut inputs, &mut found),
            }
        }
    }
    found
}

/// `inputs` are the positions of the inputs that buffers hold.
fn visit(kind: &InstKind, inputs: &mut FxHashMap<BufferNo, usize>, found: &mut FxHashMap<usize, IndexRange>) {
    match kind {
        InstKind::Copy { from, to } => {
            if let Some(input) = inputs.get(&from.view.buffer).copied() {
                inputs.entry(to.view.buffer).or_insert(input);
            }
        }
        InstKind::Routine(it) => {
            let Some((view, range)) = indices(it) else { return };
            let Some(input) = inputs.get(&view.buffer) else { return };
            found
                .entry(*input)
                .and_modify(|known| match (known, range) {
                    (IndexRange::Below(known), IndexRange::Below(other))
                    | (IndexRange::Ends { extent: known, .. }, IndexRange::Ends { extent: other, .. }) => {
                        *known = other.min(*known);
                    }
                    _ => (),
                })
                .or_insert(range);
        }
        _ => (),
    }
}

/// Returns the operand of a routine that consists of indices.
fn indices(it: &Routine) -> Option<(&View, IndexRange)> {
    let extent = |view: Option<&View>, dim: usize| view.and_then(|it| it.shape.get(dim)).copied();
    Some(match it.kind {
        RoutineKind::Gather { dim, first } => {
            let extent = extent(it.inputs.first(), dim)?;
            (it.inputs.get(1)?, IndexRange::Below(first.unwrap_or(0) + extent))
        }
        RoutineKind::Scatter { dim, .. } => {
            (it.inputs.get(1)?, IndexRange::Below(extent(it.outs.first(), dim)?))
        }
        RoutineKind::GroupedGemm(dim) => {
            let ends = it.inputs.get(2)?;
            let extent = match dim {
                GroupedDim::Rows => extent(it.inputs.first(), 0),
                GroupedDim::Depth => extent(it.inputs.first(), 1),
                GroupedDim::Columns => extent(it.inputs.get(1), 1),
            };
            (ends, IndexRange::Ends { groups: ends.len(), extent: extent? })
        }
        RoutineKind::Sort { .. } | RoutineKind::Scan { .. } => return None,
    })
}
