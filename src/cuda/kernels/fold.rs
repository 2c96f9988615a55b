//! Combinations along axes: a block for each result where many terms lie in a row, else a thread.

use super::{
    BLOCK, DIMS, Kernel, Launch, Located, WIDEST, check, expression, floats, integers, named, shape::merged,
};
use crate::{
    io::data::Data,
    plan::{Number, Reduce, ReduceOp},
};

/// Fewest terms that a whole block is put on.
const MANY: usize = 512;

/// Prepares a reduction; `None` where there is no result.
///
/// # Errors
/// Element types and combinations that the kernels lack.
pub(in crate::cuda) fn fold(
    reduce: &Reduce,
    input: &Located,
    out: &Located,
) -> Result<Option<Launch>, String> {
    check([input.dtype, out.dtype])?;
    let whole = input.dtype.is_integral() && out.dtype.is_integral();
    let dtypes = [input.dtype, out.dtype].into_iter();
    let computed = if whole { integers(dtypes) } else { floats(dtypes) };
    if expression::step(reduce.op, computed).is_none() {
        let dtype = input.dtype.short_name();
        return Err(format!("a reduction with {:?} of element type `{dtype}` has no kernel", reduce.op));
    }
    if out.view.is_empty() {
        return Ok(None);
    }
    let axes = |reduced: bool| -> (Vec<usize>, Vec<usize>) {
        let chosen = (0..input.view.shape.len()).filter(|it| reduce.axes.contains(it) == reduced);
        chosen.map(|it| (input.view.shape[it], input.view.strides[it])).unzip()
    };
    let (kept_shape, kept_strides) = axes(false);
    let (reduced_shape, reduced_strides) = axes(true);
    let kept = merged(&kept_shape, &[&out.view.strides, &kept_strides]).checked()?;
    let reduced = merged(&reduced_shape, &[&reduced_strides]).checked()?;
    let (outputs, terms) = (out.view.len(), reduced_shape.iter().product::<usize>());
    let dense = reduced.strides[0].last().is_some_and(|it| *it == 1);
    let block = terms >= MANY && (dense || outputs < 1 << 14);
    let sizes = [out.dtype.size(), input.dtype.size()];
    let aligned = |strides: &[usize], width: usize| strides.iter().all(|it| it.is_multiple_of(width));
    let width = match block {
        // Neighbours are terms of one result.
        true => {
            let most = if dense { WIDEST / sizes[1] } else { 1 };
            let width = reduced.width(most, &[input.address], &sizes[1..]);
            narrowed(width, |it| aligned(&kept.strides[1], it))
        }
        // Both have neighbours: a result for each lane, and each lane's own terms.
        false => {
            let last = kept.extents.len() - 1;
            let packed = kept.strides.iter().all(|it| it[last] == 1);
            let most = WIDEST / sizes.into_iter().max().unwrap_or(1);
            let width = kept.width(most, &[out.address, input.address], &sizes);
            narrowed(width, |it| packed && aligned(&reduced.strides[0], it))
        }
    };
    let (of_kept, of_reduced) = if block { (1, width) } else { (width, 1) };
    let (start_real, start_whole) = start(reduce.init, out.dtype, whole)?;
    let start_real = if computed == super::Computed::F32 { f64::from(start_real as f32) } else { start_real };
    let mut words = vec![out.address, input.address];
    words.extend(kept.extent_words(of_kept));
    words.extend(reduced.extent_words(of_reduced));
    words.extend(kept.stride_words(0, sizes[0], of_kept));
    words.extend(kept.stride_words(1, sizes[1], of_kept));
    words.extend(reduced.stride_words(0, sizes[1], of_reduced));
    let (groups, loads) = ((outputs / of_kept) as u64, (terms / of_reduced) as u64);
    words.extend([kept.extents.len() as u64, reduced.extents.len() as u64, groups, loads]);
    words.extend([start_real.to_bits(), start_whole as u64]);
    debug_assert_eq!(words.len(), 2 + 5 * DIMS + 6);
    let kernel = Kernel::Fold { op: reduce.op, input: input.dtype, out: out.dtype, computed, width, block };
    let blocks = if block { groups } else { groups.div_ceil(u64::from(BLOCK)) };
    Ok(Some(Launch { kernel, words, blocks }))
}

