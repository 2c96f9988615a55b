//! Hangs of two H200s with PyTorch 2.11 and NCCL 2.28.9, each with one fault that `cases.py` in the archive makes: the dumps of the recorder, what the
//! ranks printed, answers of RAS, and stacks of py-spy and faulthandler, each alone and all together.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{collections::BTreeMap, fmt::Write as _, io::Read};

use hir_hang::{files, report::report};

/// The ranks at fault of each job. Both are where two ranks differ and nothing but the program says which one is wrong, and none where all ranks do the
/// same.
const TRUTH: &[(&str, &[u32])] = &[
    ("aborted", &[1]),
    ("aborted-eager", &[1]),
    ("asynchronous_skip", &[1]),
    ("batch_one_sided", &[0, 1]),
    ("batch_one_sided-eager", &[0, 1]),
    ("batch_without_partner", &[0, 1]),
    ("caught_exception", &[1]),
    ("checkpoint", &[0]),
    ("coalesced_skip", &[1]),
    ("crossed_groups", &[0, 1]),
    ("ddp_skipped_backward", &[1]),
    ("ddp_uneven_batches", &[0, 1]),
    ("destroyed", &[1]),
    ("exception", &[1]),
    ("fsdp_evaluation_on_rank_0", &[0]),
    ("gather_skipped", &[0, 1]),
    ("healthy", &[]),
    ("loop_count", &[0, 1]),
    ("object_list", &[0]),
    ("one_more", &[0]),
    ("other_kind", &[0, 1]),
    ("other_root", &[0, 1]),
    ("other_size", &[0, 1]),
    ("other_size-eager", &[0, 1]),
    ("other_type", &[0, 1]),
    ("recv_without_send", &[0, 1]),
    ("recv_without_send-eager", &[0, 1]),
    ("scatter_for_reduce", &[0, 1]),
    ("sigkill", &[1]),
    ("sigkill-eager", &[1]),
    ("sigstop", &[1]),
    ("skip_in_loop", &[1]),
    ("skip_in_loop-eager", &[1]),
    ("skip_last", &[1]),
    ("slow_loader", &[1]),
    ("stuck_kernel", &[1]),
    ("stuck_kernel-eager", &[1]),
    ("swapped_calls", &[0, 1]),
    ("two_threads", &[0, 1]),
    ("unbatched_pair", &[]),
    ("unbatched_pair-eager", &[]),
];

/// The files of each job.
fn jobs() -> BTreeMap<String, Vec<(String, Vec<u8>)>> {
    let bytes = include_bytes!("real.tar.gz");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
    let mut jobs: BTreeMap<String, Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("a file");
        let path = entry.path().expect("a path").to_string_lossy().trim_start_matches("./").to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("its bytes");
        if let Some((job, name)) = path.split_once('/').filter(|it| !it.1.is_empty()) {
            jobs.entry(job.to_owned()).or_default().push((name.to_owned(), bytes));
        }
    }
    jobs
}

/// Returns code and named ranks of what is found in the files whose names have one of these beginnings.
fn found(files: &[(String, Vec<u8>)], of: &[&str]) -> (String, Vec<u32>) {
    let some: Vec<_> = files.iter().filter(|it| of.iter().any(|of| it.0.starts_with(of))).cloned().collect();
    let Ok(dumps) = files::read(&some) else { return ("-".to_owned(), Vec::new()) };
    let report = report(&dumps);
    let end = if report.is_hang {
        "hang"
    } else if report.proceeds {
        "right"
    } else {
        "undecided"
    };
    match report.findings.first() {
        Some(it) => (format!("{end} {} {:?}", it.code.text(), it.ranks), it.ranks.clone()),
        None => (end.to_owned(), Vec::new()),
    }
}

#[test]
fn real_jobs_name_no_innocent_rank() {
    let jobs = jobs();
    assert!(jobs.keys().eq(TRUTH.iter().map(|it| it.0)), "{:?}", jobs.keys());
    let mut table = String::new();
    for (job, guilty) in TRUTH {
        let _ = write!(table, "{job}, wrong {guilty:?}");
        for (what, of) in [
            ("dumps", &["rank_"][..]),
            ("logs", &["log-"]),
            ("RAS", &["ras."]),
            ("stacks", &["stacks-", "pyspy-"]),
            ("all", &[""]),
        ] {
            let (text, named) = found(&jobs[*job], of);
            assert!(named.iter().all(|it| guilty.contains(it)), "{job}, {what}: {text}");
            let _ = write!(table, "; {what}: {text}");
        }
        table.push('\n');
    }
    assert!(table == include_str!("real.txt"), "the table is now:\n{table}");
}
