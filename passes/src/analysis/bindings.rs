//! Computes which names are bound to storage before each statement, and which views are in effect. `loop_body` and
//! `common_subexpression` decide narrower questions from the statements of one body.
//!
//! The analysis follows the planner's rules. AllocateOnce has no effect on a bound name. An operator whose
//! result is bound writes into the existing storage. Each iteration of `FOR i in axis` unbinds the names
//! whose meaning depends on `i`.
//!
//! Invariant: what is always bound is so on every rank that holds the name, and in every iteration; what is never bound, on
//! none. Between the two, behind a branch that allocates a name, for example, a name may be bound.
//!
//! The facts are computed where they are asked for. Two alternatives were weighed: facts that the driver keeps until a pass
//! reports a change, and a normal form in which a name binds one storage. On 18,000 statements in release builds, the analysis
//! takes 1.0% of the whole time of `hir-opt` in `lower-to-communication` (the pass takes 6.4%), 3.6% in
//! `allocate-and-deallocate` (27%) and 4.3% in `assign-streams` (6.0%); reading takes 25%. Most passes of a pipeline change the
//! program, so that kept facts would save less than half of this, and the normal form would have to be made and undone around
//! each pass, because canonical text keeps the names of the dump.

use grammar::{
    AccessMode, BlockId, ExprId, For, Id, If, OpClass, OpStmt, Program, Stmt, StmtId, SymbolId, TensorId,
    loop_variant_tensors,
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Facts about statements.
#[derive(Default)]
pub struct BindingAnalysis {
    /// Operators whose first result is always bound before them.
    pub already_bound: FxHashSet<StmtId>,
    /// Operators that write or bind a name which may be bound before them. Before all others, their names are never bound.
    pub maybe_bound: FxHashSet<StmtId>,
    /// Views whose result already is the same view.
    pub redundant_views: FxHashSet<StmtId>,
}

/// Analyzes the statements of the program's container.
pub fn analyze_bindings(program: &Program) -> BindingAnalysis {
    walk(program, &FxHashMap::default(), ProgramPoint::After).facts
}

/// Returns those of the requested names that are bound after the statement, on every rank that holds them.
pub fn bound_after(
    program: &Program,
    queries: &FxHashMap<StmtId, Vec<TensorId>>,
) -> FxHashSet<(StmtId, TensorId)> {
    walk(program, queries, ProgramPoint::After).answers
}

/// Returns those of the requested names that are bound before the statement, on every rank that holds them.
pub fn bound_before(
    program: &Program,
    queries: &FxHashMap<StmtId, Vec<TensorId>>,
) -> FxHashSet<(StmtId, TensorId)> {
    walk(program, queries, ProgramPoint::Before).answers
}

/// The program point to query, relative to a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramPoint {
    Before,
    After,
}

fn walk<'p>(
    program: &'p Program,
    queries: &'p FxHashMap<StmtId, Vec<TensorId>>,
    place: ProgramPoint,
) -> Walk<'p> {
    let mut walk = Walk {
        program,
        facts: BindingAnalysis::default(),
        queries,
        place,
        answers: FxHashSet::default(),
        bound: vec![Bound::Never; program.tensors.len()],
        unbound: Vec::new(),
        journal: Vec::new(),
        is_silent: false,
        views: FxHashMap::default(),
        versions: Versions {
            tensors: vec![0; program.tensors.len()],
            symbols: vec![0; program.symbols.len()],
        },
    };
    Program::tensors_of(&program.inputs).for_each(|it| walk.bound[it.index()] = Bound::Always);
    program.body.iter().for_each(|body| walk.block(*body));
    walk
}

/// Names that a block may modify.
#[derive(Default)]
struct ModifiedNames {
    /// Tensors that the block writes, binds or deallocates.
    tensors: FxHashSet<TensorId>,
    /// Tensors that the block deallocates.
    dropped: FxHashSet<TensorId>,
    /// Scalars that the block assigns.
    symbols: FxHashSet<SymbolId>,
}

