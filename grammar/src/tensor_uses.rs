//! The tensors that statements use, with the access mode of each use.

use crate::{
    arena::Id,
    attr,
    ir::{Attr, OpStmt, Program, TensorId},
    ops::{AccessMode, Arity},
    span::Span,
    words::P2pType,
};

impl OpStmt {
    /// Returns each use of a tensor in the statement with its access mode, operands first.
    pub fn tensor_uses(&self, program: &Program) -> Vec<(TensorId, AccessMode)> {
        let row = self.op.def();
        let mut uses = Vec::new();
        let mut params = row.args.iter().filter(|param| param.kind.is_operand()).peekable();
        for arg in &self.args {
            let param = params.peek().copied();
            if param.is_some_and(|it| it.arity != Arity::Many) {
                params.next();
            }
            uses.extend(arg.tensor().zip(param.map(|it| it.access)));
        }
        for (name, attr) in &self.attrs {
            // Most attributes have no tensors.
            let mode = || {
                let param = row.attrs.iter().find(|param| param.key() == *name);
                match param.map_or(AccessMode::NoAccess, |param| param.access) {
                    AccessMode::Transfer if self.get(attr::P2P_TYPE) == Some(P2pType::Recv) => {
                        AccessMode::Write
                    }
                    AccessMode::Transfer => AccessMode::Read,
                    mode @ (AccessMode::Read
                    | AccessMode::Write
                    | AccessMode::Bind
                    | AccessMode::NoAccess) => mode,
                }
            };
            attr.operands(&mut |it| uses.extend(it.tensor().map(|tensor| (tensor, mode()))));
            let Attr::Stmts(listed) = attr else { continue };
            let listed = listed.iter().filter_map(|it| program.op(*it));
            uses.extend(listed.flat_map(|it| it.mentions(program)).map(|it| (it, AccessMode::NoAccess)));
        }
        for (at, out) in self.outs.iter().enumerate() {
            let mode = row.outs.get(at).or(row.outs.last()).map_or(AccessMode::Write, |param| param.access);
            uses.extend(out.tensor().map(|tensor| (tensor, mode)));
        }
        uses
    }

    /// Returns the tensors that the statement uses, once for each use.
    pub fn mentions(&self, program: &Program) -> impl Iterator<Item = TensorId> + use<> {
        self.tensor_uses(program).into_iter().map(|it| it.0)
    }
}

/// Returns the container's tensors in the order in which its text mentions them. The program may contain
/// other tensors.
pub fn tensors_in_text_order(program: &Program) -> Vec<TensorId> {
    let mut seen = vec![false; program.tensors.len()];
    let mut order = Vec::new();
    let mut mention = |tensor: TensorId| {
        if !std::mem::replace(&mut seen[tensor.index()], true) {
            order.push(tensor);
        }
    };
    let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
    ports.for_each(&mut mention);
    for (_, it) in program.ops() {
        Program::tensors_of(&it.outs).chain(it.mentions(program)).for_each(&mut mention);
    }
    order
}

/// Returns the ranks in the meshes of the tensors that the text mentions, each with its tensor. A tensor that is only
/// declared, or that a pass has replaced, is not part of the program.
pub fn ranks_in_meshes(program: &Program) -> impl Iterator<Item = (usize, TensorId)> {
    let in_units = program.tensors.iter().filter(|(_, it)| it.unit.is_some()).map(|(id, _)| id);
    let all = tensors_in_text_order(program).into_iter().chain(in_units);
    all.flat_map(|id| program.tensors[id].mesh.devices.iter().map(move |rank| (*rank, id)))
}

/// Returns the largest rank in the meshes and teams of a program, and its location; rank 0 at the header if
/// the program has no meshes or teams.
pub fn largest_rank(program: &Program) -> (usize, Span) {
    let meshes = ranks_in_meshes(program).map(|(rank, tensor)| (rank, program.tensor_span(tensor)));
    let teams = program.stmts.iter().filter_map(|(id, stmt)| {
        Some((stmt.op()?.get(attr::TEAM)?.iter().copied().max()?, program.stmt_span(id)))
    });
    let mut largest = (0, program.spans.header);
    for (rank, span) in meshes.chain(teams) {
        if rank > largest.0 {
            largest = (rank, span);
        }
    }
    largest
}
