//! Reductions along axes. Lanes of threads accumulate the terms of a result in turns, and shared memory
//! combines the lanes. If there are too few results for the threads of a GPU, a first pass reduces a part of
//! the terms in each block, and a second pass reduces the parts. The order depends only on shape and layout,
//! so a sum is bitwise reproducible.

use grammar::DType;

use super::{
    BLOCK, ComputeType, DIMS, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, ReduceKernel, check_dtypes,
    expression, float_compute_type, integer_compute_type,
    shape::{MergedDims, merge_dims, split_dims},
    type_name,
};
use crate::unsupported::Unsupported;
use hir_plan::{Number, Reduce, ReduceOp, View};
use hir_tensor::data::Data;

/// Number of blocks that fill a GPU: four on each of 128 multiprocessors, as threads with 40 to 60 registers
/// allow. It is a constant, because results must not depend on the GPU.
const FULL: usize = 512;
/// Number of loads that a thread has in flight.
const BATCH: usize = 4;
/// Maximum number of columns of a block, if neighbours are columns: 512 contiguous bytes, which suits a warp.
const COLUMNS: usize = 32;
/// Minimum number of loads of a thread that justifies a second pass, which costs a launch.
const SPLIT: usize = 16;

/// Returns the bytes of scratch memory for the results of the first pass; 0 if there is one pass.
///
/// # Errors
/// Those of `reduce_launches`.
pub(crate) fn reduce_scratch_bytes(
    reduce: &Reduce,
    input: &DeviceView,
    out: &DeviceView,
) -> Result<usize, Unsupported> {
    let computed = choose_compute_type(reduce.op, input, out)?;
    Ok(match part_count(reduce, input, out, computed)? {
        1 => 0,
        parts => parts * out.view.len() * partial_dtype(computed).size(),
    })
}

/// Prepares a reduction; `scratch` is the address of `reduce_scratch_bytes` bytes of scratch memory.
///
/// # Errors
/// The kernels do not support the element type or the operation.
pub(crate) fn reduce_launches(
    reduce: &Reduce,
    input: &DeviceView,
    out: &DeviceView,
    scratch: u64,
) -> Result<Vec<Launch>, Unsupported> {
    let computed = choose_compute_type(reduce.op, input, out)?;
    if out.view.is_empty() {
        return Ok(Vec::new());
    }
    let count = input.view.len() / out.view.len();
    let end = Epilogue { start: initial_value(reduce.init, out.dtype, computed)?, count };
    let parts = part_count(reduce, input, out, computed)?;
    if parts == 1 {
        return Ok(vec![Pass::of(&reduce.axes, input, out)?.launch(reduce.op, computed, 1, Some(end))]);
    }
    let part = View::contiguous(0, out.view.shape.clone());
    let all = View::contiguous(0, [&[parts], out.view.shape.as_slice()].concat());
    let located = |view| DeviceView { address: scratch, dtype: partial_dtype(computed), view };
    let first = Pass::of(&reduce.axes, input, &located(&part))?;
    let second = Pass::of(&[0], &located(&all), out)?;
    Ok(vec![first.launch(reduce.op, computed, parts, None), second.launch(reduce.op, computed, 1, Some(end))])
}

/// How threads share the terms of each row in a reduction with one pass along rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowDistribution {
    /// Number of elements of an access.
    pub width: usize,
    /// Number of threads of a row: a power of two.
    pub lanes: usize,
    /// Number of accesses of a row.
    pub loads: usize,
}

impl RowDistribution {
    /// Returns the distribution of rows of `loads` accesses without a reduction.
    pub fn along(loads: usize, width: usize) -> Self {
        Self { width, lanes: (loads / BATCH).next_power_of_two().min(BLOCK as usize), loads }
    }

    /// Returns the distribution of a reduction; `None` if it has several passes, or if its terms are not contiguous.
    pub fn of(axes: &[usize], input: &DeviceView, out: &DeviceView) -> Option<Self> {
        let Pass { width, along_rows, lanes, loads, reduced, .. } = Pass::of(axes, input, out).ok()?;
        let is_one_pass = loads / lanes < SPLIT;
        (along_rows && is_one_pass && reduced.extents.len() == 1).then_some(Self { width, lanes, loads })
    }
}

