//! Replaces characters of files, names and command lines that would change what a terminal shows.

use std::borrow::Cow;

/// Returns the text with a visible character in place of each control character, except line ends and tabs, and of
/// each character that reorders the text around it, and of a line end before what GitHub Actions takes for a command, which a file name may
/// contain. The number of characters stays the same.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    let has_command = || text.split(['\n', '\r']).skip(1).any(begins_command);
    if text.chars().all(|it| visible(it) == it) && !has_command() {
        return Cow::Borrowed(text);
    }
    let shown = |(at, it): (usize, char)| {
        if it == '\n' && begins_command(&text[at + 1..]) { '\u{240a}' } else { visible(it) }
    };
    Cow::Owned(text.char_indices().map(shown).collect())
}

/// As `visible_text`, of the name of a file, which may begin a line: its line ends are no lines of the output, and it is no command.
pub fn visible_name(name: &str) -> String {
    let folder = if begins_command(name) { "./" } else { "" };
    folder.to_owned() + &visible_text(name).replace('\n', "\u{240a}")
}

/// Returns whether GitHub Actions takes a line that begins so for a command.
fn begins_command(line: &str) -> bool {
    ["::", "##["].iter().any(|mark| line.trim_start().starts_with(mark))
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
