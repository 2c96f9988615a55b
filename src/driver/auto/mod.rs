//! auto: chooses how to communicate by the estimated times of a machine.
//!
//! The pass lowers the program in every way that the choices below allow, estimates the time of each result, and keeps one in which
//! the checker finds no fault: the way that splits least among those within the error of the estimates.
//!
//! | communication | choices |
//! |---|---|
//! | all-gather | whole; a ring of gets; a ring of puts |
//! | reduce-scatter | whole; a ring |
//! | all-reduce | whole; 2 or 4 chunks on streams in turn; 2, 4 or 8 chunks, or those of 8, 5, 2 and 1 sixteenths, with all products on one stream |
//! | transfer to another mesh | whole; 4 chunks |
//! | all that are left | the algorithms of `select-algorithms`; those and copy engines for all-reduces above 8 MiB; NCCL |
//! | all | the pipelines `@lower` and `@overlap` as they are |
//!
//! With a file of several hosts, NCCL by `hierarchical-collectives` is a further choice, and ways in which a rank accesses the memory of
//! another host are left out: only NCCL sends data between hosts.
//!
//! With algorithms that are not NCCL's, `fuse-collective-epilogue` comes before `select-algorithms`.
//!
//! First, a choice applies to all communications of its kind; kinds that the program does not have are left out. The pass
//! splits into more pieces only if this gains more than the typical error of an estimate (the median of the machine's file, at least 1%).
//! Of ways with as many pieces whose estimates differ by less than 1%, it takes the first one. Then it tries all choices for each
//! communication alone, in the order of the program, with what is chosen for the others, twice. It takes one that gains more than
//! that error divided by the number of communications; if it does not split more, more than 1% divided by this number. At last, it takes
//! `@lower` if that is faster, and `@overlap{}` if that gains more than the error. The result does not depend on anything but the program,
//! the options and the file of the machine.
//!
//! A remark states the passes to write instead of `@auto`. Its notes state, for each communication, the best three choices with the estimated
//! times of the whole program; for each of them, the other choices are the best ones at the time of the trial.
//!
//! The pass does not execute the program: `--verify-each=semantic` and `--expect=unsharded` compare results.

mod choices;
mod communications;
mod each;
pub mod edits;
mod fastest;
pub mod gains;
pub mod machine;

use std::{cell::LazyCell, str::FromStr, sync::OnceLock};

use grammar::{
    Code, Diagnostic, Program, Source,
    algorithm_table::{self, DEFAULT_RULES},
    count_text,
};
use hir_check::Checks;
use hir_ir::search::Budget;
use hir_plan::{World, timeline::shipped};
use passes::{Arguments, Catalog, Change, OptionKind, OptionSpec, Pass, PassCall, Pipeline, Remarks};
use rustc_hash::FxHashMap;

use choices::{Choice, Choices, Strategy, combinations};
use communications::{Communication, communications, rewrite};
use each::{Tried, improved};
use machine::{MachineFlag, estimate_on};

/// The pass.
pub static PASS: Pass = Pass::new("auto", include_str!("mod.rs"), run)
    .about("choose how to communicate by the estimated times of a machine")
    .with_options(&[
        OptionSpec::new("machine", OptionKind::Text, Some(shipped::DEFAULT))
            .about("the machine, as in `--machine`"),
        OptionSpec::new("budget", OptionKind::Count, Some("100"))
            .about("largest number of estimates; beyond it, combinations that split most are not tried"),
    ]);

/// The pipeline of the pass alone.
pub static PIPELINE: Pipeline = Pipeline {
    name: "@auto",
    description: "lower and overlap communications in the way that splits least among those within the error of the estimates of a machine",
    passes: "auto",
};

/// The passes of the tool that this process is, beside those of hir.
static FURTHER: OnceLock<Vec<&'static Pass>> = OnceLock::new();

/// Makes all tools of this process know further passes. Only the first call has an effect.
pub fn add_passes(passes: Vec<&'static Pass>) {
    let _ = FURTHER.set(passes);
}

/// All passes and pipelines: those of the package `passes`, these, and those of the tool that this process is.
pub fn catalog() -> Catalog {
    let mut all = Catalog::default();
    all.passes.extend([&PASS, &fastest::PASS]);
    all.passes.extend(FURTHER.get().into_iter().flatten());
    all.pipelines.push(PIPELINE);
    all.decisions.push(fastest::OVERLAP);
    all
}

