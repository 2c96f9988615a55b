//! Runs `--fix=check` on correct programs with one changed statement: texts whose statement is left out on one rank or in one
//! iteration, executed twice, moved, executed on another stream, or given another operand. A program that it reports as fixed must
//! have no fault.
//!
//! A mutant may compute something else than the original. So the fixed program must give what the statements of the mutant give
//! one after another, which is what edits preserve: the text without its streams and waits, in which a `Wait` follows each communication
//! at once. If that program has no result without a fault (it reads what nothing has written, or deadlocks), nothing is compared.
//!
//! A file of `tests/baseline/fixed-mutants` has, for each part of the programs, how many mutants of each kind have a race, how many of
//! these the edits fix, for how many of these the results were compared, and how many take no longer than the original; and the
//! mutants that no edit fixes. Without a race, a mutant that reads what a later statement writes is wrong in another way, and not counted.
//!
//! The smallest correct edit of a mutant is not known. That of one that lacks a wait, or waits for another stream, is to be the original again.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use grammar::{
    ir::{Program, Stmt, StmtId},
    ops::{Op, OpClass},
    span::LineIndex,
};
use hir_check::{Checks, fix};
use hir_driver::run::{
    inputs::InputSpec,
    trial::run_trial,
    verdict::{ExpectationSource, expectations},
};
use hir_plan::{World, limits::DEFAULT_MEMORY_LIMIT};
use hir_sim::Schedule;
use hir_tensor::generate::InputKind;
use libtest_mimic::{Failed, Trial};

use super::{check_results, duration, faults, grouped, plans_of_text};
use crate::{
    ROOT,
    baseline::{plans_if_small, programs},
    part,
    rng::Rng,
    setting, shown,
};

/// The number of mutants that are tried of each program, for each kind.
const TRIES: usize = 8;
/// The pipeline whose results are changed, too.
const PIPELINE: &str = "@overlap";

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A statement that orders others is left out on one rank.
    OneRank,
    /// … in one iteration.
    OneIteration,
    /// A statement is executed twice.
    Twice,
    /// A statement is moved behind one of the next statements of its block.
    Moved,
    /// A SetCurrentStream or a Synchronize names another stream.
    Retargeted,
    /// A statement runs on another stream.
    OtherStream,
    /// A statement uses another tensor.
    OtherTensor,
    /// A communication has its members in another order.
    OtherTeam,
}

const KINDS: [(Kind, &str); 8] = [
    (Kind::OneRank, "a wait is left out on one rank"),
    (Kind::OneIteration, "a wait is left out in one iteration"),
    (Kind::Twice, "a statement is executed twice"),
    (Kind::Moved, "a statement is moved"),
    (Kind::Retargeted, "another stream is selected or awaited"),
    (Kind::OtherStream, "a statement runs on another stream"),
    (Kind::OtherTensor, "another tensor"),
    (Kind::OtherTeam, "another communicator"),
];

/// The outcomes of the mutants of one kind.
#[derive(Clone, Copy, Default)]
struct Count {
    racy: usize,
    fixed: usize,
    compared: usize,
    fast: usize,
}

/// Returns a trial for each part of the programs.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let trial = |number: usize| {
        let mine: Vec<PathBuf> =
            cases.iter().filter(|it| hash(&shown(it)) as usize % part::PARTS == number).cloned().collect();
        Trial::test(format!("fixes::mutants_{number}"), move || table(number, &mine))
            .with_ignored_flag(!part::includes(number) && !setting::updates())
    };
    let documented = Trial::test("fixes::mutants_documented", check_documentation);
    (0..part::PARTS).map(trial).chain([documented]).collect()
}

/// Checks that `docs/checker.md` contains the sums of the files of `tests/baseline/fixed-mutants`.
fn check_documentation() -> Result<(), Failed> {
    let mut sums = [[0; 4]; KINDS.len()];
    for number in 0..part::PARTS {
        let text =
            fs::read_to_string(Path::new(ROOT).join(format!("tests/baseline/fixed-mutants/{number}.txt")))?;
        for ((_, name), sums) in KINDS.iter().zip(&mut sums) {
            let row =
                text.lines().find_map(|it| it.strip_prefix(*name)?.strip_prefix(": ")).ok_or("no row")?;
            for (sum, it) in sums.iter_mut().zip(row.split(' ')) {
                *sum += it.parse::<usize>()?;
            }
        }
    }
    let page = fs::read_to_string(Path::new(ROOT).join("docs/checker.md"))?;
    for ((_, name), sums) in KINDS.iter().zip(sums) {
        let row = format!("| {name} | {} |", sums.map(grouped).join(" | "));
        if !page.contains(&row) {
            return Err(format!("docs/checker.md does not say: {row}").into());
        }
    }
    Ok(())
}

