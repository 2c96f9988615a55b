//! Walks a program as one rank does and writes down what it comes to.

use std::sync::Arc;

use grammar::{
    ir::{BlockId, For, If, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::Effect,
    span::LineIndex,
};

use super::{
    Frame, Plan,
    context::{Builder, Result},
    scalar::Value,
    teams::Teams,
};

/// The plan of one rank, with all its communications posted to communicators.
pub(super) fn build_rank(program: &Program, lines: &LineIndex, rank: usize, teams: &Teams) -> Result<Plan> {
    let mut builder = Builder::new(program, lines, rank, teams);
    builder.inputs()?;
    if let Some(body) = program.body {
        builder.block(body)?;
    }
    builder.outputs()?;
    builder.keep_held();
    Ok(builder.plan)
}

impl Builder<'_> {
    pub(super) fn block(&mut self, block: BlockId) -> Result<()> {
        let program = self.program;
        for stmt in program.block(block) {
            self.enter_statement(*stmt)?;
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => self.define(*symbol, *value)?,
                Stmt::For(it) => self.for_loop(*stmt, it)?,
                Stmt::If(it) => self.branch(*stmt, it)?,
            }
        }
        Ok(())
    }

    pub(super) fn for_loop(&mut self, stmt: StmtId, it: &For) -> Result<()> {
        let (start, stop) = (self.int(it.start, "the loop's start")?, self.int(it.stop, "the loop's end")?);
        let divergent = [it.start, it.stop].iter().any(|bound| self.scalars.depends_on_rank(*bound));
        if divergent {
            self.skip_loop(stmt, it, start, stop);
        }
        let (outer_frame, origin, span) = (self.frame, self.origin, self.span);
        let outer_value = self.scalars.bind(it.index, None);
        // The `in` form forgets, every iteration, what the index gave its meaning; the `from` form does not.
        let dependents = if it.axis.is_some() { self.dependents(it) } else { Vec::new() };
        self.divergent += usize::from(divergent);
        // Every iteration counts, so that a loop of too many is not begun.
        let count = usize::try_from(stop.saturating_sub(start)).unwrap_or(0);
        self.check_instruction_limit(self.plan.frames.len().saturating_add(count))?;
        let name: Arc<str> = self.program.symbols[it.index].as_str().into();
        for value in start..stop {
            (self.origin, self.span) = (origin, span);
            self.scalars.bind(it.index, Some(Value::Int(value)));
            let name = Arc::clone(&name);
            Arc::make_mut(&mut self.plan.frames).push(Frame { name, value, parent: outer_frame });
            self.frame = Some(self.plan.frames.len() as u32 - 1);
            for tensor in &dependents {
                self.unbind(*tensor);
            }
            self.block(it.body)?;
        }
        self.divergent -= usize::from(divergent);
        self.frame = outer_frame;
        self.scalars.bind(it.index, outer_value);
        Ok(())
    }

    /// Tensors defined in a loop's body from its index, directly or through others.
    pub(super) fn dependents(&mut self, it: &For) -> Vec<TensorId> {
        if let Some(known) = self.dependents.get(&it.body) {
            return known.clone();
        }
        let found = grammar::dependents(self.program, it);
        self.dependents.insert(it.body, found.clone());
        found
    }

    pub(super) fn branch(&mut self, stmt: StmtId, it: &If) -> Result<()> {
        let taken = self.scalars.truth(it.cond).map_err(|fault| self.scalar_fault(fault, "the predicate"))?;
        let divergent = self.scalars.depends_on_rank(it.cond);
        if divergent {
            self.skip_branch(stmt, it, taken);
        }
        self.divergent += usize::from(divergent);
        match (taken, it.other) {
            (true, _) => self.block(it.then)?,
            (false, Some(other)) => self.block(other)?,
            (false, None) => (),
        }
        self.divergent -= usize::from(divergent);
        Ok(())
    }

    pub(super) fn op(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op.row().effect {
            Effect::Stream => self.stream_op(stmt),
            Effect::Allocate => self.allocation(stmt),
            Effect::Deallocate => {
                Program::tensors_of(&stmt.args).try_for_each(|tensor| self.deallocate(tensor))
            }
            Effect::View => self.view_op(stmt),
            Effect::Compute | Effect::Map => self.compute(stmt),
            Effect::Unit => self.post_unit(stmt),
            Effect::Communicate => self.communicate(stmt),
            Effect::Group => self.coalesce(stmt),
            Effect::Share => self.share(stmt),
            Effect::Wait => self.wait(stmt),
            Effect::Opaque => Err(self.unsupported(stmt.op, "the text does not hold the kernel")),
        }
    }
}
