//! What a plan may ask for. Only a mistake or an attack reaches these bounds.
//!
//! Invariant: products of extents, offsets and strides of a plan that is within them fit 64 bits.

use grammar::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, Stmt},
    span::Span,
};

use super::Plan;

/// Most instructions of a rank: a loop of a hundred million iterations is unrolled up to here.
pub const MAX_RANK_INSTRUCTIONS: usize = 1_000_000;

/// Most instructions of all ranks together.
pub const MAX_WORLD_INSTRUCTIONS: usize = 16 * MAX_RANK_INSTRUCTIONS;

/// Most elements of a tensor, all shards together.
pub const MAX_TENSOR_ELEMENTS: usize = 1 << 40;

/// Most ranks of a world where nothing else is said: more than any job has.
pub const DEFAULT_MAX_RANKS: usize = 1 << 16;

/// What `--ranks` and `--max-ranks` can say at most: NCCL numbers ranks in 32 bits.
pub const MAX_RANKS: usize = i32::MAX as usize;

/// Most bytes of the plans of all ranks, and of what simulated ranks hold, where nothing else is said.
pub const DEFAULT_MEMORY_LIMIT: usize = 16 << 30;

/// What the world of a program may take; tools let users change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most ranks.
    pub ranks: usize,
    /// Most bytes of all plans.
    pub memory: usize,
    /// Most instructions of all ranks together.
    pub instructions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { ranks: DEFAULT_MAX_RANKS, memory: DEFAULT_MEMORY_LIMIT, instructions: MAX_WORLD_INSTRUCTIONS }
    }
}

impl Limits {
    /// Whether a world of `ranks` is planned. Nothing is allocated for a world before this.
    ///
    /// # Errors
    /// A world that is too large, or lacks ranks that the program names; where the program names the last one.
    pub fn check_world(&self, program: &Program, ranks: usize) -> Result<(), Diagnostic> {
        let (last, span) = largest_rank(program);
        let label = format!("its meshes and teams name rank {last}");
        let fault = |code, message| Diagnostic::new(code, span, message, label);
        if ranks > self.ranks {
            let message = format!("a world of {ranks} ranks is more than {}", self.ranks);
            let most = if ranks <= MAX_RANKS {
                format!(", or allow more by `--max-ranks={ranks}`")
            } else {
                String::new()
            };
            let help = match ranks == last.saturating_add(1) {
                true => format!("number the devices from 0{most}"),
                false => format!("ask for fewer ranks{most}"),
            };
            return Err(fault(Code::TooLarge, message).help(help));
        }
        if ranks <= last {
            return Err(fault(Code::WorldTooSmall, format!("a world of {ranks} ranks has no rank {last}")));
        }
        self.check_memory(program, ranks, ranks.saturating_mul(size_of::<Plan>()))
    }

    /// Whether the plans of `ranks` ranks may take `bytes`.
    ///
    /// # Errors
    /// Plans that are too large; at the program's header.
    pub(super) fn check_memory(
        &self,
        program: &Program,
        ranks: usize,
        bytes: usize,
    ) -> Result<(), Diagnostic> {
        if bytes <= self.memory {
            return Ok(());
        }
        let (taken, allowed) = (size_text(bytes), size_text(self.memory));
        let whose =
            if ranks == 1 { "the plan of 1 rank takes" } else { &format!("the plans of {ranks} ranks take") };
        let message = format!("{whose} {taken} of memory where {allowed} are allowed");
        let it = Diagnostic::new(Code::TooLarge, program.spans.header, message, "this program");
        Err(it.help("run it on fewer ranks or with shorter loops, or allow more by `--memory-limit=GIB`"))
    }
}

/// `1.5 GiB`.
pub fn size_text(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        1..1024 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        1024.. => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// The largest rank that the meshes and teams of a program name, and where; rank 0 at the header where they name none.
pub(super) fn largest_rank(program: &Program) -> (usize, Span) {
    let meshes = program.tensors.iter().filter_map(|(id, tensor)| {
        let last = tensor.mesh.devices.iter().copied().max()?;
        Some((last, program.tensor_span(id)))
    });
    let teams = program.stmts.iter().filter_map(|(id, stmt)| match stmt {
        Stmt::Op(it) => Some((it.get(attr::TEAM)?.iter().copied().max()?, program.stmt_span(id))),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    });
    let mut largest = (0, program.spans.header);
    for (rank, span) in meshes.chain(teams) {
        if rank > largest.0 {
            largest = (rank, span);
        }
    }
    largest
}
