//! The interface through which passes check semantic equivalence. The implementation runs programs, which
//! this crate cannot do.

use grammar::{diagnostic::Diagnostic, ir::Program};

/// Decides whether programs are equivalent.
pub trait SemanticOracle {
    /// Returns a reference for `program`. Every program that passes produce from it must be equivalent to the
    /// reference. The implementation may run the program, and does so once per pipeline.
    ///
    /// # Errors
    /// The program cannot run, or fails on its own.
    fn reference(&self, program: &Program) -> Result<Box<dyn Reference + '_>, Vec<Diagnostic>>;
}

/// The reference behavior of a program.
pub trait Reference {
    /// Checks that another program is equivalent under every schedule. If it is the program of one rank
    /// (`%options rank=`), the other ranks run `all_ranks`.
    ///
    /// # Errors
    /// Returns the first difference, with a location in `program`.
    fn check_equivalent(&self, program: &Program, all_ranks: &Program) -> Result<(), Diagnostic>;
}

/// The last program of a pipeline that all ranks run. If the first one is already that of one rank, it stands
/// in for those of the others.
#[derive(Debug, Default)]
pub(crate) struct AllRanks(Option<Program>);

impl AllRanks {
    /// Returns what the other ranks run after a pass that rewrites `before` for one rank.
    pub(crate) fn at(&mut self, before: &Program) -> &Program {
        if !before.options.contains_key("rank") {
            self.0 = None;
        }
        self.0.get_or_insert_with(|| before.clone())
    }
}
