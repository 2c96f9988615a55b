//! Finds the shardings that the operands of a statement demand of its result, and what they leave open.

use grammar::{DimMap, OpStmt, ParallelType, Program, TensorId, expr_text, tensor_text};

use crate::analysis::sharding::{Dim, DimPiece, Sharding};

/// The pieces of a result's dimension, and the operand that they come from.
#[derive(Clone)]
pub(super) struct ClaimedPieces {
    pub(super) operand: TensorId,
    pub(super) dim: Dim,
}

/// The pieces that operands demand of each dimension of a result.
pub(super) type Claims = Vec<Option<ClaimedPieces>>;

/// Two operands of which only one can stay as it is.
pub(super) struct Conflict {
    /// What both cannot have.
    pub(super) message: String,
    /// The operands, each with what it demands.
    pub(super) operands: [(TensorId, String); 2],
}

/// The operands of a statement, with their shardings and the dimensions of the result that theirs correspond to.
pub(super) struct Demands<'c> {
    pub(super) program: &'c Program,
    pub(super) it: &'c OpStmt,
    pub(super) out: TensorId,
    pub(super) args: &'c [TensorId],
    pub(super) shardings: &'c [Sharding],
    pub(super) maps: &'c [Vec<DimMap>],
}

impl Demands<'_> {
    /// Returns the pieces that the operands demand of each dimension of the result, and the first conflict. `yields` returns
    /// whether the first of two operands in conflict is resharded instead of the second one.
    pub(super) fn claims(&self, yields: &dyn Fn(TensorId, TensorId) -> bool) -> (Claims, Option<Conflict>) {
        let mut claims: Claims = Vec::new();
        let mut conflict = None;
        for (operand, (sharding, maps)) in self.args.iter().zip(self.shardings.iter().zip(self.maps)) {
            for (dim, map) in sharding.dims.iter().zip(maps) {
                let DimMap::Parallel(to) = *map else { continue };
                let claim = ClaimedPieces { operand: *operand, dim: dim.without_streams() };
                if claim.dim.pieces.is_empty() {
                    continue;
                }
                if claims.len() <= to {
                    claims.resize_with(to + 1, || None);
                }
                let is_known =
                    |known: &ClaimedPieces| Sharding::are_aligned(self.program, &known.dim, &claim.dim);
                if claims[to].as_ref().is_some_and(is_known) {
                    continue;
                }
                // The claims that exclude this one.
                let mut excluding = (0..claims.len()).filter(|at| {
                    let known = claims[*at].as_ref();
                    known.is_some_and(|known| *at == to || shared_piece(known, &claim).is_some())
                });
                if let Some(at) = excluding.next()
                    && let Some(known) = claims[at].clone()
                {
                    let others: Vec<usize> = excluding.collect();
                    if conflict.is_none() {
                        conflict = Some(self.conflict((at, &known), (to, &claim)));
                    }
                    if !yields(known.operand, *operand) {
                        continue;
                    }
                    others.into_iter().chain([at]).for_each(|at| claims[at] = None);
                }
                claims[to] = Some(claim);
            }
        }
        (claims, conflict)
    }

    fn conflict(&self, first: (usize, &ClaimedPieces), second: (usize, &ClaimedPieces)) -> Conflict {
        let name = self.program.tensor_name(self.out);
        let [(at, known), (to, claim)] = [first, second];
        match shared_piece(known, claim).filter(|_| at != to) {
            Some(piece) => Conflict {
                message: format!(
                    "`{}` would shard two dimensions of `{name}`",
                    parallel_text(piece.parallel)
                ),
                operands: [first, second].map(|(dim, it)| {
                    let operand = self.program.tensor_name(it.operand);
                    (it.operand, format!("`{operand}` shards dimension {dim} of `{name}` over it"))
                }),
            },
            None => Conflict {
                message: format!(
                    "two operands of `{}` shard dimension {to} of `{name}` differently",
                    self.it.op.name()
                ),
                operands: [known, claim].map(|it| {
                    let pieces = it.dim.pieces.iter().map(|it| {
                        format!("`{}{{{}}}`", parallel_text(it.parallel), expr_text(self.program, it.count))
                    });
                    let pieces = pieces.collect::<Vec<_>>().join(", then ");
                    let label = format!("`{}` splits it by {pieces}", self.program.tensor_name(it.operand));
                    (it.operand, label)
                }),
            },
        }
    }
}

/// Returns the conflict of operands on different meshes.
pub(super) fn mesh_conflict(program: &Program, it: &OpStmt, operands: [TensorId; 2]) -> Conflict {
    Conflict {
        message: format!("the operands of `{}` are on different meshes", it.op.name()),
        operands: operands.map(|operand| {
            let text = tensor_text(program, operand);
            let mesh = text.rfind("DeviceMesh").map_or("", |at| text[at..].trim_end_matches(')'));
            (operand, format!("`{}` is on {mesh}", program.tensor_name(operand)))
        }),
    }
}

/// Returns a piece of `claim` whose device axis `known` has as well.
fn shared_piece<'c>(known: &ClaimedPieces, claim: &'c ClaimedPieces) -> Option<&'c DimPiece> {
    let is_taken = |piece: &&DimPiece| known.dim.pieces.iter().any(|it| it.parallel == piece.parallel);
    claim.dim.pieces.iter().find(is_taken)
}

/// Returns the text of a parallel type.
fn parallel_text(parallel: ParallelType) -> &'static str {
    ParallelType::WORDS.iter().find(|(_, it)| *it == parallel).map_or("", |(word, _)| word)
}
