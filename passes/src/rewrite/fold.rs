//! Folds constants in scalar expressions. Folding is exact: an expression that has a value keeps it, on every
//! rank and in every iteration.
//!
//! An expression that would overflow or divide by zero is left unchanged, so that the planner can report it.
//! Floating-point expressions are also left unchanged.

use grammar::{
    Expr, ExprId, Function, InfixOp, PrefixOp, Program, SymbolId,
    arithmetic::{self, Constant},
};
use rustc_hash::FxHashMap;

/// An inclusive range of values.
type ValueRange = (i64, i64);

/// What is known about symbols at an expression.
#[derive(Default)]
pub struct ConstantFolder {
    /// Ranges of the indices of the enclosing loops.
    pub ranges: FxHashMap<SymbolId, ValueRange>,
}

/// Returns the value of a constant expression.
fn constant(program: &Program, expr: ExprId) -> Option<Constant> {
    match &program.exprs[expr] {
        Expr::Int(value) => Some(Constant::Int(*value)),
        Expr::Bool(value) => Some(Constant::Bool(*value)),
        _ => None,
    }
}

fn literal(program: &mut Program, value: Constant) -> ExprId {
    program.intern_expr(match value {
        Constant::Int(value) => Expr::Int(value),
        Constant::Bool(value) => Expr::Bool(value),
    })
}

/// Returns the truth value of a constant predicate.
pub fn truth(program: &Program, expr: ExprId) -> Option<bool> {
    constant(program, expr).map(|it| it.as_int() != 0)
}

/// Returns the negation of a predicate.
pub fn negate(program: &mut Program, expr: ExprId) -> ExprId {
    let negated = match &program.exprs[expr] {
        Expr::Bool(value) => Expr::Bool(!value),
        Expr::Prefix(PrefixOp::Not, inner) if is_boolean(program, *inner) => return *inner,
        Expr::Infix(InfixOp::Eq, a, b) => Expr::Infix(InfixOp::Ne, *a, *b),
        Expr::Infix(InfixOp::Ne, a, b) => Expr::Infix(InfixOp::Eq, *a, *b),
        // With a NaN, neither of two opposite comparisons holds, so only integer comparisons are inverted.
        Expr::Infix(InfixOp::Lt, a, b) if are_integers(program, &[*a, *b]) => {
            Expr::Infix(InfixOp::Ge, *a, *b)
        }
        Expr::Infix(InfixOp::Le, a, b) if are_integers(program, &[*a, *b]) => {
            Expr::Infix(InfixOp::Gt, *a, *b)
        }
        Expr::Infix(InfixOp::Gt, a, b) if are_integers(program, &[*a, *b]) => {
            Expr::Infix(InfixOp::Le, *a, *b)
        }
        Expr::Infix(InfixOp::Ge, a, b) if are_integers(program, &[*a, *b]) => {
            Expr::Infix(InfixOp::Lt, *a, *b)
        }
        Expr::Int(_)
        | Expr::Float(..)
        | Expr::Symbol(_)
        | Expr::Prefix(..)
        | Expr::Infix(..)
        | Expr::Call(..) => Expr::Prefix(PrefixOp::Not, expr),
    };
    program.intern_expr(negated)
}

fn are_integers(program: &Program, exprs: &[ExprId]) -> bool {
    exprs.iter().all(|expr| program.is_integer(*expr))
}

/// Returns true if an expression is a boolean wherever it has a value.
fn is_boolean(program: &Program, expr: ExprId) -> bool {
    match &program.exprs[expr] {
        Expr::Bool(_) => true,
        Expr::Int(_) | Expr::Float(..) | Expr::Symbol(_) | Expr::Call(..) => false,
        Expr::Prefix(op, _) => *op == PrefixOp::Not,
        Expr::Infix(op, ..) => op.is_boolean(),
    }
}