/// The widest access that is allowed, halved until it is.
fn narrowed(mut width: usize, allowed: impl Fn(usize) -> bool) -> usize {
    while width > 1 && !allowed(width) {
        width /= 2;
    }
    width
}

/// The value to start from. Integers start from what the result's type makes of it.
fn start(init: Number, out: grammar::dtype::DType, whole: bool) -> Result<(f64, i64), String> {
    if whole {
        let mut cell = Data::zeros(out, 1).map_err(|it| it.to_string())?;
        cell.set(0, init);
        return Ok((0.0, cell.to_i128()[0] as i64));
    }
    Ok(match init {
        Number::Int(it) => (it as f64, it),
        Number::Float(it) => (it, 0),
        Number::Bool(it) => (f64::from(u8::from(it)), 0),
    })
}

/// The body of an instance.
pub(super) fn body(kernel: &Kernel) -> String {
    let Kernel::Fold { op, input, out, computed, width, block } = kernel else { return String::new() };
    let (input, out) = (named(*input), named(*out));
    let step = expression::step(*op, *computed).unwrap_or_default();
    let neutral = expression::neutral(*op, *computed);
    let start = if computed.is_float() { "(C)p.start_real" } else { "(C)p.start_whole" };
    let lanes = if *block { *width } else { 1 };
    let average = format!("r / (C)(p.terms ? p.terms * {lanes} : 1)");
    let finish = match op {
        ReduceOp::Avg => average.as_str(),
        ReduceOp::Sum
        | ReduceOp::Product
        | ReduceOp::Min
        | ReduceOp::Max
        | ReduceOp::FMin
        | ReduceOp::FMax
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => "r",
    };
    let computed = computed.name();
    let read = "offset(t, p.reduced_dims, p.reduced, p.in_reduced)";
    match block {
        true => format!(
            "  typedef {computed} C;
  __shared__ C part[{BLOCK}];
  for (u64 g = blockIdx.x; g < p.outputs; g += gridDim.x) {{
    const u64 in = p.in + offset(g, p.kept_dims, p.kept, p.in_kept);
    C sum = {neutral};
    for (u64 t = threadIdx.x; t < p.terms; t += {BLOCK}) {{
      const Pack<{input}, {width}> x = load<{input}, {width}>(in + {read});
#pragma unroll
      for (int v = 0; v < {width}; ++v) {{
        const C a = sum, b = up<C>(x.e[v]);
        sum = {step};
      }}
    }}
    part[threadIdx.x] = sum;
    __syncthreads();
    for (u32 half = {BLOCK} / 2; half > 0; half /= 2) {{
      if (threadIdx.x < half) {{
        const C a = part[threadIdx.x], b = part[threadIdx.x + half];
        part[threadIdx.x] = {step};
      }}
      __syncthreads();
    }}
    if (threadIdx.x == 0) {{
      const C a = {start}, b = part[0], r = {step};
      Pack<{out}, 1> y;
      y.e[0] = down(To<{out}>(), (C)({finish}));
      save<{out}, 1>(p.out + offset(g, p.kept_dims, p.kept, p.out_stride), y);
    }}
    __syncthreads();
  }}
"
        ),
        false => format!(
            "  typedef {computed} C;
  for (u64 g = blockIdx.x * (u64){BLOCK} + threadIdx.x; g < p.outputs; g += gridDim.x * (u64){BLOCK}) {{
    const u64 in = p.in + offset(g, p.kept_dims, p.kept, p.in_kept);
    C sum[{width}];
#pragma unroll
    for (int v = 0; v < {width}; ++v) sum[v] = {start};
    for (u64 t = 0; t < p.terms; ++t) {{
      const Pack<{input}, {width}> x = load<{input}, {width}>(in + {read});
#pragma unroll
      for (int v = 0; v < {width}; ++v) {{
        const C a = sum[v], b = up<C>(x.e[v]);
        sum[v] = {step};
      }}
    }}
    Pack<{out}, {width}> y;
#pragma unroll
    for (int v = 0; v < {width}; ++v) {{
      const C r = sum[v];
      y.e[v] = down(To<{out}>(), (C)({finish}));
    }}
    save<{out}, {width}>(p.out + offset(g, p.kept_dims, p.kept, p.out_stride), y);
  }}
"
        ),
    }
}
