//! Assembles the outputs of a run from the parts of all ranks, and explains faults in them.

use std::sync::Arc;

use super::RunError;
use hir_check::name_in_program;
use hir_plan::{IoBinding, Plan};
use hir_sim::{InstRef, SimOutcome, describe, late_writers};
use hir_tensor::{
    data::{NdArray, Shadow},
    dense::DenseTensor,
    shard::{AssembledTensor, RankShard, assemble_shards, unravel_index},
};

/// One tensor of the program after a run.
#[derive(Clone, Debug)]
pub struct OutputTensor {
    /// Name of the tensor.
    pub name: String,
    /// The whole tensor, assembled from all ranks.
    pub whole: AssembledTensor,
    /// The parts, with their ranks.
    pub parts: Vec<(usize, Arc<DenseTensor>)>,
    /// True if each rank's part is judged separately.
    pub per_rank: bool,
    /// A fault that is independent of the expected values: an element that nothing wrote, or ranks that hold
    /// different values.
    pub fault: Option<String>,
}

impl OutputTensor {
    /// Returns the part of a rank, if it has one.
    pub fn part(&self, rank: usize) -> Option<(NdArray, Option<&Shadow>)> {
        let (_, block) = self.parts.iter().find(|it| it.0 == rank)?;
        Some((NdArray { shape: block.shape.clone(), data: block.data.clone() }, block.shadow.as_ref()))
    }
}

/// Returns the outputs of a run, in header order.
///
/// # Errors
/// Parts do not fit together. This is an internal error and the caller reports it as such.
pub fn outputs(plans: &[Plan], outcome: &SimOutcome) -> std::result::Result<Vec<OutputTensor>, RunError> {
    let count = plans.first().map_or(0, |plan| plan.outputs.len());
    let mut results = Vec::with_capacity(count);
    for at in 0..count {
        let parts: Vec<(usize, &IoBinding, Arc<DenseTensor>)> = plans
            .iter()
            .filter_map(|plan| {
                Some((plan.rank, plan.outputs.get(at)?, outcome.outputs[plan.rank].get(at)?.clone()?))
            })
            .collect();
        let mut result = assemble_output(&parts)?;
        result.fault = output_fault(plans, outcome, at, &parts, &result);
        results.push(result);
    }
    Ok(results)
}

/// Assembles a tensor from its parts.
///
/// # Errors
/// The errors of `outputs`.
pub fn assemble_output(
    parts: &[(usize, &IoBinding, Arc<DenseTensor>)],
) -> std::result::Result<OutputTensor, RunError> {
    let wholes: Vec<RankShard<'_>> = parts
        .iter()
        .map(|(rank, port, block)| RankShard {
            rank: *rank,
            layout: &port.shard.layout,
            data: &block.data,
            written: &block.written,
            shadow: block.shadow.as_ref(),
        })
        .collect();
    let name = parts.first().map_or(String::new(), |(_, port, _)| port.name.clone());
    let whole = assemble_shards(&wholes)?;
    let per_rank = parts.iter().any(|(_, port, _)| port.is_compared_per_rank);
    let parts = parts.iter().map(|(rank, _, block)| (*rank, Arc::clone(block))).collect();
    Ok(OutputTensor { name, whole, parts, per_rank, fault: None })
}

fn output_fault(
    plans: &[Plan],
    outcome: &SimOutcome,
    at: usize,
    parts: &[(usize, &IoBinding, Arc<DenseTensor>)],
    result: &OutputTensor,
) -> Option<String> {
    let name = &result.name;
    for (rank, port, block) in parts {
        let Some(local) = block.written.first_unwritten() else { continue };
        let layout = &port.shard.layout;
        let index = unravel_index(layout.global_indices()[local], &layout.shape);
        let why = explain(plans, outcome, *rank, at);
        return Some(format!("{name}: element {index:?} was never written (rank {rank}{why})"));
    }
    if parts.iter().any(|(_, port, _)| port.is_compared_per_rank) {
        return None;
    }
    result.whole.conflict.as_ref().map(|it| {
        let why = it.ranks.iter().map(|rank| explain(plans, outcome, *rank, at)).find(|why| !why.is_empty());
        format!(
            "{name}: element {:?} is {} on rank {} and {} on rank {}{}; if each rank keeps its own, use {}@local",
            it.index,
            it.values[0],
            it.ranks[0],
            it.values[1],
            it.ranks[1],
            why.unwrap_or_default(),
            name_in_program(name)
        )
    })
}

/// Explains a wrong output: names an instruction that should have written it but ran too late, or an
/// instruction that read unwritten elements. Returns text to append to a message:
/// `; line 24, streamIdx=3 on 3 had not run when the outputs were read`.
pub fn explain(plans: &[Plan], outcome: &SimOutcome, rank: usize, output: usize) -> String {
    let late = late_writers(plans, outcome, rank, output);
    if let Some(first) = late.first() {
        let more = match late.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        return format!("; {}{more} had not run when the outputs were read", describe(plans, *first));
    }
    let reads = &outcome.notes.unwritten;
    let Some(read) = reads.iter().find(|it| it.reader.rank == rank).or(reads.first()) else {
        return String::new();
    };
    let buffer = plans[read.rank].buffers.get(read.buffer as usize).map_or("?", |it| it.name.as_str());
    format!(
        "; on rank {}, {} read elements of {buffer} before anything wrote them",
        read.reader.rank,
        describe(plans, read.reader)
    )
}

/// Returns the instruction to inspect for a wrong output, if any: the first one that `explain` names.
pub fn culprit(plans: &[Plan], outcome: &SimOutcome, rank: usize, output: usize) -> Option<InstRef> {
    let reads = &outcome.notes.unwritten;
    let read = || reads.iter().find(|it| it.reader.rank == rank).or(reads.first());
    late_writers(plans, outcome, rank, output).first().copied().or_else(|| read().map(|it| it.reader))
}
