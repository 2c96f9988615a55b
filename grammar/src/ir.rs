//! The arena IR: one container with its values and statements, all indexed by id.
//!
//! A statement is an operator of the table in `ops`, a scalar definition, a loop or a branch. Positions in
//! the text are stored in `Spans`, separate from the arenas, so that programs compare equal regardless of
//! their formatting.
//!
//! Invariant: tensors are unique by printed text; scalar expressions are unique by structure.

mod axis;
mod function;
mod mesh;
mod place;
mod scalar;
mod spans;
mod stmt;
mod tensor;

use std::collections::HashMap;

use indexmap::IndexMap;
use rustc_hash::FxHashMap;

use crate::{arena::Arena, span::Span, words::P2pProtocol};

pub use self::{
    axis::{Axis, AxisKind, AxisSuffix, ParallelType},
    function::Function,
    mesh::{DeviceDim, Mesh},
    place::Place,
    scalar::{Expr, predefined_meaning},
    spans::{Part, Spans},
    stmt::{For, If, OpStmt, Stmt},
    tensor::{Domains, Memory, Tensor, Transform},
};
pub(crate) use self::{
    scalar::is_integer_name,
    spans::{PartRole, PartSpan, SectionPart},
};
pub use crate::{
    attr::{Attr, Operand},
    ids::{AxisId, BlockId, ExprId, StmtId, StreamId, SymbolId, TensorId, UnitId},
    scalar_op::{InfixOp, PrefixOp},
};
pub use hir_syntax::Comment;

/// One `%HostIrContainer`.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Tensors, including those of HostUnits.
    pub tensors: Arena<TensorId, Tensor>,
    /// Iteration domains of tensors, loops and `axis =` attributes.
    pub axes: Arena<AxisId, Axis>,
    /// Scalar expressions, hash-consed by `intern_expr`.
    pub exprs: Arena<ExprId, Expr>,
    /// Named scalars.
    pub symbols: Arena<SymbolId, String>,
    /// Streams.
    pub streams: Arena<StreamId, Stream>,
    /// Statements, including those listed inside ShareMemHandles.
    pub stmts: Arena<StmtId, Stmt>,
    /// Blocks.
    pub blocks: Arena<BlockId, Vec<StmtId>>,
    /// HostUnits in order of appearance.
    pub units: Arena<UnitId, HostUnit>,
    /// Inputs: the first list of the header.
    pub inputs: Vec<Operand>,
    /// Outputs: the second list of the header.
    pub outputs: Vec<Operand>,
    /// The container's statements.
    pub body: Option<BlockId>,
    /// Pure scalar definitions (`Index definitions:`), in topological order after name resolution.
    pub definitions: IndexMap<SymbolId, ExprId>,
    /// The `%options`: properties of the whole program, such as `numberOfStreams`.
    pub options: IndexMap<String, ExprId>,
    /// Positions in the source text.
    pub spans: Spans,
    expr_ids: FxHashMap<Expr, ExprId>,
    symbol_ids: HashMap<(Option<UnitId>, String), SymbolId>,
}

/// Programs are equal if all their parts are, regardless of their positions in a text. Equal programs print the same; those that
/// print the same may have other parts that no statement mentions.
impl PartialEq for Program {
    fn eq(&self, other: &Self) -> bool {
        // The lookup tables follow from the arenas.
        let Self {
            tensors,
            axes,
            exprs,
            symbols,
            streams,
            stmts,
            blocks,
            units,
            inputs,
            outputs,
            body,
            definitions,
            options,
            spans: _,
            expr_ids: _,
            symbol_ids: _,
        } = self;
        *blocks == other.blocks
            && *stmts == other.stmts
            && *tensors == other.tensors
            && *axes == other.axes
            && *exprs == other.exprs
            && *symbols == other.symbols
            && *streams == other.streams
            && *units == other.units
            && (inputs, outputs, body) == (&other.inputs, &other.outputs, &other.body)
            && definitions.iter().eq(&other.definitions)
            && options.iter().eq(&other.options)
    }
}

