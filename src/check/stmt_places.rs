//! Where the statements of a program are: their blocks, loops and groups, and what makes their stream current. Collected
//! once for all edits of a program.

use grammar::{
    ir::{BlockId, Operand, Program, Stmt, StmtId, Stream},
    ops::Op,
    stream_text,
};
use rustc_hash::FxHashMap;

/// The place of a statement.
#[derive(Clone, Copy, Debug)]
pub struct StmtPlace {
    /// The block that contains the statement.
    pub block: BlockId,
    /// Its index in the block.
    pub position: usize,
    /// The StartCoalescing of the group that contains it.
    pub group_start: Option<StmtId>,
    /// The last statement before it in the block that is, or contains, a SetCurrentStream.
    setter: Option<StmtId>,
}

/// The places of all statements.
#[derive(Debug, Default)]
pub struct StmtPlaces {
    places: FxHashMap<StmtId, StmtPlace>,
    /// Whether a block is, or contains, a SetCurrentStream.
    sets_stream: FxHashMap<BlockId, bool>,
    /// The loop or branch that contains a block, and whether it is a loop.
    parents: FxHashMap<BlockId, (StmtId, bool)>,
}

impl StmtPlaces {
    /// Collects the places of all statements of a program.
    pub fn of(program: &Program) -> Self {
        let mut it = Self::default();
        for (id, stmt) in program.stmts.iter() {
            for block in nested_blocks(stmt) {
                it.parents.entry(block).or_insert((id, matches!(stmt, Stmt::For(_))));
            }
        }
        for block in program.blocks.ids() {
            it.add_block(program, block);
        }
        it
    }

    /// Adds the statements of a block and of the blocks in it. Returns whether one of them is a SetCurrentStream.
    fn add_block(&mut self, program: &Program, block: BlockId) -> bool {
        if let Some(known) = self.sets_stream.get(&block) {
            return *known;
        }
        let (mut group_start, mut setter) = (None, None);
        for (position, id) in program.block(block).iter().enumerate() {
            let stmt = &program.stmts[*id];
            let op = if let Stmt::Op(it) = stmt { Some(it.op) } else { None };
            if op == Some(Op::StartCoalescing) {
                group_start = Some(*id);
            }
            self.places.insert(*id, StmtPlace { block, position, group_start, setter });
            if op == Some(Op::EndCoalescing) {
                group_start = None;
            }
            let inner: Vec<bool> =
                nested_blocks(stmt).into_iter().map(|it| self.add_block(program, it)).collect();
            if op == Some(Op::SetCurrentStream) || inner.contains(&true) {
                setter = Some(*id);
            }
        }
        self.sets_stream.insert(block, setter.is_some());
        setter.is_some()
    }

    /// Returns the place of a statement.
    pub fn of_stmt(&self, stmt: StmtId) -> Option<StmtPlace> {
        self.places.get(&stmt).copied()
    }

    /// Returns the loops and branches around a statement, innermost first: the block of each that contains the statement, and
    /// the loop or branch.
    pub fn around(&self, stmt: StmtId) -> impl Iterator<Item = (BlockId, StmtId)> {
        let outer = |stmt: StmtId| {
            let block = self.of_stmt(stmt)?.block;
            Some((block, self.parents.get(&block)?.0))
        };
        std::iter::successors(outer(stmt), move |it| outer(it.1))
    }

    /// Returns whether a block contains a SetCurrentStream, also in its loops and branches.
    pub fn sets_stream(&self, block: BlockId) -> bool {
        self.sets_stream.get(&block) == Some(&true)
    }

    /// Returns the SetCurrentStream that makes the stream of `stmt` current, if it is the same one on all paths.
    pub fn stream_setter(&self, program: &Program, mut stmt: StmtId) -> Option<StmtId> {
        loop {
            let place = self.of_stmt(stmt)?;
            if let Some(setter) = place.setter {
                let is_branch = matches!(program.stmts[setter], Stmt::If(_));
                return if is_branch {
                    self.stream_setter(program, setter).filter(|it| self.restores(program, setter, *it))
                } else {
                    set_stream(program, setter).map(|_| setter)
                };
            }
            let (parent, is_loop) = *self.parents.get(&place.block)?;
            // A later statement of the body sets the stream of the next iteration.
            if is_loop && self.sets_stream(place.block) {
                return None;
            }
            stmt = parent;
        }
    }

    /// Returns whether no SetCurrentStream may be executed before `stmt`.
    pub fn is_entry_current(&self, mut stmt: StmtId) -> bool {
        while let Some(place) = self.of_stmt(stmt).filter(|it| it.setter.is_none()) {
            match self.parents.get(&place.block) {
                None => return true,
                Some((_, true)) if self.sets_stream(place.block) => return false,
                Some((parent, _)) => stmt = *parent,
            }
        }
        false
    }

    /// Returns the SetCurrentStream whose stream is current at the end of a block, if it is the same one on all paths.
    pub fn stream_setter_at_end(&self, program: &Program, block: BlockId) -> Option<StmtId> {
        let last = *program.block(block).last()?;
        if set_stream(program, last).is_some() {
            return Some(last);
        }
        let is_changed = nested_blocks(&program.stmts[last]).into_iter().any(|it| self.sets_stream(it));
        self.stream_setter(program, last).filter(|it| !is_changed || self.restores(program, last, *it))
    }

    /// Returns whether two SetCurrentStreams set the same stream, whatever the rank and the iteration.
    pub fn sets_same_stream(&self, program: &Program, one: StmtId, other: StmtId) -> bool {
        let is_constant = |it: StmtId| match program.stmts[it].op().map(|it| it.args.as_slice()) {
            Some([Operand::Stream(stream)]) => match program.streams[*stream] {
                Stream::Named(_) => true,
                Stream::Index(index) => !program.depends_on(index, &|_| true),
            },
            Some(_) | None => false,
        };
        is_constant(one) && set_stream(program, one) == set_stream(program, other)
    }

    /// Returns whether each block of a branch that changes the stream ends with that of `setter`.
    fn restores(&self, program: &Program, branch: StmtId, setter: StmtId) -> bool {
        nested_blocks(&program.stmts[branch]).into_iter().filter(|it| self.sets_stream(*it)).all(|block| {
            let sets = |it: &StmtId| {
                let inner = nested_blocks(&program.stmts[*it]);
                set_stream(program, *it).is_some() || inner.iter().any(|it| self.sets_stream(*it))
            };
            let last = program.block(block).iter().rev().copied().find(sets);
            last.is_some_and(|it| set_stream(program, it) == set_stream(program, setter))
        })
    }
}

/// Returns the stream that a SetCurrentStream sets, as in the text; `None` for other statements.
fn set_stream(program: &Program, stmt: StmtId) -> Option<String> {
    match &program.stmts[stmt] {
        Stmt::Op(it) if it.op == Op::SetCurrentStream => match it.args.as_slice() {
            [Operand::Stream(stream)] => Some(stream_text(program, *stream)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the blocks of a loop or a branch.
pub fn nested_blocks(stmt: &Stmt) -> Vec<BlockId> {
    match stmt {
        Stmt::Op(_) | Stmt::Let(..) => Vec::new(),
        Stmt::For(it) => vec![it.body],
        Stmt::If(it) => [it.then_block].into_iter().chain(it.else_block).collect(),
    }
}
