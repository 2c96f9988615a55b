//! Constructors that the grammar's actions share.

use crate::{
    ast::{Arg, Expr, ExprKind, Name},
    span::Span,
};

pub(crate) fn span(start: u32, end: u32) -> Span {
    Span { start, end }
}

pub(crate) fn expr<'s>(start: u32, kind: ExprKind<'s>, end: u32) -> Expr<'s> {
    Expr { span: span(start, end), kind }
}

pub(crate) fn call<'s>(
    start: u32,
    name: Name<'s>,
    number: Option<i64>,
    args: Vec<Arg<'s>>,
    end: u32,
) -> Expr<'s> {
    expr(start, ExprKind::Call { name, number, args }, end)
}

pub(crate) fn args<'s>(values: impl IntoIterator<Item = Expr<'s>>) -> Vec<Arg<'s>> {
    values.into_iter().map(|value| Arg { key: None, value }).collect()
}

/// `op x`; the sign of an integer literal becomes part of it.
pub(crate) fn prefix<'s>(start: u32, op: &'s str, x: Expr<'s>, end: u32) -> Expr<'s> {
    let kind = match (op, x.kind) {
        ("-", ExprKind::Int(n)) => ExprKind::Int(n.wrapping_neg()),
        (_, kind) => ExprKind::Prefix(op, Box::new(Expr { span: x.span, kind })),
    };
    expr(start, kind, end)
}

/// The value of an integer whose range was checked when it was scanned: 2^63 stands only behind a minus sign, which
/// turns the wrapped value into the right one.
pub(crate) fn number(text: &str) -> i64 {
    text.parse::<u64>().unwrap_or_default() as i64
}

/// The type inside `(double)`.
pub(crate) fn cast_name(start: u32, text: &str, end: u32) -> Name<'_> {
    let inner = text.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or(text);
    Name { text: inner.trim(), span: span(start, end) }
}
