//! remove-redundant-sync: removes Synchronize, SetCurrentStream and Wait statements that add no ordering.
//!
//! Before:
//! ```text
//! SetCurrentStream(Stream 1)
//! SetCurrentStream(Stream 0)
//! Synchronize(Stream s0)
//! Wait(Communication 3)
//! Synchronize(Stream s0)
//! Synchronize(Stream 0)
//! Wait(Communication 3)
//! SetCurrentStream(Stream 0)
//! T1 = Set( T0 )
//! ```
//! After:
//! ```text
//! SetCurrentStream(Stream 0)
//! Synchronize(Stream s0)
//! Wait(Communication 3)
//! T1 = Set( T0 )
//! ```
//!
//! The pass removes:
//!
//! * a Synchronize with the current stream, or with a stream on which nothing was issued since the current
//!   stream last waited for it, directly or through a third stream;
//! * a SetCurrentStream to the current stream, and one under which nothing is issued before the next
//!   SetCurrentStream;
//! * a Wait for a number under which nothing was posted since the last Wait for it.
//!
//! A fact holds at the beginning of a loop's body only if it holds before the loop and at the end of the
//! body. Which streams are one stream says `hir_ir::streams`.

use grammar::{Diagnostic, Op, OpClass, Program, Stmt, StmtId, attr};
use hir_ir::{
    dataflow::{Analysis, Direction, Point, solve},
    edit::{StmtEdit, rewrite},
    streams::{StreamFacts, StreamValue, stream_set_by},
};
use rustc_hash::FxHashSet;

use crate::pass::{Arguments, Change, Pass, Remarks};

/// The pass.
pub(crate) const PASS: Pass =
    Pass::new("remove-redundant-sync", include_str!("remove_redundant_sync.rs"), run)
        .about("remove waits, stream synchronizations and stream switches that add no ordering");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut changed = false;
    // A removal may make other statements redundant: a removed Synchronize may have been the only use of a
    // SetCurrentStream.
    loop {
        let mut redundant = FxHashSet::default();
        // A statement stays if it is redundant only because a loop has iterations: then an edit of the loop cannot change what is
        // around it.
        let order = SyncOrder { program, streams: &StreamFacts::of_any_count(program) };
        solve(program, body, &SyncState::default(), &order, &mut |point, state| {
            if let Point::Before(stmt) = point
                && order.is_redundant(stmt, state)
            {
                redundant.insert(stmt);
            }
        });
        if redundant.is_empty() {
            // The outputs are read on the stream that is current at the end.
            solve(program, body, &true, &StreamNeeds { program }, &mut |point, is_needed| {
                if let Point::Before(stmt) = point
                    && !is_needed
                    && stream_set_by(program, stmt).is_some()
                {
                    redundant.insert(stmt);
                }
            });
        }
        if redundant.is_empty() {
            return Ok(Change::from_flag(changed));
        }
        changed = true;
        rewrite(program, body, &mut |_, stmt| {
            if redundant.contains(&stmt) { StmtEdit::Remove } else { StmtEdit::Keep }
        });
    }
}

/// The orders that are certain at a point of a program, and the communications that may be pending.
#[derive(Clone, Default, PartialEq)]
struct SyncState {
    /// `(a, b)`: work issued on `a` from here on runs after all work issued on `b` so far.
    ordered_after: FxHashSet<(StreamValue, StreamValue)>,
    /// The numbers of communications that may have been posted and not waited for.
    pending: FxHashSet<u32>,
}

/// Which streams have waited for which other ones.
struct SyncOrder<'p> {
    program: &'p Program,
    streams: &'p StreamFacts,
}