impl ModifiedNames {
    fn of(program: &Program, block: BlockId) -> Self {
        let mut touched = Self::default();
        for stmt in program.stmts_in(block) {
            match &program.stmts[stmt] {
                Stmt::Op(it) => {
                    let dropped = it.op.def().class == OpClass::Deallocate;
                    for (tensor, mode) in it.tensor_uses(program) {
                        if dropped || is_modification(mode) {
                            touched.tensors.insert(tensor);
                        }
                        if dropped {
                            touched.dropped.insert(tensor);
                        }
                    }
                }
                Stmt::Let(symbol, _) => {
                    touched.symbols.insert(*symbol);
                }
                Stmt::For(it) => {
                    touched.symbols.insert(it.index);
                }
                Stmt::If(_) => (),
            }
        }
        touched
    }
}

fn is_modification(mode: AccessMode) -> bool {
    match mode {
        AccessMode::Write | AccessMode::Bind | AccessMode::Transfer => true,
        AccessMode::Read | AccessMode::NoAccess => false,
    }
}

/// Whether a name is bound at a program point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Never,
    /// On some paths, ranks or iterations.
    Maybe,
    Always,
}

impl Bound {
    /// Returns the state behind two paths that meet.
    fn join(self, other: Self) -> Self {
        if self == other { self } else { Self::Maybe }
    }
}

/// A name whose value can change.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Tensor(TensorId),
    Symbol(SymbolId),
}

struct Walk<'p> {
    program: &'p Program,
    facts: BindingAnalysis,
    /// Names to query, by statement.
    queries: &'p FxHashMap<StmtId, Vec<TensorId>>,
    place: ProgramPoint,
    /// The queried names that are bound there.
    answers: FxHashSet<(StmtId, TensorId)>,
    /// The state of each tensor at the current point.
    bound: Vec<Bound>,
    /// States of which all are `Never`, once they have been asked for.
    unbound: Vec<Bound>,
    /// Changes to `bound`: the tensor, and its state before.
    journal: Vec<(TensorId, Bound)>,
    /// Whether only `bound` is wanted.
    is_silent: bool,
    /// The last view bound to each name, with the versions of the names that the view depended on.
    views: FxHashMap<TensorId, (StmtId, Vec<(Name, u32)>)>,
    versions: Versions,
}

/// The number of changes of each name.
struct Versions {
    tensors: Vec<u32>,
    symbols: Vec<u32>,
}

