//! Excerpts of the source for one diagnostic: the lines of its labels, with long lines cut to a window around
//! their labels.
//!
//! Invariant: every label is in exactly one excerpt. A label that does not fit into the window of its line goes
//! to another excerpt.

use std::ops::Range;

use super::visible_text;
use crate::{
    files::TextFiles,
    span::{LineIndex, Span},
};

/// The text that replaces what is left out of a line.
const ELLIPSIS: &str = "…";

/// The columns that a window keeps before a label even if the message of the label is wide.
const MIN_CONTEXT: usize = 16;

/// The smallest width of a window.
const MIN_WIDTH: usize = 40;

/// The part of a label that is underlined at most: statements spell tensors in full and can be hundreds of
/// columns wide.
const MAX_UNDERLINE: usize = 60;

/// The columns that the drawing needs between the underlined text and a message.
const ARROW_WIDTH: usize = 5;

/// A label in an excerpt.
pub(super) struct ExcerptLabel<'d> {
    /// Bytes of the excerpt's text.
    pub(super) range: Range<usize>,
    /// The message.
    pub(super) message: &'d str,
    /// Whether the label is the main position of the diagnostic.
    pub(super) is_main: bool,
}

/// A text that has the line numbers of the source, with those of its lines that have labels.
pub(super) struct Excerpt<'d> {
    pub(super) text: String,
    /// Its labels, in the order of their lines.
    pub(super) labels: Vec<ExcerptLabel<'d>>,
    /// The file of its lines.
    pub(super) file: String,
    /// Line and column, from 1, of the label to which the header of the excerpt refers.
    pub(super) place: (u32, usize),
}

/// A label of a diagnostic, in its line.
struct LineLabel<'d> {
    line: u32,
    /// Characters of the line.
    chars: Range<usize>,
    message: &'d str,
    is_main: bool,
}

/// Returns the excerpts for the labels of a diagnostic, whose lines are at most about `width` columns wide.
pub(super) fn excerpts<'d>(
    labels: &'d [(Span, String)],
    (source, lines, files): (&str, &LineIndex, &TextFiles<'_>),
    width: usize,
) -> Vec<Excerpt<'d>> {
    let mut left: Vec<LineLabel<'d>> = labels
        .iter()
        .enumerate()
        .map(|(at, (span, text))| line_label(*span, text, at == 0, source, lines))
        .collect();
    // ariadne repeats the header of the file for labels that are not in line order.
    left.sort_by_key(|it| it.line);
    let last = left.last().map_or(1, |it| it.line);
    // The margin has the line number, a bar and three blanks.
    let width = width.saturating_sub(last.to_string().len() + 5).max(MIN_WIDTH);
    let mut excerpts = Vec::new();
    while !left.is_empty() {
        let mut text = String::new();
        let (mut shown, mut rest, mut begun) = (Vec::new(), Vec::new(), 1);
        let mut place = None;
        let file = left.first().map_or(0, |it| files.line_before(it.line));
        while let Some(line) = left.first().map(|it| it.line).filter(|it| files.line_before(*it) == file) {
            let count = left.iter().take_while(|it| it.line == line).count();
            let here: Vec<_> = left.drain(..count).collect();
            text.push_str(&"\n".repeat((line - file - begun) as usize));
            begun = line - file;
            let window = Window::of(&visible_text(lines.line_text(line, source)), &here, width);
            let start = text.len();
            for label in here {
                if !window.contains(&label.chars) {
                    rest.push(label);
                    continue;
                }
                let at = (label.line - file, label.chars.start + 1);
                place = if label.is_main { Some(at) } else { place.or(Some(at)) };
                let range = window.byte(label.chars.start)..window.byte(label.chars.end);
                let range = start + range.start..start + range.end;
                shown.push(ExcerptLabel { range, message: label.message, is_main: label.is_main });
            }
            text.push_str(&window.text);
        }
        // The header refers to the main position if the excerpt has it.
        let (name, _) = files.place(file + begun);
        excerpts.push(Excerpt { text, labels: shown, file: name.to_owned(), place: place.unwrap_or((1, 1)) });
        rest.append(&mut left);
        left = rest;
    }
    // The excerpt with the main position comes first.
    excerpts.sort_by_key(|it| !it.labels.iter().any(|label| label.is_main));
    excerpts
}

