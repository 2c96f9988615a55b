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
    diagnostic::Diagnostic,
    ir::{Attr, BlockId, ExprId, OpStmt, Operand, Program, Stmt, StmtId, Stream, StreamId, SymbolId},
    ops::{Effect, Op},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    blocks::{Edit, rewrite},
    pass::{Arguments, Change, Pass, Remarks},
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
        let captures = captures(program);
        let entry = FxHashSet::default();
        let mut order = Order { program, captures: &captures, entry, redundant: Some(&mut redundant) };
        let _ = order.block(body, State { current: Some(Key::Entry), ..State::default() });
        if redundant.is_empty() {
            // The stream current at the end is where the outputs are read.
            let _ = unused_choices(program, body, true, &mut redundant);
        }
        if redundant.is_empty() {
            return Ok(Change::from_flag(changed));
        }
        changed = true;
        rewrite(program, body, &mut |_, stmt| match redundant.contains(&stmt) {
            true => Edit::Remove,
            false => Edit::Keep,
        });
    }
}

/// How often each stream is captured, and whether a loop does.
fn captures(program: &Program) -> FxHashMap<u32, (usize, bool)> {
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
enum Key {
    /// The one current at entry.
    Entry,
    /// A captured one, of which nothing else is known.
    Named(u32),
    /// The one with this index, as long as none of its scalars changes.
    Index(ExprId),
}

/// What is certain at a place.
#[derive(Clone, Default, PartialEq)]
struct State {
    current: Option<Key>,
    /// What captured names stand for.
    names: FxHashMap<u32, Key>,
    /// `(a, b)`: whatever is issued on `a` from here on comes after all that was issued on `b` so far.
    after: FxHashSet<(Key, Key)>,
    /// Numbers of works that may have been posted and not waited for.
    pending: FxHashSet<u32>,
}

impl State {
    /// What is certain where either may be the case.
    fn meet(&self, other: &Self) -> Self {
        let names = self.names.iter().filter(|(name, key)| other.names.get(name) == Some(key));
        Self {
            current: self.current.filter(|it| other.current == Some(*it)),
            names: names.map(|(name, key)| (*name, *key)).collect(),
            after: self.after.intersection(&other.after).copied().collect(),
            pending: self.pending.union(&other.pending).copied().collect(),
        }
    }

    /// Drops what depends on a scalar that gets another value.
    fn forget(&mut self, program: &Program, symbol: SymbolId) {
        let depends = |key: &Key| match key {
            Key::Entry | Key::Named(_) => false,
            Key::Index(index) => program.depends_on(*index, &|it| it == symbol),
        };
        self.current = self.current.filter(|it| !depends(it));
        self.names.retain(|_, key| !depends(key));
        self.after.retain(|(a, b)| !depends(a) && !depends(b));
    }

    /// Something is issued on the current stream.
    fn issue(&mut self, program: &Program) {
        let current = self.current;
        let clear = |b: Key| current.is_some_and(|it| !may_be_same(program, it, b));
        self.after.retain(|(_, b)| clear(*b));
    }

    /// The stream that an operand names.
    fn key(&self, program: &Program, stream: StreamId) -> Key {
        match program.streams[stream] {
            Stream::Named(name) => self.names.get(&name).copied().unwrap_or(Key::Named(name)),
            Stream::Index(index) => Key::Index(index),
        }
    }
}

fn may_be_same(program: &Program, a: Key, b: Key) -> bool {
    match (a, b) {
        (Key::Index(a), Key::Index(b)) => match (program.constant(a), program.constant(b)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        },
        // No index names the stream that was current at entry.
        (Key::Entry, Key::Index(_)) | (Key::Index(_), Key::Entry) => false,
        (Key::Entry, Key::Entry) | (Key::Named(_), _) | (_, Key::Named(_)) => true,
    }
}

/// Follows what is certain through the statements.
struct Order<'p, 'r> {
    program: &'p Program,
    /// How often each stream is captured, and whether a loop does.
    captures: &'r FxHashMap<u32, (usize, bool)>,
    /// Captured names of the stream that was current at entry.
    entry: FxHashSet<u32>,
    /// Statements that change nothing; `None` while a loop's state is still being found.
    redundant: Option<&'r mut FxHashSet<StmtId>>,
}

impl Order<'_, '_> {
    fn block(&mut self, block: BlockId, mut state: State) -> State {
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
                    let then = self.block(it.then, state.clone());
                    state = match it.other {
                        Some(other) => self.block(other, state).meet(&then),
                        None => state.meet(&then),
                    };
                }
                Stmt::For(it) => {
                    state.forget(program, it.index);
                    let redundant = self.redundant.take();
                    // Every round leaves less that is certain, so this ends.
                    loop {
                        let mut behind = self.block(it.body, state.clone());
                        behind.forget(program, it.index);
                        let met = state.meet(&behind);
                        if met == state {
                            break;
                        }
                        state = met;
                    }
                    self.redundant = redundant;
                    let mut behind = self.block(it.body, state.clone());
                    behind.forget(program, it.index);
                    state = state.meet(&behind);
                }
            }
        }
        state
    }

    /// Whether the statement changes nothing; else what is certain behind it.
    fn op(&mut self, it: &OpStmt, state: &mut State) -> bool {
        let program = self.program;
        match it.op.row().effect {
            Effect::Stream => return self.stream(it, state),
            Effect::Wait => {
                let Some(Attr::Work(number)) = it.attr("work") else { return false };
                if !state.pending.remove(number) {
                    return true;
                }
                // Whoever waited for this stream before has not waited for the work.
                state.issue(program);
            }
            Effect::Communicate | Effect::Group => {
                state.pending.extend(it.number);
                state.issue(program);
            }
            Effect::Compute | Effect::Map | Effect::Allocate | Effect::Unit | Effect::Opaque => {
                state.issue(program);
            }
            // They bind names, or block the host.
            Effect::View | Effect::Deallocate | Effect::Share => (),
        }
        false
    }

    fn stream(&mut self, it: &OpStmt, state: &mut State) -> bool {
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
            Stream::Named(name) if self.entry.contains(&name) => Key::Entry,
            Stream::Named(_) | Stream::Index(_) => state.key(program, *stream),
        };
        if it.op == Op::SetCurrentStream {
            return state.current.replace(key) == Some(key);
        }
        let Some(current) = state.current else {
            // Somebody waits for something.
            state.after.clear();
            return false;
        };
        if current == key || state.after.contains(&(current, key)) {
            return true;
        }
        // Whoever waited for the current stream before has not waited for this.
        state.issue(program);
        let through: Vec<Key> = state.after.iter().filter(|(a, _)| *a == key).map(|(_, b)| *b).collect();
        let through = through.into_iter().filter(|b| *b != current).map(|b| (current, b));
        state.after.extend(through);
        state.after.insert((current, key));
        false
    }

    /// The first capture of a name stays.
    fn capture(&mut self, name: u32, state: &mut State) {
        let (captures, in_loop) = self.captures.get(&name).copied().unwrap_or((0, false));
        if let (1, false, Some(current)) = (captures, in_loop, state.current) {
            // What stands for the entry does so from here on; the state stays small.
            match current {
                Key::Entry => _ = self.entry.insert(name),
                Key::Named(_) | Key::Index(_) => _ = state.names.insert(name, current),
            }
        }
    }
}

