//! Moves the communications of an iteration to a stream that all iterations share, so that the computation of
//! a later iteration does not wait for them.
//!
//! Before:
//! ```text
//! T6 = linear(T5, T1)
//! P2PCommunication 0 (type=recv, buffer=T8, peer=i1, backend=CUDA, protocol=put)
//! P2PCommunication 1 (type=send, buffer=T6, peer=i2, backend=CUDA, protocol=put)
//! Wait(Communication 1)
//! Wait(Communication 0)
//! ```
//! After, in iteration `i5` of a loop with two streams:
//! ```text
//! T6 = linear(T5, T1)
//! SetCurrentStream(Stream 2)
//! Synchronize(Stream ( i5 % 2 ))
//! P2PCommunication 0 (type=recv, buffer=T8, peer=i1, backend=CUDA, protocol=put)
//! P2PCommunication 1 (type=send, buffer=T6, peer=i2, backend=CUDA, protocol=put)
//! SetCurrentStream(Stream s0)
//! Wait(Communication 1)
//! Wait(Communication 0)
//! SetCurrentStream(Stream ( i5 % 2 ))
//! ```
//!
//! The shared stream waits for the iteration's stream only if the iteration has used a buffer of the
//! communications before, or has allocated one. If the rest of the iteration uses a buffer, or the iteration
//! has allocated one, the Waits stay on the shared stream, and the iteration's stream waits for it. Communications
//! whose Waits do not follow directly stay on the iteration's stream.

use grammar::{
    attr, for_each_tensor_use,
    ir::{BlockId, If, OpStmt, Program, Stmt, StmtId, StreamId, TensorId},
    ops::{AccessMode, OpClass},
    span::Span,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{analysis::memory_effects::MemoryEffects, rewrite::builder};

/// The streams of an iteration.
#[derive(Clone, Copy)]
pub(super) struct IterationStreams {
    /// The stream of its computation.
    pub(super) worker: StreamId,
    /// The stream of the communications of all iterations.
    pub(super) shared: StreamId,
    /// The stream that later waits for all iterations, if it may wait for communications in each of them.
    pub(super) joining: Option<StreamId>,
}

/// The order between the shared stream and the others.
#[derive(Clone, Copy, Default)]
pub(super) struct SharedStreamOrder {
    /// Whether the shared stream has to wait for earlier work before the loop.
    pub(super) fork: bool,
    /// Whether later work has to wait for the shared stream after the loop.
    pub(super) join: bool,
    /// Whether the computation of an iteration waits for its communications.
    pub(super) inside: bool,
}

/// Moves the communications of an iteration to the shared stream. Returns the new statements of the body.
pub(super) fn move_to_shared_stream(
    program: &mut Program,
    storage: &MemoryEffects,
    body: BlockId,
    streams: IterationStreams,
    order: &mut SharedStreamOrder,
) -> Vec<StmtId> {
    let mut allocated = FxHashSet::default();
    program.walk(body, &mut |stmt| {
        if let Stmt::Op(it) = &program.stmts[stmt]
            && it.op.def().class == OpClass::Allocate
        {
            allocated.extend(it.out_tensor().map(|out| storage.alias_class(out)));
        }
    });
    let mut uses = EarlierUses { storage, by_run: FxHashMap::default() };
    uses.block(program, body, &mut allocated.clone());
    let mut mover = Mover { storage, streams, used_earlier: uses.by_run, used_later: allocated, order };
    mover.block(program, body)
}

/// Collects the alias classes that an iteration has used, or allocates, before each run of communications.
struct EarlierUses<'s> {
    storage: &'s MemoryEffects,
    /// By the first statement of the run.
    by_run: FxHashMap<StmtId, FxHashSet<TensorId>>,
}

impl EarlierUses<'_> {
    fn block(&mut self, program: &Program, block: BlockId, used: &mut FxHashSet<TensorId>) {
        let mut is_in_run = false;
        for stmt in program.block(block) {
            let was_in_run = std::mem::replace(&mut is_in_run, part_of(program, *stmt) != Part::Other);
            match &program.stmts[*stmt] {
                Stmt::Op(_) if is_in_run => {
                    if !was_in_run {
                        self.by_run.insert(*stmt, used.clone());
                    }
                    note_communication(program, self.storage, *stmt, used);
                }
                Stmt::Op(it) => note_uses(program, self.storage, it, used),
                Stmt::If(it) => {
                    let mut other = used.clone();
                    self.block(program, it.then_block, used);
                    if let Some(block) = it.else_block {
                        self.block(program, block, &mut other);
                    }
                    used.extend(other);
                }
                Stmt::For(it) => note_uses_of_block(program, self.storage, it.body, used),
                Stmt::Let(..) => (),
            }
        }
    }
}

