//! Two-shot all-reduce: member `i` combines share `i` of all inputs and copies it to everyone: a reduce-scatter and an all-gather
//! in one round of signals.
//!
//! Each member reads `(n - 1) / n · bytes` of its peers and writes as much to them, where one-shot reads `(n - 1) · bytes`. Only member `i` touches
//! share `i`, whoever's it is: a member may write its shares to others as soon as they are ready, without a second round, and
//! output may be input. Each share is combined once, in team order: the results are the same bits on every member, and the same as
//! one-shot's.

use grammar::words::Algorithm;

use super::{CollectiveCall, LoweredComm, Transport};
use crate::plan::CollectiveKind;

/// Every member combines its share.
pub(super) struct TwoShot;

impl Transport for TwoShot {
    fn algorithm(&self) -> Option<Algorithm> {
        Some(Algorithm::TwoShot)
    }

    fn supports(&self, kind: CollectiveKind) -> bool {
        matches!(kind, CollectiveKind::Allreduce { .. })
    }

    fn supports_in_place(&self, _: CollectiveKind) -> bool {
        true
    }

    fn writes_own_output(&self, _: CollectiveKind) -> bool {
        false
    }

    fn is_one_kernel(&self) -> bool {
        true
    }

    fn lower(&self, call: &CollectiveCall<'_>) -> LoweredComm {
        let output = |it: usize| call.members[it].as_ref()?.output.as_ref();
        // A member whose part of the output another rank holds has no share: it has no place for the result.
        let sharers: Vec<usize> = call.all().into_iter().filter(|it| output(*it).is_some()).collect();
        let mine = sharers.iter().position(|it| *it == call.me).zip(output(call.me));
        let mut work = Vec::new();
        if let (Some(op), Some((place, own))) = (call.kind.reduce_op(), mine) {
            let (start, len) = share(place, sharers.len(), own.len());
            if len > 0 {
                work.extend(call.combine(op, start, len, own.narrow(0, start, len)));
                let others = sharers.into_iter().filter(|it| *it != call.me);
                work.extend(others.filter_map(|it| call.copy(Some(own), (start, len), it, start)));
            }
        }
        call.with_signals(&call.all(), &call.all(), work)
    }
}

/// Elements whose number divides where large shares begin, so that kernels may load 16 bytes at once of whatever type.
const ALIGNED: usize = 16;

/// Where the share of a member begins, and its length: shares differ by one element at most, large ones by `ALIGNED`.
fn share(member: usize, n: usize, len: usize) -> (usize, usize) {
    let n = n.max(1);
    let unit = if len / n >= ALIGNED * ALIGNED { ALIGNED } else { 1 };
    let units = len.div_ceil(unit);
    let start = |it: usize| ((units / n * it + (units % n).min(it)) * unit).min(len);
    (start(member), start(member + 1) - start(member))
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
