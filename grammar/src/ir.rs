//! The arena IR: one container, its values and its statements, by id.
//!
//! A statement is an operator of the table in `ops`, a scalar definition, a loop or a branch. Nothing here holds
//! a position in the text: those stand in `Spans`, beside the arenas, so that two programs compare equal whatever
//! their layout.
//!
//! Invariant: tensors are unique by printed text; scalar expressions are unique by structure.

use std::{collections::HashMap, sync::Arc};

use indexmap::IndexMap;
use rustc_hash::FxHashMap;

use crate::{
    arena::{Arena, Id},
    attr::AttrName,
    dtype::DType,
    ops::{Op, OpClass},
    span::Span,
    words::P2pProtocol,
};

pub use crate::{
    attr::{Attr, Operand},
    ids::{AxisId, BlockId, ExprId, StmtId, StreamId, SymbolId, TensorId, UnitId},
};

/// One `%HostIrContainer`.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Tensors, the HostUnits' own ones included.
    pub tensors: Arena<TensorId, Tensor>,
    /// Iteration domains of tensors, loops and `axis =` attributes.
    pub axes: Arena<AxisId, Axis>,
    /// Scalar expressions, hash-consed by `expr`.
    pub exprs: Arena<ExprId, Expr>,
    /// Named scalars.
    pub symbols: Arena<SymbolId, String>,
    /// Streams.
    pub streams: Arena<StreamId, Stream>,
    /// Statements, those listed inside ShareMemHandles included.
    pub stmts: Arena<StmtId, Stmt>,
    /// Blocks.
    pub blocks: Arena<BlockId, Vec<StmtId>>,
    /// HostUnits in order of appearance.
    pub units: Arena<UnitId, HostUnit>,
    /// Values of the header's first list.
    pub inputs: Vec<Operand>,
    /// Values of the header's second list.
    pub outputs: Vec<Operand>,
    /// The container's statements.
    pub body: Option<BlockId>,
    /// Pure scalar definitions (`Index definitions:`), in topological order once resolved.
    pub definitions: IndexMap<SymbolId, ExprId>,
    /// `%options`: facts about the whole program, such as `numberOfStreams`.
    pub options: IndexMap<String, ExprId>,
    /// Where everything stood in the text.
    pub spans: Spans,
    expr_ids: FxHashMap<Expr, ExprId>,
    symbol_ids: HashMap<(Option<UnitId>, String), SymbolId>,
}

/// Positions in the source text, by id.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// The header line.
    pub header: Span,
    /// Statements; a loop's or branch's is its header line.
    pub stmts: Vec<Span>,
    /// First mention of each tensor.
    pub tensors: Vec<Span>,
    /// First mention of each symbol.
    pub symbols: Vec<Span>,
}

/// A tensor. Its printed text names it: the number alone is unique within one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The number in `T3`.
    pub number: u32,
    /// Where it lives.
    pub memory: Memory,
    /// Element type; `None` in dialects that do not print it.
    pub dtype: Option<DType>,
    /// The loop domain, the only one that dumps print.
    pub loop_domain: Vec<AxisId>,
    /// ` ca_pos( 1 )` and its like, verbatim.
    pub positions: String,
    /// The devices that hold it; empty: every rank. Shared: a program has few meshes.
    pub mesh: Arc<Mesh>,
    /// The unit whose namespace it belongs to; `None`: the container's.
    pub unit: Option<UnitId>,
    /// Logical and allocation domain.
    pub domains: Domains,
}

/// What dumps leave out about a tensor's domains.
///
/// The default is `logical == loops`, no transforms, allocated as the logical domain.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Domains {
    /// The axes of the tensor as its users see it, reductions included.
    pub logical: Vec<AxisId>,
    /// How the logical axes became the loop axes, in order.
    pub transforms: Vec<Transform>,
    /// The allocated axes, slowest first; `None`: the logical ones. A stream axis is whole in memory unless it is
    /// named here: then a rank holds one stream's slice at a time.
    pub allocation: Option<Vec<AxisId>>,
}

/// One step from logical to loop domain.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// `input` becomes `outer` × `inner`; `factor` is the extent of `outer` when `outer_split`, else of `inner`.
    Split {
        /// The axis that is split.
        input: AxisId,
        /// The given extent.
        factor: ExprId,
        /// Which side `factor` is the extent of.
        outer_split: bool,
        /// Slow result.
        outer: AxisId,
        /// Fast result.
        inner: AxisId,
    },
    /// `outer` × `inner` become one axis.
    Merge {
        /// Slow operand.
        outer: AxisId,
        /// Fast operand.
        inner: AxisId,
        /// The result.
        output: AxisId,
    },
    /// `output` counts `input` cyclically from the rank's own coordinate: index `i` of it is `(i + me) % extent`.
    Swizzle1D {
        /// The axis in natural order.
        input: AxisId,
        /// The rotated axis.
        output: AxisId,
    },
}

