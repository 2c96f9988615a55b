//! Compares three views of random plans with random synchronisation: the checker's findings, all orders of
//! conflicting steps, and the simulator's own schedules.
//!
//! * The simulator can run every order that `check::Orders` lists.
//! * If the list is complete, no schedule of the simulator, which does not use the list, gives a result that
//!   none of the orders gives.
//! * For small worlds, all orders that the synchronisation allows are run, equivalent or not. They give
//!   exactly the results of the listed orders.
//! * Checked in groups of ranks that share no memory, as a large world is, they have the same races.
//! * Each race that the checker finds is a pair of instructions whose steps conflict, and has an order that
//!   shows it. For each buffer with conflicting steps, the checker finds a race.
//!
//! `HIR_EXPLORE=20000` tries more worlds, `HIR_SEED=7` others.

use std::{collections::BTreeSet, io::Write, sync::Arc};

use grammar::{dtype::DType, ops::Op};
use hir::{
    check::{Orders, Party, Race, StepOrder, races, races_in_groups},
    plan::{
        Arg, Backend, Buffer, Collective, CollectiveKind, Communicator, Direction, Inst, InstKind, IoBinding,
        Number, Origin, P2pGroup, P2pOp, Plan, PlanStream, ReduceOp, Shard, ShardLayout, SignalId,
        SignalKind, View, ViewOnRank, World, sync,
    },
    sim::{self, Schedule, SimError, SimOptions},
};
use libtest_mimic::{Failed, Trial};

use crate::{rng::Rng, setting::number_or};

/// Default number of worlds.
const WORLDS: usize = 1500;
/// Maximum number of listed orders per world.
const MAX_ORDERS: usize = 400;
/// Maximum number of orders to run for a small world, including equivalent ones.
const MAX_EXHAUSTIVE_ORDERS: usize = 300;
/// Number of seeded schedules per world.
const SEEDS: u64 = 24;
/// Number of elements per buffer.
const LEN: usize = 3;
/// Number of buffers per rank. The first is the output.
const BUFFERS: usize = 3;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let (count, seed) = (number_or("HIR_EXPLORE", WORLDS), number_or("HIR_SEED", 0) * 1_000_000);
    let all = move || {
        let mut seen = WorldCounts::default();
        for seed in (0..count).map(|at| (seed + at) as u64) {
            seen.world(seed).map_err(|fault| format!("seed {seed}: {fault}"))?;
        }
        if std::env::var("HIR_EXPLORE").is_ok() {
            let _ = writeln!(std::io::stderr(), "{seen:?}");
        }
        // Worlds of one kind prove nothing about the other kinds.
        let is_enough = [
            seen.with_pairs,
            seen.race_free,
            seen.racing,
            seen.complete,
            seen.nondeterministic,
            seen.exhaustive,
        ]
        .iter()
        .all(|it| it * 20 > count);
        if is_enough { Ok(()) } else { Err(Failed::from(format!("of {count} worlds: {seen:?}"))) }
    };
    vec![Trial::test("checker_orders_and_schedules_agree", all)]
}

/// The number of worlds by outcome.
#[derive(Debug, Default)]
struct WorldCounts {
    /// Worlds with a communicator for each pair of ranks.
    with_pairs: usize,
    /// Worlds that deadlock.
    deadlocked: usize,
    /// Worlds without a race.
    race_free: usize,
    /// Worlds with a race.
    racing: usize,
    /// Worlds with a race all of whose listed orders were run.
    complete: usize,
    /// Worlds of `complete` that give several results.
    nondeterministic: usize,
    /// Worlds for which all orders were run, including equivalent ones.
    exhaustive: usize,
}

/// Returns races in an order that does not depend on how they were found.
fn all_texts(races: &[Race]) -> BTreeSet<String> {
    races.iter().map(|it| format!("{it:?}")).collect()
}

