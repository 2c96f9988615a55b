//! Executes the control flow of a rank, which depends on no tensor, and records its steps.

use grammar::{
    arena::Id,
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::Class,
    ir::{
        BlockId, ExprId, For, If, OpStmt, Operand as Named, ParallelType, Program, Stmt, StmtId, Stream,
        StreamId, TensorId, Transform,
    },
    ops::{Op, OpClass},
    scalars::{Scalars, Value},
    span::Span,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    operators::rearranged,
    part::{Part, size},
    tape::{Channel, Step, StepKind, Tape, Transfer},
    view::View,
};

mod communication;
mod computation;

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// The largest number of steps of a rank.
const MAX_STEPS: usize = 4_000_000;

/// The largest number of elements of a tensor on a rank.
const MAX_ELEMENTS: usize = 1 << 27;

#[derive(Clone)]
struct Binding {
    view: View,
    /// The stream whose slice the tensor holds.
    stream: Option<usize>,
}

struct Unroller<'p> {
    program: &'p Program,
    scalars: Scalars<'p>,
    /// `None`: one rank computes whole tensors.
    rank: Option<usize>,
    ranks: usize,
    tape: Tape,
    bindings: FxHashMap<TensorId, Binding>,
    /// The slices of tensors that only other ranks hold.
    slices: FxHashMap<TensorId, usize>,
    streams: FxHashMap<Stream, usize>,
    indexed: FxHashMap<i64, usize>,
    current: usize,
    /// The steps that posted communications, by number; `None` for one that concerns other ranks only.
    posted: FxHashMap<u32, Option<usize>>,
    /// How many transfers were posted to a channel, by side of a pair.
    counts: FxHashMap<(Channel, bool), usize>,
    group: Option<Vec<Transfer>>,
    /// Handles that were exchanged: the number of the transfer, the peer and the place in memory.
    shared: FxHashSet<(Option<u32>, usize, usize, usize)>,
    loops: usize,
    iterations: usize,
    stmt: StmtId,
    span: Span,
}

/// Returns what a rank of `ranks` executes, or without a rank what the program computes on whole tensors.
///
/// # Errors
/// What cannot be certified, by name.
pub(crate) fn unroll(program: &Program, rank: Option<usize>, ranks: usize) -> Result<Tape> {
    let (buffers, steps, inputs, outputs) = Default::default();
    let tape = Tape { buffers, steps, last_stream: 0, inputs, outputs };
    let mut it = Unroller {
        program,
        scalars: Scalars::new(program, rank.unwrap_or(0)),
        rank,
        ranks,
        tape,
        bindings: FxHashMap::default(),
        slices: FxHashMap::default(),
        streams: FxHashMap::default(),
        indexed: FxHashMap::default(),
        current: 0,
        posted: FxHashMap::default(),
        counts: FxHashMap::default(),
        group: None,
        shared: FxHashSet::default(),
        loops: 0,
        iterations: 0,
        stmt: StmtId::from_index(0),
        span: program.spans.header,
    };
    for tensor in Program::tensors_of(&program.inputs) {
        let port = if it.holds(tensor) {
            let view = it.allocate(tensor)?;
            Some((view, it.part(tensor, None)?))
        } else {
            None
        };
        it.tape.inputs.push(port);
    }
    if let Some(body) = program.body {
        it.block(body)?;
    }
    (it.span, it.tape.last_stream) = (program.spans.header, it.current);
    for tensor in Program::tensors_of(&program.outputs) {
        let port = if it.holds(tensor) { Some((it.view(tensor)?, it.part(tensor, None)?)) } else { None };
        it.tape.outputs.push(port);
    }
    Ok(it.tape)
}

