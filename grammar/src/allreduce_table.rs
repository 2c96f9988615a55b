//! The table that selects the fastest all-reduce algorithm by team size and bytes per rank.
//!
//! The pass `select-allreduce` writes the selected algorithm into programs. The planner uses the table for
//! CUDA-backend collectives that do not specify an algorithm.
//!
//! A table is a list of rules; the first matching rule applies. For example, `2:512K=nccl;2=two-shot;*=nccl`
//! selects NCCL for teams of two up to 512 KiB, two-shot for larger messages of teams of two, and NCCL for
//! all other teams. Sizes are in bytes; the suffixes `K`, `M` and `G` are powers of 1024. A rule without a
//! size matches all sizes; `*` matches any team.

use crate::words::Algorithm;

/// The default table, measured on 4×H200 of one host (NVLink, no multicast; CUDA 13.0, NCCL 2.28) in bf16 at
/// 8 and 64 KiB, 0.5, 1, 4, 16 and 64 MiB: one call per CUDA graph, medians of 50 runs, three interleaved
/// rounds. A size between two measured sizes uses the result of the smaller one. Teams of 8 were not
/// measured; they use the sizes measured for teams of 4. The second rule for a size gives the fastest
/// algorithm where NCCL is not available.
pub const MEASURED: &str = "2:256K=nccl;2:256K=one-shot;2=two-shot;4:256K=one-shot;4:32M=two-shot;4=nccl;4=two-shot;\
     8:256K=one-shot;8:32M=two-shot;8=nccl;8=two-shot;*=nccl";

/// The algorithms that a rule can select.
pub const ALGORITHMS: [Algorithm; 3] = [Algorithm::Nccl, Algorithm::OneShot, Algorithm::TwoShot];

/// A parsed table: a list of rules in order of priority.
#[derive(Clone, Debug)]
pub struct AllreduceTable(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    /// Number of ranks in the team; `None` matches any number.
    team: Option<usize>,
    /// Maximum number of bytes per rank; `None` matches any number.
    bytes: Option<u64>,
    algorithm: Algorithm,
}

impl AllreduceTable {
    /// Parses a table.
    ///
    /// # Errors
    /// Returns the first rule that does not parse.
    pub fn parse(text: &str) -> Result<Self, &str> {
        let rules = text.split(';').map(|it| rule(it.trim()).ok_or(it.trim()));
        rules.collect::<Result<Vec<_>, _>>().map(Self)
    }

    /// Returns the algorithm of the first rule that matches and whose algorithm is available according to
    /// `has`.
    pub fn choose(&self, team: usize, bytes: u64, has: impl Fn(Algorithm) -> bool) -> Option<Algorithm> {
        let fits = |it: &&Rule| {
            it.team.is_none_or(|size| size == team)
                && it.bytes.is_none_or(|most| bytes <= most)
                && has(it.algorithm)
        };
        self.0.iter().find(fits).map(|it| it.algorithm)
    }
}

/// Parses one rule, such as `2:8M=one-shot`, `4=nccl` or `*=nccl`.
fn rule(text: &str) -> Option<Rule> {
    let (size, algorithm) = text.split_once('=')?;
    let (team, bytes) = match size.split_once(':') {
        Some((team, bytes)) => (team, Some(bytes_of(bytes.trim())?)),
        None => (size, None),
    };
    let team = match team.trim() {
        "*" => None,
        team => Some(team.parse().ok()?),
    };
    let algorithm = ALGORITHMS.into_iter().find(|it| it.text() == algorithm.trim())?;
    Some(Rule { team, bytes, algorithm })
}

fn bytes_of(text: &str) -> Option<u64> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let with_unit = units.iter().find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, *unit)));
    let (digits, unit) = with_unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::{AllreduceTable, MEASURED};
    use crate::words::Algorithm;

    #[test]
    fn the_measured_table_has_an_answer_for_every_size() -> Result<(), &'static str> {
        let table = AllreduceTable::parse(MEASURED)?;
        for team in [2, 4, 8] {
            for bytes in [0, 8 << 10, 1 << 20, 1 << 30] {
                let own = table.choose(team, bytes, |it| it != Algorithm::Nccl);
                assert!(own.is_some() && table.choose(team, bytes, |_| true).is_some(), "{team} {bytes}");
            }
        }
        assert_eq!(table.choose(3, 1, |_| true), Some(Algorithm::Nccl));
        assert_eq!(table.choose(2, 8 << 10, |it| it != Algorithm::Nccl), Some(Algorithm::OneShot));
        Ok(())
    }
}
