//! What `hir calibrate` measures: the extents of each table, the constants, and whole programs.

use std::fmt::Display;

use grammar::{Algorithm, CommunicationType, Named, P2pProtocol, Program};
use hir_plan::timeline::{
    machine::FROM_MEMORY,
    work::{NCCL_TABLES, Work, WorkClass},
};

use super::{
    exact::{measurements, works},
    layer::{Layer, LayerKind},
    programs::{
        Call, alternating_call, calls_in_turns, calls_on_streams, chunks, concurrent_calls,
        products_from_memory, products_with_weights, repeated_call,
    },
    world,
};

/// A measurement.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The program.
    pub program: Program,
    /// The passes.
    pub passes: &'static str,
    /// What its time says.
    pub meaning: Meaning,
    /// Number of timed runs, and of runs before them.
    pub runs: [usize; 2],
}

impl Entry {
    /// A program that is measured on a cool GPU.
    pub fn new(program: Program, meaning: Meaning) -> Self {
        Self { program, passes: "", meaning, runs: RUNS }
    }

    /// Calls that follow each other, whose time belongs to a table of this class.
    pub fn of_table(call: Call, class: WorkClass, ranks: usize) -> Self {
        let times = call.times();
        Self::new(repeated_call(call, times, ranks), Meaning::Table(class, times, false))
    }
}

/// What the time of a program says about the machine.
#[derive(Clone, Debug)]
pub enum Meaning {
    /// A call that does almost nothing.
    Least,
    /// This many such calls, one after the other.
    Leasts(usize),
    /// This many such calls on alternating streams.
    Alternating(usize),
    /// This many calls of each of two kernels that compute, in turns.
    Switching(Call, usize),
    /// Two products with the same weights, each this many times, in turns on one stream, or on two streams that do not wait for each other.
    Crowding {
        /// Rows, columns and depth.
        product: [usize; 3],
        /// Number of calls of each.
        times: usize,
        /// Whether there are two streams.
        is_crowded: bool,
    },
    /// This many calls of a kernel that computes and of a communication, in turns.
    Exchanging([Call; 2], usize),
    /// This many calls of work of this class, and whether they read their larger operand from memory, and not from the cache of the GPU.
    Table(WorkClass, usize, bool),
    /// Two calls, each several times, at the same time: a kernel that computes, and a copy.
    Together([(Call, usize); 2]),
    /// This many chunks of a product, each with a communication, on two streams.
    Chunks([Call; 2], usize),
    /// This many such calls on a GPU that has computed for some time.
    Sustained(Call, usize),
    /// A layer.
    Run(Layer),
}

/// Returns the name of the table of work of a kind or class, which reads its larger operand from memory, or from the cache of the GPU.
pub fn table_name(kind: impl Display, from_memory: bool) -> String {
    format!("{kind}{}", if from_memory { FROM_MEMORY } else { "" })
}

/// Number of timed runs of a program, and of runs before them.
pub const RUNS: [usize; 2] = [15, 5];
/// The same for a GPU that has computed for some time: its clock falls within the first few hundred milliseconds.
const SUSTAINED_RUNS: [usize; 2] = [50, 250];
/// The passes with which layers run.
pub const PIPELINES: [&str; 4] =
    ["@lower", "@lower,select-algorithms", "@overlap{}", "@overlap{},select-algorithms"];
/// Bytes of an element.
const ELEMENT: usize = 2;
/// The smallest call, in elements.
const LEAST: Call = Call::Elementwise(1024);
/// A small product.
const SMALL: Call = Call::Product([64, 1024, 1024]);
/// Bytes of weights, of which no cache holds the first ones when the last ones have been read.
const PRODUCTS_FROM_MEMORY: usize = 100_000_000;
/// Number of calls of `Meaning::Leasts` and `Meaning::Alternating`.
const CALLS: usize = 20;
/// Number of calls of each product of `Meaning::Crowding`.
const CROWDING_CALLS: usize = 4;
/// Number of turns of `Meaning::Exchanging` with large products: as many communications as a layer has.
const TURNS: usize = 2;