/// Hashes a text. The part and the mutants of a file depend on its name only.
fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn table(number: usize, cases: &[PathBuf]) -> Result<(), Failed> {
    let mut counts = [Count::default(); KINDS.len()];
    let (mut unfixed, mut wrong) = (String::new(), String::new());
    for path in cases {
        for way in [None, Some(PIPELINE)] {
            for (program, _) in programs(path, way)? {
                let text = grammar::print(&program);
                let name = shown(path) + way.unwrap_or_default();
                let mut rng = Rng(hash(&name));
                mutants(&text, &name, &mut rng, (&mut counts, &mut unfixed, &mut wrong));
            }
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.into());
    }
    let mut text = "change: with a race, fixed, compared, no longer than the original\n".to_owned();
    for ((_, name), it) in KINDS.iter().zip(&counts) {
        let _ = writeln!(text, "{name}: {} {} {} {}", it.racy, it.fixed, it.compared, it.fast);
    }
    let _ = write!(text, "not fixed:\n{unfixed}");
    setting::compare(&format!("tests/baseline/fixed-mutants/{number}.txt"), &text)
}

/// Counts mutants of a program.
fn mutants(
    text: &str,
    name: &str,
    rng: &mut Rng,
    (counts, unfixed, wrong): (&mut [Count; KINDS.len()], &mut String, &mut String),
) {
    let (mut parsed, _) = grammar::read(text);
    let Some(program) = parsed.pop() else { return };
    let lines = LineIndex::new(text);
    let Some(plans) = plans_if_small(&program, &lines).filter(|it| faults(it).is_empty()) else { return };
    let mut known = BTreeSet::new();
    for (at, (kind, _)) in KINDS.iter().enumerate() {
        for _ in 0..TRIES {
            let Some((mutant, what)) =
                Body { text, program: &program, lines: &lines }.mutant(*kind, plans.len(), rng)
            else {
                continue;
            };
            if !known.insert(mutant.clone()) {
                continue;
            }
            let Some(before) = plans_of_text(&mutant).map(|it| faults(&it)) else { continue };
            let is_race = |it: &String| ["E0701", "E0702", "E0703"].iter().any(|code| it.starts_with(code));
            // Other faults have other causes.
            if before.is_empty() || !before.iter().all(is_race) {
                continue;
            }
            let planner = |program: &mut Program, lines: &LineIndex| {
                hir_plan::build(program, lines, hir_plan::smallest_world(program)).ok()
            };
            let place = format!("{name}: {kind:?}, {what}");
            let fixed = fix(&mutant, 0, Checks::DEFAULT, &planner);
            let Some(edited) = plans_of_text(&fixed.text) else {
                let _ = writeln!(wrong, "{place}: the edited text is rejected");
                continue;
            };
            let left = faults(&edited);
            // A statement reads what a later one writes: no order makes the mutant right.
            if !left.is_empty() && left.iter().all(|it| it.starts_with("E0704")) {
                continue;
            }
            counts[at].racy += 1;
            if let Some(fault) = left.first() {
                let _ = writeln!(unfixed, "{place}: {fault}");
                continue;
            }
            counts[at].fixed += 1;
            match compare(&mutant, &edited) {
                Ok(true) => counts[at].compared += 1,
                Ok(false) => (),
                Err(fault) => {
                    let _ = writeln!(wrong, "{place}: {fault}\n{mutant}\n{}", fixed.text);
                }
            }
            let times = duration(&plans).zip(duration(&edited));
            counts[at].fast += usize::from(times.is_some_and(|(wanted, found)| found <= wanted * 1.001));
        }
    }
}

/// Compares the results of a fixed program with those of the statements of the mutant, one after another. Returns false if these have no result.
fn compare(mutant: &str, fixed: &World) -> Result<bool, String> {
    let Some(plans) = in_issue_order(mutant).and_then(|it| plans_of_text(&it)) else { return Ok(false) };
    if !faults(&plans).is_empty() {
        return Ok(false);
    }
    let Ok(inputs) = InputSpec::new(InputKind::Exact, 0, &plans).fill(&plans) else { return Ok(false) };
    let Ok(ran) = run_trial(&plans, &inputs, &Schedule::Program, &[], DEFAULT_MEMORY_LIMIT) else {
        return Ok(false);
    };
    let wanted = expectations(ran.outputs, "program", ExpectationSource::Simulated { exact: ran.exact });
    check_results(fixed, &inputs, &wanted).map(|()| true)
}

