//! A whole collective over peer memory in one kernel: signals, accesses, signals, as `plan::transport` lowers
//! one-shot and two-shot.
//!
//! **Start.** Block 0 sets this member's start signals, and every block waits for those of the peers. Start signals need no
//! fence: they report what earlier commands of the stream have done, and these are complete, with their writes performed,
//! before the kernel begins. PyTorch's symmetric-memory kernels do the same.
//!
//! **End.** The end signals have several words (`buffer_assignment::signals`). Block `b` of `n` sets words `b · words / n`
//! to `(b + 1) · words / n` on the peers when its own accesses are done, and then waits for the same words of the peers.
//! When the kernel has ended, all words are set, whatever the grids of the peers are. Block `b` waits only for words below
//! `(b + 1) · words / n`, and a peer's block that sets such a word waits for none before it has set it, so blocks that start
//! in the order of their index cannot deadlock, even if they run one after another. If a stream waits for the end instead of
//! the kernel, the signals have one word, which the last block to finish sets.
//!
//! A kernel that writes to peers has a fence in each block before its end signals. One that only reads from peers has none:
//! every element that was read is an operand of a store of the same thread, so it has arrived when the thread passes
//! `__syncthreads`.
//!
//! The grids of collectives that may run at the same time must fit on the GPU together.

use std::fmt::Write;

use grammar::DType;

use super::{
    BLOCK, ComputeType, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, PeerMemoryKernel, collective_dtype,
    expression, type_name,
};
use crate::unsupported::Unsupported;
use hir_plan::ReduceOp;

/// A collective of one member. Signals are addresses in mapped memory.
pub(crate) struct PeerCollective<'a> {
    /// The reduction of results with several inputs; `None` if all results are copies.
    pub op: Option<ReduceOp>,
    /// What the member computes. All views are contiguous and have the same number of elements.
    pub results: Vec<PeerResult<'a>>,
    /// Set at the start.
    pub start_signals: Vec<u64>,
    /// Awaited before the inputs are read.
    pub start_waits: Vec<u64>,
    /// Set at the end: the address of the first word of each.
    pub end_signals: Vec<u64>,
    /// Awaited after `end_signals` are set; none with `EndSignals::OfLastBlock`.
    pub end_waits: Vec<u64>,
    /// Number of words of each end signal.
    pub end_words: usize,
    /// Which blocks set them.
    pub end: EndSignals,
}

/// Which blocks set the end signals.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum EndSignals {
    /// Every block sets some of their words, with or without a fence before it. There are at most as many blocks as words.
    OfBlocks {
        /// Whether the kernel writes to peers.
        needs_fence: bool,
    },
    /// The last block sets their only word.
    OfLastBlock,
}

/// A copy or a reduction.
pub(crate) struct PeerResult<'a> {
    /// The operands in the order of the reduction; a copy has one.
    pub inputs: Vec<DeviceView<'a>>,
    /// The destinations; all receive the same elements.
    pub outputs: Vec<DeviceView<'a>>,
}

/// Index of the parameter that holds the address of the block counter. The counter is 0 between launches; the
/// kernels of one stream share it.
pub(crate) const BLOCK_COUNTER_PARAM: usize = 1;

