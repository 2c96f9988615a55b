//! The rules that define which accesses are ordered.

grammar::named_enum! {
    /// The rules by which a program is checked.
    /// The names are those of command lines.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum OrderingModel {
        /// Only the orders that CUDA, NCCL and PyTorch document; valid for any executor of the program.
        #[default]
        Nccl = "nccl",
        /// Also the orders that hir's own executors provide; valid for programs that hir-run executes. The engine of `hir_cuda` provides them:
        /// `load_inputs` ends with a barrier of all ranks, in `begin` every stream waits for the first, `join_streams` and `rank_barrier` end a
        /// run before memory is used again, and `buffer_assignment` lets buffers share memory only if `plan::sync::happens_before` orders their uses.
        Hir = "hir",
    }
}

grammar::named_enum! {
    /// Where storage comes from.
    /// The names are those of command lines.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum StorageModel {
        /// The caching allocator of PyTorch: blocks of a stream are in two pools, by size (`plan::caching_allocator`).
        #[default]
        PyTorch = "pytorch",
        /// `cudaMallocAsync` and `cudaFreeAsync` on the stream of the ALLOCATE. Both are work of this stream, and each use has to
        /// follow the first and to precede the second.
        CudaAsync = "cuda-async",
        /// As `CudaAsync`, and a communication holds operands until the program waits for it (`plan::held_operands`): PyTorch with
        /// `backend:cudaMallocAsync`.
        PyTorchCudaAsync = "pytorch-cuda-async",
        /// Storage is never used again.
        NeverReused = "never-reused",
    }
}

/// The rules that order accesses to memory.
#[derive(Clone, Copy, Debug)]
pub struct AccessRules {
    /// Which orders count.
    pub model: OrderingModel,
    /// Where storage comes from.
    pub storage: StorageModel,
}

impl AccessRules {
    /// Returns true if all streams on all ranks begin after the caller has written the inputs.
    pub(super) fn starts_together(self) -> bool {
        self.model == OrderingModel::Hir
    }

    /// Returns true if a view of the shards of all ranks may be mapped memory of peers. hir's executors copy the shards.
    pub(super) fn maps_views(self) -> bool {
        self.model == OrderingModel::Nccl
    }

    /// Returns true if inputs, outputs and storage belong to the program until all streams of all ranks have
    /// finished. The caller then only reads the outputs at exit.
    pub(super) fn ends_together(self) -> bool {
        self.model == OrderingModel::Hir
    }

    /// Returns true if streams execute the allocations and frees of storage.
    pub(super) fn frees_in_stream_order(self) -> bool {
        let is_async = matches!(self.storage, StorageModel::CudaAsync | StorageModel::PyTorchCudaAsync);
        !self.reuses_in_order() && is_async
    }

    /// Returns true if `cudaMallocAsync` allocates, and `cudaMalloc` symmetric memory: a captured ALLOCATE is work of the graph, and the host waits
    /// for its GPU where symmetric memory is allocated or freed. PyTorch instantiates graphs that free what they have allocated
    /// (`CUDAGraph::instantiate`).
    pub(super) fn allocates_with_cuda(self) -> bool {
        self.model == OrderingModel::Nccl && self.storage == StorageModel::CudaAsync
    }

    /// Returns true if the free of symmetric memory waits for no stream: nvFuser's, on either allocator of PyTorch.
    pub(super) fn unmaps_symmetric_memory(self) -> bool {
        matches!(self.storage, StorageModel::PyTorch | StorageModel::PyTorchCudaAsync)
    }

    /// Returns true if a communication holds operands until the program waits for it.
    pub(super) fn holds_operands(self) -> bool {
        self.storage != StorageModel::CudaAsync
    }

    /// Returns true if storage is never used again, or only if every use by its earlier owner happens before every use by
    /// the later one.
    pub(super) fn reuses_in_order(self) -> bool {
        self.model == OrderingModel::Hir || self.storage == StorageModel::NeverReused
    }
}
