//! Constructors that the actions of the grammar share.

use lalrpop_util::{ErrorRecovery, ParseError};

use crate::{
    ast::{Arg, Expr, ExprKind, Name},
    span::Span,
    token::{Token, TokenKind},
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

/// The tags that nvFuser prints behind the tensors of a Welford operator.
const WELFORD_TAGS: [&str; 3] = ["Avg", "Var", "Count"];

/// Returns the error about a word in parentheses behind a tensor that is not a tag of Welford.
pub(crate) fn check_tag(tag: Name<'_>) -> Option<ErrorRecovery<u32, Token<'_>, ()>> {
    let token = Token { kind: TokenKind::Word, text: tag.text };
    let error = ParseError::UnrecognizedToken {
        token: (tag.span.start, token, tag.span.end),
        expected: WELFORD_TAGS.iter().map(|it| (*it).to_owned()).collect(),
    };
    let is_tag = WELFORD_TAGS.contains(&tag.text);
    (!is_tag).then_some(ErrorRecovery { error, dropped_tokens: Vec::new() })
}

/// Builds `op x`. A minus sign before an integer literal becomes part of the literal.
pub(crate) fn prefix<'s>(start: u32, op: &'s str, x: Expr<'s>, end: u32) -> Expr<'s> {
    let kind = match (op, x.kind) {
        ("-", ExprKind::Int(n)) => ExprKind::Int(n.wrapping_neg()),
        (_, kind) => ExprKind::Prefix(op, Box::new(Expr { span: x.span, kind })),
    };
    expr(start, kind, end)
}

/// Infix operators by precedence, loosest first, in C's order.
const PRECEDENCE_LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", "<=", ">", ">="],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

fn precedence(op: &str) -> usize {
    PRECEDENCE_LEVELS.iter().position(|tier| tier.contains(&op)).unwrap_or(0)
}

/// Builds the tree of a chain of infix operators, all of which are left-associative.
pub(crate) fn infix_tree<'s>(first: Expr<'s>, rest: Vec<(&'s str, Expr<'s>)>) -> Expr<'s> {
    let mut values = vec![first];
    let mut ops: Vec<&'s str> = Vec::new();
    let fold = |values: &mut Vec<Expr<'s>>, op: &'s str| {
        if let (Some(rhs), Some(lhs)) = (values.pop(), values.pop()) {
            let (start, end) = (lhs.span.start, rhs.span.end);
            values.push(expr(start, ExprKind::Infix(op, Box::new(lhs), Box::new(rhs)), end));
        }
    };
    for (op, value) in rest {
        while let Some(before) = ops.pop_if(|before| precedence(before) >= precedence(op)) {
            fold(&mut values, before);
        }
        ops.push(op);
        values.push(value);
    }
    while let Some(op) = ops.pop() {
        fold(&mut values, op);
    }
    values.swap_remove(0)
}

/// Returns the value of an integer whose range the scanner has checked. 2^63 occurs only after a minus sign;
/// negation turns its wrapped value into the right one.
pub(crate) fn number(text: &str) -> i64 {
    text.parse::<u64>().unwrap_or_default() as i64
}

/// Returns the name that a cast such as `(double)` has had since July 2025.
pub(crate) fn cast_name(start: u32, text: &str, end: u32) -> Name<'_> {
    let inner = text.strip_prefix('(').and_then(|it| it.strip_suffix(')')).unwrap_or(text).trim();
    let known = CASTS.iter().find(|(from, _)| *from == inner);
    Name { text: known.map_or(inner, |(_, to)| to), span: span(start, end) }
}

const CASTS: [(&str, &str); 10] = [
    ("double", "__to_double"),
    ("float", "__to_float"),
    ("int64_t", "__to_int64_t"),
    ("int", "__to_int"),
    ("nvfuser_index_t", "__to_index"),
    ("bool", "__to_bool"),
    ("uint64_t", "__to_uint64_t"),
    ("uint32_t", "__to_uint32_t"),
    ("int16_t", "__to_int16_t"),
    ("int8_t", "__to_int8_t"),
];
