//! Checks buffer assignments of random plans and of lowered random programs. Buffers that share bytes must be
//! ordered according to a graph of all edges. Under one schedule, shared storage must give the result of
//! separate storage, even if the program has races. In every second assignment, rank 0 has a caller that gives all inputs away.
//!
//! `HIR_LAYOUTS=20000` tries more assignments, `HIR_SEED=7` others.

use grammar::span::LineIndex;
use hir_cuda::buffer_assignment::{ALIGNMENT, BufferAssignment, BufferSlice, PortMemory, Segment};
use hir_driver::run::inputs::InputSpec;
use hir_plan::{IoBinding, Plan, World};
use hir_sim::{Schedule, SimOptions};
use hir_tensor::{dense::DenseTensor, generate::InputKind};
use libtest_mimic::{Failed, Trial};
use passes::{Settings, Verify};

use crate::{generator, programs, rng::Rng, setting::number_or};

mod plans;
pub mod reachability;
mod shared_storage;

/// Default number of buffer assignments per trial.
const LAYOUTS: usize = 1000;
/// Maximum number of operators per program.
const OPERATORS: usize = 6;

/// Returns the trials of this file.
pub fn trials() -> Vec<Trial> {
    let (count, seed) = (number_or("HIR_LAYOUTS", LAYOUTS), number_or("HIR_SEED", 0) * 1_000_000);
    let all = move |of: fn(u64) -> Option<World>, count: usize| {
        let (mut sharing, mut faults) = (0, Vec::new());
        for seed in (0..count).map(|at| (seed + at) as u64) {
            let Some(plans) = of(seed) else { continue };
            match check_layouts(&plans, seed % 2 == 1) {
                Ok(shares) => sharing += usize::from(shares),
                Err(fault) => faults.push(format!("seed {seed}: {fault}")),
            }
        }
        match faults.first() {
            Some(first) => Err(Failed::from(format!("{} of {count} layouts: {first}", faults.len()))),
            // Assignments in which no buffers share memory prove nothing.
            None if sharing * 10 < count => Err(format!("only {sharing} of {count} layouts share").into()),
            None => Ok(()),
        }
    };
    vec![
        Trial::test("layouts_of_random_plans", move || {
            all(|seed| Some(World::new(plans::plans(seed))), count)
        }),
        Trial::test("layouts_of_random_programs", move || all(program, count / 2)),
    ]
}

/// Returns the plans of a random program after a random pipeline, if the pipeline accepts it.
fn program(seed: u64) -> Option<World> {
    let mut rng = Rng(seed ^ 0x1a70);
    let text = programs::program(seed, 1 + rng.below(OPERATORS));
    let calls = passes::parse(&generator::pipeline(&mut rng)).ok()?;
    let mut program = grammar::read(&text).0.pop()?;
    let settings = Settings { verify: Verify::Structural, roundtrip: false };
    passes::run(&mut program, &calls, settings, &mut |_| ()).ok()?;
    let ranks = hir_plan::smallest_world(&program);
    hir_plan::build(&program, &LineIndex::new(&text), ranks).ok()
}

/// Returns true if some buffers share bytes, or an error if the sharing changes a result.
fn check_layouts(plans: &World, has_caller: bool) -> Result<bool, String> {
    let donated: Vec<String> = plans[0].inputs.iter().map(|it| it.name.clone()).collect();
    let caller = PortMemory::Caller { rank: 0, donated: &donated, workspaces: &[] };
    let ports = if has_caller { caller } else { PortMemory::Segments };
    let layout =
        BufferAssignment::with_ports(plans, ports, &[]).map_err(|it| format!("{it:?} is too large"))?;
    let shares = check_sharing(plans, &layout)?;
    if shares {
        let mut filling = InputSpec::new(InputKind::Exact, 0, plans);
        let inputs = filling.fill(plans).map_err(|it| it.to_string())?;
        let moved = World::new(shared_storage::plans(plans, &layout));
        for schedule in
            [Schedule::Program, Schedule::Adversarial].into_iter().chain((0..8).map(Schedule::Seed))
        {
            let run = |plans: &World| {
                hir_sim::run(plans, inputs.clone(), &schedule, &SimOptions::default())
                    .map_err(|it| it.to_string())
            };
            let (own, shared) = (run(plans)?, run(&moved)?);
            let blocks = own.outputs.iter().flatten().zip(shared.outputs.iter().flatten());
            if let Some((own, shared)) = blocks
                .into_iter()
                .find(|(own, shared)| !written_elements_agree(own.as_deref(), shared.as_deref()))
            {
                return Err(format!("{schedule}: {own:?} becomes {shared:?}"));
            }
        }
    }
    Ok(shares)
}

/// Returns true if the written elements are equal.
fn written_elements_agree(own: Option<&DenseTensor>, shared: Option<&DenseTensor>) -> bool {
    let (Some(own), Some(shared)) = (own, shared) else { return own.is_none() && shared.is_none() };
    let (mine, theirs) = (own.data.to_f64(), shared.data.to_f64());
    let same = |at: usize| mine[at].to_bits() == theirs[at].to_bits() && shared.written.get(at);
    mine.len() == theirs.len() && (0..mine.len()).all(|at| !own.written.get(at) || same(at))
}

