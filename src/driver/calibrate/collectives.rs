//! Finds the fastest algorithm of each collective by size: the programs to run, the rules of `select-algorithms`, and the lines of
//! NCCL's tuner plugin.

use std::{fmt::Write as _, fs, io, path::Path};

use grammar::{
    algorithm_table::{ALGORITHMS, supports},
    words::{Algorithm, CommunicationType},
};

use super::{
    entries::RUNS,
    programs::{Call, Collective, call_with_output, repeated_call},
    result_of, write_batch,
};

/// Bytes of an element.
const ELEMENT: usize = 2;
/// An algorithm replaces that of the next smaller size only if the latter takes this many times as long.
const BETTER: f64 = 1.02;
/// Runs of a program whose bits are compared.
const REPEATED: usize = 20;
/// The sizes at which bits are compared.
const COMPARED: [u64; 2] = [64 << 10, 4 << 20];

/// The collectives that are measured: as a program names them, and as NCCL's tuner plugin does.
const KINDS: [(Collective, CommunicationType, Option<&str>); 4] = [
    (Collective::Allreduce, CommunicationType::Allreduce, Some("allreduce")),
    (Collective::Allgather, CommunicationType::Allgather, Some("allgather")),
    (Collective::ReduceScatter, CommunicationType::ReduceScatter, Some("reducescatter")),
    // NCCL implements it by messages, which a tuner does not see.
    (Collective::AllToAll, CommunicationType::AllToAll, None),
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

/// Variables by which a user changes what NCCL chooses. No job inherits them.
const CHOOSING: [&str; 4] = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_CONFIG_FILE", "NCCL_TUNER_PLUGIN"];

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// The time of a call; the program makes this many.
    Time(usize),
    /// Whether the bits are the same in all runs and on all ranks.
    Bits,
}

/// A program of a job.
#[derive(Clone, Debug)]
struct Trial {
    kind: usize,
    algorithm: Algorithm,
    bytes: u64,
    purpose: Purpose,
}

/// Programs that run in one job of hir-run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The name of its folder.
    pub name: String,
    /// Variables of its environment, in order; those without a value are removed from the inherited ones.
    pub environment: Vec<(&'static str, Option<&'static str>)>,
    ranks: usize,
    /// The index in `NCCL` of what the environment selects.
    nccl: Option<usize>,
    is_quick: bool,
    trials: Vec<Trial>,
}

/// Returns the largest size at which an algorithm is measured: packets send more than the data, and with `one-shot` each rank reads all
/// inputs of an all-reduce.
fn most_bytes(algorithm: Algorithm, kind: CommunicationType) -> u64 {
    match algorithm {
        Algorithm::OneShotLl | Algorithm::TwoShotLl => 2 << 20,
        Algorithm::OneShotLl128 | Algorithm::TwoShotLl128 => 16 << 20,
        Algorithm::OneShot if kind == CommunicationType::Allreduce => 16 << 20,
        Algorithm::OneShot
        | Algorithm::Nccl
        | Algorithm::TwoShot
        | Algorithm::OneShotCopy
        | Algorithm::TwoShotCopy => u64::MAX,
    }
}

