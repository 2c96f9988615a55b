//! Fuses elementwise instructions and reductions of rows into one kernel that passes intermediate results in registers,
//! and `relu` into the matrix product before it. A kernel that begins with a collective's reduction runs in the kernel of the
//! collective, if it has `epilogue=true`.
//!
//! Candidates are consecutive instructions of one stream, so nothing ordered by events, signals or works can
//! observe the fusion. All work on elements of one shape, which for a reduction is that of its operand, and at each
//! point a later instruction uses the result of an earlier one. If two of them access the same memory, in whatever
//! buffers, they access the same elements: one thread, or with reductions the lanes of one row, then does for each
//! element what the instructions do, in their order. A result that only the fused instructions read is not stored.
//!
//! Small copies of one shape, such as those of new keys and new values to their caches, are one kernel too: a launch costs more than they do.

use crate::{
    Result,
    buffer_assignment::{BufferAssignment, PACKET_EXPANSION, Segment},
    epilogue::{ProductEpilogue, added_to, product_epilogues},
    kernels::{
        self, DeviceView, ElementwiseArg, ElementwiseOp, Kernel, Launch, RowOp, RowReduction, ScalarFunction,
        Source, defining_row_op as defining_op,
    },
    peer_kernel,
};
use grammar::DType;
use hir_plan::{
    BufferNo, Inst, InstKind, PacketFormat, PeerCollective, PeerPhases, Plan, ReduceOp, StreamNo, Transfer,
    View, ViewOnRank, World, sync::is_large_world, timeline::cost::FusedInsts,
};
use rustc_hash::FxHashMap;

use super::elementwise::elementwise_op;
use launch::{copies_launch, fused_launch};
use uses::UseAnalysis;
use wide::WideViews;

mod launch;
#[cfg(test)]
mod tests;
mod uses;
mod wide;

/// Maximum number of fused operations.
const MAX_OPS: usize = 16;

/// The role of an instruction in fusion.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum FusionRole {
    /// Not fused.
    Unfused,
    /// The first of several fused instructions; the launch does the work of all of them.
    Leader(Box<Launch>),
    /// The first instruction of a collective whose kernel computes what follows: the part of the kernel that handles the rows
    /// of the result, and the all-gather that it executes: its number, and the index of the operation that computes its input.
    CollectiveLeader(Box<Launch>, Option<(usize, usize)>),
    /// The first instruction of an all-gather that the kernel of a `CollectiveLeader` executes: the index of the latter.
    GatherOf(u32),
    /// A matrix product whose epilogue computes a `relu` or a sum: the index of that.
    ProductWithEpilogue(u32),
    /// What the epilogue of a `ProductWithEpilogue` computes, or what a collective's kernel computes: the index of the product or the collective.
    EpilogueOf(u32),
    /// Fused into an earlier instruction: its index.
    FusedInto(u32),
}

/// An instruction that may be fused.
struct Candidate<'a> {
    /// The index of the instruction.
    at: u32,
    op: RowOp<'a>,
    /// The operation on all elements of the rows, if it works on one value of each.
    wide: Option<RowOp<'a>>,
    /// The instructions that read the result; `None` if others than instructions of this stream read it, or
    /// if there are too many.
    readers: Option<Vec<u32>>,
    /// The collective of which `op` is the reduction.
    collective: Option<&'a RowsOfCollective<'a>>,
}

/// The instructions of a rank among which some may be fused: those of a plan, or those that define an attention.
pub(super) struct FusionScope<'a> {
    /// The rank.
    pub rank: usize,
    /// The instructions.
    pub code: &'a [Inst],
    /// The collectives that may run as one kernel.
    pub peer_collectives: &'a [PeerCollective],
    /// By buffer: whether others than these instructions access it.
    pub escapes: Vec<bool>,
    /// The element type of a buffer.
    pub dtype: &'a dyn Fn(BufferNo) -> DType,
    /// Where the operand of a collective's reduction is.
    pub source: &'a dyn Fn(&ViewOnRank) -> Result<Source>,
}

