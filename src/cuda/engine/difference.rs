//! Compares the outputs of a run bit by bit with those of an earlier run.

use super::{Engine, Output, bytes};
use crate::{ExecutorError, ProcessGroup, Result};
use hir_tensor::{
    data::{Data, bytes::of_little_endian},
    shard::unravel_index,
};

/// Copies of the outputs of a run: the bytes of each, indexed by output.
pub(super) type KeptOutputs = Vec<Vec<u8>>;

/// Returns the host copy of an output.
fn host_bytes(output: Option<&Output>) -> &[u8] {
    // SAFETY: `host_buffer` has this many bytes, and no copy to it is in progress between two runs.
    output.map_or(&[], |it| unsafe { std::slice::from_raw_parts(it.host_buffer, it.bytes) })
}

impl Engine {
    /// Copies the outputs that are on the host now.
    pub(super) fn kept_outputs(&self) -> KeptOutputs {
        self.outputs.iter().map(|it| host_bytes(it.as_ref()).to_vec()).collect()
    }

    /// Describes the first element of this rank's outputs on the host that differs from `kept`.
    pub(super) fn difference(&self, kept: &KeptOutputs) -> Result<Option<String>> {
        for ((output, port), before) in self.outputs.iter().zip(&self.plan().outputs).zip(kept) {
            let (Some(it), now) = (output, host_bytes(output.as_ref())) else { continue };
            if now == before {
                continue;
            }
            let part = |bytes: &[u8]| -> Result<Data> {
                let whole = of_little_endian(it.dtype, bytes)
                    .map_err(|it| ExecutorError::Internal(format!("cannot compare an output: {it}")))?;
                Ok(whole.gather(&it.view))
            };
            let (now, before) = (part(now)?, part(before)?);
            let size = it.dtype.size().max(1);
            let pairs = bytes::of(&now).chunks(size).zip(bytes::of(&before).chunks(size));
            // Ignore bytes between the elements of an output.
            if let Some(at) = pairs.into_iter().position(|(now, before)| now != before) {
                return Ok(Some(format!(
                    "{}: element {:?} of rank {}'s part is {}, but was {} in the first run with these inputs",
                    port.name,
                    unravel_index(at, &it.view.shape),
                    self.plan().rank,
                    now.text(at),
                    before.text(at)
                )));
            }
        }
        Ok(None)
    }
}

/// Returns the difference of the earliest run over all ranks, with the number of the run. All ranks have to call this.
///
/// # Errors
/// A rank does not answer.
pub(super) fn earliest_difference(
    peers: &dyn ProcessGroup,
    mine: Option<(u64, String)>,
) -> Result<Option<(u64, String)>> {
    let mine = mine.map_or(Vec::new(), |(run, text)| [&run.to_le_bytes()[..], text.as_bytes()].concat());
    let all = peers.all_gather(&mine)?;
    let decode = |it: &Vec<u8>| {
        let (run, text) = it.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*run), String::from_utf8_lossy(text).into_owned()))
    };
    Ok(all.iter().filter_map(decode).min_by_key(|it| it.0))
}
