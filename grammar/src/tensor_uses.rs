//! The tensors that statements use, with the access mode of each use.

use crate::{
    arena::Id,
    attr,
    ir::{Attr, OpStmt, Operand, Program, Stmt, TensorId},
    ops::{AccessMode, Arity},
    span::Span,
    words::P2pType,
};

/// Calls `visit` for each use of a tensor in a statement with its access mode, operands first.
pub fn for_each_tensor_use(program: &Program, stmt: &OpStmt, visit: &mut dyn FnMut(TensorId, AccessMode)) {
    let row = stmt.op.def();
    let mut params = row.args.iter().filter(|param| param.kind.is_operand()).peekable();
    for arg in &stmt.args {
        let param = params.peek().copied();
        if param.is_some_and(|it| it.arity != Arity::Many) {
            params.next();
        }
        if let (Operand::Tensor(tensor), Some(param)) = (arg, param) {
            visit(*tensor, param.access);
        }
    }
    for (name, attr) in &stmt.attrs {
        // Most attributes have no tensors.
        let mode = || {
            let param = row.attrs.iter().find(|param| param.key() == *name);
            match param.map_or(AccessMode::NoAccess, |param| param.access) {
                AccessMode::Transfer if stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv) => AccessMode::Write,
                AccessMode::Transfer => AccessMode::Read,
                mode @ (AccessMode::Read | AccessMode::Write | AccessMode::Bind | AccessMode::NoAccess) => {
                    mode
                }
            }
        };
        attr.operands(&mut |it| it.tensor().into_iter().for_each(|tensor| visit(tensor, mode())));
        let Attr::Stmts(listed) = attr else { continue };
        for stmt in listed {
            if let Stmt::Op(it) = &program.stmts[*stmt] {
                for_each_tensor_use(program, it, &mut |tensor, _| visit(tensor, AccessMode::NoAccess));
            }
        }
    }
    for (at, out) in stmt.outs.iter().enumerate() {
        let mode = row.outs.get(at).or(row.outs.last()).map_or(AccessMode::Write, |param| param.access);
        out.tensor().into_iter().for_each(|tensor| visit(tensor, mode));
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
    if let Some(body) = program.body {
        program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                Program::tensors_of(&it.outs).for_each(&mut mention);
                for_each_tensor_use(program, it, &mut |tensor, _| mention(tensor));
            }
        });
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
