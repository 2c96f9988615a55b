//! Finds data races: two accesses to an element, one of them a write, that nothing orders.
//!
//! `plan::sync::happens_before` visits every access after all accesses that happen before it. Of two overlapping
//! accesses, either the one that is visited first happens before the other, or they are unordered. For each
//! buffer, the detector keeps the accesses that no later access covers. An access that is unordered with a
//! covered access is also unordered with the covering one. If a race is found, `first_access` adds the covered accesses that the edit for
//! the covering one does not order.
//!
//! The caller takes part. It writes the inputs before stream 0 of the plan begins, and owns the inputs and
//! outputs again once `ReadOutputs` has run on that stream. A stream that does not wait for stream 0, and a
//! peer that still reads an input when the program returns, race with the caller.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    conflict::{Party, Race},
    early_releases::EarlyReleases,
    first_access::FirstAccesses,
    history::AccessHistory,
    ordering_model::AccessRules,
    overlap::{ElementRange, Footprint, Overlap, covers, overlap},
    storage::{SharedStorage, StorageConflict},
    stream_ordered_frees::StreamOrderedFrees,
    stream_work::is_work_of_stream,
};
use hir_plan::{
    BufferNo, Collective, Direction, InstKind, P2pGroup, P2pOp, Plan, View,
    sync::{
        InstRef,
        happens_before::{self, Occurrence},
    },
};

/// An access that a later one may race with.
struct Access {
    party: Party,
    /// The actor that executes the access, and the number of its instruction on that actor.
    actor: u32,
    number: u32,
    footprint: Footprint,
    writes: bool,
}

/// The maximum number of races that are collected. Programs with more have many of the same kind.
pub const MAX_RACES: usize = 4_096;

/// Where a buffer is allocated.
#[derive(Clone, Copy)]
struct AllocateSite {
    inst: usize,
    actor: u32,
    /// Number of instructions on the stream up to its last work before the ALLOCATE.
    before: u32,
    /// The number of the ALLOCATE on the stream.
    number: u32,
    /// Whether it is symmetric memory.
    is_symmetric: bool,
}

/// Returns the ALLOCATE of each buffer of a rank. `first` is the actor of the rank's stream 0.
fn allocate_sites(plan: &Plan, first: u32) -> Vec<Option<AllocateSite>> {
    let mut found = vec![None; plan.buffers.len()];
    let (mut counts, mut works) = (vec![0; plan.streams.len()], vec![0; plan.streams.len()]);
    for (inst, it) in plan.code.iter().enumerate().filter(|(_, it)| !it.kind.effect().runs_on_host()) {
        let stream = it.stream as usize;
        counts[stream] += 1;
        if let InstKind::Alloc { buffer, .. } = it.kind {
            found[buffer as usize] = Some(AllocateSite {
                inst,
                actor: first + it.stream,
                before: works[stream],
                number: counts[stream],
                is_symmetric: false,
            });
        }
        if is_work_of_stream(plan, it) {
            works[stream] = counts[stream];
        }
    }
    for it in &plan.allocations {
        let site = &mut found[it.buffer as usize];
        // A view that maps the shards of all ranks is no block.
        *site =
            site.filter(|_| !it.is_empty).map(|site| AllocateSite { is_symmetric: it.is_symmetric, ..site });
    }
    found
}

/// Returns whether the allocator gives freed storage to other tensors, without waiting for its uses.
fn allocator_reuses(rules: AccessRules) -> bool {
    !rules.reuses_in_order() && !rules.frees_in_stream_order()
}

/// Identifies a race: the rank, the buffer, and the rank and origin of each statement.
type ReportedPair = (usize, BufferNo, [(usize, u32); 2]);

