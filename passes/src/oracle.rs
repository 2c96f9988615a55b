//! What a program means, as a question to whoever can run it: this crate knows nothing of plans and runs.

use grammar::{diagnostic::Diagnostic, ir::Program};

/// Finds out what programs mean.
pub trait SemanticOracle {
    /// What a program means: all that passes make of it has to mean the same. Whoever answers may run the program, and
    /// does so once for a whole pipeline.
    ///
    /// # Errors
    /// A program that cannot be run, or that goes wrong by itself.
    fn reference(&self, program: &Program) -> Result<Box<dyn Reference + '_>, Vec<Diagnostic>>;
}

/// What a program means.
pub trait Reference {
    /// Whether another program means the same, under every schedule.
    ///
    /// # Errors
    /// Where it does not, at a place in that program.
    fn check_equivalent(&self, program: &Program) -> Result<(), Diagnostic>;
}
