//! Attention in one kernel; `attention.cu` is its template.

use grammar::DType;

use super::{DeviceView, Kernel, Launch, merge_dims, type_name};
use crate::{device::BlockShape, unsupported::Unsupported};
use hir_plan::View;

/// The template.
pub(super) const TEMPLATE: &str = include_str!("attention.cu");
/// Rows of the query that a block computes: `QUERY_ROWS` of the template.
const QUERY_ROWS: usize = 128;
/// Threads of a block: one warpgroup loads, two compute.
const THREADS: u32 = 3 * 128;
/// Rows of keys and values in shared memory: those of two tiles each.
const SHARED_ROWS: usize = 4 * 128;
/// Bytes of shared memory for the barriers, and to align the tiles.
const SHARED_EXTRA: usize = 64 + 1024;
/// The fewest rows that are worth the kernel: a warpgroup computes 64 rows, and a query of a few rows is limited by the
/// number of blocks that read the keys.
const LEAST_ROWS: usize = 64;

/// The numbers of rows and keys, rounded up to whole tiles, have 32 bits.
const MOST_ROWS: usize = 1 << 31;

/// An instance of the template.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AttentionKernel {
    dtype: DType,
    columns: usize,
    is_causal: bool,
}

impl AttentionKernel {
    /// Returns the size of its blocks.
    pub fn block(&self) -> BlockShape {
        let bytes = (QUERY_ROWS + SHARED_ROWS) * self.columns * 2 + SHARED_EXTRA;
        BlockShape { threads: THREADS, shared_bytes: bytes as u32 }
    }
}

/// An attention on views at device addresses. The results overlap neither the operands nor each other.
#[derive(Debug)]
pub(crate) struct AttentionCall<'a> {
    /// The query `[b…, l, k]`.
    pub query: DeviceView<'a>,
    /// The keys `[b…, s, k]`.
    pub key: DeviceView<'a>,
    /// The values `[b…, s, e]`.
    pub value: DeviceView<'a>,
    /// The result `[b…, l, e]`.
    pub out: DeviceView<'a>,
    /// The logarithms of the sums of exponentials `[b…, l]`.
    pub logsumexp: Option<DeviceView<'a>>,
    /// The factor of the scores.
    pub scale: f64,
    /// Whether row `i` attends to the keys 0 to `i` only.
    pub is_causal: bool,
}

/// Returns the launch of the kernel.
///
/// # Errors
/// Returns why the kernel does not compute this attention.
pub(crate) fn attention_launch(it: &AttentionCall) -> Result<Launch, Unsupported> {
    let layout = layout(it)?;
    let Layout { rows, columns, keys, heads, members, .. } = layout;
    if rows < LEAST_ROWS {
        return Err(format!("it has {rows} rows, fewer than {LEAST_ROWS}").into());
    }
    let operands = [&it.query, &it.key, &it.value, &it.out];
    let mut words = operands.map(|it| it.address).to_vec();
    words.push(it.logsumexp.as_ref().map_or(0, |it| it.address));
    words.extend([rows, keys, heads, members].map(|it| it as u64));
    words.extend(layout.strides.as_flattened());
    words.push(it.scale.to_bits());
    let kernel = AttentionKernel { dtype: it.query.dtype, columns, is_causal: it.is_causal };
    let blocks = rows.div_ceil(QUERY_ROWS) * members;
    Ok(Launch { kernel: Kernel::Attention(kernel), params: words, blocks: blocks as u64 })
}

/// The extents and strides of an attention that a kernel computes.
pub(super) struct Layout {
    /// Rows of the query.
    pub rows: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Rows of the keys and values.
    pub keys: usize,
    /// The inner extent of the batch.
    pub heads: usize,
    /// The product of the extents of the batch.
    pub members: usize,
    /// Strides in elements, of the outer and the inner dimension of the batch and of the rows: those of the query, the keys, the
    /// values, the result and the logarithms of sums.
    pub strides: [[u64; 3]; 5],
}

/// Returns the layout of an attention.
///
/// # Errors
/// Returns why no kernel computes this attention.
pub(super) fn layout(it: &AttentionCall) -> Result<Layout, Unsupported> {
    let operands = [&it.query, &it.key, &it.value, &it.out];
    let dtype = it.query.dtype;
    if !matches!(dtype, DType::BFloat | DType::Half) || operands.iter().any(|view| view.dtype != dtype) {
        return Err("its operands and its result are not all of type `bf16` or all of type `half`".into());
    }
    let ([batch @ .., rows, columns], [.., keys, width]) =
        (&it.query.view.shape[..], &it.value.view.shape[..])
    else {
        return Err("its operands have fewer than two dimensions".into());
    };
    if columns != width || !matches!(columns, 64 | 128) {
        return Err(format!("its rows have {columns} and {width} elements, not 64 or 128").into());
    }
    if *keys == 0 || (*rows).max(*keys) >= MOST_ROWS {
        return Err(format!("it has {rows} rows and {keys} keys").into());
    }
    if !(it.scale > 0.0 && it.scale.is_finite()) {
        return Err(format!("its scale {} is not positive", it.scale).into());
    }
    if !operands.into_iter().all(is_aligned) {
        return Err("its rows are not contiguous, or not aligned to 16 bytes".into());
    }
    // Without a view for it, nothing is stored, so any strides do.
    let sums = it.logsumexp.as_ref().map_or(it.out.view, |it| it.view);
    let views = [it.query.view, it.key.view, it.value.view, it.out.view, sums];
    let outer = views.map(|view| &view.strides[..batch.len()]);
    let merged = merge_dims(batch, &outer);
    let (heads, outer) = match merged.extents[..] {
        [heads] => (heads, 1),
        [outer, heads] => (heads, outer),
        _ => return Err("its batch has more than two separate dimensions".into()),
    };
    let mut strides = [[0; 3]; 5];
    for ((view, merged), to) in views.iter().zip(&merged.strides).zip(&mut strides) {
        let outer = if merged.len() == 2 { merged[0] } else { 0 };
        let head = merged.last().copied().unwrap_or(0);
        *to = [outer, head, view.strides[batch.len()]].map(|it| it as u64);
    }
    let (rows, columns, keys) = (*rows, *columns, *keys);
    Ok(Layout { rows, columns, keys, heads, members: outer * heads, strides })
}

/// Returns true if the kernel can access the rows of a view with 16 bytes at a time.
fn is_aligned(it: &DeviceView) -> bool {
    let View { shape, strides, .. } = it.view;
    let last = shape.len() - 1;
    it.address.is_multiple_of(16)
        && strides[last] == 1
        && (0..last).all(|dim| shape[dim] == 1 || (strides[dim] * it.dtype.size()).is_multiple_of(16))
}

/// Returns the body of an instance.
pub(super) fn body(AttentionKernel { dtype, columns, is_causal }: &AttentionKernel) -> String {
    format!("  attention::attention<{}, {columns}, {is_causal}>(p);\n", type_name(*dtype))
}
