//! remove-dead-code: removes computations, views and allocations whose results are not read.
//!
//! Before:
//! ```text
//! T3 = ALLOCATE(buffer=T3, mem_type=global, size=8, zero_init=false, resets_to_zero=false)
//! T4 = HirAliasSelect( T3, axis = iS3{2}, index = 0 )
//! T4 = Set( T0 )
//! T1 = linear(T0, T2)
//! Deallocate {
//!   T3
//! }
//! ```
//! After (T1 is an output):
//! ```text
//! T1 = linear(T0, T2)
//! ```
//!
//! A statement is live if it does more than compute or bind, if it binds or writes a live name, or if it may
//! write into storage that a live name can access. A name is live if a live statement mentions it, or if it
//! is an input or output. Communications, waits, stream operations, handle exchanges, HostUnits and kernels
//! are always live. The pass does not remove scalars.
//!
//! Names are not in SSA form: `T4 = Set( T0 )` above writes into the view that the statement before it bound.
//! The pass therefore follows storage in both directions through views, `.alias`, and copies to names that
//! may have no storage of their own, regardless of the order of statements.

use grammar::{AccessMode, BlockId, Diagnostic, OpClass, OpStmt, Program, Stmt, StmtId, TensorId};
use hir_ir::edit::{StmtEdit, rewrite};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        alias_analysis::can_forward_operand,
        bindings::{self, BindingAnalysis},
    },
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::empty_blocks::remove_empty_blocks,
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("remove-dead-code", include_str!("remove_dead_code.rs"), run)
    .about("remove computations, views and allocations whose results are not read");

fn run(program: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut graph = LivenessGraph::default();
    collect(program, body, false, &bindings::analyze_bindings(program), &mut graph);
    let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
    ports.for_each(|port| graph.worklist.push(LivenessFact::Needed(port)));
    let live = graph.live_stmts(program);
    let mut changed = rewrite(program, body, &mut |program, stmt| match &program.stmts[stmt] {
        Stmt::Op(_) if !live.contains(&stmt) => StmtEdit::Remove,
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => StmtEdit::Keep,
    });
    changed |= remove_empty_blocks(program, body);
    Ok(Change::from_flag(changed))
}

/// The dependencies between names and statements for the liveness analysis.
#[derive(Default)]
struct LivenessGraph {
    /// The statements that bind, write or deallocate each name.
    definitions: FxHashMap<TensorId, Vec<StmtId>>,
    /// The statements that write into storage that a name may be bound to already.
    writers: FxHashMap<TensorId, Vec<StmtId>>,
    /// The names whose storage each name may alias.
    sources: FxHashMap<TensorId, Vec<TensorId>>,
    /// The names that may alias each name's storage.
    viewers: FxHashMap<TensorId, Vec<TensorId>>,
    /// The names that the statements so far may have bound.
    seen: FxHashSet<TensorId>,
    worklist: Vec<LivenessFact>,
}

/// A liveness fact, which implies others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LivenessFact {
    /// The statement is live.
    Live(StmtId),
    /// The name is live, with all statements that define it.
    Needed(TensorId),
    /// The contents of the name's storage are read.
    Read(TensorId),
    /// The name may alias storage that is read.
    Reaches(TensorId),
}

fn collect(
    program: &Program,
    block: BlockId,
    in_loop: bool,
    facts: &BindingAnalysis,
    graph: &mut LivenessGraph,
) {
    for stmt in program.block(block) {
        match &program.stmts[*stmt] {
            Stmt::Op(it) => graph.add_op(program, *stmt, it, in_loop, facts),
            Stmt::Let(..) => (),
            Stmt::For(it) => collect(program, it.body, true, facts, graph),
            Stmt::If(it) => {
                collect(program, it.then_block, in_loop, facts, graph);
                it.else_block.iter().for_each(|other| collect(program, *other, in_loop, facts, graph));
            }
        }
    }
}

impl LivenessGraph {
    fn add_op(
        &mut self,
        program: &Program,
        stmt: StmtId,
        it: &OpStmt,
        in_loop: bool,
        facts: &BindingAnalysis,
    ) {
        let effect = it.op.def().class;
        let (mut operands, mut results) = (Vec::new(), Vec::new());
        for (tensor, mode) in it.tensor_uses(program) {
            match mode {
                AccessMode::Read | AccessMode::NoAccess | AccessMode::Transfer => operands.push(tensor),
                AccessMode::Write | AccessMode::Bind => results.push(tensor),
            }
        }
        for result in &results {
            self.definitions.entry(*result).or_default().push(stmt);
        }
        match effect {
            OpClass::Compute | OpClass::Elementwise => {
                let bound = facts.already_bound.contains(&stmt);
                let binds_view = !bound && can_forward_operand(it);
                for result in &results {
                    // The first statement that mentions the name finds it unbound, if it runs only once.
                    if in_loop || !binds_view || self.seen.contains(result) {
                        self.writers.entry(*result).or_default().push(stmt);
                    }
                    if binds_view {
                        self.add_alias(*result, &operands);
                    }
                }
            }
            OpClass::View | OpClass::Allocate => {
                results.iter().for_each(|result| self.add_alias(*result, &operands));
            }
            OpClass::Deallocate => {
                operands.iter().for_each(|it| self.definitions.entry(*it).or_default().push(stmt));
            }
            grammar::other_classes!() => self.worklist.push(LivenessFact::Live(stmt)),
        }
        self.seen.extend(results);
    }

    fn add_alias(&mut self, name: TensorId, sources: &[TensorId]) {
        for source in sources.iter().filter(|it| **it != name) {
            self.sources.entry(name).or_default().push(*source);
            self.viewers.entry(*source).or_default().push(name);
        }
    }

    /// Propagates the facts of the worklist, and returns the live statements.
    fn live_stmts(mut self, program: &Program) -> FxHashSet<StmtId> {
        let mut known: FxHashSet<LivenessFact> = FxHashSet::default();
        let mut live = FxHashSet::default();
        let none_stmt: &[StmtId] = &[];
        let none_tensor: &[TensorId] = &[];
        while let Some(fact) = self.worklist.pop() {
            if !known.insert(fact) {
                continue;
            }
            let stmts = |of: &FxHashMap<TensorId, Vec<StmtId>>, it| -> Vec<LivenessFact> {
                of.get(&it)
                    .map_or(none_stmt, Vec::as_slice)
                    .iter()
                    .map(|it| LivenessFact::Live(*it))
                    .collect()
            };
            let names = |of: &FxHashMap<TensorId, Vec<TensorId>>,
                         it,
                         fact: fn(TensorId) -> LivenessFact|
             -> Vec<LivenessFact> {
                of.get(&it).map_or(none_tensor, Vec::as_slice).iter().map(|it| fact(*it)).collect()
            };
            match fact {
                LivenessFact::Live(stmt) => {
                    live.insert(stmt);
                    let mentioned = program.op(stmt).into_iter().flat_map(|it| it.mentions(program));
                    self.worklist.extend(mentioned.map(LivenessFact::Needed));
                }
                LivenessFact::Needed(name) => {
                    self.worklist.extend(stmts(&self.definitions, name));
                    self.worklist.push(LivenessFact::Read(name));
                }
                LivenessFact::Read(name) => {
                    self.worklist.extend(names(&self.sources, name, LivenessFact::Read));
                    self.worklist.push(LivenessFact::Reaches(name));
                }
                LivenessFact::Reaches(name) => {
                    self.worklist.extend(names(&self.viewers, name, LivenessFact::Reaches));
                    self.worklist.extend(stmts(&self.writers, name));
                }
            }
        }
        live
    }
}
