//! Finds the statement that should have written elements which are read before anything writes them.

use std::sync::Arc;

use grammar::{Stmt, StmtId, expr_text, list_text};
use rustc_hash::FxHashSet;

use super::{
    editable_text::EditableText,
    memory::UnwrittenRead,
    overlap::{ElementRange, Footprint},
    plan_index::{PlanIndex, PlanIndexes},
};
use hir_plan::{BufferNo, InstKind, Plan, View, World};

/// The maximum number of other ranks that are searched, and of reads whose late writes are searched.
const MAX_SEARCHED: usize = 64;

/// A statement that should have written elements.
pub struct MissingWrite {
    /// A rank that executes it.
    pub rank: usize,
    /// The statement, an index into `Plan::origins` of the rank.
    pub origin: u32,
    /// Why it does not write the elements in time.
    pub label: String,
}

/// Returns the statement that should have written the elements of an unwritten read: the first one of the rank that writes
/// some of them, which is too late; one that only another rank executes; or the one that allocates them. `text` is that of the rank.
pub fn missing_write(
    plans: &[Plan],
    indexes: &PlanIndexes<'_>,
    read: &UnwrittenRead,
    text: Option<&EditableText>,
) -> Option<MissingWrite> {
    let (rank, index) = (read.rank, indexes.of(read.rank));
    if let Some(origin) = late_write(index, read) {
        let label = "writes elements of it, but not before they are read".to_owned();
        return Some(MissingWrite { rank, origin, label });
    }
    let others = plans.iter().filter(|it| it.rank != rank && it.program_id == index.plan().program_id);
    let mut others = others.take(MAX_SEARCHED);
    if let Some(it) = others.find_map(|it| write_of_other_rank(index, indexes.of(it.rank), read, text)) {
        return Some(it);
    }
    let origin = index.plan().code[index.alloc(read.buffer)?].origin;
    let label = "allocates it; no statement of the rank writes these elements".to_owned();
    Some(MissingWrite { rank, origin, label })
}

/// Returns the statements, each with its program, that write what is read before.
pub fn late_writes(world: &World, reads: &[UnwrittenRead]) -> FxHashSet<(usize, StmtId)> {
    let indexes = PlanIndexes::new(world);
    let of = |read: &UnwrittenRead| {
        let (plan, origin) = (&world[read.rank], late_write(indexes.of(read.rank), read)?);
        Some((plan.program_id, plan.origins[origin as usize].stmt?))
    };
    reads.iter().take(MAX_SEARCHED).filter_map(of).collect()
}

/// Returns the first statement of the rank that writes some of the elements.
fn late_write(index: PlanIndex<'_>, read: &UnwrittenRead) -> Option<u32> {
    writes(index, read, read.buffer).next()
}

/// Returns the statements of a rank that write, in one of its buffers, elements at the places of those that are read.
fn writes<'p>(
    index: PlanIndex<'p>,
    read: &UnwrittenRead,
    buffer: BufferNo,
) -> impl Iterator<Item = u32> + 'p {
    let ElementRange { start, end } = read.elements;
    let shape = vec![end.saturating_sub(start)];
    let missing = Footprint::of(&View { buffer, offset: start, shape, strides: vec![1] });
    let plan = index.plan();
    let writes = move |at: &usize| {
        let writes = index.own_accesses(*at, buffer).filter(|it| it.is_write);
        let footprints = writes.filter_map(|it| Footprint::of(it.view));
        missing.as_ref().is_some_and(|missing| footprints.into_iter().any(|it| it.overlaps(missing)))
    };
    index.own_uses(buffer).iter().copied().filter(writes).map(|at| plan.code[at].origin)
}

/// The names and values of the loops around a statement, outermost first.
type Loops = Vec<(Arc<str>, i64)>;

fn loops_of(plan: &Plan, origin: u32) -> Loops {
    plan.enclosing_loops(plan.origins[origin as usize].iteration)
}

