//! CUDA kernels: instances of a few templates, compiled by NVRTC when a plan is prepared.
//!
//! Types, functions and access widths select an instance; shapes, strides and addresses are parameters. So a
//! plan has few instances. All parameters are one structure of 8-byte words: `Launch::params` has the order
//! of the structure in `prelude.cu`.

mod attention;
mod device_view;
mod elementwise;
mod expression;
mod few_rows;
pub mod instances;
mod matmul;
pub(super) mod nvrtc;
mod packets;
mod peer_memory;
mod reduce;
mod routine;
mod row;
mod shape;
mod shifted_rows;
#[cfg(test)]
mod tests;
mod transpose;

use std::fmt::Write;

use grammar::{DType, Op};
use rustc_hash::FxHashMap;

use crate::{device::BlockShape, unsupported::Unsupported};
use hir_plan::ReduceOp;

pub(super) use attention::{AttentionCall, attention_launch};
pub(super) use device_view::DeviceView;
pub(super) use elementwise::{ElementwiseArg, ElementwiseOp, elementwise_launch};
pub(super) use few_rows::few_rows;
pub(super) use matmul::matmul_launch;
use packets::PacketKernel;
pub(super) use packets::{Item, PacketCollective, Source, packet_launch};
pub(super) use peer_memory::{
    BLOCK_COUNTER_PARAM, EndSignals, PeerCollective, PeerResult, peer_memory_launch,
};
pub(super) use reduce::{reduce_launches, reduce_scratch_bytes};
pub(super) use routine::{exchanged_bytes, reads_base, routine_launch};
pub(super) use row::{
    Exchange, Gather, RowOp, RowReduction, Send, collective_rows_launch, defining_row_op, row_launch,
    with_exchange, with_row_maps,
};
pub(super) use shape::{merge_dims, merge_dims_in_any_order};
pub(super) use shifted_rows::shifted_rows_launch;

/// Element types, functions and index computations that all instances share.
const PRELUDE: &str = include_str!("prelude.cu");
/// Maximum number of words of the parameters: 4 KiB, the limit of CUDA.
pub(super) const MAX_PARAM_WORDS: usize = 512;
/// Threads of the kernel that is a barrier of all ranks: one for each other rank. `BARRIER_BLOCK` in `prelude.cu`.
pub(super) const BARRIER_BLOCK: u32 = 32;
/// Threads of a block, unless `Kernel::block` says otherwise.
pub(super) const BLOCK: u32 = 256;
/// Bytes of the widest memory access.
const MAX_ACCESS_BYTES: usize = 16;
/// Begins the body of a kernel that calls a template in which the threads of a block wait for each other. The emulator of the tests
/// looks for the word.
const MEETING: &str = "  // The threads of a block meet: __syncthreads.\n";
/// Maximum number of dimensions of a view, after merging.
pub(super) const DIMS: usize = 8;

grammar::named_enum! {
    /// The type in which a kernel computes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub(super) enum ComputeType {
        /// binary32.
        F32 = "f32",
        /// binary64.
        F64 = "f64",
        /// 64-bit signed integers.
        I64 = "i64",
        /// 64-bit unsigned integers.
        U64 = "u64",
    }
}

impl ComputeType {
    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// The function of an elementwise operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ScalarFunction {
    /// An operator.
    Op(Op),
    /// The operand, converted to the result's type.
    Convert,
    /// The first operand plus the index times the second.
    Iota,
    /// The reduction of all operands, in order.
    Reduce(ReduceOp),
}

/// A view that a fused kernel loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Load {
    dtype: DType,
    /// Whether all elements of a group are one element in memory. If not, they are neighbours in memory.
    is_broadcast: bool,
}

/// An operand of a fused operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Operand {
    /// A loaded view, by index.
    Load(usize),
    /// The result of an earlier operation, by index; its bits are interpreted as this element type.
    OpResult(usize, DType),
    /// A constant parameter, by index.
    Constant(usize),
}

