//! The semantics of collectives: which input elements each member of a team contributes, and which output
//! elements it receives. It follows from the facts of each kind (`grammar::collective`); planning, the check of
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

use grammar::{Contribution, Members};

use super::{CollectiveKind, View};

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
        self.of.reads_input(self.root, member)
    }

    fn has_result(self, member: usize, n: usize) -> bool {
        self.of.has_result(self.root, member, n)
    }

    /// Returns whether a member of a team of `n` needs no output: it gets no result, or it has given the input and keeps it.
    /// Source: nvFuser, `csrc/multidevice/communication.cpp`, `postBroadcast` and `postScatter`, whose root may be outside the
    /// mesh of the output.
    pub(super) fn may_lack_output(self, member: usize, n: usize) -> bool {
        !self.has_result(member, n) || self.of.facts().from == Members::Root && self.root == Some(member)
    }

    /// Returns the member whose input is the result, if it is that of one member.
    fn only_source(self) -> usize {
        self.root.or(self.peers.map(|it| it.recv)).unwrap_or_default()
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
        if !self.has_result(member, n) {
            return Vec::new();
        }
        let part = self.splits_input().then_some(member);
        let of = |source| OutputPiece { source, part };
        match self.of.facts().contribution {
            Contribution::One => vec![of(PieceSource::Member(self.only_source()))],
            Contribution::Each => (0..n).map(|it| of(PieceSource::Member(it))).collect(),
            Contribution::Reduction => vec![of(PieceSource::Reduced)],
        }
    }

    /// Returns the number of pieces of the output of a member in a team of `n`, without building the list.
    pub fn piece_count(self, member: usize, n: usize) -> usize {
        match self.of.facts().contribution {
            _ if !self.has_result(member, n) => 0,
            Contribution::Each => n,
            Contribution::One | Contribution::Reduction => 1,
        }
    }

    /// Returns whether the output of a member in a team of `n` depends on the inputs of all members.
    pub fn receives_from_all(self, member: usize, n: usize) -> bool {
        self.piece_count(member, n) > 0 && self.of.facts().contribution != Contribution::One
    }

    /// Returns the piece of the output of member `to` that comes from the input of member `from`, in a team
    /// of `n`, and the index of the piece in the output; `None` if there is no such piece, or if the
    /// collective reduces. The result agrees with `output_pieces`, without building the list.
    pub fn output_piece_from(self, from: usize, to: usize, n: usize) -> Option<(usize, OutputPiece)> {
        let at = match self.of.facts().contribution {
            Contribution::One => (from == self.only_source()).then_some(0),
            Contribution::Each => Some(from),
            Contribution::Reduction => None,
        };
        let part = self.splits_input().then_some(to);
        let piece = OutputPiece { source: PieceSource::Member(from), part };
        Some((at.filter(|_| self.has_result(to, n))?, piece))
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
        self.of.facts().is_split
    }

    /// Returns whether two members post the same collective. The peers of a permutation differ between
    /// members.
    pub fn is_compatible_with(self, other: Self) -> bool {
        self == other || self.peers.is_some() && other.peers.is_some()
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
    use CommunicationType::*;
    use grammar::CommunicationType;

    use super::*;
    use crate::ReduceOp;

    #[test]
    fn pieces_of_a_permutation_agree() {
        let n = 3;
        for member in 0..n {
            let (send_peer, recv_peer) = ((member + 1) % n, (member + 2) % n);
            assert_pieces_agree(CollectiveKind::permute(send_peer, recv_peer), member, n);
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
        for n in 1..5 {
            let given = 12;
            let of = |of, root| CollectiveKind::new(of, root, ReduceOp::Sum);
            let kinds = [
                of(Broadcast, n - 1),
                of(Gather, n - 1),
                of(Allgather, 0),
                of(Scatter, 0),
                of(Reduce, 0),
                of(Allreduce, 0),
                of(ReduceScatter, 0),
                of(AllToAll, 0),
                of(SendRecv, 0),
                of(SendRecv, usize::from(n > 1)),
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
                let copies = match kind.of {
                    Broadcast | Allgather | Allreduce => n,
                    Gather | Scatter | Reduce | ReduceScatter | AllToAll | SendRecv | CollectivePermute => 1,
                };
                for (member, arrived) in arrived.into_iter().enumerate() {
                    let expected = if kind.reads_input(member) { copies * given } else { 0 };
                    assert_eq!(arrived, expected, "{kind:?} of {n}, member {member}");
                }
            }
        }
    }
}
