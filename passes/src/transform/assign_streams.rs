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
//! * `auto`: one stream for loops whose communications get a stream of their own, since their iterations then
//!   compute one after the other, and communications of earlier iterations run beside them; otherwise two, so
//!   that an iteration computes while the one before it communicates. Loops that share a fork have the same
//!   number. It needs `communications=auto` or `shared-stream`.
//!
//! With one stream, the fork and a join in a separate loop are statements without a loop.
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
//! `communications=shared-stream` moves the communications of all iterations to one more stream (see
//! `communications`), so that the computation of a later iteration does not wait for them.
//!
//! Consecutive loops that do not depend on each other share one fork and one join, so that the last
//! iterations of one loop overlap with the first iterations of the next. The stream numbers of the next loop
//! continue those of the previous one. The statements between such loops move before the fork.
//!
//! If ranks could start the communications of such loops in different orders, which NCCL does not allow (E0707), all of them get one
//! more stream, whatever `communications` says, and it waits for each before the next. A loop for which this is not possible
//! stays unchanged, with a remark.
//!
//! The pass rejects a loop whose iterations may depend on each other; with `dependent=keep`, it leaves the
//! loop unchanged.

mod communications;
mod fork_join;
mod options;
mod regions;

use grammar::{AccessMode, BlockId, Code, Diagnostic, For, OpClass, OpStmt, Program, Stmt, StmtId, TensorId};
use hir_ir::{build::IrBuilder, edit::number_streams};
use rustc_hash::FxHashSet;

use crate::{
    analysis::{
        bindings,
        communicators::{Communicators, Post},
        loop_carried::{LoopCarriedDep, MentionCounts, loop_carried_dep},
        memory_effects::MemoryEffects,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
};

use communications::can_move_all;
use fork_join::{CommStream, fork_and_join, shared_stream};
use options::StreamOptions;
use regions::{Footprint, ViewDefs, is_slice_or_copy};

const INLINE_OR_LOOP: OptionKind = OptionKind::Word(&["inline", "loop"]);

/// The pass.
pub(crate) const PASS: Pass = Pass::new("assign-streams", include_str!("assign_streams.rs"), run)
    .about("run the iterations of loops on different streams, with a fork before and a join after")
    .with_options(&[
        OptionSpec::new("count", OptionKind::Text, Some("per-iteration")).about(
            "number of streams: per-iteration, numberOfStreams or a number; auto: one for loops whose \
             communications get a stream of their own (communications=auto or shared-stream), else two",
        ),
        OptionSpec::new("fork", INLINE_OR_LOOP, None)
            .about("where the streams wait for earlier work; default: inline for per-iteration, else loop"),
        OptionSpec::new("join", INLINE_OR_LOOP, None).about(
            "where later work waits for the streams; default: loop for per-iteration or one stream of auto, \
             else inline",
        ),
        OptionSpec::new("inter-stream-sync", OptionKind::Flag, Some("false"))
            .about("make each stream wait for the communications of the previous iteration"),
        OptionSpec::word("communications", &["inline", "shared-stream", "auto"]).about(
            "stream of the communications: that of the iteration, or one more stream for all iterations; \
             auto: one more stream for loops that need what they receive only after the last iteration",
        ),
        OptionSpec::word("dependent", &["refuse", "keep"])
            .about("refuse a loop whose iterations depend on each other, or keep it unchanged"),
    ]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let options = StreamOptions::of(program, arguments)?;
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let (storage, mentioned) = (MemoryEffects::of(program), MentionCounts::of(program));
    let communicators = Communicators::of(program).filter(|_| !options.orders_iterations());
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
                group.emit(program, &mut fresh, (&options, &storage), &mut stmts);
                stmts.push(stmt);
                continue;
            }
        };
        match loop_carried_dep(program, &storage, &mentioned, &it) {
            Some(_) if arguments.text("dependent") == Some("keep") => {
                group.emit(program, &mut fresh, (&options, &storage), &mut stmts);
                stmts.push(stmt);
            }
            Some(why) => return Err(dependence_error(program, &it, &why)),
            None => {
                let footprint = Footprint::of(program, &storage, &views, &it);
                if !options.can_share_fork_and_join() || !group.can_add(program, &footprint, &it) {
                    group.emit(program, &mut fresh, (&options, &storage), &mut stmts);
                }
                if let Some(communicators) = &communicators {
                    let movable = can_move_all(program, &storage, it.body);
                    if !group.can_order(program, communicators, stmt, movable) {
                        group.emit(program, &mut fresh, (&options, &storage), &mut stmts);
                    }
                    if !group.can_order(program, communicators, stmt, movable) {
                        remarks.missed(
                            program.stmt_span(stmt),
                            "the iterations of the loop stay on one stream: ranks could start its communications in different orders",
                            "one stream cannot have them all, as computations of the iteration are between them and their Waits",
                        );
                        stmts.push(stmt);
                        continue;
                    }
                    group.add_posts(program, communicators, stmt, movable);
                }
                group.add(program, stmt, it, footprint);
                changed = true;
            }
        }
    }
    group.emit(program, &mut fresh, (&options, &storage), &mut stmts);
    program.blocks[body] = stmts;
    if changed {
        number_streams(program);
    }
    Ok(Change::from_flag(changed))
}

