//! Computes which names are bound to storage, and which views are in effect, on every path to a statement.
//!
//! The analysis follows the planner's rules. AllocateOnce has no effect on a bound name. An operator whose
//! result is bound writes into the existing storage. Each iteration of `FOR i in axis` unbinds the names
//! whose meaning depends on `i`.
//!
//! Invariant: a result holds on every rank and in every iteration. Where this is not certain, the analysis
//! reports nothing.

use grammar::{
    for_each_tensor_use,
    ir::{BlockId, ExprId, For, If, OpStmt, Program, Stmt, StmtId, SymbolId, TensorId},
    loop_variant_tensors,
    ops::{AccessMode, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// Facts that are certain about statements.
#[derive(Default)]
pub struct BindingAnalysis {
    /// Operators whose first result is already bound, on every rank that holds it.
    pub already_bound: FxHashSet<StmtId>,
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
    asked: &FxHashMap<StmtId, Vec<TensorId>>,
) -> FxHashSet<(StmtId, TensorId)> {
    walk(program, asked, ProgramPoint::After).answers
}

/// Returns those of the requested names that are bound before the statement, on every rank that holds them.
pub fn bound_before(
    program: &Program,
    asked: &FxHashMap<StmtId, Vec<TensorId>>,
) -> FxHashSet<(StmtId, TensorId)> {
    walk(program, asked, ProgramPoint::Before).answers
}

/// The program point to query, relative to a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramPoint {
    Before,
    After,
}

fn walk<'p>(
    program: &'p Program,
    asked: &'p FxHashMap<StmtId, Vec<TensorId>>,
    place: ProgramPoint,
) -> Walk<'p> {
    let mut walk = Walk {
        program,
        facts: BindingAnalysis::default(),
        asked,
        place,
        answers: FxHashSet::default(),
        bound: Program::tensors_of(&program.inputs).collect(),
        journal: Vec::new(),
        views: FxHashMap::default(),
        versions: FxHashMap::default(),
    };
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
        program.walk(block, &mut |stmt| match &program.stmts[stmt] {
            Stmt::Op(it) => {
                let dropped = it.op.def().class == OpClass::Deallocate;
                for_each_tensor_use(program, it, &mut |tensor, mode| {
                    if dropped || is_modification(mode) {
                        touched.tensors.insert(tensor);
                    }
                    if dropped {
                        touched.dropped.insert(tensor);
                    }
                });
            }
            Stmt::Let(symbol, _) => {
                touched.symbols.insert(*symbol);
            }
            Stmt::For(it) => {
                touched.symbols.insert(it.index);
            }
            Stmt::If(_) => (),
        });
        touched
    }
}

