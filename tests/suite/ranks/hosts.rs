//! Tests jobs of two hosts.

use libtest_mimic::Failed;

use super::{LIMIT, end, expect, port, rank};

/// Starts four ranks, two on each of two hosts with two GPUs, without the launcher's local rank.
fn on_two_hosts(arguments: &[&str]) -> Result<Vec<(Option<i32>, String, String)>, Failed> {
    let port = port()?;
    let start = |at: usize| {
        rank(at, 4, port, arguments)
            .env_remove("LOCAL_RANK")
            .env("HIR_HOSTID", ["first", "second"][at / 2])
            .env("CUDA_VISIBLE_DEVICES", ["0,1", "2,3"][at / 2])
            .spawn()
    };
    end((0..4).map(start).collect::<Result<_, _>>()?, LIMIT)
}

pub(super) fn two_hosts_run_a_job() -> Result<(), Failed> {
    let flags = ["--device=cuda", "--inputs=exact", "--expect=sim", "-w1", "-n3", "--stress=3"];
    for issue in [&["--step-by-step"][..], &[]] {
        let arguments = [&["tests/cases/launch/two-hosts.hir"], &flags[..], issue].concat();
        let ends = on_two_hosts(&arguments)?;
        let is_right = ends.iter().all(|it| it.0 == Some(0));
        expect(
            is_right && ends[0].1.contains("[SUCCESS] 24 elements equal to the simulator (exact)"),
            &ends,
        )?;
    }
    Ok(())
}

pub(super) fn hosts_share_no_memory() -> Result<(), Failed> {
    let ends = on_two_hosts(&["tests/cases/transport/teams.hir", "--device=cuda"])?;
    let is_named =
        ends.iter().any(|it| (it.1.clone() + &it.2).contains("are on different hosts: only NCCL sends data"));
    expect(is_named && ends.iter().all(|it| it.0 == Some(6)), &ends)
}
