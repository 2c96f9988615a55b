//! The keywords that attributes of the op table take, with one enum for each list.

use std::fmt;

/// An enum of keywords.
pub trait WordList: Copy + 'static {
    /// All keywords, in the order in which messages list them.
    const WORDS: &'static [Word];

    /// Converts the keyword into a `Word`.
    fn word(self) -> Word;

    /// Returns the keyword if it belongs to this list.
    fn of(word: Word) -> Option<Self>;
}

/// Declares the enums, and `Word`, which holds a keyword of any list.
macro_rules! words {
    ($($(#[doc = $doc:literal])+ $list:ident { $($(#[doc = $of:literal])+ $word:ident = $text:literal,)+ })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
            pub enum $list { $($(#[doc = $of])+ $word,)+ }

            impl $list {
                /// All keywords, in the order in which messages list them.
                pub const ALL: &'static [Self] = &[$(Self::$word),+];

                /// Returns the spelling.
                pub const fn text(self) -> &'static str {
                    match self { $(Self::$word => $text),+ }
                }

                /// Parses a keyword, ignoring case.
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

        /// A keyword of any list.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Word { $($(#[doc = $doc])+ $list($list),)+ }

        impl Word {
            /// Returns the spelling.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$list(it) => it.text()),+ }
            }
        }
    };
}

words! {
    /// The `type=` of a `Communication`.
    CommunicationType {
        /// Concatenates the inputs of all ranks at the root.
        Gather = "Gather",
        /// Concatenates the inputs of all ranks on all ranks.
        Allgather = "Allgather",
        /// Distributes the parts of the root's tensor over the ranks.
        Scatter = "Scatter",
        /// Reduces the inputs of all ranks to the root.
        Reduce = "Reduce",
        /// Reduces the inputs of all ranks to all ranks.
        Allreduce = "Allreduce",
        /// Reduces the inputs of all ranks and distributes the parts of the result.
        ReduceScatter = "ReduceScatter",
        /// Copies the root's tensor to all ranks.
        Broadcast = "Broadcast",
        /// Copies the root's tensor to the other rank of a team of two.
        SendRecv = "SendRecv",
        /// Sends part `i` of rank `j` to rank `i`, as its part `j`.
        AllToAll = "AllToAll",
        /// Part of nvFuser's enum, but not printed for a `Communication`: the operator of this name has its
        /// own syntax.
        CollectivePermute = "CollectivePermute",
    }

    /// The `type=` of a `P2PCommunication`.
    P2pType {
        /// The buffer is read.
        Send = "send",
        /// The buffer is written.
        Recv = "recv",
    }

    /// What `Synchronize` blocks if it is not the current stream.
    SyncTarget {
        /// The host, until the current stream has finished its work so far.
        Host = "host",
    }

    /// The library that moves the data.
    Backend {
        /// NCCL, with a process group for the team.
        Nccl = "NCCL",
        /// UCC, with a process group for the team.
        Ucc = "UCC",
        /// Copies and kernels over peer memory.
        Cuda = "CUDA",
        /// NIXL; nvFuser names it for transfers between two ranks.
        Nixl = "NIXL",
        /// Gloo; supported by nvFuser until April 2025.
        Gloo = "GLOO",
    }

    /// The algorithm of a collective.
    Algorithm {
        /// The algorithm that NCCL selects.
        Nccl = "nccl",
        /// One kernel in which each rank writes to all peers what they receive from it, or reads from all peers what it
        /// reduces.
        OneShot = "one-shot",
        /// One kernel that performs a ReduceScatter and an Allgather over peer memory.
        TwoShot = "two-shot",
        /// Copies by copy engines: each rank copies to each peer what that peer receives from it.
        OneShotCopy = "one-shot-copy",
        /// A ReduceScatter and an Allgather by copy engines; only the reduction is a kernel.
        TwoShotCopy = "two-shot-copy",
        /// One kernel in which each rank sends its data to all peers in packets of 16 bytes, half of which are
        /// flags. LL stands for low latency, as in NCCL's protocol of this name.
        OneShotLl = "one-shot-ll",
        /// One kernel that performs a ReduceScatter and an Allgather with packets of 16 bytes.
        TwoShotLl = "two-shot-ll",
        /// Like `one-shot-ll`, with packets of 128 bytes, 8 of which are flags.
        OneShotLl128 = "one-shot-ll128",
        /// Like `two-shot-ll`, with packets of 128 bytes.
        TwoShotLl128 = "two-shot-ll128",
    }

    /// The side of a CUDA transfer that copies the data.
    P2pProtocol {
        /// The receiver reads the sender's memory; nvFuser's default.
        Get = "get",
        /// The sender writes the receiver's memory.
        Put = "put",
    }

    /// How a CUDA collective copies one buffer to all peers (nvFuser's `multicast_protocol`).
    MulticastProtocol {
        /// One copy for each peer; nvFuser's default.
        BatchMemcpy = "batch_memcpy",
        /// One copy to a multicast address.
        Memcpy = "memcpy",
        /// Stores of a kernel to a multicast address.
        Multimem = "multimem",
    }

    /// The reduction operation of a collective.
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
        /// Bitwise and.
        BitAnd = "BAND",
        /// Bitwise or.
        BitOr = "BOR",
        /// Bitwise exclusive or.
        BitXor = "BXOR",
    }

    /// The reduction operation of a `reduction` of one tensor.
    ReductionOp {
        /// Sum.
        Add = "add",
        /// Product.
        Mul = "mul",
        /// Maximum; propagates NaNs.
        Max = "max",
        /// Minimum; propagates NaNs.
        Min = "min",
        /// Maximum; ignores NaNs.
        FMax = "fmax",
        /// Minimum; ignores NaNs.
        FMin = "fmin",
        /// Bitwise and.
        BitAnd = "bitwise_and",
        /// Bitwise or.
        BitOr = "bitwise_or",
        /// Bitwise exclusive or.
        BitXor = "bitwise_xor",
        /// Logical and.
        LogicalAnd = "logical_and",
        /// Logical or.
        LogicalOr = "logical_or",
    }

    /// The memory in which a tensor is allocated.
    MemoryType {
        /// Global memory.
        Global = "global",
        /// Registers, in a scheduled kernel.
        Register = "register",
        /// Shared memory, in a scheduled kernel.
        Shared = "shared",
        /// Tensor memory, in a scheduled kernel.
        Tensor = "tensor",
        /// Symmetric memory, which peers can address.
        Symmetric = "symmetric",
    }

    /// The cache policy of a copy.
    CacheOp {
        /// Caches at all levels.
        AllLevels = "AllLevels",
        /// Caches at all levels, evicted first.
        Streaming = "Streaming",
        /// Caches in L2 only.
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

impl P2pProtocol {
    /// Returns the side that copies.
    pub fn copier(self) -> P2pType {
        match self {
            Self::Get => P2pType::Recv,
            Self::Put => P2pType::Send,
        }
    }
}

impl P2pType {
    /// Returns the type of the other side of the message.
    pub fn opposite(self) -> Self {
        match self {
            Self::Send => Self::Recv,
            Self::Recv => Self::Send,
        }
    }
}
