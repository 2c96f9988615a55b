//! Wrong programs: plans in which one thing is changed, on one rank and in one iteration, or on all ranks. Each is flagged by the checker,
//! or comes to one result in every order. Nothing is flagged as a race of two statements that no order shows.
//!
//! A mutant that is missed and a false alarm fail the test. The programs are all samples and cases that run on the simulator, and what every pipeline makes of them. A few mutants of each are tried;
//! `HIR_MUTANTS=1000` tries so many of each and prints the table, `HIR_SEED=7` others.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Write as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use hir::{
    check::{Checks, Finding, Orders, Party, StepOrder, check},
    io::{data::Data, generate::InputKind},
    plan::{CollectiveKind, InstKind, Plan, View, sync},
    run::inputs::InputSpec,
    sim::{self, Schedule, SimError},
};
use libtest_mimic::{Failed, Trial};
use passes::PIPELINES;

use crate::{baseline, rng::Rng, shown};

/// Mutants of each program, unless told.
const MUTANTS: usize = 12;
/// Most orders and schedules that a mutant runs under.
const ORDERS: usize = 12;
const SEEDS: u64 = 4;

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// A statement that only orders is left out.
    Delete,
    /// A statement is executed twice.
    Duplicate,
    /// Two statements change places.
    Swap,
    /// A statement runs on another stream.
    Stream,
    /// A send or receive names another peer, a copy another rank.
    Peer,
    /// A collective has another root, on one rank or on all.
    Root,
    /// A statement runs on another communicator.
    Team,
    /// A view begins elsewhere.
    Slice,
    /// A view is shorter.
    Count,
}

const CHANGES: [Change; 9] = [
    Change::Delete,
    Change::Duplicate,
    Change::Swap,
    Change::Stream,
    Change::Peer,
    Change::Root,
    Change::Team,
    Change::Slice,
    Change::Count,
];

/// What became of the mutants of a kind.
#[derive(Clone, Copy, Default)]
struct MutantCounts {
    mutants: usize,
    /// The plans contradict themselves or each other: sizes, kinds, roots.
    refused: usize,
    /// The checker finds a fault.
    flagged: usize,
    /// One result in every order, that of the original.
    equivalent: usize,
    /// One result in every order, another one: another program, and a correct one.
    other: usize,
}

/// The rows of all files.
type Table = Arc<Mutex<[MutantCounts; CHANGES.len()]>>;

/// A trial for the files as they are, one for each pipeline, and the table.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let pipelines = PIPELINES.iter().map(|it| Some(it.name)).filter(|it| *it != Some("@default"));
    let ways: Vec<Option<&str>> = std::iter::once(None).chain(pipelines).collect();
    let number = |name| std::env::var(name).ok().and_then(|it| it.parse::<usize>().ok());
    let (count, seed) = (number("HIR_MUTANTS"), number("HIR_SEED").unwrap_or(0));
    let trial = |way: Option<&'static str>| {
        let cases = cases.to_vec();
        Trial::test(format!("mutants::{}", way.unwrap_or("as_they_are")), move || {
            let table = Table::default();
            for path in &cases {
                for (program, lines) in baseline::programs(path, way)? {
                    let Some(plans) = baseline::plans_if_small(&program, &lines) else { continue };
                    mutants(&plans, count.unwrap_or(MUTANTS), seed, &table)
                        .map_err(|fault| format!("{}: {fault}", shown(path)))?;
                }
            }
            if count.is_some() {
                let text = show(way.unwrap_or("as they are"), &table);
                let _ = writeln!(std::io::stderr(), "{text}");
            }
            Ok::<(), Failed>(())
        })
    };
    ways.into_iter().map(trial).collect()
}

fn show(title: &str, table: &Table) -> String {
    let mut text = format!("{title}: change, mutants, refused, flagged, equivalent, another program\n");
    let rows = table.lock().unwrap_or_else(PoisonError::into_inner);
    for (change, it) in CHANGES.iter().zip(rows.iter()) {
        let _ = writeln!(
            text,
            "{change:?} {} {} {} {} {}",
            it.mutants, it.refused, it.flagged, it.equivalent, it.other
        );
    }
    text
}

