//! Small jobs in which only the order of the device, the time, or what is left out tells the cause.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use hir_hang::{
    files,
    report::{Report, report},
};
use serde_json::{Value, json};

/// A group: its name, description and members.
type Group = (&'static str, &'static str, &'static [u32]);

const TP: [Group; 2] = [("1", "tp", &[0, 1]), ("2", "tp", &[2, 3])];
const DP: [Group; 2] = [("3", "dp", &[0, 2]), ("4", "dp", &[1, 3])];

/// A call of a group, at a line, issued at a time in nanoseconds.
fn call(group: Group, name: &str, seq: u32, line: u32, is_done: bool, at: i64) -> Value {
    json!({
        "process_group": [group.0, group.1], "collective_seq_id": seq, "p2p_seq_id": 0, "profiling_name": format!("nccl:{name}"),
        "state": if is_done { "completed" } else { "scheduled" }, "retired": is_done, "time_created_ns": at,
        "time_discovered_completed_ns": if is_done { json!(at + 1000) } else { Value::Null },
        "input_sizes": [[4]], "input_dtypes": ["Float"],
        "frames": [{"name": "step", "filename": "train.py", "line": line}],
    })
}

fn explained(groups: impl Fn(u32) -> Vec<Group>, ranks: Vec<(Vec<Value>, Value)>) -> Report {
    let dumps = ranks.into_iter().enumerate().map(|(rank, (mut entries, status))| {
        for (at, entry) in entries.iter_mut().enumerate().filter(|it| it.1.get("record_id").is_none()) {
            entry["record_id"] = json!(at);
        }
        let config = groups(rank as u32).into_iter().map(|(name, desc, ranks)| {
            (name.to_owned(), json!({"name": name, "desc": desc, "ranks": ranks}))
        });
        let config: serde_json::Map<String, Value> = config.collect();
        let dump = json!({"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries});
        (format!("rank_{rank}.json"), dump.to_string().into_bytes())
    });
    report(&files::read(&dumps.collect::<Vec<_>>()).expect("dumps"))
}

#[test]
fn what_waits_behind_another_open_call_is_no_cause() {
    // The tp call of ranks 2 and 3 does not move; the clock of their host is 5 ms ahead.
    let rank = |rank: u32| {
        let (tp, dp) = (TP[rank as usize / 2], DP[rank as usize % 2]);
        let (is_done, clock) = (rank < 2, i64::from(rank / 2) * 5_000_000);
        let tp_call = |seq, is_done, at| call(tp, "all_reduce", seq, 7, is_done, at + clock);
        let dp_call = |seq, is_done, at| call(dp, "all_reduce", seq, 8, is_done, at + clock);
        let calls = vec![
            tp_call(1, true, 1000),
            dp_call(1, true, 2000),
            tp_call(2, is_done, 3000),
            dp_call(2, false, 4000),
        ];
        (calls, json!({}))
    };
    let found = explained(|it| vec![TP[it as usize / 2], DP[it as usize % 2]], (0..4).map(rank).collect());
    let label = found.findings[0].labels[0].site.as_ref().map(|it| it.line);
    assert_eq!((found.findings[0].code.text(), label), ("W0802", Some(7)));
}

#[test]
fn a_dump_whose_calls_completed_before_others_made_them_is_of_an_earlier_start() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2]);
    let rank = |rank: u32| {
        let begin = if rank == 2 { 1_000_000_000 } else { 301_000_000_000 };
        let calls = (1..4).map(|seq| {
            call(WORLD, "all_reduce", seq, 4, rank == 2 || seq < 3, begin + i64::from(seq) * 1000)
        });
        (calls.collect(), json!({}))
    };
    let found = explained(|_| vec![WORLD], (0..3).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0806", &[2][..]));
}

#[test]
fn groups_that_ranks_make_in_different_orders_are_named() {
    let of = |rank: u32| -> Vec<Group> {
        match rank {
            0 => vec![("1", "tp", &[0, 1]), ("2", "cp", &[0, 1])],
            _ => vec![("1", "cp", &[0, 1]), ("2", "tp", &[0, 1])],
        }
    };
    let tp = |rank: usize| of(rank as u32)[rank];
    let ranks = (0..2).map(|rank| (vec![call(tp(rank), "all_reduce", 1, 10, false, 1000)], json!({})));
    let found = explained(of, ranks.collect());
    assert_eq!(found.findings[0].code.text(), "E0805");
    assert_eq!(
        found.findings[0].message,
        "ranks 0 and 1 have made groups 1 and 2 in different orders: group 1 is `cp` on rank 1, and `tp` on rank 0"
    );
}

#[test]
fn ranks_without_active_calls_are_late() {
    // The dumps hold active calls only: what ranks 1 and 3 have completed is left out. Groups of ranks 6 and 7 have the number of that of the others, and
    // the description of another one.
    const EXPERTS: Group = ("7", "ep", &[0, 1, 2, 3, 4, 5]);
    const DATA: [Group; 2] = [("8", "dp", &[0, 1, 2, 3, 4, 5]), ("9", "dp", &[6, 7])];
    let rank = |rank: u32| {
        let is_late = rank == 1 || rank == 3;
        let last = if is_late { 264 } else { 265 };
        let (group, name) = if rank < 6 { (EXPERTS, "all_to_all") } else { (DATA[1], "all_gather") };
        let mut open = call(group, name, 265, 9, false, 1000);
        (open["record_id"], open["pg_id"]) = (json!(900), json!(4));
        let status = json!({"4": {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": 264}});
        (if is_late { Vec::new() } else { vec![open] }, status)
    };
    let groups = |rank| if rank < 6 { vec![EXPERTS, DATA[0]] } else { vec![DATA[1]] };
    let found = explained(groups, (0..8).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("W0801", &[1, 3][..]));
}

/// Three ranks have started a call, and rank 1 has only issued it, behind calls that have completed.
#[test]
fn a_rank_on_which_a_call_has_not_started_is_named() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2, 3]);
    let rank = |rank: u32| {
        let mut calls: Vec<Value> =
            (1..4).map(|seq| call(WORLD, "all_reduce", seq, 4, seq < 3, i64::from(seq) * 1000)).collect();
        for it in calls.iter_mut().take(if rank == 1 { 2 } else { 3 }) {
            it["time_discovered_started_ns"] = json!(it["time_created_ns"].as_i64().unwrap_or(0) + 1);
        }
        (calls, json!({}))
    };
    let found = explained(|_| vec![WORLD], (0..4).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("W0802", &[1][..]));
}

/// A collective that completes at its time-out without a member was aborted.
#[test]
fn a_call_that_an_abort_has_completed_is_open() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2]);
    let rank = |rank: u32| {
        let count = if rank == 2 { 3 } else { 4 };
        let mut calls: Vec<Value> =
            (1..count).map(|seq| call(WORLD, "all_reduce", seq, 6, true, i64::from(seq) * 1000)).collect();
        calls.iter_mut().for_each(|it| it["timeout_ms"] = json!(600_000));
        if let Some(it) = calls.get_mut(2) {
            it["time_discovered_completed_ns"] = json!(600_000_010_000_i64);
        }
        (calls, json!({}))
    };
    let found = explained(|_| vec![WORLD], (0..3).map(rank).collect());
    assert!(found.is_hang, "{}", found.verdict());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("W0801", &[2][..]));
}

