//! Fused kernels over rows: reductions along the rows of a tensor, and elementwise operations on all of its elements.
//! A softmax, for example, then reads its operand once and writes its result once.
//!
//! The lanes of a row load it into registers and execute all operations in their order, each result rounded as if it had
//! been stored. A reduction adds its terms in the order of `reduce`, so its result has the same bits as without fusion.
//! Operations on one value for each row, such as the square root in a norm, are executed by all of its lanes.
//!
//! The first operation may be the reduction of a collective (`exchange`).

pub(super) mod body;
mod exchange;
mod op;

use grammar::DType;

use super::{
    BLOCK, ComputeType, DeviceView, FusedOp, Kernel, Launch, MAX_ACCESS_BYTES, MAX_PARAM_WORDS, Operand,
    ScalarFunction,
    elementwise::{Parameters, fused_op},
    merge_dims,
    reduce::{RowDistribution, choose_compute_type as reduction_compute_type},
    shape::split_dims,
};
use crate::buffer_assignment::PACKET_EXPANSION;
use exchange::RowExchange;
pub(crate) use exchange::{Exchange, Gather, Send, with_exchange};
use hir_plan::ReduceOp;
use op::value_strides;
pub(crate) use op::{RowOp, RowReduction, defining_row_op, with_row_maps};

/// Maximum number of bytes of an operand or a result that a thread has: 64 registers.
const MAX_BYTES: usize = 256;

/// An operation of the kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum RowStep {
    Map(FusedOp),
    /// On one value for each row.
    MapRows(FusedOp),
    Reduce {
        op: ReduceOp,
        input: Operand,
        computed: ComputeType,
        /// Index of the constant that is the initial value.
        start: usize,
        out: DType,
        is_stored: bool,
    },
}

/// What a kernel loads for each row of a view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RowLoad {
    /// The elements of the row.
    Elements,
    /// One element.
    Value,
    /// The elements of the row, from packets of 16 bytes that a peer sends.
    Packets,
}

/// An instance.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RowKernel {
    /// The element type of each view that is loaded.
    loaded: Vec<(DType, RowLoad)>,
    steps: Vec<RowStep>,
    constants: usize,
    /// Number of dimensions of the rows. A kernel waits for each line of its parameters, so they have no others.
    dims: usize,
    width: usize,
    lanes: usize,
    /// Number of accesses of a row.
    loads: usize,
    /// Number of threads that share the work of a lane. A reduction still adds the terms in the order of the lanes.
    spread: usize,
    /// What the kernel exchanges with the members of a collective.
    exchange: Option<RowExchange>,
}

/// Maximum number of threads that share the work of a lane, if few rows have to be fast.
const MAX_SPREAD: usize = 4;
/// Maximum number of bytes of the terms of the rows of a block in shared memory.
const MAX_TERM_BYTES: usize = 40 << 10;

impl RowKernel {
    /// Returns the number of threads of a row.
    fn threads(&self) -> usize {
        self.lanes * self.spread
    }

    /// Returns the number of threads of a block.
    pub fn block(&self) -> u32 {
        BLOCK.max(self.threads() as u32)
    }

    /// Returns the number of rows of a block.
    fn rows(&self) -> usize {
        self.block() as usize / self.threads()
    }

    /// Returns the number of places for the terms of a row: as many for each lane.
    fn row_terms(&self) -> usize {
        self.loads.next_multiple_of(self.lanes) * self.width
    }

    /// Returns the bytes of shared memory for the terms of the rows of a block.
    fn term_bytes(&self) -> usize {
        let sizes = self.steps.iter().map(|it| match it {
            RowStep::Reduce { computed: ComputeType::F32, .. } => 4,
            RowStep::Reduce { .. } => 8,
            RowStep::Map(_) | RowStep::MapRows(_) => 0,
        });
        self.rows() * self.row_terms() * sizes.max().unwrap_or(0)
    }

    /// Returns the kernel with as many threads for each row as make a row fast.
    fn spread_over_threads(mut self) -> Self {
        let has_terms = |it: &Self| it.loads >= it.threads() && it.term_bytes() <= MAX_TERM_BYTES;
        self.spread = MAX_SPREAD;
        while self.spread > 1 && (self.lanes < body::WARP || !has_terms(&self)) {
            self.spread /= 2;
        }
        self
    }

    /// Returns true if the blocks wait for those of other GPUs.
    pub fn waits_for_peers(&self) -> bool {
        self.exchange.is_some()
    }

    /// Returns whether the result of each step is stored.
    pub fn stored(&self) -> Vec<bool> {
        let is_stored = |it: &RowStep| match it {
            RowStep::Map(it) | RowStep::MapRows(it) => it.is_stored,
            RowStep::Reduce { is_stored, .. } => *is_stored,
        };
        self.steps.iter().map(is_stored).collect()
    }
}

