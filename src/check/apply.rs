//! Applies an edit to the text of a program. Whole lines are inserted, moved or changed; comments, formatting
//! and all other lines are preserved.

mod allocate;
mod moves;
mod on_stream;

use std::collections::BTreeSet;

use grammar::ir::{Operand, Program, Stmt, StmtId, Stream};
use rustc_hash::FxHashSet;

use super::{
    edit::{Edit, InsertionPoint, WaitedStream},
    editable_text::EditableText,
    line_changes::LineChanges,
    numbered_lines::{NumberedLine, NumberedLines},
};

/// A line that an edit inserted or changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// Stable id of the line.
    pub line_id: u32,
    /// What the edit did.
    pub kind: ChangeKind,
}

/// What an edit did to a line. The statements are as in the edited text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Inserted this statement. It only adds an ordering constraint, so that the text is still a valid
    /// program without it.
    Inserted(String),
    /// Inserted this SetCurrentStream around another insertion, or this GetCurrentStream before it.
    Selected(String),
    /// Moved this statement to here.
    Moved(String),
    /// Moved this statement down to here.
    Delayed(String),
    /// Turned a long-form ALLOCATE into this short form.
    ShortenedAllocate(String),
}

impl Change {
    /// Returns the change as a past-tense phrase: "inserted `Wait(Communication 3)`".
    pub fn description(&self) -> String {
        match &self.kind {
            ChangeKind::Inserted(statement) | ChangeKind::Selected(statement) => {
                format!("inserted `{statement}`")
            }
            ChangeKind::Moved(statement) => format!("moved `{statement}` up to here"),
            ChangeKind::Delayed(statement) => format!("moved `{statement}` down to here"),
            ChangeKind::ShortenedAllocate(_) => "turned the long ALLOCATE into the short one".to_owned(),
        }
    }

    /// Returns the statement as it is in the edited text.
    pub fn statement(&self) -> &str {
        match &self.kind {
            ChangeKind::Inserted(it)
            | ChangeKind::Selected(it)
            | ChangeKind::Moved(it)
            | ChangeKind::Delayed(it)
            | ChangeKind::ShortenedAllocate(it) => it,
        }
    }

    /// Returns true if the change inserted a statement that can be left out alone.
    pub fn is_insertion(&self) -> bool {
        matches!(self.kind, ChangeKind::Inserted(_))
    }
}

/// The changes of a text by one edit, or by several.
#[derive(Clone, Debug, Default)]
pub struct EditedText {
    /// The changed lines.
    pub lines: LineChanges,
    /// The lines that the edit inserted or changed. A stream capture precedes the lines that use it.
    pub changes: Vec<Change>,
    /// Statements of the original program that the edit moved or changed.
    pub replaced: Vec<StmtId>,
    /// True if the edit inserts a stream capture before all existing ones.
    pub adds_capture: bool,
    /// The statements that several edits insert, each with the line before which it is.
    pub statements: BTreeSet<(usize, String)>,
}

impl Change {
    fn inserted(line_id: u32, statement: &str) -> Self {
        Self { line_id, kind: ChangeKind::Inserted(statement.to_owned()) }
    }
}

impl EditableText {
    /// Applies an edit in its best place. Returns `None` if it has none, or if the text is formatted in a way that the edit does not
    /// support.
    pub fn apply(&self, edit: &Edit) -> Option<EditedText> {
        self.apply_here(self.placements(edit).first()?)
    }

    /// Returns the edit in the places where it may help, the best one first, and what it changes there.
    pub fn applications(&self, edit: &Edit) -> Vec<(Edit, EditedText)> {
        let all = self.placements(edit).into_iter();
        all.filter_map(|it| Some((it.clone(), self.apply_here(&it)?))).collect()
    }

    /// Applies an edit exactly where it says.
    pub(super) fn apply_here(&self, edit: &Edit) -> Option<EditedText> {
        match edit {
            Edit::InsertSynchronize { stream: WaitedStream::Index { index, stmt }, before } => {
                let stream = self.stream_operand(*index, *stmt, Some(before));
                self.insert(&self.synchronize(&stream), before)
            }
            Edit::InsertSynchronize { stream: WaitedStream::Entry { .. }, before }
            | Edit::CaptureEntryStream { before } => self.synchronize_with_entry(before),
            Edit::InsertWait { communication, before } => {
                let number = self.program.posted_work(communication.stmt?)?;
                let wait = self.format_statement("Wait", &format!("Communication {number}"));
                self.insert(&wait, before)
            }
            Edit::MoveWait { wait, before, synchronize } => {
                self.move_wait((*wait)?, before, synchronize.as_ref())
            }
            Edit::SynchronizeOnStream { blocked, stream, before } => {
                self.synchronize_on_stream(blocked, stream, before)
            }
            Edit::WaitOnStream { blocked, wait, before } => self.wait_on_stream(blocked, wait, before),
            Edit::MoveDeallocate { deallocate, after } => self.move_deallocate((*deallocate)?, (*after)?),
            Edit::ShortenAllocate { allocate } => self.shorten_allocate((*allocate)?),
            Edit::MoveAllocate { allocate, user } => self.move_allocate((*allocate)?, (*user)?),
        }
    }

