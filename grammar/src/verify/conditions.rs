//! Checks loops that a condition ends (`WHILE`): nothing behind such a loop depends on the number of its iterations, except values of
//! tensors that are bound before it. So the statements behind it mean the same after any number of iterations.

use super::Verifier;
use crate::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{For, Part, Program, StmtId, TensorId},
    ops::{Op, OpClass},
    span::Span,
};

impl Program {
    /// Returns the WHILE of a loop, and its condition: the first statement of the body.
    pub fn loop_condition(&self, it: &For) -> Option<(StmtId, TensorId)> {
        let first = *self.block(it.body).first()?;
        let op = self.op(first).filter(|it| it.op == Op::While)?;
        Some((first, Self::tensors_of(&op.args).next()?))
    }

    /// Returns the first loop of the container that a condition ends.
    pub fn conditional_loop(&self) -> Option<StmtId> {
        self.ops().find(|(_, it)| it.op == Op::While).map(|it| it.0)
    }
}

impl Verifier<'_> {
    /// Checks the body of a loop whose header is at `span`.
    pub(super) fn loop_body(&mut self, it: &For, span: Span) {
        let Some((stmt, condition)) = self.program.loop_condition(it) else { return self.block(it.body) };
        if it.axis.is_some() {
            let message = "a loop over an axis has a condition";
            self.bad_condition(span, message, "expected `FOR i from a to b:`", "write the two bounds");
        }
        let dtype = self.program.tensors[condition].dtype;
        if dtype != Some(DType::Bool) && !self.faulty.contains(&condition) {
            let place = self.program.part_span(stmt, Part::Operand(0));
            let message = format!("the condition `{}` is not a boolean", self.program.tensor_name(condition));
            self.bad_condition(place, message, "expected a tensor of type bool", "compare two tensors");
        }
        self.conditions.insert(stmt);
        self.check_effects(it);
        let before = (self.defined.clone(), self.posted.clone());
        self.block(it.body);
        let inner = std::mem::replace(&mut self.defined, before.0);
        self.left.extend(inner.difference(&self.defined).map(|it| (*it, span)));
        self.posted = before.1;
    }

    /// Checks that a WHILE is the first statement of a loop.
    pub(super) fn check_condition(&mut self, stmt: StmtId, span: Span) {
        if !self.conditions.contains(&stmt) {
            let message = "a WHILE is not the first statement of a loop";
            let help = "write it behind the header `FOR i from a to b:`; values that it reads are written before the loop and in its body";
            self.bad_condition(span, message, "no loop begins before this", help);
        }
    }

    /// Checks that the statements of a body have no effect on streams, names and communications behind it.
    fn check_effects(&mut self, it: &For) {
        let program = self.program;
        let mut posted = Vec::new();
        for (stmt, op) in program.ops_in(it.body) {
            let span = program.stmt_span(stmt);
            let frees = || Program::tensors_of(&op.args).any(|it| self.defined.contains(&it));
            let (message, help) = match op.op.def().class {
                OpClass::Stream if !matches!(op.op, Op::SynchronizeHost | Op::RecordStream) => (
                    "a loop that a condition ends changes, captures or waits for a stream",
                    "move this statement before the loop",
                ),
                OpClass::Wait if op.get(attr::WORK).is_some_and(|it| !posted.contains(&it)) => (
                    "a loop that a condition ends waits for a communication that its body has not posted",
                    "move the Wait before the loop",
                ),
                OpClass::Deallocate if frees() => (
                    "a loop that a condition ends frees a tensor of before",
                    "move the Deallocate behind the loop",
                ),
                _ => {
                    posted.extend(program.posted_work(stmt));
                    continue;
                }
            };
            self.bad_condition(span, message, "the loop may end before this", help);
        }
    }

    fn bad_condition(&mut self, span: Span, message: impl Into<String>, label: &str, help: &str) {
        let it = Diagnostic::new(Code::BadLoopCondition, span, message, label);
        self.diagnostics.push(it.help(help));
    }
}
