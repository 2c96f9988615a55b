//! Finds the first pass of a pipeline that goes wrong, with few runs of the programs.
//!
//! Every pass runs once, and its program is kept. Passes that fail by themselves end the pipeline there; what is left is
//! searched by halves for the first program that does not mean what the first one meant. A fault that a later pass
//! mends is not found: the last program decides whether there is anything to look for.

use grammar::ir::Program;

use crate::{
    driver::{Settings, Verify, run},
    error::{PassError, PipelineError},
    oracle::SemanticOracle,
    pipeline::PassCall,
};

/// The first pass that goes wrong.
#[derive(Clone, Debug)]
pub struct Culprit {
    /// Its place in the pipeline, from 0.
    pub position: usize,
    /// What it was given.
    pub before: Program,
    /// What it left; after a panic, nothing that can be relied on.
    pub after: Program,
    /// What is wrong.
    pub error: PipelineError,
}

/// Looks for the first pass that goes wrong; `None`: no pass does.
///
/// # Errors
/// The program itself means nothing that passes could keep.
pub fn bisect(
    program: &Program,
    calls: &[PassCall],
    oracle: &dyn SemanticOracle,
) -> Result<Option<Culprit>, Box<PipelineError>> {
    let Some(first) = calls.first() else { return Ok(None) };
    let fail = |call: &PassCall, fault| PipelineError { pass: Some(call.pass.name), error: fault };
    let meaning = oracle
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
    // The program `good` means what it should, and `bad` does not.
    let (mut good, mut bad) = (0, stages.len() - 1);
    let Err(mut fault) = meaning.check_equivalent(&stages[bad]) else {
        return Ok(stopped.map(|(after, failure)| {
            let before = stages.swap_remove(bad);
            Culprit { position: bad, before, after, error: failure }
        }));
    };
    while bad - good > 1 {
        let middle = usize::midpoint(good, bad);
        match meaning.check_equivalent(&stages[middle]) {
            Ok(()) => good = middle,
            Err(it) => (bad, fault) = (middle, it),
        }
    }
    let failure = fail(&calls[good], PassError::Miscompiled(fault));
    let after = stages.swap_remove(bad);
    let before = stages.swap_remove(good);
    Ok(Some(Culprit { position: good, before, after, error: failure }))
}
