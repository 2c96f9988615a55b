//! Checks that the input and the output of a communication are disjoint, or in place as NCCL documents it.
//! NCCL accepts any other overlap without an error and delivers garbage.

use super::{DenseBuffer, NcclCall};
use crate::unsupported::Unsupported;
use grammar::Contribution;
use hir_plan::CollectiveKind;

/// Rejects a collective of `members` if its input and output overlap other than in place; `me` is the index
/// of this member.
///
/// # Errors
/// Returns what NCCL does not support, as a phrase.
pub(crate) fn check_collective(
    kind: CollectiveKind,
    members: usize,
    me: usize,
    input: DenseBuffer,
    output: DenseBuffer,
) -> Result<(), Unsupported> {
    let (given, got) = (input.bytes() as u64, output.bytes() as u64);
    let me = me as u64;
    let facts = kind.of.facts();
    let (is_in_place, form) = if members > 1 && !facts.may_be_in_place {
        (false, None)
    } else if members > 1 && facts.contribution == Contribution::Each {
        (input.address == output.address + me * given, Some("the input is its rank's part of the output"))
    } else if members > 1 && facts.is_split {
        (output.address == input.address + me * got, Some("the output is its rank's part of the input"))
    } else {
        // A team of one only copies.
        (input.address == output.address, Some("both are the same"))
    };
    if is_in_place || !ranges_overlap((input.address, given), (output.address, got)) {
        return Ok(());
    }
    let form = form.map_or("at all".to_owned(), |it| format!("unless {it}"));
    Err(format!(
        "the input and the output of {} overlap in memory, which NCCL does not take {form}; let one of them be a copy \
         (`Set`)",
        kind.describe()
    ).into())
}

/// Rejects messages posted together if one is received into memory that another one is sent from or received
/// into. A message from this member, `me`, to itself may stay in place, and messages from one peer may replace each other: they arrive in
/// order, and those of one size are divided in the same way over NCCL's channels.
///
/// # Errors
/// Returns what NCCL does not support, as a phrase.
pub(crate) fn check_messages(calls: &[NcclCall], me: usize) -> Result<(), Unsupported> {
    for (at, call) in calls.iter().enumerate() {
        let NcclCall::Recv { to, bytes, peer } = *call else { continue };
        let arrived = (to, bytes as u64);
        let clashes = |(other_at, other): (usize, &NcclCall)| match *other {
            NcclCall::Recv { to, bytes, peer: other } => {
                let replaces = other == peer && arrived == (to, bytes as u64);
                other_at != at && !replaces && ranges_overlap(arrived, (to, bytes as u64))
            }
            NcclCall::Send { from, bytes, peer: target } => {
                let stays = (peer, target) == (me, me) && arrived == (from, bytes as u64);
                !stays && ranges_overlap(arrived, (from, bytes as u64))
            }
            NcclCall::Broadcast { .. }
            | NcclCall::AllGather { .. }
            | NcclCall::AllReduce { .. }
            | NcclCall::Reduce { .. }
            | NcclCall::ReduceScatter { .. } => false,
        };
        if calls.iter().enumerate().any(clashes) {
            return Err(format!(
                "what arrives from rank {peer} of the team overlaps in memory with what is sent or arrives beside it, which NCCL \
                 does not take; let one of them be a copy (`Set`), or wait for one before posting the other"
            ).into());
        }
    }
    Ok(())
}

/// Returns true if two ranges, each an address and a number of bytes, have a byte in common.
fn ranges_overlap((a, first): (u64, u64), (b, second): (u64, u64)) -> bool {
    first > 0 && second > 0 && a < b + second && b < a + first
}

#[cfg(test)]
mod tests {
    use CommunicationType::*;
    use grammar::{CommunicationType, DType};

    use super::*;
    use hir_plan::ReduceOp;

    /// Returns whether member 1 of 3 accepts a collective. Input and output are given as address and number
    /// of floats.
    fn takes(kind: CollectiveKind, input: (u64, usize), output: (u64, usize)) -> bool {
        let dense = |(address, count)| DenseBuffer { address, count, dtype: DType::Float };
        check_collective(kind, 3, 1, dense(input), dense(output)).is_ok()
    }

    #[test]
    fn collectives_are_apart_or_in_place() {
        let of = |of| CollectiveKind::new(of, 1, ReduceOp::Sum);
        for kind in [of(Allreduce), of(Broadcast), of(Reduce)] {
            assert!(takes(kind, (256, 8), (256, 8)) && takes(kind, (256, 8), (288, 8)));
            assert!(!takes(kind, (256, 8), (284, 8)) && !takes(kind, (260, 8), (256, 8)));
        }
        for kind in [of(Allgather), of(Gather)] {
            assert!(takes(kind, (288, 8), (256, 24)) && takes(kind, (352, 8), (256, 24)));
            assert!(!takes(kind, (256, 8), (256, 24)) && !takes(kind, (320, 8), (256, 24)));
        }
        for kind in [of(ReduceScatter), of(Scatter)] {
            assert!(takes(kind, (256, 24), (288, 8)) && takes(kind, (256, 24), (224, 8)));
            assert!(!takes(kind, (256, 24), (256, 8)) && !takes(kind, (256, 24), (228, 8)));
        }
        for kind in [of(AllToAll), CollectiveKind::permute(0, 2)] {
            assert!(takes(kind, (256, 24), (352, 24)) && !takes(kind, (256, 24), (256, 24)));
        }
        // An empty range overlaps nothing, and a team of one moves nothing.
        assert!(takes(of(AllToAll), (256, 0), (256, 0)));
        let all = DenseBuffer { address: 256, count: 8, dtype: DType::Float };
        assert_eq!(check_collective(of(AllToAll), 1, 0, all, all), Ok(()));
        let shifted = DenseBuffer { address: 260, ..all };
        let refused = check_collective(of(Allgather), 1, 0, all, shifted);
        assert!(refused.is_err_and(|it| it.to_string().contains("unless both are the same")));
    }

    #[test]
    fn messages_arrive_where_nothing_else_is() {
        let send = |from, peer| NcclCall::Send { from, bytes: 32, peer };
        let recv = |to, peer| NcclCall::Recv { to, bytes: 32, peer };
        assert_eq!(check_messages(&[send(256, 0), send(256, 2), recv(288, 0), recv(320, 2)], 1), Ok(()));
        assert!(check_messages(&[send(256, 0), recv(272, 0)], 1).is_err());
        assert!(check_messages(&[recv(256, 0), recv(272, 2)], 1).is_err());
        // The second of two messages from one peer replaces the first one, as a whole.
        assert_eq!(check_messages(&[recv(256, 0), recv(256, 0)], 1), Ok(()));
        assert!(check_messages(&[recv(256, 0), recv(272, 0)], 1).is_err());
        assert!(check_messages(&[recv(256, 0), recv(256, 2)], 1).is_err());
        // A message to itself, in place or not.
        assert_eq!(check_messages(&[send(256, 1), recv(256, 1)], 1), Ok(()));
        assert!(check_messages(&[send(256, 0), recv(256, 0)], 1).is_err());
        assert!(check_messages(&[send(256, 1), recv(260, 1)], 1).is_err());
    }
}
