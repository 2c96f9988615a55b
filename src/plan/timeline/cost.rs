//! The cost model of estimated timelines: the time that an instruction takes on a nominal GPU.
//!
//! The rates are about what one H200 in a host of eight reaches with cuBLASLt and NCCL on large operands
//! (data sheet: 989 TFLOP/s for bfloat16, 4.8 TB/s, NVLink 450 GB/s in each direction). Small operands cost
//! the time of a launch. The model serves to compare schedules of one program, not to predict times.
//!
//! With the measured times of a machine (`machine`), the nominal GPU serves only for what its tables do not contain.

use grammar::dtype::DType;
use rustc_hash::FxHashMap;

use super::{
    attention_gradient,
    fused::Reads,
    machine::Machine,
    misses::{CACHE_BYTES, Misses},
    work::{Contention, Work, WorkKind, accessed_bytes, work_of},
};
use crate::{Buffer, Communication, Computation, Inst, InstKind, Plan, Reshard, Shard, View};

/// Floating-point operations of a matrix product in a microsecond, for 16-bit operands.
const HALF_FLOPS: f64 = 690e6;
/// As `HALF_FLOPS`, for binary32 and binary64 operands, which do not use TF32.
const FULL_FLOPS: f64 = 50e6;
/// Bytes that a kernel reads and writes in a microsecond.
const MEMORY_BYTES: f64 = 4e6;
/// Bytes that leave a GPU over NVLink in a microsecond.
pub(super) const LINK_BYTES: f64 = 350e3;
/// Microseconds of the smallest kernel or copy.
const KERNEL: f64 = 3.0;
/// Microseconds of the smallest communication.
const COMMUNICATION: f64 = 10.0;

/// The instructions of a rank that an executor runs in the kernel of another one: by the index of each, that of the other one.
pub type FusedInsts = FxHashMap<u32, u32>;

/// What an instruction takes.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    /// Microseconds, once nothing holds it up.
    pub microseconds: f64,
    /// How many of these a communication by kernels takes because ranks do not reach it at the same time. It is no longer than the time
    /// since the communication before, at which they met.
    pub skew: f64,
    /// How many times longer a product takes behind one on another stream (`Machine::crowding`); 1 for everything else.
    pub crowding: f64,
}

impl Cost {
    /// The cost of an instruction that takes no time.
    pub const NONE: Self = Self { microseconds: 0.0, skew: 0.0, crowding: 1.0 };
}

/// What an estimate knows about times.
#[derive(Clone, Copy)]
pub struct CostModel<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// By rank: the instructions that run in the kernel of another one. Ranks without an entry have none.
    pub fused: &'a [FusedInsts],
    /// How much the program heats GPUs that run it again and again, from 0 to 1 (`CostModel::load_of`).
    pub load: f64,
}

