//! The lines of a printed plan at which buffers are freed.

use crate::{Plan, StreamNo};

/// A line that is no instruction: what happens to a buffer behind a statement.
pub(super) struct FreeLine {
    /// The statement, an index into `Plan::origins`.
    pub origin: u32,
    /// The stream of the ALLOCATE.
    pub stream: StreamNo,
    /// What happens.
    pub text: String,
}

/// Returns the lines of a plan, in the order of their statements. The end of the program has none.
pub(super) fn free_lines(plan: &Plan) -> Vec<FreeLine> {
    let mut all = Vec::new();
    for it in &plan.allocations {
        let name = format!("{}.b{}", plan.buffers[it.buffer as usize].name, it.buffer);
        let mut line = |origin, word| {
            all.push(FreeLine { origin, stream: it.pool.stream, text: format!("{word} {name}") });
        };
        let freed = it.freed.map(|it| it.origin);
        match it.unbound.map(|it| it.origin) {
            Some(unbound) if freed != Some(unbound) => line(unbound, "unbind"),
            Some(_) | None => (),
        }
        if let Some(origin) = freed {
            line(origin, "free");
        }
    }
    all.sort_by_key(|it| it.origin);
    all
}
