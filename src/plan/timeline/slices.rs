//! Turns the times of the happens-before graph into slices.

use rustc_hash::FxHashSet;

use super::{Diagnosis, Lane, Row, Slice, SliceKind, Timeline, label_of, rows_of, times::Times};
use crate::{
    InstKind, Plan, World,
    sync::{Cause, InstRef, WorldState, explain, happens_before::first_actors},
};

/// Waits that are shorter are not shown, in microseconds.
const SHORTEST_WAIT: f64 = 1e-6;

impl Times<'_> {
    /// Returns the slices of work that takes time, of waits, and of what never ends. If `classes` is not empty, only the first rank of
    /// each class has rows.
    pub(super) fn timeline(
        &self,
        plans: &World,
        state: Option<&WorldState>,
        source: String,
        classes: Vec<Vec<usize>>,
    ) -> Timeline {
        let first_actor = first_actors(plans);
        let mut first_row = Vec::new();
        let mut rows: Vec<Row> = Vec::new();
        let shown: FxHashSet<usize> = classes.iter().filter_map(|it| it.first().copied()).collect();
        for plan in plans.iter() {
            first_row.push(rows.len());
            if classes.is_empty() || shown.contains(&plan.rank) {
                rows.extend(rows_of(plan));
            }
        }
        let mut slices: Vec<Slice> = Vec::new();
        // By item: its slice.
        let mut slice_of: Vec<Option<usize>> = vec![None; self.items.len()];
        let next_begins = self.next_begins();
        // The actor of the last item that ended, and when.
        let mut previous_end: Option<(u32, f64)> = None;
        for (number, item) in self.items.iter().enumerate() {
            let before = previous_end.filter(|it| it.0 == item.actor).map_or(0.0, |it| it.1);
            let (begin, end) = (self.times[item.first as usize], self.times[item.last as usize]);
            let end = end.map(|it| if item.is_work { it } else { it.min(next_begins[number]) });
            if let Some(end) = end {
                previous_end = Some((item.actor, end));
            }
            let InstRef { rank, inst } = item.inst_ref;
            let row = first_row[rank] + 1 + (item.actor - first_actor[rank]) as usize;
            let is_queue = matches!(rows[row].lane, Lane::Queue { .. });
            // Work runs from its beginning. A synchronization lasts from the end of what precedes it.
            let (begin, end) = match (begin, end) {
                (Some(begin), Some(end)) if item.is_work => (begin, Some(end)),
                (Some(begin), None) if item.is_work => (begin, None),
                (Some(_), Some(end)) if end > before + SHORTEST_WAIT && !is_queue => (before, Some(end)),
                (_, None) if item.begins && !is_queue && self.is_next(number) => (before, None),
                _ => continue,
            };
            slice_of[number] = Some(slices.len());
            let kind = if item.is_work { item.kind } else { SliceKind::Wait };
            let slowed = if item.is_work { item.duration.microseconds() - item.alone } else { 0.0 };
            let shares_link = item.shares_link;
            slices.push(Slice {
                slowed,
                shares_link,
                ..slice(&plans[rank], inst, (row, kind), (begin, end))
            });
        }
        for (number, slice) in slice_of.iter().enumerate() {
            if let Some(slice) = slice {
                let (cause, is_crowded) = self.cause(number, &slice_of);
                slices[*slice].cause = cause.filter(|it| it != slice);
                slices[*slice].is_crowded = is_crowded;
            }
        }
        for (rank, position) in state.into_iter().flatten().enumerate() {
            let plan = &plans[rank];
            if let Some(inst) = position.as_ref().map(|it| it.issued).filter(|it| *it < plan.code.len()) {
                // The host never passes this instruction.
                slices.push(slice(plan, inst, (first_row[rank], SliceKind::Wait), (0.0, None)));
            }
        }
        let diagnosis = state.map(|it| diagnosis(plans, it)).unwrap_or_default();
        sorted(Timeline { rows, slices, source, classes, diagnosis, ..Timeline::default() })
    }

    /// By item: when the next work of its actor begins. A wait is over by then, even if its own time is later: that of
    /// work of another rank is measured with another clock, and a kernel over peer memory waits and works in one.
    fn next_begins(&self) -> Vec<f64> {
        let mut next_begins = vec![f64::INFINITY; self.items.len()];
        let mut next: Option<(u32, f64)> = None;
        for (number, item) in self.items.iter().enumerate().rev() {
            next = next.filter(|it| it.0 == item.actor);
            next_begins[number] = next.map_or(f64::INFINITY, |it| it.1);
            if let Some(begin) = self.times[item.first as usize].filter(|_| item.is_work) {
                next = Some((item.actor, begin));
            }
        }
        next_begins
    }

    /// Returns true if the item that precedes this one on its actor has ended.
    fn is_next(&self, item: usize) -> bool {
        let before =
            item.checked_sub(1).map(|it| &self.items[it]).filter(|it| it.actor == self.items[item].actor);
        before.is_none_or(|it| self.times[it.last as usize].is_some())
    }

    /// Returns the slice that determined when an item ended or, if nothing but the item itself did, began; and whether it did so
    /// because it occupied the multiprocessors.
    fn cause(&self, number: usize, slice_of: &[Option<usize>]) -> (Option<usize>, bool) {
        let item = &self.items[number];
        let outside = |node: u32| !(item.first..=item.last).contains(&node);
        let held = (item.first..=item.last)
            .rev()
            .find_map(|inner| Some((inner, self.causes[inner as usize].filter(|it| outside(*it))?)));
        let is_crowded = held.is_some_and(|it| self.crowded.contains(&it.0));
        let mut node = held.map(|it| it.1);
        // Synchronization takes no time: follow it to the work behind it.
        while let Some(at) = node {
            let of = self.item_of[at as usize] as usize;
            if slice_of[of].is_some() && self.items[of].is_work {
                return (slice_of[of], is_crowded);
            }
            node = self.causes[at as usize];
        }
        (None, false)
    }
}

