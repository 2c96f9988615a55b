//! Calls of code that the text does not contain: the kernel of a LaunchKernel, or a HostUnit whose body is `[...]`.
//!
//! The text states what a call reads and writes, so the checker orders it like any other statement. No executor can
//! run it.

use grammar::{BlockId, Code, Diagnostic, OpClass, OpStmt, Operand, Program, Stmt, StmtId, TensorId, attr};

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
            call.inputs.push(self.view(tensor)?.with_parts(self.dtype(tensor)));
        }
        for tensor in outputs {
            call.outputs.push(self.output_view(tensor)?.with_parts(self.dtype(tensor)));
        }
        self.emit(InstKind::OpaqueCall(Box::new(call)));
        Ok(())
    }
}

impl OpaqueCall {
    /// Returns the reason why no executor can run the call.
    pub fn reason(&self) -> String {
        reason(&self.code)
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
    Some(refusal(program, stmt, &call.code, &way_out(program, stmt)))
}

/// Returns the same error for a program that has no plan because scalars have no value: no values with which all loops
/// have an iteration make it run. Calls in branches are left out, because values may decide that they are not reached.
/// `check` is a command that checks the program.
pub fn unconditional_opaque_call_diagnostic(program: &Program, check: &str) -> Option<Diagnostic> {
    let (stmt, code) = first_unconditional_call(program, program.body?)?;
    let help = format!("`{check}` checks it; to run it, {}", way_out(program, Some(stmt)));
    Some(refusal(program, Some(stmt), &code, &help))
}

/// Returns the first call in a block and its loops, and what the text does not contain.
fn first_unconditional_call(program: &Program, block: BlockId) -> Option<(StmtId, String)> {
    program.block(block).iter().find_map(|id| match &program.stmts[*id] {
        Stmt::Op(it) => Some((*id, absent_code(program, it)?)),
        Stmt::For(it) => first_unconditional_call(program, it.body),
        Stmt::Let(..) | Stmt::If(_) => None,
    })
}

/// Returns the code that a statement calls and the text does not contain.
fn absent_code(program: &Program, stmt: &OpStmt) -> Option<String> {
    match stmt.op.def().class {
        OpClass::Opaque => Some(kernel_text(stmt)),
        OpClass::HostUnit => {
            let unit = &program.units[stmt.get(attr::UNIT)?];
            unit.body.is_none().then(|| body_text(unit.number))
        }
        grammar::local_classes!()
        | OpClass::Stream
        | OpClass::Condition
        | OpClass::Communicate
        | OpClass::Coalescing
        | OpClass::ShareHandles
        | OpClass::Wait => None,
    }
}

/// Returns the name of the code of a kernel, for reports.
pub(super) fn kernel_text(stmt: &OpStmt) -> String {
    match stmt.get(attr::KERNEL) {
        Some(name) => format!("the kernel `{name}`"),
        None => format!("the kernel of this `{}`", stmt.op.name()),
    }
}

/// Returns the name of the code of a HostUnit, for reports.
pub(super) fn body_text(unit: u32) -> String {
    format!("the body of HostUnit{unit}")
}

/// Returns what makes the program run.
fn way_out(program: &Program, stmt: Option<StmtId>) -> String {
    let replace = "replace it by statements that hir runs (`hir-opt --list-ops` lists all operators)";
    // A kernel with a name is not one of nvFuser's.
    let is_kernel = stmt
        .and_then(|stmt| program.op(stmt))
        .is_some_and(|it| it.op.def().class == OpClass::Opaque && it.get(attr::KERNEL).is_none());
    if is_kernel {
        format!(
            "take the whole log of nvFuser with `NVFUSER_DUMP=host_ir,segmented_fusion`, which prints the statements of each kernel, or pass that log with `--fusions FILE`; or {replace}"
        )
    } else {
        replace.to_owned()
    }
}

fn refusal(program: &Program, stmt: Option<StmtId>, code: &str, help: &str) -> Diagnostic {
    let span = stmt.map_or(program.spans.header, |it| program.stmt_span(it));
    let message = format!("hir cannot run this program: {}", reason(code));
    let label = "`hir-opt --check` checks it; neither the simulator nor the GPU executor runs it";
    Diagnostic::new(Code::Unsupported, span, message, label).help(help)
}

fn reason(code: &str) -> String {
    format!("the text does not contain {code}")
}
