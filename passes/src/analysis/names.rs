//! Who names, binds and writes which storage, over a whole container.
//!
//! Invariant: every statement counts, wherever it stands; the order of statements is not looked at.

use grammar::{
    ir::{BlockId, OpStmt, Program, Stmt, StmtId, TensorId},
    mentions,
    ops::Mode,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::sharing::{Calls, Sharing};

/// What statements do to names.
#[derive(Default)]
pub(crate) struct Names {
    sharing: Sharing,
    /// Statements that mention a tensor, in the order of the text.
    mentions: FxHashMap<TensorId, Vec<(StmtId, Mode)>>,
    /// Statements that write a class.
    writers: FxHashMap<TensorId, FxHashSet<StmtId>>,
    /// Classes that the header's tensors belong to.
    ports: FxHashSet<TensorId>,
    /// Where each operator stands.
    pub(crate) place: FxHashMap<StmtId, usize>,
}

impl Names {
    /// Looks at all statements of a container.
    pub(crate) fn of(program: &Program, body: BlockId) -> Self {
        let mut this = Self { sharing: Sharing::of(program, body, Calls::HandOut), ..Self::default() };
        program.walk(body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            this.place.insert(stmt, this.place.len());
            mentions(program, it, &mut |tensor, mode| {
                this.mentions.entry(tensor).or_default().push((stmt, mode));
                if matches!(mode, Mode::Write | Mode::Transfer) {
                    this.writers.entry(this.sharing.class(tensor)).or_default().insert(stmt);
                }
            });
        });
        let ports = Program::tensors_of(&program.inputs).chain(Program::tensors_of(&program.outputs));
        this.ports = ports.map(|port| this.sharing.class(port)).collect();
        this
    }

    /// The class of a tensor's storage.
    pub(crate) fn class(&self, tensor: TensorId) -> TensorId {
        self.sharing.class(tensor)
    }

    /// Whether the header lists a name of this storage.
    pub(crate) fn is_port(&self, tensor: TensorId) -> bool {
        self.ports.contains(&self.class(tensor))
    }

    /// The statements that write a tensor's storage, under any name.
    pub(crate) fn writers(&self, tensor: TensorId) -> impl Iterator<Item = StmtId> {
        self.writers.get(&self.class(tensor)).into_iter().flatten().copied()
    }

    /// What mentions each tensor, in the order of the text.
    pub(crate) fn by_tensor(&self) -> impl Iterator<Item = (TensorId, &[(StmtId, Mode)])> {
        self.mentions.iter().map(|(tensor, mentions)| (*tensor, mentions.as_slice()))
    }

    /// What mentions a tensor, in the order of the text.
    pub(crate) fn of_tensor(&self, tensor: TensorId) -> &[(StmtId, Mode)] {
        self.mentions.get(&tensor).map_or(&[], Vec::as_slice)
    }
}

/// How many statements write each tensor, of those that count.
pub(crate) fn written(program: &Program, counts: &dyn Fn(&OpStmt) -> bool) -> FxHashMap<TensorId, usize> {
    let mut written = FxHashMap::default();
    program.body.iter().for_each(|body| {
        program.walk(*body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            mentions(program, it, &mut |tensor, mode| {
                if matches!(mode, Mode::Write | Mode::Transfer) && counts(it) {
                    *written.entry(tensor).or_default() += 1;
                }
            });
        });
    });
    written
}