/// Tracks all accesses while `happens_before::walk` visits the instructions, and collects races.
pub struct RaceDetector<'p> {
    plans: &'p [Plan],
    rules: AccessRules,
    /// The actor of stream 0, by rank.
    entry_actors: Vec<u32>,
    /// The buffers of the inputs, by rank.
    inputs: Vec<FxHashSet<BufferNo>>,
    /// The accesses that no later write covers, by rank and buffer.
    accesses: FxHashMap<(usize, BufferNo), AccessHistory<Access>>,
    storage: SharedStorage<'p>,
    /// The storage that the allocator frees without a Wait, if it reuses storage.
    early_releases: Option<EarlyReleases>,
    /// The storage whose free is compared with all uses: that which streams free, and symmetric memory.
    frees: Option<StreamOrderedFrees>,
    /// The ALLOCATE, by rank and buffer.
    allocate_sites: Vec<Vec<Option<AllocateSite>>>,
    /// The actors that use inputs before the caller has finished with them, which is reported.
    early_actors: FxHashSet<u32>,
    /// Uses of storage that the caller may still use at entry, with the actor of each.
    early_uses: Vec<(u32, Race)>,
    first_accesses: FirstAccesses<'p>,
    /// The races reported so far.
    reported: FxHashSet<ReportedPair>,
    /// The pairs of accesses whose first accesses were looked for: which of the two write, and the common elements.
    examined: FxHashSet<(ReportedPair, [bool; 2], ElementRange)>,
    /// The first race of each pair of statements and ranks.
    pub found: Vec<Race>,
    /// Number of pairs of views that are too large to compare.
    pub not_compared: usize,
}

impl<'p> RaceDetector<'p> {
    /// Creates the state before the first instruction of a walk over the whole world.
    pub fn new(plans: &'p [Plan], rules: AccessRules) -> Self {
        Self::with_actors(plans, rules, happens_before::first_actors(plans))
    }

