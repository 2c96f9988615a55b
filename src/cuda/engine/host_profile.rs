//! Measures what issuing a plan costs the host, compared with the bare calls that it consists of.
//!
//! The plan, a replay of its graph and the bare calls are timed in alternation, and all streams are drained in between, so that no
//! queue is ever full and disturbances affect both. A bare call is a call of the plan, issued in a loop over
//! all calls of its kind: same addresses, same sizes, same streams. Signals already hold the number of the
//! last run, so writing it again has no effect. The buffers hold garbage afterwards.

use std::{
    array,
    time::{Duration, Instant},
};

use grammar::Named;

use super::{Engine, IssueMode};
use crate::{
    ProcessGroup, Result,
    device::{Event, Stream},
    executable::{Command, ScheduledCommand},
    signals::SignalOp,
};
use hir_executor::{CallCost, HostProfile};

grammar::named_enum! {
    /// A kind of call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum CallKind {
        Memset = "memset",
        Copy = "copy",
        Copy2d = "2-D copy",
        Launch = "kernel launch",
        Matmul = "cuBLASLt",
        Attention = "attention",
        NcclGroup = "NCCL group",
        RecordEvent = "event record",
        WaitEvent = "event wait",
        Signal = "flag write",
        WaitSignal = "flag wait",
    }
}

/// Number of warm-up rounds.
const WARMUP: usize = 3;
/// Minimum and maximum number of measured rounds: as many as fit into `SPAN` on the slowest rank.
/// Disturbances of a host can last longer than a small plan takes.
const ROUNDS: [usize; 2] = [21, 201];
const SPAN: Duration = Duration::from_millis(500);
/// Minimum number of calls of a kind in a round. A kind with fewer calls in the plan is issued several times.
const CALLS: usize = 32;

impl CallKind {
    fn of(action: &Command) -> Option<Self> {
        Some(match action {
            Command::Memset { bytes: 0, .. }
            | Command::WaitOnHost(_)
            | Command::NoOp
            | Command::ReadOutputs => {
                return None;
            }
            Command::Memset { .. } => Self::Memset,
            Command::Copy { .. } => Self::Copy,
            Command::Copy2d(_) => Self::Copy2d,
            Command::Launch { .. } => Self::Launch,
            Command::Matmul(_) => Self::Matmul,
            Command::Attention(..) => Self::Attention,
            Command::NcclGroup(_) => Self::NcclGroup,
            Command::RecordEvent(_) => Self::RecordEvent,
            Command::WaitEvent(_) => Self::WaitEvent,
            Command::Signals(SignalOp::Write, _) => Self::Signal,
            Command::Signals(SignalOp::Wait, _) => Self::WaitSignal,
        })
    }

    /// Returns how often the calls of one plan are issued in a round. The number of NCCL calls must be the
    /// same on all ranks, and cuBLASLt calls keep the GPU busy for long.
    fn repetitions(self, calls: usize) -> usize {
        match self {
            Self::Matmul | Self::Attention | Self::NcclGroup => 2,
            Self::Memset
            | Self::Copy
            | Self::Copy2d
            | Self::Launch
            | Self::RecordEvent
            | Self::WaitEvent
            | Self::Signal
            | Self::WaitSignal => CALLS.div_ceil(calls.max(1)),
        }
    }
}

/// Encodes the profile for other ranks: count and time of each kind, then the run, the graph and the rounds. A graph may have no
/// nodes; if none was measured, their number is negative.
fn encode(profile: &HostProfile) -> Vec<u8> {
    let of = |kind: &CallKind| profile.calls.iter().find(|it| it.name == kind.name());
    let calls =
        CallKind::ALL.iter().flat_map(|it| of(it).map_or([0.0; 2], |it| [it.count as f64, it.microseconds]));
    let (graph, nodes) = profile.graph.map_or(([0.0; 2], -1.0), |(times, nodes)| (times, nodes as f64));
    let numbers = calls.chain(profile.run).chain(graph).chain([nodes, profile.rounds as f64]);
    numbers.flat_map(f64::to_le_bytes).collect()
}

