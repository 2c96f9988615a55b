//! Replaces characters of files, names and command lines that would change what a terminal shows.

use std::borrow::Cow;

/// Returns the text with a visible character in place of each control character, except line ends and tabs, and of
/// each character that reorders the text around it. The number of characters stays the same.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    if text.chars().all(|it| visible(it) == it) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(visible).collect())
}

fn visible(letter: char) -> char {
    match letter {
        '\n' | '\t' => letter,
        // The control pictures follow the order of the control characters.
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(letter)).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\u{7f}' => '\u{2421}',
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        _ => letter,
    }
}
