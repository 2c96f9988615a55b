//! double-buffer: replaces a buffer that every iteration of a loop overwrites by several buffers that the
//! iterations use in turn.
//!
//! Before:
//! ```text
//! T3 = ALLOCATE(mem_type=global, zero_init=false)
//! FOR i5 from 0 to 8:
//!   SetCurrentStream(Stream ( i5 % 2 ))
//!   T3 = linear(T2, T1)
//!   T4 = HirAliasSelect( T0, axis = iS0{8}, index = i5 )
//!   T4 = Set( T3 )
//! ```
//! After:
//! ```text
//! T6 = ALLOCATE(mem_type=global, zero_init=false)
//! FOR i5 from 0 to 8:
//!   SetCurrentStream(Stream ( i5 % 2 ))
//!   T3 = HirAliasSelect( T6, axis = iS9{2}, index = ( i5 % 2 ) )
//!   T3 = linear(T2, T1)
//!   T4 = HirAliasSelect( T0, axis = iS0{8}, index = i5 )
//!   T4 = Set( T3 )
//! ```
//!
//! `count` is the number of buffers. The pass selects buffers that only the loop uses, that are allocated
//! before the loop in the same block or by a long ALLOCATE (`Op::AllocateOnce`) in its body, and that every
//! iteration writes as a whole before it reads them. It ignores names that the program deallocates, so
//! `allocate-and-deallocate` comes after this pass.
//!
//! Iteration i overwrites what iteration i - `count` has read. This is in order if both run on one stream:
//! either the loop sets no stream, or all statements that use the buffer run on `Stream ( i5 % n )` and
//! `count` is a multiple of n. In addition, the iteration that posts a communication of the buffer has to
//! wait for it on the same stream, so that the peer no longer uses the storage. The pass rejects every other
//! loop, and a buffer whose handle ShareMemHandles exchanges.

mod order;

use grammar::{
    AccessMode, BlockId, Diagnostic, Domains, For, InfixOp, Op, OpClass, OpStmt, Operand, Program, Span,
    Stmt, StmtId, TensorId, attr,
};
use hir_ir::{
    blocks::nested_blocks,
    build::{self, IrBuilder},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    analysis::{
        coalescing::CoalescingBrackets,
        memory_effects::{allocation_index, fully_written_tensors, upward_exposed_names},
    },
    pass::{Arguments, Change, OptionKind, OptionSpec, Pass, Remarks},
    transform::double_buffer::order::{check_in_order, mentions_buffer},
};

/// The pass.
pub(crate) const PASS: Pass = Pass::new("double-buffer", include_str!("double_buffer.rs"), run)
    .about("give each buffer of a loop several copies that the iterations use in turn")
    .with_options(&[
        OptionSpec::new("count", OptionKind::Count, Some("2")).about("number of copies of each buffer")
    ]);

fn run(program: &mut Program, arguments: &Arguments, remarks: &mut Remarks) -> Result<Change, Diagnostic> {
    let Some(body) = program.body else { return Ok(Change::Unchanged) };
    let count = arguments.count("count").and_then(|it| i64::try_from(it).ok()).unwrap_or(2);
    if count < 2 {
        let (message, label) =
            ("`double-buffer` needs at least two copies of each buffer", "expected 2 or more");
        return Err(arguments.error("count", message, label));
    }
    let mut fresh = IrBuilder::of(program);
    let mut changed = false;
    let mut rejected: Vec<(Span, String, &str)> = Vec::new();
    let mut uses = MentionIndex::of(program, body);
    for block in nested_blocks(program, body) {
        let mut at = 0;
        // The names that the statements so far allocate, with the positions of their allocations.
        let mut allocated: FxHashMap<TensorId, Vec<(usize, StmtId)>> = FxHashMap::default();
        while at < program.blocks[block].len() {
            let stmt = program.blocks[block][at];
            if let Some(buffer) = allocated_buffer(program, stmt, false) {
                allocated.entry(buffer.tensor).or_default().push((at, stmt));
            }
            if let Stmt::For(it) = program.stmts[stmt].clone() {
                let candidates = buffers_of_loop(program, &allocated, &it);
                let facts = LoopFacts::of(program, it.body);
                for buffer in candidates {
                    if let Err((stmt, why)) = facts.check_reusable(program, &uses, &buffer) {
                        let name = program.tensor_name(buffer.tensor);
                        let message = format!("`double-buffer` makes no copies of `{name}`: {why}");
                        let label = if stmt == buffer.allocate {
                            "allocated here"
                        } else {
                            "this statement prevents it"
                        };
                        rejected.push((program.stmt_span(stmt), message, label));
                        continue;
                    }
                    check_in_order(program, &it, &buffer, count)?;
                    at += replicate_buffer(program, &mut fresh, block, at, &it, &buffer, count);
                    // The ALLOCATE may define another tensor now, and the body has a new view.
                    uses.add(program, buffer.allocate);
                    program.block(it.body).iter().for_each(|stmt| uses.add(program, *stmt));
                    changed = true;
                }
            }
            at += 1;
        }
    }
    if !changed {
        if rejected.is_empty() {
            let message = "`double-buffer` changes nothing: no loop uses a buffer that the program allocates";
            remarks.no_effect(program.spans.header, message, "no such loop");
        }
        rejected.into_iter().for_each(|(span, message, label)| remarks.no_effect(span, message, label));
    }
    Ok(Change::from_flag(changed))
}

