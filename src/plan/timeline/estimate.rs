//! Computes a timeline from the plans of all ranks, with estimated or measured times.
//!
//! Communications and copies that use the same link of a GPU at the same time share it (`links`). With the measured times of a
//! machine, a communication and a kernel that run at the same time slow each other down.
//! Issuing takes no time. If the plans deadlock, what never ends has no end.

use rustc_hash::FxHashMap;

use super::{
    SliceKind, Timeline,
    cost::CostModel,
    items::{Duration, Item, items_of},
    links::{Representatives, lost_on_links, slowed},
    times::{Latency, Times},
    work::{Contention, work_of},
};
use crate::{
    Plan, World,
    sync::{
        Symmetry,
        happens_before::{HappensBeforeGraph, OrderError},
        is_large_world,
    },
};

/// Maximum number of times that the times of work are adapted to what runs beside it.
const MAX_ROUNDS: usize = 8;
/// A change that is not worth another round, in microseconds.
const SMALLEST_CHANGE: f64 = 0.05;

/// When an instruction ran, in microseconds on a clock that all ranks share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredTime {
    /// The index of the instruction in `Plan::code`.
    pub inst: u32,
    /// When it began.
    pub begin: f64,
    /// When it ended.
    pub end: f64,
}

/// Estimates when each instruction of all ranks runs.
///
/// Time is proportional to the number of instructions and of orders between them, times the logarithm of the
/// number of instructions. In a large world, only one rank of each class of ranks with the same times is estimated, and has
/// rows (`Timeline::classes`).
///
/// # Errors
/// The world has too many streams.
pub fn estimate_with(world: &World, model: &CostModel<'_>) -> Result<Timeline, OrderError> {
    Estimation::of_world(world, model).map(|it| it.1)
}

/// As `estimate_with`, for one rank of each class in a world of any size.
///
/// # Errors
/// The world has too many streams, and no classes.
pub fn estimate_representatives(world: &World, model: &CostModel<'_>) -> Result<Timeline, OrderError> {
    Estimation::of(world, model, symmetry_of(world, model)).map(|it| it.1)
}

/// Returns the classes of ranks with the same times, if the plans do not deadlock and some class has several ranks.
fn symmetry_of(world: &World, model: &CostModel<'_>) -> Option<Symmetry> {
    if world.deadlocked_state().is_some() {
        return None;
    }
    let traits = |plan: &Plan, key: &mut Vec<u64>| {
        for (inst, cost) in model.durations(plan).into_iter().enumerate() {
            key.extend([cost.microseconds, cost.skew, cost.crowding].map(f64::to_bits));
            let machine = model.machine;
            if let Some(work) = work_of(plan, inst).filter(|_| !machine.is_nominal()) {
                key.push(machine.contention_factor(&work).to_bits());
                key.push(u64::from(work.contention() == Some(Contention::Nccl)));
            }
        }
    };
    Symmetry::of(world, &traits).filter(|it| it.classes().len() < world.len())
}

/// The instructions of a world with their estimated times, which may be estimated again with other times of some instructions.
pub(super) struct Estimation<'w> {
    world: &'w World,
    graph: HappensBeforeGraph,
    latency: Latency,
    classes: Vec<Vec<usize>>,
    /// With the times that they have beside each other.
    pub items: Vec<Item>,
}

impl<'w> Estimation<'w> {
    /// As `estimate_with`: with the classes that a large world has.
    ///
    /// # Errors
    /// The world has too many streams.
    pub fn of_world(world: &'w World, model: &CostModel<'_>) -> Result<(Self, Timeline), OrderError> {
        let symmetry = if is_large_world(world) { symmetry_of(world, model) } else { None };
        Self::of(world, model, symmetry)
    }

    fn of(
        world: &'w World,
        model: &CostModel<'_>,
        symmetry: Option<Symmetry>,
    ) -> Result<(Self, Timeline), OrderError> {
        let graph = match &symmetry {
            Some(it) => HappensBeforeGraph::of_representatives(world, it),
            None => HappensBeforeGraph::of(world)?,
        };
        let mut items = items_of(world, &graph, world.deadlocked_state(), Err(model));
        let latency = Latency { start: model.machine.run_us, event: model.machine.event_us };
        let classes = symmetry.as_ref().map(|it| it.classes().to_vec()).unwrap_or_default();
        let it = Self { world, graph, latency, classes, items: Vec::new() };
        let timeline = it.settle(&mut items, model.source());
        let load = CostModel::load_of(timeline.end());
        if model.load == 0.0 && load > 0.0 && !model.machine.sustained.is_empty() {
            return Self::of(world, &CostModel { load, ..*model }, symmetry);
        }
        Ok((Self { items, ..it }, Timeline { error: model.machine.error(), ..timeline }))
    }