/// Chooses the compute type of a reduction.
pub(super) fn choose_compute_type(
    op: ReduceOp,
    input: &DeviceView,
    out: &DeviceView,
) -> Result<ComputeType, Unsupported> {
    let dtypes = [input.dtype, out.dtype];
    check_dtypes(dtypes)?;
    let computed = if dtypes.iter().all(|it| it.is_integral()) {
        integer_compute_type(dtypes.into_iter())
    } else {
        float_compute_type(dtypes.into_iter())
    };
    match expression::reduction_expression(op, computed) {
        Some(_) => Ok(computed),
        None => {
            let dtype = input.dtype.short_name();
            Err(format!("a reduction with {op:?} of element type `{dtype}` has no kernel").into())
        }
    }
}

/// Returns the element type of partial results between two passes; it avoids rounding.
fn partial_dtype(computed: ComputeType) -> DType {
    match computed {
        ComputeType::F32 => DType::Float,
        ComputeType::F64 => DType::Double,
        ComputeType::I64 => DType::Int64,
        ComputeType::U64 => DType::UInt64,
    }
}

/// Returns the number of parts that are reduced separately: as many as fill the GPU with enough work for
/// each.
fn part_count(
    reduce: &Reduce,
    input: &DeviceView,
    out: &DeviceView,
    computed: ComputeType,
) -> Result<usize, Unsupported> {
    if out.view.is_empty() {
        return Ok(1);
    }
    let part = View::contiguous(0, out.view.shape.clone());
    let scratch = DeviceView { address: 0, dtype: partial_dtype(computed), view: &part };
    let pass = Pass::of(&reduce.axes, input, &scratch)?;
    Ok((FULL / pass.tiles()).min(pass.loads / pass.lanes / SPLIT).max(1))
}

/// The distribution of one pass over threads.
struct Pass {
    input: DType,
    out: DType,
    kept: MergedDims,
    reduced: MergedDims,
    /// Number of elements of an access.
    width: usize,
    /// Whether the elements of an access, and the accesses of adjacent lanes, are neighbours in a row of
    /// terms. If not, they belong to neighbouring results.
    along_rows: bool,
    /// Number of threads that accumulate the terms of a result: a power of two.
    lanes: usize,
    /// Number of results, or of groups of `width` results.
    outputs: usize,
    /// Number of accesses that cover all terms of one result.
    loads: usize,
    addresses: [u64; 2],
}

/// The work of the last pass after the terms are reduced.
struct Epilogue {
    start: (f64, i64),
    /// Number of terms of a result.
    count: usize,
}

impl Pass {
    /// Chooses the distribution by shape and layout. It does not depend on the GPU.
    fn of(axes: &[usize], input: &DeviceView, out: &DeviceView) -> Result<Self, Unsupported> {
        let (kept_shape, reduced_shape) = split_dims(axes, &input.view.shape);
        let (kept_strides, reduced_strides) = split_dims(axes, &input.view.strides);
        let kept = merge_dims(&kept_shape, &[&out.view.strides, &kept_strides]).checked()?;
        let reduced = merge_dims(&reduced_shape, &[&reduced_strides]).checked()?;
        let (outputs, terms) = (out.view.len(), reduced_shape.iter().product::<usize>());
        let (sizes, addresses) = ([out.dtype.size(), input.dtype.size()], [out.address, input.address]);
        let aligned = |strides: &[usize], width: usize| strides.iter().all(|it| it.is_multiple_of(width));
        let most = MAX_ACCESS_BYTES / sizes[1];
        // Contiguous terms are read along the row.
        let rows = reduced.strides[0].last().is_some_and(|it| *it == 1);
        let width = if rows {
            let width = reduced.width(most, &addresses[1..], &sizes[1..]);
            narrowed(width, |it| aligned(&kept.strides[1], it))
        } else {
            // Otherwise contiguous results are read side by side: each element of an access belongs to
            // another result.
            let last = kept.extents.len() - 1;
            let packed = kept.strides.iter().all(|it| it[last] == 1);
            let width = kept.width(most, &addresses, &sizes);
            narrowed(width, |it| packed && aligned(&reduced.strides[0], it))
        };
        let (outputs, loads) = if rows { (outputs, terms / width) } else { (outputs / width, terms) };
        // Each lane has at least one batch of loads. Along rows, lanes read contiguous memory, so a result
        // may use all threads of a block. Across rows, each additional lane leaves fewer columns to the
        // block. So there are only as many lanes as fill the GPU, and the columns of a block stay wide.
        let block = BLOCK as usize;
        let most = if rows {
            block
        } else {
            let columns = outputs.next_power_of_two().min(COLUMNS);
            (block / columns).min((FULL * block).div_ceil(outputs).next_power_of_two())
        };
        let lanes = (loads / BATCH).next_power_of_two().min(most);
        let (input, out) = (input.dtype, out.dtype);
        Ok(Self { input, out, kept, reduced, width, along_rows: rows, lanes, outputs, loads, addresses })
    }

