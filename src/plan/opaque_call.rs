//! Calls of code that the text does not contain: the kernel of a LaunchKernel, or a HostUnit whose body is `[...]`.
//!
//! The text states what a call reads and writes, so the checker orders it like any other statement. No executor can
//! run it.

use grammar::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Operand, Program, TensorId},
};

use super::{
    InstKind, OpaqueCall, Plan,
    context::{PlanBuilder, Result},
};

impl PlanBuilder<'_> {
    /// Plans a call that reads its inputs and writes its outputs as a whole. The ranks that hold a part of an output execute it;
    /// without outputs, those that hold a part of an input; and all ranks, if it has neither. `code` is what the text does not
    /// contain.
    pub(super) fn opaque_call(&mut self, stmt: &OpStmt, code: String) -> Result<()> {
        let tensors = |operands: Option<&[Operand]>| -> Vec<TensorId> {
            Program::tensors_of(operands.unwrap_or_default()).collect()
        };
        let (inputs, mut outputs) = (tensors(stmt.get(attr::INPUTS)), tensors(stmt.get(attr::OUTPUTS)));
        let decisive = if outputs.is_empty() { &inputs } else { &outputs };
        if !decisive.is_empty() && !decisive.iter().any(|it| self.holds_part(*it)) {
            return Ok(());
        }
        outputs.retain(|it| self.holds_part(*it));
        let mut call = OpaqueCall { code, inputs: Vec::new(), outputs: Vec::new() };
        for tensor in inputs {
            call.inputs.push(self.view(tensor)?);
        }
        for tensor in outputs {
            call.outputs.push(self.output_view(tensor)?);
        }
        self.emit(InstKind::OpaqueCall(Box::new(call)));
        Ok(())
    }
}

impl OpaqueCall {
    /// Returns the reason why no executor can run the call.
    pub fn reason(&self) -> String {
        format!("the text does not contain {}", self.code)
    }
}

impl Plan {
    /// Returns the first call of code that the text does not contain, and its index in `code`.
    pub fn first_opaque_call(&self) -> Option<(usize, &OpaqueCall)> {
        self.code.iter().enumerate().find_map(|(at, inst)| match &inst.kind {
            InstKind::OpaqueCall(it) => Some((at, &**it)),
            _ => None,
        })
    }
}

/// Returns the error about the first call that prevents running the program of a plan.
pub fn opaque_call_diagnostic(program: &Program, plan: &Plan) -> Option<Diagnostic> {
    let (at, call) = plan.first_opaque_call()?;
    let stmt = plan.origins[plan.code[at].origin as usize].stmt;
    let span = stmt.map_or(program.spans.header, |it| program.stmt_span(it));
    let message = format!("hir cannot run this program: {}", call.reason());
    let label = "`hir-opt --check` checks it; neither the simulator nor the GPU executor runs it";
    let it = Diagnostic::new(Code::Unsupported, span, message, label);
    Some(it.help("replace it by statements that hir runs (`hir-opt --list-ops` lists all operators)"))
}
