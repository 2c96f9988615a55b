//! Shrinks a program that fails while it still fails in the same way.
//!
//! `edits` and `shrink` propose smaller programs, `symptoms` says how a program fails, `order` what it does after what,
//! and `Reducer` keeps a proposal that fails as the program before it did. A proposal is written down and read back before it is tested, so what was
//! tested is what is printed, lines included.
//!
//! Invariant: the result depends on the program, the test and the number of tests allowed, and on nothing else; every
//! proposal that is kept has fewer statements, values or devices, or a shorter text.

mod command_runner;
mod edits;
pub mod failure_test;
mod order;
mod shrink;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, ops::Range};

pub use command_runner::CommandRunner;

use grammar::{
    diagnostic::{Diagnostic, has_errors},
    ir::Program,
    print,
    span::LineIndex,
};

/// A program and its canonical text.
pub struct Candidate {
    /// The text.
    pub text: String,
    /// What it says.
    pub program: Program,
    /// Its lines.
    pub lines: LineIndex,
}

impl Candidate {
    /// Reads a text of one container. The candidate's own text is the canonical one.
    ///
    /// # Errors
    /// A text that does not read, or with more than one container.
    pub fn read(text: String) -> Result<Self, Vec<Diagnostic>> {
        let (mut programs, diagnostics) = grammar::read(&text);
        let program = match programs.pop() {
            Some(program) if programs.is_empty() && !has_errors(&diagnostics) => program,
            Some(_) | None => return Err(diagnostics),
        };
        let canonical = print(&program);
        if canonical == text {
            let lines = LineIndex::new(&text);
            return Ok(Self { text, program, lines });
        }
        // Places are those of the text that is kept; a text that never comes to rest is a fault of the printer.
        let (mut programs, diagnostics) = grammar::read(&canonical);
        let lines = LineIndex::new(&canonical);
        let program = programs.pop().ok_or(diagnostics)?;
        Ok(Self { text: canonical, program, lines })
    }

    /// Number of statements, those inside of others and of HostUnits included.
    pub fn statements(&self) -> usize {
        edits::blocks(&self.program).iter().map(|block| self.program.block(*block).len()).sum()
    }
}

/// What came of a reduction.
pub struct ShrinkResult {
    /// The smallest program found.
    pub candidate: Candidate,
    /// How many programs were tested.
    pub tests: usize,
    /// Whether there was more to test than allowed.
    pub hit_limit: bool,
}

/// What a smaller program has to be.
pub trait InterestingnessTest {
    /// Whether an edit of a program is worth a test; the two share the ids of statements.
    fn is_worth_testing(&self, before: &Candidate, after: &Program) -> bool;
    /// Whether a program fails as the first one did.
    fn is_interesting(&self, candidate: &Candidate) -> bool;
}

/// Shrinks a program that fails, with so many tests at most; `progress` hears of every step that helped.
pub fn reduce(
    start: Candidate,
    most_tests: usize,
    goal: &dyn InterestingnessTest,
    progress: &mut dyn FnMut(&Candidate, usize),
) -> ShrinkResult {
    let tried = HashSet::from([start.text.clone()]);
    let mut reducer = Reducer { best: start, goal, tried, tests: 0, most_tests };
    // Smaller numbers come first: they make every further test cheaper.
    let steps: &[fn(&mut Reducer<'_>) -> bool] = &[
        shrink::shrink_numbers,
        edits::remove_statements,
        edits::remove_tensors,
        edits::remove_communications,
        edits::simplify_branches,
        edits::shorten_loops,
        edits::shrink_header,
        edits::canonicalize,
    ];
    let mut helped = true;
    while helped && !reducer.is_budget_spent() {
        helped = false;
        for step in steps {
            if step(&mut reducer) {
                helped = true;
                progress(&reducer.best, reducer.tests);
            }
        }
    }
    let stopped = reducer.is_budget_spent();
    ShrinkResult { candidate: reducer.best, tests: reducer.tests, hit_limit: stopped }
}

/// The smallest program so far.
struct Reducer<'t> {
    best: Candidate,
    goal: &'t dyn InterestingnessTest,
    tried: HashSet<String>,
    tests: usize,
    most_tests: usize,
}

impl Reducer<'_> {
    fn is_budget_spent(&self) -> bool {
        self.tests >= self.most_tests
    }

    /// Edits the program, and keeps it where it still fails.
    fn attempt(&mut self, edit: &dyn Fn(&mut Program)) -> bool {
        if self.is_budget_spent() {
            return false;
        }
        let mut program = self.best.program.clone();
        edit(&mut program);
        edits::drop_unreferenced(&mut program);
        let Ok(candidate) = Candidate::read(print(&program)) else { return false };
        if !self.tried.insert(candidate.text.clone()) || !self.goal.is_worth_testing(&self.best, &program) {
            return false;
        }
        self.tests += 1;
        let kept = self.goal.is_interesting(&candidate);
        if kept {
            self.best = candidate;
        }
        kept
    }

    /// Delta debugging (Zeller and Hildebrandt 2002, without its step to subsets): removes runs of items, long runs
    /// before short ones, and from the end, since what comes later uses what comes before.
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
