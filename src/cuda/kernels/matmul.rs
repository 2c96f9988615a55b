//! A generic matrix product for what cuBLASLt does not support: other element types, other strides, mixed
//! types.

use grammar::DType;

use super::{
    BLOCK, DeviceView, Kernel, Launch, MatmulKernel, check_dtypes, float_compute_type, integer_compute_type,
    shape::merge_dims, type_name,
};
use crate::unsupported::Unsupported;
use hir_plan::View;

/// Prepares a product; returns `None` if the result is empty. The views are those of `plan::Gemm`.
///
/// # Errors
/// The kernels do not support an element type.
pub(crate) fn matmul_launch(
    a: &DeviceView,
    b: &DeviceView,
    bias: Option<&DeviceView>,
    out: &DeviceView,
) -> Result<Option<Launch>, Unsupported> {
    let dtypes: Vec<DType> = [a, b, out].into_iter().chain(bias).map(|it| it.dtype).collect();
    check_dtypes(dtypes.iter().copied())?;
    if out.view.is_empty() {
        return Ok(None);
    }
    let whole = dtypes[..3].iter().all(|it| it.is_integral());
    let types = dtypes.iter().copied();
    let computed = if whole { integer_compute_type(types) } else { float_compute_type(types) };
    let dims = out.view.shape.len();
    // The left operand has stride 0 along n, the right one along m.
    let without = |view: &View, dim: usize| {
        let mut strides = view.strides.clone();
        strides[dim] = 0;
        strides
    };
    let (a_strides, b_strides) = (without(a.view, dims - 1), without(b.view, dims - 2));
    let none = vec![0; dims];
    let bias_strides = bias.map_or(&none, |it| &it.view.strides);
    let merged =
        merge_dims(&out.view.shape, &[&out.view.strides, &a_strides, &b_strides, bias_strides]).checked()?;
    let size = |it: &DeviceView| it.dtype.size();
    let mut words = vec![out.address, a.address, b.address, bias.map_or(0, |it| it.address)];
    words.extend(merged.extent_words(1));
    words.extend(merged.stride_words(0, size(out), 1));
    words.extend(merged.stride_words(1, size(a), 1));
    words.extend(merged.stride_words(2, size(b), 1));
    words.extend(merged.stride_words(3, bias.map_or(0, size), 1));
    let count = out.view.len() as u64;
    words.extend([merged.extents.len() as u64, count, a.view.shape[dims - 1] as u64]);
    words
        .extend([a.view.strides[dims - 1] * size(a), b.view.strides[dims - 2] * size(b)].map(|it| it as u64));
    let kernel =
        MatmulKernel { a: a.dtype, b: b.dtype, bias: bias.map(|it| it.dtype), out: out.dtype, computed };
    Ok(Some(Launch {
        kernel: Kernel::Matmul(kernel),
        params: words,
        blocks: count.div_ceil(u64::from(BLOCK)),
    }))
}

/// Returns the body of an instance.
pub(super) fn body(kernel: &MatmulKernel) -> String {
    let MatmulKernel { a, b, bias, out, computed } = kernel;
    let (a, b, out) = (type_name(*a), type_name(*b), type_name(*out));
    let add = bias.map_or(String::new(), |it| {
        let it = type_name(it);
        format!(
            "    sum = sum + widen<C>(load<{it}, 1>(p.bias + offset(g, p.dims, p.extent, p.bias_stride)).e[0]);\n"
        )
    });
    format!(
        "  typedef {} C;
  for (u64 g = blockIdx.x * (u64){BLOCK} + threadIdx.x; g < p.count; g += gridDim.x * (u64){BLOCK}) {{
    u64 a = p.a + offset(g, p.dims, p.extent, p.a_stride), b = p.b + offset(g, p.dims, p.extent, p.b_stride);
    C sum = 0;
    for (u64 k = 0; k < p.k; ++k, a += p.a_step, b += p.b_step)
      sum = sum + widen<C>(load<{a}, 1>(a).e[0]) * widen<C>(load<{b}, 1>(b).e[0]);
{add}    Pack<{out}, 1> y;
    y.e[0] = narrow(To<{out}>(), sum);
    save<{out}, 1>(p.out + offset(g, p.dims, p.extent, p.out_stride), y);
  }}
",
        computed.name()
    )
}
