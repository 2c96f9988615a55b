//! What is said about small jobs whose records are written here: each test is about one cause.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use std::{fs, path::Path};

use hir_hang::{
    diagnostics::diagnostic,
    dumps::Dumps,
    files,
    report::{Report, report, table},
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

/// The call, as completed.
fn done(call: Value) -> Value {
    with(call, &[("state", json!("completed")), ("retired", json!(true))])
}

/// The call, with other values of some keys.
fn with(mut call: Value, keys: &[(&str, Value)]) -> Value {
    keys.iter().for_each(|(key, value)| call[*key] = value.clone());
    call
}

#[test]
fn dumps_that_an_earlier_job_left_are_named() {
    let at = |seconds: u64, seq| {
        with(call(seq, "all_reduce", 4), &[("time_created_ns", json!(seconds * 1_000_000_000))])
    };
    let notes = |last: u64| {
        let ranks = [vec![at(9_000, 1)], vec![at(9_001, 1)], vec![at(10, 7), at(last, 8)]];
        explained(3, &ranks).notes.into_iter().filter(|it| it.contains("earlier job")).collect::<Vec<_>>()
    };
    assert_eq!(
        notes(1_799),
        ["the last call of rank 2 is 2 hours older than every recorded call of the other ranks: \
          are their dumps those of an earlier job? PyTorch leaves them in the folder"]
    );
    // A rank that stopped while the others went on.
    assert_eq!(notes(8_900), [""; 0]);
}

#[test]
fn dumps_without_records_or_ranks_do_not_clear_a_job() {
    let verdict = |members, ranks: &[Vec<Value>]| {
        let found = explained(members, ranks);
        assert!(!found.is_hang);
        found.verdict()
    };
    assert!(verdict(2, &[vec![], vec![]]).starts_with("no hang is shown: the dumps have no records"));
    let calls = || vec![done(call(1, "all_reduce", 4))];
    // A rank without records counts as missing, with or without a dump.
    for ranks in [vec![calls()], vec![calls(), vec![]]] {
        assert!(
            verdict(3, &ranks)
                .starts_with("no hang is shown by the records of 1 of 3 ranks, and the others have none")
        );
    }
    assert!(verdict(2, &[calls(), calls()]).starts_with("the records show no hang: "));
}

/// The call, made at a line of `train.py`.
fn at_line(call: Value, line: u32) -> Value {
    with(call, &[("frames", json!([{"name": "step", "filename": "train.py", "line": line}]))])
}

#[test]
fn a_receive_from_any_rank_knows_of_open_sends_to_it() {
    let p2p = |name: &str| with(call(1, name, 4), &[("p2p_seq_id", json!(1)), ("is_p2p", json!(true))]);
    let ranks = [vec![p2p("send 0->1")], vec![p2p("recv_any_source 1<-?")]];
    let found = &explained(2, &ranks).findings[0];
    assert_eq!(
        (found.code.text(), found.message.as_str()),
        (
            "W0802",
            "rank 1 waits in recv_any_source from any rank (group 0), and a send of rank 0 to it (#1 from rank 0 to rank 1 in group 0) has not completed"
        )
    );
    let ranks = [vec![done(p2p("send 0->1"))], vec![p2p("recv_any_source 1<-?")]];
    let found = &explained(2, &ranks).findings[0];
    assert!(found.message.ends_with("and the records hold no open send to it"), "{}", found.message);
}

#[test]
fn a_rank_that_waits_is_in_the_table_before_many_that_do_not() {
    // Each pair of ranks has completed the call of a group of its own.
    let pair = |group: u32| {
        done(with(
            call(1, "all_reduce", 4),
            &[("process_group", json!([group.to_string(), format!("g{group}")]))],
        ))
    };
    let mut ranks: Vec<Vec<Value>> = (0..58).map(|rank| vec![pair(1 + rank / 2)]).collect();
    ranks.extend([vec![call(1, "all_reduce", 4)], vec![]]);
    let report = explained(60, &ranks);
    assert_eq!((report.rows[0].state, report.rows[0].ranks.as_slice()), ("waits", [58].as_slice()));
    assert!(table(&report)[1].starts_with("58 "), "{:#?}", table(&report));
}

#[test]
fn only_a_call_that_completed_is_said_to_have_completed() {
    let ranks = [vec![call(1, "all_reduce", 4)], vec![]];
    let notes = &explained(2, &ranks).findings[0].notes;
    assert!(notes.contains(&"rank 1 has no records".to_owned()), "{notes:#?}");
    // A hook on a backend that does not report completion retires every record when it is issued.
    let hook = |seq| {
        with(
            call(seq, "all_reduce", 4),
            &[("profiling_name", json!("hccl:all_reduce")), ("retired", json!(true))],
        )
    };
    let notes = &explained(2, &[vec![hook(1), hook(2)], vec![hook(1)]]).findings[0].notes;
    assert!(
        notes.contains(&"the last call of rank 1 is all_reduce (#1 of group 0)".to_owned()),
        "{notes:#?}"
    );
}

#[test]
fn a_call_that_the_watchdog_gave_up_does_not_run_any_more() {
    let gone = || vec![with(call(1, "all_reduce", 4), &[("retired", json!(true))])];
    let report = explained(2, &[gone(), gone()]);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (true, "E0808"));
    assert!(!report.findings[0].help.contains("still runs"), "{}", report.findings[0].help);
    let in_flight = || vec![call(1, "all_reduce", 4)];
    let report = explained(2, &[in_flight(), in_flight()]);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0802"));
}

