//! Whether the hosts of all ranks come to the ends of their plans: hosts wait for each other where handles are shared and at
//! barriers, and for nothing else. An executor that needs neither would run a program that hangs elsewhere.

use rustc_hash::FxHashMap;

use super::{Direction, Handle, InstKind, Plan};

/// A rank's instructions at which its host waits, by index in `Plan::code`, and how many of them its host has passed.
struct Host {
    stops: Vec<usize>,
    passed: usize,
    /// Which of the stops publishes the handle of a side of an exchange.
    published: FxHashMap<((usize, usize, u32), Direction), usize>,
    /// Which of the stops are barriers.
    barriers: Vec<usize>,
}

impl Host {
    fn of(plan: &Plan) -> Self {
        let mut host =
            Self { stops: Vec::new(), passed: 0, published: FxHashMap::default(), barriers: Vec::new() };
        for (at, inst) in plan.code.iter().enumerate() {
            if let InstKind::Exchange { handles } = &inst.kind {
                for it in handles {
                    let side = (it.exchange(plan.rank), it.direction);
                    host.published.entry(side).or_insert(host.stops.len());
                }
            } else if inst.kind == InstKind::Barrier {
                host.barriers.push(host.stops.len());
            } else {
                continue;
            }
            host.stops.push(at);
        }
        host
    }

    /// Whether it has come to a stop; `None`: there is none.
    fn is_at(&self, stop: Option<usize>) -> bool {
        stop.is_some_and(|it| it <= self.passed)
    }
}

/// Why some host never comes to its end; `None`: all do.
pub fn hang(plans: &[Plan]) -> Option<String> {
    let mut hosts: Vec<Host> = plans.iter().map(Host::of).collect();
    let mut moves = true;
    while moves {
        moves = false;
        for rank in 0..hosts.len() {
            while hosts[rank].passed < hosts[rank].stops.len() && awaited(plans, &hosts, rank).is_none() {
                hosts[rank].passed += 1;
                moves = true;
            }
        }
    }
    let whom: Vec<Option<usize>> = (0..hosts.len()).map(|rank| awaited(plans, &hosts, rank)).collect();
    // From the first that waits to one that waits for a rank that has finished, or round a circle.
    let mut rank = whom.iter().position(Option::is_some)?;
    let mut seen = vec![false; hosts.len()];
    while let Some(next) = whom[rank].filter(|it| whom[*it].is_some()) {
        if std::mem::replace(&mut seen[rank], true) {
            break;
        }
        rank = next;
    }
    let line = |rank: usize| {
        let at = hosts[rank].stops.get(hosts[rank].passed)?;
        Some((plans[rank].place(&plans[rank].code[*at]), whom[rank]?))
    };
    let (at, other) = line(rank)?;
    let doing = line(other).map_or("has finished".to_owned(), |(at, _)| format!("waits itself at {at}"));
    let mut text = format!("deadlock: rank {rank} waits at {at} for rank {other}, which {doing}");
    for (rank, (at, other)) in (0..hosts.len()).filter_map(|rank| Some((rank, line(rank)?))) {
        text += &format!("\nrank {rank}: its host waits at {at} for rank {other}");
    }
    Some(text)
}

/// The first rank that a host waits for at the stop to which it has come.
fn awaited(plans: &[Plan], hosts: &[Host], rank: usize) -> Option<usize> {
    let host = &hosts[rank];
    let at = *host.stops.get(host.passed)?;
    if let InstKind::Exchange { handles } = &plans[rank].code[at].kind {
        let mirrored = |it: &Handle| (it.exchange(rank), it.direction.mirror());
        let is_away = |it: &&Handle| match hosts.get(it.peer) {
            Some(peer) => !peer.is_at(peer.published.get(&mirrored(it)).copied()),
            None => true,
        };
        return handles.iter().find(is_away).map(|it| it.peer);
    }
    let ordinal = host.barriers.binary_search(&host.passed).ok()?;
    (0..hosts.len()).find(|other| !hosts[*other].is_at(hosts[*other].barriers.get(ordinal).copied()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plans_of;

    fn told(text: &str, ranks: usize) -> Option<String> {
        hang(&plans_of(text, ranks))
    }

    #[test]
    fn hosts_that_all_come_to_their_ends() {
        assert_eq!(told(include_str!("../../samples/ring.hir"), 8), None);
        assert_eq!(told(include_str!("../../tests/cases/launch/loop.hir"), 4), None);
    }

    /// All ranks meet where handles are shared, those outside of the mesh too.
    #[test]
    fn a_rank_that_is_not_at_the_barrier_is_waited_for() {
        let text = told(include_str!("../../samples/ring.hir"), 9).unwrap_or_default();
        let first = text.lines().next();
        assert_eq!(
            first,
            Some("deadlock: rank 0 waits at line 29, streamIdx=1 for rank 8, which has finished")
        );
        assert_eq!(text.lines().count(), 9);
    }

    #[test]
    fn a_handle_that_nobody_publishes_is_waited_for() {
        let text = told(include_str!("../../tests/cases/deadlock/cuda-not-shared-by-peer.hir"), 2);
        assert_eq!(
            text.as_deref(),
            Some(
                "deadlock: rank 1 waits at line 6 for rank 0, which has finished\n\
                 rank 1: its host waits at line 6 for rank 0"
            )
        );
    }
}
