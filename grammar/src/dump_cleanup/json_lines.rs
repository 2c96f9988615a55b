//! Logs whose lines are JSON, as docker and clouds keep them: `{"log": "…\n", "stream": "stdout"}`.

use super::{OffsetPair, container_start};

/// Returns the texts of the records that have the key of the first record with a container, each on lines of its own, and their offset map;
/// `None` if no container is in a record. If records of several containers are mixed, each text is behind the part of the record before it,
/// by which ranks are told apart.
pub(super) fn texts(source: &str) -> Option<(String, Vec<OffsetPair>)> {
    let record = source.lines().find(|it| {
        it.trim_start().starts_with(['{', '"', '[']) && it.contains("\":") && container_start(it).is_some()
    })?;
    let begin = container_start(record)?;
    // The value with the container, and its key.
    let open = record.get(..begin)?.rmatch_indices('"').map(|it| it.0).find(|at| !is_escaped(record, *at))?;
    let head = record.get(..open)?.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    let key = format!("\"{}\"", head.rsplit('"').next()?);
    let is_mixed = source.matches("%HostIrContainer {").count() > 1;
    let (mut text, mut pieces, mut at) = (String::with_capacity(source.len()), vec![(0, 0)], 0);
    for line in source.split_inclusive('\n') {
        let value = line.find(&key).and_then(|it| {
            let from = it + key.len();
            let rest = line.get(from..)?;
            let open = rest.find(|it: char| it != ':' && !it.is_whitespace())?;
            rest.get(open..)?.starts_with('"').then_some(from + open + 1)
        });
        if let Some(value) = value {
            if is_mixed {
                pieces.push((text.len() as u32, at as u32));
                text.extend(line.get(..value).unwrap_or("").chars().filter(|it| *it != '%'));
            }
            unescape(line, value, at, &mut text, &mut pieces);
            if !text.ends_with('\n') {
                text.push('\n');
            }
        }
        at += line.len();
    }
    Some((text, pieces))
}

/// Returns whether a backslash is before an offset.
fn is_escaped(text: &str, at: usize) -> bool {
    text.get(..at).is_some_and(|it| it.ends_with('\\'))
}

/// Appends the string that begins at an offset of a line; `base` is that of the line.
fn unescape(line: &str, from: usize, base: usize, text: &mut String, pieces: &mut Vec<OffsetPair>) {
    pieces.push((text.len() as u32, (base + from) as u32));
    let mut letters = line.get(from..).unwrap_or("").char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => break,
            '\\' => {
                let Some((_, escaped)) = letters.next() else { break };
                pieces.push((text.len() as u32, (base + from + at) as u32));
                match escaped {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' | 'b' | 'f' => {}
                    'u' => {
                        let digits: String = letters.by_ref().take(4).map(|it| it.1).collect();
                        let letter = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.extend(letter.filter(|it| *it != '\u{1b}'));
                    }
                    other => text.push(other),
                }
                let behind = letters.as_str();
                pieces.push((text.len() as u32, (base + line.len() - behind.len()) as u32));
            }
            other => text.push(other),
        }
    }
}
