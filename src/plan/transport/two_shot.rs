//! Two-shot all-reduce: member `i` combines share `i` of all inputs and copies it to everyone: a reduce-scatter and an all-gather
//! in one round of signals.
//!
//! Each member reads and writes `(n - 1) / n · bytes` over the links, where one-shot reads `(n - 1) · bytes`. Only member `i` touches
//! share `i`, whoever's it is: a member may write its shares to others as soon as they are ready, without a second round, and
//! output may be input. Each share is combined once, in team order: the results are the same bits on every member, and the same as
//! one-shot's.

use grammar::words::Algorithm;

use super::{Call, Steps, Transport};
use crate::plan::{CollectiveKind, View};

/// Every member combines its share.
pub(super) struct TwoShot;

impl Transport for TwoShot {
    fn algorithm(&self) -> Option<Algorithm> {
        Some(Algorithm::TwoShot)
    }

    fn takes(&self, kind: CollectiveKind) -> bool {
        matches!(kind, CollectiveKind::Allreduce { .. })
    }

    fn works_in_place(&self, _: CollectiveKind) -> bool {
        true
    }

    fn writes_own_output(&self, _: CollectiveKind) -> bool {
        false
    }

    fn is_one_kernel(&self) -> bool {
        true
    }

    fn lower(&self, call: &Call<'_>) -> Steps {
        let own = call.members[call.me].as_ref().and_then(|it| it.output.as_ref());
        let (start, len) = share(call.me, call.team.len(), own.map_or(0, View::len));
        let mut work = Vec::new();
        if let (Some(op), Some(own)) = (call.kind.combines(), own)
            && len > 0
        {
            work.extend(call.combine(op, start, len, own.narrow(0, start, len)));
            let others = call.all().into_iter().filter(|it| *it != call.me);
            work.extend(others.filter_map(|it| call.copy(Some(own), (start, len), it, start)));
        }
        call.exchange(&call.all(), &call.all(), work)
    }
}

/// Where the share of a member begins, and its length: shares differ by one element at most.
fn share(member: usize, n: usize, len: usize) -> (usize, usize) {
    let n = n.max(1);
    let start = |it: usize| len / n * it + (len % n).min(it);
    (start(member), start(member + 1) - start(member))
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_cover_all_elements_once() {
        for n in 1..6 {
            for len in 0..20 {
                let mut end = 0;
                for it in 0..n {
                    let (start, len) = share(it, n, len);
                    assert_eq!(start, end);
                    end += len;
                }
                assert_eq!(end, len);
            }
        }
    }
}
