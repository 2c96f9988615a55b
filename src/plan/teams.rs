//! The teams of a world. Every member of a team has the list of its members, so the ranks share one list.

use std::{cell::RefCell, sync::Arc};

use grammar::ir::OpStmt;
use rustc_hash::{FxHashMap, FxHashSet};

/// The teams of all ranks' programs, each held once.
pub(super) struct Teams {
    world: Arc<[usize]>,
    /// By statement: which ranks take part in it is the same on all ranks.
    of: RefCell<FxHashMap<*const OpStmt, Arc<[usize]>>>,
    all: RefCell<FxHashSet<Arc<[usize]>>>,
}

impl Teams {
    /// The teams of a world of so many ranks.
    pub(super) fn new(world: usize) -> Self {
        let world: Arc<[usize]> = (0..world).collect();
        let all = RefCell::new(FxHashSet::from_iter([Arc::clone(&world)]));
        Self { world, of: RefCell::default(), all }
    }

    /// All ranks.
    pub(super) fn world(&self) -> &Arc<[usize]> {
        &self.world
    }

    /// The team of a statement, which `make` lists where no rank has done so yet. Equal teams are one list.
    pub(super) fn team(&self, stmt: &OpStmt, make: impl FnOnce() -> Vec<usize>) -> Arc<[usize]> {
        if let Some(known) = self.of.borrow().get(&std::ptr::from_ref(stmt)) {
            return Arc::clone(known);
        }
        let team: Arc<[usize]> = make().into();
        let mut all = self.all.borrow_mut();
        let team = all.get(&team).map(Arc::clone).unwrap_or(team);
        all.insert(Arc::clone(&team));
        self.of.borrow_mut().insert(std::ptr::from_ref(stmt), Arc::clone(&team));
        team
    }
}
