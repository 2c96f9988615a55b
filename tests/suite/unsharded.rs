//! Checks that every case and sample that is not lowered gives the same result on its ranks as on whole
//! tensors, with all shardings removed.

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::{
    fs,
    path::{Path, PathBuf},
};

use grammar::{diagnostic::has_errors, ir::Program, span::LineIndex};
use hir_driver::run::{
    inputs::InputSpec,
    results, unsharded,
    verdict::{Criteria, ExpectationSource, expectations, judge_outputs, simulate},
};
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};

/// Maximum number of bytes of a program that is tested.
const BYTES: usize = 1 << 26;
/// Minimum number of programs to compare.
const COMPARED: usize = 100;

/// Returns the trial of this file.
pub fn trial(cases: &[PathBuf]) -> Trial {
    let cases = cases.to_vec();
    Trial::test("cases_mean_what_their_whole_tensors_mean", move || {
        let (mut compared, mut faults) = (0, String::new());
        for path in &cases {
            let text = fs::read_to_string(path).map_err(|fault| fault.to_string())?;
            let lines = LineIndex::new(&text);
            for program in grammar::read(&text).0 {
                match agrees(&program, &lines) {
                    Some(Ok(())) => compared += 1,
                    Some(Err(fault)) => faults += &format!("{}: {fault}\n", shown(path)),
                    None => (),
                }
            }
        }
        if faults.is_empty() && compared >= COMPARED {
            Ok(())
        } else {
            Err(Failed::from(format!("{faults}{compared} programs compared")))
        }
    })
}

/// Compares both results. `None` if one of the programs does not run or rounds.
fn agrees(program: &Program, lines: &LineIndex) -> Option<Result<(), String>> {
    if has_errors(&grammar::verify(program)) {
        return None;
    }
    let erased = unsharded::plan_unsharded(program, lines).ok()?;
    let plans = hir_plan::build(program, lines, hir_plan::smallest_world(program)).ok()?;
    if hir_sim::footprint(&plans).bytes.max(hir_sim::footprint(&erased).bytes) > BYTES {
        return None;
    }
    let mut filling = InputSpec::new(InputKind::Exact, 0, &plans);
    let [inputs, whole] = [filling.fill(&plans).ok()?, filling.fill(&erased).ok()?];
    let outcome = simulate(&plans, inputs, &Schedule::Program, DEFAULT_MEMORY_LIMIT).ok()?;
    let wanted = simulate(&erased, whole, &Schedule::Program, DEFAULT_MEMORY_LIMIT).ok()?;
    if !outcome.notes.exactness.is_exact() || !wanted.notes.exactness.is_exact() {
        return None;
    }
    let basis = ExpectationSource::Reference { exact: true };
    let wanted = expectations(results::outputs(&erased, &wanted).ok()?, "its whole tensors", basis);
    let criteria = Criteria { exact: Some(true), ..Criteria::default() };
    let verdict = judge_outputs(&plans, &outcome, &wanted, &criteria).ok()?;
    Some(if verdict.is_right() { Ok(()) } else { Err(verdict.line.to_string()) })
}

fn shown(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