/// Memory letter of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// `g`.
    Global,
    /// `l`: nvFuser's default for intermediates; says nothing about where it lives.
    Local,
    /// `s`.
    Shared,
    /// `t`.
    Tensor,
    /// `sym`: symmetric memory, addressable by peers.
    Symmetric,
}

impl Memory {
    /// The letter in a tensor's name.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Global => "g",
            Self::Local => "l",
            Self::Shared => "s",
            Self::Tensor => "t",
            Self::Symmetric => "sym",
        }
    }
}

/// Devices in up to three dimensions (x fastest).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mesh {
    /// Extents, slowest first (`[y, x]`); empty for no mesh.
    pub shape: Vec<usize>,
    /// World ranks in row-major order.
    pub devices: Vec<usize>,
    /// Positions in `devices`, by ascending rank; empty where the devices are consecutive ranks in order.
    by_rank: Vec<usize>,
}

impl Mesh {
    /// A mesh of these extents, slowest first, and of these ranks in row-major order.
    pub fn new(shape: Vec<usize>, devices: Vec<usize>) -> Self {
        let mut by_rank = Vec::new();
        if devices.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
            by_rank.extend(0..devices.len());
            by_rank.sort_by_key(|at| devices[*at]);
        }
        Self { shape, devices, by_rank }
    }

    /// The position of `rank` among the devices, without a search through all of them.
    pub fn position(&self, rank: usize) -> Option<usize> {
        if self.by_rank.is_empty() {
            let at = rank.checked_sub(*self.devices.first()?)?;
            return (at < self.devices.len()).then_some(at);
        }
        let at = *self.by_rank.get(self.by_rank.partition_point(|at| self.devices[*at] < rank))?;
        (self.devices[at] == rank).then_some(at)
    }

    /// Whether no mesh was given: the tensor is on every rank.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Whether `rank` holds a shard.
    pub fn contains(&self, rank: usize) -> bool {
        self.is_empty() || self.position(rank).is_some()
    }

    /// Extent along a device dimension; 1 where the mesh has fewer dimensions.
    pub fn extent(&self, dim: DeviceDim) -> usize {
        self.shape.len().checked_sub(1 + dim as usize).map_or(1, |at| self.shape[at])
    }

    /// The coordinate of `rank` along a device dimension; `None` when it is not a member.
    pub fn coordinate(&self, rank: usize, dim: DeviceDim) -> Option<usize> {
        let position = self.position(rank)?;
        let inner: usize = self.shape.iter().rev().take(dim as usize).product();
        Some(position / inner % self.extent(dim))
    }
}

/// `deviceIdx.x`, `.y`, `.z`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceDim {
    /// Fastest.
    X = 0,
    /// Middle.
    Y = 1,
    /// Slowest.
    Z = 2,
}

/// An iteration domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Iteration, reduction, broadcast …
    pub kind: AxisKind,
    /// What its iterations are spread over.
    pub parallel: ParallelType,
    /// The number, unique within a namespace.
    pub number: u32,
    /// First index, when it is not 0.
    pub start: Option<ExprId>,
    /// Last index plus one, when it differs from the extent.
    pub stop: Option<ExprId>,
    /// Number of iterations.
    pub extent: ExprId,
    /// Extent of an expanded broadcast.
    pub expanded: Option<ExprId>,
    /// Extents of a ragged axis (`iS7Ragged{extents=…}`); `extent` is then the same expression.
    pub is_ragged: bool,
    /// `rf`, `_p`, `_c`, verbatim.
    pub suffix: &'static str,
}

/// The letter that begins an iteration domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AxisKind {
    /// `i`.
    Iteration,
    /// `r`: not a dimension of the tensor in memory.
    Reduction,
    /// `b`.
    Broadcast,
    /// `s`.
    Stride,
    /// `n` (and `g`, until 2024).
    Gather,
    /// `v`.
    Vector,
    /// `?`: not known before run time.
    Symbolic,
}

impl AxisKind {
    /// Every kind with its letter; the first spelling of a kind is canonical.
    pub const LETTERS: &'static [(&'static str, AxisKind)] = &[
        ("i", Self::Iteration),
        ("r", Self::Reduction),
        ("b", Self::Broadcast),
        ("s", Self::Stride),
        ("n", Self::Gather),
        ("g", Self::Gather),
        ("v", Self::Vector),
        ("?", Self::Symbolic),
    ];
}

