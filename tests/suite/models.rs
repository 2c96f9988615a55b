//! Compares the checker with a search of all orders of small programs, for each model: storage (`pytorch`, `cuda-async`,
//! `pytorch-cuda-async`, `never-reused`), orders (`nccl`, `hir`), runs that follow each other, captures, the launch order of NCCL's kernels, the queues of
//! sends and receives (`communicator`, `pair`), and transfers over peer memory.
//!
//! The search knows neither plans nor clocks. It executes the statements of a program in every order that streams and hosts allow,
//! and says of each pair of statements whether one may come before the other.
//!
//! `HIR_MODELS=20000` tries more programs, `HIR_SEED=7` others.

mod kernels;
mod peer_memory;
mod sends;
mod starts;
mod streams;
mod text;
mod transfers;
mod works;

use std::io::Write as _;

use hir_check::{Checks, Finding, Report, check};
use hir_plan::World;
use libtest_mimic::{Failed, Trial};

use crate::{part, rng::Rng, setting};

/// Default number of programs of each kind in a part.
const PROGRAMS: usize = 800;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let (count, seed) = (setting::number("HIR_MODELS"), setting::number_or("HIR_SEED", 0) as u64 * 1_000_000);
    let trial = |name: &str, compare: fn(&mut Rng) -> Result<Vec<Verdict>, String>, part: usize| {
        Trial::test(format!("models::{name}_{part}"), move || {
            let mut verdicts = [[0; 2]; 12];
            for at in 0..count.map_or(PROGRAMS, |it| it / part::PARTS) {
                let seed = seed + (at * part::PARTS + part) as u64;
                let of_models =
                    compare(&mut Rng(seed ^ 0x0d_e1)).map_err(|it| format!("seed {seed}: {it}"))?;
                for (model, has_fault) in
                    of_models.into_iter().enumerate().filter_map(|(at, it)| Some((at, it?)))
                {
                    verdicts[model][usize::from(has_fault)] += 1;
                }
            }
            if count.is_some() {
                let _ = writeln!(std::io::stderr(), "by model, without and with a fault: {verdicts:?}");
            }
            // Programs of one kind prove nothing about the other kind.
            let mut seen = verdicts.iter().filter(|it| it[0] + it[1] > 0).peekable();
            if seen.peek().is_some() && seen.flatten().all(|it| *it > 0) {
                Ok(())
            } else {
                Err(Failed::from(format!("by model, without and with a fault: {verdicts:?}")))
            }
        })
        .with_ignored_flag(!part::includes(part))
    };
    let all = |name: &'static str, compare| (0..part::PARTS).map(move |part| trial(name, compare, part));
    all("streams_and_storage", streams::compare as fn(&mut Rng) -> _)
        .chain(all("kernels_of_communicators", kernels::compare as fn(&mut Rng) -> _))
        .chain(all("kernels_of_programs", kernels::compare_programs as fn(&mut Rng) -> _))
        .chain(all("sends_and_receives", transfers::compare as fn(&mut Rng) -> _))
        .chain(all("peer_memory", peer_memory::compare as fn(&mut Rng) -> _))
        .collect()
}

/// Whether a program has a fault under a model; `None` if it was not compared.
type Verdict = Option<bool>;

/// Returns the plans of a text.
fn plans_of(text: &str, ranks: usize) -> Result<World, String> {
    let of = |them: Vec<grammar::diagnostic::Diagnostic>| {
        format!("{}\n{text}", them.iter().map(|it| it.message.as_str()).collect::<Vec<_>>().join("; "))
    };
    hir_plan::plans_of_text(text, ranks).map_err(of)
}

/// Compares the verdict of the checker with that of the search. `counts` selects the findings.
fn same_verdict(
    (text, world): (&str, &World),
    (checks, model): (Checks, &str),
    counts: fn(&Finding) -> bool,
    expected: Option<String>,
) -> Result<Verdict, String> {
    let report: Report = check(world, checks);
    let found = report.findings.iter().find(|it| counts(it));
    match (found, expected) {
        (Some(it), None) => {
            Err(format!("FALSE ALARM with {model}: {}\n{text}", it.diagnostic(world, &[]).1.message))
        }
        (None, Some(reason)) => Err(format!("MISSED with {model}: {reason}\n{text}")),
        (found, _) => Ok(Some(found.is_some())),
    }
}
