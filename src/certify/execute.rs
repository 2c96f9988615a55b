//! Executes the tapes of all ranks on elements of the field.
//!
//! A communication reads its input when it is posted, and its output arrives at the Wait for it: so what no statement waits for never
//! arrives. Elements that nothing has written are unknown values of their own.

use std::{collections::VecDeque, rc::Rc};

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{ExprId, OpStmt, Program, Stmt, StmtId, TensorId},
    scalars::Value,
    words::CommunicationType as Kind,
};
use rustc_hash::FxHashMap;

use crate::{
    field::{Algebra, Combine, Element},
    operators::Call,
    part::Part,
    tape::{Channel, Compute, StepKind, Tape, Transfer, TransferKind},
    view::{Values, View},
};

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// The inputs of all members of a communication that have posted it.
struct Meeting {
    kind: TransferKind,
    inputs: Vec<Option<Values>>,
    posted: Vec<bool>,
    /// What several members receive, once it is computed.
    all: Option<Values>,
    /// How many members have still to receive.
    left: usize,
}

/// What a statement computed last, for ranks that compute the same.
struct Remembered {
    stmt: StmtId,
    args: Vec<Values>,
    parts: Vec<Part>,
    values: FxHashMap<ExprId, Value>,
    results: Vec<Values>,
}

/// How many results are remembered: ranks execute a statement at about the same time.
const REMEMBERED: usize = 16;

pub(crate) struct World<'a> {
    program: &'a Program,
    tapes: &'a [Tape],
    algebra: &'a Algebra,
    /// Distinguishes the unknown values of this program.
    name: &'static str,
    /// By rank and buffer; `None` if nothing has written to it.
    memory: Vec<Vec<Option<Values>>>,
    next: Vec<usize>,
    /// The last step of each rank that uses a buffer.
    last_uses: Vec<Vec<usize>>,
    meetings: FxHashMap<(Channel, usize), Meeting>,
    remembered: VecDeque<Remembered>,
}

impl<'a> World<'a> {
    /// Creates the state before the first step. `input` returns the elements of an input, in the part of a rank.
    pub(crate) fn new(
        program: &'a Program,
        tapes: &'a [Tape],
        algebra: &'a Algebra,
        name: &'static str,
        input: &dyn Fn(usize, &Part) -> Values,
    ) -> Self {
        let mut memory: Vec<Vec<Option<Values>>> =
            tapes.iter().map(|it| vec![None; it.buffers.len()]).collect();
        for (memory, tape) in memory.iter_mut().zip(tapes) {
            for (number, port) in tape.inputs.iter().enumerate() {
                port.iter().for_each(|(view, part)| memory[view.buffer] = Some(input(number, part)));
            }
        }
        Self {
            program,
            tapes,
            algebra,
            name,
            memory,
            next: vec![0; tapes.len()],
            last_uses: tapes.iter().map(last_uses).collect(),
            meetings: FxHashMap::default(),
            remembered: VecDeque::new(),
        }
    }

    /// Executes all steps.
    ///
    /// # Errors
    /// A statement that is not certified, or ranks that wait for others forever.
    pub(crate) fn run(&mut self) -> Result<()> {
        loop {
            let mut proceeds = false;
            for rank in 0..self.tapes.len() {
                proceeds |= self.step(rank)?;
            }
            if !proceeds {
                break;
            }
        }
        let stuck = |rank: &usize| self.next[*rank] < self.tapes[*rank].steps.len();
        match (0..self.tapes.len()).find(stuck) {
            None => Ok(()),
            Some(rank) => {
                let message = format!("rank {rank} waits here forever, for what other ranks do not post");
                let it = self.fault(Code::CheckedDeadlock, rank, message);
                Err(Box::new(it.help("`hir check` explains the deadlock")))
            }
        }
    }

    /// Returns the elements of an output on a rank, with its part; `None` if the rank has none.
    pub(crate) fn output(&mut self, rank: usize, number: usize) -> Option<(Values, &'a Part)> {
        let tapes = self.tapes;
        let (view, part) = tapes[rank].outputs.get(number)?.as_ref()?;
        Some((self.read(rank, view), part))
    }

