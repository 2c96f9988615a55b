//! Replaces characters that browsers, editors and terminals changed or inserted.
//!
//! Invariant: a text without such characters is not copied.

use super::OffsetPair;

/// Returns the text in ASCII and its offset map, or `None` if there is nothing to replace.
pub(super) fn normalize(source: &str) -> Option<(String, Vec<OffsetPair>)> {
    let bytes = source.as_bytes();
    // The source of an HTML page: no dump contains `&gt;`, and each header contains `->`.
    let escaped = bytes.contains(&b'&') && source.contains("-&gt;");
    let returns = bytes.contains(&b'\r') && !bytes.contains(&b'\n');
    let coloured = bytes.contains(&0x1b);
    // No dump has a backslash: these are the escapes of Markdown, `T0\\_g\\_float`, and of a string of a program, `{ … :\\n  T1`.
    let marked = source.contains("\\_");
    let quoted = source.contains(":\\n ") || source.contains("{\\n ");
    if source.is_ascii() && !marked && !quoted && !escaped && !returns && !coloured {
        return None;
    }
    let mut text = String::with_capacity(source.len());
    let mut pieces = vec![(0, 0)];
    let mut done = 0;
    for (at, letter) in source.char_indices() {
        if at < done {
            continue;
        }
        let rest = source.get(at..).unwrap_or("");
        let found = match letter {
            '&' if escaped => {
                HTML_ENTITIES.iter().find(|(it, _)| rest.starts_with(it)).map(|(it, to)| (it.len(), *to))
            }
            '\\' if quoted && rest.starts_with("\\n") => Some((2, "\n")),
            '\\' if quoted && rest.starts_with("\\t") => Some((2, "\t")),
            '\\' if quoted || marked && rest[1..].starts_with(|it: char| it.is_ascii_punctuation()) => {
                Some((1, ""))
            }
            '\r' if returns => Some((1, "\n")),
            '\u{1b}' => Some((escape_length(rest), "")),
            _ if letter.is_ascii() => None,
            _ => ascii_replacement(letter).map(|to| (letter.len_utf8(), to)),
        };
        let Some((length, to)) = found else { continue };
        text.push_str(source.get(done..at).unwrap_or(""));
        pieces.push((text.len() as u32, at as u32));
        text.push_str(to);
        done = at + length;
        pieces.push((text.len() as u32, done as u32));
    }
    if pieces.len() == 1 {
        return None;
    }
    text.push_str(source.get(done..).unwrap_or(""));
    Some((text, pieces))
}

const HTML_ENTITIES: [(&str, &str); 8] = [
    ("&gt;", ">"),
    ("&lt;", "<"),
    ("&amp;", "&"),
    ("&nbsp;", " "),
    ("&#160;", " "),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&#x27;", "'"),
];

/// Returns the ASCII text that an editor replaced with this character.
fn ascii_replacement(letter: char) -> Option<&'static str> {
    match letter {
        '\u{a0}' | '\u{2000}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => Some(" "),
        '\u{feff}' | '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{ad}' => Some(""),
        '\u{2010}'..='\u{2015}' | '\u{2212}' => Some("-"),
        '\u{2190}'..='\u{21ff}' => Some("->"),
        '\u{2026}' => Some("..."),
        '\u{2018}' | '\u{2019}' => Some("'"),
        '\u{201c}' | '\u{201d}' => Some("\""),
        _ => None,
    }
}

/// Returns the length of a terminal control sequence, `ESC [ 3 2 m`.
fn escape_length(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("\u{1b}[") else { return 1 };
    let parameters = rest.bytes().take_while(|it| matches!(it, b'0'..=b'?')).count();
    2 + parameters + usize::from(rest.as_bytes().get(parameters).is_some_and(u8::is_ascii_alphabetic))
}
