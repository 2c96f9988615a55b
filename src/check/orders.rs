//! Enumerates the possible orders of a program's steps, one for each equivalence class of orders that give
//! the same result.
//!
//! Two orders give the same result if all pairs of conflicting steps (they touch the same elements, and one
//! writes) happen in the same order: they are one trace in the sense of Mazurkiewicz (1977). The enumeration
//! starts with program order. The successors of a trace are those in which one conflicting pair is exchanged,
//! together with the steps that must move with it. This reaches all traces, because any two linear extensions
//! of a partial order are connected by exchanges of neighbours. Traces with few exchanges come first.

use std::{cmp::Reverse, collections::VecDeque};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    overlap::{Footprint, Overlap, overlap},
};
use hir_plan::{
    BufferNo, World,
    sync::{
        InstRef, Step, StepAccess,
        happens_before::{HappensBeforeGraph, OrderError},
    },
};

/// The maximum number of nodes of the order graph. The order of all pairs of nodes is stored with one bit
/// each.
const MAX_NODES: usize = 30_000;
/// The maximum number of unordered conflicting pairs.
const MAX_CONFLICTS: usize = 1 << 22;
/// The maximum number of stored words, for orders whose successors are not yet generated and for visited
/// traces.
const MAX_STORED_WORDS: usize = 1 << 27;

/// The maximum number of orders that exhibit one race.
const MAX_WITNESSES: usize = 8;

/// Why the orders of a program are not enumerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TooLarge {
    /// The program has too many instructions, or steps and synchronizations.
    #[error("the program is too large: its {0} steps and synchronizations are more than {MAX_NODES}")]
    Nodes(usize),
    /// The world has too many streams and communicators.
    #[error("the world has too many streams and communicators")]
    Streams,
    /// The program has too many races.
    #[error(
        "the program has too many pairs of conflicting accesses that nothing orders: more than {MAX_CONFLICTS}"
    )]
    Conflicts,
}

/// A bit set of steps.
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

/// An access by a step.
struct StepFootprint {
    step: usize,
    footprint: Footprint,
    written: bool,
}

/// The steps of all ranks that access memory, and their order.
pub struct StepOrder {
    /// The steps in a possible order: program order as far as possible.
    pub steps: Vec<Step>,
    /// For each step, the steps that happen before it in every order.
    before: Vec<StepSet>,
    /// For each step, the steps that conflict with it and are not ordered with it.
    conflicting: Vec<StepSet>,
    /// All unordered conflicting pairs. The first pair of each pair of source lines comes first, then the
    /// rest.
    pub conflicts: Vec<(usize, usize)>,
}

