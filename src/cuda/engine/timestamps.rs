//! Measures when every command of one run executes, on a clock that all ranks of a host share.
//!
//! Each command is recorded between two events on its stream. The times of events are relative to an event that
//! is recorded on an idle stream while the host reads its clock before and after: the event happened in
//! between, which bounds the error. The clock is that of the operating system, which is one for all processes
//! of a host. On several hosts, a barrier shows a difference of clocks that is larger than the time that the barrier takes; the times of the
//! other rank are moved by it. A smaller one is not known.

use std::{
    sync::atomic::Ordering,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use super::Engine;
use crate::{ExecutorError, ProcessGroup, Result, device::Event};
use hir_executor::{InstTime, RunTimes};

/// Number of readings of the clock, of which the most precise one is used.
const READINGS: usize = 20;
/// Number of runs; the last one is reported.
const RUNS: u32 = 3;

/// An event, when it happened on the host's clock in microseconds, and the error of that time.
#[derive(Clone, Copy)]
struct ClockReading {
    event: Event,
    time: f64,
    error: f64,
}

impl Engine {
    /// Measures the times of all ranks' commands. All ranks have to call this.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn measure_times(&mut self, peers: &dyn ProcessGroup) -> Result<RunTimes> {
        let marks = self.marks()?;
        let gate = self.device.pinned_words(1)?;
        // Two events beside each command. See `Engine::time` for the gate.
        let is_queued_whole = self.is_queued_whole(2);
        let (mut reading, mut meeting) = (self.read_clock()?, [0.0; 2]);
        for run in 1..=RUNS {
            peers.barrier()?;
            if run == RUNS {
                reading = self.read_clock()?;
                peers.barrier()?;
                // Each rank is in this barrier when the last one comes.
                meeting[0] = host_microseconds();
                peers.barrier()?;
                meeting[1] = host_microseconds();
            }
            let is_gated = run > 1 && is_queued_whole && self.has_device_barrier();
            if is_gated {
                self.device.wait_value(gate.as_ptr() as u64, run, self.main_stream)?;
            }
            self.reset_between_runs(peers)?;
            self.issue_with_events(&marks)?;
            self.count_run()?;
            gate[0].store(run, Ordering::Release);
            self.synchronize()?;
        }
        let mut mine: Vec<u8> =
            [reading.error, meeting[0], meeting[1]].iter().flat_map(|it| it.to_le_bytes()).collect();
        let timed = self.timed_insts();
        for (step, mark) in self.executable.commands.iter().zip(&marks) {
            let Some((begin, end)) = mark else { continue };
            mine.extend(timed.get(&step.inst).unwrap_or(&step.inst).to_le_bytes());
            for event in [begin, end] {
                let time = reading.time + self.device.elapsed_microseconds(reading.event, *event)?;
                mine.extend(time.to_le_bytes());
            }
        }
        Ok(run_times(&peers.all_gather(&mine)?))
    }

    /// Reads the clock while an event is recorded on the idle main stream.
    fn read_clock(&self) -> Result<ClockReading> {
        let mut best: Option<ClockReading> = None;
        for _ in 0..READINGS {
            let event = self.device.event(true)?;
            // The host's clock may be set meanwhile.
            let (before, started) = (host_microseconds(), Instant::now());
            self.device.record(event, self.main_stream)?;
            self.device.synchronize(self.main_stream)?;
            let error = started.elapsed().as_secs_f64() * 1e6 / 2.0;
            if best.is_none_or(|it| error < it.error) {
                best = Some(ClockReading { event, time: before + error, error });
            }
        }
        best.ok_or_else(|| ExecutorError::Internal("the clock was not read".to_owned()))
    }
}

/// Returns the host's clock in microseconds.
fn host_microseconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |it| it.as_nanos() as f64 / 1e3)
}

/// Reads the messages of all ranks: the error of the clock, when the rank came to a barrier and left it, and an index and two times for
/// each command.
fn run_times(messages: &[Vec<u8>]) -> RunTimes {
    let (mut ranks, mut errors) = (Vec::new(), Vec::new());
    let mut zero = None;
    for message in messages {
        let (head, rest) = message.split_first_chunk::<24>().unwrap_or((&[0; 24], &[]));
        let [error, came, left] = numbers(head);
        let (zero_came, zero_left) = *zero.get_or_insert((came, left));
        // The clock is ahead of that of rank 0 by a number between these two.
        let (least, most) = (came - zero_left, left - zero_came);
        let is_same = least <= 0.0 && most >= 0.0;
        let (ahead, more) = if is_same { (0.0, 0.0) } else { ((least + most) / 2.0, (most - least) / 2.0) };
        errors.push(error + more);
        let times = rest.as_chunks::<20>().0.iter().map(|it| {
            let [a, b, c, d, times @ ..] = *it;
            let [begin, end] = numbers(&times).map(|it| it - ahead);
            InstTime { inst: u32::from_le_bytes([a, b, c, d]), begin, end }
        });
        ranks.push(times.collect::<Vec<_>>());
    }
    let first = ranks.iter().flatten().map(|it| it.begin).fold(f64::INFINITY, f64::min);
    for it in ranks.iter_mut().flatten() {
        (it.begin, it.end) = (it.begin - first, it.end - first);
    }
    // Two ranks may differ in opposite directions.
    errors.sort_by(|a, b| b.total_cmp(a));
    let error = if ranks.len() > 1 { errors.iter().take(2).sum() } else { 0.0 };
    RunTimes { ranks, error }
}

/// Returns the numbers at the beginning of the bytes.
fn numbers<const N: usize>(bytes: &[u8]) -> [f64; N] {
    let words = bytes.as_chunks::<8>().0;
    std::array::from_fn(|at| words.get(at).map_or(0.0, |it| f64::from_le_bytes(*it)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_begin_at_the_first_command_of_all_ranks() {
        let message = |error: f64, (came, left): (f64, f64), times: &[(u32, f64, f64)]| {
            let mut bytes: Vec<u8> = [error, came, left].iter().flat_map(|it| it.to_le_bytes()).collect();
            for (inst, begin, end) in times {
                bytes.extend(inst.to_le_bytes());
                bytes.extend(begin.to_le_bytes());
                bytes.extend(end.to_le_bytes());
            }
            bytes
        };
        let it = run_times(&[
            message(1.5, (90.0, 95.0), &[(3, 110.0, 112.0), (4, 112.5, 120.0)]),
            message(2.0, (94.0, 96.0), &[(3, 108.0, 111.0)]),
            message(0.5, (90.0, 94.5), &[]),
        ]);
        let time = |inst, begin, end| InstTime { inst, begin, end };
        assert_eq!(it.ranks, [vec![time(3, 2.0, 4.0), time(4, 4.5, 12.0)], vec![time(3, 0.0, 3.0)], vec![]]);
        assert_eq!(it.error, 3.5);
        assert_eq!(run_times(&[message(9.0, (0.0, 0.0), &[])]).error, 0.0);
        // The clock of rank 1 is ahead by 995 to 1003.
        let it = run_times(&[
            message(1.0, (90.0, 95.0), &[(3, 110.0, 112.0)]),
            message(2.0, (1090.0, 1093.0), &[(3, 1111.0, 1112.0)]),
        ]);
        assert_eq!(it.ranks, [vec![time(3, 0.0, 2.0)], vec![time(3, 2.0, 3.0)]]);
        assert_eq!(it.error, 1.0 + 2.0 + 4.0);
    }
}
