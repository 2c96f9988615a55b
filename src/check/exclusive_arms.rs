//! Which ranks execute the arms of branches: no rank executes both of one branch, or two whose predicates hold on different ranks.

use grammar::{BlockId, ExprId, Program, Scalars, Stmt, StmtId};
use rustc_hash::FxHashMap;

use super::editable_text::EditableText;

/// The values of a predicate, by rank; `None` where it depends on more than the rank.
type Values = Vec<Option<bool>>;

impl EditableText {
    /// Returns whether no rank executes both of two statements, as far as the branches around them determine it.
    pub fn exclude(&self, one: StmtId, other: StmtId) -> bool {
        let arms = |stmt: StmtId| -> Vec<(BlockId, StmtId)> {
            let is_branch = |it: &(BlockId, StmtId)| matches!(self.program.stmts[it.1], Stmt::If(_));
            self.places().around(stmt).filter(is_branch).collect()
        };
        let (ones, others) = (arms(one), arms(other));
        if ones.is_empty() || others.is_empty() {
            return false;
        }
        // A predicate may have another value in each iteration of a loop; but a branch executes one of its arms.
        let is_other_arm = |it: &(BlockId, StmtId)| others.iter().any(|at| at.1 == it.1 && at.0 != it.0);
        if ones.iter().any(is_other_arm) {
            return true;
        }
        let values: Vec<_> =
            ones.iter().chain(&others).filter_map(|(block, branch)| self.arm(*block, *branch)).collect();
        let ranks = values.first().map_or(0, |it| it.1.len());
        ranks > 0
            && (0..ranks)
                .all(|rank| values.iter().any(|(is_then, it)| it[rank].is_some_and(|it| it != *is_then)))
    }

    /// Returns whether each rank executes one of some statements, as the branches around them determine it. None of them may be in a loop.
    pub fn reach_all_ranks(&self, stmts: &[StmtId]) -> bool {
        let arms = |stmt: &StmtId| -> Option<Vec<(bool, &Values)>> {
            self.places().around(*stmt).map(|(block, branch)| self.arm(block, branch)).collect()
        };
        let reached: Vec<_> = stmts.iter().filter_map(arms).collect();
        let executes = |rank: usize| {
            reached.iter().any(|it| it.iter().all(|(is_then, values)| values[rank] == Some(*is_then)))
        };
        let ranks = reached.iter().flatten().map(|it| it.1.len()).next();
        ranks.is_some_and(|ranks| (0..ranks).all(executes))
    }

    /// Returns whether a block is the first arm of a branch, and the values of the branch's predicate.
    fn arm(&self, block: BlockId, branch: StmtId) -> Option<(bool, &Values)> {
        let Stmt::If(it) = &self.program.stmts[branch] else { return None };
        let predicates = self.predicates.get_or_init(|| predicates(&self.program));
        predicates.get(&it.cond).map(|values| (it.then_block == block, values))
    }
}

/// Returns the values of all predicates on the ranks that a program names.
fn predicates(program: &Program) -> FxHashMap<ExprId, Values> {
    let mut all: FxHashMap<ExprId, Values> = FxHashMap::default();
    for (_, stmt) in program.stmts.iter() {
        if let Stmt::If(it) = stmt {
            all.entry(it.cond).or_default();
        }
    }
    for rank in 0..hir_plan::smallest_world(program) {
        let scalars = Scalars::new(program, rank);
        for (cond, values) in &mut all {
            values.push(scalars.truth(*cond).ok());
        }
    }
    all
}