    /// Returns the number of blocks that cover all results once.
    fn tiles(&self) -> usize {
        self.outputs.div_ceil(BLOCK as usize / self.lanes)
    }

    /// Creates the launch. Without `end`, the results of each part are stored one part after another.
    fn launch(self, op: ReduceOp, computed: ComputeType, parts: usize, end: Option<Epilogue>) -> Launch {
        let Self { input, out, width, along_rows: rows, lanes, outputs, loads, .. } = self;
        let sizes = [out.size(), input.size()];
        let (of_kept, of_reduced) = if rows { (1, width) } else { (width, 1) };
        let mut words = self.addresses.to_vec();
        words.extend(self.kept.extent_words(of_kept));
        words.extend(self.reduced.extent_words(of_reduced));
        words.extend(self.kept.stride_words(0, sizes[0], of_kept));
        words.extend(self.kept.stride_words(1, sizes[1], of_kept));
        words.extend(self.reduced.stride_words(0, sizes[1], of_reduced));
        let between = outputs * of_kept * sizes[0];
        let dims = [self.kept.extents.len(), self.reduced.extents.len()];
        words.extend(dims.map(|it| it as u64));
        words.extend([outputs, loads, parts, loads.div_ceil(parts), between].map(|it| it as u64));
        let ends = end.is_some();
        let Epilogue { start: (real, whole), count } = end.unwrap_or(Epilogue { start: (0.0, 0), count: 0 });
        words.extend([count as u64, real.to_bits(), whole as u64]);
        debug_assert_eq!(words.len(), 2 + 5 * DIMS + 10);
        let blocks = (self.tiles() * parts) as u64;
        let flat = self.reduced.extents.len() == 1;
        let kernel = ReduceKernel {
            op,
            input,
            out,
            computed,
            width,
            along_rows: rows,
            lanes,
            has_single_stride: flat,
            is_last_pass: ends,
        };
        Launch { kernel: Kernel::Reduce(kernel), params: words, blocks }
    }
}

/// Halves the width of an access until it is allowed.
fn narrowed(mut width: usize, allowed: impl Fn(usize) -> bool) -> usize {
    while width > 1 && !allowed(width) {
        width /= 2;
    }
    width
}

/// Returns the initial value as a float and as an integer. An integer is first converted to the result's
/// type.
fn initial_value(init: Number, out: DType, computed: ComputeType) -> Result<(f64, i64), Unsupported> {
    if !computed.is_float() {
        let mut cell = Data::zeros(out, 1).map_err(|it| it.to_string())?;
        cell.set(0, init);
        return Ok((0.0, cell.to_i128()[0] as i64));
    }
    let real = match init {
        Number::Int(it) => it as f64,
        Number::Float(it) => it,
        Number::Bool(it) => f64::from(u8::from(it)),
    };
    Ok((if computed == ComputeType::F32 { f64::from(real as f32) } else { real }, 0))
}

