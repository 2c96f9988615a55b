//! Runs `--fix=check` on correct programs that lack one of their synchronisations. A program that it reports
//! as fixed must have no fault, and must give the result of the correct program under every schedule that is
//! tried. The smallest correct edit that is known is the statement that was left out: the table names the fixed programs
//! whose estimated time is longer than with it.
//!
//! The programs are those of `baseline`. A file of `tests/baseline/fixes` contains, for each folder of cases
//! and each pipeline, the number of programs with a race, and the programs that no edit fixes. A run of the suite tests the
//! programs as they are, and the results of a part of the pipelines (`part`). `INSTA_UPDATE=always` writes all files again.

mod mutants;

use hir_plan::limits::DEFAULT_MEMORY_LIMIT;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use grammar::{
    codes::{Code, Severity},
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    ops::{Op, OpClass},
    source::Source,
    span::LineIndex,
};
use hir_check::{Checks, check, fix};
use hir_driver::run::{
    inputs::InputSpec,
    trial::run_trial,
    verdict::{Expectation, ExpectationSource, expectations},
};
use hir_plan::{
    self, World,
    timeline::{estimator::Estimator, machine::Machine},
};
use hir_sim::Schedule;
use hir_tensor::{data::Data, generate::InputKind};
use libtest_mimic::{Failed, Trial};

use crate::{
    ROOT,
    baseline::{plans_if_small, programs, synchronisations, without_statement},
    part,
    pipelines::lowering_pipelines,
    setting, shown,
};

/// Returns a trial for all cases as they are, and one for each pipeline.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let updates = setting::updates();
    let ways = lowering_pipelines().enumerate().map(|(number, it)| (Some(it), part::includes(number)));
    let trial = |(pipeline, is_included): (Option<&'static str>, bool)| {
        let cases = cases.to_vec();
        let name = pipeline.unwrap_or("cases").trim_start_matches('@');
        Trial::test(format!("fixes::{name}"), move || table(name, &cases, pipeline))
            .with_ignored_flag(!is_included && !updates)
    };
    let tables = [(None, true)].into_iter().chain(ways).map(trial);
    let checked: Vec<PathBuf> =
        cases.iter().filter(|it| it.to_string_lossy().contains("/cases/check/")).cloned().collect();
    let others = [
        Trial::test("fixes::documented", check_documentation),
        Trial::test("fixes::help", move || checked.iter().try_for_each(|it| check_help(it))),
    ];
    tables.chain(others).chain(mutants::trials(cases)).collect()
}

/// `--check=race`.
const RACE: Checks = Checks { comm: false, memory: false, ..Checks::ALL_FAULTS };

/// Checks that `docs/checker.md` contains the totals of the files of `tests/baseline/fixes`.
fn check_documentation() -> Result<(), Failed> {
    let (mut fixed, mut racy, mut fast) = (0, 0, 0);
    for file in fs::read_dir(Path::new(ROOT).join("tests/baseline/fixes"))? {
        let text = fs::read_to_string(file?.path())?;
        // The first line reads "251 of 259 programs with a race are fixed, …".
        let mut words = text.split(' ');
        fixed += words.next().ok_or("no number")?.parse::<usize>()?;
        racy += words.nth(1).ok_or("no number")?.parse::<usize>()?;
        let overlapping = text.lines().find_map(|it| it.split_once(" of these ")).ok_or("no number")?;
        fast += overlapping.0.parse::<usize>()?;
    }
    let sentences = [
        format!("of {} that have a race then, the edits fix {}", grouped(racy), grouped(fixed)),
        format!("Of these, {} take no longer than the original", grouped(fast)),
    ];
    let page = fs::read_to_string(Path::new(ROOT).join("docs/checker.md"))?;
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    match sentences.iter().find(|it| !page.contains(*it)) {
        None => Ok(()),
        Some(missing) => Err(format!("docs/checker.md does not say: {missing}").into()),
    }
}

/// Formats a number below a million.
fn grouped(it: usize) -> String {
    match it {
        0..1000 => it.to_string(),
        1000.. => format!("{},{:03}", it / 1000, it % 1000),
    }
}

