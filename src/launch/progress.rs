//! The progress of a rank, as a record that every heartbeat of the channel carries.

use serde::{Deserialize, Serialize};

use super::message::{self, MAX_CONTENT};

/// The time limit of a phase, after which the job is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PhaseLimit {
    /// No limit: the host computes.
    #[default]
    None,
    /// The time-out of the job: the rank waits for its GPU or for other ranks.
    Timeout,
    /// The time-out of the job, and at least a minute: drivers and libraries start. This has taken ten
    /// seconds on a host of eight GPUs.
    Startup,
}

/// The progress of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProgress {
    /// The current phase, as in `reading the program`, while the rank does not run a plan.
    pub phase: String,
    /// The time limit of the phase.
    pub limit: PhaseLimit,
    /// The progress in the plan, while the rank runs one.
    pub plan: Option<PlanProgress>,
}

/// The progress of a rank in its plan. Instructions are identified by their index in `Plan::code`. An
/// executor that does not know the progress of its streams leaves `streams` and `queues` empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanProgress {
    /// Index, from 0, of the run of the plan that the host issues, or has issued last.
    pub round: u32,
    /// Number of complete runs.
    pub completed_rounds: u32,
    /// The instruction that the host is issuing; all before it are issued. Equal to the length of the plan if
    /// all are.
    pub issued: u32,
    /// For each stream, an instruction such that all earlier instructions of the stream are complete. A
    /// communication counts as complete when it is posted.
    pub streams: Vec<u32>,
    /// For each communicator, an instruction such that all its earlier communications are complete.
    pub queues: Vec<u32>,
}

impl RankProgress {
    /// Returns the record as bytes that fit into a heartbeat.
    pub fn encode(&self) -> Vec<u8> {
        let fits = |it: &Self| message::encode(it).ok().filter(|it| it.len() <= MAX_CONTENT);
        // For a plan with very many streams, only the host's position is reported.
        let host = || {
            let run =
                self.plan.as_ref().map(|it| PlanProgress { streams: Vec::new(), queues: Vec::new(), ..*it });
            fits(&Self { phase: self.phase.chars().take(200).collect(), limit: self.limit, plan: run })
        };
        fits(self).or_else(host).unwrap_or_default()
    }

    /// Decodes a record. Returns `None` if the bytes are not a valid record.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        message::decode(bytes).ok()
    }
}