#[test]
fn names_of_files_are_kept_in_messages() {
    let frame = json!([{"name": "step", "filename": "a wait in b.py", "line": 3}]);
    let ranks = [vec![with(call(1, "all_reduce", 4), &[("frames", frame)])], vec![]];
    let message = &explained(2, &ranks).findings[0].message;
    assert!(
        message.starts_with("rank 0 waits in all_reduce (a wait in b.py:3), #1 of group 0, and"),
        "{message}"
    );
}

#[test]
fn two_backends_in_two_encodings_are_read_once_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let nccl = [at_line(done(call(1, "all_reduce", 4)), 3), at_line(call(2, "all_reduce", 4), 4)];
    let gloo = [with(call(1, "barrier", 4), &[("profiling_name", json!("gloo:barrier"))])];
    for (name, calls, has_stacks) in
        [("a", &nccl[..], true), ("b", &gloo[..], true), ("c", &nccl[..], false), ("d", &gloo[..], false)]
    {
        let calls = calls.iter().map(|it| {
            if has_stacks { at_line(it.clone(), 3) } else { with(it.clone(), &[("frames", json!([]))]) }
        });
        let dump = json!({"version": "2.10", "pg_config": {}, "entries": calls.collect::<Vec<_>>()});
        fs::write(folder.path().join(format!("{name}_rank_0.json")), dump.to_string()).expect("a file");
    }
    let dumps = files::load(&[folder.path().to_owned()]).expect("dumps");
    assert_eq!(dumps.records.ranks[0].records.len(), 3);
    assert!(dumps.notes[0].ends_with(", and so for 1 more file"), "{:?}", dumps.notes);
}

#[test]
fn the_program_is_looked_for_beside_a_dump_that_is_named_as_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 2, &[vec![at_line(call(1, "all_reduce", 4), 2)], vec![]]);
    fs::write(folder.path().join("train.py"), "import torch\ndist.all_reduce(loss)\n").expect("a file");
    let dumps =
        files::load(&[0, 1].map(|rank| folder.path().join(format!("rank_{rank}.json")))).expect("dumps");
    let (source, found) = diagnostic(&report(&dumps).findings[0], &dumps);
    assert_eq!(found.span().text(&source.text), "dist.all_reduce(loss)");
}

/// As in a page, which is given a folder: the program is the one whose path has the most folders in common, and what is neither a dump
/// nor Python is left out.
#[test]
fn dumps_and_the_program_are_read_from_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 2, &[vec![at_line(call(1, "all_reduce", 4), 2)], vec![]]);
    let read = |programs: &[(&str, &str)]| {
        let dump = |rank: u32| fs::read(folder.path().join(format!("rank_{rank}.json"))).expect("a file");
        let mut files: Vec<_> = [0, 1].map(|rank| (format!("job/rank_{rank}.json"), dump(rank))).into();
        files.extend(programs.iter().map(|it| (it.0.to_owned(), it.1.as_bytes().to_vec())));
        files::read(&files)
    };
    let line = |programs: &[(&str, &str)]| {
        let dumps = read(programs).expect("dumps");
        let (source, found) = diagnostic(&report(&dumps).findings[0], &dumps);
        found.span().text(&source.text).to_owned()
    };
    let own = ("job/train.py", "import torch\ndist.all_reduce(loss)\n");
    let older = ("job/old/train.py", "import torch\ndist.all_reduce(older)\n");
    assert_eq!(line(&[own, ("job/log_7.txt", "{"), ("job/model_7.bin", "PK")]), "dist.all_reduce(loss)");
    assert_eq!(line(&[own, older]), "dist.all_reduce(loss)");
    assert_eq!(line(&[older, own]), "dist.all_reduce(loss)");
    assert_eq!(line(&[("job/other.py", "")]), "all_reduce(float32 [4])");
    let fault = read(&[("job/old/rank_1.json", "{}")]).expect_err("two folders").to_string();
    assert!(fault.ends_with("it has dumps in `job` and `job/old`: give one folder"), "{fault}");
    assert!(files::read(&[("job/train.py".to_owned(), Vec::new())]).is_err());
}

