//! Two-shot all-reduce: member `i` reduces share `i` of all inputs and copies the result to all members. It
//! is a reduce-scatter and an all-gather in one round of signals.
//!
//! Each member reads `(n - 1) / n · bytes` from its peers and writes as much to them, compared with
//! `(n - 1) · bytes` read by one-shot. Only member `i` accesses share `i` of any member. A member may
//! therefore write its share to the others as soon as they are ready, without a second round of signals, and
//! the output may be the input. Each share is reduced once, in team order, so the results are bitwise equal
//! on all members, and equal to those of one-shot.

use grammar::Algorithm;

use super::{CollectiveCall, Steps, Transport};
use crate::{PeerPhases, Phase};

/// Every member reduces one share.
pub(super) struct TwoShot;

impl Transport for TwoShot {
    fn algorithm(&self) -> Option<Algorithm> {
        Some(Algorithm::TwoShot)
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> Steps {
        let output = |it: usize| call.members[it].as_ref()?.output.as_ref();
        // A member whose part of the output is on another rank has no output, and so gets no share.
        let sharers: Vec<usize> = call.all().into_iter().filter(|it| output(*it).is_some()).collect();
        let mine = sharers.iter().position(|it| *it == call.me).zip(output(call.me));
        let mut access = Phase::default();
        if let (Some(op), Some((place, own))) = (call.kind.op, mine) {
            let (start, len) = share(place, sharers.len(), own.len());
            if len > 0 {
                access.transfers.extend(call.peer_reduce(op, start, len, own.narrow(0, start, len)));
                for to in sharers.into_iter().filter(|it| *it != call.me) {
                    call.copy(&mut access, Some(own), (start, len), to, start);
                }
            }
        }
        Steps::Kernel(PeerPhases::Memory(call.with_signals(&call.all(), &call.all(), access.transfers)))
    }
}

/// The granularity, in elements, at which large shares begin. It lets kernels use 16-byte loads for every
/// element type.
const ALIGNED: usize = 16;

/// Returns the start and the length of a member's share. The lengths of small shares differ by at most one
/// element, those of large shares by less than `2 · ALIGNED`.
pub(super) fn share(member: usize, n: usize, len: usize) -> (usize, usize) {
    let n = n.max(1);
    let unit = if len / n >= ALIGNED * ALIGNED { ALIGNED } else { 1 };
    let units = len.div_ceil(unit);
    let start = |it: usize| ((units / n * it + (units % n).min(it)) * unit).min(len);
    (start(member), start(member + 1) - start(member))
}

/// Returns the length of the longest share.
pub(super) fn longest_share(n: usize, len: usize) -> usize {
    (0..n).map(|it| share(it, n, len).1).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{ALIGNED, share};

    #[test]
    fn shares_cover_all_elements_once() {
        for n in 1..6 {
            for len in (0..20).chain([1024, 1025, 4099]) {
                let mut end = 0;
                for it in 0..n {
                    let (start, len) = share(it, n, len);
                    assert_eq!(start, end);
                    assert!(len < ALIGNED * ALIGNED || start % ALIGNED == 0);
                    end += len;
                }
                assert_eq!(end, len);
            }
        }
    }
}
