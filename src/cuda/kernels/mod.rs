//! Kernels: instances of a few templates, compiled by NVRTC when a plan is prepared.
//!
//! An instance is told by types, function and access width; shapes, strides and addresses are parameters, so that a plan has
//! few instances. All parameters are one structure of 8-byte words: `Launch::words` stands in the order of the structure in
//! `prelude.cu`.

mod all_reduce;
mod chain;
mod expression;
mod fold;
pub mod instances;
mod located;
pub(super) mod nvrtc;
mod product;
mod shape;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use grammar::{dtype::DType, ops::Op};
use rustc_hash::FxHashMap;

use crate::plan::ReduceOp;

pub(super) use all_reduce::{ARRIVED, AllReduce, all_reduce};
pub(super) use chain::{Argument, Link, chain, writer};
pub(super) use fold::{fold, room};
pub(super) use located::Located;
pub(super) use product::product;
pub(super) use shape::merged;

/// The element types, functions and index code that all instances share.
const PRELUDE: &str = include_str!("prelude.cu");
/// Words of the longest parameter: 4 KiB, CUDA's bound.
pub(super) const PARAMETERS: usize = 512;
/// Threads of a block of kernels that handle flags, one each.
pub(super) const FLAG_BLOCK: u32 = 32;
/// Threads of a block.
pub(super) const BLOCK: u32 = 256;
/// Bytes of the widest access.
const WIDEST: usize = 16;
/// Most dimensions of a view, after merging.
pub(super) const DIMS: usize = 8;

/// The type that a kernel computes in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Computed {
    /// binary32.
    F32,
    /// binary64.
    F64,
    /// 64-bit signed integers.
    I64,
    /// 64-bit unsigned integers.
    U64,
}

impl Computed {
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
pub(super) enum Function {
    /// An operator.
    Op(Op),
    /// The operand, converted.
    Move,
    /// The first operand and, for each index, the second.
    Iota,
    /// All operands combined in order.
    Combine(ReduceOp),
}

/// How a chain reads a view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Read {
    dtype: DType,
    /// Whether one element is that of a whole group; else neighbours are neighbours in memory.
    repeated: bool,
}

/// What a step takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Operand {
    /// A view that the chain reads, by number.
    Read(usize),
    /// The result of an earlier step, by number, its bits taken as an element type.
    Step(usize, DType),
    /// A parameter, by number.
    Constant(usize),
}

/// A step of a chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Step {
    function: Function,
    args: Vec<Operand>,
    out: DType,
    computed: Computed,
    /// Whether the result goes to memory: to the next place behind those that are read.
    pub stored: bool,
}

/// An instance of a template.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kernel {
    /// Element by element, step by step.
    Chain { reads: Vec<Read>, steps: Vec<Step>, constants: usize, width: usize, small: bool },
    /// Combines along axes; see `fold`.
    Fold {
        op: ReduceOp,
        input: DType,
        out: DType,
        computed: Computed,
        width: usize,
        rows: bool,
        lanes: usize,
        /// Whether terms lie at one stride.
        flat: bool,
        /// Whether the initial value and the average's division are part of it.
        ends: bool,
    },
    /// An all-reduce over peer memory, flags included.
    AllReduce { op: ReduceOp, dtype: DType, computed: Computed, members: usize, outputs: usize, width: usize },
    /// A matrix product, an element of the result at a time.
    Product { a: DType, b: DType, bias: Option<DType>, out: DType, computed: Computed },
}

/// An instance with its parameters.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Launch {
    pub kernel: Kernel,
    pub words: Vec<u64>,
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
pub(super) enum Common {
    /// Raises flags to the device's count of runs.
    Raise,
    /// Waits for flags to reach it.
    Await,
    /// Waits for all ranks.
    Meet,
    /// Counts a run.
    Advance,
    /// Holds a stream back.
    Hold,
}

pub(super) const COMMON: [&str; 5] = ["raise_flags", "await_flags", "meet", "advance_epoch", "hold"];

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
        COMMON.iter().map(|it| (*it).to_owned()).chain(instances).collect()
    }

    /// The whole source.
    pub fn source(&self) -> String {
        let mut text = PRELUDE.to_owned();
        for (number, kernel) in self.list.iter().enumerate() {
            let parameters = match kernel {
                Kernel::Chain { reads, steps, constants, .. } => {
                    let places = reads.len() + steps.iter().filter(|it| it.stored).count();
                    format!("Chain<{places}, {constants}>")
                }
                Kernel::Fold { .. } => "Fold".to_owned(),
                Kernel::AllReduce { members, outputs, .. } => all_reduce::parameters(*members, *outputs),
                Kernel::Product { .. } => "Product".to_owned(),
            };
            let body = match kernel {
                Kernel::Chain { .. } => chain::body(kernel),
                Kernel::Fold { .. } => fold::body(kernel),
                Kernel::AllReduce { .. } => all_reduce::body(kernel),
                Kernel::Product { .. } => product::body(kernel),
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
pub(super) fn scalar(dtype: DType) -> Option<&'static str> {
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
fn named(dtype: DType) -> &'static str {
    scalar(dtype).unwrap_or("void")
}

fn check(dtypes: impl IntoIterator<Item = DType>) -> Result<(), String> {
    match dtypes.into_iter().find(|it| scalar(*it).is_none()) {
        Some(dtype) => Err(format!("no kernel computes with element type `{}`", dtype.short_name())),
        None => Ok(()),
    }
}

/// The computed type of integers: unsigned where a 64-bit unsigned type is met and no signed one.
fn integers(dtypes: impl Iterator<Item = DType> + Clone) -> Computed {
    let signed =
        |it: DType| matches!(it, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 | DType::Index);
    match dtypes.clone().any(|it| it == DType::UInt64) && !dtypes.clone().any(signed) {
        true => Computed::U64,
        false => Computed::I64,
    }
}

/// The computed type of floats: binary64 where a type is.
fn floats(mut dtypes: impl Iterator<Item = DType>) -> Computed {
    if dtypes.any(|it| it == DType::Double) { Computed::F64 } else { Computed::F32 }
}
