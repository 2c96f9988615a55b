//! Why a job that runs gets no further: from what its ranks last said of themselves.
//!
//! A rank waits on its host, on a stream, or on a communicator's queue, for instructions of its own or of other ranks. From
//! the first rank that waits for another, the report follows these waits to a rank that nothing holds up, or round a cycle.
//! Where nobody waits so, hosts may be waiting for each other at communications: NCCL connects ranks in their first call.

use rustc_hash::FxHashSet;

use super::{
    Actor, Blocker, CommMatching, InstRef, Position, WaitGraph, WorldState, ranks_text, report_text,
    wait_graph::ranks_of,
};
use crate::plan::Plan;

/// What a rank of a job last said.
#[derive(Clone, Debug, Default)]
pub struct RankProgress {
    /// What it does, where it does not run a plan: `reading the program`.
    pub phase: String,
    /// Runs of the plan that are complete.
    pub complete: u32,
    /// How far it is in its plan.
    pub position: Option<Position>,
}

/// The ranks of a job.
pub struct JobState<'a> {
    plans: &'a [Plan],
    ranks: &'a [Option<RankProgress>],
    matched: CommMatching,
    state: WorldState,
}

impl<'a> JobState<'a> {
    /// A job of ranks that run these plans, and what is known of each.
    pub fn new(plans: &'a [Plan], ranks: &'a [Option<RankProgress>]) -> Self {
        let position = |it: &Option<RankProgress>| it.as_ref().and_then(|it| it.position.clone());
        // What a rank says of a plan that this process does not have cannot be told.
        let state = ranks.iter().take(plans.len()).map(position).collect();
        Self { plans, ranks, matched: CommMatching::from_plans(plans), state }
    }

    fn graph(&self, hosts_connect: bool) -> WaitGraph<'_> {
        WaitGraph { plans: self.plans, matched: &self.matched, state: &self.state, hosts_connect }
    }

    /// The cause, if some rank waits for another; and whether the only waits are those of hosts that connect.
    pub fn cause(&self) -> (Option<String>, bool) {
        match self.trace_waits(&self.graph(false)) {
            Some(cause) => (Some(cause), false),
            None => (self.trace_waits(&self.graph(true)), true),
        }
    }

    /// The last step to another rank on the way from a wait to what holds it up.
    fn trace_waits(&self, graph: &WaitGraph<'_>) -> Option<String> {
        let waits = |it: &Actor| graph.blockers(*it).iter().any(|need| need.rank != it.rank());
        let mut actor = graph.actors().find(waits)?;
        let mut seen = FxHashSet::default();
        let mut last = None;
        while seen.insert(actor) {
            let Some(need) = graph.blockers(actor).first().copied() else { break };
            if need.rank != actor.rank() {
                last = Some((actor, need));
            }
            match graph.blocking_actor(need) {
                Some(next) => actor = next,
                None => break,
            }
        }
        let (waiting, Blocker { rank: culprit, inst: missing, .. }) = last?;
        let at = graph.head(waiting)?;
        let same = |it: &Blocker| (it.rank, it.inst) == (culprit, missing);
        let mut others: Vec<usize> = graph
            .actors()
            .filter(|it| it.rank() != culprit && graph.blockers(*it).iter().any(same))
            .map(Actor::rank)
            .collect();
        others.dedup();
        let verb = if others.len() == 1 { "waits" } else { "wait" };
        let (others, now) = (ranks_text(&others), self.describe_rank_in(graph, culprit));
        Some(match missing {
            None => format!(
                "rank {culprit} takes no part in {}, where {others} {verb} for it; it is {now}",
                report_text::describe(self.plans, InstRef { rank: waiting.rank(), inst: at })
            ),
            Some(inst) => {
                let place = report_text::describe(self.plans, InstRef { rank: culprit, inst });
                match graph.position(culprit).is_some_and(|it| inst < it.issued) {
                    true => format!("rank {culprit} has not reached {place}: {now}; {others} {verb} in it"),
                    false => {
                        format!("rank {culprit} has not issued {place}: it is {now}; {others} {verb} in it")
                    }
                }
            }
        })
    }

    /// What a rank was doing: `at line 9; stream 1 waits at line 8 for rank 2`.
    pub fn describe_rank(&self, rank: usize, is_connecting: bool) -> String {
        self.describe_rank_in(&self.graph(is_connecting), rank)
    }

    fn describe_rank_in(&self, graph: &WaitGraph<'_>, rank: usize) -> String {
        let Some((plan, position)) = self.plans.get(rank).zip(graph.position(rank)) else {
            let phase = self.ranks.get(rank).and_then(Option::as_ref).map(|it| it.phase.as_str());
            return match phase {
                Some(phase) if !phase.is_empty() => phase.to_owned(),
                _ => "nothing is known of it".to_owned(),
            };
        };
        let place = |inst| report_text::describe(self.plans, InstRef { rank, inst });
        let mut text =
            graph.head(Actor::Host(rank)).map_or("at the end".to_owned(), |at| format!("at {}", place(at)));
        if position.round > 0 {
            text += &format!(" of run {}", position.round);
        }
        if position.streams.is_empty() {
            let complete = self.ranks.get(rank).and_then(Option::as_ref).map_or(0, |it| it.complete);
            text += &format!("; the GPU has completed {complete} runs");
        }
        let whom = |needs: &[Blocker]| ranks_text(&ranks_of(needs));
        for actor in graph.actors().filter(|it| it.rank() == rank) {
            let (Some(inst), needs) = (graph.head(actor), graph.blockers(actor)) else { continue };
            let here = place(inst);
            text += &match (actor, needs.as_slice()) {
                (Actor::Host(_), []) => continue,
                (Actor::Host(_), needs) => format!(", waiting for {}", whom(needs)),
                (Actor::Stream(_, stream), []) => format!("; {} runs {here}", plan.streams[stream as usize]),
                (Actor::Stream(_, stream), [Blocker { rank: other, inst: Some(first), .. }])
                    if *other == rank =>
                {
                    format!("; {} waits at {here} for {}", plan.streams[stream as usize], place(*first))
                }
                (Actor::Stream(_, stream), needs) => {
                    format!("; {} waits at {here} for {}", plan.streams[stream as usize], whom(needs))
                }
                (Actor::Queue(..), _) if !graph.is_posted(InstRef { rank, inst }) => continue,
                (Actor::Queue(..), []) => format!("; {here} is under way"),
                (Actor::Queue(..), needs) => format!("; {here} waits for {}", whom(needs)),
            };
        }
        text
    }
}
