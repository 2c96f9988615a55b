//! What is printed: all times, the fastest first, and what is known about bits.

use std::fmt::Write as _;

use grammar::{Algorithm, algorithm_table::ALGORITHMS};

use super::{Comparison, KINDS, Measured, NCCL, Time, text_of};

impl Measured {
    /// Returns a table of all times, the fastest ones first, and what is known about bits.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for team in self.teams() {
            for (kind, (word, _)) in KINDS.iter().enumerate() {
                let names = |it: &Time| {
                    let nccl =
                        it.nccl.and_then(|at| NCCL.get(at)).map(|(_, it)| format!(" ({} {})", it[0], it[1]));
                    Some(format!("{}{}", it.algorithm.text(), nccl.unwrap_or_default()))
                };
                for (bytes, mut times) in self.by_size(team, kind, names) {
                    times.sort_by(|a, b| a.1.total_cmp(&b.1));
                    let times: Vec<String> =
                        times.iter().map(|(name, us)| format!("{name} {us:.1}")).collect();
                    let _ = writeln!(text, "{}/{team} {}: {}", word.text(), text_of(bytes), times.join(", "));
                }
            }
        }
        for team in self.teams() {
            for (kind, (word, _)) in KINDS.iter().enumerate() {
                for algorithm in ALGORITHMS.map(|it| it.algorithm) {
                    if let Some(known) = self.known_of_bits(team, kind, algorithm) {
                        let _ = writeln!(
                            text,
                            "bits of {}/{team} with {} {known}",
                            word.text(),
                            algorithm.text()
                        );
                    }
                }
            }
        }
        text
    }

    /// Returns what is known about the bits of a team, a collective and an algorithm.
    fn known_of_bits(&self, team: usize, kind: usize, algorithm: Algorithm) -> Option<String> {
        let is_it = |it: &&Comparison| (it.team, it.kind, it.algorithm) == (team, kind, algorithm);
        let found: Vec<Option<bool>> = self.comparisons.iter().filter(is_it).map(|it| it.is_same).collect();
        let count = |result: Option<bool>| found.iter().filter(|it| **it == result).count();
        let (same, different, failed) = (count(Some(true)), count(Some(false)), count(None));
        let all = found.len();
        let known = match (different, same) {
            (0, 0) if all == 0 => return None,
            (0, 0) => return Some("were not compared".to_owned()),
            // NCCL promises nothing; hir's kernels add in the order of ranks.
            (0, _) if algorithm == Algorithm::Nccl => {
                format!("were the same in all runs and on all ranks in {same} of {all} comparisons")
            }
            (0, _) => format!("are guaranteed to be the same, and were so in {same} of {all} comparisons"),
            _ => format!("differ between runs or ranks in {different} of {all} comparisons"),
        };
        Some(if failed == 0 { known } else { format!("{known}; {failed} could not be made") })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::measured, *};

    #[test]
    fn what_has_other_bits_is_not_recommended() {
        use Algorithm::{Nccl, OneShot, OneShotLl, TwoShot};
        let mut found = measured(&[(8192, &[(OneShotLl, 2.5), (OneShot, 4.0), (Nccl, 3.0)])], &[]);
        let same = [
            (2, Nccl, Some(true)),
            (2, Nccl, Some(false)),
            (2, OneShot, Some(true)),
            (2, OneShot, None),
            (2, TwoShot, None),
            (2, OneShotLl, Some(false)),
            (4, OneShot, Some(true)),
            (4, OneShot, Some(true)),
            (4, Nccl, Some(true)),
        ];
        let comparison = |(team, algorithm, is_same)| Comparison { team, kind: 0, algorithm, is_same };
        found.comparisons.extend(same.map(comparison));
        assert_eq!(found.wrong(), ["Allreduce/2 with one-shot-ll"]);
        assert_eq!(found.rules("*=nccl"), "Allreduce/2=nccl;Allreduce/2=one-shot;*=nccl");
        let report = found.report();
        let lines: Vec<&str> =
            report.lines().filter_map(|it| it.strip_prefix("bits of Allreduce/")).collect();
        let expected = [
            "2 with nccl differ between runs or ranks in 1 of 2 comparisons",
            "2 with one-shot are guaranteed to be the same, and were so in 1 of 2 comparisons; 1 could not be made",
            "2 with two-shot were not compared",
            "2 with one-shot-ll differ between runs or ranks in 1 of 1 comparisons",
            "4 with nccl were the same in all runs and on all ranks in 1 of 1 comparisons",
            "4 with one-shot are guaranteed to be the same, and were so in 2 of 2 comparisons",
        ];
        assert_eq!(lines, expected);
    }
}
