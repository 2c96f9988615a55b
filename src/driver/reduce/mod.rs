//! Shrinks a failing program to a smaller one that fails in the same way.
//!
//! `edits` and `shrink` propose smaller programs, `failure_test` determines how a program fails, `order`
//! checks that a proposal preserves the order of operations, and `Reducer` keeps a proposal if it fails like
//! the original. Each proposal is printed and read back before the test, so the tested program is exactly the
//! printed one, line numbers included.
//!
//! Invariant: the result depends only on the program, the test and the test budget. Every accepted proposal
//! has fewer statements, values or devices, or a shorter text.

mod command_runner;
mod edits;
mod failure_oracle;
pub mod failure_test;
mod order;
mod shrink;
mod signatures;
#[cfg(test)]
mod tests;

use std::{cell::OnceCell, collections::HashSet, ops::Range};

pub use command_runner::CommandRunner;

use grammar::{Diagnostic, LineIndex, Program, has_errors, print};

use hir_ir::search::{self, Budget};
use hir_plan::World;

/// A program and its canonical text.
pub struct Candidate {
    /// The canonical text.
    pub text: String,
    /// The program that the text describes.
    pub program: Program,
    /// Line index of the text.
    pub lines: LineIndex,
    /// The plans of the program, once a test needs them, or why it has none.
    plans: OnceCell<Result<World, signatures::NoSignature>>,
}

impl Candidate {
    /// Reads a text with exactly one container and stores its canonical form.
    ///
    /// # Errors
    /// The text does not parse, or contains more than one container.
    pub fn read(text: String) -> Result<Self, Vec<Diagnostic>> {
        let (mut programs, diagnostics) = grammar::read(&text);
        let program = match programs.pop() {
            Some(program) if programs.is_empty() && !has_errors(&diagnostics) => program,
            Some(_) | None => return Err(diagnostics),
        };
        let canonical = print(&program);
        if canonical == text {
            let lines = LineIndex::new(&text);
            return Ok(Self { text, program, lines, plans: OnceCell::new() });
        }
        // Locations must refer to the stored text. If the canonical text does not print as itself, the
        // printer has a bug.
        let (mut programs, diagnostics) = grammar::read(&canonical);
        let lines = LineIndex::new(&canonical);
        let program = programs.pop().ok_or(diagnostics)?;
        Ok(Self { text: canonical, program, lines, plans: OnceCell::new() })
    }

    /// Returns the number of statements, including nested ones and those of HostUnits.
    pub fn statements(&self) -> usize {
        edits::blocks(&self.program).iter().map(|block| self.program.block(*block).len()).sum()
    }
}

/// The units of the budget that a test takes. A program that is proposed but not tested takes one: most of its time is that of printing
/// and reading.
const UNITS_PER_TEST: usize = 4;

/// The largest number of items that are edited one by one from the start.
const MAX_SINGLE: usize = 64;

/// The result of shrinking a program.
pub struct ShrinkResult {
    /// The smallest program found.
    pub candidate: Candidate,
    /// The number of programs tested.
    pub tests: usize,
    /// True if the test budget ran out.
    pub hit_limit: bool,
}

/// The interestingness test of a reduction.
pub trait InterestingnessTest {
    /// Returns true if an edited program is worth testing. Both programs share statement ids.
    fn is_worth_testing(&self, before: &Candidate, after: &Program) -> bool;
    /// Returns true if a program fails like the original one.
    fn is_interesting(&self, candidate: &Candidate) -> bool;
}

/// Shrinks a failing program with at most `most_tests` tests. Calls `progress` after every step that made the
/// program smaller.
pub fn reduce(
    start: Candidate,
    most_tests: usize,
    goal: &dyn InterestingnessTest,
    progress: &mut dyn FnMut(&Candidate, usize),
) -> ShrinkResult {
    let tried = HashSet::from([start.text.clone()]);
    let budget = Budget::new(most_tests.saturating_mul(UNITS_PER_TEST));
    let mut reducer = Reducer { best: start, goal, tried, tests: 0, budget };
    // Numbers shrink first, because that makes all later tests cheaper.
    let steps: &[fn(&mut Reducer<'_>) -> bool] = &[
        shrink::shrink_numbers,
        edits::remove_many_outputs,
        edits::remove_statements,
        edits::remove_tensors,
        edits::remove_communications,
        edits::simplify_branches,
        edits::shorten_loops,
        edits::shrink_header,
        edits::canonicalize,
    ];
    search::while_it_helps(usize::MAX, || {
        let mut helped = false;
        for step in steps {
            if step(&mut reducer) {
                helped = true;
                progress(&reducer.best, reducer.tests);
            }
        }
        helped && !reducer.budget.is_spent()
    });
    let hit_limit = reducer.budget.is_spent();
    ShrinkResult { candidate: reducer.best, tests: reducer.tests, hit_limit }
}

/// The state of a reduction.
struct Reducer<'t> {
    best: Candidate,
    goal: &'t dyn InterestingnessTest,
    tried: HashSet<String>,
    tests: usize,
    budget: Budget,
}

impl Reducer<'_> {
    /// Applies an edit, and keeps the result if it is still interesting.
    fn attempt(&mut self, edit: &dyn Fn(&mut Program)) -> bool {
        if !self.budget.admits(1) {
            return false;
        }
        let mut program = self.best.program.clone();
        edit(&mut program);
        edits::drop_unreferenced(&mut program);
        let text = print(&program);
        if self.tried.contains(&text) {
            return false;
        }
        let Ok(candidate) = Candidate::read(text) else { return false };
        if !self.tried.insert(candidate.text.clone()) || !self.goal.is_worth_testing(&self.best, &program) {
            return false;
        }
        self.budget.spend(UNITS_PER_TEST - 1);
        self.tests += 1;
        let kept = self.goal.is_interesting(&candidate);
        if kept {
            self.best = candidate;
        }
        kept
    }

    /// Applies an edit to groups of items: if there are many, to all of them, then to halves, quarters and so on of those for
    /// which it was not kept; the smallest groups have at least `smallest` items. Returns whether a result was kept.
    fn attempt_groups<T: Clone>(
        &mut self,
        mut items: Vec<T>,
        smallest: usize,
        edit: &dyn Fn(&mut Program, &[T]),
    ) -> bool {
        let (mut helped, mut size) = (false, if items.len() > MAX_SINGLE { items.len() } else { 1 });
        while size >= smallest && !items.is_empty() {
            let mut left = Vec::new();
            for group in items.chunks(size) {
                let is_kept = self.attempt(&|program| edit(program, group));
                helped |= is_kept;
                left.extend_from_slice(if is_kept { &[] } else { group });
            }
            (items, size) = (left, size / 2);
        }
        helped
    }

    /// Removes items by delta debugging (Zeller and Hildebrandt 2002, without the reduction to subsets).
    /// Tries long runs before short ones, and later items before earlier ones, because later items use
    /// earlier ones.
    fn drop_chunks(
        &mut self,
        count: &dyn Fn(&Program) -> usize,
        remove: &dyn Fn(&mut Program, Range<usize>),
    ) -> bool {
        let mut helped = false;
        let mut run = count(&self.best.program);
        while run > 0 {
            let mut end = count(&self.best.program);
            while end > 0 {
                let start = end.saturating_sub(run);
                helped |= self.attempt(&|program| remove(program, start..end));
                end = start;
            }
            run /= 2;
        }
        helped
    }
}
