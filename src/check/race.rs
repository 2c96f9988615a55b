//! Data races: two accesses to an element, one of them a write, that nothing orders.
//!
//! `plan::sync::order` visits every access after all that happen before it. So of two accesses that overlap, the one that is visited
//! first has to happen before the other; else nothing orders them. For each buffer, the accesses are kept that no later write covers:
//! what is not ordered with a covered one is not ordered with that write either, and the write is reported.
//!
//! The caller takes part. It writes the inputs before stream 0 of the plan begins, and owns inputs and outputs again once `Finish` runs
//! there: a stream that does not wait for stream 0, and a peer that still reads an input when the program returns, race with it.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    history::AccessHistory,
    ordering_model::OrderingModel,
    overlap::{ElementRange, Footprint, Overlap, covers, overlap},
    storage::{StorageBlocks, StorageConflict},
};
use crate::plan::{
    BufferNo, Direction, InstKind, P2pOp, Plan, Transfer, View,
    sync::{
        InstRef,
        happens_before::{self, Occurrence},
    },
};

/// An access that a later one may race with.
struct Access {
    party: Party,
    /// Which of the actor's instructions it is.
    actor: u32,
    number: u32,
    footprint: Footprint,
    writes: bool,
}

/// Most races that are collected: programs with more have many of one kind.
const MAX_RACES: usize = 4_096;

/// Where a buffer is allocated.
#[derive(Clone, Copy)]
struct AllocateSite {
    inst: usize,
    actor: u32,
    /// How many instructions its stream has before it.
    before: u32,
}

/// Where the buffers of a rank are allocated; `first` is the actor of its stream 0.
fn allocate_sites(plan: &Plan, first: u32) -> Vec<Option<AllocateSite>> {
    let mut found = vec![None; plan.buffers.len()];
    let mut counts = vec![0; plan.streams.len()];
    for (inst, it) in plan.code.iter().enumerate().filter(|(_, it)| !it.kind.effect().runs_on_host()) {
        let before = counts[it.stream as usize];
        counts[it.stream as usize] += 1;
        if let InstKind::Alloc { buffer, .. } = it.kind {
            found[buffer as usize] = Some(AllocateSite { inst, actor: first + it.stream, before });
        }
    }
    found
}

/// A pair of statements that race: the rank and the buffer, and the rank and the origin of each statement.
type ReportedPair = (usize, BufferNo, [(usize, u32); 2]);

/// Follows all accesses while `order::walk` visits the instructions.
pub struct RaceDetector<'p> {
    plans: &'p [Plan],
    model: OrderingModel,
    /// The actor of each rank's stream 0.
    entry_actors: Vec<u32>,
    /// By rank: the buffers of its inputs.
    inputs: Vec<FxHashSet<BufferNo>>,
    /// By rank and buffer: the accesses that no later write covers.
    accesses: FxHashMap<(usize, BufferNo), AccessHistory<Access>>,
    storage: StorageBlocks<'p>,
    /// By rank and buffer: the ALLOCATE.
    allocate_sites: Vec<Vec<Option<AllocateSite>>>,
    /// Pairs of statements that race, each with the rank and the buffer.
    reported: FxHashSet<ReportedPair>,
    /// The first race of each pair of statements and ranks.
    pub found: Vec<Race>,
    /// Pairs of views that are too large to compare.
    pub not_compared: usize,
}

