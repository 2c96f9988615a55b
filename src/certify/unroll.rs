//! Executes the control flow of a rank, which depends on no tensor, and records its steps.

use super::*;

use self::communication::Posted;

mod communication;
mod computation;

/// A value, or the reason why the current statement is not certified.
type Result<T> = std::result::Result<T, String>;

/// The largest number of elements of buffers and of accesses, on all ranks: they take up to about 140 bytes each. A step and an iteration
/// count as many as `STEP`.
pub(crate) const MAX_WORK: usize = 1 << 26;
const STEP: usize = 1 << 4;

/// A memory handle: the number of the transfer, the peer, and the buffer with its first place.
type Handle = (Option<u32>, usize, usize, Option<usize>);

struct Unroller<'p, 's> {
    program: &'p Program,
    scalars: Scalars<'p>,
    /// `None`: one rank computes whole tensors.
    rank: Option<usize>,
    ranks: usize,
    trace: &'s mut Trace<'p>,
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
    stmt: Option<StmtId>,
}

/// Returns what so many ranks execute, or without a number what the program computes on whole tensors.
///
/// # Errors
/// What cannot be certified, by name.
pub(crate) fn unroll(program: &Program, ranks: Option<usize>) -> Diagnosed<Trace<'_>> {
    let mut trace = Trace::default();
    for number in 0..ranks.unwrap_or(1) {
        let rank = ranks.map(|_| number);
        let mut it = Unroller {
            program,
            scalars: Scalars::new(program, number),
            rank,
            ranks: ranks.unwrap_or(1),
            trace: &mut trace,
            views: FxHashMap::default(),
            chains: FxHashMap::default(),
            current: 0,
            posted: FxHashMap::default(),
            group: None,
            handles: FxHashMap::default(),
            host: BTreeSet::new(),
            loops: 0,
            stmt: None,
        };
        it.run_program().map_err(|why| {
            let label = rank.map_or("computed here".to_owned(), |it| format!("rank {it} executes this"));
            refused(program, it.stmt, why, label)
        })?;
    }
    Ok(trace)
}

