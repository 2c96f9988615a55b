//! assign-streams: runs the iterations of a loop on different streams.
//!
//! Before:
//! ```text
//! FOR i5 from 0 to 3:
//!   T2 = ShardByStream(T0, stream_index=i5)
//!   T3 = ShardByStream(T1, stream_index=i5)
//!   T3 = matmul(T2, T4)
//! ```
//! After:
//! ```text
//! Stream s0 = GetCurrentStream()
//! FOR i5 from 0 to 3:
//!   SetCurrentStream(Stream i5)
//!   Synchronize(Stream s0)
//!   T2 = ShardByStream(T0, stream_index=i5)
//!   T3 = ShardByStream(T1, stream_index=i5)
//!   T3 = matmul(T2, T4)
//! SetCurrentStream(Stream s0)
//! FOR i5 from 0 to 3:
//!   Synchronize(Stream i5)
//! ```
//!
//! The pass rewrites every top-level loop that computes or communicates and contains no stream operation.
//! Such a loop forks from the stream that is current before the loop, and joins it after the loop. `count` is
//! the number of streams:
//!
//! * `per-iteration`: iteration `i5` runs on stream `i5`, as above;
//! * a number, or `numberOfStreams`: iteration `i5` runs on stream `( i5 % numberOfStreams )`. The fork is a
//!   separate loop, and every iteration ends with the join. The next iteration runs on another stream and
//!   does not wait for this join:
//!
//! ```text
//! Stream s0 = GetCurrentStream()
//! FOR i5 from 0 to 3:
//!   SetCurrentStream(Stream ( i5 % numberOfStreams ))
//!   Synchronize(Stream s0)
//! FOR i5 from 0 to 3:
//!   SetCurrentStream(Stream ( i5 % numberOfStreams ))
//!   T2 = …
//!   SetCurrentStream(Stream s0)
//!   Synchronize(Stream ( i5 % numberOfStreams ))
//! ```
//!
//! `fork` and `join` select where the fork and the join stand: `inline` in the loop, or `loop` in a separate
//! loop. If both are inline, the program is correct but runs the iterations one after the other, since the
//! stream that an iteration forks from has waited for the previous iteration.
//!
//! The worker stream has to be current before `Synchronize(Stream s0)`, because the current stream is the one
//! that waits. In the other order, the previous iteration's stream would wait for the fork and this
//! iteration's stream would not wait at all (`tests/cases/opt/assign-streams-order.hir` loses the
//! dependency). The joining loop may reuse the index of the rewritten loop: a loop restores the value that
//! its index had before the loop (`assign-streams-two-loops.hir`).
//!
//! `inter-stream-sync` makes the stream of the next iteration wait for the communications of this iteration.
//! The pass inserts the following after the last communication of the body and the Waits that follow it:
//!
//! ```text
//! IF Manual ( ( i5 + 1 ) < numberOfStreams ):
//!   SetCurrentStream(Stream ( i5 + 1 ))
//!   Synchronize(Stream ( i5 % numberOfStreams ))
//!   SetCurrentStream(Stream ( i5 % numberOfStreams ))
//! ```
//!
//! Consecutive loops that do not depend on each other share one fork and one join, so that the last
//! iterations of one loop overlap with the first iterations of the next. The stream numbers of the next loop
//! continue those of the previous one. The statements between such loops move before the fork.
//!
//! The pass rejects a loop whose iterations may depend on each other; with `dependent=keep`, it leaves the
//! loop unchanged.

mod regions;

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    for_each_tensor_use,
    ir::{BlockId, ExprId, For, If, OpStmt, Operand, Program, Stmt, StmtId, StreamId, TensorId},
    ops::{AccessMode, Op, OpClass},
    span::Span,
};
use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        bindings,
        blocks::any_stmt,
        loop_carried::{LoopCarriedDep, MentionCounts, loop_carried_dep},
        memory_effects::MemoryEffects,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks, module_docs},
    rewrite::builder::{self, IrBuilder},
};

use regions::{Footprint, ViewDefs, is_slice_or_copy};

