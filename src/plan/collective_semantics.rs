//! What each member of a team gives to a collective and gets from it: the one definition of every kind. Planning, the check of
//! sizes, the order, the simulator, the transports and NCCL's calls ask it.
//!
//! `n` is the team's size, members count from 0 in team order, views are flattened in row-major order.
//!
//! | kind | gives | member `i` gets |
//! |---|---|---|
//! | Broadcast | the root | the root's input |
//! | Gather | all | the root: all inputs, in team order |
//! | Allgather | all | all inputs, in team order |
//! | Scatter | the root | part `i` of `n` of the root's input |
//! | Reduce | all | the root: all inputs combined |
//! | Allreduce | all | all inputs combined |
//! | ReduceScatter | all | part `i` of `n` of all inputs combined |
//! | SendRecv | the root, member 0 or 1 | the other of these two: the root's input; a team of one copies |
//! | AllToAll | all | part `i` of every input, in team order |
//! | Permute | all | the input of `recv_peer` |

use std::ops::Range;

use super::{CollectiveKind, ReduceOp};

/// Where a piece of an output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceSource {
    /// The input of one member.
    Member(usize),
    /// All members' inputs combined.
    Reduced,
}

/// One piece of what a member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPiece {
    /// Where it comes from.
    pub source: PieceSource,
    /// The index of the part, where the piece is one of `n` equal parts of its source; `None`: all of it.
    pub part: Option<usize>,
}

impl CollectiveKind {
    /// Whether a member's input is read.
    pub fn reads_input(self, member: usize) -> bool {
        match self {
            Self::Broadcast { root } | Self::Scatter { root } | Self::SendRecv { root } => member == root,
            Self::Gather { .. }
            | Self::Allgather
            | Self::Reduce { .. }
            | Self::Allreduce { .. }
            | Self::ReduceScatter { .. }
            | Self::AllToAll
            | Self::Permute { .. } => true,
        }
    }

    /// The pieces of what a member of a team of `n` gets, in the order in which its output holds them.
    pub fn output_pieces(self, member: usize, n: usize) -> Vec<OutputPiece> {
        let one = |source, part| vec![OutputPiece { source, part }];
        let each = |part| (0..n).map(|it| OutputPiece { source: PieceSource::Member(it), part }).collect();
        match self {
            Self::Broadcast { root } => one(PieceSource::Member(root), None),
            Self::Gather { root } if member != root => Vec::new(),
            Self::Gather { .. } | Self::Allgather => each(None),
            Self::Scatter { root } => one(PieceSource::Member(root), Some(member)),
            Self::Reduce { root, .. } if member != root => Vec::new(),
            Self::Reduce { .. } | Self::Allreduce { .. } => one(PieceSource::Reduced, None),
            Self::ReduceScatter { .. } => one(PieceSource::Reduced, Some(member)),
            Self::SendRecv { root } if n == 1 || member == usize::from(root == 0) => {
                one(PieceSource::Member(root), None)
            }
            Self::SendRecv { .. } => Vec::new(),
            Self::AllToAll => each(Some(member)),
            Self::Permute { recv_peer, .. } => one(PieceSource::Member(recv_peer), None),
        }
    }

    /// The piece of what member `to` of a team of `n` gets that is of the input of member `from`, and which of its pieces it is; as
    /// `deliveries` lists it, without the list.
    pub fn output_piece_from(self, from: usize, to: usize, n: usize) -> Option<(usize, OutputPiece)> {
        let piece = |at, part| Some((at, OutputPiece { source: PieceSource::Member(from), part }));
        match self {
            Self::Broadcast { root } if from == root => piece(0, None),
            Self::Gather { root } if to == root => piece(from, None),
            Self::Allgather => piece(from, None),
            Self::Scatter { root } if from == root => piece(0, Some(to)),
            Self::SendRecv { root } if from == root && (n == 1 || to == usize::from(root == 0)) => {
                piece(0, None)
            }
            Self::AllToAll => piece(from, Some(to)),
            Self::Permute { recv_peer, .. } if from == recv_peer => piece(0, None),
            Self::Broadcast { .. }
            | Self::Gather { .. }
            | Self::Scatter { .. }
            | Self::SendRecv { .. }
            | Self::Permute { .. }
            | Self::Reduce { .. }
            | Self::Allreduce { .. }
            | Self::ReduceScatter { .. } => None,
        }
    }

