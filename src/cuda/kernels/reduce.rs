//! Combinations along axes: lanes of threads take turns at the terms of a result and are combined in shared memory. Where
//! results are too few for all the threads of a GPU, a first pass combines a part of the terms in each block, and a second
//! one the parts. All is done in an order that shape and layout tell, so a sum is the same to the last bit in every run.

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, DIMS, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, check_dtypes, expression,
    float_compute_type, integer_compute_type,
    shape::{MergedDims, merge_dims},
    type_name,
};
use crate::{
    io::data::Data,
    plan::{Number, Reduce, ReduceOp, View},
};

/// Blocks that fill a GPU and run at once: four on each of 128 multiprocessors, as threads of 40 to 60 registers allow. Not
/// those of the GPU at hand: results would depend on it.
const FULL: usize = 512;
/// Loads of a thread that are on their way together.
const BATCH: usize = 4;
/// Most columns of a block, where neighbours are columns: 512 bytes in a row, as a warp likes them.
const COLUMNS: usize = 32;
/// Fewest loads of a thread that pay for a second pass, which costs a launch.
const SPLIT: usize = 16;

/// Bytes that a reduction takes for the results of its first pass; 0 where it has one pass.
///
/// # Errors
/// As `fold`.
pub(in crate::cuda) fn reduce_scratch_bytes(
    reduce: &Reduce,
    input: &DeviceView,
    out: &DeviceView,
) -> Result<usize, String> {
    let computed = choose_compute_type(reduce.op, input, out)?;
    Ok(match part_count(reduce, input, out, computed)? {
        1 => 0,
        parts => parts * out.view.len() * partial_dtype(computed).size(),
    })
}

/// Prepares a reduction, with room for as many bytes as `room` tells.
///
/// # Errors
/// Element types and combinations that the kernels lack.
pub(in crate::cuda) fn reduce_launches(
    reduce: &Reduce,
    input: &DeviceView,
    out: &DeviceView,
    room: u64,
) -> Result<Vec<Launch>, String> {
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
    let located = |view| DeviceView { address: room, dtype: partial_dtype(computed), view };
    let first = Pass::of(&reduce.axes, input, &located(&part))?;
    let second = Pass::of(&[0], &located(&all), out)?;
    Ok(vec![first.launch(reduce.op, computed, parts, None), second.launch(reduce.op, computed, 1, Some(end))])
}

/// The type that a reduction computes in.
fn choose_compute_type(op: ReduceOp, input: &DeviceView, out: &DeviceView) -> Result<ComputeType, String> {
    let dtypes = [input.dtype, out.dtype];
    check_dtypes(dtypes)?;
    let computed = match dtypes.iter().all(|it| it.is_integral()) {
        true => integer_compute_type(dtypes.into_iter()),
        false => float_compute_type(dtypes.into_iter()),
    };
    match expression::reduction_expression(op, computed) {
        Some(_) => Ok(computed),
        None => {
            let dtype = input.dtype.short_name();
            Err(format!("a reduction with {op:?} of element type `{dtype}` has no kernel"))
        }
    }
}

/// The element type of what lies in memory between two passes: nothing is rounded.
fn partial_dtype(computed: ComputeType) -> DType {
    match computed {
        ComputeType::F32 => DType::Float,
        ComputeType::F64 => DType::Double,
        ComputeType::I64 => DType::Int64,
        ComputeType::U64 => DType::UInt64,
    }
}

/// In how many parts the terms are combined apart: as many as fill the GPU, each with enough to do.
fn part_count(
    reduce: &Reduce,
    input: &DeviceView,
    out: &DeviceView,
    computed: ComputeType,
) -> Result<usize, String> {
    if out.view.is_empty() {
        return Ok(1);
    }
    let part = View::contiguous(0, out.view.shape.clone());
    let room = DeviceView { address: 0, dtype: partial_dtype(computed), view: &part };
    let pass = Pass::of(&reduce.axes, input, &room)?;
    Ok((FULL / pass.tiles()).min(pass.loads / pass.lanes / SPLIT).max(1))
}

/// How threads share the work of a pass.
struct Pass {
    input: DType,
    out: DType,
    kept: MergedDims,
    reduced: MergedDims,
    /// Elements of an access.
    width: usize,
    /// Whether the elements of an access, and the lanes' accesses, are neighbours along a row of terms; else they are terms
    /// of neighbouring results.
    along_rows: bool,
    /// Threads that take turns at the terms of a result: a power of two.
    lanes: usize,
    /// Results, or groups of `width` results.
    outputs: usize,
    /// Accesses that combine all terms of one.
    loads: usize,
    addresses: [u64; 2],
}

/// What the last pass adds to the terms.
struct Epilogue {
    start: (f64, i64),
    /// Terms of a result.
    count: usize,
}

