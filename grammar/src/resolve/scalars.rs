//! Resolves scalar expressions: names, operators and functions.

use super::{Resolver, argument_errors::found_text};
use crate::{
    ast,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{Expr, ExprId, Function, InfixOp, PrefixOp},
    span::Span,
    suggest::count_text,
};

impl<'s> Resolver<'s> {
    pub(super) fn scalar(&mut self, value: &ast::Expr<'s>) -> Option<ExprId> {
        let expr = match &value.kind {
            ast::ExprKind::Int(it) => Expr::Int(*it),
            ast::ExprKind::Float(it) => Expr::Float(DType::Double, (*it).to_owned()),
            ast::ExprKind::Word("true") => Expr::Bool(true),
            ast::ExprKind::Word("false") => Expr::Bool(false),
            // The name of the index of stream loops until September 2025.
            ast::ExprKind::Word("StreamIdx") => {
                Expr::Symbol(self.program.intern_symbol(self.current_unit, "streamIdx", value.span))
            }
            ast::ExprKind::Word(name) => {
                Expr::Symbol(self.program.intern_symbol(self.current_unit, name, value.span))
            }
            ast::ExprKind::Paren(inner) => return self.scalar(inner),
            ast::ExprKind::Prefix(sign, operand) => {
                let (op, operand) = (self.prefix_op(sign, value.span)?, self.scalar(operand)?);
                // A negated literal becomes a literal, so that each value has one form.
                match self
                    .program
                    .constant(operand)
                    .filter(|_| op == PrefixOp::Neg)
                    .and_then(i64::checked_neg)
                {
                    Some(literal) => Expr::Int(literal),
                    None => Expr::Prefix(op, operand),
                }
            }
            ast::ExprKind::Infix(sign, lhs, rhs) => {
                Expr::Infix(self.infix_op(sign, value.span)?, self.scalar(lhs)?, self.scalar(rhs)?)
            }
            ast::ExprKind::Call { name, number: None, args } => {
                match (DType::from_name(name.text), &args[..]) {
                    (Some(dtype), [literal]) if is_literal(&literal.value) => Expr::Float(
                        dtype,
                        literal.value.span.text(self.source).replace(char::is_whitespace, ""),
                    ),
                    _ => {
                        let args =
                            args.iter().map(|arg| self.scalar(&arg.value)).collect::<Option<Vec<_>>>()?;
                        let integers = args.iter().all(|it| self.program.is_integer(*it));
                        let text = self.resolve_extremum(name.text, name.span, integers);
                        self.call(&ast::Name { text, ..*name }, args)?
                    }
                }
            }
            ast::ExprKind::Braces(items) => {
                Expr::Call(Function::Array, items.iter().map(|it| self.scalar(it)).collect::<Option<_>>()?)
            }
            ast::ExprKind::Call { .. }
            | ast::ExprKind::Tensor(_)
            | ast::ExprKind::Axis(_)
            | ast::ExprKind::Stream(_)
            | ast::ExprKind::Team(_) => {
                let label = format!("this is {}", found_text(value));
                self.error(Code::BadOperands, value.span, "expected a scalar expression", label);
                return None;
            }
        };
        Some(self.program.intern_expr(expr))
    }

    /// Returns the call of the function `name`, if there is one that takes these operands.
    fn call(&mut self, name: &ast::Name<'_>, args: Vec<ExprId>) -> Option<Expr> {
        if let ("neg", [operand]) = (name.text, &args[..]) {
            return Some(Expr::Prefix(PrefixOp::Neg, *operand));
        }
        // A copy of a scalar.
        if let ("Set", [operand]) = (name.text, &args[..]) {
            return Some(self.program.exprs[*operand].clone());
        }
        let Some(function) = Function::from_name(name.text) else {
            let it = Diagnostic::new(
                Code::UnknownOp,
                name.span,
                format!("unknown function `{}`", name.text),
                "expected a function of scalars, such as `ceilDiv`, `max` or `where`",
            );
            self.diagnostics.push(it.suggest(name.text, Function::names()));
            return None;
        };
        if let Some(count) = function.arity().filter(|it| *it != args.len()) {
            let message = format!("`{}` takes {}", name.text, count_text(count, "operand"));
            self.error(Code::BadOperands, name.span, message, format!("this call has {}", args.len()));
            return None;
        }
        Some(Expr::Call(function, args))
    }

    fn prefix_op(&mut self, text: &str, span: Span) -> Option<PrefixOp> {
        let op = PrefixOp::from_text(text);
        self.known_op(op, text, span)
    }

    fn infix_op(&mut self, text: &str, span: Span) -> Option<InfixOp> {
        let op = match text {
            // Spellings that are already reported.
            "=" => Some(InfixOp::Eq),
            "and" => Some(InfixOp::And),
            "or" => Some(InfixOp::Or),
            _ => InfixOp::from_text(text),
        };
        self.known_op(op, text, span)
    }

    fn known_op<T>(&mut self, op: Option<T>, text: &str, span: Span) -> Option<T> {
        if op.is_none() {
            self.error(
                Code::Syntax,
                span,
                format!("unknown operator `{text}`"),
                "expected an arithmetic operator",
            );
        }
        op
    }
}

/// Returns whether a type name before the parenthesized `value` forms a constant. With any other value, it is
/// a conversion.
fn is_literal(value: &ast::Expr<'_>) -> bool {
    match &value.kind {
        ast::ExprKind::Int(_)
        | ast::ExprKind::Float(_)
        | ast::ExprKind::Braces(_)
        | ast::ExprKind::Team(_) => true,
        ast::ExprKind::Word(word) => matches!(*word, "inf" | "nan" | "infinity" | "true" | "false"),
        ast::ExprKind::Prefix("-", it) | ast::ExprKind::Paren(it) => is_literal(it),
        ast::ExprKind::Prefix(..)
        | ast::ExprKind::Infix(..)
        | ast::ExprKind::Call { .. }
        | ast::ExprKind::Tensor(_)
        | ast::ExprKind::Axis(_)
        | ast::ExprKind::Stream(_) => false,
    }
}
