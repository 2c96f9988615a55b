//! The teams of a world. Ranks share one list for each team, because every member needs the list of all
//! members.

use std::{cell::RefCell, sync::Arc};

use grammar::OpStmt;
use rustc_hash::{FxHashMap, FxHashSet};

/// The teams in the programs of all ranks, each stored once.
pub(super) struct Teams {
    world: Arc<[usize]>,
    /// By statement: its team. It is the same on all ranks.
    of: RefCell<FxHashMap<*const OpStmt, Arc<[usize]>>>,
    all: RefCell<FxHashSet<Arc<[usize]>>>,
}

impl Teams {
    /// Returns the teams of a world of `world` ranks.
    pub(super) fn new(world: usize) -> Self {
        let world: Arc<[usize]> = (0..world).collect();
        let all = RefCell::new(FxHashSet::from_iter([Arc::clone(&world)]));
        Self { world, of: RefCell::default(), all }
    }

    /// Returns the team of all ranks.
    pub(super) fn world(&self) -> &Arc<[usize]> {
        &self.world
    }

    /// Returns the team of a statement. `make` computes it if no rank has done so yet. Equal teams share one
    /// list.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn team<E>(
        &self,
        stmt: &OpStmt,
        make: impl FnOnce() -> Result<Vec<usize>, E>,
    ) -> Result<Arc<[usize]>, E> {
        if let Some(known) = self.of.borrow().get(&std::ptr::from_ref(stmt)) {
            return Ok(Arc::clone(known));
        }
        let team: Arc<[usize]> = make()?.into();
        let mut all = self.all.borrow_mut();
        let team = all.get(&team).map(Arc::clone).unwrap_or(team);
        all.insert(Arc::clone(&team));
        self.of.borrow_mut().insert(std::ptr::from_ref(stmt), Arc::clone(&team));
        Ok(team)
    }
}

/// Returns the position of a rank in a team. Most teams are sorted, and then each member is found in logarithmic
/// time.
pub(super) fn position_in(team: &[usize], rank: usize) -> Option<usize> {
    let at = team.partition_point(|it| *it < rank);
    match team.get(at) {
        Some(it) if *it == rank => Some(at),
        Some(_) | None => team.iter().position(|it| *it == rank),
    }
}
