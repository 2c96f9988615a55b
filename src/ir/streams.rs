//! Which stream is current at each statement, and which streams the names of a program denote.
//!
//! `Stream s0 = GetCurrentStream()` captures the current stream once: what a rank captures first under a name counts, whatever the text
//! has first. So a name denotes one stream in the whole run of a rank. `SetCurrentStream` makes a stream current until the next one.

use std::collections::BTreeMap;

use grammar::{BlockId, ExprId, Op, OpClass, Operand, Program, Stmt, StmtId, Stream, StreamId, SymbolId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    blocks::nested_blocks,
    dataflow::{Analysis, Direction, Point, solve},
};

/// A stream, as far as the text of a program determines it. Two equal values at points of one iteration are one stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamValue {
    /// The stream that is current when the program begins.
    Entry,
    /// The stream with this index, which has the value that it has at the point.
    Index(ExprId),
    /// What a name denotes, if it is captured in different ways: the same stream in the whole run, though not known which one.
    Captured(u32),
    /// The stream that was current behind this branch, scalar definition, or at the beginning of this iteration of a loop: which one
    /// depends on the path.
    Joined(StmtId),
}

impl StreamValue {
    /// Returns whether the value is one stream on a rank, in all iterations.
    pub fn is_constant(self, program: &Program) -> bool {
        match self {
            Self::Entry | Self::Captured(_) => true,
            Self::Index(index) => !program.depends_on(index, &|_| true),
            Self::Joined(_) => false,
        }
    }

    /// Returns whether two values may be the same stream. Two different constants are different streams, and the stream that is current
    /// at entry has no index.
    pub fn may_be(self, program: &Program, other: Self) -> bool {
        match (self, other) {
            (Self::Index(a), Self::Index(b)) => match (program.constant(a), program.constant(b)) {
                (Some(a), Some(b)) => a == b,
                _ => true,
            },
            (Self::Entry, Self::Index(_)) | (Self::Index(_), Self::Entry) => false,
            (Self::Entry, Self::Entry)
            | (Self::Captured(_) | Self::Joined(_), _)
            | (_, Self::Captured(_) | Self::Joined(_)) => true,
        }
    }

    /// Returns whether the value denotes another stream once a statement has executed again: a scalar definition or the next iteration
    /// of a loop, which change a scalar of the index, or the statement where paths meet.
    pub fn is_renewed_by(self, program: &Program, stmt: StmtId) -> bool {
        match self {
            Self::Entry | Self::Captured(_) => false,
            Self::Index(index) => {
                changed_symbol(program, stmt).is_some_and(|it| program.depends_on(index, &|used| used == it))
            }
            Self::Joined(at) => at == stmt,
        }
    }
}

/// Returns the scalar that a statement changes.
fn changed_symbol(program: &Program, stmt: StmtId) -> Option<SymbolId> {
    match &program.stmts[stmt] {
        Stmt::Let(symbol, _) => Some(*symbol),
        Stmt::For(it) => Some(it.index),
        Stmt::Op(_) | Stmt::If(_) => None,
    }
}

/// The statement that has made a stream current.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Setter {
    /// None: the stream is that at the beginning.
    Entry,
    /// A SetCurrentStream.
    Stmt(StmtId),
    /// One of several.
    Several,
}

/// The streams of a program at each of its statements.
#[derive(Debug, Default)]
pub struct StreamFacts {
    before: FxHashMap<StmtId, (StreamValue, Option<StmtId>)>,
    behind: FxHashMap<BlockId, (StreamValue, Option<StmtId>)>,
    operands: FxHashMap<StmtId, StreamValue>,
    setting_blocks: FxHashSet<BlockId>,
}

impl StreamFacts {
    /// Finds the streams at each statement of the container.
    pub fn of(program: &Program) -> Self {
        Self::find(program, false)
    }

    /// As `of`, but what is found also holds if loops have other numbers of iterations, or none.
    pub fn of_any_count(program: &Program) -> Self {
        Self::find(program, true)
    }

    fn find(program: &Program, is_for_any_count: bool) -> Self {
        let mut facts = Self::default();
        let Some(body) = program.body else { return facts };
        let setting_blocks = setting_blocks(program, body);
        let analysis = Streams { program, setting_blocks: &setting_blocks, is_for_any_count };
        let entry = State { current: StreamValue::Entry, setter: Setter::Entry, names: BTreeMap::new() };
        solve(program, body, &entry, &analysis, &mut |point, state| {
            let setter = if let Setter::Stmt(it) = state.setter { Some(it) } else { None };
            match point {
                Point::Before(stmt) => {
                    facts.before.insert(stmt, (state.current, setter));
                    if let Some(Operand::Stream(stream)) = program.op(stmt).and_then(|it| it.args.first()) {
                        facts.operands.insert(stmt, state.value(program, *stream));
                    }
                }
                Point::Behind(block) => _ = facts.behind.insert(block, (state.current, setter)),
            }
        });
        Self { setting_blocks, ..facts }
    }

