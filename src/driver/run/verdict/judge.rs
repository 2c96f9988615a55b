//! Judges the outputs of a run: compares each with its expectations, and formats the verdict line.

use std::collections::BTreeMap;

use super::{Criteria, Expectation, ExpectationSource, OutputRef};
use crate::{
    run::{
        RunError,
        compare::{Comparison, ToleranceText, compare, format_3_digits},
        results::{self, OutputTensor, explain},
    },
    session::Verdict,
};
use hir_plan::Plan;
use hir_process::exit::Exit;
use hir_sim::SimOutcome;
use hir_tensor::data::ShadowedTensor;

/// The verdict on the outputs of one run.
pub struct OutputVerdict {
    /// Success, a wrong result, or not decided: nothing is wrong, but too little was compared.
    pub exit: Exit,
    /// The last line of the report.
    pub line: Verdict,
    /// The outputs.
    pub outputs: Vec<OutputTensor>,
    /// Position of the wrong output, if any.
    pub wrong_output: Option<usize>,
    /// The largest tolerance of an element that was compared.
    pub tolerance: f64,
}

impl OutputVerdict {
    /// Returns the verdict of a rank that does not have the outputs of all ranks.
    pub fn without_outputs(exit: Exit, text: impl Into<String>) -> Self {
        let (line, outputs) = (Verdict::of(exit, text), Vec::new());
        Self { exit, line, outputs, wrong_output: None, tolerance: 0.0 }
    }

    /// Returns whether no output is wrong, as far as they are compared.
    pub fn is_right(&self) -> bool {
        self.exit != Exit::WrongResult
    }
}

/// Judges the outputs of a run.
///
/// # Errors
/// The parts of an output do not fit together.
pub fn judge_outputs(
    plans: &[Plan],
    outcome: &SimOutcome,
    expectations: &[Expectation],
    criteria: &Criteria,
) -> Result<OutputVerdict, RunError> {
    let outputs = results::outputs(plans, outcome)?;
    let judge = Judge { plans, outcome, outputs: &outputs, expectations, criteria };
    let (exit, line, wrong_output, tolerance) = match judge.judge() {
        Ok(it) => it,
        Err(failure) => (Exit::WrongResult, failure.message, failure.wrong_output, 0.0),
    };
    Ok(OutputVerdict { exit, line: Verdict::of(exit, line), outputs, wrong_output, tolerance })
}

/// The outputs of a run, with what they are compared with.
struct Judge<'a> {
    plans: &'a [Plan],
    outcome: &'a SimOutcome,
    outputs: &'a [OutputTensor],
    expectations: &'a [Expectation],
    criteria: &'a Criteria,
}

/// Why the outputs are wrong.
struct Failure {
    message: String,
    /// Position of the wrong output, if there is one.
    wrong_output: Option<usize>,
}

/// An expectation that its output meets.
struct MetExpectation<'a> {
    expectation: &'a Expectation,
    output: &'a OutputTensor,
    comparison: Comparison,
}

impl<'a> Judge<'a> {
    /// Returns the exit code of outputs that are not wrong, what the line states, and the largest tolerance.
    fn judge(&self) -> Result<(Exit, String, Option<usize>, f64), Failure> {
        self.check_faults()?;
        let met: Vec<MetExpectation<'_>> =
            self.expectations.iter().map(|it| self.compare_one(it)).collect::<Result<_, _>>()?;
        self.check_all_outputs_covered()?;
        self.check_all_parts_covered()?;
        let tolerance = met.iter().map(|it| it.comparison.evidence.tolerance).fold(0.0, f64::max);
        Ok(match self.doubt(&met) {
            Some(why) => (Exit::Undecided, why, None, tolerance),
            None => (Exit::Success, self.success_text(&met), None, tolerance),
        })
    }

