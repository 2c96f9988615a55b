//! The times of the nodes of the happens-before graph.
//!
//! Every instruction begins as soon as what happens before it has ended and takes the time that `cost` gives,
//! unless its times are measured. Kernels of one rank compute one after another, in the order in which they
//! become ready, because a large kernel fills the GPU.

use std::{cmp::Reverse, collections::BinaryHeap};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    SliceKind,
    items::{Duration, Item},
};
use crate::sync::happens_before::HappensBeforeGraph;

/// The times of the nodes of a graph.
pub(super) struct Times<'a> {
    graph: &'a HappensBeforeGraph,
    pub items: &'a [Item],
    /// By node: its item.
    pub item_of: Vec<u32>,
    followers: Vec<Vec<u32>>,
    /// By node: the number of predecessors whose time is not known.
    missing: Vec<u32>,
    /// By node: its time, once it is known, and the predecessor that determined it.
    pub times: Vec<Option<f64>>,
    pub causes: Vec<Option<u32>>,
    /// By node of a detached item: when its work would be done if it took no time.
    released: FxHashMap<u32, f64>,
    /// The nodes that a kernel on another stream determined, because it occupied the multiprocessors.
    pub crowded: FxHashSet<u32>,
    /// By item: its microseconds, if they are estimated, with what a kernel before it on another stream makes of them.
    lengths: Vec<f64>,
    /// By rank: when communications end, in ascending order.
    communication_ends: Vec<Vec<f64>>,
    /// By rank: when the last kernel ends, and its last node.
    compute_free: Vec<(f64, u32)>,
    /// By rank: when kernels began and ended, in this order, with the last node of each.
    kernels: Vec<Vec<(f64, f64, u32)>>,
    /// When the run begins its work, and how long a stream takes to notice the end of work on another one.
    latency: Latency,
    /// The nodes that are ready, by time.
    ready: BinaryHeap<Reverse<(Instant, u32)>>,
}

/// Microseconds between pieces of work.
#[derive(Clone, Copy, Default)]
pub(super) struct Latency {
    /// Before the first work of a run.
    pub start: f64,
    /// Between the end of work on a stream and work on another stream of the rank that waits for it.
    pub event: f64,
}

/// A time that can be ordered: microseconds, not NaN.
#[derive(Clone, Copy, PartialEq)]
struct Instant(f64);

impl Eq for Instant {}

impl Ord for Instant {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Instant {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Times<'a> {
    /// Computes the times of all nodes of a graph over this many ranks.
    pub fn of(graph: &'a HappensBeforeGraph, items: &'a [Item], ranks: usize, latency: Latency) -> Self {
        let count = graph.nodes.len();
        let mut followers = vec![Vec::new(); count];
        for (node, before) in graph.predecessors.iter().enumerate() {
            before.iter().for_each(|it| followers[*it as usize].push(node as u32));
        }
        let mut item_of = vec![0; count];
        for (number, it) in items.iter().enumerate() {
            item_of[it.first as usize..=it.last as usize].fill(number as u32);
        }
        let mut it = Self {
            graph,
            items,
            item_of,
            followers,
            missing: graph.predecessors.iter().map(|it| it.len() as u32).collect(),
            times: vec![None; count],
            causes: vec![None; count],
            released: FxHashMap::default(),
            crowded: FxHashSet::default(),
            lengths: items.iter().map(|it| it.duration.microseconds()).collect(),
            communication_ends: vec![Vec::new(); ranks],
            compute_free: vec![(0.0, 0); ranks],
            kernels: vec![Vec::new(); ranks],
            latency,
            ready: BinaryHeap::new(),
        };
        it.run();
        it
    }

    fn run(&mut self) {
        let free: Vec<u32> =
            (0..self.missing.len() as u32).filter(|it| self.missing[*it as usize] == 0).collect();
        free.into_iter().for_each(|node| self.push(node));
        while let Some(Reverse((Instant(time), node))) = self.ready.pop() {
            let number = self.item_of[node as usize] as usize;
            let item = &self.items[number];
            let time = match item.duration {
                Duration::Measured(begin, _) if node == item.first => begin,
                Duration::Measured(_, end) if node == item.last => end,
                Duration::Estimated(_) if node == item.last => time + self.lengths[number],
                Duration::Estimated(microseconds)
                    if node == item.first && item.kind == SliceKind::Compute && microseconds > 0.0 =>
                {
                    // Nodes are popped in the order in which they become ready, so kernels queue in that
                    // order.
                    let (free, kernel) = &mut self.compute_free[item.inst_ref.rank];
                    if *free > time {
                        self.causes[node as usize] = Some(*kernel);
                        self.crowded.insert(node);
                    }
                    let begin = time.max(*free);
                    // While it waits, it also runs on what the kernel before leaves.
                    let microseconds =
                        microseconds + (item.cost.crowding - 1.0) * (begin - time).min(item.alone);
                    self.lengths[number] = microseconds;
                    (*free, *kernel) = (begin + microseconds, item.last);
                    self.kernels[item.inst_ref.rank].push((begin, *free, *kernel));
                    begin
                }
                Duration::Estimated(_) if node == item.first && item.waits_for_kernel => {
                    let kernels = self.kernels[item.inst_ref.rank].iter().rev();
                    match kernels.take_while(|it| it.1 > time).find(|it| it.0 < time) {
                        Some((_, end, kernel)) => {
                            self.causes[node as usize] = Some(*kernel);
                            self.crowded.insert(node);
                            *end
                        }
                        None => time,
                    }
                }
                Duration::Estimated(_) | Duration::Measured(..) => time,
            };
            let ends = &mut self.communication_ends[item.inst_ref.rank];
            if node == item.first && item.cost.skew > 0.0 {
                let last = ends[..ends.partition_point(|it| *it <= time)].last().copied().unwrap_or(0.0);
                self.lengths[number] -= (item.cost.skew - (time - last)).max(0.0);
            }
            if node == item.last && item.is_work && item.kind == SliceKind::Communication {
                ends.insert(ends.partition_point(|it| *it <= time), time);
            }
            self.times[node as usize] = Some(time);
            for next in std::mem::take(&mut self.followers[node as usize]) {
                self.missing[next as usize] -= 1;
                if self.missing[next as usize] == 0 {
                    self.push(next);
                }
            }
        }
    }

    /// Adds a node whose predecessors all have times.
    fn push(&mut self, node: u32) {
        let item = &self.items[self.item_of[node as usize] as usize];
        if !item.begins || node == item.last && !item.ends {
            return;
        }
        let (before, this) = (self.graph.predecessors[node as usize].iter(), &*self);
        // When each of them lets the node begin. Detached items do so with the end of their work, or as if it took no time.
        let known = |as_if_released: bool| {
            let known = before.clone().map(move |it| {
                let other = &this.items[this.item_of[*it as usize] as usize];
                let is_hop = other.inst_ref.rank == item.inst_ref.rank && other.actor != item.actor;
                let latency = if is_hop { this.latency.event } else { 0.0 };
                let waits = item.is_detached || item.is_queued && other.actor == item.actor;
                let released = this.released.get(it).filter(|_| as_if_released || !waits).copied();
                (released.or(this.times[*it as usize]).unwrap_or(0.0) + latency, *it)
            });
            known.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
        };
        let last = known(false);
        let released = item.is_detached.then(|| known(true).map_or(0.0, |it| it.0));
        self.causes[node as usize] = last.map(|it| it.1);
        self.released.extend(released.map(|it| (node, it)));
        self.ready.push(Reverse((Instant(last.map_or(self.latency.start, |it| it.0)), node)));
    }
}
