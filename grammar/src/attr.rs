//! Attribute keys, each with the type of its value.
//!
//! The op table defines which operators take which keys. `it.get(attr::PEER)` reads an attribute of a
//! statement, and `attr::PEER.with(rank)` creates one. Other crates cannot create a key from a string.

mod value;

use std::{fmt, marker::PhantomData, sync::Arc};

use crate::{
    dtype::DType,
    ids::{AxisId, ExprId, StmtId, TensorId, UnitId},
    words::{
        Algorithm, Backend, CacheOp, CommunicationType, MemoryType, MulticastProtocol, P2pProtocol, P2pType,
        PyBool, RedOp, ReductionOp, SyncTarget,
    },
};

pub use value::{Attr, AttrValue, Operand, OperandKind, TensorOrScalar};

/// The name of an attribute as it is spelled in the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttrName(pub(crate) &'static str);

impl fmt::Display for AttrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An attribute key whose value has type `T`.
#[derive(Debug)]
pub struct Key<T> {
    name: AttrName,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq<Key<T>> for AttrName {
    fn eq(&self, other: &Key<T>) -> bool {
        *self == other.name
    }
}

impl<T> Key<T> {
    const fn new(name: &'static str) -> Self {
        Self { name: AttrName(name), value: PhantomData }
    }

    /// Returns the name of the attribute.
    pub const fn name(self) -> AttrName {
        self.name
    }
}

impl<T: AttrValue> Key<T> {
    /// Creates the attribute with this value.
    pub fn with(self, value: T) -> (AttrName, Attr) {
        (self.name, value.into_attr())
    }
}

/// Declares all keys from one list.
macro_rules! keys {
    ($($value:ty { $($key:ident = $text:literal,)+ })+) => {
        $($(
            #[doc = concat!("`", $text, "=`")]
            pub const $key: Key<$value> = Key::new($text);
        )+)+

        /// All keys, for the test that the op table uses each of them.
        #[cfg(test)]
        const KEYS: &[(&str, OperandKind)] = &[$($(($text, <$value as AttrValue>::KIND),)+)+];
    };
}

keys! {
    CommunicationType { TYPE = "type", }
    P2pType { P2P_TYPE = "type", }
    SyncTarget { SYNC_TARGET = "target", }
    Backend { BACKEND = "backend", }
    Algorithm { ALGO = "algo", }
    P2pProtocol { PROTOCOL = "protocol", }
    MulticastProtocol { MULTICAST_PROTOCOL = "protocol", }
    RedOp { RED_OP = "red_op", }
    ReductionOp { OP = "op", ACCUMULATE = "accumulate", }
    MemoryType { MEM_TYPE = "mem_type", }
    CacheOp { CACHE_OP = "cache_op", }
    PyBool {
        LARGEST = "largest",
        SORTED = "sorted",
        DESCENDING = "descending",
        STABLE = "stable",
    }
    bool {
        ZERO_INIT = "zero_init",
        RESETS_TO_ZERO = "resets_to_zero",
        ALLREDUCE = "allreduce",
        EPILOGUE = "epilogue",
    }
    TensorId {
        INPUT = "input",
        OUTPUT = "output",
        BUFFER = "buffer",
        ALIAS = "alias",
        IN = "in",
        OUT = "out",
        IDX = "idx",
        TOPK_IDX = "topk_idx",
        TOPK_WEIGHTS = "topk_weights",
        SRC_IDX = "src_idx",
        BIAS = "bias",
        MASK = "mask",
        LOGSUM_EXP = "logsum_exp",
        PHILOX_SEED = "philox_seed",
        PHILOX_OFFSET = "philox_offset",
        MAT1 = "mat1",
        MAT2 = "mat2",
        OFFSETS = "offsets",
        SCALE1 = "scale1",
        SCALE2 = "scale2",
        ALPHA = "alpha",
        BETA = "beta",
        PROBLEM_SIZES = "problem_sizes",
        EXPERT_OFFSETS = "expert_offsets",
        SF_OFFSETS = "sf_offsets",
        INPUT_OFFSETS = "input_offsets",
        OUTPUT_OFFSETS = "output_offsets",
    }
    TensorOrScalar { SRC = "src", }
    ExprId {
        ROOT = "root",
        PEER = "peer",
        SEND_PEER = "send_peer",
        RECV_PEER = "recv_peer",
        NUM_EXPERTS = "num_experts",
        SIZE = "size",
        INDEX = "index",
        STREAM_INDEX = "stream_index",
        GROUP_ID = "Group ID",
        INITIAL_VALUE = "initial value",
        GROUP = "group",
        DIM = "dim",
        INIT = "init",
        PADDING_IDX = "padding_idx",
        MAX_NORM = "max_norm",
        NORM_TYPE = "norm_type",
        SCALE_GRAD_BY_FREQ = "scale_grad_by_freq",
        SPARSE = "sparse",
        DROPOUT_P = "dropout_p",
        IS_CAUSAL = "is_causal",
        SCALE = "scale",
        RNG_OFFSET = "offset",
    }
    AxisId { AXIS = "axis", }
    DType { DTYPE = "dtype", }
    UnitId { UNIT = "unit", }
    u32 { WORK = "work", }
    String {
        KERNEL = "kernel",
        SCAN_OP = "op",
        OP_TYPE = "op_type",
        LAYOUT = "layout",
        POOL = "pool",
    }
    Arc<[u8]> { BYTES = "bytes", }
    Vec<usize> { TEAM = "team", }
    Vec<bool> { FLAGS = "flags", }
    Vec<ExprId> {
        DIMS = "dims",
        EXTENTS = "extents",
        WIDTHS = "widths",
        SHAPE = "shape",
    }
    Vec<[ExprId; 3]> { RANGES = "ranges", }
    Vec<Operand> {
        INPUTS = "Inputs",
        OUTPUTS = "Outputs",
    }
    Vec<StmtId> { TRANSFERS = "transfers", }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::OPS;

    #[test]
    fn every_key_is_of_some_operator_and_no_operator_has_one_twice() {
        for (name, kind) in KEYS {
            let mut params = OPS.iter().flat_map(|row| row.args.iter().chain(row.attrs));
            assert!(params.any(|it| it.name == *name && it.kind == *kind), "{name}");
        }
        for row in OPS {
            let mut names: Vec<_> = row.attrs.iter().map(|it| it.name).collect();
            names.sort_unstable();
            assert!(names.is_sorted_by(|a, b| a < b), "{}", row.mnemonic);
        }
    }
}
