//! Which rules give an order.

use clap::ValueEnum;

/// Whose rules a program is checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OrderingModel {
    /// What CUDA, NCCL and PyTorch document: whatever executes the program.
    #[default]
    Nccl,
    /// That, and what hir's own executors give beyond it: what hir-run executes.
    Hir,
}

impl OrderingModel {
    /// Whether all streams begin after the caller's writes to the inputs, on all ranks.
    pub(super) fn starts_together(self) -> bool {
        self == Self::Hir
    }

    /// Whether inputs, outputs and storage stay the program's until all streams of all ranks have ended: at exit the caller only reads the
    /// outputs.
    pub(super) fn ends_together(self) -> bool {
        self == Self::Hir
    }

    /// Whether storage is handed out again only where every use by its earlier owner happens before every use by the later one.
    pub(super) fn reuses_in_order(self) -> bool {
        self == Self::Hir
    }
}

impl std::fmt::Display for OrderingModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nccl => "nccl",
            Self::Hir => "hir",
        })
    }
}
