//! Runs of several programs one after the other in one process.

mod kernels;

use std::collections::BTreeSet;

use grammar::{Code, Diagnostic, Source, Span};
use rustc_hash::FxHashSet;

use super::{
    between_runs::{NextRunExplanation, RunPair},
    conflict::Race,
    diagnostics::DiagnosticBuilder,
    finding::Checks,
    not_compared::NotCompared,
    plan_index::PlanIndexes,
    race_side::RaceSide,
    repair_help,
    repeat::races_between_programs,
};
use hir_plan::{
    InstKind, World,
    sync::{P2pQueues, happens_before},
};

pub use kernels::{Programs, SequenceOrder, order_of_sequence};

/// A program that runs before and after others.
#[derive(Clone, Copy, Debug)]
pub struct SequencedProgram<'w> {
    world: &'w World,
    /// Whether what runs next follows what ran before (`is_entered_before_exit`).
    is_entered_before_exit: bool,
}

impl<'w> SequencedProgram<'w> {
    /// Walks over the plans of a program once.
    pub fn new(world: &'w World) -> Self {
        Self { world, is_entered_before_exit: is_entered_before_exit(world) }
    }

    /// Returns the plans with the communicators that sends and receives in no group run on; `None` if they are those of `world`.
    fn with_queues(&self, queues: P2pQueues) -> Option<World> {
        match queues {
            P2pQueues::Communicator => None,
            P2pQueues::Pair => self.world.with_pair_communicators(),
        }
    }

    /// Returns the plans.
    pub fn world(&self) -> &'w World {
        self.world
    }
}

/// A statement of a program may still run when a statement of the next one accesses the same elements, or the same storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceRace {
    /// The name of the tensor in the first program.
    tensor: String,
    /// The name of the tensor of the second program that may get its storage; `None` if it is the same memory.
    next: Option<String>,
    /// The race. The first side is in the plans of the first program, the second one in those of the second one.
    race: Race,
}

/// Returns the races of a run of `first` with one of `second` that follows it. Neither of them has a race of its own. Inputs and
/// outputs of one name have the same memory, and so have tensors with a name of `shared`.
///
/// # Errors
/// The reason why they were not compared.
pub fn races_of_sequence(
    first: SequencedProgram<'_>,
    second: SequencedProgram<'_>,
    shared: &BTreeSet<String>,
    checks: Checks,
) -> Result<Vec<SequenceRace>, NotCompared> {
    if ![first, second].into_iter().all(|it| it.is_entered_before_exit) {
        return Err(NotCompared::EndsElsewhere);
    }
    let (mut races, mut known) = (Vec::new(), FxHashSet::default());
    for p2p in checks.all_p2p_queues() {
        let pairs = [first, second].map(|it| it.with_queues(p2p));
        let both = [0, 1].map(|at| pairs[at].as_ref().unwrap_or([first, second][at].world));
        let is_mapped = checks.access_rules().maps_views();
        let mapped = both.map(|it| it.with_mapped_views().filter(|_| is_mapped));
        let [first, second] = [0, 1].map(|at| mapped[at].as_ref().unwrap_or(both[at]));
        let found = races_between_programs(first, second, shared, checks.access_rules())?;
        if found.not_compared > 0 {
            return Err(NotCompared::ViewPieces);
        }
        races.extend(found.races.into_iter().filter_map(|race| {
            let [one, other] = [RaceSide::of(first, &race, 0), RaceSide::of(second, &race, 1)];
            let tensor = first[race.rank].buffers.get(race.buffer as usize)?.name.clone();
            let next = race.reused.and_then(|it| it.later);
            let next = next.and_then(|it| second[race.rank].buffers.get(it as usize));
            let next = next.map(|it| it.name.clone());
            // All statements of a stream that may use the storage are one finding.
            let accesses = if next.is_some() { other.stream().to_string() } else { other.line().to_string() };
            let is_new = known.insert((tensor.clone(), one.line(), accesses));
            is_new.then_some(SequenceRace { tensor, next, race: Race { p2p, ..race } })
        }));
    }
    Ok(races)
}

