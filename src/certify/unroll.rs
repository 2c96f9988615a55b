//! Executes the control flow of a rank, which depends on no tensor, and records its steps.

use std::mem;

use grammar::{
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::Class,
    ir::{
        BlockId, DeviceDim, ExprId, For, If, OpStmt, Operand as Named, ParallelType, Program, Stmt, StmtId,
        Stream, StreamId, TensorId, Transform,
    },
    loop_variant_tensors,
    ops::{Op, OpClass},
    scalars::{Scalars, Value},
    span::Span,
};
use ndarray::{Axis, Slice};
use rustc_hash::{FxHashMap, FxHashSet};

use self::communication::Posted;
use crate::{
    operators::rearranged,
    part::{Part, size},
    tape::{Channel, Effect, Function, Shared, Step, Tape},
    tensor::{View, array, reshape},
};

mod communication;
mod computation;

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// The largest number of steps of a rank.
const MAX_STEPS: usize = 4_000_000;

struct Unroller<'p> {
    program: &'p Program,
    scalars: Scalars<'p>,
    /// `None`: one rank computes whole tensors.
    rank: Option<usize>,
    ranks: usize,
    shared: &'p mut Shared,
    tape: Tape,
    views: FxHashMap<TensorId, View>,
    /// The stream whose slice a tensor has, here or on the ranks that hold it.
    slices: FxHashMap<TensorId, usize>,
    chains: FxHashMap<Channel, usize>,
    /// By chain: the steps that the next one waits for.
    frontiers: Vec<Vec<usize>>,
    /// The chains of captured streams.
    captured: FxHashMap<Stream, usize>,
    /// The chain of the current stream.
    current: usize,
    /// The steps that end communications, by number; `None` for one that concerns other ranks only.
    posted: FxHashMap<u32, Option<usize>>,
    /// How many transfers were posted to a channel, by member.
    counts: FxHashMap<(Channel, usize), usize>,
    /// The group of transfers that is open, with the channel of its first one.
    group: Option<Option<(Channel, Posted)>>,
    /// Handles that were exchanged: the number of the transfer, the peer, and the buffer with its first place.
    handles: FxHashSet<(Option<u32>, usize, usize, Option<usize>)>,
    loops: usize,
    iterations: usize,
    stmt: Option<StmtId>,
    span: Span,
}

