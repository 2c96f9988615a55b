//! How communications that no library moves become instructions: copies and combinations over peer memory between signals.
//!
//! `build` posts every communication to a communicator, whatever moves it; `lower` replaces those that have a transport, once the
//! views of all members are known. What results are instructions as any other: the order, the layout, the simulator and the GPU
//! executor see the real protocol, its signals and its staging buffers, and know nothing of transports. In the simulator a lowered
//! collective leaves what the posted one would (`contract`).
//!
//! | `backend=` | `algo=` | collectives | transport |
//! |---|---|---|---|
//! | NCCL, UCC | none, `nccl` | all | none: a library call on the communicator's queue |
//! | CUDA | none | all but Allreduce | `PeerCopies` |
//! | CUDA | none | Allreduce | `OneShot` or `TwoShot`, by size (`algorithm`) |
//! | CUDA, NCCL | `one-shot`, `two-shot` | Allreduce | `OneShot`, `TwoShot` |
//!
//! `backend=` decides where a transport's instructions run: with CUDA on the posting stream, as nvFuser does it; with NCCL on the
//! communicator's queue, between its neighbours there.
//!
//! A new transport is a file here with its `impl Transport`, a line in `TRANSPORTS` and its cases.

mod copies;
mod lower;
mod messages;
mod one_shot;
mod queue;
mod signals;
mod staging;
mod two_shot;

use grammar::words::Algorithm;

pub(super) use lower::lower;

use super::{Backend, CollectiveKind, InstKind, View, algorithm::chosen_algorithm};
use copies::PeerCopies;
use one_shot::OneShot;
use two_shot::TwoShot;

/// A way to move the data of collectives over peer memory.
trait Transport: Sync {
    /// The `algo=` that names it; `None`: the CUDA backend's own way.
    fn algorithm(&self) -> Option<Algorithm>;

    /// Whether it moves this kind of collective.
    fn supports(&self, kind: CollectiveKind) -> bool;

    /// Whether the transport is correct where the output is the memory of the part of the input that this member gives to itself. In all
    /// other cases of overlap the input is copied to a staging buffer first.
    fn supports_in_place(&self, kind: CollectiveKind) -> bool;

    /// Whether only this member writes its output. The output is then complete when the posted instructions are, before `Wait`: nvFuser
    /// programs read a CUDA Reduce that early.
    fn writes_own_output(&self, kind: CollectiveKind) -> bool;

    /// Whether the instructions may run as one kernel (`Plan::kernels`).
    fn is_one_kernel(&self) -> bool;

    /// The instructions of a member.
    fn lower(&self, call: &CollectiveCall<'_>) -> LoweredComm;
}

/// All transports.
static TRANSPORTS: [&dyn Transport; 3] = [&PeerCopies, &OneShot, &TwoShot];

/// A collective as its transport sees it, from the side of one member.
struct CollectiveCall<'a> {
    /// What is done.
    kind: CollectiveKind,
    /// World ranks in team order.
    team: &'a [usize],
    /// This member.
    me: usize,
    /// The views of all members, in one dimension each; `None` where a member posts nothing.
    members: &'a [Option<MemberViews>],
    /// The team's number among those whose collectives have a transport.
    team_no: u32,
    /// Which of the team's collectives it is.
    index: u32,
}

/// What a member gives and gets: one dimension each, as the transport reads and writes it.
#[derive(Clone, Debug, Default)]
struct MemberViews {
    input: Option<View>,
    output: Option<View>,
}

/// The instructions of a member.
#[derive(Debug, Default)]
struct LoweredComm {
    /// Where the communication is posted, before everything else: what goes to staging buffers.
    prologue: Vec<InstKind>,
    /// Where it is posted.
    at_post: Vec<InstKind>,
    /// Where it is waited for.
    at_wait: Vec<InstKind>,
    /// Behind everything else: what comes from staging buffers.
    epilogue: Vec<InstKind>,
    /// Whether `after` follows what is posted, and not what is waited for.
    is_complete_when_posted: bool,
    /// Whether what is posted, and what is waited for right behind it, may run as one kernel.
    is_one_kernel: bool,
}

impl LoweredComm {
    /// How much a plan grows: instructions, those that combine by their operands.
    fn size(&self) -> usize {
        let size = |it: &InstKind| if let InstKind::PeerReduce { parts, .. } = it { parts.len() } else { 1 };
        let all = [&self.prologue, &self.at_post, &self.at_wait, &self.epilogue];
        all.into_iter().flatten().map(size).sum()
    }
}

/// The algorithms that `algo=` may name for a kind of collective.
pub(super) fn algorithms(backend: Backend, kind: CollectiveKind) -> Vec<Algorithm> {
    let library = match backend {
        Backend::Nccl => Some(Algorithm::Nccl),
        Backend::Ucc | Backend::Cuda => None,
    };
    let own = TRANSPORTS.iter().filter(|it| it.supports(kind)).filter_map(|it| it.algorithm());
    library.into_iter().chain(own.filter(|_| backend != Backend::Ucc)).collect()
}

/// The transport of a collective; `None`: a library moves it.
fn transport(
    backend: Backend,
    kind: CollectiveKind,
    algo: Option<Algorithm>,
    (members, bytes): (usize, usize),
) -> Option<&'static dyn Transport> {
    let algo = match (backend, algo) {
        (Backend::Nccl | Backend::Ucc, None) => return None,
        (_, algo) => chosen_algorithm(Some(backend), kind, algo, (members, bytes)),
    };
    TRANSPORTS.iter().copied().find(|it| it.algorithm() == algo && it.supports(kind))
}
