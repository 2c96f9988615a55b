//! remove-redundant-sync: drops Synchronize, SetCurrentStream and Wait that order nothing anew.
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
//! * a Synchronize with the current stream, or with a stream on which nothing was issued since the current stream waited
//!   for it, itself or through a third one;
//! * a SetCurrentStream of the current stream, and one that nothing is issued under before the next;
//! * a Wait for a number under which nothing was posted since the last Wait for it.
//!
//! What holds at the begin of a loop's body holds before the loop and behind the body. Streams are told apart by the
//! texts of their indices: `( i5 % 2 )` is itself until `i5` changes, and may be any other index but not, where both are
//! numbers, another number. A captured stream is what was current when it was captured, if that is certain.

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
pub(crate) const PASS: Pass = Pass {
    name: "remove-redundant-sync",
    description: "drop waits, joins and choices of streams that order nothing anew",
    options: &[],
    run,
};

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut changed = false;
    // What one removal leaves may be redundant itself: a choice of stream that only a dropped join needed.
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
        // Every round leaves less that is certain where loops begin, so this ends.
        loop {
            order.has_converged = true;
            // Captures are followed anew: a round that knew too much of loops may have found one that is none.
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
            // The stream current at the end is where the outputs are read.
            let mut needs = StreamNeeds { program, blocks: FxHashMap::default() };
            collect_unused_stream_sets(&mut needs, body, true, &mut redundant);
        }
        if redundant.is_empty() {
            return Ok(Change::from_flag(changed));
        }
        changed = true;
        rewrite(program, body, &mut |_, stmt| match redundant.contains(&stmt) {
            true => StmtEdit::Remove,
            false => StmtEdit::Keep,
        });
    }
}

/// How often each stream is captured, and whether a loop does.
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

/// Which stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum StreamKey {
    /// The one current at entry.
    Entry,
    /// A captured one, of which nothing else is known.
    Named(u32),
    /// The one with this index, as long as none of its scalars changes.
    Index(ExprId),
}

/// What is certain at a place.
#[derive(Clone, Default, PartialEq)]
struct SyncState {
    current: Option<StreamKey>,
    /// What captured names stand for.
    names: FxHashMap<u32, StreamKey>,
    /// `(a, b)`: whatever is issued on `a` from here on comes after all that was issued on `b` so far.
    ordered_after: FxHashSet<(StreamKey, StreamKey)>,
    /// Numbers of works that may have been posted and not waited for.
    pending: FxHashSet<u32>,
}

impl SyncState {
    /// What is certain where either may be the case.
    fn meet(&self, other: &Self) -> Self {
        let names = self.names.iter().filter(|(name, key)| other.names.get(name) == Some(key));
        Self {
            current: self.current.filter(|it| other.current == Some(*it)),
            names: names.map(|(name, key)| (*name, *key)).collect(),
            ordered_after: self.ordered_after.intersection(&other.ordered_after).copied().collect(),
            pending: self.pending.union(&other.pending).copied().collect(),
        }
    }

    /// Drops what depends on a scalar that gets another value.
    fn forget(&mut self, program: &Program, symbol: SymbolId) {
        let depends = |key: &StreamKey| match key {
            StreamKey::Entry | StreamKey::Named(_) => false,
            StreamKey::Index(index) => program.depends_on(*index, &|it| it == symbol),
        };
        self.current = self.current.filter(|it| !depends(it));
        self.names.retain(|_, key| !depends(key));
        self.ordered_after.retain(|(a, b)| !depends(a) && !depends(b));
    }

    /// Something is issued on the current stream.
    fn issue(&mut self, program: &Program) {
        let current = self.current;
        let clear = |b: StreamKey| current.is_some_and(|it| !may_be_same(program, it, b));
        self.ordered_after.retain(|(_, b)| clear(*b));
    }

    /// The stream that an operand names.
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
        // No index names the stream that was current at entry.
        (StreamKey::Entry, StreamKey::Index(_)) | (StreamKey::Index(_), StreamKey::Entry) => false,
        (StreamKey::Entry, StreamKey::Entry) | (StreamKey::Named(_), _) | (_, StreamKey::Named(_)) => true,
    }
}

