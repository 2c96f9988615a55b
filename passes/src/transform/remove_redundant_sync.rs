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
    ops::{Effect, Op},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::blocks::{Edit, rewrite},
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
        let mut order = Order {
            program,
            captures: &captures,
            entry: FxHashSet::default(),
            loops: FxHashMap::default(),
            is_settled: true,
            redundant: None,
        };
        let entry = || State { current: Some(Key::Entry), ..State::default() };
        // Every round leaves less that is certain where loops begin, so this ends.
        loop {
            order.is_settled = true;
            // Captures are followed anew: a round that knew too much of loops may have found one that is none.
            order.entry.clear();
            let _ = order.block(body, entry());
            if order.is_settled {
                break;
            }
        }
        order.entry.clear();
        order.redundant = Some(&mut redundant);
        let _ = order.block(body, entry());
        if redundant.is_empty() {
            // The stream current at the end is where the outputs are read.
            let mut needs = Needs { program, blocks: FxHashMap::default() };
            unused_choices(&mut needs, body, true, &mut redundant);
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
    /// What is certain where each loop's body begins, in whichever iteration, as far as it is known. All loops are settled
    /// together, in rounds over the whole program: to settle an inner loop anew in every round of an outer one would take
    /// time that doubles with the depth.
    loops: FxHashMap<BlockId, State>,
    /// Whether this round has left every loop's state as it was.
    is_settled: bool,
    /// Statements that change nothing; `None` while the loops are being settled.
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
                    self.begin(it.body, state);
                    let begin = self.loops.get(&it.body).cloned().unwrap_or_default();
                    let mut behind = self.block(it.body, begin);
                    behind.forget(program, it.index);
                    self.begin(it.body, behind);
                    // Behind the loop is where another iteration would begin.
                    state = self.loops.get(&it.body).cloned().unwrap_or_default();
                }
            }
        }
        state
    }

    /// A loop's body may begin in this state too.
    fn begin(&mut self, body: BlockId, state: State) {
        let met = match self.loops.get(&body) {
            Some(known) => known.meet(&state),
            None => state,
        };
        if self.loops.get(&body) != Some(&met) {
            self.is_settled = false;
            self.loops.insert(body, met);
        }
    }

    /// Whether the statement changes nothing; else what is certain behind it.
    fn op(&mut self, it: &OpStmt, state: &mut State) -> bool {
        let program = self.program;
        match it.op.row().effect {
            Effect::Stream => return self.stream(it, state),
            Effect::Wait => {
                let Some(number) = it.get(attr::WORK) else { return false };
                if !state.pending.remove(&number) {
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

/// Whether the current stream matters before a block.
#[derive(Clone, Copy)]
enum Need {
    /// Whatever comes behind the block.
    Always,
    /// The block chooses one before it uses any.
    Never,
    /// Where it matters behind the block.
    AsBehind,
}

impl Need {
    fn before(self, behind: bool) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::AsBehind => behind,
        }
    }
}

/// Whether the current stream matters before blocks, each looked at once.
struct Needs<'p> {
    program: &'p Program,
    blocks: FxHashMap<BlockId, Need>,
}

impl Needs<'_> {
    fn of_block(&mut self, block: BlockId) -> Need {
        if let Some(known) = self.blocks.get(&block) {
            return *known;
        }
        let needs = |behind: bool, this: &mut Self| {
            let stmts = this.program.block(block).iter().rev();
            stmts.fold(behind, |behind, stmt| this.before(*stmt, behind))
        };
        let need = match (needs(true, self), needs(false, self)) {
            (true, true) => Need::Always,
            (true, false) => Need::AsBehind,
            (false, _) => Need::Never,
        };
        self.blocks.insert(block, need);
        need
    }

    /// Whether the current stream matters before a statement, where it does `behind` it.
    fn before(&mut self, stmt: StmtId, behind: bool) -> bool {
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => match it.op.row().effect {
                Effect::Stream if it.op == Op::SetCurrentStream => false,
                Effect::View | Effect::Deallocate => behind,
                Effect::Stream
                | Effect::Compute
                | Effect::Map
                | Effect::Allocate
                | Effect::Communicate
                | Effect::Wait
                | Effect::Group
                | Effect::Share
                | Effect::Unit
                | Effect::Opaque => true,
            },
            Stmt::Let(..) => behind,
            Stmt::If(it) => {
                let then = self.of_block(it.then).before(behind);
                then || it.other.map_or(behind, |other| self.of_block(other).before(behind))
            }
            // A loop may have no iteration.
            Stmt::For(it) => behind || self.of_block(it.body).before(behind),
        }
    }
}

/// Finds choices of a stream that another choice follows with nothing in between that the choice matters to. `needed`:
/// whether it matters behind the block.
fn unused_choices(needs: &mut Needs<'_>, block: BlockId, mut needed: bool, unused: &mut FxHashSet<StmtId>) {
    let program = needs.program;
    for stmt in program.block(block).iter().rev() {
        match &program.stmts[*stmt] {
            Stmt::Op(it) if it.op == Op::SetCurrentStream && !needed => _ = unused.insert(*stmt),
            Stmt::Op(_) | Stmt::Let(..) => (),
            Stmt::If(it) => {
                for inner in [Some(it.then), it.other].into_iter().flatten() {
                    unused_choices(needs, inner, needed, unused);
                }
            }
            Stmt::For(it) => {
                // Behind the body comes the body again, or what follows the loop.
                let again = needs.of_block(it.body).before(needed);
                unused_choices(needs, it.body, needed || again, unused);
            }
        }
        needed = needs.before(*stmt, needed);
    }
}