/// Adds the alias classes that a statement accesses. Names of views, and the end of a name, do not access the
/// storage.
fn note_uses(program: &Program, storage: &MemoryEffects, it: &OpStmt, used: &mut FxHashSet<TensorId>) {
    let is_name = matches!(it.op.def().class, OpClass::View | OpClass::Deallocate | OpClass::ShareHandles);
    for_each_tensor_use(program, it, &mut |tensor, mode| match mode {
        AccessMode::Read | AccessMode::Write | AccessMode::Transfer if !is_name => {
            used.insert(storage.alias_class(tensor));
        }
        AccessMode::Read
        | AccessMode::Write
        | AccessMode::Transfer
        | AccessMode::Bind
        | AccessMode::NoAccess => (),
    });
}

/// Adds the alias classes that a communication accesses, or that a Wait waits for.
fn note_communication(
    program: &Program,
    storage: &MemoryEffects,
    stmt: StmtId,
    used: &mut FxHashSet<TensorId>,
) {
    let Stmt::Op(it) = &program.stmts[stmt] else { return };
    for_each_tensor_use(program, it, &mut |tensor, _| _ = used.insert(storage.alias_class(tensor)));
    if let Some(number) = it.get(attr::WORK) {
        let work = storage.work_accesses(number);
        used.extend(work.reads.union(&work.writes));
    }
}

fn note_uses_of_block(
    program: &Program,
    storage: &MemoryEffects,
    block: BlockId,
    used: &mut FxHashSet<TensorId>,
) {
    program.walk(block, &mut |stmt| {
        if let Stmt::Op(it) = &program.stmts[stmt] {
            note_uses(program, storage, it, used);
        }
    });
}

struct Mover<'s> {
    storage: &'s MemoryEffects,
    streams: IterationStreams,
    /// The alias classes that the iteration has used or allocates, by the first statement of a run.
    used_earlier: FxHashMap<StmtId, FxHashSet<TensorId>>,
    /// The alias classes that the rest of the iteration uses, or that the iteration allocates. The statements
    /// are visited backwards.
    used_later: FxHashSet<TensorId>,
    order: &'s mut SharedStreamOrder,
}

/// What a statement is for a run of communications.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Post,
    Wait,
    Other,
}

fn part_of(program: &Program, stmt: StmtId) -> Part {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Part::Other };
    match it.op.def().class {
        OpClass::Communicate | OpClass::Coalescing => Part::Post,
        OpClass::Wait => Part::Wait,
        OpClass::Compute
        | OpClass::Elementwise
        | OpClass::View
        | OpClass::Allocate
        | OpClass::Deallocate
        | OpClass::ShareHandles
        | OpClass::Stream
        | OpClass::HostUnit
        | OpClass::Opaque => Part::Other,
    }
}

