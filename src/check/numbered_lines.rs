//! A text as a list of lines with ids that stay the same while the text is edited.

use grammar::{diagnostic::Fix, span::Span};

/// A line and its stable id, which does not change when other lines are inserted or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedLine {
    /// The id.
    pub id: u32,
    /// The text, without the end of the line.
    pub text: String,
}

/// A text as a list of lines with stable ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedLines {
    /// The lines.
    pub lines: Vec<NumberedLine>,
    next: u32,
}

impl NumberedLines {
    /// Splits `text` into lines.
    pub fn of(text: &str) -> Self {
        let lines: Vec<NumberedLine> =
            text.split('\n').zip(0..).map(|(text, id)| NumberedLine { id, text: text.to_owned() }).collect();
        let next = lines.len() as u32;
        Self { lines, next }
    }

    /// Returns the lines joined by newlines.
    pub fn text(&self) -> String {
        self.lines.iter().map(|it| it.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Returns the stable id of a 1-based line number. Line 0 has no id.
    pub fn id(&self, line: u32) -> Option<u32> {
        self.lines.get(line.checked_sub(1)? as usize).map(|it| it.id)
    }

    /// Returns the current 1-based line number of a stable id.
    pub fn line(&self, id: u32) -> Option<u32> {
        self.lines.iter().position(|it| it.id == id).map(|at| at as u32 + 1)
    }

    /// Returns a copy of the text without the lines `ids`.
    pub fn without_lines(&self, ids: &[u32]) -> Self {
        let kept = self.lines.iter().filter(|it| !ids.contains(&it.id)).cloned();
        Self { lines: kept.collect(), next: self.next }
    }

    /// Inserts a line before the line `at`, counted from 0, and returns its id.
    pub fn insert(&mut self, at: usize, text: String) -> u32 {
        let id = self.next;
        self.next += 1;
        // In a text with CRLF line ends, each line ends with CR.
        let is_crlf = self.lines.first().is_some_and(|it| it.text.ends_with('\r'));
        let text = if is_crlf && !text.ends_with('\r') { text + "\r" } else { text };
        self.lines.insert(at, NumberedLine { id, text });
        id
    }

    /// Returns the changes of this text that give `edited`, which was edited from it.
    pub fn changes_to(&self, edited: &Self) -> Vec<Fix> {
        let mut changes = Vec::new();
        let mut start = 0;
        let mut new = edited.lines.iter().peekable();
        for old in &self.lines {
            let end = start + old.text.len();
            // Lines with new ids precede the old line that follows them.
            let mut inserted = String::new();
            while let Some(line) = new.next_if(|it| it.id >= self.next) {
                inserted += &format!("{}\n", line.text);
            }
            if !inserted.is_empty() {
                changes.push(Fix { span: Span::new(start, start), text: inserted });
            }
            match new.next_if(|it| it.id == old.id) {
                Some(line) if line.text != old.text => {
                    changes.push(Fix { span: Span::new(start, end), text: line.text.clone() });
                }
                Some(_) => (),
                None => changes.push(Fix { span: Span::new(start, end + 1), text: String::new() }),
            }
            start = end + 1;
        }
        changes
    }

    /// Returns the number in `original` of the first of its lines after the line `id` of this text, which was
    /// edited from it.
    pub fn next_line_of(&self, original: &Self, id: u32) -> Option<u32> {
        let at = self.line(id)? as usize;
        self.lines[at..].iter().find_map(|it| original.line(it.id))
    }

    /// Returns the number in `original` of its last line before the line `id` of this text, which was edited
    /// from it.
    pub fn previous_line_of(&self, original: &Self, id: u32) -> Option<u32> {
        let at = self.line(id)? as usize - 1;
        self.lines[..at].iter().rev().find_map(|it| original.line(it.id))
    }
}
