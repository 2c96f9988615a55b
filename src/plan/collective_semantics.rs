//! The semantics of collectives: which input elements each member of a team contributes, and which output
//! elements it receives. This is the only definition for each kind of collective; planning, the check of
//! element counts, the happens-before order, the simulator, the transports and the NCCL calls use it.
//!
//! `n` is the size of the team. Members are numbered from 0 in team order. Views are flattened in row-major
//! order.
//!
//! | kind | input of | output of member `i` |
//! |---|---|---|
//! | Broadcast | the root | the root's input |
//! | Gather | all | at the root only: all inputs, in team order |
//! | Allgather | all | all inputs, in team order |
//! | Scatter | the root | part `i` of `n` of the root's input |
//! | Reduce | all | at the root only: the reduction of all inputs |
//! | Allreduce | all | the reduction of all inputs |
//! | ReduceScatter | all | part `i` of `n` of the reduction of all inputs |
//! | SendRecv | the root, member 0 or 1 | at the other of these two: the root's input; a team of one copies |
//! | AllToAll | all | part `i` of every input, in team order |
//! | Permute | all | the input of member `recv_peer` |

use std::ops::Range;

use super::{CollectiveKind, ReduceOp, View};

/// The source of a piece of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceSource {
    /// The input of one member.
    Member(usize),
    /// The reduction of all members' inputs.
    Reduced,
}

/// One piece of a member's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPiece {
    /// The source of the elements.
    pub source: PieceSource,
    /// The index of the part, if the piece is one of `n` equal parts of its source; `None` if it is the whole
    /// source.
    pub part: Option<usize>,
}

impl CollectiveKind {
    /// Returns whether the collective reads the input of a member.
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

    /// Returns whether the part of the output of member `me` of `n` that comes from itself has the same location
    /// as the corresponding part of its input.
    pub fn is_in_place(self, (me, n): (usize, usize), input: &View, output: &View) -> bool {
        let (Some(input), Some(output)) = (input.reshape(&[input.len()]), output.reshape(&[output.len()]))
        else {
            return false;
        };
        let mut offset = 0;
        for delivery in self.output_pieces(me, n) {
            let elements = delivery.source_range(input.len(), n);
            let is_own = delivery.source == PieceSource::Reduced || delivery.source_member() == Some(me);
            if is_own && offset + elements.len() <= output.len() {
                return input.narrow(0, elements.start, elements.len())
                    == output.narrow(0, offset, elements.len());
            }
            offset += elements.len();
        }
        false
    }

    /// Returns the pieces of the output of a member in a team of `n`, in the order in which the output holds
    /// them.
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

    /// Returns the number of pieces of the output of a member in a team of `n`, without building the list.
    pub fn piece_count(self, member: usize, n: usize) -> usize {
        match self {
            Self::Gather { root } | Self::Reduce { root, .. } if member != root => 0,
            Self::SendRecv { root } if n > 1 && member != usize::from(root == 0) => 0,
            Self::Gather { .. } | Self::Allgather | Self::AllToAll => n,
            Self::Broadcast { .. }
            | Self::Scatter { .. }
            | Self::Reduce { .. }
            | Self::Allreduce { .. }
            | Self::ReduceScatter { .. }
            | Self::SendRecv { .. }
            | Self::Permute { .. } => 1,
        }
    }

    /// Returns whether the output of a member in a team of `n` depends on the inputs of all members.
    pub fn receives_from_all(self, member: usize, n: usize) -> bool {
        self.piece_count(member, n) > 0
            && match self {
                Self::Gather { .. }
                | Self::Allgather
                | Self::AllToAll
                | Self::Reduce { .. }
                | Self::Allreduce { .. }
                | Self::ReduceScatter { .. } => true,
                Self::Broadcast { .. }
                | Self::Scatter { .. }
                | Self::SendRecv { .. }
                | Self::Permute { .. } => false,
            }
    }

    /// Returns the piece of the output of member `to` that comes from the input of member `from`, in a team
    /// of `n`, and the index of the piece in the output; `None` if there is no such piece, or if the
    /// collective reduces. The result agrees with `output_pieces`, without building the list.
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

