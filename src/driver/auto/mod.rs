//! auto: chooses how to communicate by the estimated times of a machine.
//!
//! The pass lowers the program in every way that the choices below allow, estimates the time of each result, and keeps one in which
//! the checker finds no fault: the way that splits least among those within the error of the estimates.
//!
//! | communication | choices |
//! |---|---|
//! | all-gather | whole; a ring of gets; a ring of puts |
//! | reduce-scatter | whole; a ring |
//! | all-reduce | whole; 2, 4 or 8 chunks; chunks of 8, 5, 2 and 1 sixteenths |
//! | transfer to another mesh | whole; 4 chunks |
//! | all that are left | the algorithms of `select-algorithms`; those and copy engines for all-reduces above 8 MiB; NCCL |
//!
//! With a file of several hosts, NCCL by `hierarchical-collectives` is a further choice, and ways in which a rank accesses the memory of
//! another host are left out: only NCCL sends data between hosts.
//!
//! With algorithms that are not NCCL's, `fuse-collective-epilogue` comes before `select-algorithms`.
//!
//! A choice applies to all communications of its kind, and kinds that the program does not have are left out. The pass
//! splits more only if this gains more than the typical error of an estimate (the median of the machine's file, at least 1%). Of ways that
//! split the same and whose estimates differ by less than 1%, it takes the first one. The result does not depend on anything but the
//! program, the options and the file of the machine.
//!
//! A remark for each communication states the best three choices with the estimated times of the whole program; for each of
//! them, the other choices are the best ones. The last remark states the passes to write instead of `@auto`.
//!
//! The pass does not execute the program: `--verify-each=semantic` and `--expect=unsharded` compare results.

pub mod edits;
pub mod machine;

use std::str::FromStr;

use grammar::{
    attr,
    codes::Code,
    count_text,
    diagnostic::Diagnostic,
    ir::{Program, Stmt},
    ops::Op,
    source::Source,
    span::Span,
    words::CommunicationType,
};
use hir_check::Checks;
use hir_plan::World;
use passes::{
    Arguments, Catalog, Change, OptionKind, OptionSpec, Pass, PassCall, Pipeline, Remarks, Settings, Verify,
    pass::module_docs,
};

use machine::{MachineFlag, estimate_on};

/// The pass.
pub static PASS: Pass = Pass {
    name: "auto",
    description: "choose how to communicate by the estimated times of a machine",
    docs: module_docs(include_str!("mod.rs")),
    options: &[
        OptionSpec {
            name: "machine",
            description: "the machine, as in `--machine`",
            kind: OptionKind::Text,
            default: Some(machine::DEFAULT),
        },
        OptionSpec {
            name: "budget",
            description: "largest number of estimates; beyond it, combinations that split most are not tried",
            kind: OptionKind::Count,
            default: Some("100"),
        },
    ],
    for_one_rank: false,
    run,
};

/// The pipeline of the pass alone.
pub static PIPELINE: Pipeline = Pipeline {
    name: "@auto",
    description: "lower and overlap communications in the way that splits least among those within the error of the estimates of a machine",
    passes: "auto",
};

/// All passes and pipelines: those of the package `passes`, and these.
pub fn catalog() -> Catalog {
    let mut all = Catalog::default();
    all.passes.push(&PASS);
    all.pipelines.push(PIPELINE);
    all
}

/// Makes each `auto` whose option has the default value estimate with the machine of `--machine`.
pub fn use_machine(calls: &mut [PassCall], machine: Option<&MachineFlag>) {
    let Some(machine) = machine else { return };
    for call in calls.iter_mut().filter(|it| it.pass.name == PASS.name) {
        if call.arguments.text("machine") == Some(machine::DEFAULT) {
            call.arguments.set("machine", &machine.name);
        }
    }
}

/// A kind of communication for which there are choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allgather,
    ReduceScatter,
    Allreduce,
    Transfer,
}

/// A choice for a kind, or that of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Choice {
    /// `None`: the algorithms.
    kind: Option<Kind>,
    /// The name in remarks.
    name: &'static str,
    /// Options of `overlap`, or of `select-algorithms`; `None` leaves the pass out.
    options: Option<&'static str>,
    /// Whether `hierarchical-collectives` divides collectives that span hosts.
    by_host: bool,
}

