//! The dataflow solver: follows the statements of a container forward or backward, joins the paths of branches, and repeats loops
//! until nothing changes.
//!
//! This is the usual iteration to a fixpoint (Kildall, "A unified approach to global program optimization", POPL 1973), on structured
//! programs: the only places where paths meet are the end of a branch and the beginning of a loop's body. All loops converge together,
//! in rounds over the whole program: to compute an inner loop again in each round of the outer one would take time that doubles with
//! the depth.

use grammar::{BlockId, Program, Stmt, StmtId};
use rustc_hash::FxHashMap;

use crate::blocks::has_iterations;

/// The direction in which an analysis follows a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first statement on.
    Forward,
    /// From the last statement on.
    Backward,
}

/// What an analysis knows at a point of a program, and how statements change it. "Before" and "behind" are meant in its direction.
///
/// `join` has to return a state that is true on both paths, and repeated joins have to end: a state may change only a limited number of
/// times.
pub trait Analysis {
    /// The direction.
    const DIRECTION: Direction;
    /// What is known at a point.
    type State: Clone + PartialEq;

    /// Changes the state before a statement to that behind it. The statement is an operator or a scalar definition; or a loop, where
    /// each iteration begins and ends: its index has no value or another one from there on.
    fn step(&self, stmt: StmtId, state: &mut Self::State);

    /// Returns the state behind a loop that certainly has iterations, of that at the end of an iteration, and of that before another
    /// one, where the state before the loop is joined to it.
    fn leave(&self, _stmt: StmtId, end: Self::State, _again: Self::State) -> Self::State {
        end
    }

    /// Returns what holds where two paths meet: behind a branch, or at the beginning of each iteration of a loop. `before` is the state
    /// before the branch; `None` for a loop.
    fn join(
        &self,
        stmt: StmtId,
        before: Option<&Self::State>,
        one: Self::State,
        other: &Self::State,
    ) -> Self::State;
}

/// A point at which an analysis shows its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Before a statement, in the direction of the analysis.
    Before(StmtId),
    /// Behind all statements of a block.
    Behind(BlockId),
}

/// Solves an analysis from the state `entry` before a block, and shows the state at each point of the block and of all blocks in it,
/// once.
pub fn solve<A: Analysis>(
    program: &Program,
    block: BlockId,
    entry: &A::State,
    analysis: &A,
    show: Show<'_, A::State>,
) {
    let mut solver =
        Solver { program, analysis, loops: FxHashMap::default(), has_converged: true, show: None };
    loop {
        solver.has_converged = true;
        solver.block(block, entry.clone());
        if solver.has_converged {
            break;
        }
    }
    solver.show = Some(show);
    solver.block(block, entry.clone());
}

/// What sees the state at each point.
type Show<'s, S> = &'s mut dyn FnMut(Point, &S);

struct Solver<'s, A: Analysis> {
    program: &'s Program,
    analysis: &'s A,
    /// The states at the beginning of the bodies of loops, as far as they are computed.
    loops: FxHashMap<BlockId, A::State>,
    /// Whether this round has left the state of each loop unchanged.
    has_converged: bool,
    /// Set in the last round.
    show: Option<Show<'s, A::State>>,
}

impl<A: Analysis> Solver<'_, A> {
    fn show(&mut self, point: Point, state: &A::State) {
        if let Some(show) = &mut self.show {
            show(point, state);
        }
    }

    /// Follows a block, and returns the state behind it.
    fn block(&mut self, block: BlockId, mut state: A::State) -> A::State {
        let stmts = self.program.block(block);
        for at in 0..stmts.len() {
            let stmt = match A::DIRECTION {
                Direction::Forward => stmts[at],
                Direction::Backward => stmts[stmts.len() - 1 - at],
            };
            self.show(Point::Before(stmt), &state);
            state = self.behind(stmt, state);
        }
        self.show(Point::Behind(block), &state);
        state
    }

    fn behind(&mut self, stmt: StmtId, mut state: A::State) -> A::State {
        match &self.program.stmts[stmt] {
            Stmt::Op(_) | Stmt::Let(..) => {
                self.analysis.step(stmt, &mut state);
                state
            }
            Stmt::If(it) => {
                let then = self.block(it.then_block, state.clone());
                match it.else_block {
                    Some(other) => {
                        let other = self.block(other, state.clone());
                        self.analysis.join(stmt, Some(&state), then, &other)
                    }
                    None => self.analysis.join(stmt, Some(&state), then, &state),
                }
            }
            Stmt::For(it) => {
                self.analysis.step(stmt, &mut state);
                let begin = self.merge(stmt, it.body, state);
                let mut end = self.block(it.body, begin);
                self.analysis.step(stmt, &mut end);
                let again = self.merge(stmt, it.body, end.clone());
                // Behind a loop that may have no iteration holds what holds before another one.
                if has_iterations(self.program, it) { self.analysis.leave(stmt, end, again) } else { again }
            }
        }
    }

    /// Joins a state to that at the beginning of a loop's body, and returns this one.
    fn merge(&mut self, stmt: StmtId, body: BlockId, state: A::State) -> A::State {
        let joined = match self.loops.get(&body) {
            Some(known) => self.analysis.join(stmt, None, known.clone(), &state),
            None => state,
        };
        if self.loops.get(&body) != Some(&joined) {
            self.has_converged = false;
            self.loops.insert(body, joined.clone());
        }
        joined
    }
}