const INLINE_OR_LOOP: OptionKind = OptionKind::Word(&["inline", "loop"]);

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "assign-streams",
    description: "run the iterations of loops on different streams, with a fork before and a join after",
    docs: module_docs(include_str!("assign_streams.rs")),
    options: &[
        OptionSpec {
            name: "count",
            description: "number of streams: per-iteration, numberOfStreams or a number",
            kind: OptionKind::Text,
            default: Some("per-iteration"),
        },
        OptionSpec {
            name: "fork",
            description: "where the streams wait for earlier work; default: inline for per-iteration, else loop",
            kind: INLINE_OR_LOOP,
            default: None,
        },
        OptionSpec {
            name: "join",
            description: "where later work waits for the streams; default: loop for per-iteration, else inline",
            kind: INLINE_OR_LOOP,
            default: None,
        },
        OptionSpec {
            name: "inter-stream-sync",
            description: "make each stream wait for the communications of the previous iteration",
            kind: OptionKind::Flag,
            default: Some("false"),
        },
        OptionSpec {
            name: "dependent",
            description: "refuse a loop whose iterations depend on each other, or keep it unchanged",
            kind: OptionKind::Word(&["refuse", "keep"]),
            default: Some("refuse"),
        },
    ],
    run,
};

/// The number of streams, and where they fork and join.
struct ForkJoinStyle {
    /// The number of streams; `None`: one for each iteration.
    count: Option<ExprId>,
    fork_inline: bool,
    join_inline: bool,
    inter_stream: bool,
}

impl ForkJoinStyle {
    /// Returns whether loops can share a fork and a join.
    fn can_share_fork_and_join(&self) -> bool {
        !(self.fork_inline && self.join_inline || self.inter_stream)
    }
}

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let style = style(program, arguments)?;
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let (storage, mentioned) = (MemoryEffects::of(program), MentionCounts::of(program));
    let views = ViewDefs::of(program);
    let bound = bindings::analyze_bindings(program).already_bound;
    let mut fresh = IrBuilder::of(program);
    let (mut stmts, mut group) = (Vec::new(), LoopGroup::default());
    let mut changed = false;
    for stmt in program.blocks[body].clone() {
        let it = match &program.stmts[stmt] {
            Stmt::For(it) if has_work_and_no_streams(program, it.body) => it.clone(),
            Stmt::Op(it) if group.can_hoist_before(program, &storage, it, bound.contains(&stmt)) => {
                stmts.push(stmt);
                continue;
            }
            Stmt::For(_) | Stmt::Op(_) | Stmt::Let(..) | Stmt::If(_) => {
                group.emit(program, &mut fresh, &style, &mut stmts);
                stmts.push(stmt);
                continue;
            }
        };
        match loop_carried_dep(program, &storage, &mentioned, &it) {
            Some(_) if arguments.text("dependent") == Some("keep") => {
                group.emit(program, &mut fresh, &style, &mut stmts);
                stmts.push(stmt);
            }
            Some(why) => return Err(dependence_error(program, &it, &why)),
            None => {
                let footprint = Footprint::of(program, &storage, &views, &it);
                if !style.can_share_fork_and_join() || !group.can_add(program, &footprint, &it) {
                    group.emit(program, &mut fresh, &style, &mut stmts);
                }
                group.add(program, stmt, it, footprint);
                changed = true;
            }
        }
    }
    group.emit(program, &mut fresh, &style, &mut stmts);
    program.blocks[body] = stmts;
    Ok(Change::from_flag(changed))
}

/// Consecutive loops that share a fork and a join.
#[derive(Default)]
struct LoopGroup {
    loops: Vec<(StmtId, For)>,
    footprints: Vec<Footprint>,
    /// The tensor names that the loops mention.
    names: FxHashSet<TensorId>,
    /// The total number of iterations; `None` if it is not a constant.
    trips: Option<i64>,
}

impl LoopGroup {
    /// Returns whether a loop may run concurrently with the loops of the group.
    fn can_add(&self, program: &Program, footprint: &Footprint, it: &For) -> bool {
        let binds = |name: &TensorId| self.names.contains(name);
        let apart = !bound_in(program, it.body).iter().any(binds);
        self.trips.is_some() && apart && self.footprints.iter().all(|other| !other.conflicts(footprint))
    }

    /// Returns whether a statement that follows the loops may run before them: it binds a name or allocates,
    /// reads nothing that the loops write, and changes nothing that they use.
    fn can_hoist_before(
        &self,
        program: &Program,
        storage: &MemoryEffects,
        it: &OpStmt,
        is_bound: bool,
    ) -> bool {
        let effect = it.op.def().class;
        let is_view = effect == OpClass::View || is_slice_or_copy(it) && !is_bound;
        if self.loops.is_empty() || !is_view && effect != OpClass::Allocate {
            return false;
        }
        let mut free = true;
        for_each_tensor_use(program, it, &mut |tensor, mode| {
            let class = storage.alias_class(tensor);
            free &= match mode {
                AccessMode::Bind => !self.names.contains(&tensor),
                AccessMode::Write if is_view => !self.names.contains(&tensor),
                AccessMode::Read | AccessMode::NoAccess => self.footprints.iter().all(|it| !it.writes(class)),
                AccessMode::Write | AccessMode::Transfer => self.footprints.iter().all(|it| !it.uses(class)),
            };
        });
        free
    }