/// Returns a program whose statements execute one after another: without streams and waits, and with a Wait behind each communication.
fn in_issue_order(text: &str) -> Option<String> {
    let program = grammar::read(text).0.pop()?;
    let lines = LineIndex::new(text);
    let body = Body { text, program: &program, lines: &lines };
    let mut all: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let mut is_in_group = false;
    let mut edits: Vec<(usize, usize, Option<String>)> = Vec::new();
    let mut stmts = body.statements();
    stmts.sort_by_key(|it| program.stmt_span(*it).start);
    for stmt in stmts {
        let op = program.stmts[stmt].op()?;
        let (first, last) = body.line_range(stmt);
        match op.op {
            Op::StartCoalescing => is_in_group = true,
            Op::EndCoalescing => is_in_group = false,
            _ => (),
        }
        if matches!(op.op.def().class, OpClass::Stream | OpClass::Wait) {
            edits.push((first, last, None));
        } else if let Some(number) = program.posted_work(stmt).filter(|_| !is_in_group) {
            edits.push((first, last, Some(format!("Wait(Communication {number})"))));
        } else if op.op.def().class == OpClass::Communicate && !is_in_group {
            return None;
        }
    }
    for (first, last, wait) in edits.into_iter().rev() {
        let indentation = body.indentation(first);
        match wait {
            None => drop(all.drain(first..=last)),
            Some(wait) => all.insert(last + 1, format!("{indentation}{wait}")),
        }
    }
    Some(all.join("\n"))
}

/// The text of a program, in which every statement begins a line.
struct Body<'a> {
    text: &'a str,
    program: &'a Program,
    lines: &'a LineIndex,
}