/// Makes each `auto` and `fastest` whose option has the default value estimate with the machine of `--machine`, and each
/// `select-algorithms` use the rules for `gpu`, which returns the name of the GPU of this process; without it, for that of the machine.
/// Returns false if there is a machine, but no such pass.
pub fn use_machine(
    calls: &mut [PassCall],
    machine: Option<&MachineFlag>,
    gpu: impl FnOnce() -> Option<String>,
) -> bool {
    // Few programs select algorithms, and the driver takes long to start.
    let gpu = LazyCell::new(|| {
        let name = gpu().or_else(|| machine.map(|it| it.machine.gpu.clone()))?;
        // A nominal machine and an emulated GPU have other names.
        let device = || algorithm_table::device(&name).map_or_else(|| name.clone(), str::to_owned);
        name.starts_with("NVIDIA ").then(device)
    });
    let mut is_used = machine.is_none();
    for PassCall { pass, arguments, .. } in calls {
        let (option, default, value) = match pass.name {
            "auto" | "fastest" => ("machine", shipped::DEFAULT, machine.map(|it| it.name.as_str())),
            "select-algorithms" => ("table", DEFAULT_RULES, gpu.as_deref()),
            _ => continue,
        };
        is_used = true;
        if let Some(value) = value.filter(|_| arguments.text(option) == Some(default)) {
            arguments.set(option, value);
        }
    }
    is_used
}

/// One way to lower a program.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The passes.
    pub passes: String,
    /// The estimated microseconds of the program.
    pub time: f64,
    /// What was chosen.
    choices: Choices,
    /// The number of the lowered program: different choices may give the same one.
    program: usize,
}

/// Estimates that differ by less are equal, as a part of the shorter one, also if the errors of estimates are smaller or not known.
const EQUAL: f64 = 0.01;
/// Number of choices that a note states.
const STATED: usize = 3;
/// Number of communications, or of groups that are alike, that have a note.
const LISTED: usize = 12;

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let communications = communications(program)?;
    let found = candidates(program, arguments, &communications)?;
    let header = program.spans.header;
    let mut faults = Vec::new();
    for (at, it) in found.candidates.iter().enumerate() {
        let Some((rewritten, world)) = lowered(program, &it.passes) else { continue };
        if let Some(fault) = first_fault(&world, Checks::ALL_FAULTS) {
            faults.push(format!("`{}`: {fault}", it.passes));
            continue;
        }
        // Of many communications, most have the same remark, which the first one gets.
        let mut said: Vec<(&Communication, String, usize)> = Vec::new();
        for (communication, tried) in communications.iter().zip(&found.tried_for) {
            let text = stated(communication, &found.candidates, it, tried);
            let is_same =
                |it: &&mut (&Communication, String, usize)| it.0.name == communication.name && it.1 == text;
            match said.iter_mut().find(is_same) {
                Some(it) => it.2 += 1,
                None => said.push((communication, text, 1)),
            }
        }
        let row = |(first, text, count): &(&Communication, String, usize)| {
            let of = first.tensor.as_ref().map_or(String::new(), |it| format!(" of `{it}`"));
            let others = match count {
                1 => String::new(),
                _ => format!(" and {} of its kind", count_text(count - 1, "other")),
            };
            format!("{}{of}{others}: {text}", first.name)
        };
        let mut rows: Vec<String> = said.iter().take(LISTED).map(row).collect();
        if let Some(more) = said.get(LISTED..).filter(|it| !it.is_empty()) {
            let count: usize = more.iter().map(|it| it.2).sum();
            rows.push(format!(
                "{}; `hir overlap` sorts all by their gain",
                count_text(count, "other communication")
            ));
        }
        for fault in faults {
            remarks.note(
                header,
                format!("`auto` does not use what the checker refuses: {fault}"),
                "this program",
            );
        }
        if let Some(fault) = first_fault(&world, Checks { repeat: true, ..Checks::ALL_FAULTS }) {
            let message = format!(
                "runs of what `auto` takes need a barrier of all ranks between them; with none, as in replays of a captured graph: {fault}"
            );
            remarks.note(header, message, "this program");
        }
        if found.unreachable > 0 {
            let message = format!(
                "`auto` leaves out {}: a rank would access the memory of another host",
                count_text(found.unreachable, "way")
            );
            remarks.note(header, message, format!("the hosts are those of `{}`", found.machine));
        }
        let (tried, error) = (found.budget.spent(), found.error);
        let budget = match found.budget.left_out() {
            0 => String::new(),
            left_out => format!(" (`auto.budget` leaves out {left_out})"),
        };
        let message = format!(
            "`auto` takes {:.1} µs (estimated){}: --passes '{}'",
            it.time,
            compared(it, &found.candidates[at..], error, (tried, &budget)),
            it.passes
        );
        let label = format!("the machine is `{}`", found.machine);
        let remark = Diagnostic::new(Code::PassRemark, header, message, label);
        remarks.note_of(rows.into_iter().fold(remark, Diagnostic::note));
        *program = rewritten;
        return Ok(Change::Changed);
    }
    // What no pipeline mends, such as an extent without a value, is reported as for a program without passes.
    if faults.is_empty()
        && let Err(all) = planned(program)
        && let Some(first) = all.into_iter().next()
    {
        return Err(first);
    }
    let message = match faults.first() {
        Some(fault) => {
            format!("`auto` finds no way in which the checker finds no fault; the first is {fault}")
        }
        None => "`auto` finds no way to lower the program that can be planned".to_owned(),
    };
    let it = Diagnostic::new(Code::NotRewritten, header, message, "this program");
    Err(it.help("`--passes @lower` reports why the program cannot be lowered, and `--check` its faults"))
}