/// Consecutive loops that share a fork and a join.
#[derive(Default)]
struct LoopGroup {
    loops: Vec<(StmtId, For)>,
    footprints: Vec<Footprint>,
    /// The tensor names that the loops mention.
    names: FxHashSet<TensorId>,
    /// Those that they bind, write or deallocate.
    bound: FxHashSet<TensorId>,
    /// The total number of iterations; `None` if it is not a constant.
    trips: Option<i64>,
    /// Their communications, one for each communicator.
    posts: Vec<Post>,
    /// Whether ranks could start these in different orders, if several streams have them.
    conflict: bool,
    /// Whether some of them cannot have a stream of their own.
    stays: bool,
}

impl LoopGroup {
    /// Returns whether, with another loop, all ranks start the communications in one order, if necessary on one stream.
    fn can_order(&self, program: &Program, communicators: &Communicators, it: StmtId, movable: bool) -> bool {
        let mut posts = self.posts.clone();
        communicators.add(program, it, &mut posts);
        movable && !self.stays || !communicators.conflict_among(&posts)
    }

    /// Adds the communications of a loop.
    fn add_posts(&mut self, program: &Program, communicators: &Communicators, it: StmtId, movable: bool) {
        communicators.add(program, it, &mut self.posts);
        self.conflict = communicators.conflict_among(&self.posts);
        self.stays |= !movable;
    }

    /// Returns whether a loop may run concurrently with the loops of the group.
    fn can_add(&self, program: &Program, footprint: &Footprint, it: &For) -> bool {
        let binds = |name: &TensorId| self.names.contains(name);
        let apart = !bound_in(program, it.body).iter().any(binds);
        self.trips.is_some() && apart && self.footprints.iter().all(|other| !other.conflicts(footprint))
    }

    /// Returns whether a statement that follows the loops may run before them: it binds a name or allocates,
    /// reads nothing that the loops write or bind, and changes nothing that they use.
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
        it.tensor_uses(program).into_iter().all(|(tensor, mode)| {
            let class = storage.alias_class(tensor);
            match mode {
                AccessMode::Bind => !self.names.contains(&tensor),
                AccessMode::Write if is_view => !self.names.contains(&tensor),
                AccessMode::Read | AccessMode::NoAccess => {
                    !self.bound.contains(&tensor) && self.footprints.iter().all(|it| !it.writes(class))
                }
                AccessMode::Write | AccessMode::Transfer => self.footprints.iter().all(|it| !it.uses(class)),
            }
        })
    }

    fn add(&mut self, program: &Program, stmt: StmtId, it: For, footprint: Footprint) {
        let start = if self.loops.is_empty() { Some(0) } else { self.trips };
        let trips = program.constant(it.start).zip(program.constant(it.stop));
        self.trips = start
            .zip(trips)
            .and_then(|(all, (start, stop))| all.checked_add(stop.checked_sub(start)?.max(0)));
        self.names.extend(program.ops_in(it.body).flat_map(|(_, op)| op.mentions(program)));
        self.bound.extend(bound_in(program, it.body));
        self.loops.push((stmt, it));
        self.footprints.push(footprint);
    }

    /// Emits the loops of the group with their fork and join, and empties the group.
    fn emit(
        &mut self,
        program: &mut Program,
        fresh: &mut IrBuilder,
        (options, storage): (&StreamOptions, &MemoryEffects),
        stmts: &mut Vec<StmtId>,
    ) {
        let Self { loops, trips, conflict, .. } = std::mem::take(self);
        if !loops.is_empty() {
            let style = options.style_for(program, storage, &loops, conflict);
            let shared = (style.communications != CommStream::Inline)
                .then(|| shared_stream(program, &style, &loops, trips));
            fork_and_join(program, fresh, (&style, storage), (&loops, shared), stmts);
        }
    }
}

/// Returns the names that a block binds, writes or deallocates.
fn bound_in(program: &Program, block: BlockId) -> FxHashSet<TensorId> {
    let of_op = |(_, it): (StmtId, &OpStmt)| {
        let dropped = it.op.def().class == OpClass::Deallocate;
        let binds = move |mode| dropped || matches!(mode, AccessMode::Bind | AccessMode::Write);
        it.tensor_uses(program).into_iter().filter(move |it| binds(it.1)).map(|it| it.0)
    };
    program.ops_in(block).flat_map(of_op).collect()
}

/// Returns whether a loop's body computes or communicates, and contains no stream operation.
fn has_work_and_no_streams(program: &Program, body: BlockId) -> bool {
    let (mut works, mut streams) = (false, false);
    for (_, it) in program.ops_in(body) {
        match it.op.def().class {
            OpClass::Compute
            | OpClass::Elementwise
            | OpClass::Communicate
            | OpClass::HostUnit
            | OpClass::Opaque => {
                works = true;
            }
            OpClass::Stream | OpClass::Condition => streams = true,
            OpClass::View
            | OpClass::Allocate
            | OpClass::Deallocate
            | OpClass::Wait
            | OpClass::Coalescing
            | OpClass::ShareHandles => (),
        }
    }
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
