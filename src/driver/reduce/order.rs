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

use hir_plan::{InstKind, Plan, SyncEffect};

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
        // The instructions of both plans have the same numbers in both.
        let (places, kept) = (positions(old), positions(new));
        let both: Vec<(usize, usize)> =
            places.iter().filter_map(|(key, at)| Some((*at, *kept.get(key)?))).collect();
        let numbers = |at: fn(&(usize, usize)) -> usize| {
            both.iter().zip(0..).map(|(it, number)| (at(it), number)).collect::<FxHashMap<usize, usize>>()
        };
        let old = instructions_before(old, &numbers(|it| it.0));
        let new = instructions_before(new, &numbers(|it| it.1));
        old.iter().zip(&new).all(|(old, new)| new.has_all(old))
    })
}

/// A set of instructions of one rank, by index.
#[derive(Clone, Default)]
struct InstSet(Vec<u64>);

impl InstSet {
    fn has_all(&self, other: &Self) -> bool {
        let bits = |at: usize| self.0.get(at).copied().unwrap_or(0);
        other.0.iter().enumerate().all(|(at, other)| other & !bits(at) == 0)
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

/// Returns the instructions of a plan that access memory or signal other ranks.
fn positions(plan: &Plan) -> FxHashMap<InstKey, usize> {
    let mut counts: FxHashMap<(Option<StmtId>, String), usize> = FxHashMap::default();
    let mut positions = FxHashMap::default();
    for (at, inst) in plan.code.iter().enumerate() {
        let is_work = match inst.kind.effect() {
            SyncEffect::RecordEvent(_)
            | SyncEffect::WaitEvent(_)
            | SyncEffect::Wait(_)
            | SyncEffect::ShareMemHandles(_)
            | SyncEffect::Barrier
            | SyncEffect::HostWait(_) => false,
            SyncEffect::Compute => !matches!(inst.kind, InstKind::Alloc { .. }),
            SyncEffect::Post(_)
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::Reshard(_)
            | SyncEffect::ReadOutputs => true,
        };
        if is_work {
            let place = (plan.origins[inst.origin as usize].stmt, plan.iteration(inst));
            let count = counts.entry(place.clone()).or_default();
            positions.insert((place.0, place.1, *count), at);
            *count += 1;
        }
    }
    positions
}

/// Returns, for each numbered instruction, the numbers of the instructions that complete before it starts. `numbers` has
/// instructions that access memory or signal other ranks.
fn instructions_before(plan: &Plan, numbers: &FxHashMap<usize, usize>) -> Vec<InstSet> {
    let mut all = vec![InstSet::default(); numbers.len()];
    let mut streams = vec![InstSet::default(); plan.streams.len()];
    let mut queues = vec![InstSet::default(); plan.communicators.len()];
    let mut events = vec![InstSet::default(); plan.event_count];
    let mut works = vec![InstSet::default(); plan.work_count];
    for (at, inst) in plan.code.iter().enumerate() {
        let (stream, number) = (&mut streams[inst.stream as usize], numbers.get(&at));
        let mut before = InstSet::default();
        if number.is_some() {
            before.join(stream);
        }
        match inst.kind.effect() {
            SyncEffect::RecordEvent(event) => events[event as usize] = stream.clone(),
            SyncEffect::WaitEvent(event) => stream.join(&events[event as usize]),
            SyncEffect::Wait(work) => stream.join(&works[work as usize]),
            SyncEffect::Post(posted) => {
                let queue = &mut queues[posted.communicator() as usize];
                before.join(queue);
                queue.join(stream);
                number.into_iter().for_each(|it| queue.add(*it));
                works[posted.work() as usize] = queue.clone();
            }
            SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier | SyncEffect::HostWait(_) => (),
            SyncEffect::Compute
            | SyncEffect::Signal(_)
            | SyncEffect::WaitSignal(_)
            | SyncEffect::Reshard(_)
            | SyncEffect::ReadOutputs => number.into_iter().for_each(|it| stream.add(*it)),
        }
        if let Some(number) = number {
            all[*number] = before;
        }
    }
    all
}
