//! Kernels that reduce the parts of a collective and then execute operations on the rows of the result, without a
//! launch in between.
//!
//! Operation 0 of the rows is the collective's reduction. Over peer memory, the start signals precede the rows, and the end
//! signals follow them (`kernels::peer_memory`). With packets of 16 bytes, each block first sends the rows whose result it
//! computes, so it waits only for what the block of the same index on its peers sends before it waits
//! (`kernels::packets`). An all-gather that follows sends the rows as soon as they are computed, and receives those of the
//! peers in the end. The packets are those of kernels without an epilogue, so members may differ in their epilogues.

use std::fmt::Write;

use grammar::DType;

use super::{RowKernel, RowLoad, RowStep};
use crate::kernels::{
    Kernel, Launch, MAX_PARAM_WORDS, PeerCollective, PeerMemoryKernel, peer_memory, peer_memory_launch,
    type_name,
};

/// What a member exchanges with the others.
pub(crate) enum Exchange<'a> {
    /// Signals, before and after it reads the inputs of its peers. The collective has no results.
    Memory(PeerCollective<'a>),
    /// Packets of 16 bytes.
    Packets {
        /// The flag is `epoch · flags_per_run + flag`.
        flags_per_run: u32,
        flag: u32,
        /// What this member sends.
        sends: Vec<Send>,
    },
}

/// An all-gather of what an operation on the rows computes, in packets of 16 bytes.
pub(crate) struct Gather {
    /// The index of the operation.
    pub step: usize,
    /// The flag is `epoch · flags_per_run + flag`.
    pub flags_per_run: u32,
    pub flag: u32,
    /// Address of the own part of the output, unless the operation stores its result there.
    pub own: Option<u64>,
    /// Addresses of the packets that are sent.
    pub to: Vec<u64>,
    /// From each peer: the address of its packets, and that of its part of the output.
    pub received: Vec<(u64, u64)>,
}

/// Elements that are sent to peers: as many as the result has, and of its type.
pub(crate) struct Send {
    /// Address of the elements.
    pub from: u64,
    /// Addresses of the packets.
    pub to: Vec<u64>,
}

/// What a kernel exchanges.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct RowExchange {
    reduced: Reduced,
    gathered: Option<Gathered>,
}

/// What a kernel exchanges for the reduction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Reduced {
    Memory(PeerMemoryKernel),
    /// By send: the number of peers.
    Packets(Vec<usize>),
}

/// What a kernel exchanges for an all-gather of the rows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Gathered {
    step: usize,
    dtype: DType,
    /// Number of copies to the own part of the output.
    own: usize,
    sent: usize,
    received: usize,
}

impl Gathered {
    fn words(&self) -> usize {
        self.own + self.sent + 2 * self.received
    }
}

/// Returns the kernel of a collective from the part that handles the rows of its result; `None` if there is none. `epoch` is
/// the device address of the epoch. The kernel also gathers the rows of `gather`.
pub(crate) fn with_exchange(
    rows: &Launch,
    exchange: &Exchange<'_>,
    gather: Option<&Gather>,
    epoch: u64,
) -> Option<Launch> {
    let Launch { kernel: Kernel::Row(kernel), params, blocks } = rows else { return None };
    let rows_of_block = kernel.rows();
    let kernel = kernel.clone().spread_over_threads();
    let (mut params, mut blocks) = (params.clone(), blocks * (rows_of_block / kernel.rows()) as u64);
    let reduced = match exchange {
        Exchange::Memory(it) => {
            let signals = peer_memory_launch(it, epoch).ok()?;
            let Kernel::PeerMemory(inner) = signals.kernel else { return None };
            params.extend(signals.params);
            blocks = blocks.min(it.end_words as u64);
            Reduced::Memory(inner)
        }
        Exchange::Packets { flags_per_run, flag, sends } => {
            let bytes = (kernel.width * kernel.loaded.first()?.0.size()) as u64;
            if sends.iter().any(|it| it.from % bytes != 0) {
                return None;
            }
            params.extend([epoch, u64::from(*flags_per_run), u64::from(*flag)]);
            sends.iter().for_each(|it| params.extend([it.from].iter().chain(&it.to)));
            // A C++ array has at least one element.
            params.push(0);
            Reduced::Packets(sends.iter().map(|it| it.to.len()).collect())
        }
    };
    let gathered = match gather {
        Some(it) => Some(gathered(&kernel, it, &mut params)?),
        None => None,
    };
    let exchange = Some(RowExchange { reduced, gathered });
    let kernel = Kernel::Row(RowKernel { exchange, ..kernel });
    (params.len() <= MAX_PARAM_WORDS).then_some(Launch { kernel, params, blocks })
}

