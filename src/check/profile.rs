//! Named settings of the options that select rules.

use hir_plan::sync::{LaunchOrder, P2pQueues};

use super::{
    finding::Checks,
    ordering_model::{OrderingModel, StorageModel},
};

/// A named setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, as command lines contain it.
    pub name: &'static str,
    /// What it stands for.
    pub help: &'static str,
    nccl: LaunchOrder,
    connects: bool,
    p2p: Option<P2pQueues>,
    serial_pads: bool,
    storage: StorageModel,
}

/// All profiles. The first one is the default.
pub const PROFILES: [Profile; 5] = [
    PYTORCH,
    Profile {
        name: "pytorch-2.15",
        help: "PyTorch 2.15, in which collectives of a team over peer memory follow each other",
        serial_pads: true,
        ..PYTORCH
    },
    Profile {
        name: "nvfuser",
        help: "nvFuser, which has one communicator for the transfers of all pairs",
        p2p: Some(P2pQueues::Communicator),
        ..PYTORCH
    },
    Profile {
        name: "nccl-2.28",
        help: "An executor of your own that calls NCCL and cudaMallocAsync",
        p2p: Some(P2pQueues::Communicator),
        storage: StorageModel::CudaAsync,
        ..PYTORCH
    },
    Profile {
        name: "cold",
        help: "PyTorch in the first run of a process, without eager initialization",
        p2p: Some(P2pQueues::Pair),
        ..PYTORCH
    },
];

const PYTORCH: Profile = Profile {
    name: "pytorch-2.11",
    help: "PyTorch, with or without eager initialization",
    nccl: LaunchOrder::Explicit,
    connects: true,
    p2p: None,
    serial_pads: false,
    storage: StorageModel::PyTorch,
};

impl Default for Profile {
    fn default() -> Self {
        PYTORCH
    }
}

impl Profile {
    /// Returns `checks` with these rules.
    #[must_use]
    pub fn apply(self, checks: Checks) -> Checks {
        let Self { name: _, help: _, nccl, connects, p2p, serial_pads, storage } = self;
        Checks { model: OrderingModel::Nccl, nccl, connects, p2p, serial_pads, storage, ..checks }
    }

    /// Returns the options that it sets, as Markdown.
    pub(super) fn options(self) -> String {
        let p2p = self.p2p.map_or("either".to_owned(), |it| format!("`--p2p={}`", it.name()));
        let connects = if self.connects { "connect-at-first-use" } else { "connected" };
        let pads = if self.serial_pads { "; signal pads in issue order" } else { "" };
        format!("{p2p}, `--nccl={},{connects}`, `--storage={}`{pads}", self.nccl.name(), self.storage.name())
    }
}