/// Returns what a rank of `ranks` executes, or without a rank what the program computes on whole tensors.
///
/// # Errors
/// What cannot be certified, by name.
pub(crate) fn unroll(
    program: &Program,
    rank: Option<usize>,
    ranks: usize,
    shared: &mut Shared,
) -> Result<Tape> {
    let mut it = Unroller {
        program,
        scalars: Scalars::new(program, rank.unwrap_or(0)),
        rank,
        ranks,
        shared,
        tape: Tape::default(),
        views: FxHashMap::default(),
        slices: FxHashMap::default(),
        chains: FxHashMap::default(),
        frontiers: Vec::new(),
        captured: FxHashMap::default(),
        current: 0,
        posted: FxHashMap::default(),
        counts: FxHashMap::default(),
        group: None,
        handles: FxHashSet::default(),
        loops: 0,
        iterations: 0,
        stmt: None,
        span: program.spans.header,
    };
    it.current = it.chain(Channel::Stream(None));
    for tensor in Program::tensors_of(&program.inputs) {
        let port = if it.holds(tensor) { Some((it.allocate(tensor)?, it.part(tensor, None)?)) } else { None };
        it.tape.inputs.push(port);
    }
    let inputs: Vec<View> = it.tape.inputs.iter().flatten().map(|it| it.0.clone()).collect();
    it.push(Function::Enter, Vec::new(), inputs.clone())?;
    if let Some(body) = program.body {
        it.block(body)?;
    }
    (it.stmt, it.span) = (None, program.spans.header);
    for tensor in Program::tensors_of(&program.outputs) {
        let port = if it.holds(tensor) { Some((it.view(tensor)?, it.part(tensor, None)?)) } else { None };
        it.tape.outputs.push(port);
    }
    let outputs = it.tape.outputs.iter().flatten().map(|it| it.0.clone()).collect();
    it.push(Function::Exit, outputs, inputs)?;
    it.tape.chains = it.frontiers.len();
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

    // ---- tensors

    fn holds(&self, tensor: TensorId) -> bool {
        self.rank.is_none_or(|rank| self.program.tensors[tensor].mesh.contains(rank))
    }

    fn view(&self, tensor: TensorId) -> Result<View> {
        let missing = || self.refuse(format!("`{}` has no storage here", self.program.tensor_name(tensor)));
        self.views.get(&tensor).cloned().ok_or_else(missing)
    }

    /// Returns the part of this rank, or of a member if this rank is outside the mesh. `slice` is that of a tensor that has none yet.
    fn part(&self, tensor: TensorId, slice: Option<usize>) -> Result<Part> {
        let it = &self.program.tensors[tensor];
        if let (Some(_), Some(view)) = (it.unit, self.views.get(&tensor)) {
            return Ok(Part::all(view.places.shape()));
        }
        let member = || Some(it.mesh.devices.first().copied().unwrap_or(0));
        let rank = if self.holds(tensor) { self.rank } else { member() };
        let slice = self.slices.get(&tensor).copied().or(slice);
        let part = Part::of(self.program, &self.scalars, tensor, rank, slice);
        part.map_err(|why| self.refuse(format!("`{}`: {why}", self.program.tensor_name(tensor))))
    }

    fn buffer(&mut self, shape: &[usize]) -> View {
        let len = shape.iter().product();
        View { buffer: self.shared.allocate(len), places: array(shape, (0..len).collect()) }
    }

    fn bind(&mut self, tensor: TensorId, view: View, slice: Option<usize>) {
        self.unbind(tensor);
        self.views.insert(tensor, view);
        slice.into_iter().for_each(|it| _ = self.slices.insert(tensor, it));
    }

    fn unbind(&mut self, tensor: TensorId) {
        self.views.remove(&tensor);
        self.slices.remove(&tensor);
    }

    /// Binds a tensor to a new buffer.
    fn allocate(&mut self, tensor: TensorId) -> Result<View> {
        self.unbind(tensor);
        let shape = self.part(tensor, None)?.shape();
        let view = self.buffer(&shape);
        self.bind(tensor, view.clone(), None);
        Ok(view)
    }

    fn output_view(&mut self, tensor: TensorId) -> Result<View> {
        if self.views.contains_key(&tensor) { self.view(tensor) } else { self.allocate(tensor) }
    }

    // ---- steps

    fn chain(&mut self, channel: Channel) -> usize {
        let next = self.frontiers.len();
        let found = *self.chains.entry(channel).or_insert(next);
        if found == next {
            self.frontiers.push(Vec::new());
        }
        found
    }

    /// Makes the next step of a chain wait for others.
    fn wait_for(&mut self, chain: usize, steps: &[usize]) {
        let frontier = &mut self.frontiers[chain];
        frontier.extend(steps);
        frontier.sort_unstable();
        frontier.dedup();
    }

    /// Appends a step that computes what it writes from what it reads.
    fn push(&mut self, function: Function, reads: Vec<View>, writes: Vec<View>) -> Result<()> {
        let effects = vec![Effect { function, reads: reads.clone(), writes: writes.clone() }];
        let (stmt, chain) = (self.stmt, self.current);
        self.append(Step { stmt, chain, reads, writes, effects, ..Step::default() }).map(|_| ())
    }

    /// Appends a step behind what its chain has to wait for, and returns its number.
    fn append(&mut self, mut step: Step) -> Result<usize> {
        let at = self.tape.steps.len();
        if at >= MAX_STEPS {
            return Err(self.refuse(format!("the program has more than {MAX_STEPS} steps on a rank")));
        }
        step.after = mem::replace(&mut self.frontiers[step.chain], vec![at]);
        self.tape.steps.push(step);
        Ok(at)
    }

    // ---- control flow

    fn block(&mut self, block: BlockId) -> Result<()> {
        let program = self.program;
        for id in program.block(block) {
            (self.stmt, self.span) = (Some(*id), program.stmt_span(*id));
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
        let rebound = if it.axis.is_some() { loop_variant_tensors(self.program, it) } else { Vec::new() };
        let before = self.scalars.bind(it.index, None);
        self.loops += 1;
        for value in start..stop {
            self.iterations += 1;
            if self.iterations > MAX_STEPS {
                return Err(self.refuse(format!("the loops have more than {MAX_STEPS} iterations on a rank")));
            }
            self.scalars.bind(it.index, Some(Value::Int(value)));
            rebound.iter().for_each(|tensor| self.unbind(*tensor));
            self.block(it.body)?;
        }
        self.loops -= 1;
        self.scalars.bind(it.index, before);
        Ok(())
    }

    fn op(&mut self, stmt: &OpStmt) -> Result<()> {
        match stmt.op.def().class {
            OpClass::Stream => self.stream_op(stmt)?,
            OpClass::Allocate => self.allocation(stmt)?,
            OpClass::Deallocate => Program::tensors_of(&stmt.args).for_each(|it| self.unbind(it)),
            OpClass::View => self.view_op(stmt)?,
            OpClass::Compute | OpClass::Elementwise => self.compute(stmt)?,
            OpClass::HostUnit => self.host_unit(stmt)?,
            OpClass::Communicate => self.communicate(stmt)?,
            OpClass::Coalescing if stmt.op == Op::StartCoalescing => self.group = Some(None),
            OpClass::Coalescing => self.post_group(stmt.number)?,
            OpClass::ShareHandles => self.exchange(stmt)?,
            OpClass::Wait => self.wait(stmt)?,
            OpClass::Opaque => return Err(self.unknown(stmt.op)),
        }
        Ok(())
    }

    fn unknown(&self, op: Op) -> Box<Diagnostic> {
        self.refuse(format!("hir-certify does not know what `{}` computes", op.name()))
    }

    // ---- streams, storage and views

    fn stream(&mut self, stream: StreamId) -> Result<usize> {
        match &self.program.streams[stream] {
            named @ Stream::Named(_) => self.need(self.captured.get(named).copied(), "the stream"),
            Stream::Index(index) => {
                let index = self.need(self.scalars.int(*index).ok(), "the stream's index")?;
                Ok(self.chain(Channel::Stream(Some(index))))
            }
        }
    }

    fn stream_op(&mut self, stmt: &OpStmt) -> Result<()> {
        if let [Named::Stream(captured)] = stmt.outs[..] {
            self.captured.entry(self.program.streams[captured].clone()).or_insert(self.current);
        } else if let [Named::Stream(stream)] = stmt.args[..] {
            let stream = self.stream(stream)?;
            if stmt.op == Op::SetCurrentStream {
                self.current = stream;
            } else {
                let issued = self.frontiers[stream].clone();
                self.wait_for(self.current, &issued);
            }
        }
        Ok(())
    }

    fn allocation(&mut self, stmt: &OpStmt) -> Result<()> {
        let Some(tensor) = stmt.out_tensor().filter(|it| self.holds(*it)) else { return Ok(()) };
        if self.views.contains_key(&tensor) && stmt.op == Op::AllocateOnce {
            return Ok(());
        }
        if let Some(alias) = stmt.get(attr::ALIAS) {
            let (View { buffer, places }, shape) = (self.view(alias)?, self.part(tensor, None)?.shape());
            let view = reshape(&places, &shape).and_then(|places| View { buffer, places }.strided());
            let view = self.need(view, "the view of an alias")?;
            self.bind(tensor, view, None);
            return Ok(());
        }
        let view = self.allocate(tensor)?;
        if stmt.get(attr::ZERO_INIT) == Some(true) {
            self.push(Function::Zero, Vec::new(), vec![view])?;
        }
        Ok(())
    }

    fn view_op(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(out), Some(input)) = (stmt.out_tensor(), Program::tensors_of(&stmt.args).next()) else {
            return Err(self.unknown(stmt.op));
        };
        // A `select` outside of loops, of an index that no rank determines, indexes the whole axis.
        let is_of_rank = |it: ExprId| self.scalars.depends_on_rank(it);
        let is_own = self.loops > 0 || stmt.get(attr::INDEX).is_none_or(is_of_rank);
        if stmt.op == Op::Select && !is_own && !self.is_local(stmt, &[input], out)? {
            return self.compute(stmt);
        }
        let index = stmt.get(attr::STREAM_INDEX).and_then(|it| size(&self.scalars, it));
        if !self.holds(out) || !self.holds(input) {
            index.into_iter().for_each(|it| _ = self.slices.insert(out, it));
            return Ok(());
        }
        let view = self.view(input)?;
        if stmt.op == Op::ShardByStream {
            let (view, index) = self.chunk(input, view, index)?;
            self.bind(out, view, Some(index));
        } else {
            let view = self.rearranged(stmt, &view, input, out)?;
            let view = self.need(view, "the view")?;
            self.bind(out, view, self.slices.get(&input).copied());
        }
        Ok(())
    }

    /// Returns the result of an operator as a view of its operand; `None` if it is none.
    fn rearranged(&self, stmt: &OpStmt, view: &View, arg: TensorId, out: TensorId) -> Result<Option<View>> {
        let shape = self.part(out, None)?.shape();
        let integer = |it| self.scalars.int(it).ok();
        let places = rearranged(self.program, stmt, &integer, &view.places, arg, &shape);
        Ok(places.and_then(|places| View { buffer: view.buffer, places }.strided()))
    }

    /// Returns one stream's chunk of a view, and its number.
    fn chunk(&self, input: TensorId, view: View, index: Option<usize>) -> Result<(View, usize)> {
        let axis = self.part(input, None)?.stream_axis;
        let (dim, count) = self.need(axis, "the chunk of a stream")?;
        let mut index = self.need(index.filter(|it| *it < count), "the stream's index")?;
        let it = &self.program.tensors[input];
        let is_stream = |it| self.program.axes[it].parallel == ParallelType::Stream;
        let is_rotated =
            |step: &Transform| matches!(step, Transform::Swizzle1D { output, .. } if is_stream(*output));
        if it.domains.transforms.iter().any(is_rotated) {
            index += it.mesh.coordinate(self.rank.unwrap_or(0), DeviceDim::X).unwrap_or(0);
            index %= count;
        }
        let len = view.places.shape()[dim] / count;
        let View { buffer, mut places } = view;
        places.slice_axis_inplace(Axis(dim), Slice::from(index * len..(index + 1) * len));
        Ok((View { buffer, places }, index))
    }
}

/// Returns whether the elements of a tensor are integers or truth values.
pub(crate) fn is_integral(program: &Program, tensor: TensorId) -> bool {
    program.tensors[tensor].dtype.is_some_and(|it| matches!(it.class(), Class::Int | Class::Bool))
}
