//! Finds storage that lives longer than the program text suggests: long-form ALLOCATEs that allocate only
//! once, and buffers that are never deallocated.

use std::collections::{BTreeMap, BTreeSet};

use grammar::StmtId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Excess, ExcessKind, StmtOnRank};
use hir_plan::{Access, BufferNo, Inst, InstKind, Plan};

/// An ALLOCATE instruction.
struct AllocateSite {
    buffer: BufferNo,
    zero: bool,
    origin: u32,
}

/// Returns the findings about storage, one for each statement. ALLOCATEs of buffers in `raced` are skipped.
pub fn storage_excess(plans: &[Plan], raced: &FxHashSet<(usize, BufferNo)>) -> Vec<Excess> {
    let mut once: BTreeMap<(usize, StmtId), Excess> = BTreeMap::new();
    let mut kept: BTreeMap<(usize, StmtId), Excess> = BTreeMap::new();
    for plan in plans {
        let allocated = allocate_sites(plan);
        for skipped in &plan.skipped_allocations {
            // An ALLOCATE that never allocates is reported by the verifier.
            let is_it = |it: &&AllocateSite| plan.origins[it.origin as usize].stmt == Some(skipped.stmt);
            let Some(it) = allocated.iter().find(is_it) else { continue };
            if raced.contains(&(plan.rank, it.buffer)) {
                continue;
            }
            let kind = || ExcessKind::AllocatesOnce {
                name: plan.buffers[it.buffer as usize].name.clone(),
                skipped: skipped.count,
                is_zeroed: it.zero,
            };
            add_instance(&mut once, plan, skipped.stmt, it.origin, kind);
        }
        if plan.deallocates {
            let (caller, bound): (FxHashSet<BufferNo>, _) =
                (plan.caller_buffers().collect(), bound_names(plan));
            // Symmetric memory may be left to the caller: no stream orders its free.
            let is_kept: FxHashSet<BufferNo> = plan
                .allocations
                .iter()
                .filter(|it| {
                    it.freed.is_none() && !it.is_held && !it.is_symmetric && !caller.contains(&it.buffer)
                })
                .map(|it| it.buffer)
                .collect();
            for it in allocated.iter().filter(|it| is_kept.contains(&it.buffer)) {
                let Some(stmt) = plan.origins[it.origin as usize].stmt else { continue };
                // A tensor that only a HostUnit names cannot be deallocated by the program.
                let Some(bound) = bound.get(&it.buffer) else { continue };
                let kind = || {
                    let name = plan.buffers[it.buffer as usize].name.clone();
                    ExcessKind::NotDeallocated {
                        name,
                        bound_names: bound.clone(),
                        last_use: last_use(plan, it.buffer),
                    }
                };
                add_instance(&mut kept, plan, stmt, it.origin, kind);
            }
        }
    }
    once.into_values().chain(kept.into_values()).collect()
}

fn add_instance(
    all: &mut BTreeMap<(usize, StmtId), Excess>,
    plan: &Plan,
    stmt: StmtId,
    origin: u32,
    kind: impl FnOnce() -> ExcessKind,
) {
    let it = all.entry((plan.program_id, stmt)).or_insert_with(|| Excess {
        stmt: (plan.rank, origin),
        kind: kind(),
        ranks: BTreeSet::new(),
        count: 0,
    });
    it.ranks.insert(plan.rank);
    it.count += 1;
}

fn allocate_sites(plan: &Plan) -> Vec<AllocateSite> {
    let of = |it: &Inst| {
        let InstKind::Alloc { buffer, zeroed } = &it.kind else { return None };
        Some(AllocateSite { buffer: *buffer, zero: zeroed.is_some(), origin: it.origin })
    };
    plan.code.iter().filter_map(of).collect()
}

/// Returns the names bound to each buffer at the end of the program.
fn bound_names(plan: &Plan) -> FxHashMap<BufferNo, Vec<String>> {
    let mut bound: FxHashMap<BufferNo, Vec<String>> = FxHashMap::default();
    for port in &plan.bound_at_exit {
        if let Some(view) = &port.shard.view {
            bound.entry(view.buffer).or_default().push(port.name.clone());
        }
    }
    bound
}

/// Returns the last statement of the rank that uses `buffer`.
fn last_use(plan: &Plan, buffer: BufferNo) -> Option<StmtOnRank> {
    let is_of_buffer = |it: &Access<'_>| it.rank == plan.rank && it.view.buffer == buffer;
    let uses = |it: &&Inst| it.kind.accesses(plan.rank).iter().any(is_of_buffer);
    plan.code.iter().rfind(uses).map(|it| (plan.rank, it.origin))
}
