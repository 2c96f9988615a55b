//! Fused kernels over rows: reductions along the rows of a tensor, and elementwise operations on all of its elements.
//! A softmax, for example, then reads its operand once and writes its result once.
//!
//! The lanes of a row load it into registers and execute all operations in their order, each result rounded as if it had
//! been stored. A reduction adds its terms in the order of `reduce`, so its result has the same bits as without fusion.

pub(super) mod body;

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, DIMS, DeviceView, FusedOp, Kernel, Launch, MAX_ACCESS_BYTES, MAX_PARAM_WORDS,
    Operand, ScalarFunction,
    elementwise::{ElementwiseOp, Parameters, fused_op},
    merge_dims,
    reduce::RowDistribution,
};
use crate::plan::{Reduce, ReduceOp};

/// Maximum number of bytes of an operand or a result that a thread has: 64 registers.
const MAX_BYTES: usize = 256;

/// An operation on rows.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cuda) enum RowOp<'a> {
    /// An elementwise operation on all elements.
    Map(ElementwiseOp<'a>),
    /// A reduction of each row.
    Reduce(RowReduction<'a>),
}

/// A reduction of each row to one value.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cuda) struct RowReduction<'a> {
    pub reduce: &'a Reduce,
    pub input: DeviceView<'a>,
    pub out: DeviceView<'a>,
    /// Whether the result is stored in memory. If not, only later operations of the kernel use it.
    pub is_stored: bool,
}

impl<'a> RowOp<'a> {
    /// Returns the result.
    pub fn out(&self) -> &DeviceView<'a> {
        match self {
            Self::Map(it) => &it.out,
            Self::Reduce(it) => &it.out,
        }
    }

    /// Returns the shape of the elements on which the operation works.
    pub fn shape(&self) -> &'a [usize] {
        match self {
            Self::Map(it) => &it.out.view.shape,
            Self::Reduce(it) => &it.input.view.shape,
        }
    }

    /// Returns whether the result is stored.
    pub fn is_stored(&self) -> bool {
        match self {
            Self::Map(it) => it.is_stored,
            Self::Reduce(it) => it.is_stored,
        }
    }

    /// Returns the operands that are views.
    pub fn views(&self) -> Vec<&DeviceView<'a>> {
        match self {
            Self::Map(it) => it.views().collect(),
            Self::Reduce(it) => vec![&it.input],
        }
    }

    /// Returns true if a view has the elements of the result, or repeats the result of a reduction along its rows.
    pub fn defines(&self, view: &DeviceView) -> bool {
        match self {
            Self::Map(it) => it.out.has_same_elements(view),
            Self::Reduce(it) => {
                let (input, out) = (it.input.view, &it.out);
                let (outer, reduced) = split(&it.reduce.axes, &view.view.strides);
                let (shape, _) = split(&it.reduce.axes, &input.shape);
                let strides = outer.iter().zip(&out.view.strides).zip(&shape);
                view.address == out.address
                    && view.dtype == out.dtype
                    && view.view.shape == input.shape
                    && reduced.iter().all(|it| *it == 0)
                    && strides.into_iter().all(|((a, b), extent)| *extent == 1 || a == b)
            }
        }
    }
}

/// Returns the index of the last of the `earlier` operations that defines a view.
pub(in crate::cuda) fn defining_row_op(earlier: &[RowOp], view: &DeviceView) -> Option<usize> {
    earlier.iter().rposition(|it| it.defines(view))
}

/// An operation of the kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum RowStep {
    Map(FusedOp),
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

/// An instance.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::cuda) struct RowKernel {
    /// The element type of each view that is loaded, and whether it has one element for each row.
    loaded: Vec<(DType, bool)>,
    steps: Vec<RowStep>,
    constants: usize,
    width: usize,
    lanes: usize,
    /// Number of accesses of a row.
    loads: usize,
}

impl RowKernel {
    /// Returns whether the result of each step is stored.
    pub fn stored(&self) -> Vec<bool> {
        let is_stored = |it: &RowStep| match it {
            RowStep::Map(it) => it.is_stored,
            RowStep::Reduce { is_stored, .. } => *is_stored,
        };
        self.steps.iter().map(is_stored).collect()
    }
}

/// Returns the values of the dimensions that are not reduced, and of the reduced ones.
fn split(axes: &[usize], values: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let pick = |reduced: bool| -> Vec<usize> {
        (0..values.len()).filter(|it| axes.contains(it) == reduced).map(|it| values[it]).collect()
    };
    (pick(false), pick(true))
}

/// A view as the kernel's parameters describe it.
struct RowView {
    address: u64,
    /// Size of an element in bytes.
    size: usize,
    /// Strides in elements over the dimensions that are not reduced.
    outer_strides: Vec<usize>,
}

