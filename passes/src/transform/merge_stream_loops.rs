//! merge-stream-loops: merges two consecutive loops into one.
//!
//! Before:
//! ```text
//! FOR i5 from 0 to 8:
//!   SetCurrentStream(Stream ( i5 % 4 ))
//!   T3 = HirAliasSelect( T1, axis = iS1{8}, index = i5 )
//!   T3 = linear(…)
//!   SetCurrentStream(Stream s0)
//!   Synchronize(Stream ( i5 % 4 ))
//! FOR i6 from 0 to 8:
//!   SetCurrentStream(Stream ( i6 % 4 ))
//!   T4 = HirAliasSelect( T1, axis = iS1{8}, index = i6 )
//!   T5 = HirAliasSelect( T2, axis = iS2{8}, index = i6 )
//!   T5 = relu(T4)
//!   SetCurrentStream(Stream s0)
//!   Synchronize(Stream ( i6 % 4 ))
//! ```
//! After:
//! ```text
//! FOR i5 from 0 to 8:
//!   SetCurrentStream(Stream ( i5 % 4 ))
//!   T3 = HirAliasSelect( T1, axis = iS1{8}, index = i5 )
//!   T3 = linear(…)
//!   T4 = HirAliasSelect( T1, axis = iS1{8}, index = i5 )
//!   …
//!   SetCurrentStream(Stream s0)
//!   Synchronize(Stream ( i5 % 4 ))
//! ```
//!
//! In the merged loop, iteration `i` of the second loop runs before iteration `i + 1` of the first. This
//! preserves the result if iteration `i` of the second loop accesses nothing that the other iterations of the
//! first loop access. The pass merges two loops if it can prove all of the following:
//!
//! * The loops have equal bounds that do not depend on the rank. Between them are only: allocations of
//!   tensors that the first loop does not mention, which move before the loop if no streams are set; a
//!   capture of the stream that the first loop returns to, whose name is replaced by the older name of the
//!   stream; and a loop that forks the same streams from it again.
//! * Both bodies begin with the same stream and stay on it, except for equal ends that return to another
//!   stream and make it wait for the stream of the bodies; or neither body uses streams. So within one
//!   iteration, the second body runs after the first.
//! * Storage that both bodies access and one writes is accessed in both through one view of the same tensor
//!   along the same axis, with an index that differs in every iteration; or the body that uses the storage
//!   allocates it in every iteration (short ALLOCATE).
//! * If the second loop, or a loop in between, forks streams from a stream that has waited for the first
//!   loop, no later statement relies on this order: the streams are forked again before they are used, or the
//!   program ends.
//! * Each body binds every name that both bodies mention before it uses the name.
//! * Neither body shares handles, captures streams, assigns scalars, or waits for what the other posts.
//! * One of the bodies does not communicate, or both post only collectives outside of branches. A transfer
//!   may match a transfer of another iteration on another rank, and the merged loop would post that one after
//!   the wrong body.
//!
//! A loop that only forks streams is merged with the following loop, which uses them, only if `forks` is set:
//! in the merged loop, its Synchronize comes after the join of the previous iteration, so the iterations run
//! one after the other.

mod forks;
mod stmts_between;
mod stream_frame;

use grammar::{
    diagnostic::Diagnostic,
    ir::{BlockId, ExprId, For, Program, Stmt, StmtId, Stream, TensorId},
    loop_variant_tensors,
    ops::Op,
};
use rustc_hash::FxHashSet;
use stmts_between::StmtsBetween;
use stream_frame::StreamFrame;

use crate::{
    analysis::{
        blocks::nested_blocks,
        dependences::{BodySummary, DisjointStorage, are_independent},
        name_uses::NameUses,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks, module_docs},
    rewrite::{builder, streams::number_streams, substitute::Substitution},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "merge-stream-loops",
    description: "merge consecutive loops if each iteration of the second depends only on the same iteration of the first",
    docs: module_docs(include_str!("merge_stream_loops.rs")),
    options: &[OptionSpec {
        name: "forks",
        description: "also merge a loop that only forks streams with the loop that uses them",
        kind: OptionKind::Flag,
        default: Some("false"),
    }],
    for_one_rank: false,
    run,
};

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    // Merging moves statements and renames indices, but does not change which tensors share storage.
    let (names, owners) = (NameUses::of(program, body), DisjointStorage::of(program));
    let pass = LoopMerger { names, owners, forks: arguments.flag("forks") };
    let mut changed = false;
    // A merged loop may enable a merge with a loop before it.
    while pass.sweep(program, body) {
        changed = true;
    }
    if changed {
        // The merged loops may have dropped a capture.
        number_streams(program);
    }
    Ok(Change::from_flag(changed))
}