/// Returns the fusion role of each instruction. `locate` maps views of this rank's memory.
pub(super) fn fusion_roles<'a>(
    scope: &FusionScope<'a>,
    locate: impl Fn(&'a View) -> Result<DeviceView<'a>>,
) -> Vec<FusionRole> {
    let FusionScope { rank, code, peer_collectives, dtype, source, .. } = *scope;
    let readers = UseAnalysis::of(rank, code, &scope.escapes);
    let wide = WideViews::of(rank, code);
    let mut roles = vec![FusionRole::Unfused; code.len()];
    for it in product_epilogues(code, dtype) {
        if is_epilogue(code, it, &readers, &locate) {
            roles[it.product as usize] = FusionRole::ProductWithEpilogue(it.follower);
            roles[it.follower as usize] = FusionRole::EpilogueOf(it.product);
        }
    }
    let results: Vec<Option<RowsOfCollective>> =
        peer_collectives.iter().map(|it| RowsOfCollective::of(rank, it, source)).collect();
    // By stream: the collective that is the last instruction.
    let mut last: FxHashMap<StreamNo, &RowsOfCollective> = FxHashMap::default();
    // The current run of consecutive candidates, by stream.
    let mut runs: FxHashMap<StreamNo, Vec<Candidate>> = FxHashMap::default();
    let mut collectives = peer_collectives.iter().zip(&results).peekable();
    for (at, inst) in (0..).zip(code) {
        let run = runs.entry(inst.stream).or_default();
        if inst.kind.does_nothing_on_stream() {
            continue;
        }
        // A copy to where the elements are, as of a view that a loop binds again, does nothing either.
        if let InstKind::Copy { from, to } = &inst.kind
            && from == to
        {
            continue;
        }
        // What a matrix product computes. The product before it has ended the run.
        if let FusionRole::EpilogueOf(_) = roles[at as usize] {
            continue;
        }
        // The kernel of a collective executes all its instructions, so none of them is fused with others.
        while collectives.next_if(|(it, _)| it.range.end <= at as usize).is_some() {}
        if let Some((_, rows)) = collectives.peek().filter(|(it, _)| it.range.contains(&(at as usize))) {
            let run = std::mem::take(run);
            fuse_run(&run, &mut roles);
            gather_rows(&run, (peer_collectives, at as usize), &mut roles, &locate);
            last.extend(rows.as_ref().map(|it| (inst.stream, it)));
            continue;
        }
        run.extend(last.remove(&inst.stream).and_then(|it| it.candidate(&readers, &locate)));
        // A view that is not mapped is reported when the instruction is lowered on its own.
        let op = row_op(rank, inst, &locate).ok().flatten();
        match op.filter(|it| {
            let out = it.out();
            !out.view.is_empty() && !it.views().iter().any(|view| view.may_partially_overlap(out))
        }) {
            Some(op) => {
                let readers = readers.readers_of(at, op.out().view);
                let wide = wide[at as usize].as_ref().and_then(|it| it.apply(&op));
                run.push(Candidate { at, op, wide, readers, collective: None });
            }
            None => fuse_run(&std::mem::take(run), &mut roles),
        }
    }
    runs.values().for_each(|run| fuse_run(run, &mut roles));
    roles
}

/// The reduction of a collective with `epilogue=true`, on the rows of its result.
struct RowsOfCollective<'a> {
    it: &'a PeerCollective,
    op: ReduceOp,
    /// The addresses of the operands that are packets.
    packets: Vec<u64>,
    /// The buffer of this rank that its peers read while the kernel runs.
    peers_read: Option<BufferNo>,
    /// The address and the elements of each operand.
    inputs: Vec<(u64, View)>,
    /// The result, as the plan has it and in rows.
    out: (&'a View, View),
}

