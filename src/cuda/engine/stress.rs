//! Runs a plan many times with random delays of its streams, to expose results that depend on timing.
//!
//! Before each run, every rank draws a delay for each of its streams, which the stream waits at the start of
//! the run. Kernels read the delays from memory, so each replay of a captured plan uses new ones. The outputs
//! are poisoned before a run, and compared bit by bit afterwards with those of the run that was checked.
//!
//! Every second run uses the negated inputs (floating-point elements only), and is compared with the first one that
//! does. If two runs in succession had equal data, data of the earlier run that is read instead of that of the later run
//! would not be noticed. Where data end a loop, no run uses negated inputs: with these the loop might not end.

use super::{Engine, IssueMode, difference::earliest_difference};
use crate::{ProcessGroup, Result, exchange::gather};
use hir_tensor::generate::mix;

/// Maximum delay of a stream in nanoseconds: several times the duration of a small plan.
const LONGEST: u64 = 300_000;

/// Returns the delay of a stream in nanoseconds. Short delays are as likely as long ones, so that streams
/// overtake each other within a command or within a run.
fn delay_ns(seed: u64, rank: usize, run: usize, stream: usize) -> u64 {
    let draw = [rank, run, stream].iter().fold(seed, |state, it| mix(state).wrapping_add(*it as u64));
    let bits = mix(draw);
    ((bits >> 32) % LONGEST) >> (bits & 7)
}

impl Engine {
    /// Runs the plan `runs` times, as a captured graph if `graph` is set, and describes the first difference,
    /// over all ranks, from the outputs that are on the host now. `on_run` is called with the number of runs
    /// that are done. All ranks have to call this.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn stress(
        &mut self,
        peers: &dyn ProcessGroup,
        runs: usize,
        seed: u64,
        graph: bool,
        on_run: &dyn Fn(usize),
    ) -> Result<Option<String>> {
        let streams = self.executable.streams.len();
        self.delays = Some(self.device.allocate(self.plan().rank, 8 * streams)?);
        let captured = if graph { Some(self.capture(true)?) } else { None };
        // The expected outputs with the inputs, and with the negated inputs after the first run that uses them.
        let mut expected = [Some(self.kept_outputs()), None];
        let mut found: Option<(u64, String)> = None;
        let negates = gather(peers, &self.plan().exits.is_empty())?.iter().all(|it| *it);
        for run in 1..=runs {
            self.upload_delays(seed, run)?;
            let is_negated = negates && run.is_multiple_of(2);
            self.reset_inputs(is_negated, negates && run > 1, peers)?;
            match &captured {
                Some(graph) => self.replay(graph)?,
                None => _ = self.issue(IssueMode::Checked)?,
            }
            self.count_run()?;
            self.synchronize()?;
            // Other ranks wait for this rank, so it continues after a difference.
            let expected = &mut expected[usize::from(is_negated)];
            match expected {
                Some(expected) if found.is_none() => {
                    found = self.difference(expected)?.map(|it| (run as u64, it));
                }
                Some(_) => (),
                None => *expected = Some(self.kept_outputs()),
            }
            on_run(run);
        }
        // The inputs get their values back.
        self.reset_inputs(false, negates && runs.is_multiple_of(2), peers)?;
        self.delays = None;
        let first = earliest_difference(peers, found)?;
        Ok(first.map(|(run, text)| format!("run {run} of {runs} with delays: {text}")))
    }

    /// Separates two runs, and negates the inputs if the next run uses negated ones. `changes` says that the run before
    /// used the others.
    fn reset_inputs(&mut self, is_negated: bool, changes: bool, peers: &dyn ProcessGroup) -> Result<()> {
        self.reset_between_runs(peers)?;
        // An input that the program writes was restored just now.
        self.negate_inputs(|it| if it.backup.is_some() { is_negated } else { changes })?;
        self.rank_barrier(peers)
    }

    /// Uploads the delays of the next run.
    fn upload_delays(&self, seed: u64, run: usize) -> Result<()> {
        let Some(delays) = self.delays else { return Ok(()) };
        let rank = self.plan().rank;
        let times =
            (0..self.executable.streams.len()).flat_map(|it| delay_ns(seed, rank, run, it).to_le_bytes());
        self.device.upload(delays, &times.collect::<Vec<u8>>(), self.main_stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_held_back_for_different_times() {
        let times: Vec<u64> =
            (0..4).flat_map(|rank| (0..250).map(move |run| delay_ns(7, rank, run, 2))).collect();
        assert!(times.iter().all(|it| *it < LONGEST));
        let shorter = |than: u64| times.iter().filter(|it| **it < than).count();
        assert!((700..840).contains(&shorter(50_000)), "{}", shorter(50_000));
        assert!((310..450).contains(&shorter(5_000)), "{}", shorter(5_000));
        assert_ne!(delay_ns(7, 0, 1, 0), delay_ns(8, 0, 1, 0));
        assert_ne!(delay_ns(7, 0, 1, 0), delay_ns(7, 1, 1, 0));
        assert_ne!(delay_ns(7, 0, 1, 0), delay_ns(7, 0, 2, 0));
        assert_ne!(delay_ns(7, 0, 1, 0), delay_ns(7, 0, 1, 1));
    }
}