/// Prepares the kernel, except for the parameter `BLOCK_COUNTER_PARAM` of kernels whose last block sets the end signals.
/// `epoch` is the device address of the epoch.
///
/// # Errors
/// The kernels do not support the element type or the operation of a reduction, or views differ in their element types.
/// `peer_kernel` limits the number of signals and views.
pub(crate) fn peer_memory_launch(it: &PeerCollective<'_>, epoch: u64) -> Result<Launch, Unsupported> {
    let all = || it.results.iter().flat_map(|it| it.inputs.iter().chain(&it.outputs));
    // A member without a share of the result has only signals.
    let (dtype, count) = all().next().map_or((DType::UInt8, 0), |it| (it.dtype, it.view.len()));
    if all().any(|it| it.dtype != dtype) {
        return Err("the members of a collective have different element types".into());
    }
    let lists = [&it.start_signals, &it.start_waits, &it.end_signals, &it.end_waits];
    let peers = lists.iter().map(|it| it.len()).max().unwrap_or(0).max(1);
    let op = it.op.filter(|_| !it.results.is_empty());
    let (dtype, parts, computed) = collective_dtype(op, dtype)?;
    let (size, count) = (dtype.size(), count * parts);
    let mut width = MAX_ACCESS_BYTES / size;
    while width > 1 && all().any(|it| it.address % (width * size) as u64 != 0) {
        width /= 2;
    }
    let groups = (count / width) as u64;
    let mut words = vec![epoch, 0, groups, count as u64, it.end_words as u64];
    words.extend(lists.iter().map(|it| it.len() as u64));
    for list in lists {
        words.extend(list);
        words.resize(words.len() + peers - list.len(), 0);
    }
    words.extend(it.results.iter().flat_map(|it| &it.inputs).map(|it| it.address));
    words.extend(it.results.iter().flat_map(|it| &it.outputs).map(|it| it.address));
    if it.results.is_empty() {
        // The structure has at least one input and one output.
        words.extend([0, 0]);
    }
    let first = it.results.first();
    let (inputs, outputs) = first.map_or((0, 0), |it| (it.inputs.len(), it.outputs.len()));
    let (results, end) = (it.results.len(), it.end);
    let blocks = match end {
        EndSignals::OfBlocks { .. } => groups.div_ceil(u64::from(BLOCK)).min(it.end_words as u64),
        EndSignals::OfLastBlock => groups.div_ceil(u64::from(BLOCK)),
    };
    let kernel = PeerMemoryKernel { op, dtype, computed, peers, results, inputs, outputs, width, end };
    Ok(Launch { kernel: Kernel::PeerMemory(kernel), params: words, blocks })
}

/// Loads that a thread issues before it uses the first one. Links between GPUs have a latency of about a
/// microsecond.
const LOADS: usize = 8;

/// Returns the type of an instance's parameters.
pub(super) fn parameters(it: &PeerMemoryKernel) -> String {
    let views = |each: usize| (it.results * each).max(1);
    format!("PeerMemory<{}, {}, {}>", it.peers, views(it.inputs), views(it.outputs))
}

/// The statements of a kernel before it accesses the memory of its peers.
pub(super) const START: &str = "  if (p.epoch == 0) return;
  const u32 epoch = *reinterpret_cast<const u32*>(p.epoch), thread = threadIdx.x;
  if (blockIdx.x == 0 && thread < p.start_signals) store_relaxed(p.start_signal[thread], epoch);
  __syncthreads();
  if (thread < p.start_waits) while ((i32)(load_acquire(p.start_wait[thread]) - epoch) < 0) {}
  __syncthreads();
";

/// Returns the body of an instance: a loop over groups of `width` elements, and one over the elements behind the last
/// group. A block writes all its signals before one of its threads waits, because a thread that waits may prevent
/// others from writing.
pub(super) fn body(kernel: &PeerMemoryKernel) -> String {
    let main = access_loop(kernel, kernel.width, ["0", "p.groups"]);
    let rest = match kernel.width {
        1 => String::new(),
        width => access_loop(kernel, 1, [&format!("p.groups * {width}"), "p.elements"]),
    };
    format!(
        "  typedef {} C;
{START}  const u64 stride = gridDim.x * (u64){BLOCK};
{main}{rest}{}",
        kernel.computed.name(),
        end_of_kernel(kernel)
    )
}

