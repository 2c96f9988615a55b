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
    reduce::{RowDistribution, choose_compute_type as reduction_compute_type},
    shape::split_dims,
};
use hir_plan::{Reduce, ReduceOp};

/// Maximum number of bytes of an operand or a result that a thread has: 64 registers.
const MAX_BYTES: usize = 256;

/// An operation on rows.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum RowOp<'a> {
    /// An elementwise operation on all elements.
    Map(ElementwiseOp<'a>),
    /// A reduction of each row.
    Reduce(RowReduction<'a>),
}

/// A reduction of each row to one value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RowReduction<'a> {
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
                let (outer, reduced) = split_dims(&it.reduce.axes, &view.view.strides);
                let (shape, _) = split_dims(&it.reduce.axes, &input.shape);
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
pub(crate) fn defining_row_op(earlier: &[RowOp], view: &DeviceView) -> Option<usize> {
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
pub(crate) struct RowKernel {
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
    axes: &'a [usize],
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
                axes: &reduce.axes,
                distribution: RowDistribution::of(&reduce.axes, input, out)?,
            };
            let is_equal = |known: &Self| {
                (known.shape, known.axes, known.distribution) == (it.shape, it.axes, it.distribution)
            };
            if common.as_ref().is_some_and(|known| !is_equal(known)) {
                return None;
            }
            common = Some(it);
        }
        common
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
        let (outer_shape, row_shape) = split_dims(self.axes, self.shape);
        let (outer, row) = split_dims(self.axes, &view.view.strides);
        let merged = merge_dims(&row_shape, &[&row]);
        let bytes = width * view.dtype.size();
        merged.extents == [loads * width]
            && merged.strides[0] == [1]
            && bytes <= MAX_ACCESS_BYTES
            && (view.address as usize).is_multiple_of(bytes)
            && outer.iter().zip(&outer_shape).all(|(it, extent)| *extent == 1 || it.is_multiple_of(width))
    }

    /// Returns true if a view has one element for each row.
    fn has_one_element(&self, view: &DeviceView) -> bool {
        let (_, row_shape) = split_dims(self.axes, self.shape);
        let (_, row) = split_dims(self.axes, &view.view.strides);
        row.iter().zip(&row_shape).all(|(stride, extent)| *stride == 0 || *extent == 1)
    }
}

/// Prepares one kernel for operations on the same rows, of which at least one is a reduction. Any two views either have
/// the same elements, or one repeats the other along rows, or they are disjoint. Returns `None` if a kernel cannot
/// execute all of them.
pub(crate) fn row_launch(ops: &[RowOp]) -> Option<Launch> {
    let rows = Rows::of(ops)?;
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
    let outer_strides = |view: &DeviceView| split_dims(rows.axes, &view.view.strides).0;
    let mut views = Vec::new();
    let mut loaded = Vec::with_capacity(read.len());
    for (view, dtype) in read.iter().zip(types) {
        let is_repeated = !rows.has_whole_rows(view);
        if is_repeated && !rows.has_one_element(view) {
            return None;
        }
        loaded.push((dtype, is_repeated));
        views.push(row_view(view, outer_strides(view)));
    }
    for op in ops.iter().filter(|it| it.is_stored()) {
        match op {
            RowOp::Map(it) if !rows.has_whole_rows(&it.out) => return None,
            RowOp::Map(it) => views.push(row_view(&it.out, outer_strides(&it.out))),
            RowOp::Reduce(it) => views.push(row_view(&it.out, it.out.view.strides.clone())),
        }
    }

    let (outer_shape, _) = split_dims(rows.axes, rows.shape);
    let strides: Vec<&[usize]> = views.iter().map(|it| it.outer_strides.as_slice()).collect();
    let merged = merge_dims(&outer_shape, &strides).checked().ok()?;
    let count = outer_shape.iter().product::<usize>() as u64;
    // A C++ array has at least one element.
    constants.resize(constants.len().max(1), 0);
    let mut words: Vec<u64> = views.iter().map(|it| it.address).collect();
    words.extend(views.iter().enumerate().flat_map(|(at, it)| merged.stride_words(at, it.size, 1)));
    words.extend(merged.extent_words(1));
    words.extend([merged.extents.len() as u64, count]);
    words.extend(&constants);
    debug_assert_eq!(words.len(), views.len() * (1 + DIMS) + DIMS + 2 + constants.len());
    if count == 0 || words.len() > MAX_PARAM_WORDS {
        return None;
    }
    let RowDistribution { width, lanes, loads } = rows.distribution;
    let kernel = RowKernel { loaded, steps, constants: constants.len(), width, lanes, loads };
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
