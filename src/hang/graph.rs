//! Which rank waits for which: the cycles of a graph whose nodes are ranks and stalls.
//!
//! A rank waits in its stalls, and a stall waits for the ranks that are absent from it. With each edge through a stall, the graph is linear in
//! the number of ranks, also if all of them wait for all others.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{record::Rank, stall::Stall};

/// A rank that waits in a stall for another rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edge {
    pub(crate) from: Rank,
    pub(crate) stall: usize,
    pub(crate) to: Rank,
}

/// The graph. Stalls that `is_open` excludes wait for nobody.
pub(crate) struct Graph<'s> {
    stalls: &'s [Stall],
    open: Vec<bool>,
    /// The stalls of each rank.
    of_rank: FxHashMap<Rank, Vec<usize>>,
}

impl<'s> Graph<'s> {
    pub(crate) fn new(stalls: &'s [Stall], open: Vec<bool>) -> Self {
        let mut of_rank: FxHashMap<Rank, Vec<usize>> = FxHashMap::default();
        for (at, stall) in stalls.iter().enumerate() {
            stall.ranks().for_each(|rank| of_rank.entry(rank).or_default().push(at));
        }
        Self { stalls, open, of_rank }
    }

    pub(crate) fn stalls(&self) -> &'s [Stall] {
        self.stalls
    }

    /// Returns the stalls in which a rank waits.
    pub(crate) fn stalls_of(&self, rank: Rank) -> &[usize] {
        self.of_rank.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// Returns a shortest cycle through each stall that is on one, the one with the oldest call first.
    pub(crate) fn cycles(&self, since: impl Fn(usize) -> i64) -> Vec<Vec<Edge>> {
        let mut order: Vec<usize> = (0..self.stalls.len()).filter(|at| self.open[*at]).collect();
        order.sort_by_key(|at| since(*at));
        let on_cycle = self.stalls_on_cycles();
        let mut found = Vec::new();
        let mut covered = FxHashSet::default();
        for stall in order.into_iter().filter(|it| on_cycle[*it]) {
            if covered.contains(&stall) {
                continue;
            }
            if let Some(cycle) = self.cycle_through(stall) {
                covered.extend(cycle.iter().map(|it| it.stall));
                found.push(cycle);
            }
            // More are consequences of these, and each costs a search.
            if found.len() == MAX_CYCLES {
                break;
            }
        }
        found
    }

    /// Searches the shortest way from the ranks that a stall waits for back to it.
    fn cycle_through(&self, start: usize) -> Option<Vec<Edge>> {
        let mut came: FxHashMap<Rank, Edge> = FxHashMap::default();
        let mut seen = FxHashSet::default();
        let mut queue = VecDeque::new();
        let waiters: Vec<Rank> = self.stalls[start].ranks().collect();
        let first = *waiters.first()?;
        for to in &self.stalls[start].absent {
            came.entry(*to).or_insert(Edge { from: first, stall: start, to: *to });
            queue.push_back(*to);
        }
        while let Some(rank) = queue.pop_front() {
            for stall in self.stalls_of(rank) {
                if *stall == start {
                    return Some(path(&came, rank, start));
                }
                if !self.open[*stall] || !seen.insert(*stall) {
                    continue;
                }
                for to in &self.stalls[*stall].absent {
                    if !came.contains_key(to) {
                        came.insert(*to, Edge { from: rank, stall: *stall, to: *to });
                        queue.push_back(*to);
                    }
                }
            }
        }
        None
    }

    /// Returns which stalls are on a cycle: those of strongly connected components with several nodes (Tarjan, without recursion).
    fn stalls_on_cycles(&self) -> Vec<bool> {
        let count = self.stalls.len();
        let mut state = Tarjan {
            index: vec![u32::MAX; count],
            low: vec![0; count],
            on_stack: vec![false; count],
            stack: Vec::new(),
            next: 0,
            on_cycle: vec![false; count],
        };
        for root in 0..count {
            if self.open[root] && state.index[root] == u32::MAX {
                self.visit(root, &mut state);
            }
        }
        state.on_cycle
    }

    fn visit(&self, root: usize, state: &mut Tarjan) {
        // Each entry: a stall, and the position of the next successor.
        let mut work = vec![(root, self.successors(root), 0_usize)];
        state.enter(root);
        while let Some((node, next, at)) = work.last_mut() {
            let node = *node;
            if let Some(to) = next.get(*at).copied() {
                *at += 1;
                if state.index[to] == u32::MAX {
                    state.enter(to);
                    work.push((to, self.successors(to), 0));
                } else if state.on_stack[to] {
                    state.low[node] = state.low[node].min(state.index[to]);
                }
                continue;
            }
            work.pop();
            if let Some((parent, ..)) = work.last() {
                state.low[*parent] = state.low[*parent].min(state.low[node]);
            }
            if state.low[node] == state.index[node] {
                state.leave(node);
            }
        }
    }

    /// Returns the stalls in which the ranks wait that a stall waits for.
    fn successors(&self, stall: usize) -> Vec<usize> {
        let ranks = self.stalls[stall].absent.iter();
        let mut next: Vec<usize> = ranks.flat_map(|it| self.stalls_of(*it)).copied().collect();
        next.retain(|it| self.open[*it]);
        next.sort_unstable();
        next.dedup();
        next
    }
}

/// The number of cycles that are reported at most.
const MAX_CYCLES: usize = 8;

fn path(came: &FxHashMap<Rank, Edge>, end: Rank, start: usize) -> Vec<Edge> {
    let mut edges = Vec::new();
    let mut rank = end;
    while let Some(edge) = came.get(&rank) {
        edges.push(*edge);
        if edge.stall == start {
            break;
        }
        rank = edge.from;
    }
    edges.reverse();
    // The way begins at the rank to which it returns.
    if let Some(edge) = edges.first_mut() {
        edge.from = end;
    }
    edges
}

struct Tarjan {
    index: Vec<u32>,
    low: Vec<u32>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: u32,
    on_cycle: Vec<bool>,
}

impl Tarjan {
    fn enter(&mut self, node: usize) {
        (self.index[node], self.low[node]) = (self.next, self.next);
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
    }

    fn leave(&mut self, node: usize) {
        let from = self.stack.iter().rposition(|it| *it == node).unwrap_or(0);
        let is_cycle = self.stack.len() - from > 1;
        for it in self.stack.drain(from..) {
            self.on_stack[it] = false;
            self.on_cycle[it] = is_cycle;
        }
    }
}
