//! Computes which storage statements read and write, and which storage posted communications use.
//!
//! Invariant: the results hold for every execution order of the statements. Names that may share storage
//! count as one name, and a branch or a loop has the effects of every statement inside it.
//!
//! Other ranks read and write memory of which the program makes a `SymmetricContiguousView`, and only communications and their Waits
//! order them. So all such memory is one alias class. Each statement that names it writes it, and each statement that may order ranks
//! reads it.

use grammar::{
    AccessMode, BlockId, CommunicationType, Op, OpClass, Operand, Program, Stmt, StmtId, Stream, SymbolId,
    TensorId, attr,
};
use hir_ir::{
    blocks::{has_iterations, nested_blocks},
    streams::sets_stream,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel},
    bindings::{analyze_bindings, symbols_through},
    coalescing,
    posted_work::for_each_posted_communication,
};

/// Alias classes of names, and the storage that posted communications use.
#[derive(Default)]
pub struct MemoryEffects {
    sharing: AliasClasses,
    /// The alias class of the memory that other ranks access through views.
    mapped: Option<TensorId>,
    works: FxHashMap<u32, ReadWriteSet>,
    /// The transfers of each coalescing bracket, by its first and by its last statement.
    brackets: FxHashMap<StmtId, Vec<StmtId>>,
}

/// Storage that is read and written, by the representative name of its alias class.
#[derive(Clone, Default)]
pub struct ReadWriteSet {
    /// What is read.
    pub reads: FxHashSet<TensorId>,
    /// What is written.
    pub writes: FxHashSet<TensorId>,
}

impl ReadWriteSet {
    /// Returns true if the two sets conflict, so that their order matters.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        !self.writes.is_disjoint(&other.writes)
            || !self.writes.is_disjoint(&other.reads)
            || !self.reads.is_disjoint(&other.writes)
    }

    /// Returns true if storage of the alias class is read or written.
    pub fn uses(&self, class: TensorId) -> bool {
        self.reads.contains(&class) || self.writes.contains(&class)
    }

    fn add(&mut self, other: &Self) {
        self.reads.extend(&other.reads);
        self.writes.extend(&other.writes);
    }
}

/// Effects of a statement and of all statements nested in it. The first and the last statement of a coalescing bracket have those of
/// the bracket, so that nothing moves into it.
#[derive(Default)]
pub struct StmtEffects {
    /// Storage that the statement reads and writes. A communication accesses its storage when it is posted,
    /// and its Wait accesses the same storage again.
    pub accesses: ReadWriteSet,
    /// Names that the statement mentions in any way.
    pub names: FxHashSet<TensorId>,
    /// Names that the statement may bind or deallocate.
    pub binds: FxHashSet<TensorId>,
    /// Names that the statement deallocates.
    pub deallocates: FxHashSet<TensorId>,
    /// Scalars that the statement reads, directly or through definitions.
    pub symbols: FxHashSet<SymbolId>,
    /// Scalars that the statement assigns.
    pub assigns: FxHashSet<SymbolId>,
    /// Numbers of the communications that the statement posts.
    pub posts: FxHashSet<u32>,
    /// Numbers of the communications that the statement waits for.
    pub waits: FxHashSet<u32>,
    /// True if the statement sets, queries or synchronizes streams.
    pub uses_streams: bool,
    /// True if the statement may block the host.
    pub may_block_host: bool,
    /// True if the statement posts a communication, or starts or ends a coalesced group.
    pub communicates: bool,
}

impl StmtEffects {
    /// Adds the effects of another statement.
    pub fn add(&mut self, other: &Self) {
        let Self {
            accesses,
            names,
            binds,
            deallocates,
            symbols,
            assigns,
            posts,
            waits,
            uses_streams,
            may_block_host,
            communicates,
        } = other;
        self.accesses.add(accesses);
        self.names.extend(names);
        self.binds.extend(binds);
        self.deallocates.extend(deallocates);
        self.symbols.extend(symbols);
        self.assigns.extend(assigns);
        self.posts.extend(posts);
        self.waits.extend(waits);
        self.uses_streams |= uses_streams;
        self.may_block_host |= may_block_host;
        self.communicates |= communicates;
    }

    /// Returns whether two statements have to stay in their order.
    pub fn is_ordered_with(&self, other: &Self) -> bool {
        let Self {
            accesses,
            names,
            binds,
            // They are among the names that it binds.
            deallocates: _,
            symbols,
            assigns,
            posts,
            waits,
            uses_streams,
            may_block_host,
            communicates,
        } = self;
        accesses.conflicts_with(&other.accesses)
            || !binds.is_disjoint(&other.names)
            || !names.is_disjoint(&other.binds)
            || !assigns.is_disjoint(&other.symbols)
            || !assigns.is_disjoint(&other.assigns)
            || !symbols.is_disjoint(&other.assigns)
            || !posts.is_disjoint(&other.waits)
            || !waits.is_disjoint(&other.posts)
            || *uses_streams
            || other.uses_streams
            || *communicates && other.communicates
            || *may_block_host && other.may_block_host
    }
}