/// The statements that mention each name, and the access modes.
#[derive(Default)]
struct MentionIndex {
    by_tensor: FxHashMap<TensorId, Vec<(StmtId, AccessMode)>>,
    io_tensors: FxHashSet<TensorId>,
}

impl MentionIndex {
    fn of(program: &Program, body: BlockId) -> Self {
        let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        let mut this = Self { io_tensors: ports.collect(), ..Self::default() };
        program.stmts_in(body).for_each(|stmt| this.add(program, stmt));
        this
    }

    /// Adds the tensors that a statement mentions, except for entries that exist already.
    fn add(&mut self, program: &Program, stmt: StmtId) {
        let Stmt::Op(op) = &program.stmts[stmt] else { return };
        for (tensor, mode) in op.tensor_uses(program) {
            let known = self.by_tensor.entry(tensor).or_default();
            if !known.iter().rev().take_while(|it| it.0 == stmt).any(|it| it.1 == mode) {
                known.push((stmt, mode));
            }
        }
    }
}

/// A buffer that every iteration of a loop overwrites.
struct LoopBuffer {
    tensor: TensorId,
    allocate: StmtId,
    /// Whether the ALLOCATE is in the loop's body.
    inside: bool,
}

/// Returns the buffer that a statement allocates, in a loop's body (`inside`) or before the loop.
fn allocated_buffer(program: &Program, stmt: StmtId, inside: bool) -> Option<LoopBuffer> {
    let allocates = |op: &&OpStmt| op.op.def().class == OpClass::Allocate && op.get(attr::ALIAS).is_none();
    let op = program.op(stmt).filter(allocates)?;
    let renews = inside && op.op == Op::Allocate;
    let tensor = op.out_tensor().filter(|_| !renews && op.get(attr::ZERO_INIT) != Some(true))?;
    Some(LoopBuffer { tensor, allocate: stmt, inside })
}

/// Returns the buffers that a loop uses and that are allocated before it in its block, or by a long ALLOCATE in
/// its body. `allocated` holds the names that are allocated before the loop.
fn buffers_of_loop(
    program: &Program,
    allocated: &FxHashMap<TensorId, Vec<(usize, StmtId)>>,
    it: &For,
) -> Vec<LoopBuffer> {
    let mentioned: FxHashSet<TensorId> =
        program.ops_in(it.body).flat_map(|(_, op)| op.mentions(program)).collect();
    let mut before: Vec<(usize, StmtId)> =
        mentioned.iter().filter_map(|tensor| allocated.get(tensor)).flatten().copied().collect();
    before.sort_unstable();
    let before = before.into_iter().filter_map(|(_, stmt)| allocated_buffer(program, stmt, false));
    let inside = program.block(it.body).iter().filter_map(|stmt| allocated_buffer(program, *stmt, true));
    before.chain(inside).collect()
}

/// The statements of a loop, and the names that an iteration reads before it writes them as a whole.
struct LoopFacts {
    stmts: FxHashSet<StmtId>,
    stale: FxHashSet<TensorId>,
}

