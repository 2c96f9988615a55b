//! merge-stream-loops: makes one loop of two that follow each other.
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
//! Iteration `i` of the second loop then runs before iteration `i + 1` of the first. That is the same if it touches
//! nothing that the first loop's other iterations touch. Which is certain where
//!
//! * the loops have equal bounds that do not depend on the rank; between them stand only allocations of what the first
//!   does not mention, which move in front (where no streams are set), a capture of the stream that the first loop goes
//!   back to, which is then known by its older name, and a loop that forks the same streams from it once more;
//! * both bodies begin with the same stream and stay on it, but for equal ends that go back to one stream and join it; or
//!   neither touches streams: so within one iteration the second body finds what the first left;
//! * storage that both bodies touch and one writes is reached, in both, by one view of the same tensor along the same
//!   axis, whose index is another one in every iteration; or it is allocated anew (short ALLOCATE) by the body that uses it;
//! * where the second loop, or one in between, forks streams from one that has waited for the first loop, nothing behind them
//!   relies on it: streams are forked again before they are used, or the program ends;
//! * a name that both bodies mention is bound by the second before it uses it, and by the first before it uses it;
//! * neither shares handles, captures streams, assigns scalars, or awaits what the other posts;
//! * one of them does not communicate, or all that both post are collectives outside of branches: a transfer may match
//!   another iteration's of another rank, which would then be behind the wrong half of an iteration.
//!
//! A loop that only forks streams in front of a loop that uses them is merged with `forks` only: its Synchronize would
//! come behind the join of the iteration before, and the iterations run one after the other.

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
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    rewrite::{builder, substitute::Substitution},
};

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "merge-stream-loops",
    description: "make one loop of two whose iterations depend on each other one by one",
    options: &[OptionSpec {
        name: "forks",
        description: "also merge a loop that only forks streams with the loop that uses them",
        kind: OptionKind::Flag,
        default: Some("false"),
    }],
    run,
};

fn run(program: &mut Program, arguments: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    // Merging moves statements and renames indices: what shares storage stays the same.
    let (names, owners) = (NameUses::of(program, body), DisjointStorage::of(program));
    let pass = LoopMerger { names, owners, forks: arguments.flag("forks") };
    let mut changed = false;
    // A merged loop may be what another one in front of it waits for.
    while pass.sweep(program, body) {
        changed = true;
    }
    Ok(Change::from_flag(changed))
}

/// What is the same for all loops.
struct LoopMerger {
    names: NameUses,
    owners: DisjointStorage,
    forks: bool,
}

/// What is known of a loop that takes in others: each is looked at once.
struct MergeTarget {
    frame: StreamFrame,
    body: Option<BodySummary>,
    /// What it forgets in every iteration, if it does.
    unbound_each_iteration: Option<FxHashSet<TensorId>>,
}

impl LoopMerger {
    /// Lets every loop take in as many of those behind it as it can; whether any did.
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
                    // What only forks streams, or knows a stream by another name now, is looked at again.
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

/// Where the statements of two bodies go.
struct MergePlan {
    /// How many of the second body's first statements repeat what the first body began with.
    repeated_prefix: usize,
    /// How many of the first body's last statements the second ends with too.
    common_suffix: usize,
    /// Whether the second body begins with a wait that may be for later iterations of the first.
    waits_for_first: bool,
}

impl LoopMerger {
    /// Whether a loop can take in the next one, and what stands between them; `stmts` stand behind it, `earlier` before it.
    /// `is_last`: the program ends behind `stmts`.
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
        // The second body in terms of the first one's index, to compare them.
        let index = builder::symbol(program, first.index);
        let renamed = Substitution::of_symbol(second.index, index).block(program, second.body);
        let two = BodySummary::of(program, &self.names, renamed, first)?;
        if known.body.is_none() {
            known.body = Some(BodySummary::of(program, &self.names, first.body, first)?);
        }
        let one = known.body.as_mut()?;
        let moved = between.moved.iter().filter_map(|stmt| match &program.stmts[*stmt] {
            Stmt::Op(it) => it.out_tensor(),
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        });
        let clear = moved.into_iter().all(|tensor| !one.names.contains_key(&tensor));
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
        // A loop over an axis forgets of two bodies together what it forgets of each.
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

/// What a body defines from tensors that a loop forgets.
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

/// Puts the second loop's statements into the first.
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

/// How the streams of two bodies fit together, if they do.
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
    // What the first body begins with holds for the second; what else that waits for, it waits for.
    let repeated = if one.begin == begin { begin.len() } else { one.stream.iter().len() };
    if one.is_only_streams {
        return (forks && one.stream.is_some()).then_some(MergePlan {
            repeated_prefix: repeated,
            common_suffix: 0,
            waits_for_first: false,
        });
    }
    // The stream that the first loop goes back to has waited for nothing if that ends with no join.
    let joins = end.iter().any(|(op, _)| *op == Op::Synchronize);
    let home = end.first().map(|(_, stream)| stream);
    let waits = begin.iter().any(|(op, stream)| *op == Op::Synchronize && (joins || Some(stream) != home));
    (one.end == end).then_some(MergePlan {
        repeated_prefix: repeated,
        common_suffix: one.end.len(),
        waits_for_first: waits,
    })
}
