//! Exchanges values between the ranks of a job.

use serde::{Serialize, de::DeserializeOwned};

use super::{ExecutorError, ProcessGroup, Result};

/// Sends a value to all ranks and returns those of all ranks, by rank.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(peers: &dyn ProcessGroup, mine: &T) -> Result<Vec<T>> {
    let mine = postcard::to_allocvec(mine)
        .map_err(|it| ExecutorError::Internal(format!("cannot encode a message: {it}")))?;
    let decode = |bytes: Vec<u8>| {
        postcard::from_bytes(&bytes)
            .map_err(|it| ExecutorError::Environment(format!("cannot read the message of a rank: {it}")))
    };
    peers.all_gather(&mine)?.into_iter().map(decode).collect()
}
