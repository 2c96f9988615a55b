//! Applies an edit to the text of a program. Whole lines are inserted, moved or changed; comments, formatting
//! and all other lines are preserved.

mod moves;

use grammar::{
    attr,
    ir::{BlockId, Program, Stmt, StmtId, Stream},
    ops::{Op, OpClass},
    span::LineIndex,
};

use super::{
    edit::{Edit, InsertionPoint, WaitedStream},
    numbered_lines::{NumberedLine, NumberedLines},
    stream_operand::stream_operand,
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
            ChangeKind::Inserted(statement) => format!("inserted `{statement}`"),
            ChangeKind::Moved(statement) => format!("moved `{statement}` up to here"),
            ChangeKind::Delayed(statement) => format!("moved `{statement}` down to here"),
            ChangeKind::ShortenedAllocate(_) => "turned the long ALLOCATE into the short one".to_owned(),
        }
    }

    /// Returns true if the change inserted a statement.
    pub fn is_insertion(&self) -> bool {
        matches!(self.kind, ChangeKind::Inserted(_))
    }
}

/// A text after one edit.
#[derive(Clone, Debug)]
pub struct EditedText {
    /// The edited text.
    pub lines: NumberedLines,
    /// The lines that the edit inserted or changed. A stream capture precedes the lines that use it.
    pub changes: Vec<Change>,
    /// Statements of the original program that the edit moved or changed.
    pub replaced: Vec<StmtId>,
    /// True if the edit inserts a stream capture before all existing ones.
    pub adds_capture: bool,
}

impl NumberedLines {
    fn insert_statement(&mut self, at: usize, indentation: &str, statement: &str) -> Change {
        let line = self.insert(at, format!("{indentation}{statement}"));
        Change { line_id: line, kind: ChangeKind::Inserted(statement.to_owned()) }
    }

    /// Applies `edit` to `program`, the program that this text contains. Returns `None` if the text is
    /// formatted in a way that the edit does not support.
    pub fn apply(&self, program: &Program, edit: &Edit) -> Option<EditedText> {
        let text = self.text();
        let at = Editor { lines: self, text: &text, index: LineIndex::new(&text), program };
        match edit {
            Edit::InsertSynchronize { stream: WaitedStream::Index { index, stmt }, before } => {
                let stream = stream_operand(program, *index, *stmt, before.statement());
                at.insert(&at.synchronize(&stream), before)
            }
            Edit::InsertSynchronize { stream: WaitedStream::Entry, before }
            | Edit::CaptureEntryStream { before } => at.synchronize_with_entry(before),
            Edit::InsertWait { communication, before } => {
                let number = program.posted_work(communication.stmt?)?;
                let wait = at.format_statement("Wait", &format!("Communication {number}"));
                at.insert(&wait, before)
            }
            Edit::MoveWait { wait, before, synchronize } => {
                at.move_wait((*wait)?, before, synchronize.as_ref())
            }
            Edit::MoveDeallocate { deallocate, after } => at.move_deallocate((*deallocate)?, (*after)?),
            Edit::ShortenAllocate { allocate } => at.shorten_allocate((*allocate)?),
        }
    }
}

/// Returns true if the edit is inside a loop and therefore affects every iteration.
pub fn is_in_loop(program: &Program, edit: &Edit) -> bool {
    let Some(point) = edit.insertion() else { return true };
    let stmt = point.statement();
    let mut is_inside = false;
    let mut loops = |it: StmtId| {
        if let Stmt::For(it) = &program.stmts[it] {
            program.walk(it.body, &mut |inner| is_inside |= Some(inner) == stmt);
        }
    };
    program.body.into_iter().for_each(|body| program.walk(body, &mut loops));
    is_inside
}

/// A text and the program parsed from it.
struct Editor<'a> {
    lines: &'a NumberedLines,
    text: &'a str,
    index: LineIndex,
    program: &'a Program,
}