/// Explains a deadlock: the ranks that skip a communication or wait for each other are named, and what they wait in.
fn diagnosis(world: &World, state: &WorldState) -> Diagnosis {
    let found = explain(world, state);
    let skipping = found.skips.iter().flat_map(|it| it.ranks.iter().copied());
    let ranks: Vec<usize> = match &found.cause {
        Cause::Cycle { ranks, .. } => skipping.chain(ranks.iter().copied()).collect(),
        Cause::NeverSatisfied { .. } => skipping.collect(),
    };
    let calls = found.waits.iter().map(|it| it.inst_ref).filter(|it| ranks.contains(&it.rank)).collect();
    Diagnosis { lines: found.to_string().lines().map(str::to_owned).collect(), ranks, calls }
}

/// Returns the slice of an instruction, without its cause.
fn slice(
    plan: &Plan,
    inst: usize,
    (row, kind): (usize, SliceKind),
    (begin, end): (f64, Option<f64>),
) -> Slice {
    let instruction = &plan.code[inst];
    Slice {
        row,
        kind,
        inst_ref: InstRef { rank: plan.rank, inst },
        line: Some(plan.origins[instruction.origin as usize].line),
        iteration: plan.iteration(instruction),
        label: label_of(instruction).to_owned(),
        is_copy: matches!(instruction.kind, InstKind::Copy { .. }),
        begin,
        end,
        slowed: 0.0,
        shares_link: false,
        cause: None,
        is_crowded: false,
    }
}

/// Returns the timeline with its slices in the order in which they begin.
fn sorted(mut timeline: Timeline) -> Timeline {
    let mut order: Vec<usize> = (0..timeline.slices.len()).collect();
    order.sort_by(|a, b| timeline.slices[*a].begin.total_cmp(&timeline.slices[*b].begin));
    let mut place = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, old)| place[*old] = new);
    let mut slices: Vec<Slice> = order.iter().map(|it| timeline.slices[*it].clone()).collect();
    slices.iter_mut().for_each(|it| it.cause = it.cause.map(|old| place[old]));
    timeline.slices = slices;
    timeline
}
