//! Creates names, values and statements for passes that add code.
//!
//! Invariant: a number returned here is not used by anything else in the program.

use grammar::{
    arena::Arena,
    attr, free_number,
    ir::{
        Axis, AxisId, AxisKind, BlockId, Domains, Expr, ExprId, InfixOp, Memory, OpStmt, Operand,
        ParallelType, Program, Stmt, StmtId, Stream, StreamId, SymbolId, Tensor, TensorId, Transform,
    },
    ops::Op,
    span::Span,
    words::{Backend, MemoryType},
};
use rustc_hash::FxHashMap;

/// The next free number of each kind of name.
pub struct IrBuilder {
    tensor: u32,
    axis: u32,
    work: u32,
    scalar: u32,
    stream: u32,
}

impl IrBuilder {
    /// Returns a builder whose numbers the program does not use.
    pub fn of(program: &Program) -> Self {
        let scalar = |name: &String| name.strip_prefix('i').and_then(|it| it.parse().ok());
        let named = |stream: &Stream| match stream {
            Stream::Named(number) => Some(*number),
            Stream::Index(_) => None,
        };
        let units = program.units.iter().map(|(_, it)| it.number);
        let works = program.stmts.iter().filter_map(|(_, it)| it.op()?.number).chain(units);
        Self {
            tensor: free_number(values(&program.tensors).map(|it| it.number)),
            axis: free_number(values(&program.axes).map(|it| it.number)),
            work: free_number(works),
            scalar: free_number(values(&program.symbols).filter_map(scalar)),
            stream: free_number(values(&program.streams).filter_map(named)),
        }
    }

    /// Creates a serial axis.
    pub fn axis(&mut self, program: &mut Program, extent: ExprId) -> AxisId {
        self.axis_of(program, AxisKind::Iteration, ParallelType::Serial, extent)
    }

    /// Creates an axis of any kind.
    pub fn axis_of(
        &mut self,
        program: &mut Program,
        kind: AxisKind,
        parallel: ParallelType,
        extent: ExprId,
    ) -> AxisId {
        let number = next(&mut self.axis);
        program.axes.push(Axis::new(kind, parallel, number, extent))
    }

    /// Copies an axis under a new number.
    pub fn axis_like(&mut self, program: &mut Program, axis: AxisId) -> AxisId {
        let copy = Axis { number: next(&mut self.axis), ..program.axes[axis].clone() };
        program.axes.push(copy)
    }

    /// Creates a tensor with the element type and mesh of `like` and the given domains.
    pub fn tensor_like(
        &mut self,
        program: &mut Program,
        like: TensorId,
        memory: Memory,
        loops: Vec<AxisId>,
        domains: Domains,
    ) -> TensorId {
        let Tensor { dtype, mesh, unit, .. } = program.tensors[like].clone();
        let (span, number) = (program.tensor_span(like), next(&mut self.tensor));
        let positions = String::new();
        program.add_tensor(
            Tensor { number, memory, dtype, loop_domain: loops, positions, mesh, unit, domains },
            span,
        )
    }

    /// Copies a tensor under a new number, with axes of its own.
    pub fn tensor_copy(&mut self, program: &mut Program, like: TensorId) -> TensorId {
        let Tensor { memory, loop_domain: loops, domains, .. } = program.tensors[like].clone();
        let mut known: FxHashMap<AxisId, AxisId> = FxHashMap::default();
        let mut copy = |program: &mut Program, axis: AxisId| {
            *known.entry(axis).or_insert_with(|| self.axis_like(program, axis))
        };
        let loops = loops.into_iter().map(|axis| copy(program, axis)).collect();
        let logical = domains.logical.into_iter().map(|axis| copy(program, axis)).collect();
        let allocation = domains.allocation;
        let allocation =
            allocation.map(|axes| axes.into_iter().map(|axis| copy(program, axis)).collect::<Vec<_>>());
        let mut transforms = domains.transforms;
        for transform in &mut transforms {
            let axes = match transform {
                Transform::Split { input, outer, inner, .. } => vec![input, outer, inner],
                Transform::Merge { outer, inner, output } => vec![outer, inner, output],
                Transform::Swizzle1D { input, output } => vec![input, output],
            };
            axes.into_iter().for_each(|axis| *axis = copy(program, *axis));
        }
        let domains = Domains { logical, transforms, allocation };
        self.tensor_like(program, like, memory, loops, domains)
    }

    /// Returns a new number for a communication.
    pub fn work(&mut self) -> u32 {
        next(&mut self.work)
    }

    /// Creates a named integer, such as `i84`.
    pub fn scalar(&mut self, program: &mut Program) -> SymbolId {
        let number = next(&mut self.scalar);
        program.intern_symbol(None, &format!("i{number}"), Span::default())
    }

    /// Creates a named stream for GetCurrentStream.
    pub fn stream(&mut self, program: &mut Program) -> StreamId {
        program.streams.push(Stream::Named(next(&mut self.stream)))
    }
}

fn next(number: &mut u32) -> u32 {
    *number += 1;
    *number - 1
}

fn values<I: grammar::arena::Id, T>(arena: &Arena<I, T>) -> impl Iterator<Item = &T> {
    arena.iter().map(|(_, it)| it)
}