/// Returns the end of the body: signals that the accesses are done. `i` numbers the words of this block, by signal.
pub(super) fn end_of_kernel(kernel: &PeerMemoryKernel) -> String {
    let fence = match kernel.end {
        EndSignals::OfLastBlock => {
            return "  __shared__ u32 is_last;
  __syncthreads();
  if (thread == 0) is_last = arrive(p.arrived) + 1 == gridDim.x;
  __syncthreads();
  if (is_last == 0) return;
  if (thread == 0) *reinterpret_cast<u32*>(p.arrived) = 0;
  if (thread < p.end_signals) store_release(p.end_signal[thread], epoch);
"
            .to_owned();
        }
        EndSignals::OfBlocks { needs_fence: true } => {
            "  if (thread < words * p.end_signals) fence_system();\n"
        }
        EndSignals::OfBlocks { needs_fence: false } => "",
    };
    format!(
        "  __syncthreads();
  const u32 all = (u32)p.words, word = blockIdx.x * all / gridDim.x, words = (blockIdx.x + 1) * all / gridDim.x - word;
{fence}  for (u32 i = thread; i < words * p.end_signals; i += blockDim.x)
    store_relaxed(p.end_signal[i / words] + (word + i % words) * 4, epoch);
  __syncthreads();
  for (u32 i = thread; i < words * p.end_waits; i += blockDim.x)
    while ((i32)(load_acquire(p.end_wait[i / words] + (word + i % words) * 4) - epoch) < 0) {{}}
"
    )
}

/// Returns a loop over accesses of `width` elements, numbered from the first to the second bound.
fn access_loop(kernel: &PeerMemoryKernel, width: usize, [from, to]: [&str; 2]) -> String {
    let PeerMemoryKernel { op, dtype, computed, results, inputs, outputs, .. } = kernel;
    if *results == 0 {
        return String::new();
    }
    let element = type_name(*dtype);
    let bytes = width * dtype.size();
    let in_flight = (LOADS / (results * inputs)).max(1);
    let mut text = format!(
        "  for (u64 g = {from} + blockIdx.x * (u64){BLOCK} + thread; g < {to}; g += {in_flight} * stride) {{\n"
    );
    // Writing to a string does not fail. All loads are issued before the first result is used.
    for access in 0..in_flight {
        for it in 0..results * inputs {
            let _ = writeln!(
                text,
                "    Pack<{element}, {width}> a{access}_{it};\n    if (g + {access} * stride < {to}) a{access}_{it} = \
                 load<{element}, {width}>(p.in[{it}] + (g + {access} * stride) * {bytes});"
            );
        }
    }
    for access in 0..in_flight {
        let _ = writeln!(text, "    if (g + {access} * stride < {to}) {{");
        for result in 0..*results {
            text += "    {\n";
            for it in 0..*inputs {
                let from = result * inputs + it;
                let _ = writeln!(text, "    const Pack<{element}, {width}>& x{it} = a{access}_{from};");
            }
            match op {
                Some(op) => {
                    let _ = writeln!(
                        text,
                        "    Pack<{element}, {width}> y;\n#pragma unroll\n    for (int v = 0; v < {width}; ++v) \
                         {{\n{}      y.e[v] = narrow(To<{element}>(), r);\n    }}",
                        reduction_statements(*op, *computed, *inputs)
                    );
                }
                None => text += "    const auto& y = x0;\n",
            }
            for it in 0..*outputs {
                let to = result * outputs + it;
                let _ = writeln!(
                    text,
                    "    save<{element}, {width}>(p.out[{to}] + (g + {access} * stride) * {bytes}, y);"
                );
            }
            text += "    }\n";
        }
        text += "    }\n";
    }
    text + "  }\n"
}

/// Returns statements that reduce element `v` of all inputs to `r`, in team order.
pub(super) fn reduction_statements(op: ReduceOp, computed: ComputeType, members: usize) -> String {
    let step = expression::reduction_expression(op, computed).unwrap_or_default();
    let mut text = "      C r = widen<C>(x0.e[v]);\n".to_owned();
    for it in 1..members {
        let _ = writeln!(text, "      {{ const C a = r, b = widen<C>(x{it}.e[v]); r = {step}; }}");
    }
    if op == ReduceOp::Avg {
        let _ = writeln!(text, "      r = r / (C){members};");
    }
    text
}
