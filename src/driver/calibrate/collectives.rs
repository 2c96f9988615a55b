//! Finds the fastest algorithm of each collective by size.
//!
//! | module | contents |
//! |---|---|
//! | `jobs` | the programs, and how their results are read |
//! | `rules` | the rules of `select-algorithms`, and the lines of NCCL's tuner plugin |
//! | `report` | all times, and what is known about bits |

mod jobs;
mod report;
mod rules;

use grammar::{Algorithm, CommunicationType, algorithm_table::ALGORITHMS};

pub use jobs::{Job, jobs};

/// The collectives that are measured: as a program names them, and as NCCL's tuner plugin does.
const KINDS: [(CommunicationType, Option<&str>); 4] = [
    (CommunicationType::Allreduce, Some("allreduce")),
    (CommunicationType::Allgather, Some("allgather")),
    (CommunicationType::ReduceScatter, Some("reducescatter")),
    // NCCL implements it by messages, which a tuner does not see.
    (CommunicationType::AllToAll, None),
];

/// NCCL's algorithms and protocols on one host without multicast, as `NCCL_ALGO` and `NCCL_PROTO` name them
/// (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html>), and as its tuner plugin does.
const NCCL: [([&str; 2], [&str; 2]); 6] = [
    (["Ring", "LL"], ["ring", "ll"]),
    (["Ring", "LL128"], ["ring", "ll128"]),
    (["Ring", "Simple"], ["ring", "simple"]),
    (["Tree", "LL"], ["tree", "ll"]),
    (["Tree", "LL128"], ["tree", "ll128"]),
    (["Tree", "Simple"], ["tree", "simple"]),
];

/// The time of a call.
#[derive(Clone, Debug)]
struct Time {
    team: usize,
    kind: usize,
    bytes: u64,
    algorithm: Algorithm,
    /// What NCCL was made to use.
    nccl: Option<usize>,
    us: f64,
}

/// A comparison of the bits of all runs and all ranks, at one size.
#[derive(Clone, Debug)]
struct Comparison {
    team: usize,
    kind: usize,
    algorithm: Algorithm,
    /// Nothing is known if the program has failed in another way.
    is_same: Option<bool>,
}

/// What was measured, and what could not be.
#[derive(Default, Debug)]
pub struct Measured {
    times: Vec<Time>,
    comparisons: Vec<Comparison>,
    /// For each program without a time, or without a comparison of bits: what it would have measured, and its verdict.
    pub missing: Vec<String>,
}

impl Measured {
    /// Whether there is no time.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    fn teams(&self) -> Vec<usize> {
        let compared = self.comparisons.iter().map(|it| it.team);
        let mut all: Vec<usize> = self.times.iter().map(|it| it.team).chain(compared).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether bits differed with an algorithm of hir, which adds in the order of ranks. NCCL does not guarantee the same bits.
    fn is_wrong(&self, team: usize, kind: usize, algorithm: Algorithm) -> bool {
        let wrong = (team, kind, algorithm, Some(false));
        let is_wrong = |it: &Comparison| (it.team, it.kind, it.algorithm, it.is_same) == wrong;
        algorithm != Algorithm::Nccl && self.comparisons.iter().any(is_wrong)
    }

    /// Returns the collectives and algorithms of hir whose bits differed between runs or ranks: no rule selects them.
    pub fn wrong(&self) -> Vec<String> {
        let mut all = Vec::new();
        for team in self.teams() {
            for (kind, (word, _)) in KINDS.iter().enumerate() {
                for algorithm in ALGORITHMS.map(|it| it.algorithm) {
                    if self.is_wrong(team, kind, algorithm) {
                        all.push(format!("{}/{team} with {}", word.text(), algorithm.text()));
                    }
                }
            }
        }
        all
    }

    /// Returns the times of each size that `choice` keeps, the smallest size first.
    fn by_size<T>(
        &self,
        team: usize,
        kind: usize,
        choice: impl Fn(&Time) -> Option<T>,
    ) -> Vec<(u64, Vec<(T, f64)>)> {
        let mut all: Vec<(u64, Vec<(T, f64)>)> = Vec::new();
        let mut times: Vec<&Time> =
            self.times.iter().filter(|it| it.team == team && it.kind == kind).collect();
        times.sort_by_key(|it| it.bytes);
        for it in times {
            let Some(chosen) = choice(it) else { continue };
            match all.last_mut() {
                Some((bytes, found)) if *bytes == it.bytes => found.push((chosen, it.us)),
                _ => all.push((it.bytes, vec![(chosen, it.us)])),
            }
        }
        all
    }
}

/// Returns a number of bytes as rules have it.
fn text_of(bytes: u64) -> String {
    for (letter, unit) in [("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns results of all-reduces on two ranks: for each size, the times of algorithms, and those of NCCL's.
    pub(super) fn measured(own: &[(u64, &[(Algorithm, f64)])], nccl: &[(u64, &[(usize, f64)])]) -> Measured {
        let time = |bytes, algorithm, nccl, us| Time { team: 2, kind: 0, bytes, algorithm, nccl, us };
        let mut all = Measured::default();
        for (bytes, times) in own {
            all.times.extend(times.iter().map(|(it, us)| time(*bytes, *it, None, *us)));
        }
        for (bytes, times) in nccl {
            all.times.extend(times.iter().map(|(it, us)| time(*bytes, Algorithm::Nccl, Some(*it), *us)));
        }
        all
    }
}
