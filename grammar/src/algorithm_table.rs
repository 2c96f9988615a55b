//! The table that selects the fastest algorithm of a collective by its type, team size and bytes per rank.
//!
//! The pass `select-algorithms` writes the selected algorithm into programs. The planner uses the table for
//! all-reduces of the CUDA backend that do not specify an algorithm (`hir::plan::transport`).
//!
//! A table is a list of rules; the first matching rule applies. For example,
//! `Allreduce/2:512K=one-shot-ll;2=nccl;*:8K=one-shot-ll` selects one-shot-ll for all-reduces of teams of two up to
//! 512 KiB, NCCL for all other collectives of teams of two, and one-shot-ll for those of other teams up to 8 KiB.
//! Sizes are in bytes, of the input or the output of one rank, whichever is larger; the suffixes `K`, `M` and `G`
//! are powers of 1024. A rule without a type matches all types that support its algorithm, a rule without a size
//! matches all sizes, `5-7` matches teams of 5 to 7, and `*` matches any team. The name of a device stands for its rules.

use std::{ops::RangeInclusive, slice};

use crate::InvalidOption;
use crate::words::{Algorithm, CommunicationType};

/// The default table. NVLink, no multicast; CUDA 13.0, NCCL 2.28; bf16; 20 calls per CUDA graph, medians of 12 to 15 runs
/// (`benches/gpu/compare.sh collectives`). A size between two measured sizes uses the result of the larger one, and a
/// larger size that of the largest.
///
/// * Teams of 2 were measured on two H100s, and again on two H200s (2026-11-30), from 8 KiB to 256 MiB.
/// * Teams of 4 were measured on four H200s, from 8 KiB to 64 MiB, before the signals of `one-shot` and `two-shot` became
///   faster. For that reason, the rules with packets for all-reduces and reduce-scatters end at 256 KiB; in the
///   measurement, packets were the fastest up to 512 KiB.
/// * Teams of 8 were not measured. Their rules assume that the amount of data that a rank sends decides, as between teams
///   of 2 and 4.
///
/// The rules behind those with `nccl` give the fastest algorithm where NCCL is not available. Packets of 128 bytes
/// (`ll128`) are not selected: with teams of 2 they are never the fastest, and larger teams were not measured since a
/// repair of these kernels.
pub const DEFAULT_RULES: &str = "Allreduce/2:256K=one-shot-ll;Allreduce/2:8M=one-shot;Allreduce/2=two-shot;2:512K=one-shot-ll;2=one-shot;\
     Allreduce/4:64K=one-shot-ll;Allreduce/4:256K=two-shot-ll;\
     Allreduce/4:32M=two-shot;Allreduce/4=nccl;Allreduce/4=two-shot;\
     ReduceScatter/4:256K=one-shot-ll;ReduceScatter/4=one-shot;4:512K=one-shot-ll;4=one-shot;\
     Allreduce/8:32K=one-shot-ll;Allreduce/8:256K=two-shot-ll;\
     Allreduce/8:32M=two-shot;Allreduce/8=nccl;Allreduce/8=two-shot;\
     ReduceScatter/8:256K=one-shot-ll;ReduceScatter/8=one-shot;8:512K=one-shot-ll;8=one-shot;*=nccl";

/// The device of `DEFAULT_RULES`.
pub const DEFAULT: &str = "h200";

