//! Walks a program as one rank does and writes down what it comes to.
//!
//! Names are bound to views as the statements go by, exactly as nvFuser's interpreter binds them (format survey,
//! section 8), so an operator whose result is bound writes into it and one whose result is not binds a new buffer.

use grammar::{
    arena::Id,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{
        Attr, BlockId, ExprId, For, If, OpStmt, Operand, Program, Stmt, StmtId, Stream, StreamId, SymbolId,
        TensorId,
    },
    ops::{Effect, Op},
    span::{LineIndex, Span},
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Buffer, BufferNo, Frame, Inst, InstKind, Origin, Plan, Port, Shard, Side, StreamNo, View,
    comm::Pending,
    limits,
    scalar::{ScalarFault, Scalars, Value},
    shape::{self, ShapeFault},
};

/// What a name stands for.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    /// The elements.
    pub(super) view: View,
    /// Which stream's slice it is, for tensors that hold one.
    pub(super) stream: Option<usize>,
}

/// A fault ends the planning of a rank.
pub(super) type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// State of the walk.
pub(super) struct Builder<'p> {
    pub(super) program: &'p Program,
    lines: &'p LineIndex,
    pub(super) scalars: Scalars<'p>,
    bindings: Vec<Option<Binding>>,
    pub(super) plan: Plan,
    streams: FxHashMap<Key, StreamNo>,
    pub(super) current: StreamNo,
    /// The statement under the cursor.
    pub(super) span: Span,
    origin: u32,
    frame: Option<u32>,
    /// Enclosing branches and loops that other ranks may not enter as this one does.
    divergent: usize,
    /// Posted work by the number that `Wait` names.
    pub(super) posted: FxHashMap<u32, Pending>,
    /// Sides collected since StartCoalescing.
    pub(super) bracket: Option<Vec<Side>>,
    pub(super) comm: super::comm::State,
    /// Tensors that a loop's index gives their meaning, by loop.
    dependents: FxHashMap<BlockId, Vec<TensorId>>,
}

/// What makes two Stream values the same stream.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Named(u32),
    Index(i64),
}

/// The plan of one rank, not linked to the others yet, and what `link` needs to do so.
pub(super) fn build_rank(
    program: &Program,
    lines: &LineIndex,
    rank: usize,
    world: usize,
) -> Result<(Plan, super::comm::State)> {
    let plan = Plan {
        rank,
        world,
        streams: vec!["main".to_owned()],
        buffers: Vec::new(),
        communicators: Vec::new(),
        code: Vec::new(),
        origins: vec![Origin { stmt: None, line: 0, frame: None }],
        frames: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        named: Vec::new(),
        events: 0,
        works: 0,
    };
    let mut builder = Builder {
        program,
        lines,
        scalars: Scalars::new(program, rank),
        bindings: vec![None; program.tensors.len()],
        plan,
        streams: FxHashMap::default(),
        current: 0,
        span: program.spans.header,
        origin: 0,
        frame: None,
        divergent: 0,
        posted: FxHashMap::default(),
        bracket: None,
        comm: super::comm::State::default(),
        dependents: FxHashMap::default(),
    };
    builder.inputs()?;
    if let Some(body) = program.body {
        builder.block(body)?;
    }
    builder.outputs()?;
    Ok((builder.plan, builder.comm))
}

