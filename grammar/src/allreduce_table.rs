//! Which algorithm of an all-reduce is the fastest, by members of the team and bytes of a member: the pass `select-allreduce` writes
//! it into programs, and the planner takes it for collectives of the CUDA backend that name no algorithm.
//!
//! A table is a list of rules, of which the first that fits holds: `2:512K=nccl;2=two-shot;*=nccl` means NCCL for teams of two up to
//! 512 KiB, two-shot for teams of two above, and NCCL for all others. Sizes are bytes, `K`, `M` and `G` the powers of 1024; a rule
//! without a size holds for all sizes; `*` is any team.

use crate::words::Algorithm;

/// Measured on 4×H200 of one host (NVLink, no multicast; CUDA 13.0, NCCL 2.28) in bf16 at 8 and 64 KiB, 0.5, 1, 4, 16 and 64 MiB: one
/// call a CUDA graph, medians of 50 runs, three rounds in turns. Between two measured sizes the smaller one decides. Teams of 8 were
/// not measured: they take the sizes of 4. The second rule of a size says what is fastest where NCCL is not to be had.
pub const MEASURED: &str = "2:256K=nccl;2:256K=one-shot;2=two-shot;4:256K=one-shot;4:32M=two-shot;4=nccl;4=two-shot;\
     8:256K=one-shot;8:32M=two-shot;8=nccl;8=two-shot;*=nccl";

/// What a rule may choose.
pub const ALGORITHMS: [Algorithm; 3] = [Algorithm::Nccl, Algorithm::OneShot, Algorithm::TwoShot];

/// The rules.
#[derive(Clone, Debug)]
pub struct AllreduceTable(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    /// Members of the team; `None`: any number.
    team: Option<usize>,
    /// The most bytes of a member; `None`: any number.
    bytes: Option<u64>,
    algorithm: Algorithm,
}

impl AllreduceTable {
    /// Reads a table.
    ///
    /// # Errors
    /// The first rule that does not parse.
    pub fn parse(text: &str) -> Result<Self, &str> {
        let rules = text.split(';').map(|it| rule(it.trim()).ok_or(it.trim()));
        rules.collect::<Result<Vec<_>, _>>().map(Self)
    }

    /// The algorithm of the first rule that fits, among those that are to be had.
    pub fn choose(&self, team: usize, bytes: u64, has: impl Fn(Algorithm) -> bool) -> Option<Algorithm> {
        let fits = |it: &&Rule| {
            it.team.is_none_or(|size| size == team)
                && it.bytes.is_none_or(|most| bytes <= most)
                && has(it.algorithm)
        };
        self.0.iter().find(fits).map(|it| it.algorithm)
    }
}

/// `2:8M=one-shot`, `4=nccl`, `*=nccl`.
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
