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
//! The pass processes the largest communications first, since the loop of one may exclude that of another on the same tensors, and those
//! of one size in program order:
//!
//! | communication | number of chunks |
//! |---|---|
//! | all-gather | one per device |
//! | reduce-scatter | one per device |
//! | all-reduce | `count`, or the largest smaller number that divides the axis, or `count` of which the last is shorter; with `ratio`, which takes precedence, one for each number in it |
//! | all-to-all | `count`, or the largest smaller number that divides a dimension: one that it leaves alone, each device's part of the one that was sharded, or that of the one that will be |
//! | all-gather or reduce-scatter of more than `most-steps` devices | `count`, or the largest smaller number that divides a dimension that it leaves alone |
//! | transfer to another mesh, with `transfer=chunks` | `count`, or the largest smaller number that divides the axis |
//!
//! It splits the axis in all tensors that share it, makes a loop of the statements on these tensors, and
//! keeps the loop only if it overlaps (`overlap_check`): the iterations are independent of each other, and
//! the loop communicates and contains a matmul. If there is no such loop, as in an attention block, whose scores have the
//! sequence twice, the axis is split only in the tensors up to the next products (`Reach::NextProduct`): the loop
//! then holds the projections. In a program with many communications, those that share no axis are split
//! together (`batch`), so that the time grows as the program does. Chunks of different sizes (`ratio`), and the shorter last chunk of
//! an extent that no number of chunks divides, are in loops one after the other (`unequal_chunks`). A communication that cannot overlap stays unchanged, and a
//! remark gives the reason. Each attempt examines the whole program, so the pass attempts no more once it has examined
//! `MAX_EXAMINED` statements; a remark names this limit for every communication that it leaves unchanged. A communication can be in the loop of another one: an all-gather and the
//! reduce-scatter after it share a loop, unless `share=false`: the loop of the all-gather then ends behind what is computed from
//! its products (`Reach::BehindProduct`), and the reduce-scatter gets a loop of its own, in which the product of the rank's own rows hides
//! the last transfer. That loop reads slices of what the first one has written.
//!
//! `only=T4` and `except=T4` choose communications by the tensor that remarks name, so that several calls of the pass can split each in its
//! own way.
//!
//! Without `count` and `ratio`, all-reduces whose results no later product needs, such as gradients, stay whole if one of them is in front of a
//! product.
//! Last, what reads the result of a communication that is in no loop moves behind the next matrix product (`delay`), so that the reduction
//! of a gradient, and the gather of an updated weight, run beside the products of the next layer.

mod attempts;
mod batch;
mod delay;
mod overlap_check;
mod unequal_chunks;

use std::cmp::Reverse;

use grammar::{CommunicationType, Diagnostic, Named, Program, Span, StmtId};
use hir_ir::search::Budget;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::dim_equivalence::DimEquivalence,
    pass::{Arguments, Change, EXCEPT, ONLY, Obstacle, OptionKind, OptionSpec, Pass, Remarks},
    transform::{
        chunk::{self, CommCandidate},
        stream_parallel::{
            ALLOCATE, Allgather, BACKEND, LoopOptions, OFFSET_BY_RANK, OWN_SLICE, PROTOCOL, ReduceScatter,
            STYLE, WAIT,
        },
    },
};
use attempts::Attempts;

/// The pass.
pub(crate) const PASS: Pass = Pass::new("overlap", include_str!("overlap.rs"), run)
    .about("split communications into chunks that overlap with matmuls; leave the others unchanged")
    .with_options(&[
        OptionSpec::word("allgather", Allgather::NAMES).about("how to split an all-gather"),
        OptionSpec::word("reduce-scatter", ReduceScatter::NAMES).about("how to split a reduce-scatter"),
        OptionSpec::new("allreduce", CHUNKS_OR_WHOLE, Some("chunks"))
            .about("split an all-reduce into chunks, or leave it whole"),
        OptionSpec::new("alltoall", CHUNKS_OR_WHOLE, Some("chunks")).about(
            "split an all-to-all into chunks, of the batch, of the tokens, or of the experts, or leave it \
             whole",
        ),
        OptionSpec::new("transfer", CHUNKS_OR_WHOLE, Some("whole")).about(
            "split a transfer to another mesh into chunks, the micro-batches of a pipeline, or leave it \
             whole",
        ),
        OptionSpec::new("count", OptionKind::Count, None).about(
            "largest number of chunks of an all-reduce, an all-to-all or a transfer; the largest number up \
             to this that divides the axis is used; default: 4",
        ),
        OptionSpec::new("most-steps", OptionKind::Count, Some("64")).about(
            "largest number of devices over which a loop gathers or reduces one shard after the other; \
             those of more devices are split into chunks of a dimension that they leave alone",
        ),
        OptionSpec::new("ratio", OptionKind::Counts, None).about(
            "relative sizes of the chunks of an all-reduce, such as 8,5,2,1; default: `count` chunks of \
             equal size",
        ),
        SHARE,
        ONLY,
        EXCEPT,
        OptionSpec::new("swizzle", OptionKind::Flag, Some("false"))
            .about("rotate stream axes of gathered tensors, as swizzle-stream does"),
        BACKEND,
        PROTOCOL,
        OFFSET_BY_RANK,
        OWN_SLICE,
        WAIT,
        STYLE,
        ALLOCATE,
    ]);

