//! Parses the text of tensor tokens and axis tokens.
//!
//! Invariant: nothing here resolves names; the tables of `ir` and `dtype` define the valid words.

mod mesh;
mod spanned_text;

use crate::{
    Named,
    ast::{Expr, ExprKind},
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{AxisKind, AxisSuffix, Memory, Mesh, ParallelType},
    numbering::NUMBER_LIMIT,
    parse::parse_scalar_at,
    span::Span,
};
use mesh::parse_mesh;
pub use spanned_text::SpannedText;
pub(crate) use spanned_text::shortened;
use spanned_text::{matching_bracket, unreadable};

/// The parsed text of a tensor token.
#[derive(Debug)]
pub struct TensorText<'s> {
    /// The number in `T3`.
    pub number: u32,
    /// The memory that contains the tensor.
    pub memory: Memory,
    /// Element type; `None` in dialects that do not print it.
    pub dtype: Option<DType>,
    /// The texts of the axes, for `parse_axis_text`.
    pub axes: Vec<SpannedText<'s>>,
    /// Errors in the commas between the axes.
    pub comma_errors: Vec<Diagnostic>,
    /// `ca_pos( 1 ) produce_pos( 2 )`, verbatim; empty if the text has none.
    pub positions: &'s str,
    /// The device mesh; empty if the text has none.
    pub mesh: Mesh,
    /// Where `DeviceMesh` begins in the whole source; the end of the tensor if the text has none.
    pub mesh_start: u32,
}

/// The parsed text of an axis token.
#[derive(Debug)]
pub struct AxisText<'s> {
    /// Iteration, reduction, broadcast …
    pub kind: AxisKind,
    /// The parallel type: the hardware dimension or the streams over which the iterations are distributed.
    pub parallel: ParallelType,
    /// The number of the axis.
    pub number: u32,
    /// First index, if printed.
    pub start: Option<Expr<'s>>,
    /// Last index plus one, if printed.
    pub stop: Option<Expr<'s>>,
    /// Number of iterations; for a ragged axis, its extents.
    pub extent: Expr<'s>,
    /// Expanded extent of an expanded broadcast.
    pub expanded: Option<Expr<'s>>,
    /// Whether the axis is printed as `Ragged{extents=…}`.
    pub ragged: bool,
    /// The suffix.
    pub suffix: AxisSuffix,
}

/// Parses the text of a tensor token that begins at offset `at` of the whole source.
pub fn parse_tensor_text(text: &str, at: u32) -> Result<TensorText<'_>, Diagnostic> {
    let whole = SpannedText { text, span: Span { start: at, end: at + text.len() as u32 } };
    let open = text.find('[').ok_or_else(|| unreadable(whole, "expected `[` and the tensor's axes"))?;
    let head = whole.slice(0, open).trimmed();
    let (number, name) = head
        .text
        .strip_prefix('T')
        .and_then(|it| it.split_once('_'))
        .ok_or_else(|| unreadable(head, "expected `T<number>_<memory>[_<type>]`"))?;
    let digits = head.slice(1, 1 + number.len());
    let (memory, dtype) = memory_and_type(head.slice(2 + number.len(), 2 + number.len() + name.len()))?;
    check_axis_brackets(whole, open)?;
    let close =
        matching_bracket(text, open).ok_or_else(|| unreadable(whole, "expected `]` after the axes"))?;
    let tail = whole.slice(close + 1, text.len());
    check_mesh_word(tail)?;
    let mut brackets = tail.text.match_indices('(').map(|(at, _)| at);
    let is_mesh = |at: &usize| tail.text.get(*at..).is_some_and(|it| it.starts_with("(DeviceMesh"));
    let mesh_at = brackets.find(is_mesh).unwrap_or(tail.text.len());
    let mesh = tail.slice(mesh_at, tail.text.len()).trimmed();
    let mut commas = Vec::new();
    let axes = split_axes(whole.slice(open + 1, close), &mut commas);
    Ok(TensorText {
        number: self::parse_number(digits)?,
        memory,
        dtype,
        axes,
        comma_errors: commas,
        positions: tail.slice(0, mesh_at).trimmed().text,
        // The parenthesis before the word is one byte.
        mesh_start: if mesh.text.is_empty() { whole.span.end } else { mesh.span.start + 1 },
        mesh: if mesh.text.is_empty() { Mesh::default() } else { parse_mesh(mesh)? },
    })
}

