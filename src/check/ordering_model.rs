//! The rules that define which accesses are ordered.

/// The rules by which a program is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OrderingModel {
    /// Only the orders that CUDA, NCCL and PyTorch document; valid for any executor of the program.
    #[default]
    Nccl,
    /// Also the orders that hir's own executors provide; valid for programs that hir-run executes.
    Hir,
}

impl OrderingModel {
    /// All models.
    pub const ALL: [Self; 2] = [Self::Nccl, Self::Hir];

    /// Returns the name of the model, as command lines contain it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Hir => "hir",
        }
    }

    /// Returns true if all streams on all ranks begin after the caller has written the inputs.
    pub(super) fn starts_together(self) -> bool {
        self == Self::Hir
    }

    /// Returns true if inputs, outputs and storage belong to the program until all streams of all ranks have
    /// finished. The caller then only reads the outputs at exit.
    pub(super) fn ends_together(self) -> bool {
        self == Self::Hir
    }

    /// Returns true if storage is reused only if every use by its earlier owner happens before every use by
    /// the later one.
    pub(super) fn reuses_in_order(self) -> bool {
        self == Self::Hir
    }
}

impl std::fmt::Display for OrderingModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
