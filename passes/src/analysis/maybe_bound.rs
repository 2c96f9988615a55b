//! Finds statements whose result may have storage already, on some path to them.
//!
//! `bindings` finds the statements whose result has storage on every path. A statement that only this analysis finds, such
//! as one behind a branch that allocates its result, writes into existing storage or gets storage of its own, depending on
//! the path.
//!
//! Invariant: before a statement that this analysis does not find, its result has no storage, on any rank and in any
//! iteration.

use grammar::{
    for_each_tensor_use,
    ir::{BlockId, Program, Stmt, StmtId, TensorId},
    loop_variant_tensors,
    ops::{AccessMode, OpClass},
};
use rustc_hash::FxHashSet;

/// Returns the statements of the program's container that define a name which may be bound before them.
pub fn maybe_bound(program: &Program) -> FxHashSet<StmtId> {
    let bound = Program::tensors_of(&program.inputs).collect();
    let mut walk = Walk { program, bound, found: Some(FxHashSet::default()) };
    program.body.iter().for_each(|body| walk.block(*body));
    walk.found.unwrap_or_default()
}

struct Walk<'p> {
    program: &'p Program,
    /// The names that may be bound at the current point.
    bound: FxHashSet<TensorId>,
    /// The statements found so far; `None` if only `bound` is wanted.
    found: Option<FxHashSet<StmtId>>,
}

impl Walk<'_> {
    fn block(&mut self, block: BlockId) {
        let program = self.program;
        for stmt in program.block(block) {
            match &program.stmts[*stmt] {
                Stmt::Op(it) => {
                    let drops = it.op.def().class == OpClass::Deallocate;
                    for_each_tensor_use(program, it, &mut |tensor, mode| match mode {
                        _ if drops => _ = self.bound.remove(&tensor),
                        AccessMode::Write | AccessMode::Bind => {
                            if !self.bound.insert(tensor) {
                                self.found.iter_mut().for_each(|found| _ = found.insert(*stmt));
                            }
                        }
                        AccessMode::Read | AccessMode::Transfer | AccessMode::NoAccess => (),
                    });
                }
                Stmt::Let(..) => (),
                Stmt::For(for_loop) => {
                    // Before an iteration, the names are bound that were bound before the loop or behind another iteration.
                    let before = self.bound.clone();
                    if self.found.is_some() {
                        let variant = if for_loop.axis.is_some() {
                            loop_variant_tensors(program, for_loop)
                        } else {
                            Vec::new()
                        };
                        self.bound.extend(bound_by(program, for_loop.body));
                        variant.iter().for_each(|tensor| _ = self.bound.remove(tensor));
                    }
                    self.block(for_loop.body);
                    self.bound.extend(before);
                }
                Stmt::If(branch) => {
                    let before = self.bound.clone();
                    self.block(branch.then_block);
                    let then = std::mem::replace(&mut self.bound, before);
                    branch.else_block.iter().for_each(|other| self.block(*other));
                    self.bound.extend(then);
                }
            }
        }
    }
}

/// Returns the names that may be bound behind a block, and were not before it.
fn bound_by(program: &Program, block: BlockId) -> FxHashSet<TensorId> {
    let mut walk = Walk { program, bound: FxHashSet::default(), found: None };
    walk.block(block);
    walk.bound
}
