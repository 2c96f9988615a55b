//! Shorthands for the definitions of the op table: operands, attributes, and the defaults of operators that
//! have the same form.

use super::{AccessMode, Arity, AsmFormat, Op, OpClass, OpDef, OperandDef, TypeRule};
use crate::{
    attr::{AttrValue, Key, OperandKind},
    ids::TensorId,
};

pub(super) const fn operand(
    name: &'static str,
    kind: OperandKind,
    mode: AccessMode,
    count: Arity,
) -> OperandDef {
    OperandDef { name, kind, access: mode, arity: count }
}

/// Defines a positional operand whose elements are not accessed.
pub(super) const fn no_access(name: &'static str, kind: OperandKind) -> OperandDef {
    operand(name, kind, AccessMode::NoAccess, Arity::One)
}

pub(super) const fn keyed<T: AttrValue>(key: Key<T>, mode: AccessMode, count: Arity) -> OperandDef {
    operand(key.name().0, T::KIND, mode, count)
}

pub(super) const fn attr<T: AttrValue>(key: Key<T>) -> OperandDef {
    keyed(key, AccessMode::NoAccess, Arity::One)
}

pub(super) const fn opt<T: AttrValue>(key: Key<T>) -> OperandDef {
    keyed(key, AccessMode::NoAccess, Arity::Optional)
}

pub(super) const fn reads<T: AttrValue>(key: Key<T>) -> OperandDef {
    keyed(key, AccessMode::Read, Arity::One)
}

pub(super) const fn writes<T: AttrValue>(key: Key<T>) -> OperandDef {
    keyed(key, AccessMode::Write, Arity::One)
}

pub(super) const fn opt_read(key: Key<TensorId>) -> OperandDef {
    keyed(key, AccessMode::Read, Arity::Optional)
}

pub(super) const fn read(name: &'static str) -> OperandDef {
    operand(name, OperandKind::Tensor, AccessMode::Read, Arity::One)
}

pub(super) const fn value(name: &'static str) -> OperandDef {
    operand(name, OperandKind::Value, AccessMode::Read, Arity::One)
}

pub(super) const fn write(name: &'static str) -> OperandDef {
    operand(name, OperandKind::Tensor, AccessMode::Write, Arity::One)
}

/// The seed of random numbers: a tensor or a scalar.
pub(super) const SEED: OperandDef = operand("seed", OperandKind::Value, AccessMode::Read, Arity::Optional);

pub(super) const RESULT: &[OperandDef] = &[write("out")];
pub(super) const BIND: &[OperandDef] = &[operand("out", OperandKind::Tensor, AccessMode::Bind, Arity::One)];
pub(super) const OPERAND: &[OperandDef] = &[read("in")];
pub(super) const TWO: &[OperandDef] = &[value("lhs"), value("rhs")];
pub(super) const THREE: &[OperandDef] = &[value("a"), value("b"), value("c")];

/// The default values of a definition; operators that compute tensors begin with `call`, which takes their type rule.
pub(super) const DEFAULT_DEF: OpDef = OpDef {
    op: Op::Set,
    mnemonic: "",
    aliases: &[],
    format: AsmFormat::Padded,
    outs: RESULT,
    args: OPERAND,
    attrs: &[],
    type_rule: TypeRule::Statement,
    class: OpClass::Compute,
    doc: "",
};
pub(super) const STATEMENT_DEF: OpDef =
    OpDef { format: AsmFormat::Statement, outs: &[], args: &[], ..DEFAULT_DEF };

/// Defines an operator that computes tensors.
pub(super) const fn call(mnemonic: &'static str, type_rule: TypeRule) -> OpDef {
    OpDef { mnemonic, type_rule, ..DEFAULT_DEF }
}

pub(super) const fn unary(mnemonic: &'static str) -> OpDef {
    OpDef {
        mnemonic,
        format: AsmFormat::Function,
        type_rule: TypeRule::Pointwise,
        class: OpClass::Elementwise,
        ..DEFAULT_DEF
    }
}

pub(super) const fn prefix(mnemonic: &'static str) -> OpDef {
    OpDef { format: AsmFormat::Prefix, ..unary(mnemonic) }
}

pub(super) const fn binary(mnemonic: &'static str) -> OpDef {
    OpDef { args: TWO, ..unary(mnemonic) }
}

pub(super) const fn infix(mnemonic: &'static str) -> OpDef {
    OpDef { format: AsmFormat::Infix, ..binary(mnemonic) }
}

pub(super) const fn ternary(mnemonic: &'static str) -> OpDef {
    OpDef { args: THREE, ..unary(mnemonic) }
}