    /// Adapts the times of items to what runs beside them, and returns the timeline.
    pub fn settle(&self, items: &mut [Item], source: String) -> Timeline {
        let representatives = Representatives::of(&self.classes);
        let (ranks, mut round) = (self.world.len(), 0);
        loop {
            let times = Times::of(&self.graph, items, ranks, self.latency);
            let beside = times_beside(&times, ranks, &representatives);
            let change = |(item, new): (&Item, &Beside)| (new.time - item.duration.microseconds()).abs();
            let most = items.iter().zip(&beside).map(change).fold(0.0, f64::max);
            if round == MAX_ROUNDS || most <= SMALLEST_CHANGE {
                let state = self.world.deadlocked_state();
                return times.timeline(self.world, state, source, self.classes.clone());
            }
            for (item, new) in items.iter_mut().zip(beside) {
                (item.duration, item.shares_link) = (Duration::Estimated(new.time), new.shares_link);
            }
            round += 1;
        }
    }
}

/// What the work beside an item makes of it.
struct Beside {
    /// How long the item takes.
    time: f64,
    /// Whether communication on its links slows it down most.
    shares_link: bool,
}

/// Returns the time of each item with the kernels and communications beside it, at the present times of all. While a kernel and
/// a communication run at the same time, each progresses at 1 / contention of its speed. Of what slows a communication down,
/// kernels and other communications on its links, the slower one counts.
fn times_beside(times: &Times<'_>, ranks: usize, representatives: &Representatives) -> Vec<Beside> {
    let alone = |it: &Item| Beside { time: it.alone, shares_link: false };
    let mut found: Vec<Beside> = times.items.iter().map(alone).collect();
    // By rank: the items, as (begin, end, number).
    let mut kernels = vec![Vec::new(); ranks];
    let mut communications = vec![Vec::new(); ranks];
    // By communication: how long it does not progress.
    let mut beside: FxHashMap<usize, f64> = FxHashMap::default();
    for (number, it) in times.items.iter().enumerate().filter(|it| it.1.is_work) {
        let [begin, end] = [it.first, it.last].map(|it| times.times[it as usize]);
        let Some((begin, end)) = begin.zip(end) else { continue };
        match it.kind {
            SliceKind::Compute => kernels[it.inst_ref.rank].push((begin, end, number)),
            SliceKind::Communication if it.contention > 1.0 => {
                communications[it.inst_ref.rank].push((begin, end, number));
            }
            SliceKind::Communication | SliceKind::DataMovement | SliceKind::Wait => {}
        }
    }
    for (mut kernels, communications) in kernels.into_iter().zip(communications) {
        // Kernels of a rank run one after another.
        kernels.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (begin, end, number) in communications {
            let lost = 1.0 - 1.0 / times.items[number].contention;
            let first = kernels.partition_point(|it| it.1 <= begin);
            for (from, to, kernel) in kernels.iter().skip(first).take_while(|it| it.0 < end) {
                let both = (end.min(*to) - begin.max(*from)).max(0.0);
                *beside.entry(number).or_default() += both * lost;
                found[*kernel].time += both * lost;
            }
        }
    }
    for (number, on_links) in lost_on_links(times, representatives) {
        let lost = beside.entry(number).or_default();
        found[number].shares_link = on_links > *lost;
        *lost = lost.max(on_links);
    }
    for (number, lost) in beside {
        found[number].time = slowed(&times.items[number], lost);
    }
    found
}

/// Returns the timeline of a run whose times were measured, by rank. Instructions without a time take none:
/// they only order others, or run in the kernel of another instruction. `source` says where the times come
/// from.
///
/// # Errors
/// The world has too many streams.
pub fn measured(
    world: &World,
    measured: &[Vec<MeasuredTime>],
    source: String,
) -> Result<Timeline, OrderError> {
    let graph = HappensBeforeGraph::of(world)?;
    let state = world.deadlocked_state();
    let items = items_of(world, &graph, state, Ok(measured));
    let times = Times::of(&graph, &items, world.len(), Latency::default());
    Ok(Timeline { is_measured: true, ..times.timeline(world, state, source, Vec::new()) })
}
