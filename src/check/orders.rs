//! The orders in which a program's steps may happen, one for each result that they may give.
//!
//! Two orders give the same result where all pairs of conflicting steps (they touch the same elements, and one writes) happen in the same
//! order: they are one trace in the sense of Mazurkiewicz (1977). From the order of the program on, the next traces are those in which
//! one conflicting pair is exchanged, with what has to go along. All traces are reached that way: between any two linear extensions of a
//! partial order there is a path that exchanges neighbours. The traces with few exchanges come first.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    overlap::{Footprint, Overlap, overlap},
};
use crate::plan::{
    BufferNo, Plan,
    sync::{
        CommMatching, InstRef, Step,
        happens_before::{HappensBeforeGraph, OrderError},
    },
};

/// Most things that happen in a program whose orders are listed: the order of all pairs is kept, a bit each.
const MAX_NODES: usize = 30_000;
/// Most pairs that conflict.
const MAX_CONFLICTS: usize = 1 << 22;
/// Most numbers that are kept of orders whose neighbours have not been looked at, and of traces that have been seen.
const MAX_STORED_WORDS: usize = 1 << 27;

/// Why the orders of a program are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// It has so many instructions, or steps and synchronizations.
    #[error("the program is too large: its {0} steps and synchronizations are more than {MAX_NODES}")]
    Nodes(usize),
    /// Its world has too many streams and communicators.
    #[error("the world has too many streams and communicators")]
    Streams,
    /// It has too many races.
    #[error(
        "the program has too many pairs of conflicting accesses that nothing orders: more than {MAX_CONFLICTS}"
    )]
    Conflicts,
}

/// A set of steps.
#[derive(Clone, Default)]
struct StepSet(Vec<u64>);

impl StepSet {
    fn with_capacity(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn union_with(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }
}

/// An access of a step.
struct StepFootprint {
    step: usize,
    footprint: Footprint,
    written: bool,
}

/// The steps of all ranks that touch memory, and what orders them.
pub struct StepOrder {
    /// In an order that is possible: that of the program, as far as it can be.
    pub steps: Vec<Step>,
    /// By step: those that happen before it in every order.
    before: Vec<StepSet>,
    /// By step: those that conflict with it, in no certain order.
    conflicting: Vec<StepSet>,
    /// All pairs that conflict and have no certain order: one pair for each pair of source lines first, then the rest.
    pub conflicts: Vec<(usize, usize)>,
}

impl StepOrder {
    /// The steps of plans that do not deadlock.
    ///
    /// # Errors
    /// A program that is too large.
    pub fn of(plans: &[Plan], matched: &CommMatching) -> Result<Self, TooLarge> {
        let instructions = plans.iter().map(|it| it.code.len()).sum::<usize>();
        if instructions > MAX_NODES {
            return Err(TooLarge::Nodes(instructions));
        }
        let graph = HappensBeforeGraph::from_plans(plans, matched)
            .map_err(|(OrderError::TooLarge | OrderError::Deadlock)| TooLarge::Streams)?;
        if graph.nodes.len() > MAX_NODES {
            return Err(TooLarge::Nodes(graph.nodes.len()));
        }
        let sorted = graph.topological_order();
        let touched = |node: &u32| {
            let step = graph.nodes[*node as usize].step?;
            let touched = step.accesses(plans, matched);
            (!touched.is_empty()).then_some((*node, step, touched))
        };
        let all: Vec<_> = sorted.iter().filter_map(touched).collect();
        let number: FxHashMap<u32, usize> = all.iter().enumerate().map(|(at, it)| (it.0, at)).collect();
        let mut known = vec![StepSet::default(); graph.nodes.len()];
        for node in sorted {
            let mut set = StepSet::with_capacity(all.len());
            for it in &graph.predecessors[node as usize] {
                set.union_with(&known[*it as usize]);
                if let Some(step) = number.get(it) {
                    set.insert(*step);
                }
            }
            known[node as usize] = set;
        }
        let before: Vec<StepSet> = all.iter().map(|it| std::mem::take(&mut known[it.0 as usize])).collect();
        let mut conflicting = vec![StepSet::with_capacity(all.len()); all.len()];
        let mut conflicts = Vec::new();
        let mut accesses: FxHashMap<(usize, BufferNo), Vec<StepFootprint>> = FxHashMap::default();
        for (at, (_, _, touched)) in all.iter().enumerate() {
            for it in touched {
                let Some(place) = Footprint::of(&it.view) else { continue };
                let known = accesses.entry((it.rank, it.view.buffer)).or_default();
                for StepFootprint { step: other, footprint: elsewhere, written } in known.iter() {
                    let is_conflict = *other != at
                        && (*written || it.is_write)
                        && !before[at].contains(*other)
                        && overlap(elsewhere, &place) != Overlap::None;
                    if is_conflict && !conflicting[at].contains(*other) {
                        if conflicts.len() == MAX_CONFLICTS {
                            return Err(TooLarge::Conflicts);
                        }
                        conflicting[at].insert(*other);
                        conflicting[*other].insert(at);
                        conflicts.push((*other, at));
                    }
                }
                known.push(StepFootprint { step: at, footprint: place, written: it.is_write });
            }
        }
        let steps: Vec<Step> = all.iter().map(|it| it.1).collect();
        let origin = |it: usize| {
            let InstRef { rank, inst } = steps[it].inst_ref;
            plans[rank].origins[plans[rank].code[inst].origin as usize].line
        };
        let mut seen = FxHashSet::default();
        let (mut first, again): (Vec<_>, Vec<_>) =
            conflicts.into_iter().partition(|it| seen.insert((origin(it.0), origin(it.1))));
        first.extend(again);
        Ok(Self { steps, before, conflicting, conflicts: first })
    }

