//! Why runs of two programs are not compared.

use grammar::DType;

use hir_plan::sync::TooManyComms;

/// Why runs of programs that follow each other are not compared. Its text is the part of a sentence behind a colon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotCompared {
    /// A tensor of both has a type of its own in each of them.
    #[error(
        "they share `{name}`, which has elements of {} in the one and of {} in the other: \
         give the tensors different names, or one type",
        dtypes[0].short_name(), dtypes[1].short_name()
    )]
    DifferentTypes {
        /// The name.
        name: String,
        /// The types in the first and the second program.
        dtypes: [DType; 2],
    },
    /// Two tensors are the same memory in one of the programs only.
    #[error("`{0}` and `{1}` are the same memory in one of them only: give one of them another name")]
    DifferentMemory(String, String),
    /// What runs next does not follow all that ran before.
    #[error("one of them ends on a stream that does not wait for the stream on which it begins")]
    EndsElsewhere,
    /// The accesses of views are too many.
    #[error("some views have too many pieces to compare")]
    ViewPieces,
    /// The runs together have too many streams, or deadlock.
    #[error("no order of all their instructions was found")]
    NoOrder,
    /// The kernels of communicators are too many.
    #[error("the order of communicators: {0}")]
    TooManyComms(#[from] TooManyComms),
}
