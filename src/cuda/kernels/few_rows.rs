//! Attention of a few rows of the query, as of a token that is decoded; `few_rows.cu` is its template.

use grammar::DType;

use super::{
    AttentionCall, Kernel, Launch, MEETING,
    attention::{Layout, layout},
    type_name,
};
use crate::{device::BlockShape, unsupported::Unsupported};

/// The template.
pub(super) const TEMPLATE: &str = include_str!("few_rows.cu");
/// Warps of a block.
const WARPS: usize = 4;
/// Keys of a warp at a time: `KEYS` of the template.
const KEYS: usize = 16;
/// The largest number of rows: `ROWS` of the template.
const MOST_ROWS: usize = 8;
/// Blocks that occupy a GPU: about two for each multiprocessor.
const BLOCKS: usize = 256;
/// The most blocks of a member of the batch: one of them joins the results.
const MOST_SPLITS: usize = 64;

/// An instance of the template.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FewRowsKernel {
    dtype: DType,
    columns: usize,
}

impl FewRowsKernel {
    /// Returns the size of its blocks.
    pub fn block(&self) -> BlockShape {
        BlockShape { threads: WARPS as u32 * 32, shared_bytes: 0 }
    }
}

/// The launch of an attention, and what it needs.
#[derive(Debug)]
pub(crate) struct FewRows {
    launch: Launch,
    /// The bytes of scratch memory.
    pub scratch_bytes: usize,
    /// The number of counters, each 4 bytes that are 0 before and behind the launch.
    pub counters: usize,
}

/// The positions of addresses among the parameters.
const SCRATCH: usize = 4;
const COUNTERS: usize = 5;

impl FewRows {
    /// Returns the launch with the addresses of scratch memory and of the counters.
    pub fn with_memory(self, scratch: u64, counters: u64) -> Launch {
        let mut launch = self.launch;
        (launch.params[SCRATCH], launch.params[COUNTERS]) = (scratch, counters);
        launch
    }
}

/// Returns the launch of an attention of a few rows.
///
/// # Errors
/// Returns why the kernel does not compute this attention.
pub(crate) fn few_rows(it: &AttentionCall) -> Result<FewRows, Unsupported> {
    let layout = layout(it)?;
    let Layout { rows, columns, keys, heads, members, .. } = layout;
    if rows == 0 || rows > MOST_ROWS {
        return Err(format!("it has {rows} rows, more than {MOST_ROWS}").into());
    }
    if it.is_causal || it.logsumexp.is_some() {
        return Err("it has a causal mask or a logarithm of sums".into());
    }
    let most = keys.div_ceil(WARPS * KEYS).min(MOST_SPLITS);
    let splits = (BLOCKS / members.max(1)).clamp(1, most);
    let mut words = [&it.query, &it.key, &it.value, &it.out].map(|it| it.address).to_vec();
    words.extend([0, 0]);
    words.extend([rows, keys, heads, members, splits].map(|it| it as u64));
    words.extend(layout.strides[..4].as_flattened());
    words.push(it.scale.to_bits());
    let kernel = Kernel::FewRows(FewRowsKernel { dtype: it.query.dtype, columns });
    let launch = Launch { kernel, params: words, blocks: (members * splits) as u64 };
    let (scratch_bytes, counters) = match splits {
        1 => (0, 0),
        _ => (members * splits * rows * (columns + 2) * size_of::<f32>(), members),
    };
    Ok(FewRows { launch, scratch_bytes, counters })
}

/// Returns the body of an instance.
pub(super) fn body(FewRowsKernel { dtype, columns }: &FewRowsKernel) -> String {
    format!("{MEETING}  few_rows::few_rows<{}, {columns}, {WARPS}>(p);\n", type_name(*dtype))
}
