//! The arena IR: one container with its values and statements, all indexed by id.
//!
//! A statement is an operator of the table in `ops`, a scalar definition, a loop or a branch. Positions in
//! the text are stored in `Spans`, separate from the arenas, so that programs compare equal regardless of
//! their formatting.
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

/// Positions in the source text, indexed by id.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// The header line.
    pub header: Span,
    /// Statements; for a loop or branch, its header line.
    pub stmts: Vec<Span>,
    /// First mention of each tensor.
    pub tensors: Vec<Span>,
    /// First mention of each symbol.
    pub symbols: Vec<Span>,
}

/// A tensor, identified by its printed text; the number alone is unique only within one namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The number in `T3`.
    pub number: u32,
    /// Memory space.
    pub memory: Memory,
    /// Element type; `None` if the dialect does not print it.
    pub dtype: Option<DType>,
    /// The loop domain, the only domain that dumps print.
    pub loop_domain: Vec<AxisId>,
    /// Compute positions such as ` ca_pos( 1 )`, verbatim.
    pub positions: String,
    /// The devices that hold the tensor; empty: all ranks. Shared, because a program has few distinct meshes.
    pub mesh: Arc<Mesh>,
    /// The HostUnit whose namespace contains the tensor; `None`: the container.
    pub unit: Option<UnitId>,
    /// Logical and allocation domain.
    pub domains: Domains,
}

/// The domains of a tensor that dumps do not print.
///
/// The default is a logical domain equal to the loop domain, no transforms, and allocation of the logical
/// domain.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Domains {
    /// The logical domain, including reduction axes.
    pub logical: Vec<AxisId>,
    /// The transforms from the logical to the loop domain, in order.
    pub transforms: Vec<Transform>,
    /// The allocation domain, slowest axis first; `None`: the logical domain. A stream axis is fully
    /// allocated unless it is in the allocation domain; then a rank holds one stream's slice at a time.
    pub allocation: Option<Vec<AxisId>>,
}

/// One transform between the logical and the loop domain.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Splits `input` into `outer` × `inner`; `factor` is the extent of `outer` if `outer_split`, else of
    /// `inner`.
    Split {
        /// The axis that is split.
        input: AxisId,
        /// The extent of one of the results.
        factor: ExprId,
        /// Whether `factor` is the extent of `outer`.
        outer_split: bool,
        /// The slower result.
        outer: AxisId,
        /// The faster result.
        inner: AxisId,
    },
    /// Merges `outer` × `inner` into one axis.
    Merge {
        /// The slower operand.
        outer: AxisId,
        /// The faster operand.
        inner: AxisId,
        /// The result.
        output: AxisId,
    },
    /// Rotates `input` by the rank's coordinate: index `i` of `output` is index `(i + coordinate) % extent`
    /// of `input`.
    Swizzle1D {
        /// The axis in its original order.
        input: AxisId,
        /// The rotated axis.
        output: AxisId,
    },
}

/// The memory space of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// `g`.
    Global,
    /// `l`: nvFuser's default for intermediate tensors; does not determine the memory space.
    Local,
    /// `s`.
    Shared,
    /// `t`.
    Tensor,
    /// `sym`: symmetric memory, which peers can address.
    Symmetric,
}

impl Memory {
    /// Returns the letter in a tensor's name.
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

/// A mesh of devices with up to three dimensions (x fastest).
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mesh {
    /// Extents, slowest first (`[y, x]`); empty if there is no mesh.
    pub shape: Vec<usize>,
    /// World ranks in row-major order.
    pub devices: Vec<usize>,
    /// Positions in `devices` sorted by rank; empty if the devices are consecutive ranks in order.
    by_rank: Vec<usize>,
}

impl Mesh {
    /// Creates a mesh with these extents, slowest first, and these ranks in row-major order.
    pub fn new(shape: Vec<usize>, devices: Vec<usize>) -> Self {
        let mut by_rank = Vec::new();
        if devices.windows(2).any(|pair| pair[0].checked_add(1) != Some(pair[1])) {
            by_rank.extend(0..devices.len());
            by_rank.sort_by_key(|at| devices[*at]);
        }
        Self { shape, devices, by_rank }
    }

    /// Returns the position of `rank` in `devices`, in logarithmic time.
    pub fn position(&self, rank: usize) -> Option<usize> {
        if self.by_rank.is_empty() {
            let at = rank.checked_sub(*self.devices.first()?)?;
            return (at < self.devices.len()).then_some(at);
        }
        let at = *self.by_rank.get(self.by_rank.partition_point(|at| self.devices[*at] < rank))?;
        (self.devices[at] == rank).then_some(at)
    }

    /// Returns whether there is no mesh: the tensor is on all ranks.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Returns whether `rank` holds a shard of the tensor.
    pub fn contains(&self, rank: usize) -> bool {
        self.is_empty() || self.position(rank).is_some()
    }

    /// Returns the extent of a device dimension; 1 if the mesh has fewer dimensions.
    pub fn extent(&self, dim: DeviceDim) -> usize {
        self.shape.len().checked_sub(1 + dim as usize).map_or(1, |at| self.shape[at])
    }