/// What may stand behind an iteration domain: product of a root-to-logical transform, padded to a warp's multiple,
/// dimension of a cluster.
pub const AXIS_SUFFIXES: &[&str] = &["", "rf", "_p", "_c", "rf_p", "rf_c", "_p_c", "rf_p_c"];

/// What the iterations of an axis are spread over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParallelType {
    /// Nothing.
    Serial,
    /// Devices of the mesh.
    Device(DeviceDim),
    /// Streams.
    Stream,
    /// A kernel's own parallelism (`threadIdx.x`, `UR` …), by its canonical word: host programs ignore it.
    Kernel(&'static str),
}

impl ParallelType {
    /// Every word with its meaning; the first spelling of a meaning is canonical.
    pub const WORDS: &'static [(&'static str, ParallelType)] = &[
        ("S", Self::Serial),
        ("deviceIdx.x", Self::Device(DeviceDim::X)),
        ("deviceIdx.y", Self::Device(DeviceDim::Y)),
        ("deviceIdx.z", Self::Device(DeviceDim::Z)),
        ("streamIdx", Self::Stream),
        ("StreamIdx", Self::Stream),
        ("Stream", Self::Stream),
        ("blockIdx.x", Self::Kernel("blockIdx.x")),
        ("blockIdx.y", Self::Kernel("blockIdx.y")),
        ("blockIdx.z", Self::Kernel("blockIdx.z")),
        ("threadIdx.x", Self::Kernel("threadIdx.x")),
        ("threadIdx.y", Self::Kernel("threadIdx.y")),
        ("threadIdx.z", Self::Kernel("threadIdx.z")),
        ("V", Self::Kernel("V")),
        ("MV", Self::Kernel("MV")),
        ("UR", Self::Kernel("UR")),
        ("US", Self::Kernel("US")),
        ("MMA", Self::Kernel("MMA")),
        ("G", Self::Kernel("G")),
        ("B", Self::Kernel("B")),
    ];
}

/// A scalar expression.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// An integer, a boolean or an index.
    Int(i64),
    /// `true` or `false`.
    Bool(bool),
    /// `float(0)`: a type and the literal as written.
    Float(DType, String),
    /// A named scalar.
    Symbol(SymbolId),
    /// Prefix operator.
    Prefix(&'static str, ExprId),
    /// Infix operator.
    Infix(&'static str, ExprId, ExprId),
    /// `ceilDiv(a, b)`, `where(a, b, c)`, …
    Call(String, Vec<ExprId>),
}

/// A stream.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Stream {
    /// Captured by GetCurrentStream, canonically `s0`, `s1` … in order of appearance.
    Named(u32),
    /// The stream with this index.
    Index(ExprId),
}

/// A HostUnit: a fusion with a namespace of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct HostUnit {
    /// The number in `HostUnit5`.
    pub number: u32,
    /// Its inputs, in its namespace.
    pub inputs: Vec<Operand>,
    /// Its outputs, in its namespace.
    pub outputs: Vec<Operand>,
    /// Its statements; `None` when the source elided them.
    pub body: Option<BlockId>,
}

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// An operator of the table.
    Op(OpStmt),
    /// `i84 = i82 % 8`, executed where it stands.
    Let(SymbolId, ExprId),
    /// A loop.
    For(For),
    /// A branch.
    If(If),
}

/// An operator with its operands and attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpStmt {
    /// The operator.
    pub op: Op,
    /// The expression number (`Communication 35`).
    pub number: Option<u32>,
    /// What stands left of `=`.
    pub outs: Vec<Operand>,
    /// Positional operands.
    pub args: Vec<Operand>,
    /// Keyed operands and attributes, in the order of the operator's row.
    pub attrs: Vec<(AttrName, Attr)>,
}

/// A loop. `index` counts from `start` up to, not including, `stop`.
#[derive(Clone, Debug, PartialEq)]
pub struct For {
    /// The bound name.
    pub index: SymbolId,
    /// The axis of the `in` form; it carries the extent.
    pub axis: Option<AxisId>,
    /// First index.
    pub start: ExprId,
    /// One past the last.
    pub stop: ExprId,
    /// The body.
    pub body: BlockId,
}

/// A branch.
#[derive(Clone, Debug, PartialEq)]
pub struct If {
    /// The predicate kind; `Manual` in host programs.
    pub kind: String,
    /// The predicate.
    pub cond: ExprId,
    /// Statements where it holds, possibly none.
    pub then_block: BlockId,
    /// Statements where it does not; `None` without `ELSE:`.
    pub else_block: Option<BlockId>,
}

