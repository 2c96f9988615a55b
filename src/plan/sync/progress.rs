//! Explains why a running job makes no progress, from the last reports of its ranks.
//!
//! A rank waits on its host, on a stream or on the queue of a communicator, for its own instructions or those
//! of other ranks. Starting at the first actor that waits for another rank, the analysis follows the waits to
//! a rank that is not blocked, or around a cycle. If no such wait exists, hosts may be waiting for each other
//! in communication calls: NCCL connects ranks in their first call.

use rustc_hash::FxHashSet;

use super::{
    Actor, Blocker, InstRef, Position, WaitGraph, WaitOrder, World, WorldState, ranks_text, report_text,
    wait_graph::ranks_of,
};

/// The last report of a rank.
#[derive(Clone, Debug, Default)]
pub struct RankProgress {
    /// The phase of a rank that is not running a plan: `reading the program`.
    pub phase: String,
    /// The number of completed runs of the plan.
    pub complete: u32,
    /// The rank's position in its plan.
    pub position: Option<Position>,
}

/// The state of the ranks of a job.
pub struct JobState<'a> {
    world: &'a World,
    ranks: &'a [Option<RankProgress>],
    state: WorldState,
}

impl<'a> JobState<'a> {
    /// Combines the plans of the ranks with their last reports.
    pub fn new(world: &'a World, ranks: &'a [Option<RankProgress>]) -> Self {
        let position = |it: &Option<RankProgress>| it.as_ref().and_then(|it| it.position.clone());
        // Reports of ranks whose plan this process does not have are ignored.
        let state = ranks.iter().take(world.len()).map(position).collect();
        Self { world, ranks, state }
    }

    fn graph(&self, order: WaitOrder) -> WaitGraph<'_> {
        WaitGraph::new(self.world, &self.state, order)
    }

    /// Returns the cause, if some rank waits for another, and whether the only waits are those of hosts that
    /// connect to each other.
    pub fn cause(&self) -> (Option<String>, bool) {
        match self.trace_waits(&self.graph(WaitOrder::Blocking)) {
            Some(cause) => (Some(cause), false),
            None => (self.trace_waits(&self.graph(WaitOrder::Connecting)), true),
        }
    }

    /// Follows the waits and describes the last one that leads to another rank.
    fn trace_waits(&self, graph: &WaitGraph<'_>) -> Option<String> {
        let waits = |it: &Actor| graph.blockers(*it).iter().any(|blocker| blocker.rank != it.rank());
        let mut actor = graph.actors().find(waits)?;
        let mut seen = FxHashSet::default();
        let mut last = None;
        while seen.insert(actor) {
            let Some(blocker) = graph.blockers(actor).first().copied() else { break };
            if blocker.rank != actor.rank() {
                last = Some((actor, blocker));
            }
            match graph.blocking_actor(blocker) {
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
                report_text::describe(self.world, InstRef { rank: waiting.rank(), inst: at })
            ),
            Some(inst) => {
                let place = report_text::describe(self.world, InstRef { rank: culprit, inst });
                if graph.position(culprit).is_some_and(|it| inst < it.issued) {
                    format!("rank {culprit} has not reached {place}: {now}; {others} {verb} in it")
                } else {
                    format!("rank {culprit} has not issued {place}: it is {now}; {others} {verb} in it")
                }
            }
        })
    }

    /// Describes what a rank is doing: `at line 9; stream 1 waits at line 8 for rank 2`.
    pub fn describe_rank(&self, rank: usize, is_connecting: bool) -> String {
        let order = if is_connecting { WaitOrder::Connecting } else { WaitOrder::Blocking };
        self.describe_rank_in(&self.graph(order), rank)
    }

    fn describe_rank_in(&self, graph: &WaitGraph<'_>, rank: usize) -> String {
        let Some((plan, position)) = self.world.get(rank).zip(graph.position(rank)) else {
            let phase = self.ranks.get(rank).and_then(Option::as_ref).map(|it| it.phase.as_str());
            return match phase {
                Some(phase) if !phase.is_empty() => phase.to_owned(),
                _ => "nothing is known of it".to_owned(),
            };
        };
        let place = |inst| report_text::describe(self.world, InstRef { rank, inst });
        let mut text =
            graph.head(Actor::Host(rank)).map_or("at the end".to_owned(), |at| format!("at {}", place(at)));
        if position.round > 0 {
            text += &format!(" of run {}", position.round);
        }
        if position.streams.is_empty() {
            let complete = self.ranks.get(rank).and_then(Option::as_ref).map_or(0, |it| it.complete);
            text += &format!("; the GPU has completed {complete} runs");
        }
        let whom = |blockers: &[Blocker]| ranks_text(&ranks_of(blockers));
        for actor in graph.actors().filter(|it| it.rank() == rank) {
            let (Some(inst), blockers) = (graph.head(actor), graph.blockers(actor)) else { continue };
            let here = place(inst);
            text += &match (actor, blockers.as_slice()) {
                (Actor::Host(_), []) => continue,
                (Actor::Host(_), blockers) => format!(", waiting for {}", whom(blockers)),
                (Actor::Stream(_, stream), []) => format!("; {} runs {here}", plan.streams[stream as usize]),
                (Actor::Stream(_, stream), [Blocker { rank: other, inst: Some(first), .. }])
                    if *other == rank =>
                {
                    format!("; {} waits at {here} for {}", plan.streams[stream as usize], place(*first))
                }
                (Actor::Stream(_, stream), blockers) => {
                    format!("; {} waits at {here} for {}", plan.streams[stream as usize], whom(blockers))
                }
                (Actor::Queue(..), _) if !graph.is_posted(InstRef { rank, inst }) => continue,
                (Actor::Queue(..), []) => format!("; {here} is under way"),
                (Actor::Queue(..), blockers) => format!("; {here} waits for {}", whom(blockers)),
            };
        }
        text
    }
}