    fn fault(&self, code: Code, rank: usize, message: impl Into<String>) -> Diagnostic {
        let stmt = self.tapes[rank].steps[self.next[rank]].stmt;
        let label = format!("rank {rank} executes this");
        Diagnostic::new(code, self.program.stmt_span(stmt), message, label)
    }

    // ---- memory

    /// Returns a buffer, with unknown values where nothing has written to it.
    fn buffer(&mut self, rank: usize, buffer: usize) -> &mut Values {
        let (len, name) = (self.tapes[rank].buffers[buffer], self.name);
        let first = self.algebra.apply(("unwritten", name, rank, buffer), []);
        let unknown = |at| first.following(at);
        let unwritten = || Values { degree: 1, ..Values::new(vec![len], (0..len).map(unknown).collect()) };
        self.memory[rank][buffer].get_or_insert_with(unwritten)
    }

    fn read(&mut self, rank: usize, view: &View) -> Values {
        self.buffer(rank, view.buffer).gather(view)
    }

    fn write(&mut self, rank: usize, view: &View, values: &Values) {
        if view.is_whole(self.tapes[rank].buffers[view.buffer]) {
            self.memory[rank][view.buffer] = Some(values.clone());
        } else {
            let buffer = self.buffer(rank, view.buffer);
            buffer.degree = buffer.degree.max(values.degree);
            let data = Rc::make_mut(&mut buffer.data);
            view.offsets().into_iter().zip(values.data.iter()).for_each(|(at, it)| data[at] = *it);
        }
    }

    // ---- steps

    /// Executes the next step of a rank. Returns false if it has to wait, or has none.
    fn step(&mut self, rank: usize) -> Result<bool> {
        let tapes = self.tapes;
        let Some(step) = tapes[rank].steps.get(self.next[rank]) else { return Ok(false) };
        match &step.kind {
            StepKind::Zero(buffer) => {
                let len = tapes[rank].buffers[*buffer];
                self.memory[rank][*buffer] = Some(Values::new(vec![len], vec![Element::default(); len]));
            }
            StepKind::Synchronize(_) | StepKind::Exchange => (),
            StepKind::Post(transfers) => {
                for it in transfers {
                    self.post(rank, it)?;
                }
            }
            StepKind::Wait(posted) => {
                let StepKind::Post(transfers) = &tapes[rank].steps[*posted].kind else { return Ok(false) };
                if !transfers.iter().all(|it| self.is_complete(it)) {
                    return Ok(false);
                }
                for it in transfers {
                    self.receive(rank, it)?;
                }
            }
            StepKind::Compute(it) => match &it.team {
                None => self.compute(rank, step.stmt, it)?,
                Some(team) => {
                    let is_here = |rank: &usize| {
                        let next = tapes[*rank].steps.get(self.next[*rank]);
                        next.is_some_and(|it| it.stmt == step.stmt && matches!(it.kind, StepKind::Compute(_)))
                    };
                    if !team.iter().all(is_here) {
                        return Ok(false);
                    }
                    self.compute_whole(rank, step.stmt, team)?;
                    team.iter().for_each(|it| self.advance(*it));
                    return Ok(true);
                }
            },
        }
        self.advance(rank);
        Ok(true)
    }

    /// Goes to the next step, and frees the buffers that no later one uses.
    fn advance(&mut self, rank: usize) {
        let step = self.next[rank];
        self.next[rank] += 1;
        for buffer in used_buffers(&self.tapes[rank], step) {
            if self.last_uses[rank][buffer] == step {
                self.memory[rank][buffer] = None;
            }
        }
    }

