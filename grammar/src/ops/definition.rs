//! The types that describe an operator of the op table, its operands and its attributes.

use super::{Op, TypeRule};
use crate::attr::{Attr, AttrName, Key, OperandKind};

/// The definition of an operator.
#[derive(Clone, Copy, Debug)]
pub struct OpDef {
    /// The operator.
    pub op: Op,
    /// Its name in the text.
    pub mnemonic: &'static str,
    /// Names in other versions of nvFuser with the same meaning.
    pub aliases: &'static [&'static str],
    /// The textual format of the statement.
    pub format: AsmFormat,
    /// Results, left of `=`.
    pub outs: &'static [OperandDef],
    /// Positional operands.
    pub args: &'static [OperandDef],
    /// Keyed operands and attributes.
    pub attrs: &'static [OperandDef],
    /// The type rule: how the results follow from the operands.
    pub type_rule: TypeRule,
    /// The class, which determines the behaviour at run time.
    pub class: OpClass,
    /// One line of documentation, printed by `--list-ops`.
    pub doc: &'static str,
}

/// The definition of an operand or attribute.
#[derive(Clone, Copy, Debug)]
pub struct OperandDef {
    /// Its key in the text; for a positional operand, a name that diagnostics use.
    pub name: &'static str,
    /// The kind of value.
    pub kind: OperandKind,
    /// How the operator accesses it.
    pub access: AccessMode,
    /// How many times it occurs.
    pub arity: Arity,
}

/// How an operator accesses the elements of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessMode {
    /// Reads its elements.
    Read,
    /// Writes its elements.
    Write,
    /// Reads or writes, depending on `type=` of the same statement (send reads, recv writes).
    Transfer,
    /// Binds the name to storage or to a view; accesses no elements.
    Bind,
    /// Accesses no elements: only the name, the shape or the scalar value is used.
    NoAccess,
}

/// How many times an operand or attribute occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    /// Exactly once.
    One,
    /// At most once.
    Optional,
    /// Any number of times; for the last operand only.
    Many,
}

/// The format of a statement in canonical text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AsmFormat {
    /// `out = name(a, key=value)`, one line.
    Call,
    /// `out⏎   = name( a, key = value )`.
    Padded,
    /// `out⏎   = name(a,⏎            b)`.
    Wrapped,
    /// `out⏎   = name(a, b);`.
    Function,
    /// `out⏎   = a⏎   + b;`.
    Infix,
    /// `out⏎   = -a;`.
    Prefix,
    /// `name # (key=value)`.
    Numbered,
    /// `name(a)`, without a result.
    Statement,
    /// `name` or `name #`.
    Bare,
    /// `name {⏎  a⏎}`.
    Block,
    /// `PostOnStream (HostUnit5, Inputs:{a}, Outputs:{b})`.
    Post,
    /// `LaunchKernel(⏎  Group ID: 0,⏎  Inputs: {a},⏎  Outputs: {b},⏎)`.
    Launch,
}

impl AsmFormat {
    /// Returns whether a number between the name and the operands identifies the statement.
    pub fn has_number(self) -> bool {
        match self {
            Self::Numbered | Self::Bare => true,
            Self::Call
            | Self::Padded
            | Self::Wrapped
            | Self::Function
            | Self::Infix
            | Self::Prefix
            | Self::Statement
            | Self::Block
            | Self::Post
            | Self::Launch => false,
        }
    }
}

/// The class of an operator: what it does at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpClass {
    /// Computes its results from its operands, on the current stream.
    Compute,
    /// As `Compute`, element by element; the operator determines the function.
    Elementwise,
    /// Binds its result to a view of its operand.
    View,
    /// Binds its result to storage.
    Allocate,
    /// Releases a name.
    Deallocate,
    /// Posts a transfer between ranks; the statement's number identifies the work.
    Communicate,
    /// Makes the current stream wait for posted work.
    Wait,
    /// Sets, captures or synchronizes streams.
    Stream,
    /// Blocks the host until a tensor is computed, and leaves the loop around it if the tensor is false.
    Condition,
    /// Begins or ends a group of communications that are posted together.
    Coalescing,
    /// Shares memory handles of buffers with peers; blocks the host.
    ShareHandles,
    /// Runs a HostUnit on the current stream.
    HostUnit,
    /// Runs a kernel whose code is not in the text.
    Opaque,
}

/// The classes of what computes, or names, allocates or frees tensors, as a pattern for matches that name all.
#[macro_export]
macro_rules! local_classes {
    () => {
        $crate::ops::OpClass::Compute
            | $crate::ops::OpClass::Elementwise
            | $crate::ops::OpClass::View
            | $crate::ops::OpClass::Allocate
            | $crate::ops::OpClass::Deallocate
    };
}

/// The classes not among `local_classes`: what communicates, orders statements, or runs code that is elsewhere.
#[macro_export]
macro_rules! other_classes {
    () => {
        $crate::ops::OpClass::Communicate
            | $crate::ops::OpClass::Wait
            | $crate::ops::OpClass::Stream
            | $crate::ops::OpClass::Condition
            | $crate::ops::OpClass::Coalescing
            | $crate::ops::OpClass::ShareHandles
            | $crate::ops::OpClass::HostUnit
            | $crate::ops::OpClass::Opaque
    };
}

impl OperandDef {
    /// Returns the key of an attribute.
    pub const fn key(&self) -> AttrName {
        AttrName(self.name)
    }
}

impl OpDef {
    /// Returns the number of an attribute among the positional and keyed ones.
    pub(crate) fn attr_number(&self, name: AttrName) -> u8 {
        self.args.iter().chain(self.attrs).take_while(|it| it.key() != name).count() as u8
    }

    /// Returns whether the operator has an attribute of this name and kind.
    pub(crate) fn takes(&self, name: AttrName, attr: &Attr) -> bool {
        let mut params = self.args.iter().chain(self.attrs);
        params.any(|it| it.key() == name && attr.is_valid_for(it.kind))
    }

    /// Returns the definition of an attribute.
    pub(crate) fn attr_def<T>(&self, key: Key<T>) -> Option<&'static OperandDef> {
        self.attrs.iter().find(|it| it.key() == key)
    }
}
