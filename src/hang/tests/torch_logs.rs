//! Logs of PyTorch's watchdog, of versions without and with numbers, ranks of the world and stacks.

#![allow(clippy::expect_used, reason = "a failed step ends the test")]

use hir_hang::{
    files,
    report::{Report, report},
};

fn explained(text: &str) -> Report {
    let files = [("job.log".to_owned(), text.as_bytes().to_vec())];
    report(&files::read(&files).expect("a log"))
}

/// The line of a call that timed out, of version 2.6.
fn timed_out(rank: u32, number: u32, elements: u32) -> String {
    format!(
        "[rank{rank}]:[E1128 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number}, \
         OpType=ALLREDUCE, NumelIn={elements}, NumelOut={elements}, Timeout(ms)=600000) ran for 600027 milliseconds before timing out.\n"
    )
}

#[test]
fn the_rank_of_another_size_is_named_with_the_line_of_the_stack() {
    let stack = "[rank0]:[E1128 ProcessGroupNCCL.cpp:1834] [PG ID 0 PG GUID 0(default_pg) Rank 0] Stack trace of the failed collective: \n\
                 #0 all_reduce from /venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:2501\n\
                 #1 step from /job/train.py:13\n";
    let text = [timed_out(0, 61, 1), stack.to_owned(), timed_out(1, 61, 1), timed_out(2, 61, 1024)].concat();
    let found = explained(&text);
    assert!(found.is_hang);
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0802", &[2][..]));
    let site = found.findings[0].labels.iter().find_map(|it| it.site.as_ref()).expect("a place");
    assert_eq!((site.file.as_str(), site.line), ("/job/train.py", 13));
}

#[test]
fn a_rank_that_has_enqueued_less_is_late() {
    let signal = "[rank2]:[E ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective timeout from rank 0 \
                  and we will try our best to dump the debug info. Last enqueued NCCL work: 60, last completed NCCL work: 60.\n";
    let found = explained(&[timed_out(0, 61, 1), timed_out(1, 61, 1), signal.to_owned()].concat());
    assert_eq!((found.is_hang, found.findings[0].code.text()), (true, "W0801"));
    assert_eq!(found.findings[0].ranks, [2]);
    assert!(
        found.notes.iter().any(|it| it.contains("\"last enqueued\" is set when NCCL's call has returned"))
    );
}

#[test]
fn old_lines_have_ranks_of_the_group_and_no_numbers() {
    let line = |rank: u32, what: &str| {
        format!(
            "[E ProcessGroupNCCL.cpp:587] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL({what}, Timeout(ms)=1800000) ran for 1803170 milliseconds before timing out.\n"
        )
    };
    let all =
        [line(0, "OpType=ALLREDUCE"), line(1, "OpType=BROADCAST"), line(2, "OpType=ALLREDUCE")].concat();
    let found = explained(&all);
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0801", &[1][..]));
    let sized = "OpType=ALLREDUCE, TensorShape=[4, 8]";
    let found = explained(
        &[line(0, sized), line(1, sized), line(2, "OpType=ALLREDUCE, TensorShape=[4, 9]")].concat(),
    );
    assert_eq!((found.findings[0].code.text(), found.findings[0].ranks.as_slice()), ("E0802", &[2][..]));
}

#[test]
fn a_message_of_another_group_is_no_collective() {
    let text = "[rank1]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=SEND, NumelIn=4, NumelOut=4, Timeout(ms)=1000) ran for 1001 milliseconds before timing out.\n";
    let found = explained(text);
    assert_eq!((found.is_hang, found.findings[0].code.text(), found.records), (true, "E0808", 0));
    assert!(found.findings[0].message.ends_with("rank 1 in send"), "{}", found.findings[0].message);
}

#[test]
fn the_end_of_a_rank_is_told_beside_the_call_that_waits_for_it() {
    let traceback = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"/job/train.py\", line 7, in <module>\n[rank1]:     step()\n\
                     [rank1]:   File \"/venv/lib/python3.12/site-packages/torch/nn/f.py\", line 9, in f\n[rank1]: ValueError: no data\n";
    let report = "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)\n  traceback : Signal 9 (SIGKILL) received by PID 4711\n";
    let aborted = "  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 4711)\n";
    for (text, end) in [
        (traceback, "; rank 1 printed `ValueError: no data` (/job/train.py:7)"),
        (report, "; rank 1 ended with signal 9 (SIGKILL)"),
        (
            aborted,
            "no other member of the group is known, and no member has completed it: the records cannot show why",
        ),
    ] {
        let found = explained(&(timed_out(0, 61, 1) + text));
        assert!(found.is_hang && found.findings[0].message.ends_with(end), "{}", found.findings[0].message);
    }
}

#[test]
fn the_lines_of_all_versions_tell_the_last_call_of_a_rank() {
    // The lines of rank 2, and what is before them: of the process, of `srun -l`, or of torchrun.
    let forms = [
        (
            "2.0",
            "",
            "[E ProcessGroupNCCL.cpp:475] [Rank 2] Some NCCL operations have failed or timed out. Last enqueued NCCL work: 60, last completed NCCL work: 60.",
        ),
        (
            "2.2",
            "[rank2]:",
            "[E ProcessGroupNCCL.cpp:1182] [Rank 2] NCCL watchdog thread terminated with exception: Timeout at NCCL work: 60, last enqueued NCCL work: 60, last completed NCCL work: 59.",
        ),
        (
            "2.3",
            "2: ",
            "[E ProcessGroupNCCL.cpp:577] [Rank 2] Exception (either an error or timeout) detected by watchdog at work: 60, last enqueued NCCL work: 60, last completed NCCL work: 59.",
        ),
        (
            "2.4",
            "[default2]:[rank2]:",
            "[E725 10:00:00.1 ProcessGroupNCCL.cpp:1484] [PG 0 Rank 2] Received a dump signal from this local rank and will start to dump the debug info. Last enqueued NCCL work: 60, last completed NCCL work: 60.",
        ),
        (
            "2.5",
            "[rank2]:",
            "[E1128 10:00:00.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 2] Exception (either an error or timeout) detected by watchdog at work: 60, last enqueued NCCL work: 60, last completed NCCL work: 59.",
        ),
        (
            "2.6",
            "[rank2]:",
            "[E128 10:00:00.1 ProcessGroupNCCL.cpp:684] [PG ID 0 PG GUID 0(default_pg) Rank 2] failure detected by watchdog at work sequence id: 60 PG status: last enqueued work: 60, last completed work: 59",
        ),
        (
            "2.11",
            "[rank2]:",
            "[E328 10:00:00.1 ProcessGroupNCCL.cpp:1794] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective timeout from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 60, last completed NCCL work: 60.",
        ),
    ];
    for (version, before, line) in forms {
        let others = [0, 1, 3].map(|it| timed_out(it, 61, 1)).concat();
        let found = explained(&format!("{others}{before}{line}\n"));
        let first = &found.findings[0];
        assert_eq!(
            (first.code.text(), first.ranks.as_slice()),
            ("W0801", &[2][..]),
            "{version}: {}",
            found.verdict()
        );
        assert!(found.is_hang, "{version}");
    }
}
