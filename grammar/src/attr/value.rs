//! Attribute values, and the kinds of operands in the op table.

use std::sync::Arc;

use crate::{
    dtype::DType,
    ids::{AxisId, ExprId, StmtId, StreamId, TensorId, UnitId},
    words::{Word, WordList},
};

/// A value that a statement uses or defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    /// A tensor.
    Tensor(TensorId),
    /// A scalar.
    Scalar(ExprId),
    /// A stream.
    Stream(StreamId),
}

impl Operand {
    /// Returns the tensor, or `None` for other operands.
    pub fn tensor(self) -> Option<TensorId> {
        match self {
            Self::Tensor(id) => Some(id),
            Self::Scalar(_) | Self::Stream(_) => None,
        }
    }
}

impl From<TensorId> for Operand {
    fn from(tensor: TensorId) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<ExprId> for Operand {
    fn from(scalar: ExprId) -> Self {
        Self::Scalar(scalar)
    }
}

/// The value of a keyed attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attr {
    /// A tensor operand (`input=`, `buffer=`).
    Tensor(TensorId),
    /// A scalar operand (`peer=`, `index =`).
    Scalar(ExprId),
    /// An iteration domain (`axis =`).
    Axis(AxisId),
    /// A keyword from a fixed list (`type=Allgather`).
    Word(Word),
    /// An arbitrary identifier (`kernel=`).
    Name(String),
    /// An element type.
    DType(DType),
    /// `true`, `false`.
    Bool(bool),
    /// The bytes of the elements of a constant, each from the lowest to the highest (`0x0000803f`). Shared, because they may be many.
    Bytes(Arc<[u8]>),
    /// World ranks (`team=(0 1)`).
    Team(Vec<usize>),
    /// Booleans in braces (`flags={true, false}`).
    Flags(Vec<bool>),
    /// Scalars in braces (`{0, i1}`).
    Scalars(Vec<ExprId>),
    /// Triples of start, stop and step (`{ {0, i1, 1} {0, i2, 1} }`).
    Ranges(Vec<[ExprId; 3]>),
    /// Tensors and scalars in braces (`Inputs:{…}`).
    Values(Vec<Operand>),
    /// A HostUnit.
    Unit(UnitId),
    /// The number of the communication that a Wait waits for.
    Work(u32),
    /// The P2PCommunications listed inside ShareMemHandles.
    Stmts(Vec<StmtId>),
}

/// The attributes without tensors and scalars that the statement uses, as a pattern for matches that name all.
#[macro_export]
macro_rules! constant_attrs {
    () => {
        $crate::ir::Attr::Axis(_)
            | $crate::ir::Attr::Word(_)
            | $crate::ir::Attr::Name(_)
            | $crate::ir::Attr::DType(_)
            | $crate::ir::Attr::Bool(_)
            | $crate::ir::Attr::Bytes(_)
            | $crate::ir::Attr::Team(_)
            | $crate::ir::Attr::Flags(_)
            | $crate::ir::Attr::Unit(_)
            | $crate::ir::Attr::Work(_)
            | $crate::ir::Attr::Stmts(_)
    };
}

impl Attr {
    /// Returns the tensor, or `None` for other attributes.
    pub fn tensor(&self) -> Option<TensorId> {
        match self {
            Self::Tensor(id) => Some(*id),
            _ => None,
        }
    }

    /// Returns whether the value means the same in every program and on every rank, because it names nothing of a program.
    pub fn is_same_everywhere(&self) -> bool {
        matches!(self, Self::Word(_) | Self::Name(_) | Self::DType(_) | Self::Bool(_) | Self::Bytes(_))
    }