/// Of a pipeline, the oldest message that has not moved is the place, and not a later one of a clock that is behind.
#[test]
fn the_oldest_message_that_has_not_moved_is_the_place() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2]);
    let message = |name: &str, number: u32, line: u32, is_done: bool, at: i64| {
        let mut it = call(WORLD, name, 0, line, is_done, at);
        (it["p2p_seq_id"], it["is_p2p"]) = (json!(number), json!(true));
        it
    };
    let rank = |rank: u32| {
        let calls = (1..6).map(|number: u32| {
            let at = i64::from(number) * 1000 - i64::from(rank == 2) * 1_000_000;
            match rank {
                0 => message("send 0->1", number, 9, number < 5, at),
                1 if number % 2 == 1 => message("recv 1<-0", number, 8, number < 4, at),
                1 => message("send 1->2", number, 9, number < 4, at),
                _ => message("recv 2<-1", number, 8, number < 2, at),
            }
        });
        (calls.collect(), json!({}))
    };
    let found = explained(|_| vec![WORLD], (0..3).map(rank).collect());
    let message = &found.findings[0].message;
    assert!(message.starts_with("both ranks have made their side of send to rank 2"), "{message}");
    assert!(found.findings[0].notes.contains(&"this is #2 from rank 1 to rank 2 in group 0".to_owned()));
}

