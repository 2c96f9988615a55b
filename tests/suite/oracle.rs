//! Compares the checker with an oracle on random programs, and on these with one change. The oracle was written from `docs/checker.md` and what that
//! cites, by someone who had not read the checker. It shares neither reader nor planner with it: the generator makes programs as a list of
//! statements, of which the oracle derives the works that have to follow each other.
//!
//! `HIR_ORACLE=10000` tries more programs of each kind, `HIR_SEED=7` others.

mod capture;
mod change;
mod graph;
mod kernels;
mod link;
mod messages;
mod passes;
mod post;
mod program;
mod random;
mod repair;
mod storage;
mod text;
mod verdict;
mod works;

use std::{collections::BTreeMap, collections::BTreeSet, io::Write as _};

use hir_check::{Checks, SequencedProgram, StorageModel, check, races_of_sequence};
use hir_plan::{
    World, plans_of_text,
    sync::{LaunchOrder, P2pQueues},
};
use libtest_mimic::{Failed, Trial};

use self::{
    change::change,
    program::{Program, Stmt},
    random::{MIXES, Mix, skeleton},
    repair::repaired,
    verdict::{faults, faults_between_runs, faults_of_stream_ordered_storage},
    works::{By, Rules},
};
use crate::{part, rng::Rng, setting};

/// Default number of programs of each kind in a part, and of those that go through passes.
const PROGRAMS: usize = 100;
const LOWERED: usize = 25;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let (count, seed) = (setting::number("HIR_ORACLE"), setting::number_or("HIR_SEED", 0) * 1_000_000);
    let trial = move |mix: Mix, part: usize, (what, default, attempt): (&str, usize, Attempt)| {
        Trial::test(format!("oracle::{what}{}_{part}", format!("{mix:?}").to_lowercase()), move || {
            let mut counts = BTreeMap::new();
            let seeds =
                (0..count.map_or(default, |it| it / part::PARTS)).map(|at| seed + at * part::PARTS + part);
            let faults: Vec<String> = seeds.filter_map(|it| attempt(it, mix, &mut counts)).collect();
            if count.is_some() {
                let _ = writeln!(std::io::stderr(), "{mix:?}: {counts:?}");
            }
            if faults.is_empty() { Ok(()) } else { Err(Failed::from(faults.join("\n\n"))) }
        })
        .with_ignored_flag(!part::includes(part))
    };
    let of = [("", PROGRAMS, attempt as Attempt), ("passes_", LOWERED, passes::attempt)];
    let mixes = of.into_iter().flat_map(|of| MIXES.map(|mix| (mix, of)));
    mixes.flat_map(|(mix, of)| (0..part::PARTS).map(move |part| trial(mix, part, of))).collect()
}

/// Judges the program of a seed, and counts its verdicts.
type Attempt = fn(usize, Mix, &mut BTreeMap<String, usize>) -> Option<String>;

/// Judges the program of a seed, with and without a change.
pub fn attempt(seed: usize, mix: Mix, counts: &mut BTreeMap<String, usize>) -> Option<String> {
    let mut rng = Rng(seed as u64 ^ ((mix as u64) << 40) ^ 0x0a_c1e);
    let rules = Rules { pairs: rng.below(2) == 0, connects: rng.below(2) == 0 };
    let raw = skeleton(&mut rng, mix);
    let mut all = vec![("raw", raw.clone())];
    if let Some(valid) = repaired(raw, rules, &mut rng) {
        for _ in 0..3 {
            let mut changed = valid.clone();
            if let Some(kind) = change(&mut changed, &mut rng) {
                all.push((kind, changed));
            }
        }
        if let Some(next) = repaired(skeleton(&mut rng, mix), rules, &mut rng)
            && let Err(it) = compare_programs([&valid, &next], rules, counts)
        {
            return Some(format!("seed {seed} {mix:?} {rules:?}: {it}"));
        }
        all.push(("valid", valid));
    }
    all.into_iter().find_map(|(kind, program)| {
        let outcome = compare(&program, rules, true);
        match outcome {
            Ok(it) => {
                *counts.entry(format!("{kind} {it}")).or_default() += 1;
                None
            }
            Err(it) => Some(format!("seed {seed} {mix:?} {kind} {rules:?}: {it}")),
        }
    })
}

/// Returns the checks by some rules.
fn checks_of(rules: Rules, storage: bool) -> Checks {
    Checks {
        nccl: LaunchOrder::Explicit,
        p2p: Some(if rules.pairs { P2pQueues::Pair } else { P2pQueues::Communicator }),
        connects: rules.connects,
        storage: if storage { StorageModel::PyTorch } else { StorageModel::NeverReused },
        ..Checks::ALL_FAULTS
    }
}

