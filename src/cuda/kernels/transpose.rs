//! Copies whose operand and result are contiguous in different dimensions: tiles pass through shared memory, so that both sides access
//! neighbours in memory.

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, DeviceView, FusedOp, Kernel, Launch, MEETING, Operand, ScalarFunction,
    shape::MergedDims, type_name,
};

/// An instance: the types as which elements are loaded and stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TransposeKernel {
    from: DType,
    to: DType,
    computed: ComputeType,
    /// Elements of an access.
    width: usize,
}

/// Bytes of an access to the operand, unless its elements are longer.
const ACCESS: usize = 4;
/// The extents from which on tiles are worth while.
const LEAST_EXTENT: usize = 16;

/// Returns the launch of a single conversion of `views`, the operand and the result, if its elements have to be transposed.
pub(super) fn transpose_launch(ops: &[FusedOp], merged: &MergedDims, views: &[DeviceView]) -> Option<Launch> {
    let ([op], [from, to]) = (ops, views) else { return None };
    if op.function != ScalarFunction::Convert || op.args[..] != [Operand::Load(0)] {
        return None;
    }
    let last = merged.extents.len() - 1;
    let [read, written] = [&merged.strides[0], &merged.strides[1]];
    if written[last] != 1 || read[last] <= 1 {
        return None;
    }
    let other = (0..last).find(|at| read[*at] == 1)?;
    if merged.extents[last].min(merged.extents[other]) < LEAST_EXTENT {
        return None;
    }
    let batch = |values: &[usize]| -> Vec<usize> {
        (0..last).filter(|at| *at != other).map(|at| values[at]).collect()
    };
    let mut dims = MergedDims {
        extents: batch(&merged.extents),
        strides: merged.strides.iter().map(|it| batch(it)).collect(),
    };
    if dims.extents.is_empty() {
        dims = MergedDims { extents: vec![1], strides: vec![vec![0]; 2] };
    }
    let sizes = [from, to].map(|it| it.dtype.size());
    let fits = |width: usize| {
        let mut starts = [from, to].into_iter().zip(sizes);
        let strides = dims.strides.iter().flatten().chain([&read[last], &written[other]]);
        strides.chain([&merged.extents[last], &merged.extents[other]]).all(|it| it.is_multiple_of(width))
            && starts.all(|(it, size)| it.address.is_multiple_of((width * size) as u64))
    };
    let width = if fits(ACCESS / sizes[0].min(ACCESS)) { ACCESS / sizes[0].min(ACCESS) } else { 1 };
    let count: usize = dims.extents.iter().product();
    let mut words = vec![from.address, to.address];
    words.extend(sizes.iter().enumerate().flat_map(|(at, size)| dims.stride_words(at, *size, 1)));
    words.extend(dims.extent_words(1));
    words.extend([dims.extents.len() as u64, count as u64]);
    words.extend([merged.extents[last], merged.extents[other]].map(|it| it as u64));
    words.extend([read[last] * sizes[0], written[other] * sizes[1]].map(|it| it as u64));
    let side = if sizes[0] < 4 { 64 } else { 32 };
    let tiles = count * merged.extents[last].div_ceil(side) * merged.extents[other].div_ceil(side);
    let loaded =
        if op.compute_type == ComputeType::U64 && from.dtype == to.dtype { op.out } else { from.dtype };
    let kernel = TransposeKernel { from: loaded, to: op.out, computed: op.compute_type, width };
    debug_assert_eq!(BLOCK, 256, "the threads of `transpose`");
    Some(Launch { kernel: Kernel::Transpose(kernel), params: words, blocks: tiles as u64 })
}

/// Returns the body of an instance.
pub(super) fn body(it: &TransposeKernel) -> String {
    let (from, to) = (type_name(it.from), type_name(it.to));
    format!("{MEETING}  transpose<{from}, {to}, {}, {}>(p);\n", it.computed.name(), it.width)
}

/// The type of the parameters.
pub(super) const PARAMETERS: &str = "Elementwise<2, 4>";

/// The template. Constants: the extents of the dimensions in which the result and the operand are contiguous, the bytes between
/// neighbours of the operand in the former and of the result in the latter. The padding of a row lets the elements of a column lie in
/// different banks.
pub(super) const TEMPLATE: &str = "
template<class S, class O, class C, int V> D void transpose(const Elementwise<2, 4>& p) {
  constexpr u32 SIDE = sizeof(S) < 4 ? 64 : 32, PADDING = sizeof(S) < 4 ? 4 / sizeof(S) : 1;
  constexpr u32 LANES = SIDE / V, STEP = 256 / LANES;
  __shared__ S tile[SIDE][SIDE + PADDING];
  const u64 across = (p.constant[0] + SIDE - 1) / SIDE, down = (p.constant[1] + SIDE - 1) / SIDE;
  const u32 column = threadIdx.x % LANES * V, row = threadIdx.x / LANES;
  for (u64 b = blockIdx.x; b < p.count * across * down; b += gridDim.x) {
    u64 at[2];
    locate<u64, 2, 4>(p, b / (across * down), at);
    const u64 first = b % across * SIDE, other = b / across % down * SIDE;
    const u32 rows = (u32)(p.constant[0] - first < SIDE ? p.constant[0] - first : SIDE);
    const u32 columns = (u32)(p.constant[1] - other < SIDE ? p.constant[1] - other : SIDE);
    u64 from = at[0] + (first + row) * p.constant[2] + (other + column) * sizeof(S);
#pragma unroll
    for (u32 k = 0; k < SIDE; k += STEP, from += STEP * p.constant[2]) {
      if (k + row >= rows || column >= columns) continue;
      const Pack<S, V> x = load<S, V>(from);
#pragma unroll
      for (int v = 0; v < V; ++v) tile[k + row][column + v] = x.e[v];
    }
    __syncthreads();
    u64 to = at[1] + (other + row) * p.constant[3] + (first + column) * sizeof(O);
#pragma unroll
    for (u32 k = 0; k < SIDE; k += STEP, to += STEP * p.constant[3]) {
      if (k + row >= columns || column >= rows) continue;
      Pack<O, V> y;
#pragma unroll
      for (int v = 0; v < V; ++v) y.e[v] = narrow(To<O>(), widen<C>(tile[column + v][k + row]));
      save<O, V>(to, y);
    }
    __syncthreads();
  }
}
";
