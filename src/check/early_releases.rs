//! Finds uses of storage that PyTorch frees without a wait of a stream: an operand where the program calls the next communication, or ends
//! behind such a call, once those that hold it have ended (`plan::held_operands`), and a tensor with recorded streams, once these have done what they had where it is freed
//! (`plan::recorded_streams`).
//!
//! The free follows these communications and streams, and all that precedes them. What else uses the storage, such as a kernel of another
//! stream, has to precede each use of what may get it then.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{
    conflict::{Party, ReusedStorage},
    storage::StorageConflict,
};
use hir_plan::{
    BufferNo, EventNo, Freed, Plan, StoragePool, StreamNo, WorkNo,
    sync::{
        InstRef,
        happens_before::{Clock, Occurrence},
    },
};

/// The operands of all ranks that are freed so, and what may get their storage.
pub(super) struct EarlyReleases {
    operands: BTreeMap<(usize, BufferNo), Operand>,
    /// The tensors that may get storage of an operand: the pool, and how many buffers are freed before.
    heirs: FxHashMap<(usize, BufferNo), (StoragePool, u32)>,
    /// By pool and actor: the first use of each of them, by the number of buffers that are freed before.
    uses: FxHashMap<(usize, StoragePool), BTreeMap<u32, HeirUses>>,
    /// The buffers whose free follows an event of a rank.
    recorded: FxHashMap<(usize, EventNo), Vec<BufferNo>>,
}

/// An operand.
struct Operand {
    pool: StoragePool,
    freed: Freed,
    /// The communications that hold it, as indices into `Plan::code`.
    holders: Vec<usize>,
    /// What has ended where each of them, and the event of each recorded stream, begins.
    before: Vec<Clock>,
    /// Whether it has recorded streams. Then its free is certain.
    is_recorded: bool,
    /// The last other use by each actor: its number, who uses it, and whether it writes.
    uses: BTreeMap<u32, (u32, (Party, bool))>,
}

/// A use of what may get storage: its number, the buffer (`None` is the caller), what has ended where it begins, who uses it, and whether it
/// writes.
type HeirUse = (u32, Option<BufferNo>, Clock, (Party, bool));
type HeirUses = BTreeMap<(u32, BufferNo), HeirUse>;

