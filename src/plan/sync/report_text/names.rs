//! The names of ranks, instructions, streams and communicators in reports.

use std::{cell::Cell, sync::Arc};

use crate::{
    Communication, Communicator, Plan, SyncEffect,
    sync::{Actor, InstRef, WaitGraph, ranks_text},
};

/// The maximum number of members of a team that are listed.
const MAX_TEAM: usize = 16;

/// How a text names ranks and iterations.
pub(in crate::sync) enum Names<'a> {
    /// By numbers.
    Numbers,
    /// By words, as seen from a rank in an iteration, so that the texts of many waits are equal:
    /// `for another rank to send; that rank is at line 2`.
    Words {
        /// The rank.
        own: usize,
        /// The iteration, which is not named.
        iteration: &'a [(Arc<str>, i64)],
        /// The other rank that was named last.
        last: Cell<Option<usize>>,
    },
}

impl Names<'_> {
    /// Returns the name of a rank: `rank 3`, or `another rank`.
    pub(in crate::sync) fn rank(&self, rank: usize) -> String {
        match self {
            Self::Numbers => format!("rank {rank}"),
            Self::Words { own, .. } if rank == *own => "this rank".to_owned(),
            Self::Words { last, .. } if last.replace(Some(rank)) == Some(rank) => "that rank".to_owned(),
            Self::Words { .. } => "another rank".to_owned(),
        }
    }

    /// Returns the names of ranks; those of several ranks are always numbers.
    pub(in crate::sync) fn ranks(&self, ranks: &[usize]) -> String {
        if let [rank] = ranks { self.rank(*rank) } else { ranks_text(ranks) }
    }

    pub(super) fn origin(&self, plan: &Plan, origin: u32) -> String {
        match self {
            Self::Numbers => plan.describe_origin(origin),
            Self::Words { iteration, .. } => plan.describe_origin_within(origin, iteration),
        }
    }

    /// Describes an instruction: `P2PCommunication 38 (send, line 21, streamIdx=1)`, `line 14, i=2`,
    /// `line 9 (a resharding operator)`.
    pub(in crate::sync) fn inst(&self, plans: &[Plan], at: InstRef) -> String {
        let Some((plan, inst)) = plans.get(at.rank).and_then(|it| Some((it, it.code.get(at.inst)?))) else {
            return "the end".to_owned();
        };
        let (text, origin) = (self.origin(plan, inst.origin), &plan.origins[inst.origin as usize]);
        // Resharding statements have no name, and neither have the communications of plans without a program.
        let is_named = origin.line == 0 || origin.stmt.is_some_and(|it| plan.comm_names.line(it).is_some());
        let what = match inst.kind.effect() {
            SyncEffect::Post(_) | SyncEffect::ShareMemHandles(_) if is_named => return text,
            SyncEffect::Reshard(_) => "a resharding operator".to_owned(),
            SyncEffect::Post(Communication::Collective(it)) => it.kind.describe(),
            SyncEffect::Post(Communication::P2pGroup(_)) => "a send or receive".to_owned(),
            SyncEffect::ShareMemHandles(_) => "ShareMemHandles".to_owned(),
            SyncEffect::Barrier if !is_named => "a barrier".to_owned(),
            crate::stream_sync_effects!()
            | SyncEffect::Barrier
            | SyncEffect::HostWait(_)
            | SyncEffect::Compute
            | SyncEffect::ReadOutputs => return text,
        };
        format!("{text} ({what})")
    }
}

/// Describes an instruction, with the numbers of ranks.
pub(in crate::sync) fn describe(plans: &[Plan], at: InstRef) -> String {
    Names::Numbers.inst(plans, at)
}

/// Describes the stream or queue of a head: `, on stream 1`, ` on NCCL (0 1 2)`. Empty for a host.
pub(in crate::sync) fn site(graph: &WaitGraph<'_>, actor: Actor, at: InstRef) -> String {
    match actor {
        Actor::Host(_) => String::new(),
        Actor::Stream(..) => format!(", on {}", stream(graph, at)),
        Actor::Queue(rank, number) => {
            let it = &graph.plans[rank].communicators[number as usize];
            format!(" on {}", communicator(it))
        }
    }
}

/// Formats a communicator: `NCCL (0 1 2)`. The middle of a large team is abbreviated.
fn communicator(it: &Communicator) -> String {
    format!("{} ({})", it.backend.name(), team(&it.team))
}

pub(in crate::sync) fn team(ranks: &[usize]) -> String {
    let mut team: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    if team.len() > MAX_TEAM {
        team.splice(MAX_TEAM / 2..team.len() - 1, ["…".to_owned()]);
    }
    team.join(" ")
}

/// Formats the ordinal of a number that counts from 0: `1st`, `2nd`.
pub(in crate::sync) fn ordinal(number: u32) -> String {
    grammar::ordinal(number as usize + 1)
}

pub(super) fn stream(graph: &WaitGraph<'_>, at: InstRef) -> String {
    let plan = &graph.plans[at.rank];
    plan.stream_name(&plan.code[at.inst])
}