/// Tries mutants of a world.
fn mutants(plans: &[Plan], count: usize, seed: usize, table: &Table) -> Result<(), String> {
    let Ok(inputs) = InputSpec::new(InputKind::Exact, 0, Vec::new(), plans).fill(plans) else {
        return Ok(());
    };
    // Mutants of a program that is flagged itself show nothing.
    if !check(plans, Checks::ALL_FAULTS).findings.is_empty() {
        return Ok(());
    }
    let Some(right) = result(plans, &inputs, &Schedule::Program)? else { return Ok(()) };
    let mut dice = Rng(seed as u64 ^ 0x3a7e ^ plans.iter().map(|it| it.code.len() as u64).sum::<u64>());
    let (mut tried, mut left) = (0, 20 * count);
    while tried < count && left > 0 {
        left -= 1;
        let change = dice.choose_cloned(&CHANGES);
        let Some((mutant, what)) = apply_change(plans, change, &mut dice) else { continue };
        tried += 1;
        let mut row = MutantCounts { mutants: 1, ..MutantCounts::default() };
        let fault = |text: &str| format!("{change:?} {what}: {text}");
        match mutant_outcome(&mutant, &inputs).map_err(|it| fault(&it))? {
            MutantOutcome::Refused => row.refused += 1,
            MutantOutcome::Flagged => row.flagged += 1,
            MutantOutcome::Clean(result) if result == right => row.equivalent += 1,
            MutantOutcome::Clean(_) => row.other += 1,
        }
        let mut rows = table.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut rows[change as usize];
        known.mutants += 1;
        known.refused += row.refused;
        known.flagged += row.flagged;
        known.equivalent += row.equivalent;
        known.other += row.other;
    }
    Ok(())
}

/// What is said of a mutant.
enum MutantOutcome {
    Refused,
    Flagged,
    /// Its one result.
    Clean(String),
}

fn mutant_outcome(plans: &[Plan], inputs: &[Vec<Data>]) -> Result<MutantOutcome, String> {
    let matched = sync::CommMatching::from_plans(plans);
    let report = check(plans, Checks::ALL_FAULTS);
    if report.findings.iter().any(|it| matches!(it, Finding::Deadlock(_))) {
        return Ok(MutantOutcome::Flagged);
    }
    let Some(first) = result(plans, inputs, &Schedule::Program)? else { return Ok(MutantOutcome::Refused) };
    let Ok(steps) = StepOrder::of(plans, &matched) else { return Ok(MutantOutcome::Refused) };
    let within = |it: &Party| matches!(it, Party::Inst(_) | Party::Operation(..));
    let is_race = |it: &Finding| match it {
        Finding::Race { race, .. } => {
            race.reused.is_none()
                && race.parties.iter().all(|it| within(&it.0))
                && !race.parties.iter().any(|it| allocates(plans, it.0))
        }
        Finding::Unwritten { .. }
        | Finding::Deadlock(_)
        | Finding::CommunicatorOrder(_)
        | Finding::Excess(_) => false,
    };
    if report.findings.iter().any(is_race) && steps.conflicts.is_empty() {
        return Err("FALSE ALARM: a race, and no steps that conflict".to_owned());
    }
    // The order of communicators makes no result wrong.
    if !report.findings.iter().all(|it| matches!(it, Finding::CommunicatorOrder(_))) {
        return Ok(MutantOutcome::Flagged);
    }
    let mut results = BTreeSet::from([first]);
    let orders = Orders::new(steps, ORDERS).enumerate().map(|(number, steps)| Schedule::Steps {
        name: format!("explore:{number}").into(),
        steps: steps.into(),
    });
    let seeds = (0..SEEDS).map(Schedule::Seed).chain([Schedule::Adversarial]);
    for schedule in orders.chain(seeds) {
        let missed = || format!("MISSED: the checker finds nothing, and {schedule} fails");
        results.insert(result(plans, inputs, &schedule)?.ok_or_else(missed)?);
    }
    match (results.pop_first(), results.len()) {
        (Some(only), 0) => Ok(MutantOutcome::Clean(only)),
        _ => Err("MISSED: the checker finds nothing, and orders give several results".to_owned()),
    }
}

