//! Iteration domains, their kinds and their parallel types.

use super::{DeviceDim, ExprId};

/// An iteration domain (nvFuser's IterDomain).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Iteration, reduction, broadcast or another kind.
    pub kind: AxisKind,
    /// The resource that its iterations are distributed over.
    pub parallel: ParallelType,
    /// The number. The axes of one tensor have different numbers.
    pub number: u32,
    /// First index, if it is not 0.
    pub start: Option<ExprId>,
    /// One past the last index, if it differs from the extent.
    pub stop: Option<ExprId>,
    /// Number of iterations.
    pub extent: ExprId,
    /// Extent of an expanded broadcast.
    pub expanded: Option<ExprId>,
    /// Whether the axis is ragged (`iS7Ragged{extents=…}`); `extent` then refers to the extents.
    pub is_ragged: bool,
    /// The suffix (`rf`, `_p`, `_c`), verbatim.
    pub suffix: &'static str,
}

impl Axis {
    /// Creates an axis whose indices begin at 0, which is neither expanded nor ragged and has no suffix.
    pub const fn new(kind: AxisKind, parallel: ParallelType, number: u32, extent: ExprId) -> Self {
        Self {
            kind,
            parallel,
            number,
            start: None,
            stop: None,
            extent,
            expanded: None,
            is_ragged: false,
            suffix: "",
        }
    }
}

/// The kind of an iteration domain, printed as its first letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxisKind {
    /// `i`.
    Iteration,
    /// `r`: not a dimension of the tensor in memory.
    Reduction,
    /// `b`.
    Broadcast,
    /// `s`.
    Stride,
    /// `n` (and `g`, until 2024).
    Gather,
    /// `v`.
    Vector,
    /// `?`: the kind is not known before run time.
    Symbolic,
}

impl AxisKind {
    /// All kinds with their letters; the first letter of a kind is the canonical one.
    pub const LETTERS: &'static [(&'static str, AxisKind)] = &[
        ("i", Self::Iteration),
        ("r", Self::Reduction),
        ("b", Self::Broadcast),
        ("s", Self::Stride),
        ("n", Self::Gather),
        ("g", Self::Gather),
        ("v", Self::Vector),
        ("?", Self::Symbolic),
    ];
}

/// The suffixes of an iteration domain: `rf` for the result of a root-to-logical transform, `_p` for padding
/// to a multiple of the warp size, `_c` for a dimension of a cluster.
pub const AXIS_SUFFIXES: &[&str] = &["", "rf", "_p", "_c", "rf_p", "rf_c", "_p_c", "rf_p_c"];

/// The parallel type of an axis: the resource that its iterations are distributed over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParallelType {
    /// Not distributed.
    Serial,
    /// Devices of the mesh.
    Device(DeviceDim),
    /// Streams.
    Stream,
    /// Parallelism inside a kernel (`threadIdx.x`, `UR` …), by its canonical name; host programs ignore it.
    Kernel(&'static str),
}

impl ParallelType {
    /// All spellings with their parallel types; the first spelling of a type is the canonical one.
    pub const WORDS: &'static [(&'static str, ParallelType)] = &[
        ("S", Self::Serial),
        ("deviceIdx.x", Self::Device(DeviceDim::X)),
        ("deviceIdx.y", Self::Device(DeviceDim::Y)),
        ("deviceIdx.z", Self::Device(DeviceDim::Z)),
        ("streamIdx", Self::Stream),
        ("StreamIdx", Self::Stream),
        ("Stream", Self::Stream),
        ("blockIdx.x", Self::Kernel("blockIdx.x")),
        ("blockIdx.y", Self::Kernel("blockIdx.y")),
        ("blockIdx.z", Self::Kernel("blockIdx.z")),
        ("threadIdx.x", Self::Kernel("threadIdx.x")),
        ("threadIdx.y", Self::Kernel("threadIdx.y")),
        ("threadIdx.z", Self::Kernel("threadIdx.z")),
        ("V", Self::Kernel("V")),
        ("MV", Self::Kernel("MV")),
        ("UR", Self::Kernel("UR")),
        ("US", Self::Kernel("US")),
        ("MMA", Self::Kernel("MMA")),
        ("G", Self::Kernel("G")),
        ("B", Self::Kernel("B")),
    ];
}
