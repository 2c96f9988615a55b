//! The words that attributes of the op table may have, one enum for each list.

use std::fmt;

/// An enum of words.
pub trait WordList: Copy + 'static {
    /// All of them, in the order in which messages list them.
    const WORDS: &'static [Word];

    /// The word, whatever its list.
    fn word(self) -> Word;

    /// The word, where it is of this list.
    fn of(word: Word) -> Option<Self>;
}

/// Writes the enums, and `Word`, which holds a word of any of them.
macro_rules! words {
    ($($(#[doc = $doc:literal])+ $list:ident { $($(#[doc = $of:literal])+ $word:ident = $text:literal,)+ })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
            pub enum $list { $($(#[doc = $of])+ $word,)+ }

            impl $list {
                /// All of them, in the order in which messages list them.
                pub const ALL: &'static [Self] = &[$(Self::$word),+];

                /// The spelling.
                pub const fn text(self) -> &'static str {
                    match self { $(Self::$word => $text),+ }
                }

                /// The word with this spelling, in capitals or not.
                pub fn from_text(text: &str) -> Option<Self> {
                    Self::ALL.iter().copied().find(|it| it.text().eq_ignore_ascii_case(text))
                }
            }

            impl fmt::Display for $list {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(self.text())
                }
            }

            impl WordList for $list {
                const WORDS: &'static [Word] = &[$(Word::$list(Self::$word)),+];

                fn word(self) -> Word {
                    Word::$list(self)
                }

                fn of(word: Word) -> Option<Self> {
                    if let Word::$list(it) = word { Some(it) } else { None }
                }
            }
        )+

        /// A word of one of the lists.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Word { $($(#[doc = $doc])+ $list($list),)+ }

        impl Word {
            /// The spelling.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$list(it) => it.text()),+ }
            }
        }
    };
}

words! {
    /// The `type=` of a `Communication`.
    CommunicationType {
        /// Every rank's part, at the root.
        Gather = "Gather",
        /// Every rank's part, everywhere.
        Allgather = "Allgather",
        /// One part of the root's tensor at each rank.
        Scatter = "Scatter",
        /// The combination, at the root.
        Reduce = "Reduce",
        /// The combination, everywhere.
        Allreduce = "Allreduce",
        /// One part of the combination at each rank.
        ReduceScatter = "ReduceScatter",
        /// The root's tensor, everywhere.
        Broadcast = "Broadcast",
        /// The root's tensor, at the other of two ranks.
        SendRecv = "SendRecv",
        /// Part `i` of rank `j` as part `j` of rank `i`.
        AllToAll = "AllToAll",
        /// A word of nvFuser's enum that it prints for no `Communication`: the operator of this name has its own syntax.
        CollectivePermute = "CollectivePermute",
    }

    /// The `type=` of a `P2PCommunication`.
    P2pType {
        /// The buffer is read.
        Send = "send",
        /// The buffer is written.
        Recv = "recv",
    }

    /// The library that moves the data.
    Backend {
        /// NCCL, by a process group of the team.
        Nccl = "NCCL",
        /// UCC, by a process group of the team.
        Ucc = "UCC",
        /// Copies and kernels over peer memory.
        Cuda = "CUDA",
        /// Gloo; nvFuser had it until April 2025.
        Gloo = "GLOO",
    }

    /// How a collective moves the data.
    Algorithm {
        /// NCCL's own choice.
        Nccl = "nccl",
        /// One kernel, in which every rank reads all of every peer's input.
        OneShot = "one-shot",
        /// One kernel, a ReduceScatter and an Allgather over peer memory.
        TwoShot = "two-shot",
        /// Step by step around a ring.
        Ring = "ring",
    }

    /// Which side of a CUDA transfer copies.
    P2pProtocol {
        /// The receiver reads the sender's memory; nvFuser's default.
        Get = "get",
        /// The sender writes the receiver's memory.
        Put = "put",
    }

    /// How a CUDA collective brings one buffer to all peers, by the names of nvFuser's `multicast_protocol`.
    MulticastProtocol {
        /// One copy for each peer; nvFuser's default.
        BatchMemcpy = "batch_memcpy",
        /// One copy to a multicast address.
        Memcpy = "memcpy",
        /// A kernel's stores to a multicast address.
        Multimem = "multimem",
    }

    /// How a collective combines the ranks' elements.
    RedOp {
        /// Sum.
        Sum = "SUM",
        /// Product.
        Product = "PRODUCT",
        /// Minimum.
        Min = "MIN",
        /// Maximum.
        Max = "MAX",
        /// Sum, divided by the number of ranks.
        Avg = "AVG",
    }

    /// How a `reduction` combines the elements of one tensor.
    ReductionOp {
        /// Sum.
        Add = "add",
        /// Product.
        Mul = "mul",
        /// Maximum; a NaN wins.
        Max = "max",
        /// Minimum; a NaN wins.
        Min = "min",
        /// Maximum; a number wins over a NaN.
        FMax = "fmax",
        /// Minimum; a number wins over a NaN.
        FMin = "fmin",
        /// Bits of all.
        BitAnd = "bitwise_and",
        /// Bits of any.
        BitOr = "bitwise_or",
        /// Bits of an odd number.
        BitXor = "bitwise_xor",
        /// All.
        LogicalAnd = "logical_and",
        /// Any.
        LogicalOr = "logical_or",
    }

    /// Where a tensor is allocated.
    MemoryType {
        /// Global memory.
        Global = "global",
        /// Registers, in a scheduled kernel.
        Register = "register",
        /// Shared memory, in a scheduled kernel.
        Shared = "shared",
        /// Tensor memory, in a scheduled kernel.
        Tensor = "tensor",
        /// Symmetric memory, addressable by peers.
        Symmetric = "symmetric",
    }

    /// The caches that a copy uses.
    CacheOp {
        /// All.
        AllLevels = "AllLevels",
        /// All, to be evicted first.
        Streaming = "Streaming",
        /// The L2 cache.
        Global = "Global",
    }

    /// A boolean as Python spells it.
    PyBool {
        /// True.
        True = "True",
        /// False.
        False = "False",
    }
}

impl CommunicationType {
    /// Whether one member is the root.
    pub const fn is_rooted(self) -> bool {
        match self {
            Self::Gather | Self::Scatter | Self::Reduce | Self::Broadcast | Self::SendRecv => true,
            Self::Allgather
            | Self::Allreduce
            | Self::ReduceScatter
            | Self::AllToAll
            | Self::CollectivePermute => false,
        }
    }

    /// Whether it combines the ranks' elements.
    pub const fn is_reduction(self) -> bool {
        match self {
            Self::Reduce | Self::Allreduce | Self::ReduceScatter => true,
            Self::Gather
            | Self::Allgather
            | Self::Scatter
            | Self::Broadcast
            | Self::SendRecv
            | Self::AllToAll
            | Self::CollectivePermute => false,
        }
    }

    /// Whether every member of the team gets a result.
    pub const fn writes_on_every_rank(self) -> bool {
        match self {
            Self::Reduce | Self::Gather | Self::SendRecv => false,
            Self::Allgather
            | Self::Scatter
            | Self::Allreduce
            | Self::ReduceScatter
            | Self::Broadcast
            | Self::AllToAll
            | Self::CollectivePermute => true,
        }
    }

    /// Whether the CUDA backend has it.
    pub const fn is_supported_by_cuda(self) -> bool {
        match self {
            Self::Broadcast | Self::Allgather | Self::Allreduce | Self::Reduce => true,
            Self::Gather
            | Self::Scatter
            | Self::ReduceScatter
            | Self::SendRecv
            | Self::AllToAll
            | Self::CollectivePermute => false,
        }
    }
}
