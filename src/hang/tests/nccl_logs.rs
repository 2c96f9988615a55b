//! What NCCL says: lines of `NCCL_DEBUG=INFO`, and answers of RAS as text and as JSON.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use hir_hang::{
    files,
    report::{Report, report},
};
use serde_json::json;

fn explained(files: &[(&str, String)]) -> Report {
    let files: Vec<(String, Vec<u8>)> =
        files.iter().map(|(name, text)| ((*name).to_owned(), text.clone().into_bytes())).collect();
    let dumps = files::read(&files).expect("answers");
    assert!(dumps.skipped.is_empty(), "{:?}", dumps.skipped);
    report(&dumps)
}

/// The code, the ranks and whether it is a hang.
fn found(report: &Report) -> (&str, &[u32], bool) {
    let first = &report.findings[0];
    (first.code.text(), &first.ranks, report.is_hang)
}

/// An answer of RAS in the form of the document of NCCL 2.24.
fn text(last: u32) -> String {
    let behind: String = [0, 2, 7]
        .map(|it| format!("  Rank {it} -- GPU {it} managed by process 48307{it} on node 172.16.64.210\n"))
        .concat();
    format!(
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n    #  in group  per comm  per node  per comm  in group\n    \
         0         1         1         8         8         8   RUNNING  MISMATCH\n\nWarnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n  \
         Communicator ranks have different collective operation counts\n  5 ranks have launched up to operation {last}\n  3 ranks have launched up to operation {}\n{behind}",
        last - 1
    )
}

#[test]
fn one_difference_is_no_hang_and_two_without_a_change_are() {
    let once = explained(&[("ras_1.txt", text(6650))]);
    assert_eq!(found(&once), ("W0801", &[0, 2, 7][..], false));
    assert!(once.findings[0].message.contains("#6650 of group 27a079b828ff1a75"), "{}", once.verdict());
    let twice = explained(&[("ras_1.txt", text(6650)), ("ras_2.txt", text(6650))]);
    assert_eq!(found(&twice), ("W0801", &[0, 2, 7][..], true));
    let moved = explained(&[("ras_1.txt", text(6650)), ("ras_2.txt", text(6700))]);
    assert!(!moved.is_hang);
}

#[test]
fn newer_text_names_the_kind_and_a_single_rank() {
    let text = "#0-0 (78db921d1c117b4a) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n  7 ranks have launched up to operation 64\n  \
                Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1\n";
    let once = explained(&[("ras.log", text.to_owned())]);
    assert_eq!(found(&once), ("W0801", &[7][..], false));
    assert!(once.findings[0].message.contains("ranks 0 to 6 wait in all_reduce"), "{}", once.verdict());
}

