//! One-shot all-reduce: every member reads the inputs of all members and reduces them itself.
//!
//! It needs one round of signals. Each member reads `(n - 1) · bytes` from its peers. All members reduce in
//! team order, so the results are bitwise equal on all members. The scheme is that of vLLM's one-stage
//! all-reduce and of PyTorch's `one_shot_all_reduce`.

use grammar::words::Algorithm;

use super::{CollectiveCall, LoweredComm, Transport};
use crate::plan::{CollectiveKind, KernelKind};

/// Every member reduces all elements.
pub(super) struct OneShot;

impl Transport for OneShot {
    fn algorithm(&self) -> Option<Algorithm> {
        Some(Algorithm::OneShot)
    }

    fn supports(&self, kind: CollectiveKind) -> bool {
        matches!(kind, CollectiveKind::Allreduce { .. })
    }

    /// Returns false: a member that runs ahead would overwrite input that others still read.
    fn supports_in_place(&self, _: CollectiveKind) -> bool {
        false
    }

    fn writes_own_output(&self, _: CollectiveKind) -> bool {
        true
    }

    fn kernel(&self) -> Option<KernelKind> {
        Some(KernelKind::PeerMemory)
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> LoweredComm {
        call.kind.reduce_op().map(|op| call.pull(op)).unwrap_or_default()
    }
}
