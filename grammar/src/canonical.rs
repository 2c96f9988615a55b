//! The canonical text of a container: the newest spelling of everything, and nothing lost.
//!
//! Invariant: reading the text back gives the same program, without a warning, and printing that gives the same text.

use std::io;

use crate::{
    domains,
    ir::Program,
    print::{self as printer, Options},
    roots,
    tensor_uses::tensors_in_text_order,
};

/// The canonical text of a container.
pub fn print(program: &Program) -> String {
    let mut text = Vec::new();
    // Writing to memory does not fail, and what is written is text.
    let _ = write(program, &mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// Writes the canonical text of a container, a piece at a time.
///
/// # Errors
/// What `out` fails with.
pub fn write(program: &Program, out: &mut dyn io::Write) -> io::Result<()> {
    printer::write(program, &options(program), out)
}

/// The `Domains:` section of the canonical text, with the blank line in front of it; empty where it has none.
pub(crate) fn domains_section(program: &Program) -> String {
    printer::domains_section(program, &options(program))
}

/// What reading the bare text back would infer otherwise.
fn options(program: &Program) -> Options {
    let mut explicit = tensors_in_text_order(program);
    explicit.retain(|id| !program.has_plain_domains(*id));
    let is_needed = !explicit.is_empty() || domains::needs_domains_section(program);
    Options { roots_in_team: roots::has_ambiguous_roots(program), domains: is_needed.then_some(explicit) }
}