/// An answer of RAS as JSON, of NCCL 2.28.7 and later.
fn answer(counts: &[u32], missing: &[usize]) -> String {
    let rank = |rank: usize| json!({"rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank});
    let ranks = (0..counts.len()).filter(|it| !missing.contains(it)).map(|it| {
        let mut rank = rank(it);
        rank["status"] = json!({"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false});
        rank["collective_counts"] = json!({"Broadcast": 1, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": counts[it]});
        rank
    });
    let ranks: Vec<_> = ranks.collect();
    let missing: Vec<_> = missing
        .iter()
        .map(|it| {
            let mut rank = rank(*it);
            rank["status"] = json!({"unresponsive": true, "considered_dead": true});
            rank
        })
        .collect();
    json!({"nccl_version": "2.29.1", "communicators_count": 1, "communicators": [{
        "hash": "0xae94423cfbb2ef4a", "size": counts.len(), "ranks": ranks, "missing_ranks": missing,
    }]})
    .to_string()
}

#[test]
fn json_has_the_counts_of_all_ranks_and_those_that_do_not_answer() {
    let once = explained(&[("ras_1.json", format!("OK\n{}", answer(&[9, 8, 9, 9], &[])))]);
    assert_eq!(found(&once), ("W0801", &[1][..], false));
    let twice = [("ras_1.json", answer(&[9, 8, 9, 9], &[])), ("ras_2.json", answer(&[9, 8, 9, 9], &[]))];
    assert_eq!(found(&explained(&twice)), ("W0801", &[1][..], true));
    let dead = explained(&[("ras_1.json", answer(&[9, 9, 9, 9], &[3]))]);
    assert_eq!(found(&dead), ("E0806", &[3][..], true));
    let even = explained(&[("ras_1.json", answer(&[9, 9, 9, 9], &[]))]);
    assert!(!even.is_hang && even.findings.is_empty(), "{}", even.verdict());
}

/// Lines of one rank of four: its communicator, and the last call if it has made one.
fn lines(rank: usize, end: &str, last: Option<(&str, u32)>) -> String {
    let head = format!("node{}:10{rank}:20{rank} [{rank}] NCCL INFO", rank / 2);
    let about = format!(
        "{head} ncclCommInitRankConfig comm 0x5{rank} rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId 1000 commId 0x27a079b828ff1a75 - Init"
    );
    let ended = if end == "COMPLETE" { format!("{about} COMPLETE\n") } else { String::new() };
    let call = last.map_or(String::new(), |(name, number)| {
        format!("{head} {name}: opCount {number:x} sendbuff 0x7 recvbuff 0x7 acc (nil) count 64 datatype 7 op 0 root 0 comm 0x5{rank} [nranks=4] stream 0x1\n")
    });
    format!("{about} START\n{ended}{call}")
}

#[test]
fn lines_of_info_join_communicators_by_their_hash() {
    let all =
        |last: [Option<(&str, u32)>; 4]| (0..4).map(|it| lines(it, "COMPLETE", last[it])).collect::<String>();
    let same = Some(("AllReduce", 61));
    let late = explained(&[("job.log", all([same, same, Some(("AllReduce", 60)), same]))]);
    assert_eq!(found(&late), ("W0801", &[2][..], false));
    let other = explained(&[("job.log", all([same, Some(("Broadcast", 61)), same, same]))]);
    assert_eq!(found(&other), ("E0801", &[1][..], true));
    let waits = (0..3).map(|it| lines(it, "", None)).collect::<String>();
    let absent = explained(&[("job.log", waits)]);
    assert_eq!(found(&absent), ("E0806", &[3][..], true));
    assert!(absent.findings[0].message.contains("wait in its initialization"), "{}", absent.verdict());
}

#[test]
fn each_kind_of_nccl_is_a_kind_of_a_dump() {
    let kinds = [
        ("AllReduce", "all_reduce"),
        ("Broadcast", "broadcast"),
        ("Reduce", "reduce"),
        ("AllGather", "all_gather"),
        ("ReduceScatter", "reduce_scatter"),
        ("AlltoAll", "all_to_all"),
        ("Gather", "gather"),
        ("Scatter", "scatter"),
    ];
    for (nccl, dump) in kinds {
        let text =
            (0..4).map(|it| lines(it, "COMPLETE", Some((nccl, if it == 2 { 60 } else { 61 })))).collect();
        let late = explained(&[("job.log", text)]);
        assert_eq!(found(&late), ("W0801", &[2][..], false), "{nccl}");
        assert!(late.findings[0].message.contains(&format!("wait in {dump} (#")), "{}", late.verdict());
    }
    let reduced = |it: usize| Some((if it == 1 { "Reduce" } else { "ReduceScatter" }, 61));
    let text = (0..4).map(|it| lines(it, "COMPLETE", reduced(it))).collect();
    assert_eq!(found(&explained(&[("job.log", text)])), ("E0801", &[1][..], true));
}

#[test]
fn calls_of_a_communicator_with_messages_are_not_compared() {
    let call = |it: usize| ["Send", "Recv"].get(it).map_or(("AllReduce", 60), |name| (*name, 61));
    let other = |it| lines(it, "COMPLETE", Some(call(it))).replace("0x5", "0x6").replace("0x27a0", "0x27b0");
    let text = (0..4).map(|it| lines(it, "COMPLETE", Some(("AllReduce", 60))) + &other(it)).collect();
    let found = explained(&[("job.log", text)]);
    let (others, verdict) = (found.findings.len() - 1, found.verdict());
    assert!(!found.is_hang && others == 0 && verdict.contains("group 27a079b828ff1a75"), "{verdict}");
}
