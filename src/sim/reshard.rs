//! Runs a resharding operator: assembles whole operands from all ranks, computes the result and scatters it.
//!
//! If several ranks hold an element of an operand, the value of the first rank in team order is used. The
//! element counts as written only if it is written on all of them.
//!
//! Ranks with equal layouts are replicas. One of them is read, and all of them share one part of the result, so that the time
//! is that of the whole tensors and of the number of ranks.

use std::{collections::hash_map::Entry, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    InstRef, RunNotes,
    kernels::KernelError,
    memory::{BufferData, Memory},
    step::{Memories, Result, StepError},
};
use hir_plan::{Reshard, Shard, ShardLayout, View};
use hir_tensor::data::WrittenMask;

/// Runs the operator for all members, in team order.
pub(super) fn run(
    reshards: &[&Reshard],
    members: &[InstRef],
    space: &mut Memories<'_>,
    notes: &mut RunNotes,
) -> Result<()> {
    let Some(first) = reshards.first() else { return Ok(()) };
    if let Some(other) = reshards.iter().position(|it| it.body != first.body || it.buffers != first.buffers) {
        let (here, there) = (members[0].rank, members[other].rank);
        return Err(StepError::Program(format!(
            "ranks {here} and {there} run different operators in one resharding communication"
        )));
    }
    let mut memory = Memory::new(&first.buffers).map_err(KernelError::from)?;
    let mut private = Memories::Private(&mut memory);
    for operand in 0..first.operands.len() {
        let shards = reshards.iter().zip(members);
        let shards: Vec<(InstRef, &Shard)> =
            shards.filter_map(|(it, at)| Some((*at, it.operands.get(operand)?))).collect();
        assemble(operand as u32, &shards, &mut private, space, notes)?;
    }
    for it in &first.body {
        private.run(0, it, notes)?;
    }
    let number = first.operands.len() as u32;
    let mut parts: FxHashMap<&ShardLayout, Arc<BufferData>> = FxHashMap::default();
    for (it, at) in reshards.iter().zip(members) {
        let Shard { view: Some(view), layout } = &it.result else { continue };
        let part = match parts.entry(layout) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(Arc::new(private.load(0, &layout.view_in_whole(number))?.into()))
            }
        };
        space.store_shared(at.rank, view, part, notes)?;
    }
    Ok(())
}

/// Writes an operand to its private buffer. Elements that no member holds stay unwritten.
fn assemble(
    operand: u32,
    shards: &[(InstRef, &Shard)],
    private: &mut Memories<'_>,
    space: &Memories<'_>,
    notes: &mut RunNotes,
) -> Result<()> {
    let mut first: FxHashMap<&ShardLayout, usize> = FxHashMap::default();
    let mut incomplete: Vec<(View, WrittenMask)> = Vec::new();
    for (number, (at, shard)) in shards.iter().enumerate() {
        let Some(view) = &shard.view else { continue };
        let target = shard.layout.view_in_whole(operand);
        if view.len() != target.len() {
            return Err(StepError::Internal(format!(
                "operand {operand} of rank {} does not fit its layout",
                at.rank
            )));
        }
        first.entry(&shard.layout).or_insert(number);
        notes.current = Some(*at);
        let written = space.read_written(at.rank, view, notes)?;
        if !written.is_full() {
            incomplete.push((target, written));
        }
    }
    // Layouts may overlap, so those of earlier ranks are written later.
    let mut owners: Vec<usize> = first.into_values().collect();
    owners.sort_unstable();
    for (at, shard) in owners.into_iter().rev().map(|it| &shards[it]) {
        if let Some(view) = &shard.view {
            let part = space.load(at.rank, view)?;
            private.store(0, &shard.layout.view_in_whole(operand), part, notes)?;
        }
    }
    incomplete.iter().try_for_each(|(target, written)| private.clear_unwritten(target, written))
}
