//! What an instruction does, in the terms in which a machine's times are measured: a kind and extents.
//!
//! `calibrate` names the tables of a machine with these terms, and estimates look them up with the same ones.

use crate::{
    Access, CollectiveKind, Communication, InstKind, PacketFormat, PeerCollective, PeerPhases, Plan, View,
};

/// Work whose time depends on its extents alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// The name of the table: `product bf16`, `kernel memory reduce`.
    pub kind: String,
    /// The extents: rows, columns and depth of a product; heads, queries and keys of an attention; bytes of everything
    /// else.
    pub extents: Vec<f64>,
}

impl Work {
    fn of_bytes(kind: impl Into<String>, bytes: usize) -> Option<Self> {
        (bytes > 0).then(|| Self { kind: kind.into(), extents: vec![bytes as f64] })
    }

    /// Returns the resource for which this work competes with kernels that compute; `None` if it is such a kernel itself, or a
    /// copy within the memory of a GPU.
    pub fn contention(&self) -> Option<Contention> {
        let kinds = [
            ("get", Contention::Copy),
            ("put", Contention::Copy),
            ("kernel ", Contention::Kernel),
            ("nccl ", Contention::Nccl),
        ];
        kinds.into_iter().find(|it| self.kind.starts_with(it.0)).map(|it| it.1)
    }
}

/// How a communication competes with kernels that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// A copy engine: for the bandwidth of memory.
    Copy,
    /// A kernel over peer memory: for multiprocessors, too.
    Kernel,
    /// A kernel of NCCL, whose blocks need most of a multiprocessor: it begins when the kernel that runs ends.
    Nccl,
}

impl Contention {
    /// Returns the name in the file of a machine.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Kernel => "kernel",
            Self::Nccl => "nccl",
        }
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
    let bytes = |view: &View| bytes(plan, view);
    let all = |accesses: &[Access<'_>]| accesses.iter().map(|it| bytes(it.view)).sum::<usize>();
    match &inst.kind {
        InstKind::Gemm(it) => {
            let [.., rows, columns] = it.out.shape.as_slice() else { return None };
            let batch = it.out.len() / (rows * columns).max(1);
            let extents = [batch * rows, *columns, it.depth()].map(|it| it.max(1) as f64);
            Some(Work { kind: format!("product {}", dtype(plan, &it.a)), extents: extents.to_vec() })
        }
        InstKind::Attention(it) => {
            let [batch @ .., queries, width] = it.query.shape.as_slice() else { return None };
            let keys = it.key.shape.iter().rev().nth(1).copied().unwrap_or(1);
            let causal = if it.is_causal { " causal" } else { "" };
            let extents = [batch.iter().product(), *queries, keys].map(|it| it.max(1) as f64);
            let kind = format!("sdpa {} {width}{causal}", dtype(plan, &it.query));
            Some(Work { kind, extents: extents.to_vec() })
        }
        InstKind::Copy { from, to } => {
            let kind = match (from.rank == plan.rank, to.rank == plan.rank) {
                (true, true) => "copy",
                (false, _) => "get",
                (true, false) => "put",
            };
            let own = if to.rank == plan.rank { &to.view } else { &from.view };
            Work::of_bytes(kind, bytes(own))
        }
        InstKind::Map { .. }
        | InstKind::Fill { .. }
        | InstKind::Iota { .. }
        | InstKind::Alloc { zeroed: Some(_), .. } => {
            Work::of_bytes("elementwise", all(&inst.kind.accesses(plan.rank)))
        }
        InstKind::Reduce(_) => Work::of_bytes("reduction", all(&inst.kind.accesses(plan.rank))),
        InstKind::PeerReduce { .. } => {
            let accesses = inst.kind.accesses(plan.rank);
            match remote_bytes(plan, &accesses) {
                0 => Work::of_bytes("reduction", all(&accesses)),
                remote => Work::of_bytes("kernel memory reduce", remote),
            }
        }
        InstKind::Collective(_) | InstKind::P2pGroup(_) => {
            let traffic = plan.traffic(inst);
            let kind = match inst.kind.communication()? {
                Communication::P2pGroup(it) if it.ops.iter().all(|it| it.peer == plan.rank) => {
                    return Work::of_bytes("copy", traffic.bytes);
                }
                Communication::P2pGroup(_) => "nccl transfer",
                Communication::Collective(it) => nccl_kind(it.kind),
            };
            Work::of_bytes(kind, (traffic.bytes as f64 * traffic.bus_factor) as usize)
        }
        InstKind::Routine(_)
        | InstKind::OpaqueCall(_)
        | InstKind::Reshard(_)
        | InstKind::Alloc { zeroed: None, .. }
        | crate::ordering_insts!() => None,
    }
}

