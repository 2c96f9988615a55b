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
//! A communication, or a coalescing bracket as a whole, goes up in its block to above the topmost statement that works
//! or waits, unless on the way one writes what the communication uses, uses what it writes, binds or drops one of its
//! names, gives its scalars values, communicates itself, waits for the same number, shares handles, or has to do with
//! streams. So communications keep their order, on every communicator.

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, Program, Stmt, StmtId},
    ops::Effect,
};

use crate::{
    analysis::{
        accesses::{Effects, Storage},
        blocks::{any, nested},
    },
    pass::{Arguments, Change, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "hoist-communication",
    description: "post communications as early as possible",
    options: &[],
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let storage = Storage::of(program);
    let mut changed = false;
    for block in nested(program, body) {
        let mut first = 0;
        while first < program.blocks[block].len() {
            let Some(last) = communication(program, block, first) else {
                first += 1;
                continue;
            };
            let to = highest(program, &storage, block, first, last);
            if to < first {
                program.blocks[block][to..=last].rotate_right(last + 1 - first);
                changed = true;
            }
            first = last + 1;
        }
    }
    Ok(Change::from_flag(changed))
}

/// The index of the last statement of the communication that begins at `first`; `None` where none begins.
fn communication(program: &Program, block: BlockId, first: usize) -> Option<usize> {
    let effect = |at: usize| match &program.stmts[*program.block(block).get(at)?] {
        Stmt::Op(it) => Some(it.op.row().effect),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    };
    match effect(first)? {
        Effect::Communicate => Some(first),
        Effect::Group => {
            (first + 1..program.block(block).len()).find(|at| effect(*at) == Some(Effect::Group))
        }
        Effect::Compute
        | Effect::Map
        | Effect::View
        | Effect::Allocate
        | Effect::Deallocate
        | Effect::Wait
        | Effect::Stream
        | Effect::Share
        | Effect::Unit
        | Effect::Opaque => None,
    }
}

/// The index that the communication from `first` to `last` may go up to.
fn highest(program: &Program, storage: &Storage, block: BlockId, first: usize, last: usize) -> usize {
    let stmts = program.block(block);
    let posted = storage.all_effects(program, &stmts[first..=last]);
    let mut to = first;
    for at in (0..first).rev() {
        let above = storage.effects(program, stmts[at]);
        if stops(storage, &above, &posted) {
            break;
        }
        if works(program, stmts[at]) {
            to = at;
        }
    }
    to
}

/// Whether a communication has to come behind a statement.
fn stops(storage: &Storage, above: &Effects, posted: &Effects) -> bool {
    let names = |tensor: &_| {
        let class = storage.class(*tensor);
        posted.names.contains(tensor)
            || posted.accesses.reads.contains(&class)
            || posted.accesses.writes.contains(&class)
    };
    above.streams
        || above.shares
        || above.communicates
        || !above.waits.is_disjoint(&posted.posts)
        || !above.assigns.is_disjoint(&posted.symbols)
        || !above.binds.is_disjoint(&posted.names)
        || above.drops.iter().any(names)
        || above.accesses.conflicts(&posted.accesses)
}

/// Whether a statement, or one inside it, takes time on the stream.
fn works(program: &Program, stmt: StmtId) -> bool {
    any(program, stmt, &|stmt| match &program.stmts[stmt] {
        Stmt::Op(it) => matches!(
            it.op.row().effect,
            Effect::Compute | Effect::Map | Effect::Wait | Effect::Unit | Effect::Opaque
        ),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    })
}