impl<'p> Unroller<'p, '_> {
    fn run_program(&mut self) -> Result<()> {
        let program = self.program;
        self.current = self.chain(Channel::Stream(None));
        Program::tensors_of(&program.inputs).try_for_each(|it| self.output_view(it, None))?;
        let inputs = self.ports(&program.inputs)?;
        let views = |ports: &[Port]| ports.iter().flatten().map(|it| it.0.clone()).collect::<Vec<_>>();
        self.push(None, Vec::new(), views(&inputs))?;
        program.body.map_or(Ok(()), |body| self.block(body))?;
        self.stmt = None;
        let outputs = self.ports(&program.outputs)?;
        // The caller reads the outputs, and overwrites the inputs.
        self.push(None, views(&outputs), Vec::new())?;
        self.push(None, Vec::new(), views(&inputs))?;
        self.trace.ports.push([inputs, outputs].concat());
        Ok(())
    }

    /// Returns where inputs or outputs are, with the slices of all streams.
    fn ports(&self, tensors: &[Operand]) -> Result<Vec<Port>> {
        let port = |it| -> Result<(View, Part)> {
            let (view, part) = (self.view(it)?, Part::of(self.program, &self.scalars, it, self.rank, None)?);
            let name = self.program.tensor_name(it);
            let why = || format!("`{name}` is one stream's slice; the caller needs all of them");
            (view.places.len() == part.len()).then_some((view, part)).ok_or_else(why)
        };
        Program::tensors_of(tensors).map(|it| self.holds(it).then(|| port(it)).transpose()).collect()
    }

    // ---- tensors

    fn holds(&self, tensor: TensorId) -> bool {
        self.rank.is_none_or(|rank| self.program.tensors[tensor].mesh.contains(rank))
    }

    /// Returns where this rank's part of a tensor is.
    fn view(&self, tensor: TensorId) -> Result<View> {
        let (name, len) = (self.program.tensor_name(tensor), self.part(tensor, None)?.len());
        let (view, _) = self.views.get(&tensor).ok_or_else(|| format!("`{name}` has no storage here"))?;
        let is_same = view.places.len() == len;
        if is_same { Ok(view.clone()) } else { Err(format!("`{name}` has another size than its storage")) }
    }

    /// Returns the stream whose slice a tensor has.
    fn slice(&self, tensor: TensorId) -> Option<usize> {
        self.views.get(&tensor).and_then(|it| it.1)
    }

    /// Returns the part of this rank. `slice` is that of a tensor that has none yet.
    fn part(&self, tensor: TensorId, slice: Option<usize>) -> Result<Part> {
        let slice = self.slice(tensor).or(slice).or(Some(0));
        let slice = slice.filter(|_| self.program.is_split_by_stream(tensor));
        let part = Part::of(self.program, &self.scalars, tensor, self.rank, slice);
        part.map_err(|why| format!("`{}`: {why}", self.program.tensor_name(tensor)))
    }

    /// Binds a tensor of this rank to a new buffer if it has none, and to a slice if it has none.
    fn output_view(&mut self, tensor: TensorId, slice: Option<usize>) -> Result<()> {
        if self.holds(tensor) && !self.views.contains_key(&tensor) {
            let (len, buffer) = (self.part(tensor, slice)?.len(), self.trace.buffers.len());
            self.count_work(len)?;
            self.trace.buffers.push(len);
            self.views.insert(tensor, (View { buffer, places: (0..len).collect() }, None));
        }
        self.views.entry(tensor).and_modify(|it| it.1 = it.1.or(slice));
        Ok(())
    }

    // ---- steps

    fn chain(&mut self, channel: Channel) -> usize {
        *self.chains.entry(channel).or_insert_with(|| {
            self.trace.chains.push(self.host.clone());
            self.trace.chains.len() - 1
        })
    }

    /// Makes the host wait for steps, and so everything that it issues.
    fn block_host(&mut self, steps: BTreeSet<usize>) {
        self.chains.values().for_each(|it| self.trace.chains[*it].extend(&steps));
        self.host = steps;
    }

    /// Appends a step of the current stream that computes what it writes from what it reads.
    fn push(&mut self, function: Option<Function<'p>>, reads: Vec<View>, writes: Vec<View>) -> Result<()> {
        let action = self.trace.actions.len();
        self.trace.actions.push(vec![None]);
        let step = Step { reads, writes, function, ..self.step(action, 0) };
        self.append(self.current, vec![step]).map(|_| ())
    }

    /// Appends a group of steps to a chain, behind what that has to wait for, and returns their numbers.
    fn append(&mut self, chain: usize, group: Vec<Step<'p>>) -> Result<BTreeSet<usize>> {
        let first = self.trace.steps.len();
        let after = mem::take(&mut self.trace.chains[chain]);
        for step in group {
            let places = step.reads.iter().chain(&step.writes).map(|it| it.places.len());
            self.count_work(STEP + places.sum::<usize>())?;
            self.trace.actions[step.action][step.me] = Some(self.trace.steps.len());
            self.trace.steps.push(Step { chain, after: after.clone(), ..step });
        }
        self.trace.chains[chain] = (first..self.trace.steps.len()).collect();
        Ok(self.trace.chains[chain].clone())
    }

    /// Returns a step of the current statement as a member of an action.
    fn step(&self, action: usize, me: usize) -> Step<'p> {
        Step { rank: self.rank.unwrap_or(0), stmt: self.stmt, action, me, ..Step::default() }
    }

    fn count_work(&mut self, amount: usize) -> Result<()> {
        self.trace.work += amount;
        let why = "the ranks access more than 67108864 elements: certify the program with smaller extents";
        (self.trace.work <= MAX_WORK).then_some(()).ok_or_else(|| why.to_owned())
    }

    // ---- control flow

    fn block(&mut self, block: BlockId) -> Result<()> {
        let program = self.program;
        for id in program.block(block) {
            self.stmt = Some(*id);
            match &program.stmts[*id] {
                Stmt::Op(it) => self.op(it)?,
                Stmt::Let(symbol, value) => {
                    let value = self.scalars.eval(*value).map_err(|_| "the scalar has no known value")?;
                    self.scalars.bind(*symbol, Some(value));
                }
                Stmt::For(it) => self.for_loop(it)?,
                Stmt::If(it) => {
                    let value = self.scalars.truth(it.cond).ok().filter(|_| it.kind == If::MANUAL);
                    let taken = value.ok_or("the predicate has no value that hir-certify can compute")?;
                    if let Some(block) = if taken { Some(it.then_block) } else { it.else_block } {
                        self.block(block)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, it: &For) -> Result<()> {
        let range = self.scalars.int(it.start).and_then(|start| Ok(start..self.scalars.int(it.stop)?));
        let range = range.map_err(|_| "the loop's range has no value that hir-certify can compute")?;
        // The `in` form unbinds what it defines from its index.
        let rebound = if it.axis.is_some() { loop_variant_tensors(self.program, it) } else { Vec::new() };
        let before = self.scalars.bind(it.index, None);
        self.loops += 1;
        for value in range {
            self.count_work(STEP)?;
            self.scalars.bind(it.index, Some(Value::Int(value)));
            rebound.iter().for_each(|tensor| _ = self.views.remove(tensor));
            self.block(it.body)?;
        }
        self.loops -= 1;
        self.scalars.bind(it.index, before);
        Ok(())
    }

    fn op(&mut self, stmt: &'p OpStmt) -> Result<()> {
        match stmt.op.def().class {
            OpClass::Stream => self.stream_op(stmt),
            OpClass::Allocate => self.allocation(stmt),
            OpClass::Deallocate => {
                for tensor in Program::tensors_of(&stmt.args) {
                    if self.holds(tensor) {
                        self.view(tensor)?;
                        self.views.remove(&tensor);
                    }
                }
                Ok(())
            }
            OpClass::View if stmt.op == Op::ShardByStream => self.chunk(stmt),
            OpClass::View | OpClass::Compute | OpClass::Elementwise => self.compute(stmt),
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
            OpClass::Opaque | OpClass::HostUnit => Err(unknown(stmt.op)),
        }
    }

    // ---- streams, storage and views

    /// Returns a stream. One that was not captured is a stream of its own.
    fn stream(&self, stream: StreamId) -> Result<Channel> {
        match &self.program.streams[stream] {
            named @ Stream::Named(_) => Ok(Channel::Captured(named.clone())),
            Stream::Index(index) => {
                let index = self.scalars.int(*index).map_err(|_| "the stream's index has no known value")?;
                Ok(Channel::Stream(Some(index)))
            }
        }
    }

    fn stream_op(&mut self, stmt: &OpStmt) -> Result<()> {
        if stmt.op == Op::SynchronizeHost {
            self.block_host(self.trace.chains[self.current].clone());
        } else if let [Operand::Stream(captured)] = stmt.outs[..] {
            let captured = self.stream(captured)?;
            self.chains.entry(captured).or_insert(self.current);
        } else if let [Operand::Stream(stream)] = stmt.args[..] {
            let stream = self.stream(stream)?;
            let stream = self.chain(stream);
            if stmt.op == Op::SetCurrentStream {
                self.current = stream;
            } else {
                let issued = self.trace.chains[stream].clone();
                self.trace.chains[self.current].extend(issued);
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
            if self.program.tensors[alias].dtype != self.program.tensors[tensor].dtype {
                return Err("the alias has another element type than its tensor".to_owned());
            }
            let (view, shape) = (self.view(alias)?, self.part(tensor, None)?.shape());
            let all: Vec<usize> = (0..view.places.len()).collect();
            let view = view.strided(&all, &shape).ok_or("the alias is no view of its tensor")?;
            self.views.insert(tensor, (view, None));
            return Ok(());
        }
        self.views.remove(&tensor);
        self.output_view(tensor, None)?;
        if stmt.get(attr::ZERO_INIT) == Some(true) {
            let view = self.view(tensor)?;
            let zeros: Values = view.places.iter().map(|_| Element::default()).collect();
            self.push(Some(Box::new(move |_, _| Ok(vec![zeros.clone()]))), Vec::new(), vec![view])?;
        }
        Ok(())
    }

    /// Makes a tensor one stream's chunk of another one.
    fn chunk(&mut self, stmt: &OpStmt) -> Result<()> {
        let operands = stmt.out_tensor().zip(Program::tensors_of(&stmt.args).next());
        let operands = operands.filter(|(out, input)| self.holds(*out) && self.holds(*input));
        let Some((out, input)) = operands else { return Ok(()) };
        let (program, it) = (self.program, &self.program.tensors[input]);
        let is_stream = |it: &AxisId| program.axes[*it].parallel == ParallelType::Stream;
        let count = it.loop_domain.iter().copied().find(is_stream);
        let count = count.and_then(|it| size(&self.scalars, program.axes[it].extent));
        let index = stmt.get(attr::STREAM_INDEX).and_then(|it| size(&self.scalars, it));
        let index = index.zip(count).filter(|(index, count)| index < count);
        let (mut index, count) = index.ok_or("the stream's index has no known value")?;
        let is_rotated =
            |step: &Transform| matches!(step, Transform::Swizzle1D { output, .. } if is_stream(output));
        if it.domains.transforms.iter().any(is_rotated) {
            index += it.mesh.coordinate(self.rank.unwrap_or(0), DeviceDim::X).unwrap_or(0);
            index %= count;
        }
        self.views.remove(&out);
        let chunk = Part::of(program, &self.scalars, input, self.rank, Some(index))?;
        let to = self.part(out, Some(index))?;
        let (from, view) = (self.part(input, None)?, self.view(input)?);
        let positions = from.positions(&chunk.held).filter(|_| to == chunk);
        let view = positions.and_then(|it| view.strided(&it, &chunk.shape()));
        self.views.insert(out, (view.ok_or("its result is no chunk of its operand")?, Some(index)));
        Ok(())
    }
}

fn unknown(op: Op) -> String {
    format!("hir-certify does not know what `{}` computes", op.name())
}
