//! assign-streams: gives the iterations of loops streams of their own.
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
//! Every loop of the container that computes or communicates, and does not deal with streams, forks from the stream that
//! is current before it and joins it behind. `count` says how many streams there are:
//!
//! * `per-iteration`: as above, stream `i5` in iteration `i5`;
//! * a number, or `numberOfStreams`: stream `( i5 % numberOfStreams )`. The fork is a loop of its own, and every
//!   iteration ends with the join, which the next iteration on another stream does not wait for:
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
//! `fork` and `join` choose the place of either side: `inline` in the loop, `loop` in a loop of its own. Both inline is
//! correct and runs one iteration after the other, for each forks from the stream that the last one has joined.
//!
//! The worker has to be current before `Synchronize(Stream s0)`: it is the current stream that waits. In the other order
//! the previous iteration's stream would wait for the fork, and this iteration's would not wait at all
//! (`tests/cases/opt/assign-streams-order.hir` loses the dependency). The joining loop may have the index of the loop: a
//! loop gives its index back the value that it had before (`assign-streams-two-loops.hir`).
//!
//! `inter-stream-sync` makes the stream of the next iteration wait for the communications of this one: behind the last
//! communication of the body, and its Waits, comes
//!
//! ```text
//! IF Manual ( ( i5 + 1 ) < numberOfStreams ):
//!   SetCurrentStream(Stream ( i5 + 1 ))
//!   Synchronize(Stream ( i5 % numberOfStreams ))
//!   SetCurrentStream(Stream ( i5 % numberOfStreams ))
//! ```
//!
//! Loops that follow each other and do not depend on each other share a fork and a join, so that the last iterations of
//! one overlap with the first of the next; the streams of the next count on. What stands between them goes before the
//! fork.
//!
//! A loop whose iterations may depend on each other is refused, or left alone with `dependent=keep`.

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
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::builder::{self, IrBuilder},
};

use regions::{Footprint, ViewDefs, is_slice_or_copy};

const INLINE_OR_LOOP: OptionKind = OptionKind::Word(&["inline", "loop"]);

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "assign-streams",
    description: "fork the iterations of loops onto streams, and join them",
    options: &[
        OptionSpec {
            name: "count",
            description: "number of streams: per-iteration, numberOfStreams or a number",
            kind: OptionKind::Text,
            default: Some("per-iteration"),
        },
        OptionSpec {
            name: "fork",
            description: "where streams wait for what came before; default: what suits `count`",
            kind: INLINE_OR_LOOP,
            default: None,
        },
        OptionSpec {
            name: "join",
            description: "where what follows waits for the streams; default: what suits `count`",
            kind: INLINE_OR_LOOP,
            default: None,
        },
        OptionSpec {
            name: "inter-stream-sync",
            description: "whether a stream waits for the communications of the iteration before",
            kind: OptionKind::Flag,
            default: Some("false"),
        },
        OptionSpec {
            name: "dependent",
            description: "what becomes of a loop whose iterations depend on each other",
            kind: OptionKind::Word(&["refuse", "keep"]),
            default: Some("refuse"),
        },
    ],
    run,
};

/// Which streams there are, and where they fork and join.
struct ForkJoinStyle {
    /// How many there are; `None`: as many as iterations.
    count: Option<ExprId>,
    fork_inline: bool,
    join_inline: bool,
    inter_stream: bool,
}

impl ForkJoinStyle {
    /// Whether loops can share a fork and a join.
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

/// Loops that share a fork and a join.
#[derive(Default)]
struct LoopGroup {
    loops: Vec<(StmtId, For)>,
    footprints: Vec<Footprint>,
    /// Names that the loops mention.
    names: FxHashSet<TensorId>,
    /// Iterations so far; `None`: it is no constant how many.
    trips: Option<i64>,
}

impl LoopGroup {
    /// Whether a loop may run at the same time as those of the group.
    fn can_add(&self, program: &Program, footprint: &Footprint, it: &For) -> bool {
        let binds = |name: &TensorId| self.names.contains(name);
        let apart = !bound_in(program, it.body).iter().any(binds);
        self.trips.is_some() && apart && self.footprints.iter().all(|other| !other.conflicts(footprint))
    }

    /// Whether a statement that follows the loops may run before them: it binds a name, or computes into storage of its
    /// own, and has nothing to do with what they write.
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

    /// Writes the loops with their fork and join.
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

/// The names that a block binds or drops.
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
                let message = format!("`{text}` is no number of streams");
                let label = "expected `per-iteration`, `numberOfStreams` or a number above 0 as `count`";
                return Err(Diagnostic::new(Code::BadOption, program.spans.header, message, label));
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

/// Whether a loop's body does work, and nothing with streams.
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
                .help("allocate it in every iteration with the short ALLOCATE (`allocate-and-deallocate`), write an index of it that differs in every iteration, or say `dependent=keep`")
        }
        LoopCarriedDep::Work(number, stmt) => {
            let message = format!(
                "iterations of the loop over `{index}` may depend on each other: one waits for Communication {number} of another"
            );
            Diagnostic::new(Code::NotRewritten, program.stmt_span(*stmt), message, "waited for here")
                .help("wait in the iteration that posts it, or say `dependent=keep`")
        }
    }
}

/// Writes the statements that come instead of loops.
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

/// A loop with the index and bounds of another.
fn like(program: &mut Program, it: &For, stmts: Vec<StmtId>, span: Span) -> StmtId {
    let body = builder::block(program, stmts);
    program.add_stmt(Stmt::For(For { body, ..it.clone() }), span)
}

/// The place behind the last statement of a body that communicates, and behind the Waits that follow it.
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