/// Checks the brackets of the axes, which begin at byte `open`.
fn check_axis_brackets(whole: SpannedText<'_>, open: usize) -> Result<(), Diagnostic> {
    // The open brackets and their offsets; the first one is the `{` of an axis.
    let mut opened: Vec<(u8, usize)> = Vec::new();
    for (at, byte) in whole.text.bytes().enumerate().skip(open + 1) {
        let place = whole.slice(at, at + 1).span;
        match (byte, opened.last().copied()) {
            (b'(', None) => {
                let message = "write the extent of an axis in braces";
                let inner = whole.text.get(at + 1..).and_then(|it| it.split_once(')'));
                let label = inner
                    .map_or("expected `{`".to_owned(), |(it, _)| format!("expected `{{{}}}`", shortened(it)));
                let end = inner.map_or(at + 1, |(it, _)| at + it.len() + 2);
                return Err(Diagnostic::new(Code::BadTensor, whole.slice(at, end).span, message, label));
            }
            (b'}' | b')', None) => {
                let (closer, opener) = if byte == b'}' { ('}', '{') } else { (')', '(') };
                let message = format!("this `{closer}` closes no `{opener}`");
                return Err(Diagnostic::new(
                    Code::BadTensor,
                    place,
                    message,
                    "expected `]`, or another axis",
                ));
            }
            (b'{', None) | (b'{' | b'(' | b'[', Some(_)) => opened.push((byte, at)),
            (b'}' | b')' | b']', Some((opener, begun))) => {
                let closer = match opener {
                    b'{' => '}',
                    b'(' => ')',
                    _ => ']',
                };
                if byte != closer as u8 {
                    let of = if opened.len() == 1 { " of the axis" } else { "" };
                    let message = format!("the `{}`{of} is never closed", char::from(opener));
                    let end = Span { end: place.start, ..place };
                    let label = format!("expected `{closer}` here");
                    return Err(Diagnostic::new(Code::BadTensor, end, message, label)
                        .label(whole.slice(begun, begun + 1).span, "opened here"));
                }
                opened.pop();
            }
            (b']', None) => return Ok(()),
            _ => (),
        }
    }
    Ok(())
}

/// Checks the word and the parentheses of the mesh in the text after the axes.
fn check_mesh_word(tail: SpannedText<'_>) -> Result<(), Diagnostic> {
    let it = tail.trimmed();
    if it.text.starts_with("(DeviceMesh") {
        return Ok(());
    }
    let inner = it.text.trim_start_matches('(');
    let word = inner.split('{').next().unwrap_or("");
    let is_word = !word.is_empty() && word.bytes().all(|it| it.is_ascii_alphabetic());
    if !is_word || !word.to_ascii_lowercase().ends_with("mesh") || !inner.contains('{') {
        return Ok(());
    }
    let list = inner.get(word.len()..).unwrap_or("").trim_end_matches(')');
    let expected = format!("expected `(DeviceMesh{list})`");
    let message = if word == "DeviceMesh" {
        "write a mesh in parentheses".to_owned()
    } else {
        format!("`{word}` is not a mesh")
    };
    Err(Diagnostic::new(Code::BadTensor, it.span, message, expected))
}