    /// Returns the coordinate of `rank` along a device dimension, or `None` if the mesh does not contain it.
    pub fn coordinate(&self, rank: usize, dim: DeviceDim) -> Option<usize> {
        let position = self.position(rank)?;
        let inner: usize = self.shape.iter().rev().take(dim as usize).product();
        Some(position / inner % self.extent(dim))
    }
}

/// A device dimension: `deviceIdx.x`, `.y` or `.z`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceDim {
    /// Fastest.
    X = 0,
    /// Middle.
    Y = 1,
    /// Slowest.
    Z = 2,
}

/// An iteration domain (nvFuser's IterDomain).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Iteration, reduction, broadcast or another kind.
    pub kind: AxisKind,
    /// The resource that its iterations are distributed over.
    pub parallel: ParallelType,
    /// The number; unique within a namespace.
    pub number: u32,
    /// First index, if it is not 0.
    pub start: Option<ExprId>,
    /// One past the last index, if it differs from the extent.
    pub stop: Option<ExprId>,
    /// Number of iterations.
    pub extent: ExprId,
    /// Extent of an expanded broadcast.
    pub expanded: Option<ExprId>,
    /// Whether the axis is ragged (`iS7Ragged{extents=…}`); `extent` then refers to the extents.
    pub is_ragged: bool,
    /// The suffix (`rf`, `_p`, `_c`), verbatim.
    pub suffix: &'static str,
}

/// The kind of an iteration domain, printed as its first letter.
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
    /// `?`: the kind is not known before run time.
    Symbolic,
}

impl AxisKind {
    /// All kinds with their letters; the first letter of a kind is the canonical one.
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

/// The suffixes of an iteration domain: `rf` for the result of a root-to-logical transform, `_p` for padding
/// to a multiple of the warp size, `_c` for a dimension of a cluster.
pub const AXIS_SUFFIXES: &[&str] = &["", "rf", "_p", "_c", "rf_p", "rf_c", "_p_c", "rf_p_c"];

/// The parallel type of an axis: the resource that its iterations are distributed over.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParallelType {
    /// Not distributed.
    Serial,
    /// Devices of the mesh.
    Device(DeviceDim),
    /// Streams.
    Stream,
    /// Parallelism inside a kernel (`threadIdx.x`, `UR` …), by its canonical name; host programs ignore it.
    Kernel(&'static str),
}

impl ParallelType {
    /// All spellings with their parallel types; the first spelling of a type is the canonical one.
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
    /// `float(0)`: the type and the literal as it is written.
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

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// An operator of the table.
    Op(OpStmt),
    /// A scalar definition such as `i84 = i82 % 8`, executed in program order.
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
    /// Results, left of `=`.
    pub outs: Vec<Operand>,
    /// Positional operands.
    pub args: Vec<Operand>,
    /// Keyed operands and attributes, in the order of the operator's definition.
    pub attrs: Vec<(AttrName, Attr)>,
}

/// A loop; `index` runs from `start` up to, but not including, `stop`.
#[derive(Clone, Debug, PartialEq)]
pub struct For {
    /// The loop index.
    pub index: SymbolId,
    /// The axis of the `in` form, which determines the extent.
    pub axis: Option<AxisId>,
    /// First index, inclusive.
    pub start: ExprId,
    /// Last index, exclusive.
    pub stop: ExprId,
    /// The body.
    pub body: BlockId,
}

/// A branch.
#[derive(Clone, Debug, PartialEq)]
pub struct If {
    /// The kind of predicate; `Manual` in host programs.
    pub kind: String,
    /// The predicate.
    pub cond: ExprId,
    /// Statements executed if the predicate is true; may be empty.
    pub then_block: BlockId,
    /// Statements executed if the predicate is false; `None` without `ELSE:`.
    pub else_block: Option<BlockId>,
}

/// The option that selects the protocol of CUDA transfers.
pub const P2P_PROTOCOL: &str = "p2p_protocol";

impl Program {
    /// Returns the protocol that `%options p2p_protocol=` selects, if the option is set.
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

    /// Adds a tensor that is first mentioned at `span`.
    pub fn add_tensor(&mut self, tensor: Tensor, span: Span) -> TensorId {
        self.spans.tensors.push(span);
        self.tensors.push(tensor)
    }

    /// Adds a statement at `span`; the caller appends it to a block.
    pub fn add_stmt(&mut self, stmt: Stmt, span: Span) -> StmtId {
        self.spans.stmts.push(span);
        self.stmts.push(stmt)
    }

    /// Returns the id of an expression; equal expressions have the same id.
    pub fn intern_expr(&mut self, expr: Expr) -> ExprId {
        if let Some(id) = self.expr_ids.get(&expr) {
            return *id;
        }
        let id = self.exprs.push(expr.clone());
        self.expr_ids.insert(expr, id);
        id
    }

    /// Returns the id of an integer constant.
    pub fn intern_int(&mut self, value: i64) -> ExprId {
        self.intern_expr(Expr::Int(value))
    }

