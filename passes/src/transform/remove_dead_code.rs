//! remove-dead-code: drops computations, views and storage whose results nobody reads.
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
//! A statement is live if it does more than computing and binding, or if it binds or writes a live name, or may write
//! into storage that a live name reaches. A name is live if a live statement mentions it or the header lists it.
//! Communications, waits, streams, handles, HostUnits and kernels are always live; scalars are not looked at.
//!
//! Names are not SSA: `T4 = Set( T0 )` above writes into the view that the statement before it bound. Storage is
//! therefore followed through views, `.alias`, and copies to names that may have no storage of their own, in both
//! directions, and without regard to the order of statements.

use grammar::{
    diagnostic::Diagnostic,
    for_each_tensor_use,
    ir::{BlockId, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::{AccessMode, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        alias_analysis::can_forward_operand,
        bindings::{self, BindingAnalysis},
    },
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::blocks::{StmtEdit, remove_empty_blocks, rewrite},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "remove-dead-code",
    description: "drop computations, views and storage whose results nobody reads",
    options: &[],
    run,
};

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

/// What makes what live.
#[derive(Default)]
struct LivenessGraph {
    /// Statements that bind, write or drop a name.
    definitions: FxHashMap<TensorId, Vec<StmtId>>,
    /// Statements that write into what a name may be bound to before.
    writers: FxHashMap<TensorId, Vec<StmtId>>,
    /// The names whose storage a name may stand for.
    sources: FxHashMap<TensorId, Vec<TensorId>>,
    /// The names that may stand for a name's storage.
    viewers: FxHashMap<TensorId, Vec<TensorId>>,
    /// Names that statements before the cursor may have bound.
    seen: FxHashSet<TensorId>,
    worklist: Vec<LivenessFact>,
}

/// Something found out and not followed yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LivenessFact {
    /// The statement stays.
    Live(StmtId),
    /// The name stays, with all that defines it.
    Needed(TensorId),
    /// What the name's own storage holds is read.
    Read(TensorId),
    /// The name may stand for storage that is read.
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
        for_each_tensor_use(program, it, &mut |tensor, mode| match mode {
            AccessMode::Read | AccessMode::NoAccess | AccessMode::Transfer => operands.push(tensor),
            AccessMode::Write | AccessMode::Bind => results.push(tensor),
        });
        for result in &results {
            self.definitions.entry(*result).or_default().push(stmt);
        }
        match effect {
            OpClass::Compute | OpClass::Elementwise => {
                let bound = facts.already_bound.contains(&stmt);
                let binds_view =
                    effect == OpClass::Compute && !bound && can_forward_operand(it.op.def().type_rule);
                for result in &results {
                    // The first statement that names it, run once, finds nothing bound to write into.
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
            OpClass::Communicate
            | OpClass::Wait
            | OpClass::Stream
            | OpClass::Coalescing
            | OpClass::ShareHandles
            | OpClass::HostUnit
            | OpClass::Opaque => self.worklist.push(LivenessFact::Live(stmt)),
        }
        self.seen.extend(results);
    }

    fn add_alias(&mut self, name: TensorId, sources: &[TensorId]) {
        for source in sources.iter().filter(|it| **it != name) {
            self.sources.entry(name).or_default().push(*source);
            self.viewers.entry(*source).or_default().push(name);
        }
    }

    /// Follows all that is pending to the statements that stay.
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
                    if let Stmt::Op(it) = &program.stmts[stmt] {
                        for_each_tensor_use(program, it, &mut |tensor, _| {
                            self.worklist.push(LivenessFact::Needed(tensor))
                        });
                    }
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
