//! The instructions of all ranks on their streams and queues.

use rustc_hash::FxHashMap;

use super::{
    SliceKind,
    cost::{Cost, CostModel},
    estimate::MeasuredTime,
    kind_of,
    links::{LinkUse, link_uses},
    work::{Contention, work_of},
};
use crate::{
    Plan,
    sync::{
        InstRef, WorldState,
        happens_before::{HappensBeforeGraph, first_actors},
    },
};

/// An instruction on its stream or queue: nodes `first` to `last` of the graph.
#[derive(Clone)]
pub(super) struct Item {
    pub inst_ref: InstRef,
    /// The actor, numbered as in `happens_before`.
    pub actor: u32,
    pub first: u32,
    pub last: u32,
    pub kind: SliceKind,
    /// Whether it takes time.
    pub is_work: bool,
    pub duration: Duration,
    /// How long it takes without other work beside it, in microseconds.
    pub alone: f64,
    /// How many times longer the item and a kernel that computes take while both run; 1 if it is not known.
    pub contention: f64,
    /// What the model says of it; nothing if its times are measured.
    pub cost: Cost,
    /// What it needs of the links of GPUs.
    pub links: Vec<LinkUse>,
    /// Whether it takes longer because others use the same links.
    pub shares_link: bool,
    /// Whether the item begins only when the kernel that computes at that time has ended.
    pub waits_for_kernel: bool,
    /// Whether it is in the queue of a communicator, and not on a stream.
    pub is_queued: bool,
    /// Whether nothing but itself and what is behind it in its queue waits for it, as if it were hidden.
    pub is_detached: bool,
    /// Whether the item begins, and whether it ends. False only in programs that deadlock.
    pub begins: bool,
    pub ends: bool,
}

/// How long an item takes, in microseconds.
#[derive(Clone, Copy)]
pub(super) enum Duration {
    /// This long, once nothing holds it up.
    Estimated(f64),
    /// From the first time to the second.
    Measured(f64, f64),
}

impl Duration {
    /// Returns the length.
    pub fn microseconds(self) -> f64 {
        match self {
            Self::Estimated(it) => it,
            Self::Measured(begin, end) => end - begin,
        }
    }
}

/// Returns the items of a graph, in the order of its nodes. `times` are measured, by rank, or those of a model.
pub(super) fn items_of(
    plans: &[Plan],
    graph: &HappensBeforeGraph,
    state: Option<&WorldState>,
    times: Result<&[Vec<MeasuredTime>], &CostModel<'_>>,
) -> Vec<Item> {
    let (measured, model) = (times.ok(), times.err());
    let times: Option<Vec<FxHashMap<u32, MeasuredTime>>> =
        measured.map(|all| all.iter().map(|it| it.iter().map(|it| (it.inst, *it)).collect()).collect());
    let mut estimated: FxHashMap<usize, Vec<Cost>> = FxHashMap::default();
    let first = first_actors(plans);
    let mut items: Vec<Item> = Vec::new();
    for (number, node) in graph.nodes.iter().enumerate() {
        let number = number as u32;
        if let Some(last) =
            items.last_mut().filter(|it| it.inst_ref == node.inst_ref && it.actor == node.actor)
        {
            last.last = number;
            continue;
        }
        let InstRef { rank, inst } = node.inst_ref;
        let plan = &plans[rank];
        let instruction = &plan.code[inst];
        let kind = if node.is_post { SliceKind::Wait } else { kind_of(plan, instruction) };
        let mut cost = Cost::NONE;
        let duration = match &times {
            _ if node.is_post => Duration::Estimated(0.0),
            None => {
                let of_rank = estimated
                    .entry(rank)
                    .or_insert_with(|| model.map(|it| it.durations(plan)).unwrap_or_default());
                cost = of_rank.get(inst).copied().unwrap_or(Cost::NONE);
                Duration::Estimated(cost.microseconds)
            }
            Some(times) => {
                let time = times.get(rank).and_then(|it| it.get(&(inst as u32)));
                time.map_or(Duration::Estimated(0.0), |it| Duration::Measured(it.begin, it.end))
            }
        };
        let is_work = !matches!(duration, Duration::Estimated(0.0)) && kind != SliceKind::Wait;
        let machine = model.map(|it| it.machine).filter(|_| is_work && kind == SliceKind::Communication);
        let links = machine
            .map(|it| link_uses(plan, inst, duration.microseconds(), it.link_bandwidth()))
            .unwrap_or_default();
        let machine = machine.filter(|it| !it.is_nominal());
        let work = machine.and_then(|machine| Some((machine, work_of(plan, inst)?)));
        let contention = work.as_ref().map_or(1.0, |(machine, work)| machine.contention_factor(work));
        let waits_for_kernel = work.is_some_and(|(_, work)| work.contention() == Some(Contention::Nccl));
        let (mut begins, mut ends) = (true, true);
        let at = (node.actor - first[rank]) as usize;
        if let Some(Some(position)) = state.map(|it| &it[rank]) {
            let done = position.streams.iter().chain(&position.queues).nth(at).copied().unwrap_or(0);
            (begins, ends) = (inst < position.issued, inst < done);
        }
        let (first, last) = (number, number);
        items.push(Item {
            inst_ref: node.inst_ref,
            actor: node.actor,
            first,
            last,
            kind,
            is_work,
            duration,
            alone: duration.microseconds(),
            contention,
            cost,
            links,
            shares_link: false,
            waits_for_kernel,
            is_queued: at >= plan.streams.len(),
            is_detached: false,
            begins,
            ends,
        });
    }
    items
}
