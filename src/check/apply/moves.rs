//! The edits that move a statement: a Wait up, or a Deallocate down.

use grammar::{
    for_each_tensor_use,
    ir::{Stmt, StmtId},
    ops::{AccessMode, Op},
};

use super::{Change, ChangeKind, EditedText, Editor};
use crate::check::{
    edit::{InsertionPoint, WaitedStream},
    stream_operand::stream_operand,
};

impl Editor<'_> {
    /// Moves a Wait that is alone on its line. If the Wait would then block another stream, a Synchronize
    /// with that stream replaces it at its old position.
    pub(super) fn move_wait(
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
            change.kind = ChangeKind::Moved(statement.to_owned());
        }
        it.replaced.push(stmt);
        let (name, capture) = match synchronize {
            None => (None, None),
            Some(WaitedStream::Index { index, stmt: executed }) => {
                (Some(stream_operand(self.program, *index, *executed, Some(stmt))), None)
            }
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

    /// Moves a Deallocate behind a later statement of its block. Returns `None` if a statement between the two binds
    /// one of its tensors again.
    pub(super) fn move_deallocate(&self, stmt: StmtId, after: StmtId) -> Option<EditedText> {
        let Stmt::Op(deallocate) = &self.program.stmts[stmt] else { return None };
        let block = self.program.block(self.block_of(stmt)?);
        let position = |wanted| block.iter().position(|it| *it == wanted);
        let passed = block.get(position(stmt)? + 1..=position(after)?)?;
        let mut is_bound = false;
        let mut visit = |it: StmtId| {
            if let Stmt::Op(it) = &self.program.stmts[it] {
                for_each_tensor_use(self.program, it, &mut |tensor, mode| {
                    is_bound |= mode == AccessMode::Bind
                        && deallocate.args.iter().any(|it| it.tensor() == Some(tensor));
                });
            }
        };
        passed.iter().for_each(|it| self.program.walk_stmt(*it, &mut visit));
        if deallocate.op != Op::Deallocate || is_bound {
            return None;
        }
        let last_line = |it: StmtId| {
            let span = self.program.stmt_span(it);
            let line = self.index.line(span.end.checked_sub(1)?);
            let rest =
                self.index.line_text(line, self.text).get(self.index.column(span.end) as usize - 1..)?;
            let rest = rest.trim_start();
            (rest.is_empty() || rest.starts_with("//")).then_some(line as usize)
        };
        // `last_line` counts from 1, and so is the index, from 0, of the next line.
        let moved = self.lines.lines.get(self.line_of(stmt)?..last_line(stmt)?)?;
        let end = last_line(after)?;
        let mut lines = self.lines.clone();
        let mut first = None;
        for (at, line) in (end..).zip(moved) {
            let id = lines.insert(at, line.text.trim_end_matches('\r').to_owned());
            first.get_or_insert(id);
        }
        let lines = lines.without_lines(&moved.iter().map(|it| it.id).collect::<Vec<_>>());
        let kind = ChangeKind::Delayed(grammar::summary(self.program, stmt));
        let change = Change { line_id: first?, kind };
        Some(EditedText { lines, changes: vec![change], replaced: vec![stmt], adds_capture: false })
    }
}