    /// Returns whether the attribute is a valid value for an operand or attribute of this kind.
    pub(crate) fn is_valid_for(&self, kind: OperandKind) -> bool {
        match self {
            Self::Tensor(_) => matches!(kind, OperandKind::Tensor | OperandKind::Value),
            Self::Scalar(_) => matches!(kind, OperandKind::Scalar | OperandKind::Value),
            Self::Word(word) => matches!(kind, OperandKind::Word(words) if words.contains(word)),
            Self::Axis(_) => kind == OperandKind::Axis,
            Self::Name(_) => kind == OperandKind::Name,
            Self::DType(_) => kind == OperandKind::DType,
            Self::Bool(_) => kind == OperandKind::Bool,
            Self::Bytes(_) => kind == OperandKind::Bytes,
            Self::Team(_) => kind == OperandKind::Team,
            Self::Flags(_) => kind == OperandKind::Flags,
            Self::Scalars(_) => kind == OperandKind::Scalars,
            Self::Ranges(_) => kind == OperandKind::Ranges,
            Self::Values(_) => kind == OperandKind::Values,
            Self::Unit(_) => kind == OperandKind::Unit,
            Self::Work(_) => kind == OperandKind::Work,
            Self::Stmts(_) => kind == OperandKind::Stmts,
        }
    }
}

/// The kind of an operand or attribute in the op table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandKind {
    /// A tensor.
    Tensor,
    /// A tensor or a scalar.
    Value,
    /// A scalar expression.
    Scalar,
    /// A stream.
    Stream,
    /// An iteration domain.
    Axis,
    /// One of the listed keywords.
    Word(&'static [Word]),
    /// An arbitrary identifier.
    Name,
    /// An element type.
    DType,
    /// `true` or `false`.
    Bool,
    /// The bytes of elements.
    Bytes,
    /// World ranks.
    Team,
    /// Booleans in braces.
    Flags,
    /// Scalars in braces.
    Scalars,
    /// Triples of scalars in braces.
    Ranges,
    /// Tensors and scalars in braces.
    Values,
    /// A HostUnit.
    Unit,
    /// `Communication #`.
    Work,
    /// Complete P2PCommunication statements.
    Stmts,
}

impl OperandKind {
    /// Returns whether this kind denotes an operand. All other kinds are attributes, even in a positional
    /// list.
    pub fn is_operand(self) -> bool {
        match self {
            Self::Tensor | Self::Value | Self::Scalar | Self::Stream => true,
            Self::Axis
            | Self::Word(_)
            | Self::Name
            | Self::DType
            | Self::Bool
            | Self::Bytes
            | Self::Team
            | Self::Flags
            | Self::Scalars
            | Self::Ranges
            | Self::Values
            | Self::Unit
            | Self::Work
            | Self::Stmts => false,
        }
    }
}

/// A Rust type that represents the value of an attribute.
pub trait AttrValue {
    /// The type that `read` returns: the value itself or a slice of its elements.
    type Read<'a>;
    /// The kind that the op table lists for this type.
    const KIND: OperandKind;

    /// Returns the value if the attribute has this type.
    fn read(attr: &Attr) -> Option<Self::Read<'_>>;

    /// Converts the value into an attribute.
    fn into_attr(self) -> Attr;
}

/// Implements the trait for types that are returned by copy and types that are returned as slices, each with
/// its variant of `Attr`.
macro_rules! values {
    (copied { $($copied:ty: $plain:ident,)+ } borrowed { $($owned:ty => $slice:ty: $held:ident,)+ }) => {
        $(impl AttrValue for $copied {
            type Read<'a> = Self;
            const KIND: OperandKind = OperandKind::$plain;

            fn read(attr: &Attr) -> Option<Self> {
                if let Attr::$plain(it) = attr { Some(*it) } else { None }
            }

            fn into_attr(self) -> Attr {
                Attr::$plain(self)
            }
        })+

        $(impl AttrValue for $owned {
            type Read<'a> = &'a $slice;
            const KIND: OperandKind = OperandKind::$held;

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
        Arc<[u8]> => Arc<[u8]>: Bytes,
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

impl AttrValue for TensorOrScalar {
    type Read<'a> = Self;
    const KIND: OperandKind = OperandKind::Value;

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

impl<W: WordList> AttrValue for W {
    type Read<'a> = W;
    const KIND: OperandKind = OperandKind::Word(W::WORDS);

    fn read(attr: &Attr) -> Option<W> {
        if let Attr::Word(word) = attr { W::of(*word) } else { None }
    }

    fn into_attr(self) -> Attr {
        Attr::Word(self.word())
    }
}