/// The choice of copy engines for all-reduces.
const COPY_ENGINES: &str = "copy engines";

/// The choices. Of each kind, the first one splits least.
const CHOICES: &[Choice] = &[
    choice(Kind::Allgather, "whole", "allgather=whole"),
    choice(Kind::Allgather, "ring of gets", "allgather=p2p-ring,backend=cuda"),
    choice(Kind::Allgather, "ring of puts", "allgather=p2p-ring,backend=cuda,protocol=put"),
    choice(Kind::ReduceScatter, "whole", "reduce-scatter=whole"),
    choice(Kind::ReduceScatter, "ring", "reduce-scatter=p2p-ring,backend=cuda"),
    choice(Kind::Allreduce, "whole", "allreduce=whole"),
    choice(Kind::Allreduce, "2 chunks", "style=shard,allocate=before,count=2"),
    choice(Kind::Allreduce, "4 chunks", "style=shard,allocate=before,count=4"),
    choice(Kind::Allreduce, "8 chunks", "style=shard,allocate=before,count=8"),
    choice(Kind::Allreduce, "chunks 8:5:2:1", "style=shard,allocate=before,ratio=8,5,2,1"),
    choice(Kind::Transfer, "whole", "transfer=whole"),
    choice(Kind::Transfer, "4 chunks", "transfer=chunks,style=shard"),
    Choice { kind: None, name: "kernels", options: Some(""), by_host: false },
    Choice {
        kind: None,
        name: COPY_ENGINES,
        options: Some("{table=Allreduce/*:8M=two-shot;Allreduce/*=two-shot-copy}"),
        by_host: false,
    },
    Choice { kind: None, name: "NCCL", options: None, by_host: false },
    Choice { kind: None, name: "NCCL within and across hosts", options: None, by_host: true },
];

const fn choice(kind: Kind, name: &'static str, options: &'static str) -> Choice {
    Choice { kind: Some(kind), name, options: Some(options), by_host: false }
}

/// One way to lower a program.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The passes.
    pub passes: String,
    /// The estimated microseconds of the program.
    pub time: f64,
    /// A choice for each kind of the program, and one of the algorithms.
    choices: Vec<Choice>,
}