    fn add(&mut self, program: &Program, stmt: StmtId, it: For, footprint: Footprint) {
        let start = if self.loops.is_empty() { Some(0) } else { self.trips };
        let trips = program.constant(it.start).zip(program.constant(it.stop));
        self.trips = start
            .zip(trips)
            .and_then(|(all, (start, stop))| all.checked_add(stop.checked_sub(start)?.max(0)));
        program.walk(it.body, &mut |stmt| {
            if let Stmt::Op(op) = &program.stmts[stmt] {
                for_each_tensor_use(program, op, &mut |tensor, _| _ = self.names.insert(tensor));
            }
        });
        self.loops.push((stmt, it));
        self.footprints.push(footprint);
    }

    /// Emits the loops of the group with their fork and join, and empties the group.
    fn emit(
        &mut self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        style: &ForkJoinStyle,
        stmts: &mut Vec<StmtId>,
    ) {
        let Self { loops, .. } = std::mem::take(self);
        if !loops.is_empty() {
            fork_and_join(program, fresh, style, &loops, stmts);
        }
    }
}

/// Returns the names that a block binds, writes or deallocates.
fn bound_in(program: &Program, block: BlockId) -> FxHashSet<TensorId> {
    let mut names = FxHashSet::default();
    program.walk(block, &mut |stmt| {
        if let Stmt::Op(it) = &program.stmts[stmt] {
            let dropped = it.op.def().class == OpClass::Deallocate;
            for_each_tensor_use(program, it, &mut |tensor, mode| {
                if dropped || matches!(mode, AccessMode::Bind | AccessMode::Write) {
                    names.insert(tensor);
                }
            });
        }
    });
    names
}

fn style(program: &mut Program, arguments: &Arguments) -> Result<ForkJoinStyle, Diagnostic> {
    let count = match arguments.text("count") {
        None | Some("per-iteration") => None,
        Some("numberOfStreams") => {
            let symbol = program.intern_symbol(None, "numberOfStreams", Span::default());
            Some(builder::symbol(program, symbol))
        }
        Some(text) => match text.parse::<i64>() {
            Ok(count) if count > 0 => Some(program.intern_int(count)),
            Ok(_) | Err(_) => {
                let message = format!("`{text}` is not a number of streams");
                let label = "expected `per-iteration`, `numberOfStreams` or a number above 0";
                return Err(arguments.error("count", message, label));
            }
        },
    };
    let inline = |name: &str, default: bool| arguments.text(name).map_or(default, |it| it == "inline");
    Ok(ForkJoinStyle {
        fork_inline: inline("fork", count.is_none()),
        join_inline: inline("join", count.is_some()),
        inter_stream: arguments.flag("inter-stream-sync"),
        count,
    })
}

/// Returns whether a loop's body computes or communicates, and contains no stream operation.
fn has_work_and_no_streams(program: &Program, body: BlockId) -> bool {
    let (mut works, mut streams) = (false, false);
    program.walk(body, &mut |stmt| {
        if let Stmt::Op(it) = &program.stmts[stmt] {
            match it.op.def().class {
                OpClass::Compute
                | OpClass::Elementwise
                | OpClass::Communicate
                | OpClass::HostUnit
                | OpClass::Opaque => {
                    works = true;
                }
                OpClass::Stream => streams = true,
                OpClass::View
                | OpClass::Allocate
                | OpClass::Deallocate
                | OpClass::Wait
                | OpClass::Coalescing
                | OpClass::ShareHandles => (),
            }
        }
    });
    works && !streams
}

fn dependence_error(program: &Program, it: &For, why: &LoopCarriedDep) -> Diagnostic {
    let index = &program.symbols[it.index];
    match why {
        LoopCarriedDep::Storage(tensor, stmt) => {
            let name = program.tensor_name(*tensor);
            let message = format!(
                "iterations of the loop over `{index}` may depend on each other: they share the storage of `{name}`"
            );
            Diagnostic::new(Code::NotRewritten, program.stmt_span(*stmt), message, "written here")
                .help("allocate it in every iteration with the short ALLOCATE (`allocate-and-deallocate`), write a slice whose index differs in every iteration, or set `dependent=keep`")
        }
        LoopCarriedDep::Work(number, stmt) => {
            let message = format!(
                "iterations of the loop over `{index}` may depend on each other: one waits for Communication {number} of another"
            );
            Diagnostic::new(Code::NotRewritten, program.stmt_span(*stmt), message, "waited for here")
                .help("wait in the iteration that posts it, or set `dependent=keep`")
        }
    }
}

