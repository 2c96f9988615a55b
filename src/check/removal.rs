//! Finds for each race of a report another one whose edits remove it, without a comparison of all pairs.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, hash_map::Entry},
    ops::Range,
};

use rustc_hash::FxHashMap;

use super::{
    fixable_race::{FixableRace, Priority},
    repair::{Inserted, Repair},
};
use hir_ir::search::Budget;
use hir_plan::PlanStream;

/// The maximum number of pairs of races with different edits that are compared. Races beyond them are reported one by one.
const MAX_COMPARED: usize = 1 << 20;

/// Returns the finding that is reported for each finding: the first of a chain of findings, the edits of each of which remove the
/// next, if its own edits remove the last one, too; else another finding that is reported and whose edits remove it, or itself.
pub(super) fn leaders<'r>(races: &'r [Option<FixableRace<'r>>]) -> Vec<usize> {
    let mut found: Vec<usize> = (0..races.len()).collect();
    let mut pending: Vec<usize> = found.iter().copied().filter(|it| races[*it].is_some()).collect();
    let removes = |end: usize, at: usize| match (&races[end], &races[at]) {
        (Some(end), Some(race)) => end.removes(race),
        (_, _) => false,
    };
    while !pending.is_empty() {
        let removed_with = removed_with(races, &pending);
        let ends = chain_ends(&removed_with, &pending);
        let (mut reported, mut left) = (Vec::new(), Vec::new());
        for (at, end) in pending.iter().copied().zip(ends) {
            match end {
                Some(end) if end == at => reported.push(at),
                Some(end) if removes(end, at) => found[at] = end,
                Some(_) | None => left.push(at),
            }
        }
        if reported.is_empty() {
            break;
        }
        left.retain(|at| {
            let leader = reported.iter().take(MAX_LEADERS).find(|it| removes(**it, *at));
            found[*at] = leader.copied().unwrap_or(*at);
            leader.is_none()
        });
        pending = left;
    }
    found
}

/// The maximum number of reported findings with which a finding is compared whose chain does not remove it.
const MAX_LEADERS: usize = 64;

/// Returns for each finding of `starts` the end of its chain; `None` if the chain has no end.
fn chain_ends(removed_with: &[Option<usize>], starts: &[usize]) -> Vec<Option<usize>> {
    let mut known: Vec<Option<Option<usize>>> = vec![None; removed_with.len()];
    for start in starts {
        let (mut chain, mut at) = (Vec::new(), *start);
        let end = loop {
            if let Some(end) = known[at] {
                break end;
            }
            // Until the end of the chain is known, it has none.
            known[at] = Some(None);
            chain.push(at);
            match removed_with[at] {
                Some(next) => at = next,
                None => break Some(at),
            }
        };
        chain.into_iter().for_each(|it| known[it] = Some(end));
    }
    starts.iter().map(|it| known[*it].flatten()).collect()
}

/// Returns for each finding of `pending` the first other one whose edits remove it. If the edits of each remove the other, a race of
/// two statements comes before one of a statement with itself.
fn removed_with<'r>(races: &'r [Option<FixableRace<'r>>], pending: &[usize]) -> Vec<Option<usize>> {
    let rank: Vec<Priority> =
        races.iter().map(|it| it.as_ref().map_or(Priority::default(), FixableRace::priority)).collect();
    let all: Vec<(usize, &FixableRace<'r>)> =
        pending.iter().filter_map(|at| Some((*at, races[*at].as_ref()?))).collect();
    let candidates = Candidates::of(&all, &rank);
    let mut compared = Budget::new(MAX_COMPARED);
    let mut found = vec![None; races.len()];
    for (at, race) in &all {
        let removes = |it: usize| {
            let other = races[it].as_ref().filter(|_| it != *at);
            other.is_some_and(|other| {
                other.removes(race) && (!race.removes(other) || (rank[it], it) < (rank[*at], *at))
            })
        };
        let first = candidates.with_same_edits(race).chain(candidates.wait(race));
        let first = first.filter(|it| removes(*it)).min_by_key(|it| (rank[*it], *it));
        let mut removes = |it: usize| !compared.admits(1) || removes(it);
        let earlier = candidates.earlier(race, first, &mut removes);
        found[*at] = earlier.filter(|_| compared.left_out() == 0).or(first);
    }
    found
}

/// The maximum number of streams that are looked for in edits.
const MAX_STREAMS: usize = 32;

/// The first race of a statement with itself, and the first of two statements.
type FirstRaces = [Option<usize>; 2];

/// All races, by their edits.
#[derive(Default)]
struct Candidates<'r> {
    by_edits: FxHashMap<Vec<Repair>, FirstRaces>,
    by_free_edit: FxHashMap<&'r Repair, FirstRaces>,
    /// By Wait: the first line before which all ranks execute it, and the first race with that line.
    by_wait: FxHashMap<Inserted<'r>, (u32, usize)>,
    /// Races whose only edit inserts a statement, by rank, by what it inserts, and by the stream that is blocked; `None`: on
    /// all streams.
    by_insertion: FxHashMap<(Option<usize>, Inserted<'r>, Option<&'r PlanStream>), Positions<'r>>,
}