impl WorldCounts {
    fn world(&mut self, seed: u64) -> Result<(), String> {
        let mut plans = World::new(plans(seed));
        // Half of the worlds have the communicators of pairs, if they have transfers that are in no group.
        if seed % 2 == 1
            && let Some(pairs) = plans.with_pair_communicators()
        {
            self.with_pairs += 1;
            plans = pairs;
        }
        if plans.deadlocked_state().is_some() {
            self.deadlocked += 1;
            return Ok(());
        }
        let steps = || StepOrder::of(&plans).map_err(|it| it.to_string());
        let run = |schedule: &Schedule| result(&plans, schedule);
        let mut orders = Orders::new(steps()?, MAX_ORDERS);
        let mut results = BTreeSet::new();
        for (number, steps) in orders.by_ref().enumerate() {
            let name = format!("order {number}").into();
            results.insert(run(&Schedule::Steps { name, steps: steps.into() })?);
        }
        let schedules = [Schedule::Program, Schedule::Adversarial].into_iter();
        for schedule in
            schedules.chain((0..SEEDS).map(Schedule::Seed)).filter(|_| orders.truncation().is_none())
        {
            let found = run(&schedule)?;
            if !results.contains(&found) {
                return Err(format!("{schedule} gives a result of no order:\n{found}\n{}", show(&plans)));
            }
        }
        if let Some(all) = all_orders(&plans).filter(|_| orders.truncation().is_none()) {
            self.exhaustive += 1;
            let mut found = BTreeSet::new();
            for steps in all {
                found.insert(run(&Schedule::Steps { name: "brute force".into(), steps: steps.into() })?);
            }
            if found != results {
                return Err(format!(
                    "all orders give {} results, the listed orders {}\n{}",
                    found.len(),
                    results.len(),
                    show(&plans)
                ));
            }
        }
        let listed = steps()?;
        let conflicts = listed.conflicts.clone();
        let races = races(&plans);
        let in_groups = races_in_groups(&plans).ok_or("the groups of ranks were not checked")?;
        if all_texts(&races) != all_texts(&in_groups) {
            return Err(format!(
                "groups of ranks have the races {in_groups:?}, and not {races:?}\n{}",
                show(&plans)
            ));
        }
        let places = |step: sync::Step| {
            let touched = step.accesses(&plans).into_iter();
            touched.map(|it| (it.rank, it.view.buffer)).collect::<BTreeSet<_>>()
        };
        for race in &races {
            let [Party::Inst(a) | Party::Operation(a, _), Party::Inst(b) | Party::Operation(b, _)] =
                race.parties.map(|it| it.0)
            else {
                continue;
            };
            // A collective over its own input is wrong in every order.
            if a == b {
                continue;
            }
            let is_pair = |(x, y): &(usize, usize)| {
                let [x, y] = [x, y].map(|it| listed.steps[*it].inst_ref);
                (x, y) == (a, b) || (y, x) == (a, b)
            };
            if !conflicts.iter().any(is_pair) {
                return Err(format!(
                    "{race:?} is reported as a race, but no steps of the two instructions conflict\n{}",
                    show(&plans)
                ));
            }
            let shown = listed.witness(race).ok_or("a race without a witness")?;
            if shown.last().is_none_or(|it| it.inst_ref != a && it.inst_ref != b) {
                return Err(format!("the witness of {race:?} does not end with one of its sides"));
            }
        }
        for (a, b) in &conflicts {
            let [a, b] = [a, b].map(|it| places(listed.steps[*it]));
            if !races.iter().any(|it| a.contains(&(it.rank, it.buffer)) && b.contains(&(it.rank, it.buffer)))
            {
                return Err(format!("steps conflict, but the checker finds no race there\n{}", show(&plans)));
            }
        }
        if conflicts.is_empty() {
            self.race_free += 1;
            return if results.len() == 1 {
                Ok(())
            } else {
                Err("no conflict but several results".to_owned())
            };
        }
        self.racing += 1;
        for (early, late) in conflicts {
            let ahead = listed.prefix_with_late_first(early, late);
            let shown = run(&Schedule::Steps { name: "ahead".into(), steps: ahead.into() })?;
            if orders.truncation().is_none() && !results.contains(&shown) {
                return Err(format!("a witness gives a result that no order gives\n{}", show(&plans)));
            }
        }
        self.complete += usize::from(orders.truncation().is_none());
        self.nondeterministic += usize::from(orders.truncation().is_none() && results.len() > 1);
        Ok(())
    }
}

