//! A whole collective in one kernel that exchanges packets, as `plan::transport::push` lowers it.
//!
//! A thread handles 16 bytes of packets at a time, in one of two formats:
//!
//! * LL: 4 bytes of data, the flag, 4 bytes of data, the flag. Each half is written and read as one access, so a
//!   half with the expected flag has its data.
//! * LL128: eight threads write and read 128 bytes, of which the last 8 are the flag twice. The threads execute one
//!   store, which arrives over NVLink in the order of addresses, so the data is there when the flag is; NCCL's protocol
//!   LL128 relies on the same (<https://github.com/NVIDIA/nccl/issues/786>). One load is not one access, so the data is
//!   loaded again after the flag.
//!
//! The flag is different for every collective of every run, until it wraps after 2^32 of them; memory that holds
//! packets holds nothing else.
//!
//! Thread `t` of a member waits only for packets that the same eight threads of its peers send before they wait
//! for anything. So the kernel completes in whatever order the blocks of a GPU run, if all members launch the same
//! grid.

use std::fmt::Write;

use grammar::DType;

use super::{BLOCK, ComputeType, Kernel, Launch, MAX_PARAM_WORDS, collective_dtype, type_name};
use crate::unsupported::Unsupported;
use hir_plan::{PacketFormat, ReduceOp};

/// Bytes of data that are accessed together; a thread handles one or two of these halves.
const HALF: usize = 8;
/// Halves of data in a packet of LL128.
const LINE_HALVES: usize = 15;
/// Threads that handle a packet of LL128.
const LINE_THREADS: usize = 8;

/// An operand of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Source {
    /// Elements in memory, by address.
    Memory(u64),
    /// Packets from a peer, by address.
    Packets(u64),
}

/// The reduction or copy of some elements.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Item {
    /// Operands in the order of the reduction; a copy has one.
    pub sources: Vec<Source>,
    /// Addresses of elements that are written.
    pub outputs: Vec<u64>,
    /// Addresses of packets that are sent.
    pub packets: Vec<u64>,
    /// The number of elements.
    pub count: usize,
}

/// A collective of one member.
pub(crate) struct PacketCollective {
    pub format: PacketFormat,
    pub dtype: DType,
    /// The reduction of items with several sources.
    pub op: Option<ReduceOp>,
    /// The items in the order in which each thread handles them.
    pub items: Vec<Item>,
    /// Device address of the epoch.
    pub epoch: u64,
    /// The flag is `epoch · flags_per_run + flag`.
    pub flags_per_run: u32,
    pub flag: u32,
}

/// An instance of the kernel; see the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PacketKernel {
    format: PacketFormat,
    dtype: DType,
    computed: ComputeType,
    op: Option<ReduceOp>,
    /// Whether all accesses to memory are halves.
    is_whole: bool,
    steps: Vec<Step>,
}

/// Consecutive items of the same shape; a thread loads the packets of all of them before it waits for one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Step {
    items: usize,
    /// By source: whether it is packets.
    sources: Vec<bool>,
    outputs: usize,
    packets: usize,
}

impl Step {
    fn of(item: &Item) -> Self {
        let sources = item.sources.iter().map(|it| matches!(it, Source::Packets(_))).collect();
        Self { items: 1, sources, outputs: item.outputs.len(), packets: item.packets.len() }
    }

    /// Number of parameters of an item: groups, elements, addresses.
    fn words(&self) -> usize {
        2 + self.sources.len() + self.outputs + self.packets
    }
}

/// Prepares the kernel.
///
/// # Errors
/// The kernels do not support the element type or the operation, or the team is too large. The result is the same
/// for all members.
pub(crate) fn packet_launch(it: &PacketCollective) -> Result<Launch, Unsupported> {
    let (dtype, parts, computed) = collective_dtype(it.op, it.dtype)?;
    let width = HALF / dtype.size();
    let (mut steps, mut is_whole, mut most) = (Vec::<Step>::new(), true, 1);
    let mut words = vec![it.epoch, u64::from(it.flags_per_run), u64::from(it.flag)];
    for item in &it.items {
        let step = Step::of(item);
        match steps.last_mut() {
            Some(last) if Step { items: 1, ..last.clone() } == step => last.items += 1,
            _ => steps.push(step),
        }
        let count = item.count * parts;
        // A member sends a packet to every other one, even without data.
        let halves = count.div_ceil(width).max(1);
        let groups = match it.format {
            PacketFormat::Ll => halves,
            PacketFormat::Ll128 => halves.div_ceil(LINE_HALVES) * LINE_THREADS,
        } as u64;
        most = most.max(groups);
        words.extend([groups, count as u64]);
        let memory = item.sources.iter().filter_map(|it| match it {
            Source::Memory(address) => Some(*address),
            Source::Packets(_) => None,
        });
        let mut accessed = memory.chain(item.outputs.iter().copied());
        is_whole &= count % width == 0 && accessed.all(|it| it % HALF as u64 == 0);
        words.extend(item.sources.iter().map(|it| match it {
            Source::Memory(address) | Source::Packets(address) => *address,
        }));
        words.extend(item.outputs.iter().chain(&item.packets));
    }
    if words.len() > MAX_PARAM_WORDS {
        return Err("the team is too large for a kernel that exchanges packets".into());
    }
    let kernel = PacketKernel { format: it.format, dtype, computed, op: it.op, is_whole, steps };
    Ok(Launch { kernel: Kernel::Packets(kernel), params: words, blocks: most.div_ceil(u64::from(BLOCK)) })
}