/// Returns the body of an instance.
pub(super) fn body(kernel: &ReduceKernel) -> String {
    let ReduceKernel {
        op,
        input,
        out,
        computed,
        width,
        along_rows: rows,
        lanes,
        has_single_stride: flat,
        is_last_pass: ends,
    } = kernel;
    let step = expression::reduction_expression(*op, *computed).unwrap_or_default();
    let neutral = expression::identity_expression(*op, *computed);
    let start = if computed.is_float() { "(C)p.start_real" } else { "(C)p.start_whole" };
    let finish =
        if *ends { expression::result_expression(*op, "(p.count ? p.count : 1)") } else { "r".to_owned() };
    let begun =
        if *ends { format!("a = {start}, b = sum[o + v], r = {step}") } else { "r = sum[o + v]".to_owned() };
    // Number of results of a thread, and number of results in one store.
    let results = if *rows { 1 } else { *width };
    let packed = results.min(MAX_ACCESS_BYTES / out.size());
    let columns = BLOCK as usize / lanes;
    // Distance in threads between two lanes: neighbouring threads read neighbouring memory.
    let stride = if *rows { 1 } else { columns };
    let column = if *rows { format!("threadIdx.x / {lanes}") } else { format!("threadIdx.x % {columns}") };
    let (input, out, computed) = (type_name(*input), type_name(*out), computed.name());
    let read =
        if *flat { "at * p.in_reduced[0]" } else { "offset(at, p.reduced_dims, p.reduced, p.in_reduced)" };
    // First in batches, then one by one.
    let terms = [BATCH, 1].map(|batch| {
        format!(
            "      for (; t + {reach} < end; t += {turn}) {{
        Pack<{input}, {width}> x[{batch}];
#pragma unroll
        for (int n = 0; n < {batch}; ++n) {{
          const u64 at = t + n * {lanes};
          x[n] = load<{input}, {width}>(in + {read});
        }}
#pragma unroll
        for (int n = 0; n < {batch}; ++n) {{
#pragma unroll
          for (int v = 0; v < {width}; ++v) {{
            const C a = sum[v], b = widen<C>(x[n].e[v]);
            sum[v] = {step};
          }}
        }}
      }}
",
            reach = (batch - 1) * lanes,
            turn = batch * lanes
        )
    });
    let terms = terms.concat();
    let along = if *rows {
        format!(
            "#pragma unroll
    for (int v = 1; v < {width}; ++v) {{
      const C a = sum[0], b = sum[v];
      sum[0] = {step};
    }}
"
        )
    } else {
        String::new()
    };
    // A thread reads the values of others between the barriers, and its own value after them, so these
    // barriers suffice.
    let across = match lanes {
        1 => String::new(),
        _ => format!(
            "    __shared__ C part[{results}][{BLOCK}];
#pragma unroll
    for (int v = 0; v < {results}; ++v) part[v][threadIdx.x] = sum[v];
    __syncthreads();
    for (u32 half = {lanes} / 2; half > 0; half /= 2) {{
      if (lane < half) {{
#pragma unroll
        for (int v = 0; v < {results}; ++v) {{
          const C a = part[v][threadIdx.x], b = part[v][threadIdx.x + half * {stride}];
          part[v][threadIdx.x] = {step};
        }}
      }}
      __syncthreads();
    }}
#pragma unroll
    for (int v = 0; v < {results}; ++v) sum[v] = part[v][threadIdx.x];
"
        ),
    };
    format!(
        "  typedef {computed} C;
  const u32 lane = threadIdx.x / {stride} % {lanes}, column = {column};
  const u64 tiles = (p.outputs + {columns} - 1) / {columns};
  for (u64 tile = blockIdx.x; tile < tiles * p.parts; tile += gridDim.x) {{
    const u64 part_of = tile / tiles, g = (tile - part_of * tiles) * {columns} + column;
    C sum[{width}];
#pragma unroll
    for (int v = 0; v < {width}; ++v) sum[v] = {neutral};
    if (g < p.outputs) {{
      const u64 in = p.in + offset(g, p.kept_dims, p.kept, p.in_kept);
      const u64 next = (part_of + 1) * p.share, end = next < p.terms ? next : p.terms;
      u64 t = part_of * p.share + lane;
{terms}    }}
{along}{across}    if (lane == 0 && g < p.outputs) {{
      const u64 to = p.out + part_of * p.between + offset(g, p.kept_dims, p.kept, p.out_stride);
#pragma unroll
      for (int o = 0; o < {results}; o += {packed}) {{
        Pack<{out}, {packed}> y;
#pragma unroll
        for (int v = 0; v < {packed}; ++v) {{
          const C {begun};
          y.e[v] = narrow(To<{out}>(), (C)({finish}));
        }}
        save<{out}, {packed}>(to + o * sizeof({out}), y);
      }}
    }}
  }}
"
    )
}
