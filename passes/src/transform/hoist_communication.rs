//! hoist-communication: posts communications as early as possible.
//!
//! Before:
//! ```text
//! T2 = linear(T0, T1)
//! T5 = linear(T6, T7)
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! ```
//! After:
//! ```text
//! T2 = linear(T0, T1)
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! T5 = linear(T6, T7)
//! ```
//!
//! A communication, or a whole coalescing bracket, moves up in its block to before the topmost statement that
//! computes or waits. It does not move past a statement that writes what the communication uses, uses what it
//! writes, binds or deallocates one of its names, assigns one of its scalars, communicates, waits for the
//! same number, shares handles, or operates on streams. So communications keep their order on every
//! communicator.
//!
//! A dependency can also pass through a communicator: a statement precedes a communication of its stream,
//! for which another stream waits, or which precedes the next communication of the communicator. In a program in
//! which another stream waits, a communication therefore stays after a statement that conflicts with the work of
//! another stream, or with the caller.

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, Program, Stmt, StmtId},
    ops::OpClass,
};

use crate::{
    analysis::{
        blocks::{any_stmt, nested_blocks},
        memory_effects::{MemoryEffects, StmtEffects},
        wait_order::WaitOrder,
    },
    pass::{Arguments, Change, Pass, Remarks, module_docs},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "hoist-communication",
    description: "post communications as early as possible",
    docs: module_docs(include_str!("hoist_communication.rs")),
    options: &[],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let storage = MemoryEffects::of(program);
    let order = WaitOrder::of(program, &storage);
    let mut segment = None;
    let mut changed = false;
    for block in nested_blocks(program, body) {
        let mut first = 0;
        while first < program.blocks[block].len() {
            let Some(last) = communication_end(program, block, first) else {
                first += 1;
                continue;
            };
            order.move_to(program, &storage, &mut segment, block, first);
            let stays = |above: &StmtEffects| {
                let segment = segment.as_ref();
                order.others_wait(segment) && order.conflicts_with_other_streams(segment, &above.accesses)
            };
            let to = highest_position(program, &storage, &stays, block, first, last);
            if to < first {
                program.blocks[block][to..=last].rotate_right(last + 1 - first);
                changed = true;
            }
            first = last + 1;
        }
    }
    Ok(Change::from_flag(changed))
}

/// Returns the index of the last statement of the communication that begins at `first`; `None` if no
/// communication begins there.
fn communication_end(program: &Program, block: BlockId, first: usize) -> Option<usize> {
    let effect = |at: usize| match &program.stmts[*program.block(block).get(at)?] {
        Stmt::Op(it) => Some(it.op.def().class),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    };
    match effect(first)? {
        OpClass::Communicate => Some(first),
        OpClass::Coalescing => {
            (first + 1..program.block(block).len()).find(|at| effect(*at) == Some(OpClass::Coalescing))
        }
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::View
        | OpClass::Allocate
        | OpClass::Deallocate
        | OpClass::Wait
        | OpClass::Stream
        | OpClass::ShareHandles
        | OpClass::HostUnit
        | OpClass::Opaque => None,
    }
}

/// Returns the smallest index that the communication from `first` to `last` can move to.
fn highest_position(
    program: &Program,
    storage: &MemoryEffects,
    stays: &dyn Fn(&StmtEffects) -> bool,
    block: BlockId,
    first: usize,
    last: usize,
) -> usize {
    let stmts = program.block(block);
    let posted = storage.all_effects(program, &stmts[first..=last]);
    let mut to = first;
    for at in (0..first).rev() {
        let above = storage.effects(program, stmts[at]);
        if blocks_hoisting(storage, &above, &posted) || stays(&above) {
            break;
        }
        if takes_stream_time(program, stmts[at]) {
            to = at;
        }
    }
    to
}

/// Returns whether a communication cannot move before a statement with the effects `above`.
fn blocks_hoisting(storage: &MemoryEffects, above: &StmtEffects, posted: &StmtEffects) -> bool {
    let names =
        |tensor: &_| posted.names.contains(tensor) || posted.accesses.uses(storage.alias_class(*tensor));
    above.uses_streams
        || above.may_block_host
        || above.communicates
        || !above.waits.is_disjoint(&posted.posts)
        || !above.assigns.is_disjoint(&posted.symbols)
        || !above.binds.is_disjoint(&posted.names)
        || above.deallocates.iter().any(names)
        || above.accesses.conflicts_with(&posted.accesses)
}

/// Returns whether a statement, or one inside it, occupies the stream.
fn takes_stream_time(program: &Program, stmt: StmtId) -> bool {
    any_stmt(program, stmt, &|stmt| match &program.stmts[stmt] {
        Stmt::Op(it) => matches!(
            it.op.def().class,
            OpClass::Compute | OpClass::Elementwise | OpClass::Wait | OpClass::HostUnit | OpClass::Opaque
        ),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    })
}
