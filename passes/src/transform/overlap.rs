//! overlap: splits communications into chunks that overlap with matmuls, if possible.
//!
//! Before:
//! ```text
//! T4[iS10{8}, iS11{16}] = Set( T0[ideviceIdx.x0{8}, iS1{16}] )
//! T3[iS6{8}, iS7{128}] = linear(T4[iS10{8}, iS11{16}], T1)
//! ```
//! After (`allgather=p2p-ring,backend=cuda`): the loop that `chunk` and `stream-parallel` make of the two
//! statements.
//!
//! The pass processes the communications in program order:
//!
//! | communication | number of chunks |
//! |---|---|
//! | all-gather | one per device |
//! | reduce-scatter | one per device |
//! | all-reduce | `count`, or the largest smaller number that divides the axis; with `ratio`, which takes precedence, one for each number in it |
//! | all-to-all | `count`, or the largest smaller number that divides a dimension that it leaves alone |
//! | transfer to another mesh, with `transfer=chunks` | `count`, or the largest smaller number that divides the axis |
//!
//! It splits the axis in all tensors that share it, makes a loop of the statements on these tensors, and
//! keeps the loop only if it overlaps (`overlap_check`): the iterations are independent of each other, and
//! the loop communicates and contains a matmul. If there is no such loop, as in an attention block, whose scores have the
//! sequence twice, the axis is split only in the tensors up to the next products (`Reach::NextProduct`): the loop
//! then holds the projections. In a program with many communications, those that share no axis are split
//! together (`batch`), so that the time grows as the program does. Chunks of different sizes (`ratio`) are in loops one after the other
//! (`unequal_chunks`). A communication that cannot overlap stays unchanged, and a
//! remark gives the reason. Each attempt examines the whole program, so the pass attempts no more once it has examined
//! `MAX_EXAMINED` statements; a remark names this limit for every communication that it leaves unchanged. A later communication can be in the loop of an earlier one: an all-gather and the
//! reduce-scatter after it share a loop.

mod batch;
mod overlap_check;
mod unequal_chunks;

use crate::pass::Obstacle;
use grammar::{
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, Reach},
        sharding::{Dim, Sharding},
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks, module_docs},
    transform::{
        chunk::{self, Chunking, CommCandidate, CommKind, DEFAULT_COUNT, known_extent},
        stream_parallel::{
            self, ALLOCATE, BACKEND, LoopOptions, OFFSET_BY_RANK, OWN_SLICE, PROTOCOL, STYLE, WAIT,
        },
        swizzle_stream,
    },
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "overlap",
    description: "split communications into chunks that overlap with matmuls; leave the others unchanged",
    docs: module_docs(include_str!("overlap.rs")),
    options: &[
        OptionSpec {
            name: "allgather",
            description: "how to split an all-gather",
            kind: OptionKind::Word(&["broadcast", "p2p-ring", "collective-permute", "whole"]),
            default: Some("broadcast"),
        },
        OptionSpec {
            name: "reduce-scatter",
            description: "how to split a reduce-scatter",
            kind: OptionKind::Word(&["reduce", "p2p-ring", "whole"]),
            default: Some("reduce"),
        },
        OptionSpec {
            name: "allreduce",
            description: "split an all-reduce into chunks, or leave it whole",
            kind: CHUNKS_OR_WHOLE,
            default: Some("chunks"),
        },
        OptionSpec {
            name: "alltoall",
            description: "split an all-to-all into chunks along a dimension that it leaves alone, such as the batch, or leave it whole",
            kind: CHUNKS_OR_WHOLE,
            default: Some("chunks"),
        },
        OptionSpec {
            name: "transfer",
            description: "split a transfer to another mesh into chunks, the micro-batches of a pipeline, or leave it whole",
            kind: CHUNKS_OR_WHOLE,
            default: Some("whole"),
        },
        OptionSpec {
            name: "count",
            description: "largest number of chunks of an all-reduce, an all-to-all or a transfer; the largest number up to this that divides the axis is used; default: 4",
            kind: OptionKind::Count,
            default: None,
        },
        OptionSpec {
            name: "ratio",
            description: "relative sizes of the chunks of an all-reduce, such as 8,5,2,1; default: `count` chunks of equal size",
            kind: OptionKind::Counts,
            default: None,
        },
        OptionSpec {
            name: "swizzle",
            description: "rotate stream axes of gathered tensors, as swizzle-stream does",
            kind: OptionKind::Flag,
            default: Some("false"),
        },
        BACKEND,
        PROTOCOL,
        OFFSET_BY_RANK,
        OWN_SLICE,
        WAIT,
        STYLE,
        ALLOCATE,
    ],
    for_one_rank: false,
    run,
};

/// The number of statements that the attempts may examine in all: several hundred layers with a loop each, and less than a
/// minute.
const MAX_EXAMINED: usize = 10_000_000;

