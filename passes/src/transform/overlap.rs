//! overlap: cuts communications into chunks that overlap with matrix products, where that is possible.
//!
//! Before:
//! ```text
//! T4[iS10{8}, iS11{16}] = Set( T0[ideviceIdx.x0{8}, iS1{16}] )
//! T3[iS6{8}, iS7{128}] = linear(T4[iS10{8}, iS11{16}], T1)
//! ```
//! After (`allgather=p2p-ring,backend=cuda`): the loop that `chunk` and `stream-parallel` make of the two statements.
//!
//! The pass looks at one communication after the other, in the order of the program:
//!
//! | communication | chunks |
//! |---|---|
//! | all-gather | one for each device |
//! | reduce-scatter | one for each device |
//! | all-reduce | `count`, or as many fewer as divide the axis |
//! | to another mesh, with `transfer=chunks` | as an all-reduce |
//!
//! It cuts the axis through all tensors that share it, makes a loop of the statements on them, and keeps the loop only if
//! it overlaps (`judge`): iterations are independent of each other, and each communicates and has a matrix product. A
//! communication that cannot overlap stays whole, and a remark says why. One that needs another strategy later can still
//! be in the loop of an earlier one: an all-gather and the reduce-scatter behind it share a loop.

mod overlap_check;

use grammar::{
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
};
use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        dim_equivalence::{DimEquivalence, EquivalentDims},
        sharding::Sharding,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    transform::{
        chunk::{self, CommCandidate, CommKind, DEFAULT_COUNT},
        stream_parallel::{self, BACKEND, OFFSET_BY_RANK, PROTOCOL, STYLE, WAIT},
        swizzle_stream,
    },
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "overlap",
    description: "cut communications into chunks that overlap with matrix products; leave the others whole",
    options: &[
        OptionSpec {
            name: "allgather",
            description: "how an all-gather is cut",
            kind: OptionKind::Word(&["broadcast", "p2p-ring", "collective-permute", "whole"]),
            default: Some("broadcast"),
        },
        OptionSpec {
            name: "reduce-scatter",
            description: "how a reduce-scatter is cut",
            kind: OptionKind::Word(&["reduce", "p2p-ring", "whole"]),
            default: Some("reduce"),
        },
        OptionSpec {
            name: "allreduce",
            description: "whether an all-reduce is cut into chunks",
            kind: CHUNKS_OR_WHOLE,
            default: Some("chunks"),
        },
        OptionSpec {
            name: "transfer",
            description: "whether a transfer to another mesh is cut into chunks, the micro-batches of a pipeline",
            kind: CHUNKS_OR_WHOLE,
            default: Some("whole"),
        },
        OptionSpec {
            name: "count",
            description: "number of chunks of an all-reduce or a transfer; default: the largest up to 4 that divides",
            kind: OptionKind::Count,
            default: None,
        },
        OptionSpec {
            name: "swizzle",
            description: "whether stream axes of gathered tensors are rotated, as swizzle-stream does",
            kind: OptionKind::Flag,
            default: Some("false"),
        },
        BACKEND,
        PROTOCOL,
        OFFSET_BY_RANK,
        WAIT,
        STYLE,
    ],
    run,
};

const CHUNKS_OR_WHOLE: OptionKind = OptionKind::Word(&["chunks", "whole"]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let mut change = Change::Unchanged;
    for stmt in program.body().to_vec() {
        let Some(exchange) = chunk::comm_candidate(program, stmt) else { continue };
        let span = program.stmt_span(stmt);
        let what = format!("{} of `{}`", exchange.kind.name(), program.tensor_name(exchange.subject));
        if !program.body().contains(&stmt) {
            let message = format!("the {what} is in the loop of a communication before it");
            remarks.passed(span, message, "overlaps with matrix products");
            continue;
        }
        match attempt(program, arguments, stmt, &exchange) {
            Ok(rewritten) => {
                *program = rewritten;
                change = Change::Changed;
                remarks.passed(
                    span,
                    format!("the {what} is done in chunks"),
                    "overlaps with matrix products",
                );
            }
            Err(reason) => {
                let message = format!("the {what} is left whole: {reason}");
                remarks.missed(span, message, "does not overlap with anything");
            }
        }
    }
    Ok(change)
}