fn decode(rank: usize, bytes: &[u8]) -> Option<HostProfile> {
    let numbers: Vec<f64> = bytes.as_chunks::<8>().0.iter().map(|it| f64::from_le_bytes(*it)).collect();
    let (calls, rest) = numbers.split_at_checked(2 * CallKind::ALL.len())?;
    let &[run, least, graph, least_graph, nodes, rounds] = rest else { return None };
    let call = |(kind, it): (&CallKind, &[f64; 2])| CallCost {
        name: kind.name(),
        count: it[0] as usize,
        microseconds: it[1],
    };
    let calls = CallKind::ALL.iter().zip(calls.as_chunks::<2>().0).map(call).filter(|it| it.count > 0);
    let graph = (nodes >= 0.0).then_some(([graph, least_graph], nodes as usize));
    Some(HostProfile { rank, rounds: rounds as usize, calls: calls.collect(), run: [run, least], graph })
}

/// Returns the number of measured rounds for all ranks; `round` is the time of one round on this rank.
fn measured_rounds(round: Duration, peers: &dyn ProcessGroup) -> Result<usize> {
    let all = peers.all_gather(&round.as_secs_f64().to_le_bytes())?;
    let slowest = all.iter().filter_map(|it| it.first_chunk::<8>()).map(|it| f64::from_le_bytes(*it));
    let rounds = SPAN.as_secs_f64() / slowest.fold(f64::MIN_POSITIVE, f64::max);
    Ok((rounds as usize).clamp(ROUNDS[0], ROUNDS[1]))
}

/// Returns the median and the minimum.
fn summary(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times.len() / 2, 0].map(|it| times.get(it).copied().unwrap_or(0.0))
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

impl Engine {
    /// Measures what issuing the plan costs the host, and returns the profile of the rank with the largest
    /// ratio. With `graph`, it also measures a replay of the captured plan. All ranks have to call this.
    ///
    /// # Errors
    /// A call fails.
    pub(super) fn profile_host(&mut self, peers: &dyn ProcessGroup, graph: bool) -> Result<HostProfile> {
        let captured = if graph { Some(self.capture(false)?) } else { None };
        let (mut runs, mut launches) = (Vec::new(), Vec::new());
        let mut bare: [Vec<f64>; CallKind::ALL.len()] = array::from_fn(|_| Vec::new());
        let mut counts = [0; CallKind::ALL.len()];
        peers.barrier()?;
        let (mut round, mut rounds, mut since) = (0, WARMUP, Instant::now());
        while round < rounds {
            let counted = round >= WARMUP;
            let time = self.time_when_idle(peers, |it| it.issue(IssueMode::Plain).map(drop))?;
            runs.extend(counted.then_some(time));
            if let Some(graph) = &captured {
                self.upload_epoch()?;
                let time = self.time_when_idle(peers, |it| it.replay(graph))?;
                launches.extend(counted.then_some(time));
            }
            for (at, kind) in CallKind::ALL.iter().copied().enumerate() {
                let (time, count) = self.time_bare_calls(kind)?;
                bare[at].extend(counted.then_some(time));
                counts[at] = count;
            }
            round += 1;
            if round + 1 == WARMUP {
                since = Instant::now();
            } else if round == WARMUP {
                rounds += measured_rounds(since.elapsed(), peers)?;
            }
        }
        let calls = CallKind::ALL.iter().zip(bare).zip(counts).filter(|it| it.1 > 0);
        let calls = calls.map(|((kind, times), count)| CallCost {
            name: kind.name(),
            count,
            microseconds: summary(times)[0] / (count * kind.repetitions(count)) as f64,
        });
        let mine = HostProfile {
            rank: self.plan().rank,
            rounds: runs.len(),
            calls: calls.collect(),
            run: summary(runs),
            graph: captured.map(|it| (summary(launches), it.nodes)),
        };
        let all = peers.all_gather(&encode(&mine))?;
        let all = all.iter().enumerate().filter_map(|(rank, bytes)| decode(rank, bytes));
        let ratio = |it: &HostProfile| it.graph_ratio().unwrap_or(it.ratio());
        Ok(all.max_by(|a, b| ratio(a).total_cmp(&ratio(b))).unwrap_or(mine))
    }