/// An operation of a fused kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct FusedOp {
    function: ScalarFunction,
    args: Vec<Operand>,
    out: DType,
    compute_type: ComputeType,
    /// Whether the result is stored, to the next view behind the loaded ones.
    pub is_stored: bool,
}

impl FusedOp {
    /// Returns the indices of the earlier operations whose results it uses.
    fn results(&self) -> impl Iterator<Item = usize> {
        self.args.iter().filter_map(|it| match it {
            Operand::OpResult(at, _) => Some(*at),
            Operand::Load(_) | Operand::Constant(_) => None,
        })
    }
}

/// Fused elementwise operations; see `elementwise`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ElementwiseKernel {
    reads: Vec<Load>,
    pub ops: Vec<FusedOp>,
    constants: usize,
    pub width: usize,
    uses_32_bit_index: bool,
}

/// A pass of a reduction along axes; see `reduce`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReduceKernel {
    op: ReduceOp,
    input: DType,
    out: DType,
    computed: ComputeType,
    width: usize,
    along_rows: bool,
    lanes: usize,
    /// Whether all terms have a single stride.
    has_single_stride: bool,
    /// Whether the pass applies the initial value and the division of an average.
    is_last_pass: bool,
}

/// A collective over peer memory, including its signals; see `peer_memory`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PeerMemoryKernel {
    /// `None`: each result is a copy.
    op: Option<ReduceOp>,
    dtype: DType,
    computed: ComputeType,
    /// Maximum number of peers that it signals or waits for.
    peers: usize,
    results: usize,
    /// Inputs of each result.
    inputs: usize,
    /// Outputs of each result.
    outputs: usize,
    width: usize,
    end: EndSignals,
}

/// A generic matrix product; see `matmul`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct MatmulKernel {
    a: DType,
    b: DType,
    bias: Option<DType>,
    out: DType,
    computed: ComputeType,
}

/// An instance of a template.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kernel {
    /// Fused elementwise operations.
    Elementwise(ElementwiseKernel),
    /// A reduction along axes; see `reduce`.
    Reduce(ReduceKernel),
    /// Fused reductions of rows and elementwise operations; see `row`.
    Row(row::RowKernel),
    /// A collective over peer memory, including its signals; see `peer_memory`.
    PeerMemory(PeerMemoryKernel),
    /// A collective that exchanges packets with its peers; see `packets`.
    Packets(PacketKernel),
    /// A generic matrix product; each thread computes one element at a time.
    Matmul(MatmulKernel),
    /// Attention; see `attention`.
    Attention(attention::AttentionKernel),
    /// Attention of a few rows; see `few_rows`.
    FewRows(few_rows::FewRowsKernel),
    /// Elements at places that depend on other elements; see `routine`.
    Routine(routine::RoutineKernel),
    /// A copy in tiles; see `transpose`.
    Transpose(transpose::TransposeKernel),
    /// A copy of rows that lie differently to the words of memory; see `shifted_rows`.
    ShiftedRows,
}

impl Kernel {
    fn block(&self) -> BlockShape {
        match self {
            Self::Elementwise(_)
            | Self::Reduce(_)
            | Self::PeerMemory(_)
            | Self::Packets(_)
            | Self::Matmul(_)
            | Self::Routine(_)
            | Self::Transpose(_)
            | Self::ShiftedRows => BlockShape { threads: BLOCK, shared_bytes: 0 },
            Self::Row(it) => BlockShape { threads: it.block(), shared_bytes: 0 },
            Self::Attention(it) => it.block(),
            Self::FewRows(it) => it.block(),
        }
    }

    /// Returns the template that it needs besides the prelude, behind its namespace: two templates may define the same name.
    fn template(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Attention(_) => Some(("attention", attention::TEMPLATE)),
            Self::FewRows(_) => Some(("few_rows", few_rows::TEMPLATE)),
            Self::Routine(_) => Some(("routine", routine::TEMPLATE)),
            Self::Transpose(_) => Some(("transpose", transpose::TEMPLATE)),
            Self::ShiftedRows => Some(("shifted_rows", shifted_rows::TEMPLATE)),
            Self::Elementwise(_)
            | Self::Reduce(_)
            | Self::Row(_)
            | Self::PeerMemory(_)
            | Self::Packets(_)
            | Self::Matmul(_) => None,
        }
    }
}

