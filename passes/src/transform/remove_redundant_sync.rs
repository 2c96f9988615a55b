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
//! body. Streams are identified by the text of their index: `( i5 % 2 )` denotes one stream until `i5`
//! changes, and may be equal to any other index, except that two different constants are different streams. A
//! captured stream is the stream that was current at its capture, if that is certain.

use grammar::{
    attr,
    diagnostic::Diagnostic,
    ir::{BlockId, ExprId, OpStmt, Operand, Program, Stmt, StmtId, Stream, StreamId, SymbolId},
    ops::{Op, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::blocks::{StmtEdit, rewrite},
};

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
        let captures = capture_counts(program);
        let mut order = SyncAnalysis {
            program,
            captures: &captures,
            entry_names: FxHashSet::default(),
            loop_states: FxHashMap::default(),
            has_converged: true,
            redundant: None,
        };
        let entry = || SyncState { current: Some(StreamKey::Entry), ..SyncState::default() };
        // Every round can only remove facts from loop entries, so the loop terminates.
        loop {
            order.has_converged = true;
            // Collect the captures again: an earlier round may have assumed too much at loop entries.
            order.entry_names.clear();
            let _ = order.block(body, entry());
            if order.has_converged {
                break;
            }
        }
        order.entry_names.clear();
        order.redundant = Some(&mut redundant);
        let _ = order.block(body, entry());
        if redundant.is_empty() {
            // The outputs are read on the stream that is current at the end.
            let mut needs = StreamNeeds { program, blocks: FxHashMap::default() };
            collect_unused_stream_sets(&mut needs, body, true, &mut redundant);
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

/// Returns, for each stream name, the number of captures and whether a loop captures it.
fn capture_counts(program: &Program) -> FxHashMap<u32, (usize, bool)> {
    let mut found: FxHashMap<u32, (usize, bool)> = FxHashMap::default();
    let mut count = |stmt: StmtId, in_loop: bool| {
        if let Stmt::Op(it) = &program.stmts[stmt]
            && let Some(Operand::Stream(stream)) = it.outs.first()
            && let Stream::Named(name) = program.streams[*stream]
        {
            let known = found.entry(name).or_default();
            *known = (known.0 + usize::from(!in_loop), known.1 || in_loop);
        }
    };
    program.body.iter().for_each(|body| program.walk(*body, &mut |stmt| count(stmt, false)));
    for stmt in program.body() {
        if let Stmt::For(it) = &program.stmts[*stmt] {
            program.walk(it.body, &mut |stmt| count(stmt, true));
        }
    }
    found
}

/// The identity of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum StreamKey {
    /// The stream that is current at program entry.
    Entry,
    /// A captured stream with unknown identity.
    Named(u32),
    /// The stream with this index, as long as none of its scalars changes.
    Index(ExprId),
}

/// The facts that are certain at a program point.
#[derive(Clone, Default, PartialEq)]
struct SyncState {
    current: Option<StreamKey>,
    /// The streams that captured names denote.
    names: FxHashMap<u32, StreamKey>,
    /// `(a, b)`: work issued on `a` from here on runs after all work issued on `b` so far.
    ordered_after: FxHashSet<(StreamKey, StreamKey)>,
    /// The numbers of communications that may have been posted and not waited for.
    pending: FxHashSet<u32>,
}

impl SyncState {
    /// Returns the facts that hold in both states.
    fn meet(&self, other: &Self) -> Self {
        let names = self.names.iter().filter(|(name, key)| other.names.get(name) == Some(key));
        Self {
            current: self.current.filter(|it| other.current == Some(*it)),
            names: names.map(|(name, key)| (*name, *key)).collect(),
            ordered_after: self.ordered_after.intersection(&other.ordered_after).copied().collect(),
            pending: self.pending.union(&other.pending).copied().collect(),
        }
    }

    /// Removes the facts that depend on a scalar that changes.
    fn forget(&mut self, program: &Program, symbol: SymbolId) {
        let depends = |key: &StreamKey| match key {
            StreamKey::Entry | StreamKey::Named(_) => false,
            StreamKey::Index(index) => program.depends_on(*index, &|it| it == symbol),
        };
        self.current = self.current.filter(|it| !depends(it));
        self.names.retain(|_, key| !depends(key));
        self.ordered_after.retain(|(a, b)| !depends(a) && !depends(b));
    }

    /// Records that work is issued on the current stream.
    fn issue(&mut self, program: &Program) {
        let current = self.current;
        let clear = |b: StreamKey| current.is_some_and(|it| !may_be_same(program, it, b));
        self.ordered_after.retain(|(_, b)| clear(*b));
    }

    /// Returns the stream that an operand denotes.
    fn key(&self, program: &Program, stream: StreamId) -> StreamKey {
        match program.streams[stream] {
            Stream::Named(name) => self.names.get(&name).copied().unwrap_or(StreamKey::Named(name)),
            Stream::Index(index) => StreamKey::Index(index),
        }
    }
}

fn may_be_same(program: &Program, a: StreamKey, b: StreamKey) -> bool {
    match (a, b) {
        (StreamKey::Index(a), StreamKey::Index(b)) => match (program.constant(a), program.constant(b)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        },
        // The stream that is current at entry has no index.
        (StreamKey::Entry, StreamKey::Index(_)) | (StreamKey::Index(_), StreamKey::Entry) => false,
        (StreamKey::Entry, StreamKey::Entry) | (StreamKey::Named(_), _) | (_, StreamKey::Named(_)) => true,
    }
}

/// Propagates the states through the statements.
struct SyncAnalysis<'p, 'r> {
    program: &'p Program,
    /// For each stream name, the number of captures and whether a loop captures it.
    captures: &'r FxHashMap<u32, (usize, bool)>,
    /// The names under which the stream that is current at entry was captured.
    entry_names: FxHashSet<u32>,
    /// The state at the beginning of each loop's body, for all iterations, as far as it is computed. All
    /// loops converge together, in rounds over the whole program: computing an inner loop's fixed point again
    /// in every round of the outer loop would take time that doubles with the nesting depth.
    loop_states: FxHashMap<BlockId, SyncState>,
    /// Whether this round has left the state of every loop unchanged.
    has_converged: bool,
    /// The redundant statements; `None` until the loop states have converged.
    redundant: Option<&'r mut FxHashSet<StmtId>>,
}

impl SyncAnalysis<'_, '_> {
    fn block(&mut self, block: BlockId, mut state: SyncState) -> SyncState {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    if self.op(it, &mut state)
                        && let Some(redundant) = &mut self.redundant
                    {
                        redundant.insert(*stmt);
                    }
                }
                Stmt::Let(symbol, _) => state.forget(program, *symbol),
                Stmt::If(it) => {
                    let then = self.block(it.then_block, state.clone());
                    state = match it.else_block {
                        Some(other) => self.block(other, state).meet(&then),
                        None => state.meet(&then),
                    };
                }
                Stmt::For(for_loop) => {
                    state.forget(program, for_loop.index);
                    self.merge_loop_entry(for_loop.body, state);
                    let begin = self.loop_states.get(&for_loop.body).cloned().unwrap_or_default();
                    let mut behind = self.block(for_loop.body, begin);
                    behind.forget(program, for_loop.index);
                    self.merge_loop_entry(for_loop.body, behind);
                    // The state after the loop is the state at the beginning of another iteration.
                    state = self.loop_states.get(&for_loop.body).cloned().unwrap_or_default();
                }
            }
        }
        state
    }

    /// Merges `state` into the entry state of a loop's body.
    fn merge_loop_entry(&mut self, body: BlockId, state: SyncState) {
        let met = match self.loop_states.get(&body) {
            Some(known) => known.meet(&state),
            None => state,
        };
        if self.loop_states.get(&body) != Some(&met) {
            self.has_converged = false;
            self.loop_states.insert(body, met);
        }
    }

    /// Returns whether the statement is redundant. Otherwise updates the state.
    fn op(&mut self, it: &OpStmt, state: &mut SyncState) -> bool {
        let program = self.program;
        match it.op.def().class {
            OpClass::Stream => return self.stream(it, state),
            OpClass::Wait => {
                let Some(number) = it.get(attr::WORK) else { return false };
                if !state.pending.remove(&number) {
                    return true;
                }
                // A stream that waited for this stream before has not waited for this communication.
                state.issue(program);
            }
            OpClass::Communicate | OpClass::Coalescing => {
                state.pending.extend(it.number);
                state.issue(program);
            }
            OpClass::Compute
            | OpClass::Elementwise
            | OpClass::Allocate
            | OpClass::HostUnit
            | OpClass::Opaque => {
                state.issue(program);
            }
            // These bind names or block the host, and issue no work.
            OpClass::View | OpClass::Deallocate | OpClass::ShareHandles => (),
        }
        false
    }

    fn stream(&mut self, it: &OpStmt, state: &mut SyncState) -> bool {
        let program = self.program;
        if it.op == Op::GetCurrentStream {
            if let Some(Operand::Stream(stream)) = it.outs.first()
                && let Stream::Named(name) = program.streams[*stream]
            {
                self.capture(name, state);
            }
            return false;
        }
        let Some(Operand::Stream(stream)) = it.args.first() else { return false };
        let key = match program.streams[*stream] {
            Stream::Named(name) if self.entry_names.contains(&name) => StreamKey::Entry,
            Stream::Named(_) | Stream::Index(_) => state.key(program, *stream),
        };
        if it.op == Op::SetCurrentStream {
            return state.current.replace(key) == Some(key);
        }
        let Some(current) = state.current else {
            // An unknown stream waits, which issues work on it.
            state.ordered_after.clear();
            return false;
        };
        if current == key || state.ordered_after.contains(&(current, key)) {
            return true;
        }
        // A stream that waited for the current stream before has not waited for this synchronization.
        state.issue(program);
        let through: Vec<StreamKey> =
            state.ordered_after.iter().filter(|(a, _)| *a == key).map(|(_, b)| *b).collect();
        let through = through.into_iter().filter(|b| *b != current).map(|b| (current, b));
        state.ordered_after.extend(through);
        state.ordered_after.insert((current, key));
        false
    }

    /// Records a capture if it is the only one of the name.
    fn capture(&mut self, name: u32, state: &mut SyncState) {
        let (captures, in_loop) = self.captures.get(&name).copied().unwrap_or((0, false));
        if let (1, false, Some(current)) = (captures, in_loop, state.current) {
            // A name of the entry stream is valid from here on and is not part of the state, which stays
            // small.
            match current {
                StreamKey::Entry => _ = self.entry_names.insert(name),
                StreamKey::Named(_) | StreamKey::Index(_) => _ = state.names.insert(name, current),
            }
        }
    }
}