/// Emits the statements that replace the loops: the capture of the current stream, the forks, the loops and
/// the joins.
fn fork_and_join(
    program: &mut Program,
    fresh: &mut IrBuilder,
    style: &ForkJoinStyle,
    loops: &[(StmtId, For)],
    stmts: &mut Vec<StmtId>,
) {
    let main = fresh.stream(program);
    let set = |program: &mut Program, stream, span| {
        builder::add(program, builder::set_current_stream(stream), span)
    };
    let wait =
        |program: &mut Program, stream, span| builder::add(program, builder::synchronize(stream), span);
    let first = loops.first().map(|(stmt, _)| program.stmt_span(*stmt)).unwrap_or_default();
    let mut capture = builder::op(Op::GetCurrentStream);
    capture.outs.push(Operand::Stream(main));
    stmts.push(builder::add(program, capture, first));

    let (mut forks, mut bodies, mut joins) = (Vec::new(), Vec::new(), Vec::new());
    let mut before = 0;
    for (stmt, it) in loops {
        let span = program.stmt_span(*stmt);
        let mut index = builder::symbol(program, it.index);
        if before > 0 {
            let before = program.intern_int(before);
            index = builder::infix(program, "+", index, before);
        }
        let worker = match style.count {
            Some(count) => builder::infix(program, "%", index, count),
            None => index,
        };
        let worker = builder::indexed_stream(program, worker);
        let mut body = vec![set(program, worker, span)];
        if style.fork_inline {
            body.push(wait(program, main, span));
        } else {
            let fork = vec![set(program, worker, span), wait(program, main, span)];
            forks.push(like(program, it, fork, span));
        }
        let mut old = program.blocks[it.body].clone();
        if style.inter_stream
            && let Some(at) = behind_communications(program, &old)
        {
            let sync = inter_stream_sync(program, style, it, index, worker, span);
            old.insert(at, sync);
        }
        body.append(&mut old);
        if style.join_inline {
            body.extend([set(program, main, span), wait(program, worker, span)]);
        }
        program.blocks[it.body] = body;
        bodies.push(*stmt);
        if !style.join_inline {
            let join = vec![wait(program, worker, span)];
            joins.push(like(program, it, join, span));
        }
        let bounds = program.constant(it.start).zip(program.constant(it.stop));
        before += bounds.map_or(0, |(start, stop)| stop.saturating_sub(start).max(0));
    }
    stmts.append(&mut forks);
    stmts.append(&mut bodies);
    if !style.join_inline {
        stmts.push(set(program, main, first));
    }
    stmts.append(&mut joins);
}

/// Returns a new loop with the index and bounds of `it` and the body `stmts`.
fn like(program: &mut Program, it: &For, stmts: Vec<StmtId>, span: Span) -> StmtId {
    let body = builder::block(program, stmts);
    program.add_stmt(Stmt::For(For { body, ..it.clone() }), span)
}

/// Returns the index after the last statement that communicates and the Waits that follow it.
fn behind_communications(program: &Program, stmts: &[StmtId]) -> Option<usize> {
    let posts = |stmt: StmtId| match &program.stmts[stmt] {
        Stmt::Op(it) => matches!(it.op.def().class, OpClass::Communicate | OpClass::Coalescing),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => false,
    };
    let communicates = |stmt: &StmtId| any_stmt(program, *stmt, &posts);
    let last = stmts.iter().rposition(communicates)?;
    let waits = stmts[last + 1..].iter().take_while(
        |stmt| matches!(&program.stmts[**stmt], Stmt::Op(it) if it.op.def().class == OpClass::Wait),
    );
    Some(last + 1 + waits.count())
}

fn inter_stream_sync(
    program: &mut Program,
    style: &ForkJoinStyle,
    it: &For,
    index: ExprId,
    worker: StreamId,
    span: Span,
) -> StmtId {
    let one = program.intern_int(1);
    let next = builder::infix(program, "+", index, one);
    let bound = style.count.unwrap_or(it.stop);
    let cond = builder::infix(program, "<", next, bound);
    let next = builder::indexed_stream(program, next);
    let then = [
        builder::set_current_stream(next),
        builder::synchronize(worker),
        builder::set_current_stream(worker),
    ];
    let then = then.into_iter().map(|it| builder::add(program, it, span)).collect();
    let then = builder::block(program, then);
    program
        .add_stmt(Stmt::If(If { kind: "Manual".to_owned(), cond, then_block: then, else_block: None }), span)
}
