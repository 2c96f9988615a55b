//! What an instruction does, in the terms in which a machine's times are measured: a kind and extents.
//!
//! `calibrate` names the tables of a machine with these terms, and estimates look them up with the same ones.

use grammar::{dtype::DType, words::CommunicationType};

use crate::{Access, Communication, Gemm, InstKind, PeerCollective, PeerPhases, Plan, View};

pub use super::work_kind::{KernelProtocol, KernelTransfer, NCCL_TABLES, NCCL_TRANSFER, WorkClass, WorkKind};

/// Work whose time depends on its extents alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// What it is; also selects the table.
    pub kind: WorkKind,
    /// The extents: rows, columns and depth of a product; heads, queries and keys of an attention; bytes of everything
    /// else.
    pub extents: Vec<f64>,
}

impl Work {
    /// Returns work on so many bytes; `None` if there are none.
    pub fn of_bytes(kind: WorkKind, bytes: usize) -> Option<Self> {
        (bytes > 0).then(|| Self { kind, extents: vec![bytes as f64] })
    }

    /// Returns the resource for which this work competes with kernels that compute; `None` if it is such a kernel itself, or a
    /// copy within the memory of a GPU.
    pub fn contention(&self) -> Option<Contention> {
        match self.kind {
            WorkKind::Get | WorkKind::Put => Some(Contention::Copy),
            WorkKind::Kernel(..) => Some(Contention::Kernel),
            WorkKind::Nccl(_) => Some(Contention::Nccl),
            WorkKind::Product(_)
            | WorkKind::Attention { .. }
            | WorkKind::Elementwise
            | WorkKind::Reduction
            | WorkKind::Copy => None,
        }
    }
}

grammar::named_enum! {
    /// How a communication competes with kernels that compute.
    /// The names are those in the file of a machine.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Contention {
        /// A copy engine: for the bandwidth of memory.
        Copy = "copy",
        /// A kernel over peer memory: for multiprocessors, too.
        Kernel = "kernel",
        /// A kernel of NCCL, whose blocks need most of a multiprocessor: it begins when the kernel that runs ends.
        Nccl = "nccl",
    }
}

