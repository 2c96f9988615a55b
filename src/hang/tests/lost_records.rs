//! What is said about jobs whose ring buffers have lost records: what is lost is neither counted, nor said to have been made or to have completed.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use hir_hang::{
    files,
    report::{Report, report},
};
use serde_json::{Value, json};

/// A call of `name`, the last number of its name, in the world.
fn call(record: u32, seq: u32, name: &str, is_done: bool) -> Value {
    json!({"record_id": record, "process_group": ["0", "default_pg"], "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": format!("nccl:{name}"), "state": if is_done { "completed" } else { "scheduled" },
        "retired": is_done, "time_created_ns": record * 1000, "input_sizes": [[4]], "input_dtypes": ["Float"]})
}

/// A message, the one with this number in the world, of an element type.
fn message(record: u32, number: u32, name: &str, element: &str, is_done: bool) -> Value {
    let mut found = call(record, 0, name, is_done);
    found["p2p_seq_id"] = json!(number);
    found["is_p2p"] = json!(true);
    found["input_dtypes"] = json!([element]);
    found
}

fn explained(ranks: &[Vec<Value>]) -> Report {
    let members: Vec<usize> = (0..ranks.len()).collect();
    let config = json!({"0": {"name": "0", "desc": "default_pg", "ranks": members}});
    let dumps: Vec<(String, Vec<u8>)> = ranks
        .iter()
        .enumerate()
        .map(|(rank, entries)| {
            let dump = json!({"version": "2.10", "pg_config": config, "entries": entries});
            (format!("rank_{rank}.json"), dump.to_string().into_bytes())
        })
        .collect();
    report(&files::read(&dumps).expect("dumps"))
}

#[test]
fn a_job_that_has_lost_messages_is_not_cleared() {
    let collectives = || (7..10).map(|at| call(at, at, "all_reduce", true)).collect::<Vec<_>>();
    let found = explained(&[collectives(), collectives()]);
    assert!(found.proceeds && found.verdict().starts_with("the records show no hang"), "{}", found.verdict());
    // The records after some messages of the group.
    let mut after_messages = collectives();
    after_messages.iter_mut().for_each(|it| it["p2p_seq_id"] = json!(3));
    let found = explained(&[collectives(), after_messages]);
    assert!(!found.proceeds && !found.is_hang);
    assert_eq!(
        found.verdict(),
        "no hang is shown: every call that the records hold has completed, and the ring buffers of 1 rank have lost calls that may not have"
    );
}

#[test]
fn a_collective_whose_record_is_lost_is_not_said_to_have_been_made() {
    let lost = || vec![call(9, 6, "all_gather", false), call(10, 7, "all_reduce", false)];
    let ahead =
        vec![call(6, 3, "all_reduce", true), call(7, 4, "all_gather", true), call(8, 5, "barrier", false)];
    let found = explained(&[lost(), lost(), ahead]);
    assert_eq!((found.findings[0].code.text(), found.is_hang), ("W0802", false));
    assert_eq!(
        found.findings[0].message,
        "the ring buffer has lost the records that would show whether all calls proceed: rank 2 waits in barrier (#5 of group 0), and the records of ranks 0 and 1 do not hold whether they have made this call"
    );
}

#[test]
fn a_rank_that_kept_no_record_of_a_group_is_not_said_to_be_late() {
    let of_other_group = |mut call: Value| {
        call["process_group"] = json!(["1", "dp"]);
        call
    };
    let waits = || vec![call(0, 1, "all_reduce", true), call(1, 2, "all_reduce", false)];
    let found = explained(&[waits(), waits(), vec![of_other_group(call(8, 7, "all_reduce", true))]]);
    assert_eq!((found.findings[0].code.text(), found.is_hang, found.proceeds), ("W0802", false, false));
    assert!(found.findings[0].ranks.is_empty());
}

