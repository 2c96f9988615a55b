//! Executes the control flow of a rank, which depends on no tensor, and records its steps.

use std::rc::Rc;

use grammar::{
    arena::Id,
    attr,
    codes::Code,
    diagnostic::Diagnostic,
    dtype::DType,
    ir::{
        AxisId, BlockId, DeviceDim, For, If, OpStmt, Operand as Named, ParallelType, Program, Stmt, StmtId,
        Stream, StreamId, TensorId, Transform,
    },
    loop_variant_tensors,
    ops::{Op, OpClass, TypeRule},
    rules::Aliasing,
    scalars::{Scalars, Value},
    words::{Backend, CommunicationType as Type, P2pType, RedOp},
};
use rustc_hash::{FxHashMap, FxHashSet};

use self::communication::Posted;
use crate::{
    access::Statement,
    field::{Algebra, Combine},
    operators::{is_integral, results},
    order::place,
    part::{Part, Values, View, size},
    trace::{Action, Chain, Channel, Function, Kind, Member, Port, Step, Trace},
};

mod communication;
mod computation;

/// A value, or the reason why the current statement is not certified.
type Result<T> = std::result::Result<T, String>;

/// The largest number of steps of all ranks, and of iterations of one.
const MAX_STEPS: usize = 1 << 24;

/// A memory handle: the number of the transfer, the peer, and the buffer with its first place.
type Handle = (Option<u32>, usize, usize, Option<usize>);

struct Unroller<'p, 's> {
    program: &'p Program,
    scalars: Scalars<'p>,
    /// `None`: one rank computes whole tensors.
    rank: Option<usize>,
    ranks: usize,
    trace: &'s mut Trace<'p>,
    views: FxHashMap<TensorId, View>,
    /// The stream whose slice a tensor has.
    slices: FxHashMap<TensorId, usize>,
    chains: FxHashMap<Channel, usize>,
    /// The chain of the current stream.
    current: usize,
    /// The steps that end communications, by number; `None` for one that concerns other ranks only.
    posted: FxHashMap<u32, Option<usize>>,
    /// How many transfers were posted to a channel, by member.
    counts: FxHashMap<(Channel, usize), usize>,
    /// The group of transfers that is open, each with its channel.
    group: Option<Vec<(Channel, Posted)>>,
    /// Handles that were exchanged.
    handles: FxHashSet<Handle>,
    loops: usize,
    iterations: usize,
    stmt: Option<StmtId>,
}

/// Adds what a rank of `ranks` executes, or without a rank what the program computes on whole tensors. Ranks are added in order.
///
/// # Errors
/// What cannot be certified, by name.
pub(crate) fn unroll<'p>(
    program: &'p Program,
    rank: Option<usize>,
    ranks: usize,
    trace: &mut Trace<'p>,
) -> std::result::Result<(), Box<Diagnostic>> {
    let mut it = Unroller {
        program,
        scalars: Scalars::new(program, rank.unwrap_or(0)),
        rank,
        ranks,
        trace,
        views: FxHashMap::default(),
        slices: FxHashMap::default(),
        chains: FxHashMap::default(),
        current: 0,
        posted: FxHashMap::default(),
        counts: FxHashMap::default(),
        group: None,
        handles: FxHashSet::default(),
        loops: 0,
        iterations: 0,
        stmt: None,
    };
    it.run_program().map_err(|why| {
        let label = rank.map_or("computed here".to_owned(), |it| format!("rank {it} executes this"));
        Box::new(Diagnostic::new(Code::NotCertifiable, place(program, it.stmt), why, label))
    })
}

