//! Parses the device mesh of a tensor.

use super::spanned_text::{SpannedText, matching_bracket, shortened, unreadable};
use crate::{codes::Code, diagnostic::Diagnostic, ir::Mesh, span::Span};

/// Parses `(DeviceMesh{0 1})`, `(DeviceMesh{0, 1, })` or `(DeviceMesh{{0 1}{2 3}})`. nvFuser prints a comma
/// after every device or after none.
pub(super) fn parse_mesh(piece: SpannedText<'_>) -> Result<Mesh, Diagnostic> {
    let inner = piece.text.strip_prefix("(DeviceMesh").and_then(|it| it.strip_suffix(')'));
    let inner = inner.map(str::trim).filter(|it| !it.is_empty());
    let inner = inner.ok_or_else(|| unreadable(piece, "expected `(DeviceMesh{…})`"))?;
    if inner.starts_with('{') && matching_bracket(inner, 0).is_none() {
        let close = piece.span.end - 1;
        let at = piece.span.start + piece.text.find('{').unwrap_or(0) as u32;
        let message = "the `{` of the mesh is never closed";
        let it =
            Diagnostic::new(Code::BadTensor, Span { start: close, end: close }, message, "expected `}` here");
        return Err(it.label(Span { start: at, end: at + 1 }, "opened here"));
    }
    if let Some(list) = inner.strip_prefix(['[', '(']).and_then(|it| it.strip_suffix([']', ')'])) {
        let message = "write the devices of a mesh in braces";
        let label = format!("expected `(DeviceMesh{{{}}})`", shortened(list.trim()));
        return Err(Diagnostic::new(Code::BadTensor, piece.span, message, label));
    }
    let irregular = || {
        let label = "expected rows of the same length, in up to three dimensions";
        Diagnostic::new(Code::BadTensor, piece.span, "the mesh is not a rectangular grid of ranks", label)
    };
    let mut devices = Vec::new();
    // `open`: the number of members so far of each open brace. `shape`: the number of members of the closed
    // braces, by level.
    let mut open: Vec<usize> = Vec::new();
    let mut shape: Vec<Option<usize>> = Vec::new();
    let mut leaf = None;
    let mut bytes = inner.bytes().enumerate().peekable();
    // `commas`: commas since the last device or brace. `separated`: whether devices have a comma between
    // them. `last`: where the last device or brace ended.
    let (mut commas, mut separated, mut last) = (0, None, 0);
    let base = piece.span.start + (piece.text.find(inner).unwrap_or(0)) as u32;
    let misplaced = |from: usize, to: usize, message: &str, text: &str| {
        let place = Span { start: base + from as u32, end: base + to as u32 };
        Diagnostic::new(Code::Syntax, place, message, "expected a comma between all devices, or none")
            .fix(place, text)
    };
    while let Some((at, byte)) = bytes.next() {
        let members = open.last().copied().unwrap_or(0);
        let between = inner.get(last..at).unwrap_or("");
        match byte {
            b'{' | b'}' | b'0'..=b'9' if commas > 1 || commas == 1 && members == 0 => {
                let extra = last + between.rfind(',').unwrap_or(0);
                return Err(misplaced(extra, extra + 1, "an extra comma between the devices", ""));
            }
            b'0'..=b'9' if members > 0 && *separated.get_or_insert(commas == 1) != (commas == 1) => {
                return Err(match commas {
                    0 => misplaced(last, last, "a comma is missing between the devices", ","),
                    _ => misplaced(last, last + 1, "an extra comma between the devices", ""),
                });
            }
            b'}' if commas == 1 && separated == Some(false) => {
                let extra = last + between.rfind(',').unwrap_or(0);
                return Err(misplaced(extra, extra + 1, "a comma after the last device", ""));
            }
            _ => (),
        }
        match byte {
            b'{' => {
                if open.len() == 3 || open.is_empty() && at > 0 {
                    return Err(irregular());
                }
                open.push(0);
                if shape.len() < open.len() {
                    shape.push(None);
                }
            }
            b'}' => {
                let members = open.pop().ok_or_else(irregular)?;
                let extent = shape.get_mut(open.len()).ok_or_else(irregular)?;
                if extent.replace(members).is_some_and(|it| it != members) {
                    return Err(irregular());
                }
                if let Some(outer) = open.last_mut() {
                    *outer += 1;
                }
            }
            b'0'..=b'9' => {
                let mut end = at + 1;
                while bytes.next_if(|(_, it)| it.is_ascii_digit()).is_some() {
                    end += 1;
                }
                let device = inner.get(at..end).and_then(|it| it.parse().ok());
                devices.push(device.ok_or_else(|| unreadable(piece, "expected the numbers of ranks"))?);
                if *leaf.get_or_insert(open.len()) != open.len() {
                    return Err(irregular());
                }
                *open.last_mut().ok_or_else(irregular)? += 1;
            }
            b',' if open.is_empty() => {
                let comma = Span { start: base + at as u32, end: base + at as u32 + 1 };
                let message = "a comma outside of the braces of the mesh";
                let it = Diagnostic::new(Code::Syntax, comma, message, "expected no comma here");
                return Err(it.fix(comma, ""));
            }
            b',' => {
                commas += 1;
                continue;
            }
            _ if byte.is_ascii_whitespace() => continue,
            _ => {
                let word = inner.get(at..).and_then(|it| it.split([' ', ',', '{', '}']).next()).unwrap_or("");
                let span = Span { start: base + at as u32, end: base + (at + word.len()) as u32 };
                let message = format!("the mesh contains `{}`, which is not a rank", shortened(word));
                return Err(Diagnostic::new(Code::BadTensor, span, message, "expected the number of a rank"));
            }
        }
        commas = 0;
        last = bytes.peek().map_or(inner.len(), |(next, _)| *next);
    }
    let shape: Vec<usize> = shape.into_iter().flatten().collect();
    if !open.is_empty() || leaf.is_some_and(|it| it != shape.len()) {
        return Err(irregular());
    }
    Ok(if devices.is_empty() { Mesh::default() } else { Mesh::new(shape, devices) })
}