impl MemoryEffects {
    /// Analyzes the statements of the program's container.
    pub fn of(program: &Program) -> Self {
        let Some(body) = program.body else { return Self::default() };
        let mut storage = Self {
            sharing: AliasClasses::of(
                program,
                body,
                &analyze_bindings(program),
                OpaqueCallModel::WriteOutputs,
            ),
            ..Self::default()
        };
        for (_, it) in program.ops_in(body) {
            if it.op == Op::SymmetricContiguousView
                && let Some(view) = it.out_tensor()
            {
                storage.sharing.union(*storage.mapped.get_or_insert(view), view);
            }
        }
        for block in nested_blocks(program, body) {
            let stmts = program.block(block);
            for (start, end) in coalescing::brackets(program, block) {
                let transfers = stmts[start + 1..end].to_vec();
                storage.brackets.insert(stmts[start], transfers.clone());
                storage.brackets.insert(stmts[end], transfers);
            }
        }
        storage.mapped = storage.mapped.map(|it| storage.alias_class(it));
        let mut works: FxHashMap<u32, ReadWriteSet> = FxHashMap::default();
        for_each_posted_communication(program, &mut |number, it| {
            let used = works.entry(number).or_default();
            it.tensor_uses(program).into_iter().for_each(|(tensor, mode)| storage.access(tensor, mode, used));
        });
        storage.works = works;
        storage
    }

    /// Returns the representative of all names that may share storage with `tensor`.
    pub fn alias_class(&self, tensor: TensorId) -> TensorId {
        self.sharing.alias_class(tensor)
    }

    /// Returns the storage that communications with this number use between the post and the wait.
    pub fn work_accesses(&self, number: u32) -> ReadWriteSet {
        let mut used = self.works.get(&number).cloned().unwrap_or_default();
        used.reads.extend(self.mapped);
        used
    }

    fn access(&self, tensor: TensorId, mode: AccessMode, accesses: &mut ReadWriteSet) {
        match mode {
            AccessMode::Read | AccessMode::Transfer => accesses.reads.insert(self.alias_class(tensor)),
            AccessMode::Write => accesses.writes.insert(self.alias_class(tensor)),
            AccessMode::Bind | AccessMode::NoAccess => false,
        };
    }

    /// Returns the effects of a statement.
    pub fn effects(&self, program: &Program, stmt: StmtId) -> StmtEffects {
        let mut effects = StmtEffects::default();
        self.add_effects(program, stmt, &mut effects);
        effects
    }

    /// Returns the combined effects of several statements.
    pub fn all_effects(&self, program: &Program, stmts: &[StmtId]) -> StmtEffects {
        let mut effects = StmtEffects::default();
        stmts.iter().for_each(|stmt| self.add_effects(program, *stmt, &mut effects));
        effects
    }

    fn add_effects(&self, program: &Program, stmt: StmtId, acc: &mut StmtEffects) {
        match &program.stmts[stmt] {
            Stmt::Op(it) => {
                let effect = it.op.def().class;
                for (tensor, mode) in it.tensor_uses(program) {
                    acc.names.insert(tensor);
                    self.access(tensor, mode, &mut acc.accesses);
                    acc.accesses.writes.extend(self.mapped.filter(|it| *it == self.alias_class(tensor)));
                    let dropped = effect == OpClass::Deallocate;
                    if dropped || matches!(mode, AccessMode::Bind | AccessMode::Write) {
                        acc.binds.insert(tensor);
                    }
                    if dropped {
                        acc.deallocates.insert(tensor);
                    }
                }
                symbols_of(program, stmt, &mut acc.symbols);
                match effect {
                    OpClass::Communicate | OpClass::Coalescing => {
                        acc.communicates = true;
                        acc.posts.extend(it.number);
                        acc.accesses.reads.extend(self.mapped);
                        let transfers = self.brackets.get(&stmt).into_iter().flatten();
                        transfers.for_each(|inner| self.add_effects(program, *inner, acc));
                    }
                    OpClass::Wait => {
                        if let Some(number) = it.get(attr::WORK) {
                            acc.waits.insert(number);
                            acc.accesses.add(&self.work_accesses(number));
                        }
                    }
                    OpClass::Stream => acc.uses_streams = true,
                    OpClass::Condition => acc.may_block_host = true,
                    OpClass::ShareHandles => {
                        acc.may_block_host = true;
                        acc.accesses.reads.extend(self.mapped);
                    }
                    grammar::local_classes!() | OpClass::HostUnit | OpClass::Opaque => (),
                }
            }
            Stmt::Let(symbol, _) => {
                acc.assigns.insert(*symbol);
                symbols_of(program, stmt, &mut acc.symbols);
            }
            Stmt::For(it) => {
                acc.assigns.insert(it.index);
                symbols_of(program, stmt, &mut acc.symbols);
                program.block(it.body).iter().for_each(|inner| self.add_effects(program, *inner, acc));
            }
            Stmt::If(_it) => {
                symbols_of(program, stmt, &mut acc.symbols);
                for inner in program.inner_blocks(stmt) {
                    program.block(inner).iter().for_each(|inner| self.add_effects(program, *inner, acc));
                }
            }
        }
    }
}

