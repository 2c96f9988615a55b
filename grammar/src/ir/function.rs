//! The functions of scalar expressions.

use std::{borrow::Cow, fmt};

use crate::{
    dtype::DType,
    ops::{AsmFormat, OPS, Op, OpClass, OpDef},
};

/// A function of scalars. The elementwise operators of the op table are the functions with names, so their names and
/// numbers of operands are in the table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Function {
    /// `ceilDiv(a, b)`, `max(a, b)`, `where(c, a, b)`, …
    Op(Op),
    /// A conversion, `__to_index(x)`.
    Cast(DType),
    /// An array, `{a, b}`.
    Array,
    /// An element of an array, `(a)[i]`.
    Element,
    /// A member of a structure, with its dot: `(a).logical_size`.
    Member(String),
}

impl Function {
    /// Returns the function that is written like this, except `neg`, which is a prefix operator.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "[]" => Some(Self::Element),
            _ if name.starts_with('.') => Some(Self::Member(name.to_owned())),
            _ => Op::lookup(name)
                .iter()
                .find(|op| is_function(op.def()))
                .map(|op| Self::Op(*op))
                .or_else(|| cast(name).map(Self::Cast)),
        }
    }

    /// Returns the names of the elementwise operators, to suggest one of them.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        OPS.iter().filter(|row| is_function(row)).map(|row| row.mnemonic)
    }

    /// Returns the name as it is printed.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Self::Op(op) => op.name().into(),
            Self::Cast(to) => to.cast_name().into(),
            Self::Array => "{}".into(),
            Self::Element => "[]".into(),
            Self::Member(name) => name.into(),
        }
    }

    /// Returns the number of operands, or `None` if it may be any.
    pub(crate) fn arity(&self) -> Option<usize> {
        match self {
            Self::Op(op) => Some(op.def().args.len()),
            Self::Cast(_) | Self::Member(_) => Some(1),
            Self::Element => Some(2),
            Self::Array => None,
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// Returns the type to which the conversion of a scalar converts.
fn cast(name: &str) -> Option<DType> {
    let named = DType::ALL.iter().copied().find(|it| it.cast_name() == name);
    named.or_else(|| DType::of_cast(name).filter(|_| DType::is_cast_name(name)))
}

fn is_function(row: &OpDef) -> bool {
    row.class == OpClass::Elementwise && row.format == AsmFormat::Function
}
