//! The fastest algorithm of each size: the rules of `select-algorithms`, and the lines of NCCL's tuner plugin.

use std::fmt::Write as _;

use grammar::Algorithm;
use hir_ir::search;

use super::{KINDS, Measured, NCCL, Time, text_of};

/// An algorithm replaces that of the next smaller size only if the latter takes this many times as long.
const BETTER: f64 = 1.02;

/// Returns the choice for each range of sizes: the largest size, and the choice. A size between two measured ones has the
/// choice of the larger one. A choice stays while it is almost the fastest.
fn ranges<T: Copy + PartialEq>(sizes: &[(u64, Vec<(T, f64)>)]) -> Vec<(u64, T)> {
    let mut all: Vec<(u64, T)> = Vec::new();
    for (bytes, times) in sizes {
        let Some(((best, least), _)) = search::best(times.iter().copied(), |it| Some(it.1)) else { continue };
        match all.last_mut() {
            Some((most, last)) if times.iter().any(|(it, us)| it == last && *us < least * BETTER) => {
                *most = *bytes
            }
            _ => all.push((*bytes, best)),
        }
    }
    all
}

impl Measured {
    /// Returns the rules for `select-algorithms`, without an end: `defaults` follow, for what was not measured. NCCL counts with what it
    /// chooses itself. An algorithm of hir whose bits differed is left out.
    pub fn rules(&self, defaults: &str) -> String {
        let mut rules = String::new();
        for team in self.teams() {
            for (kind, (word, _)) in KINDS.iter().enumerate() {
                let own = |it: &Time| {
                    let is_chosen = it.nccl.is_none() && !self.is_wrong(team, kind, it.algorithm);
                    is_chosen.then_some(it.algorithm)
                };
                let chosen = ranges(&self.by_size(team, kind, own));
                let Some(((_, last), before)) = chosen.split_last() else { continue };
                // Writing to a string does not fail.
                for (bytes, algorithm) in before {
                    let _ = write!(rules, "{}/{team}:{}={};", word.text(), text_of(*bytes), algorithm.text());
                }
                let _ = write!(rules, "{}/{team}={};", word.text(), last.text());
                // For machines and jobs without NCCL.
                let without = |it: &Time| own(it).filter(|it| *it != Algorithm::Nccl);
                if let (Algorithm::Nccl, Some((_, other))) =
                    (last, ranges(&self.by_size(team, kind, without)).last())
                {
                    let _ = write!(rules, "{}/{team}={};", word.text(), other.text());
                }
            }
        }
        let reached: Vec<&str> = defaults.split(';').filter(|it| !is_shadowed(it, &rules)).collect();
        rules + &reached.join(";")
    }

    /// Returns the lines for NCCL's example of a tuner plugin, which applies the first one that matches: what is faster than what NCCL
    /// chooses itself. Their format is that of
    /// <https://github.com/NVIDIA/nccl/blob/master/ext-tuner/example/nccl_tuner.conf>; sizes are those of the larger one of input and
    /// output, as in rules.
    pub fn nccl_lines(&self) -> String {
        let mut lines = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n".to_owned();
        for team in self.teams() {
            for (kind, (_, name)) in KINDS.iter().enumerate() {
                let Some(name) = name else { continue };
                let nccl = |it: &Time| (it.algorithm == Algorithm::Nccl).then_some(it.nccl);
                let all = self.by_size(team, kind, nccl);
                // What NCCL chooses itself comes first, so that another choice has to be faster than it.
                let all: Vec<_> =
                    all.into_iter().map(|(bytes, times)| (bytes, preferring_default(times))).collect();
                let chosen = ranges(&all);
                let mut first = 0;
                for (at, (bytes, choice)) in chosen.iter().enumerate() {
                    let most = if at + 1 == chosen.len() { u64::MAX } else { *bytes };
                    if let Some((_, [algorithm, protocol])) = choice.and_then(|it| NCCL.get(it)) {
                        let _ =
                            writeln!(lines, "{name},{first},{most},{algorithm},{protocol},-1,1,{team},-1,-1");
                    }
                    first = most.saturating_add(1);
                }
            }
        }
        lines
    }
}

/// Returns whether no collective gets to a rule behind others: they have the same rule, or one without a size for all-reduces of the team.
/// The algorithm of such a rule, if it is not NCCL's, takes every all-reduce; those of other collectives do not take every size.
fn is_shadowed(rule: &str, before: &str) -> bool {
    let takes_all = |prefix: &str| {
        let all = before.split(';').filter_map(|it| it.strip_prefix(prefix)?.strip_prefix('='));
        all.into_iter().any(|it| it != Algorithm::Nccl.text())
    };
    let prefix = rule.split([':', '=']).next().unwrap_or(rule);
    before.split(';').any(|it| it == rule) || prefix.starts_with("Allreduce/") && takes_all(prefix)
}

/// Leaves out choices that are not faster than what NCCL chooses itself.
fn preferring_default(times: Vec<(Option<usize>, f64)>) -> Vec<(Option<usize>, f64)> {
    let own = times.iter().find(|it| it.0.is_none()).map(|it| it.1);
    times
        .into_iter()
        .filter(|(choice, us)| choice.is_none() || own.is_some_and(|own| us * BETTER < own))
        .collect()
}

#[cfg(test)]
mod tests {
    use grammar::algorithm_table::{AlgorithmTable, DEFAULT_RULES};

    use super::{super::tests::measured, *};

    #[test]
    fn rules_have_the_fastest_algorithm_of_each_size() {
        use Algorithm::{Nccl, OneShot, OneShotLl, TwoShot};
        let found = measured(
            &[
                (8192, &[(OneShotLl, 2.5), (OneShot, 4.0), (Nccl, 7.0)]),
                // Not 2% faster, so the algorithm stays.
                (16384, &[(OneShotLl, 4.0), (OneShot, 3.95), (Nccl, 7.0)]),
                (32768, &[(OneShotLl, 6.0), (OneShot, 4.0), (Nccl, 7.0)]),
                (65536, &[(TwoShot, 9.0), (OneShot, 9.5), (Nccl, 7.0)]),
            ],
            &[],
        );
        let rules = found.rules(DEFAULT_RULES);
        let own =
            "Allreduce/2:16K=one-shot-ll;Allreduce/2:32K=one-shot;Allreduce/2=nccl;Allreduce/2=two-shot;";
        // The default rules for such all-reduces are never reached.
        let others: Vec<&str> =
            DEFAULT_RULES.split(';').filter(|it| !it.starts_with("Allreduce/2")).collect();
        assert_eq!(rules.strip_prefix(own), Some(others.join(";").as_str()));
        assert!(AlgorithmTable::parse(&rules).is_ok());
    }

    #[test]
    fn the_tuner_gets_what_is_faster_than_nccl_itself() {
        use Algorithm::Nccl;
        let found = measured(
            &[
                (8192, &[(Nccl, 7.0)]),
                (16384, &[(Nccl, 7.0)]),
                (32768, &[(Nccl, 7.0)]),
                (65536, &[(Nccl, 9.0)]),
            ],
            &[
                (8192, &[(0, 6.0)]),
                (16384, &[(0, 6.1), (1, 6.0)]),
                (32768, &[(1, 6.95)]),
                (65536, &[(4, 8.0)]),
            ],
        );
        let lines = found.nccl_lines();
        let lines: Vec<&str> = lines.lines().skip(1).collect();
        let last = format!("allreduce,32769,{},tree,ll128,-1,1,2,-1,-1", u64::MAX);
        assert_eq!(lines, ["allreduce,0,16384,ring,ll,-1,1,2,-1,-1", &last]);
    }
}
