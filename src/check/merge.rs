//! Formats the findings of a report. Races that one edit removes are one diagnostic: those on the same tensor and streams are its
//! occurrences, and a note lists the others.

use std::{borrow::Cow, collections::BTreeSet};

use grammar::{Code, Diagnostic, Source};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::Party,
    diagnostics::{DiagnosticBuilder, MAX_LISTED, early_exit_note, format_lines},
    finding::{Finding, Report},
    fixable_race::FixableRace,
    plan_index::PlanIndexes,
    race_side::RaceSide,
    removal::leaders,
};
use hir_plan::{Plan, World};

/// What races on one tensor between the same two streams or queues have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Similarity<'a> {
    code: Code,
    is_entry: bool,
    is_reuse: bool,
    tensor: &'a str,
    program: usize,
    /// By side, in order: whether it is a statement, one of the owner of the memory, its stream or queue, whether it allocates, and the line
    /// of a communication: each one has a Wait of its own.
    actors: [(bool, bool, String, bool, Option<u32>); 2],
}

impl<'a> Similarity<'a> {
    /// Returns `None` if the finding is not a race.
    fn of(plans: &'a [Plan], finding: &Finding) -> Option<Self> {
        let (race, _) = finding.race()?;
        let sides = RaceSide::both(plans, race);
        let posted = |it: &RaceSide<'_>| it.communication().map(|_| it.line());
        let mut actors = sides.each_ref().map(|it| {
            (it.is_in_program(), it.plan.rank == race.rank, it.actor_name(), it.allocates(), posted(it))
        });
        actors.sort_unstable();
        Some(Self {
            code: RaceSide::code(race, &sides),
            is_entry: sides.iter().any(|it| it.party == Party::CallerBefore),
            is_reuse: race.reused.is_some(),
            tensor: &plans[race.rank].buffers[race.buffer as usize].name,
            program: sides[0].plan.program_id,
            actors,
        })
    }

    /// Returns true for a use of storage that the stream of its own ALLOCATE may still use.
    fn is_of_own_allocate(&self) -> bool {
        self.code == Code::StorageRace && !self.is_reuse && self.actors.iter().any(|it| it.3)
    }
}

impl Report {
    /// Formats the findings as diagnostics, each with the index of its source text. Rank `r` runs text `r`, or
    /// the last text if there are fewer texts than ranks.
    pub fn diagnostics(&self, world: &World, sources: &[Source]) -> Vec<(usize, Diagnostic)> {
        // The findings with fewer iterations are those of one world.
        if let Some(Finding::EarlyExit { world: at, .. }) = self.findings.first()
            && let Some(early) = world.early_exits().get(*at)
        {
            let findings = self.findings.iter().map(|it| it.resolved(world).1.clone()).collect();
            let shown = Self { findings, ..Self::default() }.diagnostics(early, sources).into_iter();
            return shown.map(|(text, it)| (text, it.note(early_exit_note(*at)))).collect();
        }
        let indexes = PlanIndexes::new(world);
        let texts = DiagnosticBuilder::new(world, sources, &indexes);
        let text = |rank: usize| texts.edit_context(rank).map(|it| it.text);
        let chosen = |it| FixableRace::with_edits_of_all(world, it, &indexes, &text);
        let findings: Vec<Cow<'_, Finding>> = self.findings.iter().map(chosen).collect();
        let races: Vec<Option<FixableRace<'_>>> =
            findings.iter().map(|it| FixableRace::of(world, it, &indexes, &text)).collect();
        let similarities: Vec<Option<Similarity<'_>>> =
            findings.iter().map(|it| Similarity::of(world, it)).collect();
        let mut leaders = leaders(&races);
        // Similar races that no edit removes are one diagnostic.
        let mut first = FxHashMap::default();
        for (at, similarity) in similarities.iter().enumerate().filter(|(at, _)| races[*at].is_none()) {
            leaders[at] = similarity.as_ref().map_or(at, |it| *first.entry(it).or_insert(at));
        }
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); races.len()];
        for (at, leader) in leaders.iter().enumerate().filter(|(at, leader)| at != *leader) {
            members[*leader].push(at);
        }
        let is_race = |it: &&Similarity<'_>| it.code == Code::Race;
        let racing: FxHashSet<&str> =
            similarities.iter().flatten().filter(is_race).map(|it| it.tensor).collect();
        let mut shown = Vec::new();
        for (at, finding) in findings.iter().enumerate().filter(|it| leaders[it.0] == it.0) {
            // No edit orders a use of storage on another rank and its ALLOCATE: it is a consequence of another race.
            let is_consequence = |it: &&Similarity<'_>| it.is_of_own_allocate() && racing.contains(it.tensor);
            if races[at].is_none() && similarities[at].as_ref().is_some_and(|it| is_consequence(&it)) {
                continue;
            }
            let mut finding = finding.clone().into_owned();
            let mut groups: Vec<(&Similarity<'_>, Vec<usize>)> = Vec::new();
            let mut known = FxHashMap::default();
            for member in &members[at] {
                let (Some(similarity), Some((_, others))) =
                    (&similarities[*member], findings[*member].race())
                else {
                    continue;
                };
                if similarities[at].as_ref() == Some(similarity) {
                    if let Finding::Race { more, .. } = &mut finding {
                        more.extend(others);
                    }
                    continue;
                }
                let group = *known.entry(similarity).or_insert(groups.len());
                if group == groups.len() {
                    groups.push((similarity, Vec::new()));
                }
                groups[group].1.push(*member);
            }
            // A race on a tensor and one with its ALLOCATE have one cause.
            let tensors: FxHashSet<&str> = groups
                .iter()
                .map(|it| it.0)
                .chain(similarities[at].as_ref())
                .filter(is_race)
                .map(|it| it.tensor)
                .collect();
            groups.retain(|it| !it.0.is_of_own_allocate() || !tensors.contains(it.0.tensor));
            let (text, mut it) = texts.finding(&finding);
            let others: Vec<String> =
                groups.iter().take(MAX_LISTED).map(|it| self.summary(&texts, &it.1)).collect();
            if !others.is_empty() {
                let more = groups.len() - others.len();
                let mut note = format!("the same edit also removes:\n{}", others.join("\n"));
                if more > 0 {
                    note += &format!("\n… and {more} more");
                }
                it = it.note(note);
            }
            shown.push((text, it));
        }
        shown
    }

    /// Formats similar findings as one line.
    fn summary(&self, texts: &DiagnosticBuilder<'_>, similar: &[usize]) -> String {
        let Some(first) = similar.first() else { return String::new() };
        let (code, message) = texts.summary(&self.findings[*first]);
        let lines: BTreeSet<u32> = similar
            .iter()
            .filter_map(|it| self.findings[*it].race())
            .flat_map(|(_, more)| &more.lines)
            .copied()
            .collect();
        format!("[{}] {message} ({})", code.text(), format_lines(&lines.into_iter().collect::<Vec<_>>()))
    }
}
