//! Outputs that are judged and written per rank: `--expect T3@local=…`, `--output T3@local=…`.
//!
//! Each part is compared separately, so ranks that hold the same elements may hold different values. An
//! output that is also expected as a whole is not judged per rank.

use hir_plan::{IoBinding, Plan};

/// Returns notes about the ranks that hold no part of a tensor, and about outputs that are not compared
/// between ranks.
pub fn notes(plans: &[Plan], names: &[&str]) -> Vec<String> {
    let mut notes = Vec::new();
    for name in names {
        let here = |ports: &[IoBinding]| ports.iter().any(|it| it.name == *name && it.shard.view.is_some());
        let absent = plans.iter().filter(|it| !here(&it.outputs) && !here(&it.bound_at_exit));
        let absent: Vec<String> = absent.map(|it| it.rank.to_string()).collect();
        if !absent.is_empty() && absent.len() < plans.len() {
            let s = if absent.len() == 1 { "" } else { "s" };
            let hold = if absent.len() == 1 { "holds" } else { "hold" };
            notes.push(format!("{name}@local: rank{s} {} {hold} no part", absent.join(" ")));
        }
        let marked =
            plans.iter().flat_map(|it| &it.outputs).filter(|it| it.name == *name && it.is_compared_per_rank);
        let layouts: Vec<_> =
            marked.filter(|it| it.shard.view.is_some()).map(|it| &it.shard.layout).collect();
        if layouts.iter().enumerate().any(|(at, it)| layouts[..at].contains(it)) {
            notes.push(format!("{name}@local: each rank's own part; ranks are not compared with each other"));
        }
    }
    notes
}
