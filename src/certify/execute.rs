//! Executes the steps of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are unknown
//! values of their own.

use std::{collections::VecDeque, mem};

use grammar::{
    codes::Code,
    diagnostic::Diagnostic,
    ir::{Program, Stmt},
};

use crate::{
    field::{Algebra, Combine, Element},
    operators::Call,
    order::Schedule,
    part::Part,
    tape::{Effect, Function, Shared, Tape},
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
    pub(crate) shared: Shared,
    pub(crate) schedule: Schedule,
}

/// What a function has returned, for ranks that compute the same.
struct Remembered<'a> {
    function: &'a Function,
    args: Vec<Values>,
    results: Vec<Values>,
}

/// The largest number of elements that all ranks hold at a time. Each takes 8 bytes, and twice as many where a function has results.
const MAX_ELEMENTS: usize = 1 << 27;

/// How many results are remembered: ranks execute a statement at about the same time.
const REMEMBERED: usize = 16;

struct World<'a> {
    unrolled: &'a Unrolled<'a>,
    algebra: &'a Algebra,
    /// By buffer; `None` if nothing has written to it.
    memory: Vec<Option<Values>>,
    remembered: VecDeque<Remembered<'a>>,
    /// The rank and the number of the step that is executed.
    step: (usize, usize),
    outputs: Outputs,
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
    let Unrolled { tapes, schedule, shared, .. } = unrolled;
    let views = |it: &(usize, usize)| {
        let effects = tapes[it.0].steps[it.1].effects.iter();
        effects.flat_map(|it| it.reads.iter().chain(&it.writes))
    };
    let mut last_uses = vec![(0, 0); shared.buffers.len()];
    for step in &schedule.steps {
        views(step).for_each(|it| last_uses[it.buffer] = *step);
    }
    let (mut live, mut is_live) = (0_usize, vec![false; shared.buffers.len()]);
    for step in &schedule.steps {
        for it in views(step).filter(|it| !mem::replace(&mut is_live[it.buffer], true)) {
            live = live.saturating_add(shared.buffers[it.buffer]);
        }
        if live > MAX_ELEMENTS {
            let stmt = tapes[step.0].steps[step.1].stmt;
            let place = stmt.map_or(unrolled.program.spans.header, |it| unrolled.program.stmt_span(it));
            let message =
                format!("all ranks together hold more than {MAX_ELEMENTS} elements; use smaller extents");
            let label = format!("rank {} needs more here", step.0);
            return Err(Box::new(Diagnostic::new(Code::NotCertifiable, place, message, label)));
        }
        for it in views(step).filter(|it| last_uses[it.buffer] == *step) {
            live -= if mem::take(&mut is_live[it.buffer]) { shared.buffers[it.buffer] } else { 0 };
        }
    }
    let mut world = World {
        unrolled,
        algebra,
        memory: vec![None; shared.buffers.len()],
        remembered: VecDeque::new(),
        step: (0, 0),
        outputs: vec![Vec::new(); tapes.len()],
    };
    for step in &schedule.steps {
        world.step = *step;
        for effect in &tapes[step.0].steps[step.1].effects {
            world.run(effect, input)?;
        }
        for it in views(step).filter(|it| last_uses[it.buffer] == *step) {
            world.memory[it.buffer] = None;
        }
    }
    Ok(world.outputs)
}

impl<'a> World<'a> {
    fn fault(&self, code: Code, message: impl Into<String>) -> Box<Diagnostic> {
        let (Unrolled { program, tapes, .. }, (rank, at)) = (self.unrolled, self.step);
        let place = tapes[rank].steps[at].stmt.map_or(program.spans.header, |it| program.stmt_span(it));
        Box::new(Diagnostic::new(code, place, message, format!("rank {rank} executes this")))
    }

    /// Returns a buffer, with unknown values if nothing has written to it.
    fn buffer(&mut self, buffer: usize) -> &mut Values {
        let (algebra, Unrolled { name, shared, .. }) = (self.algebra, self.unrolled);
        self.memory[buffer].get_or_insert_with(|| {
            let (first, len) = (algebra.apply(("unwritten", name, buffer), []), shared.buffers[buffer]);
            Values { degree: 1, data: array(&[len], (0..len).map(|at| first.following(at)).collect()) }
        })
    }