impl<'r> Candidates<'r> {
    fn of(races: &[(usize, &'r FixableRace<'r>)], ranks: &[Priority]) -> Self {
        let mut it = Self::default();
        for (at, race) in races {
            let single = usize::from(ranks[*at].is_minor());
            let is_first = |it: &usize| ranks[*it] <= ranks[*at];
            let known = &mut it.by_edits.entry(normalized(&race.edits)).or_default()[single];
            *known = known.filter(is_first).or(Some(*at));
            if let Some(free) = race.free_edit() {
                let known = &mut it.by_free_edit.entry(free).or_default()[single];
                *known = known.filter(is_first).or(Some(*at));
            }
            if let Some((wait, line)) = race.wait().and_then(|(edit, line)| Some((edit.inserted()?, line))) {
                let first = it.by_wait.entry(wait).or_insert((line, *at));
                *first = (line, *at).min(*first);
            }
            let early =
                race.early_edit().and_then(|edit| Some((edit, edit.inserted()?, edit.blocked_stream()?)));
            let Some((edit, inserted, blocked)) = early else { continue };
            let executions = race.executions(edit);
            for stream in [None, Some(blocked)] {
                let key = (race.rank(), inserted, stream);
                let positions = match it.by_insertion.entry(key) {
                    Entry::Occupied(it) => it.into_mut(),
                    Entry::Vacant(it) => it.insert(Positions { edit, sorted: Vec::new(), tree: Vec::new() }),
                };
                positions.sorted.extend(executions.iter().map(|position| (*position, *at)));
            }
        }
        it.by_insertion.values_mut().for_each(Positions::index);
        it
    }

    /// Returns the race whose edit inserts the Wait that orders a race at the first place.
    fn wait(&self, race: &FixableRace<'_>) -> Option<usize> {
        self.by_wait.get(&race.late_edit()?.inserted()?).map(|it| it.1)
    }

    /// Returns the first races with the same edits or with the same free edit.
    fn with_same_edits(&self, race: &FixableRace<'_>) -> impl Iterator<Item = usize> {
        let equal = self.by_edits.get(&normalized(&race.edits));
        let free = race.free_edit().and_then(|it| self.by_free_edit.get(it));
        [equal, free].into_iter().flatten().copied().flatten().flatten()
    }

    /// Returns the first race before `limit` whose only edit is inserted early enough and for which `accepts` holds.
    fn earlier(
        &self,
        race: &FixableRace<'r>,
        limit: Option<usize>,
        accepts: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        let wanted = race.late_edit()?;
        let mut first = limit.unwrap_or(usize::MAX);
        let waiting = wanted.blocked_stream()?;
        // A stream that has waited for the earlier access may be awaited instead.
        let streams = &race.sides[0].plan.streams;
        let others = streams.iter().take(MAX_STREAMS).filter_map(Inserted::synchronizes);
        let own = wanted.inserted();
        for inserted in own.into_iter().chain(others.filter(|it| Some(*it) != own)) {
            // Edits that block the same stream are compared first: most of them remove the race.
            for stream in [Some(waiting), None] {
                let Some(positions) = self.by_insertion.get(&(race.rank(), inserted, stream)) else {
                    continue;
                };
                let Some(range) = race.insertion_range(positions.edit) else { continue };
                first = positions.first(range, first, accepts).unwrap_or(first);
            }
        }
        (first < limit.unwrap_or(usize::MAX)).then_some(first)
    }
}

/// Returns edits that are equal if `Repair::is_same_as` holds for each pair.
fn normalized(edits: &[Repair]) -> Vec<Repair> {
    edits.iter().map(Repair::normalized).collect()
}

/// Races by the position before which their edit is inserted.
struct Positions<'r> {
    /// One of the edits.
    edit: &'r Repair,
    /// The positions in ascending order, with the races.
    sorted: Vec<(usize, usize)>,
    /// A segment tree: the smallest race, and its index in `sorted`, of each range.
    tree: Vec<(usize, usize)>,
}

impl Positions<'_> {
    fn index(&mut self) {
        self.sorted.sort_unstable();
        let count = self.sorted.len();
        self.tree = vec![(usize::MAX, 0); count];
        self.tree.extend(self.sorted.iter().enumerate().map(|(at, it)| (it.1, at)));
        for at in (1..count).rev() {
            self.tree[at] = self.tree[2 * at].min(self.tree[2 * at + 1]);
        }
    }

    /// Returns the smallest race of a range of `sorted`, and its index there.
    fn smallest(&self, range: &Range<usize>) -> Option<(usize, usize)> {
        let (mut start, mut end) = (range.start + self.sorted.len(), range.end + self.sorted.len());
        let mut found = None;
        let mut add =
            |it: (usize, usize)| found = Some(found.map_or(it, |found: (usize, usize)| found.min(it)));
        while start < end {
            if start % 2 == 1 {
                add(self.tree[start]);
                start += 1;
            }
            if end % 2 == 1 {
                end -= 1;
                add(self.tree[end]);
            }
            (start, end) = (start / 2, end / 2);
        }
        found
    }

    /// Returns the smallest race below `limit` with a position in `positions` for which `accepts` holds.
    fn first(
        &self,
        positions: Range<usize>,
        limit: usize,
        accepts: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        let at = |position: usize| self.sorted.partition_point(|it| it.0 < position);
        let mut pending = BinaryHeap::new();
        let add = |pending: &mut BinaryHeap<_>, range: Range<usize>| {
            pending
                .extend(self.smallest(&range).map(|(race, at)| Reverse((race, at, range.start, range.end))));
        };
        add(&mut pending, at(positions.start)..at(positions.end));
        while let Some(Reverse((race, at, start, end))) = pending.pop().filter(|it| it.0.0 < limit) {
            if accepts(race) {
                return Some(race);
            }
            add(&mut pending, start..at);
            add(&mut pending, at + 1..end);
        }
        None
    }
}