/// Returns the jobs for a team of all ranks. `is_quick`: the smallest size only, with few runs.
pub fn jobs(ranks: usize, is_quick: bool) -> Vec<Job> {
    let sizes: Vec<u64> = (13..=if is_quick { 13 } else { 26 }).map(|it| 1 << it).collect();
    let calls = |bytes: u64| {
        if is_quick {
            2
        } else if bytes <= 4 << 20 {
            20
        } else {
            5
        }
    };
    let mut trials = Vec::new();
    for (kind, (_, word, _)) in KINDS.iter().enumerate() {
        for (algorithm, _) in ALGORITHMS.iter().filter(|(it, _)| supports(*it, *word)) {
            let trial = |bytes, purpose| Trial { kind, algorithm: *algorithm, bytes, purpose };
            let fits = |it: &&u64| **it <= most_bytes(*algorithm, *word);
            trials.extend(sizes.iter().filter(fits).map(|it| trial(*it, Purpose::Time(calls(*it)))));
            let compared = COMPARED.iter().filter(fits).take(if is_quick { 1 } else { 2 });
            trials.extend(compared.map(|it| trial(*it, Purpose::Bits)));
        }
    }
    let job = |name, own: Vec<(&'static str, &'static str)>, nccl, trials| {
        let removed = CHOOSING.into_iter().map(|it| (it, None));
        let own = own.into_iter().map(|(variable, value)| (variable, Some(value)));
        let environment = removed.chain(own).collect();
        Job { name, environment, ranks, nccl, is_quick, trials }
    };
    let mut all = vec![job(format!("{ranks}"), Vec::new(), None, trials)];
    for (at, ([algorithm, protocol], [name, short])) in NCCL.into_iter().enumerate() {
        // Trees only sum to all ranks.
        let kinds = KINDS.iter().enumerate().filter(|(_, it)| it.2.is_some());
        let kinds = kinds.filter(|(_, it)| name == "ring" || it.0 == Collective::Allreduce);
        let trials = kinds.flat_map(|(kind, _)| {
            let trial = move |it: &u64| Trial {
                kind,
                algorithm: Algorithm::Nccl,
                bytes: *it,
                purpose: Purpose::Time(calls(*it)),
            };
            sizes.iter().map(trial).collect::<Vec<_>>()
        });
        let environment = vec![("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)];
        all.push(job(format!("{ranks}-nccl-{name}-{short}"), environment, Some(at), trials.collect()));
    }
    all
}

impl Job {
    /// The number of programs.
    pub fn len(&self) -> usize {
        self.trials.len()
    }

    /// Whether there is no program.
    pub fn is_empty(&self) -> bool {
        self.trials.is_empty()
    }

    fn text(&self, it: &Trial) -> String {
        let call = Call::Collective(KINDS[it.kind].0, it.algorithm.text(), it.bytes as usize / ELEMENT);
        match it.purpose {
            Purpose::Time(calls) => repeated_call(call, calls, self.ranks),
            Purpose::Bits => call_with_output(call, self.ranks),
        }
    }

    /// Writes the programs and their command lines to a folder.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let ([runs, warmup], repeated) = if self.is_quick { ([3, 1], 2) } else { (RUNS, REPEATED) };
        let texts: Vec<String> = self.trials.iter().map(|it| self.text(it)).collect();
        let options = |it: &Trial| match it.purpose {
            Purpose::Time(_) => format!("-G -n {runs} -w {warmup}"),
            Purpose::Bits => format!("--stress {repeated}"),
        };
        write_batch(folder, texts.iter().map(String::as_str).zip(self.trials.iter().map(options)))
    }

    /// Adds the results in its folder.
    pub fn read(&self, folder: &Path, to: &mut Measured) {
        for (number, it) in self.trials.iter().enumerate() {
            let result = result_of(folder, number, &self.text(it));
            let team = self.ranks;
            let (word, algorithm, size) = (KINDS[it.kind].1.text(), it.algorithm.text(), text_of(it.bytes));
            let verdict = result["verdict"].as_str().unwrap_or("not run");
            match it.purpose {
                Purpose::Time(calls) => match result["median_us"].as_f64() {
                    Some(us) => to.times.push(Time {
                        team,
                        kind: it.kind,
                        bytes: it.bytes,
                        algorithm: it.algorithm,
                        nccl: self.nccl,
                        us: us / calls as f64,
                    }),
                    None => {
                        let what = format!("{word} of {size} with {algorithm}");
                        to.missing.push(format!("{}: {what}: {verdict}", self.name));
                    }
                },
                Purpose::Bits => {
                    let is_same = match result["exit_code"].as_i64() {
                        Some(0) => Some(true),
                        Some(3) => Some(false),
                        _ => {
                            let what = format!("bits of {word} of {size} with {algorithm}");
                            to.missing.push(format!("{}: {what}: {verdict}", self.name));
                            None
                        }
                    };
                    let comparison = Comparison { team, kind: it.kind, algorithm: it.algorithm, is_same };
                    to.comparisons.push(comparison);
                }
            }
        }
    }
}

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

/// Returns the choice for each range of sizes: the largest size, and the choice. A size between two measured ones has the
/// choice of the larger one. A choice stays while it is almost the fastest.
fn ranges<T: Copy + PartialEq>(sizes: &[(u64, Vec<(T, f64)>)]) -> Vec<(u64, T)> {
    let mut all: Vec<(u64, T)> = Vec::new();
    for (bytes, times) in sizes {
        let Some((best, least)) = times.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
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
            for (kind, (_, word, _)) in KINDS.iter().enumerate() {
                for (algorithm, _) in ALGORITHMS {
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

    /// Returns the rules for `select-algorithms`, without an end: `defaults` follow, for what was not measured. NCCL counts with what it
    /// chooses itself. An algorithm of hir whose bits differed is left out.
    pub fn rules(&self, defaults: &str) -> String {
        let mut rules = String::new();
        for team in self.teams() {
            for (kind, (_, word, _)) in KINDS.iter().enumerate() {
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
            for (kind, (_, _, name)) in KINDS.iter().enumerate() {
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

    /// Returns a table of all times, the fastest ones first, and what is known about bits.
    pub fn report(&self) -> String {
        let mut text = String::new();
        for team in self.teams() {
            for (kind, (_, word, _)) in KINDS.iter().enumerate() {
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
            for (kind, (_, word, _)) in KINDS.iter().enumerate() {
                for (algorithm, _) in ALGORITHMS {
                    if let Some(told) = self.told_of_bits(team, kind, algorithm) {
                        let _ =
                            writeln!(text, "bits of {}/{team} with {} {told}", word.text(), algorithm.text());
                    }
                }
            }
        }
        text
    }

    /// Returns what is known about the bits of a team, a collective and an algorithm.
    fn told_of_bits(&self, team: usize, kind: usize, algorithm: Algorithm) -> Option<String> {
        let is_it = |it: &&Comparison| (it.team, it.kind, it.algorithm) == (team, kind, algorithm);
        let found: Vec<Option<bool>> = self.comparisons.iter().filter(is_it).map(|it| it.is_same).collect();
        let count = |result: Option<bool>| found.iter().filter(|it| **it == result).count();
        let (same, different, failed) = (count(Some(true)), count(Some(false)), count(None));
        let all = found.len();
        let told = match (different, same) {
            (0, 0) if all == 0 => return None,
            (0, 0) => return Some("were not compared".to_owned()),
            // NCCL promises nothing; hir's kernels add in the order of ranks.
            (0, _) if algorithm == Algorithm::Nccl => {
                format!("were the same in all runs and on all ranks in {same} of {all} comparisons")
            }
            (0, _) => format!("are guaranteed to be the same, and were so in {same} of {all} comparisons"),
            _ => format!("differ between runs or ranks in {different} of {all} comparisons"),
        };
        Some(if failed == 0 { told } else { format!("{told}; {failed} could not be made") })
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
    use grammar::algorithm_table::{AlgorithmTable, DEFAULT_RULES};
    use hir_process::atomic_file;

    /// Returns results of all-reduces on two ranks: for each size, the times of algorithms, and those of NCCL's.
    fn measured(own: &[(u64, &[(Algorithm, f64)])], nccl: &[(u64, &[(usize, f64)])]) -> Measured {
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

    #[test]
    fn jobs_do_not_inherit_choices() {
        for job in jobs(2, true) {
            let (removed, own) = job.environment.split_at(CHOOSING.len());
            assert_eq!(removed, CHOOSING.map(|it| (it, None::<&str>)));
            let variables: Vec<&str> = own.iter().filter(|it| it.1.is_some()).map(|it| it.0).collect();
            let expected: &[&str] = if job.nccl.is_some() { &["NCCL_ALGO", "NCCL_PROTO"] } else { &[] };
            assert_eq!(variables, expected);
        }
    }

    #[test]
    fn results_are_read_from_files() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let all = jobs(2, true);
        let mut found = Measured::default();
        for job in &all {
            let place = folder.path().join(&job.name);
            job.write(&place)?;
            for (number, it) in job.trials.iter().enumerate() {
                // Programs of other versions are not counted.
                let us = if it.algorithm == Algorithm::OneShotLl { 3.0 } else { 5.0 };
                let code = match (it.purpose, KINDS[it.kind].1, it.algorithm) {
                    (Purpose::Bits, CommunicationType::Allreduce, Algorithm::OneShotLl) => 3,
                    (Purpose::Bits, CommunicationType::Allgather, Algorithm::OneShot) => 5,
                    _ => 0,
                };
                let text = format!(r#"{{"exit_code": {code}, "median_us": {us}, "verdict": "code {code}"}}"#);
                atomic_file::write(&place.join(format!("{number}.json")), text.as_bytes())?;
            }
            atomic_file::write(&place.join("0.hir"), b"")?;
            job.read(&place, &mut found);
        }
        assert_eq!(found.missing.len(), all.len() + 1);
        let failed = "2: bits of Allgather of 64K with one-shot: code 5";
        assert!(found.missing.iter().any(|it| it == failed), "{:?}", found.missing);
        assert_eq!(found.wrong(), ["Allreduce/2 with one-shot-ll"]);
        let rules = found.rules("*=nccl");
        let expected = "Allreduce/2=one-shot;Allgather/2=one-shot-ll;ReduceScatter/2=one-shot-ll;AllToAll/2=one-shot-ll;*=nccl";
        assert_eq!(rules, expected);
        let told = "bits of Allreduce/2 with two-shot are guaranteed to be the same, and were so in 1 of 1 comparisons";
        assert!(found.report().lines().any(|it| it == told));
        Ok(())
    }
}