/// Returns a label with the part of its span to underline: its first line, truncated so that the message stays
/// visible.
fn line_label<'d>(
    span: Span,
    message: &'d str,
    is_main: bool,
    source: &str,
    lines: &LineIndex,
) -> LineLabel<'d> {
    // The range must begin and end at character boundaries.
    let whole =
        |at: u32| (0..=(at as usize).min(source.len())).rfind(|it| source.is_char_boundary(*it)).unwrap_or(0);
    let (start, end) = (whole(span.start.min(span.end)), whole(span.end));
    let line = lines.line(start as u32);
    let before = source.get(lines.start(line)..start).unwrap_or("").chars().count();
    // No window has a place behind the text of its line, among carriage returns.
    let before = before.min(lines.line_text(line, source).chars().count());
    let text = source.get(start..end).unwrap_or_default();
    let marked = text.lines().next().unwrap_or_default().trim_end().chars().take(MAX_UNDERLINE).count();
    LineLabel { line, chars: before..before + marked, message, is_main }
}

/// The part of a line that is shown.
struct Window {
    text: String,
    /// The characters of the line that are shown.
    chars: Range<usize>,
    /// Bytes of the ellipsis before them.
    lead: usize,
}

impl Window {
    /// Chooses the window of a line: around its main label, or else its first one, with as many of the others
    /// as fit.
    fn of(line: &str, labels: &[LineLabel<'_>], width: usize) -> Self {
        let length = line.chars().count();
        if length <= width {
            return Self { text: line.to_owned(), chars: 0..length.max(1) + 1, lead: 0 };
        }
        let Some(first) = labels.iter().find(|it| it.is_main).or(labels.first()) else {
            return Self { text: String::new(), chars: 0..0, lead: 0 };
        };
        let mut chars = first.chars.clone();
        let mut widest = first.message.chars().count();
        let room = width - 2;
        let mut others: Vec<_> = labels.iter().collect();
        others.sort_by_key(|it| it.chars.start.abs_diff(first.chars.start));
        for other in others {
            let both = chars.start.min(other.chars.start)..chars.end.max(other.chars.end);
            if both.len() <= room {
                chars = both;
                widest = widest.max(other.message.chars().count());
            }
        }
        let spare = room.saturating_sub(chars.len());
        // Text before the labels moves their messages to the right.
        let limit = width.saturating_sub(widest + ARROW_WIDTH + chars.len() / 2).max(MIN_CONTEXT);
        let after = |before: usize| (spare - before).min(length.saturating_sub(chars.end));
        let mut before = chars.start.min(spare / 2).min(limit);
        before = chars.start.min(spare - after(before)).min(limit).max(before);
        let mut shown = chars.start - before..chars.end + after(before);
        // An ellipsis that replaces one character saves nothing.
        shown.start = if shown.start <= 1 { 0 } else { shown.start };
        shown.end = if shown.end + 1 >= length { length } else { shown.end };
        let byte = |at: usize| line.char_indices().nth(at).map_or(line.len(), |(byte, _)| byte);
        let part = line.get(byte(shown.start)..byte(shown.end)).unwrap_or("");
        let lead = if shown.start > 0 { ELLIPSIS } else { "" };
        let tail = if shown.end < length { ELLIPSIS } else { "" };
        Self { text: format!("{lead}{part}{tail}"), chars: shown, lead: lead.len() }
    }

    fn contains(&self, label: &Range<usize>) -> bool {
        self.chars.start <= label.start && label.end <= self.chars.end
    }

    /// Returns the byte of the window's text at which a character of the line begins.
    fn byte(&self, at: usize) -> usize {
        let text = self.text.get(self.lead..).unwrap_or("");
        let ahead = at.saturating_sub(self.chars.start);
        self.lead + text.char_indices().nth(ahead).map_or(text.len(), |(byte, _)| byte)
    }
}
