//! An oracle for `hir hang`: it makes jobs with one fault, executes them as PyTorch and NCCL do, writes their dumps, and knows what is right.
//!
//! It is written from the sources of PyTorch and the documents of NCCL, and knows nothing of how hir decides. The goals, of the jobs whose
//! records show the fault: no rank is named that is not at fault, no healthy job is called a hang, the right rank in 99 %, the right kind in
//! 97 %, and 10 % undecided at most. `tests/baseline/hangs.txt` has what holds today, which may only become better.
//!
//! `HIR_HANG_JOBS=10000 cargo test -p hir-hang --test oracle -- --nocapture` makes more jobs, `HIR_HANG_JOBS=300..3300` other ones. With
//! `HIR_HANG_LIST=1`, each wrong answer is a line: the number of the job, its fault, its mesh and its dumps. With `HIR_HANG_FAULTS=DIR`, the dumps of answers
//! that are wrong are written below DIR, the smallest of each class.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    io::Write as _,
    path::Path,
};

use hir_hang::{files, report};

mod oracle {
    pub mod device;
    pub mod dump;
    pub mod fault;
    pub mod figures;
    pub mod job;
    pub mod program;
    pub mod rng;
    pub mod twins;
}

use oracle::{
    fault::FAULTS,
    figures::{count, table, worse},
    job::Job,
};

/// The jobs of a run, over all kinds.
const JOBS: u64 = 300;

/// Jobs with wrong answers, by kind and by what is wrong: the number, and the size of the smallest and this job.
type Classes = BTreeMap<(String, String), (usize, usize, Job)>;

#[test]
fn answers_do_not_become_worse() {
    let wanted = std::env::var("HIR_HANG_JOBS").unwrap_or_default();
    let (first, end) = wanted.split_once("..").unwrap_or(("", &wanted));
    let jobs = first.parse().unwrap_or(0)..end.parse().unwrap_or(JOBS);
    let mut figures = BTreeMap::new();
    let mut classes = Classes::new();
    let mut list = std::env::var_os("HIR_HANG_LIST").map(|_| String::new());
    for number in jobs.clone() {
        // A fifth of the jobs is healthy.
        let kinds = FAULTS.len() as u64 - 1;
        let fault = if number % 5 == 0 { FAULTS[0] } else { FAULTS[1 + (number % kinds) as usize] };
        let job = Job::make(number, fault, if number % 10 == 9 { 32 } else { 16 });
        let bytes: Vec<(String, Vec<u8>)> =
            job.files().into_iter().map(|(name, it)| (name, it.to_string().into_bytes())).collect();
        let size = bytes.iter().map(|it| it.1.len()).sum();
        let dumps = files::read(&bytes).expect("dumps of the job");
        let report = report::report(&dumps);
        // Which file is read first decides nothing.
        if number % 4 == 1 {
            let reversed: Vec<_> = bytes.iter().rev().cloned().collect();
            let other = report::report(&files::read(&reversed).expect("dumps of the job"));
            assert_eq!(format!("{:?}", report.findings), format!("{:?}", other.findings), "job {number}");
        }
        let wrong = count(&job, &report, &mut figures);
        if !wrong.is_empty() {
            let code = report.findings.first().map_or("none".to_owned(), |it| format!("{:?}", it.code));
            let what = format!("{} {code}", wrong.join(", "));
            if let Some(list) = &mut list {
                list.push_str(&format!(
                    "{number}\t{fault:?}\t{}\t{what}\n",
                    oracle::figures::kind_of_job(&job)
                ));
            }
            let class = (format!("{fault:?}"), what);
            match classes.entry(class) {
                Entry::Vacant(it) => {
                    it.insert((1, size, job));
                }
                Entry::Occupied(it) => {
                    let it = it.into_mut();
                    it.0 += 1;
                    if size < it.1 {
                        (it.1, it.2) = (size, job);
                    }
                }
            }
        }
    }
    let text = table(&figures);
    let lines = classes.iter().map(|((fault, what), it)| format!("{:>5} {fault}: {what}\n", it.0));
    let shown: String = lines.collect();
    std::io::stdout()
        .write_all(format!("{text}\n{shown}\n{}", list.unwrap_or_default()).as_bytes())
        .expect("output");
    if let Ok(folder) = std::env::var("HIR_HANG_FAULTS") {
        classes.iter().for_each(|((fault, what), it)| write(Path::new(&folder), fault, what, &it.2));
    }
    if jobs != (0..JOBS) {
        return;
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/baseline/hangs.txt");
    if std::env::var("INSTA_UPDATE").is_ok_and(|it| it == "always") {
        fs::write(&kept, &text).expect("a file is written");
    }
    let before = fs::read_to_string(&kept).expect("figures that were kept");
    let worse = worse(&figures, &before);
    assert!(worse.is_empty(), "worse than {}: {}\n{text}", kept.display(), worse.join(", "));
}

/// Writes the dumps of a job and what is right.
fn write(folder: &Path, fault: &str, what: &str, job: &Job) {
    let name = format!("{fault}-{what}").replace([' ', ','], "-").replace("--", "-").to_lowercase();
    let folder = folder.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a file is written");
    for (name, it) in job.files() {
        fs::write(folder.join(name), it.to_string()).expect("a file is written");
    }
    fs::write(folder.join("truth.md"), oracle::figures::truth(job)).expect("a file is written");
}