/// Returns the measurements of the time of a run besides its work.
pub fn least(ranks: usize) -> Vec<Entry> {
    vec![
        Entry::new(repeated_call(LEAST, 1, ranks), Meaning::Least),
        Entry::new(repeated_call(LEAST, CALLS, ranks), Meaning::Leasts(CALLS)),
    ]
}

/// Returns all measurements, with those that others need first and whole programs last. `quick` leaves out all but the
/// smallest extents.
pub fn entries(ranks: usize, quick: bool) -> Vec<Entry> {
    let mut all = least(ranks);
    all.extend([
        Entry::new(alternating_call(LEAST, CALLS, ranks), Meaning::Alternating(CALLS)),
        Entry::new(calls_in_turns([SMALL, LEAST], CALLS, ranks), Meaning::Switching(SMALL, CALLS)),
    ]);
    let kept = if quick { 1 } else { usize::MAX };
    for product in crowding().into_iter().take(kept) {
        for is_crowded in [false, true] {
            let program = products_with_weights(product, CROWDING_CALLS, is_crowded, ranks);
            let meaning = Meaning::Crowding { product, times: CROWDING_CALLS, is_crowded };
            all.push(Entry::new(program, meaning));
        }
    }
    for (table, calls) in tables(ranks) {
        for call in calls.into_iter().take(kept) {
            all.push(Entry::of_table(call, table, ranks));
            all.extend(from_memory(call, ranks));
        }
    }
    if quick {
        return all;
    }
    if ranks > 1 {
        for (calls, turns) in exchanges() {
            let program = if matches!(calls[1], Call::PeerCopy(..)) {
                calls_on_streams(calls, turns, ranks)
            } else {
                calls_in_turns(calls, turns, ranks)
            };
            all.push(Entry::new(program, Meaning::Exchanging(calls, turns)));
        }
        let together =
            |it: [(Call, usize); 2]| Entry::new(concurrent_calls(it, ranks), Meaning::Together(it));
        all.extend(contention_of_copies().map(together));
        for (product, communication, count) in contention_of_kernels(ranks) {
            let calls = [Call::Product(product), communication];
            let program = chunks(product, communication, count, ranks);
            all.push(Entry::new(program, Meaning::Chunks(calls, count)));
        }
    }
    let pipelines = PIPELINES.map(str::to_owned);
    let mut measured: Vec<Entry> = Vec::new();
    for it in measured_layers(ranks).flat_map(|it| of_program(&it.program(ranks), &pipelines, ranks)) {
        if measured.iter().all(|known| known.program != it.program) {
            measured.push(it);
        }
    }
    all.extend(measured);
    for layer in layers(ranks) {
        let program = layer.program(ranks);
        all.extend(PIPELINES.map(|passes| Entry {
            program: program.clone(),
            passes,
            meaning: Meaning::Run(layer.clone()),
            runs: RUNS,
        }));
    }
    // Last, because they heat the GPUs.
    all.extend(sustained().map(|(call, times)| Entry {
        runs: SUSTAINED_RUNS,
        ..Entry::new(repeated_call(call, times, ranks), Meaning::Sustained(call, times))
    }));
    all
}

/// Returns the layers whose work is measured: every other one. That of the others is estimated from its neighbours.
fn measured_layers(ranks: usize) -> impl Iterator<Item = Layer> {
    let kinds = LayerKind::ALL.len();
    let is_measured = move |at: usize| (at / kinds + at % kinds).is_multiple_of(2);
    layers(ranks).into_iter().enumerate().filter(move |it| is_measured(it.0)).map(|it| it.1)
}

