//! sink-waits: waits for communications as late as possible.
//!
//! Before:
//! ```text
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! Wait(Communication 4)
//! T5 = linear(T6, T7)
//! T8 = Set( T3 )
//! ```
//! After:
//! ```text
//! Communication 4 (type=Allreduce, input=T2, output=T3)
//! T5 = linear(T6, T7)
//! Wait(Communication 4)
//! T8 = Set( T3 )
//! ```
//!
//! A Wait goes down in its block to the first statement that writes what the communication uses, reads what it writes,
//! drops either, posts or waits for the same number, or has to do with streams: the stream that waits stays the same one.
//! Two Waits keep their order.

use grammar::{
    diagnostic::Diagnostic,
    ir::{Attr, BlockId, Program, Stmt, StmtId},
    ops::Effect,
};

use crate::{
    accesses::{Effects, Storage},
    blocks::nested,
    pass::{Arguments, Change, Pass, Remarks},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "sink-waits",
    description: "wait for communications as late as possible",
    options: &[],
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let storage = Storage::of(program);
    let mut changed = false;
    for block in nested(program, body) {
        changed |= sink_all(program, &storage, block, &|_| true);
    }
    Ok(Change::from_flag(changed))
}

/// Moves the Waits of a block down, those for the numbers that `wanted` picks.
pub(crate) fn sink_all(
    program: &mut Program,
    storage: &Storage,
    block: BlockId,
    wanted: &dyn Fn(u32) -> bool,
) -> bool {
    let mut changed = false;
    // From the last to the first: a Wait may then pass those behind it that have gone.
    for at in (0..program.blocks[block].len()).rev() {
        let Some(number) = awaited(program, program.blocks[block][at]).filter(|it| wanted(*it)) else {
            continue;
        };
        let to = lowest(program, storage, block, at, number, &|_| false);
        if to > at {
            program.blocks[block][at..=to].rotate_left(1);
            changed = true;
        }
    }
    changed
}

/// The number of the communication that a statement waits for, if that is what it does.
pub(crate) fn awaited(program: &Program, stmt: StmtId) -> Option<u32> {
    match &program.stmts[stmt] {
        Stmt::Op(it) if it.op.row().effect == Effect::Wait => match it.attr("work") {
            Some(Attr::Work(number)) => Some(*number),
            _ => None,
        },
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    }
}

/// The index of the last statement behind `at` that a Wait for `number` may go down past; `at` if there is none.
pub(crate) fn lowest(
    program: &Program,
    storage: &Storage,
    block: BlockId,
    at: usize,
    number: u32,
    also_stops: &dyn Fn(&Effects) -> bool,
) -> usize {
    let mut to = at;
    for (next, stmt) in program.block(block).iter().enumerate().skip(at + 1) {
        let effects = storage.effects(program, *stmt);
        if stops(storage, &effects, number) || also_stops(&effects) {
            break;
        }
        // The order of Waits that come to stand together stays.
        if awaited(program, *stmt).is_none() {
            to = next;
        }
    }
    to
}

/// Whether a Wait for `number` has to come before a statement.
fn stops(storage: &Storage, effects: &Effects, number: u32) -> bool {
    let work = storage.work(number);
    let used = |tensor: &_| {
        let class = storage.class(*tensor);
        work.reads.contains(&class) || work.writes.contains(&class)
    };
    effects.streams
        || effects.posts.contains(&number)
        || effects.waits.contains(&number)
        || effects.drops.iter().any(used)
        || effects.shares && effects.names.iter().any(used)
        || effects.accesses.conflicts(&work)
}
