//! stream-parallel: makes loops over stream axes, whose iterations work on slices.
//!
//! Before:
//! ```text
//! T4[istreamIdx10{8}, iS11{16}] = Set( T0[ideviceIdx.x0{8}, iS1{16}] )
//! T3[istreamIdx6{8}, iS7{16}, iS8{128}] = linear(T4[istreamIdx10{8}, iS11{16}], T1, T2)
//! ```
//! After (`allgather=broadcast`, `style=select`):
//! ```text
//! T4 = ALLOCATE(mem_type=global, zero_init=false)
//! T3 = ALLOCATE(mem_type=global, zero_init=false)
//! FOR streamIdx in istreamIdx10{8}:
//!   T5 = HirAliasSelect( T4, axis = istreamIdx10{8}, index = streamIdx )
//!   Communication 1 (type=Broadcast, team=(0 1 2 3 4 5 6 7), root=streamIdx, input=T0, output=T5, backend=NCCL)
//!   Wait(Communication 1)
//!   T6 = HirAliasSelect( T3, axis = istreamIdx6{8}, index = streamIdx )
//!   T6 = linear(T5, T1, T2)
//! ```
//!
//! Consecutive statements whose results have the same stream axis share a loop, as long as each of them reads
//! only the iteration's slice of what the others compute. If a statement cannot join the loop, the local statements at
//! its end that compute the operands of this statement, and nothing from the rest of the loop, move to the loop of the
//! statement. A statement that reads results of the loop as a whole stands behind it, and later products of slices of the loop
//! still join it, such as the second projection of a gathered tensor.
//! `group` contains the statements of a loop, `slicing` determines what can be sliced, `body`
//! emits an iteration, and `loop_comms` its communications. A resharding statement that does not change the
//! stream axis is sliced like any operator and is left to lower-to-communication. A statement stays outside
//! of the loops if it cannot be sliced, if its result has storage on some paths only, if it makes a view in a program that
//! sets streams, or if it accesses storage with several names that a later statement writes.
//!
//! `style=select` loops over a stream axis that is a whole dimension and selects an index
//! (`FOR streamIdx in …`, HirAliasSelect). `style=shard` takes chunks (`FOR i5 from 0 to n`, ShardByStream),
//! and allocates tensors that only one iteration needs in the iteration. With `allocate=before`, it allocates them
//! before the loop, for all iterations. That takes more memory, but the storage of an iteration is not used again,
//! so that no later iteration has to wait until its communications have ended. What is a view of a result, such as a transposed
//! gradient, stays one: `views` has the rules.

mod all_to_all;
mod body;
mod facts;
mod group;
mod loop_comms;
mod options;
mod plan;
mod slicing;
mod views;

use grammar::{Diagnostic, Program, Stmt, StmtId};
use hir_ir::build::IrBuilder;

use crate::pass::{Arguments, Change, Pass, Remarks};
pub(crate) use facts::LoopFacts;
pub(crate) use group::StmtGroup;
use options::{ALLGATHER, REDUCE_SCATTER};
pub(crate) use options::{
    ALLOCATE, Allgather, BACKEND, LoopOptions, OFFSET_BY_RANK, OWN_SLICE, PROTOCOL, ReduceScatter, STYLE,
    WAIT,
};
pub(crate) use plan::LoopPlan;
use plan::PlannedItem;

/// The pass.
pub(crate) const PASS: Pass = Pass::new("stream-parallel", include_str!("stream_parallel.rs"), run)
    .about("make loops over stream axes, whose iterations compute and communicate slices")
    .with_options(&[
        ALLGATHER,
        REDUCE_SCATTER,
        BACKEND,
        PROTOCOL,
        OFFSET_BY_RANK,
        OWN_SLICE,
        WAIT,
        STYLE,
        ALLOCATE,
    ]);

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let facts = LoopFacts::of(program, LoopOptions::of(arguments)?);
    let written = write_loops(program, &facts, &LoopPlan::of(program, &facts, None));
    Ok(Change::from_flag(!written.is_empty()))
}

/// Returns whether an iteration of a loop can compute a slice of what a statement computes.
pub(crate) fn can_slice(program: &Program, settings: LoopOptions, stmt: StmtId) -> bool {
    matches!(&program.stmts[stmt], Stmt::Op(it) if slicing::slicing(program, settings, it).is_some())
}

/// Replaces the statements of the container by the loops and statements of a plan. `facts` are those that it was made with. Returns the
/// loops, in the order of `LoopPlan::loops`.
pub(crate) fn write_loops(program: &mut Program, facts: &LoopFacts, plan: &LoopPlan) -> Vec<StmtId> {
    let Some(block) = program.body else { return Vec::new() };
    let (fresh, settings) = (IrBuilder::of(program), facts.settings);
    let mut pass = StreamParallel { program, facts, settings, fresh, out: Vec::new() };
    let mut written = Vec::new();
    for item in &plan.items {
        match item {
            PlannedItem::Stmt(stmt) => pass.out.push(*stmt),
            PlannedItem::Loop(group) => written.push(body::LoopWriter::new(&mut pass, group).write()),
        }
    }
    let StreamParallel { program, out, .. } = pass;
    program.blocks[block] = out;
    written
}

/// Writes loops.
struct StreamParallel<'p> {
    program: &'p mut Program,
    facts: &'p LoopFacts,
    settings: LoopOptions,
    fresh: IrBuilder,
    /// The new body.
    out: Vec<StmtId>,
}
