//! Executes the control flow of a rank, which depends on no tensor, and records its steps.

use std::rc::Rc;

use grammar::{
    arena::Id,
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::{Class, DType},
    ir::{
        BlockId, Expr, ExprId, For, If, OpStmt, Operand as Named, ParallelType, Program, Stmt, StmtId,
        Stream, StreamId, TensorId, Transform,
    },
    ops::{Op, OpClass, TypeRule},
    rules::Aliasing,
    scalars::{Scalars, Value},
    span::Span,
    words::{Backend, CommunicationType, P2pType, RedOp},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    field::Combine,
    operators::rearranged,
    part::{Part, Sharded, contains, size},
    tape::{Channel, Compute, Operand, Step, StepKind, Tape, Transfer, TransferKind},
    view::View,
};

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

    fn is_local(&self, stmt: &OpStmt, args: &[TensorId], out: TensorId) -> Result<bool> {
        if self.rank.is_none() || self.program.tensors[out].unit.is_some() {
            return Ok(true);
        }
        let parts = args.iter().map(|it| Ok((*it, self.part(*it, None)?))).collect::<Result<Vec<_>>>()?;
        let Self { program, scalars, ranks, .. } = self;
        let out = (out, self.part(out, None)?);
        Ok(Sharded { program, scalars, stmt, args: &parts, out: &out, ranks: *ranks }.is_local())
    }

    fn compute(&mut self, stmt: &OpStmt) -> Result<()> {
        let (args, outs): (_, Vec<TensorId>) =
            (stmt.tensor_operands(), Program::tensors_of(&stmt.outs).collect());
        let Some(first) = outs.first().copied() else { return Ok(()) };
        let all = || args.iter().chain(&outs);
        let here = all().any(|it| self.holds(*it));
        let is_local = here && self.is_local(stmt, &args, first)?;
        let meshes = || all().map(|it| &self.program.tensors[*it].mesh);
        let team = (here && !is_local).then(|| {
            let everywhere = meshes().any(|it| it.is_empty());
            let is_member = |rank: &usize| everywhere || meshes().any(|it| it.contains(*rank));
            (0..self.ranks).filter(is_member).collect::<Rc<[usize]>>()
        });
        let takes_part = team
            .as_ref()
            .map_or(here && self.holds(first), |it| self.rank.is_some_and(|rank| it.contains(&rank)));
        let slice = all().find_map(|it| self.held_slice(*it));
        if !takes_part {
            let slice = args.iter().find_map(|it| self.held_slice(*it));
            let split = outs.iter().filter(|it| self.program.is_split_by_stream(**it));
            split.zip(slice).for_each(|(out, slice)| _ = self.slices.insert(*out, slice));
            return Ok(());
        }
        let mut operands = Vec::with_capacity(args.len());
        for tensor in &args {
            let held = team.is_none() || self.holds(*tensor);
            let view = if held { Some(self.view(*tensor)?) } else { None };
            let part = match &view {
                Some(view) if self.program.tensors[*tensor].unit.is_some() => Part::all(&view.shape),
                _ => self.part(*tensor, slice)?,
            };
            operands.push(Operand { tensor: *tensor, view, part });
        }
        if team.is_none() && self.is_view(stmt, &mut operands, &outs)? {
            return Ok(());
        }
        let mut results = Vec::with_capacity(outs.len());
        for tensor in &outs {
            let view = if self.holds(*tensor) { Some(self.output_view(*tensor)?) } else { None };
            let keeps_slice = team.is_none() || self.program.is_split_by_stream(*tensor);
            if let (Some(slice), true) = (slice, keeps_slice) {
                match self.bindings.get_mut(tensor) {
                    Some(bound) => bound.stream = bound.stream.or(Some(slice)),
                    None => _ = self.slices.insert(*tensor, slice),
                }
            }
            results.push(Operand { tensor: *tensor, view, part: self.part(*tensor, slice)? });
        }
        let mut values = FxHashMap::default();
        stmt.scalars(&mut |it| values.extend(self.scalars.eval(it).ok().map(|value| (it, value))));
        self.push(StepKind::Compute(Box::new(Compute { args: operands, outs: results, team, values })))?;
        Ok(())
    }

    /// Makes the result of a rearrangement that has no storage a view of its operand. The operand of a copy is first narrowed to the
    /// elements of the result.
    fn is_view(&mut self, stmt: &OpStmt, operands: &mut [Operand], outs: &[TensorId]) -> Result<bool> {
        let ([Operand { tensor, view: Some(view), part }, ..], [out]) = (operands, outs) else {
            return Ok(false);
        };
        let to =
            if self.program.tensors[*out].unit.is_some() { part.clone() } else { self.part(*out, None)? };
        if stmt.op.def().type_rule == TypeRule::Same && part.whole == to.whole {
            for dim in 0..view.shape.len() {
                if let Some((has, takes)) = part.range(dim).zip(to.range(dim))
                    && has != takes
                    && has.len() == view.shape[dim]
                    && contains(&has, &takes)
                {
                    *view = view.narrow(dim, takes.start - has.start, takes.len());
                }
            }
        }
        if self.bindings.contains_key(out) || !matches!(stmt.rule().aliasing(), Aliasing::View(_)) {
            return Ok(false);
        }
        let shape = self.part(*out, None)?.shape();
        let Some(view) =
            rearranged(self.program, stmt, &|it| self.scalars.eval(it).ok(), view, *tensor, *out, &shape)
        else {
            return Ok(false);
        };
        let stream = self.bindings.get(tensor).and_then(|it| it.stream);
        self.bindings.insert(*out, Binding { view, stream });
        Ok(true)
    }

    /// Executes the statements of a HostUnit, whose names are bound to the operands.
    fn host_unit(&mut self, stmt: &OpStmt) -> Result<()> {
        let (Some(unit), Some(inputs), Some(outputs)) =
            (stmt.get(attr::UNIT), stmt.get(attr::INPUTS), stmt.get(attr::OUTPUTS))
        else {
            return Err(self.unknown(stmt.op));
        };
        if !Program::tensors_of(outputs).any(|it| self.holds(it)) {
            return Ok(());
        }
        let (program, unit) = (self.program, &self.program.units[unit]);
        let Some(body) = unit.body else { return Err(self.refuse("the text does not contain the HostUnit")) };
        for (inner, outer) in unit.inputs.iter().zip(inputs) {
            match (inner, outer) {
                (Named::Tensor(inner), Named::Tensor(outer)) => {
                    let view = self.view(*outer)?;
                    for (axis, extent) in program.dimensions(*inner).zip(&view.shape) {
                        if let Expr::Symbol(symbol) = program.exprs[program.axes[axis].extent] {
                            self.scalars.bind(symbol, Some(Value::Int(*extent as i64)));
                        }
                    }
                    self.bindings.insert(*inner, Binding { view, stream: None });
                }
                (Named::Scalar(inner), Named::Scalar(outer)) => {
                    let value = self.need(self.scalars.eval(*outer).ok(), "the operand")?;
                    if let Expr::Symbol(symbol) = program.exprs[*inner] {
                        self.scalars.bind(symbol, Some(value));
                    }
                }
                _ => return Err(self.refuse("the HostUnit has other operands")),
            }
        }
        for (inner, outer) in Program::tensors_of(&unit.outputs).zip(Program::tensors_of(outputs)) {
            let view = self.output_view(outer)?;
            self.bindings.insert(inner, Binding { view, stream: None });
        }
        let (stmt, span) = (self.stmt, self.span);
        self.block(body)?;
        (self.stmt, self.span) = (stmt, span);
        let ports = Program::tensors_of(&unit.inputs).chain(Program::tensors_of(&unit.outputs));
        let mut names: Vec<TensorId> = ports.collect();
        program.walk(body, &mut |id| {
            if let Stmt::Op(it) = &program.stmts[id] {
                names.extend(Program::tensors_of(&it.outs));
            }
        });
        names.iter().for_each(|it| _ = self.bindings.remove(it));
        Ok(())
    }

    // ---- communication

    fn post(&mut self, number: Option<u32>, transfers: Vec<Transfer>) -> Result<()> {
        // A group is empty on a rank that holds none of its buffers.
        let is_empty = transfers.is_empty();
        let step = if is_empty { None } else { Some(self.push(StepKind::Post(transfers.into()))?) };
        number.into_iter().for_each(|it| _ = self.posted.insert(it, step));
        Ok(())
    }

    /// Hosts exchange handles that are new, and then wait for each other.
    fn exchange(&mut self, stmt: &OpStmt) -> Result<()> {
        let mut is_new = false;
        for id in stmt.get(attr::TRANSFERS).unwrap_or_default() {
            let Stmt::Op(it) = &self.program.stmts[*id] else { continue };
            let (Some(buffer), Some(peer)) =
                (it.get(attr::BUFFER).filter(|it| self.holds(*it)), it.get(attr::PEER))
            else {
                continue;
            };
            let peer = self.need(size(&self.scalars, peer), "the peer")?;
            let View { buffer, offset, .. } = self.view(buffer)?;
            is_new |= self.shared.insert((it.number, peer, buffer, offset));
        }
        if is_new { self.push(StepKind::Exchange).map(|_| ()) } else { Ok(()) }
    }

    fn wait(&mut self, stmt: &OpStmt) -> Result<()> {
        let number = self.need(stmt.get(attr::WORK), "the number of a Wait")?;
        match self.posted.remove(&number) {
            Some(Some(step)) => self.push(StepKind::Wait(step)).map(|_| ()),
            Some(None) => Ok(()),
            None => {
                Err(self.refuse(format!("this rank waits for communication {number}, but has not posted it")))
            }
        }
    }

    fn communicate(&mut self, stmt: &OpStmt) -> Result<()> {
        let backend = stmt.get(attr::BACKEND).unwrap_or(Backend::Nccl);
        let index = |this: &Self, key, n| {
            let value = stmt.get(key).map_or(Some(0), |it| size(&this.scalars, it));
            this.need(value.filter(|it| *it < n), "a root or a peer")
        };
        let elsewhere = |this: &mut Self| {
            stmt.number.into_iter().for_each(|it| _ = this.posted.insert(it, None));
            Ok(())
        };
        let (channel, me, n, kind, input, output) = match stmt.op {
            Op::Communication | Op::CollectivePermute => {
                let team: Rc<[usize]> = stmt.get(attr::TEAM).unwrap_or_default().into();
                let Some(me) = team.iter().position(|it| Some(*it) == self.rank) else {
                    return elsewhere(self);
                };
                let (n, input, output) = (team.len(), stmt.get(attr::INPUT), stmt.get(attr::OUTPUT));
                let kind = if stmt.op == Op::CollectivePermute {
                    TransferKind::Permute(index(self, attr::RECV_PEER, n)?)
                } else {
                    let is_bool = input.is_some_and(|it| self.program.tensors[it].dtype == Some(DType::Bool));
                    let combine = combine_of(stmt.get(attr::RED_OP).unwrap_or(RedOp::Sum), is_bool);
                    TransferKind::Collective {
                        kind: stmt.get(attr::TYPE).unwrap_or(CommunicationType::Allreduce),
                        root: index(self, attr::ROOT, n)?,
                        combine,
                        integral: input.is_some_and(|it| is_integral(self.program, it)),
                    }
                };
                (Channel::Team(backend, team), me, n, kind, input, output)
            }
            Op::P2PCommunication => {
                let Some(buffer) = stmt.get(attr::BUFFER).filter(|it| self.holds(*it)) else {
                    return elsewhere(self);
                };
                let peer = index(self, attr::PEER, self.ranks)?;
                let (backend, rank) =
                    (if self.group.is_some() { Backend::Nccl } else { backend }, self.rank.unwrap_or(0));
                if stmt.get(attr::P2P_TYPE) == Some(P2pType::Recv) {
                    (Channel::Pair(backend, peer, rank), 1, 2, TransferKind::Pair, None, Some(buffer))
                } else {
                    (Channel::Pair(backend, rank, peer), 0, 2, TransferKind::Pair, Some(buffer), None)
                }
            }
            _ => return Err(self.unknown(stmt.op)),
        };
        let input = input.filter(|_| kind.reads(me)).map(|it| self.view(it)).transpose()?;
        let output = output.filter(|it| kind.writes(me, n) && self.holds(*it));
        let output = output.map(|it| self.output_view(it)).transpose()?;
        let is_receiver = kind == TransferKind::Pair && me == 1;
        let count = self.counts.entry((channel.clone(), is_receiver)).or_insert(0);
        let it = Transfer { channel, number: *count, me, kind, input, output };
        *count += 1;
        match &mut self.group {
            Some(group) => group.push(it),
            None => self.post(stmt.number, vec![it])?,
        }
        Ok(())
    }
}

/// Returns how a collective combines elements.
fn combine_of(op: RedOp, is_bool: bool) -> Combine {
    match op {
        RedOp::Sum => Combine::Sum,
        RedOp::Avg => Combine::Average,
        RedOp::Product => Combine::Product,
        RedOp::Max => Combine::lattice("max", is_bool),
        RedOp::Min => Combine::lattice("min", is_bool),
        RedOp::BitAnd => Combine::Lattice("and"),
        RedOp::BitOr => Combine::Lattice("or"),
        RedOp::BitXor => Combine::Lattice("xor"),
    }
}

/// Returns whether the elements of a tensor are integers or truth values.
pub(crate) fn is_integral(program: &Program, tensor: TensorId) -> bool {
    program.tensors[tensor].dtype.is_some_and(|it| matches!(it.class(), Class::Int | Class::Bool))
}
