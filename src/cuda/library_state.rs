//! What the vendor's libraries have made for this process, for one plan after another.

use rustc_hash::FxHashMap;

use super::{comm::CommCache, matmul::CublasLtHandle};

/// What libraries have made for this process.
#[derive(Default)]
pub(super) struct LibraryState {
    pub comm_cache: CommCache,
    pub cublaslt: Option<CublasLtHandle>,
    /// What NVRTC has made of sources: a program that runs again, step by step or as a graph, has the same.
    pub cubins: FxHashMap<String, Vec<u8>>,
}
