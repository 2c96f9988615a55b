//! The options that select the rules by which tools check: `--check-model`, `--nccl`, `--p2p` and `--storage`.

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use grammar::{InvalidOption, Named};
use hir_check::{Checks, OrderingModel, PROFILES, Profile, StorageModel};
use hir_plan::sync::{LaunchOrder, P2pQueues};

/// The options that select the rules of `--check`, `--fix=check` and `--verify-each=check`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Checks")]
pub struct ModelFlags {
    /// The rules of some software, which `--nccl`, `--p2p` and `--storage` change. Default: pytorch-2.11.
    #[arg(long, value_parser = profile())]
    pub profile: Option<Profile>,
    /// Print the rules that the verdict of `--check` uses, with their sources.
    #[arg(long)]
    pub explain_assumptions: bool,
    /// The rules that order accesses: `nccl`, only what CUDA, NCCL and PyTorch document (default); `hir`,
    /// also what hir-run's own executors guarantee.
    #[arg(long, value_parser = check_model())]
    pub check_model: Option<OrderingModel>,
    /// What NCCL does: a list of the order in which it starts the kernels of different communicators, `launch-order-explicit` or
    /// `launch-order-implicit`, and of when it connects ranks, `connect-at-first-use` or `connected`. Default: the first of each; of
    /// `--verify-each=check` the second.
    #[arg(long, value_parser = nccl_words(), value_delimiter = ',')]
    pub nccl: Vec<NcclWord>,
    /// On which communicator NCCL runs sends and receives that are in no group: `communicator` (default of
    /// `--verify-each=check`) or `pair`. By default, what is a fault with either is found.
    #[arg(long, value_parser = p2p_queues())]
    pub p2p: Option<P2pQueues>,
    /// Where the storage of tensors comes from, and so which tensors may share it: `pytorch` (default), `cuda-async`, `pytorch-cuda-async` or
    /// `never-reused`.
    #[arg(long, value_parser = storage_model())]
    pub storage: Option<StorageModel>,
}

/// A word of `--nccl`: its name, what it means, the order in which kernels start, and whether ranks connect where they first need it.
type NcclWord = (&'static str, &'static str, Option<LaunchOrder>, Option<bool>);

const NCCL_WORDS: [NcclWord; 4] = [
    (
        "launch-order-explicit",
        "Kernels of different communicators start in any order, unless streams order them (the default of NCCL)",
        Some(LaunchOrder::Explicit),
        None,
    ),
    (
        "launch-order-implicit",
        "They start in issue order: NCCL_LAUNCH_ORDER_IMPLICIT=1 with NCCL 2.26 or newer, and hir-run",
        Some(LaunchOrder::Implicit),
        None,
    ),
    (
        "connect-at-first-use",
        "Hosts wait for each other in the first send and receive of two ranks, and in the first collective of a kind and size \
         (the default of NCCL)",
        None,
        Some(true),
    ),
    (
        "connected",
        "All ranks are connected: the program has run before, as hir-run lets it",
        None,
        Some(false),
    ),
];

impl ModelFlags {
    /// Checks that the options are compatible. `applies` says whether the tool checks something.
    ///
    /// # Errors
    /// A message that says what to change.
    pub fn validate(&self, applies: bool) -> Result<(), InvalidOption> {
        let given = [
            (self.check_model.is_some(), "--check-model"),
            (!self.nccl.is_empty(), "--nccl"),
            (self.p2p.is_some(), "--p2p"),
            (self.storage.is_some(), "--storage"),
            (self.profile.is_some(), "--profile"),
            (self.explain_assumptions, "--explain-assumptions"),
        ];
        if let Some((_, option)) = given.iter().find(|it| it.0 && !applies) {
            return Err(format!("`{option}` needs `--check`, `--fix=check` or `--verify-each=check`").into());
        }
        if self.check_model != Some(OrderingModel::Hir) {
            return Ok(());
        }
        let refused = [
            (
                self.launch_order() == Some(LaunchOrder::Explicit),
                "implies `--nccl=launch-order-implicit`: hir-run starts communications in issue order",
            ),
            (
                self.connects() == Some(true),
                "implies `--nccl=connected`: hir-run connects all ranks before it runs a program",
            ),
            (
                self.p2p == Some(P2pQueues::Pair),
                "implies `--p2p=communicator`: hir-run has one communicator for the transfers of all pairs",
            ),
            (self.storage.is_some(), "ignores `--storage`: hir-run assigns storage before the program runs"),
        ];
        let refused = refused.iter().find(|it| it.0);
        refused.map_or(Ok(()), |it| Err(format!("`--check-model=hir` {}", it.1).into()))
    }

