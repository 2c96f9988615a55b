//! Finds the sections after the closing brace of a container by their headings, and the comments between containers.

use crate::{
    ir::Comment,
    nearest,
    span::Span,
    token::{Source, TokenKind},
};

/// A section after the closing brace: the kind of its heading, and the byte ranges of the heading and of its
/// lines.
pub(super) struct Section {
    pub(super) kind: TokenKind,
    /// The heading that is meant, if the text contains it misspelled.
    pub(super) meant: Option<&'static str>,
    pub(super) heading: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Returns the section that begins after `from` if only blanks and comments precede it.
pub(super) fn find_section(text: &str, from: usize) -> Option<Section> {
    let mut at = from;
    let (length, kind, meant) = loop {
        let rest = text.get(at..)?;
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        if is_comment(trimmed) {
            at += comment_length(trimmed);
            continue;
        }
        break match leading_heading(trimmed) {
            Some((heading, kind)) => (heading.len(), kind, None),
            None => {
                let (heading, kind) = misspelled_heading(trimmed)?;
                (trimmed.lines().next().map_or(0, |it| it.trim_end().len()), kind, Some(heading))
            }
        };
    };
    let (here, start) = (at, at + length);
    let mut lines = text.get(at..)?.split_inclusive('\n').peekable();
    let mut end = at + lines.next().map_or(0, str::len);
    // A text in which every line is followed by a blank line has several before the heading; nvFuser prints
    // one.
    let before = text.get(..here).unwrap_or("");
    let doubled = before.get(before.trim_end().len()..).is_some_and(|it| it.matches('\n').count() > 2);
    let mut blank = 0;
    let belongs = |line: &str| match kind {
        TokenKind::Domains => line.starts_with(['T', 'H']) && line.contains(':'),
        _ => line.contains('='),
    };
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if trimmed.is_empty() && !doubled {
            break;
        }
        if trimmed.is_empty() {
            blank += line.len();
            continue;
        }
        let indented = line.starts_with([' ', '\t']);
        let belongs_here = belongs(trimmed);
        let other = trimmed.starts_with('%') || self::leading_heading(trimmed).is_some();
        // After a blank line, a line belongs to the section only if it cannot be anything else.
        let certain =
            blank == 0 || indented && belongs_here && (kind == TokenKind::Domains || trimmed.ends_with(';'));
        // A line between two lines of the section, such as that of a log, is read as one, and reported.
        let is_certain = |line: &str| match kind {
            TokenKind::Domains => line.starts_with(['T', 'H']) && line.contains(": logical("),
            _ => line.contains(" = ") && line.ends_with(';'),
        };
        let mut is_between =
            || lines.peek().is_some_and(|it| it.starts_with([' ', '\t']) && is_certain(it.trim()));
        if other || !certain || !(indented || belongs_here || is_comment(trimmed) || is_between()) {
            break;
        }
        end += line.len() + std::mem::take(&mut blank);
    }
    Some(Section { kind, meant, heading: here, start, end })
}

const HEADINGS: [(&str, TokenKind); 2] =
    [("Index definitions:", TokenKind::Definitions), ("Domains:", TokenKind::Domains)];

/// The maximum length of a misspelled heading in bytes. A text can have many containers on one long line, so the
/// line is not searched for its end.
const MAX_HEADING: usize = 64;

/// Returns the section heading that `text` begins with.
fn leading_heading(text: &str) -> Option<(&'static str, TokenKind)> {
    HEADINGS.into_iter().find(|(heading, _)| text.starts_with(heading))
}

/// Returns the heading that the first line of `text` misspells. Logs may follow a container, so the line below
/// has to be one of the section.
fn misspelled_heading(text: &str) -> Option<(&'static str, TokenKind)> {
    let length = text.bytes().take(MAX_HEADING).position(|it| it == b'\n')?;
    let line = text.get(..length)?.trim();
    let below = text.get(length + 1..)?.lines().next()?;
    let meant = nearest(line, HEADINGS.into_iter().map(|(heading, _)| heading))?;
    let (_, kind) = HEADINGS.into_iter().find(|(heading, _)| *heading == meant)?;
    let content = below.trim();
    let belongs = match kind {
        TokenKind::Domains => content.starts_with('T') && content.contains("logical("),
        _ => content.contains('=') && content.ends_with(';'),
    };
    (belongs && below.starts_with([' ', '\t'])).then_some((meant, kind))
}

/// Returns the length of the comment that `text` begins with. The comment ends with its line, or, in a dump
/// folded into one line, after the name that follows the closing brace of the container.
pub(crate) fn comment_length(text: &str) -> usize {
    let line = text.split_inclusive('\n').next().unwrap_or("");
    match line.strip_prefix("// %HostIrContainer") {
        Some(behind)
            if leading_heading(behind.trim_start()).is_some() || behind.contains("%HostIrContainer") =>
        {
            line.len() - behind.len()
        }
        Some(_) | None => line.len(),
    }
}

/// Returns the comments in a range of a text that is outside of containers and sections: the lines that begin with a mark. The
/// name of the container behind its closing brace is none.
pub(crate) fn comments_outside(source: Source<'_>, range: std::ops::Range<usize>) -> Vec<Comment> {
    let mut comments = Vec::new();
    let mut at = range.start;
    for line in source.text.get(range.clone()).unwrap_or("").split_inclusive('\n') {
        let is_alone =
            at > range.start || at == 0 || source.text.get(..at).is_some_and(|it| it.ends_with('\n'));
        let text = line.trim();
        let start = source.base as usize + at + line.len() - line.trim_start().len();
        if is_comment(text) && (is_alone || !text.starts_with("// %HostIrContainer")) {
            comments.push(Comment { span: Span::new(start, start + text.len()), is_alone });
        }
        at += line.len();
    }
    comments
}

fn is_comment(line: &str) -> bool {
    line.starts_with("//") || line.starts_with('#')
}
