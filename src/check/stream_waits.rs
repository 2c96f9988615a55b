//! Which streams of a rank wait for an instruction, directly or through other streams.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::plan::{InstKind, Plan, StreamNo};

/// Returns the first instruction after which the stream `waiting` has waited for the instruction `at`, or for the
/// communication that `at` posts.
pub fn first_stream_wait(plan: &Plan, at: usize, waiting: StreamNo) -> Option<usize> {
    let inst = plan.code.get(at)?;
    let work = inst.kind.communication().map(|it| it.work());
    // By stream: the instruction after which `at` has ended.
    let mut done: FxHashMap<StreamNo, usize> = FxHashMap::default();
    if work.is_none() {
        done.insert(inst.stream, at);
    }
    // The events that streams record after `at` has ended.
    let mut recorded = FxHashSet::default();
    for (number, inst) in plan.code.iter().enumerate().skip(at + 1) {
        let waits = match inst.kind {
            InstKind::RecordEvent { event } if done.contains_key(&inst.stream) => {
                recorded.insert(event);
                false
            }
            InstKind::WaitEvent { event } => recorded.contains(&event),
            InstKind::Wait { work: it } => Some(it) == work,
            _ => false,
        };
        if waits {
            done.entry(inst.stream).or_insert(number);
        }
        if let Some(found) = done.get(&waiting) {
            return Some(*found);
        }
    }
    None
}
