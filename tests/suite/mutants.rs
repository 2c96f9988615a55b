//! Tests the checker on wrong programs: plans with one change, on one rank and in one iteration, or on all
//! ranks. The checker must flag each of them, unless it gives one result in every order. The checker must not
//! report a race between two statements that no order shows.
//!
//! A missed mutant and a false alarm fail the test. The programs are all samples and cases that run on the
//! simulator, and the results of every pipeline on them. A few mutants of each program are tried;
//! `HIR_MUTANTS=1000` tries 1000 of each and prints the table, `HIR_SEED=7` tries others.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Write as _,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use grammar::words::CommunicationType;
use hir_check::{Checks, Finding, Orders, Party, StepOrder, check, check_in_groups};
use hir_driver::run::inputs::InputSpec;
use hir_plan::{InstKind, Plan, View, World, sync};
use hir_sim::{Schedule, SimError};
use hir_tensor::{data::Data, generate::InputKind};
use libtest_mimic::{Failed, Trial};

use crate::{baseline, part, pipelines::lowering_pipelines, rng::Rng, setting, setting::number_or, shown};

/// Default number of mutants per program.
const MUTANTS: usize = 12;
/// Maximum number of listed orders, and number of seeded schedules, that a mutant runs under.
const ORDERS: usize = 12;
const SEEDS: u64 = 4;

/// The change that makes a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Removes a synchronisation.
    Delete,
    /// Executes a statement twice.
    Duplicate,
    /// Moves a statement behind one of the next statements.
    Swap,
    /// Moves a statement to another stream.
    Stream,
    /// Changes the peer of a send or receive.
    Peer,
    /// Changes the root of a collective, on one rank or on all.
    Root,
    /// Moves a communication to another communicator.
    Team,
    /// Changes the offset of a view.
    Slice,
    /// Shortens a view.
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

/// Numbers of mutants by outcome, for one kind of change.
#[derive(Clone, Copy, Default)]
struct MutantCounts {
    mutants: usize,
    /// The plans contradict themselves or each other in sizes, kinds or roots, or the checker says that it checks only a part.
    refused: usize,
    /// The checker finds a fault.
    flagged: usize,
    /// Every order gives the result of the original program.
    equivalent: usize,
    /// Every order gives the same result, which differs from that of the original program: a different,
    /// correct program.
    other: usize,
}

/// The counts of all files, by kind of change.
type Table = Arc<Mutex<[MutantCounts; CHANGES.len()]>>;

