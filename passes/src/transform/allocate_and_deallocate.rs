//! allocate-and-deallocate: allocates results before their first write and deallocates tensors after their
//! last use.
//!
//! Before (T0 is an input, T1 an output):
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
//! `allocate=true` inserts a short ALLOCATE (`Op::Allocate`) for each tensor name that statements write and
//! no statement binds. The ALLOCATE stands directly before the first statement that mentions the name, in the
//! innermost block that contains all statements that mention it, but outside every loop whose iterations may
//! read what an earlier iteration left in the tensor, or exchange its memory handle, and before the fork (GetCurrentStream) of a loop or
//! branch that sets streams.
//!
//! A copy to a name without storage makes the name a view of the operand. The name stays a view and gets no
//! ALLOCATE, unless another side of a branch writes it too.
//!
//! `deallocate=true` inserts a Deallocate for each name that is neither an input nor an output. The
//! Deallocate stands after the last statement that mentions the name or a view of it, or that waits for a
//! communication of either, in the innermost block that contains all these statements. If several
//! streams use the storage, it stands behind the statements that make the stream of the ALLOCATE wait for them. Views
//! are deallocated before the tensors that they alias. A Deallocate never stands inside a coalescing bracket, and it stands
//! after every loop whose iterations share the tensor or its memory handle. The pass does not deallocate a
//! name that only some paths to that point bind, nor a name that the program deallocates itself, nor symmetric memory: no stream
//! orders its free, for which the host would have to wait.

mod allocate;
mod deallocate;
mod storage_users;
mod stream_order;

use grammar::{AccessMode, BlockId, MemoryType, OpClass, OpStmt, Program, Stmt, StmtId, TensorId, attr};
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
pub(crate) const PASS: Pass =
    Pass::new("allocate-and-deallocate", include_str!("allocate_and_deallocate.rs"), run)
        .for_conditions()
        .about("allocate results before their first write and deallocate tensors after their last use")
        .with_options(&[
            OptionSpec::new("allocate", OptionKind::Flag, Some("true"))
                .about("insert an ALLOCATE for results that have no storage"),
            OptionSpec::new("deallocate", OptionKind::Flag, Some("true"))
                .about("insert a Deallocate after the last use of each tensor"),
        ]);

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

/// The names that each loop carries: an iteration may read what an earlier iteration left in them.
struct CarriedNames<'p> {
    program: &'p Program,
    places: &'p StmtPaths,
    /// Returns the names that a statement binds or writes without reading their previous contents.
    binds: &'p dyn Fn(StmtId) -> Vec<TensorId>,
    /// The names of the loops that have been asked for, by body.
    carried: FxHashMap<BlockId, FxHashSet<TensorId>>,
}

impl<'p> CarriedNames<'p> {
    fn new(program: &'p Program, places: &'p StmtPaths, binds: &'p dyn Fn(StmtId) -> Vec<TensorId>) -> Self {
        Self { program, places, binds, carried: FxHashMap::default() }
    }

    /// Returns the largest depth, at most `depth`, that is outside every loop that carries the name.
    fn depth_outside_loops(&mut self, tensor: TensorId, stmt: StmtId, mut depth: usize) -> usize {
        while let Some(at) = self.places.enclosing_loop_depth(stmt, depth)
            && let Some(body) = self.places.block_at(stmt, at)
            && self.carries(body, tensor)
        {
            depth = at.saturating_sub(1);
        }
        depth
    }

    fn carries(&mut self, body: BlockId, tensor: TensorId) -> bool {
        let names = || upward_exposed_names(self.program, body, self.binds);
        self.carried.entry(body).or_insert_with(names).contains(&tensor)
    }
}

/// Returns the largest depth, at most `depth`, that is outside every loop.
fn depth_outside_loops(places: &StmtPaths, stmt: StmtId, mut depth: usize) -> usize {
    while let Some(at) = places.enclosing_loop_depth(stmt, depth) {
        depth = at.saturating_sub(1);
    }
    depth
}

/// Statements to insert into each block, each with the index of the statement that it is inserted before.
type Insertions = FxHashMap<BlockId, Vec<(usize, StmtId)>>;

fn insert(program: &mut Program, insertions: Insertions) -> bool {
    let changed = !insertions.is_empty();
    for (block, mut new) in insertions {
        // The sort is stable: statements for one position keep their order.
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

/// How a container uses each tensor name.
struct TensorUses {
    io_tensors: FxHashSet<TensorId>,
    outputs: FxHashSet<TensorId>,
    /// The statements that write each name.
    writes: FxHashMap<TensorId, Vec<StmtId>>,
    /// The names that statements bind, and the inputs.
    bound: FxHashSet<TensorId>,
    /// The names that statements deallocate.
    dropped: FxHashSet<TensorId>,
    /// The names of symmetric memory.
    symmetric: FxHashSet<TensorId>,
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
            symmetric: FxHashSet::default(),
        };
        for stmt in &places.order {
            let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
            let dropped = it.op.def().class == OpClass::Deallocate;
            let is_symmetric = it.get(attr::MEM_TYPE) == Some(MemoryType::Symmetric);
            uses.symmetric.extend(it.out_tensor().filter(|_| is_symmetric));
            for (tensor, mode) in it.tensor_uses(program) {
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
            }
        }
        uses
    }
}

/// Returns whether the operator makes its result a view of the operand if the result has no storage.
fn may_become_view(it: &OpStmt) -> bool {
    !it.args.is_empty() && can_forward_operand(it)
}
