//! Executes the actions of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are opaque
//! values of their own.

use super::*;

struct Memory<'a> {
    trace: &'a Trace<'a>,
    algebra: &'a Algebra,
    /// Distinguishes the unknown values of this program.
    name: &'static str,
    /// By buffer; `None` if nothing has written to it.
    buffers: Vec<Option<Values>>,
}

/// What a rank has of an input or output in the end, and which part of it; `None` on a rank that has no part.
pub(crate) type Output<'a> = Option<(&'a Part, Values)>;

/// Executes all actions on inputs, and returns the contents of the inputs and of the outputs of each rank, by number.
///
/// # Errors
/// A statement that is not certified.
pub(crate) fn execute<'a>(
    Unrolled { program, name, trace, order }: &'a Unrolled<'a>,
    algebra: &Algebra,
    inputs: &[Values],
) -> Diagnosed<Vec<[Vec<Output<'a>>; 2]>> {
    let mut memory = Memory { trace, algebra, name, buffers: vec![None; trace.buffers.len()] };
    for (port, whole) in trace.ports.iter().flat_map(|[ports, _]| ports.iter().zip(inputs)) {
        if let Some((view, part)) = port {
            let positions = Part::all(&part.whole).positions(&part.held).unwrap_or_default();
            memory.write(view, whole.at(&positions));
        }
    }
    for action in &order.actions {
        let tasks: Vec<_> = action.iter().map(|(at, task)| &trace.steps[*at].tasks[*task]).collect();
        let read = |it: &&Task<'_>| it.reads.iter().map(|it| memory.read(it)).collect();
        let mut args: Vec<Vec<Values>> = tasks.iter().map(read).collect();
        for (at, it) in tasks.into_iter().enumerate().filter(|it| !it.1.writes.is_empty()) {
            let results = match &it.function {
                Some(function) => function(algebra, &args).map_err(|why| {
                    refused(program, it.stmt, why, format!("rank {} executes this", it.rank))
                })?,
                None => mem::take(&mut args[at]),
            };
            it.writes.iter().zip(results).for_each(|(view, it)| memory.write(view, it));
        }
    }
    let mut output = |it: &'a Port| it.as_ref().map(|(view, part)| (part, memory.read(view)));
    Ok(trace.ports.iter().map(|it| it.each_ref().map(|all| all.iter().map(&mut output).collect())).collect())
}

impl Memory<'_> {
    /// Returns a buffer, with unknown values if nothing has written to it.
    fn buffer(&mut self, buffer: usize) -> &mut Values {
        self.buffers[buffer].get_or_insert_with(|| {
            let unknown = |at| self.algebra.random(("unwritten", self.name, buffer, at)).opaque();
            Values { size: 1, data: (0..self.trace.buffers[buffer]).map(unknown).collect() }
        })
    }

    fn read(&mut self, view: &View) -> Values {
        self.buffer(view.buffer).at(&view.places)
    }

    /// Writes as many elements as the view has.
    fn write(&mut self, view: &View, values: Values) {
        self.algebra.size.set(self.algebra.size.get().max(values.size));
        if is_range(&view.places, self.trace.buffers[view.buffer]) {
            self.buffers[view.buffer] = Some(values);
            return;
        }
        let buffer = self.buffer(view.buffer);
        buffer.size = buffer.size.max(values.size);
        let data = Rc::make_mut(&mut buffer.data);
        view.places.iter().zip(&*values.data).for_each(|(at, it)| data[*at] = *it);
    }
}