    /// Returns the members whose input contributes to the output of a member of a team of `n`, in team order.
    pub fn source_members(self, member: usize, n: usize) -> Vec<usize> {
        let pieces = self.output_pieces(member, n);
        if pieces.iter().any(|it| it.source == PieceSource::Reduced) {
            (0..n).collect()
        } else {
            pieces.iter().filter_map(OutputPiece::source_member).collect()
        }
    }

    /// Returns the number of elements that a member of a team of `n` receives, if each input has `given`
    /// elements.
    pub fn output_len(self, member: usize, n: usize, given: usize) -> usize {
        self.piece_count(member, n) * if self.splits_input() { given / n.max(1) } else { given }
    }

    /// Returns whether the collective divides an input, or the reduction of all inputs, into `n` equal parts.
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

    /// Returns the reduction operation, if the collective reduces.
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

    /// Returns whether two members post the same collective. The peers of a permutation differ between
    /// members.
    pub fn is_compatible_with(self, other: Self) -> bool {
        let permutes = |it| matches!(it, Self::Permute { .. });
        self == other || (permutes(self) && permutes(other))
    }
}

impl OutputPiece {
    /// Returns the member whose input this is; `None` for a reduction of all inputs.
    pub fn source_member(&self) -> Option<usize> {
        match self.source {
            PieceSource::Member(it) => Some(it),
            PieceSource::Reduced => None,
        }
    }

    /// Returns the elements of the source that form the piece. `given` is the number of elements of the
    /// source; a team of `n` divides it.
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

    #[test]
    fn pieces_of_a_permutation_agree() {
        let n = 3;
        for member in 0..n {
            let (send_peer, recv_peer) = ((member + 1) % n, (member + 2) % n);
            assert_pieces_agree(CollectiveKind::Permute { send_peer, recv_peer }, member, n);
        }
    }

    /// Asserts that `output_piece_from` finds each piece that `output_pieces` lists, and no other.
    fn assert_pieces_agree(kind: CollectiveKind, member: usize, n: usize) {
        assert_eq!(kind.piece_count(member, n), kind.output_pieces(member, n).len(), "{kind:?} of {n}");
        if kind.receives_from_all(member, n) {
            assert_eq!(kind.source_members(member, n), (0..n).collect::<Vec<_>>(), "{kind:?} of {n}");
        }
        for from in 0..n {
            let mut listed = kind.output_pieces(member, n).into_iter().enumerate();
            let listed = listed.find(|(_, it)| it.source_member() == Some(from));
            assert_eq!(kind.output_piece_from(from, member, n), listed, "{kind:?} of {n}");
        }
    }

    /// Outputs contain exactly what is contributed: each input element arrives as often as the kind of
    /// collective requires.
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
                CollectiveKind::SendRecv { root: usize::from(n > 1) },
            ];
            for kind in kinds {
                let mut arrived = vec![0; n];
                for member in 0..n {
                    assert_pieces_agree(kind, member, n);
                    for piece in kind.output_pieces(member, n) {
                        let from = piece.source_member().map_or(0..n, |it| it..it + 1);
                        from.for_each(|it| arrived[it] += piece.source_range(given, n).len());
                    }
                }
                let copies = match kind {
                    CollectiveKind::Broadcast { .. }
                    | CollectiveKind::Allgather
                    | CollectiveKind::Allreduce { .. } => n,
                    CollectiveKind::Gather { .. }
                    | CollectiveKind::Scatter { .. }
                    | CollectiveKind::Reduce { .. }
                    | CollectiveKind::ReduceScatter { .. }
                    | CollectiveKind::AllToAll
                    | CollectiveKind::SendRecv { .. }
                    | CollectiveKind::Permute { .. } => 1,
                };
                for (member, arrived) in arrived.into_iter().enumerate() {
                    let expected = if kind.reads_input(member) { copies * given } else { 0 };
                    assert_eq!(arrived, expected, "{kind:?} of {n}, member {member}");
                }
            }
        }
    }
}
