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
//! Synchronize(Stream 2)
//! SetCurrentStream(Stream ( i5 % 2 ))
//! ```
//!
//! A Wait for a communication of the CUDA backend waits for what peers write, but not for what this rank copies on the stream of the
//! post, so the stream that waits has to wait for the shared stream, too.
//!
//! The shared stream waits for the iteration's stream only if the iteration has used a buffer of the
//! communications before, or has allocated one. If the rest of the iteration uses a buffer, or the iteration
//! has allocated one, the Waits stay on the shared stream, and the iteration's stream waits for it. Communications
//! whose Waits do not follow directly stay on the iteration's stream.
//!
//! If ranks could start the communications of loops in different orders (`analysis::communicators`), the Waits stay on the shared
//! stream, so that one communication begins when the one before it has ended.

use grammar::{Backend, BlockId, If, OpClass, OpStmt, Program, Span, Stmt, StmtId, StreamId, TensorId, attr};
use hir_ir::build;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    communicators::is_of_nccl,
    memory_effects::{MemoryEffects, ReadWriteSet},
};

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
    /// Whether a communication of NCCL stays on the stream of its iteration.
    pub(super) stays: bool,
}

/// Moves the communications of an iteration to the shared stream. Returns the new statements of the body.
pub(super) fn move_to_shared_stream(
    program: &mut Program,
    storage: &MemoryEffects,
    body: BlockId,
    streams: IterationStreams,
    order: &mut SharedStreamOrder,
) -> Vec<StmtId> {
    let allocates = program.ops_in(body).filter(|(_, it)| it.op.def().class == OpClass::Allocate);
    let outs = allocates.filter_map(|(_, it)| it.out_tensor());
    let allocated: FxHashSet<TensorId> = outs.map(|out| storage.alias_class(out)).collect();
    let mut uses = EarlierUses { storage, by_first: FxHashMap::default() };
    uses.block(program, body, &mut allocated.clone());
    let mut mover = Mover { storage, streams, used_earlier: uses.by_first, used_later: allocated, order };
    mover.block(program, body)
}

/// Returns whether an iteration communicates, and its computation does not wait for its communications if they have
/// a stream of their own. Adds statements to the program that no block contains.
pub(super) fn can_leave_communications(
    program: &mut Program,
    storage: &MemoryEffects,
    body: BlockId,
) -> bool {
    let order = order_if_moved(program, storage, body);
    !order.inside && program.stmts_in(body).any(|stmt| part_of(program, stmt) == Part::Post)
}

/// Returns whether all communications of NCCL of an iteration can be on the shared stream. Adds statements to the program that no block
/// contains.
pub(super) fn can_move_all(program: &mut Program, storage: &MemoryEffects, body: BlockId) -> bool {
    !order_if_moved(program, storage, body).stays
}

/// Returns the order between the shared stream and the others if the communications of an iteration are moved there.
fn order_if_moved(program: &mut Program, storage: &MemoryEffects, body: BlockId) -> SharedStreamOrder {
    let zero = program.intern_int(0);
    let any = build::indexed_stream(program, zero);
    let mut order = SharedStreamOrder::default();
    let streams = IterationStreams { worker: any, shared: any, joining: None };
    move_to_shared_stream(program, storage, body, streams, &mut order);
    order
}

/// Returns the alias classes that statements access. A Wait accesses what its communication does.
fn accesses(program: &Program, storage: &MemoryEffects, stmts: &[StmtId]) -> FxHashSet<TensorId> {
    let ReadWriteSet { mut reads, writes } = storage.all_effects(program, stmts).accesses;
    reads.extend(writes);
    reads
}

/// Collects the alias classes that an iteration has used, or allocates, before each sequence of communications.
struct EarlierUses<'s> {
    storage: &'s MemoryEffects,
    /// By the first statement of the sequence.
    by_first: FxHashMap<StmtId, FxHashSet<TensorId>>,
}

impl EarlierUses<'_> {
    fn block(&mut self, program: &Program, block: BlockId, used: &mut FxHashSet<TensorId>) {
        let mut is_in_sequence = false;
        for stmt in program.block(block) {
            let was_in_sequence =
                std::mem::replace(&mut is_in_sequence, part_of(program, *stmt) != Part::Other);
            if is_in_sequence && !was_in_sequence {
                self.by_first.insert(*stmt, used.clone());
            }
            match &program.stmts[*stmt] {
                Stmt::Op(_) | Stmt::For(_) | Stmt::Let(..) => {
                    used.extend(accesses(program, self.storage, &[*stmt]));
                }
                Stmt::If(it) => {
                    let mut other = used.clone();
                    self.block(program, it.then_block, used);
                    if let Some(block) = it.else_block {
                        self.block(program, block, &mut other);
                    }
                    used.extend(other);
                }
            }
        }
    }
}