/// Ring buffers have lost the messages of ranks 0 to 3, but `pg_status` counts them: rank 2 has made one less.
#[test]
fn a_rank_of_one_operation_less_than_its_like_is_named() {
    const STAGES: [Group; 2] = [("1", "tp", &[0, 1, 2, 3]), ("2", "tp", &[4, 5, 6, 7])];
    const PIPELINES: [Group; 4] =
        [("3", "pp", &[0, 4]), ("4", "pp", &[1, 5]), ("5", "pp", &[2, 6]), ("6", "pp", &[3, 7])];
    let of = |rank: u32| [STAGES[rank as usize / 4], PIPELINES[rank as usize % 4]];
    let rank = |rank: u32| {
        let [stage, pipeline] = of(rank);
        let mut calls = vec![call(pipeline, "all_gather", 21, 6, true, 900)];
        calls.extend((45..49).map(|seq| call(stage, "all_reduce", seq, 7, seq < 46, i64::from(seq) * 1000)));
        for (at, it) in calls.iter_mut().enumerate() {
            (it["record_id"], it["pg_id"]) = (json!(500 + at), json!(if at == 0 { 2 } else { 1 }));
        }
        let count = if rank == 2 { 20 } else { 21 };
        let status = |last: u32| json!({"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": last});
        let begin = if rank < 4 { 1 } else { 0 };
        (calls.split_off(begin), json!({"1": status(48), "2": status(count)}))
    };
    let found = explained(|rank| of(rank).to_vec(), (0..8).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0801", &[2][..]));
    let message = &found.findings[0].message;
    assert!(
        message.starts_with("rank 2 skips 1 call in groups of the kind `pp`, compared with ranks 0, 1 and 3"),
        "{message}"
    );
}

/// Gaps in sequence numbers cost nothing.
#[test]
fn gaps_of_sequence_numbers_take_no_time() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2]);
    let rank = |rank: u32| {
        let calls = (1..12).map(|at: u32| {
            let name = if rank == 2 && at == 9 { "broadcast" } else { "all_reduce" };
            call(WORLD, name, if at < 9 { at } else { 550_000_000 + at }, 4, at < 9, i64::from(at) * 1000)
        });
        (calls.collect(), json!({}))
    };
    let begin = std::time::Instant::now();
    let found = explained(|_| vec![WORLD], (0..3).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0801", &[2][..]));
    assert!(begin.elapsed().as_secs() < 2, "it took {:?}", begin.elapsed());
}

#[test]
fn a_rank_that_has_not_completed_what_the_others_are_past_is_named() {
    // Of active calls, the all-gather of rank 0 is open; rank 1 has completed later ones of the pair, which need rank 0.
    let rank = |rank: u32| {
        let seq = if rank == 0 { 6 } else { 18 };
        let mut open = call(TP[0], "_all_gather_base", seq, 9, false, 1000);
        (open["record_id"], open["pg_id"]) = (json!(900 + seq), json!(5));
        let status = json!({"5": {"last_enqueued_collective": 20, "last_started_collective": -1, "last_completed_collective": seq - 1}});
        (vec![open], status)
    };
    let found = explained(|_| vec![TP[0]], (0..2).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("W0802", &[0][..]));
}

#[test]
fn a_rank_that_waits_alone_in_a_call_that_most_others_pass_makes_one_more() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2]);
    const ALL: Group = ("5", "cp", &[0, 1, 2]);
    let rank = |rank: u32| {
        let mut calls =
            vec![call(ALL, "all_reduce", 1, 5, true, 1000), call(WORLD, "all_reduce", 1, 6, true, 2000)];
        calls.extend((rank == 2).then(|| call(ALL, "all_reduce", 2, 5, false, 3000)));
        calls.push(call(WORLD, "all_reduce", 2, 6, false, 4000));
        (calls, json!({}))
    };
    let found = explained(|_| vec![WORLD, ALL], (0..3).map(rank).collect());
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0801", &[2][..]));
    assert!(
        found.findings[0].message.contains("rank 2 makes a call that ranks 0 and 1 do not make"),
        "{}",
        found.findings[0].message
    );
}

#[test]
fn the_order_of_lines_tells_a_skipped_call_from_one_more() {
    const ALL: Group = ("0", "default_pg", &[0, 1, 2]);
    // Lines 5, 6 and 8 are a loop, and the records those of its first round.
    let calls = |lines: &[u32]| {
        let last = lines.len() as u32;
        let name = |line| {
            if line == 6 {
                "all_gather"
            } else if line == 8 {
                "broadcast"
            } else {
                "all_reduce"
            }
        };
        let call =
            |(seq, line): (u32, &u32)| call(ALL, name(*line), seq, *line, seq < last, i64::from(seq) * 1000);
        ((1..).zip(lines).map(call).collect::<Vec<_>>(), json!({}))
    };
    for (mine, theirs, message) in [
        (&[6][..], &[5][..], "rank 1 skips the all_reduce (train.py:5) that ranks 0 and 2 call"),
        (&[5, 6, 5], &[5, 6, 8], "rank 1 skips the broadcast (train.py:8) that ranks 0 and 2 call"),
        (&[5, 6, 7], &[5, 6, 8], "rank 1 calls all_reduce (train.py:7) where ranks 0 and 2 call broadcast"),
    ] {
        let found = explained(|_| vec![ALL], vec![calls(theirs), calls(mine), calls(theirs)]);
        assert!(found.findings[0].message.starts_with(message), "{}", found.findings[0].message);
    }
}