    fn op(&self, stmt: StmtId) -> Option<&'a OpStmt> {
        match &self.program.stmts[stmt] {
            Stmt::Op(it) => Some(it),
            Stmt::Let(..) | Stmt::For(_) | Stmt::If(_) => None,
        }
    }

    fn compute(&mut self, rank: usize, stmt: StmtId, it: &Compute) -> Result<()> {
        let args =
            it.args.iter().filter_map(|it| it.view.as_ref()).map(|view| self.read(rank, view)).collect();
        let shapes =
            it.outs.iter().map(|it| it.view.as_ref().map_or_else(|| it.part.shape(), |it| it.shape.clone()));
        let (shapes, outs) =
            (shapes.collect(), it.outs.iter().map(|it| (it.tensor, it.part.clone())).collect());
        let results = self.results(rank, stmt, it, args, outs, shapes)?;
        for (out, values) in it.outs.iter().zip(results) {
            out.view.iter().for_each(|view| self.write(rank, view, &values));
        }
        Ok(())
    }

    /// Executes a statement on whole tensors, whose parts are on the ranks of a team.
    fn compute_whole(&mut self, rank: usize, stmt: StmtId, team: &[usize]) -> Result<()> {
        let tapes = self.tapes;
        let own = |rank: usize| match &tapes[rank].steps[self.next[rank]].kind {
            StepKind::Compute(it) => Some((rank, &**it)),
            _ => None,
        };
        let members: Vec<(usize, &Compute)> = team.iter().filter_map(|rank| own(*rank)).collect();
        let Some((_, mine)) = own(rank) else { return Ok(()) };
        let mut args = Vec::with_capacity(mine.args.len());
        for at in 0..mine.args.len() {
            args.push(self.whole(at, &members)?);
        }
        let all = |tensor: TensorId, part: &Part| (tensor, Part::all(&part.whole));
        let outs: Vec<(TensorId, Part)> = mine.outs.iter().map(|it| all(it.tensor, &it.part)).collect();
        let shapes = outs.iter().map(|it| it.1.whole.clone()).collect();
        let results = self.results(rank, stmt, mine, args, outs, shapes)?;
        for (rank, member) in members {
            for (out, values) in member.outs.iter().zip(&results) {
                let Some(view) = &out.view else { continue };
                let part = values.part(&out.part);
                if part.data.len() != view.len() {
                    let message = "the storage of a result has another size";
                    return Err(Box::new(self.fault(Code::NotCertifiable, rank, message)));
                }
                self.write(rank, view, &part);
            }
        }
        Ok(())
    }

    /// Returns a whole operand. Ranks that hold the same elements have to hold the same values.
    fn whole(&mut self, at: usize, members: &[(usize, &Compute)]) -> Result<Values> {
        let shape = members.first().map_or(Vec::new(), |it| it.1.args[at].part.whole.clone());
        let mut found: Option<Vec<Option<Element>>> = None;
        let mut last: Option<Values> = None;
        let (len, mut degree): (usize, u64) = (shape.iter().product(), 0);
        for (member, it) in members {
            let operand = &it.args[at];
            let Some(view) = &operand.view else { continue };
            let values = self.read(*member, view);
            if operand.part.is_whole() && last.as_ref().is_some_and(|it| it.is_same(&values)) {
                continue;
            }
            degree = degree.max(values.degree);
            let elements = found.get_or_insert_with(|| vec![None; len]);
            for (place, value) in operand.part.indices().into_iter().zip(values.data.iter()) {
                if elements[place].replace(*value).is_some_and(|it| it != *value) {
                    let name = self.program.tensor_name(operand.tensor);
                    let message =
                        format!("ranks hold different values of `{name}`, which this statement reshards");
                    return Err(Box::new(self.fault(Code::NotCertifiable, *member, message)));
                }
            }
            last = Some(values);
        }
        let place = members.first().map_or(0, |it| self.next[it.0]);
        let unknown = |at: usize| self.algebra.apply(("missing", self.name, place, at), []);
        let elements = found.unwrap_or_else(|| vec![None; len]).into_iter().enumerate();
        let data = elements.map(|(at, it)| it.unwrap_or_else(|| unknown(at))).collect();
        Ok(Values { degree, ..Values::new(shape, data) })
    }

    /// Computes the results of a statement, unless another rank has computed them from the same operands.
    fn results(
        &mut self,
        rank: usize,
        stmt: StmtId,
        it: &Compute,
        args: Vec<Values>,
        outs: Vec<(TensorId, Part)>,
        shapes: Vec<Vec<usize>>,
    ) -> Result<Vec<Values>> {
        let parts: Vec<Part> =
            it.args.iter().map(|it| &it.part).chain(outs.iter().map(|it| &it.1)).cloned().collect();
        let same = |known: &&Remembered| {
            known.stmt == stmt
                && known.values == it.values
                && known.parts == parts
                && known.results.iter().map(|it| &it.shape).eq(&shapes)
                && known.args.iter().zip(&args).all(|(a, b)| a.is_same(b))
        };
        if let Some(known) = self.remembered.iter().find(same) {
            return Ok(known.results.clone());
        }
        let Some(op) = self.op(stmt) else { return Ok(Vec::new()) };
        let call = Call {
            program: self.program,
            stmt: op,
            args: &args,
            arg_parts: &parts[..it.args.len()],
            outs: &outs,
            shapes: &shapes,
            value: &|expr| it.values.get(&expr).copied(),
            algebra: self.algebra,
        };
        let computed = call.compute().map_err(|why| {
            Box::new(self.fault(
                Code::NotCertifiable,
                rank,
                format!("`{}` is not certified: {why}", op.op.name()),
            ))
        })?;
        let degree = call.degree();
        let sized = |(shape, it)| Values { degree, ..Values::new(shape, it) };
        let results: Vec<Values> = shapes.clone().into_iter().zip(computed).map(sized).collect();
        if self.remembered.len() >= REMEMBERED {
            self.remembered.pop_front();
        }
        self.remembered.push_back(Remembered {
            stmt,
            args,
            parts,
            values: it.values.clone(),
            results: results.clone(),
        });
        Ok(results)
    }

    // ---- communication

    fn post(&mut self, rank: usize, it: &Transfer) -> Result<()> {
        let n = it.channel.ranks().len();
        let input = it.input.as_ref().map(|view| self.read(rank, view));
        let kind = if let TransferKind::Permute(_) = it.kind { TransferKind::Permute(0) } else { it.kind };
        let left = (0..n).filter(|at| kind.writes(*at, n)).count();
        let start = || Meeting { kind, inputs: vec![None; n], posted: vec![false; n], all: None, left };
        let meeting = self.meetings.entry((it.channel.clone(), it.number)).or_insert_with(start);
        if meeting.kind != kind {
            let message = "the members of the team post different collectives";
            return Err(Box::new(self.fault(Code::Disagreement, rank, message)));
        }
        meeting.inputs[it.me] = input;
        meeting.posted[it.me] = true;
        Ok(())
    }

    /// Returns whether all members that have to contribute to what a rank receives have posted it. A sender does not wait.
    fn is_complete(&self, it: &Transfer) -> bool {
        let is_sender = it.kind == TransferKind::Pair && it.me == 0;
        // Without a meeting, all members have received.
        let meeting = self.meetings.get(&(it.channel.clone(), it.number)).filter(|_| !is_sender);
        meeting.is_none_or(|meeting| match it.kind {
            TransferKind::Pair => meeting.posted[0],
            TransferKind::Permute(_) | TransferKind::Collective { .. } => meeting.posted.iter().all(|it| *it),
        })
    }

    fn receive(&mut self, rank: usize, it: &Transfer) -> Result<()> {
        let (n, me, algebra) = (it.channel.ranks().len(), it.me, self.algebra);
        let key = (it.channel.clone(), it.number);
        let (Some(view), Some(meeting)) = (&it.output, self.meetings.get_mut(&key)) else { return Ok(()) };
        let inputs = it.kind.sources(me, n).into_iter().map(|at| meeting.inputs[at].as_ref());
        let inputs: Vec<&Values> = inputs.flatten().collect();
        let own = |it: &Values| {
            it.view().reshape(&[n, it.data.len() / n]).map(|view| it.gather(&view.select(0, me)))
        };
        let values = match it.kind {
            TransferKind::Collective { kind, combine, integral, .. } => match kind {
                Kind::Gather | Kind::Allgather => {
                    Some(meeting.all.get_or_insert_with(|| joined(&inputs)).clone())
                }
                Kind::Reduce | Kind::Allreduce | Kind::ReduceScatter => {
                    let reduce = || reduced(algebra, combine, integral, &inputs);
                    let all = meeting.all.get_or_insert_with(reduce);
                    if kind == Kind::ReduceScatter { own(all) } else { Some(all.clone()) }
                }
                Kind::AllToAll => {
                    let parts = inputs.into_iter().map(own).collect::<Option<Vec<Values>>>();
                    parts.map(|it| joined(&it.iter().collect::<Vec<_>>()))
                }
                Kind::Scatter => inputs.first().and_then(|it| own(it)),
                Kind::Broadcast | Kind::SendRecv | Kind::CollectivePermute => {
                    inputs.first().map(|it| (*it).clone())
                }
            },
            TransferKind::Permute(_) | TransferKind::Pair => inputs.first().map(|it| (*it).clone()),
        };
        meeting.left = meeting.left.saturating_sub(1);
        if meeting.left == 0 {
            self.meetings.remove(&key);
        }
        match values.filter(|it| it.data.len() == view.len()) {
            Some(values) => self.write(rank, view, &values),
            None => {
                let message = "the two sides of the communication have different sizes";
                return Err(Box::new(self.fault(Code::Disagreement, rank, message)));
            }
        }
        Ok(())
    }
}

