//! Finds names whose elements depend on whether a copy is a view.
//!
//! After `T1 = Set( T0 )`, `T0 = T0 + T2`, the name `T1` has the new elements if it is a view of `T0`, and the old ones if the
//! Set is a copy. Which of the two it is depends on shardings. A pass that changes shardings must leave such names alone.

use grammar::{AccessMode, BlockId, Program, Stmt, StmtId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel},
    bindings::analyze_bindings,
};

/// A use of a name of shared storage.
struct Use {
    tensor: TensorId,
    stmt: StmtId,
    /// Position of the statement in program order.
    position: usize,
    /// The loops around the statement, outermost first.
    loops: Vec<StmtId>,
}

/// The uses of one alias class.
#[derive(Default)]
struct ClassUses {
    reads: Vec<Use>,
    /// Statements that write a name. The first one of a name that is no input only defines it.
    writes: Vec<Use>,
}

impl Use {
    /// Returns whether this use runs behind all executions of `other`.
    fn follows(&self, other: &Self) -> bool {
        self.position > other.position && other.loops.first().is_none_or(|it| self.loops.first() != Some(it))
    }
}

impl ClassUses {
    /// Returns the last statement that writes a name again. The first one of a name that is no input only defines it.
    fn last_rewrite(&self, inputs: &FxHashSet<TensorId>) -> Option<&Use> {
        let mut defined = inputs.clone();
        self.writes.iter().filter(|it| !defined.insert(it.tensor)).last()
    }
}

/// Returns all names of each storage of which a statement writes one name while another statement, which may follow, reads
/// another name. The value is the statement that writes.
pub fn stale_views(program: &Program, body: BlockId) -> FxHashMap<TensorId, StmtId> {
    let sharing = AliasClasses::of(program, body, &analyze_bindings(program), OpaqueCallModel::MayAlias);
    let inputs: FxHashSet<TensorId> = Program::tensors_of(&program.inputs).collect();
    let mut classes: FxHashMap<TensorId, ClassUses> = FxHashMap::default();
    let mut position = 0;
    add_uses(program, body, &sharing, &mut Vec::new(), &mut position, &mut classes);
    // An output is read behind all statements.
    for output in Program::tensors_of(&program.outputs) {
        if let (Some(class), Some(last)) =
            (classes.get_mut(&sharing.alias_class(output)), program.block(body).last())
        {
            class.reads.push(Use { tensor: output, stmt: *last, position: position + 1, loops: Vec::new() });
        }
    }
    let mut found: FxHashMap<TensorId, StmtId> = FxHashMap::default();
    for class in classes.values() {
        let mut defined = inputs.clone();
        let rewrites = class.writes.iter().filter(|it| !defined.insert(it.tensor));
        let stale = rewrites.filter(|write| class.reads.iter().any(|read| is_stale(class, write, read)));
        let Some(write) = stale.min_by_key(|it| it.position) else { continue };
        // A name whose uses all follow the last such write has the same elements in either case.
        let last = class.last_rewrite(&inputs);
        let names = class.reads.iter().chain(&class.writes);
        let early = names.filter(|it| last.is_none_or(|last| !it.follows(last)));
        found.extend(early.map(|it| (it.tensor, write.stmt)));
    }
    found
}

/// Returns whether a read may see what `write` writes into another name of the same storage: no statement between the two
/// defines the name that is read.
fn is_stale(class: &ClassUses, write: &Use, read: &Use) -> bool {
    if write.tensor == read.tensor {
        return false;
    }
    let shared = write.loops.iter().zip(&read.loops).take_while(|(a, b)| a == b).count();
    let redefines = |from: usize, to: usize| {
        class.writes.iter().any(|it| {
            it.tensor == read.tensor
                && (from..to).contains(&it.position)
                && read.loops.starts_with(&it.loops)
                && it.loops.len() >= shared
        })
    };
    if read.position > write.position {
        !redefines(write.position + 1, read.position)
    } else {
        // The read follows in the next iteration of a common loop.
        shared > 0 && !redefines(0, read.position) && !redefines(write.position + 1, usize::MAX)
    }
}

fn add_uses(
    program: &Program,
    block: BlockId,
    sharing: &AliasClasses,
    loops: &mut Vec<StmtId>,
    position: &mut usize,
    classes: &mut FxHashMap<TensorId, ClassUses>,
) {
    for stmt in program.block(block) {
        *position += 1;
        match &program.stmts[*stmt] {
            Stmt::Op(it) => {
                for (tensor, mode) in it.tensor_uses(program) {
                    let class = classes.entry(sharing.alias_class(tensor)).or_default();
                    let it = Use { tensor, stmt: *stmt, position: *position, loops: loops.clone() };
                    match mode {
                        AccessMode::Read => class.reads.push(it),
                        AccessMode::Write | AccessMode::Transfer | AccessMode::Bind => class.writes.push(it),
                        AccessMode::NoAccess => (),
                    }
                }
            }
            Stmt::Let(..) => (),
            Stmt::For(it) => {
                loops.push(*stmt);
                add_uses(program, it.body, sharing, loops, position, classes);
                loops.pop();
            }
            Stmt::If(_it) => {
                for block in program.inner_blocks(*stmt) {
                    add_uses(program, block, sharing, loops, position, classes);
                }
            }
        }
    }
}