/// A view as the kernel's parameters describe it.
struct RowView {
    address: u64,
    /// Size of an element in bytes.
    size: usize,
    /// Strides in elements over the dimensions that are not reduced.
    outer_strides: Vec<usize>,
}

/// What the rows of a kernel have in common.
struct Rows<'a> {
    /// The shape of the elements, and the dimensions of a row in it.
    shape: &'a [usize],
    axes: Vec<usize>,
    distribution: RowDistribution,
}

impl<'a> Rows<'a> {
    /// Returns what the reductions have in common; `None` if they differ, or if there is none.
    fn of(ops: &[RowOp<'a>]) -> Option<Self> {
        let mut common: Option<Self> = None;
        for op in ops {
            let RowOp::Reduce(RowReduction { reduce, input, out, .. }) = op else { continue };
            let it = Self {
                shape: &input.view.shape,
                axes: reduce.axes.clone(),
                distribution: RowDistribution::of(&reduce.axes, input, out)?,
            };
            let is_equal = |known: &Self| {
                (known.shape, &known.axes, known.distribution) == (it.shape, &it.axes, it.distribution)
            };
            if common.as_ref().is_some_and(|known| !is_equal(known)) {
                return None;
            }
            common = Some(it);
        }
        common
    }

    /// Returns rows of the last dimension, for operations without a reduction.
    fn of_last_dim(ops: &[RowOp<'a>]) -> Option<Self> {
        let shape = ops.first()?.shape();
        let (axis, length) = (shape.len().checked_sub(1)?, *shape.last()?);
        let views = ops.iter().flat_map(|it| it.views().into_iter().chain([it.out()]));
        let mut width = MAX_ACCESS_BYTES / views.map(|it| it.dtype.size()).max()?;
        while width > 1 && !length.is_multiple_of(width) {
            width /= 2;
        }
        Some(Self { shape, axes: vec![axis], distribution: RowDistribution::along(length / width, width) })
    }

    /// Returns true if a row of each operand and result fits in the registers of its threads.
    fn fit_in_registers(&self, ops: &[RowOp]) -> bool {
        let RowDistribution { width, lanes, loads } = self.distribution;
        let views = ops.iter().flat_map(|it| it.views().into_iter().chain([it.out()]));
        let largest = views.map(|it| it.dtype.size()).max().unwrap_or(1);
        loads.div_ceil(lanes) * width * largest <= MAX_BYTES
    }

    /// Returns true if the elements of each row of a view are contiguous and may be accessed `width` at a time.
    fn has_whole_rows(&self, view: &DeviceView) -> bool {
        let RowDistribution { width, loads, .. } = self.distribution;
        if view.view.shape != self.shape {
            return false;
        }
        let (outer_shape, row_shape) = split_dims(&self.axes, self.shape);
        let (outer, row) = split_dims(&self.axes, &view.view.strides);
        let merged = merge_dims(&row_shape, &[&row]);
        let bytes = width * view.dtype.size();
        merged.extents == [loads * width]
            && merged.strides[0] == [1]
            && bytes <= MAX_ACCESS_BYTES
            && (view.address as usize).is_multiple_of(bytes)
            && outer.iter().zip(&outer_shape).all(|(it, extent)| *extent == 1 || it.is_multiple_of(width))
    }

    /// Returns what the kernel loads of a view for each row, and the view's strides over rows. `packets` has the addresses
    /// of packets.
    fn load(&self, view: &DeviceView, packets: &[u64]) -> Option<(RowLoad, Vec<usize>)> {
        let (outer, _) = split_dims(&self.axes, &view.view.strides);
        if packets.contains(&view.address) {
            let bytes = self.distribution.width * view.dtype.size();
            return (bytes.is_multiple_of(8) && self.has_whole_rows(view))
                .then_some((RowLoad::Packets, outer));
        }
        if self.has_whole_rows(view) {
            return Some((RowLoad::Elements, outer));
        }
        value_strides(view.view, self.shape, &self.axes).map(|it| (RowLoad::Value, it))
    }
}

/// Prepares one kernel for operations on the same rows, of which at least one is a reduction. Any two views either have
/// the same elements, or one repeats the other along rows, or they are disjoint. Returns `None` if a kernel cannot
/// execute all of them.
pub(crate) fn row_launch(ops: &[RowOp]) -> Option<Launch> {
    launch_of_rows(Rows::of(ops)?, ops, &[])
}

/// Prepares the part of a kernel that handles the rows of a collective's result: `ops` are the collective's reduction, and
/// what follows. `packets` has the addresses of operands that are packets. `with_exchange` adds the other part.
pub(crate) fn collective_rows_launch(ops: &[RowOp], packets: &[u64]) -> Option<Launch> {
    let rows = if ops.iter().any(|it| matches!(it, RowOp::Reduce(_))) {
        Rows::of(ops)?
    } else {
        Rows::of_last_dim(ops)?
    };
    launch_of_rows(rows, ops, packets)
}

fn launch_of_rows(rows: Rows, ops: &[RowOp], packets: &[u64]) -> Option<Launch> {
    if !rows.fit_in_registers(ops) {
        return None;
    }
    let mut parameters = Parameters::default();
    let steps = row_steps(ops, rows.shape, &mut parameters)?;
    let Parameters { views: read, types, mut constants } = parameters;

    let row_view = |view: &DeviceView, outer_strides| RowView {
        address: view.address,
        size: view.dtype.size(),
        outer_strides,
    };
    let mut views = Vec::new();
    let mut loaded = Vec::with_capacity(read.len());
    for (view, dtype) in read.iter().zip(types) {
        let (load, strides) = rows.load(view, packets)?;
        let mut it = row_view(view, strides);
        if load == RowLoad::Packets {
            it.size *= PACKET_EXPANSION;
        }
        loaded.push((dtype, load));
        views.push(it);
    }
    for op in ops.iter().filter(|it| it.is_stored()) {
        let (load, strides) = rows.load(op.out(), &[])?;
        if (load == RowLoad::Elements) != matches!(op, RowOp::Map(_)) {
            return None;
        }
        views.push(row_view(op.out(), strides));
    }

    let (outer_shape, _) = split_dims(&rows.axes, rows.shape);
    let strides: Vec<&[usize]> = views.iter().map(|it| it.outer_strides.as_slice()).collect();
    let merged = merge_dims(&outer_shape, &strides).checked().ok()?;
    let count = outer_shape.iter().product::<usize>() as u64;
    // A C++ array has at least one element.
    constants.resize(constants.len().max(1), 0);
    let mut words: Vec<u64> = views.iter().map(|it| it.address).collect();
    let dims = merged.extents.len();
    let strides = |(at, it): (usize, &RowView)| merged.stride_words(at, it.size, 1).into_iter().take(dims);
    words.extend(views.iter().enumerate().flat_map(strides));
    words.extend(merged.extent_words(1).into_iter().take(dims));
    words.extend([dims as u64, count]);
    words.extend(&constants);
    debug_assert_eq!(words.len(), views.len() * (1 + dims) + dims + 2 + constants.len());
    if count == 0 || words.len() > MAX_PARAM_WORDS {
        return None;
    }
    let RowDistribution { width, lanes, loads } = rows.distribution;
    let kernel = RowKernel {
        loaded,
        steps,
        constants: constants.len(),
        dims,
        width,
        lanes,
        loads,
        spread: 1,
        exchange: None,
    };
    let blocks = count.div_ceil(u64::from(BLOCK) / lanes as u64);
    Some(Launch { kernel: Kernel::Row(kernel), params: words, blocks })
}

/// Translates the operations; `None` if a kernel over rows of elements of this shape does not support one of them.
fn row_steps<'a>(
    ops: &[RowOp<'a>],
    shape: &[usize],
    parameters: &mut Parameters<'a>,
) -> Option<Vec<RowStep>> {
    let mut steps = Vec::with_capacity(ops.len());
    for (at, op) in ops.iter().enumerate() {
        let defining = |view: &DeviceView| defining_row_op(&ops[..at], view);
        steps.push(match op {
            RowOp::Map(it) if it.out.view.shape != *shape || it.function == ScalarFunction::Iota => {
                return None;
            }
            RowOp::Map(it) => RowStep::Map(fused_op(it, &defining, parameters).ok()?),
            RowOp::MapRows(it, _) if it.function == ScalarFunction::Iota => return None,
            RowOp::MapRows(it, _) => RowStep::MapRows(fused_op(it, &defining, parameters).ok()?),
            RowOp::Reduce(it) => {
                let computed = reduction_compute_type(it.reduce.op, &it.input, &it.out).ok()?;
                if !computed.is_float() {
                    return None;
                }
                let input = match defining(&it.input) {
                    Some(number) => Operand::OpResult(number, it.input.dtype),
                    None => Operand::Load(parameters.read(&it.input, it.input.dtype)),
                };
                let start = parameters.constant(it.reduce.init, computed);
                let (op, out, is_stored) = (it.reduce.op, it.out.dtype, it.is_stored);
                RowStep::Reduce { op, input, computed, start, out, is_stored }
            }
        });
    }
    Some(steps)
}
