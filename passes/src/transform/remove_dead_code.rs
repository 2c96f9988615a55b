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
    ir::{BlockId, OpStmt, Program, Stmt, StmtId, TensorId},
    mentions,
    ops::{Effect, Mode},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        bindings::{self, Facts},
        sharing::may_rearrange,
    },
    pass::{Arguments, Change, Pass, Remarks},
    rewrite::blocks::{Edit, prune, rewrite},
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
    let mut graph = Graph::default();
    collect(program, body, false, &bindings::facts(program), &mut graph);
    let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
    ports.for_each(|port| graph.pending.push(Fact::Needed(port)));
    let live = graph.solve(program);
    let mut changed = rewrite(program, body, &mut |program, stmt| match &program.stmts[stmt] {
        Stmt::Op(_) if !live.contains(&stmt) => Edit::Remove,
        Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => Edit::Keep,
    });
    changed |= prune(program, body);
    Ok(Change::from_flag(changed))
}

/// What makes what live.
#[derive(Default)]
struct Graph {
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
    pending: Vec<Fact>,
}

/// Something found out and not followed yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Fact {
    /// The statement stays.
    Live(StmtId),
    /// The name stays, with all that defines it.
    Needed(TensorId),
    /// What the name's own storage holds is read.
    Read(TensorId),
    /// The name may stand for storage that is read.
    Reaches(TensorId),
}

fn collect(program: &Program, block: BlockId, in_loop: bool, facts: &Facts, graph: &mut Graph) {
    for stmt in program.block(block) {
        match &program.stmts[*stmt] {
            Stmt::Op(it) => graph.op(program, *stmt, it, in_loop, facts),
            Stmt::Let(..) => (),
            Stmt::For(it) => collect(program, it.body, true, facts, graph),
            Stmt::If(it) => {
                collect(program, it.then, in_loop, facts, graph);
                it.other.iter().for_each(|other| collect(program, *other, in_loop, facts, graph));
            }
        }
    }
}

impl Graph {
    fn op(&mut self, program: &Program, stmt: StmtId, it: &OpStmt, in_loop: bool, facts: &Facts) {
        let effect = it.op.row().effect;
        let (mut operands, mut results) = (Vec::new(), Vec::new());
        mentions(program, it, &mut |tensor, mode| match mode {
            Mode::Read | Mode::Mention | Mode::Transfer => operands.push(tensor),
            Mode::Write | Mode::Bind => results.push(tensor),
        });
        for result in &results {
            self.definitions.entry(*result).or_default().push(stmt);
        }
        match effect {
            Effect::Compute | Effect::Map => {
                let bound = facts.bound.contains(&stmt);
                let binds_view = effect == Effect::Compute && !bound && may_rearrange(it.op.row().rule);
                for result in &results {
                    // The first statement that names it, run once, finds nothing bound to write into.
                    if in_loop || !binds_view || self.seen.contains(result) {
                        self.writers.entry(*result).or_default().push(stmt);
                    }
                    if binds_view {
                        self.alias(*result, &operands);
                    }
                }
            }
            Effect::View | Effect::Allocate => {
                results.iter().for_each(|result| self.alias(*result, &operands));
            }
            Effect::Deallocate => {
                operands.iter().for_each(|it| self.definitions.entry(*it).or_default().push(stmt));
            }
            Effect::Communicate
            | Effect::Wait
            | Effect::Stream
            | Effect::Group
            | Effect::Share
            | Effect::Unit
            | Effect::Opaque => self.pending.push(Fact::Live(stmt)),
        }
        self.seen.extend(results);
    }

    fn alias(&mut self, name: TensorId, sources: &[TensorId]) {
        for source in sources.iter().filter(|it| **it != name) {
            self.sources.entry(name).or_default().push(*source);
            self.viewers.entry(*source).or_default().push(name);
        }
    }

    /// Follows all that is pending to the statements that stay.
    fn solve(mut self, program: &Program) -> FxHashSet<StmtId> {
        let mut known: FxHashSet<Fact> = FxHashSet::default();
        let mut live = FxHashSet::default();
        let none_stmt: &[StmtId] = &[];
        let none_tensor: &[TensorId] = &[];
        while let Some(fact) = self.pending.pop() {
            if !known.insert(fact) {
                continue;
            }
            let stmts = |of: &FxHashMap<TensorId, Vec<StmtId>>, it| -> Vec<Fact> {
                of.get(&it).map_or(none_stmt, Vec::as_slice).iter().map(|it| Fact::Live(*it)).collect()
            };
            let names =
                |of: &FxHashMap<TensorId, Vec<TensorId>>, it, fact: fn(TensorId) -> Fact| -> Vec<Fact> {
                    of.get(&it).map_or(none_tensor, Vec::as_slice).iter().map(|it| fact(*it)).collect()
                };
            match fact {
                Fact::Live(stmt) => {
                    live.insert(stmt);
                    if let Stmt::Op(it) = &program.stmts[stmt] {
                        mentions(program, it, &mut |tensor, _| self.pending.push(Fact::Needed(tensor)));
                    }
                }
                Fact::Needed(name) => {
                    self.pending.extend(stmts(&self.definitions, name));
                    self.pending.push(Fact::Read(name));
                }
                Fact::Read(name) => {
                    self.pending.extend(names(&self.sources, name, Fact::Read));
                    self.pending.push(Fact::Reaches(name));
                }
                Fact::Reaches(name) => {
                    self.pending.extend(names(&self.viewers, name, Fact::Reaches));
                    self.pending.extend(stmts(&self.writers, name));
                }
            }
        }
        live
    }
}