    /// Returns the id of the named scalar `name` in the namespace of `unit` (`None`: the container). A new
    /// scalar is recorded as first mentioned at `span`.
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

    /// Renames named scalars. No two scalars of a namespace that the program mentions may have the same name
    /// afterwards.
    pub fn rename_symbols(&mut self, names: &FxHashMap<SymbolId, String>) {
        let (mut renamed, mut named) = (Vec::new(), HashMap::new());
        for ((unit, name), id) in std::mem::take(&mut self.symbol_ids) {
            match names.get(&id) {
                Some(new) => renamed.push(((unit, new.clone()), id)),
                None => _ = named.insert((unit, name), id),
            }
        }
        // A renamed scalar replaces an unmentioned scalar of the same name.
        named.extend(renamed);
        self.symbol_ids = named;
        for (id, name) in names {
            name.clone_into(&mut self.symbols[*id]);
        }
    }

    /// Returns the container's scalar with this name, if the program mentions it.
    pub fn find_symbol(&self, name: &str) -> Option<SymbolId> {
        self.symbol_ids.get(&(None, name.to_owned())).copied()
    }

    /// Returns whether the scalar belongs to the container rather than to a HostUnit.
    pub fn is_container_symbol(&self, symbol: SymbolId) -> bool {
        self.find_symbol(&self.symbols[symbol]) == Some(symbol)
    }

    /// Returns the position of a statement.
    pub fn stmt_span(&self, stmt: StmtId) -> Span {
        self.spans.stmts.get(stmt.index()).copied().unwrap_or_default()
    }

    /// Returns the position where a tensor is first mentioned.
    pub fn tensor_span(&self, tensor: TensorId) -> Span {
        self.spans.tensors.get(tensor.index()).copied().unwrap_or_default()
    }

    /// Returns the position where a symbol is first mentioned.
    pub fn symbol_span(&self, symbol: SymbolId) -> Span {
        self.spans.symbols.get(symbol.index()).copied().unwrap_or_default()
    }

    /// Returns the statements of a block.
    pub fn block(&self, block: BlockId) -> &[StmtId] {
        &self.blocks[block]
    }

    /// Returns the statements of the container's top-level block.
    pub fn body(&self) -> &[StmtId] {
        self.body.map_or(&[], |body| self.block(body))
    }

    /// Returns the short name of a tensor, such as `T3`, which reports use.
    pub fn tensor_name(&self, tensor: TensorId) -> String {
        format!("T{}", self.tensors[tensor].number)
    }

    /// Returns the value of an integer literal, or `None` for any other expression.
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

    /// Appends the symbols in an expression, in order of appearance.
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

    /// Returns whether the tensor has default domains: a logical domain equal to the loop domain, no
    /// transforms, and no explicit allocation domain.
    pub fn has_plain_domains(&self, tensor: TensorId) -> bool {
        let Tensor { loop_domain: loops, domains: Domains { logical, transforms, allocation }, .. } =
            &self.tensors[tensor];
        logical == loops && transforms.is_empty() && allocation.is_none()
    }

    /// Returns the tensors in a list of operands.
    pub fn tensors_of(operands: &[Operand]) -> impl Iterator<Item = TensorId> {
        operands.iter().filter_map(|it| it.tensor())
    }

    /// Returns the number of the work that a statement posts, by which a Wait can refer to it.
    pub fn posted_work(&self, stmt: StmtId) -> Option<u32> {
        match &self.stmts[stmt] {
            Stmt::Op(it) if it.op.def().class == OpClass::Communicate || it.op == Op::EndCoalescing => {
                it.number
            }
            Stmt::Op(_) | Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        }
    }

    /// Returns the dimensions of the tensor in memory: its logical axes without reduction axes.
    pub fn dimensions(&self, tensor: TensorId) -> impl Iterator<Item = AxisId> {
        let logical = &self.tensors[tensor].domains.logical;
        logical.iter().copied().filter(|axis| self.axes[*axis].kind != AxisKind::Reduction)
    }

    /// Returns the loop axes that splits and swizzles derive from a logical axis of the tensor, slowest
    /// first.
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

    /// Returns whether a dimension counts partial sums over devices (`ideviceIdx.x22{2}rf`).
    pub fn is_partial(&self, tensor: TensorId, axis: AxisId) -> bool {
        let leaves = self.loop_axes_of(tensor, axis);
        let is_device = |leaf: &AxisId| matches!(self.axes[*leaf].parallel, ParallelType::Device(_));
        leaves.iter().all(is_device) && leaves.iter().any(|leaf| self.axes[*leaf].suffix.contains("rf"))
    }

    /// Returns whether a rank holds one stream's slice of the tensor at a time.
    pub fn is_split_by_stream(&self, tensor: TensorId) -> bool {
        let allocation = self.tensors[tensor].domains.allocation.iter().flatten();
        allocation.into_iter().any(|axis| self.axes[*axis].parallel == ParallelType::Stream)
    }

    /// Visits the statements of a block and of its nested blocks, in program order.
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
    /// Returns the first tensor among the results.
    pub fn out_tensor(&self) -> Option<TensorId> {
        self.outs.iter().find_map(|out| out.tensor())
    }
}
