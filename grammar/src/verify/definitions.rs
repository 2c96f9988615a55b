//! Checks that tensors are defined before they are read, and that none is read after Deallocate.

use rustc_hash::FxHashSet as HashSet;

use super::Verifier;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{OpStmt, Stmt, StmtId, TensorId},
    ops::{AccessMode, Op, OpClass},
    span::Span,
    text::tensor_text,
};

impl Verifier<'_> {
    /// Returns the tensors that are inputs of communications but defined nowhere in the program.
    ///
    /// Some dumps contain only the statements of one rank, because each rank prints its own program, so the input
    /// of another rank is not defined. The planner checks whether this rank has to provide it. The counts and indices that a
    /// Combine reads are results of a Dispatch, which nvFuser does not print.
    pub(super) fn inputs_defined_elsewhere(&self) -> HashSet<TensorId> {
        let mut given = HashSet::default();
        let mut defined = self.defined.clone();
        for (_, it) in self.program.bodies().flat_map(|it| self.program.ops_in(it)) {
            let communicates = it.op.def().class == OpClass::Communicate;
            for (tensor, mode) in it.tensor_uses(self.program) {
                match mode {
                    AccessMode::Write | AccessMode::Bind => {
                        defined.insert(tensor);
                    }
                    AccessMode::Read
                        if it.op == Op::Combine
                            || communicates && !self.program.tensors[tensor].mesh.is_empty() =>
                    {
                        given.insert(tensor);
                    }
                    AccessMode::Read | AccessMode::Transfer | AccessMode::NoAccess => (),
                }
            }
        }
        given.retain(|tensor| !defined.contains(tensor));
        given
    }

    pub(super) fn check_read(&mut self, tensor: TensorId, stmt: StmtId) {
        if self.defined.contains(&tensor) {
            return;
        }
        if self.faulty.contains(&tensor) {
            return;
        }
        let name = self.program.tensor_name(tensor);
        let last = self.program.use_spans(stmt, tensor).into_iter().max();
        let place = last.unwrap_or_else(|| self.program.stmt_span(stmt));
        let mut fault = match self.deallocated.get(&tensor) {
            Some(freed) => {
                let message = format!("`{name}` is used after it was deallocated");
                let help = match &self.program.stmts[stmt] {
                    Stmt::Op(it) if it.op == Op::Deallocate => {
                        "remove one of the two Deallocate statements".to_owned()
                    }
                    _ => format!("move the Deallocate behind the last use of `{name}`"),
                };
                Diagnostic::new(Code::UseAfterDeallocate, place, message, "used here")
                    .label(*freed, "deallocated here")
                    .help(help)
            }
            None => self.undefined_tensor(tensor, place),
        };
        let number = |it: TensorId| (self.program.tensors[it].number, self.program.tensors[it].unit);
        if let Some(other) = self.defined.iter().find(|it| number(**it) == number(tensor)) {
            fault = fault.help(format!(
                "`{}` and `{}` are different tensors: spell a tensor identically at each use",
                tensor_text(self.program, tensor),
                tensor_text(self.program, *other)
            ));
        }
        self.diagnostics.push(fault);
        // Report each tensor only once.
        self.defined.insert(tensor);
    }

    /// Reports a tensor that is read before anything allocates or defines it.
    fn undefined_tensor(&self, tensor: TensorId, place: Span) -> Diagnostic {
        let name = self.program.tensor_name(tensor);
        if let Some(header) = self.left.get(&tensor) {
            let message = format!("`{name}` is used behind a loop that may end before it defines `{name}`");
            let it = Diagnostic::new(Code::UndefinedTensor, place, message, "used here");
            let help = format!("allocate `{name}` before the loop");
            return it.label(*header, "only the body of this loop defines it").help(help);
        }
        let writes = |it: &OpStmt| {
            let mut uses = it.tensor_uses(self.program).into_iter();
            uses.any(|(it, mode)| it == tensor && matches!(mode, AccessMode::Write | AccessMode::Bind))
        };
        if let Some((later, _)) = self.program.stmts.iter().find(|(_, it)| it.op().is_some_and(writes)) {
            let message = format!("`{name}` is used before it is allocated or written");
            let later = self.program.stmt_span(later);
            let it = Diagnostic::new(Code::UndefinedTensor, place, message, "used here");
            // A listed transfer of a ShareMemHandles writes the tensor only later.
            let is_later = later.start > place.start || later.end < place.end;
            let it = if is_later { it.label(later, "defined only here") } else { it };
            return it.help(format!(
                "allocate it before this, as in `{name}_… = ALLOCATE(mem_type=global, zero_init=false)`, or move the statement that defines it"
            ));
        }
        let message = format!("nothing allocates or defines `{name}`");
        let it = Diagnostic::new(Code::UndefinedTensor, place, message, "used here");
        // A tensor that differs in its number only.
        let own = &self.program.tensors[tensor];
        let is_alike = |other: &&TensorId| {
            let other = &self.program.tensors[**other];
            (other.unit, other.dtype, &other.loop_domain, &other.mesh)
                == (own.unit, own.dtype, &own.loop_domain, &own.mesh)
        };
        let mut alike = self.defined.iter().filter(is_alike);
        if let (Some(only), None) = (alike.next(), alike.next()) {
            return it.help(format!("did you mean `{}`?", self.program.tensor_name(*only)));
        }
        it.help(match own.unit {
            None => format!("allocate it before this, as in `{name}_… = ALLOCATE(mem_type=global, zero_init=false)`, or make it an input"),
            Some(_) => "define it before this, or make it an input of the HostUnit".to_owned(),
        })
    }

    pub(super) fn check_redundant_allocate(&mut self, tensors: &[TensorId], span: Span) {
        for tensor in tensors.iter().filter(|tensor| self.defined.contains(tensor)) {
            let name = self.program.tensor_name(*tensor);
            let it = Diagnostic::new(
                Code::RedundantAllocate,
                span,
                format!("`{name}` is bound already: this ALLOCATE does nothing"),
                "this form of ALLOCATE allocates only if the name is not bound",
            );
            self.diagnostics.push(
                it.help("remove it, or use `ALLOCATE(mem_type=…, zero_init=…)` to allocate new storage"),
            );
        }
    }
}
