//! How far a rank is, as a record that goes with every heartbeat of the channel.

use serde::{Deserialize, Serialize};

use super::message::{self, MAX_CONTENT};

/// How long what a rank does may last before the job is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseLimit {
    /// As long as it takes: the host computes.
    #[default]
    None,
    /// For the time-out: the rank waits for its GPU or for other ranks.
    Timeout,
    /// For the time-out, and for a minute at least: drivers and libraries start, which has taken ten seconds on a host of eight
    /// GPUs.
    Startup,
}

/// How far a rank is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgress {
    /// What it does, where it does not run a plan: `reading the program`.
    pub phase: String,
    /// How long that may last.
    pub limit: PhaseLimit,
    /// How far it is in its plan.
    pub plan: Option<PlanProgress>,
}

/// How far a rank is in its plan. Instructions are named by their index in `Plan::code`. An executor that does not know how
/// far its streams are leaves `streams` and `queues` empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanProgress {
    /// Which run of the plan the host issues, or has issued last, from 0.
    pub round: u32,
    /// Runs that are complete.
    pub completed_rounds: u32,
    /// The instruction that the host issues now; all before it are issued. The plan's length: all are.
    pub issued: u32,
    /// By stream: all instructions of the stream before this one are complete; communications are posted.
    pub streams: Vec<u32>,
    /// By communicator: all its communications before this one are complete.
    pub queues: Vec<u32>,
}

impl RankProgress {
    /// As bytes that fit into a heartbeat.
    pub fn encode(&self) -> Vec<u8> {
        let fits = |it: &Self| message::encode(it).ok().filter(|it| it.len() <= MAX_CONTENT);
        // Of a plan with very many streams, only the host's position is reported.
        let host = || {
            let run =
                self.plan.as_ref().map(|it| PlanProgress { streams: Vec::new(), queues: Vec::new(), ..*it });
            fits(&Self { phase: self.phase.chars().take(200).collect(), limit: self.limit, plan: run })
        };
        fits(self).or_else(host).unwrap_or_default()
    }

    /// From bytes; `None` for bytes that are no record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        message::decode(bytes).ok()
    }
}