impl Editor<'_> {
    /// Returns the 0-based line of a statement, or `None` if another statement precedes it on that line.
    fn line_of(&self, stmt: StmtId) -> Option<usize> {
        let start = self.program.stmt_span(stmt).start;
        let line = (self.index.line(start) as usize).checked_sub(1)?;
        let before = (self.index.column(start) - 1) as usize;
        let is_first = self.lines.lines[line].text.get(..before)?.trim().is_empty();
        is_first.then_some(line)
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
            InsertionPoint::BlockEnd { of } => {
                let last = *self.program.block(self.block_of(of.stmt?)?).last()?;
                let mut end = self.program.stmt_span(last).end;
                let inner = match &self.program.stmts[last] {
                    Stmt::Op(_) | Stmt::Let(..) => Vec::new(),
                    Stmt::For(it) => vec![it.body],
                    Stmt::If(it) => [it.then_block].into_iter().chain(it.else_block).collect(),
                };
                for block in inner {
                    self.program.walk(block, &mut |it| end = end.max(self.program.stmt_span(it).end));
                }
                let line = self.index.line(end.checked_sub(1)?) as usize;
                Some((line, self.indentation(self.line_of(last)?).to_owned()))
            }
            InsertionPoint::End { .. } => {
                let body = self.program.body?;
                let mut end = 0;
                self.program.walk(body, &mut |stmt| end = end.max(self.program.stmt_span(stmt).end));
                let last = self.index.line(end.checked_sub(1)?) as usize;
                let is_end = |it: &&NumberedLine| it.text.trim_start().starts_with('}');
                let closing = last + self.lines.lines[last..].iter().take_while(|it| !is_end(it)).count();
                let first = self.line_of(*self.program.body().first()?)?;
                (closing < self.lines.lines.len()).then(|| (closing, self.indentation(first).to_owned()))
            }
        }
    }

    /// Returns the block that contains a statement.
    fn block_of(&self, stmt: StmtId) -> Option<BlockId> {
        self.program.blocks.ids().find(|it| self.program.block(*it).contains(&stmt))
    }

    /// Returns the StartCoalescing of the group that contains `stmt`, or `stmt` itself. Statements must not
    /// be inserted into a group.
    fn enclosing_group_start(&self, stmt: StmtId) -> StmtId {
        let Some(block) = self.block_of(stmt) else { return stmt };
        let mut start = None;
        for it in self.program.block(block) {
            let op = operator(self.program, *it);
            if op == Some(Op::StartCoalescing) {
                start = Some(*it);
            }
            if *it == stmt {
                break;
            }
            if op == Some(Op::EndCoalescing) {
                start = None;
            }
        }
        start.unwrap_or(stmt)
    }

    /// Formats a statement with one operand in the syntax of the text: `Wait(Communication 3)`, or
    /// `Wait Communication 3` in the syntax before January 2026.
    fn format_statement(&self, name: &str, operand: &str) -> String {
        match self.is_keyword_style() {
            true => format!("{name} {operand}"),
            false => format!("{name}({operand})"),
        }
    }

    /// Returns true if operands follow the operator without parentheses, as in the syntax before January
    /// 2026.
    fn is_keyword_style(&self) -> bool {
        const OLD: [&str; 4] =
            ["GetCurrentStream into", "SetCurrentStream to", "Synchronize Stream", "Wait Communication"];
        let is_old = |it: &NumberedLine| OLD.iter().any(|old| it.text.trim_start().starts_with(old));
        self.lines.lines.iter().any(is_old)
    }

    fn insert(&self, statement: &str, before: &InsertionPoint) -> Option<EditedText> {
        let (at, indentation) = self.position(before)?;
        let mut lines = self.lines.clone();
        let change = lines.insert_statement(at, &indentation, statement);
        Some(EditedText { lines, changes: vec![change], replaced: Vec::new(), adds_capture: false })
    }

    fn synchronize(&self, stream: &str) -> String {
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
        if let Some((_, name)) = self.captured_entry_stream().filter(|it| it.0 < before) {
            return Some((name, None));
        }
        let is_taken = |name: &String| {
            self.text.split(|it: char| !it.is_alphanumeric() && it != '_').any(|word| word == name)
        };
        let name = (0..).map(|it| format!("s{it}")).find(|it| !is_taken(it))?;
        let capture = match self.is_keyword_style() {
            true => format!("GetCurrentStream into Stream {name}"),
            false => format!("Stream {name} = GetCurrentStream()"),
        };
        Some((name, Some(capture)))
    }

    /// Inserts the capture statement before all other statements and before line `inserted`.
    fn with_capture(&self, mut it: EditedText, capture: Option<&str>, inserted: usize) -> Option<EditedText> {
        let Some(capture) = capture else { return Some(it) };
        let first = self.line_of(*self.program.body().first()?)?;
        let change = it.lines.insert_statement(first.min(inserted), self.indentation(first), capture);
        it.changes.insert(0, change);
        it.adds_capture = true;
        Some(it)
    }

    /// Returns the 0-based line and the name of the first GetCurrentStream that executes while the entry
    /// stream is current.
    fn captured_entry_stream(&self) -> Option<(usize, String)> {
        for stmt in self.program.body() {
            let op = operator(self.program, *stmt);
            match op {
                Some(Op::GetCurrentStream) => {
                    let text = self.program.stmt_span(*stmt).text(self.text);
                    let name =
                        text.strip_prefix("Stream ").or_else(|| Some(text.split_once(" into Stream ")?.1))?;
                    let name = name.split('=').next()?.trim();
                    return Some((self.line_of(*stmt)?, name.to_owned()));
                }
                Some(Op::SetCurrentStream) | None => return None,
                Some(_) => (),
            }
        }
        None
    }

    /// Converts a long-form ALLOCATE into the short form. Returns `None` if the ALLOCATE zeroes the buffer or
    /// if other tensors are views of it: a later iteration may read what an earlier one wrote.
    fn shorten_allocate(&self, stmt: StmtId) -> Option<EditedText> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        let tensor = it.out_tensor()?;
        let is_plain = it.op == Op::AllocateOnce
            && it.get(attr::ZERO_INIT) != Some(true)
            && it.get(attr::RESETS_TO_ZERO) != Some(true);
        let mut is_viewed = false;
        self.program.walk(self.program.body?, &mut |other| {
            if let Stmt::Op(it) = &self.program.stmts[other] {
                let is_operand = it.args.iter().any(|it| it.tensor() == Some(tensor));
                is_viewed |= is_operand && matches!(it.op.def().class, OpClass::View);
                is_viewed |= it.get(attr::ALIAS) == Some(tensor);
            }
        });
        if !is_plain || is_viewed {
            return None;
        }
        let line = self.line_of(stmt)?;
        let text = &self.lines.lines[line].text;
        let (left, right) = text.split_once("ALLOCATE(")?;
        let memory = right.split_once("mem_type=")?.1.split([',', ')']).next()?.trim();
        let rest = right.rsplit_once(')')?.1;
        let mut lines = self.lines.clone();
        let short = format!("ALLOCATE(mem_type={memory}, zero_init=false)");
        lines.lines[line].text = format!("{left}{short}{rest}");
        let id = lines.lines[line].id;
        let change = Change { line_id: id, kind: ChangeKind::ShortenedAllocate(short) };
        Some(EditedText { lines, changes: vec![change], replaced: vec![stmt], adds_capture: false })
    }
}

