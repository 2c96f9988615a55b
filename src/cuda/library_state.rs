//! State of the vendor's libraries that a process keeps from plan to plan.

use std::sync::Arc;

use hir_executor::AttentionLibrary;
use rustc_hash::FxHashMap;

use super::{Result, comm::CommCache, cudnn::CudnnAttention, matmul::CublasLtHandle};
use hir_plan::{InstKind, Plan};

/// State of the vendor's libraries in this process.
#[derive(Default)]
pub(super) struct LibraryState {
    pub comm_cache: CommCache,
    pub cublaslt: Option<CublasLtHandle>,
    /// The output of NVRTC, keyed by source. Running a program again, as commands or as a graph, uses the
    /// same source.
    pub cubins: FxHashMap<String, Vec<u8>>,
    /// What computes attentions, if the process has a library for them.
    pub attention: Option<Arc<dyn AttentionLibrary>>,
    /// What computes attentions otherwise, since the first program that has some.
    cudnn: Option<Result<Option<Arc<CudnnAttention>>>>,
}

impl LibraryState {
    /// Returns the state of a process that has a library for attentions, or none.
    pub fn new(attention: Option<Arc<dyn AttentionLibrary>>) -> Self {
        Self { attention, ..Self::default() }
    }

    /// Returns the library for the attentions of a plan on a GPU of a compute capability; `None` if it has none. The context of the GPU has to be
    /// current.
    ///
    /// # Errors
    /// The process has no library, and cuDNN cannot be used.
    pub fn attention_of(
        &mut self,
        plan: &Plan,
        capability: i32,
    ) -> Result<Option<Arc<dyn AttentionLibrary>>> {
        let is_attention =
            |it: &InstKind| matches!(it, InstKind::Attention(_) | InstKind::AttentionGradient(_));
        if self.attention.is_some() || !plan.code.iter().any(|it| is_attention(&it.kind)) {
            return Ok(self.attention.clone());
        }
        let cudnn =
            self.cudnn.get_or_insert_with(|| Ok(CudnnAttention::new(capability)?.map(Arc::new))).clone()?;
        Ok(cudnn.map(|it| it as Arc<dyn AttentionLibrary>))
    }

    /// Returns the version and the path of the library that computes attentions, if hir has opened it.
    pub fn describe_attention(&self) -> Option<String> {
        let found = self.cudnn.as_ref()?.as_ref().ok()?.as_ref()?;
        Some(found.describe())
    }
}