#[test]
fn a_rank_that_drops_a_micro_batch_of_the_second_round_is_named() {
    const WORLD: Group = ("0", "default_pg", &[0, 1, 2, 3]);
    // The calls of the second round that have completed: rank 2 drops one of six micro-batches, and all hosts are ahead.
    let done = [6, 11, 10, 5];
    let rank = |rank: u32| {
        let mut calls: Vec<Value> = Vec::new();
        let (mut messages, mut first) = (0, 0);
        for round in 0..2 {
            let dropped = usize::from(rank == 2 && round == 1);
            let message = |is_send: bool, peer: u32| {
                if is_send { format!("send {rank}->{peer}") } else { format!("recv {rank}<-{peer}") }
            };
            let forward: Vec<String> = [
                (rank > 0).then(|| message(false, rank.wrapping_sub(1))),
                (rank < 3).then(|| message(true, rank + 1)),
            ]
            .into_iter()
            .flatten()
            .collect();
            let backward: Vec<String> = [
                (rank < 3).then(|| message(false, rank + 1)),
                (rank > 0).then(|| message(true, rank.wrapping_sub(1))),
            ]
            .into_iter()
            .flatten()
            .collect();
            let names = [vec![forward; 6 - dropped], vec![backward; 6 - dropped]].concat().concat();
            for name in names {
                messages += 1;
                let is_done = round == 0 || calls.len() < first + done[rank as usize];
                let mut message = call(WORLD, &name, round, 6, is_done, calls.len() as i64 * 1000);
                (message["p2p_seq_id"], message["is_p2p"]) = (json!(messages), json!(true));
                calls.push(message);
            }
            calls.push(call(WORLD, "all_reduce", round + 1, 17, round == 0, calls.len() as i64 * 1000));
            first = calls.len();
        }
        (calls, json!({}))
    };
    let found = explained(|_| vec![WORLD], (0..4).map(rank).collect());
    let first = &found.findings[0];
    assert_eq!((first.code.text(), first.ranks.as_slice()), ("E0804", &[2][..]), "{}", found.verdict());
}

#[test]
fn batches_of_a_group_run_one_after_the_other() {
    const PIPE: [Group; 2] = [("1", "pp", &[0, 2]), ("2", "pp", &[1, 3])];
    // Rank 1 receives the gradient before it sends its activation; both of its batches are posted.
    let rank = |rank: u32| {
        let group = PIPE[rank as usize % 2];
        let (own, peer) = (rank / 2, 1 - rank / 2);
        let batch = |is_send: bool, number: u32, line: u32, is_done: bool| {
            let name = if is_send { format!("send {own}->{peer}") } else { format!("recv {own}<-{peer}") };
            [name, "coalesced".to_owned()].map(|name| {
                let is_end = name == "coalesced";
                let mut it = call(group, &name, 0, line, is_done && is_end, i64::from(number) * 1000);
                (it["p2p_seq_id"], it["is_p2p"]) = (json!(number), json!(true));
                it["frames"] = json!([
                    {"name": "batch_isend_irecv", "filename": "/v/site-packages/torch/distributed/distributed_c10d.py", "line": 2900},
                    {"name": "step", "filename": "train.py", "line": line},
                ]);
                it
            })
        };
        let is_done = rank.is_multiple_of(2);
        let (first, second) = if own == 0 { ((true, 31), (false, 33)) } else { ((false, 30), (true, 34)) };
        let (first, second) = if rank == 1 { (second, first) } else { (first, second) };
        let warm = |number| batch(own == 0, number, 20, true);
        let rest = [batch(first.0, 3, first.1, is_done), batch(second.0, 4, second.1, is_done)];
        let batches = [[warm(1), warm(2)], rest].concat();
        (batches.concat(), json!({}))
    };
    let found = explained(|it| vec![PIPE[it as usize % 2]], (0..4).map(rank).collect());
    let first = &found.findings[0];
    assert_eq!((found.is_hang, first.ranks.as_slice()), (true, &[1][..]), "{}", found.verdict());
}