fn operator(program: &Program, stmt: StmtId) -> Option<Op> {
    match &program.stmts[stmt] {
        Stmt::Op(it) => Some(it.op),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    }
}

impl EditedText {
    /// Returns true if `after`, parsed from the edited text, differs from `before` only by the edit. An
    /// insertion may change how the reader interprets other lines.
    pub fn changes_nothing_else(&self, before: &Program, after: &Program) -> bool {
        let index = LineIndex::new(&self.lines.text());
        let is_touched = |it: StmtId| {
            let line = self.lines.id(index.line(after.stmt_span(it).start));
            line.is_some_and(|line| self.changes.iter().any(|it| it.line_id == line))
        };
        let rest = text_without_statements(after.clone(), &is_touched, self.adds_capture);
        rest == text_without_statements(before.clone(), &|it| self.replaced.contains(&it), false)
    }
}

/// Prints a program without the statements that `is_left_out` selects, and without its first captured stream
/// if `captures` is set.
fn text_without_statements(
    mut program: Program,
    is_left_out: &dyn Fn(StmtId) -> bool,
    captures: bool,
) -> String {
    for block in program.blocks.ids().collect::<Vec<_>>() {
        program.blocks[block].retain(|it| !is_left_out(*it));
    }
    if captures {
        for stream in program.streams.ids().collect::<Vec<_>>() {
            if let Stream::Named(number) = &mut program.streams[stream] {
                *number = number.saturating_sub(1);
            }
        }
    }
    grammar::print(&program)
}
