//! A whole collective in one kernel that exchanges packets, as `plan::transport::packets` lowers it.
//!
//! A packet is 16 bytes: 4 bytes of data, the flag, 4 bytes of data, the flag. Each half is written and read as
//! one access, so a half with the expected flag has its data. The flag is different for every collective of
//! every run, until it wraps after 2^32 of them; memory that holds packets holds nothing else.
//!
//! Thread `t` of a member waits only for packets that thread `t` of its peers sends before it waits for anything.
//! So the kernel completes in whatever order the blocks of a GPU run, if all members launch the same grid.

use std::fmt::Write;

use grammar::dtype::DType;

use super::{
    BLOCK, ComputeType, Kernel, Launch, MAX_PARAM_WORDS, check_dtypes, expression, float_compute_type,
    integer_compute_type, type_name,
};
use crate::plan::ReduceOp;

/// Bytes of data in a packet.
const PAYLOAD: usize = 8;
/// Bytes of a packet, for each byte of data.
pub(in crate::cuda) const BYTES_PER_BYTE: usize = 2;

/// An operand of an item.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::cuda) enum Source {
    /// Elements in memory, by address.
    Memory(u64),
    /// Packets from a peer, by address.
    Packets(u64),
}

/// The reduction or copy of some elements.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::cuda) struct Item {
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
pub(in crate::cuda) struct PacketCollective {
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
pub(in crate::cuda) struct PacketKernel {
    dtype: DType,
    computed: ComputeType,
    op: Option<ReduceOp>,
    /// Whether all accesses to memory have the size of a packet's data.
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
pub(in crate::cuda) fn packet_launch(it: &PacketCollective) -> Result<Launch, String> {
    // A copy handles elements as integers of the same size.
    let (dtype, scale) = match (it.op, it.dtype.size()) {
        (Some(_), _) => (it.dtype, 1),
        (None, 1) => (DType::UInt8, 1),
        (None, 2) => (DType::UInt16, 1),
        (None, 4) => (DType::UInt32, 1),
        (None, size) => (DType::UInt64, size / PAYLOAD),
    };
    check_dtypes([dtype])?;
    let computed = match dtype.is_integral() {
        true => integer_compute_type([dtype].into_iter()),
        false => float_compute_type([dtype].into_iter()),
    };
    if let Some(op) = it.op
        && expression::reduction_expression(op, computed).is_none()
    {
        return Err(format!("{op:?} of element type `{}` has no kernel", dtype.short_name()));
    }
    let width = PAYLOAD / dtype.size();
    let (mut steps, mut is_whole, mut most) = (Vec::<Step>::new(), true, 1);
    let mut words = vec![it.epoch, u64::from(it.flags_per_run), u64::from(it.flag)];
    for item in &it.items {
        let step = Step::of(item);
        match steps.last_mut() {
            Some(last) if Step { items: 1, ..last.clone() } == step => last.items += 1,
            _ => steps.push(step),
        }
        let count = item.count * scale;
        // A member sends a packet to every other one, even without data.
        let groups = count.div_ceil(width).max(1) as u64;
        most = most.max(groups);
        words.extend([groups, count as u64]);
        let memory = item.sources.iter().filter_map(|it| match it {
            Source::Memory(address) => Some(*address),
            Source::Packets(_) => None,
        });
        let mut accessed = memory.chain(item.outputs.iter().copied());
        is_whole &= count % width == 0 && count > 0 && accessed.all(|it| it % PAYLOAD as u64 == 0);
        words.extend(item.sources.iter().map(|it| match it {
            Source::Memory(address) | Source::Packets(address) => *address,
        }));
        words.extend(item.outputs.iter().chain(&item.packets));
    }
    if words.len() > MAX_PARAM_WORDS {
        return Err("the team is too large for a kernel that exchanges packets".to_owned());
    }
    let kernel = PacketKernel { dtype, computed, op: it.op, is_whole, steps };
    Ok(Launch { kernel: Kernel::Packets(kernel), params: words, blocks: most.div_ceil(u64::from(BLOCK)) })
}

/// Returns the type of an instance's parameters.
pub(super) fn parameters(kernel: &PacketKernel) -> String {
    let words: usize = kernel.steps.iter().map(|it| it.items * it.words()).sum();
    format!("Packets<{words}>")
}

/// Returns the body of an instance.
pub(super) fn body(kernel: &PacketKernel) -> String {
    let pack = format!("{}, {}", type_name(kernel.dtype), PAYLOAD / kernel.dtype.size());
    let mut text = format!(
        "  typedef {} C;
  if (p.epoch == 0) return;
  const u32 flag = *reinterpret_cast<const u32*>(p.epoch) * (u32)p.flags_per_run + (u32)p.flag;
  const u64 first = blockIdx.x * (u64){BLOCK} + threadIdx.x, stride = gridDim.x * (u64){BLOCK};
",
        kernel.computed.name()
    );
    let mut word = 0;
    for step in &kernel.steps {
        let at: Vec<usize> = (0..step.items).map(|it| word + it * step.words()).collect();
        text += &step_text(kernel, step, &at, &pack);
        word += step.items * step.words();
    }
    text
}

/// Returns the loop of a step. `at` has the first parameter of each item. Writing to a string does not fail.
fn step_text(kernel: &PacketKernel, step: &Step, at: &[usize], pack: &str) -> String {
    let mut most = format!("p.word[{}]", at[0]);
    for it in &at[1..] {
        most = format!("longer({most}, p.word[{it}])");
    }
    let mut text = format!("  for (u64 g = first; g < {most}; g += stride) {{\n");
    let packet = |item: usize, source: usize| format!("p.word[{}] + g * 16", at[item] + 2 + source);
    let is_in = |item: usize| format!("g < p.word[{}]", at[item]);
    for item in 0..step.items {
        for (source, _) in step.sources.iter().enumerate().filter(|it| *it.1) {
            let _ = writeln!(
                text,
                "    uint4 w{item}_{source};\n    if ({}) w{item}_{source} = load_packet({});",
                is_in(item),
                packet(item, source)
            );
        }
    }
    for item in 0..step.items {
        let (count, mut next) = (at[item] + 1, at[item] + 2);
        let _ = writeln!(text, "    if ({}) {{", is_in(item));
        for (source, packets) in step.sources.iter().enumerate() {
            let _ = match (packets, kernel.is_whole) {
                (true, _) => writeln!(
                    text,
                    "      while (!is_complete(w{item}_{source}, flag)) w{item}_{source} = load_packet({});\n      \
                     const Pack<{pack}> x{source} = data_of<{pack}>(w{item}_{source});",
                    packet(item, source)
                ),
                (false, true) => {
                    writeln!(
                        text,
                        "      const Pack<{pack}> x{source} = load<{pack}>(p.word[{next}] + g * 8);"
                    )
                }
                (false, false) => writeln!(
                    text,
                    "      const Pack<{pack}> x{source} = load_some<{pack}>(p.word[{next}], g, p.word[{count}]);"
                ),
            };
            next += 1;
        }
        text += &reduction_text(kernel, step, pack);
        for _ in 0..step.outputs {
            let _ = match kernel.is_whole {
                true => writeln!(text, "      save<{pack}>(p.word[{next}] + g * 8, y);"),
                false => writeln!(text, "      save_some<{pack}>(p.word[{next}], g, p.word[{count}], y);"),
            };
            next += 1;
        }
        for _ in 0..step.packets {
            let _ = writeln!(text, "      store_packet(p.word[{next}] + g * 16, bits<uint2>(y.raw), flag);");
            next += 1;
        }
        text += "    }\n";
    }
    text + "  }\n"
}

/// Returns statements that define `y`, the reduction of the sources in their order.
fn reduction_text(kernel: &PacketKernel, step: &Step, pack: &str) -> String {
    let members = step.sources.len();
    let Some(op) = kernel.op.filter(|_| members > 1) else {
        return format!("      const Pack<{pack}> y = x0;\n");
    };
    format!(
        "      Pack<{pack}> y;\n#pragma unroll\n      for (int v = 0; v < {}; ++v) {{\n{}      y.e[v] = \
         narrow(To<{}>(), r);\n      }}\n",
        PAYLOAD / kernel.dtype.size(),
        super::all_reduce::reduction_statements(op, kernel.computed, members),
        type_name(kernel.dtype)
    )
}