impl Body<'_> {
    /// Returns the statements that are no loops, branches and scalars.
    fn statements(&self) -> Vec<StmtId> {
        let mut found = Vec::new();
        let Some(body) = self.program.body else { return found };
        for it in self.program.stmts_in(body) {
            if matches!(self.program.stmts[it], Stmt::Op(_)) {
                found.push(it);
            }
        }
        found
    }

    /// Returns the first and the last line of a statement, from 0.
    fn line_range(&self, stmt: StmtId) -> (usize, usize) {
        let span = self.program.stmt_span(stmt);
        (self.lines.line(span.start) as usize - 1, self.lines.line(span.end.max(1) - 1) as usize - 1)
    }

    fn indentation(&self, line: usize) -> String {
        let text = self.text.split('\n').nth(line).unwrap_or_default();
        text[..text.len() - text.trim_start().len()].to_owned()
    }

    /// Returns the text with a change of a kind, and the changed statement.
    fn mutant(&self, kind: Kind, ranks: usize, rng: &mut Rng) -> Option<(String, String)> {
        let class = |it: StmtId| self.program.stmts[it].op().map(|it| it.op.def().class);
        let op = |it: StmtId| self.program.stmts[it].op().map(|it| it.op);
        let is_wait = |it: &StmtId| op(*it) == Some(Op::Synchronize) || class(*it) == Some(OpClass::Wait);
        let is_work = |it: &StmtId| {
            matches!(class(*it), Some(OpClass::Compute | OpClass::Elementwise | OpClass::Communicate))
        };
        let is_stream = |it: &StmtId| matches!(op(*it), Some(Op::Synchronize | Op::SetCurrentStream));
        let fits = |it: &StmtId| match kind {
            Kind::OneRank => ranks > 1 && is_wait(it),
            Kind::OneIteration => is_wait(it),
            Kind::Twice => is_work(it) || is_wait(it),
            Kind::Moved => class(*it) != Some(OpClass::Coalescing),
            Kind::Retargeted => is_stream(it),
            Kind::OtherStream | Kind::OtherTensor => is_work(it),
            Kind::OtherTeam => class(*it) == Some(OpClass::Communicate),
        };
        let all: Vec<StmtId> = self.statements().into_iter().filter(fits).collect();
        let stmt = *all.get(rng.below(all.len()))?;
        let mut lines: Vec<String> = self.text.split('\n').map(str::to_owned).collect();
        let (first, last) = self.line_range(stmt);
        let indentation = self.indentation(first);
        let what = format!("line {}: {}", first + 1, lines[first].trim());
        let under = |lines: &mut Vec<String>, condition: &str| {
            lines[first..=last].iter_mut().for_each(|it| it.insert_str(0, "  "));
            lines.insert(first, format!("{indentation}IF Manual ( {condition} ):"));
        };
        match kind {
            Kind::OneRank => under(&mut lines, &format!("rank != {}", rng.below(ranks))),
            Kind::OneIteration => {
                let name = self.loop_index(first)?;
                under(&mut lines, &format!("{name} != {}", rng.below(3)));
            }
            Kind::Twice => {
                let copy = lines[first..=last].to_vec();
                lines.splice(last + 1..last + 1, copy);
            }
            Kind::Moved => {
                let block = self.program.blocks.ids().find(|it| self.program.block(*it).contains(&stmt))?;
                let stmts = self.program.block(block);
                let at = stmts.iter().position(|it| *it == stmt)?;
                let end = (at + 1 + rng.below(4)).min(stmts.len() - 1);
                // The line behind the statements that it moves behind.
                let behind = match stmts.get(end + 1) {
                    Some(next) => self.line_range(*next).0,
                    None => self.block_end(last)?,
                };
                if end == at || behind <= last {
                    return None;
                }
                lines[first..behind].rotate_left(last + 1 - first);
            }
            Kind::Retargeted => {
                let streams = self.streams();
                let other = streams.get(rng.below(streams.len()))?;
                let (head, _) = lines[first].split_once('(')?;
                lines[first] = format!("{head}({other})");
            }
            Kind::OtherStream => {
                let streams = self.streams();
                let other = streams.get(rng.below(streams.len()))?;
                lines.insert(last + 1, format!("{indentation}SetCurrentStream(Stream s77)"));
                lines.insert(first, format!("{indentation}SetCurrentStream({other})"));
                lines.insert(first, format!("{indentation}Stream s77 = GetCurrentStream()"));
            }
            Kind::OtherTensor => {
                let text = lines[first..=last].join("\n");
                let (own, all) = (tensors(&text), tensors(self.text));
                let old = own.iter().nth(rng.below(own.len()))?;
                let shape = |it: &String| it.split_once('{').map(|it| it.1.to_owned());
                let all: Vec<&String> =
                    all.iter().filter(|it| *it != old && shape(it) == shape(old)).collect();
                let changed = text.replacen(old.as_str(), all.get(rng.below(all.len()))?, 1);
                lines.splice(first..=last, changed.split('\n').map(str::to_owned));
            }
            Kind::OtherTeam => {
                let (head, rest) = lines[first].split_once("team=(")?;
                let (team, tail) = rest.split_once(')')?;
                let reversed: Vec<&str> = team.split(' ').rev().collect();
                lines[first] = format!("{head}team=({}){tail}", reversed.join(" "));
            }
        }
        Some((lines.join("\n"), what)).filter(|it| it.0 != self.text)
    }

    /// Returns the name of the index of the innermost loop around a line.
    fn loop_index(&self, line: usize) -> Option<String> {
        let all: Vec<&str> = self.text.split('\n').collect();
        let width = |it: &str| it.len() - it.trim_start().len();
        let mut inner = width(all[line]);
        for it in all[..line].iter().rev() {
            if width(it) < inner && !it.trim().is_empty() {
                inner = width(it);
                if let Some(rest) = it.trim_start().strip_prefix("FOR ") {
                    return rest.split(' ').next().map(str::to_owned);
                }
            }
        }
        None
    }

    /// Returns the line behind the block of a line.
    fn block_end(&self, line: usize) -> Option<usize> {
        let all: Vec<&str> = self.text.split('\n').collect();
        let width = |it: &str| it.len() - it.trim_start().len();
        let own = width(all[line]);
        (line + 1..all.len()).find(|it| width(all[*it]) < own)
    }

    /// Returns the operands that name streams.
    fn streams(&self) -> Vec<String> {
        let mut found: BTreeSet<String> = ["Stream 3".to_owned()].into();
        for line in self.text.split('\n').map(str::trim) {
            let operand = ["SetCurrentStream(", "Synchronize("].iter().find_map(|it| line.strip_prefix(it));
            found.extend(operand.and_then(|it| it.strip_suffix(')')).map(str::to_owned));
        }
        found.into_iter().collect()
    }
}

/// Returns the tensors in a text, as statements name them: `T1_g_float[iS1{4}] (DeviceMesh{0 1})`.
fn tensors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices('T') {
        let rest = &text[at..];
        let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
        let is_word = text[..at].ends_with(|it: char| it.is_ascii_alphanumeric());
        let end = rest.find(']').filter(|end| {
            digits > 0 && !is_word && rest[1 + digits..].starts_with('_') && !rest[..*end].contains('\n')
        });
        let Some(end) = end else { continue };
        let mesh = rest[end + 1..].starts_with(" (DeviceMesh{").then(|| rest[end..].find(')')).flatten();
        found.insert(rest[..mesh.map_or(end, |it| end + it) + 1].to_owned());
    }
    found
}
