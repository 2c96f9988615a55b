//! Times runs with events on the main stream: from the barrier of all ranks until the main stream has waited
//! for all others.

use std::sync::atomic::Ordering;

use rustc_hash::FxHashSet;

use super::{Engine, IssueMode, difference::earliest_difference};
use crate::{ExecutorError, ProcessGroup, Result, executable::ScheduledCommand};
use hir_executor::{TimedRuns, Timing, WarmUp};

/// Returns the maximum over ranks for each run.
fn slowest(ranks: &[Vec<f64>]) -> Vec<f64> {
    let count = ranks.iter().map(Vec::len).min().unwrap_or(0);
    (0..count).map(|run| ranks.iter().map(|it| it[run]).fold(0.0, f64::max)).collect()
}

/// One of several runs that are timed together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turn {
    /// The number of the variant of the plan that runs.
    pub variant: usize,
    pub is_timed: bool,
}

/// Microseconds for which the GPUs work before a measurement, so that they are as warm as in a long run.
const WARM: f64 = 1e6;
/// Maximum number of runs that serve only to warm the GPUs.
const MOST_WARM_RUNS: usize = 500;

/// Returns the number of runs that warm the GPUs, from the microseconds that some runs took. Equal on all ranks if the
/// times are.
pub(super) fn runs_until_warm(times: &[f64]) -> usize {
    let longest = times.iter().copied().fold(1.0, f64::max);
    ((WARM / longest) as usize).min(MOST_WARM_RUNS)
}

/// Number of calls that fit into the queue of any stream; a stream holds about a thousand.
const QUEUED: usize = 256;

impl Engine {
    /// Times runs, as a captured graph if `graph` is set, and compares the outputs of the last one bit by bit with those
    /// that are on the host now. Each run begins with poisoned outputs.
    ///
    /// # Errors
    /// A call fails, or the captured graph has too few nodes.
    pub(super) fn time(
        &mut self,
        peers: &dyn ProcessGroup,
        warmup: WarmUp,
        iterations: usize,
        graph: bool,
    ) -> Result<TimedRuns> {
        let first = self.kept_outputs();
        let captured = if graph {
            let captured = self.capture(false)?;
            let least = self.executable.commands.iter().filter(|it| it.command.is_graph_node()).count();
            if captured.nodes < least {
                let nodes = captured.nodes;
                return Err(ExecutorError::Internal(format!(
                    "the captured graph has {nodes} nodes for {least} commands"
                )));
            }
            Some(captured)
        } else {
            None
        };
        let turn = |is_timed| Turn { variant: 0, is_timed };
        let is_short = captured.is_some() || self.is_queued_whole(0);
        let mut issue = |engine: &mut Self, _| match &captured {
            Some(graph) => engine.replay(graph),
            None => engine.issue(IssueMode::Plain).map(drop),
        };
        let mut before = warmup.runs;
        if warmup.until_warm {
            // The first run makes the first launches, and the second one shows how long a run takes.
            let pilot = self.time_turns(peers, &[turn(false), turn(true)], is_short, &mut issue)?;
            before = runs_until_warm(&pilot).max(before);
        }
        let turns: Vec<Turn> = (0..before + iterations).map(|run| turn(run >= before)).collect();
        let runs = self.time_turns(peers, &turns, is_short, &mut issue)?;
        self.copy_outputs_to_host(self.main_stream)?;
        self.synchronize()?;
        let mine = self.difference(&first)?.map(|it| (iterations as u64, it));
        let found = earliest_difference(peers, mine)?;
        let issued = if graph { "replayed as a CUDA graph" } else { "issued step by step" };
        Ok(TimedRuns {
            timing: Timing { runs, nodes: captured.map(|it| it.nodes) },
            outputs: self.read_outputs()?,
            difference: found.map(|(run, text)| format!("timed run {run} of {iterations}, {issued}: {text}")),
        })
    }

    /// Returns whether a run that is issued command by command, with this number of events beside each command, can be
    /// queued as a whole before it starts: any queue holds it, and the host does not wait for a part of it.
    pub(super) fn is_queued_whole(&self, events: usize) -> bool {
        let calls = |it: &ScheduledCommand| it.command.queued_calls() + events;
        let calls: usize = self.executable.commands.iter().map(calls).sum();
        calls <= QUEUED && self.capture_obstacle().is_none()
    }

    /// Runs the plan once for each turn, as `issue` issues its variant, and returns the microseconds of the timed
    /// turns on the slowest rank. `is_short` says that a whole run can be queued before it starts. All ranks have to call this with
    /// the same turns.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn time_turns(
        &mut self,
        peers: &dyn ProcessGroup,
        turns: &[Turn],
        is_short: bool,
        issue: &mut dyn FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<Vec<f64>> {
        // In a short run, the GPU would wait for the host, so a run starts only when all of it is queued. The first run
        // of a variant is not gated, because a first launch may wait for the device itself. Neither is a plan issued
        // command by command if no queue may hold it or if its host waits, nor runs between which the hosts wait for each
        // other.
        let is_gated = self.has_device_barrier() && is_short;
        let gate = self.device.pinned_words(1)?;
        let mut marks = Vec::new();
        for _ in turns.iter().filter(|it| it.is_timed) {
            marks.push((self.device.event(true)?, self.device.event(true)?));
        }
        let (mut unused_marks, mut started) = (marks.iter(), FxHashSet::default());
        peers.barrier()?;
        for (run, turn) in turns.iter().enumerate() {
            let is_first = started.insert(turn.variant);
            if is_gated && !is_first {
                self.device.wait_value(gate.as_ptr() as u64, run as u32 + 1, self.main_stream)?;
            }
            self.reset_between_runs(peers)?;
            let mark = if turn.is_timed { unused_marks.next() } else { None };
            if let Some((begin, _)) = mark {
                self.device.record(*begin, self.main_stream)?;
            }
            issue(self, turn.variant)?;
            if let Some((_, end)) = mark {
                self.device.record(*end, self.main_stream)?;
            }
            self.count_run()?;
            gate[0].store(run as u32 + 1, Ordering::Release);
            if is_gated && is_first {
                self.synchronize()?;
            }
        }
        self.synchronize()?;
        let mut mine = Vec::new();
        for (begin, end) in marks {
            mine.extend(self.device.elapsed_microseconds(begin, end)?.to_le_bytes());
        }
        let times = |bytes: &Vec<u8>| -> Vec<f64> {
            bytes.as_chunks::<8>().0.iter().map(|it| f64::from_le_bytes(*it)).collect()
        };
        let ranks: Vec<Vec<f64>> = peers.all_gather(&mine)?.iter().map(times).collect();
        Ok(slowest(&ranks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_counts_run_by_run() {
        let timing = Timing { runs: slowest(&[vec![1.0, 5.0, 2.0], vec![3.0, 4.0, 1.0]]), nodes: None };
        assert_eq!(timing.runs, [3.0, 5.0, 2.0]);
        assert_eq!([timing.quantile(0.0), timing.quantile(0.5), timing.quantile(1.0)], [2.0, 3.0, 5.0]);
    }
}