const CHUNKS_OR_WHOLE: OptionKind = OptionKind::Word(&["chunks", "whole"]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    if arguments.counts("ratio").is_some_and(|it| it.len() < 2) {
        let it = arguments.error("ratio", "`ratio` has the size of only one chunk", "expected two or more");
        return Err(it.help("write two or more sizes, such as `ratio=8,5,2,1`, or `allreduce=whole`"));
    }
    let mut change = Change::Unchanged;
    let loops = LoopOptions::of(arguments)?;
    let mut examined = 0;
    let stmts = program.body().to_vec();
    let mut together = FxHashMap::default();
    if let Some((rewritten, chunks)) = batch::attempt_together(program, arguments, loops) {
        (*program, together) = (rewritten, chunks);
        change = Change::Changed;
    }
    // The equivalent dimensions of the program as it is; `None` after a change.
    let mut shared = None;
    for stmt in stmts {
        let Some(exchange) = chunk::comm_candidate(program, stmt) else { continue };
        let span = program.stmt_span(stmt);
        let what = format!("{} of `{}`", exchange.kind.name(), program.tensor_name(exchange.subject));
        if let Some(chunks) = together.get(&stmt) {
            remarks.passed(span, format!("the {what} is split into {chunks}"), "overlaps with matmuls");
            continue;
        }
        if !program.body().contains(&stmt) {
            let message = format!("the {what} is in the loop of an earlier communication");
            remarks.passed(span, message, "overlaps with matmuls");
            continue;
        }
        let condition = divisibility_condition(program, arguments, &exchange);
        let attempted = check_requested(arguments, &exchange).and_then(|()| {
            if examined > MAX_EXAMINED {
                return Err(format!(
                    "the attempts for the communications before it have examined {MAX_EXAMINED} statements, the limit of `overlap`"
                ).into());
            }
            let shared = shared.get_or_insert_with(|| DimEquivalence::of(program));
            let mut within = |reach, loops| {
                attempt(program, shared, reach, &mut examined, arguments, loops, (stmt, &exchange))
            };
            within(Reach::Everywhere, loops).or_else(|reason| {
                let chunks = loops.with_chunks().map(|loops| within(Reach::Everywhere, loops));
                match chunks.and_then(Result::ok) {
                    Some(found) => Ok(found),
                    // Chunks of unequal sizes have one reach.
                    None if unequal_sizes(arguments, &exchange).is_some() => Err(reason),
                    None => within(Reach::NextProduct, loops).map_err(|_| reason),
                }
            })
        });
        match attempted {
            Ok((rewritten, count)) => {
                *program = rewritten;
                (change, shared) = (Change::Changed, None);
                let message = format!("the {what} is split into {}", chunks_text(count, condition));
                remarks.passed(span, message, "overlaps with matmuls");
            }
            Err(reason) => {
                let message = format!("the {what} is not split into chunks: {reason}");
                remarks.missed(span, message, "not overlapped");
            }
        }
    }
    Ok(change)
}

/// Returns the number of chunks in words; without a number if it is no constant.
fn chunks_text(count: Option<i64>, condition: &str) -> String {
    format!("{}chunks{condition}", count.map_or(String::new(), |it| format!("{it} ")))
}

/// Returns the ratio of the sizes of the chunks, if the options state one for this kind of communication.
fn unequal_sizes(arguments: &Arguments, exchange: &CommCandidate) -> Option<Vec<u64>> {
    arguments.counts("ratio").filter(|_| exchange.kind == CommKind::Allreduce)
}

/// Returns what a remark adds if the pass chooses the number of chunks of an axis whose extent is not a constant.
fn divisibility_condition(
    program: &Program,
    arguments: &Arguments,
    exchange: &CommCandidate,
) -> &'static str {
    let is_chosen = exchange.count.is_none()
        && arguments.count("count").is_none()
        && unequal_sizes(arguments, exchange).is_none();
    let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).unwrap_or_default();
    let is_symbolic = |dim: &usize| {
        dims.get(*dim)
            .is_some_and(|dim| dim.stream().is_none() && known_extent(program, dim.extent).is_none())
    };
    if is_chosen && exchange.dims.first().is_some_and(is_symbolic) {
        ", whose number has to divide an extent that is not a constant; set `count` if it does not"
    } else {
        ""
    }
}