    fn write(&mut self, view: &View, values: Values) -> Result<()> {
        let len = self.unrolled.shared.buffers[view.buffer];
        if values.data.len() != view.places.len() {
            let message = "what is written here has another size than its storage";
            return Err(self.fault(Code::NotCertifiable, message));
        }
        if is_range(&view.places, len) {
            self.memory[view.buffer] = Some(values);
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

    fn run(&mut self, effect: &'a Effect, input: &dyn Fn(usize, &Part) -> Values) -> Result<()> {
        let tape = &self.unrolled.tapes[self.step.0];
        let args: Vec<Values> = effect.reads.iter().map(|it| self.buffer(it.buffer).at(&it.places)).collect();
        let results = match &effect.function {
            Function::Enter => {
                let parts = tape.inputs.iter().enumerate();
                parts.filter_map(|(number, it)| Some(input(number, &it.as_ref()?.1))).collect()
            }
            Function::Exit => {
                let mut args = args.into_iter();
                let output = |it: &Option<_>| it.as_ref().and_then(|_| args.next());
                self.outputs[self.step.0] = tape.outputs.iter().map(output).collect();
                return Ok(());
            }
            Function::Zero => {
                let zeros = |it: &View| Values { degree: 0, data: Array::default(it.places.shape()) };
                effect.writes.iter().map(zeros).collect()
            }
            Function::Copy => args,
            Function::Equal if args.windows(2).all(|it| it[0].is_same(&it[1])) => return Ok(()),
            Function::Equal => {
                let message = "ranks hold different values of an operand, which this statement reshards";
                return Err(self.fault(Code::NotCertifiable, message));
            }
            function @ (Function::Reduce(..) | Function::Statement(_)) => self.results(function, args)?,
        };
        effect.writes.iter().zip(results).try_for_each(|(view, values)| self.write(view, values))
    }

    /// Computes the results of a function, unless another rank has computed them from the same operands.
    fn results(&mut self, function: &'a Function, args: Vec<Values>) -> Result<Vec<Values>> {
        let is_same = |known: &&Remembered<'_>| {
            known.args.len() == args.len()
                && known.args.iter().zip(&args).all(|(a, b)| a.is_same(b))
                && known.function == function
        };
        if let Some(known) = self.remembered.iter().find(is_same) {
            return Ok(known.results.clone());
        }
        let (program, algebra) = (self.unrolled.program, self.algebra);
        let results = match function {
            Function::Reduce(combine, integral) => vec![reduced(algebra, *combine, *integral, &args)],
            Function::Statement(compute) => {
                let Stmt::Op(stmt) = &program.stmts[compute.stmt] else { return Ok(Vec::new()) };
                let results = Call { program, stmt, compute, args: &args, algebra }.results();
                let name = stmt.op.name();
                results.map_err(|why| {
                    self.fault(Code::NotCertifiable, format!("`{name}` is not certified: {why}"))
                })?
            }
            _ => Vec::new(),
        };
        self.remembered.truncate(REMEMBERED - 1);
        self.remembered.push_front(Remembered { function, args, results: results.clone() });
        Ok(results)
    }
}

/// Combines tensors element by element.
fn reduced(algebra: &Algebra, combine: Combine, integral: bool, inputs: &[Values]) -> Values {
    let mut columns: Vec<_> = inputs.iter().map(|it| it.data.iter()).collect();
    let len = inputs.first().map_or(0, |it| it.data.len());
    let mut column = Vec::new();
    let each = |_| {
        column.clear();
        column.extend(columns.iter_mut().filter_map(Iterator::next));
        algebra.combine(combine, integral, &column)
    };
    let data = (0..len).map(each).collect();
    let products = if combine == Combine::Product { inputs.len() as u64 } else { 1 };
    let degree = inputs.iter().map(|it| it.degree).max().unwrap_or(0);
    Values { data: array(&[len], data), degree: degree.saturating_mul(products) }
}

/// Returns the elements of a tensor whose parts are given, as far as they are; `None` if two parts differ in an element.
pub(crate) fn assemble<'v>(
    shape: &[usize],
    parts: impl Iterator<Item = (&'v Values, &'v Part)>,
) -> Option<Vec<Option<Element>>> {
    let mut found: Vec<Option<Element>> = vec![None; shape.iter().product()];
    for (values, part) in parts {
        for (place, it) in part.places().iter().zip(&values.data) {
            if found[*place].replace(*it).is_some_and(|before| before != *it) {
                return None;
            }
        }
    }
    Some(found)
}
