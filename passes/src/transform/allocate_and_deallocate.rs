//! allocate-and-deallocate: gives results storage before they are written, and drops names after their last use.
//!
//! Before (T0 comes in, T1 goes out):
//! ```text
//! T2 = linear(T0, T3)
//! Communication 4 (type=Allreduce, input=T2, output=T1)
//! Wait(Communication 4)
//! ```
//! After:
//! ```text
//! T2 = ALLOCATE(mem_type=global, zero_init=false)
//! T2 = linear(T0, T3)
//! T1 = ALLOCATE(mem_type=global, zero_init=false)
//! Communication 4 (type=Allreduce, input=T2, output=T1)
//! Wait(Communication 4)
//! Deallocate {
//!   T2
//! }
//! ```
//!
//! `allocate=true`: a name that statements write and none binds gets a short ALLOCATE, right before the first statement
//! that has to do with it in the innermost block that holds all of them, outside of loops whose iterations may look at
//! what an earlier one left, and before the fork (GetCurrentStream) of a loop or branch that chooses streams. A copy to a name without storage makes the name a view of the operand; it stays one,
//! unless it has another side of a branch, or stands in a loop that does not drop the name, where the second iteration
//! would write into what the first one named.
//!
//! `deallocate=true`: a name that is neither input nor output is dropped behind the last statement, in the innermost
//! block that holds all of them, that has to do with it, with a view of it, or waits for a communication of either: views
//! before what they are views of, never inside a coalescing bracket, and behind a loop whose iterations share it or its
//! handle. A name
//! that only some paths to that place bind is not dropped, nor is one that the program drops itself.

mod allocate;
mod deallocate;

use grammar::{
    for_each_tensor_use,
    ir::{BlockId, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::{AccessMode, OpClass},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        alias_analysis::can_forward_operand, memory_effects::upward_exposed_names, stmt_path::StmtPaths,
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
};
use allocate::insert_allocations;
use deallocate::insert_deallocations;

/// The pass.
pub(crate) const PASS: Pass = Pass {
    name: "allocate-and-deallocate",
    description: "give results storage before they are written, and drop names after their last use",
    options: &[
        OptionSpec {
            name: "allocate",
            description: "whether results without storage get an ALLOCATE",
            kind: OptionKind::Flag,
            default: Some("true"),
        },
        OptionSpec {
            name: "deallocate",
            description: "whether names get a Deallocate",
            kind: OptionKind::Flag,
            default: Some("true"),
        },
    ],
    run,
};

fn run(
    program: &mut Program,
    arguments: &Arguments,
    _: &mut Remarks,
) -> Result<Change, grammar::diagnostic::Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let mut changed = false;
    if arguments.flag("allocate") {
        changed |= insert_allocations(program, body);
    }
    if arguments.flag("deallocate") {
        changed |= insert_deallocations(program, body);
    }
    Ok(Change::from_flag(changed))
}

/// The depth up from `depth` that is outside of every loop whose iterations may see what another left in `tensor`.
fn depth_outside_carrying_loops(
    program: &Program,
    places: &StmtPaths,
    tensor: TensorId,
    stmt: StmtId,
    mut depth: usize,
    binds: &dyn Fn(StmtId) -> Vec<TensorId>,
) -> usize {
    while let Some(at) = places.enclosing_loop_depth(stmt, depth)
        && let Some(body) = places.block_at(stmt, at)
        && upward_exposed_names(program, body, binds).contains(&tensor)
    {
        depth = at.saturating_sub(1);
    }
    depth
}

/// Statements to put into a block, each before the statement at an index.
type Insertions = FxHashMap<BlockId, Vec<(usize, StmtId)>>;

fn insert(program: &mut Program, insertions: Insertions) -> bool {
    let changed = !insertions.is_empty();
    for (block, mut new) in insertions {
        // Stable: what goes to one place stays in order.
        new.sort_by_key(|(at, _)| *at);
        let old = std::mem::take(&mut program.blocks[block]);
        let mut new = new.into_iter().peekable();
        let mut stmts = Vec::with_capacity(old.len() + new.len());
        for (at, stmt) in old.into_iter().enumerate() {
            while let Some((_, stmt)) = new.next_if(|(place, _)| *place <= at) {
                stmts.push(stmt);
            }
            stmts.push(stmt);
        }
        stmts.extend(new.map(|(_, stmt)| stmt));
        program.blocks[block] = stmts;
    }
    changed
}

/// The coalescing brackets of a block, as indices of their ends.
#[derive(Default)]
struct CoalescingBrackets(FxHashMap<BlockId, Vec<(usize, usize)>>);

impl CoalescingBrackets {
    /// The bracket around a statement.
    fn around(&mut self, program: &Program, block: BlockId, at: usize) -> Option<(usize, usize)> {
        let all = self.0.entry(block).or_insert_with(|| brackets(program, block));
        let next = all.partition_point(|(_, end)| *end < at);
        all.get(next).copied().filter(|(start, _)| *start <= at)
    }
}

fn brackets(program: &Program, block: BlockId) -> Vec<(usize, usize)> {
    let (mut open, mut found) = (None, Vec::new());
    for (at, stmt) in program.block(block).iter().enumerate() {
        if let Stmt::Op(it) = &program.stmts[*stmt]
            && it.op.def().class == OpClass::Coalescing
        {
            match open.take() {
                None => open = Some(at),
                Some(start) => found.push((start, at)),
            }
        }
    }
    found
}

/// How a container uses names.
struct TensorUses {
    io_tensors: FxHashSet<TensorId>,
    outputs: FxHashSet<TensorId>,
    /// Statements that write a name.
    writes: FxHashMap<TensorId, Vec<StmtId>>,
    /// Names that statements bind.
    bound: FxHashSet<TensorId>,
    /// Names that statements drop.
    dropped: FxHashSet<TensorId>,
}

impl TensorUses {
    fn of(program: &Program, places: &StmtPaths) -> Self {
        let outputs: FxHashSet<TensorId> = Program::tensors_of(&program.outputs).collect();
        let mut ports = outputs.clone();
        ports.extend(Program::tensors_of(&program.inputs));
        let mut uses = Self {
            io_tensors: ports,
            outputs,
            writes: FxHashMap::default(),
            bound: Program::tensors_of(&program.inputs).collect(),
            dropped: FxHashSet::default(),
        };
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let dropped = it.op.def().class == OpClass::Deallocate;
            for_each_tensor_use(program, it, &mut |tensor, mode| {
                match mode {
                    AccessMode::Write => uses.writes.entry(tensor).or_default().push(*stmt),
                    AccessMode::Bind => {
                        uses.bound.insert(tensor);
                    }
                    AccessMode::Read | AccessMode::Transfer | AccessMode::NoAccess => (),
                }
                if dropped {
                    uses.dropped.insert(tensor);
                }
            });
        }
        uses
    }
}

/// Whether a result without storage becomes a view of the operand.
fn may_become_view(it: &OpStmt) -> bool {
    let row = it.op.def();
    row.class == OpClass::Compute && !it.args.is_empty() && can_forward_operand(row.type_rule)
}