/// The analyses and options that all merges use.
struct LoopMerger {
    names: NameUses,
    owners: DisjointStorage,
    forks: bool,
}

/// A loop that other loops are merged into, with analyses that are computed once.
struct MergeTarget {
    frame: StreamFrame,
    body: Option<BodySummary>,
    /// The tensors that the loop unbinds in every iteration, if it is a loop over an axis.
    unbound_each_iteration: Option<FxHashSet<TensorId>>,
}

impl LoopMerger {
    /// Merges into every loop as many of the following loops as possible. Returns whether it merged any.
    fn sweep(&self, program: &mut Program, body: BlockId) -> bool {
        let mut changed = false;
        for block in nested_blocks(program, body) {
            let stmts = program.block(block).to_vec();
            let mut done = Vec::with_capacity(stmts.len());
            let mut at = 0;
            while let Some(stmt) = stmts.get(at) {
                at += 1;
                let Stmt::For(it) = program.stmts[*stmt].clone() else {
                    done.push(*stmt);
                    continue;
                };
                let mut first = StreamFrame::of(program, it.body).map(|frame| MergeTarget {
                    frame,
                    body: None,
                    unbound_each_iteration: None,
                });
                while let Some(known) = &mut first {
                    let earlier = done.last().copied();
                    let Some((between, merged)) =
                        self.plan_merge(program, known, earlier, &it, &stmts[at..], block == body)
                    else {
                        break;
                    };
                    merge_bodies(program, *stmt, stmts[at + between.next], merged);
                    if let Some((new, old)) = between.captured {
                        rename_stream(program, new, old);
                    }
                    // Analyze the loop again if it only forked streams, or if a stream was renamed.
                    if known.frame.is_only_streams || between.captured.is_some() {
                        let frame = StreamFrame::of(program, it.body);
                        first = frame.map(|frame| MergeTarget {
                            frame,
                            body: None,
                            unbound_each_iteration: None,
                        });
                    }
                    done.extend(between.moved);
                    at += between.next + 1;
                    changed = true;
                }
                done.push(*stmt);
            }
            program.blocks[block] = done;
        }
        changed
    }
}

fn rename_stream(program: &mut Program, new: u32, old: u32) {
    for id in program.streams.ids() {
        if program.streams[id] == Stream::Named(new) {
            program.streams[id] = Stream::Named(old);
        }
    }
}

fn have_same_bounds(program: &Program, one: &For, two: &For) -> bool {
    let extent = |it: &For| it.axis.map(|axis| program.axes[axis].extent);
    (one.start, one.stop, extent(one)) == (two.start, two.stop, extent(two))
}

/// How to combine the statements of two bodies.
struct MergePlan {
    /// The number of statements at the beginning of the second body that repeat the beginning of the first.
    repeated_prefix: usize,
    /// The number of statements at the end of the first body that the second body also ends with.
    common_suffix: usize,
    /// Whether the second body begins with a wait that may be for later iterations of the first loop.
    waits_for_first: bool,
}

