//! Scans a text into tokens.

use logos::{Lexer, Logos};
use rustc_hash::FxHashSet;

use crate::{
    codes::Code,
    diagnostic::{Diagnostic, TRUNCATED_HELP},
    escape_control,
    ir::Comment,
    raw_bytes::raw_byte,
    span::Span,
};
use hir_syntax::token::{Lexeme, ScanError, ScanLimit, Source, TokenKind, UnclosedToken};

/// Scans `source` into tokens and appends its comments and errors to `comments` and `diagnostics`. Returns the tokens and the byte offset,
/// relative to the text, at which scanning stopped.
pub fn scan(
    source: Source<'_>,
    until: ScanLimit,
    comments: &mut Vec<Comment>,
    diagnostics: &mut Vec<Diagnostic>,
) -> (Vec<Lexeme>, usize) {
    let mut lexer = TokenKind::lexer(source.text);
    let scanned = scan_tokens(source, until, &mut lexer, diagnostics);
    comments.extend(lexer.extras.into_iter().map(|it| {
        let (start, end) = (source.base + it.span.start, source.base + it.span.end);
        Comment { span: Span { start, end }, ..it }
    }));
    scanned
}

fn scan_tokens<'s>(
    source: Source<'s>,
    until: ScanLimit,
    lexer: &mut Lexer<'s, TokenKind>,
    diagnostics: &mut Vec<Diagnostic>,
) -> (Vec<Lexeme>, usize) {
    let mut res: Vec<Lexeme> = Vec::new();
    // A container that lost its first line is open from the start.
    let headless = source.text.trim_start().starts_with("HOST");
    let (mut previous, mut depth, mut opened) = (0, usize::from(headless), headless);
    // Before the first line of the container, braces are those of `%options` and of tensors.
    let mut is_before_header = false;
    let mut bad_until = None;
    let mut unclosed = FxHashSet::default();
    while let Some(item) = lexer.next() {
        let range = lexer.span();
        let span = Span { start: source.base + range.start as u32, end: source.base + range.end as u32 };
        let kind = match item {
            Ok(kind) => kind,
            Err(ScanError::Unknown) => {
                // A run of invalid characters is reported once.
                let quoted = quoted_word(source.text, range.start);
                if bad_until.is_none_or(|end| end < range.start) {
                    diagnostics.push(match quoted {
                        Some(word) => quoted_token(word, span),
                        None => unknown_token(lexer.slice(), span),
                    });
                }
                // The closing quote belongs to the opening one.
                bad_until = Some(range.end + quoted.map_or(0, |word| word.len() + 1)).max(bad_until);
                continue;
            }
            Err(ScanError::Unclosed(fault)) => {
                // Texts repeat their tensors; each is reported once.
                if unclosed.insert(lexer.slice()) || fault.at_end {
                    diagnostics.push(unclosed_token(fault, lexer.slice(), span));
                }
                fault.kind
            }
        };
        let gap = source.text.get(previous..range.start).unwrap_or("");
        let newline = gap.rfind('\n');
        let first = newline.is_some() || res.is_empty();
        let blanks = newline.map_or(gap, |at| gap.get(at + 1..).unwrap_or(""));
        let column = if first { blanks_width(blanks) } else { 0 };
        let begins_line = first && blanks.is_empty();
        if until == ScanLimit::ContainerEnd {
            match kind {
                TokenKind::OptionsStart | TokenKind::DeclarationStart if res.is_empty() => {
                    is_before_header = true;
                }
                TokenKind::ContainerStart if opened => return (res, range.start),
                TokenKind::ContainerStart => is_before_header = false,
                // The sections follow the closing brace; here it is missing.
                TokenKind::Word if opened && begins_line && is_section(source.text.get(range.start..)) => {
                    return (res, range.start);
                }
                TokenKind::BraceOpen | TokenKind::BraceClose if is_before_header => (),
                TokenKind::BraceOpen => (depth, opened) = (depth + 1, true),
                TokenKind::PostInputsPhrase | TokenKind::PostPhrase if !lexer.slice().starts_with('}') => {
                    depth += 1
                }
                TokenKind::WaitPhrase => depth += 1,
                TokenKind::BraceClose => depth = depth.saturating_sub(1),
                _ => (),
            }
        }
        if kind == TokenKind::Int {
            let negative = res.last().is_some_and(|it| it.kind == TokenKind::Minus);
            check_number(lexer.slice(), negative, span, diagnostics);
        }
        res.push(Lexeme { kind, first, column, start: span.start, end: span.end });
        previous = range.end;
        if until == ScanLimit::ContainerEnd && kind == TokenKind::EndDot {
            return (res, range.end);
        }
        if until == ScanLimit::ContainerEnd && kind == TokenKind::BraceClose && opened && depth == 0 {
            // An extra brace in the middle of a line does not close the container.
            let rest = lexer.remainder().trim_start_matches([' ', '\t', '\r']);
            if first || rest.is_empty() || rest.starts_with("//") {
                return (res, range.end);
            }
            depth = 1;
        }
    }
    (res, source.text.len())
}

