//! Orders of steps of the simulator in which a finding shows, with what the run needs besides them.

use std::sync::Arc;

use super::{
    capture::capture,
    conflict::{Party, Race},
    execution_fault::{ExecutionFault, ExecutionFaultKind},
    finding::Finding,
    not_shown::NotShown,
    orders::{StepOrder, TooLarge, steps_before},
    replay::{NextRun, Replay, ReplayedStorage},
    semaphores,
};
use hir_plan::{
    InstKind, World,
    sync::{InstRef, P2pQueues, Step},
};

/// The largest number of findings for which a world of their own is made.
const MAX_REPLAYS: usize = 16;

/// What a run needs besides the order of its steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WitnessSetting {
    /// Whether a second run follows, without a barrier.
    pub has_second_run: bool,
    /// Whether the second run is that of a captured graph, which lacks what the capture does not record.
    pub is_captured: bool,
    /// The storage that tensors share.
    pub storage: Vec<ReplayedStorage>,
    /// Whether transfers over peer memory have semaphores of one word, as nvFuser's, and are not counted.
    pub has_semaphores: bool,
}

impl WitnessSetting {
    /// Returns whether the run is a plain one.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }
}

/// An order of steps in which a finding shows.
#[derive(Debug)]
pub struct Witness {
    /// What the run needs besides the order.
    pub setting: WitnessSetting,
    /// The runs; `None` if it is a plain run.
    pub replay: Option<Arc<Replay>>,
    /// The steps up to the access that is too early. All others follow in program order.
    pub steps: Vec<Step>,
}

/// Returns orders in which the findings show that the simulator can show, those of each finding one after the other, or why there is none.
/// Whether an order changes a value depends on the values, and on what hides the access. The program must not deadlock.
pub fn witnesses<'a>(
    world: &'a World,
    findings: &'a [Finding],
) -> impl Iterator<Item = Result<(&'a Finding, Witness), NotShown>> {
    let mut left = MAX_REPLAYS;
    let plain = StepOrder::of(world);
    findings.iter().flat_map(move |finding| {
        let found = match (finding.race(), finding) {
            (Some((race, _)), _) => witnesses_of_race(world, race, &plain, &mut left),
            (None, Finding::Execution { fault, .. }) => witness_of_fault(world, fault).map(|it| vec![it]),
            (None, it) => Err(why_not_shown(it)),
        };
        match found {
            Ok(all) => all.into_iter().map(|it| Ok((finding, it))).collect(),
            Err(why) => vec![Err(why)],
        }
    })
}

/// Returns orders in which a statement of the next program accesses memory before one of this program that races with it.
///
/// # Errors
/// Why there is none.
pub fn witnesses_of_sequence(
    world: &World,
    next: NextRun<'_>,
    race: &Race,
) -> Result<Vec<Witness>, NotShown> {
    if race.p2p != P2pQueues::Communicator {
        return Err(NotShown::OneCommunicator);
    }
    between_runs(world, next, race)
}

fn witnesses_of_race(
    world: &World,
    race: &Race,
    plain: &Result<StepOrder, TooLarge>,
    left: &mut usize,
) -> Result<Vec<Witness>, NotShown> {
    if race.p2p != P2pQueues::Communicator {
        return Err(NotShown::OneCommunicator);
    }
    if !race.between_runs && race.reused.is_none() {
        let orders = plain.as_ref().map_err(|it| *it)?.witnesses(world, race);
        if !orders.is_empty() {
            let plain = |steps| Witness { setting: WitnessSetting::default(), replay: None, steps };
            return Ok(orders.into_iter().map(plain).collect());
        }
    }
    *left = left.checked_sub(1).ok_or(NotShown::FirstFindingsOnly)?;
    match (race.between_runs, race.reused) {
        (true, _) => between_runs(world, NextRun::Same, race),
        (false, Some(_)) => over_storage(world, race),
        (false, None) => with_caller(world, race),
    }
}

/// The access of the second run comes first.
fn between_runs(world: &World, next: NextRun<'_>, race: &Race) -> Result<Vec<Witness>, NotShown> {
    let storage: Vec<ReplayedStorage> = race
        .reused
        .map(|it| ReplayedStorage { rank: race.rank, earlier: it.earlier, later: it.later })
        .filter(|it| it.later.is_some() && it.later != Some(it.earlier) || matches!(next, NextRun::Other(..)))
        .into_iter()
        .collect();
    let setting = WitnessSetting { has_second_run: true, storage, ..WitnessSetting::default() };
    let replay = replay(world, Some(next), &setting)?;
    let [one, other] = race.parties.map(|it| inst_of(it.0));
    let late = other.and_then(|it| replay.inst(1, it));
    ordered(setting, replay, |it| Some((late?, it.inst(0, one?)?)))
}

/// The tensor, or the caller, that gets the storage accesses it first.
fn over_storage(world: &World, race: &Race) -> Result<Vec<Witness>, NotShown> {
    let reused = race.reused.ok_or(NotShown::NoStep)?;
    if race.is_stream_ordered || reused.is_unmapped {
        return Err(NotShown::StorageIsKept);
    }
    let storage = ReplayedStorage { rank: race.rank, earlier: reused.earlier, later: reused.later };
    let setting = WitnessSetting { storage: vec![storage], ..WitnessSetting::default() };
    let replay = replay(world, None, &setting)?;
    let parties = race.parties.map(|it| inst_of(it.0));
    let Some(later) = reused.later else {
        let access = parties.into_iter().flatten().next();
        return ordered(setting, replay, |it| Some((it.caller_write(race.rank)?, it.inst(0, access?)?)));
    };
    let is_later = |at: InstRef| {
        let touched = world[at.rank].code[at.inst].kind.touched_buffers(at.rank);
        touched.iter().any(|it| (it.0, it.1) == (race.rank, later))
    };
    let [one, other] = parties;
    let (early, late) = if other.is_some_and(is_later) { (one, other) } else { (other, one) };
    ordered(setting, replay, |it| Some((it.inst(0, late?)?, it.inst(0, early?)?)))
}