/// Compares the verdicts on a program.
pub fn compare(program: &Program, rules: Rules, storage: bool) -> Result<&'static str, String> {
    let (text, lines) = program.text();
    let all = faults(program, rules, storage);
    let expected: BTreeSet<&'static str> = all.iter().map(|it| it.code).collect();
    if expected.contains("unclear") {
        return Ok("unclear");
    }
    let checks = checks_of(rules, storage);
    let refused = ["E0411", "E0501", "E0406"];
    let world = match plans_of_text(&text, program.ranks) {
        Ok(it) => it,
        Err(them) => {
            let codes: BTreeSet<&str> =
                them.iter().filter(|it| it.is_error()).map(|it| it.code.text()).collect();
            if codes.iter().any(|it| !refused.contains(it)) {
                return if codes.iter().any(|it| it.starts_with("E01") || it.starts_with("E02")) {
                    Err(format!("not read: {:?}\n{text}", them[0]))
                } else {
                    Ok("refused")
                };
            }
            let is_expected =
                |it: &&str| expected.contains(*it) || **it == *"E0501" && expected.contains("E0705");
            return if codes.iter().any(is_expected) {
                Ok("refused as expected")
            } else {
                Err(format!("REFUSED {codes:?} {} but expected {expected:?}\n{text}", them[0].message))
            };
        }
    };
    let report = check(&world, checks);
    if !report.not_checked.is_empty() {
        return Ok("not checked");
    }
    let expects_capture = (0..program.ranks).any(|rank| capture::fails(program, rank, rules.pairs));
    let captured = check(&world, Checks { capture: true, race: false, comm: false, memory: false, ..checks });
    let captured: Vec<_> =
        captured.findings.iter().map(|it| it.diagnostic(&world, &[]).1.code.text()).collect();
    if !captured.contains(&"E0705") && expects_capture != captured.contains(&"E0708") {
        return Err(format!(
            "{} E0708, found {captured:?}\n{text}",
            if expects_capture { "MISSED" } else { "FALSE" }
        ));
    }
    let findings: Vec<_> = report.findings.iter().map(|it| it.diagnostic(&world, &[]).1).collect();
    let found: BTreeSet<&str> =
        findings.iter().map(|it| it.code.text()).filter(|it| *it != "W0703" && *it != "W0702").collect();
    let is_race = |it: &&str| matches!(*it, "E0701" | "E0702" | "E0703");
    let has_race = expected.iter().any(&is_race);
    let alone = ["E0705", "E0707", "E0709", "E0704", "W0701"];
    let counts = |it: &&&str| !(has_race && matches!(**it, "E0704" | "W0701"));
    // Contradictory orders of communicators also let hosts create them in contradictory orders.
    if expected.contains("E0705") && found.contains("E0707") {
        return Ok("E0705");
    }
    let missed = alone.iter().filter(counts).any(|it| expected.contains(it) && !found.contains(it));
    let is_refused = expected.iter().any(|it| refused.contains(it));
    if is_refused && found.contains("E0705") {
        return Ok("E0705");
    }
    let missed = missed || is_refused;
    let missed = missed || has_race && !found.iter().any(is_race);
    let has = |found: &dyn Fn(&Stmt) -> bool| program.items().iter().any(|it| found(&it.1.stmt));
    // What a program that does not end accesses is not compared.
    let is_stuck = expected.contains("E0705") && found.contains("E0705");
    let may_be = |it: &str| match it {
        "W0701" => expected.contains("E0704"),
        "E0707" => expected.contains("unknown"),
        "E0705" => expected.contains("swapped"),
        // The shards may also be copied, by a communication in which no host waits.
        "E0701" | "E0702" => has(&|it| matches!(it, Stmt::View { .. })) && has(&|it| *it == Stmt::HostSync),
        _ => false,
    };
    let wrong = found.iter().filter(|it| counts(it)).find(|it| !expected.contains(**it) && !may_be(it));
    let texts = || {
        findings
            .iter()
            .map(|it| format!("{}: {}", it.code.text(), it.message))
            .collect::<Vec<_>>()
            .join("\n  ")
    };
    let shown = || {
        let by = |it: &Option<By>| {
            it.map_or("-".to_owned(), |it| {
                format!("r{} line {}", it.rank, lines.get(&it.place).copied().unwrap_or(0))
            })
        };
        let mut all: Vec<String> =
            all.iter().map(|it| format!("{} {} {}", it.code, by(&it.first), by(&it.second))).collect();
        all.dedup();
        all.truncate(8);
        all.join("; ")
    };
    if missed {
        return Err(format!("MISSED {expected:?}, found {found:?}\n  {}\n  {}\n{text}", shown(), texts()));
    }
    if let (Some(it), false) = (wrong, is_stuck) {
        return Err(format!("FALSE {it}, expected {expected:?}\n  {}\n  {}\n{text}", shown(), texts()));
    }
    if expected.is_empty() {
        return compare_others(program, rules, &world, checks).map_err(|it| format!("{it}\n{text}"));
    }
    Ok(match expected.iter().next_back() {
        None => "none",
        Some(it) => it,
    })
}

