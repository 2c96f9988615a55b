//! Transports: lower communications that no library executes to copies and reductions over peer memory,
//! between signals.
//!
//! Planning posts every communication to a communicator, whatever executes it (`posted`). `lower` turns the posted plans of
//! all ranks into a `World`: it replaces the communications that have a transport by phases (`PeerPhases`) and ordinary
//! instructions: the happens-before order, the buffer assignment, the simulator and the GPU executor see the
//! actual protocol with its signals and staging buffers, and do not know about transports. In the simulator,
//! a lowered collective has the same result as the posted one (`collective_semantics`).
//!
//! | `backend=` | `algo=` | collectives | transport |
//! |---|---|---|---|
//! | NCCL | none, `nccl` | all | none: NCCL selects the algorithm |
//! | UCC | none | all | none: as for NCCL, which executes UCC's communications on GPUs |
//! | CUDA | none | all but Allreduce | `OneShot::Default` |
//! | CUDA | none | Allreduce | the planner selects an algorithm below by team and size (`algorithm`) |
//! | CUDA, NCCL | `one-shot` | Allreduce, Allgather, ReduceScatter, AllToAll | `OneShot::Kernel` |
//! | CUDA, NCCL | `one-shot-copy` | Allgather, AllToAll | `OneShot::CopyEngines` |
//! | CUDA, NCCL | `two-shot` | Allreduce | `TwoShot` |
//! | CUDA, NCCL | `two-shot-copy` | Allreduce | `TwoShotCopy` |
//! | CUDA, NCCL | `one-shot-ll`, `one-shot-ll128` | Allreduce, Allgather, ReduceScatter, AllToAll | `Push` |
//! | CUDA, NCCL | `two-shot-ll`, `two-shot-ll128` | Allreduce | `Push` |
//!
//! This table also says who selects the algorithm. `algo=` of a statement decides; the pass
//! `select-algorithms` writes it, by the rules of `grammar::algorithm_table`. Without `algo=`, the row with
//! `none` applies. The planner uses the same rules for Allreduces of the CUDA backend.
//!
//! `backend=` determines where the instructions of a transport run: for CUDA on the posting stream, as in
//! nvFuser; for NCCL on the communicator's queue, in posting order with its other collectives. Calls of a
//! library run on the communicator's queue.
//!
//! To add a transport, add a file with its `impl Transport` to `algorithms`, an entry in `TRANSPORTS`, and its row in the table of
//! `grammar::algorithm_table`.

mod algorithms;
mod lower;
mod messages;
mod queue;
mod signals;
mod slots;
mod staging;

use grammar::{Algorithm, CommunicationType, algorithm_table};

pub(super) use lower::lower;

use super::{
    Backend, CollectiveKind, InstKind, PacketFormat, PeerPhases, Phase, View, algorithm::chosen_algorithm,
};
use algorithms::TRANSPORTS;
use slots::Slots;
use staging::StagedViews;

/// A way to move the data of collectives over peer memory.
trait Transport: Sync {
    /// Returns the `algo=` that selects it; `None` for the CUDA backend's default.
    fn algorithm(&self) -> Option<Algorithm>;

    /// Returns whether it supports a kind of collective. The default of the CUDA backend, without `algo=`, supports all but
    /// all-reduces, whose algorithm depends on the size (`plan::algorithm`).
    fn supports(&self, kind: CollectiveKind) -> bool {
        self.algorithm()
            .map_or(kind.of != CommunicationType::Allreduce, |it| algorithm_table::supports(it, kind.of))
    }

    /// Returns whether the transport is correct if a member's output is the part of the member's input that
    /// it contributes to itself. If input and output overlap in any other way, the input is first copied to a
    /// staging buffer.
    fn supports_in_place(&self, _kind: CollectiveKind) -> bool {
        true
    }

    /// Returns whether only the member itself writes its output. The output is then complete as soon as the
    /// posted instructions are, before `Wait`: nvFuser programs read the result of a CUDA Reduce that early.
    fn writes_own_output(&self, _kind: CollectiveKind) -> bool {
        false
    }

    /// Returns the format of the packets that members exchange, if they do.
    fn packet_format(&self) -> Option<PacketFormat> {
        None
    }

    /// Returns whether the elements of inputs and outputs have to be contiguous, not only equally spaced.
    fn needs_dense_views(&self) -> bool {
        self.packet_format().is_some()
    }

    /// Returns, for each step in which members write to slots of their peers, the number of elements that a
    /// slot has to hold. `input` is the number of elements of one member's input. A transport with slots needs
    /// the views of all members.
    fn slot_lens(&self, _kind: CollectiveKind, _n: usize, _input: usize) -> Vec<usize> {
        Vec::new()
    }

