//! Limits on the size of plans. Only mistakes and malicious programs reach them.
//!
//! Invariant: in a plan within these limits, products of extents, offsets and strides fit in 64 bits.

use grammar::{Code, Diagnostic, Program, Span, largest_rank};

use super::Plan;

/// The maximum number of instructions of a rank. A loop of a hundred million iterations is unrolled up to
/// this limit.
pub const MAX_RANK_INSTRUCTIONS: usize = 1_000_000;

/// The maximum number of instructions of all ranks together, whatever is allowed.
pub const MAX_WORLD_INSTRUCTIONS: usize = 16 * MILLION;

/// The default limit on them. Planning, checking and running a million takes up to `SECONDS` of one core.
pub const DEFAULT_WORLD_INSTRUCTIONS: usize = 6 * MILLION;

const MILLION: usize = 1_000_000;
const SECONDS: usize = 3;

/// The maximum number of elements of a tensor, all shards together. A machine of 32 bits, such as WebAssembly, cannot address
/// more than the smaller number.
pub const MAX_TENSOR_ELEMENTS: usize = if usize::BITS < 64 { 1 << 28 } else { 1usize.wrapping_shl(40) };

/// The default limit on the number of ranks of a world. It is larger than any job.
pub const DEFAULT_MAX_RANKS: usize = 1 << 16;

/// The largest value of `--ranks` and `--max-ranks`: NCCL numbers ranks in 32 bits.
pub const MAX_RANKS: usize = i32::MAX as usize;

/// The default limit, in GiB, on the plans of all ranks and on the memory of all simulated ranks.
pub const DEFAULT_MEMORY_GIB: u32 = 16;

/// The same in bytes.
pub const DEFAULT_MEMORY_LIMIT: usize = {
    let bytes = (DEFAULT_MEMORY_GIB as u64) << 30;
    if bytes > usize::MAX as u64 { usize::MAX } else { bytes as usize }
};

/// The default limit on the work of the simulated runs of hir-run, in billions of elements that are computed or
/// communicated.
pub const DEFAULT_MAX_WORK: u32 = 4;

/// The same for tools that decide themselves how many programs they run, and under how many schedules.
pub const DEFAULT_MAX_WORK_OF_TRIALS: u32 = 1;

/// Limits on a world. Tools let the user change them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of ranks.
    pub ranks: usize,
    /// The maximum size of all plans, in bytes.
    pub memory: usize,
    /// The maximum number of instructions of all ranks together.
    pub instructions: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ranks: DEFAULT_MAX_RANKS,
            memory: DEFAULT_MEMORY_LIMIT,
            instructions: DEFAULT_WORLD_INSTRUCTIONS,
        }
    }
}

impl Limits {
    /// Returns how many instructions of all ranks `--max-work=work` allows: a million for each billion elements, at least the
    /// default.
    pub fn instructions(work: u32) -> usize {
        (work as usize).saturating_mul(MILLION).clamp(DEFAULT_WORLD_INSTRUCTIONS, MAX_WORLD_INSTRUCTIONS)
    }

    /// Returns the error of a world that has `needed` instructions, as far as that is known, which are more than the limit. What `--max-work` can
    /// allow is over a budget, and anything else too large.
    pub(super) fn too_many_instructions(
        needed: usize,
        span: Span,
        (message, label): (String, impl Into<String>),
        fewer: &str,
    ) -> Diagnostic {
        let work = needed.div_ceil(MILLION);
        if needed > MAX_WORLD_INSTRUCTIONS {
            return Diagnostic::new(Code::TooLarge, span, message, label).help(fewer);
        }
        Diagnostic::new(Code::OverBudget, span, message, label).help(format!(
            "{fewer}; or allow up to {} seconds of one core with `--max-work={work}`",
            work * SECONDS
        ))
    }

    /// Checks that a world of `ranks` ranks is within the limits. Nothing is allocated for a world before
    /// this check.
    ///
    /// # Errors
    /// The world is too large, or lacks a rank that the program uses. The error is located at the largest
    /// rank that the program uses.
    pub fn check_world(&self, program: &Program, ranks: usize) -> Result<(), Diagnostic> {
        let (last, span) = largest_rank(program);
        let label = format!("its meshes and teams contain rank {last}");
        let fault = |code, message| Diagnostic::new(code, span, message, label);
        if ranks > self.ranks {
            let message = format!("a world of {ranks} ranks exceeds the limit of {}", self.ranks);
            let most = if ranks <= MAX_RANKS {
                format!(", or raise the limit with `--max-ranks={ranks}`")
            } else {
                String::new()
            };
            let help = if ranks == last.saturating_add(1) {
                format!("number the devices from 0{most}")
            } else {
                format!("use fewer ranks{most}")
            };
            return Err(fault(Code::TooLarge, message).help(help));
        }
        if ranks <= last {
            let message = too_few_ranks_text("the program", last.saturating_add(1), ranks);
            return Err(fault(Code::WorldTooSmall, message));
        }
        self.check_memory(program, ranks, ranks.saturating_mul(size_of::<Plan>()))
    }

    /// Checks that the plans of `ranks` ranks may take `bytes` bytes.
    ///
    /// # Errors
    /// The plans are too large. The error is located at the program's header.
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
        let message = format!("{whose} {taken} of memory, which exceeds the limit of {allowed}");
        let it = Diagnostic::new(Code::OverBudget, program.spans.header, message, "this program");
        Err(it.help(
            "run it on fewer ranks or with shorter loops, or raise the limit with `--memory-limit=GIB`",
        ))
    }
}

/// Formats a number of bytes: `1.5 GiB`.
pub fn size_text(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} bytes"),
        1..1024 => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        1024.. => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Describes that a job has fewer ranks than the meshes and teams of a program contain.
pub fn too_few_ranks_text(program: &str, smallest: usize, ranks: usize) -> String {
    let last = smallest.saturating_sub(1);
    format!(
        "a mesh or team of {program} contains rank {last}: start {smallest} ranks or more (`--ranks {smallest}`), not {ranks}"
    )
}
