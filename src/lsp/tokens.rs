//! Semantic tokens: the words of the text by what they are in the tables of the language.

use grammar::{
    OPS, Op, Span,
    attr::OperandKind,
    scan::scan,
    token::{ScanLimit, Source, TokenKind},
};
use lsp_types::{SemanticToken, SemanticTokenType, SemanticTokensLegend};
use rustc_hash::FxHashSet;

use crate::snapshot::Snapshot;

/// The kinds of tokens, in the order of the legend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Keyword,
    Operator,
    Function,
    Tensor,
    TensorType,
    Scalar,
    Number,
    Attribute,
    Word,
    Unit,
    Section,
    Comment,
}

/// Each kind with its name in the protocol.
const KINDS: [(Kind, SemanticTokenType); 12] = [
    (Kind::Keyword, SemanticTokenType::KEYWORD),
    (Kind::Operator, SemanticTokenType::OPERATOR),
    (Kind::Function, SemanticTokenType::FUNCTION),
    (Kind::Tensor, SemanticTokenType::VARIABLE),
    (Kind::TensorType, SemanticTokenType::TYPE),
    (Kind::Scalar, SemanticTokenType::PARAMETER),
    (Kind::Number, SemanticTokenType::NUMBER),
    (Kind::Attribute, SemanticTokenType::PROPERTY),
    (Kind::Word, SemanticTokenType::ENUM_MEMBER),
    (Kind::Unit, SemanticTokenType::CLASS),
    (Kind::Section, SemanticTokenType::MACRO),
    (Kind::Comment, SemanticTokenType::COMMENT),
];

/// Returns the names of the kinds.
pub(crate) fn legend() -> SemanticTokensLegend {
    SemanticTokensLegend { token_types: KINDS.map(|it| it.1).into(), token_modifiers: Vec::new() }
}

/// Returns the tokens of all programs of a text.
pub(crate) fn tokens(snapshot: &Snapshot) -> Vec<SemanticToken> {
    let text = snapshot.text();
    let (keys, words) = (attribute_keys(), attribute_words());
    let mut found: Vec<(Span, Kind)> = Vec::new();
    for program in &snapshot.programs {
        let (start, end) = snapshot.extent(program);
        let own = text.get(start..end).unwrap_or("");
        let (mut comments, mut faults) = (Vec::new(), Vec::new());
        let (lexemes, _) =
            scan(Source { text: own, base: start as u32 }, ScanLimit::TextEnd, &mut comments, &mut faults);
        found.extend(comments.iter().map(|it| (it.span, Kind::Comment)));
        for (at, it) in lexemes.iter().enumerate() {
            let span = it.span();
            let next = lexemes.get(at + 1).map(|it| it.kind);
            let word = span.text(text);
            match it.kind {
                TokenKind::Tensor => {
                    let name = word.find('_').unwrap_or(word.len()) as u32;
                    found.push((Span { end: span.start + name, ..span }, Kind::Tensor));
                    if (name as usize) < word.len() {
                        found.push((Span { start: span.start + name, ..span }, Kind::TensorType));
                    }
                }
                TokenKind::Axis => found.push((span, Kind::TensorType)),
                TokenKind::Word => {
                    let is_key = next == Some(TokenKind::Assign) && keys.contains(word);
                    let kind = if is_key {
                        Kind::Attribute
                    } else if !Op::lookup(word).is_empty() {
                        Kind::Function
                    } else if words.contains(word) {
                        Kind::Word
                    } else if word.starts_with("HostUnit") {
                        Kind::Unit
                    } else if program.find_symbol(word).is_some() {
                        Kind::Scalar
                    } else {
                        continue;
                    };
                    found.push((span, kind));
                }
                TokenKind::Int | TokenKind::Float => found.push((span, Kind::Number)),
                TokenKind::For
                | TokenKind::If
                | TokenKind::Else
                | TokenKind::In
                | TokenKind::From
                | TokenKind::To
                | TokenKind::Into
                | TokenKind::Stream => found.push((span, Kind::Keyword)),
                TokenKind::ContainerStart
                | TokenKind::KernelStart
                | TokenKind::OptionsStart
                | TokenKind::DeclarationStart
                | TokenKind::EndDot => found.push((span, Kind::Section)),
                // Punctuation, and what the editor's grammar colours.
                _ if Op::lookup(word).is_empty() => (),
                _ => found.push((span, Kind::Operator)),
            }
        }
    }
    found.sort_by_key(|it| it.0);
    encoded(snapshot, &found)
}

/// Encodes tokens as the protocol does: relative to the one before, each on one line.
fn encoded(snapshot: &Snapshot, found: &[(Span, Kind)]) -> Vec<SemanticToken> {
    let text = snapshot.text();
    let mut tokens = Vec::new();
    let (mut line, mut column) = (0, 0);
    let mut done = 0;
    for (span, kind) in found {
        // A comment contains no tokens.
        if span.start < done {
            continue;
        }
        done = span.end;
        let mut start = span.start;
        for part in span.text(text).split_inclusive('\n') {
            let visible = part.trim_end_matches(['\r', '\n']);
            if !visible.is_empty() {
                let at = snapshot.positions.position(text, start);
                if at.line != line {
                    column = 0;
                }
                let position = KINDS.iter().position(|it| it.0 == *kind);
                tokens.push(SemanticToken {
                    delta_line: at.line - line,
                    delta_start: at.character - column,
                    length: visible.encode_utf16().count() as u32,
                    token_type: position.unwrap_or(0) as u32,
                    token_modifiers_bitset: 0,
                });
                (line, column) = (at.line, at.character);
            }
            start += part.len() as u32;
        }
    }
    tokens
}

/// Returns the keys of all attributes.
fn attribute_keys() -> FxHashSet<&'static str> {
    OPS.iter().flat_map(|it| it.args.iter().chain(it.attrs)).map(|it| it.name).collect()
}

/// Returns the words that attributes take.
fn attribute_words() -> FxHashSet<&'static str> {
    let attrs = OPS.iter().flat_map(|it| it.args.iter().chain(it.attrs));
    let words = attrs.filter_map(|it| match it.kind {
        OperandKind::Word(words) => Some(words),
        _ => None,
    });
    words.flatten().map(|it| it.text()).collect()
}