impl Walk<'_> {
    fn block(&mut self, block: BlockId) {
        let program = self.program;
        for stmt in program.block(block) {
            self.answer(*stmt, ProgramPoint::Before);
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(*stmt, it),
                Stmt::Let(symbol, _) => self.change(Name::Symbol(*symbol)),
                Stmt::For(it) => self.for_loop(it),
                Stmt::If(it) => self.branch(it),
            }
            self.answer(*stmt, ProgramPoint::After);
        }
    }

    fn answer(&mut self, stmt: StmtId, place: ProgramPoint) {
        if place == self.place && !self.is_silent {
            let states = &self.bound;
            let is_bound = |it: &&TensorId| states[it.index()] == Bound::Always;
            let tensors = self.queries.get(&stmt).into_iter().flatten();
            self.answers.extend(tensors.filter(is_bound).map(|tensor| (stmt, *tensor)));
        }
    }

    fn op(&mut self, stmt: StmtId, it: &OpStmt) {
        let class = it.op.def().class;
        let out = it.out_tensor();
        let is_in_effect =
            class == OpClass::View && !self.is_silent && out.is_some_and(|out| self.is_in_effect(out, it));
        if is_in_effect {
            self.facts.redundant_views.insert(stmt);
        } else {
            self.invalidate_operands(it);
        }
        if !self.is_silent && out.is_some_and(|out| self.state(out) == Bound::Always) {
            self.facts.already_bound.insert(stmt);
        }
        for (tensor, mode) in it.tensor_uses(self.program) {
            match mode {
                _ if class == OpClass::Deallocate => self.set_bound(tensor, Bound::Never),
                AccessMode::Write | AccessMode::Bind => {
                    if self.state(tensor) == Bound::Never {
                        self.set_bound(tensor, Bound::Maybe);
                    } else if !self.is_silent {
                        self.facts.maybe_bound.insert(stmt);
                    }
                }
                AccessMode::Read | AccessMode::Transfer | AccessMode::NoAccess => (),
            }
        }
        match (class, out) {
            (OpClass::View, Some(out)) if !is_in_effect => {
                // A rank that does not hold the operand does not bind the result.
                if Program::tensors_of(&it.args).all(|arg| self.covers(arg, out)) {
                    self.set_bound(out, Bound::Always);
                }
                if !self.is_silent {
                    let entry = (stmt, self.names_of(out, it));
                    self.views.insert(out, entry);
                }
            }
            (OpClass::Compute | OpClass::Elementwise | OpClass::Allocate, Some(_)) => {
                Program::tensors_of(&it.outs).for_each(|out| self.set_bound(out, Bound::Always));
            }
            (
                grammar::local_classes!()
                | OpClass::Communicate
                | OpClass::Wait
                | OpClass::Stream
                | OpClass::Condition
                | OpClass::Coalescing
                | OpClass::ShareHandles
                | OpClass::HostUnit
                | OpClass::Opaque,
                _,
            ) => (),
        }
    }

    /// Returns true if every rank that holds `part` also holds `whole`.
    fn covers(&self, whole: TensorId, part: TensorId) -> bool {
        let (whole, part) = (&self.program.tensors[whole].mesh, &self.program.tensors[part].mesh);
        whole.is_empty() || !part.is_empty() && part.devices.iter().all(|rank| whole.contains(*rank))
    }

    fn state(&self, tensor: TensorId) -> Bound {
        self.bound[tensor.index()]
    }

    /// Records that a name may be bound, for a reason apart from its state.
    fn may_be_bound(&mut self, tensor: TensorId) {
        if self.state(tensor) == Bound::Never {
            self.set_bound(tensor, Bound::Maybe);
        }
    }

    fn set_bound(&mut self, tensor: TensorId, bound: Bound) {
        let before = std::mem::replace(&mut self.bound[tensor.index()], bound);
        self.journal.push((tensor, before));
    }

    /// Returns the names whose state changed since `mark`, each with the state that it had there.
    fn states_at(&self, mark: usize) -> FxHashMap<TensorId, Bound> {
        // The first change of a name replaces the later ones.
        self.journal[mark..].iter().rev().copied().collect()
    }

    /// Undoes the changes to `bound` that follow `mark`, and returns the states that they had led to.
    fn roll_back(&mut self, mark: usize) -> FxHashMap<TensorId, Bound> {
        let before = self.states_at(mark);
        self.journal.truncate(mark);
        before
            .into_iter()
            .map(|(tensor, it)| (tensor, std::mem::replace(&mut self.bound[tensor.index()], it)))
            .collect()
    }

    fn branch(&mut self, it: &If) {
        let mark = self.journal.len();
        self.block(it.then_block);
        let then = self.roll_back(mark);
        self.invalidate_block(it.then_block);
        let mut other = FxHashMap::default();
        if let Some(block) = it.else_block {
            self.block(block);
            other = self.roll_back(mark);
            self.invalidate_block(block);
        }
        for tensor in then.keys().chain(other.keys()) {
            let before = self.state(*tensor);
            let after = |led_to: &FxHashMap<TensorId, Bound>| led_to.get(tensor).copied().unwrap_or(before);
            self.set_bound(*tensor, after(&then).join(after(&other)));
        }
    }

    fn for_loop(&mut self, it: &For) {
        let start = self.journal.len();
        let mut touched = ModifiedNames::default();
        if !self.is_silent {
            touched = ModifiedNames::of(self.program, it.body);
            touched.symbols.insert(it.index);
            self.enter_iteration(it, &touched);
        }
        let mark = self.journal.len();
        self.block(it.body);
        let bounds = self.program.constant(it.start).zip(self.program.constant(it.stop));
        if bounds.is_none_or(|(start, stop)| start >= stop) {
            // The body may not execute at all.
            for (tensor, after) in self.roll_back(mark) {
                if after != Bound::Never {
                    self.may_be_bound(tensor);
                }
            }
        }
        for (tensor, before) in self.states_at(start) {
            if before != Bound::Never {
                self.may_be_bound(tensor);
            }
        }
        self.invalidate(&touched);
    }

    /// Changes the state before a loop to that before each of its iterations: the state before the loop or after another
    /// iteration.
    fn enter_iteration(&mut self, it: &For, touched: &ModifiedNames) {
        self.bound_by(it.body).into_iter().for_each(|tensor| self.may_be_bound(tensor));
        for tensor in &touched.dropped {
            if self.state(*tensor) == Bound::Always {
                self.set_bound(*tensor, Bound::Maybe);
            }
        }
        if it.axis.is_some() {
            let unbound = loop_variant_tensors(self.program, it);
            unbound.into_iter().for_each(|tensor| self.set_bound(tensor, Bound::Never));
        }
        self.invalidate(touched);
    }

    /// Returns the names that may be bound after a block if none is bound before it.
    fn bound_by(&mut self, block: BlockId) -> Vec<TensorId> {
        self.unbound.resize(self.bound.len(), Bound::Never);
        std::mem::swap(&mut self.bound, &mut self.unbound);
        let mark = self.journal.len();
        self.is_silent = true;
        self.block(block);
        self.is_silent = false;
        let after = self.roll_back(mark);
        std::mem::swap(&mut self.bound, &mut self.unbound);
        after.into_iter().filter(|it| it.1 != Bound::Never).map(|it| it.0).collect()
    }

    fn invalidate_block(&mut self, block: BlockId) {
        if !self.is_silent {
            self.invalidate(&ModifiedNames::of(self.program, block));
        }
    }

    /// Invalidates the views that a block may have replaced or changed.
    fn invalidate(&mut self, touched: &ModifiedNames) {
        touched.tensors.iter().for_each(|tensor| self.change(Name::Tensor(*tensor)));
        touched.symbols.iter().for_each(|symbol| self.change(Name::Symbol(*symbol)));
    }

    fn invalidate_operands(&mut self, it: &OpStmt) {
        let dropped = it.op.def().class == OpClass::Deallocate;
        for (tensor, mode) in it.tensor_uses(self.program) {
            if dropped || is_modification(mode) {
                self.change(Name::Tensor(tensor));
            }
        }
    }

    fn change(&mut self, name: Name) {
        if self.is_silent {
            return;
        }
        match name {
            Name::Tensor(it) => self.versions.tensors[it.index()] += 1,
            Name::Symbol(it) => self.versions.symbols[it.index()] += 1,
        }
    }

    fn version(&self, name: Name) -> u32 {
        match name {
            Name::Tensor(it) => self.versions.tensors[it.index()],
            Name::Symbol(it) => self.versions.symbols[it.index()],
        }
    }

    /// Returns the names that a view depends on, each with its current version: its operands, its result and
    /// the scalars of its index.
    fn names_of(&self, out: TensorId, it: &OpStmt) -> Vec<(Name, u32)> {
        let mut symbols = FxHashSet::default();
        it.scalars(&mut |expr| symbols_through(self.program, expr, &mut symbols));
        let tensors = Program::tensors_of(&it.args).chain([out]).map(Name::Tensor);
        let names = tensors.chain(symbols.into_iter().map(Name::Symbol));
        names.map(|name| (name, self.version(name))).collect()
    }

    fn is_in_effect(&self, out: TensorId, it: &OpStmt) -> bool {
        let Some((stmt, names)) = self.views.get(&out) else { return false };
        let is_same = |known: &OpStmt| {
            (known.op, &known.outs, &known.args, &known.attrs) == (it.op, &it.outs, &it.args, &it.attrs)
        };
        self.program.op(*stmt).is_some_and(is_same)
            && names.iter().all(|(name, version)| self.version(*name) == *version)
    }
}

/// Collects the symbols that an expression depends on, directly or through definitions.
pub fn symbols_through(program: &Program, expr: ExprId, acc: &mut FxHashSet<SymbolId>) {
    let mut found = Vec::new();
    program.collect_symbols(expr, &mut found);
    while let Some(symbol) = found.pop() {
        if acc.insert(symbol)
            && let Some(definition) = program.definitions.get(&symbol)
        {
            program.collect_symbols(*definition, &mut found);
        }
    }
}