impl SyncOrder<'_> {
    /// Returns whether a statement adds no order to a state.
    fn is_redundant(&self, stmt: StmtId, state: &SyncState) -> bool {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return false };
        match (it.op, self.streams.current(stmt).zip(self.streams.operand(stmt))) {
            (Op::SetCurrentStream, Some((current, set))) => current == set,
            (Op::Synchronize, Some((current, awaited))) => {
                current == awaited || state.ordered_after.contains(&(current, awaited))
            }
            _ if it.op.def().class == OpClass::Wait => {
                it.get(attr::WORK).is_some_and(|it| !state.pending.contains(&it))
            }
            _ => false,
        }
    }

    /// Records that a statement issues work on the current stream: what has waited for this stream has not waited for this work.
    fn issue(&self, stmt: StmtId, state: &mut SyncState) {
        let current = self.streams.current(stmt);
        let is_other = |it: StreamValue| current.is_some_and(|current| !current.may_be(self.program, it));
        state.ordered_after.retain(|(_, awaited)| is_other(*awaited));
    }

    /// Forgets what concerns streams that a statement renews.
    fn renew(&self, stmt: StmtId, state: &mut SyncState) {
        let stays = |it: StreamValue| !it.is_renewed_by(self.program, stmt);
        state.ordered_after.retain(|(a, b)| stays(*a) && stays(*b));
    }

    fn synchronize(&self, stmt: StmtId, state: &mut SyncState) {
        let Some((current, awaited)) = self.streams.current(stmt).zip(self.streams.operand(stmt)) else {
            return;
        };
        self.issue(stmt, state);
        let through: Vec<StreamValue> =
            state.ordered_after.iter().filter(|(a, _)| *a == awaited).map(|(_, b)| *b).collect();
        let all = through.into_iter().filter(|it| *it != current).chain([awaited]);
        state.ordered_after.extend(all.map(|it| (current, it)));
    }
}

impl Analysis for SyncOrder<'_> {
    const DIRECTION: Direction = Direction::Forward;
    type State = SyncState;

    fn step(&self, stmt: StmtId, state: &mut SyncState) {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return self.renew(stmt, state) };
        if self.is_redundant(stmt, state) {
            return;
        }
        match it.op.def().class {
            OpClass::Stream if it.op == Op::Synchronize => self.synchronize(stmt, state),
            OpClass::Wait => {
                it.get(attr::WORK).iter().for_each(|it| _ = state.pending.remove(it));
                self.issue(stmt, state);
            }
            OpClass::Communicate | OpClass::Coalescing => {
                state.pending.extend(it.number);
                self.issue(stmt, state);
            }
            OpClass::Compute
            | OpClass::Elementwise
            | OpClass::Allocate
            | OpClass::Condition
            | OpClass::HostUnit
            | OpClass::Opaque => self.issue(stmt, state),
            // hir gathers the shards on the current stream.
            OpClass::View if it.op == Op::SymmetricContiguousView => self.issue(stmt, state),
            // These bind names or block the host, and issue no work.
            OpClass::Stream | OpClass::View | OpClass::Deallocate | OpClass::ShareHandles => (),
        }
    }

    fn leave(&self, _: StmtId, _: SyncState, again: SyncState) -> SyncState {
        again
    }

    fn join(&self, stmt: StmtId, _: Option<&SyncState>, mut one: SyncState, other: &SyncState) -> SyncState {
        one.ordered_after.retain(|it| other.ordered_after.contains(it));
        self.renew(stmt, &mut one);
        one.pending.extend(&other.pending);
        one
    }
}

/// Whether the current stream matters at a point: something behind it uses the stream before another one is set.
struct StreamNeeds<'p> {
    program: &'p Program,
}

impl Analysis for StreamNeeds<'_> {
    const DIRECTION: Direction = Direction::Backward;
    type State = bool;

    fn step(&self, stmt: StmtId, is_needed: &mut bool) {
        let Stmt::Op(it) = &self.program.stmts[stmt] else { return };
        match it.op.def().class {
            OpClass::Stream if stream_set_by(self.program, stmt).is_some() => *is_needed = false,
            OpClass::View if it.op == Op::SymmetricContiguousView => *is_needed = true,
            OpClass::View | OpClass::Deallocate => (),
            grammar::other_classes!() | OpClass::Compute | OpClass::Elementwise | OpClass::Allocate => {
                *is_needed = true;
            }
        }
    }

    fn leave(&self, _: StmtId, _: bool, again: bool) -> bool {
        again
    }

    fn join(&self, _: StmtId, _: Option<&bool>, one: bool, other: &bool) -> bool {
        one || *other
    }
}
