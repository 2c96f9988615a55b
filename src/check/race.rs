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
    history::History,
    overlap::{Overlap, Range, covers, overlap},
};
use crate::plan::{
    BufferNo, Direction, InstKind, Plan, Reused, Side, Transfer, View,
    sync::{InstRef, order::Occurrence},
};

/// One side of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// An instruction of the program.
    Inst(InstRef),
    /// One operation of a group of sends and receives: the group, and the statement of the operation, an index into `Plan::origins`.
    Side(InstRef, u32),
    /// The caller, before the program begins: it has written the inputs.
    CallerBefore,
    /// The caller, after `Finish` of a rank: it may read the outputs, and overwrite or free everything that is its own.
    CallerAfter(InstRef),
}

/// Two accesses that nothing orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// The rank whose memory it is.
    pub rank: usize,
    /// The buffer.
    pub buffer: BufferNo,
    /// Elements of the buffer that both access: the first run of them.
    pub elements: Range,
    /// Both sides and whether they write, in the order in which `order` visits them.
    pub parties: [(Party, bool); 2],
    /// Where the two access different buffers, one of which gets the storage of the other.
    pub reused: Option<Reused>,
}

/// An access that a later one may race with.
struct Access {
    party: Party,
    /// Which of the actor's instructions it is.
    actor: u32,
    number: u32,
    view: View,
    writes: bool,
}

/// Follows all accesses while `order::walk` visits the instructions.
pub struct Races<'p> {
    plans: &'p [Plan],
    /// The actor of each rank's stream 0.
    entry: Vec<u32>,
    /// By rank: the buffers of its inputs.
    inputs: Vec<FxHashSet<BufferNo>>,
    /// By rank and buffer: the accesses that no later write covers.
    accesses: FxHashMap<(usize, BufferNo), History<Access>>,
    /// By rank and buffer: the reuse that it takes part in as the earlier, and as the later buffer.
    handed_on: FxHashMap<(usize, BufferNo), Reused>,
    taken_over: FxHashMap<(usize, BufferNo), Reused>,
    /// Pairs of statements that race, by rank.
    reported: FxHashSet<(BufferNo, [(usize, u32); 2])>,
    /// The first race of each pair of statements and ranks.
    pub found: Vec<Race>,
    /// Pairs of views that are too large to compare.
    pub not_compared: usize,
}

impl<'p> Races<'p> {
    /// Before the first instruction.
    pub fn new(plans: &'p [Plan]) -> Self {
        let mut next = 0;
        let mut first = |plan: &Plan| {
            let actor = next;
            next += (plan.streams.len() + plan.communicators.len()) as u32;
            actor
        };
        let entry = plans.iter().map(&mut first).collect();
        let all_reused = || plans.iter().flat_map(|plan| plan.reused.iter().map(|it| (plan.rank, *it)));
        let inputs =
            |plan: &Plan| plan.inputs.iter().filter_map(|it| Some(it.shard.view.as_ref()?.buffer)).collect();
        Self {
            plans,
            entry,
            inputs: plans.iter().map(inputs).collect(),
            accesses: FxHashMap::default(),
            handed_on: all_reused().map(|(rank, it)| ((rank, it.earlier), it)).collect(),
            taken_over: all_reused().map(|(rank, it)| ((rank, it.later), it)).collect(),
            reported: FxHashSet::default(),
            found: Vec::new(),
            not_compared: 0,
        }
    }

    /// An instruction, after all that happen before it.
    pub fn visit(&mut self, it: &Occurrence) {
        let plan = &self.plans[it.rank];
        let at = InstRef { rank: it.rank, inst: it.inst };
        let kind = &plan.code[it.inst].kind;
        if matches!(kind, InstKind::Finish) {
            let ports = plan.inputs.iter().chain(&plan.outputs);
            for view in ports.filter_map(|port| port.shard.view.as_ref()) {
                self.access(it, Party::CallerAfter(at), it.rank, view, true);
            }
            return;
        }
        if let InstKind::Transfer(transfer) = kind {
            self.group(at, transfer);
        }
        for access in kind.accesses(it.rank) {
            self.after_entry(it, access.rank, access.view, access.written);
            self.access(it, Party::Inst(at), access.rank, access.view, access.written);
        }
        // Storage that a caching allocator hands out may still be in use by what its stream has been given before.
        if let InstKind::Alloc { buffer, .. } = kind {
            let whole = View::contiguous(*buffer, vec![plan.buffers[*buffer as usize].len]);
            self.access(it, Party::Inst(at), it.rank, &whole, true);
        }
    }