/// Prepares one kernel for operations on the same rows, of which at least one is a reduction. Any two views either have
/// the same elements, or one repeats the other along rows, or they are disjoint. Returns `None` if a kernel cannot
/// execute all of them.
pub(in crate::cuda) fn row_launch(ops: &[RowOp]) -> Option<Launch> {
    let reductions = || {
        ops.iter().filter_map(|it| match it {
            RowOp::Reduce(it) => Some(it),
            RowOp::Map(_) => None,
        })
    };
    let first = reductions().next()?;
    let (axes, shape) = (&first.reduce.axes, &first.input.view.shape);
    let distribution =
        |it: &RowReduction| RowDistribution::of(&it.reduce.axes, it.reduce.op, &it.input, &it.out);
    let shared = distribution(first)?;
    let RowDistribution { width, lanes, loads, .. } = shared;
    let fits = reductions().all(|it| {
        it.reduce.axes == *axes
            && it.input.view.shape == *shape
            && distribution(it).is_some_and(|it| {
                (it.width, it.lanes, it.loads) == (width, lanes, loads) && it.computed.is_float()
            })
    });
    let sizes = ops.iter().flat_map(|it| it.views().into_iter().chain([it.out()]));
    let largest = sizes.map(|it| it.dtype.size()).max().unwrap_or(1);
    if !fits || loads.div_ceil(lanes) * width * largest > MAX_BYTES {
        return None;
    }

    let mut parameters = Parameters::default();
    let mut steps = Vec::with_capacity(ops.len());
    for (at, op) in ops.iter().enumerate() {
        let defining = |view: &DeviceView| defining_row_op(&ops[..at], view);
        steps.push(match op {
            RowOp::Map(it) if it.out.view.shape != *shape || it.function == ScalarFunction::Iota => {
                return None;
            }
            RowOp::Map(it) => RowStep::Map(fused_op(it, &defining, &mut parameters).ok()?),
            RowOp::Reduce(it) => {
                let input = match defining(&it.input) {
                    Some(number) => Operand::OpResult(number, it.input.dtype),
                    None => Operand::Load(parameters.read(&it.input, it.input.dtype)),
                };
                let computed = distribution(it)?.computed;
                let start = parameters.constant(it.reduce.init, computed);
                RowStep::Reduce {
                    op: it.reduce.op,
                    input,
                    computed,
                    start,
                    out: it.out.dtype,
                    is_stored: it.is_stored,
                }
            }
        });
    }

    let Parameters { views: read, types, mut constants } = parameters;
    let read_count = read.len();
    let (outer_shape, row_shape) = split(axes, shape);
    let mut views: Vec<RowView> = Vec::new();
    let mut loaded = Vec::with_capacity(read_count);
    let stored = ops.iter().filter(|it| it.is_stored());
    let is_row = stored.clone().map(|it| matches!(it, RowOp::Map(_)));
    let is_row: Vec<bool> = is_row.collect();
    for (at, view) in read.iter().chain(stored.map(RowOp::out)).enumerate() {
        let size = view.dtype.size();
        if at >= read_count && !is_row[at - read_count] {
            views.push(RowView { address: view.address, size, outer_strides: view.view.strides.clone() });
            continue;
        }
        let (outer, row) = split(axes, &view.view.strides);
        let repeats = row.iter().zip(&row_shape).all(|(stride, extent)| *stride == 0 || *extent == 1);
        let merged = merge_dims(&row_shape, &[&row]);
        let is_contiguous = merged.extents == [loads * width] && merged.strides[0] == [1];
        let is_aligned = (view.address as usize).is_multiple_of(width * size)
            && outer.iter().zip(&outer_shape).all(|(it, extent)| *extent == 1 || it.is_multiple_of(width));
        let is_whole_row = is_contiguous && is_aligned && width * size <= MAX_ACCESS_BYTES;
        if !is_whole_row && (!repeats || at >= read_count) {
            return None;
        }
        if at < read_count {
            loaded.push((types[at], !is_whole_row));
        }
        views.push(RowView { address: view.address, size, outer_strides: outer });
    }
    let strides: Vec<&[usize]> = views.iter().map(|it| it.outer_strides.as_slice()).collect();
    let merged = merge_dims(&outer_shape, &strides).checked().ok()?;
    let rows = outer_shape.iter().product::<usize>() as u64;
    constants.resize(constants.len().max(1), 0);
    let mut words: Vec<u64> = views.iter().map(|it| it.address).collect();
    words.extend(views.iter().enumerate().flat_map(|(at, it)| merged.stride_words(at, it.size, 1)));
    words.extend(merged.extent_words(1));
    words.extend([merged.extents.len() as u64, rows]);
    words.extend(&constants);
    debug_assert_eq!(words.len(), views.len() * (1 + DIMS) + DIMS + 2 + constants.len());
    if rows == 0 || words.len() > MAX_PARAM_WORDS {
        return None;
    }
    let kernel = RowKernel { loaded, steps, constants: constants.len(), width, lanes, loads };
    let blocks = rows.div_ceil(u64::from(BLOCK) / lanes as u64);
    Some(Launch { kernel: Kernel::Row(kernel), params: words, blocks })
}
