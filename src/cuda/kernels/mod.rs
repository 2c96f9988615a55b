//! Kernels: instances of a few templates, compiled by NVRTC when a plan is prepared.
//!
//! An instance is told by types, function and access width; shapes, strides and addresses are parameters, so that a plan has
//! few instances. All parameters are one structure of 8-byte words: `Launch::words` stands in the order of the structure in
//! `prelude.cu`.

mod all_reduce;
mod device_view;
mod elementwise;
mod expression;
pub mod instances;
mod matmul;
pub(super) mod nvrtc;
mod reduce;
mod shape;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use grammar::{dtype::DType, ops::Op};
use rustc_hash::FxHashMap;

use crate::plan::ReduceOp;

pub(super) use all_reduce::{AllReduce, BLOCK_COUNTER_PARAM, all_reduce_launch};
pub(super) use device_view::DeviceView;
pub(super) use elementwise::{ElementwiseArg, ElementwiseOp, defining_op, elementwise_launch};
pub(super) use matmul::matmul_launch;
pub(super) use reduce::{reduce_launches, reduce_scratch_bytes};
pub(super) use shape::merge_dims;

/// The element types, functions and index code that all instances share.
const PRELUDE: &str = include_str!("prelude.cu");
/// Words of the longest parameter: 4 KiB, CUDA's bound.
pub(super) const MAX_PARAM_WORDS: usize = 512;
/// Threads of a block of kernels that handle flags, one each.
pub(super) const SIGNAL_BLOCK: u32 = 32;
/// Threads of a block.
pub(super) const BLOCK: u32 = 256;
/// Bytes of the widest access.
const MAX_ACCESS_BYTES: usize = 16;
/// Most dimensions of a view, after merging.
pub(super) const DIMS: usize = 8;

/// The type that a kernel computes in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ComputeType {
    /// binary32.
    F32,
    /// binary64.
    F64,
    /// 64-bit signed integers.
    I64,
    /// 64-bit unsigned integers.
    U64,
}

impl ComputeType {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// What a step computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ScalarFunction {
    /// An operator.
    Op(Op),
    /// The operand, converted.
    Convert,
    /// The first operand and, for each index, the second.
    Iota,
    /// All operands combined in order.
    Reduce(ReduceOp),
}

/// How a chain reads a view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Load {
    dtype: DType,
    /// Whether one element is that of a whole group; else neighbours are neighbours in memory.
    is_broadcast: bool,
}

/// What a step takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Operand {
    /// A view that the chain reads, by number.
    Load(usize),
    /// The result of an earlier step, by number, its bits taken as an element type.
    OpResult(usize, DType),
    /// A parameter, by number.
    Constant(usize),
}

/// A step of a chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct FusedOp {
    function: ScalarFunction,
    args: Vec<Operand>,
    out: DType,
    compute_type: ComputeType,
    /// Whether the result goes to memory: to the next place behind those that are read.
    pub is_stored: bool,
}

/// An instance of a template.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kernel {
    /// Element by element, step by step.
    Elementwise {
        reads: Vec<Load>,
        ops: Vec<FusedOp>,
        constants: usize,
        width: usize,
        uses_32_bit_index: bool,
    },
    /// Combines along axes; see `fold`.
    Reduce {
        op: ReduceOp,
        input: DType,
        out: DType,
        computed: ComputeType,
        width: usize,
        along_rows: bool,
        lanes: usize,
        /// Whether terms lie at one stride.
        has_single_stride: bool,
        /// Whether the initial value and the average's division are part of it.
        is_last_pass: bool,
    },
    /// An all-reduce over peer memory, flags included.
    AllReduce {
        op: ReduceOp,
        dtype: DType,
        computed: ComputeType,
        members: usize,
        outputs: usize,
        width: usize,
    },
    /// A matrix product, an element of the result at a time.
    Matmul { a: DType, b: DType, bias: Option<DType>, out: DType, computed: ComputeType },
}

/// An instance with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Launch {
    pub kernel: Kernel,
    pub params: Vec<u64>,
    /// Blocks that would give every thread one thing to do.
    pub blocks: u64,
}