impl Unroller<'_> {
    fn refuse(&self, message: impl Into<String>) -> Box<Diagnostic> {
        let label = self.rank.map_or("computed here".to_owned(), |it| format!("rank {it} executes this"));
        Box::new(Diagnostic::new(Code::NotCertifiable, self.span, message, label))
    }

    fn need<T>(&self, value: Option<T>, what: &str) -> Result<T> {
        value.ok_or_else(|| self.refuse(format!("{what} has no value that hir-certify can compute")))
    }

    fn holds(&self, tensor: TensorId) -> bool {
        self.rank.is_none_or(|rank| self.program.tensors[tensor].mesh.contains(rank))
    }

    fn view(&self, tensor: TensorId) -> Result<View> {
        let bound = self.bindings.get(&tensor).map(|it| it.view.clone());
        bound
            .ok_or_else(|| self.refuse(format!("`{}` has no storage here", self.program.tensor_name(tensor))))
    }

    /// Returns the part of this rank, or of a member if this rank is outside the mesh.
    fn part(&self, tensor: TensorId, stream: Option<usize>) -> Result<Part> {
        let member = self.program.tensors[tensor].mesh.devices.first().copied();
        let rank = if self.holds(tensor) { self.rank } else { Some(member.unwrap_or(0)) };
        let stream = self.bindings.get(&tensor).and_then(|it| it.stream).or(stream);
        let part = Part::of(self.program, &self.scalars, tensor, rank, stream);
        part.map_err(|why| self.refuse(format!("`{}`: {why}", self.program.tensor_name(tensor))))
    }

    /// Binds a tensor to a new buffer.
    fn allocate(&mut self, tensor: TensorId) -> Result<View> {
        let shape = self.part(tensor, None)?.shape();
        if shape.iter().fold(1, |all: usize, it| all.saturating_mul((*it).max(1))) > MAX_ELEMENTS {
            let name = self.program.tensor_name(tensor);
            return Err(self.refuse(format!("`{name}` has more than {MAX_ELEMENTS} elements on a rank")));
        }
        let view = View::contiguous(self.tape.buffers.len(), shape);
        self.tape.buffers.push(view.len());
        self.bindings.insert(tensor, Binding { view: view.clone(), stream: None });
        Ok(view)
    }

    fn output_view(&mut self, tensor: TensorId) -> Result<View> {
        match self.bindings.get(&tensor) {
            Some(bound) => Ok(bound.view.clone()),
            None => self.allocate(tensor),
        }
    }

    fn push(&mut self, kind: StepKind) -> Result<usize> {
        if self.tape.steps.len() >= MAX_STEPS {
            return Err(self.refuse(format!("the program has more than {MAX_STEPS} steps on a rank")));
        }
        self.tape.steps.push(Step { stmt: self.stmt, stream: self.current, kind });
        Ok(self.tape.steps.len() - 1)
    }

    // ---- control flow

    fn block(&mut self, block: BlockId) -> Result<()> {
        let program = self.program;
        for id in program.block(block) {
            (self.stmt, self.span) = (*id, program.stmt_span(*id));
            match &program.stmts[*id] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => {
                    let value = self.need(self.scalars.eval(*value).ok(), "the scalar")?;
                    self.scalars.bind(*symbol, Some(value));
                }
                Stmt::For(it) => self.for_loop(it)?,
                Stmt::If(it) => {
                    let value = self.scalars.truth(it.cond).ok().filter(|_| it.kind == If::MANUAL);
                    let taken = self.need(value, "the predicate")?;
                    if let Some(block) = if taken { Some(it.then_block) } else { it.else_block } {
                        self.block(block)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, it: &For) -> Result<()> {
        let start = self.need(self.scalars.int(it.start).ok(), "the loop's start")?;
        let stop = self.need(self.scalars.int(it.stop).ok(), "the loop's end")?;
        // The `in` form unbinds what it defines from its index.
        let rebound =
            if it.axis.is_some() { grammar::loop_variant_tensors(self.program, it) } else { Vec::new() };
        let before = self.scalars.bind(it.index, None);
        self.loops += 1;
        for value in start..stop {
            self.iterations += 1;
            if self.iterations > MAX_STEPS {
                return Err(self.refuse(format!("the loops have more than {MAX_STEPS} iterations on a rank")));
            }
            self.scalars.bind(it.index, Some(Value::Int(value)));
            for tensor in &rebound {
                self.bindings.remove(tensor);
            }
            self.block(it.body)?;
        }
        self.loops -= 1;
        self.scalars.bind(it.index, before);
        Ok(())
    }

    fn op(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op.def().class {
            OpClass::Stream => self.stream_op(stmt),
            OpClass::Allocate => self.allocation(stmt),
            OpClass::Deallocate => {
                Program::tensors_of(&stmt.args).for_each(|it| _ = self.bindings.remove(&it));
                Ok(())
            }
            OpClass::View => self.view_op(stmt),
            OpClass::Compute | OpClass::Elementwise => self.compute(stmt),
            OpClass::HostUnit => self.host_unit(stmt),
            OpClass::Communicate => self.communicate(stmt),
            OpClass::Coalescing if stmt.op == Op::StartCoalescing => {
                self.group = Some(Vec::new());
                Ok(())
            }
            OpClass::Coalescing => {
                let group = self.group.take().unwrap_or_default();
                self.post(stmt.number, group)
            }
            OpClass::ShareHandles => self.exchange(stmt),
            OpClass::Wait => self.wait(stmt),
            OpClass::Opaque => Err(self.unknown(stmt.op)),
        }
    }

    fn unknown(&self, op: Op) -> Box<Diagnostic> {
        self.refuse(format!("hir-certify does not know what `{}` computes", op.name()))
    }

    // ---- streams and storage

    fn stream(&mut self, stream: StreamId) -> Result<usize> {
        // Stream 0 of the tape is that at entry, which has no index.
        let next = 1 + self.indexed.len();
        match &self.program.streams[stream] {
            named @ Stream::Named(_) => self.need(self.streams.get(named).copied(), "the stream"),
            Stream::Index(index) => {
                let index = self.need(self.scalars.int(*index).ok(), "the stream's index")?;
                Ok(*self.indexed.entry(index).or_insert(next))
            }
        }
    }

    fn stream_op(&mut self, stmt: &OpStmt) -> Result<()> {
        if let [Named::Stream(captured)] = stmt.outs[..] {
            let stream = self.program.streams[captured].clone();
            self.streams.entry(stream).or_insert(self.current);
        } else if let [Named::Stream(stream)] = stmt.args[..] {
            let stream = self.stream(stream)?;
            if stmt.op == Op::SetCurrentStream {
                self.current = stream;
            } else {
                self.push(StepKind::Synchronize(stream))?;
            }
        }
        Ok(())
    }

    fn allocation(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(tensor) = stmt.out_tensor() else { return Ok(()) };
        let is_bound = self.bindings.contains_key(&tensor);
        if !self.holds(tensor) || is_bound && stmt.op == Op::AllocateOnce {
            return Ok(());
        }
        if let Some(alias) = stmt.get(attr::ALIAS) {
            let (view, shape) = (self.view(alias)?, self.part(tensor, None)?.shape());
            let view = self.need(view.reshape(&shape), "the view of an alias")?;
            self.bindings.insert(tensor, Binding { view, stream: None });
            return Ok(());
        }
        self.bindings.remove(&tensor);
        let view = self.allocate(tensor)?;
        if stmt.get(attr::ZERO_INIT) == Some(true) {
            self.push(StepKind::Zero(view.buffer))?;
        }
        Ok(())
    }

    fn view_op(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(out), Some(input)) = (stmt.out_tensor(), Program::tensors_of(&stmt.args).next()) else {
            return Err(self.unknown(stmt.op));
        };
        // A `select` outside of loops, of an index that no rank determines, indexes the whole axis.
        let of_rank = |it: ExprId| {
            let is_rank = |symbol| matches!(self.program.symbols[symbol].as_str(), "rank" | "deviceIdx.x");
            self.program.depends_on(it, &is_rank)
        };
        let is_own = self.loops > 0 || stmt.get(attr::INDEX).is_none_or(of_rank);
        if stmt.op == Op::Select && !is_own && !self.is_local(stmt, &[input], out)? {
            return self.compute(stmt);
        }
        if !self.holds(out) || !self.holds(input) {
            let index = stmt.get(attr::STREAM_INDEX).and_then(|it| size(&self.scalars, it));
            index.into_iter().for_each(|it| _ = self.slices.insert(out, it));
            return Ok(());
        }
        let view = self.view(input)?;
        let (view, stream) = if stmt.op == Op::ShardByStream {
            let (view, index) = self.chunk(stmt, input, &view)?;
            (view, Some(index))
        } else {
            let shape = self.part(out, None)?.shape();
            let value = |it| self.scalars.eval(it).ok();
            let view = rearranged(self.program, stmt, &value, &view, input, out, &shape);
            (self.need(view, "the view")?, self.bindings.get(&input).and_then(|it| it.stream))
        };
        self.bindings.insert(out, Binding { view, stream });
        Ok(())
    }

    /// Returns one stream's chunk of a view, and its number.
    fn chunk(&self, stmt: &OpStmt, input: TensorId, view: &View) -> Result<(View, usize)> {
        let axis = self.part(input, None)?.stream_axis();
        let (dim, count) = self.need(axis, "the chunk of a stream")?;
        let index = stmt.get(attr::STREAM_INDEX).and_then(|it| size(&self.scalars, it));
        let mut index = self.need(index.filter(|it| *it < count), "the stream's index")?;
        let it = &self.program.tensors[input];
        let is_stream = |step: &Transform| matches!(step, Transform::Swizzle1D { output, .. } if self.program.axes[*output].parallel == ParallelType::Stream);
        if it.domains.transforms.iter().any(is_stream) {
            index = (index
                + it.mesh.coordinate(self.rank.unwrap_or(0), grammar::ir::DeviceDim::X).unwrap_or(0))
                % count;
        }
        let len = view.shape[dim] / count;
        Ok((view.narrow(dim, index * len, len), index))
    }

    // ---- operators

    fn held_slice(&self, tensor: TensorId) -> Option<usize> {
        let bound = self.bindings.get(&tensor).and_then(|it| it.stream);
        if self.holds(tensor) { bound } else { self.slices.get(&tensor).copied() }
    }
}

/// Returns whether the elements of a tensor are integers or truth values.
pub(crate) fn is_integral(program: &Program, tensor: TensorId) -> bool {
    program.tensors[tensor].dtype.is_some_and(|it| matches!(it.class(), Class::Int | Class::Bool))
}
