//! Results whose rows are those of a sharded tensor, moved.

use std::sync::Arc;

use grammar::{Mesh, StmtId, TensorId};

use super::{
    Propagation,
    choice::{ClaimedPieces, Claims},
};
use crate::analysis::{
    dim_map,
    sharding::{Dim, Sharding},
};

impl Propagation<'_> {
    /// Shards a result whose rows are those of a sharded tensor, moved, as this tensor.
    pub(super) fn shift(&self, stmt: StmtId, out: TensorId, mesh: &Arc<Mesh>, claims: &mut Claims) {
        for dim in 0..self.program.dimensions(out).count() {
            let pieces = |tensor: TensorId| {
                let sharding = Sharding::of(self.program, tensor).filter(|it| it.mesh == *mesh)?;
                let pieces = sharding.dims.get(dim)?.without_streams().pieces;
                pieces.iter().all(|it| it.device().is_some()).then_some(pieces).filter(|it| !it.is_empty())
            };
            let is_source = |tensor| pieces(tensor).is_some();
            let Some(shift) = self.uses.rows.shift(self.program, stmt, dim, &is_source) else { continue };
            let (Some(pieces), Some(extent)) =
                (pieces(shift.source), dim_map::extent(self.program, out, dim))
            else {
                continue;
            };
            let is_taken = |it: &ClaimedPieces| {
                it.dim.devices().any(|device| pieces.iter().any(|piece| piece.device() == Some(device)))
            };
            if claims.iter().flatten().any(is_taken) {
                continue;
            }
            if claims.len() <= dim {
                claims.resize_with(dim + 1, || None);
            }
            let dim_of_source = Dim { pieces, ..Dim::whole(extent) };
            claims[dim] = Some(ClaimedPieces { operand: shift.source, dim: dim_of_source });
        }
    }
}