/// Returns all orders of the steps that touch memory, or `None` if there are too many.
fn all_orders(plans: &World) -> Option<Vec<Vec<sync::Step>>> {
    let graph = sync::happens_before::HappensBeforeGraph::of(plans).ok()?;
    let touches = |it: &sync::Step| !it.accesses(plans).is_empty();
    let steps: Vec<(u32, sync::Step)> =
        (0..).zip(&graph.nodes).filter_map(|(number, it)| Some((number, it.step.filter(touches)?))).collect();
    // For each step, the steps that must precede it.
    let mut first: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); graph.nodes.len()];
    for node in graph.topological_order() {
        let before = &graph.predecessors[node as usize];
        first[node as usize] =
            before.iter().flat_map(|it| first[*it as usize].iter().chain([it])).copied().collect();
    }
    let mut all = Vec::new();
    let mut open = vec![Vec::<usize>::new()];
    while let Some(done) = open.pop() {
        if done.len() == steps.len() {
            all.push(done.iter().map(|it| steps[*it].1).collect());
            if all.len() > MAX_EXHAUSTIVE_ORDERS {
                return None;
            }
            continue;
        }
        let is_done = |number: u32| done.iter().any(|it| steps[*it].0 == number);
        let is_step = |number: &u32| steps.iter().any(|it| it.0 == *number);
        for (at, (number, _)) in steps.iter().enumerate().filter(|it| !is_done(it.1.0)) {
            if first[*number as usize].iter().filter(|it| is_step(it)).all(|it| is_done(*it)) {
                open.push(done.iter().copied().chain([at]).collect());
            }
        }
    }
    Some(all)
}

fn show(plans: &[Plan]) -> String {
    plans.iter().map(hir::plan::plan_text).collect()
}

/// Runs the plans and returns the outputs and the final contents of all memory.
fn result(plans: &World, schedule: &Schedule) -> Result<String, String> {
    let place = |rank, buffer| ViewOnRank { rank, view: View::contiguous(buffer, vec![LEN]) };
    let watch =
        (0..plans.len()).flat_map(|rank| (0..BUFFERS as u32).map(move |it| place(rank, it))).collect();
    let options = SimOptions { watch, ..SimOptions::default() };
    match sim::run(plans, vec![Vec::new(); plans.len()], schedule, &options) {
        Ok(it) => Ok(format!("{:?}\n{:?}", it.outputs, it.watched)),
        Err(fault @ (SimError::Deadlock(_) | SimError::Program { .. })) => {
            Err(format!("{schedule}: {fault}"))
        }
        Err(fault @ (SimError::Unsupported { .. } | SimError::StepNotReady(_) | SimError::Internal(_))) => {
            Err(format!("{schedule}: {fault}\n{}", show(plans)))
        }
    }
}

/// A builder of random plans for two or three ranks with two streams each.
struct WorldBuilder {
    rng: Rng,
    plans: Vec<Plan>,
    numbers: u32,
    /// Communications without a Wait so far: rank and work.
    not_awaited: Vec<(usize, u32)>,
}

