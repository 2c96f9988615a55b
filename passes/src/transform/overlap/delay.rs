//! Moves what reads the result of a communication behind the next matrix product.
//!
//! Before (a gradient is reduced, and the weight updated, before the product of the next layer):
//! ```text
//! T4 = reduction( T3[ideviceIdx.x0{2}, …] )
//! T5 = sub( T1, T4 )
//! T8 = matmul( T6, T7 )
//! ```
//! After: the reduction runs beside the product.
//! ```text
//! T4 = reduction( T3[ideviceIdx.x0{2}, …] )
//! T8 = matmul( T6, T7 )
//! T5 = sub( T1, T4 )
//! ```
//! Statements move behind the first product that does not depend on them, and no further, so that at most the results that one layer
//! reduces or gathers are alive for longer. Everything that depends on them moves with them, up to the next product.

use grammar::{CommunicationType, OpStmt, Program, Stmt, StmtId, TypeRule};
use hir_ir::streams::block_sets_stream;
use rustc_hash::FxHashSet;

use crate::{
    analysis::memory_effects::{MemoryEffects, StmtEffects},
    pass::{Change, Remarks},
    transform::chunk::{self, CommCandidate},
};

/// Returns the all-reduces whose results no later product needs, such as gradients, if there is one of them in front of a product. Whole, they
/// run beside the products behind them; chunks would run beside parts of the products that compute them.
pub(super) fn unneeded_by_products(program: &Program) -> FxHashSet<StmtId> {
    let (mut found, mut is_in_front, mut needed) = (FxHashSet::default(), false, None);
    let Some(body) = program.body.filter(|body| !block_sets_stream(program, *body)) else { return found };
    let storage = MemoryEffects::of(program);
    for stmt in program.block(body).iter().rev() {
        let effects = storage.effects(program, *stmt);
        let is_needed = needed.as_ref().is_some_and(|it: &StmtEffects| it.is_ordered_with(&effects));
        if is_needed || is_product(program, *stmt) {
            needed.get_or_insert_with(StmtEffects::default).add(&effects);
        } else if collective(program, *stmt).is_some_and(|it| it.kind == CommunicationType::Allreduce) {
            is_in_front |= needed.is_some();
            found.insert(*stmt);
        }
    }
    if is_in_front { found } else { FxHashSet::default() }
}

/// Moves the readers of communications in the program's body.
pub(super) fn readers(program: &mut Program, remarks: &mut Remarks) -> Change {
    let Some(body) = program.body.filter(|body| !block_sets_stream(program, *body)) else {
        return Change::Unchanged;
    };
    if !program.block(body).iter().any(|stmt| communicates(program, *stmt)) {
        return Change::Unchanged;
    }
    let storage = MemoryEffects::of(program);
    let (running, comms) = (StmtEffects::default(), Vec::new());
    let mut order = Order { program, remarks, running, comms, delayed: Vec::new(), stmts: Vec::new() };
    for stmt in program.block(body) {
        order.add(Entry { stmt: *stmt, effects: storage.effects(program, *stmt) });
    }
    let Order { mut stmts, delayed, .. } = order;
    stmts.extend(delayed.into_iter().map(|it| it.stmt));
    let change = Change::from_flag(stmts != program.blocks[body]);
    program.blocks[body] = stmts;
    change
}

/// A statement and its effects.
struct Entry {
    stmt: StmtId,
    effects: StmtEffects,
}

/// The new order of the statements so far.
struct Order<'p> {
    program: &'p Program,
    remarks: &'p mut Remarks,
    /// The effects of the communications behind which there is no product yet.
    running: StmtEffects,
    /// These communications.
    comms: Vec<Entry>,
    /// The statements that depend on these communications or on each other.
    delayed: Vec<Entry>,
    stmts: Vec<StmtId>,
}