fn joined(parts: &[&Values]) -> Values {
    let data: Vec<Element> = parts.iter().flat_map(|it| it.data.iter().copied()).collect();
    Values { degree: degree_of(parts), ..Values::new(vec![data.len()], data) }
}

fn reduced(algebra: &Algebra, combine: Combine, integral: bool, inputs: &[&Values]) -> Values {
    let len = inputs.iter().map(|it| it.data.len()).min().unwrap_or(0);
    let mut column = Vec::new();
    let each = |at: usize| {
        column.clear();
        column.extend(inputs.iter().map(|it| it.data[at]));
        algebra.combine(combine, integral, &column)
    };
    let data = (0..len).map(each).collect();
    let products = if combine == Combine::Product { inputs.len() as u64 } else { 1 };
    Values { degree: degree_of(inputs).saturating_mul(products), ..Values::new(vec![len], data) }
}

fn degree_of(all: &[&Values]) -> u64 {
    all.iter().map(|it| it.degree).max().unwrap_or(0)
}

/// Returns the buffers that a step reads or writes.
fn used_buffers(tape: &Tape, step: usize) -> Vec<usize> {
    let of_transfers = |it: &[Transfer]| -> Vec<usize> {
        it.iter().flat_map(|it| it.input.iter().chain(&it.output)).map(|it| it.buffer).collect()
    };
    match &tape.steps[step].kind {
        StepKind::Zero(buffer) => vec![*buffer],
        StepKind::Compute(it) => {
            it.args.iter().chain(&it.outs).filter_map(|it| it.view.as_ref()).map(|it| it.buffer).collect()
        }
        StepKind::Post(it) => of_transfers(it),
        StepKind::Wait(posted) => match &tape.steps[*posted].kind {
            StepKind::Post(it) => of_transfers(it),
            _ => Vec::new(),
        },
        StepKind::Synchronize(_) | StepKind::Exchange => Vec::new(),
    }
}

/// Returns the last step that uses each buffer. An output is used behind the last one.
fn last_uses(tape: &Tape) -> Vec<usize> {
    let mut found = vec![0; tape.buffers.len()];
    for step in 0..tape.steps.len() {
        used_buffers(tape, step).into_iter().for_each(|it| found[it] = step);
    }
    tape.outputs.iter().flatten().for_each(|(view, _)| found[view.buffer] = usize::MAX);
    found
}
