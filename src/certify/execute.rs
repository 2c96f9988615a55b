//! Executes the actions of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are unknown
//! values of their own.

use super::*;

struct Memory<'a> {
    trace: &'a Trace<'a>,
    algebra: &'a Algebra,
    /// By buffer; `None` if nothing has written to it.
    buffers: Vec<Option<Values>>,
}

/// An output of a rank, and which part of it; `None` on a rank that has no part.
pub(crate) type Output<'a> = Option<(&'a Part, Values)>;

/// Executes all actions on inputs, and returns the outputs of each rank, by number.
///
/// # Errors
/// A statement that is not certified.
pub(crate) fn execute<'a>(
    trace: &'a Trace<'a>,
    order: &Order,
    algebra: &Algebra,
    inputs: &[Values],
) -> Diagnosed<Vec<Vec<Output<'a>>>> {
    let mut memory = Memory { trace, algebra, buffers: vec![None; trace.buffers.len()] };
    for (port, whole) in trace.ports.iter().flat_map(|[ports, _]| ports.iter().zip(inputs)) {
        port.iter().for_each(|(view, part)| memory.write(view, whole.at(&part.numbers())));
    }
    for action in &order.actions {
        let members: Vec<_> = trace.actions[*action].members.iter().flatten().collect();
        let mut args: Vec<Vec<Values>> =
            members.iter().map(|it| it.reads.iter().map(|it| memory.read(it)).collect()).collect();
        for (at, it) in members.into_iter().enumerate() {
            let results = match &it.function {
                Some(function) => function(algebra, &args).map_err(|why| {
                    refused(trace.program, it.stmt, why, format!("rank {} executes this", it.rank))
                })?,
                None => mem::take(&mut args[at]),
            };
            it.writes.iter().zip(results).for_each(|(view, it)| memory.write(view, it));
        }
    }
    let mut output = |it: &'a Port| it.as_ref().map(|(view, part)| (part, memory.read(view)));
    Ok(trace.ports.iter().map(|[_, outputs]| outputs.iter().map(&mut output).collect()).collect())
}

impl Memory<'_> {
    /// Returns a buffer, with unknown values if nothing has written to it.
    fn buffer(&mut self, buffer: usize) -> &mut Values {
        self.buffers[buffer].get_or_insert_with(|| {
            let (algebra, Trace { name, buffers, .. }) = (self.algebra, self.trace);
            let data = (0..buffers[buffer]).map(|at| algebra.apply(("unwritten", name, buffer, at), []));
            Values { degree: 1, data: data.collect() }
        })
    }

    fn read(&mut self, view: &View) -> Values {
        self.buffer(view.buffer).at(&view.places)
    }

    /// Writes as many elements as the view has.
    fn write(&mut self, view: &View, values: Values) {
        if is_range(&view.places, self.trace.buffers[view.buffer]) {
            self.buffers[view.buffer] = Some(values);
            return;
        }
        let buffer = self.buffer(view.buffer);
        buffer.degree = buffer.degree.max(values.degree);
        let data = Rc::make_mut(&mut buffer.data);
        view.places.iter().zip(&*values.data).for_each(|(at, it)| data[*at] = *it);
    }
}
