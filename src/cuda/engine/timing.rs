//! Times runs with events on the main stream: from the barrier of all ranks until the main stream has waited
//! for all others.

use std::sync::atomic::Ordering;

use super::{Engine, IssueMode};
use crate::{
    cuda::{CudaError, ProcessGroup},
    io::dense::DenseTensor,
};

/// Times of several runs, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Microseconds of each run on the slowest rank.
    pub runs: Vec<f64>,
    /// Number of nodes of the captured graph; `None` if the runs were issued command by command.
    pub nodes: Option<usize>,
}

impl Timing {
    /// Returns a quantile of the runs in microseconds: 0.5 is the median.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut runs = self.runs.clone();
        runs.sort_by(f64::total_cmp);
        let at = ((runs.len() as f64 * part).ceil() as usize).clamp(1, runs.len().max(1)) - 1;
        runs.get(at).copied().unwrap_or(0.0)
    }

    /// Returns the maximum over ranks for each run.
    fn slowest(ranks: &[Vec<f64>]) -> Vec<f64> {
        let count = ranks.iter().map(Vec::len).min().unwrap_or(0);
        (0..count).map(|run| ranks.iter().map(|it| it[run]).fold(0.0, f64::max)).collect()
    }
}

/// Number of calls that fit into the queue of any stream; a stream holds about a thousand.
pub(super) const QUEUED: usize = 256;

impl Engine {
    /// Times runs, as a captured graph if `graph` is set, and returns the outputs of the last one. Each run
    /// begins with poisoned outputs.
    ///
    /// # Errors
    /// A call fails, or the captured graph has too few nodes.
    pub fn time(
        &mut self,
        peers: &dyn ProcessGroup,
        warmup: usize,
        iterations: usize,
        graph: bool,
    ) -> Result<(Timing, Vec<Option<DenseTensor>>), CudaError> {
        let captured = match graph {
            true => {
                let captured = self.capture()?;
                let least = self.executable.commands.iter().filter(|it| it.command.is_graph_node()).count();
                if captured.nodes < least {
                    let nodes = captured.nodes;
                    return Err(CudaError::Internal(format!(
                        "the captured graph has {nodes} nodes for {least} commands"
                    )));
                }
                Some(captured)
            }
            false => None,
        };
        let mut marks = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            marks.push((self.device.event(true)?, self.device.event(true)?));
        }
        // In a short run, the GPU would wait for the host, so a run starts only when all of it is queued. The
        // first run is not gated, because a first launch may wait for the device itself. Neither is a long
        // plan issued command by command, because no queue may hold it, nor runs between which the hosts wait for
        // each other.
        let queued: usize = self.executable.commands.iter().map(|it| it.command.queued_calls()).sum();
        let is_gated = self.has_device_barrier() && (captured.is_some() || queued <= QUEUED);
        let gate = self.device.pinned_words(1)?;
        peers.barrier()?;
        for run in 0..warmup + iterations {
            if is_gated && run > 0 {
                self.device.wait_value(gate.as_ptr() as u64, run as u32 + 1, self.main_stream)?;
            }
            self.reset_between_runs(peers)?;
            let mark = run.checked_sub(warmup).map(|it| marks[it]);
            if let Some((begin, _)) = mark {
                self.device.record(begin, self.main_stream)?;
            }
            match &captured {
                Some(graph) => self.replay(graph)?,
                None => _ = self.issue(IssueMode::Plain)?,
            }
            if let Some((_, end)) = mark {
                self.device.record(end, self.main_stream)?;
            }
            self.count_run()?;
            gate[0].store(run as u32 + 1, Ordering::Release);
            if is_gated && run == 0 {
                self.synchronize()?;
            }
        }
        self.copy_outputs_to_host(self.main_stream)?;
        self.synchronize()?;
        let mut mine = Vec::new();
        for (begin, end) in marks {
            mine.extend(self.device.elapsed_microseconds(begin, end)?.to_le_bytes());
        }
        let times = |bytes: &Vec<u8>| -> Vec<f64> {
            bytes.as_chunks::<8>().0.iter().map(|it| f64::from_le_bytes(*it)).collect()
        };
        let ranks: Vec<Vec<f64>> = peers.all_gather(&mine)?.iter().map(times).collect();
        let timing = Timing { runs: Timing::slowest(&ranks), nodes: captured.map(|it| it.nodes) };
        Ok((timing, self.read_outputs()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_counts_run_by_run() {
        let timing =
            Timing { runs: Timing::slowest(&[vec![1.0, 5.0, 2.0], vec![3.0, 4.0, 1.0]]), nodes: None };
        assert_eq!(timing.runs, [3.0, 5.0, 2.0]);
        assert_eq!([timing.quantile(0.0), timing.quantile(0.5), timing.quantile(1.0)], [2.0, 3.0, 5.0]);
    }
}
