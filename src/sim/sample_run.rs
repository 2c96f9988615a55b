//! A run on generated inputs, for an editor or a page, which have no files of inputs.

use std::sync::Arc;

use hir_plan::{Plan, World};
use hir_tensor::{
    data::Data,
    generate::{ExactRange, InputGenerator, InputKind},
};

use crate::{Schedule, SimOptions, SimOutcome, WorkBudget, run, work};

/// The elements that a run may compute or communicate, in billions: about half a minute.
const MAX_WORK: u32 = 1;

/// The most products whose sum is exact, and the bits of a float16.
const TERMS: (usize, u32) = (1024, 11);

/// Runs a program in program order, on inputs whose sums are exact. The run records its trace.
///
/// # Errors
/// The program computes too much, has inputs of integers, which may be indices, or does not end; as a sentence for the user.
pub fn sample_run(world: &World) -> Result<SimOutcome, String> {
    let budget = WorkBudget::of_billions(MAX_WORK).take(work(world, 1));
    budget.map_err(|_| "this run computes too much: use `hir run`, or smaller extents".to_owned())?;
    let inputs = world.iter().map(inputs_of).collect::<Result<_, _>>()?;
    let options = SimOptions { trace: true, without_shadows: true, ..SimOptions::default() };
    run(world, inputs, &Schedule::Program, &options).map_err(|fault| fault.to_string())
}

/// Generates the inputs of a rank.
fn inputs_of(plan: &Plan) -> Result<Vec<Arc<Data>>, String> {
    let exact = ExactRange::for_terms(TERMS.0, TERMS.1);
    let generator = InputGenerator { kind: InputKind::Exact, seed: 0, exact };
    let ports = plan.inputs.iter().enumerate();
    let data = ports.map(|(position, port)| match &port.shard.view {
        // What they index is not known here.
        _ if port.dtype.is_integral() => {
            Err(format!("`{}` has integers, which may be indices: use `hir run`", port.name))
        }
        None => Data::zeros(port.dtype, 0).map_err(|fault| fault.to_string()),
        Some(_) => generator
            .fill(position, port.dtype, &port.shard.layout, plan.rank)
            .map_err(|fault| fault.to_string()),
    });
    data.map(|it| it.map(Arc::new)).collect()
}
