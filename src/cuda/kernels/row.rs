//! Fused kernels over rows: reductions along the rows of a tensor, and elementwise operations on all of its elements.
//! A softmax, for example, then reads its operand once and writes its result once.
//!
//! The lanes of a row load it into registers and execute all operations in their order, each result rounded as if it had
//! been stored. A reduction adds its terms in the order of `reduce`, so its result has the same bits as without fusion.

use std::fmt::Write;

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, DIMS, DeviceView, FusedOp, Kernel, Launch, MAX_ACCESS_BYTES, MAX_PARAM_WORDS,
    Operand, ScalarFunction,
    elementwise::{ElementwiseOp, Parameters, fused_op, statement},
    expression, merge_dims,
    reduce::RowDistribution,
    type_name,
};
use crate::plan::{Reduce, ReduceOp};

/// Maximum number of accesses of a thread: each takes four registers for each operand.
const MAX_LOADS: usize = 7;

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
                let (kept, reduced) = split(&it.reduce.axes, &view.view.strides);
                let (shape, _) = split(&it.reduce.axes, &input.shape);
                let strides = kept.iter().zip(&out.view.strides).zip(&shape);
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

/// Returns the values of the kept and of the reduced dimensions.
fn split(axes: &[usize], values: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let pick = |reduced: bool| -> Vec<usize> {
        (0..values.len()).filter(|it| axes.contains(it) == reduced).map(|it| values[it]).collect()
    };
    (pick(false), pick(true))
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
    if !fits || loads.div_ceil(lanes) > MAX_LOADS {
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
    let (kept_shape, row_shape) = split(axes, shape);
    // Address, element size and strides of each view over the kept dimensions.
    let mut views: Vec<(u64, usize, Vec<usize>)> = Vec::new();
    let mut loaded = Vec::with_capacity(read_count);
    let stored = ops.iter().filter(|it| it.is_stored());
    let is_row = stored.clone().map(|it| matches!(it, RowOp::Map(_)));
    let is_row: Vec<bool> = is_row.collect();
    for (at, view) in read.iter().chain(stored.map(RowOp::out)).enumerate() {
        let size = view.dtype.size();
        if at >= read_count && !is_row[at - read_count] {
            views.push((view.address, size, view.view.strides.clone()));
            continue;
        }
        let (kept, row) = split(axes, &view.view.strides);
        let repeats = row.iter().zip(&row_shape).all(|(stride, extent)| *stride == 0 || *extent == 1);
        let merged = merge_dims(&row_shape, &[&row]);
        let is_contiguous = merged.extents == [loads * width] && merged.strides[0] == [1];
        let is_aligned = (view.address as usize).is_multiple_of(width * size)
            && kept.iter().zip(&kept_shape).all(|(it, extent)| *extent == 1 || it.is_multiple_of(width));
        let is_whole_row = is_contiguous && is_aligned && width * size <= MAX_ACCESS_BYTES;
        if !is_whole_row && (!repeats || at >= read_count) {
            return None;
        }
        if at < read_count {
            loaded.push((types[at], !is_whole_row));
        }
        views.push((view.address, size, kept));
    }
    let strides: Vec<&[usize]> = views.iter().map(|it| it.2.as_slice()).collect();
    let merged = merge_dims(&kept_shape, &strides).checked().ok()?;
    let rows = kept_shape.iter().product::<usize>() as u64;
    constants.resize(constants.len().max(1), 0);
    let mut words: Vec<u64> = views.iter().map(|it| it.0).collect();
    words.extend(views.iter().enumerate().flat_map(|(at, it)| merged.stride_words(at, it.1, 1)));
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

/// Returns the type of the parameters of an instance.
pub(super) fn parameters(kernel: &RowKernel) -> String {
    let stored = kernel.stored().into_iter().filter(|it| *it).count();
    format!("Elementwise<{}, {}>", kernel.loaded.len() + stored, kernel.constants)
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

/// Returns the body of an instance.
pub(super) fn body(kernel: &RowKernel) -> String {
    let RowKernel { loaded, steps, constants, width, lanes, loads } = kernel;
    let (count, rows) = (loads.div_ceil(*lanes), BLOCK as usize / lanes);
    let flags = kernel.stored();
    let stored: Vec<usize> = (0..steps.len()).filter(|at| flags[*at]).collect();
    let view_of = |at: usize| stored.iter().position(|it| *it == at).map(|it| loaded.len() + it);
    let mut text = format!(
        "  const u32 lane = threadIdx.x % {lanes}, column = threadIdx.x / {lanes};
  const u64 tiles = (p.count + {rows} - 1) / {rows};
  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{
    const u64 row = tile * {rows} + column;
    const bool inside = row < p.count;
    u64 at[{views}];
    locate<u64, {views}, {constants}>(p, inside ? row : 0, at);
",
        views = loaded.len() + stored.len()
    );
    // Writing to a string does not fail.
    for (at, (dtype, is_repeated)) in loaded.iter().enumerate() {
        let dtype = type_name(*dtype);
        let _ = match is_repeated {
            true => writeln!(text, "    const {dtype} x{at} = *reinterpret_cast<const {dtype}*>(at[{at}]);"),
            false => writeln!(
                text,
                "    Pack<{dtype}, {width}> x{at}[{count}];
#pragma unroll
    for (int n = 0; n < {count}; ++n)
      x{at}[n] = inside && lane + n * {lanes} < {loads} ? load<{dtype}, {width}>(at[{at}] + (lane + n * {lanes}) * \
                 (u64)({width} * sizeof({dtype}))) : zeros<{dtype}, {width}>();"
            ),
        };
    }
    // The text of an operand, for element v of access n.
    let name = |operand: &Operand| match operand {
        Operand::Load(at) if loaded[*at].1 => format!("x{at}"),
        Operand::Load(at) => format!("x{at}[n].e[v]"),
        Operand::OpResult(at, _) => match &steps[*at] {
            RowStep::Map(_) => format!("y{at}[n][v]"),
            RowStep::Reduce { .. } => format!("m{at}"),
        },
        Operand::Constant(at) => format!("p.constant[{at}]"),
    };
    for (at, step) in steps.iter().enumerate() {
        match step {
            RowStep::Map(op) => {
                let out = type_name(op.out);
                let kept = format!("y{at}[n][v] = ");
                let _ = write!(
                    text,
                    "    {out} y{at}[{count}][{width}];
#pragma unroll
    for (int n = 0; n < {count}; ++n) {{
#pragma unroll
    for (int v = 0; v < {width}; ++v) {{
{}    }}
    }}
",
                    statement(op, at, "0", &kept, &name)
                );
                if let Some(view) = view_of(at) {
                    let _ = write!(
                        text,
                        "#pragma unroll
    for (int n = 0; n < {count}; ++n) {{
      if (!inside || lane + n * {lanes} >= {loads}) continue;
      Pack<{out}, {width}> y;
#pragma unroll
      for (int v = 0; v < {width}; ++v) y.e[v] = y{at}[n][v];
      save<{out}, {width}>(at[{view}] + (lane + n * {lanes}) * (u64)({width} * sizeof({out})), y);
    }}
"
                    );
                }
            }
            RowStep::Reduce { op, input, computed, start, out, .. } => {
                let step = expression::reduction_expression(*op, *computed).unwrap_or_default();
                let neutral = expression::identity_expression(*op, *computed);
                let result = match op {
                    ReduceOp::Avg => format!("r / (C){}", loads * width),
                    _ => "r".to_owned(),
                };
                let value = match input {
                    Operand::OpResult(_, dtype) => format!("bits<{}>({})", type_name(*dtype), name(input)),
                    Operand::Load(_) | Operand::Constant(_) => name(input),
                };
                let (out, computed) = (type_name(*out), computed.name());
                let _ = write!(
                    text,
                    "    {out} m{at};
    {{
      typedef {computed} C;
      C sum[{width}];
#pragma unroll
      for (int v = 0; v < {width}; ++v) sum[v] = {neutral};
#pragma unroll
      for (int n = 0; n < {count}; ++n) {{
        if (lane + n * {lanes} >= {loads}) continue;
#pragma unroll
        for (int v = 0; v < {width}; ++v) {{
          const C a = sum[v], b = widen<C>({value});
          sum[v] = {step};
        }}
      }}
#pragma unroll
      for (int v = 1; v < {width}; ++v) {{
        const C a = sum[0], b = sum[v];
        sum[0] = {step};
      }}
{across}      const C a = (C)bits<f64>(p.constant[{start}]), b = sum[0], r = {step};
      m{at} = narrow(To<{out}>(), (C)({result}));
    }}
",
                    across = across_lanes(*lanes, step)
                );
                if let Some(view) = view_of(at) {
                    let _ = writeln!(
                        text,
                        "    if (inside && lane == 0) *reinterpret_cast<{out}*>(at[{view}]) = m{at};"
                    );
                }
            }
        }
    }
    text + "  }\n"
}

/// Returns the statements that reduce `sum[0]` over the lanes of a row, for all of them.
fn across_lanes(lanes: usize, step: &str) -> String {
    if lanes == 1 {
        return String::new();
    }
    format!(
        "      __shared__ C part[{BLOCK}];
      part[threadIdx.x] = sum[0];
      __syncthreads();
      for (u32 half = {lanes} / 2; half > 0; half /= 2) {{
        if (lane < half) {{
          const C a = part[threadIdx.x], b = part[threadIdx.x + half];
          part[threadIdx.x] = {step};
        }}
        __syncthreads();
      }}
      sum[0] = part[threadIdx.x - lane];
      // The next reduction writes `part` again.
      __syncthreads();
"
    )
}