impl Mover<'_> {
    /// Returns the statements of a block with their communications moved.
    fn block(&mut self, program: &mut Program, block: BlockId) -> Vec<StmtId> {
        let old = program.blocks[block].clone();
        let mut runs: Vec<Vec<StmtId>> = Vec::new();
        let mut end = old.len();
        while end > 0 {
            let is_part = |stmt: &&StmtId| part_of(program, **stmt) != Part::Other;
            let length = old[..end].iter().rev().take_while(is_part).count();
            if length > 0 {
                runs.push(self.run(program, &old[end - length..end]));
                end -= length;
                continue;
            }
            end -= 1;
            runs.push(vec![self.other(program, old[end])]);
        }
        runs.into_iter().rev().flatten().collect()
    }

    /// Visits a statement that is not a communication. Returns the statement that replaces it.
    fn other(&mut self, program: &mut Program, stmt: StmtId) -> StmtId {
        match program.stmts[stmt].clone() {
            Stmt::Op(it) => {
                note_uses(program, self.storage, &it, &mut self.used_later);
                stmt
            }
            Stmt::If(it) => {
                let later = self.used_later.clone();
                let then_block = self.block(program, it.then_block);
                let then_block = program.blocks.push(then_block);
                let after_then = std::mem::replace(&mut self.used_later, later);
                let else_block = it.else_block.map(|other| {
                    let other = self.block(program, other);
                    program.blocks.push(other)
                });
                self.used_later.extend(after_then);
                let span = program.stmt_span(stmt);
                program.add_stmt(Stmt::If(If { then_block, else_block, ..it }), span)
            }
            Stmt::For(it) => {
                // The iterations of an inner loop follow each other on the iteration's stream.
                note_uses_of_block(program, self.storage, it.body, &mut self.used_later);
                stmt
            }
            Stmt::Let(..) => stmt,
        }
    }

    /// Moves consecutive posts and Waits, if these Waits wait for these posts and nothing else.
    fn run(&mut self, program: &mut Program, stmts: &[StmtId]) -> Vec<StmtId> {
        let span = stmts.first().map(|it| program.stmt_span(*it)).unwrap_or_default();
        let earlier = stmts.first().and_then(|it| self.used_earlier.get(it));
        let was_used = earlier.is_none_or(|earlier| self.uses_any(program, stmts, earlier));
        let is_used = self.uses_any(program, stmts, &self.used_later);
        for stmt in stmts {
            note_communication(program, self.storage, *stmt, &mut self.used_later);
        }
        if !waits_for_its_posts(program, stmts) {
            self.order.inside = true;
            return stmts.to_vec();
        }
        let is_wait = |stmt: &StmtId| part_of(program, *stmt) == Part::Wait;
        let posts = stmts.iter().position(is_wait).unwrap_or(stmts.len());
        let is_simple = stmts[posts..].iter().all(is_wait);
        let IterationStreams { worker, shared, joining } = self.streams;
        let mut out = vec![set(program, shared, span)];
        match was_used {
            true => out.push(synchronize(program, worker, span)),
            false => self.order.fork = true,
        }
        let joining = joining.filter(|_| is_simple && !is_used);
        self.order.inside |= is_used;
        self.order.join |= joining.is_none() && !is_used;
        match joining {
            Some(joining) => {
                out.extend(&stmts[..posts]);
                out.push(set(program, joining, span));
                out.extend(&stmts[posts..]);
                out.push(set(program, worker, span));
            }
            None => {
                out.extend(stmts);
                out.push(set(program, worker, span));
                if is_used {
                    out.push(synchronize(program, shared, span));
                }
            }
        }
        out
    }

    /// Returns whether the communications have a buffer in one of the alias classes.
    fn uses_any(&self, program: &Program, stmts: &[StmtId], classes: &FxHashSet<TensorId>) -> bool {
        let mut is_used = false;
        for stmt in stmts {
            if let Stmt::Op(it) = &program.stmts[*stmt] {
                for_each_tensor_use(program, it, &mut |tensor, _| {
                    is_used |= classes.contains(&self.storage.alias_class(tensor));
                });
            }
        }
        is_used
    }
}

/// Returns whether a run posts communications, waits for all of them, and waits for no others. The Wait for a
/// coalesced group waits for all communications in it.
fn waits_for_its_posts(program: &Program, stmts: &[StmtId]) -> bool {
    let is_grouped = ops(program, stmts).any(|it| it.op.def().class == OpClass::Coalescing);
    let posted = if is_grouped { OpClass::Coalescing } else { OpClass::Communicate };
    let posted: FxHashSet<u32> =
        ops(program, stmts).filter(|it| it.op.def().class == posted).filter_map(|it| it.number).collect();
    let waited: FxHashSet<u32> = ops(program, stmts).filter_map(|it| it.get(attr::WORK)).collect();
    !posted.is_empty() && posted == waited
}

fn ops<'p>(program: &'p Program, stmts: &'p [StmtId]) -> impl Iterator<Item = &'p OpStmt> {
    stmts.iter().filter_map(|stmt| match &program.stmts[*stmt] {
        Stmt::Op(it) => Some(it),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
    })
}

fn set(program: &mut Program, stream: StreamId, span: Span) -> StmtId {
    builder::add(program, builder::set_current_stream(stream), span)
}

fn synchronize(program: &mut Program, stream: StreamId, span: Span) -> StmtId {
    builder::add(program, builder::synchronize(stream), span)
}
