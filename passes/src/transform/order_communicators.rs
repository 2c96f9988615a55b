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
//! another block, or if the current stream changes or its number is posted again in between.
//!
//! Later passes of the list keep the order: behind each that loses it, the pass manager makes it again. It does so without this pass, too, if
//! the program had the order before, unless the pass is schedule-communication, which makes another order on purpose.

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, Program, StmtId},
};
use hir_ir::{
    blocks::{any_stmt, nested_blocks},
    streams::sets_stream,
};

use crate::{
    analysis::{
        communicators::{Communicators, Post},
        wait_order::{awaited_work, posted_work},
    },
    pass::{Arguments, Change, Pass, Remarks},
    transform::schedule_communication,
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("order-communicators", include_str!("order_communicators.rs"), run)
    .about(
        "wait for a communication before one of another communicator, if ranks could start them in \
         different orders",
    );

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let ordered = Communicators::of(program).map(|it| ordered_blocks(program, &it)).unwrap_or_default();
    let change = Change::from_flag(!ordered.is_empty());
    ordered.into_iter().for_each(|(block, stmts)| program.blocks[block] = stmts);
    Ok(change)
}

/// Whether communications are in the order that the pass makes, before and after each pass of a list.
pub(crate) struct CommunicatorOrder {
    is_ordered: bool,
    /// Whether the list has made the order.
    is_wanted: bool,
    communicators: Option<Communicators>,
}

impl CommunicatorOrder {
    /// Finds out whether a program has the order.
    pub(crate) fn of(program: &Program) -> Self {
        let communicators = Communicators::of(program);
        let is_ordered = communicators.as_ref().is_none_or(|it| ordered_blocks(program, it).is_empty());
        Self { is_ordered, is_wanted: false, communicators }
    }

    /// Makes the order again behind a pass that has changed the program, if the program had it before.
    pub(crate) fn keep(&mut self, program: &mut Program, pass: &Pass) {
        self.communicators = Communicators::updated(program, self.communicators.take());
        let ordered = self.communicators.as_ref().map(|it| ordered_blocks(program, it)).unwrap_or_default();
        self.is_wanted |= pass.name == PASS.name;
        if self.is_wanted || self.is_ordered && pass.name != schedule_communication::PASS.name {
            ordered.into_iter().for_each(|(block, stmts)| program.blocks[block] = stmts);
        } else {
            self.is_ordered = ordered.is_empty();
        }
    }
}

/// Returns the blocks that are not in order, with their statements in order.
fn ordered_blocks(program: &Program, communicators: &Communicators) -> Vec<(BlockId, Vec<StmtId>)> {
    let blocks = program.body.into_iter().flat_map(|body| nested_blocks(program, body));
    let ordered = blocks.map(|it| (it, order_block(program, program.block(it), communicators)));
    ordered.filter(|(block, stmts)| *stmts != program.blocks[*block]).collect()
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
                // A Wait behind a later post of its number waits for that one.
                let posts_again = |it| any_stmt(program, it, &|it| posted_work(program, it) == Some(number));
                let stops = |it: &StmtId| sets_stream(program, *it) || posts_again(*it);
                if !rest[at..].iter().chain([&stmt]).any(stops) {
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
