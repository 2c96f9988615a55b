//! Finds transfers over peer memory whose two sides use handles of different exchanges. nvFuser matches the handles of a sender and a
//! receiver in the order of their exchange (`csrc/multidevice/ipc_handle.cpp`, `getTcpStoreKey`). Which transfer was meant is not known
//! from the numbers, which the two sides choose by themselves, so posts in another order than the handles are refused, too.

use super::PostedOp;
use crate::{Direction, InstKind, Plan, sync::report_text::ordinal};

pub(super) const HELP: &str = "exchange the handles and post the transfers in one order on both ranks: hir matches transfers between two \
                               ranks in the order of their posts, and each side accesses the memory whose handle it got";

/// Returns what the two sides use, if they got their handles in different exchanges. If one rank exchanges more handles than the other
/// one, their hosts deadlock, which is reported instead.
pub(super) fn crossed(plans: &[Plan], send: &PostedOp<'_>, recv: &PostedOp<'_>) -> Option<[String; 2]> {
    let exchanges = |rank: usize, direction, peer| -> usize {
        let of_inst = |kind: &InstKind| match kind {
            InstKind::ShareMemHandles { handles } => {
                handles.iter().filter(|it| it.direction == direction && it.peer == peer).count()
            }
            _ => 0,
        };
        plans[rank].code.iter().map(|it| of_inst(&it.kind)).sum()
    };
    let (from, to) = (send.at.rank, recv.at.rank);
    let (given, taken) = send.handle.zip(recv.handle).filter(|(given, taken)| given != taken)?;
    let is_crossed = exchanges(from, Direction::Send, to) == exchanges(to, Direction::Recv, from);
    let text = |it| format!("by the {} memory handle that the two exchange", ordinal(it));
    is_crossed.then(|| [given, taken].map(text))
}
