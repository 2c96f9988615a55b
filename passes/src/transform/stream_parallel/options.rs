//! The options of stream-parallel.

use grammar::{Diagnostic, Named};

use crate::pass::{Arguments, OptionKind, OptionSpec};

/// How a loop all-gathers.
pub(super) const ALLGATHER: OptionSpec = OptionSpec::word("allgather", Allgather::NAMES)
    .about("how to all-gather in the loop; whole: all-gather before the loop");
/// How a loop reduce-scatters.
pub(super) const REDUCE_SCATTER: OptionSpec = OptionSpec::word("reduce-scatter", ReduceScatter::NAMES)
    .about("how to reduce-scatter in the loop; whole: reduce-scatter after the loop");
/// The backend of the communications in loops. `overlap` has the same options.
pub(crate) const BACKEND: OptionSpec =
    OptionSpec::word("backend", &["nccl", "cuda"]).about("backend of peer-to-peer rings and broadcasts");
/// The side that copies in a CUDA transfer.
pub(crate) const PROTOCOL: OptionSpec = OptionSpec::word("protocol", &["get", "put"])
    .about("side that copies in a CUDA transfer: the receiver (get) or the sender (put)");
/// The chunk that each rank of a ring starts with.
pub(crate) const OFFSET_BY_RANK: OptionSpec =
    OptionSpec::new("offset-by-rank", OptionKind::Flag, Some("true"))
        .about("start each rank of a peer-to-peer ring with its own chunk, so that all links are busy");
/// When a ring works on the rank's own slice.
pub(crate) const OWN_SLICE: OptionSpec = OptionSpec::word("own-slice", OwnSlice::NAMES).about(
    "when a rank works on its own slice in a ring with offset-by-rank; auto: last if the loop only \
         reduce-scatters, since this slice is not sent, else first",
);
/// Where the sender waits for CUDA sends.
pub(crate) const WAIT: OptionSpec = OptionSpec::word("wait", &["inline", "deferred"])
    .about("where to wait for CUDA sends: after the transfer, or at the end of the iteration");
/// How an iteration takes its slices.
pub(crate) const STYLE: OptionSpec = OptionSpec::word("style", &["auto", "select", "shard"])
    .about("how to take slices; auto: select if the stream axes are whole dimensions, else shard");
/// Where to allocate the results that only one iteration needs.
pub(crate) const ALLOCATE: OptionSpec = OptionSpec::word("allocate", &["inside", "before"]).about(
    "with style=shard, where to allocate results that only one iteration needs: inside the loop, or \
         before it for all iterations",
);

/// The parsed options.
#[derive(Clone, Copy)]
pub(crate) struct LoopOptions {
    pub(super) allgather: Allgather,
    pub(super) reduce_scatter: ReduceScatter,
    pub(super) cuda: bool,
    pub(super) put: bool,
    pub(super) offset: bool,
    pub(super) own_slice: OwnSlice,
    pub(super) deferred: bool,
    pub(super) style: Option<Style>,
    pub(super) allocate_before: bool,
    /// Whether a loop may read slices of what an earlier loop has written.
    pub(super) reads_loops: bool,
}

grammar::named_enum! {
    /// How a loop performs an all-gather.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum Allgather {
        Broadcast = "broadcast",
        Ring = "p2p-ring",
        Permute = "collective-permute",
        Whole = "whole",
    }
}

grammar::named_enum! {
    /// When a rank works on its own slice in a ring.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum OwnSlice {
        Auto = "auto",
        First = "first",
        Last = "last",
    }
}

grammar::named_enum! {
    /// How a loop performs a reduce-scatter.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) enum ReduceScatter {
        Reduce = "reduce",
        Ring = "p2p-ring",
        Whole = "whole",
    }
}

grammar::named_enum! {
    /// How an iteration takes its slices.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) enum Style {
        Select = "select",
        Shard = "shard",
    }
}

impl LoopOptions {
    /// Returns the options with which all loops take chunks, unless a style is set. Statements of which some can select an index
    /// and others cannot then share a loop.
    pub(crate) fn with_chunks(self) -> Option<Self> {
        self.style.is_none().then_some(Self { style: Some(Style::Shard), ..self })
    }

    /// Returns the options for loops that may read slices of what earlier loops have written.
    pub(crate) fn reading_loops(self, reads_loops: bool) -> Self {
        Self { reads_loops, ..self }
    }

    /// Reads the options.
    ///
    /// # Errors
    /// Two options contradict each other.
    pub(crate) fn of(arguments: &Arguments) -> Result<Self, Diagnostic> {
        let is = |name, value| arguments.text(name) == Some(value);
        let is_ring = is("allgather", "p2p-ring") || is("reduce-scatter", "p2p-ring");
        if is_ring && is("backend", "cuda") && !arguments.flag("offset-by-rank") {
            // Each pair of ranks would share its handles in another iteration, but ShareMemHandles waits for
            // all ranks.
            let fault = arguments.error(
                "offset-by-rank",
                "`offset-by-rank=false` needs `backend=nccl`",
                "with `backend=cuda`, ranks would wait for each other in ShareMemHandles",
            );
            return Err(fault.help("use `offset-by-rank=true`, or `backend=nccl`"));
        }
        if is("allgather", "collective-permute") && is("own-slice", "last") {
            let fault = arguments.error(
                "own-slice",
                "`own-slice=last` needs `allgather=p2p-ring`",
                "with `allgather=collective-permute`, the own slice comes first",
            );
            return Err(fault.help("use `own-slice=first`, or `allgather=p2p-ring`"));
        }
        Ok(Self {
            allgather: arguments.choice("allgather").unwrap_or(Allgather::Broadcast),
            reduce_scatter: arguments.choice("reduce-scatter").unwrap_or(ReduceScatter::Reduce),
            cuda: is("backend", "cuda"),
            put: is("protocol", "put"),
            offset: arguments.flag("offset-by-rank"),
            own_slice: arguments.choice("own-slice").unwrap_or(OwnSlice::Auto),
            deferred: is("wait", "deferred"),
            style: arguments.choice("style"),
            allocate_before: is("allocate", "before"),
            reads_loops: false,
        })
    }
}
