//! Runs of several programs one after the other in one process.

use std::collections::BTreeSet;

use grammar::{codes::Code, diagnostic::Diagnostic, source::Source, span::Span};
use rustc_hash::FxHashSet;

use super::{conflict::Party, finding::Checks, repeat::races_between_programs};
use hir_plan::{
    InstKind, Plan, World,
    sync::{InstRef, happens_before},
};

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

    /// Returns the plans.
    pub fn world(&self) -> &'w World {
        self.world
    }
}

/// A statement of a program may still run when a statement of the next one accesses the same elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceRace {
    /// The rank that owns the memory.
    pub rank: usize,
    /// The name of the tensor in the first program.
    pub tensor: String,
    /// The instruction of the first program, and whether it writes.
    pub first: (InstRef, bool),
    /// That of the second one.
    pub second: (InstRef, bool),
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
) -> Result<Vec<SequenceRace>, String> {
    if ![first, second].into_iter().all(|it| it.is_entered_before_exit) {
        return Err(
            "one of them ends on a stream that does not wait for the stream on which it begins".to_owned()
        );
    }
    let is_mapped = checks.access_rules().maps_views();
    let mapped = [first, second].map(|it| it.world.with_mapped_views().filter(|_| is_mapped));
    let [first, second] =
        [(first, &mapped[0]), (second, &mapped[1])].map(|it| it.1.as_ref().unwrap_or(it.0.world));
    let found = races_between_programs(first, second, shared, checks.access_rules())?;
    if found.not_compared > 0 {
        return Err("some views have too many pieces to compare".to_owned());
    }
    let at = |(party, writes): (Party, bool)| match party {
        Party::Inst(it) | Party::Operation(it, _) => Some((it, writes)),
        Party::Free(..) | Party::CallerBefore | Party::CallerAfter(_) => None,
    };
    let mut known = FxHashSet::default();
    let line = |plans: &[Plan], it: InstRef| {
        plans[it.rank].origins[plans[it.rank].code[it.inst].origin as usize].line
    };
    let races = found.races.into_iter().filter_map(|race| {
        let [one, other] = race.parties;
        let (one, other) = (at(one)?, at(other)?);
        let tensor = first[race.rank].buffers.get(race.buffer as usize)?.name.to_string();
        let is_new = known.insert((tensor.clone(), line(first, one.0), line(second, other.0)));
        is_new.then_some(SequenceRace { rank: race.rank, tensor, first: one, second: other })
    });
    Ok(races.collect())
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

impl SequenceRace {
    /// Formats the race as a diagnostic in the text of one of the two programs: in that of the first one, or else in that of the second
    /// one. `names` and `worlds` are those of the first and the second program.
    pub fn diagnostic(
        &self,
        (source, is_of_first): (&Source, bool),
        names: [&str; 2],
        worlds: [&World; 2],
    ) -> Diagnostic {
        let line = |world: &World, it: InstRef| {
            world[it.rank].origins[world[it.rank].code[it.inst].origin as usize].line
        };
        let verb = |writes: bool| if writes { "writes" } else { "reads" };
        let lines = [line(worlds[0], self.first.0), line(worlds[1], self.second.0)];
        let (own, other) = if is_of_first { (0, 1) } else { (1, 0) };
        let sides = [self.first, self.second];
        let message = format!(
            "race on `{}` of rank {} between two programs: `{}` may still {} it when `{}`, which runs next, {} it",
            self.tensor,
            self.rank,
            names[0],
            if self.first.1 { "write" } else { "read" },
            names[1],
            verb(self.second.1)
        );
        let span: Span = source.line_or_header(lines[own]);
        let label = format!("rank {} {} it", sides[own].0.rank, verb(sides[own].1));
        Diagnostic::new(Code::RaceBetweenRuns, span, message, label)
            .note(format!(
                "`{}`, line {}: rank {} {} it",
                names[other],
                lines[other],
                sides[other].0.rank,
                verb(sides[other].1)
            ))
            .help(format!(
                "let rank {} end `{}` only after this access has ended (Wait, Synchronize), or separate the two by a barrier of all ranks",
                self.rank, names[0]
            ))
    }
}