impl<'p> Unroller<'p, '_> {
    fn run_program(&mut self) -> Result<()> {
        let program = self.program;
        self.current = self.chain(Channel::Stream(None));
        let inputs = self.ports(&program.inputs, Self::allocate)?;
        let views = |ports: &[Port]| ports.iter().flatten().map(|it| it.0.clone()).collect::<Vec<_>>();
        self.push(None, Vec::new(), views(&inputs))?;
        program.body.map_or(Ok(()), |body| self.block(body))?;
        self.stmt = None;
        let outputs = self.ports(&program.outputs, |it, tensor| it.view(tensor))?;
        // The caller reads the outputs, and overwrites the inputs.
        self.push(Some(Box::new(|_, _| Ok(Vec::new()))), views(&outputs), views(&inputs))?;
        self.trace.ports.push([inputs, outputs]);
        Ok(())
    }

    /// Returns the inputs or the outputs, in the views that `view` returns.
    fn ports(
        &mut self,
        tensors: &[Named],
        view: impl Fn(&mut Self, TensorId) -> Result<View>,
    ) -> Result<Vec<Port>> {
        let port = |tensor| {
            let part = if self.holds(tensor) { self.part(tensor, None)? } else { return Ok(None) };
            view(self, tensor)?;
            Ok(Some((self.storage(tensor, &part)?, part)))
        };
        Program::tensors_of(tensors).map(port).collect()
    }

    // ---- tensors

    fn holds(&self, tensor: TensorId) -> bool {
        self.rank.is_none_or(|rank| self.program.tensors[tensor].mesh.contains(rank))
    }

    fn view(&self, tensor: TensorId) -> Result<View> {
        let missing = || format!("`{}` has no storage here", self.program.tensor_name(tensor));
        self.views.get(&tensor).cloned().ok_or_else(missing)
    }

    /// Returns the view of a part.
    fn storage(&self, tensor: TensorId, part: &Part) -> Result<View> {
        let other = || format!("`{}` has another size than its storage", self.program.tensor_name(tensor));
        Some(self.view(tensor)?).filter(|it| it.places.len() == part.len()).ok_or_else(other)
    }

    /// Returns the part of this rank. `slice` is that of a tensor that has none yet.
    fn part(&self, tensor: TensorId, slice: Option<usize>) -> Result<Part> {
        self.part_of(tensor, self.rank, self.slices.get(&tensor).copied().or(slice).or(Some(0)))
    }

    fn part_of(&self, tensor: TensorId, rank: Option<usize>, slice: Option<usize>) -> Result<Part> {
        let slice = slice.filter(|_| self.program.is_split_by_stream(tensor));
        let part = Part::of(self.program, &self.scalars, tensor, rank, slice);
        part.map_err(|why| format!("`{}`: {why}", self.program.tensor_name(tensor)))
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
        let len = self.part(tensor, None)?.len();
        let view = View { buffer: self.trace.allocate(len), places: (0..len).collect() };
        self.bind(tensor, view.clone(), None);
        Ok(view)
    }

    fn output_view(&mut self, tensor: TensorId) -> Result<View> {
        if self.views.contains_key(&tensor) { self.view(tensor) } else { self.allocate(tensor) }
    }

    // ---- steps

    fn chain(&mut self, channel: Channel) -> usize {
        let next = self.trace.chains.len();
        let found = *self.chains.entry(channel).or_insert(next);
        if found == next {
            self.trace.chains.push(Chain::default());
        }
        found
    }

    fn member(&self, function: Option<Function<'p>>, reads: Vec<View>, writes: Vec<View>) -> Member<'p> {
        Member { rank: self.rank.unwrap_or(0), stmt: self.stmt, reads, writes, function, peers: None }
    }

    /// Appends a step that computes what it writes from what it reads.
    fn push(&mut self, function: Option<Function<'p>>, reads: Vec<View>, writes: Vec<View>) -> Result<()> {
        let len = |it: &View| it.places.len();
        if function.is_none() && reads.iter().zip(&writes).any(|(from, to)| len(from) != len(to)) {
            return Err("what is written here has another size than its storage".to_owned());
        }
        let accesses = accesses(&reads, &writes);
        let (action, member) = (self.trace.actions.len(), self.member(function, reads, writes));
        self.trace.actions.push(Action { members: vec![Some(member)], ..Action::default() });
        self.append(Step { chain: self.current, accesses, begins: Some((action, 0)), ..Step::default() })
            .map(|_| ())
    }

    /// Appends a step behind what its chain has to wait for, and returns its number.
    fn append(&mut self, step: Step) -> Result<usize> {
        if self.trace.steps.len() >= MAX_STEPS {
            return Err(format!("the ranks execute more than {MAX_STEPS} steps"));
        }
        Ok(self.trace.append(Step { rank: self.rank.unwrap_or(0), stmt: step.stmt.or(self.stmt), ..step }))
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
            self.iterations += 1;
            if self.iterations > MAX_STEPS {
                return Err(format!("the loops have more than {MAX_STEPS} iterations on a rank"));
            }
            self.scalars.bind(it.index, Some(Value::Int(value)));
            rebound.iter().for_each(|tensor| self.unbind(*tensor));
            self.block(it.body)?;
        }
        self.loops -= 1;
        self.scalars.bind(it.index, before);
        Ok(())
    }

    fn op(&mut self, stmt: &'p OpStmt) -> Result<()> {
        match stmt.op.def().class {
            OpClass::Stream => self.stream_op(stmt)?,
            OpClass::Allocate => self.allocation(stmt)?,
            OpClass::Deallocate => {
                for it in Program::tensors_of(&stmt.args).filter(|it| self.holds(*it)).collect::<Vec<_>>() {
                    self.view(it)?;
                    self.unbind(it);
                }
            }
            OpClass::View if stmt.op == Op::ShardByStream => self.chunk(stmt)?,
            OpClass::View | OpClass::Compute | OpClass::Elementwise => self.compute(stmt)?,
            OpClass::Communicate => self.communicate(stmt)?,
            OpClass::Coalescing if stmt.op == Op::StartCoalescing => self.group = Some(Vec::new()),
            OpClass::Coalescing => {
                let group = self.group.take().unwrap_or_default();
                self.post(stmt.number, group)?;
            }
            OpClass::ShareHandles => self.exchange(stmt)?,
            OpClass::Wait => self.wait(stmt)?,
            OpClass::Opaque | OpClass::HostUnit => return Err(unknown(stmt.op)),
        }
        Ok(())
    }

    // ---- streams, storage and views

    fn stream(&mut self, stream: StreamId) -> Result<usize> {
        match &self.program.streams[stream] {
            named @ Stream::Named(_) => {
                let captured = self.chains.get(&Channel::Captured(named.clone()));
                Ok(*captured.ok_or("the stream was not captured")?)
            }
            Stream::Index(index) => {
                let index = self.scalars.int(*index).map_err(|_| "the stream's index has no known value")?;
                Ok(self.chain(Channel::Stream(Some(index))))
            }
        }
    }

    fn stream_op(&mut self, stmt: &OpStmt) -> Result<()> {
        if let [Named::Stream(captured)] = stmt.outs[..] {
            let captured = Channel::Captured(self.program.streams[captured].clone());
            self.chains.entry(captured).or_insert(self.current);
        } else if let [Named::Stream(stream)] = stmt.args[..] {
            let stream = self.stream(stream)?;
            if stmt.op == Op::SetCurrentStream {
                self.current = stream;
            } else {
                let issued = self.trace.chains[stream].frontier.clone();
                self.trace.wait_for(self.current, &issued);
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
            let (view, shape) = (self.view(alias)?, self.part(tensor, None)?.shape());
            let all: Vec<usize> = (0..view.places.len()).collect();
            let view = view.strided(&all, &shape);
            self.bind(tensor, view.ok_or("the alias is no view of its tensor")?, None);
            return Ok(());
        }
        let view = self.allocate(tensor)?;
        if stmt.get(attr::ZERO_INIT) == Some(true) {
            let zeros = Values { degree: 0, data: view.places.iter().map(|_| Default::default()).collect() };
            self.push(Some(Box::new(move |_, _| Ok(vec![zeros.clone()]))), Vec::new(), vec![view])?;
        }
        Ok(())
    }

    /// Makes a tensor one stream's chunk of another one.
    fn chunk(&mut self, stmt: &OpStmt) -> Result<()> {
        let operands = stmt.out_tensor().zip(Program::tensors_of(&stmt.args).next());
        let (out, input) = operands.ok_or_else(|| unknown(stmt.op))?;
        if !self.holds(out) || !self.holds(input) {
            return Ok(());
        }
        let (program, it) = (self.program, &self.program.tensors[input]);
        let is_stream = |it: &AxisId| program.axes[*it].parallel == ParallelType::Stream;
        let count = it.loop_domain.iter().copied().find(is_stream);
        let count = count.and_then(|it| size(&self.scalars, program.axes[it].extent));
        let index = stmt.get(attr::STREAM_INDEX).and_then(|it| size(&self.scalars, it)).zip(count);
        let index = index.filter(|(index, count)| index < count);
        let (mut index, count) = index.ok_or("the stream's index has no known value")?;
        let is_rotated =
            |step: &Transform| matches!(step, Transform::Swizzle1D { output, .. } if is_stream(output));
        if it.domains.transforms.iter().any(is_rotated) {
            index += it.mesh.coordinate(self.rank.unwrap_or(0), DeviceDim::X).unwrap_or(0);
            index %= count;
        }
        let chunk = Part::of(program, &self.scalars, input, self.rank, Some(index))?;
        let from = self.part(input, None)?;
        let position = |it: Vec<usize>| from.positions(&it.iter().map(|at| *at..at + 1).collect::<Vec<_>>());
        let positions = chunk.indices().map(position).collect::<Option<Vec<_>>>();
        let positions =
            positions.filter(|_| self.part_of(out, self.rank, Some(index)).as_ref() == Ok(&chunk));
        let view = self.storage(input, &from)?;
        let view = positions.and_then(|it| view.strided(&it.concat(), &chunk.shape()));
        self.bind(out, view.ok_or("its result is no chunk of its operand")?, Some(index));
        Ok(())
    }
}

fn unknown(op: Op) -> String {
    format!("hir-certify does not know what `{}` computes", op.name())
}

/// Returns what is read and what is written, as accesses.
fn accesses(reads: &[View], writes: &[View]) -> Vec<(View, bool)> {
    let access = |writes: bool| move |it: &View| (it.clone(), writes);
    reads.iter().map(access(false)).chain(writes.iter().map(access(true))).collect()
}
