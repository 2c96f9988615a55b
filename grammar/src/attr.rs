//! Keys of attributes, each with the type of its value.
//!
//! The op table says which operators have which keys. `it.get(attr::PEER)` reads a value of a statement, and
//! `attr::PEER.with(rank)` makes one. No other crate can make a key from a string.

use std::{fmt, marker::PhantomData};

use crate::{
    dtype::DType,
    ir::{Attr, AxisId, ExprId, OpStmt, Operand, StmtId, TensorId, UnitId},
    ops::Kind,
    words::{
        Algorithm, Backend, CacheOp, CommunicationType, MemoryType, MulticastProtocol, P2pProtocol, P2pType,
        PyBool, RedOp, ReductionOp,
    },
};

/// The spelling of a key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AttrName(pub(crate) &'static str);

impl fmt::Display for AttrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A key whose value is a `T`.
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

    /// The spelling.
    pub const fn name(self) -> AttrName {
        self.name
    }
}

impl<T: Value> Key<T> {
    /// The attribute with this value.
    pub fn with(self, value: T) -> (AttrName, Attr) {
        (self.name, value.into_attr())
    }
}

/// What the value of an attribute may be.
pub trait Value {
    /// What a reader gets: the value, or a slice of its elements.
    type Read<'a>;
    /// What the text may hold.
    const KIND: Kind;

    /// The value, where the attribute is of this type.
    fn read(attr: &Attr) -> Option<Self::Read<'_>>;

    /// The attribute that holds the value.
    fn into_attr(self) -> Attr;
}

/// Values that are copied, and values of which a reader gets a slice, each with the variant of `Attr` that holds them.
macro_rules! values {
    (copied { $($copied:ty: $plain:ident,)+ } borrowed { $($owned:ty => $slice:ty: $held:ident,)+ }) => {
        $(impl Value for $copied {
            type Read<'a> = Self;
            const KIND: Kind = Kind::$plain;

            fn read(attr: &Attr) -> Option<Self> {
                if let Attr::$plain(it) = attr { Some(*it) } else { None }
            }

            fn into_attr(self) -> Attr {
                Attr::$plain(self)
            }
        })+

        $(impl Value for $owned {
            type Read<'a> = &'a $slice;
            const KIND: Kind = Kind::$held;

            fn read(attr: &Attr) -> Option<&$slice> {
                if let Attr::$held(it) = attr { Some(it) } else { None }
            }

            fn into_attr(self) -> Attr {
                Attr::$held(self)
            }
        })+
    };
}

values! {
    copied {
        TensorId: Tensor,
        ExprId: Scalar,
        AxisId: Axis,
        DType: DType,
        bool: Bool,
        UnitId: Unit,
        u32: Work,
    }
    borrowed {
        String => str: Name,
        Vec<usize> => [usize]: Team,
        Vec<bool> => [bool]: Flags,
        Vec<ExprId> => [ExprId]: Scalars,
        Vec<[ExprId; 3]> => [[ExprId; 3]]: Ranges,
        Vec<Operand> => [Operand]: Values,
        Vec<StmtId> => [StmtId]: Stmts,
    }
}

/// The value of a key that takes a tensor or a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TensorOrScalar {
    /// A tensor.
    Tensor(TensorId),
    /// A scalar.
    Scalar(ExprId),
}

impl Value for TensorOrScalar {
    type Read<'a> = Self;
    const KIND: Kind = Kind::Value;

    fn read(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::Tensor(it) => Some(Self::Tensor(*it)),
            Attr::Scalar(it) => Some(Self::Scalar(*it)),
            _ => None,
        }
    }

    fn into_attr(self) -> Attr {
        match self {
            Self::Tensor(it) => Attr::Tensor(it),
            Self::Scalar(it) => Attr::Scalar(it),
        }
    }
}

impl Attr {
    /// Whether a parameter of this kind may have it.
    pub(crate) fn fits(&self, kind: Kind) -> bool {
        match self {
            Self::Tensor(_) => matches!(kind, Kind::Tensor | Kind::Value),
            Self::Scalar(_) => matches!(kind, Kind::Scalar | Kind::Value),
            Self::Word(word) => matches!(kind, Kind::Word(words) if words.contains(word)),
            Self::Axis(_) => kind == Kind::Axis,
            Self::Name(_) => kind == Kind::Name,
            Self::DType(_) => kind == Kind::DType,
            Self::Bool(_) => kind == Kind::Bool,
            Self::Team(_) => kind == Kind::Team,
            Self::Flags(_) => kind == Kind::Flags,
            Self::Scalars(_) => kind == Kind::Scalars,
            Self::Ranges(_) => kind == Kind::Ranges,
            Self::Values(_) => kind == Kind::Values,
            Self::Unit(_) => kind == Kind::Unit,
            Self::Work(_) => kind == Kind::Work,
            Self::Stmts(_) => kind == Kind::Stmts,
        }
    }
}