    /// Whether `first` has to happen before `second` in every order that has the conflicts of this one.
    fn precedes(&self, first: usize, second: usize) -> bool {
        self.before[second].contains(first) || self.conflicting[second].contains(first)
    }

    /// The order in which `late` happens before `early`, which it conflicts with, and everything else as before; `None`: something between
    /// them has to be exchanged first.
    fn exchange(&self, order: &[u32], position: &[u32], early: usize, late: usize) -> Option<Vec<u32>> {
        let (from, to) = (position[early] as usize, position[late] as usize);
        let mut moved = vec![late];
        let mut stays = vec![early as u32];
        for at in (from + 1..to).rev() {
            let it = order[at] as usize;
            if moved.iter().any(|later| self.precedes(it, *later)) {
                moved.push(it);
            } else {
                stays.push(it as u32);
            }
        }
        // Both were collected from the end; `early` stays first.
        stays[1..].reverse();
        if moved[1..].iter().any(|it| self.precedes(early, *it)) {
            return None;
        }
        moved.reverse();
        let mut next = order[..from].to_vec();
        next.extend(moved.iter().map(|it| *it as u32));
        next.extend(stays);
        next.extend(&order[to + 1..]);
        Some(next)
    }

    /// The steps up to `late`, in an order in which it happens before `early`. Nothing may order the two.
    pub fn prefix_with_late_first(&self, early: usize, late: usize) -> Vec<Step> {
        let is_needed = |it: usize| it == late || self.before[late].contains(it);
        (0..self.steps.len()).filter(|it| is_needed(*it) && *it != early).map(|it| self.steps[it]).collect()
    }

    /// The steps of an order that shows a race: the side that comes later in the order of the program comes first. `None`: no order of
    /// the program's own steps shows it, since the caller or the allocator takes part.
    pub fn witness(&self, race: &Race) -> Option<Vec<Step>> {
        let at = |party: Party| match party {
            Party::Inst(at) | Party::Operation(at, _) | Party::CallerAfter(at) => Some(at),
            Party::CallerBefore => None,
        };
        let [(a, _), (b, _)] = race.parties;
        let (a, b) = at(a).zip(at(b)).filter(|_| race.reused.is_none())?;
        let is_pair =
            |one: usize, other: usize| self.steps[one].inst_ref == a && self.steps[other].inst_ref == b;
        let mut pairs = self.conflicts.iter().copied();
        let (early, late) = pairs.find(|it| is_pair(it.0, it.1) || is_pair(it.1, it.0))?;
        Some(self.prefix_with_late_first(early, late))
    }
}

/// All orders that may give different results, that of the program first.
pub struct Orders {
    steps: StepOrder,
    /// Orders whose neighbours have not been looked at.
    next: VecDeque<Vec<u32>>,
    /// By trace: which of the conflicting pairs are exchanged.
    seen: FxHashSet<Vec<u64>>,
    /// Most orders that are listed.
    max_orders: usize,
    /// Why there are more that are not listed.
    cut: Option<Truncation>,
}

/// Why not all orders are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// As many are listed as were asked for.
    OrderLimit,
    /// The list has reached its memory limit.
    MemoryLimit,
}

impl Orders {
    /// At most so many orders, and at least one.
    pub fn new(steps: StepOrder, most: usize) -> Self {
        let first: Vec<u32> = (0..steps.steps.len() as u32).collect();
        let mut it = Self {
            steps,
            next: VecDeque::new(),
            seen: FxHashSet::default(),
            max_orders: most.max(1),
            cut: None,
        };
        it.add(first);
        it
    }

    /// How many pairs of steps conflict in no certain order.
    pub fn conflicts(&self) -> usize {
        self.steps.conflicts.len()
    }

    /// Why some orders were left out, once all listed ones have been taken; `None`: none was.
    pub fn truncation(&self) -> Option<Truncation> {
        self.cut
    }

    fn add(&mut self, order: Vec<u32>) {
        let mut position = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, it)| position[*it as usize] = at);
        let mut trace = StepSet::with_capacity(self.steps.conflicts.len());
        for (number, (a, b)) in self.steps.conflicts.iter().enumerate() {
            if position[*b] < position[*a] {
                trace.insert(number);
            }
        }
        if self.seen.contains(&trace.0) {
            return;
        }
        let kept = self.seen.len() * (trace.0.len() + 8) + (self.next.len() + 1) * order.len();
        if self.seen.len() == self.max_orders || kept > MAX_STORED_WORDS {
            self.cut =
                Some(if kept > MAX_STORED_WORDS { Truncation::MemoryLimit } else { Truncation::OrderLimit });
            return;
        }
        self.seen.insert(trace.0);
        self.next.push_back(order);
    }
}

impl Iterator for Orders {
    type Item = Vec<Step>;

    fn next(&mut self) -> Option<Vec<Step>> {
        let order = self.next.pop_front()?;
        let mut position = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, it)| position[*it as usize] = at as u32);
        for number in 0..self.steps.conflicts.len() {
            if self.cut.is_some() {
                break;
            }
            let (a, b) = self.steps.conflicts[number];
            let (early, late) = if position[a] < position[b] { (a, b) } else { (b, a) };
            if let Some(next) = self.steps.exchange(&order, &position, early, late) {
                self.add(next);
            }
        }
        Some(order.iter().map(|it| self.steps.steps[*it as usize]).collect())
    }
}