/// The instances of a plan.
#[derive(Default)]
pub(super) struct Kernels {
    numbers: FxHashMap<Kernel, usize>,
    list: Vec<Kernel>,
}

/// The kernels that every module has, by their number in it.
#[derive(Clone, Copy)]
pub(super) enum CommonKernel {
    /// Raises flags to the device's count of runs.
    Signal,
    /// Waits for flags to reach it.
    WaitSignal,
    /// Waits for all ranks.
    RankBarrier,
    /// Counts a run.
    AdvanceEpoch,
    /// Holds a stream back.
    Delay,
}

pub(super) const COMMON_KERNELS: [&str; 5] = ["raise_flags", "await_flags", "meet", "advance_epoch", "hold"];

impl Kernels {
    /// The number of an instance, added where it is new.
    pub fn number(&mut self, kernel: &Kernel) -> usize {
        if let Some(number) = self.numbers.get(kernel) {
            return *number;
        }
        let number = self.list.len();
        self.numbers.insert(kernel.clone(), number);
        self.list.push(kernel.clone());
        number
    }

    /// The names of all functions: the common ones, then the instances by number.
    pub fn names(&self) -> Vec<String> {
        let instances = (0..self.list.len()).map(|it| format!("k{it}"));
        COMMON_KERNELS.iter().map(|it| (*it).to_owned()).chain(instances).collect()
    }

    /// The whole source.
    pub fn source(&self) -> String {
        let mut text = PRELUDE.to_owned();
        for (number, kernel) in self.list.iter().enumerate() {
            let parameters = match kernel {
                Kernel::Elementwise { reads, ops: steps, constants, .. } => {
                    let places = reads.len() + steps.iter().filter(|it| it.is_stored).count();
                    format!("Chain<{places}, {constants}>")
                }
                Kernel::Reduce { .. } => "Fold".to_owned(),
                Kernel::AllReduce { members, outputs, .. } => all_reduce::parameters(*members, *outputs),
                Kernel::Matmul { .. } => "Product".to_owned(),
            };
            let body = match kernel {
                Kernel::Elementwise { .. } => elementwise::body(kernel),
                Kernel::Reduce { .. } => reduce::body(kernel),
                Kernel::AllReduce { .. } => all_reduce::body(kernel),
                Kernel::Matmul { .. } => matmul::body(kernel),
            };
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "\nextern \"C\" __global__ void __launch_bounds__({BLOCK}) k{number}(const __grid_constant__ \
                 {parameters} p) {{\n{body}}}\n"
            );
        }
        text
    }
}

/// The name of an element type in the kernels; `None` where they have no arithmetic for it.
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
        DType::E4M3
        | DType::E5M2
        | DType::E8M0
        | DType::E2M1
        | DType::E2M1x2
        | DType::Complex64
        | DType::Complex128
        | DType::Composite(_) => return None,
    })
}

/// The name of a type that `chain`, `fold` or `product` has accepted.
fn type_name(dtype: DType) -> &'static str {
    scalar_type_name(dtype).unwrap_or("void")
}

fn check_dtypes(dtypes: impl IntoIterator<Item = DType>) -> Result<(), String> {
    match dtypes.into_iter().find(|it| scalar_type_name(*it).is_none()) {
        Some(dtype) => Err(format!("no kernel computes with element type `{}`", dtype.short_name())),
        None => Ok(()),
    }
}

/// The computed type of integers: unsigned where a 64-bit unsigned type is met and no signed one.
fn integer_compute_type(dtypes: impl Iterator<Item = DType> + Clone) -> ComputeType {
    let signed =
        |it: DType| matches!(it, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::Index);
    match dtypes.clone().any(|it| it == DType::UInt64) && !dtypes.clone().any(signed) {
        true => ComputeType::U64,
        false => ComputeType::I64,
    }
}

/// The computed type of floats: binary64 where a type is.
fn float_compute_type(mut dtypes: impl Iterator<Item = DType>) -> ComputeType {
    if dtypes.any(|it| it == DType::Double) { ComputeType::F64 } else { ComputeType::F32 }
}