    /// As `new`. `entry` has, by rank, the number that the walks give to the actor of stream 0.
    pub fn with_actors(plans: &'p [Plan], rules: AccessRules, entry: Vec<u32>) -> Self {
        let allocated = plans.iter().zip(&entry).map(|(plan, first)| allocate_sites(plan, *first)).collect();
        let inputs =
            |plan: &Plan| plan.inputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.buffer)).collect();
        Self {
            plans,
            rules,
            entry_actors: entry,
            inputs: plans.iter().map(inputs).collect(),
            accesses: FxHashMap::default(),
            storage: SharedStorage::new(plans),
            early_releases: allocator_reuses(rules).then(|| EarlyReleases::new(plans)).flatten(),
            frees: StreamOrderedFrees::new(plans, rules),
            allocate_sites: allocated,
            early_actors: FxHashSet::default(),
            early_uses: Vec::new(),
            first_accesses: FirstAccesses::new(plans),
            reported: FxHashSet::default(),
            examined: FxHashSet::default(),
            found: Vec::new(),
            not_compared: 0,
        }
    }

    /// Reports what is known only after all instructions have been visited, of the world or of a group of ranks.
    pub fn finish(&mut self) {
        // The wait that an early use of an input needs orders the uses of storage, too.
        for (actor, race) in std::mem::take(&mut self.early_uses) {
            if !self.early_actors.contains(&actor) {
                self.report(race);
            }
        }
        let released = self.early_releases.as_mut().map(EarlyReleases::finish).unwrap_or_default();
        released.into_iter().for_each(|(rank, conflict)| self.report_reuse(rank, [conflict], false));
    }

    /// Visits an instruction after all instructions that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        if self.found.len() >= MAX_RACES {
            return;
        }
        self.first_accesses.visit(it);
        let plans = self.plans;
        let plan = &plans[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        let kind = &plan.code[it.inst].kind;
        if matches!(kind, InstKind::ReadOutputs) {
            // The caller overwrites inputs and outputs, or only reads the outputs, depending on the model.
            let writes = !self.rules.ends_together();
            let inputs = plan.inputs.iter().filter(|_| writes);
            for view in inputs.chain(&plan.outputs).filter_map(|port| port.shard.view.as_ref()) {
                self.access(it, Party::CallerAfter(at), it.rank, view, writes);
            }
            for view in plan.outputs.iter().filter_map(|port| port.shard.view.as_ref()) {
                self.read_mapped(it, at, (it.rank, view));
            }
            self.free_after(it);
            if let Some(released) = &mut self.early_releases {
                released.end(it, plan.code[it.inst].stream);
            }
            if allocator_reuses(self.rules) {
                let found = self.storage.finish(it);
                self.report_reuse(it.rank, found, false);
            }
            return;
        }
        if let (InstKind::RecordEvent { event }, Some(released)) = (kind, &mut self.early_releases) {
            released.event(it, *event);
        }
        if let InstKind::P2pGroup(group) = kind {
            self.check_group(at, group);
        }
        if let InstKind::Collective(it) = kind {
            self.check_in_place(at, it);
        }
        kind.visit_accesses(it.rank, &mut |access| {
            self.check_after_entry(it, access.rank, access.view, access.is_write);
            self.access(it, Party::Inst(at), access.rank, access.view, access.is_write);
            if !access.is_write {
                self.read_mapped(it, at, (access.rank, access.view));
            }
        });
        self.free_after(it);
    }

    /// Visits what a read of a view reads in the memory of all ranks, if it is a mapped one.
    fn read_mapped(&mut self, it: &Occurrence, at: InstRef, (rank, view): (usize, &View)) {
        for shard in self.plans[rank].mapped_reads(view) {
            self.check_after_entry(it, shard.rank, &shard.view, false);
            self.access(it, Party::Inst(at), shard.rank, &shard.view, false);
        }
    }

    /// Frees what is freed behind an instruction.
    fn free_after(&mut self, it: &Occurrence) {
        let found = self.frees.as_mut().map(|frees| frees.visited(it)).unwrap_or_default();
        found.into_iter().for_each(|(rank, conflict)| self.report_reuse(rank, [conflict], true));
    }

    /// Reports a collective that writes elements which it may still read: its input and its output overlap, and
    /// it is not in place.
    fn check_in_place(&mut self, at: InstRef, it: &Collective) {
        let (Some(input), Some(output)) = (&it.input, &it.output) else { return };
        let team = &self.plans[at.rank].communicators[it.communicator as usize].team;
        let Some(me) = team.iter().position(|rank| *rank == at.rank) else { return };
        let is_in_place =
            it.kind.of.facts().may_be_in_place && it.kind.is_in_place((me, team.len()), input, output);
        if input.buffer != output.buffer || team.len() == 1 || is_in_place {
            return;
        }
        let (Some(read), Some(written)) = (Footprint::of(input), Footprint::of(output)) else { return };
        match overlap(&read, &written) {
            Overlap::None => (),
            Overlap::Unknown => self.not_compared += 1,
            Overlap::Some(elements) => {
                let parties = [(Party::Inst(at), false), (Party::Inst(at), true)];
                self.report(Race::new((at.rank, output.buffer), elements, parties));
            }
        }
    }

    /// Reports races between the operations of a send/receive group, which run concurrently.
    fn check_group(&mut self, at: InstRef, group: &P2pGroup) {
        let sides: Vec<(&P2pOp, Footprint)> =
            group.ops.iter().filter_map(|it| Some((it, Footprint::of(&it.view)?))).collect();
        for (number, (side, footprint)) in sides.iter().enumerate() {
            for (earlier, before) in &sides[..number] {
                // Messages of one pair of ranks arrive in the order in which they are posted.
                let is_in_order = earlier.direction == Direction::Recv
                    && side.direction == Direction::Recv
                    && earlier.peer == side.peer;
                if is_in_order || earlier.view.buffer != side.view.buffer {
                    continue;
                }
                let party = |it: &P2pOp| (Party::Operation(at, it.origin), it.direction == Direction::Recv);
                let parties = [party(earlier), party(side)];
                if !parties.iter().any(|it| it.1) {
                    continue;
                }
                match overlap(before, footprint) {
                    Overlap::None => (),
                    Overlap::Unknown => self.not_compared += 1,
                    Overlap::Some(elements) => {
                        self.report(Race::new((at.rank, side.view.buffer), elements, parties));
                    }
                }
            }
        }
    }

    /// Reports an access to an input that does not follow the caller's work, which ends where stream 0
    /// begins.
    fn check_after_entry(&mut self, it: &Occurrence, rank: usize, view: &View, writes: bool) {
        let entry = self.entry_actors[rank];
        let is_after = self.rules.starts_together() || it.actor == entry || it.clock.ended(entry) > 0;
        if is_after || !self.inputs[rank].contains(&view.buffer) {
            return;
        }
        let Some((start, end)) = view.bounds() else { return };
        self.early_actors.insert(it.actor);
        let at = InstRef { rank: it.rank, inst: it.inst };
        let parties = [(Party::CallerBefore, true), (Party::Inst(at), writes)];
        let elements = ElementRange { start, end: end + 1 };
        self.report(Race::new((rank, view.buffer), elements, parties));
    }

    /// Returns whether a use of storage follows the work that the stream of its ALLOCATE had at that point,
    /// and reports a race if not: an allocator may hand out storage that this work still uses. A use that only work of
    /// the caller may precede is left to `finish`, and counts as one that follows.
    fn is_after_allocation(
        &mut self,
        it: &Occurrence,
        side: (Party, bool),
        rank: usize,
        view: &View,
        footprint: &Footprint,
    ) -> bool {
        let Some(allocated) = self.allocate_sites[rank][view.buffer as usize] else { return true };
        if self.rules.reuses_in_order() {
            return true;
        }
        let ended = it.clock.ended(allocated.actor);
        if it.actor == allocated.actor || matches!(side.0, Party::CallerAfter(_)) {
            return true;
        }
        // Before the first instruction of the entry stream, the stream may execute work of the caller.
        let is_early = allocated.actor == self.entry_actors[rank] && ended == 0;
        let is_stream_ordered = self.rules.frees_in_stream_order();
        // The host waits for the allocation of symmetric memory.
        if allocated.is_symmetric {
            return true;
        }
        let needed = if is_stream_ordered { allocated.number } else { allocated.before };
        if ended >= needed && !is_early {
            return true;
        }
        let at = InstRef { rank, inst: allocated.inst };
        let elements = ElementRange { start: footprint.first, end: footprint.last + 1 };
        let parties = [(Party::Inst(at), true), side];
        let race = Race { is_stream_ordered, ..Race::new((rank, view.buffer), elements, parties) };
        let is_only_early = is_early && ended >= allocated.before;
        if is_only_early {
            self.early_uses.push((it.actor, race));
        } else {
            self.report(race);
        }
        is_only_early
    }

    /// Compares an access with the earlier ones and stores it.
    fn access(&mut self, it: &Occurrence, party: Party, rank: usize, view: &View, writes: bool) {
        let Some(footprint) = Footprint::of(view) else { return };
        let is_after = self.is_after_allocation(it, (party, writes), rank, view, &footprint);
        let known = self.accesses.entry((rank, view.buffer)).or_default();
        let mut found = Vec::new();
        let mut not_compared = 0;
        // The caller's own accesses hide no race inside the program, and the program does not order those of several ranks.
        let is_caller = matches!(party, Party::CallerAfter(_));
        let plans = self.plans;
        let is_exit = |party: Party| match party {
            Party::Inst(at) => matches!(plans[at.rank].code[at.inst].kind, InstKind::ReadOutputs),
            Party::CallerAfter(_) => true,
            Party::Operation(..) | Party::Free(..) | Party::CallerBefore => false,
        };
        let ends = is_exit(party);
        known.retain(&footprint, |earlier| {
            // An instruction does not race with itself: it reads before it writes.
            let is_same = (earlier.actor, earlier.number) == (it.actor, it.number);
            let is_ordered =
                is_same || it.clock.ended(earlier.actor) >= earlier.number || ends && is_exit(earlier.party);
            if !is_ordered && (writes || earlier.writes) {
                match overlap(&earlier.footprint, &footprint) {
                    Overlap::None => (),
                    Overlap::Unknown => not_compared += 1,
                    Overlap::Some(elements) => {
                        let parties = [(earlier.party, earlier.writes), (party, writes)];
                        found.push(Race::new((rank, view.buffer), elements, parties));
                    }
                }
            }
            // An access that is unordered with the earlier access is also unordered with this one, so only
            // this one is kept.
            let is_covered = is_ordered
                && !is_caller
                && (writes || !earlier.writes)
                && covers(&footprint, &earlier.footprint);
            !is_covered
        });
        self.not_compared += not_compared;
        // An instruction may access the memory several times, as an all-reduce in place does: other accesses come first for each.
        found.retain(|race| {
            let accesses = race.parties.map(|it| it.1);
            self.examined.insert((self.pair(race), accesses, race.elements))
        });
        // A first access may be another instruction of the same statement, whose pair is recorded already.
        let new = found.iter().filter(|race| self.is_new(race)).collect::<Vec<_>>();
        let mut recorded: FxHashSet<ReportedPair> = new.into_iter().map(|race| self.pair(race)).collect();
        for race in self.first_accesses.of(it, found, &footprint) {
            if recorded.remove(&self.pair(&race)) {
                self.found.push(race);
            } else {
                self.report(race);
            }
        }
        // A use that does not follow its own ALLOCATE does not follow the uses by an earlier owner either.
        if let Some(frees) = self.frees.as_mut().filter(|_| is_after) {
            let found = frees.access(it, (party, writes), rank, view.buffer);
            self.report_reuse(rank, found, true);
        }
        if let Some(released) = self.early_releases.as_mut().filter(|_| is_after) {
            released.access(it, (party, writes), rank, view.buffer);
        }
        if is_after && allocator_reuses(self.rules) {
            let found = self.storage.access(it, (party, writes), rank, view.buffer);
            self.report_reuse(rank, found, false);
        }
        let (actor, number) = (it.actor, it.number);
        let known = self.accesses.entry((rank, view.buffer)).or_default();
        known.push(&footprint, Access { party, actor, number, footprint: footprint.clone(), writes });
    }

    /// Reports conflicts over a block of storage, or with its free if `is_stream_ordered`, as races.
    pub(super) fn report_reuse(
        &mut self,
        rank: usize,
        found: impl IntoIterator<Item = StorageConflict>,
        is_stream_ordered: bool,
    ) {
        for it in found {
            let elements =
                ElementRange { start: 0, end: self.plans[rank].buffers[it.reused.earlier as usize].len };
            let (buffer, parties) = (it.reused.earlier, [it.earlier, it.later]);
            let reused = Some(it.reused);
            self.report(Race { reused, is_stream_ordered, ..Race::new((rank, buffer), elements, parties) });
        }
    }

    fn pair(&self, race: &Race) -> ReportedPair {
        let statement = |(party, _): (Party, bool)| match party {
            Party::Inst(at) => (at.rank, self.plans[at.rank].code[at.inst].origin),
            Party::Operation(at, origin) | Party::Free(at, origin) => (at.rank, origin),
            Party::CallerBefore => (race.rank, u32::MAX),
            Party::CallerAfter(at) => (at.rank, u32::MAX - 1),
        };
        (race.rank, race.buffer, race.parties.map(statement))
    }

    /// Returns whether no race between the two statements and ranks has been reported, and records that one is.
    fn is_new(&mut self, race: &Race) -> bool {
        self.found.len() < MAX_RACES && self.reported.insert(self.pair(race))
    }

    /// Stores a race if it is the first one between its two statements and ranks.
    fn report(&mut self, race: Race) {
        if self.is_new(&race) {
            self.found.push(race);
        }
    }
}
