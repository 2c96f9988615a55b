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

mod worlds;

use std::{collections::BTreeSet, io::Write};

use hir_check::{Orders, Party, Race, StepOrder, races, races_in_groups};
use hir_plan::{Plan, View, ViewOnRank, World, sync};
use hir_sim::{Schedule, SimError, SimOptions};
use libtest_mimic::{Failed, Trial};

use crate::setting::number_or;
use worlds::{BUFFERS, LEN, plans};

/// Default number of worlds.
const WORLDS: usize = 1500;
/// Maximum number of listed orders per world.
const MAX_ORDERS: usize = 400;
/// Maximum number of orders to run for a small world, including equivalent ones.
const MAX_EXHAUSTIVE_ORDERS: usize = 300;
/// Number of seeded schedules per world.
const SEEDS: u64 = 24;
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
            let all = listed.witnesses(&plans, race);
            let shown = all.first().ok_or("a race without a witness")?;
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
    plans.iter().map(hir_plan::plan_text).collect()
}

/// Runs the plans and returns the outputs and the final contents of all memory.
fn result(plans: &World, schedule: &Schedule) -> Result<String, String> {
    let place = |rank, buffer| ViewOnRank { rank, view: View::contiguous(buffer, vec![LEN]) };
    let watch =
        (0..plans.len()).flat_map(|rank| (0..BUFFERS as u32).map(move |it| place(rank, it))).collect();
    let options = SimOptions { watch, ..SimOptions::default() };
    match hir_sim::run(plans, vec![Vec::new(); plans.len()], schedule, &options) {
        Ok(it) => Ok(format!("{:?}\n{:?}", it.outputs, it.watched)),
        Err(fault @ (SimError::Deadlock(_) | SimError::SemaphoreLost { .. } | SimError::Program { .. })) => {
            Err(format!("{schedule}: {fault}"))
        }
        Err(fault @ (SimError::Unsupported { .. } | SimError::StepNotReady(_) | SimError::Internal(_))) => {
            Err(format!("{schedule}: {fault}\n{}", show(plans)))
        }
    }
}
