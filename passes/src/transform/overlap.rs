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

mod judge;

use grammar::{
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
};
use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        component::{Component, Shared},
        sharding::Sharding,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    transform::{
        chunk::{self, AUTO_COUNT, Exchange, Kind},
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
            kind: CUT,
            default: Some("chunks"),
        },
        OptionSpec {
            name: "transfer",
            description: "whether a transfer to another mesh is cut into chunks, the micro-batches of a pipeline",
            kind: CUT,
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

const CUT: OptionKind = OptionKind::Word(&["chunks", "whole"]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let mut change = Change::Unchanged;
    for stmt in program.body().to_vec() {
        let Some(exchange) = chunk::exchange(program, stmt) else { continue };
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
    exchange: &Exchange,
) -> Result<Program, String> {
    is_asked_for(arguments, exchange)?;
    let mut cut = program.clone();
    let component = cut_axis(&mut cut, arguments, exchange)?;
    if arguments.flag("swizzle") {
        swizzle_stream::rotate(&mut cut, Some(&component));
    }
    let settings = stream_parallel::Settings::of(arguments);
    let mut only = on_component(&cut, &component);
    // Loops that gain nothing are left out in a second round.
    for _ in 0..2 {
        let mut trial = cut.clone();
        let written = stream_parallel::loops(&mut trial, settings, Some(&only));
        let Some(own) = written.iter().position(|it| it.members.contains(&stmt)) else {
            return Err("its chunks are no slices of what each device has".to_owned());
        };
        let loops: Vec<StmtId> = written.iter().map(|it| it.stmt).collect();
        let reasons = judge::obstacles(&trial, &loops);
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
fn is_asked_for(arguments: &Arguments, exchange: &Exchange) -> Result<(), String> {
    let option = match exchange.kind {
        Kind::Allgather => "allgather",
        Kind::ReduceScatter => "reduce-scatter",
        Kind::Allreduce => "allreduce",
        Kind::SendRecv | Kind::Broadcast | Kind::Gather | Kind::Scatter if exchange.leaves_mesh => "transfer",
        kind @ (Kind::Reduce
        | Kind::AllToAll
        | Kind::SendRecv
        | Kind::Broadcast
        | Kind::Gather
        | Kind::Scatter) => {
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
fn cut_axis(program: &mut Program, arguments: &Arguments, exchange: &Exchange) -> Result<Component, String> {
    let shared = Shared::of(program);
    let dims = Sharding::of(program, exchange.tensor).map(|it| it.dims).unwrap_or_default();
    if let Some(dim) = dims.iter().position(|dim| dim.stream().is_some()) {
        return shared.component(exchange.tensor, dim).map_err(|twice| {
            format!("`{}` has the stream axis in two dimensions", program.tensor_name(twice))
        });
    }
    let most = arguments.count("count").map_or(AUTO_COUNT, |it| i64::try_from(it).unwrap_or(i64::MAX));
    let cut = chunk::choose(program, &shared, exchange, most)?;
    chunk::equal(program, &cut).map_err(|it| it.message)?;
    Ok(cut.component)
}

/// The top-level statements on tensors that share an axis.
fn on_component(program: &Program, component: &Component) -> FxHashSet<StmtId> {
    program.body().iter().copied().filter(|stmt| component.is_mentioned(program, *stmt)).collect()
}