// ---- statements

/// Returns an operator statement without results, operands and attributes.
pub fn op(op: Op) -> OpStmt {
    OpStmt { op, number: None, outs: Vec::new(), args: Vec::new(), attrs: Vec::new() }
}

/// Returns `out = ALLOCATE(mem_type=global, zero_init=false)`, in symmetric memory if the tensor is
/// symmetric.
pub fn allocate(program: &Program, out: TensorId) -> OpStmt {
    let memory = match program.tensors[out].memory {
        Memory::Symmetric => MemoryType::Symmetric,
        Memory::Global | Memory::Local | Memory::Shared | Memory::Tensor => MemoryType::Global,
    };
    OpStmt {
        outs: vec![Operand::Tensor(out)],
        attrs: vec![attr::MEM_TYPE.with(memory), attr::ZERO_INIT.with(false)],
        ..op(Op::Allocate)
    }
}

/// Returns an ALLOCATE that gives `out` the storage of `of`. All axes of `out` are loop axes.
pub fn allocate_alias(program: &mut Program, out: TensorId, of: TensorId) -> OpStmt {
    let extents: Vec<ExprId> =
        program.tensors[out].loop_domain.iter().map(|axis| program.axes[*axis].extent).collect();
    let size = extents.into_iter().reduce(|a, b| infix(program, InfixOp::Mul, a, b));
    let size = size.unwrap_or_else(|| program.intern_int(1));
    OpStmt {
        outs: vec![Operand::Tensor(out)],
        attrs: vec![
            attr::BUFFER.with(out),
            attr::MEM_TYPE.with(MemoryType::Global),
            attr::SIZE.with(size),
            attr::ZERO_INIT.with(false),
            attr::RESETS_TO_ZERO.with(false),
            attr::ALIAS.with(of),
        ],
        ..op(Op::AllocateOnce)
    }
}

/// Returns `Deallocate { tensor }`.
pub fn deallocate(tensor: TensorId) -> OpStmt {
    OpStmt { args: vec![Operand::Tensor(tensor)], ..op(Op::Deallocate) }
}

/// Returns `out = HirAliasSelect( input, axis = axis, index = index )`.
pub fn select(out: TensorId, input: TensorId, axis: AxisId, index: ExprId) -> OpStmt {
    OpStmt {
        outs: vec![Operand::Tensor(out)],
        args: vec![Operand::Tensor(input)],
        attrs: vec![attr::AXIS.with(axis), attr::INDEX.with(index)],
        ..op(Op::HirAliasSelect)
    }
}

/// Returns a CollectivePermute of NCCL, in which each rank sends `input` to one peer and receives `output` from another one.
pub fn collective_permute(
    work: u32,
    team: Vec<usize>,
    [send, recv]: [ExprId; 2],
    (input, output): (TensorId, TensorId),
) -> OpStmt {
    OpStmt {
        number: Some(work),
        attrs: vec![
            attr::TEAM.with(team),
            attr::SEND_PEER.with(send),
            attr::RECV_PEER.with(recv),
            attr::INPUT.with(input),
            attr::OUTPUT.with(output),
            attr::BACKEND.with(Backend::Nccl),
        ],
        ..op(Op::CollectivePermute)
    }
}

/// Returns `Wait(Communication work)`.
pub fn wait(work: u32) -> OpStmt {
    OpStmt { args: Vec::new(), attrs: vec![attr::WORK.with(work)], ..op(Op::Wait) }
}

/// Returns `SetCurrentStream(stream)`.
pub fn set_current_stream(stream: StreamId) -> OpStmt {
    OpStmt { args: vec![Operand::Stream(stream)], ..op(Op::SetCurrentStream) }
}

/// Returns `Synchronize(stream)`.
pub fn synchronize(stream: StreamId) -> OpStmt {
    OpStmt { args: vec![Operand::Stream(stream)], ..op(Op::Synchronize) }
}

/// Adds an operator statement with the source location `span`. The caller inserts it into a block.
pub fn add(program: &mut Program, stmt: OpStmt, span: Span) -> StmtId {
    program.add_stmt(Stmt::Op(stmt), span)
}

/// Creates a block of these statements.
pub fn block(program: &mut Program, stmts: Vec<StmtId>) -> BlockId {
    program.blocks.push(stmts)
}

/// Creates the stream with this index.
pub fn indexed_stream(program: &mut Program, index: ExprId) -> StreamId {
    program.streams.push(Stream::Index(index))
}

// ---- scalars

/// Returns a named scalar as an expression.
pub fn symbol(program: &mut Program, symbol: SymbolId) -> ExprId {
    program.intern_expr(Expr::Symbol(symbol))
}

/// Returns `( lhs op rhs )`.
pub fn infix(program: &mut Program, op: InfixOp, lhs: ExprId, rhs: ExprId) -> ExprId {
    program.intern_expr(Expr::Infix(op, lhs, rhs))
}

/// Returns the scalar `rank`.
pub fn rank(program: &mut Program) -> ExprId {
    let rank = program.intern_symbol(None, "rank", Span::default());
    symbol(program, rank)
}