/// Returns the table of a collective that NCCL executes. A permutation is a send and a receive.
fn nccl_kind(kind: CollectiveKind) -> &'static str {
    match kind {
        CollectiveKind::Allreduce { .. } => "nccl allreduce",
        CollectiveKind::Allgather => "nccl allgather",
        CollectiveKind::ReduceScatter { .. } => "nccl reduce-scatter",
        CollectiveKind::Broadcast { .. }
        | CollectiveKind::Gather { .. }
        | CollectiveKind::Scatter { .. }
        | CollectiveKind::Reduce { .. }
        | CollectiveKind::SendRecv { .. }
        | CollectiveKind::AllToAll
        | CollectiveKind::Permute { .. } => "nccl transfer",
    }
}

/// Returns the first instruction of a collective that moves data.
fn first_transfer(plan: &Plan, it: &PeerCollective) -> Option<usize> {
    let moves =
        |at: &usize| matches!(plan.code[*at].kind, InstKind::Copy { .. } | InstKind::PeerReduce { .. });
    it.range.clone().find(moves)
}

/// Returns the work of a collective that one kernel executes: what it reads from its peers or writes to them.
fn kernel_work(plan: &Plan, it: &PeerCollective) -> Option<Work> {
    let accesses: Vec<Access<'_>> =
        it.range.clone().flat_map(|at| plan.code[at].kind.accesses(plan.rank)).collect();
    let reduces = it.range.clone().any(|at| matches!(plan.code[at].kind, InstKind::PeerReduce { .. }));
    let kind = match &it.phases {
        PeerPhases::Memory(_) => {
            let is_remote = |it: &Access<'_>| it.rank != plan.rank;
            let writes = accesses.iter().any(|it| is_remote(it) && it.is_write);
            match (reduces, writes) {
                (true, true) => "kernel memory reduce copy",
                (true, false) => "kernel memory reduce",
                (false, _) => "kernel memory copy",
            }
        }
        PeerPhases::Packets { format, phases, .. } => {
            let steps = phases.iter().filter(|it| !it.signals.is_empty()).count();
            match (format, reduces, steps) {
                (PacketFormat::Ll, true, ..=1) => "kernel ll reduce",
                (PacketFormat::Ll, true, _) => "kernel ll reduce copy",
                (PacketFormat::Ll, false, _) => "kernel ll copy",
                (PacketFormat::Ll128, true, ..=1) => "kernel ll128 reduce",
                (PacketFormat::Ll128, true, _) => "kernel ll128 reduce copy",
                (PacketFormat::Ll128, false, _) => "kernel ll128 copy",
            }
        }
    };
    Work::of_bytes(kind, remote_bytes(plan, &accesses).max(1))
}

/// Returns the bytes that are read or written on other ranks. The element types of a rank's own views tell those of its
/// peers, whose buffers have other numbers.
fn remote_bytes(plan: &Plan, accesses: &[Access<'_>]) -> usize {
    let size = accesses.iter().find(|it| it.rank == plan.rank);
    let size = size.map_or(1, |it| plan.buffers[it.view.buffer as usize].dtype.size());
    accesses.iter().filter(|it| it.rank != plan.rank).map(|it| it.view.len() * size).sum()
}

fn bytes(plan: &Plan, view: &View) -> usize {
    view.len().saturating_mul(plan.buffers[view.buffer as usize].dtype.size())
}

/// Returns the element type in a word: `bf16`.
fn dtype(plan: &Plan, view: &View) -> String {
    plan.buffers[view.buffer as usize].dtype.short_name().to_owned()
}
