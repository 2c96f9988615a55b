//! The ids of a program's elements.

use crate::arena::ids;

ids! {
    /// A tensor of the container or of a HostUnit.
    TensorId = "tensor";
    /// A scalar expression.
    ExprId = "expr";
    /// A named scalar: `i84`, `rank`, `streamIdx`.
    SymbolId = "symbol";
    /// A stream.
    StreamId = "stream";
    /// An iteration domain.
    AxisId = "axis";
    /// A statement.
    StmtId = "stmt";
    /// An ordered list of statements.
    BlockId = "block";
    /// A HostUnit.
    UnitId = "unit";
}
