//! Kernels that reduce the parts of a collective and then execute operations on the rows of the result, without a
//! launch in between.
//!
//! Operation 0 of the rows is the collective's reduction. Over peer memory, the start signals precede the rows, and the end
//! signals follow them (`kernels::peer_memory`). With packets of 16 bytes, each block first sends the rows whose result it
//! computes, so it waits only for what the block of the same index on its peers sends before it waits
//! (`kernels::packets`). The packets are those of kernels without an epilogue, so members may differ in their epilogues.

use std::fmt::Write;

use super::{RowKernel, RowLoad};
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

/// Elements that are sent to peers: as many as the result has, and of its type.
pub(crate) struct Send {
    /// Address of the elements.
    pub from: u64,
    /// Addresses of the packets.
    pub to: Vec<u64>,
}

/// What a kernel exchanges.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum RowExchange {
    Memory(PeerMemoryKernel),
    /// By send: the number of peers.
    Packets(Vec<usize>),
}

/// Returns the kernel of a collective from the part that handles the rows of its result; `None` if there is none. `epoch` is
/// the device address of the epoch.
pub(crate) fn with_exchange(rows: &Launch, exchange: &Exchange<'_>, epoch: u64) -> Option<Launch> {
    let Launch { kernel: Kernel::Row(kernel), params, blocks } = rows else { return None };
    let rows_of_block = kernel.rows();
    let kernel = kernel.clone().spread_over_threads();
    let (mut params, mut blocks) = (params.clone(), blocks * (rows_of_block / kernel.rows()) as u64);
    let exchange = match exchange {
        Exchange::Memory(it) => {
            let signals = peer_memory_launch(it, epoch).ok()?;
            let Kernel::PeerMemory(inner) = signals.kernel else { return None };
            params.extend(signals.params);
            blocks = blocks.min(it.end_words as u64);
            RowExchange::Memory(inner)
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
            RowExchange::Packets(sends.iter().map(|it| it.to.len()).collect())
        }
    };
    let kernel = Kernel::Row(RowKernel { exchange: Some(exchange), ..kernel });
    (params.len() <= MAX_PARAM_WORDS).then_some(Launch { kernel, params, blocks })
}

impl RowExchange {
    /// Returns the type of the parameters.
    pub fn parameters(&self) -> String {
        match self {
            Self::Memory(it) => peer_memory::parameters(it),
            Self::Packets(sends) => format!("Packets<{}>", 1 + sends.iter().map(|it| 1 + it).sum::<usize>()),
        }
    }

    /// Returns the statements before the rows.
    pub fn start(&self, kernel: &RowKernel) -> String {
        match self {
            Self::Memory(_) => peer_memory::START.to_owned(),
            Self::Packets(sends) => send_rows(kernel, sends),
        }
    }

    /// Returns the statements after the rows.
    pub fn end(&self) -> String {
        match self {
            Self::Memory(it) => peer_memory::end_of_kernel(it),
            Self::Packets(_) => String::new(),
        }
    }
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
