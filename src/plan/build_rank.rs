//! Builds the plan of one rank: executes the control flow of the program and records the instructions.

use std::sync::Arc;

use grammar::{BlockId, Code, For, If, LineIndex, OpClass, OpStmt, Program, Stmt, StmtId, TensorId};

use super::{
    CallerUses, LoopIteration,
    context::{PlanBuilder, Result},
    opaque_call::kernel_text,
    posted::PostedPlan,
    scalar::Value,
    teams::Teams,
};

/// Builds the plan of one rank, with all its communications posted to communicators.
pub(super) fn build_rank(
    (program, lines): (&Program, &LineIndex),
    rank: usize,
    teams: &Teams,
    uses: &CallerUses<'_>,
) -> Result<PostedPlan> {
    let mut builder = PlanBuilder::new((program, lines), rank, teams, uses);
    builder.inputs()?;
    if let Some(body) = program.body {
        builder.block(body)?;
    }
    builder.outputs()?;
    builder.check_gathered_views()?;
    builder.mark_held_allocations();
    Ok(PostedPlan { plan: builder.plan, requests: builder.requests, divergent: builder.divergent })
}

impl PlanBuilder<'_> {
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
        let condition = self.program.loop_condition(it);
        let divergent = [it.start, it.stop].iter().any(|bound| self.scalars.depends_on_rank(*bound));
        if divergent {
            self.skip_loop(stmt, it, start, stop);
        }
        let (outer_frame, origin, span) = (self.iteration, self.origin, self.span);
        let outer_value = self.scalars.bind(it.index, None);
        // The `in` form of the loop unbinds, in each iteration, the tensors that are defined from the loop
        // index. The `from` form does not.
        let dependents = if it.axis.is_some() { self.dependents(it) } else { Vec::new() };
        self.divergence_depth += usize::from(divergent);
        // Each iteration counts towards the limit, so that a loop with too many iterations is rejected before
        // it is unrolled.
        let count = usize::try_from(stop.saturating_sub(start)).unwrap_or(0);
        self.check_instruction_limit(self.plan.iterations.len().saturating_add(count))?;
        let assumed = self.uses.iterations.filter(|it| condition.is_some() && *it < count);
        let stop = assumed.map_or(stop, |it| start + it as i64);
        if condition.is_some() {
            self.open_loop(stmt);
        }
        let name: Arc<str> = self.program.symbols[it.index].as_str().into();
        for value in start..stop {
            (self.origin, self.span) = (origin, span);
            self.scalars.bind(it.index, Some(Value::Int(value)));
            let name = Arc::clone(&name);
            Arc::make_mut(&mut self.plan.iterations).push(LoopIteration {
                stmt,
                name,
                value,
                parent: outer_frame,
            });
            self.iteration = Some(self.plan.iterations.len() as u32 - 1);
            for tensor in &dependents {
                if self.binding(*tensor).is_some() {
                    self.unbind(*tensor);
                    self.unbound_by.insert(*tensor, stmt);
                }
            }
            self.block(it.body)?;
        }
        self.divergence_depth -= usize::from(divergent);
        self.iteration = outer_frame;
        self.scalars.bind(it.index, outer_value);
        if let Some((condition, tensor)) = condition {
            self.enter_statement(condition)?;
            self.leave_unless(tensor, assumed.is_none())?;
            self.close_loop(it)?;
        }
        Ok(())
    }

    /// Returns the tensors that the loop body defines from the loop index, directly or through other tensors.
    pub(super) fn dependents(&mut self, it: &For) -> Vec<TensorId> {
        if let Some(known) = self.dependents.get(&it.body) {
            return known.clone();
        }
        let found = grammar::loop_variant_tensors(self.program, it);
        self.dependents.insert(it.body, found.clone());
        found
    }

    pub(super) fn branch(&mut self, stmt: StmtId, it: &If) -> Result<()> {
        if it.kind != If::MANUAL {
            let message = format!("hir cannot run a branch with a predicate of kind `{}`", it.kind);
            let found = self.error(Code::Unsupported, message, format!("expected `IF {}`", If::MANUAL));
            return Err(Box::new(found.suggest(&it.kind, std::iter::once(If::MANUAL))));
        }
        let taken = self.scalars.truth(it.cond).map_err(|fault| self.scalar_error(fault, "the predicate"))?;
        let divergent = self.scalars.depends_on_rank(it.cond);
        if divergent {
            self.skip_branch(stmt, it, taken);
        }
        self.divergence_depth += usize::from(divergent);
        match (taken, it.else_block) {
            (true, _) => self.block(it.then_block)?,
            (false, Some(other)) => self.block(other)?,
            (false, None) => (),
        }
        self.divergence_depth -= usize::from(divergent);
        Ok(())
    }

    pub(super) fn op(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op.def().class {
            OpClass::Stream => self.stream_op(stmt),
            OpClass::Condition => {
                Program::tensors_of(&stmt.args).try_for_each(|it| self.leave_unless(it, false))
            }
            OpClass::Allocate => self.allocation(stmt),
            OpClass::Deallocate => {
                Program::tensors_of(&stmt.args).try_for_each(|tensor| self.deallocate(tensor))
            }
            OpClass::View => self.view_op(stmt),
            OpClass::Compute | OpClass::Elementwise => self.compute(stmt),
            OpClass::HostUnit => self.post_unit(stmt),
            OpClass::Communicate => self.communicate(stmt),
            OpClass::Coalescing => self.coalesce(stmt),
            OpClass::ShareHandles => self.share_mem_handles(stmt),
            OpClass::Wait => self.wait(stmt),
            OpClass::Opaque => self.opaque_call(stmt, kernel_text(stmt)),
        }
    }
}
