//! Which rank takes which GPU. All ranks find out together, before anything is made on one: too few GPUs, or one for two
//! ranks, would be NCCL's error, long after, on some of them.

use super::{CudaError, Gpu, ProcessGroup, discover};

/// Set to 1, it lets ranks share GPUs: to try a job that communicates by the CUDA backend alone, as NCCL refuses. Times mean
/// nothing then.
const SHARE_GPUS_VARIABLE: &str = "HIR_SHARE_GPUS";

/// Finds a GPU for each rank; all ranks have to call this, and all get the same error.
///
/// # Errors
/// A rank without driver or GPU, a GPU for two ranks, ranks that do not answer.
pub fn assign_device(peers: &dyn ProcessGroup) -> Result<Gpu, CudaError> {
    peers.report_phase("finding its GPU");
    let shared = std::env::var(SHARE_GPUS_VARIABLE).is_ok_and(|it| it == "1");
    let found = discover::choose_device(peers.local_rank(), shared);
    let mine = match &found {
        Ok((_, uuid)) => format!("{}\n+{uuid}", discover::host_id()),
        Err(why) => format!("{}\n-{why}", discover::host_id()),
    };
    let claims: Vec<RankDevice> =
        peers.all_gather(mine.as_bytes())?.iter().map(|it| RankDevice::from_bytes(it)).collect();
    if peers.world() > 1
        && !shared
        && let Some(message) = assignment_error(&claims)
    {
        return Err(CudaError::Environment(message));
    }
    found.map(|(ordinal, _)| Gpu::new(ordinal))
}

/// What a rank says of itself.
#[derive(Debug)]
struct RankDevice {
    host: String,
    /// The GPU that it takes, by an identity that no other GPU has, or why it has none.
    gpu: Result<String, String>,
}

impl RankDevice {
    fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (host, gpu) = text.split_once('\n').unwrap_or((&text, ""));
        // The host's name says enough to people.
        let host = host.split(' ').next().unwrap_or_default().to_owned();
        let gpu = match gpu.strip_prefix('+') {
            Some(uuid) => Ok(uuid.to_owned()),
            None => Err(gpu.trim_start_matches('-').to_owned()),
        };
        Self { host, gpu }
    }
}

/// What is wrong with the GPUs that the ranks take, by rank.
fn assignment_error(claims: &[RankDevice]) -> Option<String> {
    for (rank, RankDevice { host, gpu }) in claims.iter().enumerate() {
        let uuid = match gpu {
            Ok(uuid) => uuid,
            Err(why) => return Some(format!("rank {rank} on host {host} has no GPU: {why}")),
        };
        if let Some(other) = claims[..rank].iter().position(|it| it.gpu.as_ref() == Ok(uuid)) {
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
        let told = |claims: &[&str]| {
            let claims: Vec<RankDevice> =
                claims.iter().map(|it| RankDevice::from_bytes(it.as_bytes())).collect();
            assignment_error(&claims)
        };
        assert_eq!(told(&["a 1\n+GPU-0", "a 1\n+GPU-1", "b 2\n+GPU-2"]), None);
        assert_eq!(
            told(&["a 1\n+GPU-0", "a 1\n+GPU-1", "a 1\n+GPU-0"]).as_deref(),
            Some(
                "ranks 0 and 2 both use GPU-0 of host a: give each rank its own GPU, by the launcher's local rank or \
                 `CUDA_VISIBLE_DEVICES`, or start fewer ranks"
            )
        );
        assert_eq!(
            told(&["a 1\n+GPU-0", "b 2\n-the NVIDIA driver was not found"]).as_deref(),
            Some("rank 1 on host b has no GPU: the NVIDIA driver was not found")
        );
    }
}