#[test]
fn without_stacks_there_is_no_place() {
    let ranks = [vec![call(1, "all_reduce", 4)], vec![]];
    let (source, found) = diagnostic(&explained(2, &ranks).findings[0], &Dumps::default());
    assert!(found.labels.is_empty() && source.name.is_empty());
    assert_eq!(found.notes[0], "all_reduce(float32 [4]): rank 0 waits here for rank 1");
}

#[test]
fn a_dictionary_without_records_is_a_dump_only_with_the_other_keys_of_one() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 2, &[vec![call(1, "all_reduce", 4)]]);
    let other = folder.path().join("rank_1.json");
    let read = |text: &str| {
        fs::write(&other, text).expect("a file");
        files::load(&[folder.path().to_owned()]).expect("dumps").skipped.len()
    };
    // The JSON of a recorder without records.
    assert_eq!(read(r#"{"version": "2.10", "pg_config": {}}"#), 0);
    assert_eq!(read(r#"{"version": "1.0", "hyperparameters": 3}"#), 1);
    assert_eq!(read(r#"{"version": "2.10", "pg_config": {}, "entries": 3}"#), 1);
}

/// A message that the program makes with a function of `torch.distributed`, at a line of `train.py`.
fn message(number: u32, name: &str, function: &str, line: u32) -> Value {
    let library = json!({"name": function, "filename": "torch/distributed/distributed_c10d.py", "line": 1});
    let program = json!({"name": "step", "filename": "train.py", "line": line});
    with(
        call(1, name, 4),
        &[("p2p_seq_id", json!(number)), ("is_p2p", json!(true)), ("frames", json!([library, program]))],
    )
}

#[test]
fn calls_that_agree_and_completed_are_no_shift() {
    // The root calls from two lines, the others from two other ones.
    let calls = |lines: [u32; 2], count: u32| -> Vec<Value> {
        let call = |seq: u32| at_line(call(seq, "broadcast", 4), lines[seq as usize % 2]);
        (1..=count).map(|seq| if seq < 9 { done(call(seq)) } else { call(seq) }).collect()
    };
    let report = explained(4, &[calls([1, 2], 9), calls([2, 1], 9), calls([2, 1], 9), calls([2, 1], 8)]);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0801"));
    assert_eq!(report.findings[0].ranks, [3]);
}

#[test]
fn the_end_of_a_batch_of_messages_is_no_collective() {
    let tp = |call: Value| with(call, &[("process_group", json!(["1", "tp"]))]);
    let world = || done(call(1, "all_reduce", 4));
    let end = with(call(1, "coalesced", 4), &[("p2p_seq_id", json!(1)), ("is_p2p", json!(true))]);
    let batch = || vec![message(1, "send 0->1", "batch_isend_irecv", 12), end.clone()];
    let ranks = [[vec![world(), tp(call(1, "all_gather", 4))], batch()].concat(), vec![world()]];
    let report = explained(2, &ranks);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0802"));
}

#[test]
fn two_ranks_that_both_send_first_wait_for_each_other() {
    let ranks = [[0, 1], [1, 0]].map(|[own, other]| {
        vec![
            message(1, &format!("send {own}->{other}"), "isend", 21),
            message(2, &format!("recv {own}<-{other}"), "irecv", 22),
        ]
    });
    let found = &explained(2, &ranks).findings[0];
    assert!(
        found.message.starts_with("ranks 0 and 1 wait for each other: rank 0 in isend"),
        "{}",
        found.message
    );
}

#[test]
fn messages_for_which_no_host_waits_show_no_hang() {
    // Each rank is about to receive.
    let ranks: Vec<Vec<Value>> = (0..4)
        .map(|rank| vec![message(1, &format!("send {rank}->{}", (rank + 1) % 4), "isend", 21)])
        .collect();
    let report = explained(4, &ranks);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0801"));
    // With `send`, the host waits.
    let ranks: Vec<Vec<Value>> = (0..4)
        .map(|rank| vec![message(1, &format!("send {rank}->{}", (rank + 1) % 4), "send", 21)])
        .collect();
    assert_eq!(explained(4, &ranks).findings[0].code.text(), "E0803");
}

#[test]
fn the_root_of_a_broadcast_may_be_done_first() {
    let ranks =
        [vec![done(call(1, "broadcast", 4))], vec![call(1, "broadcast", 4)], vec![call(1, "broadcast", 4)]];
    let report = explained(3, &ranks);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0802"));
}

#[test]
fn a_group_of_calls_that_the_ring_buffer_cut_is_not_compared() {
    let part = |name: &str, elements| at_line(call(1, name, elements), 11);
    let end = || at_line(done(call(1, "coalesced", 4)), 11);
    let whole = || vec![part("all_gather", 8), part("all_gather", 16), end(), call(2, "all_reduce", 4)];
    let cut = vec![with(part("all_gather", 16), &[("record_id", json!(1))]), end()];
    let report = explained(4, &[whole(), whole(), whole(), cut]);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0801"));
}

#[test]
fn a_group_of_calls_that_is_being_issued_is_not_compared() {
    let part = |elements| call(1, "all_gather", elements);
    let whole = || vec![part(8), part(16), call(1, "coalesced", 4)];
    let report = explained(3, &[whole(), whole(), vec![part(8)]]);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0801"));
    assert_eq!(report.findings[0].ranks, [2]);
}

#[test]
fn a_call_that_is_seldom_made_is_not_accused() {
    let step = |seq| at_line(call(seq, "all_reduce", 4), 10);
    let steps = || (1..5).map(|seq| done(step(seq)));
    let ranks = [
        steps().chain([at_line(call(5, "barrier", 4), 30)]).collect(),
        steps().chain([step(5)]).collect::<Vec<_>>(),
    ];
    let report = explained(2, &ranks);
    assert!(report.is_hang && report.findings[0].ranks.is_empty(), "{:?}", report.findings[0]);
}

#[test]
fn one_group_may_have_several_descriptions() {
    let of =
        |description: &str| with(call(1, "all_reduce", 4), &[("process_group", json!(["0", description]))]);
    let report = explained(2, &[vec![of("default_pg")], vec![of("undefined")]]);
    assert_eq!((report.is_hang, report.findings[0].code.text()), (false, "W0802"));
}

#[test]
fn only_dumps_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), 1, &[vec![done(call(1, "all_reduce", 4))]]);
    fs::write(folder.path().join("config_7.json"), r#"{"layers": 7}"#).expect("a file");
    let dumps = files::load(&[folder.path().to_owned()]).expect("dumps");
    assert_eq!((report(&dumps).world, dumps.skipped.len()), (1, 0));
    let fault = files::load(&["/dev/null".into()]).expect_err("an error").to_string();
    assert!(fault.contains("neither a file nor a folder"), "{fault}");
}

#[test]
fn a_line_break_in_a_name_does_not_end_a_line() {
    let frame = json!([{"name": "step", "filename": "a\nb.py", "line": 3}]);
    let ranks = [vec![with(call(1, "all_reduce", 4), &[("frames", frame)])], vec![call(1, "broadcast", 4)]];
    let dumps = load(2, &ranks);
    assert!(!report(&dumps).verdict().contains('\n'));
    let program = hir_hang::program::program(&dumps);
    assert!(program.contains("// all_reduce(float32 [4]), a\\nb.py:3\n"), "{program}");
}

#[test]
fn a_dump_of_another_job_is_not_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let calls = |name: &str| vec![done(call(1, "all_reduce", 4)), call(2, name, 4)];
    write(folder.path(), 2, &[calls("all_reduce"), calls("all_reduce")]);
    // Other calls of the same rank.
    let other = json!({"version": "2.10", "pg_config": {}, "entries": [with(call(1, "barrier", 4), &[("time_created_ns", json!(5))])]});
    fs::write(folder.path().join("copy_rank_1.json"), other.to_string()).expect("a file");
    let dumps = files::load(&[folder.path().to_owned()]).expect("dumps");
    assert_eq!(dumps.skipped.len(), 1);
    assert!(dumps.skipped[0].why.ends_with("one of them is of another job"), "{}", dumps.skipped[0].why);
    let found = &report(&dumps).findings[0];
    assert!(
        found.message.starts_with("rank 1 has no dump that can be read, and rank 0 waits"),
        "{}",
        found.message
    );
    // A rank that is no member of its world.
    fs::remove_file(folder.path().join("copy_rank_1.json")).expect("a file");
    fs::rename(folder.path().join("rank_1.json"), folder.path().join("rank_5.json")).expect("a file");
    let dumps = files::load(&[folder.path().to_owned()]).expect("dumps");
    assert_eq!((dumps.records.ranks.len(), dumps.skipped[0].rank), (1, 5));
}

#[test]
fn places_of_a_root_and_of_the_others_are_both_written() {
    let ranks = [3, 5, 5, 5].map(|line| vec![at_line(call(1, "gather", 4), line)]);
    let mut ranks = ranks.to_vec();
    ranks[3] = vec![at_line(call(1, "barrier", 4), 9)];
    let found = &explained(4, &ranks).findings[0];
    assert_eq!(
        found.message,
        "rank 3 skips the gather (train.py:3 and train.py:5) that ranks 0 to 2 call, and goes on to the barrier (train.py:9)"
    );
    let lines: Vec<u32> = found.labels.iter().filter_map(|it| Some(it.site.as_ref()?.line)).collect();
    assert_eq!(lines, [9, 3, 5]);
}

#[test]
fn one_call_with_another_size_is_no_call_too_many() {
    // What follows is the same, so that it also agrees if it is shifted.
    let calls =
        |elements| vec![at_line(call(1, "all_reduce", elements), 4), at_line(call(2, "all_reduce", 8), 4)];
    let found = &explained(2, &[calls(8), calls(9)]).findings[0];
    assert_eq!(
        (found.code.text(), found.message.as_str()),
        ("E0802", "rank 1 passes float32 [9] to all_reduce (train.py:4), rank 0 passes float32 [8]")
    );
    // Two functions of one kind, at two places.
    let save = at_line(call(1, "all_gather", 4), 33);
    let train = at_line(call(1, "_all_gather_base", 512), 20);
    assert_eq!(explained(2, &[vec![save], vec![train]]).findings[0].code.text(), "E0801");
}

#[test]
fn sizes_of_an_all_to_all_that_differ_do_not_agree() {
    let ranks = [8, 8, 9].map(|elements| {
        vec![with(call(1, "all_to_all", elements), &[("output_sizes", json!([[elements]]))])]
    });
    let found = &explained(3, &ranks).findings[0];
    assert_eq!(
        found.message,
        "all members have called all_to_all (#1 of group 0), their sizes are not the same, which splits may explain, and no member has completed it"
    );
    assert_eq!(found.labels.len(), 2);
}

#[test]
fn a_call_that_one_rank_makes_may_be_one_too_many() {
    let usual = || vec![done(call(1, "all_reduce", 4))];
    let more = [usual(), vec![call(2, "all_reduce", 4)]].concat();
    let found = &explained(3, &[usual(), usual(), more.clone()]).findings[0];
    assert!(found.ranks.is_empty());
    assert_eq!(
        found.message,
        "rank 2 waits in all_reduce (#2 of group 0), and ranks 0 and 1 have not come to it: they are late, finished, stopped or dead, or rank 2 makes one call too many; all calls of the group before it agree"
    );
    let found = &explained(3, &[usual(), more.clone(), more]).findings[0];
    assert_eq!(found.ranks, [0]);
}

#[test]
fn a_rank_that_leaves_a_loop_for_the_first_time_is_not_accused() {
    // Rank 1 makes a round more; the call behind the loop looks like one of the loop.
    let round = |seq: u32| [call(seq, "all_reduce", 8), call(seq + 1, "all_reduce", 4)].map(done).to_vec();
    let rounds = || [round(1), round(3)].concat();
    let ranks = [
        [rounds(), vec![call(5, "all_reduce", 4)]].concat(),
        [rounds(), vec![call(5, "all_reduce", 8)]].concat(),
    ];
    let found = &explained(2, &ranks).findings[0];
    assert!(found.ranks.is_empty(), "{found:#?}");
}

#[test]
fn a_rank_of_one_more_collective_than_the_others_of_its_kind_is_named() {
    // The ranks 0 and 1, and the ranks 2 and 3, are groups of one kind. Rank 0 makes a call of its pair twice.
    let pair = |rank: u32, seq: u32| {
        let name = (1 + rank / 2).to_string();
        at_line(with(call(seq, "all_reduce", 4), &[("process_group", json!([name, "tp"]))]), 7)
    };
    let world = |seq: u32| at_line(call(seq, "all_reduce", 4), 9);
    let round = |rank: u32, seq: u32| vec![done(pair(rank, seq)), done(world(seq))];
    let usual = |rank| [round(rank, 1), vec![done(pair(rank, 2)), world(2)]].concat();
    let more = [round(0, 1), vec![done(pair(0, 2)), pair(0, 3)]].concat();
    let found = &explained(4, &[more, usual(1), usual(2), usual(3)]).findings[0];
    assert_eq!(found.ranks, [0], "{found:#?}");
    assert!(found.notes.iter().any(|it| it.starts_with("rank 0 is named because ")), "{found:#?}");
}