#[test]
fn messages_of_cut_logs_are_not_compared() {
    let all = |first: u32, name: &'static str, element: &str, first_done| {
        let mut all = vec![message(first, first + 1, name, "Float", first_done)];
        all.extend((1..8).map(|it| message(first + it, first + 1 + it, name, element, false)));
        all
    };
    let sends = |first_done| all(4, "send 0->1", "Half", first_done);
    let receives = |first_done| all(3, "recv 1<-0", "Float", first_done);
    let found = explained(&[sends(true), receives(true)]);
    // A send may complete before its receive is posted, so that their first open ones need not be one message.
    assert_eq!((found.findings[0].code.text(), found.is_hang), ("W0802", false));
    // An open call before the oldest ones may be lost.
    let found = explained(&[sends(false), receives(false)]);
    assert_eq!((found.findings[0].code.text(), found.is_hang), ("W0802", false));
    assert!(found.findings[0].message.ends_with(", and the records do not hold which call it meets"));
    // The receiver has kept a later receive that completed, and no open one.
    let found = explained(&[sends(true), receives(true)[..1].to_vec()]);
    assert!(
        found.findings[0].message.ends_with(", and the records do not hold which call it meets"),
        "{}",
        found.verdict()
    );
}

/// The calls of a rank from one position on, of a program that repeats `all_gather` and `reduce_scatter`, `ahead` calls ahead: none has completed.
fn repeating(first: u32, ahead: u32) -> Vec<Value> {
    let name = |at: u32| if (at + ahead).is_multiple_of(2) { "all_gather" } else { "reduce_scatter" };
    (first..first + 9).map(|at| call(at, at, name(at), false)).collect()
}

#[test]
fn the_direction_of_a_shift_that_is_lost_is_not_given() {
    // Of calls that repeat, one too few and one too many look alike.
    let found = explained(&[repeating(20, 0), repeating(20, 0), repeating(20, 1)]);
    let finding = &found.findings[0];
    assert_eq!((finding.code.text(), finding.ranks.as_slice()), ("E0807", &[2][..]));
    assert_eq!(
        finding.message,
        "rank 2 does not make the call of ranks 0 and 1 at #20 of group 0, the oldest position that all dumps hold: whether it made the same calls before is not in the records"
    );
    let note = "rank 2: its calls #20 to #27 are like calls #21 to #28 of rank 0";
    assert!(finding.notes.iter().any(|it| it == note), "{:?}", finding.notes);
}

#[test]
fn before_the_first_call_of_a_group_nothing_is_lost() {
    let other_group = |mut call: Value| {
        call["process_group"] = json!(["1", "dp"]);
        call
    };
    let rank = |name: &str| vec![other_group(call(8, 7, "all_reduce", true)), call(9, 1, name, false)];
    let found = explained(&[rank("all_gather"), rank("all_gather"), rank("all_reduce")]);
    assert_eq!(found.findings[0].code.text(), "E0801");
    assert!(
        found.findings[0].message.starts_with("rank 2 calls all_reduce where ranks 0 and 1 call all_gather")
    );
}

#[test]
fn a_loop_whose_first_end_is_lost_accuses_nobody() {
    // Rank 0 makes one `all_gather` too many; that the loop of these has ended before is lost.
    let with_place = |mut call: Value, line: u32| {
        call["frames"] = json!([{"name": "step", "filename": "train.py", "line": line}]);
        call
    };
    let rank = |last: &str, line: u32| {
        let begin = [("reduce_scatter", 21), ("all_gather", 21), ("reduce_scatter", 21), ("all_reduce", 23)];
        let calls = begin.into_iter().chain([("all_gather", 20); 4]).enumerate();
        let mut calls: Vec<Value> = calls
            .map(|(at, (name, line))| with_place(call(at as u32 + 9, at as u32 + 9, name, true), line))
            .collect();
        calls.push(with_place(call(17, 17, last, false), line));
        calls
    };
    let found = explained(&[rank("all_gather", 20), rank("reduce_scatter", 21)]);
    let finding = &found.findings[0];
    assert_eq!((finding.code.text(), found.is_hang), ("E0801", true));
    assert!(finding.ranks.is_empty(), "{}", finding.message);
    // Calls that are lost are not counted.
    assert!(!finding.notes.iter().any(|it| it.contains("time")), "{:?}", finding.notes);
}