/// Collects the scalars that a statement itself reads, indices of streams included. Nested statements are not
/// visited.
pub fn symbols_of(program: &Program, stmt: StmtId, acc: &mut FxHashSet<SymbolId>) {
    match &program.stmts[stmt] {
        Stmt::Op(it) => {
            it.scalars(&mut |expr| symbols_through(program, expr, acc));
            for operand in &it.args {
                if let Operand::Stream(stream) = operand
                    && let Stream::Index(index) = program.streams[*stream]
                {
                    symbols_through(program, index, acc);
                }
            }
            if let Some(listed) = it.get(attr::TRANSFERS) {
                listed.iter().for_each(|stmt| symbols_of(program, *stmt, acc));
            }
        }
        Stmt::Let(_, value) => symbols_through(program, *value, acc),
        Stmt::For(it) => [it.start, it.stop].iter().for_each(|it| symbols_through(program, *it, acc)),
        Stmt::If(it) => symbols_through(program, it.cond, acc),
    }
}

/// Returns the names whose uses in `body` may be upward-exposed: on some path to a use, the iteration has not
/// passed a statement for which `binds` returns the name. Such a use sees what an earlier iteration, or the
/// code before the loop, left in the name.
pub fn upward_exposed_names(
    program: &Program,
    body: BlockId,
    binds: &dyn Fn(StmtId) -> Vec<TensorId>,
) -> FxHashSet<TensorId> {
    let mut stale = FxHashSet::default();
    let _ = upward_exposed_in(program, body, FxHashSet::default(), binds, &mut stale);
    stale
}

fn upward_exposed_in(
    program: &Program,
    block: BlockId,
    mut bound: FxHashSet<TensorId>,
    binds: &dyn Fn(StmtId) -> Vec<TensorId>,
    stale: &mut FxHashSet<TensorId>,
) -> FxHashSet<TensorId> {
    for stmt in program.block(block) {
        match &program.stmts[*stmt] {
            Stmt::Op(it) => {
                let fresh = binds(*stmt);
                for (tensor, mode) in it.tensor_uses(program) {
                    let result =
                        matches!(mode, AccessMode::Write | AccessMode::Bind) && fresh.contains(&tensor);
                    // AllocateOnce only tests whether the name is bound. It does not read the name.
                    let looks = it.op == Op::AllocateOnce && it.out_tensor() == Some(tensor);
                    if !result && !looks && !bound.contains(&tensor) {
                        stale.insert(tensor);
                    }
                }
                bound.extend(fresh);
            }
            Stmt::Let(..) => (),
            Stmt::For(it) => {
                let inner = upward_exposed_in(program, it.body, bound.clone(), binds, stale);
                if has_iterations(program, it) {
                    bound = inner;
                }
            }
            Stmt::If(it) => {
                let then = upward_exposed_in(program, it.then_block, bound.clone(), binds, stale);
                bound = match it.else_block {
                    Some(other) => {
                        let other = upward_exposed_in(program, other, bound, binds, stale);
                        then.intersection(&other).copied().collect()
                    }
                    None => bound,
                };
            }
        }
    }
    bound
}

/// Returns the tensors all of whose elements the statement certainly writes, on every rank that executes it
/// and holds them.
pub fn fully_written_tensors(program: &Program, stmt: StmtId) -> Vec<TensorId> {
    let Stmt::Op(it) = &program.stmts[stmt] else { return Vec::new() };
    let written = it.tensor_uses(program).into_iter().filter(|it| it.1 == AccessMode::Write);
    let mut filled: Vec<TensorId> = written.map(|it| it.0).collect();
    if let Some(team) = it.get(attr::TEAM) {
        let everywhere = it.get(attr::TYPE).is_none_or(CommunicationType::writes_on_every_rank);
        filled.retain(|tensor| {
            let mesh = &program.tensors[*tensor].mesh;
            everywhere && !mesh.is_empty() && mesh.devices.iter().all(|rank| team.contains(rank))
        });
    }
    filled
}

/// Returns the index at which to insert an ALLOCATE for the statement at `at`, which uses the storage. The
/// current stream allocates the storage. If the statement switches streams, the allocation is therefore
/// placed before the GetCurrentStream that precedes it, from which those streams fork.
pub fn allocation_index(program: &Program, block: BlockId, at: usize) -> usize {
    let stmts = program.block(block);
    let op = |stmt: StmtId| program.stmts[stmt].op().map(|it| it.op);
    let chooses = sets_stream(program, stmts[at]);
    let fork = || stmts[..at].iter().rposition(|stmt| op(*stmt) == Some(Op::GetCurrentStream));
    if chooses { fork().unwrap_or(at) } else { at }
}