/// Follows what is certain through the statements.
struct SyncAnalysis<'p, 'r> {
    program: &'p Program,
    /// How often each stream is captured, and whether a loop does.
    captures: &'r FxHashMap<u32, (usize, bool)>,
    /// Captured names of the stream that was current at entry.
    entry_names: FxHashSet<u32>,
    /// What is certain where each loop's body begins, in whichever iteration, as far as it is known. All loops are settled
    /// together, in rounds over the whole program: to settle an inner loop anew in every round of an outer one would take
    /// time that doubles with the depth.
    loop_states: FxHashMap<BlockId, SyncState>,
    /// Whether this round has left every loop's state as it was.
    has_converged: bool,
    /// Statements that change nothing; `None` while the loops are being settled.
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
                Stmt::For(it) => {
                    state.forget(program, it.index);
                    self.merge_loop_entry(it.body, state);
                    let begin = self.loop_states.get(&it.body).cloned().unwrap_or_default();
                    let mut behind = self.block(it.body, begin);
                    behind.forget(program, it.index);
                    self.merge_loop_entry(it.body, behind);
                    // Behind the loop is where another iteration would begin.
                    state = self.loop_states.get(&it.body).cloned().unwrap_or_default();
                }
            }
        }
        state
    }

    /// A loop's body may begin in this state too.
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

    /// Whether the statement changes nothing; else what is certain behind it.
    fn op(&mut self, it: &OpStmt, state: &mut SyncState) -> bool {
        let program = self.program;
        match it.op.def().class {
            OpClass::Stream => return self.stream(it, state),
            OpClass::Wait => {
                let Some(number) = it.get(attr::WORK) else { return false };
                if !state.pending.remove(&number) {
                    return true;
                }
                // Whoever waited for this stream before has not waited for the work.
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
            // They bind names, or block the host.
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
            // Somebody waits for something.
            state.ordered_after.clear();
            return false;
        };
        if current == key || state.ordered_after.contains(&(current, key)) {
            return true;
        }
        // Whoever waited for the current stream before has not waited for this.
        state.issue(program);
        let through: Vec<StreamKey> =
            state.ordered_after.iter().filter(|(a, _)| *a == key).map(|(_, b)| *b).collect();
        let through = through.into_iter().filter(|b| *b != current).map(|b| (current, b));
        state.ordered_after.extend(through);
        state.ordered_after.insert((current, key));
        false
    }

    /// The first capture of a name stays.
    fn capture(&mut self, name: u32, state: &mut SyncState) {
        let (captures, in_loop) = self.captures.get(&name).copied().unwrap_or((0, false));
        if let (1, false, Some(current)) = (captures, in_loop, state.current) {
            // What stands for the entry does so from here on; the state stays small.
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
    /// Whatever comes behind the block.
    Always,
    /// The block chooses one before it uses any.
    Never,
    /// Where it matters behind the block.
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

/// Whether the current stream matters before blocks, each looked at once.
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

    /// Whether the current stream matters before a statement, where it does `behind` it.
    fn is_needed_before(&mut self, stmt: StmtId, behind: bool) -> bool {
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => match it.op.def().class {
                OpClass::Stream if it.op == Op::SetCurrentStream => false,
                OpClass::View | OpClass::Deallocate => behind,
                OpClass::Stream
                | OpClass::Compute
                | OpClass::Elementwise
                | OpClass::Allocate
                | OpClass::Communicate
                | OpClass::Wait
                | OpClass::Coalescing
                | OpClass::ShareHandles
                | OpClass::HostUnit
                | OpClass::Opaque => true,
            },
            Stmt::Let(..) => behind,
            Stmt::If(it) => {
                let then = self.need_before_block(it.then_block).is_needed(behind);
                then || it.else_block.map_or(behind, |other| self.need_before_block(other).is_needed(behind))
            }
            // A loop may have no iteration.
            Stmt::For(it) => behind || self.need_before_block(it.body).is_needed(behind),
        }
    }
}

/// Finds choices of a stream that another choice follows with nothing in between that the choice matters to. `needed`:
/// whether it matters behind the block.
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
                // Behind the body comes the body again, or what follows the loop.
                let again = needs.need_before_block(it.body).is_needed(needed);
                collect_unused_stream_sets(needs, it.body, needed || again, unused);
            }
        }
        needed = needs.is_needed_before(*stmt, needed);
    }
}
