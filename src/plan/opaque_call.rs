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
    /// Plans a call that reads its inputs and writes its outputs as a whole, on each rank that holds a part of one of them;
    /// on all ranks, if it has none. `code` is what the text does not contain.
    pub(super) fn opaque_call(&mut self, stmt: &OpStmt, code: String) -> Result<()> {
        let held = |operands: Option<&[Operand]>| {
            let tensors: Vec<TensorId> = Program::tensors_of(operands.unwrap_or_default()).collect();
            let own = tensors.iter().copied().filter(|it| self.holds_part(*it)).collect::<Vec<_>>();
            (own, tensors.is_empty())
        };
        let (inputs, reads_nothing) = held(stmt.get(attr::INPUTS));
        let (outputs, writes_nothing) = held(stmt.get(attr::OUTPUTS));
        if inputs.is_empty() && outputs.is_empty() && !(reads_nothing && writes_nothing) {
            return Ok(());
        }
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
