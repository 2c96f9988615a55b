//! Collectives that ranks issue in different orders.

use crate::{
    blame::unlike_others,
    queues::{Call, Job},
    record::Rank,
    stall::{Place, Stall},
};

/// Two collectives of one rank, of which another one has the second first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossed {
    pub(crate) one: Call,
    pub(crate) two: Call,
    pub(crate) other: Rank,
    /// The rank that is said to be wrong.
    pub(crate) deviant: Option<Rank>,
    /// When both had been issued.
    pub(crate) since: i64,
}

/// Finds two collectives of NCCL that all members have issued and none has completed, in one order on a rank and in the other one on
/// another rank: a GPU may execute the kernels of one communicator at a time.
pub(crate) fn crossed(job: &Job<'_>, stalls: &[Stall]) -> Option<Crossed> {
    let is_issued = |it: &&Stall| {
        let is_nccl = job.records.group(it.group(job)).backend.starts_with("nccl");
        is_nccl
            && matches!(it.place, Place::Collective { .. })
            && it.absent.is_empty()
            && it.behind.is_empty()
    };
    let issued: Vec<&Stall> = stalls.iter().filter(is_issued).take(MAX_CROSSED).collect();
    let mut found: Option<Crossed> = None;
    for (at, one) in issued.iter().enumerate() {
        for two in &issued[at + 1..] {
            let both =
                one.waiting.iter().filter_map(|a| Some((a, two.waiting.iter().find(|b| b.rank == a.rank)?)));
            let (first, second): (Vec<_>, Vec<_>) = both.partition(|(a, b)| a.at < b.at);
            if let (Some((a, b)), Some((other, _))) = (first.first(), second.first()) {
                let at = |of: &Stall, rank: Rank| of.waiting.iter().copied().find(|it| it.rank == rank);
                let counted =
                    |of: &Stall, kind: Call| unlike_others(job, [at(of, a.rank)?, at(of, other.rank)?], kind);
                let deviant =
                    against_most(job, **a, **b).or_else(|| counted(one, **b)).or_else(|| counted(two, **a));
                let since = one.since(job).max(two.since(job));
                let crossed = Crossed { one: **a, two: **b, other: other.rank, deviant, since };
                // Of several, the first that shows who is wrong.
                if deviant.is_some() {
                    return Some(crossed);
                }
                found.get_or_insert(crossed);
            }
        }
    }
    found
}

/// Returns the only rank that has its open calls like these two in another order than all others, three at least.
fn against_most(job: &Job<'_>, one: Call, two: Call) -> Option<Rank> {
    // Without stacks, calls of the next round look alike: their numbers differ.
    let role = |call: Call| {
        let record = job.record(call);
        (job.token(call), record.seq, &job.records.group(record.group).description)
    };
    let (mut ahead, mut behind) = (Vec::new(), Vec::new());
    for log in &job.records.ranks {
        let open = (0..log.records.len() as u32).map(|at| Call { rank: log.rank, at });
        let open: Vec<_> = open.filter(|it| !job.record(*it).done).map(role).collect();
        let first = |call: Call| open.iter().position(|it| *it == role(call));
        match (first(one), first(two)) {
            (Some(a), Some(b)) if a < b => ahead.push(log.rank),
            (Some(_), Some(_)) => behind.push(log.rank),
            _ => (),
        }
    }
    match (ahead.as_slice(), behind.as_slice()) {
        ([rank], others) | (others, [rank]) if others.len() > 2 => Some(*rank),
        _ => None,
    }
}

/// The number of collectives that are compared with each other.
const MAX_CROSSED: usize = 64;
