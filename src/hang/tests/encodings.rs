//! Encodings and hostile files: a pickle and its JSON give one report, and no bytes end in a panic.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

mod simulator;

use std::{fs, path::Path};

use hir_hang::{
    dumps::Dumps,
    files::{self, LoadError},
    report::report,
};
use simulator::{dumps, pickles, run, two_ranks};

fn load(folder: &Path, files: &[(&str, &[u8])]) -> Result<Dumps, LoadError> {
    let paths = files.iter().map(|(name, bytes)| {
        fs::write(folder.join(name), bytes).expect("a file");
        folder.join(name)
    });
    files::load(&paths.collect::<Vec<_>>())
}

#[test]
fn a_pickle_and_its_json_give_one_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = two_ranks();
    let texts = dumps(&job, &run(&job));
    let pickles = pickles();
    let json = load(
        folder.path(),
        &[("rank_0.json", texts[0].1.as_bytes()), ("rank_1.json", texts[1].1.as_bytes())],
    );
    let pickled = load(folder.path(), &[("trace_rank_0", &pickles[0]), ("trace_rank_1", &pickles[1])]);
    let [json, pickled] = [json, pickled].map(|it| report(&it.expect("dumps")));
    assert_eq!(json.findings, pickled.findings);
    assert_eq!(json.rows, pickled.rows);
    assert_eq!((json.findings[0].code.text(), json.findings[0].ranks.as_slice()), ("E0801", [1].as_slice()));
}

#[test]
fn a_dump_that_is_cut_off_counts_as_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let pickles = pickles();
    for end in 0..pickles[1].len() {
        let dumps =
            load(folder.path(), &[("rank_0", &pickles[0]), ("rank_1", &pickles[1][..end])]).expect("dumps");
        assert_eq!(dumps.skipped.len(), 1, "{end} bytes");
        let found = report(&dumps);
        assert_eq!(
            (found.findings[0].code.text(), found.findings[0].ranks.as_slice()),
            ("E0806", [1].as_slice())
        );
    }
}

#[test]
fn changed_bytes_never_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let pickles = pickles();
    // A linear congruential generator: the same changes in every run.
    let mut state = 1_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for _ in 0..1000 {
        let mut bytes = pickles[1].clone();
        for _ in 0..1 + next(3) {
            let at = next(bytes.len());
            bytes[at] = next(256) as u8;
        }
        if let Ok(dumps) = load(folder.path(), &[("rank_0", &pickles[0]), ("rank_1", &bytes)]) {
            let found = report(&dumps);
            let program = hir_hang::program::program(&dumps);
            assert!(program.contains("%HostIrContainer") && found.world < 2_000_000);
        }
    }
}

#[test]
fn nothing_in_a_pickle_is_executed() {
    let folder = tempfile::tempdir().expect("a folder");
    // cos\nsystem\n(X\x04\0\0\0trueτR. calls os.system when Python loads it.
    let hostile = b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.";
    let fault = load(folder.path(), &[("rank_0", hostile)]).expect_err("an error").to_string();
    assert!(fault.contains("0x63") && fault.contains("does not execute"), "{fault}");
}

#[test]
fn values_that_are_fetched_often_are_shared() {
    let folder = tempfile::tempdir().expect("a folder");
    // A list that contains the list before it twice, 60 times: 2^60 values if they were copied.
    let mut bytes = b"\x80\x02}(X\x01\x00\x00\x00a]q\x00".to_vec();
    for _ in 0..60 {
        bytes.extend(b"X\x01\x00\x00\x00a](h\x00h\x00eq\x00");
    }
    bytes.extend(b"X\x07\x00\x00\x00entriesh\x00u.");
    let fault = load(folder.path(), &[("rank_0", &bytes)]).expect_err("an error").to_string();
    assert!(fault.contains("record 0 has no usable"), "{fault}");
}

/// Dumps without records still say which operations are open: numbers are integers in a pickle and texts in JSON.
#[test]
fn the_status_says_what_records_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let dump = |enqueued: &str, completed: &str| {
        format!(
            r#"{{"version": "2.10", "pg_config": {{}}, "pg_status": {{"0": {{"last_enqueued_collective": {enqueued}, "last_started_collective": "-1", "last_completed_collective": {completed}}}, "x": 3}}}}"#
        )
    };
    let (first, second) = (dump("15", "14"), dump("\"14\"", "\"14\""));
    let loaded =
        load(folder.path(), &[("rank_0.json", first.as_bytes()), ("rank_1.json", second.as_bytes())]);
    let notes = report(&loaded.expect("dumps")).notes;
    let expected = [
        "`pg_status` counts all operations, also those without a record: the last one enqueued in group 0 is #15 on rank 0 and #14 on rank 1",
        "rank 0 kept no records, but by `pg_status` #15 of group 0 is enqueued and #14 is the last one that completed",
    ];
    assert_eq!(notes[..2], expected);
}