fn plans(seed: u64) -> Vec<Plan> {
    let mut rng = Rng(seed ^ 0x0e_c5);
    let ranks = 2 + rng.below(2);
    let plan = |rank| {
        let mut plan = Plan {
            communicators: vec![Communicator {
                backend: Backend::Nccl,
                team: (0..ranks).collect(),
                is_of_pair: false,
            }],
            ..Plan::empty(rank, ranks, vec![PlanStream::Entry, PlanStream::Indexed(1)])
        };
        for name in ["T0", "T1", "T2"] {
            plan.buffers.push(Buffer { name: name.into(), dtype: DType::Float, len: LEN });
        }
        plan.outputs.push(IoBinding {
            name: "T0".into(),
            dtype: DType::Float,
            shard: Shard { view: Some(View::contiguous(0, vec![LEN])), layout: ShardLayout::whole(&[LEN]) },
            printed_axes: None,
            broadcast: vec![false],
            is_compared_per_rank: true,
        });
        plan
    };
    let mut world =
        WorldBuilder { rng, plans: (0..ranks).map(plan).collect(), numbers: 0, not_awaited: Vec::new() };
    for rank in 0..ranks {
        let to = Box::new(View::contiguous(1, vec![LEN]));
        world.on(rank, 0, InstKind::Fill { to, value: Number::Int(rank as i64 + 1) });
        if world.rng.below(2) == 0 {
            world.join(rank, 0, 1);
        }
    }
    for _ in 0..2 + world.rng.below(5) {
        world.step();
    }
    for (rank, work) in std::mem::take(&mut world.not_awaited) {
        if world.rng.below(3) > 0 {
            world.on(rank, 0, InstKind::Wait { work });
        }
    }
    for rank in 0..ranks {
        if world.rng.below(3) > 0 {
            world.join(rank, 1, 0);
        }
        world.on(rank, 0, InstKind::ReadOutputs);
    }
    world.plans
}

impl WorldBuilder {
    fn on(&mut self, rank: usize, stream: u32, kind: InstKind) {
        let plan = &mut self.plans[rank];
        let origins = Arc::make_mut(&mut plan.origins);
        let line = 1000 * rank as u32 + origins.len() as u32;
        origins.push(Origin { stmt: None, line, iteration: None });
        plan.code.push(Inst { kind, stream, origin: plan.origins.len() as u32 - 1 });
    }

    fn work(&mut self, rank: usize) -> u32 {
        self.plans[rank].work_count += 1;
        let work = self.plans[rank].work_count as u32 - 1;
        self.not_awaited.push((rank, work));
        work
    }

    /// Makes stream `to` wait for stream `from`.
    fn join(&mut self, rank: usize, from: u32, to: u32) {
        self.plans[rank].event_count += 1;
        let event = self.plans[rank].event_count as u32 - 1;
        self.on(rank, from, InstKind::RecordEvent { event });
        self.on(rank, to, InstKind::WaitEvent { event });
    }

    /// Makes the host wait for a stream, as planning does: what is issued afterwards to the other stream follows, too.
    fn host_wait(&mut self, rank: usize, stream: u32) {
        self.plans[rank].event_count += 1;
        let event = self.plans[rank].event_count as u32 - 1;
        self.on(rank, stream, InstKind::RecordEvent { event });
        self.on(rank, stream, InstKind::HostWait { event });
        self.on(rank, 1 - stream, InstKind::WaitEvent { event });
    }

    fn stream(&mut self) -> u32 {
        self.rng.below(2) as u32
    }

    /// Returns a view of `len` elements of a random buffer.
    fn view(&mut self, len: usize) -> View {
        let buffer = self.rng.below(BUFFERS) as u32;
        let offset = self.rng.below(LEN - len + 1);
        View { buffer, offset, shape: vec![len], strides: vec![1] }
    }

    fn len(&mut self) -> usize {
        1 + self.rng.below(LEN)
    }

    /// Adds a signal from one rank to another, and its wait.
    fn flag(&mut self, from: usize, to: usize) {
        self.numbers += 1;
        let slot = SignalId { from, to, kind: SignalKind::Ready, index: self.numbers };
        let (raises, awaits) = (self.stream(), self.stream());
        self.on(from, raises, InstKind::Signal { signal: slot });
        self.on(to, awaits, InstKind::WaitSignal { signal: slot });
    }