impl<'p> RaceDetector<'p> {
    /// Before the first instruction.
    pub fn new(plans: &'p [Plan], model: OrderingModel) -> Self {
        let entry = happens_before::first_actors(plans);
        let allocated = plans.iter().zip(&entry).map(|(plan, first)| allocate_sites(plan, *first)).collect();
        let inputs =
            |plan: &Plan| plan.inputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.buffer)).collect();
        Self {
            plans,
            model,
            entry_actors: entry,
            inputs: plans.iter().map(inputs).collect(),
            accesses: FxHashMap::default(),
            storage: StorageBlocks::new(plans),
            allocate_sites: allocated,
            reported: FxHashSet::default(),
            found: Vec::new(),
            not_compared: 0,
        }
    }

    /// Whether there may be more races than were collected.
    pub fn is_truncated(&self) -> bool {
        self.found.len() >= MAX_RACES
    }

    /// An instruction, after all that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        if self.found.len() >= MAX_RACES {
            return;
        }
        let plan = &self.plans[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        let kind = &plan.code[it.inst].kind;
        if matches!(kind, InstKind::ReadOutputs) {
            // The caller overwrites inputs and outputs, or only reads the outputs here.
            let writes = !self.model.ends_together();
            let inputs = plan.inputs.iter().filter(|_| writes);
            for view in inputs.chain(&plan.outputs).filter_map(|port| port.shard.view.as_ref()) {
                self.access(it, Party::CallerAfter(at), it.rank, view, writes);
            }
            if !self.model.ends_together() {
                let found = self.storage.finish(it);
                self.report_reuse(it.rank, found);
            }
            return;
        }
        if let InstKind::Transfer(transfer) = kind {
            self.check_group(at, transfer);
        }
        for access in kind.accesses(it.rank) {
            self.check_after_entry(it, access.rank, access.view, access.is_write);
            self.access(it, Party::Inst(at), access.rank, access.view, access.is_write);
        }
        // Storage that is not zeroed is not touched.
        if let InstKind::Alloc { buffer, zero: true } = kind {
            let whole = View::contiguous(*buffer, vec![plan.buffers[*buffer as usize].len]);
            self.access(it, Party::Inst(at), it.rank, &whole, true);
        }
    }

    /// The operations of a group run at the same time.
    fn check_group(&mut self, at: InstRef, transfer: &Transfer) {
        let sides: Vec<(&P2pOp, Footprint)> =
            transfer.ops.iter().filter_map(|it| Some((it, Footprint::of(&it.view)?))).collect();
        for (number, (side, place)) in sides.iter().enumerate() {
            for (earlier, before) in &sides[..number] {
                if earlier.view.buffer != side.view.buffer {
                    continue;
                }
                let party = |it: &P2pOp| (Party::Operation(at, it.origin), it.direction == Direction::Recv);
                let parties = [party(earlier), party(side)];
                if !parties.iter().any(|it| it.1) {
                    continue;
                }
                match overlap(before, place) {
                    Overlap::None => (),
                    Overlap::Unknown => self.not_compared += 1,
                    Overlap::Some(elements) => {
                        self.report(Race {
                            rank: at.rank,
                            buffer: side.view.buffer,
                            elements,
                            parties,
                            reused: None,
                            between_runs: false,
                        });
                    }
                }
            }
        }
    }

    /// An access to an input has to come after the caller's work, which ends where stream 0 begins.
    fn check_after_entry(&mut self, it: &Occurrence, rank: usize, view: &View, writes: bool) {
        let entry = self.entry_actors[rank];
        let is_after = self.model.starts_together() || it.actor == entry || it.clock.ended(entry) > 0;
        if is_after || !self.inputs[rank].contains(&view.buffer) {
            return;
        }
        let Some((start, end)) = view.bounds() else { return };
        let at = InstRef { rank: it.rank, inst: it.inst };
        let parties = [(Party::CallerBefore, true), (Party::Inst(at), writes)];
        self.report(Race {
            rank,
            buffer: view.buffer,
            elements: ElementRange { start, end: end + 1 },
            parties,
            reused: None,
            between_runs: false,
        });
    }

    /// A use of storage has to come after the work that the stream of its ALLOCATE had by then: an allocator hands out storage that this work
    /// still uses.
    fn is_after_allocation(
        &mut self,
        it: &Occurrence,
        side: (Party, bool),
        rank: usize,
        view: &View,
        place: &Footprint,
    ) -> bool {
        let Some(allocated) = self.allocate_sites[rank][view.buffer as usize] else { return true };
        if self.model.reuses_in_order() {
            return true;
        }
        let is_after = it.actor == allocated.actor || it.clock.ended(allocated.actor) >= allocated.before;
        if is_after || matches!(side.0, Party::CallerAfter(_)) {
            return true;
        }
        let at = InstRef { rank, inst: allocated.inst };
        let elements = ElementRange { start: place.first, end: place.last + 1 };
        let parties = [(Party::Inst(at), true), side];
        self.report(Race { rank, buffer: view.buffer, elements, parties, reused: None, between_runs: false });
        false
    }

    /// Compares an access with those before it, and keeps it.
    fn access(&mut self, it: &Occurrence, party: Party, rank: usize, view: &View, writes: bool) {
        let Some(place) = Footprint::of(view) else { return };
        let is_after = self.is_after_allocation(it, (party, writes), rank, view, &place);
        let known = self.accesses.entry((rank, view.buffer)).or_default();
        let mut found = Vec::new();
        let mut not_compared = 0;
        known.retain(&place, |earlier| {
            // An instruction does not race with itself: it reads before it writes.
            let is_same = (earlier.actor, earlier.number) == (it.actor, it.number);
            let is_ordered = is_same || it.clock.ended(earlier.actor) >= earlier.number;
            if !is_ordered && (writes || earlier.writes) {
                match overlap(&earlier.footprint, &place) {
                    Overlap::None => (),
                    Overlap::Unknown => not_compared += 1,
                    Overlap::Some(elements) => {
                        let parties = [(earlier.party, earlier.writes), (party, writes)];
                        found.push(Race {
                            rank,
                            buffer: view.buffer,
                            elements,
                            parties,
                            reused: None,
                            between_runs: false,
                        });
                    }
                }
            }
            // What is not ordered with the earlier one is not ordered with this one either, and this one is compared with it.
            let is_covered = is_ordered && (writes || !earlier.writes) && covers(&place, &earlier.footprint);
            !is_covered
        });
        self.not_compared += not_compared;
        found.into_iter().for_each(|it| self.report(it));
        // A use that does not follow its own ALLOCATE follows no earlier owner either.
        if is_after && !self.model.reuses_in_order() {
            let found = self.storage.access(it, (party, writes), rank, view.buffer);
            self.report_reuse(rank, found);
        }
        let (actor, number) = (it.actor, it.number);
        let known = self.accesses.entry((rank, view.buffer)).or_default();
        known.push(&place, Access { party, actor, number, footprint: place.clone(), writes });
    }

    /// Keeps the conflicts over a block of storage.
    fn report_reuse(&mut self, rank: usize, found: Vec<StorageConflict>) {
        for it in found {
            let elements =
                ElementRange { start: 0, end: self.plans[rank].buffers[it.reused.earlier as usize].len };
            let (buffer, parties) = (it.reused.earlier, [it.earlier, it.later]);
            self.report(Race {
                rank,
                buffer,
                elements,
                parties,
                reused: Some(it.reused),
                between_runs: false,
            });
        }
    }

    /// Keeps a race, if it is the first of its two statements and ranks.
    fn report(&mut self, race: Race) {
        let statement = |(party, _): (Party, bool)| match party {
            Party::Inst(at) => (at.rank, self.plans[at.rank].code[at.inst].origin),
            Party::Operation(at, origin) => (at.rank, origin),
            Party::CallerBefore => (race.rank, u32::MAX),
            Party::CallerAfter(at) => (at.rank, u32::MAX - 1),
        };
        if self.found.len() < MAX_RACES
            && self.reported.insert((race.rank, race.buffer, race.parties.map(statement)))
        {
            self.found.push(race);
        }
    }
}
