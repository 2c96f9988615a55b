//! The accesses that a race is reported with, if a rank accesses the same elements several times: those that edits have to order. An edit
//! that orders the last access before another one also orders the earlier ones, and an edit that orders the first access after another one
//! also orders the later ones.

use std::cell::OnceCell;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    overlap::{Footprint, Overlap, overlap},
};
use hir_plan::{
    BufferNo, CommunicatorNo, ExecutionSite, Plan, StreamNo,
    sync::{InstRef, happens_before::Occurrence},
};

/// The maximum number of accesses of a stream or queue that are compared for one race, on each side of the other access.
const MAX_COMPARED: usize = 64;

/// What executes an access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Site {
    Stream(StreamNo),
    Queue(CommunicatorNo),
}

/// By owner of the memory and buffer: for each stream and queue of a rank, the instructions that access the buffer, in order.
type AccessesOfRank = FxHashMap<(usize, BufferNo), Vec<(Site, Vec<usize>)>>;

/// The accesses of all ranks, collected for a rank when one of its accesses races.
pub(super) struct FirstAccesses<'p> {
    plans: &'p [Plan],
    ranks: Vec<OnceCell<AccessesOfRank>>,
    /// By rank and instruction, if it was visited: the actor that executes it, and its number on the actor, from 1.
    visited: Vec<Vec<(u32, u32)>>,
}

impl<'p> FirstAccesses<'p> {
    /// Creates the index of plans.
    pub fn new(plans: &'p [Plan]) -> Self {
        let ranks = plans.iter().map(|_| OnceCell::new()).collect();
        Self { plans, ranks, visited: vec![Vec::new(); plans.len()] }
    }

    /// Records that an instruction is visited.
    pub fn visit(&mut self, it: &Occurrence) {
        let visited = &mut self.visited[it.rank];
        if visited.is_empty() {
            visited.resize(self.plans[it.rank].code.len(), (0, 0));
        }
        visited[it.inst] = (it.actor, it.number);
    }

    /// Replaces the races of one access, the second party of each, with earlier ones that cover all others. `footprint` is that of the access,
    /// and `it` is its instruction.
    ///
    /// The accesses that are issued before it are covered by the given ones, unless one of these is issued later. Then, the last one issued
    /// before it and the first one issued later of each stream and queue of its rank are returned, and the first one of each stream and queue of
    /// other ranks. A race with another rank is returned with the first access of that stream or queue.
    pub fn of(&self, it: &Occurrence, races: Vec<Race>, footprint: &Footprint) -> Vec<Race> {
        let mut found = Vec::new();
        let mut has_later = false;
        for race in races {
            match race.parties[0].0 {
                Party::Inst(at) if at.rank != it.rank => {
                    found.push(self.first_of_rank(it, &race, at, footprint).unwrap_or(race));
                }
                Party::Inst(at) if at.inst > it.inst && self.site(&race, at).is_some() => {
                    if !has_later {
                        found.extend(self.around(it, &race, footprint));
                        found.extend(self.of_peers(it, &race, footprint));
                    }
                    has_later = true;
                    // Not all accesses of a stream or queue are compared.
                    let site = self.site(&race, at).unwrap_or_default();
                    let is_later = |of: InstRef| {
                        of.rank == at.rank && of.inst > it.inst && site.binary_search(&of.inst).is_ok()
                    };
                    let covers = |of: &Race| matches!(of.parties[0].0, Party::Inst(of) if is_later(of));
                    if !found.iter().any(covers) {
                        found.push(race);
                    }
                }
                Party::Inst(_)
                | Party::Operation(..)
                | Party::Free(..)
                | Party::CallerBefore
                | Party::CallerAfter(_) => found.push(race),
            }
        }
        let mut known = FxHashSet::default();
        found.retain(|it| known.insert(it.parties[0].0));
        found
    }

    /// Returns the accesses of the stream or queue that executes `at`.
    fn site(&self, race: &Race, at: InstRef) -> Option<&[usize]> {
        let mut all = self.sites(at.rank, race).iter().map(|it| it.1.as_slice());
        all.find(|it| it.binary_search(&at.inst).is_ok())
    }

    fn sites(&self, rank: usize, race: &Race) -> &[(Site, Vec<usize>)] {
        let accesses = self.ranks[rank].get_or_init(|| accesses_of(&self.plans[rank]));
        accesses.get(&(race.rank, race.buffer)).map_or(&[], Vec::as_slice)
    }

