//! Scalar expressions.

use grammar::{Expr, ExprId, InfixOp, Program, Span, SymbolId};

/// Returns a named scalar as an expression.
pub fn symbol(program: &mut Program, symbol: SymbolId) -> ExprId {
    program.intern_expr(Expr::Symbol(symbol))
}

/// Returns `( lhs op rhs )`.
pub fn infix(program: &mut Program, op: InfixOp, lhs: ExprId, rhs: ExprId) -> ExprId {
    program.intern_expr(Expr::Infix(op, lhs, rhs))
}

/// Returns the scalar `rank`.
pub fn rank(program: &mut Program) -> ExprId {
    let rank = program.intern_symbol(None, "rank", Span::default());
    symbol(program, rank)
}
