//! Copies whose operand and result are contiguous in different dimensions: tiles pass through shared memory, so that both sides access
//! neighbours in memory.

use grammar::DType;

use super::{
    BLOCK, ComputeType, DeviceView, FusedOp, Kernel, Launch, MAX_ACCESS_BYTES, MEETING, Operand,
    ScalarFunction, shape::MergedDims, type_name,
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
    let mut width = MAX_ACCESS_BYTES / sizes[0].max(sizes[1]);
    while width > 1 && !fits(width) {
        width /= 2;
    }
    let count: usize = dims.extents.iter().product();
    let mut words = vec![from.address, to.address];
    words.extend(sizes.iter().enumerate().flat_map(|(at, size)| dims.stride_words(at, *size, 1)));
    words.extend(dims.extent_words(1));
    words.extend([dims.extents.len() as u64, count as u64]);
    words.extend([merged.extents[last], merged.extents[other]].map(|it| it as u64));
    words.extend([read[last] * sizes[0], written[other] * sizes[1]].map(|it| it as u64));
    // `SIDE` in `TEMPLATE`.
    let side = match sizes[0] {
        1 => 128,
        8 => 32,
        _ => 64,
    };
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
    format!("{MEETING}  transpose::transpose<{from}, {to}, {}, {}>(p);\n", it.computed.name(), it.width)
}

/// The type of the parameters.
pub(super) const PARAMETERS: &str = "Elementwise<2, 4>";

/// The template. Constants: the extents of the dimensions in which the result and the operand are contiguous, the bytes between
/// neighbours of the operand in the former and of the result in the latter. The chunks of V elements of a row are exchanged so that
/// those of a column lie in different banks.
pub(super) const TEMPLATE: &str = "
template<class S, class O, class C, int V> D void transpose(const Elementwise<2, 4>& p) {
  constexpr u32 SIDE = sizeof(S) == 1 ? 128 : sizeof(S) == 8 ? 32 : 64, CHUNKS = SIDE / V, STEPS = SIDE * CHUNKS / 256;
  // Neighbouring threads write up to 128 neighbouring bytes.
  constexpr u32 WANTED = 128 / (V * (u32)sizeof(O)), MOST = WANTED < 8 ? 8 : WANTED > 32 ? 32 : WANTED;
  constexpr u32 LANES = MOST < CHUNKS ? MOST : CHUNKS, PARTS = CHUNKS / LANES;
  alignas(16) __shared__ S tile[SIDE][SIDE];
  const u32 across = (u32)((p.constant[0] + SIDE - 1) / SIDE), down = (u32)((p.constant[1] + SIDE - 1) / SIDE);
  const u32 tiles = (u32)p.count * across * down;
  for (u32 b = blockIdx.x; b < tiles; b += gridDim.x) {
    const u32 line = b / across, batch = line / down;
    u64 at[2];
    locate<u32, 2, 4>(p, batch, at);
    const u64 first = (u64)(b - line * across) * SIDE, other = (u64)(line - batch * down) * SIDE;
    const u32 rows = (u32)(p.constant[0] - first < SIDE ? p.constant[0] - first : SIDE);
    const u32 columns = (u32)(p.constant[1] - other < SIDE ? p.constant[1] - other : SIDE);
    const u64 from = at[0] + first * p.constant[2] + other * sizeof(S);
    Pack<S, V> x[STEPS];
#pragma unroll
    for (u32 k = 0; k < STEPS; ++k) {
      const u32 chunk = (threadIdx.x + k * 256) % CHUNKS, row = (threadIdx.x + k * 256) / CHUNKS;
      if (row < rows && chunk * V < columns) x[k] = load<S, V>(from + row * p.constant[2] + chunk * (V * sizeof(S)));
    }
#pragma unroll
    for (u32 k = 0; k < STEPS; ++k) {
      const u32 chunk = (threadIdx.x + k * 256) % CHUNKS, row = (threadIdx.x + k * 256) / CHUNKS;
      *reinterpret_cast<typename Pack<S, V>::Raw*>(&tile[row][(chunk ^ (row / V)) * V]) = x[k].raw;
    }
    __syncthreads();
    const u64 to = at[1] + other * p.constant[3] + first * sizeof(O);
#pragma unroll
    for (u32 k = 0; k < STEPS; ++k) {
      const u32 t = threadIdx.x + k * 256, chunk = t % LANES + LANES * (t / 32 % PARTS);
      const u32 column = t / LANES % (32 / LANES) + 32 / LANES * (t / 32 / PARTS);
      if (column >= columns || chunk * V >= rows) continue;
      Pack<O, V> y;
#pragma unroll
      for (u32 v = 0; v < V; ++v)
        y.e[v] = narrow(To<O>(), widen<C>(tile[chunk * V + v][((column / V) ^ chunk) * V + column % V]));
      save<O, V>(to + column * p.constant[3] + chunk * (V * sizeof(O)), y);
    }
    __syncthreads();
  }
}
";