impl LoopFacts {
    fn of(program: &Program, body: BlockId) -> Self {
        Self {
            stmts: program.stmts_in(body).collect(),
            stale: upward_exposed_names(program, body, &|stmt| fully_written_tensors(program, stmt)),
        }
    }

    /// Checks that every iteration overwrites the buffer and that no other statement uses it.
    ///
    /// # Errors
    /// A statement that prevents it, and the reason.
    fn check_reusable(
        &self,
        program: &Program,
        uses: &MentionIndex,
        buffer: &LoopBuffer,
    ) -> Result<(), (StmtId, &'static str)> {
        let mut is_written = false;
        if uses.io_tensors.contains(&buffer.tensor) {
            return Err((buffer.allocate, "it is an input or an output of the program"));
        }
        for (stmt, mode) in uses.by_tensor.get(&buffer.tensor).into_iter().flatten() {
            let Stmt::Op(op) = &program.stmts[*stmt] else { continue };
            if *stmt == buffer.allocate {
                continue;
            }
            is_written |= *mode == AccessMode::Write;
            // Stop at the first such use: many loops may use the name.
            if op.op.def().class == OpClass::Deallocate {
                return Err((*stmt, "the program deallocates it"));
            }
            if *mode == AccessMode::Bind {
                return Err((*stmt, "its name is bound to other storage"));
            }
            if !self.stmts.contains(stmt) {
                return Err((*stmt, "a statement outside the loop uses it"));
            }
        }
        if !is_written {
            return Err((buffer.allocate, "no statement of the loop writes it"));
        }
        if self.stale.contains(&buffer.tensor) {
            return Err((
                buffer.allocate,
                "an iteration does not overwrite it as a whole before it reads it",
            ));
        }
        if program.has_plain_domains(buffer.tensor) {
            Ok(())
        } else {
            Err((buffer.allocate, "its axes are split or merged"))
        }
    }
}

/// Allocates the copies of the buffer and makes the buffer a view of one of them in each iteration. Returns
/// the number of statements that it inserts before the loop.
fn replicate_buffer(
    program: &mut Program,
    fresh: &mut IrBuilder,
    block: BlockId,
    at: usize,
    it: &For,
    buffer: &LoopBuffer,
    count: i64,
) -> usize {
    let extent = program.intern_int(count);
    let axis = fresh.axis(program, extent);
    let like = program.tensors[buffer.tensor].clone();
    let mut loops = vec![axis];
    for dim in like.loop_domain {
        loops.push(fresh.axis_like(program, dim));
    }
    let domains = Domains { logical: loops.clone(), ..Domains::default() };
    let storages = fresh.tensor_like(program, buffer.tensor, like.memory, loops, domains);
    let span = program.stmt_span(buffer.allocate);

    let index = build::symbol(program, it.index);
    let index = build::infix(program, InfixOp::Rem, index, extent);
    let view = build::select(buffer.tensor, storages, axis, index);
    let view = build::add(program, view, span);
    let mut stmts = program.blocks[it.body].clone();
    stmts.retain(|stmt| *stmt != buffer.allocate);
    let first = stmts.iter().position(|stmt| mentions_buffer(program, *stmt, buffer)).unwrap_or(0);
    program.blocks[it.body] = stmts;
    // No view may be bound inside a coalescing bracket.
    let bracket = CoalescingBrackets::default().around(program, it.body, first);
    program.blocks[it.body].insert(bracket.map_or(first, |(start, _)| start), view);

    if buffer.inside {
        let new = build::allocate(program, storages);
        let new = build::add(program, new, span);
        let place = allocation_index(program, block, at);
        program.blocks[block].insert(place, new);
        return 1;
    }
    let size = program.stmts[buffer.allocate].op().and_then(|it| it.get(attr::SIZE));
    let size = size.map(|size| build::infix(program, InfixOp::Mul, extent, size));
    if let Stmt::Op(allocate) = &mut program.stmts[buffer.allocate] {
        allocate.outs = vec![Operand::Tensor(storages)];
        if allocate.op == Op::AllocateOnce {
            allocate.set(attr::BUFFER, storages);
        }
        if let Some(size) = size {
            allocate.set(attr::SIZE, size);
        }
    }
    0
}