/// The option that says how CUDA transfers copy.
pub const P2P_PROTOCOL: &str = "p2p_protocol";

impl Program {
    /// What `%options p2p_protocol=` says.
    pub fn p2p_protocol(&self) -> Option<P2pProtocol> {
        match &self.exprs[*self.options.get(P2P_PROTOCOL)?] {
            Expr::Symbol(word) => P2pProtocol::from_text(&self.symbols[*word]),
            Expr::Int(_)
            | Expr::Bool(_)
            | Expr::Float(..)
            | Expr::Prefix(..)
            | Expr::Infix(..)
            | Expr::Call(..) => None,
        }
    }

    /// Adds a tensor first mentioned at `span`.
    pub fn add_tensor(&mut self, tensor: Tensor, span: Span) -> TensorId {
        self.spans.tensors.push(span);
        self.tensors.push(tensor)
    }

    /// Adds a statement that stands at `span`; the caller puts it into a block.
    pub fn add_stmt(&mut self, stmt: Stmt, span: Span) -> StmtId {
        self.spans.stmts.push(span);
        self.stmts.push(stmt)
    }

    /// The id of an expression, the same one for the same structure.
    pub fn intern_expr(&mut self, expr: Expr) -> ExprId {
        if let Some(id) = self.expr_ids.get(&expr) {
            return *id;
        }
        let id = self.exprs.push(expr.clone());
        self.expr_ids.insert(expr, id);
        id
    }

    /// The id of an integer constant.
    pub fn intern_int(&mut self, value: i64) -> ExprId {
        self.intern_expr(Expr::Int(value))
    }

    /// The id of a named scalar of a namespace (`None`: the container's), first mentioned at `span` when it is new.
    pub fn intern_symbol(&mut self, unit: Option<UnitId>, name: &str, span: Span) -> SymbolId {
        let key = (unit, name.to_owned());
        if let Some(id) = self.symbol_ids.get(&key) {
            return *id;
        }
        self.spans.symbols.push(span);
        let id = self.symbols.push(name.to_owned());
        self.symbol_ids.insert(key, id);
        id
    }

    /// Gives named scalars other names. No two scalars of a namespace that the program mentions may share one.
    pub fn rename_symbols(&mut self, names: &FxHashMap<SymbolId, String>) {
        let (mut renamed, mut named) = (Vec::new(), HashMap::new());
        for ((unit, name), id) in std::mem::take(&mut self.symbol_ids) {
            match names.get(&id) {
                Some(new) => renamed.push(((unit, new.clone()), id)),
                None => _ = named.insert((unit, name), id),
            }
        }
        // A scalar that is mentioned nowhere any more gives its name up.
        named.extend(renamed);
        self.symbol_ids = named;
        for (id, name) in names {
            name.clone_into(&mut self.symbols[*id]);
        }
    }

    /// The named scalar of the container, if the program mentions it.
    pub fn find_symbol(&self, name: &str) -> Option<SymbolId> {
        self.symbol_ids.get(&(None, name.to_owned())).copied()
    }

    /// Whether the scalar belongs to the container rather than to a HostUnit.
    pub fn is_container_symbol(&self, symbol: SymbolId) -> bool {
        self.find_symbol(&self.symbols[symbol]) == Some(symbol)
    }

    /// Where a statement stands.
    pub fn stmt_span(&self, stmt: StmtId) -> Span {
        self.spans.stmts.get(stmt.index()).copied().unwrap_or_default()
    }

    /// Where a tensor was first mentioned.
    pub fn tensor_span(&self, tensor: TensorId) -> Span {
        self.spans.tensors.get(tensor.index()).copied().unwrap_or_default()
    }

    /// Where a symbol was first mentioned.
    pub fn symbol_span(&self, symbol: SymbolId) -> Span {
        self.spans.symbols.get(symbol.index()).copied().unwrap_or_default()
    }

    /// The statements of a block.
    pub fn block(&self, block: BlockId) -> &[StmtId] {
        &self.blocks[block]
    }

    /// The container's own statements.
    pub fn body(&self) -> &[StmtId] {
        self.body.map_or(&[], |body| self.block(body))
    }

    /// `T3`: the name that reports use.
    pub fn tensor_name(&self, tensor: TensorId) -> String {
        format!("T{}", self.tensors[tensor].number)
    }

