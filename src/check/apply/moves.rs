//! The edits that move a statement: a Wait, or a Deallocate down.

use grammar::{
    ir::{Program, Stmt, StmtId},
    ops::Op,
};
use hir_ir::blocks::inner_blocks;

use super::{Change, ChangeKind, EditedText};
use crate::{
    edit::{InsertionPoint, WaitedStream},
    editable_text::EditableText,
    line_changes::LineChanges,
};

impl EditableText {
    /// Moves a Wait that is alone on its line. If the Wait would then block another stream, a Synchronize
    /// with that stream replaces it at its old position.
    pub(super) fn move_wait(
        &self,
        stmt: StmtId,
        before: &InsertionPoint,
        synchronize: Option<&WaitedStream>,
    ) -> Option<EditedText> {
        let (from, statement) = self.statement_of_line(stmt)?;
        let text = self.lines.lines[from].text.trim();
        let at = self.position(before)?.0;
        let mut it = self.insert(text, before)?;
        let kind = if at <= from { ChangeKind::Moved } else { ChangeKind::Delayed };
        for change in &mut it.changes {
            change.kind = kind(statement.to_owned());
        }
        it.replaced.push(stmt);
        let (name, capture) = match synchronize {
            None => (None, None),
            Some(WaitedStream::Index { index, stmt: executed }) => {
                let here = InsertionPoint::Before { statement: self.named(stmt), current: None };
                (Some(self.stream_operand(*index, *executed, Some(&here))), None)
            }
            Some(WaitedStream::Entry { .. }) => {
                let (name, capture) = self.entry_stream_name(at)?;
                (Some(name), capture)
            }
        };
        if let Some(name) = name {
            let statement = self.synchronize(&name);
            let line = format!("{}{statement}", self.indentation(from));
            let line = it.lines.insert(&self.lines, from, &line);
            it.changes.push(Change::inserted(line, &statement));
        }
        let is_gone = synchronize.is_none();
        self.remove_statement(&mut it, stmt, from, is_gone);
        self.with_capture(it, capture.as_deref(), at)
    }

    /// Removes a statement that is alone on its line. If nothing takes its place (`is_gone`), the branches and loops that have no other statement
    /// go with it.
    pub(super) fn remove_statement(&self, it: &mut EditedText, stmt: StmtId, line: usize, is_gone: bool) {
        it.lines.remove(line);
        let mut inner = line;
        for (block, outer) in self.places().around(stmt).take_while(|_| is_gone) {
            let has_others = self.program.block(block).len() > 1
                || inner_blocks(&self.program, outer).into_iter().flatten().count() > 1;
            let header = self.line_of(outer).filter(|header| header + 1 == inner && !has_others);
            let Some(header) = header.filter(|it| self.lines.lines[*it].text.trim_end().ends_with(':'))
            else {
                return;
            };
            it.lines.remove(header);
            it.replaced.push(outer);
            inner = header;
        }
    }

    /// Returns the 0-based line of a statement that is alone on its line, and its text.
    pub(super) fn statement_of_line(&self, stmt: StmtId) -> Option<(usize, &str)> {
        let from = self.line_of(stmt)?;
        let text = self.lines.lines[from].text.trim();
        let statement = self.program.stmt_span(stmt).text(&self.text);
        let rest = text.strip_prefix(statement)?.trim_start();
        (rest.is_empty() || rest.starts_with("//")).then_some((from, statement))
    }

    /// Moves a Deallocate behind a later statement of its block. Returns `None` if a statement between the two binds
    /// one of its tensors again.
    pub(super) fn move_deallocate(&self, stmt: StmtId, after: StmtId) -> Option<EditedText> {
        let Stmt::Op(deallocate) = &self.program.stmts[stmt] else { return None };
        let [from, to] = [stmt, after].map(|it| self.places().of_stmt(it));
        let (from, to) = (from?, to.filter(|it| Some(it.block) == from.map(|it| it.block))?);
        let mut tensors = Program::tensors_of(&deallocate.args);
        let is_bound = tensors.any(|it| self.is_bound_in(from.block, it, from.position + 1..to.position + 1));
        if deallocate.op != Op::Deallocate || is_bound || to.position < from.position {
            return None;
        }
        let last_line = |it: StmtId| {
            let span = self.program.stmt_span(it);
            let line = self.index.line(span.end.checked_sub(1)?);
            let rest =
                self.index.line_text(line, &self.text).get(self.index.column(span.end) as usize - 1..)?;
            let rest = rest.trim_start();
            (rest.is_empty() || rest.starts_with("//")).then_some(line as usize)
        };
        // `last_line` counts from 1, and so is the index, from 0, of the next line.
        let moved = self.lines.lines.get(self.line_of(stmt)?..last_line(stmt)?)?;
        let end = last_line(after)?;
        let mut lines = LineChanges::default();
        let mut first = None;
        for line in moved {
            let id = lines.insert(&self.lines, end, line.text.trim_end_matches('\r'));
            first.get_or_insert(id);
        }
        (self.line_of(stmt)?..last_line(stmt)?).for_each(|it| lines.remove(it));
        let kind = ChangeKind::Delayed(grammar::summary(&self.program, stmt));
        let change = Change { line_id: first?, kind };
        Some(EditedText { lines, changes: vec![change], replaced: vec![stmt], ..EditedText::default() })
    }
}
