//! What each communication of a program costs: how long the program would take without it.
//!
//! A communication is *free* if it takes no time, though ranks still meet in it. It is *hidden* if its queue, its links and the
//! multiprocessors have all of its work, but only what is behind it in its queue waits for it.

use std::collections::BTreeMap;

use super::{
    SliceKind, Timeline,
    cost::CostModel,
    estimate::Estimation,
    items::{Duration, Item},
    overlap::{intersection, length, union},
};
use crate::{World, sync::happens_before::OrderError};

/// What a communication costs, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Gain {
    /// The line of its statement.
    pub line: u32,
    /// What it does: `Allreduce`.
    pub label: String,
    /// The rank on which it is exposed longest; its times are those of this rank.
    pub rank: usize,
    /// How often it runs there.
    pub count: usize,
    /// How long it takes, all iterations together.
    pub time: f64,
    /// How long a kernel computes meanwhile.
    pub hidden: f64,
    /// The time of the program if it were free; `None` if that was not estimated.
    pub if_free: Option<f64>,
    /// The time of the program if it were hidden; `None` if that was not estimated.
    pub if_hidden: Option<f64>,
}

impl Gain {
    /// Returns how long no kernel computes beside it.
    pub fn exposed(&self) -> f64 {
        (self.time - self.hidden).max(0.0)
    }

    /// Returns how long the program takes without it; the time with it is `total`. `None` if that was not estimated.
    pub fn what_if(&self, total: f64) -> Option<String> {
        let (line, free, hidden) = (self.line, self.if_free?, self.if_hidden?);
        Some(format!(
            "the run of {total:.1} µs takes {free:.1} µs if the {} of line {line} is free, {hidden:.1} µs if it is hidden",
            self.label
        ))
    }

    /// Returns the least time of the program that is known without it; the time with it is `total`.
    pub fn least(&self, total: f64) -> f64 {
        self.if_free.into_iter().chain(self.if_hidden).fold(total, f64::min)
    }
}

/// Estimates a world, and what each of its communications costs: those that gain most if they are free come first. The times without a
/// communication are for the load of the GPUs with all of them, and estimated as long as `admits` agrees to so many instructions.
///
/// # Errors
/// The world has too many streams.
pub fn gains(
    world: &World,
    model: &CostModel<'_>,
    admits: &mut dyn FnMut(usize) -> bool,
) -> Result<(Timeline, Vec<Gain>), OrderError> {
    let (estimation, mut timeline) = Estimation::of_world(world, model)?;
    let mut found = communications(&timeline);
    if timeline.slices.iter().any(|it| it.end.is_none()) {
        return Ok((timeline, found));
    }
    found.sort_by(|a, b| b.exposed().total_cmp(&a.exposed()));
    let line_of = |item: &Item| {
        let plan = &world[item.inst_ref.rank];
        plan.origins[plan.code[item.inst_ref.inst].origin as usize].line
    };
    let with = |line: u32, change: fn(&mut Item)| {
        let mut items = estimation.items.clone();
        let is_part =
            |it: &Item| matches!(it.kind, SliceKind::Communication | SliceKind::Wait) && line_of(it) == line;
        items.iter_mut().filter(|it| is_part(it)).for_each(change);
        estimation.settle(&mut items, String::new()).end()
    };
    for it in &mut found {
        if admits(2 * estimation.items.len()) {
            it.if_free = Some(with(it.line, Item::remove_work));
            it.if_hidden = Some(with(it.line, |it| it.is_detached = true));
        }
    }
    let total = timeline.end();
    found.sort_by(|a, b| a.least(total).total_cmp(&b.least(total)).then(a.line.cmp(&b.line)));
    timeline.what_if = found.iter().filter_map(|it| Some((it.line, it.what_if(total)?))).collect();
    Ok((timeline, found))
}

impl Item {
    /// Makes it take no time.
    fn remove_work(&mut self) {
        (self.duration, self.alone, self.cost) = (Duration::Estimated(0.0), 0.0, super::cost::Cost::NONE);
        (self.is_work, self.waits_for_kernel, self.contention) = (false, false, 1.0);
        self.links.clear();
    }
}

/// The intervals of the communications of a line on a rank, and their labels.
type Intervals<'t> = (Vec<(f64, f64)>, Vec<&'t str>);

/// Returns the communications of a timeline, in the order of the text.
fn communications(timeline: &Timeline) -> Vec<Gain> {
    // By rank: when kernels compute.
    let mut compute: BTreeMap<usize, Vec<(f64, f64)>> = BTreeMap::new();
    let mut all: BTreeMap<(u32, usize), Intervals<'_>> = BTreeMap::new();
    for it in &timeline.slices {
        let rank = timeline.rows[it.row].rank;
        let time = it.end.map(|end| (it.begin, end));
        match it.kind {
            SliceKind::Compute => compute.entry(rank).or_default().extend(time),
            SliceKind::Communication => {
                let of = all.entry((it.line.unwrap_or(0), rank)).or_default();
                of.0.extend(time);
                of.1.push(&it.label);
            }
            SliceKind::DataMovement | SliceKind::Wait => {}
        }
    }
    let compute: BTreeMap<usize, _> = compute.into_iter().map(|(rank, it)| (rank, union(it))).collect();
    let mut found: Vec<Gain> = Vec::new();
    for ((line, rank), (times, mut labels)) in all {
        let count = labels.len();
        labels.sort_unstable();
        labels.dedup();
        let times = union(times);
        let hidden = compute.get(&rank).map_or(0.0, |it| length(&intersection(&times, it)));
        let (label, time) = (labels.join(", "), length(&times));
        let it = Gain { line, label, rank, count, time, hidden, if_free: None, if_hidden: None };
        match found.last_mut().filter(|other| other.line == line) {
            Some(other) if other.exposed() >= it.exposed() => {}
            Some(other) => *other = it,
            None => found.push(it),
        }
    }
    found
}
