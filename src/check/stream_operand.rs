//! The operand of an inserted `Synchronize`: the text names a stream by an expression of the loop indices if
//! each iteration uses another stream.

use grammar::{
    ir::{ExprId, Operand, Program, Stmt, StmtId, Stream, SymbolId},
    stream_operand_text,
};
use rustc_hash::FxHashSet;

use super::{edit::InsertionPoint, stmt_places::StmtPlaces};

/// A program, and what the operands of its streams depend on.
pub struct StreamOperands<'a> {
    /// The program.
    pub program: &'a Program,
    /// The places of its statements.
    pub places: &'a StmtPlaces,
    /// The scalars that statements define.
    pub defined: &'a FxHashSet<SymbolId>,
}

impl StreamOperands<'_> {
    /// Returns how a `Synchronize` at `insertion` (`None`: after the last statement) names the stream that
    /// executes `stmt`: by the operand of the SetCurrentStream that makes it current if this operand has the same
    /// value there, otherwise by `index`. In the dialect of 2025, the name of a captured stream may be a number or a scalar: an expression
    /// that is not a stream object has parentheses then.
    pub fn text(&self, index: i64, stmt: Option<StmtId>, insertion: Option<&InsertionPoint>) -> String {
        let text =
            stmt.and_then(|it| self.symbolic_operand(it, insertion)).unwrap_or_else(|| index.to_string());
        if self.program.captured_stream_names().contains(&text) { format!("( {text} )") } else { text }
    }

    fn symbolic_operand(&self, stmt: StmtId, insertion: Option<&InsertionPoint>) -> Option<String> {
        let (program, places) = (self.program, self.places);
        let set = places.streams.setter(stmt)?;
        let Stmt::Op(it) = &program.stmts[set] else { return None };
        let [Operand::Stream(stream)] = it.args.as_slice() else { return None };
        let Stream::Index(operand) = program.streams[*stream] else { return None };
        if program.depends_on(operand, &|it| self.defined.contains(&it)) {
            return None;
        }
        let loops: Vec<StmtId> = self.enclosing_loops(set, operand);
        if !loops.is_empty() {
            let place = insertion?.statement()?;
            let current = match insertion? {
                InsertionPoint::BlockEnd { .. } => places.streams.setter_behind(places.of_stmt(place)?.block),
                InsertionPoint::Before { .. } | InsertionPoint::After { .. } | InsertionPoint::End { .. } => {
                    places.streams.setter(place)
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
        Some(stream_operand_text(program, *stream))
    }

    /// Returns the loops around `stmt` on whose index `operand` depends.
    fn enclosing_loops(&self, stmt: StmtId, operand: ExprId) -> Vec<StmtId> {
        let is_used = |outer: &StmtId| match &self.program.stmts[*outer] {
            Stmt::For(it) => self.program.depends_on(operand, &|symbol| symbol == it.index),
            Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => false,
        };
        self.places.around(stmt).map(|it| it.1).filter(is_used).collect()
    }
}
