//! Reads StableHLO modules with Shardy shardings, the text that `jax.jit(f).lower(*args).as_text()` returns, and makes programs of
//! Host IR: a front end beside the reader of `grammar`.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! ```text
//! text ──token, parse──▶ tree ──import──▶ Program, with positions in the module
//! ```
//!
//! `import` makes the program with `hir_ir::build`. Each statement and tensor has the position of the operation that it comes from, so that
//! diagnostics of all tools show the module.
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

use grammar::{Code, Diagnostic, Program, Reader, Span};

pub use import::OPERATORS;

/// The reader of StableHLO modules.
pub static READER: Reader =
    Reader { name: "StableHLO", accepts: |name, text| name.ends_with(".mlir") || is_module(text), read };

/// Returns whether a text is a module rather than a program or a log of Host IR.
fn is_module(text: &str) -> bool {
    if is_bytecode(text) {
        return true;
    }
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
    match program(text) {
        Ok(it) => (vec![it], Vec::new()),
        Err(fault) => (Vec::new(), vec![*fault]),
    }
}

/// Returns whether a file is MLIR's binary form.
fn is_bytecode(text: &str) -> bool {
    text.get(..7).is_some_and(|it| grammar::encode(it).starts_with(b"ML\xefR"))
}

fn program(text: &str) -> Result<Program, Box<Diagnostic>> {
    if is_bytecode(text) {
        let message = "this is MLIR bytecode, and hir reads the text of a module";
        let it =
            Diagnostic::new(Code::BadToken, Span::new(0, 7), message, "the file begins with `ML` and 0xef");
        return Err(Box::new(it.help("write the text: `jax.jit(f).lower(*args).as_text()`, or `mlir_module()` of what `jax.export` returns")));
    }
    let module = parse::parse(text, import::is_read)?;
    unique_names::check(&module)?;
    import::import(&module)
}
