//! A text as a list of lines with ids that stay the same while the text is edited.

use rustc_hash::FxHashMap;

/// A line and its stable id, which does not change when other lines are inserted or removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

    /// Creates a text of lines whose ids are less than `next`.
    pub fn new(lines: Vec<NumberedLine>, next: u32) -> Self {
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
        // Before the first edit, ids are line numbers.
        let is_it = |it: &NumberedLine| it.id == id;
        let unmoved = self.lines.get(id as usize).filter(|it| is_it(it)).map(|_| id as usize);
        unmoved.or_else(|| self.lines.iter().position(is_it)).map(|at| at as u32 + 1)
    }

    /// Returns the current 1-based line numbers of all stable ids.
    pub fn numbers(&self) -> FxHashMap<u32, u32> {
        self.lines.iter().zip(1..).map(|(line, number)| (line.id, number)).collect()
    }

    /// Returns a copy of the text without the lines `ids`.
    pub fn without_lines(&self, ids: &[u32]) -> Self {
        let kept = self.lines.iter().filter(|it| !ids.contains(&it.id)).cloned();
        Self { lines: kept.collect(), next: self.next }
    }

    /// Returns the id of the next line that is inserted.
    pub fn next_id(&self) -> u32 {
        self.next
    }

    /// Returns a line to insert: in a text with CRLF line ends, each line ends with CR.
    pub fn with_line_end(&self, line: &str) -> String {
        let is_crlf = self.lines.first().is_some_and(|it| it.text.ends_with('\r'));
        let end = if is_crlf && !line.ends_with('\r') { "\r" } else { "" };
        format!("{line}{end}")
    }
}