    /// Returns the stream that is current before a statement of the container.
    pub fn current(&self, stmt: StmtId) -> Option<StreamValue> {
        self.before.get(&stmt).map(|it| it.0)
    }

    /// Returns the stream that is current behind the last statement of a block.
    pub fn current_behind(&self, block: BlockId) -> Option<StreamValue> {
        self.behind.get(&block).map(|it| it.0)
    }

    /// Returns the stream that the operand of a statement denotes: that of a SetCurrentStream or a Synchronize.
    pub fn operand(&self, stmt: StmtId) -> Option<StreamValue> {
        self.operands.get(&stmt).copied()
    }

    /// Returns the SetCurrentStream that makes the stream before a statement current, if it is the same one on all paths. A branch that
    /// ends with the stream with which it began is no other path.
    pub fn setter(&self, stmt: StmtId) -> Option<StmtId> {
        self.before.get(&stmt)?.1
    }

    /// Returns whether a statement of a block, or one nested in it, makes a stream current.
    pub fn are_set_in(&self, block: BlockId) -> bool {
        self.setting_blocks.contains(&block)
    }

    /// As `setter`, behind the last statement of a block.
    pub fn setter_behind(&self, block: BlockId) -> Option<StmtId> {
        self.behind.get(&block)?.1
    }
}

/// Returns the blocks with a statement that makes a stream current, also in nested blocks.
fn setting_blocks(program: &Program, body: BlockId) -> FxHashSet<BlockId> {
    let mut found: FxHashSet<BlockId> = FxHashSet::default();
    for block in nested_blocks(program, body) {
        let sets = |stmt: &StmtId| {
            let mut inner = program.inner_blocks(*stmt);
            stream_set_by(program, *stmt).is_some() || inner.any(|it| found.contains(&it))
        };
        if program.block(block).iter().any(sets) {
            found.insert(block);
        }
    }
    found
}

/// Returns the stream that a statement makes current; `None` if it is no SetCurrentStream.
pub fn stream_set_by(program: &Program, stmt: StmtId) -> Option<StreamId> {
    stream_operand(program, stmt, Op::SetCurrentStream)
}

/// Returns the stream for which a statement makes the current stream wait; `None` if it is no Synchronize with a stream.
pub fn synchronized(program: &Program, stmt: StmtId) -> Option<StreamId> {
    stream_operand(program, stmt, Op::Synchronize)
}

fn stream_operand(program: &Program, stmt: StmtId, op: Op) -> Option<StreamId> {
    match program.op(stmt).filter(|it| it.op == op)?.args.first() {
        Some(Operand::Stream(stream)) => Some(*stream),
        Some(Operand::Tensor(_) | Operand::Scalar(_)) | None => None,
    }
}

/// Returns whether an operator of a class is issued on the current stream, or makes it wait.
pub const fn uses_stream(class: OpClass) -> bool {
    match class {
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::Communicate
        | OpClass::Wait
        | OpClass::Condition
        | OpClass::HostUnit
        | OpClass::Opaque
        | OpClass::Allocate => true,
        OpClass::View
        | OpClass::Deallocate
        | OpClass::Stream
        | OpClass::Coalescing
        | OpClass::ShareHandles => false,
    }
}

/// Returns whether a statement, or one nested in it, makes a stream current.
pub fn sets_stream(program: &Program, stmt: StmtId) -> bool {
    program.stmts_at(stmt).any(|it| stream_set_by(program, it).is_some())
}

/// Returns whether a statement of a block, or one nested in it, makes a stream current.
pub fn block_sets_stream(program: &Program, block: BlockId) -> bool {
    program.block(block).iter().any(|it| sets_stream(program, *it))
}

/// Returns the number of the name under which a statement captures the current stream; `None` if it is no GetCurrentStream.
pub fn captured_name(program: &Program, stmt: StmtId) -> Option<u32> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return None };
    match it.outs.first() {
        Some(Operand::Stream(stream)) => match program.streams[*stream] {
            Stream::Named(name) => Some(name),
            Stream::Index(_) => None,
        },
        Some(Operand::Tensor(_) | Operand::Scalar(_)) | None => None,
    }
}

/// What a name denotes where it is captured on some path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Name {
    /// `Captured` of itself if it is not known.
    value: StreamValue,
    /// Whether no statement has captured it on another path.
    may_be_free: bool,
}

