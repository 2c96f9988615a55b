//! Two-shot all-reduce with copy engines: each member copies share `i` of its input to member `i`, which adds
//! the shares and copies the result to all members. Only the addition uses multiprocessors, so the transport is
//! for all-reduces that overlap with matrix products.
//!
//! `2 · (n - 1) / n · bytes` leave each member. The shares are added in team order and rounded once, so the
//! results are bitwise equal on all members.
//!
//! **Order.** A member copies to slots of its peers (`slots`) before it waits for anything. It writes the outputs
//! of its peers after it has received a share from each of them: so every peer has posted the collective, and has
//! sent its input before the part of its output that may be the same memory is written. A slot is used again by
//! the collective after the next one; `push` shows why two sets of slots are enough. A barrier of all ranks
//! separates two runs.

use grammar::Algorithm;

use super::{
    CollectiveCall, Steps, Transport,
    two_shot::{longest_share, share},
};
use crate::{CollectiveKind, SignalKind};

/// Every member adds one share, and copy engines move the data.
pub(super) struct TwoShotCopy;

impl Transport for TwoShotCopy {
    fn algorithm(&self) -> Option<Algorithm> {
        Some(Algorithm::TwoShotCopy)
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn slot_lens(&self, _: CollectiveKind, n: usize, input: usize) -> Vec<usize> {
        vec![longest_share(n, input)]
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> Steps {
        let Some((input, output)) = call.own_views() else { return Steps::separate(&[]) };
        let own = share(call.me, call.team.len(), output.len());
        let [send, mut reduce] = call.reduce_own_share(input, output);
        call.others().for_each(|to| call.copy(&mut reduce, Some(output), own, to, own.0));
        Steps::separate(&[send, call.exchange(reduce.transfers, SignalKind::TeamResult(call.team_no))])
    }
}