    /// Returns the edit in the places where it may help, the best one first. A Synchronize is before the loops that it need not be
    /// in, in the loop whose iterations it waits for, or in the loop that selects the streams of a later one. Those of a Wait are in
    /// `wait_edits`.
    fn placements(&self, edit: &Edit) -> Vec<Edit> {
        match edit {
            Edit::InsertWait { communication, before } => self.wait_placements(communication, before),
            Edit::MoveWait { wait: Some(wait), before, synchronize } => {
                self.moved_up(*wait, before, synchronize.as_ref()).into_iter().collect()
            }
            Edit::InsertSynchronize { .. } | Edit::CaptureEntryStream { .. } => {
                let fork = self.fork_before_loop(edit);
                let here = fork.is_some().then(|| edit.clone());
                let other = self.before_loops(edit).or_else(|| self.join_in_loop(edit)).or(fork);
                let placed = Some(other.unwrap_or_else(|| edit.clone()));
                [placed, here, self.join_iterations(edit)].into_iter().flatten().collect()
            }
            Edit::MoveWait { wait: None, .. }
            | Edit::SynchronizeOnStream { .. }
            | Edit::WaitOnStream { .. }
            | Edit::MoveDeallocate { .. }
            | Edit::ShortenAllocate { .. }
            | Edit::MoveAllocate { .. } => vec![edit.clone()],
        }
    }

    /// Returns true if the edit is inside a loop and therefore affects every iteration.
    pub fn is_in_loop(&self, edit: &Edit) -> bool {
        let Some(point) = edit.insertion() else { return true };
        let is_loop = |(_, outer): (_, StmtId)| matches!(self.program.stmts[outer], Stmt::For(_));
        point.statement().is_some_and(|stmt| self.places().around(stmt).any(is_loop))
    }

    fn indentation(&self, line: usize) -> &str {
        let text = &self.lines.lines[line].text;
        &text[..text.len() - text.trim_start().len()]
    }

    /// Returns the 0-based line before which a statement is inserted, and the indentation of the new line.
    fn position(&self, point: &InsertionPoint) -> Option<(usize, String)> {
        match point {
            InsertionPoint::Before { statement, .. } => {
                let line = self.line_of(self.enclosing_group_start(statement.stmt?))?;
                // The comments above a statement stay attached to it.
                let is_comment = |line: &&NumberedLine| line.text.trim_start().starts_with("//");
                let comments = self.lines.lines[..line].iter().rev().take_while(is_comment).count();
                Some((line - comments, self.indentation(line).to_owned()))
            }
            InsertionPoint::After { statement, .. } => {
                let place = self.places().of_stmt(statement.stmt?)?;
                let later = self.program.block(place.block).get(place.position + 1..)?;
                let is_outside =
                    |it: &&StmtId| self.places().of_stmt(**it).is_some_and(|it| it.group_start.is_none());
                match later.iter().find(is_outside) {
                    Some(next) => {
                        self.position(&InsertionPoint::Before { statement: self.named(*next), current: None })
                    }
                    None => self.position(&InsertionPoint::BlockEnd { of: statement.clone() }),
                }
            }
            InsertionPoint::BlockEnd { of } => {
                let block = self.places().of_stmt(of.stmt?)?.block;
                let last = *self.program.block(block).last()?;
                let line = self.index.line(self.block_end(block).checked_sub(1)?) as usize;
                Some((line, self.indentation(self.line_of(last)?).to_owned()))
            }
            InsertionPoint::End { .. } => {
                let first = self.line_of(*self.program.body().first()?)?;
                Some((self.closing_line()?, self.indentation(first).to_owned()))
            }
        }
    }

    /// Returns the StartCoalescing of the group that contains `stmt`, or `stmt` itself. Statements must not
    /// be inserted into a group.
    fn enclosing_group_start(&self, stmt: StmtId) -> StmtId {
        self.places().of_stmt(stmt).and_then(|it| it.group_start).unwrap_or(stmt)
    }

    /// Formats a statement with one operand in the syntax of the text: `Wait(Communication 3)`, or
    /// `Wait Communication 3` in the syntax before January 2026.
    fn format_statement(&self, name: &str, operand: &str) -> String {
        if self.is_keyword_style() { format!("{name} {operand}") } else { format!("{name}({operand})") }
    }

    fn insert(&self, statement: &str, before: &InsertionPoint) -> Option<EditedText> {
        let (at, indentation) = self.position(before)?;
        let mut lines = LineChanges::default();
        let line = lines.insert(&self.lines, at, &format!("{indentation}{statement}"));
        let changes = vec![Change::inserted(line, statement)];
        Some(EditedText { lines, changes, ..EditedText::default() })
    }

    /// Returns a Synchronize with a stream that has this operand.
    pub fn synchronize(&self, stream: &str) -> String {
        self.format_statement("Synchronize", &format!("Stream {stream}"))
    }