/// Returns what a remark says about the way that is taken, compared with those that the checker has not refused: it has the least
/// time, or a faster one splits more. `error` is the error of estimates, `tried` the number of ways, and `left_out` the text about the others.
fn compared(taken: &Candidate, others: &[Candidate], error: f64, (tried, left_out): (usize, &str)) -> String {
    let least = others.iter().map(|it| it.time).fold(taken.time, f64::min);
    if taken.time <= least * (1.0 + EQUAL) {
        return match tried {
            1 => format!(", the only way that is tried{left_out}"),
            _ => format!(", the fastest of {tried} ways{left_out}"),
        };
    }
    format!(
        "; another way takes {least:.1} µs, but the gain is within the error of estimates ({:.1}%), of {tried} ways{left_out}",
        error * 100.0
    )
}

/// Returns the first fault that the checker finds in a program, or why it cannot say that there is none.
fn first_fault(world: &World, checks: Checks) -> Option<String> {
    let report = hir_check::check(world, checks);
    let errors = report.findings.iter().map(|it| it.diagnostic(world, &[]).1).filter(Diagnostic::is_error);
    errors.map(|it| it.message).chain(report.not_checked.iter().map(ToString::to_string)).next()
}

/// Returns what the remark on a communication says of it: the strategy that is taken, and the best others, which were tried for this
/// communication, or for all of its kind.
fn stated(communication: &Communication, all: &[Candidate], taken: &Candidate, tried: &Tried) -> String {
    if tried.is_without_effect() {
        return "no choice for it alone changes the program, as for one in the loop of another communication"
            .to_owned();
    }
    let of_candidate = |it: &Candidate| Some((it.choices.of(communication)?.name(), it.time));
    let mut others: Vec<(String, f64)> = all.iter().filter_map(of_candidate).collect();
    others.extend(tried.times.iter().map(|it| (it.0.name(), it.1)));
    others.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut best: Vec<(String, f64)> = of_candidate(taken).into_iter().collect();
    for it in others {
        if best.iter().all(|known| known.0 != it.0) {
            best.push(it);
        }
    }
    let text = |(name, time): &(String, f64)| format!("{name} {time:.1} µs");
    let texts: Vec<String> = best.iter().take(STATED).map(text).collect();
    format!("{} (of the program, estimated)", texts.join("; "))
}