    /// Returns whether members write to slots of their peers (`slot_lens`).
    fn has_slots(&self) -> bool {
        self.packet_format().is_some()
    }

    /// Returns what one member does.
    fn lower(&self, call: &CollectiveCall<'_>) -> Steps;
}

/// A collective, from the point of view of one member.
struct CollectiveCall<'a> {
    /// The kind of collective, with its parameters.
    kind: CollectiveKind,
    /// World ranks in team order.
    team: &'a [usize],
    /// The position of this member in the team.
    me: usize,
    /// The one-dimensional views of all members; `None` for a member that posts nothing.
    members: &'a [Option<MemberViews>],
    /// The slots for each element of `Transport::slot_lens`.
    slots: &'a [Slots],
    /// The number of the team among those whose collectives have a transport.
    team_no: u32,
    /// The index of the collective among those of the team.
    index: u32,
}

/// The one-dimensional input and output views of a member, as the transport accesses them.
#[derive(Clone, Debug, Default)]
struct MemberViews {
    input: Option<View>,
    output: Option<View>,
}

/// A lowered communication of one member.
#[derive(Debug)]
struct LoweredComm {
    /// Whether the hosts of all ranks wait for each other first.
    begins_with_barrier: bool,
    /// The staging buffers. The copy of the input follows the barrier, where the communication is posted; that of the
    /// output is the last instruction.
    staged: StagedViews,
    /// The communication.
    steps: Steps,
    /// Whether the copy of a staged output is executed where the communication is posted, instead of where it is waited for.
    is_complete_when_posted: bool,
    /// `PeerCollective::epilogue`.
    epilogue: Option<Vec<usize>>,
    /// `PeerCollective::pads`.
    pads: Option<u32>,
}

/// What one member does in a communication.
#[derive(Debug)]
enum Steps {
    /// The phases of a collective that one kernel may execute.
    Kernel(PeerPhases),
    /// Instructions.
    Separate {
        /// Executed where the communication is posted.
        at_post: Vec<InstKind>,
        /// Executed where the communication is waited for.
        at_wait: Vec<InstKind>,
    },
}

impl Steps {
    /// Returns the instructions of a collective. Those of the last phase that wait are executed where the collective is
    /// waited for.
    fn separate(phases: &[Phase]) -> Self {
        let (mut at_post, mut at_wait) = (Vec::new(), Vec::new());
        phases.iter().for_each(|it| it.append_to(&mut at_post));
        if let Some(last) = phases.last() {
            at_wait = at_post.split_off(at_post.len() - last.waits.len());
        }
        Self::Separate { at_post, at_wait }
    }

    /// Removes the instructions that are executed where the communication is waited for, and returns them. Kernels that
    /// exchange packets have none.
    fn split_off_waits(&mut self) -> Vec<InstKind> {
        match self {
            Self::Kernel(PeerPhases::Memory([_, access])) => {
                let waits = std::mem::take(&mut access.waits).into_iter();
                waits.map(|signal| InstKind::WaitSignal { signal }).collect()
            }
            Self::Kernel(PeerPhases::Packets { .. }) => Vec::new(),
            Self::Separate { at_wait, .. } => std::mem::take(at_wait),
        }
    }
}

impl LoweredComm {
    /// Returns the number of added instructions. A reduction counts once for each operand.
    fn size(&self) -> usize {
        let size = |it: &InstKind| if let InstKind::PeerReduce { parts, .. } = it { parts.len() } else { 1 };
        let steps: usize = match &self.steps {
            Steps::Kernel(phases) => phases.all().iter().map(Phase::size).sum(),
            Steps::Separate { at_post, at_wait } => at_post.iter().chain(at_wait).map(size).sum(),
        };
        self.staged.size() + steps
    }
}

/// Returns the algorithms that `algo=` may select for a kind of collective.
pub(super) fn algorithms(backend: Backend, kind: CollectiveKind) -> Vec<Algorithm> {
    let library = match backend {
        Backend::Nccl => Some(Algorithm::Nccl),
        Backend::Ucc | Backend::Cuda => None,
    };
    let own = TRANSPORTS.iter().filter(|it| it.supports(kind)).filter_map(|it| it.algorithm());
    library.into_iter().chain(own.filter(|_| backend != Backend::Ucc)).collect()
}

/// Returns the transport of a collective; `None` if a library executes it.
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
    with_algorithm(algo, kind)
}

/// Returns the transport of an algorithm that supports a kind of collective; `None` stands for the CUDA backend's default.
fn with_algorithm(algo: Option<Algorithm>, kind: CollectiveKind) -> Option<&'static dyn Transport> {
    TRANSPORTS.iter().copied().find(|it| it.algorithm() == algo && it.supports(kind))
}
