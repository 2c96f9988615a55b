//! Finds the shardings that the operands of a statement demand of its result, and reports those that leave a choice.

use std::fmt::Write as _;

use grammar::{
    DimMap,
    codes::Code,
    diagnostic::Diagnostic,
    domain_clauses, expr_text,
    ir::{OpStmt, ParallelType, Program, TensorId},
    span::Span,
    tensor_text,
};

use super::with_pieces;
use crate::{
    analysis::sharding::{Dim, DimPiece, Sharding},
    rewrite::builder::IrBuilder,
};

/// The pieces of a result's dimension, and the operand that they come from.
pub(super) struct ClaimedPieces {
    pub(super) operand: TensorId,
    pub(super) dim: Dim,
}

/// A result whose operands do not determine its sharding.
pub(super) struct Choice<'c> {
    pub(super) program: &'c Program,
    pub(super) it: &'c OpStmt,
    pub(super) out: TensorId,
    pub(super) span: Span,
}

impl Choice<'_> {
    /// Returns the pieces that the operands demand of each dimension of the result.
    pub(super) fn claims(
        &self,
        args: &[TensorId],
        shardings: &[Sharding],
        maps: &[Vec<DimMap>],
    ) -> Result<Vec<Option<ClaimedPieces>>, Diagnostic> {
        let mut claims: Vec<Option<ClaimedPieces>> = Vec::new();
        for (operand, (sharding, maps)) in args.iter().zip(shardings.iter().zip(maps)) {
            for (dim, map) in sharding.dims.iter().zip(maps) {
                let DimMap::Parallel(to) = *map else { continue };
                let dim = dim.without_streams();
                if dim.pieces.is_empty() {
                    continue;
                }
                if claims.len() <= to {
                    claims.resize_with(to + 1, || None);
                }
                match &claims[to] {
                    Some(known) if !Sharding::are_aligned(self.program, &known.dim, &dim) => {
                        return Err(self.of_dim(to, known, &ClaimedPieces { operand: *operand, dim }));
                    }
                    Some(_) => (),
                    None => claims[to] = Some(ClaimedPieces { operand: *operand, dim }),
                }
            }
        }
        let all: Vec<(usize, &ClaimedPieces)> =
            claims.iter().enumerate().filter_map(|(at, claim)| Some((at, claim.as_ref()?))).collect();
        for (at, (b, second)) in all.iter().enumerate() {
            for (a, first) in &all[..at] {
                let is_taken =
                    |piece: &&DimPiece| first.dim.pieces.iter().any(|it| it.parallel == piece.parallel);
                if let Some(piece) = second.dim.pieces.iter().find(is_taken) {
                    return Err(self.of_device_axis(piece, (*a, first), (*b, second)));
                }
            }
        }
        Ok(claims)
    }

    /// Reports operands on different meshes.
    pub(super) fn of_mesh(&self, first: TensorId, second: TensorId) -> Diagnostic {
        let message = format!("the operands of `{}` are on different meshes", self.it.op.name());
        let label = |tensor| {
            let text = tensor_text(self.program, tensor);
            let mesh = text.rfind("DeviceMesh").map_or("", |at| text[at..].trim_end_matches(')'));
            format!("`{}` is on {mesh}", self.program.tensor_name(tensor))
        };
        self.diagnostic(message, (first, label(first)), (second, label(second)), None)
    }

    /// Reports operands that shard dimension `dim` of the result differently.
    fn of_dim(&self, dim: usize, first: &ClaimedPieces, second: &ClaimedPieces) -> Diagnostic {
        let name = self.program.tensor_name(self.out);
        let message =
            format!("two operands of `{}` shard dimension {dim} of `{name}` differently", self.it.op.name());
        let label = |it: &ClaimedPieces| {
            let pieces = it.dim.pieces.iter();
            let pieces = pieces.map(|it| {
                format!("`{}{{{}}}`", parallel_text(it.parallel), expr_text(self.program, it.count))
            });
            let pieces = pieces.collect::<Vec<_>>().join(", then ");
            let label = format!("`{}` splits it by {pieces}", self.program.tensor_name(it.operand));
            (it.operand, label)
        };
        self.diagnostic(message, label(first), label(second), Some((dim, first)))
    }

    /// Reports a device axis that would shard two dimensions of the result.
    fn of_device_axis(
        &self,
        piece: &DimPiece,
        first: (usize, &ClaimedPieces),
        second: (usize, &ClaimedPieces),
    ) -> Diagnostic {
        let name = self.program.tensor_name(self.out);
        let message = format!("`{}` would shard two dimensions of `{name}`", parallel_text(piece.parallel));
        let label = |(dim, it): (usize, &ClaimedPieces)| {
            let operand = self.program.tensor_name(it.operand);
            (it.operand, format!("`{operand}` shards dimension {dim} of `{name}` over it"))
        };
        let [(kept_dim, kept), (other_dim, other)] = [first, second];
        let [kept, other] = [kept, other].map(|it| self.program.tensor_name(it.operand));
        let note = format!(
            "with dimension {kept_dim} sharded, `{kept}` stays sharded and `{other}` is gathered; with dimension \
             {other_dim} sharded, it is the other way round"
        );
        self.diagnostic(message, label(first), label(second), Some(first)).note(note)
    }

    pub(super) fn diagnostic(
        &self,
        message: String,
        first: (TensorId, String),
        second: (TensorId, String),
        example: Option<(usize, &ClaimedPieces)>,
    ) -> Diagnostic {
        let name = self.program.tensor_name(self.out);
        let label = format!("`{name}` has no DeviceMesh, so its operands determine its sharding");
        let it = Diagnostic::new(Code::NotRewritten, self.span, message, label)
            .label(self.program.tensor_span(first.0), first.1)
            .label(self.program.tensor_span(second.0), second.1);
        let mut pieces = vec![Vec::new(); self.program.dimensions(self.out).count()];
        if let Some((dim, claim)) = example {
            pieces[dim].clone_from(&claim.dim.pieces);
        }
        let mut program = self.program.clone();
        let mesh = program.tensors[first.0].mesh.clone();
        if let Ok(sharding) = with_pieces(&program, self.out, &mesh, pieces) {
            let mut builder = IrBuilder::of(&program);
            sharding.apply_to(&mut program, &mut builder, self.out);
        }
        let mut help = format!(
            "give `{name}` a DeviceMesh and device axes, as in `{}`",
            tensor_text(&program, self.out)
        );
        if !program.has_plain_domains(self.out) {
            let clauses = domain_clauses(&program, self.out);
            let _ = write!(help, ", with `{name}: {clauses}` below `Domains:`");
        }
        it.help(help)
    }
}

/// Returns the text of a parallel type.
fn parallel_text(parallel: ParallelType) -> &'static str {
    ParallelType::WORDS.iter().find(|(_, it)| *it == parallel).map_or("", |(word, _)| word)
}