/// The streams at a point.
#[derive(Clone, PartialEq, Debug)]
struct State {
    current: StreamValue,
    setter: Setter,
    names: BTreeMap<u32, Name>,
}

impl State {
    /// Returns the stream that an operand denotes.
    fn value(&self, program: &Program, stream: StreamId) -> StreamValue {
        match program.streams[stream] {
            Stream::Index(index) => StreamValue::Index(index),
            Stream::Named(name) => match self.names.get(&name) {
                Some(it) if !it.may_be_free => it.value,
                _ => StreamValue::Captured(name),
            },
        }
    }
}

struct Streams<'p> {
    program: &'p Program,
    /// The blocks with a statement that makes a stream current, also in nested blocks.
    setting_blocks: &'p FxHashSet<BlockId>,
    /// Whether loops may have any number of iterations, also where the bounds are known.
    is_for_any_count: bool,
}

impl Streams<'_> {
    /// Returns whether the iterations of a loop may change the current stream.
    fn changes(&self, stmt: StmtId) -> bool {
        self.program.inner_blocks(stmt).any(|it| self.setting_blocks.contains(&it))
    }

    /// Returns whether a statement in the blocks of a loop or branch renews a value.
    fn renews(&self, stmt: StmtId, value: StreamValue) -> bool {
        let is_renewed = |it: StmtId| it != stmt && value.is_renewed_by(self.program, it);
        matches!(value, StreamValue::Index(_) | StreamValue::Joined(_))
            && self.program.stmts_at(stmt).any(is_renewed)
    }

    /// Forgets the values that a statement renews. The current stream itself stays.
    fn renew(&self, stmt: StmtId, state: &mut State) {
        for (number, name) in &mut state.names {
            if name.value.is_renewed_by(self.program, stmt) {
                name.value = StreamValue::Captured(*number);
            }
        }
    }
}

impl Analysis for Streams<'_> {
    const DIRECTION: Direction = Direction::Forward;
    type State = State;

    fn step(&self, stmt: StmtId, state: &mut State) {
        match &self.program.stmts[stmt] {
            Stmt::Op(_) => {
                if let Some(name) = captured_name(self.program, stmt) {
                    let captured = Name { value: state.current, may_be_free: false };
                    let known = state.names.entry(name).or_insert(captured);
                    if known.may_be_free {
                        let is_same = known.value == state.current;
                        let value = if is_same { state.current } else { StreamValue::Captured(name) };
                        *known = Name { value, may_be_free: false };
                    }
                } else if let Some(stream) = stream_set_by(self.program, stmt) {
                    state.current = state.value(self.program, stream);
                    state.setter = Setter::Stmt(stmt);
                }
            }
            Stmt::Let(..) | Stmt::For(_) => {
                self.renew(stmt, state);
                // The stream is still current, but its index has another value from here on.
                let is_index = matches!(state.current, StreamValue::Index(_));
                if is_index && state.current.is_renewed_by(self.program, stmt) {
                    state.current = StreamValue::Joined(stmt);
                }
            }
            Stmt::If(_) => (),
        }
    }

    fn leave(&self, stmt: StmtId, mut end: State, again: State) -> State {
        if self.is_for_any_count {
            return again;
        }
        if self.changes(stmt) {
            end.setter = Setter::Several;
        }
        end
    }

    fn join(&self, stmt: StmtId, before: Option<&State>, mut one: State, other: &State) -> State {
        let is_loop = before.is_none();
        let [first, second] = [one.current, other.current];
        let is_stable = || !self.renews(stmt, first) && !self.renews(stmt, second);
        if is_loop && !self.changes(stmt) && is_stable() {
            // No iteration changes it: what an earlier round has found before the loop does not count.
            (one.current, one.setter) = (other.current, other.setter);
        } else if one.current != other.current {
            (one.current, one.setter) = (StreamValue::Joined(stmt), Setter::Several);
        } else if one.setter != other.setter {
            let is_restored = before.filter(|it| it.current == one.current && is_stable());
            one.setter = is_restored.map_or(Setter::Several, |it| it.setter);
        }
        self.renew(stmt, &mut one);
        for (number, it) in &other.names {
            let value = if it.value.is_renewed_by(self.program, stmt) {
                StreamValue::Captured(*number)
            } else {
                it.value
            };
            let known = one.names.entry(*number).or_insert(Name { value, may_be_free: true });
            if known.value != value {
                known.value = StreamValue::Captured(*number);
            }
            known.may_be_free |= it.may_be_free;
        }
        for (number, it) in &mut one.names {
            it.may_be_free |= !other.names.contains_key(number);
        }
        one
    }
}
