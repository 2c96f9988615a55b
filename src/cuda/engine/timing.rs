//! Times runs: by events on the first stream, after all ranks have met, until all streams have been joined.

use std::sync::atomic::Ordering;

use super::{Engine, IssueMode};
use crate::{
    cuda::{CudaError, ProcessGroup},
    io::dense::DenseTensor,
};

/// Times of a number of runs, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// Microseconds of each run on the slowest rank.
    pub runs: Vec<f64>,
    /// Nodes of the captured graph; `None` where runs were issued step by step.
    pub nodes: Option<usize>,
}

impl Timing {
    /// The run below which this part of all runs is, in microseconds: 0.5 is the median.
    pub fn quantile(&self, part: f64) -> f64 {
        let mut runs = self.runs.clone();
        runs.sort_by(f64::total_cmp);
        let at = ((runs.len() as f64 * part).ceil() as usize).clamp(1, runs.len().max(1)) - 1;
        runs.get(at).copied().unwrap_or(0.0)
    }

    /// The longest of each run, over ranks.
    fn slowest(ranks: &[Vec<f64>]) -> Vec<f64> {
        let count = ranks.iter().map(Vec::len).min().unwrap_or(0);
        (0..count).map(|run| ranks.iter().map(|it| it[run]).fold(0.0, f64::max)).collect()
    }
}

/// Calls of a run that any queue holds: a stream takes about a thousand.
const QUEUED: usize = 256;

impl Engine {
    /// Times runs, captured as a graph or not, and reads the outputs of the last one; each begins with poisoned outputs.
    ///
    /// # Errors
    /// A failed call, a graph that loses nodes.
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
                    return Err(CudaError::Internal(format!("a graph of {nodes} nodes for {least} steps")));
                }
                Some(captured)
            }
            false => None,
        };
        let mut marks = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            marks.push((self.device.event(true)?, self.device.event(true)?));
        }
        // The GPU would wait for the host within the time of a short run: it begins once all of a run is queued. The first
        // one is not held back, as a first launch may wait for the device itself, and no long plan that is issued step by
        // step, as no queue may hold it.
        let queued: usize = self.executable.commands.iter().map(|it| it.command.queued_calls()).sum();
        let is_gated = captured.is_some() || queued <= QUEUED;
        let gate = self.device.pinned_words(1)?;
        peers.barrier()?;
        for run in 0..warmup + iterations {
            if is_gated && run > 0 {
                self.device.wait_value(gate.as_ptr() as u64, run as u32 + 1, self.main_stream)?;
            }
            self.reset_between_runs()?;
            let mark = run.checked_sub(warmup).map(|it| marks[it]);
            if let Some((begin, _)) = mark {
                self.device.record(begin, self.main_stream)?;
            }
            match captured {
                Some(graph) => self.replay(graph)?,
                None => self.issue(IssueMode::Plain)?,
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
