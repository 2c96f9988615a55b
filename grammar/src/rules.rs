//! The type rules of operators: how an operator's results follow from its operands.
//!
//! `check` verifies a statement, `infer` gives a result that the text does not declare its type, and `dims` maps dimensions
//! of operands to dimensions of results.

pub(crate) mod check;
pub(crate) mod dims;
pub(crate) mod infer;