    /// The integer that an expression is, without looking at any symbol.
    pub fn constant(&self, expr: ExprId) -> Option<i64> {
        match &self.exprs[expr] {
            Expr::Int(value) => Some(*value),
            Expr::Bool(_)
            | Expr::Float(..)
            | Expr::Symbol(_)
            | Expr::Prefix(..)
            | Expr::Infix(..)
            | Expr::Call(..) => None,
        }
    }

    /// Appends the symbols that an expression names, in order.
    pub fn collect_symbols(&self, expr: ExprId, acc: &mut Vec<SymbolId>) {
        match &self.exprs[expr] {
            Expr::Int(_) | Expr::Bool(_) | Expr::Float(..) => (),
            Expr::Symbol(symbol) => acc.push(*symbol),
            Expr::Prefix(_, operand) => self.collect_symbols(*operand, acc),
            Expr::Infix(_, lhs, rhs) => {
                self.collect_symbols(*lhs, acc);
                self.collect_symbols(*rhs, acc);
            }
            Expr::Call(_, args) => args.iter().for_each(|arg| self.collect_symbols(*arg, acc)),
        }
    }

    /// Whether the tensor's domains are the default: logical as printed, no transforms, allocated as logical.
    pub fn has_plain_domains(&self, tensor: TensorId) -> bool {
        let Tensor { loop_domain: loops, domains: Domains { logical, transforms, allocation }, .. } =
            &self.tensors[tensor];
        logical == loops && transforms.is_empty() && allocation.is_none()
    }

    /// The operands of a list that are tensors.
    pub fn tensors_of(operands: &[Operand]) -> impl Iterator<Item = TensorId> {
        operands.iter().filter_map(|it| it.tensor())
    }

    /// Whether a statement posts work that a Wait can name.
    pub fn posted_work(&self, stmt: StmtId) -> Option<u32> {
        match &self.stmts[stmt] {
            Stmt::Op(it) if it.op.def().class == OpClass::Communicate || it.op == Op::EndCoalescing => {
                it.number
            }
            Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        }
    }

    /// The tensor's logical axes that are dimensions in memory: all but reductions.
    pub fn dimensions(&self, tensor: TensorId) -> impl Iterator<Item = AxisId> {
        let logical = &self.tensors[tensor].domains.logical;
        logical.iter().copied().filter(|axis| self.axes[*axis].kind != AxisKind::Reduction)
    }

    /// The loop axes that a logical axis of the tensor became, slowest first.
    pub fn loop_axes_of(&self, tensor: TensorId, axis: AxisId) -> Vec<AxisId> {
        let mut leaves = vec![axis];
        for transform in &self.tensors[tensor].domains.transforms {
            let (input, outputs) = match transform {
                Transform::Split { input, outer, inner, .. } => (input, vec![*outer, *inner]),
                Transform::Swizzle1D { input, output } => (input, vec![*output]),
                Transform::Merge { .. } => continue,
            };
            if let Some(at) = leaves.iter().position(|leaf| leaf == input) {
                leaves.splice(at..=at, outputs);
            }
        }
        leaves
    }

    /// Whether a dimension counts partial sums over devices (`ideviceIdx.x22{2}rf`).
    pub fn is_partial(&self, tensor: TensorId, axis: AxisId) -> bool {
        let leaves = self.loop_axes_of(tensor, axis);
        let is_device = |leaf: &AxisId| matches!(self.axes[*leaf].parallel, ParallelType::Device(_));
        leaves.iter().all(is_device) && leaves.iter().any(|leaf| self.axes[*leaf].suffix.contains("rf"))
    }

    /// Whether a rank holds one stream's slice of the tensor at a time.
    pub fn is_split_by_stream(&self, tensor: TensorId) -> bool {
        let allocation = self.tensors[tensor].domains.allocation.iter().flatten();
        allocation.into_iter().any(|axis| self.axes[*axis].parallel == ParallelType::Stream)
    }

    /// Visits the statements of a block and of the blocks inside, in program order.
    pub fn walk(&self, block: BlockId, visit: &mut dyn FnMut(StmtId)) {
        for stmt in self.block(block) {
            visit(*stmt);
            match &self.stmts[*stmt] {
                Stmt::Op(_) | Stmt::Let(..) => (),
                Stmt::For(it) => self.walk(it.body, visit),
                Stmt::If(it) => {
                    self.walk(it.then_block, visit);
                    it.else_block.iter().for_each(|other| self.walk(*other, visit));
                }
            }
        }
    }
}

impl OpStmt {
    /// The first tensor left of `=`.
    pub fn out_tensor(&self) -> Option<TensorId> {
        self.outs.iter().find_map(|out| out.tensor())
    }
}