impl StepOrder {
    /// Computes the steps of plans that do not deadlock.
    ///
    /// # Errors
    /// The program is too large.
    pub fn of(world: &World) -> Result<Self, TooLarge> {
        let graph = graph_of(world)?;
        if graph.nodes.len() > MAX_NODES {
            return Err(TooLarge::Nodes(graph.nodes.len()));
        }
        let sorted = graph.topological_order();
        let touched = |node: &u32| {
            let step = graph.nodes[*node as usize].step?;
            let touched = step.accesses(world);
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
                let Some(footprint) = Footprint::of(&it.view) else { continue };
                let known = accesses.entry((it.rank, it.view.buffer)).or_default();
                for StepFootprint { step: other, footprint: elsewhere, written } in known.iter() {
                    let is_conflict = *other != at
                        && (*written || it.is_write)
                        && !before[at].contains(*other)
                        && overlap(elsewhere, &footprint) != Overlap::None;
                    if is_conflict && !conflicting[at].contains(*other) {
                        if conflicts.len() == MAX_CONFLICTS {
                            return Err(TooLarge::Conflicts);
                        }
                        conflicting[at].insert(*other);
                        conflicting[*other].insert(at);
                        conflicts.push((*other, at));
                    }
                }
                known.push(StepFootprint { step: at, footprint, written: it.is_write });
            }
        }
        let steps: Vec<Step> = all.iter().map(|it| it.1).collect();
        let origin = |it: usize| {
            let InstRef { rank, inst } = steps[it].inst_ref;
            world[rank].origins[world[rank].code[inst].origin as usize].line
        };
        let mut seen = FxHashSet::default();
        let (mut first, again): (Vec<_>, Vec<_>) =
            conflicts.into_iter().partition(|it| seen.insert((origin(it.0), origin(it.1))));
        first.extend(again);
        Ok(Self { steps, before, conflicting, conflicts: first })
    }

    /// Returns true if `first` must happen before `second` in every order with the same trace as program
    /// order.
    fn precedes(&self, first: usize, second: usize) -> bool {
        self.before[second].contains(first) || self.conflicting[second].contains(first)
    }

    /// Returns `order` with `late` moved before the conflicting step `early`, and everything else in the same
    /// relative order. Returns `None` if another pair between them must be exchanged first.
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
        // Both lists were collected from the end; `early` stays first.
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

    /// Returns the steps up to `late` in an order in which `late` happens before `early`, and what precedes `early` before both: else a write
    /// there would hide what `late` writes. The two steps must be unordered.
    pub fn prefix_with_late_first(&self, early: usize, late: usize) -> Vec<Step> {
        let is_needed = |it: usize| self.before[late].contains(it) || self.before[early].contains(it);
        let needed = (0..self.steps.len()).filter(|it| is_needed(*it) && *it != late);
        needed.chain([late]).map(|it| self.steps[it]).collect()
    }

    /// Returns the first of `early` and the steps that follow it that reads what `late` writes, and is not ordered with it: of two writes, the
    /// later one shows there. Returns `early` if there is none.
    fn first_reader(&self, world: &World, early: usize, late: usize) -> usize {
        let writes: Vec<_> = self.steps[late].accesses(world).into_iter().filter(|it| it.is_write).collect();
        let reads = |step: usize| {
            self.steps[step].accesses(world).iter().filter(|it| !it.is_write).any(|read| {
                let is_same =
                    |it: &&StepAccess<'_>| (it.rank, it.view.buffer) == (read.rank, read.view.buffer);
                writes.iter().filter(is_same).any(|it| {
                    let both = Footprint::of(&it.view).zip(Footprint::of(&read.view));
                    both.is_some_and(|(one, other)| overlap(&one, &other) != Overlap::None)
                })
            })
        };
        let later =
            (early + 1..self.steps.len()).filter(|it| *it != late && self.before[*it].contains(early));
        let all = std::iter::once(early).chain(later);
        all.filter(|it| self.conflicting[late].contains(*it)).find(|it| reads(*it)).unwrap_or(early)
    }

    /// Returns the steps up to the last one of `late` that conflicts with a step of `early`, in two orders in which it happens before the first
    /// such step, of which the second one has more steps. Returns `None` if all such steps are ordered.
    pub fn with_first(&self, late: InstRef, early: InstRef) -> Option<[Vec<Step>; 2]> {
        let is_pair =
            |it: &(usize, usize)| self.steps[it.0].inst_ref == late && self.steps[it.1].inst_ref == early;
        let pairs = self.conflicts.iter().flat_map(|it| [*it, (it.1, it.0)]).filter(is_pair);
        let (late, Reverse(early)) = pairs.map(|(late, early)| (late, Reverse(early))).max()?;
        Some([self.prefix_with_late_first(early, late), self.all_with_late_first(early, late)])
    }

    /// Returns orders that exhibit a race, each as its steps up to an access: the access that is later in program order happens first, and
    /// before what follows the other one and reads the elements. The orders after the first are of other occurrences of the two statements, and of
    /// one of them with other statements.
    /// There is none if the caller or the allocator takes part in the race.
    pub fn witnesses(&self, world: &World, race: &Race) -> Vec<Vec<Step>> {
        let at = |party: Party| match party {
            Party::Inst(at) | Party::Operation(at, _) | Party::CallerAfter(at) => Some(at),
            Party::Free(..) | Party::CallerBefore => None,
        };
        let [(a, _), (b, _)] = race.parties;
        let Some((a, b)) = at(a).zip(at(b)).filter(|_| race.reused.is_none()) else { return Vec::new() };
        let of = |at: usize| self.steps[at].inst_ref;
        let stmt = |it: InstRef| world[it.rank].origins[world[it.rank].code[it.inst].origin as usize].stmt;
        let is_pair = |it: &(usize, usize)| [[a, b], [b, a]].contains(&[of(it.0), of(it.1)]);
        let is_like = |it: &(usize, usize)| {
            let both = [of(it.0), of(it.1)].map(stmt);
            both == [a, b].map(stmt) || both == [b, a].map(stmt)
        };
        let (own, mut others): (Vec<_>, Vec<_>) =
            self.conflicts.iter().copied().filter(is_like).partition(is_pair);
        let Some((_, late)) = own.first().copied() else { return Vec::new() };
        let Some(early) = own.into_iter().filter(|it| it.1 == late).map(|it| it.0).min() else {
            return Vec::new();
        };
        others.truncate(MAX_WITNESSES - 1);
        let all: Vec<_> = std::iter::once((early, late)).chain(others).collect();
        let first = |it: &(usize, usize)| self.first_reader(world, it.0, it.1);
        let short = |it: &(usize, usize)| self.prefix_with_late_first(first(it), it.1);
        let long = |it: &(usize, usize)| self.all_with_late_first(it.0, it.1);
        // What one of the two has written may be written again: an order in which the step that does so comes first, too, shows it.
        let is_of_one =
            |it: &&(usize, usize)| !is_like(it) && [it.0, it.1].iter().any(|it| [a, b].contains(&of(*it)));
        let of_one: Vec<_> = self.conflicts.iter().filter(is_of_one).take(MAX_WITNESSES).collect();
        let shows =
            |order: &Vec<Step>| order.contains(&self.steps[late]) && !order.contains(&self.steps[early]);
        // Hosts that wait for each other may need steps that no access follows.
        let own = all.iter().map(short).chain(all.iter().map(long));
        let further = of_one.iter().flat_map(|it| [short(it), long(it)]).filter(shows);
        own.chain(further).collect()
    }

    /// Returns the steps up to `late` in an order in which everything precedes it that is listed before it, except `early` and what follows that.
    fn all_with_late_first(&self, early: usize, late: usize) -> Vec<Step> {
        let precedes = |it: &usize| {
            *it != late
                && *it != early
                && !self.before[*it].contains(early)
                && (*it < late || self.before[late].contains(*it))
        };
        (0..self.steps.len()).filter(precedes).chain([late]).map(|it| self.steps[it]).collect()
    }
}