    /// Returns why the comparisons show too little, if they do.
    fn doubt(&self, met: &[MetExpectation<'_>]) -> Option<String> {
        let all: usize = met.iter().map(|it| it.comparison.evidence.total).sum();
        if all == 0 && self.criteria.compares {
            return Some("nothing was compared: there is no element of an output".to_owned());
        }
        let computes = met.iter().any(|it| it.expectation.source != ExpectationSource::UserProvided);
        if computes && self.criteria.zero_inputs {
            return Some("nothing was compared: all inputs are 0".to_owned());
        }
        met.iter().find_map(|it| Some(format!("{}: {}", it.output.name, it.comparison.evidence.doubt()?)))
    }

    /// Checks that no output has a fault that is independent of the expected values.
    fn check_faults(&self) -> Result<(), Failure> {
        let faults = self.outputs.iter().enumerate();
        let fault = faults.filter_map(|(at, output)| Some((at, output.fault.clone()?))).next();
        fault.map_or(Ok(()), |(at, message)| Err(Failure { message, wrong_output: Some(at) }))
    }

    /// Compares an output, or the part of it that one rank holds, with an expectation.
    fn compare_one(&self, expectation: &'a Expectation) -> Result<MetExpectation<'a>, Failure> {
        let found = self.outputs.iter().enumerate().find(|(at, output)| match &expectation.output {
            OutputRef::Position(position) | OutputRef::RankPart(position, _) => at == position,
            OutputRef::Name(name) => output.name == *name,
        });
        let Some((position, output)) = found else {
            let message = format!("{} has more outputs than the program", expectation.source_name);
            return Err(Failure { message, wrong_output: None });
        };
        let rank = expectation.output.rank();
        let name = match rank {
            Some(rank) => format!("{} of rank {rank}", output.name),
            None => output.name.clone(),
        };
        let failure =
            |message: &str| Failure { message: format!("{name}: {message}"), wrong_output: Some(position) };
        let part;
        let got = match rank {
            Some(rank) => {
                part = output.part(rank).ok_or_else(|| failure("the rank holds no part of it"))?;
                ShadowedTensor { tensor: &part.0, shadow: part.1 }
            }
            None if output.per_rank && output.whole.conflict.is_some() => {
                return Err(failure("ranks hold different values, but one whole tensor is expected"));
            }
            None => output.whole.shadowed(),
        };
        let expected = ShadowedTensor { tensor: &expectation.tensor, shadow: expectation.shadow.as_ref() };
        let tolerance = self.criteria.tolerance_for(expectation.source, self.outcome.notes.exactness.shadows);
        let comparison = compare(got, expected, tolerance).map_err(|it| failure(&it.to_string()))?;
        if let Some(mismatch) = &comparison.mismatch {
            let owner = output.whole.owners.get(mismatch.flat_index).copied().flatten();
            let rank = rank.or(owner).unwrap_or(0);
            let why = explain(self.plans, self.outcome, rank, position);
            return Err(failure(&format!("{mismatch} (rank {rank}{why})")));
        }
        Ok(MetExpectation { expectation, output, comparison })
    }

    /// Checks that every output has an expectation, if the expectations are those of a whole program.
    fn check_all_outputs_covered(&self) -> Result<(), Failure> {
        if !self.expectations.iter().any(|it| matches!(it.output, OutputRef::Position(_))) {
            return Ok(());
        }
        let is_covered = |at: usize| {
            self.expectations.iter().any(
                |it| matches!(it.output, OutputRef::Position(to) | OutputRef::RankPart(to, _) if to == at),
            )
        };
        let (count, covered) = (self.outputs.len(), (0..self.outputs.len()).filter(|at| is_covered(*at)));
        match covered.count() {
            covered if covered < count => {
                let message = format!("the reference has {covered} outputs and the program {count}");
                Err(Failure { message, wrong_output: None })
            }
            _ => Ok(()),
        }
    }

    /// Checks that all parts of an output have an expectation, if one part has. Otherwise a part without an
    /// expectation would pass.
    fn check_all_parts_covered(&self) -> Result<(), Failure> {
        for (at, output) in self.outputs.iter().enumerate() {
            let is_covered = |rank: usize| {
                let is_it = |it: &Expectation| matches!(it.output, OutputRef::RankPart(to, own) if to == at && own == rank);
                self.expectations.iter().any(is_it)
            };
            let ranks = output.parts.iter().map(|(rank, _)| *rank);
            let (covered, uncovered): (Vec<usize>, Vec<usize>) = ranks.partition(|rank| is_covered(*rank));
            if let (false, Some(rank)) = (covered.is_empty(), uncovered.first()) {
                let message =
                    format!("{} of rank {rank}: no expected value is given for this rank", output.name);
                return Err(Failure { message, wrong_output: Some(at) });
            }
        }
        Ok(())
    }

    /// Formats what was compared, and how: `12 elements equal to the simulator (exact)`.
    fn success_text(&self, met: &[MetExpectation<'_>]) -> String {
        if met.is_empty() {
            return "ran, complete, not compared".to_owned();
        }
        let mut claims = Vec::new();
        let wholes = || met.iter().filter(|it| it.expectation.output.rank().is_none());
        let sources = distinct(wholes().map(|it| it.expectation.source_name.as_str()));
        if !sources.is_empty() {
            // An output that is compared with two sources counts once.
            let outputs: BTreeMap<&str, usize> =
                wholes().map(|it| (it.output.name.as_str(), it.expectation.tensor.data.len())).collect();
            let compared: usize = outputs.values().sum();
            claims.push(format!("{compared} elements equal to {}", source_list(&sources)));
        }
        claims.extend(part_claims(met));
        let is_exact = self.criteria.exact == Some(true)
            && met.iter().all(|it| it.comparison.is_equal && it.expectation.source.is_exact());
        let mut details = if is_exact {
            vec!["exact".to_owned()]
        } else {
            // If the results are equal although rounding was allowed, "exact" is not reported.
            let merged = ToleranceText::merged(met.iter().map(|it| &it.comparison.tolerance_text));
            merged.iter().map(ToString::to_string).filter(|it| it != "exact").collect()
        };
        let difference = |it: &&MetExpectation<'_>| it.comparison.rounded_difference;
        let rounded = met.iter().max_by(|a, b| difference(a).total_cmp(&difference(b)));
        if let Some(it) = rounded.filter(|it| difference(it) > 0.0) {
            let values = it.output.whole.tensor.data.to_f64();
            let largest = values.iter().map(|it| it.abs()).filter(|it| it.is_finite()).fold(0.0, f64::max);
            let [difference, largest] = [difference(&it), largest].map(format_3_digits);
            details.push(format!(
                "rounded values of {} up to {largest} differ by up to {difference}",
                it.output.name
            ));
        }
        for it in met {
            let (have, want) = (it.output.whole.tensor.data.dtype(), it.expectation.tensor.data.dtype());
            if have != want {
                let (have, want) = (have.short_name(), want.short_name());
                details.push(format!("{} has elements of {have}, and not of {want}", it.output.name));
            }
        }
        let digits = met.iter().filter_map(|it| it.comparison.evidence.digits()).reduce(f64::min);
        if let Some(digits) = digits.filter(|_| !is_exact) {
            details.push(format!("{} digits", (10.0 * digits).round() / 10.0));
        }
        let undetermined: usize = met.iter().map(|it| it.comparison.undetermined).sum();
        if undetermined > 0 {
            details
                .push(format!("{undetermined} undetermined: engines may differ on whether they are finite"));
        }
        let details = if details.is_empty() { String::new() } else { format!(" ({})", details.join("; ")) };
        format!("{}{details}", claims.join("; "))
    }
}

/// Returns the names of what outputs are compared with; of many, the first ones and the number of the others.
fn source_list(sources: &[&str]) -> String {
    const MAX_LISTED: usize = 4;
    match sources.get(MAX_LISTED..) {
        None | Some([]) => sources.join(", "),
        Some(rest) => format!("{} and {} more", sources[..MAX_LISTED].join(", "), rest.len()),
    }
}

/// Formats the number of ranks whose own parts agree, by output and source: `T3@local: 4 ranks' own parts
/// equal to @ref.%r.npy`.
fn part_claims(met: &[MetExpectation<'_>]) -> Vec<String> {
    let parts = || {
        let parts = met.iter().filter(|it| it.expectation.output.rank().is_some());
        parts.map(|it| (it.output.name.as_str(), it.expectation.source_name.as_str()))
    };
    let claim = |(name, source)| match parts().filter(|it| *it == (name, source)).count() {
        1 => format!("{name}@local: 1 rank's own part equal to {source}"),
        ranks => format!("{name}@local: {ranks} ranks' own parts equal to {source}"),
    };
    distinct(parts()).into_iter().map(claim).collect()
}

/// Returns the different items, in the order of their first occurrence.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for it in items {
        if !found.contains(&it) {
            found.push(it);
        }
    }
    found
}
