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
//! the program had the order before. Only schedule-communication, which makes another order on purpose, may do so before this pass.

use grammar::{Diagnostic, Program};

use crate::{
    analysis::communicators::Communicators,
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::communicator_order::ordered_blocks,
};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("order-communicators", include_str!("order_communicators.rs"), run).for_conditions().about(
        "wait for a communication before one of another communicator, if ranks could start them in \
         different orders",
    );

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let ordered = Communicators::of(program).map(|it| ordered_blocks(program, &it)).unwrap_or_default();
    let change = Change::from_flag(!ordered.is_empty());
    ordered.into_iter().for_each(|(block, stmts)| program.blocks[block] = stmts);
    Ok(change)
}
