//! order-communicators: waits for a communication before one of another communicator is posted, if ranks could start the two
//! in different orders.
//!
//! Before:
//! ```text
//! Communication 0 (type=Allgather, team=(0 1 2), input=T0, output=T1)
//! Communication 1 (type=Allgather, team=(0 1), input=T2, output=T3)
//! T5 = neg( T4 )
//! Wait(Communication 0)
//! Wait(Communication 1)
//! ```
//! After:
//! ```text
//! Communication 0 (type=Allgather, team=(0 1 2), input=T0, output=T1)
//! Wait(Communication 0)
//! Communication 1 (type=Allgather, team=(0 1), input=T2, output=T3)
//! T5 = neg( T4 )
//! Wait(Communication 1)
//! ```
//!
//! Kernels of NCCL wait for other ranks while they occupy a GPU, which may be unable to run those of two communicators at
//! the same time. If two ranks start two of them in different orders, each may wait for the other one (E0707). Posting
//! them in one order does not prevent this, unless the launch order is implicit (NCCL User Guide, "Using multiple NCCL
//! communicators concurrently").
//!
//! A deadlock needs a cycle of ranks, each of which shares a communicator with the next one. So a communication is
//! ordered if the other communicators of the program connect two of its ranks. The pass moves the Waits of those that share such a rank
//! with it and may still run up, directly before
//! it. A Wait that moves up only makes its stream wait earlier, so results stay. A Wait stays where it is if it is in
//! another block, or if the current stream changes in between.

use grammar::{
    diagnostic::Diagnostic,
    ir::{Program, StmtId},
};
use hir_ir::{blocks::nested_blocks, streams::sets_stream};

use crate::{
    analysis::{
        communicators::{Communicators, Post},
        wait_order::awaited_work,
    },
    pass::{Arguments, Change, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("order-communicators", include_str!("order_communicators.rs"), run)
    .about(
        "wait for a communication before one of another communicator, if ranks could start them in \
         different orders",
    );

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let Some(communicators) = Communicators::of(program) else { return Ok(Change::Unchanged) };
    let mut changed = false;
    for block in nested_blocks(program, body) {
        let ordered = order_block(program, program.block(block), &communicators);
        changed |= ordered != program.blocks[block];
        program.blocks[block] = ordered;
    }
    Ok(Change::from_flag(changed))
}

/// Returns the statements of a block in their new order.
fn order_block(program: &Program, stmts: &[StmtId], communicators: &Communicators) -> Vec<StmtId> {
    let mut rest: Vec<StmtId> = stmts.iter().rev().copied().collect();
    let mut ordered: Vec<StmtId> = Vec::with_capacity(stmts.len());
    let mut pending: Vec<Post> = Vec::new();
    let mut is_in_group = false;
    while let Some(stmt) = rest.pop() {
        let posts = communicators.posts(program, stmt, &mut is_in_group);
        for post in posts.iter().filter(|it| it.begins) {
            let conflicting = pending.iter().filter(|it| communicators.conflict(post, it));
            for number in conflicting.filter_map(|it| it.number).collect::<Vec<u32>>() {
                let is_wait = |it: &StmtId| awaited_work(program, *it) == Some(number);
                let Some(at) = rest.iter().rposition(is_wait) else { continue };
                let between = rest[at..].iter().chain([&stmt]);
                if !between.into_iter().any(|it| sets_stream(program, *it)) {
                    ordered.push(rest.remove(at));
                    pending.retain(|it| it.number != Some(number));
                }
            }
        }
        pending.extend(posts.into_iter().filter(|it| it.runs));
        if let Some(number) = awaited_work(program, stmt) {
            pending.retain(|it| it.number != Some(number));
        }
        ordered.push(stmt);
    }
    ordered
}
