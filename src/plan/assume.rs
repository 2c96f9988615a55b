//! `--assume`: gives the scalars that a text does not define the values that the report about them proposes.

use grammar::{Binding, Code, Diagnostic, Program, Source, apply_bindings};

use super::{limits::Limits, proposed_bindings, smallest_world, unbound::flags_text};

/// Binds the scalars of a program that have no value, and returns the warning that names them; `None` if all scalars have a
/// value. `ranks` is the number of ranks; by default, that of the smallest world.
pub fn assume_scalars(
    program: &mut Program,
    source: &Source,
    ranks: Option<usize>,
    limits: &Limits,
) -> Option<Diagnostic> {
    let world = ranks.unwrap_or_else(|| smallest_world(program));
    let bindings: Vec<Binding> = proposed_bindings(program, &source.lines, world, limits);
    let first = program.find_symbol(&bindings.first()?.name)?;
    let span = program.symbol_span(first);
    apply_bindings(program, &bindings).ok()?;
    let message = match &bindings[..] {
        [one] => format!("the text does not define `{}`", one.name),
        all => format!("the text does not define {} scalars", all.len()),
    };
    let label = format!("assumed: {}", flags_text(&bindings));
    Some(Diagnostic::new(Code::LossyScalar, span, message, label))
}