    /// Returns the host time of `issue` in microseconds, started on idle streams on all ranks at once. The
    /// streams are idle afterwards.
    fn time_when_idle(
        &mut self,
        peers: &dyn ProcessGroup,
        issue: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<f64> {
        self.reset_between_runs(peers)?;
        self.synchronize()?;
        let begin = Instant::now();
        issue(self)?;
        let time = microseconds(begin);
        self.count_run()?;
        self.synchronize()?;
        Ok(time)
    }

    /// Returns the time of all repetitions of the calls of one kind, in microseconds, and the number of these
    /// calls in one run.
    fn time_bare_calls(&self, kind: CallKind) -> Result<(f64, usize)> {
        let device = &self.device;
        let own = |it: &&ScheduledCommand| CallKind::of(&it.command) == Some(kind);
        let steps: Vec<&ScheduledCommand> = self.executable.commands.iter().filter(own).collect();
        // Include the calls that begin and end a run: the other streams wait for the main stream, and it
        // waits for them.
        let others: Vec<(Stream, Event)> =
            self.executable.streams.iter().copied().zip(self.end_events.iter().copied()).skip(1).collect();
        let edges = match kind {
            CallKind::RecordEvent => 1 + others.len(),
            CallKind::WaitEvent => 2 * others.len(),
            CallKind::Memset
            | CallKind::Copy
            | CallKind::Copy2d
            | CallKind::Launch
            | CallKind::Matmul
            | CallKind::Attention
            | CallKind::NcclGroup
            | CallKind::Signal
            | CallKind::WaitSignal => 0,
        };
        let count = steps.len() + edges;
        let passes = if count > 0 { kind.repetitions(count) } else { 0 };
        let begin = Instant::now();
        for _ in 0..passes {
            steps.iter().try_for_each(|it| self.issue_command(it, IssueMode::Plain, &mut Vec::new()))?;
            if kind == CallKind::RecordEvent {
                device.record(self.start_event, self.main_stream)?;
                others.iter().try_for_each(|(stream, end)| device.record(*end, *stream))?;
            }
            if kind == CallKind::WaitEvent {
                others.iter().try_for_each(|(stream, end)| {
                    device.wait_event(*stream, self.start_event)?;
                    device.wait_event(self.main_stream, *end)
                })?;
            }
        }
        let time = microseconds(begin);
        self.join_streams()?;
        self.synchronize()?;
        Ok((time, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_tells_the_others_what_it_has_measured() {
        let calls = |what, count, each| CallCost { name: what, count, microseconds: each };
        let host = HostProfile {
            rank: 3,
            rounds: 21,
            calls: vec![calls("copy", 8, 5.5), calls("event wait", 2, 0.5)],
            run: [90.0, 88.0],
            graph: Some(([7.0, 6.5], 12)),
        };
        assert_eq!(host.bare_cost(), 45.0);
        assert_eq!((host.ratio(), host.graph_ratio()), (2.0, Some(7.0 / 45.0)));
        assert_eq!(decode(3, &encode(&host)), Some(host.clone()));
        // A rank without work has a graph without nodes.
        for graph in [None, Some(([1.5, 1.0], 0))] {
            let other = HostProfile { graph, ..host.clone() };
            assert_eq!(decode(3, &encode(&other)), Some(other));
        }
        assert_eq!(decode(0, &[0; 8]), None);
    }

    #[test]
    fn few_calls_are_repeated_and_the_long_ones_are_not() {
        assert_eq!([1, 31, 32, 500].map(|it| CallKind::Copy.repetitions(it)), [32, 2, 1, 1]);
        assert_eq!([1, 500].map(|it| CallKind::NcclGroup.repetitions(it)), [2, 2]);
    }

    #[test]
    fn long_rounds_are_few() -> Result<()> {
        let rounds =
            |microseconds| measured_rounds(Duration::from_micros(microseconds), &hir_executor::SingleProcess);
        assert_eq!([rounds(0)?, rounds(1_000)?, rounds(5_000)?, rounds(1_000_000)?], [201, 201, 100, 21]);
        Ok(())
    }

    #[test]
    fn the_median_and_the_least() {
        assert_eq!(summary(vec![5.0, 1.0, 3.0]), [3.0, 1.0]);
        assert_eq!(summary(Vec::new()), [0.0, 0.0]);
    }
}
