//! Records which work and allocations have ended when other work or another allocation begins. Work is any instruction that accesses
//! memory; the relative order of waits does not matter. The order of allocations decides which tensors may share storage.
//!
//! A clock counts all instructions of an actor. This module counts only the items among them: work and allocations. Two walks
//! produce the same counts for a pair of items if and only if both order the pair in the same way.

use rustc_hash::FxHashMap;

use hir_plan::{
    InstKind, SyncEffect, World,
    sync::{
        InstRef,
        happens_before::{self, Clock, Occurrence, OrderError},
    },
};

/// The maximum number of stored counts.
const MAX_CLOCK_ENTRIES: usize = 1 << 24;

/// The items of one actor.
#[derive(Default)]
struct ActorItems {
    /// For each instruction, from 1: the number of items up to and including it. On the entry stream, the first
    /// item counts one extra: it stands for the caller's work before entry.
    items_before: Vec<u32>,
    /// For each number of items, from 0: how many of them are work. The caller's is.
    work_among: Vec<u32>,
    /// The instruction of each work item, without the caller's.
    work: Vec<InstRef>,
    /// True for the stream that is current at entry.
    is_entry: bool,
    rank: usize,
}

/// The order of all work and allocations.
pub struct WorkOrder {
    actors: Vec<ActorItems>,
    /// By actor and instruction number of an item: for each actor, the number of items that have ended when the item begins.
    ended_before: FxHashMap<(u32, u32), Box<[u32]>>,
}

/// How another walk orders a work item, compared with this one.
pub enum OrderDifference {
    /// In the same way.
    Unchanged,
    /// It no longer follows this instruction.
    LostOrder(InstRef),
    /// It no longer follows the caller's work on its rank.
    LostCallerOrder,
}

/// Returns true if an instruction is work rather than only synchronization.
pub fn is_work(kind: &InstKind) -> bool {
    match kind.effect() {
        SyncEffect::Compute => !matches!(kind, InstKind::Alloc { zeroed: None, .. }),
        SyncEffect::Post(_) | SyncEffect::Reshard(_) | SyncEffect::ReadOutputs => true,
        hir_plan::stream_sync_effects!() | hir_plan::host_effects!() => false,
    }
}

/// Returns true if an instruction is work or an allocation.
fn is_item(kind: &InstKind) -> bool {
    is_work(kind) || matches!(kind, InstKind::Alloc { .. })
}

impl WorkOrder {
    /// Computes the order with all instructions. Returns `None` if it is too large or if the walk fails.
    pub fn of(world: &World) -> Option<Self> {
        let mut it = Self { actors: actors(world), ended_before: FxHashMap::default() };
        if it.comparison_count() > MAX_CLOCK_ENTRIES {
            return None;
        }
        let mut ended = FxHashMap::default();
        let walked: Result<(), OrderError> = happens_before::walk(world, &mut |at| {
            if is_item(&world[at.rank].code[at.inst].kind) {
                ended.insert((at.actor, at.number), it.counts(&at.clock).collect());
            }
        });
        it.ended_before = ended;
        walked.is_ok().then_some(it)
    }

    /// Returns the number of counts of work that each further walk compares.
    pub fn comparison_count(&self) -> usize {
        let work: usize = self.actors.iter().map(|it| it.work.len()).sum();
        work.saturating_mul(self.actors.len())
    }

    /// Returns whether another walk, over the same plans with fewer waits, orders an item in the same way, after the same work and allocations.
    pub fn is_unchanged(&self, at: &Occurrence) -> bool {
        let known = self.ended_before.get(&(at.actor, at.number));
        known.is_none_or(|known| self.counts(&at.clock).zip(known).all(|(now, before)| now >= *before))
    }

    /// Compares a work item of another walk, over the same plans with fewer waits, with this order of work.
    pub fn difference(&self, at: &Occurrence) -> OrderDifference {
        let Some(known) = self.ended_before.get(&(at.actor, at.number)) else {
            return OrderDifference::Unchanged;
        };
        let mut first = None;
        for (actor, (now, before)) in self.counts(&at.clock).zip(known).enumerate() {
            let items = &self.actors[actor];
            let [now, before] =
                [now, *before].map(|it| items.work_among.get(it as usize).copied().unwrap_or(0));
            if now >= before {
                continue;
            }
            let entry = u32::from(items.is_entry);
            // The caller's work on another rank matters only for accesses to that rank's inputs, which the
            // race check covers.
            if now < entry && items.rank == at.rank {
                return OrderDifference::LostCallerOrder;
            }
            let last = (before - entry).checked_sub(1).and_then(|at| items.work.get(at as usize));
            // An instruction of the same rank is preferred in reports.
            let is_better = |it: &InstRef, known: &InstRef| it.rank == at.rank && known.rank != at.rank;
            if let Some(last) = last.filter(|it| first.as_ref().is_none_or(|known| is_better(it, known))) {
                first = Some(*last);
            }
        }
        first.map_or(OrderDifference::Unchanged, OrderDifference::LostOrder)
    }

    fn counts<'a>(&'a self, clock: &'a Clock) -> impl Iterator<Item = u32> + 'a {
        let count = |(actor, it): (usize, &ActorItems)| {
            let ended = clock.ended(actor as u32) as usize;
            it.items_before.get(ended).or(it.items_before.last()).copied().unwrap_or(0)
        };
        self.actors.iter().enumerate().map(count)
    }
}

/// Returns the items of all actors, with the numbering of `happens_before::walk`.
fn actors(world: &World) -> Vec<ActorItems> {
    let mut actors: Vec<ActorItems> = Vec::new();
    for plan in world.plans() {
        let first = actors.len();
        let count = plan.streams.len() + plan.communicators.len();
        actors.extend((0..count).map(|at| ActorItems {
            items_before: vec![0],
            // The caller's work before entry comes first.
            work_among: if at == 0 { vec![0, 1] } else { vec![0] },
            work: Vec::new(),
            is_entry: at == 0,
            rank: plan.rank,
        }));
        for (inst, it) in plan.code.iter().enumerate() {
            let at = InstRef { rank: plan.rank, inst };
            let stream = first + it.stream as usize;
            match it.kind.effect() {
                SyncEffect::ShareMemHandles(_) | SyncEffect::Barrier | SyncEffect::HostWait(_) => (),
                SyncEffect::Post(posted) => {
                    let number = posted.communicator();
                    let queue = world.matching().queue_of(plan.rank, number).unwrap_or(number) as usize;
                    actors[stream].push(None, false);
                    actors[first + plan.streams.len() + queue].push(Some(at), true);
                }
                hir_plan::stream_sync_effects!()
                | SyncEffect::Compute
                | SyncEffect::Reshard(_)
                | SyncEffect::ReadOutputs => {
                    actors[stream].push(is_work(&it.kind).then_some(at), is_item(&it.kind));
                }
            }
        }
    }
    actors
}

impl ActorItems {
    /// Appends an instruction; `work` is set if it is work.
    fn push(&mut self, work: Option<InstRef>, is_item: bool) {
        self.work.extend(work);
        if is_item {
            self.work_among.push(self.work.len() as u32 + u32::from(self.is_entry));
        }
        self.items_before.push(self.work_among.len() as u32 - 1);
    }
}