    /// Adds one random action of one rank, of two ranks, or of all ranks.
    fn step(&mut self) {
        let ranks = self.plans.len();
        let rank = self.rng.below(ranks);
        let peer = (rank + 1 + self.rng.below(ranks - 1)) % ranks;
        let stream = self.stream();
        self.numbers += 1;
        match self.rng.below(10) {
            0 => {
                let len = self.len();
                let to = Box::new(self.view(len));
                let value = Number::Int(10 + i64::from(self.numbers));
                self.on(rank, stream, InstKind::Fill { to, value });
            }
            1 => {
                let len = self.len();
                let args = vec![Arg::View(self.view(len)), Arg::View(self.view(len))];
                let out = Box::new(self.view(len));
                self.on(rank, stream, InstKind::Map { op: Op::Add, args, out });
            }
            2 => {
                let len = self.len();
                let (mine, theirs) = (self.view(len), self.view(len));
                let mine = Box::new(ViewOnRank { rank, view: mine });
                let theirs = Box::new(ViewOnRank { rank: peer, view: theirs });
                let (from, to) = if self.rng.below(2) == 0 { (mine, theirs) } else { (theirs, mine) };
                if self.rng.below(2) == 0 {
                    self.flag(peer, rank);
                }
                self.on(rank, stream, InstKind::Copy { from, to });
                if self.rng.below(2) == 0 {
                    self.flag(rank, peer);
                }
            }
            3 => self.join(rank, stream, 1 - stream),
            4 => self.flag(rank, peer),
            5 if !self.not_awaited.is_empty() => {
                let at = self.rng.below(self.not_awaited.len());
                let (rank, work) = self.not_awaited.swap_remove(at);
                self.on(rank, stream, InstKind::Wait { work });
            }
            5 | 6 => self.transfers(rank, peer),
            7 => self.host_wait(rank, stream),
            _ => self.collective(),
        }
    }

    /// Makes two ranks exchange parts, or one send to the other.
    fn transfers(&mut self, rank: usize, peer: usize) {
        let len = self.len();
        let both = self.rng.below(2) == 0;
        let is_coalesced = both || self.rng.below(3) == 0;
        for (me, other, first) in [(rank, peer, Direction::Send), (peer, rank, Direction::Recv)] {
            let mut sides = vec![first];
            sides.extend(both.then(|| first.opposite()));
            let sides = sides
                .into_iter()
                .map(|direction| P2pOp {
                    direction,
                    peer: other,
                    view: self.view(len),
                    origin: self.plans[me].origins.len() as u32,
                })
                .collect();
            let (work, stream) = (self.work(me), self.stream());
            let group = P2pGroup { communicator: 0, ops: sides, is_coalesced, work };
            self.on(me, stream, InstKind::P2pGroup(group));
        }
    }

    fn collective(&mut self) {
        let ranks = self.plans.len();
        let root = self.rng.below(ranks);
        let op = ReduceOp::Sum;
        let (kind, input, output) = match self.rng.below(5) {
            0 => (CollectiveKind::Broadcast { root }, 1, 1),
            1 => (CollectiveKind::Reduce { root, op }, 1, 1),
            2 => (CollectiveKind::Allreduce { op }, 2, 2),
            3 => (CollectiveKind::Gather { root }, 1, ranks),
            _ => (CollectiveKind::Scatter { root }, ranks, 1),
        };
        for rank in 0..ranks {
            let (input, output) = (Some(self.view(input)), Some(self.view(output)));
            let (work, stream) = (self.work(rank), self.stream());
            let gives = match kind {
                CollectiveKind::Broadcast { root } | CollectiveKind::Scatter { root } => root == rank,
                _ => true,
            };
            let gets = match kind {
                CollectiveKind::Reduce { root, .. } | CollectiveKind::Gather { root } => root == rank,
                _ => true,
            };
            let (input, output) = (input.filter(|_| gives), output.filter(|_| gets));
            let it = Collective { communicator: 0, kind, input, output, work };
            self.on(rank, stream, InstKind::Collective(Box::new(it)));
        }
    }
}