    /// The members whose data a member of a team of `n` gets, in team order.
    pub fn source_members(self, member: usize, n: usize) -> Vec<usize> {
        let pieces = self.output_pieces(member, n);
        match pieces.iter().any(|it| it.source == PieceSource::Reduced) {
            true => (0..n).collect(),
            false => pieces.iter().filter_map(OutputPiece::source_member).collect(),
        }
    }

    /// How many elements a member of a team of `n` gets where each giver gives `given`.
    pub fn output_len(self, member: usize, n: usize, given: usize) -> usize {
        self.output_pieces(member, n)
            .iter()
            .map(|it| if it.part.is_some() { given / n.max(1) } else { given })
            .sum()
    }

    /// Whether each member gets one of `n` equal parts of an input, or of all inputs combined.
    pub fn splits_input(self) -> bool {
        match self {
            Self::Scatter { .. } | Self::ReduceScatter { .. } | Self::AllToAll => true,
            Self::Broadcast { .. }
            | Self::Gather { .. }
            | Self::Allgather
            | Self::Reduce { .. }
            | Self::Allreduce { .. }
            | Self::SendRecv { .. }
            | Self::Permute { .. } => false,
        }
    }

    /// The operation that combines the members' inputs, if there is one.
    pub fn reduce_op(self) -> Option<ReduceOp> {
        match self {
            Self::Reduce { op, .. } | Self::Allreduce { op } | Self::ReduceScatter { op } => Some(op),
            Self::Broadcast { .. }
            | Self::Gather { .. }
            | Self::Allgather
            | Self::Scatter { .. }
            | Self::SendRecv { .. }
            | Self::AllToAll
            | Self::Permute { .. } => None,
        }
    }

    /// Whether two members mean the same collective: peers of a permutation differ by nature.
    pub fn is_compatible_with(self, other: Self) -> bool {
        let permutes = |it| matches!(it, Self::Permute { .. });
        self == other || (permutes(self) && permutes(other))
    }
}

impl OutputPiece {
    /// The member whose input it is; `None`: it is combined of all.
    pub fn source_member(&self) -> Option<usize> {
        match self.source {
            PieceSource::Member(it) => Some(it),
            PieceSource::Reduced => None,
        }
    }

    /// The elements of a giver's `given` that the piece is made of, in a team of `n` that divides them.
    pub fn source_range(&self, given: usize, n: usize) -> Range<usize> {
        match self.part {
            None => 0..given,
            Some(part) => {
                let len = given / n.max(1);
                part * len..(part + 1) * len
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What members get is what others give, and all of it: each element given arrives as often as the kind says.
    #[test]
    fn pieces_fill_outputs_with_what_is_given() {
        let op = ReduceOp::Sum;
        for n in 1..5 {
            let given = 12;
            let kinds = [
                CollectiveKind::Broadcast { root: n - 1 },
                CollectiveKind::Gather { root: n - 1 },
                CollectiveKind::Allgather,
                CollectiveKind::Scatter { root: 0 },
                CollectiveKind::Reduce { root: 0, op },
                CollectiveKind::Allreduce { op },
                CollectiveKind::ReduceScatter { op },
                CollectiveKind::AllToAll,
                CollectiveKind::SendRecv { root: 0 },
            ];
            for kind in kinds {
                let mut arrived = vec![0; n];
                for member in 0..n {
                    for from in 0..n {
                        let listed = kind.output_pieces(member, n).into_iter().enumerate();
                        let listed = listed.into_iter().find(|(_, it)| it.source_member() == Some(from));
                        assert_eq!(kind.output_piece_from(from, member, n), listed, "{kind:?} of {n}");
                    }
                    for piece in kind.output_pieces(member, n) {
                        let from = piece.source_member().map_or(0..n, |it| it..it + 1);
                        from.for_each(|it| arrived[it] += piece.source_range(given, n).len());
                    }
                }
                let copies = match kind {
                    CollectiveKind::Broadcast { .. }
                    | CollectiveKind::Allgather
                    | CollectiveKind::Allreduce { .. } => n,
                    _ => 1,
                };
                for (member, arrived) in arrived.into_iter().enumerate() {
                    let expected = if kind.reads_input(member) { copies * given } else { 0 };
                    assert_eq!(arrived, expected, "{kind:?} of {n}, member {member}");
                }
            }
        }
    }
}
