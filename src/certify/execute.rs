//! Executes the steps of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are unknown
//! values of their own.

use std::{collections::VecDeque, mem};

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, Stmt},
    words::CommunicationType as Type,
};
use rustc_hash::FxHashMap;

use crate::{
    field::{Algebra, Combine, Element},
    operators::Call,
    order::Schedule,
    part::Part,
    tape::{Action, Compute, Kind, Meeting, Meetings, Port, Tape, Transfer},
    tensor::{Array, Values, View, array, is_range},
};

type Result<T> = std::result::Result<T, Box<Diagnostic>>;

/// The outputs of each rank, by number; `None` if the rank has no part.
pub(crate) type Outputs = Vec<Vec<Option<Values>>>;

/// A program with what its ranks execute.
pub(crate) struct Unrolled<'a> {
    pub(crate) program: &'a Program,
    /// Distinguishes the unknown values of this program.
    pub(crate) name: &'static str,
    pub(crate) tapes: Vec<Tape>,
    pub(crate) meetings: Meetings,
    pub(crate) schedule: Schedule,
}

/// What a statement computed last, for ranks that compute the same.
struct Remembered<'a> {
    compute: &'a Compute,
    args: Vec<Values>,
    results: Vec<Values>,
}

/// How many results are remembered: ranks execute a statement at about the same time.
const REMEMBERED: usize = 16;

/// What the members of a communication have begun to exchange.
#[derive(Default)]
struct Exchanged<'a> {
    inputs: Vec<Option<(Values, &'a Option<Part>)>>,
    /// What several members receive, once it is computed.
    all: Option<Values>,
    /// How many members have ended it.
    ended: usize,
}

struct World<'a> {
    unrolled: &'a Unrolled<'a>,
    algebra: &'a Algebra,
    /// By rank and buffer; `None` if nothing has written to it.
    memory: Vec<Vec<Option<Values>>>,
    exchanged: Vec<Exchanged<'a>>,
    remembered: VecDeque<Remembered<'a>>,
    /// The step that is executed.
    rank: usize,
    at: usize,
}

/// Executes all steps, and returns the outputs. `input` returns the elements of an input, in the part of a rank.
///
/// # Errors
/// A statement that is not certified.
pub(crate) fn execute(
    unrolled: &Unrolled<'_>,
    algebra: &Algebra,
    input: &dyn Fn(usize, &Part) -> Values,
) -> Result<Outputs> {
    let Unrolled { tapes, meetings, schedule, .. } = unrolled;
    let exchanged = |it: &Meeting| Exchanged { inputs: vec![None; it.members], ..Exchanged::default() };
    let mut world = World {
        unrolled,
        algebra,
        memory: tapes.iter().map(|it| vec![None; it.buffers.len()]).collect(),
        exchanged: meetings.all.iter().map(exchanged).collect(),
        remembered: VecDeque::new(),
        rank: 0,
        at: 0,
    };
    let mut outputs = vec![Vec::new(); tapes.len()];
    let mut last_uses = FxHashMap::default();
    for (rank, at) in &schedule.steps {
        last_uses.extend(tapes[*rank].views(*at).map(|it| ((*rank, it.buffer), *at)));
    }
    for (rank, at) in &schedule.steps {
        (world.rank, world.at) = (*rank, *at);
        let tape = &tapes[*rank];
        match &tape.steps[*at].action {
            Action::Enter => {
                for (number, (view, part)) in present(&tape.inputs) {
                    world.write(view, input(number, part))?;
                }
            }
            Action::Exit => {
                outputs[*rank] = vec![None; tape.outputs.len()];
                for (number, (view, _)) in present(&tape.outputs) {
                    outputs[*rank][number] = Some(world.read(view));
                }
            }
            _ => world.step()?,
        }
        for it in tape.views(*at).filter(|it| last_uses[&(*rank, it.buffer)] == *at) {
            world.memory[*rank][it.buffer] = None;
        }
    }
    Ok(outputs)
}

/// Returns the inputs or outputs that a rank has, with their numbers.
fn present(ports: &[Option<Port>]) -> impl Iterator<Item = (usize, &Port)> {
    ports.iter().enumerate().filter_map(|(number, it)| Some((number, it.as_ref()?)))
}

impl<'a> World<'a> {
    fn fault(&self, code: Code, message: impl Into<String>) -> Box<Diagnostic> {
        let Unrolled { program, tapes, .. } = self.unrolled;
        let stmt = tapes[self.rank].steps[self.at].stmt;
        let place = stmt.map_or(program.spans.header, |it| program.stmt_span(it));
        Box::new(Diagnostic::new(code, place, message, format!("rank {} executes this", self.rank)))
    }

