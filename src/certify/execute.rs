//! Executes the steps of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are unknown
//! values of their own.

use std::mem;

use grammar::{codes::Code, diagnostic::Diagnostic, ir::Program};

use crate::{
    field::Algebra,
    order::{Schedule, place},
    part::Part,
    tape::{Shared, Tape},
    tensor::{Values, View, array, is_range},
};

/// A program with what its ranks execute.
pub(crate) struct Unrolled<'p> {
    pub(crate) program: &'p Program,
    /// Distinguishes the unknown values of this program.
    pub(crate) name: &'static str,
    pub(crate) tapes: Vec<Tape<'p>>,
    pub(crate) shared: Shared,
    pub(crate) schedule: Schedule,
}

struct Memory<'a> {
    unrolled: &'a Unrolled<'a>,
    algebra: &'a Algebra,
    /// By buffer; `None` if nothing has written to it.
    buffers: Vec<Option<Values>>,
}

/// Executes all steps, and returns the outputs of each rank, by number. `input` returns the elements of an input, in the part of a rank.
///
/// # Errors
/// A statement that is not certified.
pub(crate) fn execute(
    unrolled: &Unrolled<'_>,
    algebra: &Algebra,
    input: &dyn Fn(usize, &Part) -> Values,
) -> Result<Vec<Vec<Option<Values>>>, Box<Diagnostic>> {
    let Unrolled { program, tapes, schedule, shared, .. } = unrolled;
    let mut memory = Memory { unrolled, algebra, buffers: vec![None; shared.buffers.len()] };
    for (number, port) in tapes.iter().flat_map(|it| it.inputs.iter().enumerate()) {
        port.iter().for_each(|(view, part)| memory.write(view, input(number, part)));
    }
    for (rank, at, last_uses) in &schedule.steps {
        let step = &tapes[*rank].steps[*at];
        let args: Vec<Values> = step.reads.iter().map(|it| memory.read(it)).collect();
        let results = match &step.function {
            Some(function) => function(algebra, &args).map_err(|why| {
                let label = format!("rank {rank} executes this");
                Box::new(Diagnostic::new(Code::NotCertifiable, place(program, step.stmt), why, label))
            })?,
            None => args,
        };
        step.writes.iter().zip(results).for_each(|(view, it)| memory.write(view, it));
        last_uses.iter().for_each(|it| memory.buffers[*it] = None);
    }
    let mut output = |it: &Option<(View, Part)>| it.as_ref().map(|it| memory.read(&it.0));
    Ok(tapes.iter().map(|it| it.outputs.iter().map(&mut output).collect()).collect())
}

impl Memory<'_> {
    /// Returns a buffer, with unknown values if nothing has written to it.
    fn buffer(&mut self, buffer: usize) -> &mut Values {
        let (algebra, Unrolled { name, shared, .. }) = (self.algebra, self.unrolled);
        self.buffers[buffer].get_or_insert_with(|| {
            let (first, len) = (algebra.apply(("unwritten", name, buffer), []), shared.buffers[buffer]);
            Values { degree: 1, data: array(&[len], (0..len).map(|at| first.following(at)).collect()) }
        })
    }

    fn read(&mut self, view: &View) -> Values {
        self.buffer(view.buffer).at(&view.places)
    }

    /// Writes as many elements as the view has.
    fn write(&mut self, view: &View, values: Values) {
        let len = self.unrolled.shared.buffers[view.buffer];
        if is_range(&view.places, len) {
            self.buffers[view.buffer] = Some(values);
            return;
        }
        let buffer = self.buffer(view.buffer);
        buffer.degree = buffer.degree.max(values.degree);
        let mut data = mem::take(&mut buffer.data).into_shape_clone(&[len][..]).unwrap_or_default();
        if let Some(flat) = data.as_slice_mut() {
            view.places.iter().zip(&values.data).for_each(|(at, it)| flat[*at] = *it);
        }
        buffer.data = data;
    }
}
