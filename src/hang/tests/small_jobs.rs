//! What is said about small jobs whose records are written here: each test is about one cause.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{fs, path::Path};

use hir_hang::{
    files::{self, Dumps},
    report::{Report, report},
};
use serde_json::{Value, json};

/// A call of `name` in the world, as `all_reduce` or `send 0->1`, with the number of elements it passes.
fn call(seq: u32, name: &str, elements: u32) -> Value {
    json!({"process_group": ["0", "default_pg"], "collective_seq_id": seq, "profiling_name": format!("nccl:{name}"),
        "state": "scheduled", "time_created_ns": seq * 1000, "retired": false,
        "input_sizes": [[elements]], "input_dtypes": ["Float"]})
}

/// Writes the calls of ranks into a folder. The world has `members` ranks.
fn write(folder: &Path, members: u32, ranks: &[Vec<Value>]) {
    let config = json!({"0": {"name": "0", "desc": "default_pg", "ranks": (0..members).collect::<Vec<_>>()}});
    for (rank, entries) in ranks.iter().enumerate() {
        let dump = json!({"version": "2.10", "pg_config": config, "entries": entries});
        fs::write(folder.join(format!("rank_{rank}.json")), dump.to_string()).expect("a file");
    }
}

fn load(members: u32, ranks: &[Vec<Value>]) -> Dumps {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), members, ranks);
    files::load(&[folder.path().to_owned()]).expect("dumps")
}

fn explained(members: u32, ranks: &[Vec<Value>]) -> Report {
    report(&load(members, ranks))
}

#[test]
fn ranks_that_diverge_in_several_ways_are_told_apart() {
    let usual = || vec![call(1, "all_reduce", 4)];
    let ranks = [usual(), usual(), usual(), vec![call(1, "all_reduce", 8)], vec![call(1, "broadcast", 4)]];
    let found = &explained(5, &ranks).findings[0];
    assert_eq!(found.message, "rank 3 passes float32 [8] to all_reduce, ranks 0 to 2 pass float32 [4]");
    assert_eq!(found.ranks, [3, 4]);
    assert!(found.notes.contains(&"rank 4 calls broadcast(float32 [4])".to_owned()), "{:#?}", found.notes);
}

#[test]
fn a_minority_of_the_members_accuses_nobody() {
    // Of eight members, three have a dump.
    let ranks =
        [vec![call(1, "all_reduce", 4)], vec![call(1, "all_reduce", 4)], vec![call(1, "broadcast", 4)]];
    assert!(explained(8, &ranks).findings[0].ranks.is_empty());
    let found = &explained(3, &ranks).findings[0];
    assert_eq!(found.ranks, [2]);
    assert!(found.notes.contains(&"2 of 3 members make the other call".to_owned()), "{:#?}", found.notes);
    // Each of the others makes a call of its own.
    let split = ["all_reduce", "all_reduce", "broadcast", "reduce", "barrier"].map(|it| vec![call(1, it, 4)]);
    assert!(explained(5, &split).findings[0].ranks.is_empty());
}
