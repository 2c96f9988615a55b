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
    /// Checks that another program is equivalent under every schedule.
    ///
    /// # Errors
    /// Returns the first difference, with a location in `program`.
    fn check_equivalent(&self, program: &Program) -> Result<(), Diagnostic>;
}
