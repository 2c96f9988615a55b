//! Prints the short form: the canonical text with one line per statement and short tensor names.
//!
//! ```text
//! %tensor T0_g_float[iS0{8}, iS1{4}]
//! %tensor T1_g_float[iS2{8}, iS3{4}]
//! %HostIrContainer { (T0) -> (T1) :
//!   T1 = Set( T0 )
//! } // %HostIrContainer
//! ```
//!
//! Invariant: reading the short form gives the program of the canonical text.

use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Dialect, Options, Printer};
use crate::{
    ir::{OpStmt, Program, Stmt, StmtId, TensorId},
    tensor_uses::tensors_in_text_order,
    text::tensor_text,
};

/// Writes the short form of a container in pieces.
///
/// # Errors
/// Returns the first error of `out`.
pub(crate) fn write_short(program: &Program, options: &Options, out: &mut dyn io::Write) -> io::Result<()> {
    short(program, options, &tensors_in_text_order(program)).write_container(options, out)
}

/// Returns the short form of a container, with comments at the ends of the lines of some statements, and with tensors in the order of
/// their declaration. It states all domains.
pub(crate) fn print_commented(
    program: &Program,
    options: &Options,
    comments: &FxHashMap<StmtId, String>,
) -> String {
    let mut tensors = tensors_in_text_order(program);
    tensors.sort_unstable();
    let mut printer = Printer { comments: Some(comments), ..short(program, options, &tensors) };
    printer.container(&mut |_| ());
    printer.definitions();
    printer.domains(options.domains.as_deref().unwrap_or_default());
    printer.out
}

/// Returns a printer that has printed what is before the container.
fn short<'p>(program: &'p Program, options: &Options, tensors: &[TensorId]) -> Printer<'p> {
    let mut printer = Printer::new(program, Dialect::Short);
    printer.options(options.roots_in_team);
    let ambiguous = ambiguous_tensors(program);
    for tensor in tensors.iter().copied() {
        if !ambiguous.contains(&tensor) {
            printer.out.push_str("%tensor ");
            printer.out.push_str(&tensor_text(program, tensor));
            printer.out.push('\n');
            printer.tensors.insert(tensor, program.tensor_name(tensor));
        }
    }
    // A tensor without a unique short name is always printed in full.
    printer.tensors.extend(ambiguous.into_iter().map(|it| (it, tensor_text(program, it))));
    printer
}

/// Prints operators' statements on one line each, as they can stand in the source text.
pub struct LinePrinter<'p> {
    program: &'p Program,
    ambiguous: FxHashSet<TensorId>,
}

impl<'p> LinePrinter<'p> {
    /// Creates a printer for the statements of a program.
    pub fn new(program: &'p Program) -> Self {
        Self { program, ambiguous: ambiguous_tensors(program) }
    }

    /// Returns the text of a statement for the offset `at` of the source text: tensors that this text mentions only
    /// later, or whose short name is not unique, are written in full.
    pub fn line(&self, stmt: StmtId, at: u32) -> String {
        let program = self.program;
        let Stmt::Op(it) = &program.stmts[stmt] else { return String::new() };
        let mut printer = Printer::new(program, Dialect::Short);
        for (id, _) in it.tensor_uses(program) {
            let is_short = program.tensor_span(id).start < at && !self.ambiguous.contains(&id);
            let text = if is_short { program.tensor_name(id) } else { tensor_text(program, id) };
            printer.tensors.insert(id, text);
        }
        printer.short_op(it);
        printer.out
    }
}

/// Returns the tensors whose number another tensor of the same namespace has, too.
fn ambiguous_tensors(program: &Program) -> FxHashSet<TensorId> {
    let key = |id: TensorId| (program.tensors[id].unit, program.tensors[id].number);
    let mut seen = FxHashSet::default();
    let repeated: FxHashSet<_> = program.tensors.ids().map(key).filter(|it| !seen.insert(*it)).collect();
    program.tensors.ids().filter(|it| repeated.contains(&key(*it))).collect()
}

impl Printer<'_> {
    /// Prints one operator statement on one line, without its final newline.
    pub(super) fn short_op(&mut self, stmt: &OpStmt) {
        let outer = std::mem::take(&mut self.out);
        self.canonical_op(stmt, 0);
        let text = std::mem::replace(&mut self.out, outer);
        for (at, word) in text.split_whitespace().enumerate() {
            if at > 0 {
                self.out.push(' ');
            }
            self.out.push_str(word);
        }
    }

    /// Returns the text of a tensor: its short name, or the full text at its first use in a HostUnit.
    pub(super) fn short_tensor(&mut self, tensor: TensorId) -> String {
        if let Some(text) = self.tensors.get(&tensor) {
            return text.clone();
        }
        self.tensors.insert(tensor, self.program.tensor_name(tensor));
        tensor_text(self.program, tensor)
    }
}
