//! Where buffers lie, of random plans and of random programs behind lowering passes: those that share bytes are ordered,
//! as a graph of all edges says, and under one schedule shared storage gives what storage of their own gives, racy or not.
//!
//! `HIR_LAYOUTS=20000` tries more, `HIR_SEED=7` others.

use grammar::span::LineIndex;
use hir::{
    cuda::buffer_assignment::{ALIGNMENT, Spot, WorldLayout},
    io::{dense::DenseTensor, generate::Kind},
    plan::{self, InstKind, Plan},
    run::inputs::Filling,
    sim::{self, Options, Schedule},
};
use libtest_mimic::{Failed, Trial};
use passes::{Settings, Verify};

use crate::{dice::Dice, generator, programs};

#[path = "layouts/plans.rs"]
mod plans;
#[path = "layouts/reach.rs"]
mod reach;
#[path = "layouts/shared.rs"]
mod shared;

/// Layouts of a trial, unless told.
const LAYOUTS: usize = 1000;
/// Operators of a program, at most.
const OPERATORS: usize = 6;

/// The trials of this file.
pub fn trials() -> Vec<Trial> {
    let number = |name, default| std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(default);
    let (count, seed) = (number("HIR_LAYOUTS", LAYOUTS), number("HIR_SEED", 0) * 1_000_000);
    let all = move |of: fn(u64) -> Option<Vec<Plan>>, count: usize| {
        let (mut sharing, mut faults) = (0, Vec::new());
        for seed in (0..count).map(|at| (seed + at) as u64) {
            let Some(plans) = of(seed) else { continue };
            match holds(&plans) {
                Ok(shares) => sharing += usize::from(shares),
                Err(fault) => faults.push(format!("seed {seed}: {fault}")),
            }
        }
        match faults.first() {
            Some(first) => Err(Failed::from(format!("{} of {count} layouts: {first}", faults.len()))),
            // Layouts that share nothing prove nothing.
            None if sharing * 10 < count => Err(format!("only {sharing} of {count} layouts share").into()),
            None => Ok(()),
        }
    };
    vec![
        Trial::test("layouts_of_random_plans", move || all(|seed| Some(plans::plans(seed)), count)),
        Trial::test("layouts_of_random_programs", move || all(program, count / 2)),
    ]
}

/// The plans of a random program behind a random pipeline, where that accepts it.
fn program(seed: u64) -> Option<Vec<Plan>> {
    let mut dice = Dice(seed ^ 0x1a70);
    let text = programs::program(seed, 1 + dice.roll(OPERATORS));
    let calls = passes::parse(&generator::pipeline(&mut dice)).ok()?;
    let mut program = grammar::read(&text).0.pop()?;
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    passes::run(&mut program, &calls, settings, &mut |_| ()).ok()?;
    let ranks = plan::smallest_world(&program);
    plan::build(&program, &LineIndex::new(&text), ranks).ok()
}

/// Whether some buffers share bytes; a fault where that can be seen.
fn holds(plans: &[Plan]) -> Result<bool, String> {
    let layout = WorldLayout::of(plans).map_err(|it| format!("{it:?} is too large"))?;
    let shares = apart(plans, &layout)?;
    if shares {
        let mut filling = Filling::new(Kind::Exact, 0, Vec::new(), plans);
        let inputs = filling.fill(plans).map_err(|it| it.to_string())?;
        let moved = shared::plans(plans, &layout);
        for schedule in
            [Schedule::Program, Schedule::Adversarial].into_iter().chain((0..8).map(Schedule::Seed))
        {
            let run = |plans: &[Plan]| {
                sim::run(
                    plans,
                    &plan::sync::Matched::of(plans),
                    inputs.clone(),
                    &schedule,
                    &Options::default(),
                )
                .map_err(|it| it.to_string())
            };
            let (own, shared) = (run(plans)?, run(&moved)?);
            let blocks = own.outputs.iter().flatten().zip(shared.outputs.iter().flatten());
            if let Some((own, shared)) =
                blocks.into_iter().find(|(own, shared)| !agrees(own.as_ref(), shared.as_ref()))
            {
                return Err(format!("{schedule}: {own:?} becomes {shared:?}"));
            }
        }
    }
    Ok(shares)
}

