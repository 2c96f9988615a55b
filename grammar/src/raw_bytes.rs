//! Texts with bytes that are not UTF-8.
//!
//! In memory, a private-use character stands for each such byte (as Python's `surrogateescape` does it), so that
//! an edited text is written back with the same bytes. Diagnostics refer to the bytes of the file.

use std::borrow::Cow;

use crate::{diagnostic::Diagnostic, span::Span};

/// The character that stands for the byte `b` is `BASE + b`.
const BASE: u32 = 0x10_ff00;

/// The first byte of the UTF-8 form of these characters.
const LEAD: u8 = 0xf4;

/// The length of the UTF-8 form of these characters.
const LENGTH: u32 = 4;

/// Returns the byte that a character stands for.
pub(crate) fn raw_byte(letter: char) -> Option<u8> {
    u32::from(letter).checked_sub(BASE).and_then(|it| u8::try_from(it).ok()).filter(|it| !it.is_ascii())
}

fn push_raw(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().filter_map(|byte| char::from_u32(BASE + u32::from(*byte))));
}

/// Returns the text of a file. `encode` returns the same bytes again.
pub fn decode(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if !has_raw_bytes(&text) => return text,
        Ok(text) => text.into_bytes(),
        Err(fault) => fault.into_bytes(),
    };
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match raw_byte(letter) {
                // The characters of this module stand for bytes also if the file contains them.
                Some(_) => push_raw(&mut text, letter.encode_utf8(&mut [0; LENGTH as usize]).as_bytes()),
                None => text.push(letter),
            }
        }
        push_raw(&mut text, chunk.invalid());
    }
    text
}

/// Returns the bytes of the file that contains `text`.
pub fn encode(text: &str) -> Cow<'_, [u8]> {
    if !has_raw_bytes(text) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for letter in text.chars() {
        match raw_byte(letter) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(letter.encode_utf8(&mut [0; LENGTH as usize]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

fn has_raw_bytes(text: &str) -> bool {
    text.as_bytes().contains(&LEAD) && text.contains(|it| raw_byte(it).is_some())
}

/// Returns diagnostics with positions in the bytes of the file, and a text with these positions, in which a
/// SUBSTITUTE character replaces each byte that is not UTF-8. Returns `None` if there is no such byte.
pub(crate) fn in_file(diagnostics: &[Diagnostic], source: &str) -> Option<(Vec<Diagnostic>, String)> {
    if !has_raw_bytes(source) {
        return None;
    }
    let places: Vec<u32> = source
        .char_indices()
        .filter(|(_, letter)| raw_byte(*letter).is_some())
        .map(|(at, _)| at as u32)
        .collect();
    let offset = |at: u32| at - (LENGTH - 1) * places.partition_point(|place| *place < at) as u32;
    let in_file = |span: Span| Span { start: offset(span.start), end: offset(span.end) };
    let converted = diagnostics.iter().map(|it| {
        let mut it = it.clone();
        it.labels.iter_mut().for_each(|(span, _)| *span = in_file(*span));
        it.fixes.iter_mut().for_each(|fix| fix.span = in_file(fix.span));
        let texts = it.labels.iter_mut().map(|(_, text)| text).chain(&mut it.notes);
        texts.chain([&mut it.message]).for_each(replace_in_message);
        it.help = it.help.map(|help| {
            let mut help = help.into_string();
            replace_in_message(&mut help);
            help.into_boxed_str()
        });
        it
    });
    let substitute = |letter: char| if raw_byte(letter).is_some() { '\u{1a}' } else { letter };
    Some((converted.collect(), source.chars().map(substitute).collect()))
}

fn replace_in_message(text: &mut String) {
    if has_raw_bytes(text) {
        *text = text
            .chars()
            .map(|letter| match raw_byte(letter) {
                Some(_) => char::REPLACEMENT_CHARACTER,
                None => letter,
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codes::Code;

    proptest! {
        #[test]
        fn every_file_is_written_back(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xf4), Just(0x8f), 0xbe..=0xbfu8], 0..40),
        ) {
            let text = decode(bytes.clone());
            prop_assert_eq!(&encode(&text)[..], &bytes[..]);
            let whole = Diagnostic::new(Code::Syntax, Span::new(0, text.len()), "", "");
            if let Some((found, shown)) = in_file(&[whole], &text) {
                prop_assert_eq!(found[0].span(), Span::new(0, bytes.len()));
                prop_assert_eq!(shown.len(), bytes.len());
            }
        }
    }
}
