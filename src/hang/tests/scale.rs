//! Thousands of ranks: the cause is found, and the table fits on a screen.
//!
//! `HIR_HANG_RANKS=4096 HIR_HANG_ROUNDS=250 cargo test --release -p hir-hang --test scale -- --nocapture` prints the time for 4,096 ranks with 2,000 records
//! each. Ranks of one group share a file, which is linked under the name of each.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a failed step ends the test; the scale test prints its time"
)]

mod simulator;

use std::{fs, time::Instant};

use hir_hang::{
    files,
    report::{report, table},
};
use simulator::{Call, Group, Job, Op, Outcome, dump, pickle::pickle};

/// The ranks of a tensor-parallel group.
const GROUP: usize = 8;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

/// The time that this process has computed, which other processes do not change: user and system time in hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|it| it.parse::<f64>().ok()).sum::<f64>() / 100.0
}

#[test]
fn the_cause_is_found_among_many_ranks() {
    let (ranks, rounds) = (number("HIR_HANG_RANKS", 256), number("HIR_HANG_ROUNDS", 10));
    let deviating = ranks / 2 + 3;
    let folder = tempfile::tempdir().expect("a folder");
    let mut groups = vec![Group { description: "default_pg", members: (0..ranks).collect() }];
    groups.extend(
        (0..ranks / GROUP)
            .map(|it| Group { description: "mesh_tp", members: (it * GROUP..(it + 1) * GROUP).collect() }),
    );
    // All calls but those of the last round have completed. The deviating rank leaves out a call in it.
    let write = |rank: usize| {
        let call = |op, group, line: u32| Call { op, group, elements: 1 << (line % 5), dtype: "Float", line };
        let round = |_| {
            let tp = |line| call(Op::AllReduce, 1 + rank / GROUP, line);
            let mut calls: Vec<Call> = (10..16).map(tp).collect();
            calls.extend([call(Op::AllGather, 0, 20), call(Op::AllReduce, 0, 21)]);
            calls
        };
        let mut calls: Vec<Call> = (0..rounds).flat_map(round).collect();
        let mut done: Vec<bool> = (0..calls.len()).map(|at| at + 8 < calls.len()).collect();
        if rank == deviating {
            calls.remove(calls.len() - 2);
            done.pop();
        }
        let mut all = vec![Vec::new(); ranks];
        all[rank] = calls;
        let mut outcome = vec![Vec::new(); ranks];
        outcome[rank] = done;
        let gone = None;
        let job = Job { groups: groups.clone(), calls: all, runs_ahead: true, gone, kept: usize::MAX };
        let dump = dump(&job, &Outcome { done: outcome }, rank);
        pickle(&serde_json::from_str(&dump).expect("JSON"))
    };
    for first in (0..ranks).step_by(GROUP) {
        let path = folder.path().join(format!("nccl_trace_rank_{first}"));
        fs::write(&path, write(first)).expect("a file");
        for rank in first + 1..first + GROUP {
            let other = folder.path().join(format!("nccl_trace_rank_{rank}"));
            if rank == deviating { fs::write(other, write(rank)) } else { fs::hard_link(&path, other) }
                .expect("a file");
        }
    }
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let dumps = files::load(&[folder.path().to_owned()]).expect("dumps");
    let read = begin.elapsed();
    let report = report(&dumps);
    let (records, all, cpu) = (report.records, begin.elapsed(), cpu_seconds() - cpu);
    println!("{ranks} ranks, {records} records: read {read:.1?}, in all {all:.1?}, {cpu:.1} s of all cores");
    assert_eq!(report.findings[0].ranks, [deviating as u32], "{}", report.verdict());
    assert!(report.is_hang && table(&report).len() < 30, "{:#?}", table(&report));
}