/// An instance with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Launch {
    pub kernel: Kernel,
    pub params: Vec<u64>,
    /// Number of blocks that gives every thread one work item.
    pub blocks: u64,
}

/// The instances of a plan.
#[derive(Default)]
pub(super) struct Kernels {
    numbers: FxHashMap<Kernel, usize>,
    list: Vec<Kernel>,
}

/// The kernels that every module contains, in their order.
#[derive(Clone, Copy)]
pub(super) enum CommonKernel {
    /// Waits for all ranks.
    RankBarrier,
    /// Increments the epoch.
    AdvanceEpoch,
    /// Delays a stream.
    Delay,
    /// Negates floating-point elements.
    Negate,
}

pub(super) const COMMON_KERNELS: [&str; 4] = ["rank_barrier", "advance_epoch", "delay_stream", "negate"];

impl Kernels {
    /// Returns the index of an instance, and adds it if it is new.
    pub fn number(&mut self, kernel: &Kernel) -> usize {
        if let Some(number) = self.numbers.get(kernel) {
            return *number;
        }
        let number = self.list.len();
        self.numbers.insert(kernel.clone(), number);
        self.list.push(kernel.clone());
        number
    }

    /// Returns every `step`-th instance from `first` on.
    fn sample(self, first: usize, step: usize) -> Self {
        Self { list: self.list.into_iter().skip(first).step_by(step.max(1)).collect(), ..Self::default() }
    }

    /// Returns the names and the blocks of all kernels: the common ones, then the instances by index. The callers of the
    /// common ones choose the number of threads.
    pub fn functions(&self) -> Vec<(String, BlockShape)> {
        let common = |name: &&str| ((*name).to_owned(), BlockShape { threads: 1, shared_bytes: 0 });
        let instances = self.list.iter().enumerate().map(|(at, it)| (format!("k{at}"), it.block()));
        COMMON_KERNELS.iter().map(common).chain(instances).collect()
    }

    /// Returns the source of the module.
    pub fn source(&self) -> String {
        let mut text = PRELUDE.to_owned();
        let mut templates: Vec<_> = self.list.iter().filter_map(Kernel::template).collect();
        templates.sort_unstable();
        templates.dedup();
        for (namespace, template) in templates {
            // Writing to a string does not fail.
            let _ = write!(text, "\nnamespace {namespace} {{\n{template}}}\n");
        }
        for (number, kernel) in self.list.iter().enumerate() {
            let parameters = match kernel {
                Kernel::Elementwise(it) => {
                    let view_count = it.reads.len() + it.ops.iter().filter(|op| op.is_stored).count();
                    format!("Elementwise<{view_count}, {}>", it.constants)
                }
                Kernel::Reduce(_) => "Reduce".to_owned(),
                Kernel::Row(it) => row::body::parameters(it),
                Kernel::PeerMemory(it) => peer_memory::parameters(it),
                Kernel::Packets(it) => packets::parameters(it),
                Kernel::Matmul(_) => "Matmul".to_owned(),
                Kernel::Attention(_) => "attention::Attention".to_owned(),
                Kernel::FewRows(_) => "few_rows::FewRows".to_owned(),
                Kernel::Routine(it) => routine::parameters(it).to_owned(),
                Kernel::Transpose(_) => transpose::PARAMETERS.to_owned(),
                Kernel::ShiftedRows => shifted_rows::PARAMETERS.to_owned(),
            };
            let BlockShape { threads, .. } = kernel.block();
            let body = match kernel {
                Kernel::Elementwise(it) => elementwise::body(it),
                Kernel::Reduce(it) => reduce::body(it),
                Kernel::Row(it) => row::body::body(it),
                Kernel::PeerMemory(it) => peer_memory::body(it),
                Kernel::Packets(it) => packets::body(it),
                Kernel::Matmul(it) => matmul::body(it),
                Kernel::Attention(it) => attention::body(it),
                Kernel::FewRows(it) => few_rows::body(it),
                Kernel::Routine(it) => routine::body(it),
                Kernel::Transpose(it) => transpose::body(it),
                Kernel::ShiftedRows => shifted_rows::BODY.to_owned(),
            };
            let _ = write!(
                text,
                "\nextern \"C\" __global__ void __launch_bounds__({threads}) k{number}(const __grid_constant__ \
                 {parameters} p) {{\n{body}}}\n"
            );
        }
        text
    }
}