impl Pass {
    /// Chooses the form by shape and layout: here, and for a second pass in `parts`.
    fn of(axes: &[usize], input: &DeviceView, out: &DeviceView) -> Result<Self, String> {
        let dims = |reduced: bool| -> (Vec<usize>, Vec<usize>) {
            let chosen = (0..input.view.shape.len()).filter(|it| axes.contains(it) == reduced);
            chosen.map(|it| (input.view.shape[it], input.view.strides[it])).unzip()
        };
        let (kept_shape, kept_strides) = dims(false);
        let (reduced_shape, reduced_strides) = dims(true);
        let kept = merge_dims(&kept_shape, &[&out.view.strides, &kept_strides]).checked()?;
        let reduced = merge_dims(&reduced_shape, &[&reduced_strides]).checked()?;
        let (outputs, terms) = (out.view.len(), reduced_shape.iter().product::<usize>());
        let (sizes, addresses) = ([out.dtype.size(), input.dtype.size()], [out.address, input.address]);
        let aligned = |strides: &[usize], width: usize| strides.iter().all(|it| it.is_multiple_of(width));
        let most = MAX_ACCESS_BYTES / sizes[1];
        // Terms that lie in a row are read along it.
        let rows = reduced.strides[0].last().is_some_and(|it| *it == 1);
        let width = if rows {
            let width = reduced.width(most, &addresses[1..], &sizes[1..]);
            narrowed(width, |it| aligned(&kept.strides[1], it))
        } else {
            // Results that do are read side by side: each element of an access is a term of its own result.
            let last = kept.extents.len() - 1;
            let packed = kept.strides.iter().all(|it| it[last] == 1);
            let width = kept.width(most, &addresses, &sizes);
            narrowed(width, |it| packed && aligned(&reduced.strides[0], it))
        };
        let (outputs, loads) = if rows { (outputs, terms / width) } else { (outputs / width, terms) };
        // Each lane has a batch of loads at least. Lanes along a row read what lies together, so there are as many as a block
        // has. Lanes that read from row to row leave the block's columns less to read in each, so there are only as many as
        // it takes to fill the GPU, and not so many that the columns become narrow.
        let block = BLOCK as usize;
        let most = match rows {
            true => block,
            false => {
                let columns = outputs.next_power_of_two().min(COLUMNS);
                (block / columns).min((FULL * block).div_ceil(outputs).next_power_of_two())
            }
        };
        let lanes = (loads / BATCH).next_power_of_two().min(most);
        let (input, out) = (input.dtype, out.dtype);
        Ok(Self { input, out, kept, reduced, width, along_rows: rows, lanes, outputs, loads, addresses })
    }

    /// Blocks that have all results between them.
    fn tiles(&self) -> usize {
        self.outputs.div_ceil(BLOCK as usize / self.lanes)
    }

    /// The launch. Parts lie behind each other, without an end.
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
        let kernel = Kernel::Reduce {
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
        Launch { kernel, params: words, blocks }
    }
}

/// The widest access that is allowed, halved until it is.
fn narrowed(mut width: usize, allowed: impl Fn(usize) -> bool) -> usize {
    while width > 1 && !allowed(width) {
        width /= 2;
    }
    width
}

/// The value to start from. Integers start from what the result's type makes of it.
fn initial_value(init: Number, out: DType, computed: ComputeType) -> Result<(f64, i64), String> {
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

/// The body of an instance.
pub(super) fn body(kernel: &Kernel) -> String {
    let Kernel::Reduce {
        op,
        input,
        out,
        computed,
        width,
        along_rows: rows,
        lanes,
        has_single_stride: flat,
        is_last_pass: ends,
    } = kernel
    else {
        return String::new();
    };
    let step = expression::reduction_expression(*op, *computed).unwrap_or_default();
    let neutral = expression::identity_expression(*op, *computed);
    let start = if computed.is_float() { "(C)p.start_real" } else { "(C)p.start_whole" };
    let average = "r / (C)(p.count ? p.count : 1)";
    let finish = match op {
        ReduceOp::Avg if *ends => average,
        ReduceOp::Avg
        | ReduceOp::Sum
        | ReduceOp::Product
        | ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::FMin
        | ReduceOp::FMax
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => "r",
    };
    let begun =
        if *ends { format!("a = {start}, b = sum[o + v], r = {step}") } else { "r = sum[o + v]".to_owned() };
    // Results of a thread, and how many of them are written at a time.
    let results = if *rows { 1 } else { *width };
    let packed = results.min(MAX_ACCESS_BYTES / out.size());
    let columns = BLOCK as usize / lanes;
    // Threads from a lane to the next: neighbouring threads read neighbours in memory.
    let stride = if *rows { 1 } else { columns };
    let column = if *rows { format!("threadIdx.x / {lanes}") } else { format!("threadIdx.x % {columns}") };
    let (input, out, computed) = (type_name(*input), type_name(*out), computed.name());
    let read = match flat {
        true => "at * p.in_reduced[0]",
        false => "offset(at, p.reduced_dims, p.reduced, p.in_reduced)",
    };
    // As long as there is a batch, and what is left.
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
            const C a = sum[v], b = up<C>(x[n].e[v]);
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
    let along = match rows {
        true => format!(
            "#pragma unroll
    for (int v = 1; v < {width}; ++v) {{
      const C a = sum[0], b = sum[v];
      sum[0] = {step};
    }}
"
        ),
        false => String::new(),
    };
    // A thread reads what others have written between the barriers, and its own after them: no more are needed.
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
          y.e[v] = down(To<{out}>(), (C)({finish}));
        }}
        save<{out}, {packed}>(to + o * sizeof({out}), y);
      }}
    }}
  }}
"
    )
}