/// Returns the work of an instruction of a plan, an index into `Plan::code`. The instructions that an executor runs as the
/// kernel of one collective have the work of this kernel at the first instruction that moves data, and none elsewhere.
/// `None`: the instruction only orders others, or no table describes it.
pub fn work_of(plan: &Plan, at: usize) -> Option<Work> {
    if let Some(it) = plan.peer_collective_at(at) {
        return (first_transfer(plan, it) == Some(at)).then(|| kernel_work(plan, it)).flatten();
    }
    let inst = &plan.code[at];
    let bytes = |view: &View| plan.bytes_of(view);
    let all = |accesses: &[Access<'_>]| all_bytes(plan, accesses);
    match &inst.kind {
        InstKind::Copy { from, to } => {
            let kind = match (from.rank == plan.rank, to.rank == plan.rank) {
                (true, true) => WorkKind::Copy,
                (false, _) => WorkKind::Get,
                (true, false) => WorkKind::Put,
            };
            let own = if to.rank == plan.rank { &to.view } else { &from.view };
            Work::of_bytes(kind, bytes(own))
        }
        // A GPU copies it from memory of its own.
        InstKind::Constant { to, .. } => Work::of_bytes(WorkKind::Copy, bytes(to)),
        InstKind::Map { .. }
        | InstKind::Fill { .. }
        | InstKind::Iota { .. }
        | InstKind::Alloc { zeroed: Some(_), .. } => {
            Work::of_bytes(WorkKind::Elementwise, all(&inst.kind.accesses(plan.rank)))
        }
        InstKind::PeerReduce { .. } => match peer_bytes(&plan.peer_accesses(at..at + 1)) {
            0 => Work::of_bytes(WorkKind::Reduction, all(&inst.kind.accesses(plan.rank))),
            remote => {
                Work::of_bytes(WorkKind::Kernel(KernelProtocol::Memory, KernelTransfer::Reduce), remote)
            }
        },
        InstKind::Collective(_) | InstKind::P2pGroup(_) => {
            let traffic = plan.traffic(inst);
            let kind = match inst.kind.communication()? {
                Communication::P2pGroup(it) if it.ops.iter().all(|it| it.peer == plan.rank) => {
                    return Work::of_bytes(WorkKind::Copy, traffic.bytes);
                }
                Communication::P2pGroup(_) => NCCL_TRANSFER,
                Communication::Collective(it) => measured_as(it.kind.of),
            };
            Work::of_bytes(WorkKind::Nccl(kind), (traffic.bytes as f64 * traffic.bus_factor) as usize)
        }
        kind @ crate::computation_insts!() => work_of_computation(plan, kind),
        InstKind::Reshard(_) | InstKind::Alloc { zeroed: None, .. } | crate::ordering_insts!() => None,
    }
}

/// Returns the work of a matrix product of operands of a type.
pub(super) fn work_of_product(it: &Gemm, dtype: DType) -> Option<Work> {
    let [.., rows, columns] = it.out.shape.as_slice() else { return None };
    let batch = it.out.len() / (rows * columns).max(1);
    let extents = [batch * rows, *columns, it.depth()].map(|it| it.max(1) as f64);
    Some(Work { kind: WorkKind::Product(dtype), extents: extents.to_vec() })
}

/// Returns the work of an instruction that computes; `None` if no table describes it.
fn work_of_computation(plan: &Plan, kind: &InstKind) -> Option<Work> {
    match kind {
        InstKind::Gemm(it) => work_of_product(it, plan.dtype_of(&it.a)),
        InstKind::Attention(it) => {
            let [batch @ .., queries, width] = it.query.shape.as_slice() else { return None };
            let keys = it.key.shape.iter().rev().nth(1).copied().unwrap_or(1);
            let extents = [batch.iter().product(), *queries, keys].map(|it| it.max(1) as f64);
            let (dtype, is_causal) = (plan.dtype_of(&it.query), it.is_causal);
            let kind = WorkKind::Attention { dtype, width: *width, is_causal };
            Some(Work { kind, extents: extents.to_vec() })
        }
        InstKind::Reduce(_) => {
            Work::of_bytes(WorkKind::Reduction, all_bytes(plan, &kind.accesses(plan.rank)))
        }
        _ => None,
    }
}

/// Returns the collective whose table has the times of a communication that NCCL executes: one of its own, or that of everything else.
fn measured_as(kind: CommunicationType) -> CommunicationType {
    NCCL_TABLES.into_iter().find(|it| *it == kind).unwrap_or(NCCL_TRANSFER)
}

/// Returns the first instruction of a collective that moves data.
fn first_transfer(plan: &Plan, it: &PeerCollective) -> Option<usize> {
    let moves =
        |at: &usize| matches!(plan.code[*at].kind, InstKind::Copy { .. } | InstKind::PeerReduce { .. });
    it.range.clone().find(moves)
}

/// Returns the work of a collective that one kernel executes: what it reads from its peers or writes to them.
fn kernel_work(plan: &Plan, it: &PeerCollective) -> Option<Work> {
    let accesses = plan.peer_accesses(it.range.clone());
    let reduces = it.range.clone().any(|at| matches!(plan.code[at].kind, InstKind::PeerReduce { .. }));
    let (protocol, copies) = match &it.phases {
        PeerPhases::Memory(_) => (KernelProtocol::Memory, accesses.iter().any(|(it, _)| it.is_write)),
        PeerPhases::Packets { format, phases, .. } => {
            let steps = phases.iter().filter(|it| !it.signals.is_empty()).count();
            (KernelProtocol::Packets(*format), steps > 1)
        }
    };
    let transfer = match (reduces, copies) {
        (true, true) => KernelTransfer::ReduceCopy,
        (true, false) => KernelTransfer::Reduce,
        (false, _) => KernelTransfer::Copy,
    };
    Work::of_bytes(WorkKind::Kernel(protocol, transfer), peer_bytes(&accesses).max(1))
}

fn peer_bytes(accesses: &[(Access<'_>, usize)]) -> usize {
    accesses.iter().map(|it| it.1).sum()
}

fn all_bytes(plan: &Plan, accesses: &[Access<'_>]) -> usize {
    accesses.iter().map(|it| accessed_bytes(plan, it.view)).sum()
}

/// Returns the bytes of memory that a kernel accesses: a broadcast dimension is read once.
pub(super) fn accessed_bytes(plan: &Plan, view: &View) -> usize {
    view.distinct_len().saturating_mul(plan.dtype_of(view).size())
}