/// Returns whether the stream that is current at exit waits for the one that is current at entry, or is the same one, so that what
/// runs next follows what ran before (`repeat`).
fn is_entered_before_exit(world: &World) -> bool {
    let entries = happens_before::first_actors(world);
    let mut is_so = true;
    let walked = happens_before::walk(world, &mut |it| {
        if matches!(world[it.rank].code[it.inst].kind, InstKind::ReadOutputs) {
            let entry = entries[it.rank];
            is_so &= it.actor == entry || it.clock.ended(entry) > 0;
        }
    });
    walked.is_ok() && is_so
}

/// The names, texts and plans of two programs, the first one of which runs before the second one.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The names in reports.
    pub names: [&'a str; 2],
    /// The texts.
    pub sources: [&'a Source; 2],
    /// The plans.
    pub worlds: [&'a World; 2],
}

impl SequenceRace {
    /// Returns the race. Its first side is in the plans of the first program, the second one in those of the second one.
    pub fn race(&self) -> &Race {
        &self.race
    }

    /// Formats the race as a diagnostic in the text of one of the two programs: in that of the first one, or else in that of the second
    /// one.
    pub fn diagnostic(&self, it: &Sequence<'_>, is_of_first: bool) -> Diagnostic {
        let Sequence { names, sources, worlds } = *it;
        let sides = [0, 1].map(|which| RaceSide::of(worlds[which], &self.race, which));
        let verb = |writes: bool| if writes { "writes" } else { "reads" };
        let (own, other) = if is_of_first { (0, 1) } else { (1, 0) };
        let (storage, what) = match &self.next {
            Some(next) => ("the storage of ", format!("`{next}` there")),
            None => ("", "it".to_owned()),
        };
        let message = format!(
            "race on {storage}`{}` of rank {} between two programs: `{}` may still {} it when `{}`, which runs next, {} {what}",
            self.tensor,
            self.race.rank,
            names[0],
            if sides[0].writes { "write" } else { "read" },
            names[1],
            verb(sides[1].writes)
        );
        let tensors = [Some(&self.tensor), self.next.as_ref()];
        let access = |which: usize| {
            let side = &sides[which];
            let of = tensors[which].filter(|_| self.next.is_some());
            let of = of.map_or("it".to_owned(), |it| format!("`{it}`"));
            format!("rank {} {} {of}", side.plan.rank, verb(side.writes))
        };
        let span: Span = sources[own].line_or_header(sides[own].line());
        let note = format!("`{}`, line {}: {}", names[other], sides[other].line(), access(other));
        let found = Diagnostic::new(Code::RaceBetweenRuns, span, message, access(own)).note(note);
        let freed = self.race.reused.zip(self.next.as_ref()).map(|(reused, next)| {
            let line = |origin: u32| worlds[0][self.race.rank].origins[origin as usize].line;
            let freed = reused.freed_by.map_or("the end".to_owned(), |it| format!("line {}", line(it)));
            format!(
                "with `--storage=pytorch`, {freed} of `{}` frees the storage, and `{next}` of `{}` may get it",
                names[0], names[1]
            )
        });
        let found = freed.into_iter().fold(found, Diagnostic::note);
        let indexes = PlanIndexes::new(worlds[0]).with_queues(self.race.p2p);
        let pair = RunPair { indexes: &indexes, names: Some(names) };
        let NextRunExplanation { reason, is_in_second_run } = pair.explain(&sides[0], &sides[1]);
        let edited = usize::from(is_in_second_run);
        let indexes = PlanIndexes::new(worlds[edited]).with_queues(self.race.p2p);
        let texts = DiagnosticBuilder::new(worlds[edited], std::slice::from_ref(sources[edited]), &indexes);
        let help = repair_help::help(&reason, texts.edit_context(sides[1].plan.rank).as_ref()).0;
        let place = if reason.edits.is_empty() { "" } else { names[edited] };
        let help = help.map(|it| if place.is_empty() { it } else { format!("in `{place}`, {it}") });
        let found = reason.why.into_iter().fold(found, Diagnostic::note);
        let found = self.race.p2p.note().into_iter().fold(found, Diagnostic::note);
        help.into_iter().fold(found, Diagnostic::help)
    }
}