/// Finds choices of a stream that another choice follows with nothing in between that the choice matters to. `needed`:
/// whether it matters behind the block. Says whether it matters before the block.
fn unused_choices(
    program: &Program,
    block: BlockId,
    mut needed: bool,
    unused: &mut FxHashSet<StmtId>,
) -> bool {
    for stmt in program.block(block).iter().rev() {
        match &program.stmts[*stmt] {
            Stmt::Op(it) => match it.op.row().effect {
                Effect::Stream if it.op == Op::SetCurrentStream => {
                    if !needed {
                        unused.insert(*stmt);
                    }
                    needed = false;
                }
                Effect::View | Effect::Deallocate => (),
                Effect::Stream
                | Effect::Compute
                | Effect::Map
                | Effect::Allocate
                | Effect::Communicate
                | Effect::Wait
                | Effect::Group
                | Effect::Share
                | Effect::Unit
                | Effect::Opaque => needed = true,
            },
            Stmt::Let(..) => (),
            Stmt::If(it) => {
                let then = unused_choices(program, it.then, needed, unused);
                let other = it.other.map_or(needed, |other| unused_choices(program, other, needed, unused));
                needed = then || other;
            }
            Stmt::For(it) => {
                // Behind the body comes the body again, or what follows the loop.
                let again = unused_choices(program, it.body, needed, &mut FxHashSet::default());
                let body = unused_choices(program, it.body, needed || again, unused);
                needed = needed || body;
            }
        }
    }
    needed
}
