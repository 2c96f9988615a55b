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
//! which precedes the next communication of the communicator, which another stream posts. In a program with
//! several streams, a communication therefore stays after a statement that conflicts with a communication of
//! another stream.

use std::ops::Range;

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, Program, Stmt, StmtId, TensorId},
    ops::{Op, OpClass},
};
use rustc_hash::FxHashMap;

use crate::{
    analysis::{
        blocks::{any_stmt, nested_blocks},
        memory_effects::{MemoryEffects, ReadWriteSet, StmtEffects},
    },
    pass::{Arguments, Change, Pass, Remarks, module_docs},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "hoist-communication",
    description: "post communications as early as possible",
    docs: module_docs(include_str!("hoist_communication.rs")),
    options: &[],
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let storage = MemoryEffects::of(program);
    let mut elsewhere = OtherStreamComms::of(program, &storage, body);
    let mut changed = false;
    for block in nested_blocks(program, body) {
        let mut first = 0;
        while first < program.blocks[block].len() {
            let Some(last) = communication_end(program, block, first) else {
                first += 1;
                continue;
            };
            elsewhere.move_to(program, &storage, block, first);
            let to = highest_position(program, &storage, &elsewhere, block, first, last);
            if to < first {
                program.blocks[block][to..=last].rotate_right(last + 1 - first);
                changed = true;
            }
            first = last + 1;
        }
    }
    Ok(Change::from_flag(changed))
}

/// The number of communications that read and write each alias class.
#[derive(Default)]
struct CommAccessCounts {
    reads: FxHashMap<TensorId, usize>,
    writes: FxHashMap<TensorId, usize>,
}

impl CommAccessCounts {
    fn add(&mut self, program: &Program, storage: &MemoryEffects, stmt: StmtId) {
        if matches!(&program.stmts[stmt], Stmt::Op(it) if it.op.def().class == OpClass::Communicate) {
            let accesses = storage.effects(program, stmt).accesses;
            accesses.reads.iter().for_each(|it| *self.reads.entry(*it).or_default() += 1);
            accesses.writes.iter().for_each(|it| *self.writes.entry(*it).or_default() += 1);
        }
    }
}

fn sets_stream(program: &Program, stmt: StmtId) -> bool {
    matches!(&program.stmts[stmt], Stmt::Op(it) if it.op == Op::SetCurrentStream)
}

/// The communications of a program that may be posted on another stream.
struct OtherStreamComms {
    /// The communications of the whole program; `None` if it has one stream.
    all: Option<CommAccessCounts>,
    /// The current range of a block in which no statement sets the stream, and the communications in it.
    segment: Option<(BlockId, Range<usize>, CommAccessCounts)>,
}

impl OtherStreamComms {
    fn of(program: &Program, storage: &MemoryEffects, body: BlockId) -> Self {
        let (mut all, mut has_streams) = (CommAccessCounts::default(), false);
        program.walk(body, &mut |stmt| {
            has_streams |= sets_stream(program, stmt);
            all.add(program, storage, stmt);
        });
        Self { all: has_streams.then_some(all), segment: None }
    }

    /// Makes the range that contains the statement at index `at` of a block the current one.
    fn move_to(&mut self, program: &Program, storage: &MemoryEffects, block: BlockId, at: usize) {
        let is_there = self.segment.as_ref().is_some_and(|it| it.0 == block && it.1.contains(&at));
        if self.all.is_none() || is_there {
            return;
        }
        let stmts = program.block(block);
        let chooses = |stmt: &StmtId| any_stmt(program, *stmt, &|it| sets_stream(program, it));
        let from = stmts[..at].iter().rposition(chooses).map_or(0, |it| it + 1);
        let to = stmts[at..].iter().position(chooses).map_or(stmts.len(), |it| at + it);
        let mut own = CommAccessCounts::default();
        stmts[from..to].iter().for_each(|it| own.add(program, storage, *it));
        self.segment = Some((block, from..to, own));
    }

    /// Returns whether a communication that may be posted on another stream conflicts with these accesses.
    fn conflicts(&self, accesses: &ReadWriteSet) -> bool {
        let (Some(all), Some((_, _, own))) = (&self.all, &self.segment) else { return false };
        let count = |counts: &FxHashMap<TensorId, usize>, it: &TensorId| counts.get(it).copied().unwrap_or(0);
        let is_read = |it: &TensorId| count(&all.reads, it) > count(&own.reads, it);
        let is_written = |it: &TensorId| count(&all.writes, it) > count(&own.writes, it);
        accesses.reads.iter().any(is_written)
            || accesses.writes.iter().any(|it| is_read(it) || is_written(it))
    }
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
    elsewhere: &OtherStreamComms,
    block: BlockId,
    first: usize,
    last: usize,
) -> usize {
    let stmts = program.block(block);
    let posted = storage.all_effects(program, &stmts[first..=last]);
    let mut to = first;
    for at in (0..first).rev() {
        let above = storage.effects(program, stmts[at]);
        if blocks_hoisting(storage, &above, &posted) || elsewhere.conflicts(&above.accesses) {
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
    let names = |tensor: &_| {
        let class = storage.alias_class(*tensor);
        posted.names.contains(tensor)
            || posted.accesses.reads.contains(&class)
            || posted.accesses.writes.contains(&class)
    };
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