/// Parses the text of an axis token that begins at offset `at` of the whole source.
pub fn parse_axis_text(text: &str, at: u32) -> Result<AxisText<'_>, Diagnostic> {
    let whole = SpannedText { text, span: Span { start: at, end: at + text.len() as u32 } };
    let open = text.find('{').ok_or_else(|| {
        let number = text.trim().bytes().all(|it| it.is_ascii_digit());
        let label = if number {
            format!(
                "expected the kind, the number and the extent of the axis, such as `iS0{{{}}}`",
                text.trim()
            )
        } else {
            "expected an axis, such as `iS0{8}`".to_owned()
        };
        Diagnostic::new(Code::BadTensor, whole.span, format!("`{}` is not an axis", shortened(text)), label)
    })?;
    let close =
        matching_bracket(text, open).ok_or_else(|| unreadable(whole, "expected `}` after the extent"))?;
    let head = whole.slice(0, open);
    let ragged = head.text.ends_with("Ragged");
    let head = head.slice(0, head.text.len() - if ragged { "Ragged".len() } else { 0 });
    let word = head.text.trim_end_matches(|it: char| it.is_ascii_digit());
    let digits = head.slice(word.len(), head.text.len());
    let (kind, rest) = longest_match(AxisKind::LETTERS, word).ok_or_else(|| {
        let message = format!("the axis `{}` has no kind", head.text);
        let label = "expected `i` (iteration), `r` (reduction), `b` (broadcast) … before the parallel type";
        Diagnostic::new(Code::BadTensor, head.span, message, label)
    })?;
    let parallel = match longest_match(ParallelType::WORDS, rest) {
        Some((parallel, "")) => parallel,
        Some(_) | None => {
            let place = head.slice(word.len() - rest.len(), word.len());
            let message = format!("`{rest}` is not a parallel type");
            let label = "expected `S`, `deviceIdx.x`, `streamIdx` …";
            let words = ParallelType::WORDS.iter().map(|(word, _)| *word).filter(|it| it.len() > 2);
            return Err(Diagnostic::new(Code::BadTensor, place.span, message, label).suggest(rest, words));
        }
    };
    let inner = whole.slice(open + 1, close);
    if digits.text.is_empty() {
        let message = format!("the axis `{}` has no number", head.text);
        let label = format!("expected a number before `{{`, as in `{}0{{…}}`", head.text);
        return Err(Diagnostic::new(Code::BadTensor, head.span, message, label));
    }
    if inner.text.trim().is_empty() {
        let place = whole.slice(open, close + 1).span;
        let message = format!("the axis `{}` has no extent", head.text);
        return Err(Diagnostic::new(
            Code::BadTensor,
            place,
            message,
            "expected an extent, such as `{8}` or `{i0}`",
        ));
    }
    let inner = if ragged {
        let list = inner.text.trim_start().strip_prefix("extents");
        let list = list.and_then(|it| it.trim_start().strip_prefix('='));
        let list = list.ok_or_else(|| unreadable(inner, "expected `extents=`"))?;
        inner.slice(inner.text.len() - list.len(), inner.text.len())
    } else {
        inner
    };
    let (range, expanded) = match inner.split_once(" ex ") {
        Some((range, expanded)) => (range, Some(parse_extent(expanded)?)),
        None => (inner, None),
    };
    let (start, stop, extent) = match range.split(":").as_slice() {
        [extent] => (None, None, *extent),
        [start, extent] => (Some(*start), None, *extent),
        [start, stop, extent] => (Some(*start), Some(*stop), *extent),
        _ => return Err(unreadable(range, "expected `extent`, `start : extent` or `start : stop : extent`")),
    };
    // `split` drops an empty part behind the last colon.
    if range.text.trim_end().ends_with(':') {
        return Err(unreadable(range, "expected an extent behind the last `:`"));
    }
    Ok(AxisText {
        kind,
        parallel,
        number: parse_number(digits)?,
        start: start.map(parse_extent).transpose()?,
        stop: stop.map(parse_extent).transpose()?,
        extent: parse_extent(extent)?,
        expanded,
        ragged,
        suffix: suffix(whole.slice(close + 1, text.len()))?,
    })
}

/// Splits the axes of a tensor. Reports each missing, doubled or trailing comma and continues.
fn split_axes<'s>(list: SpannedText<'s>, commas: &mut Vec<Diagnostic>) -> Vec<SpannedText<'s>> {
    let mut res = Vec::new();
    let mut rest = Some(list).filter(|it| !it.trimmed().text.is_empty());
    while let Some(it) = rest {
        let (element, behind) = match it.split_once(",") {
            Some((element, behind)) => (element, Some(behind)),
            None => (it, None),
        };
        let mut element = element.trimmed();
        if element.text.is_empty() {
            // This comma has no axis before it, or it is the last text of the list.
            let last = list.slice(0, (it.span.start - list.span.start) as usize);
            let place = match behind {
                Some(behind) => Span { start: behind.span.start - 1, end: behind.span.start },
                None => Span { start: last.span.end.saturating_sub(1), end: last.span.end },
            };
            let message = "this comma has no axis on one side";
            commas.push(
                Diagnostic::new(Code::Syntax, place, message, "expected an axis on both sides")
                    .fix(place, ""),
            );
        }
        while let Some(next) = second_axis(element) {
            let (first, second) = (element.slice(0, next).trimmed(), element.slice(next, element.text.len()));
            let gap = Span { start: first.span.end, end: first.span.end };
            let name = |it: SpannedText<'_>| it.text.split('{').next().unwrap_or("").to_owned();
            let message = format!("a comma is missing between `{}` and `{}`", name(first), name(second));
            let comma = if first.span.end == second.span.start { ", " } else { "," };
            commas.push(Diagnostic::new(Code::Syntax, gap, message, "expected `,` here").fix(gap, comma));
            res.push(first);
            element = second;
        }
        res.extend((!element.text.is_empty()).then_some(element));
        rest = behind;
    }
    res
}

/// Returns the offset at which a second axis begins in the text between two commas, if there is one.
fn second_axis(element: SpannedText<'_>) -> Option<usize> {
    let close = matching_bracket(element.text, element.text.find('{')?)?;
    let behind = element.text.get(close + 1..)?;
    let (_, rest) = AxisSuffix::split(behind);
    let begins = rest.trim_start();
    let kind = longest_match(AxisKind::LETTERS, begins.split('{').next().unwrap_or(""));
    (kind.is_some() && begins.contains('{')).then_some(element.text.len() - begins.len())
}