/// Returns the program with a loop that overlaps a communication with matmuls, and the number of chunks if it is a
/// constant. Adds the number of statements that it examines to `examined`.
///
/// # Errors
/// Returns the reason why no such loop is possible.
fn attempt(
    program: &Program,
    shared: &DimEquivalence,
    reach: Reach,
    examined: &mut usize,
    arguments: &Arguments,
    loops: LoopOptions,
    (stmt, exchange): (StmtId, &CommCandidate),
) -> Result<(Program, Option<i64>), Obstacle> {
    if let Some(ratio) = unequal_sizes(arguments, exchange) {
        *examined += program.stmts.len();
        return unequal_chunks::attempt(program, &ratio, loops, exchange);
    }
    let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).unwrap_or_default();
    let (component, chunking) = match dims.iter().position(|dim| dim.stream().is_some()) {
        Some(dim) => {
            let twice = |twice| {
                let name = program.tensor_name(twice);
                Obstacle::from(format!("`{name}` has the stream axis in two dimensions"))
            };
            (shared.dims_within(reach, exchange.tensor, dim).map_err(twice)?, None)
        }
        None => {
            let it = chunk::choose_chunking(program, shared, exchange, most_chunks(arguments), reach)?;
            (it.component, Some(it.count))
        }
    };
    *examined += program.stmts.len();
    let mut cut = program.clone();
    let component = match chunking {
        Some(count) => {
            let chunking = Chunking { component, count };
            chunk::chunk_equally(&mut cut, std::slice::from_ref(&chunking))?;
            chunking.component
        }
        None => component,
    };
    let dims = Sharding::of(&cut, exchange.tensor).map(|it| it.dims).unwrap_or_default();
    let count = dims.iter().find_map(Dim::stream).and_then(|it| cut.constant(it.count));
    if arguments.flag("swizzle") {
        swizzle_stream::rotate(&mut cut, Some(&component));
    }
    let only = cut.body().iter().copied().filter(|stmt| component.is_mentioned_by(&cut, *stmt)).collect();
    let rewritten = with_loops(&cut, loops, only, &[stmt], 2);
    rewritten.map(|it| (it, count)).map_err(|mut reasons| reasons.swap_remove(0).1)
}

/// Returns the largest number of chunks that the options allow where the number of devices does not determine it.
fn most_chunks(arguments: &Arguments) -> i64 {
    arguments.count("count").map_or(DEFAULT_COUNT, |it| i64::try_from(it).unwrap_or(i64::MAX))
}

/// Returns the program with loops of the statements in `only`, each of at least `least_trips` iterations. The statements in
/// `required`, of which there is at least one, are in loops that overlap communication with matmuls.
///
/// # Errors
/// Returns the statements for which there are no such loops, each with the reason.
fn with_loops(
    cut: &Program,
    loops: LoopOptions,
    mut only: FxHashSet<StmtId>,
    required: &[StmtId],
    least_trips: i64,
) -> Result<Program, Vec<(StmtId, Obstacle)>> {
    // The second round leaves out the loops that do not overlap.
    for _ in 0..2 {
        let mut trial = cut.clone();
        let written = stream_parallel::make_loops(&mut trial, loops, Some(&only));
        let stmts: Vec<StmtId> = written.iter().map(|it| it.stmt).collect();
        let reasons = overlap_check::obstacles(&trial, &stmts, least_trips);
        let loop_of: FxHashMap<StmtId, usize> = written
            .iter()
            .enumerate()
            .flat_map(|(at, it)| it.members.iter().map(move |member| (*member, at)))
            .collect();
        let obstacle = |stmt: &StmtId| match loop_of.get(stmt) {
            None => Some((*stmt, "its chunks are not slices of the local part of each device".into())),
            Some(own) => reasons[*own].clone().map(|reason| (*stmt, reason)),
        };
        let failed: Vec<(StmtId, Obstacle)> = required.iter().filter_map(obstacle).collect();
        if !failed.is_empty() {
            return Err(failed);
        }
        if reasons.iter().all(Option::is_none) {
            return Ok(trial);
        }
        let good = written.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        only = good.flat_map(|(it, _)| it.members.iter().copied()).collect();
    }
    let reason = "other statements on the same axis cannot be split into chunks";
    Err(required.iter().map(|stmt| (*stmt, reason.into())).collect())
}

/// Checks that the options request chunks for this kind of communication.
///
/// # Errors
/// Returns the reason why they do not.
fn check_requested(arguments: &Arguments, exchange: &CommCandidate) -> Result<(), Obstacle> {
    let option = match exchange.kind {
        CommKind::Allgather => "allgather",
        CommKind::ReduceScatter => "reduce-scatter",
        CommKind::Allreduce => "allreduce",
        CommKind::AllToAll => "alltoall",
        CommKind::SendRecv | CommKind::Broadcast | CommKind::Gather | CommKind::Scatter
            if exchange.changes_mesh =>
        {
            "transfer"
        }
        kind @ (CommKind::Reduce
        | CommKind::SendRecv
        | CommKind::Broadcast
        | CommKind::Gather
        | CommKind::Scatter) => {
            return Err(format!("there is no overlap strategy for the kind \"{}\"", kind.name()).into());
        }
    };
    match arguments.text(option) {
        Some("whole") if option == "transfer" => {
            Err("transfers are split only with `transfer=chunks`, as in `@overlap-pipeline-stages`".into())
        }
        Some("whole") => Err(format!("the option `{option}=whole` is set").into()),
        Some(_) | None => Ok(()),
    }
}