    // ---- memory

    /// Returns a buffer, with unknown values if nothing has written to it.
    fn buffer(&mut self, buffer: usize) -> &mut Values {
        let (Self { rank, algebra, .. }, name) = (&*self, self.unrolled.name);
        let (rank, algebra, len) = (*rank, *algebra, self.unrolled.tapes[*rank].buffers[buffer]);
        self.memory[rank][buffer].get_or_insert_with(|| {
            let first = algebra.apply(("unwritten", name, rank, buffer), []);
            Values { degree: 1, data: array(&[len], (0..len).map(|at| first.following(at)).collect()) }
        })
    }

    fn read(&mut self, view: &View) -> Values {
        self.buffer(view.buffer).at(&view.places)
    }

    fn write(&mut self, view: &View, values: Values) -> Result<()> {
        let len = self.unrolled.tapes[self.rank].buffers[view.buffer];
        if values.data.len() != view.places.len() {
            return Err(self.fault(Code::Disagreement, "what is written here has another size than its storage"));
        }
        if is_range(&view.places, len) {
            self.memory[self.rank][view.buffer] = Some(values);
            return Ok(());
        }
        let buffer = self.buffer(view.buffer);
        buffer.degree = buffer.degree.max(values.degree);
        let mut data = mem::take(&mut buffer.data).into_shape_clone(&[len][..]).unwrap_or_default();
        if let Some(flat) = data.as_slice_mut() {
            view.places.iter().zip(&values.data).for_each(|(at, it)| flat[*at] = *it);
        }
        buffer.data = data;
        Ok(())
    }

    // ---- steps

    /// Executes a step of the program.
    fn step(&mut self) -> Result<()> {
        let unrolled = self.unrolled;
        let tape = &unrolled.tapes[self.rank];
        let step = &tape.steps[self.at];
        let values: Vec<Values> = match &step.action {
            Action::Zero => {
                let zeros = |it: &View| Values { degree: 0, data: Array::default(it.places.shape()) };
                step.writes.iter().map(zeros).collect()
            }
            Action::Copy => step.reads.iter().map(|it| self.read(it)).collect(),
            Action::Compute(it) => {
                let args = step.reads.iter().map(|it| self.read(it)).collect();
                self.results(it, args)?
            }
            Action::Begin(transfers) => {
                for it in transfers {
                    let input = it.input.as_ref().map(|view| (self.read(view), &it.part));
                    self.exchanged[it.meeting].inputs[it.me] = input;
                }
                return Ok(());
            }
            Action::End => {
                for it in tape.ended(self.at).unwrap_or_default() {
                    let mut exchanged = mem::take(&mut self.exchanged[it.meeting]);
                    if let Some(view) = &it.output {
                        let values = self.received(it, &mut exchanged)?;
                        self.write(view, values)?;
                    }
                    exchanged.ended += 1;
                    if exchanged.ended < unrolled.meetings.all[it.meeting].members {
                        self.exchanged[it.meeting] = exchanged;
                    }
                }
                return Ok(());
            }
            Action::Enter | Action::Exit => return Ok(()),
        };
        step.writes.iter().zip(values).try_for_each(|(view, values)| self.write(view, values))
    }