/// Parses the text after an axis, which must be a suffix.
fn suffix(behind: SpannedText<'_>) -> Result<AxisSuffix, Diagnostic> {
    match AxisSuffix::split(behind.text) {
        (suffix, rest) if rest.trim().is_empty() => Ok(suffix),
        _ => {
            let piece = behind.trimmed();
            let message = format!("unexpected `{}` after the axis", shortened(piece.text));
            let label = "expected `,`, `]`, or one of the suffixes `rf`, `_p` and `_c`";
            Err(Diagnostic::new(Code::BadTensor, piece.span, message, label))
        }
    }
}

fn parse_number(digits: SpannedText<'_>) -> Result<u32, Diagnostic> {
    let number = digits.text.parse().ok().filter(|it| *it < NUMBER_LIMIT);
    number.ok_or_else(|| {
        if !digits.text.is_empty() && digits.text.bytes().all(|it| it.is_ascii_digit()) {
            Diagnostic::new(
                Code::BadTensor,
                digits.span,
                format!("the number {} is too large", digits.text),
                format!("the largest number is {}", NUMBER_LIMIT - 1),
            )
        } else {
            unreadable(digits, "expected a number")
        }
    })
}

fn parse_extent(piece: SpannedText<'_>) -> Result<Expr<'_>, Diagnostic> {
    let piece = piece.trimmed();
    if piece.text.is_empty() {
        return Err(unreadable(piece, "expected an extent"));
    }
    // Most extents are a single number or name and need no grammar.
    let bytes = piece.text.as_bytes();
    if let (true, Ok(value)) = (bytes.iter().all(u8::is_ascii_digit), piece.text.parse()) {
        return Ok(Expr { span: piece.span, kind: ExprKind::Int(value) });
    }
    // `T3` is a tensor; the grammar decides what it means here.
    let is_tensor = bytes[0] == b'T' && bytes[1..].iter().all(u8::is_ascii_digit);
    if !is_tensor && bytes[0].is_ascii_alphabetic() && bytes.iter().all(u8::is_ascii_alphanumeric) {
        return Ok(Expr { span: piece.span, kind: ExprKind::Word(piece.text) });
    }
    parse_scalar_at(piece.text, piece.span.start).map_err(|errors| {
        errors.into_iter().next().unwrap_or_else(|| unreadable(piece, "expected a scalar expression"))
    })
}

/// Words for memory spaces, and what a tensor's text has instead.
const MEMORY_NAMES: [(&str, &str); 6] = [
    ("global", "g"),
    ("local", "l"),
    ("shared", "s"),
    ("tensor", "t"),
    ("symmetric", "sym"),
    ("symm", "sym"),
];

/// Parses the memory letter and the element type after it.
fn memory_and_type(name: SpannedText<'_>) -> Result<(Memory, Option<DType>), Diagnostic> {
    let (letter, dtype) = match name.text.split_once('_') {
        Some((letter, dtype)) => (letter, Some(dtype)),
        None => (name.text, None),
    };
    let memory = Memory::of_name(letter);
    let memory = memory.ok_or_else(|| {
        let place = name.slice(0, letter.len());
        let label = "expected `g` (global), `sym` (symmetric), `l`, `s` or `t`";
        let it =
            Diagnostic::new(Code::BadTensor, place.span, format!("`{letter}` is not a memory space"), label);
        match MEMORY_NAMES.iter().find(|(word, _)| letter.eq_ignore_ascii_case(word)) {
            Some((_, meant)) => it.help(format!("did you mean `{meant}`?")),
            // `T0_float`: the memory space is missing.
            None if dtype.is_none() && DType::from_common_name(letter).is_some() => {
                it.help("a tensor is spelled `T0_g_float[…]`: with the memory space before the element type")
            }
            None => it,
        }
    })?;
    let dtype = match dtype {
        Some(text) => Some(DType::from_name(text).ok_or_else(|| {
            let place = name.slice(letter.len() + 1, name.text.len());
            let message = format!("unknown element type `{text}`");
            let label = "expected a type such as `float`, `__half` or `__bfloat`";
            let it = Diagnostic::new(Code::BadTensor, place.span, message, label);
            match DType::from_common_name(text) {
                Some(meant) => it.help(format!("did you mean `{meant}`?")),
                None => it.suggest(text, DType::ALL.iter().map(|it| it.name())),
            }
        })?),
        None => None,
    };
    Ok((memory, dtype))
}

/// Returns the table entry whose word is the longest prefix of `text`, and the rest of `text`.
fn longest_match<'s, T: Copy>(table: &[(&str, T)], text: &'s str) -> Option<(T, &'s str)> {
    // Entries are compared in place: each axis of a text looks up two of them.
    let fitting = table.iter().filter(|(word, _)| text.starts_with(word));
    let (word, value) = fitting.max_by_key(|(word, _)| word.len())?;
    Some((*value, text.get(word.len()..)?))
}