/// Returns the measurements of the work of a program with each of some pipelines. A pipeline that does not apply has none.
pub fn of_program(program: &Program, pipelines: &[String], ranks: usize) -> Vec<Entry> {
    let mut found: Vec<Work> = Vec::new();
    for passes in pipelines {
        let world = world(program, passes, ranks);
        let new = world.iter().flat_map(works).filter(|it| !found.contains(it)).collect::<Vec<_>>();
        found.extend(new);
    }
    found.iter().flat_map(|it| measurements(it, ranks)).collect()
}

/// Returns the calls of each table, the smallest first.
fn tables(ranks: usize) -> Vec<(WorkClass, Vec<Call>)> {
    let sized = |bytes: &[usize], call: &dyn Fn(usize) -> Call| -> Vec<Call> {
        bytes.iter().map(|it| call(it / ELEMENT)).collect()
    };
    let sizes =
        |first: u32, last: u32| -> Vec<usize> { (first..=last).step_by(2).map(|it| 1 << it).collect() };
    let mut products = Vec::new();
    for rows in [1, 16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192] {
        for columns in [512, 1024, 4096, 8192, 16384] {
            for depth in [512, 1024, 4096, 8192, 16384] {
                // 2^39 multiplications take 1.5 ms, and the largest weights 256 MiB.
                if rows * columns * depth <= 1 << 39 && columns * depth <= 1 << 27 {
                    products.push(Call::Product([rows, columns, depth]));
                }
            }
        }
    }
    let mut attention = Vec::new();
    for heads in [8, 32, 128] {
        for is_causal in [false, true] {
            attention.extend([64, 256, 1024, 2048].map(|rows| Call::Attention([heads, rows], is_causal)));
        }
    }
    for is_causal in [false, true] {
        attention.extend([[48, 1024], [32, 4096]].map(|it| Call::Attention(it, is_causal)));
    }
    let mut all = vec![
        (WorkClass::Product, products),
        (WorkClass::Elementwise, sized(&sizes(12, 28), &Call::Elementwise)),
        (WorkClass::Reduction, sized(&sizes(14, 28), &|it| Call::Reduction((it / 4096).max(1)))),
        (WorkClass::Copy, sized(&sizes(12, 28), &Call::Copy)),
        (WorkClass::Attention, attention),
    ];
    if ranks > 1 {
        let collective = |kind, algorithm| move |elements| Call::Collective(kind, algorithm, elements);
        let (small, large) = (sizes(13, 21), sizes(13, 27));
        all.push((WorkClass::Get, sized(&large, &|it| Call::PeerCopy(it, P2pProtocol::Get))));
        all.push((WorkClass::Put, sized(&large, &|it| Call::PeerCopy(it, P2pProtocol::Put))));
        for (kind, algorithm, is_small) in [
            (CommunicationType::Allreduce, Algorithm::OneShot, false),
            (CommunicationType::Allreduce, Algorithm::TwoShot, false),
            (CommunicationType::Allgather, Algorithm::OneShot, false),
            (CommunicationType::Allreduce, Algorithm::OneShotLl, true),
            (CommunicationType::Allreduce, Algorithm::TwoShotLl, true),
            (CommunicationType::Allgather, Algorithm::OneShotLl, true),
        ] {
            let sizes = if is_small { &small } else { &large };
            all.push((WorkClass::Kernel, sized(sizes, &collective(kind, algorithm))));
        }
        for kind in NCCL_TABLES {
            all.push((WorkClass::Nccl, sized(&large, &collective(kind, Algorithm::Nccl))));
        }
    }
    all
}

/// Returns the measurement of a product that reads its weights from memory, if that can take longer: with many rows, arithmetic
/// takes longer, and large weights are read from memory in any case.
pub fn from_memory(call: Call, ranks: usize) -> Option<Entry> {
    let Call::Product([rows, columns, depth]) = call else { return None };
    if rows > 1024 || columns * depth * ELEMENT >= PRODUCTS_FROM_MEMORY {
        return None;
    }
    let (program, times) = products_from_memory([rows, columns, depth], PRODUCTS_FROM_MEMORY, ranks);
    Some(Entry::new(program, Meaning::Table(WorkClass::Product, times, true)))
}

