//! The places of a `Synchronize` that concern loops: before a loop instead of in each iteration, and at the end of the
//! iterations whose work is awaited.

use grammar::{
    ir::{Operand, Stmt, StmtId, Stream},
    ops::Op,
};

use super::{
    edit::{Edit, InsertionPoint, NamedStmt, WaitedStream},
    editable_text::EditableText,
};

impl EditableText {
    /// Returns the edit before the loops around its place in which the awaited statement is not, and in which the current
    /// stream does not change; `None` if there are no such loops. One iteration has to wait, and the others follow it.
    pub(super) fn before_loops(&self, edit: &Edit) -> Option<Edit> {
        let Edit::InsertSynchronize { stream, before: InsertionPoint::Before { statement, current } } = edit
        else {
            return None;
        };
        let WaitedStream::Index { stmt: Some(awaited), .. } = stream else { return None };
        let places = self.places();
        let is_shared = |outer: StmtId| places.around(*awaited).any(|it| it.1 == outer);
        let inner = places.around(statement.stmt?);
        let outer = inner
            .take_while(|(block, outer)| !is_shared(*outer) && !places.sets_stream(*block))
            .filter(|(_, outer)| matches!(self.program.stmts[*outer], Stmt::For(_)))
            .last()?
            .1;
        let mut statement = statement.clone();
        statement.stmt = Some(outer);
        let before = InsertionPoint::Before { statement, current: current.clone() };
        Some(Edit::InsertSynchronize { stream: stream.clone(), before })
    }

    /// Returns the edit that waits, at the end of each iteration of a loop, for the stream of the iteration, instead of for one of
    /// these streams in each iteration of a later loop. Returns `None` if the iterations do not end on a stream that the program
    /// captured, or if one waits for this stream, since they would then wait for each other.
    pub(super) fn join_in_loop(&self, edit: &Edit) -> Option<Edit> {
        let Edit::InsertSynchronize { stream, before } = edit else { return None };
        let WaitedStream::Index { stmt: Some(awaited), .. } = stream else { return None };
        let (program, places) = (&self.program, self.places());
        let setter = places.stream_setter(program, *awaited)?;
        let (body, looped) =
            places.around(setter).find(|(_, outer)| matches!(program.stmts[*outer], Stmt::For(_)))?;
        let later = before.statement()?;
        let is_around_later = |it: StmtId| places.around(later).any(|(_, outer)| outer == it);
        if !self.sets_other_stream_in(setter, looped) || !self.is_in_loop(edit) || is_around_later(looped) {
            return None;
        }
        let stmts = program.block(body);
        let last = stmts.iter().rposition(|it| self.captured_operand(*it, Op::SetCurrentStream).is_some())?;
        let joining = self.captured_operand(stmts[last], Op::SetCurrentStream);
        let next = *stmts.get(last + 1)?;
        let is_current_at_end = places.stream_setter(program, *stmts.last()?) == Some(stmts[last]);
        let forks = |it: &StmtId| self.captured_operand(*it, Op::Synchronize) == joining;
        if !is_current_at_end || self.statements_in(looped).iter().any(forks) {
            return None;
        }
        let line = self.index.line(program.stmt_span(next).start);
        let statement = NamedStmt { stmt: Some(next), name: format!("line {line}") };
        let before = InsertionPoint::Before { statement, current: None };
        Some(Edit::InsertSynchronize { stream: stream.clone(), before })
    }

    /// Returns whether a SetCurrentStream selects another stream in each iteration of a loop.
    fn sets_other_stream_in(&self, setter: StmtId, looped: StmtId) -> bool {
        let (Stmt::Op(set), Stmt::For(it)) = (&self.program.stmts[setter], &self.program.stmts[looped])
        else {
            return false;
        };
        let [Operand::Stream(stream)] = set.args.as_slice() else { return false };
        match self.program.streams[*stream] {
            Stream::Index(operand) => self.program.depends_on(operand, &|symbol| symbol == it.index),
            Stream::Named(_) => false,
        }
    }

    /// Returns the number of the captured stream that is the operand of a statement with an operator.
    fn captured_operand(&self, stmt: StmtId, op: Op) -> Option<u32> {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return None };
        let [Operand::Stream(stream)] = it.args.as_slice() else { return None };
        match self.program.streams[*stream] {
            Stream::Named(number) if it.op == op => Some(number),
            _ => None,
        }
    }

    /// Returns all statements in a loop.
    fn statements_in(&self, looped: StmtId) -> Vec<StmtId> {
        let is_inside = |it: &StmtId| self.places().around(*it).any(|(_, outer)| outer == looped);
        self.program.stmts.ids().filter(is_inside).collect()
    }
}
