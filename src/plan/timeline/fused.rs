//! What a kernel reads and writes that executes several instructions.

use rustc_hash::{FxHashMap, FxHashSet};

use super::work::{Work, WorkKind, accessed_bytes};
use crate::{BufferNo, InstKind, Plan, ViewKey};

/// The reads of the buffers of a plan. What peers read of a buffer that the rank reads itself is not known.
#[derive(Default)]
pub(super) struct Reads {
    /// By buffer: the number of instructions that read it.
    count: FxHashMap<BufferNo, usize>,
    /// The buffers that the caller of the program reads.
    escape: FxHashSet<BufferNo>,
}

impl Reads {
    pub fn of(plan: &Plan) -> Self {
        let (mut count, mut escape) = (FxHashMap::default(), FxHashSet::default());
        escape.extend(plan.caller_buffers());
        for inst in &plan.code {
            let reads = read_buffers(plan, &inst.kind);
            reads.into_iter().for_each(|it| *count.entry(it).or_default() += 1);
        }
        Self { count, escape }
    }

    /// Returns the work of one kernel that executes some instructions on the memory of the rank: it reads each view once, and writes
    /// what others read. `None` if an instruction is of another kind.
    pub fn work(&self, plan: &Plan, group: &[usize]) -> Option<Work> {
        let mut within: FxHashMap<BufferNo, usize> = FxHashMap::default();
        for at in group {
            let reads = read_buffers(plan, &plan.code[*at].kind);
            reads.into_iter().for_each(|it| *within.entry(it).or_default() += 1);
        }
        let is_kept = |it: &BufferNo| {
            self.escape.contains(it) || self.count.get(it) != within.get(it) || !within.contains_key(it)
        };
        let mut kind = WorkKind::Elementwise;
        // What is computed in place is read and written.
        let mut known = FxHashSet::<(ViewKey, bool)>::default();
        let mut written = FxHashSet::default();
        let mut bytes = 0;
        for at in group {
            match &plan.code[*at].kind {
                InstKind::Reduce(_) => kind = WorkKind::Reduction,
                InstKind::Map { .. }
                | InstKind::Fill { .. }
                | InstKind::Iota { .. }
                | InstKind::Copy { .. } => {}
                _ => return None,
            }
            let accesses = plan.code[*at].kind.accesses(plan.rank);
            if accesses.iter().any(|it| it.rank != plan.rank) {
                return None;
            }
            let (writes, reads): (Vec<_>, Vec<_>) = accesses.into_iter().partition(|it| it.is_write);
            for it in reads.into_iter().chain(writes) {
                let is_moved = if it.is_write {
                    written.insert(it.view.buffer);
                    is_kept(&it.view.buffer)
                } else {
                    !written.contains(&it.view.buffer)
                };
                if is_moved && known.insert((it.view.key(), it.is_write)) {
                    bytes += accessed_bytes(plan, it.view);
                }
            }
        }
        Some(Work { kind, extents: vec![bytes.max(1) as f64] })
    }
}

/// Returns the buffers of the rank that an instruction reads, each once.
fn read_buffers(plan: &Plan, kind: &InstKind) -> FxHashSet<BufferNo> {
    let mut found = FxHashSet::default();
    kind.visit_accesses(plan.rank, &mut |it| {
        if !it.is_write && it.rank == plan.rank {
            found.insert(it.view.buffer);
        }
    });
    found
}