/// Estimates that differ by less are equal, as a part of the shorter one, also if the errors of estimates are smaller or not known.
const EQUAL: f64 = 0.01;
/// Number of choices that a remark states.
const STATED: usize = 3;

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
        for (span, kind, name) in &communications {
            remarks.note(*span, stated(name, &found.candidates, it, *kind), "this communication");
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
        let Found { tried, all, error, .. } = found;
        let budget = if tried < all { format!(" of {all} (`auto.budget`)") } else { String::new() };
        let ways = format!("{tried} ways{budget}");
        remarks.note(
            header,
            format!(
                "`auto` takes {:.1} µs (estimated){}: --passes '{}'",
                it.time,
                compared(it, &found.candidates[at..], error, &ways),
                it.passes
            ),
            format!("the machine is `{}`", found.machine),
        );
        *program = rewritten;
        return Ok(Change::Changed);
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
/// time, or a faster one splits more. `error` is the error of estimates, and `ways` counts all ways.
fn compared(taken: &Candidate, others: &[Candidate], error: f64, ways: &str) -> String {
    let least = others.iter().map(|it| it.time).fold(taken.time, f64::min);
    if taken.time <= least * (1.0 + EQUAL) {
        return format!(", the least of {ways}");
    }
    format!(
        "; another way takes {least:.1} µs, but the gain is within the error of estimates ({:.1}%), of {ways}",
        error * 100.0
    )
}

/// Returns the first fault that the checker finds in a program, or why it cannot say that there is none.
fn first_fault(world: &World, checks: Checks) -> Option<String> {
    let report = hir_check::check(world, checks);
    let errors = report.findings.iter().map(|it| it.diagnostic(world, &[]).1).filter(Diagnostic::is_error);
    errors.map(|it| it.message).chain(report.not_checked.clone()).next()
}

/// Returns what the remark on a communication says: the best choices of its kind.
fn stated(name: &str, all: &[Candidate], taken: &Candidate, kind: Option<Kind>) -> String {
    // Rings have no algorithm.
    let of_kind = |it: &Candidate| {
        let is_ring =
            it.choices.iter().any(|it| it.kind.is_some() && it.kind == kind && it.name.starts_with("ring"));
        let choices = it.choices.iter().filter(|it| it.kind == kind || it.kind.is_none() && !is_ring);
        choices.copied().collect::<Vec<_>>()
    };
    let mut best: Vec<(Vec<Choice>, f64)> = vec![(of_kind(taken), taken.time)];
    // Candidates are in the order of their times.
    for it in all {
        let choices = of_kind(it);
        if best.iter().all(|known| known.0 != choices) {
            best.push((choices, it.time));
        }
    }
    let text = |(choices, time): &(Vec<Choice>, f64)| {
        let names: Vec<&str> = choices.iter().map(|it| it.name).collect();
        format!("{} {time:.1} µs", names.join(" by "))
    };
    let texts: Vec<String> = best.iter().take(STATED).map(text).collect();
    format!("`auto` for {name}: {} (of the program, estimated)", texts.join("; "))
}

/// The candidates of a program.
struct Found {
    /// In the order in which they are preferred.
    candidates: Vec<Candidate>,
    /// The number of combinations that were tried, and of all.
    tried: usize,
    all: usize,
    /// The number of combinations that the hosts of the machine cannot run.
    unreachable: usize,
    /// The typical error of an estimate, relative to the time: a gain within it is not known to be one.
    error: f64,
    /// The name of the machine.
    machine: String,
}

/// Returns the passes of every way to lower a program on one host; none if it cannot be lowered.
pub fn all_ways(program: &Program) -> Vec<String> {
    let kinds: Vec<Option<Kind>> =
        communications(program).unwrap_or_default().into_iter().map(|it| it.1).collect();
    combinations(|it| is_choice(it, &kinds) && !it.by_host).iter().map(|it| passes_of(it, 0)).collect()
}

/// Returns whether a choice applies to a program with communications of these kinds.
fn is_choice(it: &Choice, kinds: &[Option<Kind>]) -> bool {
    match it.kind {
        Some(_) => kinds.contains(&it.kind),
        None => it.name != COPY_ENGINES || kinds.contains(&Some(Kind::Allreduce)),
    }
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
    let name = arguments.text("machine").unwrap_or(machine::DEFAULT);
    let machine = MachineFlag::from_str(name)
        .map_err(|why| arguments.error("machine", why.to_string(), "no table of a machine"))?;
    let budget = usize::try_from(arguments.count("budget").unwrap_or(100)).unwrap_or(usize::MAX).max(1);
    let kinds: Vec<Option<Kind>> = communications.iter().map(|it| it.1).collect();
    let has = |it: &Choice| is_choice(it, &kinds) && (!it.by_host || machine.machine.hosts.is_some());
    let per_host = machine.machine.hosts.as_ref().map_or(0, |it| it.gpus_per_host);
    let mut unreachable = 0;
    let combinations = combinations(has);
    let all = combinations.len();
    let mut candidates: Vec<(String, Candidate)> = Vec::new();
    for choices in combinations.into_iter().take(budget) {
        let passes = passes_of(&choices, per_host);
        let Some((rewritten, world)) = lowered(program, &passes) else { continue };
        if !machine.can_run(&world) {
            unreachable += 1;
            continue;
        }
        // Different choices may give the same program; the first one splits least.
        let text = grammar::print(&rewritten);
        if candidates.iter().any(|it| it.0 == text) || world.deadlock().is_some() {
            continue;
        }
        if let Ok(timeline) = estimate_on(&machine.machine, &world) {
            candidates.push((text, Candidate { passes, time: timeline.end(), choices }));
        }
    }
    let candidates: Vec<Candidate> = candidates.into_iter().map(|it| it.1).collect();
    let error = machine.machine.typical_error().unwrap_or(0.0).max(EQUAL);
    let candidates = in_order_of_preference(candidates, error);
    Ok(Found { candidates, tried: all.min(budget), all, unreachable, error, machine: machine.name })
}

/// Orders candidates, those that split least first, by preference. `error` is the typical error of an estimate, relative to the time.
/// A gain within this error is not known to be one, so it is no reason to split more.
fn in_order_of_preference(mut candidates: Vec<Candidate>, error: f64) -> Vec<Candidate> {
    let splits = |it: &Candidate| {
        it.choices.iter().filter(|it| it.kind.is_some()).map(|it| it.name).collect::<Vec<_>>()
    };
    let least =
        |all: &mut dyn Iterator<Item = &Candidate>| all.map(|it| it.time).fold(f64::INFINITY, f64::min);
    let limit = least(&mut candidates.iter()) * (1.0 + error.max(EQUAL));
    let Some(split) = candidates.iter().find(|it| it.time <= limit).map(splits) else { return candidates };
    let limit = least(&mut candidates.iter().filter(|it| splits(it) == split)) * (1.0 + EQUAL);
    let first = candidates.iter().position(|it| splits(it) == split && it.time <= limit);
    let taken = first.map(|it| candidates.remove(it));
    candidates.sort_by(|a, b| a.time.total_cmp(&b.time));
    candidates.splice(0..0, taken);
    candidates
}

/// Returns all combinations of choices, those that split least first.
fn combinations(has: impl Fn(&Choice) -> bool) -> Vec<Vec<Choice>> {
    let kinds =
        [Some(Kind::Allgather), Some(Kind::ReduceScatter), Some(Kind::Allreduce), Some(Kind::Transfer), None];
    let of_kind = |kind| CHOICES.iter().filter(|it| it.kind == kind && has(it)).collect::<Vec<_>>();
    let mut all: Vec<(usize, Vec<Choice>)> = vec![(0, Vec::new())];
    for choices in kinds.map(of_kind).into_iter().filter(|it| !it.is_empty()) {
        let mut longer = Vec::new();
        for (splits, begun) in &all {
            let with = |(at, it): (usize, &&Choice)| (splits + at, [&begun[..], &[**it]].concat());
            longer.extend(choices.iter().enumerate().map(with));
        }
        all = longer;
    }
    all.sort_by_key(|it| it.0);
    all.into_iter().map(|it| it.1).collect()
}

/// Returns the passes of some choices; `per_host` is the number of ranks on each host.
fn passes_of(choices: &[Choice], per_host: usize) -> String {
    let mut overlap: Vec<&str> = Vec::new();
    let mut algorithms = String::new();
    let by_host = if choices.iter().any(|it| it.by_host) {
        format!("hierarchical-collectives{{per-host={per_host}}},")
    } else {
        String::new()
    };
    for it in choices {
        match (it.kind, it.options) {
            (Some(_), Some(options)) => {
                overlap.extend(options.split(','));
            }
            (None, Some(options)) => {
                algorithms = format!("fuse-collective-epilogue,select-algorithms{options},")
            }
            (_, None) => {}
        }
    }
    // Several kinds may state the same option.
    let mut stated: Vec<&str> = Vec::new();
    for it in overlap {
        if !it.contains('=') || !stated.contains(&it) {
            stated.push(it);
        }
    }
    for kind in ["allgather", "reduce-scatter", "allreduce", "transfer"] {
        let is_stated = stated.iter().any(|it| it.split('=').next() == Some(kind));
        let splits = kind == "allreduce"
            && stated.iter().any(|it| it.starts_with("count=") || it.starts_with("ratio="));
        if !is_stated && !splits {
            stated.push(match kind {
                "allgather" => "allgather=whole",
                "reduce-scatter" => "reduce-scatter=whole",
                "allreduce" => "allreduce=whole",
                _ => "transfer=whole",
            });
        }
    }
    format!(
        "propagate-shardings,decompose-resharding,overlap{{{}}},lower-to-communication,{by_host}schedule-communication,{algorithms}\
         assign-streams{{count=auto,communications=auto,dependent=keep}},use-local-shard-in-place,hoist-share-mem-handles,\
         allocate-and-deallocate,remove-redundant-sync,canonicalize,remove-dead-code",
        stated.join(",")
    )
}

/// Returns the program after some passes with its plans; `None` if it cannot be rewritten or planned.
fn lowered(program: &Program, passes: &str) -> Option<(Program, World)> {
    let mut program = program.clone();
    let calls = passes::parse(passes).ok()?;
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    passes::run(&mut program, &calls, settings, &mut |_| {}).ok()?;
    let lines = Source::new(String::new(), String::new()).lines;
    let world = hir_plan::build(&program, &lines, hir_plan::smallest_world(&program)).ok()?;
    Some((program, world))
}

/// The position of a communication, its kind, and its name for remarks. A kind without choices has only algorithms, or none.
type Communication = (Span, Option<Kind>, String);

/// Returns the communications of a program that is lowered without splitting them.
///
/// # Errors
/// The program cannot be lowered.
fn communications(program: &Program) -> Result<Vec<Communication>, Diagnostic> {
    let mut lowered = program.clone();
    let calls = passes::parse("propagate-shardings,decompose-resharding,lower-to-communication")?;
    let settings = Settings { verify: Verify::Off, roundtrip: false };
    passes::run(&mut lowered, &calls, settings, &mut |_| {}).map_err(|failure| {
        let first = failure.error.diagnostics().first().cloned();
        first.unwrap_or_else(|| {
            Diagnostic::new(Code::NotRewritten, program.spans.header, failure.to_string(), "this program")
        })
    })?;
    let mut found = Vec::new();
    for id in lowered.stmts.ids() {
        let Stmt::Op(it) = &lowered.stmts[id] else { continue };
        if it.op != Op::Communication {
            continue;
        }
        let Some(word) = it.get(attr::TYPE) else { continue };
        let kind = match word {
            CommunicationType::Allgather => Some(Kind::Allgather),
            CommunicationType::ReduceScatter => Some(Kind::ReduceScatter),
            CommunicationType::Allreduce => Some(Kind::Allreduce),
            CommunicationType::SendRecv => Some(Kind::Transfer),
            _ => None,
        };
        found.push((lowered.stmt_span(id), kind, word.text().to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_choices_parse() {
        let all = combinations(|_| true);
        assert!(all.len() > 100);
        for choices in all {
            let text = passes_of(&choices, 2);
            assert!(passes::parse(&text).is_ok(), "{text}");
        }
        assert!(catalog().parse("@auto{auto.budget=3}").is_ok());
    }

    #[test]
    fn a_gain_within_the_error_is_no_reason_to_split() {
        let with = |split: &'static str, algorithm: &'static str, time| {
            let choices = CHOICES
                .iter()
                .filter(|it| it.name == split && it.kind == Some(Kind::Allgather) || it.name == algorithm);
            Candidate { passes: String::new(), time, choices: choices.copied().collect() }
        };
        let taken = |error| {
            let all = vec![
                with("whole", "kernels", 103.0),
                with("whole", "NCCL", 101.5),
                with("ring of gets", "NCCL", 97.0),
            ];
            let first = in_order_of_preference(all, error).into_iter().next();
            first.map(|it| it.choices.iter().map(|it| it.name).collect::<Vec<_>>())
        };
        assert_eq!(taken(0.0), Some(vec!["ring of gets", "NCCL"]));
        assert_eq!(taken(0.05), Some(vec!["whole", "NCCL"]));
    }

    #[test]
    fn a_remark_states_the_gain_that_is_not_taken() {
        let way = |time| Candidate { passes: String::new(), time, choices: Vec::new() };
        let text = |time| compared(&way(100.0), &[way(100.0), way(time)], 0.045, "2 ways");
        assert_eq!(text(99.5), ", the least of 2 ways");
        assert_eq!(
            text(97.0),
            "; another way takes 97.0 µs, but the gain is within the error of estimates (4.5%), of 2 ways"
        );
    }

    #[test]
    fn the_first_combination_splits_nothing() {
        let first = combinations(|_| true).first().map(|it| passes_of(it, 0)).unwrap_or_default();
        assert!(
            first.contains("overlap{allgather=whole,reduce-scatter=whole,allreduce=whole,transfer=whole}"),
            "{first}"
        );
    }
}
