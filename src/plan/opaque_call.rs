//! Calls of code that the text does not contain: the kernel of a LaunchKernel, or a HostUnit whose body is `[...]`.
//!
//! The text states what a call reads and writes, so the checker orders it like any other statement. No executor can
//! run it.

use grammar::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Program},
};

use super::{
    InstKind, OpaqueCall, Plan,
    context::{PlanBuilder, Result},
};

impl PlanBuilder<'_> {
    /// Plans a call that reads its inputs and writes its outputs as a whole. `code` is what the text does not contain.
    pub(super) fn opaque_call(&mut self, stmt: &OpStmt, code: String) -> Result<()> {
        let (Some(inputs), Some(outputs)) = (stmt.get(attr::INPUTS), stmt.get(attr::OUTPUTS)) else {
            return Ok(());
        };
        if !Program::tensors_of(outputs).any(|tensor| self.holds_part(tensor)) {
            return Ok(());
        }
        let mut call = OpaqueCall { code, inputs: Vec::new(), outputs: Vec::new() };
        for tensor in Program::tensors_of(inputs).filter(|it| self.holds_part(*it)).collect::<Vec<_>>() {
            call.inputs.push(self.view(tensor)?);
        }
        for tensor in Program::tensors_of(outputs).filter(|it| self.holds_part(*it)).collect::<Vec<_>>() {
            call.outputs.push(self.output_view(tensor)?);
        }
        self.emit(InstKind::OpaqueCall(Box::new(call)));
        Ok(())
    }
}

/// Returns the error about the first call that prevents running the program of a plan.
pub fn opaque_call_diagnostic(program: &Program, plan: &Plan) -> Option<Diagnostic> {
    plan.code.iter().find_map(|inst| {
        let InstKind::OpaqueCall(it) = &inst.kind else { return None };
        let stmt = plan.origins[inst.origin as usize].stmt;
        let span = stmt.map_or(program.spans.header, |it| program.stmt_span(it));
        let message = format!("hir cannot run this program: the text does not contain {}", it.code);
        let label = "`hir-opt --check` checks it; neither the simulator nor the GPU executor runs it";
        Some(
            Diagnostic::new(Code::Unsupported, span, message, label)
                .help("replace it by statements that hir runs (`hir-opt --list-ops` lists all operators)"),
        )
    })
}
