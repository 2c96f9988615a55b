//! Applies an edit to the text of a program: whole lines are inserted, moved or changed; comments, layout and all other lines stay.

use grammar::{
    attr,
    ir::{BlockId, Program, Stmt, StmtId, Stream},
    ops::{Op, OpClass},
    span::LineIndex,
};

use super::edit::{Edit, InsertionPoint, WaitedStream};

/// A line with a number that stays while others are inserted and removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NumberedLine {
    id: u32,
    text: String,
}

/// A text as numbered lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedLines {
    lines: Vec<NumberedLine>,
    next: u32,
}

/// A line that an edit has inserted or changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// The number that stays.
    pub line_id: u32,
    /// What was done, in the past tense.
    pub description: String,
    /// Whether the text is right without the line, but for an order.
    pub is_insertion: bool,
}

/// A text after an edit.
#[derive(Clone, Debug)]
pub struct EditedText {
    /// The text.
    pub lines: NumberedLines,
    /// The lines that the edit has inserted or changed; a capture comes before the lines that use it.
    pub changes: Vec<Change>,
    /// Statements of the program before that the edit has moved or changed.
    pub replaced: Vec<StmtId>,
    /// Whether the text captures one more stream, before all others.
    pub adds_capture: bool,
}

impl NumberedLines {
    /// The lines of a text.
    pub fn of(text: &str) -> Self {
        let lines: Vec<NumberedLine> =
            text.split('\n').zip(0..).map(|(text, id)| NumberedLine { id, text: text.to_owned() }).collect();
        let next = lines.len() as u32;
        Self { lines, next }
    }