    /// The operations of a group run at the same time.
    fn group(&mut self, at: InstRef, transfer: &Transfer) {
        let sides: Vec<&Side> = transfer.sides.iter().filter(|it| !it.view.is_empty()).collect();
        for (number, side) in sides.iter().enumerate() {
            for earlier in &sides[..number] {
                let party = |it: &Side| (Party::Side(at, it.origin), it.direction == Direction::Recv);
                let parties = [party(earlier), party(side)];
                if !parties.iter().any(|it| it.1) {
                    continue;
                }
                match overlap(&earlier.view, &side.view) {
                    Overlap::None => (),
                    Overlap::Unknown => self.not_compared += 1,
                    Overlap::Some(elements) => {
                        self.report(Race {
                            rank: at.rank,
                            buffer: side.view.buffer,
                            elements,
                            parties,
                            reused: None,
                        });
                    }
                }
            }
        }
    }

    /// An access to an input has to come after the caller's work, which ends where stream 0 begins.
    fn after_entry(&mut self, it: &Occurrence, rank: usize, view: &View, writes: bool) {
        let entry = self.entry[rank];
        let is_after = it.actor == entry || it.before.ended(entry) > 0;
        if is_after || !self.inputs[rank].contains(&view.buffer) {
            return;
        }
        let Some((start, end)) = view.bounds() else { return };
        let at = InstRef { rank: it.rank, inst: it.inst };
        let parties = [(Party::CallerBefore, true), (Party::Inst(at), writes)];
        self.report(Race {
            rank,
            buffer: view.buffer,
            elements: Range { start, end: end + 1 },
            parties,
            reused: None,
        });
    }

    /// Compares an access with those before it, and keeps it.
    fn access(&mut self, it: &Occurrence, party: Party, rank: usize, view: &View, writes: bool) {
        let Some((first, last)) = view.bounds() else { return };
        let known = self.accesses.entry((rank, view.buffer)).or_default();
        let mut found = Vec::new();
        let mut not_compared = 0;
        known.retain(first, last, |earlier| {
            // An instruction does not race with itself: it reads before it writes.
            let is_same = (earlier.actor, earlier.number) == (it.actor, it.number);
            let is_ordered = is_same || it.before.ended(earlier.actor) >= earlier.number;
            if !is_ordered && (writes || earlier.writes) {
                match overlap(&earlier.view, view) {
                    Overlap::None => (),
                    Overlap::Unknown => not_compared += 1,
                    Overlap::Some(elements) => {
                        let parties = [(earlier.party, earlier.writes), (party, writes)];
                        found.push(Race { rank, buffer: view.buffer, elements, parties, reused: None });
                    }
                }
            }
            // What is not ordered with the earlier one is not ordered with this one either, and this one is compared with it.
            let is_covered = is_ordered && (writes || !earlier.writes) && covers(view, &earlier.view);
            !is_covered
        });
        self.not_compared += not_compared;
        found.into_iter().for_each(|it| self.report(it));
        self.storage(it, party, rank, view, writes);
        let (actor, number) = (it.actor, it.number);
        let known = self.accesses.entry((rank, view.buffer)).or_default();
        known.push(first, last, Access { party, actor, number, view: view.clone(), writes });
    }

    /// Compares an access with those to the buffers that the same storage is before and after. Frameworks keep the operands of a
    /// communication until it is done, so these do not count.
    fn storage(&mut self, it: &Occurrence, party: Party, rank: usize, view: &View, writes: bool) {
        let is_use = |party: Party| match party {
            Party::Inst(at) => {
                let kind = &self.plans[at.rank].code[at.inst].kind;
                !matches!(kind, InstKind::Alloc { .. }) && kind.communication().is_none()
            }
            Party::Side(..) | Party::CallerBefore | Party::CallerAfter(_) => false,
        };
        if !is_use(party) {
            return;
        }
        let key = (rank, view.buffer);
        let neighbours = [
            self.taken_over.get(&key).map(|it| (it.earlier, *it)),
            self.handed_on.get(&key).map(|it| (it.later, *it)),
        ];
        for (other, reused) in neighbours.into_iter().flatten() {
            let Some(known) = self.accesses.get(&(rank, other)) else { continue };
            let is_racing = |earlier: &&Access| {
                it.before.ended(earlier.actor) < earlier.number
                    && (earlier.actor, earlier.number) != (it.actor, it.number)
                    && (earlier.writes || writes)
                    && is_use(earlier.party)
            };
            let Some(earlier) = known.iter().find(is_racing) else { continue };
            let elements = Range { start: 0, end: self.plans[rank].buffers[reused.earlier as usize].len };
            let parties = [(earlier.party, earlier.writes), (party, writes)];
            self.report(Race { rank, buffer: reused.earlier, elements, parties, reused: Some(reused) });
        }
    }

    /// Keeps a race, if it is the first of its two statements and ranks.
    fn report(&mut self, race: Race) {
        let statement = |(party, _): (Party, bool)| match party {
            Party::Inst(at) => (at.rank, self.plans[at.rank].code[at.inst].origin),
            Party::Side(at, origin) => (at.rank, origin),
            Party::CallerBefore => (race.rank, u32::MAX),
            Party::CallerAfter(at) => (at.rank, u32::MAX - 1),
        };
        if self.reported.insert((race.buffer, race.parties.map(statement))) {
            self.found.push(race);
        }
    }
}