/// Compares the verdicts on two programs of which the second one follows the first one. Neither has a fault, or memory that peers access.
fn compare_programs(
    [first, second]: [&Program; 2],
    rules: Rules,
    counts: &mut BTreeMap<String, usize>,
) -> Result<(), String> {
    let is_unclear = |it: &Stmt| {
        matches!(it, Stmt::HostSync | Stmt::View { .. } | Stmt::Share(_))
            || matches!(it, Stmt::Post(it) if it.puts.is_some())
    };
    let is_other = |it: &Program| it.items().iter().any(|it| is_unclear(&it.1.stmt));
    if first.ranks != second.ranks || is_other(first) || is_other(second) {
        return Ok(());
    }
    let expected = faults_between_runs([first, &second.with_own_tensors()], rules);
    let texts = [first.text().0, second.text().0];
    let worlds = texts.each_ref().map(|it| plans_of_text(it, first.ranks).ok());
    let [Some(one), Some(other)] = &worlds else { return Ok(()) };
    let checks = Checks { repeat: true, ..checks_of(rules, true) };
    let [one, other] = [one, other].map(SequencedProgram::new);
    let Ok(found) = races_of_sequence(one, other, &BTreeSet::new(), checks) else { return Ok(()) };
    *counts.entry(format!("programs {}", if expected.is_empty() { "none" } else { "E0706" })).or_default() +=
        1;
    if expected.is_empty() == found.is_empty() {
        return Ok(());
    }
    let word = if found.is_empty() { "MISSED" } else { "FALSE" };
    let lines: Vec<_> = expected
        .iter()
        .map(|it| (it.first.map(|it| it.place), it.second.map(|it| it.place)))
        .take(4)
        .collect();
    Err(format!("{word} between programs, expected {lines:?}, found {found:?}\n{}\n{}", texts[0], texts[1]))
}

/// Compares the verdicts on two runs, and with storage that streams allocate, of a program without a fault.
fn compare_others(
    program: &Program,
    rules: Rules,
    world: &World,
    checks: Checks,
) -> Result<&'static str, String> {
    let has = |found: &dyn Fn(&Stmt) -> bool| program.items().iter().any(|it| found(&it.1.stmt));
    let symmetric = |it: &Stmt| matches!(it, Stmt::View { .. });
    let codes = |checks| -> Vec<(&'static str, String)> {
        let report = check(world, checks);
        let of = |it: &hir_check::Finding| it.diagnostic(world, &[]).1;
        report.findings.iter().map(of).map(|it| (it.code.text(), it.message)).collect()
    };
    let mut outcome = "none";
    if !has(&|it| matches!(it, Stmt::HostSync)) {
        let expected = faults_between_runs([program, program], rules);
        let found = codes(Checks { repeat: true, comm: false, ..checks });
        for code in ["E0706", "E0709"] {
            let is_expected = expected.iter().any(|it| it.code == code);
            if is_expected != found.iter().any(|it| it.0 == code) {
                let all: Vec<_> = expected
                    .iter()
                    .map(|it| (it.code, it.first.map(|it| it.place), it.second.map(|it| it.place)))
                    .take(4)
                    .collect();
                let word = if is_expected { "MISSED" } else { "FALSE" };
                return Err(format!("{word} between runs {code}, expected {all:?}, found {found:?}"));
            }
            if is_expected {
                outcome = "between runs";
            }
        }
    }
    if !has(&symmetric) {
        let is_expected = !faults_of_stream_ordered_storage(program, rules).is_empty();
        let found = codes(Checks { storage: StorageModel::CudaAsync, memory: false, ..checks });
        if is_expected == found.is_empty() {
            let word = if is_expected { "MISSED" } else { "FALSE" };
            return Err(format!("{word} with cuda-async, found {found:?}"));
        }
    }
    Ok(outcome)
}