/// Whether the current stream matters before a block.
#[derive(Clone, Copy)]
enum StreamNeed {
    /// It matters regardless of what follows the block.
    Always,
    /// It does not matter: the block sets the stream before it uses it.
    Never,
    /// It matters if it matters after the block.
    IfNeededAfter,
}

impl StreamNeed {
    fn is_needed(self, behind: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::IfNeededAfter => behind,
        }
    }
}

/// Determines whether the current stream matters before blocks. The result for each block is cached.
struct StreamNeeds<'p> {
    program: &'p Program,
    blocks: FxHashMap<BlockId, StreamNeed>,
}

impl StreamNeeds<'_> {
    fn need_before_block(&mut self, block: BlockId) -> StreamNeed {
        if let Some(known) = self.blocks.get(&block) {
            return *known;
        }
        let needs = |behind: bool, this: &mut Self| {
            let stmts = this.program.block(block).iter().rev();
            stmts.fold(behind, |behind, stmt| this.is_needed_before(*stmt, behind))
        };
        let need = match (needs(true, self), needs(false, self)) {
            (true, true) => StreamNeed::Always,
            (true, false) => StreamNeed::IfNeededAfter,
            (false, _) => StreamNeed::Never,
        };
        self.blocks.insert(block, need);
        need
    }

    /// Returns whether the current stream matters before a statement, given whether it does `behind` the
    /// statement.
    fn is_needed_before(&mut self, stmt: StmtId, behind: bool) -> bool {
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => match it.op.def().class {
                OpClass::Stream if it.op == Op::SetCurrentStream => false,
                OpClass::View | OpClass::Deallocate => behind,
                grammar::other_classes!() | OpClass::Compute | OpClass::Elementwise | OpClass::Allocate => {
                    true
                }
            },
            Stmt::Let(..) => behind,
            Stmt::If(it) => {
                let then = self.need_before_block(it.then_block).is_needed(behind);
                then || it.else_block.map_or(behind, |other| self.need_before_block(other).is_needed(behind))
            }
            // A loop may have no iterations.
            Stmt::For(it) => behind || self.need_before_block(it.body).is_needed(behind),
        }
    }
}

/// Collects each SetCurrentStream that is followed by another one without a statement in between that depends
/// on it. `needed`: whether the current stream matters after the block.
fn collect_unused_stream_sets(
    needs: &mut StreamNeeds<'_>,
    block: BlockId,
    mut needed: bool,
    unused: &mut FxHashSet<StmtId>,
) {
    let program = needs.program;
    for stmt in program.block(block).iter().rev() {
        match &program.stmts[*stmt] {
            Stmt::Op(it) if it.op == Op::SetCurrentStream && !needed => _ = unused.insert(*stmt),
            Stmt::Op(_) | Stmt::Let(..) => (),
            Stmt::If(it) => {
                for inner in [Some(it.then_block), it.else_block].into_iter().flatten() {
                    collect_unused_stream_sets(needs, inner, needed, unused);
                }
            }
            Stmt::For(it) => {
                // The body is followed by the next iteration or by the statement after the loop.
                let again = needs.need_before_block(it.body).is_needed(needed);
                collect_unused_stream_sets(needs, it.body, needed || again, unused);
            }
        }
        needed = needs.is_needed_before(*stmt, needed);
    }
}