/// Returns a trial for the files as they are, one for each pipeline, and the trial that prints the table.
pub fn trials(cases: &[PathBuf]) -> Vec<Trial> {
    let pipelines = lowering_pipelines().map(Some);
    let ways: Vec<Option<&str>> = std::iter::once(None).chain(pipelines).collect();
    let (count, seed) = (setting::number("HIR_MUTANTS"), number_or("HIR_SEED", 0));
    let trial = |way: Option<&'static str>| {
        let cases = cases.to_vec();
        Trial::test(format!("mutants::{}", way.unwrap_or("as_they_are")), move || {
            let table = Table::default();
            let mine = cases.iter().enumerate().filter(|(number, _)| part::includes(*number));
            for (_, path) in mine {
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
    let mut text = format!("{title}: change, mutants, refused, flagged, equivalent, different program\n");
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

/// Tries mutants of a program. A view over the memory of all ranks is a copy, as in the simulator: no order of steps shows that it is mapped.
fn mutants(plans: &World, count: usize, seed: usize, table: &Table) -> Result<(), String> {
    let copies = |it: &Plan| Plan { gathered_views: Vec::new(), ..it.clone() };
    let plans = &World::new(plans.iter().map(copies).collect());
    let Ok(inputs) = InputSpec::new(InputKind::Exact, 0, plans).fill(plans) else {
        return Ok(());
    };
    // Whether all ranks leave a loop together is known of the program: in a mutant of its plans, they may not.
    if plans.iter().any(|it| !it.exits.is_empty()) {
        return Ok(());
    }
    // Mutants of a program that is flagged itself, or of which a part is not checked, prove nothing.
    let own = check(plans, Checks::ALL_FAULTS);
    if !own.findings.is_empty() || !own.not_checked.is_empty() {
        return Ok(());
    }
    let Some(right) = result(plans, &inputs, &Schedule::Program)? else { return Ok(()) };
    let mut rng = Rng(seed as u64 ^ 0x3a7e ^ plans.iter().map(|it| it.code.len() as u64).sum::<u64>());
    let (mut tried, mut left) = (0, 20 * count);
    while tried < count && left > 0 {
        left -= 1;
        let change = rng.choose_cloned(&CHANGES);
        let Some((mutant, what)) = apply_change(plans, change, &mut rng) else { continue };
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

/// The outcome for a mutant.
enum MutantOutcome {
    Refused,
    Flagged,
    /// All orders and schedules give this result.
    Clean(String),
}

fn mutant_outcome(plans: &World, inputs: &[Vec<Arc<Data>>]) -> Result<MutantOutcome, String> {
    let report = check(plans, Checks::ALL_FAULTS);
    let in_groups = check_in_groups(plans, Checks::ALL_FAULTS);
    if report.findings.is_empty() != in_groups.findings.is_empty()
        || in_groups.not_checked != report.not_checked
    {
        return Err(format!(
            "in groups of ranks, {} findings instead of {}; not checked: {:?} instead of {:?}",
            in_groups.findings.len(),
            report.findings.len(),
            in_groups.not_checked,
            report.not_checked
        ));
    }
    if !report.not_checked.is_empty() {
        return Ok(MutantOutcome::Refused);
    }
    if report.findings.iter().any(|it| matches!(it, Finding::Deadlock(_))) {
        return Ok(MutantOutcome::Flagged);
    }
    let Some(first) = result(plans, inputs, &Schedule::Program)? else { return Ok(MutantOutcome::Refused) };
    let Ok(steps) = StepOrder::of(plans) else { return Ok(MutantOutcome::Refused) };
    let within = |it: &Party| matches!(it, Party::Inst(_) | Party::Operation(..));
    let is_race = |it: &Finding| match it {
        Finding::Race { race, .. } => {
            // A collective over its own input is wrong in every order.
            race.reused.is_none()
                && race.parties[0].0 != race.parties[1].0
                && race.parties.iter().all(|it| within(&it.0))
                && !race.parties.iter().any(|it| allocates(plans, it.0))
        }
        Finding::Unwritten { .. }
        | Finding::OverwrittenView { .. }
        | Finding::Deadlock(_)
        | Finding::CommunicatorOrder(_)
        | Finding::Execution { .. }
        | Finding::EarlyExit { .. }
        | Finding::Excess(_) => false,
    };
    if report.findings.iter().any(is_race) && steps.conflicts.is_empty() {
        return Err("FALSE ALARM: the checker reports a race, but no steps conflict".to_owned());
    }
    // The order of communicators does not make a result wrong.
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
        let missed = || format!("MISSED: the checker finds nothing, but {schedule} fails");
        results.insert(result(plans, inputs, &schedule)?.ok_or_else(missed)?);
    }
    match (results.pop_first(), results.len()) {
        (Some(only), 0) => Ok(MutantOutcome::Clean(only)),
        _ => Err("MISSED: the checker finds nothing, but the orders give several results".to_owned()),
    }
}

fn allocates(plans: &[Plan], party: Party) -> bool {
    match party {
        Party::Inst(at) => matches!(plans[at.rank].code[at.inst].kind, InstKind::Alloc { .. }),
        Party::Operation(..) | Party::Free(..) | Party::CallerBefore | Party::CallerAfter(_) => false,
    }
}

/// Returns the outputs, or `None` if the plans contradict themselves.
fn result(plans: &World, inputs: &[Vec<Arc<Data>>], schedule: &Schedule) -> Result<Option<String>, String> {
    let run = hir_sim::run(
        plans,
        inputs.to_vec(),
        schedule,
        &hir_sim::SimOptions { without_shadows: true, ..hir_sim::SimOptions::default() },
    );
    match run {
        Ok(it) => Ok(Some(format!("{:?}", it.outputs))),
        Err(SimError::Program { .. } | SimError::Unsupported { .. }) => Ok(None),
        // The checker must have found a deadlock before.
        Err(
            fault @ (SimError::Deadlock(_)
            | SimError::SemaphoreLost { .. }
            | SimError::StepNotReady(_)
            | SimError::Internal(_)),
        ) => Err(format!("MISSED: {schedule}: {fault}")),
    }
}

/// Returns the plans with one change, and its location; `None` if the change is not possible.
fn apply_change(plans: &[Plan], change: Change, rng: &mut Rng) -> Option<(World, String)> {
    let mut plans = plans.to_vec();
    let rank = rng.below(plans.len());
    let world = plans.len();
    let end = plans[rank].code.len().checked_sub(1)?;
    let (inst, what) = {
        let fits =
            |at: &usize| is_applicable(change, &plans[rank].code[*at].kind, plans[rank].streams.len(), world);
        let all: Vec<usize> = (0..end).filter(fits).collect();
        let inst = *all.get(rng.below(all.len()))?;
        (inst, format!("rank {rank}, instruction {inst}: {:?}", plans[rank].code[inst].kind))
    };
    match change {
        Change::Delete => drop(plans[rank].code.remove(inst)),
        Change::Duplicate => {
            let it = plans[rank].code[inst].clone();
            plans[rank].code.insert(inst, it);
        }
        Change::Swap => {
            let other = (inst + 1 + rng.below(4)).min(end.checked_sub(1)?);
            plans[rank].code[inst..=other].rotate_left(1);
        }
        Change::Stream => {
            let streams = plans[rank].streams.len() as u32;
            let it = &mut plans[rank].code[inst];
            it.stream = (it.stream + 1 + rng.below(streams as usize - 1) as u32) % streams;
        }
        Change::Peer => {
            let peer = rng.below(world);
            match &mut plans[rank].code[inst].kind {
                InstKind::P2pGroup(it) => {
                    let side = rng.below(it.ops.len());
                    it.ops.get_mut(side)?.peer = peer;
                }
                _ => return None,
            }
        }
        Change::Root => {
            let (root, matched) = (rng.below(world), sync::CommMatching::from_plans(&plans));
            let at = sync::InstRef { rank, inst };
            let all = matched.comm(*matched.comms_of(at).first()?).parts.clone();
            let everywhere = rng.below(2) == 0;
            for it in all.iter().filter(|it| everywhere || it.inst_ref == at) {
                let InstKind::Collective(it) = &mut plans[it.inst_ref.rank].code[it.inst_ref.inst].kind
                else {
                    continue;
                };
                if it.kind.of == CommunicationType::Broadcast {
                    it.kind.root = Some(root);
                }
            }
        }
        Change::Team => {
            let count = plans[rank].communicators.len();
            let other = rng.below(count) as u32;
            match &mut plans[rank].code[inst].kind {
                InstKind::Collective(it) => it.communicator = other,
                InstKind::P2pGroup(it) => it.communicator = other,
                _ => return None,
            }
        }
        Change::Slice | Change::Count => {
            let lens: Vec<usize> = plans[rank].buffers.iter().map(|it| it.len).collect();
            let place = rng.below(usize::MAX);
            change_random_view(&mut plans[rank].code[inst].kind, rank, rng, |view| {
                if change == Change::Count {
                    let dim = view.shape.iter().position(|it| *it > 1)?;
                    view.shape[dim] -= 1;
                } else {
                    let (first, last) = view.bounds()?;
                    let room = lens.get(view.buffer as usize)?.checked_sub(last - first)?;
                    view.offset = place % room.max(1);
                }
                Some(())
            })?;
        }
    }
    Some((World::new(plans), what))
}

/// Returns true if a change applies to an instruction.
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
            | InstKind::HostWait { .. }
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
        // An event is recorded only once, and a signal is raised only once.
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
        Change::Peer => world > 1 && matches!(kind, InstKind::P2pGroup(_)),
        Change::Root => {
            matches!(kind, InstKind::Collective(it) if it.kind.of == CommunicationType::Broadcast)
        }
        Change::Team => kind.communication().is_some(),
        Change::Slice => computes || kind.communication().is_some(),
        Change::Count => matches!(kind, InstKind::Fill { .. }) || kind.communication().is_some(),
    }
}

/// Changes a random view of an instruction on its own rank.
fn change_random_view(
    kind: &mut InstKind,
    rank: usize,
    rng: &mut Rng,
    change: impl FnOnce(&mut View) -> Option<()>,
) -> Option<()> {
    let views = kind.accesses(rank).iter().filter(|it| it.rank == rank).count();
    let mut chosen = (views > 0).then(|| rng.below(views))?;
    let mut change = Some(change);
    let mut changed = None;
    kind.change_views(rank, |owner, view| {
        if owner == rank
            && let Some(next) = chosen.checked_sub(1)
        {
            chosen = next;
        } else if owner == rank
            && let Some(change) = change.take()
        {
            changed = change(view);
        }
    });
    changed
}
