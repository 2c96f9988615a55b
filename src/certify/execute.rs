//! Executes the actions of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are unknown
//! values of their own.

use std::{mem, rc::Rc};

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program};

use crate::{
    field::Algebra,
    order::{Schedule, place},
    part::{Part, Values, View, is_range},
    trace::{Port, Trace},
};

/// A program with what its ranks execute.
pub(crate) struct Unrolled<'p> {
    pub(crate) program: &'p Program,
    /// Distinguishes the unknown values of this program.
    pub(crate) name: &'static str,
    pub(crate) trace: Trace<'p>,
    pub(crate) schedule: Schedule,
}

struct Memory<'a> {
    unrolled: &'a Unrolled<'a>,
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
    unrolled: &'a Unrolled<'_>,
    algebra: &Algebra,
    inputs: &[Values],
) -> Result<Vec<Vec<Output<'a>>>, Box<Diagnostic>> {
    let Unrolled { program, trace, schedule, .. } = unrolled;
    let mut memory = Memory { unrolled, algebra, buffers: vec![None; trace.buffers.len()] };
    for (port, whole) in trace.ports.iter().flat_map(|[ports, _]| ports.iter().zip(inputs)) {
        port.iter().for_each(|(view, part)| memory.write(view, whole.at(&part.numbers())));
    }
    for (action, last_uses) in &schedule.actions {
        let members: Vec<_> = trace.actions[*action].members.iter().flatten().collect();
        let mut args: Vec<Vec<Values>> =
            members.iter().map(|it| it.reads.iter().map(|it| memory.read(it)).collect()).collect();
        for (at, it) in members.into_iter().enumerate() {
            let results = match &it.function {
                Some(function) => function(algebra, &args).map_err(|why| {
                    let label = format!("rank {} executes this", it.rank);
                    Box::new(Diagnostic::new(Code::NotCertifiable, place(program, it.stmt), why, label))
                })?,
                None => mem::take(&mut args[at]),
            };
            it.writes.iter().zip(results).for_each(|(view, it)| memory.write(view, it));
        }
        last_uses.iter().for_each(|it| memory.buffers[*it] = None);
    }
    let mut output = |it: &'a Port| it.as_ref().map(|(view, part)| (part, memory.read(view)));
    Ok(trace.ports.iter().map(|[_, outputs]| outputs.iter().map(&mut output).collect()).collect())
}

impl Memory<'_> {
    /// Returns a buffer, with unknown values if nothing has written to it.
    fn buffer(&mut self, buffer: usize) -> &mut Values {
        let (algebra, Unrolled { name, trace, .. }) = (self.algebra, self.unrolled);
        self.buffers[buffer].get_or_insert_with(|| {
            let (first, len) = (algebra.apply(("unwritten", name, buffer), []), trace.buffers[buffer]);
            Values { degree: 1, data: (0..len).map(|at| first.following(at)).collect() }
        })
    }

    fn read(&mut self, view: &View) -> Values {
        self.buffer(view.buffer).at(&view.places)
    }

    /// Writes as many elements as the view has.
    fn write(&mut self, view: &View, values: Values) {
        let len = self.unrolled.trace.buffers[view.buffer];
        if is_range(&view.places, len) {
            self.buffers[view.buffer] = Some(values);
            return;
        }
        let buffer = self.buffer(view.buffer);
        buffer.degree = buffer.degree.max(values.degree);
        let data = Rc::make_mut(&mut buffer.data);
        view.places.iter().zip(&*values.data).for_each(|(at, it)| data[*at] = *it);
    }
}
