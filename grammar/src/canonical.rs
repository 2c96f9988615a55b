//! Prints the canonical text of a container: the newest spelling of every construct, without loss of
//! information.
//!
//! Invariant: reading the canonical text gives the same program without warnings, and printing that program
//! gives the same text.

use std::io;

use rustc_hash::FxHashMap;

use crate::{
    arena::Id,
    domains,
    ir::{Program, StmtId},
    print::{self as printer, Options},
    roots,
    tensor_uses::tensors_in_text_order,
};

/// Returns the canonical text of a container.
pub fn print(program: &Program) -> String {
    printer::print(program, &options(program))
}

/// Writes the canonical text of a container in pieces.
///
/// # Errors
/// Returns the first error of `out`.
pub fn write(program: &Program, out: &mut dyn io::Write) -> io::Result<()> {
    printer::write(program, &options(program), out)
}

/// Writes the short form of a container in pieces: a `%tensor` line for each tensor, then statements with
/// short tensor names. Reading it gives the same program as reading the canonical text.
///
/// # Errors
/// Returns the first error of `out`.
pub fn write_short(program: &Program, out: &mut dyn io::Write) -> io::Result<()> {
    printer::write_short(program, &options(program), out)
}

/// Returns the short form of a container, with comments at the ends of the lines of some statements, which end no line themselves. Its
/// tensors have the order of their declaration, and it states all domains.
pub fn print_commented(program: &Program, comments: &FxHashMap<StmtId, String>) -> String {
    printer::print_commented(program, &options(program), comments)
}

/// Returns the `Domains:` section of the canonical text with the blank line before it, or an empty string if
/// the text has no such section.
pub(crate) fn domains_section(program: &Program) -> String {
    printer::domains_section(program, &options(program))
}

/// Selects the facts that the text has to state because a reader would infer something else without them.
fn options(program: &Program) -> Options {
    let mut explicit = tensors_in_text_order(program);
    // The domains of HostUnits are not inferred.
    let in_units = program
        .tensors
        .iter()
        .filter(|(_, it)| it.unit.is_some_and(|unit| unit.index() < program.units.len()));
    explicit.extend(in_units.map(|(id, _)| id));
    explicit.retain(|id| !program.has_plain_domains(*id));
    let is_needed = !explicit.is_empty() || domains::needs_domains_section(program);
    Options { roots_in_team: roots::has_ambiguous_roots(program), domains: is_needed.then_some(explicit) }
}
