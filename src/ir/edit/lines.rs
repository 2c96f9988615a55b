//! The lines of a text that edits insert, remove and change. The text itself is not copied.

use std::{cmp::Reverse, collections::BTreeSet};

use grammar::{Fix, Span, StmtId};
use rustc_hash::FxHashSet;

use super::{Edit, Place, ProgramText};

/// The changes of the lines of a text. Lines of the text are counted from 0.
#[derive(Clone, Debug, Default)]
pub struct LineChanges {
    /// In text order.
    inserted: Vec<InsertedLines>,
    removed: BTreeSet<usize>,
    replaced: Vec<Fix>,
}

/// The lines that an edit inserts.
#[derive(Clone, Debug)]
struct InsertedLines {
    /// The line of the text before which they are.
    before: usize,
    /// The number of the edit.
    edit: usize,
    /// The lines without the end of the last one.
    text: String,
}

impl ProgramText {
    /// Returns the lines that edits change. Returns `None` if the text is formatted in a way that an edit does not support.
    pub fn line_changes(&self, edits: &[Edit]) -> Option<LineChanges> {
        let mut it = LineChanges::default();
        let mut inserted = Vec::new();
        let shortened: FxHashSet<StmtId> = edits
            .iter()
            .filter_map(|it| if let Edit::Shorten(stmt) = it { Some(*stmt) } else { None })
            .collect();
        let moved = |it: &Edit| matches!(it, Edit::Move { .. });
        let moved: FxHashSet<StmtId> =
            edits.iter().filter(|it| moved(it)).filter_map(Edit::touched).collect();
        for (number, edit) in edits.iter().enumerate() {
            let (place, text) = match edit {
                Edit::Insert { statement, at } => {
                    let indentation = self.position(*at)?.1;
                    (*at, format!("{indentation}{}", self.new_statement(*statement, edits)))
                }
                Edit::Move { stmt, to } => {
                    it.removed.extend(self.own_lines(*stmt)?);
                    (*to, self.moved_text(*stmt, *to, shortened.contains(stmt))?)
                }
                Edit::Remove(stmt) => {
                    it.removed.extend(self.own_lines(*stmt)?);
                    continue;
                }
                Edit::Shorten(stmt) => {
                    if !moved.contains(stmt) {
                        let (place, text) = self.short_allocate(*stmt)?;
                        let start = self.program.stmt_span(*stmt).start as usize;
                        it.replaced
                            .push(Fix { span: Span::new(start + place.start, start + place.end), text });
                    }
                    continue;
                }
            };
            inserted.push((place, InsertedLines { before: self.position(place)?.0, edit: number, text }));
        }
        // The entry stream is captured in front of what uses it, and directly before the first statement if that is not above its comments.
        let is_capture = |it: &InsertedLines| edits[it.edit].captures_entry();
        let first = inserted.iter().map(|it| &it.1).filter(|it| !is_capture(it)).map(|it| it.before).min();
        for (place, capture) in inserted.iter_mut().filter(|it| is_capture(&it.1)) {
            let Place::Before(stmt) = place else { continue };
            let line = self.line_of(*stmt)?;
            capture.before = first.map_or(line, |it| it.min(line));
        }
        inserted.sort_by_key(|(place, it)| (it.before, self.order_on_line(*place)));
        it.inserted = inserted.into_iter().map(|it| it.1).collect();
        Some(it)
    }

    /// Returns the order of what is inserted at places before one line: what is in an inner block precedes what is in the block around it.
    fn order_on_line(&self, place: Place) -> (Reverse<usize>, u8) {
        let depth = |stmt: StmtId| Reverse(self.places().around(stmt).count());
        match place {
            Place::After(stmt) => (depth(stmt), 0),
            Place::Before(stmt) => (depth(stmt), 1),
            Place::End(block) => (self.program.block(block).last().map_or(Reverse(0), |it| depth(*it)), 2),
        }
    }

    /// Returns the lines of a statement at another place. Those of one that stays in its block are as they were.
    fn moved_text(&self, stmt: StmtId, to: Place, is_short: bool) -> Option<String> {
        let lines = self.own_lines(stmt)?;
        let block = |it: StmtId| self.places().of_stmt(it).map(|it| it.block);
        let stays = match to {
            Place::Before(other) | Place::After(other) => block(other) == block(stmt),
            Place::End(other) => Some(other) == block(stmt),
        };
        let old = self.index.start(lines.start as u32 + 1);
        let end = self.index.start(lines.end as u32) + self.line(lines.end - 1).len();
        let mut text = self.text.get(old..end)?.to_owned();
        if is_short {
            let (place, short) = self.short_allocate(stmt)?;
            let start = self.program.stmt_span(stmt).start as usize - old;
            text.replace_range(start + place.start..start + place.end, &short);
        }
        if stays || lines.len() > 1 {
            return stays.then_some(text);
        }
        Some(format!("{}{}", self.position(to)?.1, text.trim()))
    }
}

impl LineChanges {
    fn inserted(&self, edit: usize) -> Option<&InsertedLines> {
        self.inserted.iter().find(|it| it.edit == edit)
    }

    /// Returns the number, from 1, of the first line of a text of `count` lines that follows what an edit, by its number, inserts.
    pub fn next_line_of(&self, edit: usize, count: usize) -> Option<u32> {
        let next = (self.inserted(edit)?.before..count).find(|it| !self.removed.contains(it))?;
        Some(next as u32 + 1)
    }

    /// Returns the number, from 1, of the last line of the text before what an edit, by its number, inserts.
    pub fn previous_line_of(&self, edit: usize) -> Option<u32> {
        let last = (0..self.inserted(edit)?.before).rev().find(|it| !self.removed.contains(it))?;
        Some(last as u32 + 1)
    }

    /// Returns whether an edit, by its number, moves a statement up from a line.
    pub fn moves_up(&self, edit: usize, from: usize) -> bool {
        self.inserted(edit).is_some_and(|it| it.before <= from)
    }

    /// Returns the changes of the text, in its order.
    pub(super) fn fixes(&self, of: &ProgramText) -> Vec<Fix> {
        let is_crlf = of.index.count() > 1 && of.text[..of.index.start(2)].ends_with("\r\n");
        let end = if is_crlf { "\r\n" } else { "\n" };
        let is_line = |line: usize| line < of.index.count();
        let start = |line: usize| if is_line(line) { of.index.start(line as u32 + 1) } else { of.text.len() };
        let mut fixes = self.replaced.clone();
        for here in self.inserted.chunk_by(|one, other| one.before == other.before) {
            let before = here[0].before;
            let line = |it: &InsertedLines| {
                if is_line(before) { it.text.clone() + end } else { end.to_owned() + &it.text }
            };
            let text = here.iter().map(line).collect();
            fixes.push(Fix { span: Span::new(start(before), start(before)), text });
        }
        fixes.extend(
            self.removed
                .iter()
                .map(|line| Fix { span: Span::new(start(*line), start(*line + 1)), text: String::new() }),
        );
        fixes.sort_by_key(|it| it.span);
        fixes
    }
}
