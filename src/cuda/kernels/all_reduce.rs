//! A whole all-reduce over peer memory in one kernel: signals, reduction, signals, as `plan::transport`
//! lowers one-shot and two-shot.
//!
//! Block 0 writes this member's start signals, and every block waits for those of the peers. So block 0 of
//! every member must be resident: the grids of all-reduces that may run concurrently must fit on the GPU
//! together. The last block to finish writes the end signals and, if required, waits for those of the peers.

use std::fmt::Write;

use super::{
    AllReduceKernel, BLOCK, ComputeType, DeviceView, Kernel, Launch, MAX_ACCESS_BYTES, MAX_PARAM_WORDS,
    check_dtypes, expression, float_compute_type, integer_compute_type, type_name,
};
use crate::plan::ReduceOp;

/// An all-reduce of one member. Signals are addresses in mapped memory.
pub(in crate::cuda) struct AllReduce<'a> {
    pub op: ReduceOp,
    /// The inputs, in team order.
    pub inputs: Vec<DeviceView<'a>>,
    /// The destinations; all receive the same elements.
    pub outputs: Vec<DeviceView<'a>>,
    /// Written at the start.
    pub start_signals: Vec<u64>,
    /// Awaited before the inputs are read.
    pub start_waits: Vec<u64>,
    /// Written at the end.
    pub end_signals: Vec<u64>,
    /// Awaited after `end_signals` are written.
    pub end_waits: Vec<u64>,
}

/// Index of the parameter that holds the address of the block counter. The counter is 0 between launches; the
/// kernels of one stream share it.
pub(in crate::cuda) const BLOCK_COUNTER_PARAM: usize = 1;

/// Prepares the kernel, except for the parameter `BLOCK_COUNTER_PARAM`; returns `None` if the kernel does not
/// support the views or the number of members. `counter` is the device address of the epoch.
///
/// # Errors
/// The kernels do not support the element type or the operation.
pub(in crate::cuda) fn all_reduce_launch(it: &AllReduce<'_>, counter: u64) -> Result<Option<Launch>, String> {
    let Some(first) = it.inputs.first() else { return Ok(None) };
    let (dtype, count) = (first.dtype, first.view.len());
    check_dtypes([dtype])?;
    let all = || it.inputs.iter().chain(&it.outputs);
    let is_dense =
        |it: &DeviceView| it.view.shape.len() == 1 && (it.view.len() <= 1 || it.view.strides == [1]);
    let members = it.inputs.len();
    let lists = [&it.start_signals, &it.start_waits, &it.end_signals, &it.end_waits];
    // Each thread handles one signal.
    let fits = lists.iter().all(|it| it.len() <= members) && members <= BLOCK as usize;
    if !fits || !all().all(|it| is_dense(it) && it.dtype == dtype && it.view.len() == count) {
        return Ok(None);
    }
    let whole = dtype.is_integral();
    let computed = if whole {
        integer_compute_type([dtype].into_iter())
    } else {
        float_compute_type([dtype].into_iter())
    };
    if expression::reduction_expression(it.op, computed).is_none() {
        return Err(format!("{:?} of element type `{}` has no kernel", it.op, dtype.short_name()));
    }
    let size = dtype.size();
    let mut width = MAX_ACCESS_BYTES / size;
    while width > 1 && (count % width != 0 || all().any(|it| it.address % (width * size) as u64 != 0)) {
        width /= 2;
    }
    let groups = (count / width) as u64;
    let mut words = vec![counter, 0, groups];
    words.extend(lists.iter().map(|it| it.len() as u64));
    for list in lists {
        words.extend(list);
        words.resize(words.len() + members - list.len(), 0);
    }
    words.extend(all().map(|it| it.address));
    if words.len() > MAX_PARAM_WORDS {
        return Ok(None);
    }
    let kernel = AllReduceKernel { op: it.op, dtype, computed, members, outputs: it.outputs.len(), width };
    Ok(Some(Launch {
        kernel: Kernel::AllReduce(kernel),
        params: words,
        blocks: groups.div_ceil(u64::from(BLOCK)),
    }))
}

/// Loads that a thread issues before it uses the first one. Links between GPUs have a latency of about a
/// microsecond.
const LOADS: usize = 8;

/// Returns the type of an instance's parameters.
pub(super) fn parameters(members: usize, outputs: usize) -> String {
    format!("AllReduce<{members}, {outputs}>")
}

/// Returns the body of an instance.
pub(super) fn body(kernel: &AllReduceKernel) -> String {
    let AllReduceKernel { op, dtype, computed, members, outputs, width } = kernel;
    let (element, computed) = (type_name(*dtype), *computed);
    let bytes = width * dtype.size();
    let groups = (LOADS / members).max(1);
    let mut work = String::new();
    // Writing to a string does not fail. All loads are issued before the first result is used.
    for group in 0..groups {
        for it in 0..*members {
            let _ = writeln!(
                work,
                "    Pack<{element}, {width}> a{group}_{it};\n    if (g + {group} * stride < p.groups) a{group}_{it} = \
                 load<{element}, {width}>(p.in[{it}] + (g + {group} * stride) * {bytes});"
            );
        }
    }
    for group in 0..groups {
        let _ = writeln!(work, "    if (g + {group} * stride < p.groups) {{");
        for it in 0..*members {
            let _ = writeln!(work, "    const Pack<{element}, {width}>& x{it} = a{group}_{it};");
        }
        let _ = writeln!(
            work,
            "    Pack<{element}, {width}> y;\n#pragma unroll\n    for (int v = 0; v < {width}; ++v) {{"
        );
        let _ = write!(work, "{}", reduction_statements(*op, computed, *members));
        let _ = writeln!(work, "      y.e[v] = narrow(To<{element}>(), r);\n    }}");
        for it in 0..*outputs {
            let _ = writeln!(
                work,
                "    save<{element}, {width}>(p.out[{it}] + (g + {group} * stride) * {bytes}, y);"
            );
        }
        work += "    }\n";
    }
    format!(
        "  typedef {} C;
  if (p.epoch == 0) return;
  const u32 epoch = *reinterpret_cast<const u32*>(p.epoch), thread = threadIdx.x;
  if (blockIdx.x == 0 && thread < p.readies) store_release(p.ready[thread], epoch);
  if (thread < p.expectations) while ((i32)(load_acquire(p.expected[thread]) - epoch) < 0) {{}}
  __syncthreads();
  const u64 stride = gridDim.x * (u64){BLOCK};
  for (u64 g = blockIdx.x * (u64){BLOCK} + thread; g < p.groups; g += {groups} * stride) {{
{work}  }}
  __shared__ u32 is_last;
  __syncthreads();
  if (thread == 0) is_last = arrive(p.arrived) + 1 == gridDim.x;
  __syncthreads();
  if (is_last == 0) return;
  if (thread == 0) *reinterpret_cast<u32*>(p.arrived) = 0;
  if (thread < p.dones) store_release(p.done[thread], epoch);
  if (thread < p.ends) while ((i32)(load_acquire(p.ended[thread]) - epoch) < 0) {{}}
",
        computed.name()
    )
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
