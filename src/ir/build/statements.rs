//! Statements of operators. Each function returns one; `add` puts it into a program.

use grammar::{
    AxisId, Backend, BlockId, ExprId, InfixOp, Memory, MemoryType, Op, OpStmt, Operand, Program, Span, Stmt,
    StmtId, Stream, StreamId, TensorId, attr,
};

use super::infix;

/// Returns an operator statement without results, operands and attributes.
pub fn op(op: Op) -> OpStmt {
    OpStmt { op, number: None, outs: Vec::new(), args: Vec::new(), attrs: Vec::new() }
}

/// Returns an operator statement with these operands. `with` adds attributes.
pub fn apply<O: Into<Operand>>(op: Op, args: impl IntoIterator<Item = O>) -> OpStmt {
    OpStmt { args: args.into_iter().map(Into::into).collect(), ..self::op(op) }
}

/// Returns `out = stmt`.
pub fn assigned(out: TensorId, stmt: OpStmt) -> OpStmt {
    OpStmt { outs: vec![out.into()], ..stmt }
}

/// Returns `Communication number (…)`, or another statement with a number.
pub fn numbered(number: u32, stmt: OpStmt) -> OpStmt {
    OpStmt { number: Some(number), ..stmt }
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

/// Returns `stream = GetCurrentStream()`.
pub fn get_current_stream(stream: StreamId) -> OpStmt {
    OpStmt { outs: vec![Operand::Stream(stream)], ..op(Op::GetCurrentStream) }
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
