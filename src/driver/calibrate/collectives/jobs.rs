//! The programs that measure collectives, and their results.

use std::{fs, io, path::Path};

use grammar::{Algorithm, CommunicationType, Program, algorithm_table::ALGORITHMS};

use super::{
    super::{
        entries::RUNS,
        programs::{Call, call_with_output, repeated_call},
        result_of, write_batch,
    },
    Comparison, KINDS, Measured, NCCL, Time, text_of,
};

/// Bytes of an element.
const ELEMENT: usize = 2;
/// Runs of a program whose bits are compared.
const REPEATED: usize = 20;
/// The sizes at which bits are compared.
const COMPARED: [u64; 2] = [64 << 10, 4 << 20];
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
    for (kind, (word, _)) in KINDS.iter().enumerate() {
        for facts in ALGORITHMS.iter().filter(|it| it.kinds.contains(word)) {
            let trial = |bytes, purpose| Trial { kind, algorithm: facts.algorithm, bytes, purpose };
            let fits = |it: &&u64| **it <= facts.most_measured_bytes(*word);
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
        let kinds = KINDS.iter().enumerate().filter(|(_, it)| it.1.is_some());
        let kinds = kinds.filter(|(_, it)| name == "ring" || it.0 == CommunicationType::Allreduce);
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

    fn program(&self, it: &Trial) -> Program {
        let call = Call::Collective(KINDS[it.kind].0, it.algorithm, it.bytes as usize / ELEMENT);
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
        let programs: Vec<Program> = self.trials.iter().map(|it| self.program(it)).collect();
        let options = |it: &Trial| match it.purpose {
            Purpose::Time(_) => format!("-G -n {runs} -w {warmup}"),
            Purpose::Bits => format!("--stress {repeated}"),
        };
        write_batch(folder, programs.iter().zip(self.trials.iter().map(options)))
    }

    /// Adds the results in its folder.
    pub fn read(&self, folder: &Path, to: &mut Measured) {
        for (number, it) in self.trials.iter().enumerate() {
            let result = result_of(folder, number, &self.program(it));
            let team = self.ranks;
            let (word, algorithm, size) = (KINDS[it.kind].0.text(), it.algorithm.text(), text_of(it.bytes));
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

#[cfg(test)]
mod tests {
    use hir_process::atomic_file;

    use super::*;

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
                let code = match (it.purpose, KINDS[it.kind].0, it.algorithm) {
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
        let expected = "bits of Allreduce/2 with two-shot are guaranteed to be the same, and were so in 1 of 1 comparisons";
        assert!(found.report().lines().any(|it| it == expected));
        Ok(())
    }
}
