//! The interface through which passes check semantic equivalence. The implementation runs programs, which
//! this package cannot do.

use grammar::{Diagnostic, Program};

use crate::pass::Pass;

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

/// The last program of a pipeline that all ranks run, once a pass may have rewritten it for one rank. If the first
/// one is already that of one rank, it stands in for those of the others.
#[derive(Debug, Default)]
pub(crate) struct AllRanks(Option<Program>);

impl AllRanks {
    /// Returns what the other ranks run after `pass`, which rewrites `before`; `None` if they run the result, too.
    pub(crate) fn at(&mut self, before: &Program, pass: &Pass) -> Option<&Program> {
        let is_of_one = before.is_of_one_rank();
        if !is_of_one {
            self.0 = None;
        }
        (is_of_one || pass.for_one_rank).then(|| &*self.0.get_or_insert_with(|| before.clone()))
    }
}