    /// Inserts a Synchronize with the entry stream, the stream that is current at program entry.
    fn synchronize_with_entry(&self, before: &InsertionPoint) -> Option<EditedText> {
        let at = self.position(before)?.0;
        let (name, capture) = self.entry_stream_name(at)?;
        let it = self.insert(&self.synchronize(&name), before)?;
        self.with_capture(it, capture.as_deref(), at)
    }

    /// Returns the name of the entry stream at line `before`. If the text has no such name, returns a new
    /// name and the statement that defines it.
    fn entry_stream_name(&self, before: usize) -> Option<(String, Option<String>)> {
        if let Some(known) = self.captured_entry_stream().filter(|it| it.line < before) {
            let name = self.program.captured_stream_names().get(known.stream as usize)?;
            return Some((name.clone(), None));
        }
        let name = self.new_stream_names()[0].clone();
        let capture = self.capture(&name);
        Some((name, Some(capture)))
    }

    /// Returns the statement that captures the current stream.
    fn capture(&self, name: &str) -> String {
        if self.is_keyword_style() {
            format!("GetCurrentStream into Stream {name}")
        } else {
            format!("Stream {name} = GetCurrentStream()")
        }
    }

    /// Inserts the capture statement before all other statements and before line `inserted`.
    fn with_capture(&self, mut it: EditedText, capture: Option<&str>, inserted: usize) -> Option<EditedText> {
        let Some(capture) = capture else { return Some(it) };
        let first = self.line_of(*self.program.body().first()?)?;
        let line = format!("{}{capture}", self.indentation(first));
        let line = it.lines.insert_in_front(&self.lines, first.min(inserted), &line);
        it.changes.insert(0, Change::inserted(line, capture));
        it.adds_capture = true;
        Some(it)
    }
}

impl EditedText {
    /// Adds the changes of another edit of the same text. Lines that both insert are inserted once. Returns false, and adds
    /// nothing, if both change one line.
    pub(super) fn add(&mut self, text: &NumberedLines, other: &Self) -> bool {
        let of_statement = |it: &Change| {
            let (before, line) = other.lines.inserted(it.line_id).filter(|_| it.is_insertion())?;
            Some((it.line_id, (before, line.to_owned())))
        };
        let known: BTreeSet<u32> = other
            .changes
            .iter()
            .filter_map(of_statement)
            .filter(|it| self.statements.contains(&it.1))
            .map(|it| it.0)
            .collect();
        let capture = other.changes.first().filter(|_| other.adds_capture).map(|it| it.line_id);
        let Some(ids) = self.lines.add(text, &other.lines, &known, capture) else { return false };
        self.statements.extend(other.changes.iter().filter_map(of_statement).map(|it| it.1));
        for change in other.changes.iter().filter(|it| !known.contains(&it.line_id)) {
            // A line that is changed in place has its old id.
            let line_id = ids.get(&change.line_id).copied().unwrap_or(change.line_id);
            self.changes.push(Change { line_id, kind: change.kind.clone() });
        }
        self.replaced.extend(&other.replaced);
        self.adds_capture |= other.adds_capture;
        true
    }

    /// Returns whether the changes only insert lines.
    pub(super) fn only_inserts(&self) -> bool {
        self.changes.iter().all(Change::is_insertion)
    }

    /// Returns true if the program of the edited text `edited` differs from `before` only by the edit. An
    /// insertion may change how the reader interprets other lines.
    pub fn changes_nothing_else(&self, before: &Program, edited: &EditableText) -> bool {
        let after = &edited.program;
        let changed: FxHashSet<u32> = self.changes.iter().map(|it| it.line_id).collect();
        let is_touched = |it: StmtId| {
            let line = edited.lines.id(edited.index.line(after.stmt_span(it).start));
            line.is_some_and(|line| changed.contains(&line))
        };
        let rest = text_without_statements(after.clone(), &is_touched);
        let replaced: FxHashSet<StmtId> = self.replaced.iter().copied().collect();
        rest == text_without_statements(before.clone(), &|it| replaced.contains(&it))
    }
}

/// Prints a program without the statements that `is_left_out` selects. Captured streams are numbered by the other statements.
fn text_without_statements(mut program: Program, is_left_out: &dyn Fn(StmtId) -> bool) -> String {
    let mut captured = BTreeSet::new();
    for block in program.blocks.ids().collect::<Vec<_>>() {
        program.blocks[block].retain(|it| !is_left_out(*it));
        for stmt in program.block(block) {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            captured.extend(it.args.iter().chain(&it.outs).filter_map(|it| match it {
                Operand::Stream(stream) => match program.streams[*stream] {
                    Stream::Named(number) => Some(number),
                    Stream::Index(_) => None,
                },
                Operand::Tensor(_) | Operand::Scalar(_) => None,
            }));
        }
    }
    for stream in program.streams.ids().collect::<Vec<_>>() {
        if let Stream::Named(number) = &mut program.streams[stream] {
            *number = captured.range(..*number).count() as u32;
        }
    }
    grammar::print(&program)
}
