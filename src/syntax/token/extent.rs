//! Finds the end of a token: of a tensor or an axis, whose brackets are balanced, and of a comment.

use logos::Lexer;

use super::{ScanError, TokenKind, UnclosedToken};
use crate::{comment::Comment, span::Span};

pub(super) fn tensor(lexer: &mut Lexer<'_, TokenKind>) -> Result<(), ScanError> {
    let rest = lexer.remainder().as_bytes();
    let (taken, closed) = balanced_length(rest, b'[');
    // With an error inside the brackets the token is still the whole tensor; `parse_tensor_text` reports the error.
    let (taken, closed) = if closed {
        (taken, true)
    } else if rest.get(..taken + 1).is_some_and(|it| it.ends_with(b"}}")) {
        // `T0_g_float[iS0{4}}`.
        (taken + 1, true)
    } else {
        axes_end(rest).map_or((taken, false), |end| (end, true))
    };
    if !closed {
        lexer.bump(next_char_boundary(lexer.remainder(), taken));
        return Err(ScanError::Unclosed(UnclosedToken {
            kind: TokenKind::Tensor,
            at_end: taken == rest.len(),
        }));
    }
    let mut end = taken;
    while let Some(next) = group_end(rest, end, POSITION_HEADS) {
        end = next;
    }
    let end =
        group_end(rest, end, &["(DeviceMesh"]).or_else(|| misspelled_mesh_end(rest, end)).unwrap_or(end);
    lexer.bump(next_char_boundary(lexer.remainder(), end));
    Ok(())
}

/// Returns the end of the axes of a tensor in which a bracket is not closed or is of the wrong kind: the first `]`
/// on the same line, if it ends an axis.
fn axes_end(rest: &[u8]) -> Option<usize> {
    let line = rest.iter().position(|it| *it == b'\n').unwrap_or(rest.len());
    let close = rest.get(..line)?.iter().position(|it| matches!(it, b']' | b'[' | b'=' | b';'))?;
    let ends_axis = close > 0 && matches!(rest[close - 1], b'}' | b')' | b'0'..=b'9');
    (rest[close] == b']' && ends_axis).then_some(close + 1)
}

/// Returns the end of a mesh after `from` that is misspelled: `(Devicemesh{0 1})`, `DeviceMesh{0 1}`.
fn misspelled_mesh_end(rest: &[u8], from: usize) -> Option<usize> {
    let blanks = rest.get(from..)?.iter().take_while(|it| matches!(it, b' ' | b'\t')).count();
    let tail = rest.get(from + blanks..)?;
    let open = usize::from(tail.first() == Some(&b'('));
    let word = tail.get(open..)?.iter().take_while(|it| it.is_ascii_alphabetic()).count();
    let name = tail.get(open..open + word)?;
    let brace = open + word;
    let is_mesh = name.to_ascii_lowercase().ends_with(b"mesh") && tail.get(brace) == Some(&b'{');
    if !is_mesh {
        return None;
    }
    let list = tail.get(brace + 1..)?;
    let (inner, closed) = balanced_length(list, b'{');
    // `(DeviceMesh{0 1)`.
    let numbers = list.get(..inner)?.iter().all(|it| it.is_ascii_digit() || matches!(it, b' ' | b','));
    if !closed && open == 1 && numbers && list.get(inner) == Some(&b')') {
        return Some(from + blanks + brace + 1 + inner + 1);
    }
    let end = brace + 1 + inner;
    let behind = end + usize::from(open == 1 && tail.get(end) == Some(&b')'));
    closed.then_some(from + blanks + behind)
}

/// Skips a comment. It ends with its line, or, in a dump folded into one line, after the name that follows a
/// closing brace.
pub(super) fn comment(lexer: &mut Lexer<'_, TokenKind>) {
    const CLOSERS: [&str; 3] = [" %HostIrContainer", " %kernel_math", " %kernel"];
    let rest = lexer.remainder();
    if let Some(closer) = CLOSERS.iter().find(|it| rest.starts_with(**it)) {
        return lexer.bump(closer.len());
    }
    lexer.bump(rest.find('\n').unwrap_or(rest.len()));
    hash_comment(lexer);
}

/// Records a comment.
pub(super) fn hash_comment(lexer: &mut Lexer<'_, TokenKind>) {
    let range = lexer.span();
    let before = lexer.source().get(..range.start).unwrap_or("").trim_end_matches([' ', '\t', '\r']);
    let is_alone = before.is_empty() || before.ends_with('\n');
    let end = range.start + lexer.slice().trim_end().len();
    lexer.extras.push(Comment { span: Span::new(range.start, end), is_alone });
}

const POSITION_HEADS: &[&str] = &["ca_pos(", "compute_with(", "produce_pos(", "maybe_produce_pos("];

/// Returns the end of a parenthesized group after `from` that begins with one of `heads`.
fn group_end(rest: &[u8], from: usize, heads: &[&str]) -> Option<usize> {
    let blanks = rest.get(from..)?.iter().take_while(|it| it.is_ascii_whitespace()).count();
    let tail = rest.get(from + blanks..)?;
    let head = heads.iter().find(|it| tail.starts_with(it.as_bytes()))?;
    let inner = head.find('(').map_or(head.len(), |at| at + 1);
    let (taken, closed) = balanced_length(tail.get(inner..)?, b'(');
    closed.then_some(from + blanks + inner + taken)
}

pub(super) fn axis(lexer: &mut Lexer<'_, TokenKind>) -> Result<(), ScanError> {
    let rest = lexer.remainder().as_bytes();
    let (mut end, closed) = balanced_length(rest, b'{');
    if !closed {
        lexer.bump(next_char_boundary(lexer.remainder(), end));
        return Err(ScanError::Unclosed(UnclosedToken { kind: TokenKind::Axis, at_end: end == rest.len() }));
    }
    for suffix in ["rf", "_p", "_c"] {
        if rest.get(end..).is_some_and(|it| it.starts_with(suffix.as_bytes())) {
            end += suffix.len();
        }
    }
    lexer.bump(next_char_boundary(lexer.remainder(), end));
    Ok(())
}

/// Rounds `at` up to the next character boundary.
fn next_char_boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|it| text.is_char_boundary(*it)).unwrap_or(text.len())
}

/// Returns the number of bytes up to and including the closing bracket of `open` and true, or the number of
/// bytes after which that bracket can no longer follow and false.
fn balanced_length(rest: &[u8], open: u8) -> (usize, bool) {
    const DEEPEST: usize = 256;
    let mut stack = [0u8; DEEPEST];
    stack[0] = open;
    let mut depth = 1;
    for (at, byte) in rest.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' if depth == 1 && open == b'[' && *byte != b'{' => return (at, false),
            b'(' | b'[' | b'{' if depth == DEEPEST => return (at, false),
            b'(' | b'[' | b'{' => {
                stack[depth] = *byte;
                depth += 1;
            }
            b')' | b']' | b'}' => {
                let matching = match byte {
                    b')' => b'(',
                    b']' => b'[',
                    _ => b'{',
                };
                if stack[depth - 1] != matching {
                    return (at, false);
                }
                depth -= 1;
                if depth == 0 {
                    return (at + 1, true);
                }
            }
            b';' => return (at, false),
            b'=' | b'+' | b'-' | b'*' | b'%' | b'<' | b'>' if depth == 1 && open == b'[' => {
                return (at, false);
            }
            _ => (),
        }
    }
    (rest.len(), false)
}