/// Returns products with the communication behind each, and how many turns of both are measured: a small communication of each kind, and
/// one of the result of larger products, which are points of the table.
fn exchanges() -> Vec<([Call; 2], usize)> {
    let small = [
        Call::Collective(CommunicationType::Allreduce, Algorithm::OneShotLl, 4096),
        Call::PeerCopy(4096, P2pProtocol::Get),
        Call::Collective(CommunicationType::Allreduce, Algorithm::Nccl, 4096),
    ];
    let mut all = Vec::from(small.map(|it| ([SMALL, it], CALLS)));
    for rows in [256, 1024, 4096] {
        let elements = rows * 4096;
        let large = [
            Call::Collective(CommunicationType::Allreduce, Algorithm::OneShot, elements),
            Call::PeerCopy(elements, P2pProtocol::Get),
            Call::Collective(CommunicationType::Allreduce, Algorithm::Nccl, elements),
        ];
        all.extend(large.map(|it| ([Call::Product([rows, 4096, 8192]), it], TURNS)));
    }
    all
}

/// Returns the products of `Meaning::Crowding`.
fn crowding() -> Vec<[usize; 3]> {
    let weights = [[2048, 1024], [4096, 4096], [8192, 4096], [4096, 8192], [5120, 10240]];
    let rows = [16, 48, 160, 320, 512, 1024, 2048].into_iter();
    rows.flat_map(|rows| weights.map(|[columns, depth]| [rows, columns, depth])).collect()
}

/// Returns products and copies of several sizes that run at the same time. Alone, both take about as long, and their products are points
/// of the table.
fn contention_of_copies() -> [[(Call, usize); 2]; 4] {
    [
        (1 << 18, [256, 4096, 1024], 20),
        (1 << 20, [256, 4096, 8192], 10),
        (4 << 20, [512, 4096, 8192], 5),
        (32 << 20, [4096, 4096, 8192], 3),
    ]
    .map(|(elements, product, times)| {
        [(Call::Product(product), times), (Call::PeerCopy(elements, P2pProtocol::Get), times)]
    })
}

/// Returns products of several sizes, which are points of the table, with an all-reduce of each by a kernel and by NCCL, and numbers of
/// chunks. A block of NCCL waits for the product of the next chunk, so that two chunks have no contention.
fn contention_of_kernels(ranks: usize) -> Vec<([usize; 3], Call, usize)> {
    let of_kernel = if ranks == 2 { Algorithm::OneShot } else { Algorithm::TwoShot };
    let mut all = Vec::new();
    for rows in [64, 256, 1024, 4096] {
        for (algorithm, count) in [(of_kernel, 2), (of_kernel, 4), (Algorithm::Nccl, 4)] {
            let call = Call::Collective(CommunicationType::Allreduce, algorithm, rows * 4096);
            all.push(([rows, 4096, 8192], call, count));
        }
    }
    all
}

/// Returns products of which some hundred milliseconds heat the GPU: a small one, and a large one.
fn sustained() -> [(Call, usize); 2] {
    [(Call::Product([512, 4096, 8192]), 20), (Call::Product([4096, 8192, 8192]), 3)]
}

/// Returns the layers. Their extents are not those of the tables, except for powers of two.
fn layers(ranks: usize) -> Vec<Layer> {
    let layer = |kind, rows, width| Layer { kind, rows, width };
    let mut all = Vec::new();
    for rows in [64, 192, 640, 1792, 4096] {
        all.push(layer(LayerKind::ColumnParallel, rows, 5120));
        all.push(layer(LayerKind::RowParallel, rows, 5120));
        all.push(layer(LayerKind::Mlp, rows, 3584));
        all.push(layer(LayerKind::Block, if rows > 1024 { rows.next_multiple_of(1024) } else { rows }, 3072));
    }
    all.retain(|_| ranks > 1);
    all
}
