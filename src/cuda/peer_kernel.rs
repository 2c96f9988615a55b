//! The collectives over peer memory that one kernel executes (`kernels::peer_memory`).

use hir_plan::{Phase, View};

/// Maximum number of signals and views of a kernel: their addresses are parameters, of which CUDA allows 4 KiB.
pub(super) const MAX_ADDRESSES: usize = 500;

/// Returns the number of elements of each view of a collective; `None` if no kernel executes it, because views are not
/// contiguous or the team is too large.
pub(super) fn element_count([ready, access]: &[Phase; 2]) -> Option<usize> {
    let lists = [&ready.signals, &ready.waits, &access.signals, &access.waits];
    let peers = lists.iter().map(|it| it.len()).max().unwrap_or(0);
    let fits = lists.len() * peers + access.views().count() <= MAX_ADDRESSES;
    let is_uniform = access.transfers.windows(2).all(|pair| {
        let [a, b] = pair else { return true };
        (a.op(), a.inputs().len(), a.outputs().count()) == (b.op(), b.inputs().len(), b.outputs().count())
    });
    let len = access.views().next().map_or(0, View::len);
    let are_alike = access.views().all(|view| view.is_contiguous() && view.len() == len);
    (fits && is_uniform && are_alike).then_some(len)
}
