//! Splits `GroupedWelford( … )`, which nvFuser prints over many lines, into its `Welford` operators:
//!
//! ```text
//! GroupedWelford(
//!   T2 (Avg), T3 (Var), T4 (Count)
//!    = Welford ( T1 (Avg), 0 (Var), 1 (Count)
//!     initial value = 0 (Avg), 0 (Var), 0 (Count) )
//!   allreduce = false )
//! ```
//!
//! The variance 0 and the count 1 of single elements, and initial values with the count 0, say what `Welford` means without them. A
//! statement with other ones stays as it is.

use crate::token::{Lexeme, Source, TokenKind};

const GROUPED_WELFORD: &str = "GroupedWelford";

/// Returns the tokens with the operators of each group as statements.
pub(super) fn split_grouped_welford(source: Source<'_>, tokens: Vec<Lexeme>) -> Vec<Lexeme> {
    let is_name = |it: &Lexeme| {
        (it.end - it.start) as usize == GROUPED_WELFORD.len()
            && source.slice(it.start, it.end) == GROUPED_WELFORD
    };
    if !tokens.iter().any(is_name) {
        return tokens;
    }
    let (mut found, mut rest) = (Vec::with_capacity(tokens.len()), &tokens[..]);
    while let Some((first, after)) = rest.split_first() {
        let Some((statements, after)) = is_name(first).then(|| statements(source, *first, after)).flatten()
        else {
            found.push(*first);
            rest = after;
            continue;
        };
        found.extend(statements);
        rest = after;
    }
    found
}

/// Returns the operators of a group, and the tokens behind it.
fn statements<'t>(
    source: Source<'_>,
    name: Lexeme,
    after: &'t [Lexeme],
) -> Option<(Vec<Lexeme>, &'t [Lexeme])> {
    let (members, after) = in_parentheses(after)?;
    let (mut members, shared) = members.split_at_checked(members.len().checked_sub(3)?)?;
    let text = |it: &Lexeme| source.slice(it.start, it.end);
    if members.is_empty() || text(shared.first()?) != "allreduce" {
        return None;
    }
    let mut found = Vec::new();
    while !members.is_empty() {
        let equals = members.iter().position(|it| it.kind == TokenKind::Assign)?;
        let (outs, value) = members.split_at(equals);
        let operator = value.get(..2)?;
        let (operands, rest) = in_parentheses(&value[2..])?;
        let initial = operands.iter().position(|it| text(it) == "initial").unwrap_or(operands.len());
        let (operands, initial) = operands.split_at(initial);
        let last_value =
            |list: &[Lexeme]| list.split(|it| it.kind == TokenKind::Comma).nth(2)?.first().map(text);
        if !initial.is_empty() && last_value(initial) != Some("0") {
            return None;
        }
        let count = if last_value(operands) == Some("1") {
            operands.iter().position(|it| it.kind == TokenKind::Comma)?
        } else {
            operands.len()
        };
        let comma = *operands.iter().find(|it| it.kind == TokenKind::Comma)?;
        let closing = *members.get(members.len() - rest.len() - 1)?;
        let open = value[2];
        let start = found.len();
        found.extend([outs, operator, &[open], &operands[..count], &[comma], shared, &[closing]].concat());
        found[start..].iter_mut().for_each(|it| it.first = false);
        if let Some(first) = found.get_mut(start) {
            (first.first, first.column) = (true, name.column);
        }
        members = rest;
    }
    Some((found, after))
}

/// Returns the tokens between a parenthesis at the beginning and the one that closes it, and those behind it.
fn in_parentheses(tokens: &[Lexeme]) -> Option<(&[Lexeme], &[Lexeme])> {
    let mut depth = 0usize;
    for (at, it) in tokens.iter().enumerate() {
        match it.kind {
            TokenKind::ParenOpen => depth += 1,
            TokenKind::ParenClose => depth = depth.checked_sub(1)?,
            _ => (),
        }
        if depth == 0 {
            return (at > 0).then(|| (&tokens[1..at], &tokens[at + 1..]));
        }
    }
    None
}