/// The devices with rules: the name, the name by which the driver knows the device, and the rules. A rule for all-reduces of a team is
/// `SMALL`, or from the times of vLLM's kernels in <https://github.com/vllm-project/vllm/pull/24111> (bf16, 512 KiB to 64 MiB): its
/// one-stage kernel is `one-shot`; its two-stage kernel and PyTorch's symmetric-memory two-shot are `two-shot`. A team that was not
/// measured has an algorithm of hir only where it is no slower than NCCL in both teams next to it. All others are the default rules.
///
/// * `h100`: all-gathers and all-to-alls of teams of 2 were measured on two H100s, teams of 6 in that source; those of 3 lie between 2 and
///   4, those of 5 between 4 and 6. Those of 7 have the rules for 6, and those of 8 the default ones.
/// * `b200`: teams of 2, 4, 6 and 8 in that source.
const DEVICES: [(&str, &str, &[&str]); 3] = [
    (DEFAULT, "NVIDIA H200", &[DEFAULT_RULES]),
    (
        "h100",
        "NVIDIA H100 80GB HBM3",
        &[
            SMALL,
            "Allgather/2:1M=one-shot-ll;AllToAll/2:1M=one-shot-ll",
            "Allreduce/3:1536K=one-shot;Allreduce/3:16M=two-shot;Allreduce/3=nccl;Allreduce/3=two-shot",
            "Allreduce/5-7:512K=one-shot;Allreduce/5-7:32M=two-shot;Allreduce/5-7=nccl;Allreduce/5-7=two-shot",
            DEFAULT_RULES,
        ],
    ),
    (
        "b200",
        "NVIDIA B200",
        &[
            SMALL,
            "Allreduce/2-3:2M=one-shot;Allreduce/2-3:4M=two-shot;Allreduce/2-3=nccl;Allreduce/2-3=two-shot",
            "Allreduce/4-6:2M=one-shot;Allreduce/4-7:1M=one-shot;Allreduce/4-7:32M=two-shot;Allreduce/4-7=nccl;Allreduce/4-7=two-shot",
            "Allreduce/8:1M=one-shot;Allreduce/8:47M=two-shot;Allreduce/8=nccl;Allreduce/8=two-shot",
            DEFAULT_RULES,
        ],
    ),
];

/// The default rules for the sizes that no source has for other devices, and for other teams by the rules for 4 and 8.
const SMALL: &str = "Allreduce/2:256K=one-shot-ll;Allreduce/3-4:64K=one-shot-ll;Allreduce/5-8:32K=one-shot-ll;\
     Allreduce/3-8:256K=two-shot-ll";

/// Returns the name of a device with rules, given this name or that of the driver.
pub fn device(name: &str) -> Option<&'static str> {
    DEVICES.iter().find(|it| it.0 == name || it.1 == name).map(|it| it.0)
}

/// What is known of an algorithm. All that is particular to it is here, and in the file of its transport.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmFacts {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The types of collectives that have it.
    pub kinds: &'static [CommunicationType],
    /// The largest sizes at which it is measured, in bytes: of an all-reduce, and of others. Packets send more than the data, and
    /// with `one-shot` each rank reads all inputs of an all-reduce.
    measured_bytes: [u64; 2],
    /// Whether it is selected only where the part of each rank begins at an address that allows wide accesses.
    pub needs_wide_parts: bool,
    /// Whether its kernel can also compute what follows a reduction (`epilogue=true`): each rank reduces its whole output itself.
    has_epilogue: bool,
}

/// The algorithms that a rule can select.
pub const ALGORITHMS: [AlgorithmFacts; 9] = [
    row(Algorithm::Nccl, CommunicationType::ALL, u64::MAX),
    AlgorithmFacts {
        measured_bytes: [16 << 20, u64::MAX],
        needs_wide_parts: true,
        has_epilogue: true,
        ..row(Algorithm::OneShot, &SYMMETRIC, u64::MAX)
    },
    row(Algorithm::TwoShot, &ALLREDUCE, u64::MAX),
    row(Algorithm::OneShotCopy, &[CommunicationType::Allgather, CommunicationType::AllToAll], u64::MAX),
    row(Algorithm::TwoShotCopy, &ALLREDUCE, u64::MAX),
    AlgorithmFacts { has_epilogue: true, ..row(Algorithm::OneShotLl, &SYMMETRIC, 2 << 20) },
    row(Algorithm::OneShotLl128, &SYMMETRIC, 16 << 20),
    row(Algorithm::TwoShotLl, &ALLREDUCE, 2 << 20),
    row(Algorithm::TwoShotLl128, &ALLREDUCE, 16 << 20),
];

const ALLREDUCE: [CommunicationType; 1] = [CommunicationType::Allreduce];

const fn row(
    algorithm: Algorithm,
    kinds: &'static [CommunicationType],
    measured_bytes: u64,
) -> AlgorithmFacts {
    let measured_bytes = [measured_bytes, measured_bytes];
    AlgorithmFacts { algorithm, kinds, measured_bytes, needs_wide_parts: false, has_epilogue: false }
}

