//! State of the vendor's libraries that a process keeps from plan to plan.

use std::sync::Arc;

use hir_executor::AttentionLibrary;
use rustc_hash::FxHashMap;

use super::{comm::CommCache, matmul::CublasLtHandle};

/// State of the vendor's libraries in this process.
#[derive(Default)]
pub(super) struct LibraryState {
    pub comm_cache: CommCache,
    pub cublaslt: Option<CublasLtHandle>,
    /// The output of NVRTC, keyed by source. Running a program again, as commands or as a graph, uses the
    /// same source.
    pub cubins: FxHashMap<String, Vec<u8>>,
    /// What computes attentions, if the process has something else than hir's kernels for them.
    pub attention: Option<Arc<dyn AttentionLibrary>>,
}
