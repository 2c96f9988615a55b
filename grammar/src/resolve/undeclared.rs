//! Tensors that a text uses without a declaration. Each stands for an empty tensor until all statements are resolved;
//! then the statement that computes it determines the declaration that the help proposes.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Resolver;
use crate::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Domains, Memory, Mesh, Operand, Stmt, StmtId, Tensor, TensorId, UnitId},
    numbering::free_number,
    rules::infer::result_type,
    span::Span,
    text::tensor_text,
};

/// The undeclared tensors of a container.
#[derive(Default)]
pub(super) struct Undeclared {
    by_number: FxHashMap<(Option<UnitId>, u32), TensorId>,
    tensors: FxHashSet<TensorId>,
}

impl Undeclared {
    /// Returns the tensor that stands for an undeclared one.
    pub(super) fn find(&self, unit: Option<UnitId>, number: u32) -> Option<TensorId> {
        self.by_number.get(&(unit, number)).copied()
    }

    fn contains(&self, tensor: TensorId) -> bool {
        self.tensors.contains(&tensor)
    }
}

impl Resolver<'_> {
    /// Adds a tensor that stands for the undeclared one at `span`, if the last error reports it.
    pub(super) fn add_undeclared(&mut self, number: u32, span: Span) -> Option<TensorId> {
        self.diagnostics.last().filter(|it| is_report(it, span))?;
        let tensor = Tensor {
            number,
            memory: Memory::Global,
            dtype: None,
            loop_domain: Vec::new(),
            positions: String::new(),
            mesh: self.mesh(Mesh::default()),
            unit: self.current_unit,
            domains: Domains::default(),
        };
        let id = self.program.add_tensor(tensor, span);
        self.undeclared.by_number.insert((self.current_unit, number), id);
        self.undeclared.tensors.insert(id);
        Some(id)
    }

    /// Removes the statements and the ports with undeclared tensors from the program, and returns the statements in
    /// program order.
    pub(super) fn remove_undeclared(&mut self) -> Vec<StmtId> {
        let Self { program, undeclared, .. } = self;
        if undeclared.tensors.is_empty() {
            return Vec::new();
        }
        let is_declared = |it: &Operand| it.tensor().is_none_or(|it| !undeclared.contains(it));
        program.inputs.retain(is_declared);
        program.outputs.retain(is_declared);
        let mut removed = Vec::new();
        for (id, stmt) in program.stmts.iter() {
            let mut mentioned = stmt.op().into_iter().flat_map(|it| it.mentions(program));
            if mentioned.any(|it| undeclared.contains(it)) {
                removed.push(id);
            }
        }
        let gone: FxHashSet<StmtId> = removed.iter().copied().collect();
        for block in program.blocks.ids().collect::<Vec<_>>() {
            program.blocks[block].retain(|it| !gone.contains(it));
        }
        removed
    }

    /// Proposes the declarations that statements determine.
    pub(super) fn propose_declarations(&mut self, stmts: &[StmtId]) {
        // By place: the index of the report. A text may have as many reports as statements.
        let reports: FxHashMap<u32, usize> = if stmts.is_empty() {
            FxHashMap::default()
        } else {
            let reports =
                self.diagnostics.iter().enumerate().filter(|(_, it)| it.code == Code::UnknownTensor);
            reports.map(|(at, it)| (it.span().start, at)).collect()
        };
        let mut axis_number = free_number(self.program.axes.iter().map(|(_, axis)| axis.number));
        let mut unknown = self.undeclared.tensors.clone();
        for stmt in stmts {
            let Stmt::Op(it) = self.program.stmts[*stmt].clone() else { continue };
            let Some(out) = it.out_tensor().filter(|it| unknown.contains(it)) else { continue };
            if it.tensor_operands().iter().any(|it| unknown.contains(it)) {
                continue;
            }
            let text = self.program.stmt_span(*stmt).text(self.source);
            let Some(found) = result_type(&mut self.program, &it, text) else { continue };
            let axes = found.axes.into_iter().map(|mut axis| {
                axis.number = axis_number;
                axis_number += 1;
                self.program.axes.push(axis)
            });
            let loops: Vec<_> = axes.collect();
            let mesh = self.mesh(found.mesh);
            let tensor = &mut self.program.tensors[out];
            tensor.dtype = Some(found.dtype);
            tensor.mesh = mesh;
            tensor.domains.logical.clone_from(&loops);
            tensor.loop_domain = loops;
            unknown.remove(&out);
            let span = self.program.tensor_span(out);
            let report = reports.get(&span.start).and_then(|at| self.diagnostics.get_mut(*at));
            if let Some(report) = report.filter(|it| is_report(it, span)) {
                let help =
                    format!("declare it before the container: `%tensor {}`", tensor_text(&self.program, out));
                report.help = Some(help.into_boxed_str());
            }
        }
    }
}

/// Returns whether a diagnostic reports the undeclared tensor at `span`.
fn is_report(diagnostic: &Diagnostic, span: Span) -> bool {
    diagnostic.code == Code::UnknownTensor && diagnostic.span() == span
}