impl AlgorithmFacts {
    /// Returns the largest size at which it is measured, in bytes.
    pub fn most_measured_bytes(&self, kind: CommunicationType) -> u64 {
        self.measured_bytes[usize::from(kind != CommunicationType::Allreduce)]
    }
}

/// The collectives in which every rank sends to every other one. Only for these, a rank knows from what it receives that
/// its peers have read the slots of an earlier collective, so that packets can reuse them.
const SYMMETRIC: [CommunicationType; 4] = [
    CommunicationType::Allreduce,
    CommunicationType::Allgather,
    CommunicationType::ReduceScatter,
    CommunicationType::AllToAll,
];

/// Returns what is known of an algorithm if a type of collective has it.
pub fn facts(algorithm: Algorithm, kind: CommunicationType) -> Option<&'static AlgorithmFacts> {
    ALGORITHMS.iter().find(|it| it.algorithm == algorithm && it.kinds.contains(&kind))
}

/// Returns whether an algorithm supports a type of collective.
pub fn supports(algorithm: Algorithm, kind: CommunicationType) -> bool {
    facts(algorithm, kind).is_some()
}

/// Returns whether the kernel of an algorithm can also compute what follows the collective (`epilogue=true`).
pub fn has_epilogue(algorithm: Algorithm, kind: CommunicationType) -> bool {
    matches!(kind, CommunicationType::Allreduce | CommunicationType::ReduceScatter)
        && facts(algorithm, kind).is_some_and(|it| it.has_epilogue)
}

/// A parsed table: a list of rules in order of priority.
#[derive(Clone, Debug)]
pub struct AlgorithmTable(Vec<Rule>);

/// A rule that does not parse.
#[derive(Clone, Debug)]
pub struct RuleError<'t> {
    /// The text of the rule.
    pub rule: &'t str,
    /// What is wrong with it.
    pub reason: InvalidOption,
}

#[derive(Clone, Debug)]
struct Rule {
    /// The type of the collective; `None` matches all types that support the algorithm.
    kind: Option<CommunicationType>,
    /// Numbers of ranks in the team.
    team: RangeInclusive<usize>,
    /// Maximum number of bytes per rank; `None` matches any number.
    bytes: Option<u64>,
    algorithm: Algorithm,
}

impl AlgorithmTable {
    /// Parses a table, or finds that of a device.
    ///
    /// # Errors
    /// Returns the first rule that does not parse, and why.
    pub fn parse(text: &str) -> Result<Self, RuleError<'_>> {
        let of_device = DEVICES.iter().find(|it| it.0 == text || it.1 == text).map(|it| it.2);
        let parts = of_device.unwrap_or(slice::from_ref(&text)).iter();
        let rules = parts.flat_map(|it| it.split(';')).map(str::trim);
        let rules = rules.map(|it| rule(it).map_err(|reason| RuleError { rule: it, reason }));
        rules.collect::<Result<Vec<_>, _>>().map(Self)
    }

    /// Returns the algorithm of the first rule that matches and whose algorithm the type supports and is available
    /// according to `has`.
    pub fn choose(
        &self,
        kind: CommunicationType,
        (team, bytes): (usize, u64),
        has: impl Fn(Algorithm) -> bool,
    ) -> Option<Algorithm> {
        let fits = |it: &&Rule| {
            it.kind.is_none_or(|it| it == kind)
                && it.team.contains(&team)
                && it.bytes.is_none_or(|most| bytes <= most)
                && supports(it.algorithm, kind)
                && has(it.algorithm)
        };
        self.0.iter().find(fits).map(|it| it.algorithm)
    }
}