/// Whether what was written is the same.
fn agrees(own: Option<&DenseTensor>, shared: Option<&DenseTensor>) -> bool {
    let (Some(own), Some(shared)) = (own, shared) else { return own.is_none() && shared.is_none() };
    let (mine, theirs) = (own.data.to_f64(), shared.data.to_f64());
    let same = |at: usize| mine[at].to_bits() == theirs[at].to_bits() && shared.written.get(at);
    mine.len() == theirs.len() && (0..mine.len()).all(|at| !own.written.get(at) || same(at))
}

/// A buffer that an instruction touches: rank and index of the instruction, buffer, whether it is written.
type Use = ((usize, usize), usize, bool);

/// Whether some buffers share bytes; a fault where those are not ordered, or lie outside.
fn apart(plans: &[Plan], layout: &WorldLayout) -> Result<bool, String> {
    let mut uses: Vec<Vec<Use>> = vec![Vec::new(); plans.len()];
    for plan in plans {
        for (inst, it) in plan.code.iter().enumerate() {
            let at = (plan.rank, inst);
            if let InstKind::Alloc { buffer, zero: true } = it.kind {
                uses[plan.rank].push((at, buffer as usize, true));
            }
            for it in it.kind.accesses(plan.rank) {
                uses[it.rank].push((at, it.view.buffer as usize, it.written));
            }
        }
    }
    let graph = reach::Graph::of(plans);
    let mut shares = false;
    for (plan, uses) in plans.iter().zip(&uses) {
        let rank = &layout.ranks[plan.rank];
        let mut sharing = vec![false; rank.spots.len()];
        for (at, spot) in rank.spots.iter().enumerate() {
            let (start, end) =
                if spot.symmetric { (layout.flags, layout.symmetric) } else { (0, rank.private) };
            if spot.offset % ALIGNMENT != 0 || spot.offset < start || spot.offset + spot.bytes > end {
                return Err(format!("rank {}: {at} is outside its segment", plan.rank));
            }
            sharing[at] = (0..rank.spots.len()).any(|other| other != at && overlap(spot, &rank.spots[other]));
        }
        let ports = plan.inputs.iter().chain(&plan.outputs).filter_map(|it| it.shard.view.as_ref());
        let touched = |buffer: usize| uses.iter().any(|it| it.1 == buffer);
        if ports.into_iter().any(|it| sharing[it.buffer as usize] && touched(it.buffer as usize)) {
            return Err(format!("rank {}: an input or output shares its place", plan.rank));
        }
        for (a, first, reads) in uses {
            let written =
                || uses.iter().any(|(b, it, written)| it == first && *written && graph.ordered(*b, *a));
            if sharing[*first] && !reads && !written() {
                return Err(format!("rank {}: {first} is read before it is written, and shares", plan.rank));
            }
            for (b, second, writes) in uses.iter().filter(|it| it.1 != *first) {
                if !overlap(&rank.spots[*first], &rank.spots[*second]) {
                    continue;
                }
                shares = true;
                if (*reads || *writes) && !graph.ordered(*a, *b) && !graph.ordered(*b, *a) {
                    let rank = plan.rank;
                    return Err(format!("rank {rank}: {a:?} and {b:?} touch bytes of {first} and {second}"));
                }
            }
        }
    }
    let symmetric = |rank: usize| layout.ranks[rank].spots.iter().filter(|it| it.symmetric);
    for rank in 1..plans.len() {
        let sizes = |rank| symmetric(rank).map(|it| it.bytes).collect::<Vec<_>>();
        if sizes(0) == sizes(rank) && !symmetric(0).eq(symmetric(rank)) {
            return Err(format!("ranks 0 and {rank} have the same symmetric buffers at other offsets"));
        }
    }
    Ok(shares)
}

fn overlap(a: &Spot, b: &Spot) -> bool {
    a.symmetric == b.symmetric && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}