impl<'a> RowsOfCollective<'a> {
    /// Returns the reduction; `None` if the collective has none that an epilogue may use.
    fn of(
        rank: usize,
        it: &'a PeerCollective,
        source: &dyn Fn(&ViewOnRank) -> Result<Source>,
    ) -> Option<Self> {
        let shape = it.epilogue.as_ref()?;
        let Transfer::Reduce { op, parts, out, .. } = it.result()? else { return None };
        let peers_read = match &it.phases {
            PeerPhases::Memory(phases) => {
                peer_kernel::element_count(phases)?;
                Some(parts.iter().find(|it| it.rank == rank)?.view.buffer)
            }
            PeerPhases::Packets { .. } => None,
        };
        let (mut packets, mut inputs) = (Vec::new(), Vec::with_capacity(parts.len()));
        for part in parts {
            let address = match source(part).ok()? {
                Source::Memory(it) => it,
                Source::Packets(it) => {
                    packets.push(it);
                    it
                }
            };
            inputs.push((address, part.view.reshape(shape)?));
        }
        let out = (&out.view, out.view.reshape(shape)?);
        Some(Self { it, op: *op, packets, peers_read, inputs, out })
    }

    /// Returns the reduction as the first operation of a kernel.
    fn candidate<'c>(
        &'c self,
        readers: &UseAnalysis,
        locate: &impl Fn(&'a View) -> Result<DeviceView<'a>>,
    ) -> Option<Candidate<'c>> {
        let out = DeviceView { view: &self.out.1, ..locate(self.out.0).ok()? };
        let input = |(address, view): &'c (u64, View)| {
            ElementwiseArg::View(DeviceView { address: *address, view, ..out })
        };
        let args = self.inputs.iter().map(input).collect();
        let op = RowOp::Map(ElementwiseOp::new(ScalarFunction::Reduce(self.op), args, out));
        let at = self.it.range.end.saturating_sub(1) as u32;
        Some(Candidate {
            at,
            op,
            wide: None,
            readers: readers.readers_of(at, self.out.0),
            collective: Some(self),
        })
    }
}

/// Returns, by rank, the instructions that run in the kernel of another one, without a GPU: by the index of each, that of the
/// other one. Nothing is fused if a buffer has no size in bytes. In a large world, buffers count as if they shared no memory.
pub fn fused_instructions(world: &World) -> Vec<FusedInsts> {
    let assignment = if is_large_world(world) {
        BufferAssignment::without_reuse(world)
    } else {
        BufferAssignment::of(world)
    };
    let Ok(assignment) = assignment else { return vec![FusedInsts::default(); world.len()] };
    let leader = |role: FusionRole| match role {
        FusionRole::FusedInto(it) | FusionRole::EpilogueOf(it) => Some(it),
        FusionRole::Unfused
        | FusionRole::Leader(_)
        | FusionRole::CollectiveLeader(..)
        | FusionRole::GatherOf(_)
        | FusionRole::ProductWithEpilogue(_) => None,
    };
    let of_rank = |plan: &Plan| {
        let roles = roles_without_gpu(world, plan, &assignment);
        (0..).zip(roles).filter_map(|(at, role)| Some((at, leader(role)?))).collect()
    };
    world.plans().iter().map(of_rank).collect()
}

/// Returns an address for a buffer of a rank, which matters only relative to others. The segments are far from each other, and no number of
/// elements is as large.
pub(super) fn relative_address(assignment: &BufferAssignment, rank: usize, buffer: BufferNo) -> u64 {
    let slice = &assignment.ranks[rank].buffers[buffer as usize];
    let segment = match slice.segment {
        Segment::Private => 0,
        Segment::Symmetric => 1,
        Segment::Caller | Segment::Lent => 2,
        Segment::Registers => 3,
        Segment::Shared => 4,
    };
    (((5 * rank + segment + 1) << 44) + slice.offset) as u64
}