/// Appends the parameters of an all-gather; returns `None` if a kernel cannot execute it.
fn gathered(kernel: &RowKernel, it: &Gather, params: &mut Vec<u64>) -> Option<Gathered> {
    let RowStep::Map(step) = kernel.steps.get(it.step)? else { return None };
    let bytes = kernel.width * step.out.size();
    let outputs = it.own.iter().chain(it.received.iter().map(|(_, to)| to));
    if !bytes.is_multiple_of(8) || outputs.into_iter().any(|to| !(*to as usize).is_multiple_of(bytes)) {
        return None;
    }
    params.extend([u64::from(it.flags_per_run), u64::from(it.flag)]);
    params.extend(it.own.iter().chain(&it.to));
    params.extend(it.received.iter().flat_map(|(from, to)| [from, to]));
    let (own, sent, received) = (it.own.iter().count(), it.to.len(), it.received.len());
    let gathered = Gathered { step: it.step, dtype: step.out, own, sent, received };
    (gathered.words() > 0).then_some(gathered)
}

impl RowExchange {
    /// Returns the type of the parameters.
    pub fn parameters(&self) -> String {
        let reduced = self.reduced.parameters();
        match &self.gathered {
            Some(it) => format!("Both<{reduced}, Gathered<{}>>", it.words()),
            None => reduced,
        }
    }

    /// Returns the statements before the rows.
    pub fn start(&self, kernel: &RowKernel) -> String {
        let mut text = self.reduced.start(kernel);
        if self.gathered.is_some() {
            text += "  const u32 gathered_flag =
    *reinterpret_cast<const u32*>(p.epoch) * (u32)p.gathered_flags_per_run + (u32)p.gathered_flag;
";
        }
        text
    }

    /// Returns the statements behind the operations on a row: they send it.
    pub fn end_of_row(&self, kernel: &RowKernel) -> String {
        let Some(it) = &self.gathered else { return String::new() };
        let RowKernel { width, loads, .. } = kernel;
        let lanes = kernel.threads();
        let pack = format!("{}, {width}", type_name(it.dtype));
        let group = format!("(row * {loads} + lane + n * {lanes}) * PacketsOf<{pack}>::BYTES");
        let mut text = format!(
            "#pragma unroll
    for (int n = 0; n < {}; ++n) {{
      if (!inside || lane + n * {lanes} >= {loads}) continue;
      Pack<{pack}> y;
#pragma unroll
      for (int v = 0; v < {width}; ++v) y.e[v] = bits<{}>(y{}[n][v]);
",
            loads.div_ceil(lanes),
            type_name(it.dtype),
            it.step
        );
        for word in it.own..it.own + it.sent {
            let _ = writeln!(
                text,
                "      PacketsOf<{pack}>::store(p.gathered[{word}] + {group}, y, gathered_flag);"
            );
        }
        for word in 0..it.own {
            let _ = writeln!(text, "      save<{pack}>(p.gathered[{word}] + {group} / 2, y);");
        }
        text + "    }\n"
    }

    /// Returns the statements after the rows.
    pub fn end(&self, kernel: &RowKernel) -> String {
        let received = self.gathered.as_ref().map_or_else(String::new, |it| receive_gathered(kernel, it));
        received + &self.reduced.end()
    }
}

impl Reduced {
    fn parameters(&self) -> String {
        match self {
            Self::Memory(it) => peer_memory::parameters(it),
            Self::Packets(sends) => format!("Packets<{}>", 1 + sends.iter().map(|it| 1 + it).sum::<usize>()),
        }
    }

    fn start(&self, kernel: &RowKernel) -> String {
        match self {
            Self::Memory(_) => peer_memory::START.to_owned(),
            Self::Packets(sends) => send_rows(kernel, sends),
        }
    }

    fn end(&self) -> String {
        match self {
            Self::Memory(it) => peer_memory::end_of_kernel(it),
            Self::Packets(_) => String::new(),
        }
    }
}

/// Returns the statements that receive the rows that peers compute. Writing to a string does not fail.
fn receive_gathered(kernel: &RowKernel, it: &Gathered) -> String {
    let RowKernel { width, loads, .. } = kernel;
    let lanes = kernel.threads();
    let (pack, count) = (format!("{}, {width}", type_name(it.dtype)), loads.div_ceil(lanes));
    let group = format!("(row * {loads} + lane + n * {lanes}) * PacketsOf<{pack}>::BYTES");
    let each = format!(
        "#pragma unroll\n    for (int n = 0; n < {count}; ++n)\n      if (lane + n * {lanes} < {loads})"
    );
    let (mut begin, mut complete) = (String::new(), String::new());
    for number in 0..it.received {
        let from = it.own + it.sent + 2 * number;
        let packets = format!("p.gathered[{from}] + {group}");
        let _ = write!(
            begin,
            "    PacketsOf<{pack}> g{number}[{count}];\n{each} g{number}[n].load({packets});\n"
        );
        let _ = writeln!(
            complete,
            "{each} save<{pack}>(p.gathered[{}] + {group} / 2, g{number}[n].complete({packets}, gathered_flag));",
            from + 1
        );
    }
    format!(
        "  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{
    const u64 row = tile * rows + column;
    if (row >= p.count) continue;
{begin}{complete}  }}
"
    )
}