impl Builder<'_> {
    pub(super) fn rank(&self) -> usize {
        self.plan.rank
    }

    // ---- names

    /// Whether this rank holds a part of the tensor.
    pub(super) fn is_here(&self, tensor: TensorId) -> bool {
        self.program.tensors[tensor].mesh.contains(self.rank())
    }

    pub(super) fn binding(&self, tensor: TensorId) -> Option<&Binding> {
        self.bindings[tensor.index()].as_ref()
    }

    /// The view of a tensor that has to have one.
    pub(super) fn view(&self, tensor: TensorId) -> Result<View> {
        match self.binding(tensor) {
            Some(binding) => Ok(binding.view.clone()),
            None => {
                let name = self.program.tensor_name(tensor);
                Err(self.fault(
                    Code::UndefinedTensor,
                    format!("`{name}` has neither storage nor a value"),
                    "used here",
                ))
            }
        }
    }

    pub(super) fn bind(&mut self, tensor: TensorId, view: View, stream: Option<usize>) {
        self.bindings[tensor.index()] = Some(Binding { view, stream });
    }

    /// The view that an operator writes to: the bound one, or that of a new buffer.
    pub(super) fn target(&mut self, tensor: TensorId) -> Result<View> {
        if let Some(binding) = self.binding(tensor) {
            return Ok(binding.view.clone());
        }
        self.allocate(tensor, false)
    }

    /// Binds a new buffer of the tensor's local shape.
    fn allocate(&mut self, tensor: TensorId, zero: bool) -> Result<View> {
        let shape = self.layout(tensor)?.local_shape();
        let buffer = self.buffer(tensor, shape.iter().product());
        let view = View::contiguous(buffer, shape);
        self.emit(InstKind::Alloc { buffer, zero });
        self.bind(tensor, view.clone(), None);
        Ok(view)
    }

    pub(super) fn dtype(&self, tensor: TensorId) -> DType {
        // Dialects before September 2024 do not print the type; nvFuser's default is float.
        self.program.tensors[tensor].dtype.unwrap_or(DType::Float)
    }

    fn buffer(&mut self, tensor: TensorId, len: usize) -> BufferNo {
        let buffer = Buffer { name: self.program.tensor_name(tensor), dtype: self.dtype(tensor), len };
        self.plan.buffers.push(buffer);
        self.plan.buffers.len() as BufferNo - 1
    }

    pub(super) fn layout(&self, tensor: TensorId) -> Result<super::Layout> {
        self.layout_on(tensor, self.rank())
    }

    /// The layout of a tensor on any rank of its mesh, as far as this rank's scalars tell.
    pub(super) fn layout_on(&self, tensor: TensorId, rank: usize) -> Result<super::Layout> {
        let stream = self.binding(tensor).and_then(|it| it.stream);
        shape::layout(self.program, &self.scalars, tensor, rank, stream).map_err(|fault| {
            let name = self.program.tensor_name(tensor);
            match fault {
                ShapeFault::Scalar(fault) => self.scalar_fault(fault, &format!("an extent of `{name}`")),
                ShapeFault::Extent(message) => {
                    self.fault(Code::BadIndex, format!("`{name}`: {message}"), "needed here")
                }
                ShapeFault::Size => {
                    let message = format!("`{name}` has more than {} elements", limits::ELEMENTS);
                    self.fault(Code::TooLarge, message, "needed here")
                }
            }
        })
    }

    // ---- faults

    /// A fault at the statement under the cursor; says on which rank and iteration.
    pub(super) fn fault(
        &self,
        code: Code,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Box<Diagnostic> {
        let mut place = format!("rank {}", self.rank());
        let mut frame = self.frame;
        while let Some(it) = frame.map(|at| &self.plan.frames[at as usize]) {
            place += &format!(", {}={}", it.name, it.value);
            frame = it.parent;
        }
        Box::new(Diagnostic::new(code, self.span, format!("{} ({place})", message.into()), label))
    }

    fn scalar_fault(&self, fault: ScalarFault, what: &str) -> Box<Diagnostic> {
        match fault {
            ScalarFault::Unbound(symbol) => {
                let name = &self.program.symbols[symbol];
                let message = format!("{what} needs `{name}`, which has no value here");
                let it = self.fault(Code::UnboundSymbol, message, "needed here");
                Box::new(it.help(format!("give it with `--set {name}=…`")))
            }
            ScalarFault::Arithmetic(message) => {
                self.fault(Code::BadIndex, format!("{what}: {message}"), "needed here")
            }
        }
    }

    pub(super) fn int(&self, expr: ExprId, what: &str) -> Result<i64> {
        self.scalars.int(expr).map_err(|fault| self.scalar_fault(fault, what))
    }

    pub(super) fn value(&self, expr: ExprId, what: &str) -> Result<Value> {
        self.scalars.eval(expr).map_err(|fault| self.scalar_fault(fault, what))
    }

    /// An integer that has to be an index below `bound`.
    pub(super) fn index(&self, expr: ExprId, bound: usize, what: &str) -> Result<usize> {
        let value = self.int(expr, what)?;
        let index = usize::try_from(value).ok().filter(|index| *index < bound);
        index.ok_or_else(|| {
            let text = grammar::expr_text(self.program, expr);
            self.fault(
                Code::BadIndex,
                format!("{what} `{text}` is {value}"),
                format!("expected 0 up to {}", bound as i64 - 1),
            )
        })
    }

    pub(super) fn unsupported(&self, op: Op, why: &str) -> Box<Diagnostic> {
        let message = format!("`{}` does not run: {why}", op.name());
        self.fault(Code::Unsupported, message, "no instruction for this")
    }

    // ---- instructions

    pub(super) fn emit(&mut self, kind: InstKind) {
        self.emit_on(self.current, kind);
    }

    pub(super) fn emit_on(&mut self, stream: StreamNo, kind: InstKind) {
        self.plan.code.push(Inst { kind, stream, origin: self.origin });
    }

    fn at(&mut self, stmt: StmtId) -> Result<()> {
        self.span = self.program.stmt_span(stmt);
        let line = self.lines.line(self.span.start);
        self.plan.origins.push(Origin { stmt: Some(stmt), line, frame: self.frame });
        self.origin = self.plan.origins.len() as u32 - 1;
        self.bounded(self.plan.origins.len().max(self.plan.code.len()))
    }

    /// Stops unrolling at `count` instructions, or iterations of loops without any.
    fn bounded(&self, count: usize) -> Result<()> {
        if count > limits::INSTRUCTIONS {
            let message = format!("the program unrolls to more than {} instructions", limits::INSTRUCTIONS);
            return Err(self.fault(Code::TooLong, message, "reached here"));
        }
        Ok(())
    }

    // ---- ports

    fn inputs(&mut self) -> Result<()> {
        for tensor in Program::tensors_of(&self.program.inputs).collect::<Vec<_>>() {
            self.span = self.program.tensor_span(tensor);
            let port = match self.is_here(tensor) {
                true => {
                    let layout = self.layout(tensor)?;
                    let shape = layout.local_shape();
                    let buffer = self.buffer(tensor, shape.iter().product());
                    let view = View::contiguous(buffer, shape);
                    self.bind(tensor, view.clone(), None);
                    Shard { view: Some(view), layout }
                }
                false => self.absent(tensor)?,
            };
            let port = self.port(tensor, port);
            self.plan.inputs.push(port);
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<()> {
        (self.origin, self.frame) = (0, None);
        for tensor in Program::tensors_of(&self.program.outputs).collect::<Vec<_>>() {
            self.span = self.program.tensor_span(tensor);
            let port = match self.is_here(tensor) {
                true => {
                    let layout = self.layout(tensor)?;
                    let Some(view) = self.binding(tensor).map(|it| it.view.clone()) else {
                        let name = self.program.tensor_name(tensor);
                        let message = format!("no statement gives the output `{name}` storage or a value");
                        return Err(self.fault(Code::UndefinedTensor, message, "declared here"));
                    };
                    if view.shape != layout.local_shape() {
                        let name = self.program.tensor_name(tensor);
                        let message = format!(
                            "output `{name}` is bound to {:?}, not {:?}",
                            view.shape,
                            layout.local_shape()
                        );
                        return Err(self.fault(Code::RuntimeShape, message, "declared here"));
                    }
                    Shard { view: Some(view), layout }
                }
                false => self.absent(tensor)?,
            };
            let port = self.port(tensor, port);
            self.plan.outputs.push(port);
        }
        self.name_all();
        self.emit(InstKind::Finish);
        Ok(())
    }

    /// The shard of a rank outside the mesh: nothing, of a whole whose shape a member tells.
    fn absent(&self, tensor: TensorId) -> Result<Shard> {
        let member = self.program.tensors[tensor].mesh.devices.first().copied().unwrap_or(0);
        Ok(Shard { view: None, layout: self.layout_on(tensor, member)? })
    }

    fn port(&self, tensor: TensorId, shard: Shard) -> Port {
        Port { name: self.program.tensor_name(tensor), dtype: self.dtype(tensor), shard }
    }

    /// Lists what is bound, for those who want to look at more than the outputs.
    fn name_all(&mut self) {
        for (tensor, it) in self.program.tensors.iter() {
            let (None, Some(binding)) = (it.unit, self.binding(tensor)) else { continue };
            let Ok(layout) = self.layout(tensor) else { continue };
            let shard = Shard { view: Some(binding.view.clone()), layout };
            let port = self.port(tensor, shard);
            self.plan.named.push(port);
        }
    }

    // ---- statements

    pub(super) fn block(&mut self, block: BlockId) -> Result<()> {
        let program = self.program;
        for stmt in program.block(block) {
            self.at(*stmt)?;
            match &program.stmts[*stmt] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => {
                    let value = self.value(*value, "the definition")?;
                    self.scalars.bind(*symbol, Some(value));
                }
                Stmt::For(it) => self.for_loop(it)?,
                Stmt::If(it) => self.branch(it)?,
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, it: &For) -> Result<()> {
        let (start, stop) = (self.int(it.start, "the loop's start")?, self.int(it.stop, "the loop's end")?);
        let divergent = [it.start, it.stop].iter().any(|bound| self.scalars.depends_on_rank(*bound));
        let (outer_frame, origin, span) = (self.frame, self.origin, self.span);
        let outer_value = self.scalars.bind(it.index, None);
        // The `in` form forgets, every iteration, what the index gave its meaning; the `from` form does not.
        let dependents = if it.axis.is_some() { self.dependents(it) } else { Vec::new() };
        self.divergent += usize::from(divergent);
        for value in start..stop {
            (self.origin, self.span) = (origin, span);
            self.scalars.bind(it.index, Some(Value::Int(value)));
            let name = self.program.symbols[it.index].clone();
            self.plan.frames.push(Frame { name, value, parent: outer_frame });
            self.frame = Some(self.plan.frames.len() as u32 - 1);
            self.bounded(self.plan.frames.len())?;
            for tensor in &dependents {
                self.bindings[tensor.index()] = None;
            }
            self.block(it.body)?;
        }
        self.divergent -= usize::from(divergent);
        self.frame = outer_frame;
        self.scalars.bind(it.index, outer_value);
        Ok(())
    }

    /// Tensors defined in a loop's body from its index, directly or through others.
    fn dependents(&mut self, it: &For) -> Vec<TensorId> {
        if let Some(known) = self.dependents.get(&it.body) {
            return known.clone();
        }
        let mut found: FxHashSet<TensorId> = FxHashSet::default();
        let index = it.index;
        self.program.walk(it.body, &mut |stmt| {
            let Stmt::Op(op) = &self.program.stmts[stmt] else { return };
            let scalar = |expr: &ExprId| self.scalars.depends_on(*expr, &|symbol: SymbolId| symbol == index);
            let by_index =
                op.attrs.iter().any(|(_, attr)| matches!(attr, Attr::Scalar(expr) if scalar(expr)));
            let by_tensor = Program::tensors_of(&op.args).any(|arg| found.contains(&arg));
            if by_index || by_tensor {
                found.extend(Program::tensors_of(&op.outs));
            }
        });
        let found: Vec<TensorId> = found.into_iter().collect();
        self.dependents.insert(it.body, found.clone());
        found
    }

    fn branch(&mut self, it: &If) -> Result<()> {
        let taken = self.scalars.truth(it.cond).map_err(|fault| self.scalar_fault(fault, "the predicate"))?;
        let divergent = self.scalars.depends_on_rank(it.cond);
        self.divergent += usize::from(divergent);
        match (taken, it.other) {
            (true, _) => self.block(it.then)?,
            (false, Some(other)) => self.block(other)?,
            (false, None) => (),
        }
        self.divergent -= usize::from(divergent);
        Ok(())
    }

    fn op(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op.row().effect {
            Effect::Stream => self.stream_op(stmt),
            Effect::Allocate => self.allocation(stmt),
            Effect::Deallocate => {
                for (_, attr) in &stmt.attrs {
                    if let Attr::Tensor(tensor) = attr {
                        self.deallocate(*tensor)?;
                    }
                }
                Program::tensors_of(&stmt.args).try_for_each(|tensor| self.deallocate(tensor))
            }
            Effect::View => self.view_op(stmt),
            Effect::Compute | Effect::Map => self.compute(stmt),
            Effect::Unit => self.post_unit(stmt),
            Effect::Communicate => self.communicate(stmt),
            Effect::Group => self.coalesce(stmt),
            Effect::Share => self.share(stmt),
            Effect::Wait => self.wait(stmt),
            Effect::Opaque => Err(self.unsupported(stmt.op, "the text does not hold the kernel")),
        }
    }

    pub(super) fn is_divergent(&self) -> bool {
        self.divergent > 0
    }

    // ---- streams

    fn stream(&mut self, stream: StreamId) -> Result<StreamNo> {
        let (key, name) = match &self.program.streams[stream] {
            Stream::Named(number) => match self.streams.get(&Key::Named(*number)) {
                Some(known) => return Ok(*known),
                None => {
                    let message = format!("stream `s{number}` is not captured yet");
                    return Err(self.fault(Code::UndefinedStream, message, "used here"));
                }
            },
            Stream::Index(index) => {
                let index = self.int(*index, "the stream's index")?;
                (Key::Index(index), format!("stream {index}"))
            }
        };
        let next = self.plan.streams.len() as StreamNo;
        let number = *self.streams.entry(key).or_insert(next);
        if number == next {
            self.plan.streams.push(name);
        }
        Ok(number)
    }

    fn stream_op(&mut self, stmt: &OpStmt) -> Result<()> {
        let operand = |operands: &[Operand]| match operands {
            [Operand::Stream(stream)] => Some(*stream),
            _ => None,
        };
        if let Some(captured) = operand(&stmt.outs) {
            if let Stream::Named(number) = self.program.streams[captured] {
                // The first capture of a name stays.
                self.streams.entry(Key::Named(number)).or_insert(self.current);
            }
            return Ok(());
        }
        let Some(stream) = operand(&stmt.args) else { return Ok(()) };
        let stream = self.stream(stream)?;
        if stmt.op == Op::SetCurrentStream {
            self.current = stream;
        } else if stream != self.current {
            let event = self.plan.events as u32;
            self.plan.events += 1;
            self.emit_on(stream, InstKind::Record { event });
            self.emit(InstKind::Join { event });
        }
        Ok(())
    }

    // ---- storage and views

    fn allocation(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(tensor) = stmt.out_tensor() else { return Ok(()) };
        let bound = self.binding(tensor).is_some();
        if !self.is_here(tensor) || bound && stmt.op == Op::AllocateOnce {
            return Ok(());
        }
        if let Some(alias) = stmt.tensor_attr("alias") {
            let view = self.view(alias)?;
            self.fits(tensor, &view)?;
            self.bind(tensor, view, None);
            return Ok(());
        }
        self.allocate(tensor, stmt.flag_attr("zero_init")).map(|_| ())
    }

    /// A name is bound to a view of as many dimensions as it has.
    fn fits(&self, tensor: TensorId, view: &View) -> Result<()> {
        let (have, want) = (view.shape.len(), self.program.dimensions(tensor).count());
        if have != want {
            let name = self.program.tensor_name(tensor);
            let message = format!("`{name}` gets the shape {:?} where it has {want} dimensions", view.shape);
            return Err(self.fault(Code::RuntimeShape, message, "the shapes do not fit"));
        }
        Ok(())
    }

    fn deallocate(&mut self, tensor: TensorId) -> Result<()> {
        if self.is_here(tensor) {
            self.view(tensor)?;
            self.bindings[tensor.index()] = None;
        }
        Ok(())
    }

    fn view_op(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(out), Some(input)) = (stmt.out_tensor(), Program::tensors_of(&stmt.args).next()) else {
            return self.view_of_attr(stmt);
        };
        self.bind_view(stmt, out, input)
    }

    /// Views whose operand is an attribute of the row.
    fn view_of_attr(&mut self, stmt: &OpStmt) -> Result<()> {
        match (stmt.out_tensor(), stmt.tensor_attr("in")) {
            (Some(out), Some(input)) => self.bind_view(stmt, out, input),
            _ => Ok(()),
        }
    }

    fn bind_view(&mut self, stmt: &OpStmt, out: TensorId, input: TensorId) -> Result<()> {
        if !self.is_here(out) || !self.is_here(input) {
            return Ok(());
        }
        let view = self.view(input)?;
        let (view, stream) = match stmt.op {
            Op::ShardByStream => {
                let (view, at) = self.shard_by_stream(stmt, input, view)?;
                (view, Some(at))
            }
            Op::HirAliasSelect | Op::Select => {
                (self.select(stmt, input, view)?, self.binding(input).and_then(|it| it.stream))
            }
            _ => {
                return Err(
                    self.unsupported(stmt.op, "it maps the memory of all ranks into one address range")
                );
            }
        };
        self.bind(out, view.clone(), stream);
        let wanted = self.layout(out)?.local_shape();
        if view.shape != wanted {
            let name = self.program.tensor_name(out);
            let message =
                format!("`{name}` gets the shape {:?} where its domain says {wanted:?}", view.shape);
            return Err(self.fault(Code::RuntimeShape, message, "the view's shape does not fit"));
        }
        Ok(())
    }

    fn select(&self, stmt: &OpStmt, input: TensorId, view: View) -> Result<View> {
        let (Some(Attr::Axis(axis)), Some(index)) = (stmt.attr("axis"), stmt.scalar_attr("index")) else {
            return Ok(view);
        };
        // A reduction axis is no dimension; one of extent 1 has one index, whatever is asked for.
        let Some(dim) = self.program.dimensions(input).position(|it| it == *axis) else { return Ok(view) };
        let index = match view.shape[dim] {
            1 => 0,
            extent => self.index(index, extent, "the index")?,
        };
        Ok(view.select(dim, index))
    }

    fn shard_by_stream(&self, stmt: &OpStmt, input: TensorId, view: View) -> Result<(View, usize)> {
        let Some((dim, at, swizzled)) = shape::stream_piece(self.program, input) else {
            return Err(self.unsupported(stmt.op, "its operand has no stream axis"));
        };
        let layout = self.layout(input)?;
        let local = |pieces: &[super::Piece]| -> usize {
            pieces.iter().filter(|it| it.coordinate.is_none()).map(|it| it.extent).product()
        };
        let pieces = &layout.pieces[dim];
        if pieces[at].coordinate.is_some() || local(&pieces[..at]) != 1 {
            return Err(
                self.unsupported(stmt.op, "the stream axis is not the outermost part of its dimension")
            );
        }
        let count = pieces[at].extent;
        let Some(expr) = stmt.scalar_attr("stream_index") else { return Ok((view, 0)) };
        let mut index = self.index(expr, count, "the stream's index")?;
        if swizzled {
            let mesh = &self.program.tensors[input].mesh;
            let me = mesh.coordinate(self.rank(), grammar::ir::DeviceDim::X).unwrap_or(0);
            index = (index + me) % count;
        }
        let chunk = view.shape[dim] / count.max(1);
        Ok((view.narrow(dim, index * chunk, chunk), index))
    }

    // ---- HostUnits

    /// Writes a unit's statements in place: every unit tensor gets a view, the ports those of the posting statement.
    fn post_unit(&mut self, stmt: &OpStmt) -> Result<()> {
        let program = self.program;
        let (Some(Attr::Unit(id)), Some(Attr::Values(inputs)), Some(Attr::Values(outputs))) =
            (stmt.attr("unit"), stmt.attr("Inputs"), stmt.attr("Outputs"))
        else {
            return Ok(());
        };
        let unit = &program.units[*id];
        let here = Program::tensors_of(outputs).any(|tensor| self.is_here(tensor));
        if !here {
            return Ok(());
        }
        let Some(body) = unit.body else {
            return Err(self
                .unsupported(stmt.op, &format!("the text leaves out the body of HostUnit{}", unit.number)));
        };
        if (inputs.len(), outputs.len()) != (unit.inputs.len(), unit.outputs.len()) {
            let message = format!(
                "HostUnit{} has {} inputs and {} outputs, and is posted with {} and {}",
                unit.number,
                unit.inputs.len(),
                unit.outputs.len(),
                inputs.len(),
                outputs.len()
            );
            return Err(self.fault(Code::BadOperands, message, "posted here"));
        }
        program.walk(body, &mut |stmt| {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                Program::tensors_of(&it.outs).for_each(|out| self.bindings[out.index()] = None);
            }
        });
        for (inner, outer) in unit.inputs.iter().zip(inputs) {
            match (inner, outer) {
                (Operand::Tensor(inner), Operand::Tensor(outer)) => {
                    let view = self.view(*outer)?;
                    self.fits(*inner, &view)?;
                    self.bind_extents(*inner, &view);
                    self.bind(*inner, view, None);
                }
                (Operand::Scalar(inner), Operand::Scalar(outer)) => {
                    let value = self.value(*outer, "the unit's operand")?;
                    if let grammar::ir::Expr::Symbol(symbol) = program.exprs[*inner] {
                        self.scalars.bind(symbol, Some(value));
                    }
                }
                _ => {
                    let message = format!(
                        "HostUnit{} takes a tensor where a scalar is given, or the reverse",
                        unit.number
                    );
                    return Err(self.fault(Code::BadOperands, message, "posted here"));
                }
            }
        }
        let ports = Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs));
        let ports: Vec<(TensorId, TensorId)> = ports.collect();
        for (inner, outer) in &ports {
            let view = match self.binding(*outer) {
                Some(bound) => bound.view.clone(),
                None => {
                    let view = self.allocate(*inner, false)?;
                    self.fits(*outer, &view)?;
                    self.bind(*outer, view.clone(), None);
                    view
                }
            };
            self.fits(*inner, &view)?;
            self.bind(*inner, view, None);
        }
        let (origin, span) = (self.origin, self.span);
        let program_block: Vec<StmtId> = program.block(body).to_vec();
        for inner in program_block {
            // Instructions of a unit keep the place of the posting statement: that is what a user steps through.
            (self.origin, self.span) = (origin, span);
            match &program.stmts[inner] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => {
                    let value = self.value(*value, "the definition")?;
                    self.scalars.bind(*symbol, Some(value));
                }
                Stmt::For(_) | Stmt::If(_) => {
                    return Err(self.unsupported(stmt.op, "a HostUnit holds operators only"));
                }
            }
        }
        Ok(())
    }

    /// Gives the symbols that are extents of a unit's input the values of the view that comes in.
    fn bind_extents(&mut self, tensor: TensorId, view: &View) {
        let program = self.program;
        for (axis, extent) in program.dimensions(tensor).zip(&view.shape) {
            let axis = &program.axes[axis];
            if let grammar::ir::Expr::Symbol(symbol) = program.exprs[axis.extent] {
                let whole = match axis.parallel {
                    grammar::ir::Parallel::Device(dim) => program.tensors[tensor].mesh.extent(dim),
                    grammar::ir::Parallel::Serial
                    | grammar::ir::Parallel::Stream
                    | grammar::ir::Parallel::Kernel(_) => *extent,
                };
                self.scalars.bind(symbol, Some(Value::Int(whole as i64)));
            }
        }
    }
}
