//! The operand of an inserted `Synchronize`: the text names a stream by an expression of the loop indices if
//! each iteration uses another stream.

use grammar::{ExprId, Operand, Stmt, StmtId, Stream, StreamId};
use hir_ir::edit::StreamRef;

use super::{editable_text::EditableText, repair::InsertionPoint};

impl EditableText {
    /// Returns how a `Synchronize` at `insertion` (`None`: after the last statement) names the stream that
    /// executes `stmt`: by the operand of the SetCurrentStream that makes it current if this operand has the same
    /// value there, otherwise by `index`.
    pub fn stream_operand(
        &self,
        index: i64,
        stmt: Option<StmtId>,
        insertion: Option<&InsertionPoint>,
    ) -> StreamRef {
        let symbolic = stmt.and_then(|it| self.symbolic_operand(it, insertion));
        symbolic.map_or(StreamRef::Index(index), StreamRef::Same)
    }

    fn symbolic_operand(&self, stmt: StmtId, insertion: Option<&InsertionPoint>) -> Option<StreamId> {
        let (program, places, streams) = (&self.program, self.places(), self.streams());
        let set = streams.setter(stmt)?;
        let Stmt::Op(it) = &program.stmts[set] else { return None };
        let [Operand::Stream(stream)] = it.args.as_slice() else { return None };
        let Stream::Index(operand) = program.streams[*stream] else { return None };
        if program.depends_on(operand, &|it| self.defined().contains(&it)) {
            return None;
        }
        let loops: Vec<StmtId> = self.enclosing_loops(set, operand);
        if !loops.is_empty() {
            let place = insertion?.statement()?;
            let current = match insertion? {
                InsertionPoint::BlockEnd { .. } => streams.setter_behind(places.of_stmt(place)?.block),
                InsertionPoint::Before { .. } | InsertionPoint::After { .. } | InsertionPoint::End { .. } => {
                    streams.setter(place)
                }
            };
            // The work of an earlier iteration is awaited, in which the operand may have had another value.
            let start = |it: StmtId| program.stmt_span(it).start;
            if matches!(insertion, Some(InsertionPoint::Before { .. })) && start(place) < start(set) {
                return None;
            }
            // The same SetCurrentStream also makes the waiting stream current: iterations wait for each other.
            if current == Some(set) {
                return None;
            }
            let is_inside = |it: &StmtId| places.around(place).any(|(_, outer)| outer == *it);
            if !loops.iter().all(is_inside) {
                return None;
            }
        }
        Some(*stream)
    }

    /// Returns the loops around `stmt` on whose index `operand` depends.
    fn enclosing_loops(&self, stmt: StmtId, operand: ExprId) -> Vec<StmtId> {
        let is_used = |outer: &StmtId| match &self.program.stmts[*outer] {
            Stmt::For(it) => self.program.depends_on(operand, &|symbol| symbol == it.index),
            Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => false,
        };
        self.places().around(stmt).map(|it| it.1).filter(is_used).collect()
    }
}
