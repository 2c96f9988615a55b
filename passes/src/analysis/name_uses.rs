//! Who names, binds and writes which storage, over a whole container.
//!
//! Invariant: every statement counts, wherever it stands; the order of statements is not looked at.

use grammar::{
    for_each_tensor_use,
    ir::{BlockId, OpStmt, Program, Stmt, StmtId, TensorId},
    ops::AccessMode,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::alias_analysis::{AliasClasses, OpaqueCallModel};

/// What statements do to names.
#[derive(Default)]
pub(crate) struct NameUses {
    sharing: AliasClasses,
    /// Statements that mention a tensor, in the order of the text.
    mentions: FxHashMap<TensorId, Vec<(StmtId, AccessMode)>>,
    /// Statements that write a class.
    writers: FxHashMap<TensorId, FxHashSet<StmtId>>,
    /// Classes that the header's tensors belong to.
    io_classes: FxHashSet<TensorId>,
    /// Where each operator stands.
    pub(crate) position: FxHashMap<StmtId, usize>,
}

impl NameUses {
    /// Looks at all statements of a container.
    pub(crate) fn of(program: &Program, body: BlockId) -> Self {
        let mut this =
            Self { sharing: AliasClasses::of(program, body, OpaqueCallModel::MayAlias), ..Self::default() };
        program.walk(body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            this.position.insert(stmt, this.position.len());
            for_each_tensor_use(program, it, &mut |tensor, mode| {
                this.mentions.entry(tensor).or_default().push((stmt, mode));
                if matches!(mode, AccessMode::Write | AccessMode::Transfer) {
                    this.writers.entry(this.sharing.alias_class(tensor)).or_default().insert(stmt);
                }
            });
        });
        let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        this.io_classes = ports.map(|port| this.sharing.alias_class(port)).collect();
        this
    }

    /// The class of a tensor's storage.
    pub(crate) fn alias_class(&self, tensor: TensorId) -> TensorId {
        self.sharing.alias_class(tensor)
    }

    /// Whether the header lists a name of this storage.
    pub(crate) fn is_program_io(&self, tensor: TensorId) -> bool {
        self.io_classes.contains(&self.alias_class(tensor))
    }

    /// The statements that write a tensor's storage, under any name.
    pub(crate) fn writers(&self, tensor: TensorId) -> impl Iterator<Item = StmtId> {
        self.writers.get(&self.alias_class(tensor)).into_iter().flatten().copied()
    }

    /// What mentions each tensor, in the order of the text.
    pub(crate) fn uses_by_tensor(&self) -> impl Iterator<Item = (TensorId, &[(StmtId, AccessMode)])> {
        self.mentions.iter().map(|(tensor, mentions)| (*tensor, mentions.as_slice()))
    }

    /// What mentions a tensor, in the order of the text.
    pub(crate) fn uses_of(&self, tensor: TensorId) -> &[(StmtId, AccessMode)] {
        self.mentions.get(&tensor).map_or(&[], Vec::as_slice)
    }
}

/// How many statements write each tensor, of those that count.
pub(crate) fn write_counts(
    program: &Program,
    counts: &dyn Fn(&OpStmt) -> bool,
) -> FxHashMap<TensorId, usize> {
    let mut written = FxHashMap::default();
    program.body.iter().for_each(|body| {
        program.walk(*body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            for_each_tensor_use(program, it, &mut |tensor, mode| {
                if matches!(mode, AccessMode::Write | AccessMode::Transfer) && counts(it) {
                    *written.entry(tensor).or_default() += 1;
                }
            });
        });
    });
    written
}