/// The caller writes an input for the next run too early for this run, or too late for the next one.
fn with_caller(world: &World, race: &Race) -> Result<Vec<Witness>, NotShown> {
    let setting = WitnessSetting { has_second_run: true, ..WitnessSetting::default() };
    let replay = replay(world, Some(NextRun::Same), &setting)?;
    let input = replay.written_input(world, race.rank, race.buffer);
    let parties = race.parties.map(|it| it.0);
    let access = parties.into_iter().find_map(inst_of);
    let is_before = parties.contains(&Party::CallerBefore);
    ordered(setting, replay, |it| {
        Some(if is_before { (it.inst(1, access?)?, input?) } else { (input?, it.inst(0, access?)?) })
    })
}

/// A transfer is posted again before the first one has ended.
fn witness_of_fault(world: &World, fault: &ExecutionFault) -> Result<Witness, NotShown> {
    let between_runs = match fault.kind {
        ExecutionFaultKind::PostedAgain { between_runs } => between_runs,
        ExecutionFaultKind::TooFewQueues(_) => return Err(NotShown::NoFault),
        ExecutionFaultKind::NotFreed => return Err(NotShown::StorageIsKept),
        ExecutionFaultKind::Swapped(_) => return Err(NotShown::Swapped),
        ExecutionFaultKind::NotRecorded(_) => return witness_of_graph(world),
        ExecutionFaultKind::Isolation
        | ExecutionFaultKind::HostWait
        | ExecutionFaultKind::SymmetricMemory { .. }
        | ExecutionFaultKind::Unjoined => return Err(NotShown::CaptureFails),
    };
    let setting =
        WitnessSetting { has_second_run: between_runs, has_semaphores: true, ..WitnessSetting::default() };
    let replay = replay(world, between_runs.then_some(NextRun::Same), &setting)?;
    let run = usize::from(between_runs);
    let code = &world[fault.rank].code;
    // The last post of the statement follows the first one.
    let posts = |it: &InstKind| matches!(it, InstKind::Signal { signal } if semaphores::is_post(*signal));
    let mut all = (0..code.len()).filter(|at| code[*at].origin == fault.origin && posts(&code[*at].kind));
    let post = match fault.again.filter(|_| !between_runs) {
        Some([_, inst]) => Some(inst).filter(|it| posts(&code[*it].kind)),
        None => all.next(),
    };
    let post = post.and_then(|inst| replay.inst(run, InstRef { rank: fault.rank, inst }));
    let post = post.ok_or(NotShown::WaitsTooEarly)?;
    let steps = steps_before(&replay.world, post)?;
    Ok(Witness { setting, replay: Some(Arc::new(replay)), steps })
}

/// The graph is launched after a run, and lacks what its capture does not record, in every order of steps.
fn witness_of_graph(world: &World) -> Result<Witness, NotShown> {
    let fails = |it: &ExecutionFault| !matches!(it.kind, ExecutionFaultKind::NotRecorded(_));
    if world.iter().flat_map(|plan| capture(plan).faults).any(|it| fails(&it)) {
        return Err(NotShown::CaptureFails);
    }
    let setting = WitnessSetting { has_second_run: true, is_captured: true, ..WitnessSetting::default() };
    let replay = replay(world, Some(NextRun::Captured), &setting)?;
    if replay.world.deadlock().is_some() {
        return Err(NotShown::GraphDeadlocks);
    }
    Ok(Witness { setting, replay: Some(Arc::new(replay)), steps: Vec::new() })
}

fn replay(world: &World, next: Option<NextRun<'_>>, setting: &WitnessSetting) -> Result<Replay, NotShown> {
    Ok(Replay::new(world, next, &setting.storage)?)
}

/// Returns orders up to the first of two accesses, if nothing orders them in the combined world.
fn ordered(
    setting: WitnessSetting,
    replay: Replay,
    pair: impl FnOnce(&Replay) -> Option<(InstRef, InstRef)>,
) -> Result<Vec<Witness>, NotShown> {
    let (late, early) = pair(&replay).ok_or(NotShown::NoStep)?;
    let orders = StepOrder::of(&replay.world)?.with_first(late, early).ok_or(NotShown::OneOrder)?;
    let replay = Arc::new(replay);
    let of = |steps| Witness { setting: setting.clone(), replay: Some(Arc::clone(&replay)), steps };
    Ok(orders.map(of).into())
}

/// Returns the instruction of a party.
fn inst_of(party: Party) -> Option<InstRef> {
    match party {
        Party::Inst(at) | Party::Operation(at, _) => Some(at),
        Party::Free(..) | Party::CallerBefore | Party::CallerAfter(_) => None,
    }
}

/// Returns why no order of steps shows a finding that is no race.
fn why_not_shown(it: &Finding) -> NotShown {
    match it {
        Finding::CommunicatorOrder(_) => NotShown::IssueOrder,
        Finding::Unwritten { read, .. } if read.output.is_some() || read.reaches.is_some() => {
            NotShown::InEveryOrder
        }
        Finding::Deadlock(_) => NotShown::Deadlock,
        Finding::Race { .. }
        | Finding::Execution { .. }
        | Finding::Unwritten { .. }
        | Finding::OverwrittenView { .. }
        | Finding::EarlyExit { .. }
        | Finding::Excess(_) => NotShown::NoFault,
    }
}