/// Returns the fusion role of each instruction of a plan with relative addresses.
pub(super) fn roles_without_gpu(
    world: &World,
    plan: &Plan,
    assignment: &BufferAssignment,
) -> Vec<FusionRole> {
    let address = |owner: usize, view: &View| {
        let dtype = world[owner].buffers[view.buffer as usize].dtype;
        let is_packets = assignment.holds_packets(owner, view.buffer);
        let scale = if is_packets { PACKET_EXPANSION } else { 1 };
        relative_address(assignment, owner, view.buffer) + (scale * view.offset * dtype.size()) as u64
    };
    let source = |it: &ViewOnRank| {
        let address = address(it.rank, &it.view);
        let is_packet = assignment.holds_packets(it.rank, it.view.buffer);
        Ok(if is_packet { Source::Packets(address) } else { Source::Memory(address) })
    };
    let scope = FusionScope {
        rank: plan.rank,
        code: &plan.code,
        peer_collectives: &plan.peer_collectives,
        escapes: assignment.ranks[plan.rank].escapes(plan),
        dtype: &|it| plan.buffers[it as usize].dtype,
        source: &source,
    };
    fusion_roles(&scope, |view| {
        let dtype = plan.dtype_of(view);
        Ok(DeviceView { address: address(plan.rank, view), dtype, view })
    })
}

/// Returns true if the epilogue of a matrix product can compute what follows: nothing else reads the product, and the result overlaps no
/// operand of the product, and what is added to it not in part.
fn is_epilogue<'a>(
    code: &'a [Inst],
    it: ProductEpilogue,
    readers: &UseAnalysis,
    locate: &impl Fn(&'a View) -> Result<DeviceView<'a>>,
) -> bool {
    let (InstKind::Gemm(gemm), InstKind::Map { args, out, .. }) =
        (&code[it.product as usize].kind, &code[it.follower as usize].kind)
    else {
        return false;
    };
    // A view that is not mapped is reported when the instruction is lowered on its own.
    let Ok(result) = locate(out) else { return false };
    let is_apart = |view: &'a View| locate(view).is_ok_and(|it| !it.may_alias(&result));
    let is_whole = |view: &'a View| locate(view).is_ok_and(|it| !it.may_partially_overlap(&result));
    readers.readers_of(it.product, &gemm.out).is_some_and(|readers| readers == [it.follower])
        && [&gemm.a, &gemm.b].into_iter().chain(&gemm.bias).all(is_apart)
        && added_to(gemm, args).is_none_or(is_whole)
}

/// Fuses what a run computes, and then the copies that are left.
fn fuse_run(run: &[Candidate], roles: &mut [FusionRole]) {
    fuse_prefixes(run, roles, fused_launch);
    let is_left = |it: &Candidate| it.collective.is_none() && roles[it.at as usize] == FusionRole::Unfused;
    let left: Vec<&[Candidate]> =
        run.chunk_by(|a, b| is_left(a) && is_left(b)).filter(|it| it.len() > 1).collect();
    for copies in left {
        fuse_prefixes(copies, roles, copies_launch);
    }
}

/// Greedily fuses a run: takes the longest prefix that has a kernel, then continues behind it.
fn fuse_prefixes(
    run: &[Candidate],
    roles: &mut [FusionRole],
    launch_of: impl Fn(&[Candidate]) -> Option<Launch>,
) {
    let mut rest = run;
    while !rest.is_empty() {
        let longest =
            (2..=rest.len().min(MAX_OPS)).rev().find_map(|len| Some((len, launch_of(&rest[..len])?)));
        let (len, launch) = match longest {
            Some((len, launch)) => (len, Some(launch)),
            None => (1, None),
        };
        let (taken, others) = rest.split_at(len);
        rest = others;
        let (Some(launch), Some((first, later))) = (launch, taken.split_first()) else { continue };
        let (leader, of_leader, of_others) = match first.collective {
            None => {
                let leader = FusionRole::Leader(Box::new(launch));
                (first.at as usize, leader, FusionRole::FusedInto(first.at))
            }
            Some(RowsOfCollective { it, .. }) => {
                let leader = FusionRole::CollectiveLeader(Box::new(launch), None);
                (it.range.start, leader, FusionRole::EpilogueOf(it.first_wait() as u32))
            }
        };
        roles[leader] = of_leader;
        later.iter().for_each(|it| roles[it.at as usize] = of_others.clone());
    }
}

