//! How parts of results are computed from parts of operands. Passes that split statements ask for it.

use super::DimMap;
use crate::ir::{OpStmt, Program};

/// Which operands need the dimension along which a statement computes a part of its first result. It reads the whole of the
/// others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PartOperands {
    /// Any of them: an operand without the dimension is broadcast along it.
    Any,
    /// At least one.
    AtLeastOne,
    /// All of them.
    All,
    /// The statement does not compute parts.
    Impossible,
}

/// A dimension of the first result that a statement is to lose, together with the dimensions of operands that are parallel
/// to it.
pub struct LostDim<'c> {
    /// The program.
    pub program: &'c Program,
    /// The statement.
    pub stmt: &'c OpStmt,
    /// The maps of its operands.
    pub maps: &'c [Vec<DimMap>],
    /// The dimension.
    pub dim: usize,
}

/// What the axes of the first result state besides extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxesState {
    /// Nothing.
    Extents,
    /// Which dimensions of the operand are reduced.
    Reductions,
    /// By their numbers, the order in which the operand has them.
    Order,
}
