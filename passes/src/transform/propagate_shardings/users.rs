//! What the users of a result say about its sharding, where its operands leave it open: the mesh of a copy to another stage,
//! and the dimension along which a sum over devices is needed in parts.

use std::sync::Arc;

use grammar::{DeviceDim, DimMap, Mesh, OpStmt, Program, TensorId, TypeRule};
use rustc_hash::FxHashSet;

use super::Propagation;
use crate::analysis::{
    dim_map,
    sharding::{DimPiece, Sharding},
};

/// The number of tensors, computed from a result, that are searched for what its users need.
const MOST_TENSORS: usize = 64;

/// What a user needs of a sum over devices.
#[derive(Clone, PartialEq)]
enum Need {
    /// The part of a dimension that these pieces describe.
    Part(usize, Vec<DimPiece>),
    /// Its parts serve as well as the whole.
    Any,
    /// The whole.
    Whole,
}

impl Propagation<'_> {
    /// Returns the mesh that the users of a tensor work on, if all that have a mesh agree.
    pub(super) fn mesh_of_users(&self, tensor: TensorId) -> Option<Arc<Mesh>> {
        self.mesh_behind(tensor, &mut FxHashSet::default())
    }

    fn mesh_behind(&self, tensor: TensorId, seen: &mut FxHashSet<TensorId>) -> Option<Arc<Mesh>> {
        if !seen.insert(tensor) || seen.len() > MOST_TENSORS {
            return None;
        }
        let mut found: Option<Arc<Mesh>> = None;
        for user in self.users(tensor) {
            let others = user.tensor_operands().into_iter().filter(|it| *it != tensor);
            let mut meshes = others.map(|it| &self.program.tensors[it].mesh).filter(|it| !it.is_empty());
            let out = user.out_tensor()?;
            let of_result = &self.program.tensors[out].mesh;
            let mesh = match meshes.next() {
                Some(mesh) => Some(mesh.clone()),
                None if !of_result.is_empty() => Some(of_result.clone()),
                None if !is_copy(user) => self.mesh_behind(out, seen),
                None => None,
            };
            match (&found, mesh) {
                (_, None) => (),
                (None, Some(mesh)) => found = Some(mesh),
                (Some(known), Some(mesh)) if *known == mesh => (),
                (Some(_), Some(_)) => return None,
            }
        }
        found
    }

    /// Returns the dimension of a sum over the devices of `device`, and its pieces, if all users need this part only: the
    /// sum is then a reduce-scatter.
    pub(super) fn scattered_dim(
        &self,
        sum: TensorId,
        mesh: &Arc<Mesh>,
        device: DeviceDim,
    ) -> Option<(usize, Vec<DimPiece>)> {
        match self.need_of(sum, mesh, device, &mut FxHashSet::default()) {
            Need::Part(dim, pieces) => Some((dim, pieces)),
            Need::Any | Need::Whole => None,
        }
    }

    fn need_of(
        &self,
        tensor: TensorId,
        mesh: &Arc<Mesh>,
        device: DeviceDim,
        seen: &mut FxHashSet<TensorId>,
    ) -> Need {
        // What a tensor needs that is searched already is known where the search began.
        if !seen.insert(tensor) {
            return Need::Any;
        }
        // An output without a mesh is on every rank.
        if seen.len() > MOST_TENSORS || Program::tensors_of(&self.program.outputs).any(|it| it == tensor) {
            return Need::Whole;
        }
        let mut all = Need::Any;
        for user in self.users(tensor) {
            match (&all, self.need_of_user(user, tensor, mesh, device, seen)) {
                (_, Need::Whole) => return Need::Whole,
                (_, Need::Any) => (),
                (Need::Any, need) => all = need,
                (known, need) if *known == need => (),
                _ => return Need::Whole,
            }
        }
        all
    }

    fn need_of_user(
        &self,
        user: &OpStmt,
        tensor: TensorId,
        mesh: &Arc<Mesh>,
        device: DeviceDim,
        seen: &mut FxHashSet<TensorId>,
    ) -> Need {
        // The parts are reduced first.
        if user.op.def().type_rule == TypeRule::Reduce {
            return Need::Any;
        }
        let (Some(out), Some(maps)) = (user.out_tensor(), dim_map::dim_maps(self.program, user)) else {
            return Need::Whole;
        };
        let args = user.tensor_operands();
        let Some(at) = args.iter().position(|it| *it == tensor) else { return Need::Whole };
        let back = |to: usize| maps[at].iter().position(|map| *map == DimMap::Parallel(to));
        let pieces_over = |sharding: &Sharding, dim: usize| {
            let dim = sharding.dims[dim].without_streams();
            (dim.devices().last() == Some(device)).then_some(dim.pieces)
        };
        let shards = |tensor: TensorId| {
            let it = &self.program.tensors[tensor];
            Sharding::of(self.program, tensor).filter(|_| it.mesh == *mesh)
        };
        for (other, maps) in args.iter().zip(&maps).filter(|(it, _)| **it != tensor) {
            let Some(sharding) = shards(*other) else { continue };
            for (dim, map) in maps.iter().enumerate() {
                if let (DimMap::Parallel(to), Some(pieces)) = (map, pieces_over(&sharding, dim)) {
                    return back(*to).map_or(Need::Whole, |dim| Need::Part(dim, pieces));
                }
            }
        }
        if !self.program.tensors[out].mesh.is_empty() {
            let Some(sharding) = shards(out) else { return Need::Whole };
            let dims = (0..sharding.dims.len()).filter_map(|dim| Some((dim, pieces_over(&sharding, dim)?)));
            let found = dims.filter_map(|(dim, pieces)| Some(Need::Part(back(dim)?, pieces))).next();
            return found.unwrap_or(Need::Whole);
        }
        match self.need_of(out, mesh, device, seen) {
            Need::Part(dim, pieces) => back(dim).map_or(Need::Whole, |dim| Need::Part(dim, pieces)),
            Need::Any => Need::Any,
            Need::Whole => Need::Whole,
        }
    }

    /// Returns the operators that read a tensor.
    fn users(&self, tensor: TensorId) -> impl Iterator<Item = &OpStmt> {
        let stmts = self.uses.stmts.get(&tensor).into_iter().flatten();
        let ops = stmts.filter_map(|stmt| self.program.stmts[*stmt].op());
        ops.filter(move |it| it.tensor_operands().contains(&tensor))
    }
}

/// Returns whether the operator copies its operand, which may take it to another mesh.
pub(super) fn is_copy(it: &OpStmt) -> bool {
    it.op.def().type_rule == TypeRule::Same
}

/// Returns the device pieces over which an operator sums: those of reduced dimensions, and those that both operands of a
/// matrix product have in the contracted one.
pub(super) fn summed_pieces(it: &OpStmt, from: &[Sharding], maps: &[Vec<DimMap>]) -> Vec<DimPiece> {
    let pieces = |at: usize| -> Vec<DimPiece> {
        let (Some(from), Some(maps)) = (from.get(at), maps.get(at)) else { return Vec::new() };
        let dims = from.dims.iter().zip(maps).filter(|(_, map)| **map == DimMap::Reduction);
        let pieces = dims.flat_map(|(dim, _)| dim.without_streams().pieces);
        pieces.filter(|piece| piece.device().is_some()).collect()
    };
    let mut summed = pieces(0);
    if it.rule().is_matrix_product() {
        let other = pieces(1);
        summed.retain(|piece| other.contains(piece));
    } else if it.op.def().type_rule != TypeRule::Reduce {
        summed.clear();
    }
    summed
}