/// The candidates of a program.
struct Found {
    /// In the order in which they are preferred.
    candidates: Vec<Candidate>,
    /// For each communication, what was tried for it alone.
    tried_for: Vec<Tried>,
    /// How many ways were tried, and how many the budget leaves out.
    budget: Budget,
    /// The number of combinations that the hosts of the machine cannot run.
    unreachable: usize,
    /// The typical error of an estimate, relative to the time: a gain within it is not known to be one.
    error: f64,
    /// The name of the machine.
    machine: String,
}

/// Returns the passes of every way to lower a program on one host; none if it cannot be lowered.
pub fn all_ways(program: &Program) -> Vec<String> {
    let communications = communications(program).unwrap_or_default();
    let has = |it: &Choice| is_choice(it, &communications) && !it.by_host;
    combinations(has).iter().map(|it| it.passes(0, algorithm_table::DEFAULT)).collect()
}

/// Returns whether a choice applies to a program with these communications.
fn is_choice(it: &Choice, communications: &[Communication]) -> bool {
    it.is_of_all() || communications.iter().any(|communication| it.applies_to(communication))
}

/// Returns the ways to lower a program, the preferred one first.
///
/// # Errors
/// There is no such machine, or the program cannot be lowered.
pub fn ways(program: &Program, arguments: &Arguments) -> Result<Vec<Candidate>, Diagnostic> {
    candidates(program, arguments, &communications(program)?).map(|it| it.candidates)
}

fn candidates(
    program: &Program,
    arguments: &Arguments,
    communications: &[Communication],
) -> Result<Found, Diagnostic> {
    let name = arguments.text("machine").unwrap_or(shipped::DEFAULT);
    let machine = MachineFlag::from_str(name)
        .map_err(|why| arguments.error("machine", why.to_string(), "no table of a machine"))?;
    let budget = usize::try_from(arguments.count("budget").unwrap_or(100)).unwrap_or(usize::MAX);
    if budget == 0 {
        return Err(arguments.error("budget", "`budget=0` leaves out all ways", "expected 1 or more"));
    }
    let hosts = machine.machine.hosts.as_ref();
    let has = |it: &Choice| is_choice(it, communications) && (!it.by_host || hosts.is_some());
    let per_host = hosts.map_or(0, |it| it.gpus_per_host);
    let rules = algorithm_table::device(&machine.machine.gpu).unwrap_or(algorithm_table::DEFAULT);
    let (mut unreachable, mut budget) = (0, Budget::new(budget));
    // What was estimated, by the text of the lowered program: its number, and its time.
    let mut known: FxHashMap<String, (usize, f64)> = FxHashMap::default();
    let mut estimate = |choices: Choices| {
        if choices.pipeline.is_none() && !budget.admits(1) {
            return None;
        }
        let passes = choices.passes(per_host, rules);
        let (rewritten, world) = lowered(program, &passes)?;
        if !machine.can_run(&world) {
            unreachable += 1;
            return None;
        }
        let text = grammar::print(&rewritten);
        if let Some((program, time)) = known.get(&text) {
            return Some((Candidate { passes, time: *time, choices, program: *program }, true));
        }
        let time = time_of(&world, &machine)?;
        let program = known.len();
        known.insert(text, (program, time));
        Some((Candidate { passes, time, choices, program }, false))
    };
    // Of choices that give the same program, the first ones split least.
    let of_kinds = combinations(has).into_iter().filter_map(&mut estimate);
    let candidates: Vec<Candidate> = of_kinds.filter(|it| !it.1).map(|it| it.0).collect();
    let error = machine.machine.typical_error().unwrap_or(0.0).max(EQUAL);
    let mut candidates = in_order_of_preference(candidates, error);
    let mut tried_for = vec![Tried::default(); communications.len()];
    if let Some(best) = candidates.first() {
        let available = |it: &Choice| has(it) && !it.by_host;
        let with = |now: &Candidate, tensor: &str, strategy: Strategy| {
            estimate(now.choices.with(tensor, strategy)).map(|it| it.0)
        };
        let (better, tried) = improved(best, communications, error, available, with);
        tried_for = tried;
        if better.choices != best.choices {
            candidates.insert(0, better);
        }
    }
    for (pipeline, gain) in fastest::WAYS.into_iter().zip([error, 0.0]).rev() {
        let found = estimate(Choices { pipeline: Some(pipeline), ..Choices::default() });
        let Some((it, false)) = found else { continue };
        let is_taken = candidates.first().is_none_or(|taken| it.time < taken.time * (1.0 - gain));
        let of_time = candidates.iter().skip(1).position(|other| it.time < other.time);
        let at = if is_taken { 0 } else { of_time.map_or(candidates.len(), |it| it + 1) };
        candidates.insert(at, it);
    }
    Ok(Found { candidates, tried_for, budget, unreachable, error, machine: machine.name })
}

