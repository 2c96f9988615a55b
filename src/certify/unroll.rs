//! Executes the control flow of a rank, which depends on no tensor, and records its steps.

use super::*;

use self::communication::Posted;

mod communication;
mod computation;

/// The largest number of elements of buffers and of accesses, on all ranks: they take up to about 140 bytes each. A step, which takes about
/// 1,000 bytes, and an iteration count as many as `STEP`.
pub(crate) const MAX_WORK: usize = 1 << 26;
const STEP: usize = 1 << 8;

/// A memory handle: the number of the transfer, the peer, and the buffer with its first place.
type Handle = (Option<u32>, usize, usize, Option<usize>);

struct Unroller<'p, 's> {
    program: &'p Program,
    scalars: Scalars<'p>,
    /// `None`: one rank computes whole tensors.
    rank: Option<usize>,
    ranks: usize,
    trace: &'s mut Trace<'p>,
    own: State<'p>,
}

/// What a rank has bound and issued.
#[derive(Default)]
struct State<'p> {
    /// Where tensors are, with the stream whose slice they have.
    views: FxHashMap<TensorId, (View, Option<usize>)>,
    chains: FxHashMap<Channel, usize>,
    /// The chain of the current stream.
    current: usize,
    /// The steps that end communications, by number; none for one that concerns other ranks only.
    posted: FxHashMap<u32, BTreeSet<usize>>,
    /// The group of transfers that is open.
    group: Option<Vec<Posted<'p>>>,
    /// Handles that were exchanged, with the actions that exchanged them.
    handles: FxHashMap<Handle, usize>,
    /// The steps for which the host has waited.
    host: BTreeSet<usize>,
    loops: usize,
    /// The slice that the iteration takes first.
    chunk: Option<usize>,
    stmt: Option<ir::StmtId>,
}

/// Returns what so many ranks execute, or without a number what the program computes on whole tensors.
///
/// # Errors
/// What cannot be certified, by name; a race or a deadlock.
pub(crate) fn unroll(program: &Program, ranks: Option<usize>) -> Diagnosed<Trace<'_>> {
    let mut trace = Trace::default();
    for number in 0..ranks.unwrap_or(1) {
        let rank = ranks.map(|_| number);
        let (scalars, own, trace) = (Scalars::new(program, number), State::default(), &mut trace);
        let mut it = Unroller { program, scalars, rank, ranks: ranks.unwrap_or(1), trace, own };
        let label = rank.map_or("computed here".to_owned(), |it| format!("rank {it} executes this"));
        it.run_program().map_err(|why| refused(program, it.own.stmt, why, label))?;
    }
    trace.order = order(program, &trace)?;
    Ok(trace)
}