impl LoopMerger {
    /// Returns how to merge the next loop into a loop, and the statements between them; `None` if they cannot
    /// be merged. `stmts` follow the first loop, and `earlier` precedes it. `is_last`: the program ends after
    /// `stmts`.
    fn plan_merge(
        &self,
        program: &mut Program,
        known: &mut MergeTarget,
        earlier: Option<StmtId>,
        first: &For,
        stmts: &[StmtId],
        is_last: bool,
    ) -> Option<(StmtsBetween, MergePlan)> {
        let between = StmtsBetween::of(program, &known.frame, earlier, first, stmts)?;
        let Stmt::For(second) = program.stmts[stmts[between.next]].clone() else { return None };
        let bounds = [first.start, first.stop];
        if !have_same_bounds(program, first, &second)
            || bounds.iter().any(|bound| depends_on_rank(program, *bound))
        {
            return None;
        }
        // The second body with the first loop's index, for the comparison.
        let index = builder::symbol(program, first.index);
        let renamed = Substitution::of_symbol(second.index, index).block(program, second.body);
        let two = BodySummary::of(program, &self.names, renamed, first)?;
        if known.body.is_none() {
            known.body = Some(BodySummary::of(program, &self.names, first.body, first)?);
        }
        let one = known.body.as_mut()?;
        let clear = between.moved.iter().all(|stmt| match &program.stmts[*stmt] {
            Stmt::Op(it) => Program::tensors_of(&it.outs).all(|tensor| !one.names.contains_key(&tensor)),
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => true,
        });
        let merged = match_streams(program, &known.frame, renamed, &between, self.forks)?;
        if between.forks || merged.waits_for_first {
            let rest = &stmts[between.next + 1..];
            if !forks::are_forked_again(program, &known.frame, first, between.captured, rest, is_last) {
                return None;
            }
        }
        if !clear || !are_independent(&self.owners, one, &two) {
            return None;
        }
        // A merged loop over an axis has to unbind exactly the tensors that the two loops unbind.
        if first.axis.is_some() {
            let of = |body: BlockId| loop_variant_tensors(program, &For { body, ..first.clone() });
            let forgets =
                known.unbound_each_iteration.get_or_insert_with(|| of(first.body).into_iter().collect());
            let alone: FxHashSet<TensorId> = of(renamed).into_iter().collect();
            if !derived_tensors(program, renamed, forgets).all(|it| alone.contains(&it)) {
                return None;
            }
            forgets.extend(alone);
        }
        one.merge(&self.names, two);
        Some((between, merged))
    }
}

/// Returns the tensors that a body computes from tensors that a loop unbinds.
fn derived_tensors(
    program: &Program,
    body: BlockId,
    forgets: &FxHashSet<TensorId>,
) -> impl Iterator<Item = TensorId> {
    let mut found: FxHashSet<TensorId> = FxHashSet::default();
    program.walk(body, &mut |stmt| {
        let Stmt::Op(it) = &program.stmts[stmt] else { return };
        if Program::tensors_of(&it.args).any(|arg| forgets.contains(&arg) || found.contains(&arg)) {
            found.extend(Program::tensors_of(&it.outs).filter(|out| !forgets.contains(out)));
        }
    });
    found.into_iter()
}

fn depends_on_rank(program: &Program, expr: ExprId) -> bool {
    program.depends_on(expr, &|it| matches!(program.symbols[it].as_str(), "rank" | "deviceIdx.x"))
}

/// Moves the second loop's statements into the first loop.
fn merge_bodies(program: &mut Program, first: StmtId, second: StmtId, merged: MergePlan) {
    let (Stmt::For(one), Stmt::For(two)) = (program.stmts[first].clone(), program.stmts[second].clone())
    else {
        return;
    };
    let index = builder::symbol(program, one.index);
    let mut names = Substitution::of_symbol(two.index, index);
    let renamed = names.block(program, two.body);
    let mut stmts = std::mem::take(&mut program.blocks[one.body]);
    stmts.truncate(stmts.len() - merged.common_suffix);
    stmts.extend_from_slice(&program.block(renamed)[merged.repeated_prefix..]);
    program.blocks[one.body] = stmts;
}

/// Returns how to combine the stream statements of two bodies; `None` if they do not match.
fn match_streams(
    program: &Program,
    one: &StreamFrame,
    second: BlockId,
    between: &StmtsBetween,
    forks: bool,
) -> Option<MergePlan> {
    let two = StreamFrame::of(program, second)?;
    let (begin, end) = (between.with_older_name(&two.begin), between.with_older_name(&two.end));
    if one.stream != two.stream || two.is_only_streams {
        return None;
    }
    // The beginning of the first body also holds for the second. Any other statement at the beginning of the
    // second body is kept.
    let repeated = if one.begin == begin { begin.len() } else { one.stream.iter().len() };
    if one.is_only_streams {
        return (forks && one.stream.is_some()).then_some(MergePlan {
            repeated_prefix: repeated,
            common_suffix: 0,
            waits_for_first: false,
        });
    }
    // If the first loop does not end with a join, the stream that it returns to has not waited for it.
    let joins = end.iter().any(|(op, _)| *op == Op::Synchronize);
    let home = end.first().map(|(_, stream)| stream);
    let waits = begin.iter().any(|(op, stream)| *op == Op::Synchronize && (joins || Some(stream) != home));
    (one.end == end).then_some(MergePlan {
        repeated_prefix: repeated,
        common_suffix: one.end.len(),
        waits_for_first: waits,
    })
}
