//! Iteration domains, their kinds and their parallel types.

use std::fmt;

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
    /// The suffix.
    pub suffix: AxisSuffix,
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
            suffix: AxisSuffix::NONE,
        }
    }

    /// Returns whether the axis is the result of a root-to-logical transform (`rf`).
    pub const fn is_rfactor(&self) -> bool {
        self.suffix.is_rfactor
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

/// The suffix of an iteration domain. Its parts are printed in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AxisSuffix {
    /// `rf`: the result of a root-to-logical transform.
    pub is_rfactor: bool,
    /// `_p`: padded to a multiple of the warp size.
    pub is_padded: bool,
    /// `_c`: a dimension of a cluster.
    pub is_clustered: bool,
}

impl AxisSuffix {
    /// No suffix.
    pub const NONE: Self = Self { is_rfactor: false, is_padded: false, is_clustered: false };
    /// `rf`.
    pub const RFACTOR: Self = Self { is_rfactor: true, ..Self::NONE };

    /// Parses the suffix that `text` begins with, and returns the rest of `text`, too.
    pub fn split(text: &str) -> (Self, &str) {
        let mut rest = text;
        let mut takes = |part| {
            let behind = rest.strip_prefix(part);
            rest = behind.unwrap_or(rest);
            behind.is_some()
        };
        let suffix = Self { is_rfactor: takes("rf"), is_padded: takes("_p"), is_clustered: takes("_c") };
        (suffix, rest)
    }
}

impl fmt::Display for AxisSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [(self.is_rfactor, "rf"), (self.is_padded, "_p"), (self.is_clustered, "_c")];
        parts.into_iter().filter(|it| it.0).try_for_each(|it| f.write_str(it.1))
    }
}

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