    /// Returns the race with the first access of the stream or queue of another rank that executes `at`.
    fn first_of_rank(
        &self,
        it: &Occurrence,
        race: &Race,
        at: InstRef,
        footprint: &Footprint,
    ) -> Option<Race> {
        let unordered = self.unordered(it, at.rank, self.site(race, at)?);
        unordered.iter().take(MAX_COMPARED).find_map(|inst| self.race_with(race, at.rank, *inst, footprint))
    }

    /// Returns the races with the last access that is issued before an instruction, and the first one after it, of each stream and queue.
    fn around(&self, it: &Occurrence, race: &Race, footprint: &Footprint) -> Vec<Race> {
        let mut found = Vec::new();
        for (_, all) in self.sites(it.rank, race) {
            let unordered = self.unordered(it, it.rank, all);
            let (before, after) = unordered.split_at(unordered.partition_point(|at| *at < it.inst));
            let racing =
                |at: &usize| self.race_with(race, it.rank, *at, footprint).filter(|_| *at != it.inst);
            found.extend(before.iter().rev().take(MAX_COMPARED).find_map(racing));
            found.extend(after.iter().take(MAX_COMPARED).find_map(racing));
        }
        found
    }

    /// Returns the races with the first access of each stream and queue of other ranks. An edit before a later access of the own rank, which
    /// may cover these, does not order them.
    fn of_peers(&self, it: &Occurrence, race: &Race, footprint: &Footprint) -> Vec<Race> {
        let peers = (0..self.plans.len()).filter(|rank| *rank != it.rank && !self.visited[*rank].is_empty());
        let first = |rank: usize, all: &[usize]| {
            let unordered = self.unordered(it, rank, all);
            unordered.iter().take(MAX_COMPARED).find_map(|at| self.race_with(race, rank, *at, footprint))
        };
        peers
            .flat_map(|rank| self.sites(rank, race).iter().filter_map(move |site| first(rank, &site.1)))
            .collect()
    }

    /// Returns those of the accesses of a stream or queue that were visited, and that nothing orders before an instruction.
    fn unordered<'a>(&self, it: &Occurrence, rank: usize, all: &'a [usize]) -> &'a [usize] {
        let visited = |at: usize| self.visited[rank].get(at).copied().unwrap_or_default();
        let all = &all[..all.partition_point(|at| visited(*at).1 > 0)];
        &all[all.partition_point(|at| visited(*at).1 <= it.clock.ended(visited(*at).0))..]
    }

    /// Returns the race of an instruction of a rank and the second party of `race`, if they access common elements, and one writes.
    fn race_with(&self, race: &Race, rank: usize, inst: usize, footprint: &Footprint) -> Option<Race> {
        let second = race.parties[1];
        let party = Party::Inst(InstRef { rank, inst });
        self.plans[rank].code[inst].kind.accesses(rank).iter().find_map(|access| {
            let is_same = (access.rank, access.view.buffer) == (race.rank, race.buffer);
            let view = Footprint::of(access.view).filter(|_| is_same && (second.1 || access.is_write));
            let Overlap::Some(elements) = overlap(&view?, footprint) else { return None };
            Some(Race { elements, parties: [(party, access.is_write), second], ..*race })
        })
    }
}

/// Collects the accesses of a rank that its streams and queues execute.
fn accesses_of(plan: &Plan) -> AccessesOfRank {
    let mut found = AccessesOfRank::default();
    for (at, inst) in plan.code.iter().enumerate() {
        let site = match inst.kind.effect().execution_site() {
            ExecutionSite::Stream => Site::Stream(inst.stream),
            ExecutionSite::Queue(it) => Site::Queue(it.communicator()),
            ExecutionSite::Host => continue,
        };
        inst.kind.visit_accesses(plan.rank, &mut |it| {
            let sites = found.entry((it.rank, it.view.buffer)).or_default();
            let known = sites.iter().position(|it| it.0 == site);
            let number = known.unwrap_or(sites.len());
            if known.is_none() {
                sites.push((site, Vec::new()));
            }
            let all = &mut sites[number].1;
            if all.last() != Some(&at) {
                all.push(at);
            }
        });
    }
    found
}