/// Writes the keys from one list.
macro_rules! keys {
    ($($value:ty { $($key:ident = $text:literal,)+ })+) => {
        $($(
            #[doc = concat!("`", $text, "=`")]
            pub const $key: Key<$value> = Key::new($text);
        )+)+

        /// Every key, for the test that the table uses it.
        #[cfg(test)]
        const KEYS: &[(&str, Kind)] = &[$($(($text, <$value as Value>::KIND),)+)+];
    };
}

keys! {
    CommunicationType { TYPE = "type", }
    P2pType { P2P_TYPE = "type", }
    Backend { BACKEND = "backend", }
    Algorithm { ALGO = "algo", }
    P2pProtocol { PROTOCOL = "protocol", }
    MulticastProtocol { MULTICAST_PROTOCOL = "protocol", }
    RedOp { RED_OP = "red_op", }
    ReductionOp { OP = "op", }
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
    }
    Vec<usize> { TEAM = "team", }
    Vec<bool> { FLAGS = "flags", }
    Vec<ExprId> {
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

impl OpStmt {
    /// The value of an attribute; `None` where the statement does not have it.
    pub fn get<T: Value>(&self, key: Key<T>) -> Option<T::Read<'_>> {
        self.attr(key.name).and_then(T::read)
    }

    /// Gives an attribute a value, at the key's place in the operator's row.
    pub fn set<T: Value>(&mut self, key: Key<T>, value: T) {
        let value = value.into_attr();
        if let Some((_, old)) = self.attrs.iter_mut().find(|(name, _)| *name == key) {
            *old = value;
            return;
        }
        let row = self.op.row();
        let params = row.args.iter().chain(row.attrs);
        let later = params.skip_while(|it| it.name != key.name.0).skip(1);
        let is_later = |(name, _): &(AttrName, Attr)| later.clone().any(|it| it.name == name.0);
        let at = self.attrs.iter().position(is_later).unwrap_or(self.attrs.len());
        self.attrs.insert(at, (key.name, value));
    }

    /// The attribute with this name, whatever its type.
    pub(crate) fn attr(&self, name: AttrName) -> Option<&Attr> {
        self.attrs.iter().find(|(it, _)| *it == name).map(|(_, attr)| attr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ir::{Program, Stmt},
        ops::OPS,
    };

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
    const TEXT: &str = "%HostIrContainer { (T0_g_float[iS0{2}]) -> (T1_g_float[iS1{2}]) :
  Communication 3 (type=Allreduce, team=(0 1), red_op=SUM, input=T0_g_float[iS0{2}], output=T1_g_float[iS1{2}], backend=NCCL)
  Wait(Communication 3)
} // %HostIrContainer
";

    fn with_first(change: fn(&mut OpStmt)) -> (String, usize) {
        let (mut programs, faults) = crate::read(TEXT);
        assert!(faults.is_empty(), "{faults:?}");
        let program: &mut Program = &mut programs[0];
        let first = program.body()[0];
        let Stmt::Op(it) = &mut program.stmts[first] else { return (String::new(), 0) };
        change(it);
        (crate::summary(program, first), crate::verify(program).len())
    }

    #[test]
    fn an_attribute_is_set_in_the_order_of_the_row() {
        let (text, faults) = with_first(|it| {
            assert_eq!((it.get(BACKEND), it.get(PEER)), (Some(Backend::Nccl), None));
            it.set(BACKEND, Backend::Ucc);
            it.attrs.retain(|(name, _)| *name != RED_OP);
            it.set(RED_OP, RedOp::Max);
            it.set(TEAM, vec![1, 0]);
        });
        assert!(text.contains("(type=Allreduce, team=(1 0), red_op=MAX, input="), "{text}");
        assert!(text.contains("backend=UCC"), "{text}");
        assert_eq!(faults, 0);
    }

    #[test]
    fn the_verifier_refuses_an_attribute_that_the_operator_does_not_have() {
        assert_eq!(with_first(|it| it.attrs.push(STABLE.with(PyBool::True))).1, 1);
        assert_eq!(with_first(|it| it.attrs.push(P2P_TYPE.with(P2pType::Send))).1, 1);
    }
}