/// Returns the statements that send the rows of this block. Writing to a string does not fail.
fn send_rows(kernel: &RowKernel, sends: &[usize]) -> String {
    let RowKernel { loaded, width, loads, .. } = kernel;
    let lanes = kernel.threads();
    let dtype = loaded.first().map_or("void", |it| type_name(it.0));
    let count = loads.div_ceil(lanes);
    let pack = format!("{dtype}, {width}");
    let access = format!("if (lane + n * {lanes} < {loads})");
    let group = format!("(row * {loads} + lane + n * {lanes}) * PacketsOf<{pack}>::BYTES");
    let mut text = "  if (p.epoch == 0) return;
  const u32 flag = *reinterpret_cast<const u32*>(p.epoch) * (u32)p.flags_per_run + (u32)p.flag;
  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const u64 row = tile * rows + column;
    if (row >= p.count) continue;
"
    .to_owned();
    let mut word = 0;
    for (send, peers) in sends.iter().enumerate() {
        let _ = write!(
            text,
            "    Pack<{pack}> s{send}[{count}];
#pragma unroll
    for (int n = 0; n < {count}; ++n) {access} s{send}[n] = load<{pack}>(p.word[{word}] + {group} / 2);
#pragma unroll
    for (int n = 0; n < {count}; ++n) {{
      {access} {{
"
        );
        for to in word + 1..=word + peers {
            let _ =
                writeln!(text, "        PacketsOf<{pack}>::store(p.word[{to}] + {group}, s{send}[n], flag);");
        }
        text += "      }\n    }\n";
        word += 1 + peers;
    }
    text + "  }\n"
}

/// Returns the statements that load the rows that are in packets, and wait for them.
pub(super) fn receive_rows(kernel: &RowKernel) -> String {
    let RowKernel { loaded, width, loads, .. } = kernel;
    let lanes = kernel.threads();
    let count = loads.div_ceil(lanes);
    let (mut begin, mut complete) = (String::new(), String::new());
    for (at, (dtype, _)) in loaded.iter().enumerate().filter(|(_, it)| it.1 == RowLoad::Packets) {
        let pack = format!("{}, {width}", type_name(*dtype));
        let from = format!("at[{at}] + (lane + n * {lanes}) * PacketsOf<{pack}>::BYTES");
        let each = format!(
            "#pragma unroll\n    for (int n = 0; n < {count}; ++n)\n      if (inside && lane + n * {lanes} < {loads})"
        );
        let _ = write!(begin, "    PacketsOf<{pack}> w{at}[{count}];\n{each} w{at}[n].load({from});\n");
        let _ = write!(
            complete,
            "    Pack<{pack}> x{at}[{count}];\n{each} x{at}[n] = w{at}[n].complete({from}, flag);\n      else x{at}[n] = zeros<{pack}>();\n"
        );
    }
    begin + &complete
}
