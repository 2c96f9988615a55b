//! Assigns a GPU to each rank. All ranks do this together, before they allocate anything on a GPU. Otherwise
//! too few GPUs, or one GPU for two ranks, would surface much later, as an NCCL error on some ranks.

use serde::{Deserialize, Serialize};

use super::{
    ExecutorError, Gpu, ProcessGroup, Result, check_environment, check_shared_environment, discover,
    exchange::gather,
};

/// Environment variable that lets ranks share GPUs if it is 1. It serves to try a job that communicates by
/// the CUDA backend alone, because NCCL refuses to share. Times are then meaningless.
const SHARE_GPUS_VARIABLE: &str = "HIR_SHARE_GPUS";

/// Assigns a GPU to each rank. All ranks have to call this, and all get the same error.
///
/// # Errors
/// A rank has no driver or no GPU, its environment is not that of `set_environment`, two ranks have the same GPU, or a rank does not answer.
pub(super) fn assign_device(peers: &dyn ProcessGroup) -> Result<Gpu> {
    peers.report_phase("finding its GPU");
    let shared = shares_gpus();
    let host = discover::host_id();
    let hosts = peers.all_gather(host.as_bytes())?;
    // Without the launcher's number, a rank takes its number among the ranks of its host.
    let lower = hosts.iter().take(peers.rank()).filter(|it| **it == host.as_bytes());
    let local = peers.local_rank().unwrap_or(lower.count());
    let found = check_environment().and_then(|()| discover::choose_device(local, shared));
    compare_devices(peers, &found, &host)?;
    found.map(|(ordinal, _)| Gpu::new(ordinal))
}

/// Checks that the GPUs that the ranks of a job use already are one for each. All ranks have to call this, and all get the
/// same error. `ordinal` is that of this rank's GPU among those that the process sees.
///
/// # Errors
/// As for `assign_device`.
pub(super) fn check_device(ordinal: usize, peers: &dyn ProcessGroup) -> Result<()> {
    let found = check_shared_environment().and_then(|()| discover::device(ordinal));
    compare_devices(peers, &found, &discover::host_id())?;
    found.map(drop)
}

fn shares_gpus() -> bool {
    std::env::var(SHARE_GPUS_VARIABLE).is_ok_and(|it| it == "1")
}

/// Compares the GPUs of all ranks: the ordinal and the UUID of each, or the reason why it has none.
fn compare_devices(peers: &dyn ProcessGroup, found: &Result<(usize, String)>, host: &str) -> Result<()> {
    // The host name suffices in messages.
    let host = host.split(' ').next().unwrap_or_default().to_owned();
    let gpu = found.as_ref().map(|(_, uuid)| uuid.clone()).map_err(Clone::clone);
    let devices = gather(peers, &RankDevice { host, gpu })?;
    if peers.world() > 1
        && !shares_gpus()
        && let Some(message) = assignment_error(&devices)
    {
        return Err(ExecutorError::Environment(message));
    }
    Ok(())
}

/// The GPU of one rank, as it reports it to the others.
#[derive(Debug, Serialize, Deserialize)]
struct RankDevice {
    host: String,
    /// The UUID of its GPU, or the reason why it has none.
    gpu: Result<String>,
}

/// Returns what is wrong with the GPUs of the ranks; `devices` is indexed by rank.
fn assignment_error(devices: &[RankDevice]) -> Option<String> {
    for (rank, RankDevice { host, gpu }) in devices.iter().enumerate() {
        let uuid = match gpu {
            Ok(uuid) => uuid,
            Err(why) => return Some(format!("rank {rank} on host {host} cannot use a GPU: {why}")),
        };
        if let Some(other) = devices[..rank].iter().position(|it| it.gpu.as_ref().ok() == Some(uuid)) {
            return Some(format!(
                "ranks {other} and {rank} both use {uuid} of host {host}: give each rank its own GPU, by the launcher's \
                 local rank or `CUDA_VISIBLE_DEVICES`, or start fewer ranks"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_for_one_rank() {
        let error_of = |devices: &[(&str, Result<&str, &str>)]| {
            let device = |(host, gpu): &(&str, Result<&str, &str>)| RankDevice {
                host: (*host).to_owned(),
                gpu: gpu.map(str::to_owned).map_err(|it| ExecutorError::Environment(it.to_owned())),
            };
            assignment_error(&devices.iter().map(device).collect::<Vec<_>>())
        };
        assert_eq!(error_of(&[("a", Ok("GPU-0")), ("a", Ok("GPU-1")), ("b", Ok("GPU-2"))]), None);
        assert_eq!(
            error_of(&[("a", Ok("GPU-0")), ("a", Ok("GPU-1")), ("a", Ok("GPU-0"))]).as_deref(),
            Some(
                "ranks 0 and 2 both use GPU-0 of host a: give each rank its own GPU, by the launcher's local rank or \
                 `CUDA_VISIBLE_DEVICES`, or start fewer ranks"
            )
        );
        assert_eq!(
            error_of(&[("a", Ok("GPU-0")), ("b", Err("the NVIDIA driver was not found"))]).as_deref(),
            Some("rank 1 on host b cannot use a GPU: the NVIDIA driver was not found")
        );
    }
}