fn is_modification(mode: AccessMode) -> bool {
    match mode {
        AccessMode::Write | AccessMode::Bind | AccessMode::Transfer => true,
        AccessMode::Read | AccessMode::NoAccess => false,
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
    asked: &'p FxHashMap<StmtId, Vec<TensorId>>,
    place: ProgramPoint,
    /// The queried names that are bound there.
    answers: FxHashSet<(StmtId, TensorId)>,
    /// Tensors that are bound at the current point, on every rank that holds them.
    bound: FxHashSet<TensorId>,
    /// Changes to `bound`: the tensor, and whether it was bound before.
    journal: Vec<(TensorId, bool)>,
    /// The last view bound to each name, with the versions of the names that the view depended on.
    views: FxHashMap<TensorId, (StmtId, Vec<(Name, u32)>)>,
    /// Number of changes of each name.
    versions: FxHashMap<Name, u32>,
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
        if place == self.place {
            let asked = self.asked.get(&stmt).into_iter().flatten();
            let bound = asked.filter(|tensor| self.bound.contains(tensor));
            self.answers.extend(bound.map(|tensor| (stmt, *tensor)));
        }
    }

    fn op(&mut self, stmt: StmtId, it: &OpStmt) {
        let effect = it.op.def().class;
        let out = it.out_tensor();
        if out.is_some_and(|out| self.bound.contains(&out)) {
            self.facts.already_bound.insert(stmt);
        }
        match (effect, out) {
            (OpClass::View, Some(out)) => {
                if self.is_in_effect(out, it) {
                    self.facts.redundant_views.insert(stmt);
                    return;
                }
                self.invalidate_operands(it);
                // A rank that does not hold the operand does not bind the result.
                if Program::tensors_of(&it.args).all(|arg| self.covers(arg, out)) {
                    self.set_bound(out, true);
                }
                let entry = (stmt, self.names_of(out, it));
                self.views.insert(out, entry);
            }
            (OpClass::Compute | OpClass::Elementwise | OpClass::Allocate, Some(_)) => {
                self.invalidate_operands(it);
                Program::tensors_of(&it.outs).for_each(|out| self.set_bound(out, true));
            }
            (OpClass::Deallocate, _) => {
                self.invalidate_operands(it);
                for_each_tensor_use(self.program, it, &mut |tensor, _| self.set_bound(tensor, false));
            }
            (
                OpClass::View
                | OpClass::Compute
                | OpClass::Elementwise
                | OpClass::Allocate
                | OpClass::Communicate
                | OpClass::Wait
                | OpClass::Stream
                | OpClass::Coalescing
                | OpClass::ShareHandles
                | OpClass::HostUnit
                | OpClass::Opaque,
                _,
            ) => self.invalidate_operands(it),
        }
    }

    /// Returns true if every rank that holds `part` also holds `whole`.
    fn covers(&self, whole: TensorId, part: TensorId) -> bool {
        let (whole, part) = (&self.program.tensors[whole].mesh, &self.program.tensors[part].mesh);
        whole.is_empty() || !part.is_empty() && part.devices.iter().all(|rank| whole.contains(*rank))
    }

    fn set_bound(&mut self, tensor: TensorId, bound: bool) {
        let before = if bound { !self.bound.insert(tensor) } else { self.bound.remove(&tensor) };
        self.journal.push((tensor, before));
    }

    /// Undoes the changes to `bound` that follow `mark`, and returns the values that they had led to.
    fn roll_back(&mut self, mark: usize) -> FxHashMap<TensorId, bool> {
        let mut led_to = FxHashMap::default();
        for (tensor, before) in self.journal.split_off(mark).into_iter().rev() {
            led_to.entry(tensor).or_insert_with(|| self.bound.contains(&tensor));
            if before {
                self.bound.insert(tensor)
            } else {
                self.bound.remove(&tensor)
            };
        }
        led_to
    }

    fn branch(&mut self, it: &If) {
        let mark = self.journal.len();
        self.block(it.then_block);
        let then = self.roll_back(mark);
        self.invalidate(&ModifiedNames::of(self.program, it.then_block));
        let mut other = FxHashMap::default();
        if let Some(block) = it.else_block {
            self.block(block);
            other = self.roll_back(mark);
            self.invalidate(&ModifiedNames::of(self.program, block));
        }
        for tensor in then.keys().chain(other.keys()) {
            let before = self.bound.contains(tensor);
            let after = |led_to: &FxHashMap<TensorId, bool>| led_to.get(tensor).copied().unwrap_or(before);
            let bound = after(&then) && after(&other);
            if bound != before {
                self.set_bound(*tensor, bound);
            }
        }
    }

    fn for_loop(&mut self, it: &For) {
        let mut touched = ModifiedNames::of(self.program, it.body);
        touched.symbols.insert(it.index);
        // The state before an iteration is the state before the loop or after another iteration.
        let forgotten = if it.axis.is_some() { loop_variant_tensors(self.program, it) } else { Vec::new() };
        for tensor in touched.dropped.iter().chain(&forgotten) {
            self.set_bound(*tensor, false);
        }
        self.invalidate(&touched);
        let mark = self.journal.len();
        self.block(it.body);
        let bounds = self.program.constant(it.start).zip(self.program.constant(it.stop));
        if bounds.is_none_or(|(start, stop)| start >= stop) {
            // The body may not execute at all.
            self.roll_back(mark);
        }
        self.invalidate(&touched);
    }

    /// Invalidates the views that a block may have replaced or changed.
    fn invalidate(&mut self, touched: &ModifiedNames) {
        touched.tensors.iter().for_each(|tensor| self.change(Name::Tensor(*tensor)));
        touched.symbols.iter().for_each(|symbol| self.change(Name::Symbol(*symbol)));
    }

    fn invalidate_operands(&mut self, it: &OpStmt) {
        let dropped = it.op.def().class == OpClass::Deallocate;
        for_each_tensor_use(self.program, it, &mut |tensor, mode| {
            if dropped || is_modification(mode) {
                self.change(Name::Tensor(tensor));
            }
        });
    }

    fn change(&mut self, name: Name) {
        *self.versions.entry(name).or_default() += 1;
    }

    fn version(&self, name: Name) -> u32 {
        self.versions.get(&name).copied().unwrap_or_default()
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
        let same = match &self.program.stmts[*stmt] {
            Stmt::Op(known) => {
                (known.op, &known.outs, &known.args, &known.attrs) == (it.op, &it.outs, &it.args, &it.attrs)
            }
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
        };
        same && names.iter().all(|(name, version)| self.version(*name) == *version)
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