/// Orders candidates, those that split least first, by preference. `error` is the typical error of an estimate, relative to the time.
/// A gain within this error is not known to be one, so it is no reason to split more.
fn in_order_of_preference(mut candidates: Vec<Candidate>, error: f64) -> Vec<Candidate> {
    let pieces = |it: &Candidate| it.choices.pieces();
    let least =
        |all: &mut dyn Iterator<Item = &Candidate>| all.map(|it| it.time).fold(f64::INFINITY, f64::min);
    let limit = least(&mut candidates.iter()) * (1.0 + error.max(EQUAL));
    let fewest = candidates.iter().filter(|it| it.time <= limit).map(pieces).min();
    let limit = least(&mut candidates.iter().filter(|it| Some(pieces(it)) == fewest)) * (1.0 + EQUAL);
    let first = candidates.iter().position(|it| Some(pieces(it)) == fewest && it.time <= limit);
    let taken = first.map(|it| candidates.remove(it));
    candidates.sort_by(|a, b| a.time.total_cmp(&b.time));
    candidates.splice(0..0, taken);
    candidates
}

/// Returns the program after some passes with its plans; `None` if it cannot be rewritten or planned.
fn lowered(program: &Program, passes: &str) -> Option<(Program, World)> {
    let mut program = program.clone();
    rewrite(&mut program, passes).ok()?;
    let world = planned(&program).ok()?;
    Some((program, world))
}

/// Returns the estimated microseconds of a world; `None` if it may deadlock, or has too many streams.
fn time_of(world: &World, machine: &MachineFlag) -> Option<f64> {
    let timeline = if world.deadlock().is_some() { None } else { estimate_on(&machine.machine, world).ok() };
    timeline.map(|it| it.end())
}

fn planned(program: &Program) -> Result<World, Vec<Diagnostic>> {
    let lines = Source::new(String::new(), String::new()).lines;
    hir_plan::build(program, &lines, hir_plan::smallest_world(program))
}

#[cfg(test)]
mod tests {
    use grammar::CommunicationType;

    use super::{choices::CHOICES, *};

    #[test]
    fn the_pass_is_in_the_catalog() {
        assert!(catalog().parse("@auto{auto.budget=3}").is_ok());
    }

    #[test]
    fn a_gain_within_the_error_is_no_reason_to_split() {
        let with = |split: &'static str, algorithm: &'static str, time| {
            let choices = CHOICES.iter().filter(|it| {
                it.name == split && it.kind == Some(CommunicationType::Allgather) || it.name == algorithm
            });
            let choices = Choices { of_kinds: choices.copied().collect(), ..Choices::default() };
            Candidate { passes: String::new(), time, choices, program: 0 }
        };
        let taken = |error| {
            let all = vec![
                with("whole", "kernels", 103.0),
                with("whole", "NCCL", 101.5),
                with("ring of gets", "NCCL", 97.0),
            ];
            let first = in_order_of_preference(all, error).into_iter().next();
            first.map(|it| it.choices.of_kinds.iter().map(|it| it.name).collect::<Vec<_>>())
        };
        assert_eq!(taken(0.0), Some(vec!["ring of gets", "NCCL"]));
        assert_eq!(taken(0.05), Some(vec!["whole", "NCCL"]));
    }

    #[test]
    fn a_remark_states_the_gain_that_is_not_taken() {
        let way = |time| Candidate { passes: String::new(), time, choices: Choices::default(), program: 0 };
        let text = |time| compared(&way(100.0), &[way(100.0), way(time)], 0.045, (2, ""));
        assert_eq!(text(99.5), ", the fastest of 2 ways");
        assert_eq!(
            text(97.0),
            "; another way takes 97.0 µs, but the gain is within the error of estimates (4.5%), of 2 ways"
        );
    }
}