/// The program with a loop that overlaps an exchange with matrix products.
///
/// # Errors
/// Why there is no such loop.
fn attempt(
    program: &Program,
    arguments: &Arguments,
    stmt: StmtId,
    exchange: &CommCandidate,
) -> Result<Program, String> {
    check_requested(arguments, exchange)?;
    let mut cut = program.clone();
    let component = chunk_axis(&mut cut, arguments, exchange)?;
    if arguments.flag("swizzle") {
        swizzle_stream::rotate(&mut cut, Some(&component));
    }
    let settings = stream_parallel::LoopOptions::of(arguments);
    let mut only = on_component(&cut, &component);
    // Loops that gain nothing are left out in a second round.
    for _ in 0..2 {
        let mut trial = cut.clone();
        let written = stream_parallel::make_loops(&mut trial, settings, Some(&only));
        let Some(own) = written.iter().position(|it| it.members.contains(&stmt)) else {
            return Err("its chunks are no slices of what each device has".to_owned());
        };
        let loops: Vec<StmtId> = written.iter().map(|it| it.stmt).collect();
        let reasons = overlap_check::obstacles(&trial, &loops);
        if let Some(reason) = &reasons[own] {
            return Err(reason.clone());
        }
        if reasons.iter().all(Option::is_none) {
            return Ok(trial);
        }
        let good = written.iter().zip(&reasons).filter(|(_, reason)| reason.is_none());
        only = good.flat_map(|(it, _)| it.members.iter().copied()).collect();
    }
    Err("other statements on the same axis cannot be done in chunks".to_owned())
}

/// Whether the options ask for this kind of communication in chunks.
///
/// # Errors
/// What they ask for instead.
fn check_requested(arguments: &Arguments, exchange: &CommCandidate) -> Result<(), String> {
    let option = match exchange.kind {
        CommKind::Allgather => "allgather",
        CommKind::ReduceScatter => "reduce-scatter",
        CommKind::Allreduce => "allreduce",
        CommKind::SendRecv | CommKind::Broadcast | CommKind::Gather | CommKind::Scatter
            if exchange.changes_mesh =>
        {
            "transfer"
        }
        kind @ (CommKind::Reduce
        | CommKind::AllToAll
        | CommKind::SendRecv
        | CommKind::Broadcast
        | CommKind::Gather
        | CommKind::Scatter) => {
            return Err(format!("there is no strategy for the kind \"{}\"", kind.name()));
        }
    };
    match arguments.text(option) {
        Some("whole") if option == "transfer" => {
            Err("`@overlap-pipeline-stages` cuts transfers, this pipeline does not".to_owned())
        }
        Some("whole") => Err(format!("the pass has the option `{option}=whole`")),
        Some(_) | None => Ok(()),
    }
}

/// Cuts the axis of an exchange, unless it has stream axes already.
fn chunk_axis(
    program: &mut Program,
    arguments: &Arguments,
    exchange: &CommCandidate,
) -> Result<EquivalentDims, String> {
    let shared = DimEquivalence::of(program);
    let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).unwrap_or_default();
    if let Some(dim) = dims.iter().position(|dim| dim.stream().is_some()) {
        return shared.dims_equivalent_to(exchange.tensor, dim).map_err(|twice| {
            format!("`{}` has the stream axis in two dimensions", program.tensor_name(twice))
        });
    }
    let most = arguments.count("count").map_or(DEFAULT_COUNT, |it| i64::try_from(it).unwrap_or(i64::MAX));
    let cut = chunk::choose_chunking(program, &shared, exchange, most)?;
    chunk::chunk_equally(program, &cut).map_err(|it| it.message)?;
    Ok(cut.component)
}

/// The top-level statements on tensors that share an axis.
fn on_component(program: &Program, component: &EquivalentDims) -> FxHashSet<StmtId> {
    program.body().iter().copied().filter(|stmt| component.is_mentioned_by(program, *stmt)).collect()
}
