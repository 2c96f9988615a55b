//! Checks the programs of `--with`, which run in one process with the checked one.

use std::collections::BTreeSet;

use grammar::{Diagnostic, MemoryType, OpStmt, Program, Source, apply_bindings, attr, has_errors};
use hir_check::{
    Checks, NextRun, Programs, Sequence, SequenceRace, SequencedProgram, order_of_sequence, races_of_sequence,
};
use hir_plan::World;
use hir_process::exit::Exit;

use super::{
    part_failure::PartFailure,
    processor::{PartOutcome, Processor},
    witness::SequenceWitness,
};
use crate::run::{
    schedule_file::NextProgram,
    witness_runs::{WitnessResult, WitnessRuns},
};

/// A program that runs in the process.
struct Resident<'a> {
    name: &'a str,
    source: &'a Source,
    program: SequencedProgram<'a>,
    /// The names of its tensors in symmetric memory.
    symmetric: &'a BTreeSet<String>,
}

/// What is wrong with the checked program, and what was not compared.
#[derive(Default)]
struct Found {
    diagnostics: Vec<Diagnostic>,
    not_compared: Vec<String>,
}

impl Processor<'_> {
    /// Returns the races between runs of the checked program and of those of `--with`, in both orders, and what was not
    /// compared. Returns `None` if one of these cannot be checked or has a fault of its own, with the reason in `outcome`.
    pub fn check_sequences(
        &mut self,
        (program, source): (&Program, &Source),
        world: &World,
        checks: Checks,
        outcome: &mut PartOutcome,
    ) -> Option<(Vec<Diagnostic>, Vec<String>)> {
        if self.options.with.is_empty() {
            return Some((Vec::new(), Vec::new()));
        }
        let mut others: Vec<(String, Source, World, BTreeSet<String>)> = Vec::new();
        for path in &self.options.with {
            let name = path.display().to_string();
            match self.other_program(&name, world.len(), checks) {
                Ok((source, world, symmetric)) => others.push((name, source, world, symmetric)),
                Err(failure) => {
                    outcome.failure = Some(failure);
                    return None;
                }
            }
        }
        let own = symmetric_tensors(program);
        let others = others.iter().map(|(name, source, world, it)| (name.as_str(), source, world, it));
        let file = self.program_file();
        let all: Vec<Resident<'_>> = std::iter::once((file.as_str(), source, world, &own))
            .chain(others)
            .map(|(name, source, world, symmetric)| Resident {
                name,
                source,
                program: SequencedProgram::new(world),
                symmetric,
            })
            .collect();
        let mut found = Found::default();
        for (number, first) in all.iter().enumerate() {
            for (other, second) in all.iter().enumerate().filter(|it| it.0 != number) {
                let races = self.races_of_pair([first, second], [number, other], checks, &mut found);
                if number == 0 || other == 0 {
                    found.diagnostics.extend(races);
                } else if !races.is_empty() {
                    self.screen.report_diagnostics(first.source, &races);
                    found
                        .not_compared
                        .push(format!("`{}` and `{}` race with each other", first.name, second.name));
                }
            }
        }
        self.check_order(&all, checks, &mut found);
        Some((found.diagnostics, found.not_compared))
    }

    /// Returns the races of a run of a program with a run of another one after it. `numbers` are those of the two; the checked program has 0.
    fn races_of_pair(
        &mut self,
        pair: [&Resident<'_>; 2],
        numbers: [usize; 2],
        checks: Checks,
        found: &mut Found,
    ) -> Vec<Diagnostic> {
        let (names, [first, second]) = (pair.map(|it| it.name), pair.map(|it| it.program));
        let shared = pair[0].symmetric.intersection(pair[1].symmetric).cloned().collect();
        let races = match races_of_sequence(first, second, &shared, checks) {
            Ok(races) => races,
            Err(reason) => {
                found.not_compared.push(format!("`{}` before `{}`: {reason}", names[0], names[1]));
                return Vec::new();
            }
        };
        let worlds = [first.world(), second.world()];
        let sequence = Sequence { names, sources: pair.map(|it| it.source), worlds };
        // A diagnostic is about the text of the checked program, if that is one of the two.
        let is_of_first = numbers[1] != 0;
        // hir-run applies passes to the first program only.
        if self.calls.is_empty() || numbers[0] == 0 {
            self.find_sequence_witness(&sequence, is_of_first, &races, &shared);
        }
        races.iter().map(|it| it.diagnostic(&sequence, is_of_first)).collect()
    }

    /// Looks for programs whose orders of communicators contradict each other.
    fn check_order(&self, all: &[Resident<'_>], checks: Checks, found: &mut Found) {
        let programs: Vec<SequencedProgram<'_>> = all.iter().map(|it| it.program).collect();
        match order_of_sequence(&programs, checks) {
            Ok(None) => (),
            Ok(Some(it)) => {
                let names: Vec<&str> = all.iter().map(|it| it.name).collect();
                let sources: Vec<&Source> = all.iter().map(|it| it.source).collect();
                let worlds: Vec<&World> = programs.iter().map(|it| it.world()).collect();
                let shown = it.diagnostic(&Programs { names: &names, sources: &sources, worlds: &worlds });
                if it.program() == 0 {
                    found.diagnostics.push(shown);
                } else {
                    self.screen.report_diagnostics(sources[it.program()], &[shown]);
                    found.not_compared.push(
                        "the order of communicators, which others of these programs contradict".to_owned(),
                    );
                }
            }
            Err(reason) => found.not_compared.push(reason.to_string()),
        }
    }

    /// Keeps an order that shows one of the races of two programs for `--witness`: the first that changes a result, or else the first one.
    fn find_sequence_witness(
        &mut self,
        sequence: &Sequence<'_>,
        is_of_first: bool,
        races: &[SequenceRace],
        shared: &BTreeSet<String>,
    ) {
        if self.options.witness.is_none() {
            return;
        }
        let runs = WitnessRuns::new(sequence.worlds[0], self.options.world.memory_bytes());
        let next = NextRun::Other(sequence.worlds[1], shared);
        for race in races {
            let witnesses = hir_check::witnesses_of_sequence(sequence.worlds[0], next, race.race());
            for witness in witnesses.into_iter().flatten() {
                if self.sequence_witness.as_ref().is_some_and(|it| it.run.result != WitnessResult::Right) {
                    return;
                }
                let run = runs.run(&witness, Some(next));
                let is_better = self.sequence_witness.is_none() || run.result == WitnessResult::Wrong;
                if is_better && run.result != WitnessResult::NotRun {
                    self.sequence_witness = Some(SequenceWitness {
                        witness,
                        found: race.diagnostic(sequence, is_of_first),
                        first: sequence.names[0].to_owned(),
                        next: NextProgram { file: sequence.names[1].to_owned(), shared: shared.clone() },
                        run,
                    });
                }
            }
        }
    }

    /// Reads, plans and checks a program of `--with`.
    fn other_program(
        &self,
        name: &str,
        ranks: usize,
        checks: Checks,
    ) -> Result<(Source, World, BTreeSet<String>), PartFailure> {
        let unreadable = |exit: Exit| PartFailure::WithUnreadable { name: name.to_owned(), exit };
        let source = self.screen.open_source(name, &self.options.text).map_err(unreadable)?;
        let (mut programs, diagnostics) = source.programs();
        let program = match programs.len() {
            1 if !has_errors(&diagnostics) => &mut programs[0],
            _ => {
                self.screen.report_diagnostics(&source, &diagnostics);
                return Err(PartFailure::WithRejected(name.to_owned()));
            }
        };
        let own = self.options.set.iter().filter(|it| it.applies_to(program)).cloned().collect::<Vec<_>>();
        apply_bindings(program, &own).map_err(|_| unreadable(Exit::Usage))?;
        let assumed = if self.options.world.assume {
            hir_plan::assume_scalars(program, &source, Some(ranks), &self.options.world.limits())
        } else {
            None
        };
        self.screen.report_diagnostics(&source, assumed.as_slice());
        let smallest = hir_plan::smallest_world(program);
        if smallest > ranks {
            return Err(PartFailure::TooFewRanks { program: Some(name.to_owned()), smallest, ranks });
        }
        let world = hir_plan::build_with_limits(program, &source.lines, ranks, &self.options.world.limits())
            .map_err(|faults| {
                self.screen.report_diagnostics(&source, &faults);
                unreadable(Exit::Rejected)
            })?;
        let report = hir_check::check(&world, Checks { excess: false, capture: false, ..checks });
        let sources = std::slice::from_ref(&source);
        let mut found: Vec<Diagnostic> =
            report.diagnostics(&world, sources).into_iter().map(|it| it.1).collect();
        self.screen.session().remove_allowed(&source, &mut found);
        self.screen.report_diagnostics(&source, &found);
        if has_errors(&found) || !report.not_checked.is_empty() {
            return Err(PartFailure::WithFaulty(name.to_owned()));
        }
        let symmetric = symmetric_tensors(program);
        Ok((source, world, symmetric))
    }
}

/// Returns the names of the tensors in symmetric memory, which programs of one process find by name.
fn symmetric_tensors(program: &Program) -> BTreeSet<String> {
    let ops = program.stmts.iter().filter_map(|(_, it)| it.op());
    let allocated =
        ops.filter(|it| it.get(attr::MEM_TYPE) == Some(MemoryType::Symmetric)).filter_map(OpStmt::out_tensor);
    allocated.map(|it| program.tensor_name(it).to_string()).collect()
}