/// Checks that the help of the first race contains the statements that `--fix=check` writes, if it removes all races of
/// the program.
fn check_help(path: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(path)?;
    let planner = |program: &mut Program, lines: &LineIndex| {
        hir_plan::build(program, lines, hir_plan::smallest_world(program)).ok()
    };
    let source = Source::new(shown(path), text.clone());
    let Some(mut program) = source.programs().0.pop() else { return Ok(()) };
    let Some(plans) = planner(&mut program, &source.lines) else { return Ok(()) };
    let races = |plans: &World, source: &Source| -> Vec<Diagnostic> {
        let found = check(plans, RACE).diagnostics(plans, std::slice::from_ref(source));
        found.into_iter().map(|it| it.1).collect()
    };
    check_edit_of_deadlock(&text, &plans, &source, &planner)
        .map_err(|it| format!("{}: {it}", shown(path)))?;
    let fixed = Source::new(shown(path), fix(&text, 0, Checks::DEFAULT, &planner).text);
    let Some(mut program) = fixed.programs().0.pop() else {
        return Err("the edited text is rejected".into());
    };
    let Some(after) = planner(&mut program, &fixed.lines) else {
        return Err("the edited text cannot be planned".into());
    };
    if !races(&after, &fixed).is_empty() {
        return Ok(());
    }
    // The edit of the first race may remove others.
    if let Some(race) = races(&plans, &source).into_iter().next() {
        let help = race.help.ok_or_else(|| format!("{}: no help: {}", shown(path), race.message))?;
        // A statement may have several lines.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let edited = words(&fixed.text);
        let is_written =
            |edit: &str| edit.split('`').skip(1).step_by(2).all(|it| edited.contains(&words(it)));
        if !help.split(", or ").any(is_written) {
            return Err(format!("{}: not in the edited text: {help}\n{}", shown(path), fixed.text).into());
        }
    }
    Ok(())
}

/// Checks that no deadlock is left, if a help has edits for one.
fn check_edit_of_deadlock(
    text: &str,
    plans: &World,
    source: &Source,
    planner: &impl Fn(&mut Program, &LineIndex) -> Option<World>,
) -> Result<(), String> {
    let deadlock = |plans: &World, source: &Source| {
        let checks = Checks { race: false, memory: false, ..Checks::ALL_FAULTS };
        let found = check(plans, checks).diagnostics(plans, std::slice::from_ref(source));
        found.into_iter().map(|it| it.1).find(|it| it.code == Code::CheckedDeadlock)
    };
    let mut fixes = deadlock(plans, source).map(|it| it.fixes).unwrap_or_default();
    if fixes.is_empty() {
        return Ok(());
    }
    let mut edited = text.to_owned();
    fixes.sort_by_key(|it| it.span.start);
    for it in fixes.iter().rev() {
        edited.replace_range(it.span.start as usize..it.span.end as usize, &it.text);
    }
    let edited = Source::new(source.name.clone(), edited);
    let program = edited.programs().0.pop();
    let after =
        program.and_then(|mut it| planner(&mut it, &edited.lines)).ok_or("the edit gives no program")?;
    let left = deadlock(&after, &edited);
    left.map_or(Ok(()), |it| Err(format!("a deadlock is left: {}\n{}", it.message, edited.text)))
}

/// The outcomes of the programs that lack a synchronisation.
#[derive(Default)]
struct Count {
    /// Number of programs with a race.
    racy: usize,
    /// Number of those programs that edits have fixed.
    fixed: usize,
    /// Number of edits for them.
    edits: usize,
    /// The other programs with a race, one per line.
    unfixed: String,
    /// Number of fixed programs that take longer than the correct program, and these programs, one per line.
    slower: (usize, String),
}

fn table(name: &str, cases: &[PathBuf], pipeline: Option<&str>) -> Result<(), Failed> {
    let mut count = Count::default();
    for path in cases {
        for (program, lines) in programs(path, pipeline)? {
            mutants(&program, &lines, &shown(path), pipeline.is_none(), &mut count)?;
        }
    }
    let Count { racy, fixed, edits, unfixed: left, slower: (slower, longer) } = count;
    let text = format!(
        "{fixed} of {racy} programs with a race are fixed, by {edits} edits; not:\n{left}{} of these {fixed} overlap as much as the \
         correct program; not:\n{longer}",
        fixed - slower
    );
    setting::compare(&format!("tests/baseline/fixes/{name}.txt"), &text)
}

