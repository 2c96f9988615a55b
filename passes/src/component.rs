//! Dimensions of tensors that are one and the same through operators.

use grammar::{
    ir::{OpStmt, Program, Stmt, StmtId, TensorId},
    ops::Effect,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    dims::{self, Fate},
    sharding::{Dim, Sharding},
};

/// Tensors that share a dimension, index by index.
#[derive(Default)]
pub(crate) struct Component {
    /// Which dimension of each tensor it is, in the order in which they were found.
    pub(crate) dims: Vec<(TensorId, usize)>,
    /// The statements whose results have it, in program order.
    pub(crate) stmts: Vec<StmtId>,
}

impl Component {
    /// The dimension of a tensor.
    pub(crate) fn dim(&self, tensor: TensorId) -> Option<usize> {
        self.dims.iter().find(|(it, _)| *it == tensor).map(|(_, dim)| *dim)
    }
}

/// The tensors that share a dimension with dimension `dim` of `tensor` through top-level operators, as long as its
/// devices stay the same. Inputs of the program belong to it, but nothing is followed through them from one reader to
/// another. `Err`: a tensor that has the dimension twice.
pub(crate) fn component(program: &Program, tensor: TensorId, dim: usize) -> Result<Component, TensorId> {
    let edges = edges(program);
    let mut of: FxHashMap<TensorId, Vec<&Edge>> = FxHashMap::default();
    for edge in &edges {
        of.entry(edge.arg).or_default().push(edge);
        of.entry(edge.out).or_default().push(edge);
    }
    let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    let mut found = Component { dims: vec![(tensor, dim)], stmts: Vec::new() };
    let mut next = 0;
    while let Some((tensor, dim)) = found.dims.get(next).copied() {
        next += 1;
        if inputs.contains(&tensor) && next > 1 {
            continue;
        }
        for edge in of.get(&tensor).into_iter().flatten() {
            let (other, at) = match (
                edge.arg == tensor && edge.arg_dim == dim,
                edge.out == tensor && edge.out_dim == dim,
            ) {
                (true, _) => (edge.out, edge.out_dim),
                (_, true) => (edge.arg, edge.arg_dim),
                (false, false) => continue,
            };
            match found.dim(other) {
                Some(known) if known == at => (),
                Some(_) => return Err(other),
                None => found.dims.push((other, at)),
            }
        }
    }
    let body = program.body().iter().copied();
    let has_it = |stmt: &StmtId| match &program.stmts[*stmt] {
        Stmt::Op(it) => computes(it) && it.out_tensor().is_some_and(|out| found.dim(out).is_some()),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    found.stmts = body.filter(has_it).collect();
    Ok(found)
}

/// A dimension of an operand that is a dimension of the result.
struct Edge {
    arg: TensorId,
    arg_dim: usize,
    out: TensorId,
    out_dim: usize,
}

fn edges(program: &Program) -> Vec<Edge> {
    let mut edges = Vec::new();
    for stmt in program.body() {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        let ([Some(out)], true) =
            (&it.outs.iter().map(|it| it.tensor()).collect::<Vec<_>>()[..], computes(it))
        else {
            continue;
        };
        let args = dims::operands(it);
        let Some(goal) = Sharding::of(program, *out) else { continue };
        for (position, arg) in args.iter().enumerate() {
            let (Some(fates), Some(from)) =
                (dims::fates(program, it, &args, position), Sharding::of(program, *arg))
            else {
                continue;
            };
            for (arg_dim, fate) in fates.into_iter().enumerate() {
                let devices = |dim: &Dim| dim.devices().collect::<Vec<_>>();
                match fate {
                    Fate::Kept(out_dim) if devices(&from.dims[arg_dim]) == devices(&goal.dims[out_dim]) => {
                        edges.push(Edge { arg: *arg, arg_dim, out: *out, out_dim });
                    }
                    Fate::Kept(_) | Fate::Summed | Fate::Whole => (),
                }
            }
        }
    }
    edges
}

/// Whether a statement computes a result from operands.
pub(crate) fn computes(it: &OpStmt) -> bool {
    match it.op.row().effect {
        Effect::Compute | Effect::Map => true,
        Effect::View
        | Effect::Allocate
        | Effect::Deallocate
        | Effect::Communicate
        | Effect::Wait
        | Effect::Stream
        | Effect::Group
        | Effect::Share
        | Effect::Unit
        | Effect::Opaque => false,
    }
}