struct Mover<'s> {
    storage: &'s MemoryEffects,
    streams: IterationStreams,
    /// The alias classes that the iteration has used or allocates, by the first statement of a sequence.
    used_earlier: FxHashMap<StmtId, FxHashSet<TensorId>>,
    /// The alias classes that the rest of the iteration uses, or that the iteration allocates. The statements
    /// are visited backwards.
    used_later: FxHashSet<TensorId>,
    order: &'s mut SharedStreamOrder,
}

/// What a statement is for a sequence of communications.
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
        grammar::local_classes!()
        | OpClass::ShareHandles
        | OpClass::Stream
        | OpClass::Condition
        | OpClass::HostUnit
        | OpClass::Opaque => Part::Other,
    }
}

/// Returns whether a statement posts a communication of NCCL.
fn occupies_communicator(program: &Program, stmt: StmtId) -> bool {
    program.op(stmt).is_some_and(|it| match it.op.def().class {
        OpClass::Communicate => is_of_nccl(it),
        class => class == OpClass::Coalescing,
    })
}

/// Returns whether a statement posts a communication that the current stream executes.
fn runs_on_its_stream(program: &Program, stmt: StmtId) -> bool {
    program.op(stmt).is_some_and(|it| {
        it.op.def().class == OpClass::Communicate && it.get(attr::BACKEND) == Some(Backend::Cuda)
    })
}

impl Mover<'_> {
    /// Returns the statements of a block with their communications moved.
    fn block(&mut self, program: &mut Program, block: BlockId) -> Vec<StmtId> {
        let old = program.blocks[block].clone();
        let mut moved: Vec<Vec<StmtId>> = Vec::new();
        let mut end = old.len();
        while end > 0 {
            let is_part = |stmt: &&StmtId| part_of(program, **stmt) != Part::Other;
            let length = old[..end].iter().rev().take_while(is_part).count();
            if length > 0 {
                moved.push(self.sequence(program, &old[end - length..end]));
                end -= length;
                continue;
            }
            end -= 1;
            moved.push(vec![self.other(program, old[end])]);
        }
        moved.into_iter().rev().flatten().collect()
    }

    /// Visits a statement that is not a communication. Returns the statement that replaces it.
    fn other(&mut self, program: &mut Program, stmt: StmtId) -> StmtId {
        match program.stmts[stmt].clone() {
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
            Stmt::Op(_) | Stmt::For(_) | Stmt::Let(..) => {
                // An inner loop stays on the iteration's stream, and so do its communications.
                let communicates = |it| part_of(program, it) != Part::Other;
                self.order.inside |= program.stmts_at(stmt).any(communicates);
                self.order.stays |= program.stmts_at(stmt).any(|it| occupies_communicator(program, it));
                self.used_later.extend(accesses(program, self.storage, &[stmt]));
                stmt
            }
        }
    }

    /// Moves consecutive posts and Waits, if these Waits wait for these posts and nothing else.
    fn sequence(&mut self, program: &mut Program, stmts: &[StmtId]) -> Vec<StmtId> {
        let span = stmts.first().map(|it| program.stmt_span(*it)).unwrap_or_default();
        let accessed = accesses(program, self.storage, stmts);
        let earlier = stmts.first().and_then(|it| self.used_earlier.get(it));
        let was_used = earlier.is_none_or(|earlier| !earlier.is_disjoint(&accessed));
        let is_used = !self.used_later.is_disjoint(&accessed);
        self.used_later.extend(accessed);
        if !waits_for_its_posts(program, stmts) {
            self.order.inside = true;
            self.order.stays |= stmts.iter().any(|it| occupies_communicator(program, *it));
            return stmts.to_vec();
        }
        let is_wait = |stmt: &StmtId| part_of(program, *stmt) == Part::Wait;
        let posts = stmts.iter().position(is_wait).unwrap_or(stmts.len());
        let is_simple = stmts[posts..].iter().all(is_wait);
        let IterationStreams { worker, shared, joining } = self.streams;
        let mut out = vec![set(program, shared, span)];
        if was_used {
            out.push(synchronize(program, worker, span))
        } else {
            self.order.fork = true
        }
        let joining = joining.filter(|_| is_simple && !is_used);
        self.order.inside |= is_used;
        self.order.join |= joining.is_none() && !is_used;
        match joining {
            Some(joining) => {
                out.extend(&stmts[..posts]);
                out.push(set(program, joining, span));
                out.extend(&stmts[posts..]);
                if stmts.iter().any(|it| runs_on_its_stream(program, *it)) {
                    out.push(synchronize(program, shared, span));
                }
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
}

/// Returns whether a sequence posts communications, waits for all of them, and waits for no others. The Wait for a
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
    stmts.iter().filter_map(|stmt| program.stmts[*stmt].op())
}

/// Adds a change of the current stream.
pub(super) fn set(program: &mut Program, stream: StreamId, span: Span) -> StmtId {
    build::add(program, build::set_current_stream(stream), span)
}

/// Adds a Synchronize: the current stream waits for the work on another one.
pub(super) fn synchronize(program: &mut Program, stream: StreamId, span: Span) -> StmtId {
    build::add(program, build::synchronize(stream), span)
}