/// The number of statements that the attempts may examine in all: several hundred layers with a loop each, and less than a
/// minute.
const MAX_EXAMINED: usize = 10_000_000;

/// The same for communications that have been attempted together with others: less than a second.
const MAX_EXAMINED_AGAIN: usize = 50_000;

const SHARE: OptionSpec = OptionSpec::new("share", OptionKind::Flag, Some("true")).about(
    "whether a reduce-scatter may be in the loop of an all-gather before it; with two devices, nothing \
     hides the transfer of such a loop's last partial sums",
);

const CHUNKS_OR_WHOLE: OptionKind = OptionKind::Word(&["chunks", "whole"]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    if arguments.counts("ratio").is_some_and(|it| it.len() < 2) {
        let it = arguments.error("ratio", "`ratio` has the size of only one chunk", "expected two or more");
        return Err(it.help("write two or more sizes, such as `ratio=8,5,2,1`, or `allreduce=whole`"));
    }
    arguments.check_names(program)?;
    let mut change = Change::Unchanged;
    let loops = LoopOptions::of(arguments)?.reading_loops(!arguments.flag("share"));
    let mut examined = Budget::new(MAX_EXAMINED + 1);
    let mut comms: Vec<(StmtId, Vec<CommCandidate>)> =
        program.body().iter().map(|stmt| (*stmt, chunk::comm_candidates(program, *stmt))).collect();
    let subjects: Vec<_> = comms.iter().filter_map(|it| Some(vec![it.1.first()?.subject])).collect();
    arguments.remark_unmatched(program, &subjects, remarks);
    if subjects.is_empty() {
        let message = "no statement outside of loops is a communication alone; `decompose-resharding` separates them from what they are for";
        remarks.no_effect(program.spans.header, message, "nothing is split");
    }
    comms.retain(|(_, ways)| ways.first().is_some_and(|it| arguments.selects(program, &[it.subject])));
    let has_chunks = arguments.count("count").is_some() || arguments.counts("ratio").is_some();
    let unneeded = if has_chunks { FxHashSet::default() } else { delay::unneeded_by_products(program) };
    largest_first(program, &mut comms);
    let (mut together, mut reasons): (FxHashMap<StmtId, String>, FxHashMap<StmtId, Obstacle>) =
        Default::default();
    if let Some(found) = batch::attempt_together(program, arguments, (loops, &unneeded)) {
        (*program, together, reasons) = (found.program, found.chunks, found.reasons);
        change = Change::Changed;
    }
    let mut body: FxHashSet<StmtId> = program.body().iter().copied().collect();
    // The equivalent dimensions of the program as it is; `None` after a change.
    let mut shared = None;
    for (stmt, _) in comms {
        let whole = chunk::comm_candidates(program, stmt);
        let beyond = whole.first().and_then(|it| devices_beyond(arguments, it));
        let ways = within_steps(arguments, whole);
        let Some(exchange) = ways.first() else { continue };
        let span = program.stmt_span(stmt);
        let what = format!("{} of `{}`", exchange.kind.facts().phrase, program.tensor_name(exchange.subject));
        if let Some(chunks) = together.get(&stmt) {
            remarks.passed(span, format!("the {what} is split into {chunks}"), "overlaps with matmuls");
            continue;
        }
        if !body.contains(&stmt) {
            let message = format!("the {what} is in the loop of another communication");
            remarks.passed(span, message, "overlaps with matmuls");
            continue;
        }
        let attempted = check_requested(arguments, exchange).and_then(|()| {
            if unneeded.contains(&stmt) {
                return Err("no later product needs its result".into());
            }
            if let Some(reason) = reasons.get(&stmt).filter(|_| examined.spent() > MAX_EXAMINED_AGAIN) {
                return Err(reason.clone());
            }
            if examined.is_spent() {
                return Err(format!(
                    "the attempts for the communications before it have examined {MAX_EXAMINED} statements, the limit of `overlap`"
                ).into());
            }
            let shared = shared.get_or_insert_with(|| DimEquivalence::of(program));
            Attempts { program, shared, examined: &mut examined, arguments, loops }.make(stmt, &ways)
        });
        match attempted {
            Ok((rewritten, chunks)) => {
                *program = rewritten;
                body = program.body().iter().copied().collect();
                (change, shared) = (Change::Changed, None);
                let message = format!("the {what} is split into {chunks}");
                remarks.passed(span, message, "overlaps with matmuls");
            }
            Err(reason) => {
                let reason = match beyond {
                    Some(devices) => format!(
                        "a loop over its {devices} devices has more steps than `most-steps={}`, and without that loop {reason}",
                        most_steps(arguments)
                    ),
                    None => reason.to_string(),
                };
                let message = format!("the {what} is not split into chunks: {reason}");
                remarks.missed(span, message, "not overlapped");
            }
        }
    }
    if delay::readers(program, remarks) == Change::Changed {
        change = Change::Changed;
    }
    remarks.in_text_order();
    Ok(change)
}