/// Returns the name of an element type in the kernels; `None` if they do not compute with it.
pub(super) fn scalar_type_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "b8",
        DType::Double => "f64",
        DType::Float => "f32",
        DType::Half => "f16",
        DType::BFloat => "bf16",
        DType::Int8 => "i8",
        DType::Int16 => "i16",
        DType::Int32 => "i32",
        DType::Int64 | DType::Index => "i64",
        DType::UInt8 => "u8",
        DType::UInt16 => "u16",
        DType::UInt32 => "u32",
        DType::UInt64 => "u64",
        DType::E4M3 => "e4m3",
        DType::E5M2 => "e5m2",
        DType::E8M0 => "e8m0",
        DType::E2M1 => "e2m1",
        DType::E2M1x2 | DType::Complex64 | DType::Complex128 | DType::Composite(_) => return None,
    })
}

/// Returns the name of an element type that `check_dtypes` has accepted.
fn type_name(dtype: DType) -> &'static str {
    scalar_type_name(dtype).unwrap_or("void")
}

fn check_dtypes(dtypes: impl IntoIterator<Item = DType>) -> Result<(), Unsupported> {
    match dtypes.into_iter().find(|it| scalar_type_name(*it).is_none()) {
        Some(dtype) => Err(format!("no kernel computes with element type `{}`", dtype.short_name()).into()),
        None => Ok(()),
    }
}

/// Returns the element type that the kernel of a collective accesses, the number of such elements in one of `dtype`, and
/// the type in which it computes. A copy (no `op`) accesses elements of any type as integers of up to 8 bytes.
///
/// # Errors
/// The kernels do not support the element type or the operation of a reduction.
fn collective_dtype(op: Option<ReduceOp>, dtype: DType) -> Result<(DType, usize, ComputeType), Unsupported> {
    let Some(op) = op else {
        return Ok(match dtype.size() {
            2 => (DType::UInt16, 1, ComputeType::I64),
            4 => (DType::UInt32, 1, ComputeType::I64),
            size if size % 8 == 0 => (DType::UInt64, size / 8, ComputeType::I64),
            size => (DType::UInt8, size, ComputeType::I64),
        });
    };
    check_dtypes([dtype])?;
    let types = [dtype].into_iter();
    let computed = if dtype.is_integral() { integer_compute_type(types) } else { float_compute_type(types) };
    match expression::reduction_expression(op, computed) {
        Some(_) => Ok((dtype, 1, computed)),
        None => Err(Unsupported::Reduction { op, dtype }),
    }
}

/// Returns the compute type of integers: unsigned if there is a 64-bit unsigned type and no signed type.
fn integer_compute_type(dtypes: impl Iterator<Item = DType> + Clone) -> ComputeType {
    let signed =
        |it: DType| matches!(it, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::Index);
    if dtypes.clone().any(|it| it == DType::UInt64) && !dtypes.clone().any(signed) {
        ComputeType::U64
    } else {
        ComputeType::I64
    }
}

/// Returns the compute type of floats: binary64 if one of them is.
fn float_compute_type(mut dtypes: impl Iterator<Item = DType>) -> ComputeType {
    if dtypes.any(|it| it == DType::Double) { ComputeType::F64 } else { ComputeType::F32 }
}