    /// Computes the results of a statement, unless another rank has computed them from the same operands.
    fn results(&mut self, compute: &'a Compute, args: Vec<Values>) -> Result<Vec<Values>> {
        let is_same = |known: &&Remembered<'_>| {
            known.compute.stmt == compute.stmt
                && known.args.iter().zip(&args).all(|(a, b)| a.is_same(b))
                && known.compute == compute
        };
        if let Some(known) = self.remembered.iter().find(is_same) {
            return Ok(known.results.clone());
        }
        let Unrolled { program, .. } = self.unrolled;
        let Stmt::Op(stmt) = &program.stmts[compute.stmt] else { return Ok(Vec::new()) };
        let call = Call { program, stmt, compute, args: &args, algebra: self.algebra };
        let results = call.results().map_err(|why| {
            self.fault(Code::NotCertifiable, format!("`{}` is not certified: {why}", stmt.op.name()))
        })?;
        self.remembered.truncate(REMEMBERED - 1);
        self.remembered.push_front(Remembered { compute, args, results: results.clone() });
        Ok(results)
    }

    /// Returns what a member of a communication receives.
    fn received(&self, it: &Transfer, exchanged: &mut Exchanged<'_>) -> Result<Values> {
        let n = exchanged.inputs.len();
        let Exchanged { inputs, all, .. } = exchanged;
        let is_source = |member: usize| it.from.is_none_or(|from| from == member);
        let sources = inputs.iter().enumerate().filter(|it| is_source(it.0)).filter_map(|it| it.1.as_ref());
        let values: Vec<Values> = sources.clone().map(|it| it.0.clone()).collect();
        let Some(first) = values.first() else {
            return Err(self.fault(Code::Disagreement, "no rank sends what this rank receives"));
        };
        // Each member has a chunk of the tensor.
        let own = |whole: &Values| {
            let len = whole.data.len() / n;
            whole.at(&array(&[len], (it.me * len..(it.me + 1) * len).collect()))
        };
        Ok(match &self.unrolled.meetings.all[it.meeting].kind {
            Kind::Transfer => first.clone(),
            Kind::Assemble(shape) => match all {
                Some(all) => all.clone(),
                None => all.insert(self.assembled(shape, sources)?).clone(),
            },
            Kind::Collective { kind, combine, integral, .. } => match kind {
                Type::Gather | Type::Allgather => all.get_or_insert_with(|| joined(&values)).clone(),
                Type::Reduce | Type::Allreduce | Type::ReduceScatter => {
                    let reduce = || reduced(self.algebra, *combine, *integral, &values);
                    let all = all.get_or_insert_with(reduce);
                    if *kind == Type::ReduceScatter { own(all) } else { all.clone() }
                }
                Type::AllToAll => joined(&values.iter().map(own).collect::<Vec<_>>()),
                Type::Scatter => own(first),
                Type::Broadcast | Type::SendRecv | Type::CollectivePermute => first.clone(),
            },
        })
    }

    /// Returns a whole tensor. Elements that no rank has are unknown values.
    fn assembled<'v>(&self, shape: &[usize], parts: impl Iterator<Item = &'v (Values, &'v Option<Part>)>) -> Result<Values> {
        let mut degree = 1;
        let parts = parts.filter_map(|(values, part)| Some((values, part.as_ref()?)));
        let parts = parts.inspect(|it| degree = degree.max(it.0.degree));
        let Some(found) = assemble(shape, parts) else {
            let message = "ranks hold different values of an operand, which this statement reshards";
            return Err(self.fault(Code::NotCertifiable, message));
        };
        let missing = self.algebra.apply(("missing", self.unrolled.name, self.rank, self.at), []);
        let elements = found.into_iter().enumerate().map(|(at, it)| it.unwrap_or_else(|| missing.following(at)));
        Ok(Values { data: array(shape, elements.collect()), degree })
    }
}

/// Returns the elements of a tensor whose parts are given, as far as they are; `None` if two parts differ in an element.
pub(crate) fn assemble<'v>(
    shape: &[usize],
    parts: impl Iterator<Item = (&'v Values, &'v Part)>,
) -> Option<Vec<Option<Element>>> {
    let mut found: Vec<Option<Element>> = vec![None; shape.iter().product()];
    for (values, part) in parts {
        if values.data.shape() != part.shape() {
            return None;
        }
        for (place, it) in part.places().iter().zip(&values.data) {
            if found[*place].replace(*it).is_some_and(|before| before != *it) {
                return None;
            }
        }
    }
    Some(found)
}

fn joined(parts: &[Values]) -> Values {
    let data: Vec<Element> = parts.iter().flat_map(|it| it.data.iter().copied()).collect();
    Values { data: array(&[data.len()], data), degree: degree_of(parts) }
}

fn reduced(algebra: &Algebra, combine: Combine, integral: bool, inputs: &[Values]) -> Values {
    let mut columns: Vec<_> = inputs.iter().map(|it| it.data.iter()).collect();
    let len = inputs.iter().map(|it| it.data.len()).min().unwrap_or(0);
    let mut column = Vec::new();
    let each = |_| {
        column.clear();
        column.extend(columns.iter_mut().filter_map(|it| it.next()));
        algebra.combine(combine, integral, &column)
    };
    let data = (0..len).map(each).collect();
    let products = if combine == Combine::Product { inputs.len() as u64 } else { 1 };
    Values { data: array(&[len], data), degree: degree_of(inputs).saturating_mul(products) }
}

fn degree_of(all: &[Values]) -> u64 {
    all.iter().map(|it| it.degree).max().unwrap_or(0)
}
