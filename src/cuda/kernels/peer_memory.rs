//! A whole collective over peer memory in one kernel: signals, accesses, signals, as `plan::transport` lowers
//! one-shot and two-shot.
//!
//! Block 0 writes this member's start signals, and every block waits for those of the peers. So block 0 of
//! every member must be resident: the grids of collectives that may run concurrently must fit on the GPU
//! together.
//!
//! The end signals of most collectives have `BLOCK_WORDS` words (`buffer_assignment::signals`). Block `b` of `n` sets
//! words `b · BLOCK_WORDS / n` to `(b + 1) · BLOCK_WORDS / n` of all peers when its own accesses are done, and then waits
//! until they have set the same words here. When the kernel has ended, all words are set, whatever the grids of the
//! peers are. A block that waits, waits only for accesses to parts that begin before its own part ends, so the blocks of
//! a GPU may also run one after another, in their order. Other end signals have one word: the last block to finish
//! writes it and, if required, waits for those of the peers.
//!
//! A start signal needs no fence, because what it announces was done by earlier kernels. An end signal needs one only if
//! the kernel has written to peers: elements that were read have arrived when the block meets.

use std::fmt::Write;

use super::{
    BLOCK, ComputeType, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, MAX_PARAM_WORDS, PeerMemoryKernel,
    collective_dtype, expression, type_name,
};
use crate::{cuda::buffer_assignment::BLOCK_WORDS, plan::ReduceOp};

/// A collective of one member. Signals are addresses in mapped memory.
#[derive(Default)]
pub(in crate::cuda) struct PeerCollective<'a> {
    /// The reduction of results with several inputs; `None` if all results are copies.
    pub op: Option<ReduceOp>,
    /// What the member computes.
    pub results: Vec<PeerResult<'a>>,
    /// Written at the start.
    pub start_signals: Vec<u64>,
    /// Awaited before the inputs are read.
    pub start_waits: Vec<u64>,
    /// Written at the end.
    pub end_signals: Vec<u64>,
    /// Awaited after `end_signals` are written.
    pub end_waits: Vec<u64>,
    /// Whether `end_signals` and `end_waits` have words for the blocks; the addresses are those of their first words.
    pub blocks_set_signals: bool,
    /// Whether some output is in the memory of a peer.
    pub writes_to_peers: bool,
}

/// A copy or a reduction.
pub(in crate::cuda) struct PeerResult<'a> {
    /// The operands in the order of the reduction; a copy has one.
    pub inputs: Vec<DeviceView<'a>>,
    /// The destinations; all receive the same elements.
    pub outputs: Vec<DeviceView<'a>>,
}

/// Index of the parameter that holds the address of the block counter. The counter is 0 between launches; the
/// kernels of one stream share it.
pub(in crate::cuda) const BLOCK_COUNTER_PARAM: usize = 1;

/// Prepares the kernel, except for the parameter `BLOCK_COUNTER_PARAM`; returns `None` if the kernel does not
/// support the views or the number of members. `epoch` is the device address of the epoch.
///
/// # Errors
/// The kernels do not support the element type or the operation of a reduction.
pub(in crate::cuda) fn peer_memory_launch(
    it: &PeerCollective<'_>,
    epoch: u64,
) -> Result<Option<Launch>, String> {
    let Some(PeerResult { inputs: sources, outputs: targets }) = it.results.first() else { return Ok(None) };
    let Some(first) = sources.first() else { return Ok(None) };
    let (dtype, count) = (first.dtype, first.view.len());
    let lists = [&it.start_signals, &it.start_waits, &it.end_signals, &it.end_waits];
    let peers = lists.iter().map(|it| it.len()).max().unwrap_or(0).max(1);
    let inputs = || it.results.iter().flat_map(|it| &it.inputs);
    let outputs = || it.results.iter().flat_map(|it| &it.outputs);
    let all = || inputs().chain(outputs());
    let is_dense =
        |it: &DeviceView| it.view.shape.len() == 1 && (it.view.len() <= 1 || it.view.strides == [1]);
    let has_shape =
        |it: &PeerResult<'_>| (it.inputs.len(), it.outputs.len()) == (sources.len(), targets.len());
    // Each thread handles one signal.
    let fits = peers <= BLOCK as usize && it.results.iter().all(has_shape);
    if !fits || !all().all(|it| is_dense(it) && it.dtype == dtype && it.view.len() == count) {
        return Ok(None);
    }
    let (dtype, parts, computed) = collective_dtype(it.op, dtype)?;
    let (size, count) = (dtype.size(), count * parts);
    let mut width = MAX_ACCESS_BYTES / size;
    while width > 1 && all().any(|it| it.address % (width * size) as u64 != 0) {
        width /= 2;
    }
    let groups = (count / width) as u64;
    let mut words = vec![epoch, 0, groups, count as u64];
    words.extend(lists.iter().map(|it| it.len() as u64));
    for list in lists {
        words.extend(list);
        words.resize(words.len() + peers - list.len(), 0);
    }
    words.extend(all().map(|it| it.address));
    if words.len() > MAX_PARAM_WORDS {
        return Ok(None);
    }
    let (results, inputs, outputs) = (it.results.len(), sources.len(), targets.len());
    let PeerCollective { op, blocks_set_signals, writes_to_peers, .. } = *it;
    let kernel = PeerMemoryKernel {
        op,
        dtype,
        computed,
        peers,
        results,
        inputs,
        outputs,
        width,
        blocks_set_signals,
        writes_to_peers,
    };
    Ok(Some(Launch {
        kernel: Kernel::PeerMemory(kernel),
        params: words,
        blocks: groups.div_ceil(u64::from(BLOCK)),
    }))
}

