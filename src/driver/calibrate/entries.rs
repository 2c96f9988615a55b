//! What `hir calibrate` measures: the extents of each table, the constants, and whole programs.

use super::programs::{
    Call, Collective, Layer, LayerKind, PeerProtocol, alternating_call, calls_in_turns, concurrent_calls,
    repeated_call,
};

/// A measurement.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The program.
    pub text: String,
    /// The passes.
    pub passes: &'static str,
    /// What its time says.
    pub meaning: Meaning,
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
    /// This many calls of a kernel that computes and of a communication, in turns.
    Exchanging([Call; 2], usize),
    /// This many calls of the work that the table with this prefix contains.
    Table(&'static str, usize),
    /// Two calls, each several times, at the same time: a kernel that computes, and a communication.
    Together([(Call, usize); 2]),
    /// A layer.
    Run(Layer),
}

/// The passes with which layers run.
pub const PIPELINES: [&str; 4] =
    ["@lower", "@lower,select-algorithms", "@overlap", "@overlap,select-algorithms"];
/// Bytes of an element.
const ELEMENT: usize = 2;
/// The smallest call, in elements.
const LEAST: Call = Call::Elementwise(1024);
/// A small product.
const SMALL: Call = Call::Product([64, 1024, 1024]);
/// Number of calls of `Meaning::Leasts` and `Meaning::Alternating`.
const CALLS: usize = 20;

/// Returns all measurements, with those that others need first and whole programs last. `quick` leaves out all but the
/// smallest extents.
pub fn entries(ranks: usize, quick: bool) -> Vec<Entry> {
    let entry = |text, meaning| Entry { text, passes: "", meaning };
    let mut all = vec![
        entry(repeated_call(LEAST, 1, ranks), Meaning::Least),
        entry(repeated_call(LEAST, CALLS, ranks), Meaning::Leasts(CALLS)),
        entry(alternating_call(LEAST, CALLS, ranks), Meaning::Alternating(CALLS)),
        entry(calls_in_turns([SMALL, LEAST], CALLS, ranks), Meaning::Switching(SMALL, CALLS)),
    ];
    let kept = if quick { 1 } else { usize::MAX };
    for (table, calls) in tables(ranks) {
        let calls = calls.into_iter().take(kept);
        all.extend(
            calls.map(|(call, times)| entry(repeated_call(call, times, ranks), Meaning::Table(table, times))),
        );
    }
    if quick {
        return all;
    }
    if ranks > 1 {
        let calls = [SMALL, Call::Collective(Collective::Allreduce, "one-shot-ll", 4096)];
        all.push(entry(calls_in_turns(calls, CALLS, ranks), Meaning::Exchanging(calls, CALLS)));
        all.extend(
            contention().map(|it| entry(concurrent_calls(it[0], it[1], ranks), Meaning::Together(it))),
        );
    }
    for layer in layers(ranks) {
        let text = layer.text(ranks);
        all.extend(PIPELINES.map(|passes| Entry {
            text: text.clone(),
            passes,
            meaning: Meaning::Run(layer.clone()),
        }));
    }
    all
}

/// Returns the number of calls of a program whose calls move or compute this much, so that it takes neither much less than
/// 100 µs nor much more than a few milliseconds.
fn calls_for(microseconds: f64) -> usize {
    if microseconds > 400.0 {
        3
    } else if microseconds > 50.0 {
        8
    } else {
        20
    }
}

/// Returns the calls of each table, the smallest first, with the number of times that a program makes them.
fn tables(ranks: usize) -> Vec<(&'static str, Vec<(Call, usize)>)> {
    let sized = |bytes: &[usize], call: &dyn Fn(usize) -> Call, rate: f64| -> Vec<(Call, usize)> {
        bytes.iter().map(|it| (call(it / ELEMENT), calls_for(*it as f64 / rate))).collect()
    };
    let sizes =
        |first: u32, last: u32| -> Vec<usize> { (first..=last).step_by(2).map(|it| 1 << it).collect() };
    let mut products = Vec::new();
    for rows in [1, 16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192] {
        for columns in [1024, 4096, 8192, 16384] {
            for depth in [1024, 4096, 8192, 16384] {
                // 2^39 multiplications take 1.5 ms, and the largest weights 256 MiB.
                if rows * columns * depth <= 1 << 39 && columns * depth <= 1 << 27 {
                    let time =
                        (2.0 * (rows * columns * depth) as f64 / 7e8).max((columns * depth) as f64 / 2e6);
                    products.push((Call::Product([rows, columns, depth]), calls_for(time)));
                }
            }
        }
    }
    let mut attention = Vec::new();
    for heads in [8, 32, 128] {
        for rows in [64, 256, 1024, 2048] {
            attention.push((Call::Attention([heads, rows]), calls_for((heads * rows * rows) as f64 * 1e-6)));
        }
    }
    let mut all = vec![
        ("product", products),
        ("elementwise", sized(&sizes(12, 28), &Call::Elementwise, 2e6)),
        ("reduction", sized(&sizes(14, 28), &|it| Call::Reduction((it / 4096).max(1)), 2e6)),
        ("copy", sized(&sizes(12, 28), &Call::Copy, 1e6)),
        ("sdpa", attention),
    ];
    if ranks > 1 {
        let collective = |kind, algorithm| move |elements| Call::Collective(kind, algorithm, elements);
        let (small, large) = (sizes(13, 21), sizes(13, 27));
        let link = 2e5;
        all.push(("get", sized(&large, &|it| Call::PeerCopy(it, PeerProtocol::Get), link)));
        all.push(("put", sized(&large, &|it| Call::PeerCopy(it, PeerProtocol::Put), link)));
        for (kind, algorithm, is_small) in [
            (Collective::Allreduce, "one-shot", false),
            (Collective::Allreduce, "two-shot", false),
            (Collective::Allgather, "one-shot", false),
            (Collective::Allreduce, "one-shot-ll", true),
            (Collective::Allreduce, "two-shot-ll", true),
            (Collective::Allgather, "one-shot-ll", true),
        ] {
            let sizes = if is_small { &small } else { &large };
            all.push(("kernel", sized(sizes, &collective(kind, algorithm), link)));
        }
        for kind in
            [Collective::Allreduce, Collective::Allgather, Collective::ReduceScatter, Collective::AllToAll]
        {
            all.push(("nccl", sized(&large, &collective(kind, "nccl"), link)));
        }
    }
    all
}

/// Returns a product and a communication that run at the same time, for each kind of communication.
fn contention() -> [[(Call, usize); 2]; 3] {
    let product = (Call::Product([4096, 4096, 8192]), 3);
    let elements = 32 << 20;
    [
        [product, (Call::PeerCopy(elements, PeerProtocol::Get), 3)],
        [product, (Call::Collective(Collective::Allreduce, "two-shot", elements), 3)],
        [product, (Call::Collective(Collective::Allreduce, "nccl", elements), 3)],
    ]
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