/// A stream.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// A stream captured by GetCurrentStream, printed as `s0`, `s1` … in order of appearance.
    Named(u32),
    /// The stream with this index.
    Index(ExprId),
}

/// A HostUnit: a fusion with its own namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct HostUnit {
    /// The number in `HostUnit5`.
    pub number: u32,
    /// Inputs, in the unit's namespace.
    pub inputs: Vec<Operand>,
    /// Outputs, in the unit's namespace.
    pub outputs: Vec<Operand>,
    /// Statements; `None` if the text elides them.
    pub body: Option<BlockId>,
}

/// The option that selects the protocol of CUDA transfers.
pub const P2P_PROTOCOL: &str = "p2p_protocol";

impl Program {
    /// Returns whether this is the program of one rank, which `%options rank=` states.
    pub fn is_of_one_rank(&self) -> bool {
        self.options.contains_key("rank")
    }

    /// Returns the rank whose program this is, if the program is that of one rank and the rank is a constant.
    pub fn own_rank(&self) -> Option<i64> {
        self.constant(*self.options.get("rank")?)
    }

    /// Returns the protocol that `%options p2p_protocol=` selects, if the option is set.
    pub fn p2p_protocol(&self) -> Option<P2pProtocol> {
        match &self.exprs[*self.options.get(P2P_PROTOCOL)?] {
            Expr::Symbol(word) => P2pProtocol::from_text(&self.symbols[*word]),
            _ => None,
        }
    }

    /// Adds a tensor that is first mentioned at `span`.
    pub fn add_tensor(&mut self, tensor: Tensor, span: Span) -> TensorId {
        self.add_stated_tensor(tensor, span, &[], span.end)
    }

    /// Adds a tensor that is declared at `span`, as a `%tensor` line does.
    pub fn declare_tensor(&mut self, tensor: Tensor, span: Span) -> TensorId {
        let id = self.add_tensor(tensor, span);
        self.spans.add_section_part(span, SectionPart::Declaration(id));
        id
    }

    /// Sets the inputs and outputs, which a header at `span` states.
    pub fn set_header(&mut self, inputs: Vec<Operand>, outputs: Vec<Operand>, span: Span) {
        self.spans.header = span;
        (0..inputs.len()).for_each(|at| self.spans.add_section_part(span, SectionPart::Input(at as u32)));
        (0..outputs.len()).for_each(|at| self.spans.add_section_part(span, SectionPart::Output(at as u32)));
        (self.inputs, self.outputs) = (inputs, outputs);
    }

    /// Adds a tensor whose axes and mesh, if it has one, are stated at these positions.
    pub(crate) fn add_stated_tensor(
        &mut self,
        tensor: Tensor,
        span: Span,
        axes: &[Span],
        mesh: u32,
    ) -> TensorId {
        self.spans.add_tensor(span, axes, mesh);
        self.tensors.push(tensor)
    }

    /// Adds a statement at `span`; the caller appends it to a block.
    pub fn add_stmt(&mut self, stmt: Stmt, span: Span) -> StmtId {
        self.add_stated_stmt(stmt, span, std::iter::empty())
    }

    /// Adds a statement whose parts are stated at these positions.
    pub(crate) fn add_stated_stmt(
        &mut self,
        stmt: Stmt,
        span: Span,
        parts: impl Iterator<Item = PartSpan>,
    ) -> StmtId {
        self.spans.add_stmt(&stmt, span, parts);
        self.stmts.push(stmt)
    }

    /// Returns the statements of a block.
    pub fn block(&self, block: BlockId) -> &[StmtId] {
        &self.blocks[block]
    }

    /// Returns the statements of the container's top-level block.
    pub fn body(&self) -> &[StmtId] {
        self.body.map_or(&[], |body| self.block(body))
    }

    /// Returns the tensors in a list of operands.
    pub fn tensors_of(operands: &[Operand]) -> impl Iterator<Item = TensorId> {
        operands.iter().filter_map(|it| it.tensor())
    }
}