/// Loads that a thread issues before it uses the first one. Links between GPUs have a latency of about a
/// microsecond.
const LOADS: usize = 8;

/// Returns the type of an instance's parameters.
pub(super) fn parameters(it: &PeerMemoryKernel) -> String {
    format!("PeerMemory<{}, {}, {}>", it.peers, it.results * it.inputs, it.results * it.outputs)
}

/// Returns the body of an instance: a loop over groups of `width` elements, and one over the elements behind the last
/// group. A block writes all its signals before one of its threads waits, because a thread that waits may prevent
/// others from writing.
pub(super) fn body(kernel: &PeerMemoryKernel) -> String {
    let main = access_loop(kernel, kernel.width, ["0", "p.groups"]);
    let rest = match kernel.width {
        1 => String::new(),
        width => access_loop(kernel, 1, [&format!("p.groups * {width}"), "p.count"]),
    };
    format!(
        "  typedef {} C;
  if (p.epoch == 0) return;
  const u32 epoch = *reinterpret_cast<const u32*>(p.epoch), thread = threadIdx.x;
  if (blockIdx.x == 0 && thread < p.start_signals) store_relaxed(p.start_signal[thread], epoch);
  __syncthreads();
  if (thread < p.start_waits) while ((i32)(load_acquire(p.start_wait[thread]) - epoch) < 0) {{}}
  __syncthreads();
  const u64 stride = gridDim.x * (u64){BLOCK};
{main}{rest}{}",
        kernel.computed.name(),
        end_of_block(kernel)
    )
}

/// Returns the end of the body: signals that the accesses are done.
fn end_of_block(kernel: &PeerMemoryKernel) -> String {
    if !kernel.blocks_set_signals {
        return "  __shared__ u32 is_last;
  __syncthreads();
  if (thread == 0) is_last = arrive(p.arrived) + 1 == gridDim.x;
  __syncthreads();
  if (is_last == 0) return;
  if (thread == 0) *reinterpret_cast<u32*>(p.arrived) = 0;
  if (thread < p.end_signals) store_release(p.end_signal[thread], epoch);
  __syncthreads();
  if (thread < p.end_waits) while ((i32)(load_acquire(p.end_wait[thread]) - epoch) < 0) {}
"
        .to_owned();
    }
    let fence = if kernel.writes_to_peers { "fence_system();" } else { "" };
    format!(
        "  __syncthreads();
  const u32 word = blockIdx.x * {BLOCK_WORDS} / gridDim.x, words = (blockIdx.x + 1) * {BLOCK_WORDS} / gridDim.x - word;
  if (thread < words * p.end_signals) {{ {fence} }}
  for (u32 i = thread; i < words * p.end_signals; i += {BLOCK}) store_relaxed(p.end_signal[i / words] + (word + i % words) * 4, epoch);
  __syncthreads();
  for (u32 i = thread; i < words * p.end_waits; i += {BLOCK})
    while ((i32)(load_acquire(p.end_wait[i / words] + (word + i % words) * 4) - epoch) < 0) {{}}
"
    )
}

/// Returns a loop over accesses of `width` elements, numbered from the first to the second bound.
fn access_loop(kernel: &PeerMemoryKernel, width: usize, [from, to]: [&str; 2]) -> String {
    let PeerMemoryKernel { op, dtype, computed, results, inputs, outputs, .. } = kernel;
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
