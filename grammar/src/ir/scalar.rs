//! Scalar expressions and named scalars. Equal expressions have one id; a name has one id in each namespace.

use std::collections::HashMap;

use rustc_hash::FxHashMap;

use super::{ExprId, Function, Program, SymbolId, UnitId};
use crate::{
    dtype::{Class, DType},
    ops::Op,
    scalar_op::{InfixOp, PrefixOp},
    span::Span,
};

/// A scalar expression.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// An integer, a boolean or an index.
    Int(i64),
    /// `true` or `false`.
    Bool(bool),
    /// `float(0)`: the type and the literal as it is written.
    Float(DType, String),
    /// A named scalar.
    Symbol(SymbolId),
    /// Prefix operator.
    Prefix(PrefixOp, ExprId),
    /// Infix operator.
    Infix(InfixOp, ExprId, ExprId),
    /// `ceilDiv(a, b)`, `where(a, b, c)`, …
    Call(Function, Vec<ExprId>),
}

/// The names that have a value in every program, with what it is.
const PREDEFINED_NAMES: [(&str, &str); 3] = [
    ("rank", "the rank that runs the program"),
    ("deviceIdx.x", "the rank that runs the program"),
    ("numberOfStreams", "the number of streams, which `%options` states"),
];

/// Returns whether a scalar of this name is an integer.
pub(crate) fn is_integer_name(name: &str) -> bool {
    let number = name.strip_prefix('i').unwrap_or("-");
    let is_numbered = !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit());
    is_numbered || matches!(name, "rank" | "deviceIdx.x" | "streamIdx" | "numberOfStreams")
}

/// Returns the meaning that a name has in every program.
pub fn predefined_meaning(name: &str) -> Option<&'static str> {
    PREDEFINED_NAMES.iter().find(|(known, _)| *known == name).map(|(_, meaning)| *meaning)
}

impl Program {
    /// Returns the id of an expression; equal expressions have the same id.
    pub fn intern_expr(&mut self, expr: Expr) -> ExprId {
        if let Some(id) = self.expr_ids.get(&expr) {
            return *id;
        }
        let id = self.exprs.push(expr.clone());
        self.expr_ids.insert(expr, id);
        id
    }

    /// Returns the id of an integer constant.
    pub fn intern_int(&mut self, value: i64) -> ExprId {
        self.intern_expr(Expr::Int(value))
    }

    /// Returns the value of an integer literal, or `None` for any other expression.
    pub fn constant(&self, expr: ExprId) -> Option<i64> {
        match &self.exprs[expr] {
            Expr::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns true if an expression is an integer wherever it has a value.
    ///
    /// nvFuser's names imply types: `i84`, the names of loop indices, `rank` and `numberOfStreams` are integers,
    /// `d3` is a floating-point number and `b5` is a boolean.
    pub fn is_integer(&self, expr: ExprId) -> bool {
        let are_integers = |all: &[ExprId]| all.iter().all(|it| self.is_integer(*it));
        match &self.exprs[expr] {
            Expr::Int(_) => true,
            Expr::Bool(_) | Expr::Float(..) => false,
            Expr::Symbol(symbol) => is_integer_name(&self.symbols[*symbol]),
            Expr::Prefix(op, operand) => *op != PrefixOp::Not && self.is_integer(*operand),
            Expr::Infix(op, lhs, rhs) => !op.is_boolean() && are_integers(&[*lhs, *rhs]),
            Expr::Call(Function::Op(Op::CeilDiv | Op::Gcd), _) => true,
            Expr::Call(Function::Op(Op::Max | Op::Min | Op::Abs), args) => are_integers(args),
            Expr::Call(Function::Op(Op::Where), args) => are_integers(args.get(1..).unwrap_or_default()),
            Expr::Call(Function::Cast(to), _) => to.class() == Class::Int,
            Expr::Call(..) => false,
        }
    }

    /// Appends the symbols in an expression, in order of appearance.
    pub fn collect_symbols(&self, expr: ExprId, acc: &mut Vec<SymbolId>) {
        match &self.exprs[expr] {
            Expr::Int(_) | Expr::Bool(_) | Expr::Float(..) => (),
            Expr::Symbol(symbol) => acc.push(*symbol),
            Expr::Prefix(_, operand) => self.collect_symbols(*operand, acc),
            Expr::Infix(_, lhs, rhs) => {
                self.collect_symbols(*lhs, acc);
                self.collect_symbols(*rhs, acc);
            }
            Expr::Call(_, args) => args.iter().for_each(|arg| self.collect_symbols(*arg, acc)),
        }
    }

    /// Returns the id of the named scalar `name` in the namespace of `unit` (`None`: the container). A new
    /// scalar is recorded as first mentioned at `span`.
    pub fn intern_symbol(&mut self, unit: Option<UnitId>, name: &str, span: Span) -> SymbolId {
        let key = (unit, name.to_owned());
        if let Some(id) = self.symbol_ids.get(&key) {
            return *id;
        }
        self.spans.add_symbol(span);
        let id = self.symbols.push(name.to_owned());
        self.symbol_ids.insert(key, id);
        id
    }

    /// Returns the named scalars of a HostUnit, in the order in which its text mentions them.
    pub(crate) fn symbols_of(&self, unit: UnitId) -> Vec<SymbolId> {
        let own = self.symbol_ids.iter().filter(|((owner, _), _)| *owner == Some(unit)).map(|(_, id)| *id);
        let mut symbols: Vec<SymbolId> = own.collect();
        symbols.sort_unstable();
        symbols
    }

    /// Renames named scalars. No two scalars of a namespace that the program mentions may have the same name
    /// afterwards.
    pub fn rename_symbols(&mut self, names: &FxHashMap<SymbolId, String>) {
        let (mut renamed, mut named) = (Vec::new(), HashMap::new());
        for ((unit, name), id) in std::mem::take(&mut self.symbol_ids) {
            match names.get(&id) {
                Some(new) => renamed.push(((unit, new.clone()), id)),
                None => _ = named.insert((unit, name), id),
            }
        }
        // A renamed scalar replaces an unmentioned scalar of the same name.
        named.extend(renamed);
        self.symbol_ids = named;
        for (id, name) in names {
            name.clone_into(&mut self.symbols[*id]);
        }
    }

    /// Returns the container's scalar with this name, if the program mentions it.
    pub fn find_symbol(&self, name: &str) -> Option<SymbolId> {
        self.symbol_ids.get(&(None, name.to_owned())).copied()
    }
}