impl CostModel<'_> {
    /// Returns the load of a program whose run takes some microseconds. The clock of a GPU falls within its first few hundred milliseconds of
    /// work: twenty runs of 2.5 ms do not heat it, and those of 15 ms do.
    pub(super) fn load_of(microseconds: f64) -> f64 {
        const COOL: f64 = 2.5e3;
        const HOT: f64 = 15e3;
        ((microseconds - COOL) / (HOT - COOL)).clamp(0.0, 1.0)
    }

    /// Returns what each instruction of a plan takes.
    pub(super) fn durations(&self, plan: &Plan) -> Vec<Cost> {
        let machine = self.machine;
        let misses = if machine.knows_memory() { Misses::of(plan) } else { Misses::default() };
        // Microseconds of kernels since the last communication.
        let mut computed = 0.0;
        // The extents of a product, its type, and whether it reads from memory. To look its time and its crowding up takes long.
        type Product = (Vec<u64>, DType, bool);
        let mut products: FxHashMap<Product, (Option<f64>, f64)> = FxHashMap::default();
        let within = |work: &Work, is_cold: bool| {
            if is_cold { machine.microseconds_from_memory(work) } else { machine.microseconds(work) }
        };
        let mut costs = vec![Cost::NONE; plan.code.len()];
        let mut duration = |at: usize| match work_of(plan, at) {
            _ if machine.is_nominal() => microseconds(plan, &plan.code[at]),
            Some(work) => {
                let is_cold = misses.products.contains(&at);
                let kind = &plan.code[at].kind;
                let within = match work.kind {
                    WorkKind::Product(dtype) => {
                        let extents = work.extents.iter().map(|it| it.to_bits()).collect();
                        let look_up = || {
                            let time = within(&work, is_cold);
                            let time = time.map(|it| it * machine.slowdown(&work, self.load));
                            (time, machine.crowding(&work.extents))
                        };
                        let (time, crowding) =
                            *products.entry((extents, dtype, is_cold)).or_insert_with(look_up);
                        costs[at].crowding = crowding;
                        time
                    }
                    WorkKind::Elementwise | WorkKind::Reduction | WorkKind::Copy => {
                        machine.microseconds_with_misses(&work, misses.part(&[at]))
                    }
                    _ => machine.microseconds(&work),
                };
                let within = within
                    .map(|it| (it + wider_microseconds(plan, kind)).max(least_microseconds(plan, kind)));
                let between = machine.microseconds_between(&work, computed);
                if matches!(work.contention(), Some(Contention::Kernel | Contention::Nccl)) {
                    costs[at].skew = between;
                }
                let known = within.map(|it| it + between);
                let time = known.unwrap_or_else(|| microseconds(plan, &plan.code[at]));
                computed = if work.contention().is_some() { 0.0 } else { computed + time };
                time
            }
            // The first transfer of a collective has the time of its kernel.
            None if plan.peer_collective_at(at).is_some() => 0.0,
            None => {
                let inst = &plan.code[at];
                let composed = match &inst.kind {
                    InstKind::AttentionGradient(it) => attention_gradient::microseconds(plan, it, machine),
                    _ => None,
                };
                composed.unwrap_or_else(|| microseconds(plan, inst))
            }
        };
        let between = |at: usize| {
            let within = duration(at);
            let hosts = machine.hosts.as_ref().filter(|_| within > 0.0);
            hosts.map_or(within, |it| it.microseconds(plan, at, within))
        };
        let mut all: Vec<f64> = (0..plan.code.len()).map(between).collect();
        let mut kernels: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for (at, leader) in self.fused.get(plan.rank).into_iter().flatten() {
            // An instruction of a collective has the time of its kernel.
            if plan.peer_collective_at(*at as usize).is_none() {
                let kernel = kernels.entry(*leader as usize).or_insert_with(|| vec![*leader as usize]);
                kernel.push(*at as usize);
            }
        }
        let reads = if kernels.is_empty() { Reads::default() } else { Reads::of(plan) };
        for (leading, mut kernel) in kernels {
            kernel.sort_unstable();
            let collective = plan.peer_collective_at(leading).map(|it| it.range.clone());
            let leader = collective.and_then(|it| it.max_by(|a, b| all[*a].total_cmp(&all[*b])));
            // What computes beside a product or a collective takes no longer than that, or is the longest part.
            let longest = kernel.iter().map(|at| std::mem::take(&mut all[*at])).fold(0.0, f64::max);
            let leader = leader.unwrap_or(leading);
            let work = reads.work(plan, &kernel).filter(|_| plan.peer_collective_at(leading).is_none());
            let time = work.and_then(|it| {
                let within = machine.microseconds_with_misses(&it, misses.part(&kernel))?;
                Some(within + machine.microseconds_between(&it, 0.0))
            });
            all[leader] = time.unwrap_or(longest).max(all[leader]);
        }
        costs.iter_mut().zip(all).for_each(|(cost, microseconds)| cost.microseconds = microseconds);
        costs
    }

    /// Returns where times come from, in a sentence.
    pub(super) fn source(&self) -> String {
        self.machine.source(self.load > 0.0)
    }
}

/// Returns the microseconds of a product of 16-bit operands on the nominal GPU with the launch of its kernel, by its rows, columns
/// and depth; or those of something else whose work is the product of three extents, but for a factor.
pub(super) fn nominal_product(extents: &[f64]) -> f64 {
    let multiplications: f64 = extents.iter().product();
    let elements: f64 = extents.iter().map(|it| multiplications / it).sum();
    KERNEL + (2.0 * multiplications / HALF_FLOPS).max(2.0 * elements / MEMORY_BYTES)
}

/// As `nominal_product`, for an attention of heads of 128 elements: its heads, queries and keys. A multiprocessor computes 128 rows of queries
/// of a head at a time, so that the time grows with the number of times that all multiprocessors have such rows.
pub(super) fn nominal_attention(extents: &[f64]) -> f64 {
    const MULTIPROCESSORS: f64 = 132.0;
    const ROWS: f64 = 128.0;
    let [heads, queries, keys] = extents else { return nominal_product(extents) };
    let waves = (heads * (queries / ROWS).ceil() / MULTIPROCESSORS).ceil();
    let multiplications = waves * MULTIPROCESSORS * ROWS * keys * 2.0 * ROWS;
    KERNEL + 2.0 * multiplications / HALF_FLOPS
}

/// Returns the assumptions about the nominal GPU, in a sentence.
pub fn assumptions() -> String {
    let (flops, memory, link) = (HALF_FLOPS / 1e6, MEMORY_BYTES / 1e6, LINK_BYTES / 1e3);
    format!(
        "estimated for a nominal GPU ({flops} TFLOP/s in 16-bit matrix products, {memory} TB/s memory, {link} GB/s \
         NVLink, at least {KERNEL} µs a kernel and {COMMUNICATION} µs a communication), not measured"
    )
}