impl Order<'_> {
    /// Adds the next statement of the old order.
    fn add(&mut self, next: Entry) {
        let (stmt, is_product) = (next.stmt, is_product(self.program, next.stmt));
        let mut needed = StmtEffects::default();
        if is_product {
            needed = self.emit_operands(&next.effects);
        } else if self.depends(&next.effects) {
            self.delayed.push(next);
            return;
        }
        self.emit(next);
        if is_product {
            self.running = StmtEffects::default();
            for comm in std::mem::take(&mut self.comms) {
                // The others end before the product.
                if !comm.effects.is_ordered_with(&needed) {
                    self.remark(&comm, stmt);
                }
            }
            for entry in std::mem::take(&mut self.delayed) {
                if self.depends(&entry.effects) {
                    self.delayed.push(entry);
                } else {
                    self.emit(entry);
                }
            }
        }
    }

    fn depends(&self, effects: &StmtEffects) -> bool {
        self.running.is_ordered_with(effects)
            || self.delayed.iter().any(|it| it.effects.is_ordered_with(effects))
    }

    /// Emits the delayed statements that have to be before one with these effects. Returns the effects of all of them.
    fn emit_operands(&mut self, effects: &StmtEffects) -> StmtEffects {
        let mut needed = StmtEffects::default();
        needed.add(effects);
        let mut emitted = Vec::new();
        for at in (0..self.delayed.len()).rev() {
            if self.delayed[at].effects.is_ordered_with(&needed) {
                let entry = self.delayed.remove(at);
                needed.add(&entry.effects);
                emitted.push(entry.stmt);
            }
        }
        self.stmts.extend(emitted.into_iter().rev());
        needed
    }

    fn emit(&mut self, entry: Entry) {
        if communicates(self.program, entry.stmt) {
            self.running.add(&entry.effects);
            self.stmts.push(entry.stmt);
            self.comms.push(entry);
        } else {
            self.stmts.push(entry.stmt);
        }
    }

    /// Says what moves behind a product, so that the communication runs beside it.
    fn remark(&mut self, comm: &Entry, product: StmtId) {
        let program = self.program;
        let mut behind = StmtEffects::default();
        behind.add(&comm.effects);
        let mut moved = Vec::new();
        for entry in &self.delayed {
            if entry.effects.is_ordered_with(&behind) {
                behind.add(&entry.effects);
                moved.push(entry.stmt);
            }
        }
        let Some(exchange) = collective(program, comm.stmt) else { return };
        let moves = match &moved[..] {
            [] => return,
            [only] => format!("{} moves", result(program, *only)),
            [first, .., last] => {
                let (first, last) = (result(program, *first), result(program, *last));
                format!("{} statements, {first} to {last}, move", moved.len())
            }
        };
        let message = format!(
            "the {} of `{}` runs beside {}, behind which {moves}",
            exchange.kind.facts().phrase,
            program.tensor_name(exchange.subject),
            product_name(program, product),
        );
        self.remarks.passed(program.stmt_span(comm.stmt), message, "overlaps with a product");
    }
}

/// Returns the first result of a statement in words.
fn result(program: &Program, stmt: StmtId) -> String {
    let named = |it: &OpStmt| it.out_tensor().map(|out| format!("`{}`", program.tensor_name(out)));
    match &program.stmts[stmt] {
        Stmt::Op(it) => named(it).unwrap_or_else(|| format!("`{}`", it.op.name())),
        Stmt::Let(..) => "a scalar".to_owned(),
        Stmt::For(_) => "a loop".to_owned(),
        Stmt::If(_) => "a branch".to_owned(),
    }
}

fn product_name(program: &Program, stmt: StmtId) -> String {
    match &program.stmts[stmt] {
        Stmt::Op(_) => format!("the product {}", result(program, stmt)),
        Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => format!("{} of products", result(program, stmt)),
    }
}

/// Returns whether a statement is a collective over the devices of one mesh.
fn communicates(program: &Program, stmt: StmtId) -> bool {
    collective(program, stmt).is_some()
}

/// Returns the collective over the devices of one mesh that a statement is.
fn collective(program: &Program, stmt: StmtId) -> Option<CommCandidate> {
    // Each device exchanges with each other one.
    let is_symmetric = |it: &CommCandidate| !it.kind.is_rooted();
    chunk::comm_candidates(program, stmt).into_iter().next().filter(is_symmetric)
}

/// Returns whether a statement takes the time of a matrix product or an attention.
fn is_product(program: &Program, stmt: StmtId) -> bool {
    program.ops_at(stmt).any(|(_, it)| {
        it.rule().is_matrix_product() || matches!(it.op.def().type_rule, TypeRule::Sdpa | TypeRule::SdpaBwd)
    })
}