/// Parses one rule, such as `Allreduce/2:8M=one-shot`, `4=nccl` or `*=nccl`. Returns what is wrong with it otherwise.
fn rule(text: &str) -> Result<Rule, InvalidOption> {
    let (condition, word) = text
        .split_once('=')
        .ok_or("expected `type/team:bytes=algorithm`, such as `Allreduce/2:8M=one-shot`")?;
    let (kind, size) = match condition.split_once('/') {
        Some((kind, size)) => (Some(kind.trim()), size),
        None => (None, condition),
    };
    let as_kind = |kind| {
        let words = CommunicationType::ALL.iter().map(|it| it.text()).collect::<Vec<_>>().join(", ");
        CommunicationType::from_text(kind)
            .ok_or_else(|| format!("`{kind}` is not a type of collective; expected one of {words}"))
    };
    let kind = kind.map(as_kind).transpose()?;
    let (team, bytes) = match size.split_once(':') {
        Some((team, bytes)) => (team.trim(), Some(bytes.trim())),
        None => (size.trim(), None),
    };
    let (first, last) = team.split_once('-').unwrap_or((team, team));
    let range = || Some(first.parse().ok()?..=last.parse().ok()?).filter(|it| !it.is_empty());
    let team = if team == "*" { Some(0..=usize::MAX) } else { range() }.ok_or_else(|| {
        format!("`{team}` is not a number of ranks; expected a number, a range such as `5-7`, or `*`")
    })?;
    let as_bytes = |text| {
        bytes_of(text).ok_or_else(|| format!("`{text}` is not a number of bytes; expected one such as `64K`"))
    };
    let bytes = bytes.map(as_bytes).transpose()?;
    let word = word.trim();
    let names = |kind: Option<CommunicationType>| {
        let all = ALGORITHMS.iter().filter(|it| kind.is_none_or(|kind| it.kinds.contains(&kind)));
        all.map(|it| it.algorithm.text()).collect::<Vec<_>>().join(", ")
    };
    let AlgorithmFacts { algorithm, kinds, .. } = ALGORITHMS
        .into_iter()
        .find(|it| it.algorithm.text() == word)
        .ok_or_else(|| format!("`{word}` is not an algorithm; expected one of {}", names(kind)))?;
    match kind {
        Some(kind) if !kinds.contains(&kind) => {
            Err(format!("{} has no algorithm `{word}`; expected one of {}", kind.text(), names(Some(kind)))
                .into())
        }
        kind => Ok(Rule { kind, team, bytes, algorithm }),
    }
}

fn bytes_of(text: &str) -> Option<u64> {
    let units = [("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let with_unit = units.iter().find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, *unit)));
    let (digits, unit) = with_unit.unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::{AlgorithmTable, DEFAULT_RULES, RuleError};
    use crate::words::{Algorithm, CommunicationType};

    #[test]
    fn the_default_table_has_an_answer_for_every_size() -> Result<(), RuleError<'static>> {
        let table = AlgorithmTable::parse(DEFAULT_RULES)?;
        let kind = CommunicationType::Allreduce;
        for team in [2, 4, 8] {
            for bytes in [0, 8 << 10, 1 << 20, 1 << 30] {
                let own = table.choose(kind, (team, bytes), |it| it != Algorithm::Nccl);
                assert!(
                    own.is_some() && table.choose(kind, (team, bytes), |_| true).is_some(),
                    "{team} {bytes}"
                );
            }
        }
        // A rule for all types must not apply to sizes that a rule for one type has left.
        let reduce_scatter = |bytes| table.choose(CommunicationType::ReduceScatter, (2, bytes), |_| true);
        assert_eq!(reduce_scatter(512 << 10), Some(Algorithm::OneShotLl));
        assert_eq!(reduce_scatter(1 << 20), Some(Algorithm::OneShot));
        assert_eq!(table.choose(kind, (3, 1), |_| true), Some(Algorithm::Nccl));
        assert_eq!(table.choose(kind, (2, 8 << 10), |it| it != Algorithm::Nccl), Some(Algorithm::OneShotLl));
        Ok(())
    }

    #[test]
    fn a_rule_applies_to_the_types_that_support_its_algorithm() -> Result<(), RuleError<'static>> {
        let table = AlgorithmTable::parse("2=two-shot;Allgather/2:1K=one-shot-ll;*=nccl")?;
        let chosen = |kind, bytes| table.choose(kind, (2, bytes), |_| true);
        assert_eq!(chosen(CommunicationType::Allreduce, 1), Some(Algorithm::TwoShot));
        assert_eq!(chosen(CommunicationType::Allgather, 1024), Some(Algorithm::OneShotLl));
        assert_eq!(chosen(CommunicationType::Allgather, 1025), Some(Algorithm::Nccl));
        assert_eq!(chosen(CommunicationType::Broadcast, 1), Some(Algorithm::Nccl));
        assert!(AlgorithmTable::parse("Broadcast/2=one-shot-ll").is_err());
        Ok(())
    }
}
