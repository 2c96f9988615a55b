//! Finds the first pass of a pipeline that miscompiles a program, with few runs of the program.
//!
//! Each pass runs once, and its result is saved. A pass that fails ends the pipeline. A binary search over
//! the saved programs then finds the first one that is not equivalent to the original. If a later pass undoes
//! a miscompilation, the search does not find it, because it only starts if the last program is wrong.

use grammar::Program;

use crate::{
    driver::{Settings, Verify, run},
    error::{PassError, PipelineError},
    oracle::SemanticOracle,
    pipeline::PassCall,
};

/// The first pass that fails or miscompiles the program.
#[derive(Clone, Debug)]
pub struct Culprit {
    /// Index in the pipeline, from 0.
    pub position: usize,
    /// The program before the pass.
    pub before: Program,
    /// The program after the pass. It may be inconsistent after a panic.
    pub after: Program,
    /// What is wrong.
    pub error: PipelineError,
}

/// Returns the first pass that fails or miscompiles the program, or `None` if no pass does.
///
/// # Errors
/// The original program cannot serve as a reference.
pub fn bisect(
    program: &Program,
    calls: &[PassCall],
    oracle: &dyn SemanticOracle,
) -> Result<Option<Culprit>, Box<PipelineError>> {
    let Some(first) = calls.first() else { return Ok(None) };
    let fail = |call: &PassCall, fault| PipelineError { pass: Some(call.pass.name), error: fault };
    let reference = oracle
        .reference(program)
        .map_err(|faults| Box::new(fail(first, PassError::InvalidReference(faults))))?;
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    let mut stages = vec![program.clone()];
    let mut stopped = None;
    for (position, call) in calls.iter().enumerate() {
        let mut after = stages[position].clone();
        if let Err(failure) = run(&mut after, std::slice::from_ref(call), settings, &mut |_| ()) {
            stopped = Some((after, *failure));
            break;
        }
        stages.push(after);
    }
    let check = |at: usize| {
        let all_ranks = stages[..=at].iter().rfind(|it| !it.is_of_one_rank());
        reference.check_equivalent(&stages[at], all_ranks.unwrap_or(program))
    };
    // The program `good` is equivalent to the original, and `bad` is not.
    let (mut good, mut bad) = (0, stages.len() - 1);
    let Err(mut fault) = check(bad) else {
        return Ok(stopped.map(|(after, failure)| {
            let before = stages.swap_remove(bad);
            Culprit { position: bad, before, after, error: failure }
        }));
    };
    while bad - good > 1 {
        let middle = usize::midpoint(good, bad);
        match check(middle) {
            Ok(()) => good = middle,
            Err(it) => (bad, fault) = (middle, it),
        }
    }
    let failure = fail(&calls[good], PassError::of_comparison(fault));
    let after = stages.swap_remove(bad);
    let before = stages.swap_remove(good);
    Ok(Some(Culprit { position: good, before, after, error: failure }))
}