    /// Returns `checks` with the rules that the options select.
    pub fn apply(&self, checks: Checks) -> Checks {
        let checks = self.profile.unwrap_or_default().apply(checks);
        Checks {
            model: self.check_model.unwrap_or_default(),
            nccl: self.launch_order().unwrap_or(checks.nccl),
            p2p: self.p2p.or(checks.p2p),
            connects: self.connects().unwrap_or(checks.connects),
            storage: self.storage.unwrap_or(checks.storage),
            ..checks
        }
    }

    /// As `apply`, for the results of passes: these keep the issue order, so kernels, and transfers of all pairs, start in this order by
    /// default, and ranks are connected.
    pub fn apply_to_passes(&self, checks: Checks) -> Checks {
        if self.profile.is_some() {
            return self.apply(checks);
        }
        Checks {
            nccl: self.launch_order().unwrap_or(LaunchOrder::Implicit),
            p2p: Some(self.p2p.unwrap_or_default()),
            connects: self.connects().unwrap_or(false),
            ..self.apply(checks)
        }
    }

    fn launch_order(&self) -> Option<LaunchOrder> {
        self.nccl.iter().rev().find_map(|it| it.2)
    }

    fn connects(&self) -> Option<bool> {
        self.nccl.iter().rev().find_map(|it| it.3)
    }

    /// Returns the rules that a verdict holds for: the profile, and the options that change it.
    pub fn verdict_holds_for(&self) -> String {
        let changes = Self { profile: None, ..self.clone() };
        let name = Some(self.profile.unwrap_or_default().name.to_owned());
        let name = name.filter(|_| self.check_model != Some(OrderingModel::Hir));
        name.into_iter().chain(changes.arguments()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the options as a command line contains them.
    pub fn arguments(&self) -> impl Iterator<Item = String> {
        let nccl = self.nccl.iter().map(|it| it.0).collect::<Vec<_>>().join(",");
        let all = [
            self.profile.map(|it| format!("--profile={}", it.name)),
            self.check_model.map(|it| format!("--check-model={it}")),
            Some(format!("--nccl={nccl}")).filter(|_| !self.nccl.is_empty()),
            self.p2p.map(|it| format!("--p2p={}", it.name())),
            self.storage.map(|it| format!("--storage={}", it.name())),
        ];
        all.into_iter().flatten()
    }
}

/// Returns the parser of an option with one of several words; `help` explains each.
fn choice<T: Copy + Default + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
    help: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|it| PossibleValue::new(name(*it)).help(help(*it))))
        .map(move |word| all.iter().copied().find(|it| name(*it) == word).unwrap_or_default())
}

/// Returns the parser of `--profile`.
fn profile() -> impl TypedValueParser<Value = Profile> {
    choice(&PROFILES, |it| it.name, |it| it.help)
}

/// Returns the parser of `--storage`.
fn storage_model() -> impl TypedValueParser<Value = StorageModel> {
    choice(StorageModel::ALL, StorageModel::name, |model| match model {
        StorageModel::PyTorch => {
            "The caching allocator of PyTorch, with a pool for requests up to 1 MiB and one for others"
        }
        StorageModel::CudaAsync => {
            "cudaMallocAsync and cudaFreeAsync, which the stream of the ALLOCATE executes"
        }
        StorageModel::PyTorchCudaAsync => {
            "PyTorch with backend:cudaMallocAsync: as cuda-async, and communications hold their operands until the program waits"
        }
        StorageModel::NeverReused => "Storage is never used again",
    })
}

/// Returns the parser of `--nccl`.
fn nccl_words() -> impl TypedValueParser<Value = NcclWord> {
    choice(&NCCL_WORDS, |it| it.0, |it| it.1)
}

/// Returns the parser of `--p2p`.
fn p2p_queues() -> impl TypedValueParser<Value = P2pQueues> {
    choice(P2pQueues::ALL, P2pQueues::name, |it| match it {
        P2pQueues::Communicator => {
            "They run on the communicator of all ranks: nvFuser, PyTorch with eager initialization, hir-run"
        }
        P2pQueues::Pair => {
            "Each pair of ranks has a communicator and a stream for them, and hosts wait for each other in the first communication of a \
             communicator: PyTorch without eager initialization"
        }
    })
}

/// Returns the parser of `--check-model`.
pub(crate) fn check_model() -> impl TypedValueParser<Value = OrderingModel> {
    choice(OrderingModel::ALL, OrderingModel::name, |model| match model {
        OrderingModel::Nccl => {
            "Only the orders that CUDA, NCCL and PyTorch document; valid for any executor of the program"
        }
        OrderingModel::Hir => {
            "Also the orders that hir's own executors provide; valid for programs that hir-run executes"
        }
    })
}
