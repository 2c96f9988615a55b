//! What the vendor's libraries have made for this process, for one plan after another.

use rustc_hash::FxHashMap;

use super::{comm::Joined, gemm::Products};

/// What libraries have made for this process.
#[derive(Default)]
pub(super) struct Libraries {
    pub joined: Joined,
    pub products: Option<Products>,
    /// What NVRTC has made of sources: a program that runs again, step by step or as a graph, has the same.
    pub cubins: FxHashMap<String, Vec<u8>>,
}
