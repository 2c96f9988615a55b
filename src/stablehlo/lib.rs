//! Reads StableHLO modules with Shardy shardings, the text that `jax.jit(f).lower(*args).as_text()` returns, and makes programs of
//! Host IR: a front end beside the reader of `grammar`.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! ```text
//! text ──token, parse──▶ tree ──import──▶ Host IR text ──grammar::read──▶ Program, with positions in the module
//! ```
//!
//! `import` writes short Host IR text instead of building the arenas of `Program`: the text is the one description of a program
//! whose numbering, domains and types `grammar` already checks, it can be printed and tested, and its operators have one spelling
//! instead of a builder for each. Every line of it remembers the operation that it comes from, so that diagnostics of all tools show the
//! module.
//!
//! `import::operators` is the table of what is read. Nothing is skipped: any other operation is an error at its place.
//!
//! ```
//! let module = "
//! module @double {
//!   func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
//!     %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
//!     return %0 : tensor<4xf32>
//!   }
//! }
//! ";
//! let (programs, diagnostics) = hir_stablehlo::read(module);
//! assert_eq!(diagnostics.len(), 0);
//! assert!(grammar::print(&programs[0]).contains("%HostIrContainer"));
//! ```
//!
//! Invariant: this package knows no passes, plans or devices.

mod import;
mod parse;
mod sharding;
mod token;
mod tree;
mod unique_names;
mod value;
mod writer;

use grammar::{
    diagnostic::Diagnostic,
    ir::Program,
    source::Reader,
    span::{LineIndex, Span},
};

pub use import::OPERATORS;

/// The reader of StableHLO modules.
pub static READER: Reader =
    Reader { name: "StableHLO", accepts: |name, text| name.ends_with(".mlir") || is_module(text), read };

/// Returns whether a text is a module rather than a program or a log of Host IR.
fn is_module(text: &str) -> bool {
    let mut lines = text
        .trim_start_matches('\u{feff}')
        .lines()
        .map(str::trim)
        .filter(|it| !it.is_empty() && !it.starts_with("//"));
    // Aliases such as `#loc = loc(unknown)` and `!t = tensor<8xf32>` precede the module.
    let first = lines.find(|it| !(it.starts_with(['#', '!']) && it.contains(" = ")));
    first.is_some_and(|it| {
        ["module ", "module{", "\"builtin.module\"", "func.func ", "sdy.mesh "]
            .iter()
            .any(|begin| it.starts_with(begin))
    })
}

/// Reads the program of a module. Positions are those of the module.
pub fn read(text: &str) -> (Vec<Program>, Vec<Diagnostic>) {
    let written = match written(text) {
        Ok(it) => it,
        Err(fault) => return (Vec::new(), vec![*fault]),
    };
    let index = LineIndex::new(&written.text);
    let to_module = |span: Span| {
        let line = index.line(span.start) as usize;
        written.lines.get(line.saturating_sub(1)).copied().unwrap_or_default()
    };
    grammar::read_generated(&written.text, &to_module)
}

/// Returns the Host IR text that the program of a module is read from.
///
/// # Errors
/// Returns the first error of the module.
pub fn host_ir(text: &str) -> Result<String, Box<Diagnostic>> {
    written(text).map(|it| it.text)
}

fn written(text: &str) -> Result<writer::Written, Box<Diagnostic>> {
    let module = parse::parse(text, import::is_read)?;
    unique_names::check(&module)?;
    import::import(&module)
}