/// Returns whether a section after the container begins here.
fn is_section(text: Option<&str>) -> bool {
    text.is_some_and(|it| it.starts_with("Index definitions:") || it.starts_with("Domains:"))
}

fn blanks_width(blanks: &str) -> u16 {
    let columns =
        blanks.bytes().fold(0usize, |at, byte| if byte == b'\t' { (at / 8 + 1) * 8 } else { at + 1 });
    u16::try_from(columns).unwrap_or(u16::MAX)
}

fn check_number(text: &str, negative: bool, span: Span, diagnostics: &mut Vec<Diagnostic>) {
    let limit = i64::MAX as u64 + u64::from(negative);
    if !text.parse::<u64>().is_ok_and(|it| it <= limit) {
        diagnostics.push(Diagnostic::new(
            Code::BadNumber,
            span,
            "the number does not fit in 64 bits",
            "expected a value below 2^63",
        ));
    }
}

/// Returns the word in quotes that begins at byte `at`.
fn quoted_word(text: &str, at: usize) -> Option<&str> {
    let rest = text.get(at..)?;
    let quote = rest.chars().next().filter(|it| matches!(it, '"' | '\''))?;
    let inner = rest.get(1..)?;
    let word = inner.get(..inner.find(quote)?)?;
    word.chars().all(|it| it.is_alphanumeric() || it == '_').then_some(word)
}

fn quoted_token(word: &str, span: Span) -> Diagnostic {
    let whole = Span { start: span.start, end: span.end + word.len() as u32 + 1 };
    let label = format!("expected `{word}`");
    Diagnostic::new(Code::BadToken, whole, "a word is written without quotes", label).fix(whole, word)
}

fn unknown_token(text: &str, span: Span) -> Diagnostic {
    if let Some(byte) = text.chars().next().and_then(raw_byte) {
        let message = format!("the byte 0x{byte:02x} is not UTF-8");
        return Diagnostic::new(Code::BadToken, span, message, "not part of the language")
            .help("check the encoding of the file: dumps contain only ASCII");
    }
    let shown = escape_control(&text.chars().take(8).collect::<String>());
    let res = Diagnostic::new(
        Code::BadToken,
        span,
        format!("unexpected character `{shown}`"),
        "not part of the language",
    );
    if text.starts_with('@') {
        res.help("write `matmul(a, b)`, or `linear(x, weight)` for a transposed weight")
    } else if text.is_ascii() {
        res
    } else {
        res.help("check whether an editor changed the text: dumps contain only ASCII")
    }
}

fn unclosed_token(fault: UnclosedToken, text: &str, span: Span) -> Diagnostic {
    let (noun, bracket) = if fault.kind == TokenKind::Tensor { ("tensor", '[') } else { ("axis", '{') };
    let at = span.start + text.find(bracket).unwrap_or(0) as u32;
    let place = Span { start: at, end: at + 1 };
    let code = if fault.at_end { Code::Truncated } else { Code::BadTensor };
    let message = format!("the `{bracket}` of the {noun} is never closed");
    let it = Diagnostic::new(code, place, message, "opened here");
    it.help(match bracket {
        _ if fault.at_end => TRUNCATED_HELP,
        '[' => "write `]` after the last axis",
        _ => "write `}` after the extent",
    })
}
