//! Runs a resharding operator: assembles whole operands from all ranks, computes the result and scatters it.
//!
//! If several ranks hold an element of an operand, the value of the first rank in team order is used. The
//! element counts as written only if it is written on all of them.

use super::{
    InstRef, RunNotes,
    collective::{concatenate, flat_range},
    kernels::KernelError,
    memory::{Memory, WrittenMask},
    step::{Memories, StepError},
};
use hir_plan::{Reshard, View};
use hir_tensor::dense::DenseTensor;

/// Runs the operator for all members, in team order.
pub(super) fn run(
    reshards: &[&Reshard],
    members: &[InstRef],
    space: &mut Memories<'_>,
    notes: &mut RunNotes,
) -> Result<(), StepError> {
    let Some(first) = reshards.first() else { return Ok(()) };
    if let Some(other) = reshards.iter().position(|it| it.body != first.body || it.buffers != first.buffers) {
        let (here, there) = (members[0].rank, members[other].rank);
        return Err(StepError::Program(format!(
            "ranks {here} and {there} run different operators in one resharding communication"
        )));
    }
    let mut private = Memory::new(&first.buffers).map_err(KernelError::from)?;
    let mut private = Memories::Private(&mut private);
    for at in 0..first.operands.len() {
        let whole = View::contiguous(at as u32, first.operands[at].layout.shape.clone());
        if let Some(block) = assemble(reshards, members, at, space, notes)? {
            private.store(0, &whole, &block, notes)?;
        }
    }
    for it in &first.body {
        private.run(0, it, notes)?;
    }
    let number = first.operands.len() as u32;
    let result = private.load(0, &View::contiguous(number, first.result.layout.shape.clone()))?;
    for (it, at) in reshards.iter().zip(members) {
        let Some(view) = &it.result.view else { continue };
        let part = pick(&result, &it.result.layout.global_indices());
        space.store(at.rank, view, &part, notes)?;
    }
    Ok(())
}

/// Assembles a whole operand from the members' parts. Returns `None` if no member holds a part.
fn assemble(
    reshards: &[&Reshard],
    members: &[InstRef],
    operand: usize,
    space: &mut Memories<'_>,
    notes: &mut RunNotes,
) -> Result<Option<DenseTensor>, StepError> {
    let mut parts = Vec::new();
    let mut sources = vec![None; reshards[0].operands[operand].layout.shape.iter().product()];
    let mut written = vec![true; sources.len()];
    let mut offset = 0;
    for (it, at) in reshards.iter().zip(members) {
        let Some(shard) = it.operands.get(operand) else { continue };
        let Some(view) = &shard.view else { continue };
        notes.current = Some(*at);
        let part = space.read(at.rank, view, notes)?;
        let indices = shard.layout.global_indices();
        if indices.len() != part.data.len() || indices.iter().any(|&it| it >= sources.len()) {
            return Err(StepError::Internal(format!(
                "operand {operand} of rank {} does not fit its layout",
                at.rank
            )));
        }
        let mut is_needed = false;
        for (here, whole) in indices.into_iter().enumerate() {
            if sources[whole].is_none() {
                sources[whole] = Some(offset + here);
                is_needed = true;
            }
            written[whole] &= part.written.get(here);
        }
        // A replica is not kept: the parts together are as large as the whole operand, on any number of ranks.
        if is_needed {
            offset += part.data.len();
            parts.push(part);
        }
    }
    let pieces: Vec<_> = parts.iter().map(|it| (it, flat_range(0, it.data.len()))).collect();
    let Some(all) = concatenate(&pieces)? else { return Ok(None) };
    // An element that no rank holds has an arbitrary value and stays unwritten.
    for (written, source) in written.iter_mut().zip(&sources) {
        *written &= source.is_some();
    }
    let indices: Vec<usize> = sources.into_iter().map(Option::unwrap_or_default).collect();
    if all.data.is_empty() {
        return Ok(None);
    }
    let shadow = all.shadow.as_ref().map(|it| it.pick(&indices));
    let data = all.data.pick(&indices);
    Ok(Some(DenseTensor {
        shape: vec![indices.len()],
        data,
        written: WrittenMask::from_flags(written),
        shadow,
    }))
}

/// Returns the elements at `indices`.
fn pick(block: &DenseTensor, indices: &[usize]) -> DenseTensor {
    let written = if block.written.is_full() {
        WrittenMask::full(indices.len())
    } else {
        WrittenMask::from_flags(indices.iter().map(|&it| block.written.get(it)).collect())
    };
    let shadow = block.shadow.as_ref().map(|it| it.pick(indices));
    DenseTensor { shape: vec![indices.len()], data: block.data.pick(indices), written, shadow }
}