/// Returns whether a rank executes a statement in an iteration.
fn executes(index: PlanIndex<'_>, stmt: StmtId, loops: &Loops) -> bool {
    index.of_stmt(stmt).iter().any(|at| loops_of(index.plan(), index.plan().code[*at].origin) == *loops)
}

/// Returns a statement of the rank of `other` that writes the elements in its own buffer of the same statement, and that the rank of `own`
/// does not execute.
fn write_of_other_rank(
    own: PlanIndex<'_>,
    other: PlanIndex<'_>,
    read: &UnwrittenRead,
    text: Option<&EditableText>,
) -> Option<MissingWrite> {
    let (mine, theirs) = (own.plan(), other.plan());
    let allocated = mine.code[own.alloc(read.buffer)?].origin;
    let loops = loops_of(mine, allocated);
    let all = other.of_stmt(mine.origins[allocated as usize].stmt?).iter();
    let buffer = all.map(|at| &theirs.code[*at]).find_map(|it| match it.kind {
        InstKind::Alloc { buffer, .. } if loops_of(theirs, it.origin) == loops => Some(buffer),
        _ => None,
    })?;
    let is_skipped = |origin: &u32| {
        let stmt = theirs.origins[*origin as usize].stmt;
        stmt.is_some_and(|stmt| !executes(own, stmt, &loops_of(theirs, *origin)))
    };
    let origin = writes(other, read, buffer).find(is_skipped)?;
    let (stmt, loops) = (theirs.origins[origin as usize].stmt?, loops_of(theirs, origin));
    let why = text.and_then(|it| reason(it, own, stmt, &loops));
    let why = why.unwrap_or_else(|| format!("rank {} does not execute it", mine.rank));
    let label = format!("writes it on rank {}; {why}", theirs.rank);
    Some(MissingWrite { rank: theirs.rank, origin, label })
}

/// Says which loop or branch keeps a rank from the execution of a statement in an iteration. Returns `None` if it is none.
fn reason(text: &EditableText, own: PlanIndex<'_>, stmt: StmtId, loops: &Loops) -> Option<String> {
    let (program, plan) = (&text.program, own.plan());
    let line = |it: StmtId| text.index.line(program.stmt_span(it).start);
    let around: Vec<_> = text.places().around(stmt).collect();
    let iterations: FxHashSet<Loops> =
        (0..plan.iterations.len() as u32).map(|it| plan.enclosing_loops(Some(it))).collect();
    let mut depth = 0;
    let mut branches = Vec::new();
    for (block, outer) in around.into_iter().rev() {
        match &program.stmts[outer] {
            Stmt::For(it) => {
                depth += 1;
                let (name, value) = loops.get(depth - 1)?;
                if branches.is_empty() && !iterations.contains(&loops[..depth]) {
                    let [from, to] = [it.start, it.stop].map(|it| expr_text(program, it));
                    return Some(format!(
                        "`FOR {name} from {from} to {to}` (line {}) has no iteration {name}={value} on rank {}",
                        line(outer),
                        plan.rank
                    ));
                }
            }
            Stmt::If(it) => {
                let mut inside = program.stmts_in(block).flat_map(|it| own.of_stmt(it));
                if inside.any(|at| loops_of(plan, plan.code[*at].origin).starts_with(&loops[..depth])) {
                    branches.clear();
                } else {
                    let value = if block == it.then_block { "false" } else { "true" };
                    let name =
                        format!("`IF {} {}` (line {})", it.kind, expr_text(program, it.cond), line(outer));
                    branches.push((name, value));
                }
            }
            Stmt::Op(_) | Stmt::Let(..) => (),
        }
    }
    match branches.as_slice() {
        [] => None,
        [(name, value)] => Some(format!("{name} is {value} on rank {}", plan.rank)),
        all => {
            let names = list_text(all.iter().map(|it| it.0.as_str()), MAX_SEARCHED, "or");
            Some(format!("{names} skips it on rank {}", plan.rank))
        }
    }
}