/// Returns the order of plans that do not deadlock.
fn graph_of(world: &World) -> Result<HappensBeforeGraph, TooLarge> {
    let instructions = world.iter().map(|it| it.code.len()).sum::<usize>();
    if instructions > MAX_NODES {
        return Err(TooLarge::Nodes(instructions));
    }
    HappensBeforeGraph::of(world).map_err(|(OrderError::TooLarge | OrderError::Deadlock)| TooLarge::Streams)
}

/// Returns the steps that happen before an instruction of plans that do not deadlock, in a possible order.
///
/// # Errors
/// The world has too many instructions, streams or communicators.
pub(super) fn steps_before(world: &World, at: InstRef) -> Result<Vec<Step>, TooLarge> {
    let graph = graph_of(world)?;
    let mut is_before = vec![false; graph.nodes.len()];
    let own = (0..graph.nodes.len() as u32).filter(|it| graph.nodes[*it as usize].inst_ref == at);
    let mut pending: Vec<u32> = own.collect();
    while let Some(it) = pending.pop() {
        for it in &graph.predecessors[it as usize] {
            if !std::mem::replace(&mut is_before[*it as usize], true) {
                pending.push(*it);
            }
        }
    }
    let sorted = graph.topological_order().into_iter().filter(|it| is_before[*it as usize]);
    let steps = sorted.filter_map(|it| graph.nodes[it as usize].step);
    Ok(steps.filter(|it| !it.accesses(world).is_empty()).collect())
}

/// An iterator over all orders that may give different results. Program order comes first.
pub struct Orders {
    steps: StepOrder,
    /// Orders whose successors are not yet generated.
    next: VecDeque<Vec<u32>>,
    /// Visited traces: a bit for each conflicting pair, set if the pair is exchanged.
    seen: FxHashSet<Vec<u64>>,
    /// The maximum number of orders to enumerate.
    max_orders: usize,
    /// Why the enumeration is incomplete, if it is.
    cut: Option<Truncation>,
}

/// Why an enumeration of orders is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// It has reached the requested number of orders.
    OrderLimit,
    /// It has reached the memory limit.
    MemoryLimit,
}

impl Orders {
    /// Enumerates at most `most` orders, and at least one.
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

    /// Returns the number of unordered conflicting pairs.
    pub fn conflicts(&self) -> usize {
        self.steps.conflicts.len()
    }

    /// Returns why some orders were left out, or `None` if the enumeration is complete. Valid after the
    /// iterator is exhausted.
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
