//! The values of attributes, and what a parameter of the op table may be.

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
    /// The tensor, if it is one.
    pub fn tensor(self) -> Option<TensorId> {
        match self {
            Self::Tensor(id) => Some(id),
            Self::Scalar(_) | Self::Stream(_) => None,
        }
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
    /// One of the row's words (`type=Allgather`).
    Word(Word),
    /// A free word (`kernel=`).
    Name(String),
    /// An element type.
    DType(DType),
    /// `true`, `false`.
    Bool(bool),
    /// World ranks.
    Team(Vec<usize>),
    /// `{true, false}`.
    Flags(Vec<bool>),
    /// `{0, i1}`.
    Scalars(Vec<ExprId>),
    /// `{ {0, i1, 1} {0, i2, 1} }`.
    Ranges(Vec<[ExprId; 3]>),
    /// Values in braces (`Inputs:{…}`).
    Values(Vec<Operand>),
    /// A HostUnit.
    Unit(UnitId),
    /// The number of an awaited communication.
    Work(u32),
    /// Statements listed inside ShareMemHandles.
    Stmts(Vec<StmtId>),
}

impl Attr {
    /// Whether a parameter of this kind may have it.
    pub(crate) fn is_valid_for(&self, kind: OperandKind) -> bool {
        match self {
            Self::Tensor(_) => matches!(kind, OperandKind::Tensor | OperandKind::Value),
            Self::Scalar(_) => matches!(kind, OperandKind::Scalar | OperandKind::Value),
            Self::Word(word) => matches!(kind, OperandKind::Word(words) if words.contains(word)),
            Self::Axis(_) => kind == OperandKind::Axis,
            Self::Name(_) => kind == OperandKind::Name,
            Self::DType(_) => kind == OperandKind::DType,
            Self::Bool(_) => kind == OperandKind::Bool,
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

/// What a parameter may be.
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
    /// One of these words.
    Word(&'static [Word]),
    /// Any word.
    Name,
    /// An element type.
    DType,
    /// `true` or `false`.
    Bool,
    /// World ranks.
    Team,
    /// Booleans in braces.
    Flags,
    /// Scalars in braces.
    Scalars,
    /// Triples in braces.
    Ranges,
    /// Tensors and scalars in braces.
    Values,
    /// A HostUnit.
    Unit,
    /// `Communication #`.
    Work,
    /// P2PCommunications in full.
    Stmts,
}

impl OperandKind {
    /// Whether a parameter of this kind is an operand; the others are attributes
    /// wherever they stand.
    pub(crate) fn is_operand(self) -> bool {
        match self {
            Self::Tensor | Self::Value | Self::Scalar | Self::Stream => true,
            Self::Axis
            | Self::Word(_)
            | Self::Name
            | Self::DType
            | Self::Bool
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

/// What the value of an attribute may be.
pub trait AttrValue {
    /// What a reader gets: the value, or a slice of its elements.
    type Read<'a>;
    /// What the text may hold.
    const KIND: OperandKind;

    /// The value, where the attribute is of this type.
    fn read(attr: &Attr) -> Option<Self::Read<'_>>;

    /// The attribute that holds the value.
    fn into_attr(self) -> Attr;
}

/// Values that are copied, and values of which a reader gets a slice, each with the variant of `Attr` that holds them.
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