/// Returns the microseconds that an instruction takes once nothing holds it up.
fn microseconds(plan: &Plan, inst: &Inst) -> f64 {
    let traffic = plan.traffic(inst);
    let over_link = traffic.bytes as f64 * traffic.bus_factor / LINK_BYTES;
    match &inst.kind {
        InstKind::Collective(_) | InstKind::P2pGroup(_) => {
            let to_itself = match inst.kind.communication() {
                Some(Communication::P2pGroup(it)) => it.ops.iter().all(|it| it.peer == plan.rank),
                Some(Communication::Collective(_)) | None => false,
            };
            // A copy reads and writes.
            let copied = 2.0 * traffic.bytes as f64 / MEMORY_BYTES;
            if to_itself { KERNEL.max(copied) } else { COMMUNICATION.max(over_link) }
        }
        InstKind::Reshard(it) => resharding(it),
        kind if kind.accesses(plan.rank).iter().any(|it| it.rank != plan.rank) => KERNEL.max(over_link),
        kind => computation(&plan.buffers, kind),
    }
}

/// Returns the microseconds that a product or an attention of 16-bit operands takes at least: what no measured shape nearby can
/// undercut (data sheet of the H200: 989 TFLOP/s, 4.8 TB/s). The cache may hold operands of a product that are no larger than it.
fn least_microseconds(plan: &Plan, kind: &InstKind) -> f64 {
    const FLOPS: f64 = 989e6;
    const BYTES: f64 = 4.8e6;
    let bytes = |view: &View| accessed_bytes(plan, view);
    match kind {
        InstKind::Gemm(it) if plan.dtype_of(&it.a).size() == 2 => {
            let moved =
                [&it.a, &it.b, &it.out].map(bytes).into_iter().filter(|it| *it > CACHE_BYTES).sum::<usize>();
            (moved as f64 / BYTES).max(2.0 * it.multiplications() as f64 / FLOPS)
        }
        InstKind::Attention(it) if plan.dtype_of(&it.query).size() == 2 => {
            let masked = if it.is_causal { 0.5 } else { 1.0 };
            let moved = it.operands().chain(it.results()).map(bytes).sum::<usize>();
            (moved as f64 / BYTES).max(2.0 * it.multiplications() as f64 * masked / FLOPS)
        }
        _ => 0.0,
    }
}

/// Returns the microseconds that a product takes longer than in its table, where results have the type of operands, because its result is
/// wider and the cache does not hold it.
fn wider_microseconds(plan: &Plan, kind: &InstKind) -> f64 {
    let InstKind::Gemm(it) = kind else { return 0.0 };
    let [operand, result] = [&it.a, &it.out].map(|it| plan.dtype_of(it).size());
    let elements = it.out.len();
    if elements.saturating_mul(result) <= CACHE_BYTES {
        return 0.0;
    }
    (elements * result.saturating_sub(operand)) as f64 / MEMORY_BYTES
}

/// Returns the microseconds of a statement that reshards, if it gathers what a rank lacks of its operands and computes everything
/// on each rank.
fn resharding(it: &Reshard) -> f64 {
    let lacks = |(shard, buffer): (&Shard, &Buffer)| {
        let held = shard.view.as_ref().map_or(0, View::distinct_len);
        buffer.len.saturating_sub(held).saturating_mul(buffer.dtype.size())
    };
    let gathered: usize = it.operands.iter().zip(&it.buffers).map(lacks).fold(0, usize::saturating_add);
    let computed: f64 = it.body.iter().map(|kind| computation(&it.buffers, kind)).sum();
    COMMUNICATION.max(gathered as f64 / LINK_BYTES) + computed
}

/// Returns the microseconds of an instruction that uses only the memory of its own GPU, which has these buffers.
fn computation(buffers: &[Buffer], kind: &InstKind) -> f64 {
    let dtype = |view: &View| buffers[view.buffer as usize].dtype;
    // A broadcast dimension is read once.
    let bytes = |view: &View| (view.distinct_len() as f64) * dtype(view).size() as f64;
    match kind {
        crate::computation_insts!() => kind.computation().map_or(0.0, |it| {
            let flops = 2.0 * it.multiplications() as f64 * it.part_of_multiplications();
            let rate = if it.uses_tensor_cores(buffers) { HALF_FLOPS } else { FULL_FLOPS };
            KERNEL.max(flops / rate).max(it.moved_bytes(&bytes) / MEMORY_BYTES)
        }),
        InstKind::Map { .. }
        | InstKind::Fill { .. }
        | InstKind::Iota { .. }
        | InstKind::Constant { .. }
        | InstKind::Alloc { zeroed: Some(_), .. }
        | InstKind::Copy { .. }
        | InstKind::PeerReduce { .. } => {
            let mut accessed = 0.0;
            kind.visit_accesses(0, &mut |it| accessed += bytes(it.view));
            KERNEL.max(accessed / MEMORY_BYTES)
        }
        InstKind::Collective(_) | InstKind::P2pGroup(_) | InstKind::Reshard(_) => KERNEL,
        InstKind::Alloc { zeroed: None, .. } | crate::ordering_insts!() => 0.0,
    }
}