/// Counts the programs that lack one synchronisation of a correct program. With `by_race`, those fixed by
/// `--check=race` must be correct too.
fn mutants(
    program: &Program,
    lines: &LineIndex,
    name: &str,
    by_race: bool,
    count: &mut Count,
) -> Result<(), String> {
    let Some(plans) = plans_if_small(program, lines).filter(|it| faults(it).is_empty()) else {
        return Ok(());
    };
    let Ok(inputs) = InputSpec::new(InputKind::Exact, 0, &plans).fill(&plans) else {
        return Ok(());
    };
    let Ok(ran) = run_trial(&plans, &inputs, &Schedule::Program, &[], DEFAULT_MEMORY_LIMIT) else {
        return Ok(());
    };
    let wanted = expectations(ran.outputs, "program", ExpectationSource::Simulated { exact: ran.exact });
    let original_time = duration(&plans);
    for (stmt, op) in synchronisations(program) {
        if !matches!(op.def().class, OpClass::Stream | OpClass::Wait) || op == Op::SetCurrentStream {
            continue;
        }
        let text = grammar::print(&without_statement(program, stmt));
        let Some(before) = plans_of_text(&text).map(|it| faults(&it)).filter(|it| !it.is_empty()) else {
            continue;
        };
        // Edits do not repair deadlocks.
        if before
            .iter()
            .all(|it| !it.starts_with("E0701") && !it.starts_with("E0702") && !it.starts_with("E0703"))
        {
            continue;
        }
        count.racy += 1;
        let place =
            format!("{name} without {} (line {})", op.name(), lines.line(program.stmt_span(stmt).start));
        let planner = |program: &mut Program, lines: &LineIndex| {
            hir_plan::build(program, lines, hir_plan::smallest_world(program)).ok()
        };
        let fixed = fix(&text, 0, Checks::DEFAULT, &planner);
        if by_race {
            let fixed = fix(&text, 0, RACE, &planner);
            let plans =
                plans_of_text(&fixed.text).ok_or_else(|| format!("{place}: the edited text is rejected"))?;
            if check(&plans, RACE).findings.is_empty() {
                check_results(&plans, &inputs, &wanted)
                    .map_err(|it| format!("{place}, --check=race: {it}\n{}", fixed.text))?;
            }
        }
        let plans =
            plans_of_text(&fixed.text).ok_or_else(|| format!("{place}: the edited text is rejected"))?;
        match faults(&plans).first() {
            None => {
                check_results(&plans, &inputs, &wanted)
                    .map_err(|it| format!("{place}: {it}\n{}", fixed.text))?;
                count.fixed += 1;
                count.edits += fixed.edits.len();
                let times = original_time.zip(duration(&plans));
                if let Some((wanted, found)) = times.filter(|(wanted, found)| *found > wanted * 1.001) {
                    count.slower.0 += 1;
                    let percent = 100.0 * (found / wanted - 1.0);
                    let _ = writeln!(count.slower.1, "{place}: {percent:.0} % longer");
                }
            }
            Some(fault) => _ = writeln!(count.unfixed, "{place}: {fault}"),
        }
    }
    Ok(())
}

/// Returns the estimated time of a program in microseconds, if it can be estimated.
fn duration(plans: &World) -> Option<f64> {
    Estimator { machine: &Machine::default(), ..Estimator::default() }
        .timeline(plans, None)
        .ok()
        .map(|it| it.end())
}

/// Returns the plans of a text, or `None` if the text is not a valid program or cannot be planned.
fn plans_of_text(text: &str) -> Option<World> {
    let (mut programs, diagnostics) = grammar::read(text);
    let program =
        programs.pop().filter(|it| !has_errors(&diagnostics) && !has_errors(&grammar::verify(it)))?;
    hir_plan::build(&program, &LineIndex::new(text), hir_plan::smallest_world(&program)).ok()
}

/// Returns the checker's findings without warnings.
fn faults(plans: &World) -> Vec<String> {
    let found = check(plans, Checks::DEFAULT).findings;
    let found = found.iter().map(|it| it.diagnostic(plans, &[]).1);
    let faults = found.filter(|it| it.severity() == Severity::Error);
    faults.map(|it| format!("{} {}", it.code.text(), it.message)).collect()
}

/// Checks that the plans give the expected outputs under several schedules.
fn check_results(plans: &World, inputs: &[Vec<Arc<Data>>], wanted: &[Expectation]) -> Result<(), String> {
    let schedules = [Schedule::Program, Schedule::Adversarial].into_iter().chain((0..4).map(Schedule::Seed));
    schedules.into_iter().try_for_each(|it| {
        match run_trial(plans, inputs, &it, wanted, DEFAULT_MEMORY_LIMIT) {
            Ok(_) => Ok(()),
            Err(mishap) => Err(format!("{}: {}", mishap.schedule, mishap.message)),
        }
    })
}
