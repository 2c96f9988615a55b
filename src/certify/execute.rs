//! Executes the actions of all ranks on elements of the field.
//!
//! Nothing races, so every order that satisfies the dependences gives the same values. Elements that nothing has written are opaque
//! values of their own.

use super::*;

/// The name of the fault of elements that nothing has written.
pub(crate) const UNWRITTEN: &str = "element that nothing has written";

/// What a rank has of an input or output in the end, and which part of it; `None` on a rank that has no part.
pub(crate) type Output<'a> = Option<(&'a Part, Values)>;

/// Executes all actions on inputs, and returns the contents of the inputs and of the outputs of each rank.
///
/// # Errors
/// A statement that is not certified.
pub(crate) fn execute<'a>(
    (program, is_original): (&Program, bool),
    trace: &'a Trace<'_>,
    algebra: &Algebra,
    inputs: &[Values],
) -> Diagnosed<Vec<Vec<Output<'a>>>> {
    let lacks = algebra.partial(algebra.random(UNWRITTEN), UNWRITTEN);
    let value = |buffer, at| algebra.random(("unwritten", is_original, buffer, at)).opaque();
    let unknown = |buffer, at| value(buffer, at).with(lacks.faults);
    let unwritten = |(buffer, len): (usize, &usize)| (0..*len).map(|at| unknown(buffer, at)).collect();
    let mut memory: Vec<Values> = trace.buffers.iter().enumerate().map(unwritten).collect();
    let read = |memory: &[Values], view: &View| at(&memory[view.buffer], &view.places);
    let write = |memory: &mut [Values], view: &View, values: Values| {
        view.places.iter().zip(values).for_each(|(at, it)| memory[view.buffer][*at] = it);
    };
    // The inputs are the first ports.
    let ports = trace.ports.iter().flat_map(|it| it.iter().zip(inputs));
    for ((view, part), whole) in ports.filter_map(|(port, whole)| Some((port.as_ref()?, whole))) {
        let positions = Part::all(&part.whole).positions(&part.held).unwrap_or_default();
        write(&mut memory, view, at(whole, &positions));
    }
    for action in &trace.order {
        let steps = action.iter().map(|at| &trace.steps[*at]);
        let args = steps.clone().map(|it| it.reads.iter().map(|it| read(&memory, it)).collect());
        let args: Vec<Vec<Values>> = args.collect();
        for (at, it) in steps.enumerate().filter(|it| !it.1.writes.is_empty()) {
            let copied = || Ok(args[at].clone());
            let why = |why| refused(program, it.stmt, why, format!("rank {} executes this", it.rank));
            let results = it.function.as_ref().map_or_else(copied, |run| run(algebra, &args)).map_err(why)?;
            it.writes.iter().zip(results).for_each(|(view, it)| write(&mut memory, view, it));
        }
    }
    let output = |it: &'a Port| it.as_ref().map(|(view, part)| (part, read(&memory, view)));
    Ok(trace.ports.iter().map(|ports| ports.iter().map(output).collect()).collect())
}
