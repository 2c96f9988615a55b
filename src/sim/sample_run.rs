//! A run on generated inputs, for an editor or a page, which have no files of inputs.

use std::sync::Arc;

use hir_plan::{Plan, World};
use hir_tensor::{
    data::{Data, UnsupportedDtype},
    generate::{ExactRange, InputGenerator, InputKind},
};

use crate::{Schedule, SimError, SimOptions, SimOutcome, WorkBudget, run, work};

/// The elements that a run may compute or communicate, in billions: about half a minute.
const MAX_WORK: u32 = 1;

/// The most products whose sum is exact, and the bits of a float16.
const TERMS: (usize, u32) = (1024, 11);

/// Why a program has no sample run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleRunError {
    /// It computes too much.
    #[error("this run computes too much: use `hir run`, or smaller extents")]
    TooLarge,
    /// An input has integers: what they index is not known here.
    #[error("`{0}` has integers, which may be indices: use `hir run`")]
    Integers(String),
    /// An input has an element type that does not run.
    #[error(transparent)]
    Dtype(#[from] UnsupportedDtype),
    /// The run fails.
    #[error(transparent)]
    Run(#[from] SimError),
}

/// Runs a program in program order, on inputs whose sums are exact. The run records its trace.
///
/// # Errors
/// The program computes too much, has inputs of integers, or does not end.
pub fn sample_run(world: &World) -> Result<SimOutcome, SampleRunError> {
    let budget = WorkBudget::of_billions(MAX_WORK).take(work(world, 1));
    budget.map_err(|_| SampleRunError::TooLarge)?;
    let inputs = world.iter().map(inputs_of).collect::<Result<_, _>>()?;
    let options = SimOptions { trace: true, without_shadows: true, ..SimOptions::default() };
    Ok(run(world, inputs, &Schedule::Program, &options)?)
}

/// Generates the inputs of a rank.
fn inputs_of(plan: &Plan) -> Result<Vec<Arc<Data>>, SampleRunError> {
    let exact = ExactRange::for_terms(TERMS.0, TERMS.1);
    let generator = InputGenerator { kind: InputKind::Exact, seed: 0, exact };
    let ports = plan.inputs.iter().enumerate();
    let data = ports.map(|(position, port)| match &port.shard.view {
        _ if port.dtype.is_integral() => Err(SampleRunError::Integers(port.name.clone())),
        None => Ok(Data::zeros(port.dtype, 0)?),
        Some(_) => Ok(generator.fill(position, port.dtype, &port.shard.layout, plan.rank)?),
    });
    data.map(|it| it.map(Arc::new)).collect()
}
