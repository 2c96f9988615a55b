//! The kinds of work whose times are measured, and their names in the file of a machine.

use std::fmt;

use grammar::{dtype::DType, words::CommunicationType};

use crate::PacketFormat;

/// A kind of work: `Display` writes the name of its table (`product bf16`, `kernel memory reduce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// A matrix product of operands of this element type.
    Product(DType),
    /// An attention.
    Attention {
        /// The element type of the query.
        dtype: DType,
        /// The width of a head.
        width: usize,
        /// Whether it has a causal mask.
        is_causal: bool,
    },
    /// An elementwise operation, or a fill.
    Elementwise,
    /// A reduction within the memory of a GPU.
    Reduction,
    /// A copy within the memory of a GPU.
    Copy,
    /// A copy from a peer.
    Get,
    /// A copy to a peer.
    Put,
    /// A collective that one kernel over peer memory executes.
    Kernel(KernelProtocol, KernelTransfer),
    /// A communication that NCCL executes: one of `NCCL_TABLES`.
    Nccl(CommunicationType),
}

/// How a kernel moves data over peer memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelProtocol {
    /// It reads or writes the memory of peers, between signals.
    Memory,
    /// It writes packets, which contain their signals.
    Packets(PacketFormat),
}

/// What the kernel of a collective does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelTransfer {
    /// It copies.
    Copy,
    /// It reduces what the members contribute.
    Reduce,
    /// It reduces a part, and copies the result to all members.
    ReduceCopy,
}

/// The collectives of which NCCL's times are measured. All other communications have the times of the last one.
pub const NCCL_TABLES: [CommunicationType; 4] = [
    CommunicationType::Allreduce,
    CommunicationType::Allgather,
    CommunicationType::ReduceScatter,
    NCCL_TRANSFER,
];

/// The collective whose times stand for those of all communications of NCCL that have no times of their own.
pub const NCCL_TRANSFER: CommunicationType = CommunicationType::AllToAll;

grammar::named_enum! {
    /// A group of kinds: what `hir calibrate` measures with one kind of program.
    /// The names of its tables begin with its name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WorkClass {
        /// `WorkKind::Product`.
        Product = "product",
        /// `WorkKind::Attention`.
        Attention = "sdpa",
        /// `WorkKind::Elementwise`.
        Elementwise = "elementwise",
        /// `WorkKind::Reduction`.
        Reduction = "reduction",
        /// `WorkKind::Copy`.
        Copy = "copy",
        /// `WorkKind::Get`.
        Get = "get",
        /// `WorkKind::Put`.
        Put = "put",
        /// `WorkKind::Kernel`.
        Kernel = "kernel",
        /// `WorkKind::Nccl`.
        Nccl = "nccl",
    }
}

impl WorkClass {
    /// Returns whether a table of this name contains work of the class.
    pub fn has_table(self, name: &str) -> bool {
        name.split(' ').next() == Some(self.name())
    }
}

impl WorkKind {
    /// Returns the group of the kind.
    pub const fn class(self) -> WorkClass {
        match self {
            Self::Product(_) => WorkClass::Product,
            Self::Attention { .. } => WorkClass::Attention,
            Self::Elementwise => WorkClass::Elementwise,
            Self::Reduction => WorkClass::Reduction,
            Self::Copy => WorkClass::Copy,
            Self::Get => WorkClass::Get,
            Self::Put => WorkClass::Put,
            Self::Kernel(..) => WorkClass::Kernel,
            Self::Nccl(_) => WorkClass::Nccl,
        }
    }
}

impl fmt::Display for WorkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class();
        match self {
            Self::Product(dtype) => write!(f, "{class} {}", dtype.short_name()),
            Self::Attention { dtype, width, is_causal } => {
                let causal = if *is_causal { " causal" } else { "" };
                write!(f, "{class} {} {width}{causal}", dtype.short_name())
            }
            Self::Elementwise | Self::Reduction | Self::Copy | Self::Get | Self::Put => write!(f, "{class}"),
            Self::Kernel(protocol, transfer) => {
                let protocol = match protocol {
                    KernelProtocol::Memory => "memory",
                    KernelProtocol::Packets(PacketFormat::Ll) => "ll",
                    KernelProtocol::Packets(PacketFormat::Ll128) => "ll128",
                };
                let transfer = match transfer {
                    KernelTransfer::Copy => "copy",
                    KernelTransfer::Reduce => "reduce",
                    KernelTransfer::ReduceCopy => "reduce copy",
                };
                write!(f, "{class} {protocol} {transfer}")
            }
            Self::Nccl(NCCL_TRANSFER) => write!(f, "{class} transfer"),
            Self::Nccl(CommunicationType::ReduceScatter) => write!(f, "{class} reduce-scatter"),
            Self::Nccl(kind) => write!(f, "{class} {}", kind.text().to_lowercase()),
        }
    }
}