fn allocates(plans: &[Plan], party: Party) -> bool {
    match party {
        Party::Inst(at) => matches!(plans[at.rank].code[at.inst].kind, InstKind::Alloc { .. }),
        Party::Operation(..) | Party::CallerBefore | Party::CallerAfter(_) => false,
    }
}

/// The outputs; `None` where the plans contradict themselves.
fn result(plans: &[Plan], inputs: &[Vec<Data>], schedule: &Schedule) -> Result<Option<String>, String> {
    let run = sim::run(
        plans,
        &sync::CommMatching::from_plans(plans),
        inputs.to_vec(),
        schedule,
        &sim::SimOptions { without_shadows: true, ..sim::SimOptions::default() },
    );
    match run {
        Ok(it) => Ok(Some(format!("{:?}", it.outputs))),
        Err(SimError::Program { .. } | SimError::Unsupported { .. }) => Ok(None),
        // Deadlocks have been looked for.
        Err(fault @ (SimError::Deadlock(_) | SimError::StepNotReady(_) | SimError::Internal(_))) => {
            Err(format!("MISSED: {schedule}: {fault}"))
        }
    }
}

/// Plans with one change, and where it is; `None` where it does not fit.
fn apply_change(plans: &[Plan], change: Change, dice: &mut Rng) -> Option<(Vec<Plan>, String)> {
    let mut plans = plans.to_vec();
    let rank = dice.below(plans.len());
    let world = plans.len();
    let end = plans[rank].code.len().checked_sub(1)?;
    let (inst, what) = {
        let fits =
            |at: &usize| is_applicable(change, &plans[rank].code[*at].kind, plans[rank].streams.len(), world);
        let all: Vec<usize> = (0..end).filter(fits).collect();
        let inst = *all.get(dice.below(all.len()))?;
        (inst, format!("rank {rank}, instruction {inst}: {:?}", plans[rank].code[inst].kind))
    };
    match change {
        Change::Delete => drop(plans[rank].code.remove(inst)),
        Change::Duplicate => {
            let it = plans[rank].code[inst].clone();
            plans[rank].code.insert(inst, it);
        }
        Change::Swap => {
            let other = (inst + 1 + dice.below(4)).min(end.checked_sub(1)?);
            plans[rank].code[inst..=other].rotate_left(1);
        }
        Change::Stream => {
            let streams = plans[rank].streams.len() as u32;
            let it = &mut plans[rank].code[inst];
            it.stream = (it.stream + 1 + dice.below(streams as usize - 1) as u32) % streams;
        }
        Change::Peer => {
            let peer = dice.below(world);
            match &mut plans[rank].code[inst].kind {
                InstKind::Transfer(it) => {
                    let side = dice.below(it.ops.len());
                    it.ops.get_mut(side)?.peer = peer;
                }
                _ => return None,
            }
        }
        Change::Root => {
            let (root, matched) = (dice.below(world), sync::CommMatching::from_plans(&plans));
            let at = sync::InstRef { rank, inst };
            let all = matched.comm(*matched.comms_of(at).first()?).parts.clone();
            let everywhere = dice.below(2) == 0;
            for it in all.iter().filter(|it| everywhere || it.inst_ref == at) {
                let InstKind::Collective(it) = &mut plans[it.inst_ref.rank].code[it.inst_ref.inst].kind
                else {
                    continue;
                };
                if let CollectiveKind::Broadcast { root: it } = &mut it.kind {
                    *it = root;
                }
            }
        }
        Change::Team => {
            let count = plans[rank].communicators.len();
            let other = dice.below(count) as u32;
            match &mut plans[rank].code[inst].kind {
                InstKind::Collective(it) => it.communicator = other,
                InstKind::Transfer(it) => it.communicator = other,
                _ => return None,
            }
        }
        Change::Slice | Change::Count => {
            let lens: Vec<usize> = plans[rank].buffers.iter().map(|it| it.len).collect();
            let view = random_view(&mut plans[rank].code[inst].kind, rank, dice)?;
            if change == Change::Count {
                let dim = view.shape.iter().position(|it| *it > 1)?;
                view.shape[dim] -= 1;
            } else {
                let (first, last) = view.bounds()?;
                let room = lens.get(view.buffer as usize)?.checked_sub(last - first)?;
                view.offset = dice.below(room);
            }
        }
    }
    Some((plans, what))
}

