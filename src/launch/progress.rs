//! How far a rank is, as a record that goes with every pulse of the channel.

use super::wire;

/// How long what a rank does may last before the job is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Limit {
    /// As long as it takes: the host computes.
    #[default]
    None,
    /// For the time-out: the rank waits for its GPU or for other ranks.
    Timeout,
    /// For the time-out, and for a minute at least: drivers and libraries start, which has taken ten seconds on a host of eight
    /// GPUs.
    Start,
}

/// How far a rank is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What it does, where it does not run a plan: `reading the program`.
    pub phase: String,
    /// How long that may last.
    pub limit: Limit,
    /// How far it is in its plan.
    pub run: Option<Run>,
}

/// How far a rank is in its plan. Instructions are named by their index in `Plan::code`. An executor that does not know how
/// far its streams are leaves `streams` and `queues` empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Which run of the plan the host issues, or has issued last, from 0.
    pub round: u32,
    /// Runs that are complete.
    pub complete: u32,
    /// The instruction that the host issues now; all before it are issued. The plan's length: all are.
    pub issued: u32,
    /// By stream: all instructions of the stream before this one are complete; communications are posted.
    pub streams: Vec<u32>,
    /// By communicator: all its communications before this one are complete.
    pub queues: Vec<u32>,
}

impl Progress {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let run = self.run.as_ref().map(|it| {
            let numbers = [it.round, it.complete, it.issued, it.streams.len() as u32];
            let numbers = numbers.iter().chain(&it.streams).chain(&it.queues);
            numbers.flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>()
        });
        wire::join([self.phase.as_bytes(), &[self.limit as u8], &run.unwrap_or_default()])
    }

    /// From bytes; `None` for bytes that are no record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let parts = wire::split(bytes)?;
        let [phase, limit, run] = parts.as_slice() else { return None };
        let (words, _) = run.as_chunks::<4>();
        let numbers: Vec<u32> = words.iter().map(|it| u32::from_le_bytes(*it)).collect();
        let run = match numbers.as_slice() {
            [round, complete, issued, count, rest @ ..] => {
                let (streams, queues) = rest.split_at_checked(*count as usize)?;
                Some(Run {
                    round: *round,
                    complete: *complete,
                    issued: *issued,
                    streams: streams.to_vec(),
                    queues: queues.to_vec(),
                })
            }
            _ => None,
        };
        let limits = [Limit::None, Limit::Timeout, Limit::Start];
        let limit = limits.into_iter().find(|it| *limit == [*it as u8])?;
        Some(Self { phase: String::from_utf8_lossy(phase).into_owned(), limit, run })
    }
}
