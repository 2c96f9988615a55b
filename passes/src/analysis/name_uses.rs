//! Records which statements mention, bind and write which names, over a whole container.
//!
//! Invariant: every statement counts, wherever it is nested. The order of statements is ignored.

use grammar::{AccessMode, BlockId, OpStmt, Program, StmtId, TensorId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    alias_analysis::{AliasClasses, OpaqueCallModel},
    bindings::analyze_bindings,
};

/// Uses of names by statements.
#[derive(Default)]
pub struct NameUses {
    sharing: AliasClasses,
    /// Statements that mention a tensor, in textual order.
    mentions: FxHashMap<TensorId, Vec<(StmtId, AccessMode)>>,
    /// Statements that write an alias class.
    writers: FxHashMap<TensorId, FxHashSet<StmtId>>,
    /// Alias classes of the tensors in the header.
    io_classes: FxHashSet<TensorId>,
    /// Position of each operator in textual order.
    pub position: FxHashMap<StmtId, usize>,
}

impl NameUses {
    /// Analyzes all statements of a container.
    pub fn of(program: &Program, body: BlockId) -> Self {
        let mut this = Self {
            sharing: AliasClasses::of(program, body, &analyze_bindings(program), OpaqueCallModel::MayAlias),
            ..Self::default()
        };
        for (stmt, it) in program.ops_in(body) {
            this.position.insert(stmt, this.position.len());
            for (tensor, mode) in it.tensor_uses(program) {
                this.mentions.entry(tensor).or_default().push((stmt, mode));
                if matches!(mode, AccessMode::Write | AccessMode::Transfer) {
                    this.writers.entry(this.sharing.alias_class(tensor)).or_default().insert(stmt);
                }
            }
        }
        let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        this.io_classes = ports.map(|port| this.sharing.alias_class(port)).collect();
        this
    }

    /// Returns the alias class of a tensor's storage.
    pub fn alias_class(&self, tensor: TensorId) -> TensorId {
        self.sharing.alias_class(tensor)
    }

    /// Returns true if the header lists a name of this storage.
    pub fn is_program_io(&self, tensor: TensorId) -> bool {
        self.io_classes.contains(&self.alias_class(tensor))
    }

    /// Returns the statements that write a tensor's storage under any name.
    pub fn writers(&self, tensor: TensorId) -> impl Iterator<Item = StmtId> {
        self.writers.get(&self.alias_class(tensor)).into_iter().flatten().copied()
    }

    /// Returns each tensor with the statements that mention it, in textual order.
    pub fn uses_by_tensor(&self) -> impl Iterator<Item = (TensorId, &[(StmtId, AccessMode)])> {
        self.mentions.iter().map(|(tensor, mentions)| (*tensor, mentions.as_slice()))
    }

    /// Returns the statements that mention a tensor, in textual order.
    pub fn uses_of(&self, tensor: TensorId) -> &[(StmtId, AccessMode)] {
        self.mentions.get(&tensor).map_or(&[], Vec::as_slice)
    }
}

/// Counts the statements that write each tensor, among those for which `counts` returns true.
pub fn write_counts(program: &Program, counts: &dyn Fn(&OpStmt) -> bool) -> FxHashMap<TensorId, usize> {
    let mut written = FxHashMap::default();
    for (tensor, mode) in program.ops().filter(|it| counts(it.1)).flat_map(|it| it.1.tensor_uses(program)) {
        if matches!(mode, AccessMode::Write | AccessMode::Transfer) {
            *written.entry(tensor).or_default() += 1;
        }
    }
    written
}