/// An access of an instruction to a buffer: rank and index of the instruction, buffer, and whether it writes.
type BufferAccess = ((usize, usize), usize, bool);

/// Returns true if some buffers share bytes, or an error if their accesses are not ordered or a buffer is
/// outside its segment.
fn check_sharing(plans: &[Plan], layout: &BufferAssignment) -> Result<bool, String> {
    let mut uses: Vec<Vec<BufferAccess>> = vec![Vec::new(); plans.len()];
    for plan in plans {
        for (inst, it) in plan.code.iter().enumerate() {
            let at = (plan.rank, inst);
            for it in it.kind.accesses(plan.rank) {
                uses[it.rank].push((at, it.view.buffer as usize, it.is_write));
            }
        }
    }
    let graph = reachability::Graph::of(plans);
    let mut shares = false;
    for (plan, uses) in plans.iter().zip(&uses) {
        let rank = &layout.ranks[plan.rank];
        let mut sharing = vec![false; rank.buffers.len()];
        for (at, spot) in rank.buffers.iter().enumerate() {
            let (start, end) = match spot.segment {
                Segment::Symmetric => (layout.signal_bytes, layout.symmetric_bytes),
                Segment::Shared => (0, layout.shared_bytes),
                Segment::Private => (0, rank.private_bytes),
                Segment::Caller => (0, usize::MAX),
                Segment::Lent => {
                    let callers = rank.buffers.iter().filter(|it| it.segment == Segment::Caller);
                    let ranges = callers.map(|it| (it.offset, it.offset + it.bytes));
                    ranges.filter(|it| it.0 <= spot.offset).max().ok_or("a lent range has no owner")?
                }
                Segment::Registers => return Err(format!("rank {}: {at} is in registers", plan.rank)),
            };
            if spot.offset % ALIGNMENT != 0 || spot.offset < start || spot.offset + spot.bytes > end {
                return Err(format!("rank {}: {at} is outside its segment", plan.rank));
            }
            sharing[at] =
                (0..rank.buffers.len()).any(|other| other != at && overlap(spot, &rank.buffers[other]));
        }
        let buffers = |ports: &[IoBinding]| -> Vec<usize> {
            ports.iter().filter_map(|it| Some(it.shard.view.as_ref()?.buffer as usize)).collect()
        };
        let (inputs, outputs) = (buffers(&plan.inputs), buffers(&plan.outputs));
        let touched = |buffer: usize| uses.iter().any(|it| it.1 == buffer);
        let is_own = |it: &&usize| rank.buffers[**it].segment != Segment::Caller;
        if inputs.iter().chain(&outputs).filter(is_own).any(|it| sharing[*it] && touched(*it)) {
            return Err(format!("rank {}: an input or output shares its memory", plan.rank));
        }
        for (a, first, reads) in uses {
            let written =
                || uses.iter().any(|(b, it, written)| it == first && *written && graph.is_ordered(*b, *a));
            if sharing[*first] && !reads && !written() && !inputs.contains(first) {
                return Err(format!("rank {}: {first} is read before it is written, and shares", plan.rank));
            }
            for (b, second, writes) in uses.iter().filter(|it| it.1 != *first) {
                if !overlap(&rank.buffers[*first], &rank.buffers[*second]) {
                    continue;
                }
                shares = true;
                // A result stays, and an input is there from the start.
                let is_late = outputs.contains(first) && !graph.is_ordered(*b, *a)
                    || inputs.contains(first) && !graph.is_ordered(*a, *b);
                if is_late {
                    return Err(format!("rank {}: {second} destroys {first}", plan.rank));
                }
                if (*reads || *writes) && !graph.is_ordered(*a, *b) && !graph.is_ordered(*b, *a) {
                    let rank = plan.rank;
                    return Err(format!(
                        "rank {rank}: {a:?} and {b:?} race on bytes of {first} and {second}"
                    ));
                }
            }
        }
    }
    let symmetric =
        |rank: usize| layout.ranks[rank].buffers.iter().filter(|it| it.segment == Segment::Symmetric);
    for rank in 1..plans.len() {
        let sizes = |rank| symmetric(rank).map(|it| it.bytes).collect::<Vec<_>>();
        if sizes(0) == sizes(rank) && !symmetric(0).eq(symmetric(rank)) {
            return Err(format!("ranks 0 and {rank} have the same symmetric buffers at other offsets"));
        }
    }
    Ok(shares)
}

fn overlap(a: &BufferSlice, b: &BufferSlice) -> bool {
    area(a) == area(b) && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

/// Returns the memory from whose start an offset counts.
fn area(it: &BufferSlice) -> Segment {
    if it.segment == Segment::Lent { Segment::Caller } else { it.segment }
}