impl EarlyReleases {
    /// Creates the state before the first instruction; `None` if no operand has to be followed.
    pub fn new(plans: &[Plan]) -> Option<Self> {
        let (heirs, uses, recorded) = (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        let mut it = Self { operands: BTreeMap::new(), heirs, uses, recorded };
        plans.iter().filter(|it| !it.early_releases.is_empty()).for_each(|plan| it.add(plan));
        (!it.operands.is_empty()).then_some(it)
    }

    fn add(&mut self, plan: &Plan) {
        let rank = plan.rank;
        let pools: FxHashMap<BufferNo, StoragePool> =
            plan.allocations.iter().filter(|it| !it.is_empty).map(|it| (it.buffer, it.pool)).collect();
        let mut first: FxHashMap<StoragePool, u32> = FxHashMap::default();
        let mut held: FxHashMap<WorkNo, Vec<BufferNo>> = FxHashMap::default();
        for it in &plan.early_releases {
            let Some(pool) = pools.get(&it.buffer).copied() else { continue };
            first.entry(pool).or_insert(it.freed.number);
            it.works.iter().for_each(|work| held.entry(*work).or_default().push(it.buffer));
            for event in &it.recorded {
                self.recorded.entry((rank, *event)).or_default().push(it.buffer);
            }
            let (holders, before, uses) = (Vec::new(), Vec::new(), BTreeMap::new());
            let is_recorded = it.works.is_empty();
            let operand = Operand { pool, freed: it.freed, holders, before, is_recorded, uses };
            self.operands.entry((rank, it.buffer)).or_insert(operand);
        }
        for (at, inst) in plan.code.iter().enumerate() {
            let held = inst.kind.communication().and_then(|it| held.get(&it.work()));
            for buffer in held.into_iter().flatten() {
                self.operands.entry((rank, *buffer)).and_modify(|it| it.holders.push(at));
            }
        }
        let may_get = |pool, frees_before| first.get(&pool).is_some_and(|number| *number < frees_before);
        let heirs =
            plan.allocations.iter().filter(|it| !it.is_symmetric && may_get(it.pool, it.frees_before));
        self.heirs.extend(heirs.map(|it| ((rank, it.buffer), (it.pool, it.frees_before))));
    }

    /// Records a use of a buffer.
    pub fn access(&mut self, it: &Occurrence, side: (Party, bool), rank: usize, buffer: BufferNo) {
        if let Party::CallerBefore | Party::CallerAfter(_) = side.0 {
            return;
        }
        if let Some(operand) = self.operands.get_mut(&(rank, buffer)) {
            if it.rank == rank && operand.holders.contains(&it.inst) {
                operand.before.push(it.clock.clone());
            } else {
                operand.uses.insert(it.actor, (it.number, side));
            }
        }
        let Some((pool, frees_before)) = self.heirs.get(&(rank, buffer)).copied() else { return };
        let uses = self.uses.entry((rank, pool)).or_default().entry(it.actor).or_default();
        uses.entry((frees_before, buffer))
            .or_insert_with(|| (it.number, Some(buffer), it.clock.clone(), side));
    }

    /// Records an event of a stream.
    pub fn event(&mut self, it: &Occurrence, event: EventNo) {
        for buffer in self.recorded.get(&(it.rank, event)).into_iter().flatten() {
            self.operands
                .entry((it.rank, *buffer))
                .and_modify(|operand| operand.before.push(it.clock.clone()));
        }
    }

    /// Records the end of a rank, behind which the caller may get storage on the stream of `ReadOutputs`.
    pub fn end(&mut self, it: &Occurrence, stream: StreamNo) {
        let side = (Party::CallerAfter(InstRef { rank: it.rank, inst: it.inst }), true);
        let operands = self.operands.range((it.rank, 0)..=(it.rank, BufferNo::MAX));
        let pools = operands.map(|it| it.1.pool).filter(|it| it.stream == stream);
        for pool in pools {
            let uses = self.uses.entry((it.rank, pool)).or_default().entry(it.actor).or_default();
            uses.insert((u32::MAX, BufferNo::MAX), (it.number, None, it.clock.clone(), side));
        }
    }

    /// Returns the conflicts of all uses that were recorded, with the rank of each, and forgets the uses.
    pub fn finish(&mut self) -> Vec<(usize, StorageConflict)> {
        let mut heirs = std::mem::take(&mut self.uses);
        for uses in heirs.values_mut().flat_map(BTreeMap::values_mut) {
            // The first use by the actor of what is allocated there or later knows least.
            let mut first: Option<HeirUse> = None;
            for it in uses.values_mut().rev() {
                if let Some(earlier) = first.filter(|earlier| earlier.0 < it.0) {
                    *it = earlier;
                }
                first = Some(it.clone());
            }
        }
        let mut found = Vec::new();
        for ((rank, buffer), operand) in &mut self.operands {
            let before = std::mem::take(&mut operand.before);
            let of_pool = heirs.get(&(*rank, operand.pool));
            for (actor, (number, earlier)) in std::mem::take(&mut operand.uses) {
                if before.iter().any(|it| it.ended(actor) >= number) {
                    continue;
                }
                let others = of_pool.into_iter().flatten().filter(|it| *it.0 != actor);
                let mut first = others.filter_map(|it| it.1.range((operand.freed.number + 1, 0)..).next());
                let heir = first.find(|it| it.1.2.ended(actor) < number);
                let Some((_, (_, heir, _, later))) = heir else { continue };
                let freed_by = Some(operand.freed.origin).filter(|it| *it > 0);
                let reused = ReusedStorage {
                    earlier: *buffer,
                    later: *heir,
                    freed_by,
                    by_next_run: false,
                    by_next_call: !operand.is_recorded && freed_by.is_some(),
                    in_capture: false,
                    is_unmapped: false,
                };
                found.push((*rank, StorageConflict { earlier, later: *later, reused }));
            }
        }
        found
    }
}