/// Makes the kernel of a collective that computes the whole run execute the all-gather that begins at an instruction, if its
/// input is a result of the run, and its output shares no memory with what the kernel accesses.
fn gather_rows<'a>(
    run: &[Candidate],
    (collectives, at): (&'a [PeerCollective], usize),
    roles: &mut [FusionRole],
    locate: &impl Fn(&'a View) -> Result<DeviceView<'a>>,
) {
    let found = || {
        let (rows, last) = (run.first()?.collective?, run.last()?);
        let leader = rows.it.first_wait() as u32;
        let number = collectives.iter().position(|it| it.range.start == at)?;
        let PeerPhases::Packets { format: PacketFormat::Ll, phases, .. } = &collectives[number].phases else {
            return None;
        };
        let transfers = || phases.iter().flat_map(|it| &it.transfers);
        let [Transfer::Copy { from, .. }] = phases.first()?.transfers.as_slice() else { return None };
        let input = locate(&from.view).ok()?;
        let is_input = |it: &Candidate| {
            let out = it.op.out();
            (out.address, out.dtype, out.view.len()) == (input.address, input.dtype, input.view.len())
                && out.view.is_contiguous()
                && out.view.shape == rows.out.1.shape
        };
        let step = run.iter().rposition(is_input)?;
        let start = rows.it.range.start;
        let FusionRole::CollectiveLeader(launch, _) = &roles[start] else { return None };
        let Kernel::Row(kernel) = &launch.kernel else { return None };
        let ops = kernels::with_row_maps(run.iter().map(|it| it.op.clone()).collect());
        let mut accessed: Vec<DeviceView> = Vec::new();
        for ((at, op), is_stored) in ops.iter().enumerate().zip(kernel.stored()) {
            accessed.extend(op.views().into_iter().filter(|it| defining_op(&ops[..at], it).is_none()));
            accessed.extend(is_stored.then(|| op.out()));
        }
        let is_apart = |out: &'a ViewOnRank| {
            out.rank != from.rank
                || locate(&out.view).is_ok_and(|out| accessed.iter().all(|it| !it.may_alias(&out)))
        };
        let fits = roles[last.at as usize] == FusionRole::EpilogueOf(leader)
            && transfers().all(|it| it.op().is_none())
            && transfers().flat_map(Transfer::outputs).all(is_apart);
        fits.then_some((start, leader, (number, step)))
    };
    let Some((start, leader, gathered)) = found() else { return };
    if let FusionRole::CollectiveLeader(_, it) = &mut roles[start] {
        *it = Some(gathered);
        roles[at] = FusionRole::GatherOf(leader);
    }
}

/// Returns the operation of an elementwise instruction or a reduction; `None` for other instructions.
fn row_op<'a>(
    rank: usize,
    inst: &'a Inst,
    locate: &impl Fn(&'a View) -> Result<DeviceView<'a>>,
) -> Result<Option<RowOp<'a>>> {
    Ok(match &inst.kind {
        InstKind::Reduce(it) => Some(RowOp::Reduce(RowReduction {
            reduce: it,
            input: locate(&it.input)?,
            out: locate(&it.out)?,
            is_stored: true,
        })),
        _ => elementwise_op(rank, inst, locate)?.map(RowOp::Map),
    })
}
