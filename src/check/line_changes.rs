//! Changes of the lines of a text: what an edit inserts, removes and replaces. The text itself is not copied.

use std::collections::{BTreeMap, BTreeSet};

use grammar::{
    diagnostic::Fix,
    span::{LineIndex, Span},
};
use rustc_hash::FxHashMap;

use super::numbered_lines::{NumberedLine, NumberedLines};

/// Changes of a text. Lines of the text are counted from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineChanges {
    /// Inserted lines, each with the line of the text before which it is, in text order.
    inserted: Vec<(usize, NumberedLine)>,
    removed: BTreeSet<usize>,
    replaced: BTreeMap<usize, String>,
}

impl LineChanges {
    /// Inserts a line before the line `before` of a text, behind what is inserted there already. Returns its id.
    pub fn insert(&mut self, text: &NumberedLines, before: usize, line: &str) -> u32 {
        let at = self.inserted.partition_point(|it| it.0 <= before);
        self.insert_at(text, at, before, line)
    }

    /// Inserts a line before the line `before` of a text, in front of what is inserted there already. Returns its id.
    pub fn insert_in_front(&mut self, text: &NumberedLines, before: usize, line: &str) -> u32 {
        let at = self.inserted.partition_point(|it| it.0 < before);
        self.insert_at(text, at, before, line)
    }

    fn insert_at(&mut self, text: &NumberedLines, at: usize, before: usize, line: &str) -> u32 {
        let id = text.next_id() + self.inserted.len() as u32;
        let line = NumberedLine { id, text: text.with_line_end(line) };
        self.inserted.insert(at, (before, line));
        id
    }

    /// Adds the changes of another edit of the same text, except the inserted lines `known`; the line `in_front` is inserted in
    /// front of others. Returns the new ids of the inserted lines by their ids. Returns `None`, and adds nothing, if both remove or
    /// replace one line.
    pub fn add(
        &mut self,
        text: &NumberedLines,
        other: &Self,
        known: &BTreeSet<u32>,
        in_front: Option<u32>,
    ) -> Option<FxHashMap<u32, u32>> {
        let touches = |it: &usize| self.removed.contains(it) || self.replaced.contains_key(it);
        if other.removed.iter().chain(other.replaced.keys()).any(touches) {
            return None;
        }
        let mut ids = FxHashMap::default();
        for (before, line) in other.inserted.iter().filter(|it| !known.contains(&it.1.id)) {
            let id = if in_front == Some(line.id) {
                self.insert_in_front(text, *before, &line.text)
            } else {
                self.insert(text, *before, &line.text)
            };
            ids.insert(line.id, id);
        }
        self.removed.extend(&other.removed);
        self.replaced.extend(other.replaced.iter().map(|(line, text)| (*line, text.clone())));
        Some(ids)
    }

    /// Returns the place of an inserted line, and its text.
    pub fn inserted(&self, id: u32) -> Option<(usize, &str)> {
        self.inserted.iter().find(|it| it.1.id == id).map(|it| (it.0, it.1.text.as_str()))
    }

    /// Removes a line of the text.
    pub fn remove(&mut self, line: usize) {
        self.removed.insert(line);
    }

    /// Replaces the text of a line.
    pub fn replace(&mut self, line: usize, with: String) {
        self.replaced.insert(line, with);
    }

    /// Returns the number, from 1, of the first line of a text of `count` lines that follows the inserted line `id`.
    pub fn next_line_of(&self, id: u32, count: usize) -> Option<u32> {
        let next = (self.inserted(id)?.0..count).find(|it| !self.removed.contains(it))?;
        Some(next as u32 + 1)
    }

    /// Returns the number, from 1, of the last line of the text before the inserted line `id`.
    pub fn previous_line_of(&self, id: u32) -> Option<u32> {
        let last = (0..self.inserted(id)?.0).rev().find(|it| !self.removed.contains(it))?;
        Some(last as u32 + 1)
    }

    /// Returns the changes of the text as changes of positions. `index` is the index of the lines of the text.
    pub fn fixes(&self, text: &NumberedLines, index: &LineIndex) -> Vec<Fix> {
        let count = text.lines.len();
        let mut lines: BTreeSet<usize> = self.removed.iter().chain(self.replaced.keys()).copied().collect();
        lines.extend(self.inserted.iter().map(|it| it.0));
        let mut fixes = Vec::new();
        for line in lines.into_iter().filter(|it| *it < count) {
            let start = index.start(line as u32 + 1);
            let end = start + text.lines[line].text.len();
            let first = self.inserted.partition_point(|it| it.0 < line);
            let here = self.inserted[first..].iter().take_while(|it| it.0 == line);
            let inserted: String = here.map(|it| it.1.text.clone() + "\n").collect();
            if !inserted.is_empty() {
                fixes.push(Fix { span: Span::new(start, start), text: inserted });
            }
            if self.removed.contains(&line) {
                fixes.push(Fix { span: Span::new(start, end + 1), text: String::new() });
            } else if let Some(new) = self.replaced.get(&line) {
                fixes.push(Fix { span: Span::new(start, end), text: new.clone() });
            }
        }
        fixes
    }

    /// Returns the text after the changes.
    pub fn apply(&self, text: &NumberedLines) -> NumberedLines {
        let mut inserted = self.inserted.iter().peekable();
        let mut lines = Vec::with_capacity(text.lines.len() + self.inserted.len());
        for (at, line) in text.lines.iter().enumerate() {
            while let Some((_, new)) = inserted.next_if(|it| it.0 <= at) {
                lines.push(new.clone());
            }
            if let Some(new) = self.replaced.get(&at) {
                lines.push(NumberedLine { id: line.id, text: new.clone() });
            } else if !self.removed.contains(&at) {
                lines.push(line.clone());
            }
        }
        lines.extend(inserted.map(|it| it.1.clone()));
        NumberedLines::new(lines, text.next_id() + self.inserted.len() as u32)
    }
}