impl ConstantFolder {
    /// Simplifies an expression without changing its value.
    pub fn fold(&self, program: &mut Program, expr: ExprId) -> ExprId {
        match program.exprs[expr].clone() {
            Expr::Int(_) | Expr::Bool(_) | Expr::Float(..) | Expr::Symbol(_) => expr,
            Expr::Prefix(op, operand) => {
                let operand = self.fold(program, operand);
                let value = constant(program, operand).and_then(|it| arithmetic::fold_prefix(op, it));
                match (value, op, &program.exprs[operand]) {
                    (Some(value), ..) => literal(program, value),
                    (None, PrefixOp::Not, Expr::Prefix(PrefixOp::Not, inner))
                        if is_boolean(program, *inner) =>
                    {
                        *inner
                    }
                    (None, ..) => program.intern_expr(Expr::Prefix(op, operand)),
                }
            }
            Expr::Infix(op, lhs, rhs) => {
                let (lhs, rhs) = (self.fold(program, lhs), self.fold(program, rhs));
                self.infix(program, op, lhs, rhs)
            }
            Expr::Call(function, args) => {
                let args: Vec<ExprId> = args.iter().map(|arg| self.fold(program, *arg)).collect();
                let values: Option<Vec<Constant>> = args.iter().map(|arg| constant(program, *arg)).collect();
                let value = match (&function, values) {
                    (Function::Op(op), Some(values)) => arithmetic::fold_call(*op, &values),
                    _ => None,
                };
                match value {
                    Some(value) => literal(program, value),
                    None => program.intern_expr(Expr::Call(function, args)),
                }
            }
        }
    }

    /// Simplifies an infix expression whose operands are already simplified.
    fn infix(&self, program: &mut Program, op: InfixOp, lhs: ExprId, rhs: ExprId) -> ExprId {
        let (a, b) = (constant(program, lhs), constant(program, rhs));
        let value = a.zip(b).and_then(|(a, b)| arithmetic::fold_infix(op, a, b));
        if let Some(value) = value.or_else(|| self.compare(program, op, lhs, rhs)) {
            return literal(program, value);
        }
        use Constant::{Bool, Int};
        use InfixOp::{Add, And, BitOr, BitXor, Div, Mul, Or, Rem, Shl, Shr, Sub};
        let neutral = match (op, a, b) {
            (Add | Sub | Shl | Shr | BitOr | BitXor, _, Some(Int(0))) | (Mul | Div, _, Some(Int(1))) => {
                program.is_integer(lhs).then_some(lhs)
            }
            (Add | BitOr | BitXor, Some(Int(0)), _) | (Mul, Some(Int(1)), _) => {
                program.is_integer(rhs).then_some(rhs)
            }
            (And, _, Some(Bool(true))) | (Or, _, Some(Bool(false))) => {
                is_boolean(program, lhs).then_some(lhs)
            }
            (And, Some(Bool(true)), _) | (Or, Some(Bool(false)), _) => {
                is_boolean(program, rhs).then_some(rhs)
            }
            (Rem, _, Some(Int(modulus))) => {
                let within = |(low, high): &ValueRange| *low >= 0 && *high < modulus;
                self.range(program, lhs).filter(within).map(|_| lhs)
            }
            _ => None,
        };
        neutral.unwrap_or_else(|| program.intern_expr(Expr::Infix(op, lhs, rhs)))
    }

    /// Evaluates a comparison that has the same result for all possible values of its sides.
    fn compare(&self, program: &Program, op: InfixOp, lhs: ExprId, rhs: ExprId) -> Option<Constant> {
        if !op.is_comparison() {
            return None;
        }
        let ((a, b), (c, d)) = (self.range(program, lhs)?, self.range(program, rhs)?);
        let less = if b < c { Some(true) } else { (a >= d).then_some(false) };
        let greater = if a > d { Some(true) } else { (b <= c).then_some(false) };
        let differ = (b < c || a > d).then_some(true);
        let value = match op {
            InfixOp::Lt => less,
            InfixOp::Gt => greater,
            InfixOp::Le => greater.map(|it| !it),
            InfixOp::Ge => less.map(|it| !it),
            InfixOp::Ne => differ,
            _ => differ.map(|it| !it),
        };
        value.map(Constant::Bool)
    }

    /// Returns the range of an expression of loop indices, or `None` if it is unknown.
    fn range(&self, program: &Program, expr: ExprId) -> Option<ValueRange> {
        match &program.exprs[expr] {
            Expr::Int(value) => Some((*value, *value)),
            Expr::Symbol(symbol) => self.ranges.get(symbol).copied(),
            Expr::Infix(op @ (InfixOp::Add | InfixOp::Sub), lhs, rhs) => {
                let ((a, b), (c, d)) = (self.range(program, *lhs)?, self.range(program, *rhs)?);
                match *op {
                    InfixOp::Add => a.checked_add(c).zip(b.checked_add(d)),
                    _ => a.checked_sub(d).zip(b.checked_sub(c)),
                }
            }
            _ => None,
        }
    }
}