/// Sorts communications by size, and those of one size in program order.
fn largest_first(program: &Program, comms: &mut [(StmtId, Vec<CommCandidate>)]) {
    comms.sort_by_cached_key(|it| Reverse(size(program, it)));
}

/// Returns the size of a communication in bytes; 0 if it is not known.
fn size(program: &Program, (_, ways): &(StmtId, Vec<CommCandidate>)) -> usize {
    ways.first().map_or(0, |it| it.bytes(program))
}

/// Returns ways to split a communication. One of so many devices that a loop over them has too many steps is split along a dimension
/// that it leaves alone.
fn within_steps(arguments: &Arguments, ways: Vec<CommCandidate>) -> Vec<CommCandidate> {
    let ways = ways.into_iter();
    ways.map(|it| match devices_beyond(arguments, &it) {
        Some(_) => CommCandidate { dims: it.free_dims, count: None, free_dims: Vec::new(), ..it },
        None => it,
    })
    .collect()
}

/// Returns the number of devices of a communication if a loop over them has too many steps.
fn devices_beyond(arguments: &Arguments, exchange: &CommCandidate) -> Option<i64> {
    exchange.count.filter(|devices| *devices > most_steps(arguments))
}

fn most_steps(arguments: &Arguments) -> i64 {
    arguments.count("most-steps").map_or(i64::MAX, |it| i64::try_from(it).unwrap_or(i64::MAX))
}

/// Checks that the options request chunks for this kind of communication.
///
/// # Errors
/// Returns the reason why they do not.
fn check_requested(arguments: &Arguments, exchange: &CommCandidate) -> Result<(), Obstacle> {
    let no_strategy =
        || format!("there is no overlap strategy for the kind \"{}\"", exchange.kind.facts().phrase).into();
    let option = match exchange.kind {
        CommunicationType::Allgather => "allgather",
        CommunicationType::ReduceScatter => "reduce-scatter",
        CommunicationType::Allreduce => "allreduce",
        CommunicationType::AllToAll => "alltoall",
        CommunicationType::Reduce => return Err(no_strategy()),
        _ if exchange.changes_mesh => "transfer",
        _ => return Err(no_strategy()),
    };
    match arguments.text(option) {
        Some("whole") if option == "transfer" => {
            Err("transfers are split only with `transfer=chunks`, as in `@overlap-pipeline-stages`".into())
        }
        Some("whole") => Err(format!("the option `{option}=whole` is set").into()),
        Some(_) | None => Ok(()),
    }
}

/// A communication that the pass may split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Splittable {
    /// The position of its statement.
    pub span: Span,
    /// What remarks call it: `all-gather`.
    pub kind: &'static str,
    /// The tensor that remarks name, for `only` and `except`.
    pub tensor: String,
}

/// Returns the communications of a program that is not lowered, in its order.
pub fn splittable(program: &Program) -> Vec<Splittable> {
    let all = program.body().iter().filter_map(|stmt| {
        let it = chunk::comm_candidates(program, *stmt).into_iter().next()?;
        let (span, tensor) = (program.stmt_span(*stmt), program.tensor_name(it.subject));
        Some(Splittable { span, kind: it.kind.facts().phrase, tensor })
    });
    all.collect()
}
