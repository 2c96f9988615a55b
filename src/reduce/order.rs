//! Checks that a smaller program preserves the order of the remaining operations.
//!
//! Removing a wait can create a race that the original program does not have. The reduction of a race must
//! not find such a race instead. A statement that orders two operations may therefore only be removed if one
//! of the two is removed too.
//!
//! The order is the order within one rank: of streams, of events between streams, of communicator queues and
//! of waits for communications.

use grammar::ir::StmtId;
use rustc_hash::FxHashMap;

use crate::plan::{InstKind, Plan, SyncEffect};

/// Programs with more instructions per rank are not compared. Shrinking their numbers comes first.
const MAX_INSTRUCTIONS: usize = 4000;

/// Identifies an instruction across edits: its statement, its iteration, and its index among the instructions
/// of that statement and iteration.
type InstKey = (Option<StmtId>, String, usize);

/// Returns true if every pair of instructions that was ordered on a rank is still ordered, as far as both
/// instructions still exist.
pub(super) fn preserves_order(old: &[Plan], new: &[Plan]) -> bool {
    old.iter().zip(new).all(|(old, new)| {
        if old.code.len() > MAX_INSTRUCTIONS {
            return true;
        }
        let (old, new) = (RankOrder::of(old), RankOrder::of(new));
        let both: Vec<(usize, usize)> =
            old.positions.iter().filter_map(|(key, at)| Some((*at, *new.positions.get(key)?))).collect();
        both.iter().all(|&(old_last, new_last)| {
            let lost = |&&(old_first, new_first): &&(usize, usize)| {
                old.before[old_last].has(old_first) && !new.before[new_last].has(new_first)
            };
            both.iter().find(lost).is_none()
        })
    })
}

/// A set of instructions of one rank, by index.
#[derive(Clone, Default)]
struct InstSet(Vec<u64>);

impl InstSet {
    fn has(&self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|bits| bits >> (at % 64) & 1 == 1)
    }

    fn add(&mut self, at: usize) {
        self.0.resize(self.0.len().max(at / 64 + 1), 0);
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn join(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }
}

/// The happens-before order on one rank.
struct RankOrder {
    /// The instructions that access memory or signal other ranks.
    positions: FxHashMap<InstKey, usize>,
    /// For each instruction, the instructions that complete before it starts.
    before: Vec<InstSet>,
}

impl RankOrder {
    fn of(plan: &Plan) -> Self {
        let mut order = Self { positions: FxHashMap::default(), before: Vec::with_capacity(plan.code.len()) };
        let mut streams = vec![InstSet::default(); plan.streams.len()];
        let mut queues = vec![InstSet::default(); plan.communicators.len()];
        let mut events = vec![InstSet::default(); plan.event_count];
        let mut works = vec![InstSet::default(); plan.work_count];
        let mut counts: FxHashMap<(Option<StmtId>, String), usize> = FxHashMap::default();
        for (at, inst) in plan.code.iter().enumerate() {
            let stream = &mut streams[inst.stream as usize];
            let mut before = stream.clone();
            let is_work = match inst.kind.effect() {
                SyncEffect::RecordEvent(event) => {
                    events[event as usize] = before.clone();
                    false
                }
                SyncEffect::WaitEvent(event) => {
                    stream.join(&events[event as usize]);
                    false
                }
                SyncEffect::Wait(work) => {
                    stream.join(&works[work as usize]);
                    false
                }
                SyncEffect::Post(posted) => {
                    let queue = &mut queues[posted.communicator() as usize];
                    before.join(queue);
                    queue.join(&before);
                    queue.add(at);
                    works[posted.work() as usize] = queue.clone();
                    true
                }
                SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier => false,
                SyncEffect::Compute if matches!(inst.kind, InstKind::Alloc { .. }) => false,
                SyncEffect::Compute
                | SyncEffect::Signal(_)
                | SyncEffect::WaitSignal(_)
                | SyncEffect::Reshard(_)
                | SyncEffect::ReadOutputs => {
                    stream.add(at);
                    true
                }
            };
            if is_work {
                let place = (plan.origins[inst.origin as usize].stmt, plan.iteration(inst));
                let count = counts.entry(place.clone()).or_default();
                order.positions.insert((place.0, place.1, *count), at);
                *count += 1;
            }
            order.before.push(before);
        }
        order
    }
}
