//! Which results may be views of operands.

/// Whether the first result may be a view of the first positional operand, if it has no storage of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aliasing {
    /// It is not: the operator computes new elements.
    Never,
    /// It becomes this view.
    View(OperandView),
    /// hir does not know; analyses assume that it may be a view.
    Unknown,
}

/// A view of the elements of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandView {
    /// All elements, in the same shape.
    Whole,
    /// The dimensions in the order of `permutation`.
    Permuted,
    /// New dimensions of extent 1, those of `flagged_dims`.
    Broadcast,
    /// Without the dimensions of `flagged_dims`.
    Squeezed,
    /// Dimensions of extent 1 are repeated.
    Expanded,
    /// Another shape with the same elements in row-major order.
    Reshaped,
    /// The ranges of `ranges=`.
    Sliced,
    /// The index `index=` of `axis=`.
    Selected,
    /// One stream's chunk.
    StreamChunk,
}