    /// The text.
    pub fn text(&self) -> String {
        self.lines.iter().map(|it| it.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// The number that stays, of a line that is counted from 1; 0: no line.
    pub fn id(&self, line: u32) -> Option<u32> {
        self.lines.get(line.checked_sub(1)? as usize).map(|it| it.id)
    }

    /// Where a line is now, from 1.
    pub fn line(&self, id: u32) -> Option<u32> {
        self.lines.iter().position(|it| it.id == id).map(|at| at as u32 + 1)
    }

    /// The text without some lines.
    pub fn without_lines(&self, ids: &[u32]) -> Self {
        let kept = self.lines.iter().filter(|it| !ids.contains(&it.id)).cloned();
        Self { lines: kept.collect(), next: self.next }
    }

    fn insert(&mut self, at: usize, text: String) -> u32 {
        let id = self.next;
        self.next += 1;
        // Lines of a text with CRLF end with CR.
        let is_crlf = self.lines.first().is_some_and(|it| it.text.ends_with('\r'));
        let text = if is_crlf && !text.ends_with('\r') { text + "\r" } else { text };
        self.lines.insert(at, NumberedLine { id, text });
        id
    }

    fn insert_statement(&mut self, at: usize, indentation: &str, statement: &str) -> Change {
        let line = self.insert(at, format!("{indentation}{statement}"));
        Change { line_id: line, description: format!("inserted `{statement}`"), is_insertion: true }
    }

    /// The text after an edit of the program that it contains; `None`: the edit cannot be applied to this layout.
    pub fn apply(&self, program: &Program, edit: &Edit) -> Option<EditedText> {
        let text = self.text();
        let at = Editor { lines: self, text: &text, index: LineIndex::new(&text), program };
        match edit {
            Edit::InsertSynchronize { stream: WaitedStream::Index(index), before } => {
                at.insert(&at.synchronize(index), before)
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
            Edit::ShortenAllocate { allocate } => at.shorten_allocate((*allocate)?),
        }
    }
}

/// Whether an edit is inside of a loop, and so is made for every iteration.
pub fn is_in_loop(program: &Program, edit: &Edit) -> bool {
    let place = match edit {
        Edit::InsertSynchronize { before, .. }
        | Edit::CaptureEntryStream { before }
        | Edit::InsertWait { before, .. }
        | Edit::MoveWait { before, .. } => before,
        Edit::ShortenAllocate { .. } => return true,
    };
    let stmt = match place {
        InsertionPoint::Before { statement, .. } | InsertionPoint::BlockEnd { of: statement } => {
            statement.stmt
        }
        InsertionPoint::End { .. } => None,
    };
    let mut is_inside = false;
    let mut loops = |it: StmtId| {
        if let Stmt::For(it) = &program.stmts[it] {
            program.walk(it.body, &mut |inner| is_inside |= Some(inner) == stmt);
        }
    };
    program.body.into_iter().for_each(|body| program.walk(body, &mut loops));
    is_inside
}

/// A text and the program that it contains.
struct Editor<'a> {
    lines: &'a NumberedLines,
    text: &'a str,
    index: LineIndex,
    program: &'a Program,
}

impl Editor<'_> {
    /// The line of a statement that begins its line, from 0.
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

    /// The line that an insertion comes before, from 0, and its indentation.
    fn position(&self, place: &InsertionPoint) -> Option<(usize, String)> {
        match place {
            InsertionPoint::Before { statement, .. } => {
                let line = self.line_of(self.enclosing_group_start(statement.stmt?))?;
                // The comments above a statement stay with it.
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

    /// The block that contains a statement.
    fn block_of(&self, stmt: StmtId) -> Option<BlockId> {
        self.program.blocks.ids().find(|it| self.program.block(*it).contains(&stmt))
    }

    /// The StartCoalescing of the group that a statement is a part of, or the statement itself: nothing is inserted into groups.
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

    /// A statement with one operand, in the style of the text: `Wait(Communication 3)`, before January 2026 `Wait Communication 3`.
    fn format_statement(&self, name: &str, operand: &str) -> String {
        match self.is_keyword_style() {
            true => format!("{name} {operand}"),
            false => format!("{name}({operand})"),
        }
    }

    /// Whether operands stand behind a blank, as before January 2026.
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

    /// Inserts a Synchronize with the stream that is current at entry.
    fn synchronize_with_entry(&self, before: &InsertionPoint) -> Option<EditedText> {
        let at = self.position(before)?.0;
        let (name, capture) = self.entry_stream_name(at)?;
        let it = self.insert(&self.synchronize(&name), before)?;
        self.with_capture(it, capture.as_deref(), at)
    }

    /// The name that the text has for the stream that is current at entry, before a line, or a new one and the statement that gives it.
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

    /// Inserts a capture before all other statements, and before a line that the edit has inserted.
    fn with_capture(&self, mut it: EditedText, capture: Option<&str>, inserted: usize) -> Option<EditedText> {
        let Some(capture) = capture else { return Some(it) };
        let first = self.line_of(*self.program.body().first()?)?;
        let change = it.lines.insert_statement(first.min(inserted), self.indentation(first), capture);
        it.changes.insert(0, change);
        it.adds_capture = true;
        Some(it)
    }

    /// The first capture while the entry stream is current: its line, from 0, and the name that it gives.
    fn captured_entry_stream(&self) -> Option<(usize, String)> {
        for stmt in self.program.body() {
            let op = operator(self.program, *stmt);
            match op {
                Some(Op::GetCurrentStream) => {
                    let text = self.program.stmt_span(*stmt).text(self.text);
                    let name = text.split_once("Stream ")?.1;
                    let name = name.split('=').next()?.trim();
                    return Some((self.line_of(*stmt)?, name.to_owned()));
                }
                Some(Op::SetCurrentStream) | None => return None,
                Some(_) => (),
            }
        }
        None
    }

    /// Moves a Wait that has a line of its own. Where another stream waits then, a Synchronize with it takes the place of the Wait.
    fn move_wait(
        &self,
        stmt: StmtId,
        before: &InsertionPoint,
        synchronize: Option<&WaitedStream>,
    ) -> Option<EditedText> {
        let from = self.line_of(stmt)?;
        let text = self.lines.lines[from].text.trim();
        let statement = self.program.stmt_span(stmt).text(self.text);
        let rest = text.strip_prefix(statement)?.trim_start();
        if !rest.is_empty() && !rest.starts_with("//") {
            return None;
        }
        let at = self.position(before)?.0;
        let mut it = self.insert(text, before)?;
        for change in &mut it.changes {
            (change.description, change.is_insertion) = (format!("moved `{statement}` up to here"), false);
        }
        it.replaced.push(stmt);
        let (name, capture) = match synchronize {
            None => (None, None),
            Some(WaitedStream::Index(index)) => (Some(index.clone()), None),
            Some(WaitedStream::Entry) => {
                let (name, capture) = self.entry_stream_name(at)?;
                (Some(name), capture)
            }
        };
        let id = self.lines.lines[from].id;
        if let Some(name) = name {
            let old = it.lines.lines.iter().position(|it| it.id == id)?;
            let change = it.lines.insert_statement(old, self.indentation(from), &self.synchronize(&name));
            it.changes.push(change);
        }
        it.lines = it.lines.without_lines(&[id]);
        self.with_capture(it, capture.as_deref(), at)
    }

    /// Turns a long ALLOCATE into the short one. One that zeroes, or that other names are views of, is left: a later iteration may read what
    /// an earlier one has written.
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
        lines.lines[line].text = format!("{left}ALLOCATE(mem_type={memory}, zero_init=false){rest}");
        let id = lines.lines[line].id;
        let what = "turned the long ALLOCATE into the short one".to_owned();
        let change = Change { line_id: id, description: what, is_insertion: false };
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
    /// Whether a program, read from the edited text, is the program before but for the edit: an insertion may change what a reader makes of
    /// other lines.
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

/// The text of a program without some statements, and without its first captured stream where `captures` says so.
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