/// Whether a change fits an instruction.
fn is_applicable(change: Change, kind: &InstKind, streams: usize, world: usize) -> bool {
    let orders = matches!(
        kind,
        InstKind::WaitEvent { .. }
            | InstKind::Wait { .. }
            | InstKind::WaitSignal { .. }
            | InstKind::Signal { .. }
            | InstKind::RecordEvent { .. }
            | InstKind::ShareMemHandles { .. }
            | InstKind::Barrier
    );
    let computes = matches!(
        kind,
        InstKind::Copy { .. }
            | InstKind::Fill { .. }
            | InstKind::Gemm(_)
            | InstKind::Map { .. }
            | InstKind::Reduce(_)
            | InstKind::PeerReduce { .. }
    );
    match change {
        Change::Delete => orders,
        // An event is recorded once, a flag raised once.
        Change::Duplicate => {
            computes
                || matches!(
                    kind,
                    InstKind::WaitEvent { .. } | InstKind::Wait { .. } | InstKind::WaitSignal { .. }
                )
        }
        Change::Swap => !matches!(kind, InstKind::Alloc { .. }),
        Change::Stream => {
            streams > 1
                && !matches!(
                    kind,
                    InstKind::Alloc { .. } | InstKind::ShareMemHandles { .. } | InstKind::Barrier
                )
        }
        Change::Peer => world > 1 && matches!(kind, InstKind::Transfer(_)),
        Change::Root => {
            matches!(kind, InstKind::Collective(it) if matches!(it.kind, CollectiveKind::Broadcast { .. }))
        }
        Change::Team => kind.communication().is_some(),
        Change::Slice => computes || kind.communication().is_some(),
        Change::Count => matches!(kind, InstKind::Fill { .. }) || kind.communication().is_some(),
    }
}

/// One of the views of an instruction, on its own rank.
fn random_view<'p>(kind: &'p mut InstKind, rank: usize, dice: &mut Rng) -> Option<&'p mut View> {
    match kind {
        InstKind::Copy { from, to } => {
            let mut mine = [from, to].into_iter().filter(|it| it.rank == rank);
            let skipped = dice.below(2);
            mine.nth(skipped).map(|it| &mut it.view)
        }
        InstKind::Fill { to, .. } => Some(&mut **to),
        InstKind::Gemm(it) => Some(if dice.below(2) == 0 { &mut it.a } else { &mut it.out }),
        InstKind::Map { out, .. } => Some(&mut **out),
        InstKind::Reduce(it) => Some(&mut it.out),
        InstKind::PeerReduce { out, .. } => Some(&mut **out),
        InstKind::Collective(it) => match dice.below(2) {
            0 => it.input.as_mut(),
            _ => it.output.as_mut(),
        },
        InstKind::Transfer(it) => {
            let side = dice.below(it.ops.len());
            it.ops.get_mut(side).map(|it| &mut it.view)
        }
        InstKind::Alloc { .. }
        | InstKind::Iota { .. }
        | InstKind::Wait { .. }
        | InstKind::Signal { .. }
        | InstKind::WaitSignal { .. }
        | InstKind::RecordEvent { .. }
        | InstKind::WaitEvent { .. }
        | InstKind::ShareMemHandles { .. }
        | InstKind::Barrier
        | InstKind::Reshard(_)
        | InstKind::ReadOutputs => None,
    }
}