impl<'p> Unroller<'p, '_> {
    fn run_program(&mut self) -> Computed<()> {
        let program = self.program;
        require(program.own_rank().is_none(), "`%options rank=` says that it is the program of one rank")?;
        self.own.current = self.chain(Channel::Stream(None));
        let held: Vec<_> = Program::tensors_of(&program.inputs).filter(|it| self.holds(*it)).collect();
        held.iter().try_for_each(|it| self.output_view(*it, None).map(|_| ()))?;
        let inputs = self.ports(&program.inputs)?;
        let views = |ports: &[Port]| ports.iter().flatten().map(|it| it.0.clone()).collect::<Vec<_>>();
        self.push(None, Vec::new(), views(&inputs))?;
        program.body.map_or(Ok(()), |body| self.block(body))?;
        self.own.stmt = None;
        let outputs = self.ports(&program.outputs)?;
        // The caller reads the outputs, and overwrites the inputs.
        self.push(None, views(&outputs), Vec::new())?;
        self.push(None, Vec::new(), views(&inputs))?;
        self.trace.ports.push([inputs, outputs].concat());
        Ok(())
    }

    /// Returns where inputs or outputs are, with the slices of all streams.
    fn ports(&self, tensors: &[Operand]) -> Computed<Vec<Port>> {
        let port = |it| -> Computed<(View, Part)> {
            let (view, part) = (self.view(it)?, Part::of(self.program, &self.scalars, it, self.rank, None)?);
            let (is_whole, name) = (view.shape == part.shape(), self.program.tensor_name(it));
            let why = || format!("`{name}` is one stream's slice; the caller needs all of them");
            is_whole.then_some((view, part)).ok_or_else(why)
        };
        Program::tensors_of(tensors).map(|it| self.holds(it).then(|| port(it)).transpose()).collect()
    }

    // ---- tensors

    fn holds(&self, tensor: TensorId) -> bool {
        self.rank.is_none_or(|rank| self.program.tensors[tensor].mesh.contains(rank))
    }

    /// Returns where this rank's part of a tensor is.
    fn view(&self, tensor: TensorId) -> Computed<View> {
        let (name, shape) = (self.program.tensor_name(tensor), self.part(tensor, None)?.shape());
        let (view, _) = self.own.views.get(&tensor).ok_or_else(|| format!("`{name}` has no storage here"))?;
        let is_same = view.shape == shape;
        if is_same { Ok(view.clone()) } else { Err(format!("`{name}` has another shape than its storage")) }
    }

    /// Returns the stream whose slice a tensor has.
    fn slice(&self, tensor: TensorId) -> Option<usize> {
        self.own.views.get(&tensor).and_then(|it| it.1)
    }

    /// Returns the part of this rank. `slice` is that of a tensor that has none yet.
    fn part(&self, tensor: TensorId, slice: Option<usize>) -> Computed<Part> {
        let slice = self.slice(tensor).or(slice).or(Some(0));
        let slice = slice.filter(|_| self.program.is_split_by_stream(tensor));
        let part = Part::of(self.program, &self.scalars, tensor, self.rank, slice);
        part.map_err(|why| format!("`{}`: {why}", self.program.tensor_name(tensor)))
    }

    /// Binds a tensor of this rank to a new buffer if it has none, and to a slice if it has none, and returns where it is.
    fn output_view(&mut self, tensor: TensorId, slice: Option<usize>) -> Computed<View> {
        if self.holds(tensor) && !self.own.views.contains_key(&tensor) {
            let (part, buffer) = (self.part(tensor, slice)?, self.trace.buffers.len());
            self.count_work(part.len())?;
            self.trace.buffers.push(part.len());
            let view = View { buffer, places: (0..part.len()).collect(), shape: part.shape() };
            self.own.views.insert(tensor, (view, None));
        }
        self.own.views.entry(tensor).and_modify(|it| it.1 = it.1.or(slice));
        self.view(tensor)
    }

    // ---- steps

    fn chain(&mut self, channel: Channel) -> usize {
        *self.own.chains.entry(channel).or_insert_with(|| {
            self.trace.chains.push(self.own.host.clone());
            self.trace.chains.len() - 1
        })
    }

    /// Makes the host wait for steps, and so everything that it issues.
    fn block_host(&mut self, steps: BTreeSet<usize>) {
        self.own.chains.values().for_each(|it| self.trace.chains[*it].extend(&steps));
        self.own.host = steps;
    }

    /// Appends a step of the current stream that computes what it writes from what it reads.
    fn push(&mut self, function: Option<Function<'p>>, reads: Vec<View>, writes: Vec<View>) -> Computed<()> {
        let action = self.trace.actions.len();
        self.trace.actions.push(vec![None]);
        let step = Step { reads, writes, function, ..self.step(action, 0) };
        self.append(self.own.current, vec![step]).map(|_| ())
    }

    /// Appends a group of steps to a chain, behind what that has to wait for, and returns their numbers.
    fn append(&mut self, chain: usize, group: Vec<Step<'p>>) -> Computed<BTreeSet<usize>> {
        let first = self.trace.steps.len();
        let after = mem::take(&mut self.trace.chains[chain]);
        for step in group {
            let [reads, writes] = [&step.reads, &step.writes].map(|it| it.iter().flat_map(View::elements));
            let (read, written): (usize, Vec<_>) = (reads.count(), writes.collect());
            self.count_work(STEP + read + written.len())?;
            // An element of an expanded view is several elements of the result.
            let places = written.iter().collect::<FxHashSet<_>>().len();
            require(places == written.len(), "it writes several values to one element")?;
            self.trace.actions[step.action][step.me] = Some(self.trace.steps.len());
            self.trace.steps.push(Step { chain, after: after.clone(), ..step });
        }
        self.trace.chains[chain] = (first..self.trace.steps.len()).collect();
        Ok(self.trace.chains[chain].clone())
    }

    /// Returns a step of the current statement as a member of an action.
    fn step(&self, action: usize, me: usize) -> Step<'p> {
        Step { rank: self.rank.unwrap_or(0), stmt: self.own.stmt, action, me, ..Step::default() }
    }

    fn count_work(&mut self, amount: usize) -> Computed<()> {
        self.trace.work += amount;
        let why =
            "more than 2^26 accesses of elements, or 2^18 statements and iterations; use smaller extents";
        require(self.trace.work <= MAX_WORK, why)
    }

    // ---- control flow

    fn block(&mut self, block: ir::BlockId) -> Computed<()> {
        let program = self.program;
        for id in program.block(block) {
            self.own.stmt = Some(*id);
            match &program.stmts[*id] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => {
                    let value = self.scalars.eval(*value).map_err(|_| "the scalar has no known value")?;
                    self.scalars.bind(*symbol, Some(value));
                }
                Stmt::For(it) => self.for_loop(it)?,
                Stmt::If(it) => {
                    let value = self.scalars.truth(it.cond).ok().filter(|_| it.kind == ir::If::MANUAL);
                    let taken = value.ok_or("the predicate has no value that hir-certify can compute")?;
                    let block = if taken { Some(it.then_block) } else { it.else_block };
                    block.map_or(Ok(()), |it| self.block(it))?;
                }
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, it: &ir::For) -> Computed<()> {
        let program = self.program;
        let range = self.scalars.int(it.start).and_then(|start| Ok(start..self.scalars.int(it.stop)?));
        let range = range.map_err(|_| "the loop's range has no value that hir-certify can compute")?;
        // The `in` form unbinds what it defines from its index.
        let rebound = if it.axis.is_some() { loop_variant_tensors(self.program, it) } else { Vec::new() };
        let before = self.scalars.bind(it.index, None);
        self.own.loops += 1;
        for value in range {
            self.count_work(STEP)?;
            self.scalars.bind(it.index, Some(Value::Int(value)));
            let chunks = program.block(it.body).iter().filter_map(|id| program.stmts[*id].op());
            let mut chunks = chunks.filter(|it| it.op == Op::ShardByStream);
            self.own.chunk = chunks.find_map(|it| self.chunk_index(it));
            rebound.iter().for_each(|tensor| _ = self.own.views.remove(tensor));
            self.block(it.body)?;
        }
        self.own.loops -= 1;
        self.own.chunk = None;
        self.scalars.bind(it.index, before);
        Ok(())
    }

    fn op(&mut self, stmt: &'p OpStmt) -> Computed<()> {
        match stmt.op.def().class {
            OpClass::Stream => self.stream_op(stmt),
            OpClass::Allocate => self.allocation(stmt),
            OpClass::Deallocate => {
                let held: Vec<_> = Program::tensors_of(&stmt.args).filter(|it| self.holds(*it)).collect();
                held.iter().try_for_each(|it| self.view(*it).map(|_| _ = self.own.views.remove(it)))
            }
            OpClass::View if stmt.op == Op::ShardByStream => self.chunk(stmt),
            OpClass::View | OpClass::Compute | OpClass::Elementwise => self.compute(stmt),
            OpClass::Communicate => self.communicate(stmt),
            OpClass::Coalescing if stmt.op == Op::StartCoalescing => {
                require(self.own.group.replace(Vec::new()).is_none(), "groups do not nest")
            }
            OpClass::Coalescing => {
                let group = self.own.group.take().unwrap_or_default();
                self.post(stmt.number, group)
            }
            OpClass::ShareHandles => self.exchange(stmt),
            OpClass::Wait => self.wait(stmt),
            OpClass::Condition | OpClass::Opaque | OpClass::HostUnit => Err(unknown(stmt.op)),
        }
    }

    // ---- streams, storage and views

    /// Returns a stream. One that was not captured is a stream of its own.
    fn stream(&self, stream: ir::StreamId) -> Computed<Channel> {
        let why = |_| "the stream's index has no known value".to_owned();
        match &self.program.streams[stream] {
            named @ ir::Stream::Named(_) => Ok(Channel::Captured(named.clone())),
            ir::Stream::Index(it) => Ok(Channel::Stream(Some(self.scalars.int(*it).map_err(why)?))),
        }
    }

    fn stream_op(&mut self, stmt: &OpStmt) -> Computed<()> {
        if stmt.op == Op::SynchronizeHost {
            self.block_host(self.trace.chains[self.own.current].clone());
        } else if let [Operand::Stream(captured)] = stmt.outs[..] {
            let captured = self.stream(captured)?;
            self.own.chains.entry(captured).or_insert(self.own.current);
        } else if let [Operand::Stream(stream)] = stmt.args[..] {
            let stream = self.stream(stream).map(|it| self.chain(it))?;
            if stmt.op == Op::SetCurrentStream {
                self.own.current = stream;
            } else {
                let issued = self.trace.chains[stream].clone();
                self.trace.chains[self.own.current].extend(issued);
            }
        }
        Ok(())
    }

    fn allocation(&mut self, stmt: &OpStmt) -> Computed<()> {
        let is_bound = |it: &TensorId| stmt.op == Op::AllocateOnce && self.own.views.contains_key(it);
        let tensor = stmt.out_tensor().filter(|it| self.holds(*it) && !is_bound(it));
        let Some(tensor) = tensor else { return Ok(()) };
        if let Some(alias) = stmt.get(attr::ALIAS) {
            let [of, to] = [alias, tensor].map(|it| self.program.tensors[it].dtype);
            require(of == to, "the alias has another element type than its tensor")?;
            let (view, shape) = (self.view(alias)?, self.part(tensor, None)?.shape());
            let all: Vec<usize> = (0..view.places.len()).collect();
            let view = view.strided(&all, shape).ok_or("the alias is no view of its tensor")?;
            self.own.views.insert(tensor, (view, None));
            return Ok(());
        }
        self.own.views.remove(&tensor);
        let view = self.output_view(tensor, None)?;
        if stmt.get(attr::ZERO_INIT) == Some(true) {
            let zeros: Values = view.places.iter().map(|_| Element::default()).collect();
            self.push(Some(Box::new(move |_, _| Ok(vec![zeros.clone()]))), Vec::new(), vec![view])?;
        }
        Ok(())
    }

    /// Makes a tensor one stream's chunk of another one.
    fn chunk(&mut self, stmt: &OpStmt) -> Computed<()> {
        let operands = stmt.out_tensor().zip(Program::tensors_of(&stmt.args).next());
        let operands = operands.filter(|(out, input)| self.holds(*out) && self.holds(*input));
        let Some((out, input)) = operands else { return Ok(()) };
        let index = self.chunk_index(stmt).ok_or("the stream's index has no known value")?;
        self.own.views.remove(&out);
        let chunk = Part::of(self.program, &self.scalars, input, self.rank, Some(index))?;
        let to = self.part(out, Some(index))?;
        let (from, view) = (self.part(input, None)?, self.view(input)?);
        let positions = from.positions(&chunk.held).filter(|_| to == chunk);
        let view = positions.and_then(|it| view.strided(&it, chunk.shape()));
        self.own.views.insert(out, (view.ok_or("its result is no chunk of its operand")?, Some(index)));
        Ok(())
    }

    /// Returns the stream whose chunk a statement takes.
    fn chunk_index(&self, stmt: &OpStmt) -> Option<usize> {
        let program = self.program;
        let it = &program.tensors[Program::tensors_of(&stmt.args).next()?];
        let is_stream = |it: &ir::AxisId| program.axes[*it].parallel == ParallelType::Stream;
        let count = it.loop_domain.iter().copied().find(is_stream);
        let count = count.and_then(|it| size(&self.scalars, program.axes[it].extent));
        let index = stmt.get(attr::STREAM_INDEX).and_then(|it| size(&self.scalars, it));
        let (index, count) = index.zip(count).filter(|(index, count)| index < count)?;
        let rotates = |it: &Transform| matches!(it, Transform::Swizzle1D { output, .. } if is_stream(output));
        let start = it.mesh.coordinate(self.rank.unwrap_or(0), ir::DeviceDim::X);
        let start = start.filter(|_| it.domains.transforms.iter().any(rotates));
        Some((index + start.unwrap_or(0)) % count)
    }
}

fn unknown(op: Op) -> String {
    format!("hir-certify does not know what `{}` computes", op.name())
}