/// Returns the type of an instance's parameters.
pub(super) fn parameters(kernel: &PacketKernel) -> String {
    let words: usize = kernel.steps.iter().map(|it| it.items * it.words()).sum();
    format!("Packets<{words}>")
}

/// Returns the body of an instance.
pub(super) fn body(kernel: &PacketKernel) -> String {
    let mut text = format!(
        "  typedef {} C;
  typedef {} F;
  if (p.epoch == 0) return;
  const u32 flag = *reinterpret_cast<const u32*>(p.epoch) * (u32)p.flags_per_run + (u32)p.flag;
  const u64 first = blockIdx.x * (u64){BLOCK} + threadIdx.x, stride = gridDim.x * (u64){BLOCK};
",
        kernel.computed.name(),
        match kernel.format {
            PacketFormat::Ll => "Ll",
            PacketFormat::Ll128 => "Ll128",
        }
    );
    let mut word = 0;
    for step in &kernel.steps {
        let at: Vec<usize> = (0..step.items).map(|it| word + it * step.words()).collect();
        text += &step_text(kernel, step, &at);
        word += step.items * step.words();
    }
    text
}

/// Returns the loop of a step. `at` has the first parameter of each item. Writing to a string does not fail.
fn step_text(kernel: &PacketKernel, step: &Step, at: &[usize]) -> String {
    let mut most = format!("p.word[{}]", at[0]);
    for it in &at[1..] {
        most = format!("longer({most}, p.word[{it}])");
    }
    let mut text = format!("  for (u64 g = first; g < {most}; g += stride) {{\n");
    let packet_sources: Vec<usize> = (0..step.sources.len()).filter(|it| step.sources[*it]).collect();
    let packet = |item: usize, source: usize| format!("p.word[{}] + g * 16", item + 2 + source);
    for (number, item) in at.iter().enumerate() {
        for source in &packet_sources {
            let from = packet(*item, *source);
            let _ = writeln!(
                text,
                "    F w{number}_{source};\n    if (g < p.word[{item}]) w{number}_{source}.load({from});"
            );
        }
    }
    for (number, item) in at.iter().enumerate() {
        let _ = writeln!(text, "    if (g < p.word[{item}]) {{");
        for source in &packet_sources {
            let from = packet(*item, *source);
            let _ = writeln!(
                text,
                "      while (!w{number}_{source}.is_complete(flag)) w{number}_{source}.load({from});"
            );
        }
        text += &item_text(kernel, step, (number, *item));
        text += "    }\n";
    }
    text + "  }\n"
}

/// Returns statements that compute the result of an item, write it and send it. `item` is the first parameter.
fn item_text(kernel: &PacketKernel, step: &Step, (number, item): (usize, usize)) -> String {
    let pack = format!("{}, {}", type_name(kernel.dtype), HALF / kernel.dtype.size());
    let access = if kernel.is_whole { "whole" } else { "some" };
    let (count, mut next) = (item + 1, item + 2);
    let mut text = format!("      Pack<{pack}> y[F::HALVES];\n#pragma unroll\n");
    text += "      for (int h = 0; h < F::HALVES; ++h) {\n";
    for (source, packets) in step.sources.iter().enumerate() {
        let value = if *packets {
            format!("w{number}_{source}.data<{pack}>(h)")
        } else {
            format!("load_{access}<{pack}>(p.word[{next}], F::half(g, h), p.word[{count}])")
        };
        let _ = writeln!(text, "      const Pack<{pack}> x{source} = {value};");
        next += 1;
    }
    text += &reduction_text(kernel, step);
    for _ in 0..step.outputs {
        let _ = writeln!(
            text,
            "      if (F::has_data(g, h)) save_{access}<{pack}>(p.word[{next}], F::half(g, h), p.word[{count}], y[h]);"
        );
        next += 1;
    }
    text += "      }\n";
    for _ in 0..step.packets {
        let _ = writeln!(text, "      F::store(p.word[{next}] + g * 16, g, y, flag);");
        next += 1;
    }
    text
}

/// Returns statements that define `y[h]`, the reduction of the sources in their order.
fn reduction_text(kernel: &PacketKernel, step: &Step) -> String {
    let members = step.sources.len();
    let Some(op) = kernel.op.filter(|_| members > 1) else {
        return "      y[h] = x0;\n".to_owned();
    };
    format!(
        "#pragma unroll\n      for (int v = 0; v < {}; ++v) {{\n{}      y[h].e[v] = narrow(To<{}>(), r);\n      }}\n",
        HALF / kernel.dtype.size(),
        super::peer_memory::reduction_statements(op, kernel.computed, members),
        type_name(kernel.dtype)
    )
}
