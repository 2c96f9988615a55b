//! Loops over layers and micro-batches: each iteration computes new values of the tensors that it writes.

use grammar::{Code, For, Op, OpStmt, ParallelType, StmtId, attr, selected_dim};

use super::{Result, UnshardedPlanner, operands};
use hir_plan::{limits, scalar::Value};

impl UnshardedPlanner<'_> {
    /// Plans all iterations of a loop.
    pub(super) fn for_loop(&mut self, stmt: StmtId, it: &For) -> Result<()> {
        if it.axis.is_some() {
            return Err(self.lowered("a loop over streams"));
        }
        if self.program.loop_condition(it).is_some() {
            return Err(self.lowered("a loop that a condition ends"));
        }
        if [it.start, it.stop].iter().any(|bound| self.scalars.depends_on_rank(*bound)) {
            return Err(self.lowered("a loop whose bounds depend on the rank"));
        }
        let bound = |bound| self.scalars.int(bound).map_err(|it| self.scalar_fault(it));
        let (start, stop) = (bound(it.start)?, bound(it.stop)?);
        let outer = self.scalars.bind(it.index, None);
        self.loop_depth += 1;
        for index in start..stop {
            self.scalars.bind(it.index, Some(Value::Int(index)));
            for inner in self.program.block(it.body) {
                self.statement(*inner)?;
            }
            // An empty body ends as well.
            if self.plan.code.len() + (index - start) as usize > limits::MAX_RANK_INSTRUCTIONS {
                self.span = self.program.stmt_span(stmt);
                let message = format!("a loop of more than {} instructions", limits::MAX_RANK_INSTRUCTIONS);
                return Err(self.diagnostic(Code::TooLarge, message));
            }
        }
        self.loop_depth -= 1;
        self.scalars.bind(it.index, outer);
        Ok(())
    }

    /// Refuses a select in a loop that takes an index of the part of a device, as in lowered programs.
    pub(super) fn check_selected_dim(&self, it: &OpStmt) -> Result<()> {
        if self.loop_depth == 0 || it.op != Op::Select || it.get(attr::INDEX).is_none() {
            return Ok(());
        }
        let program = self.program;
        let Some(operand) = operands(it).first().copied() else { return Ok(()) };
        let axis = selected_dim(program, it, operand).and_then(|dim| program.dimensions(operand).nth(dim));
        let is_sharded = axis.is_some_and(|axis| {
            let loops = program.loop_axes_of(operand, axis);
            loops.iter().any(|it| matches!(program.axes[*it].parallel, ParallelType::Device(_)))
        });
        if is_sharded {
            return Err(self.lowered("a select, in a loop, of an index of each device's part"));
        }
        Ok(())
    }
}
