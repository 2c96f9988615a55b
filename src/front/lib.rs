//! The list of front ends, from which all tools choose the one that reads a text.
//!
//! The package is a part of the tools of hir, and its items change with them. The library is the package `hir`.
//!
//! A new front end is a package with a `grammar::source::Reader`, and a line of `FRONT_ENDS`.
//!
//! ```
//! let source = hir_front::source("double.mlir", "module @double {\n}\n");
//! assert_eq!(source.reader.name, "StableHLO");
//! assert_eq!(hir_front::source("ring.hir", "%HostIrContainer { () -> () :\n}\n").reader.name, "Host IR");
//! ```

use grammar::{Reader, Source, source::HOST_IR};

/// The front ends. The first one that accepts a text reads it.
pub static FRONT_ENDS: [&Reader; 2] = [&hir_stablehlo::READER, &HOST_IR];

/// Returns a text with the name of its file and the front end that reads it: Host IR if no other one accepts it.
pub fn source(name: impl Into<String>, text: impl Into<String>) -> Source {
    let (name, text) = (name.into(), text.into());
    let reader = FRONT_ENDS.iter().find(|it| (it.accepts)(&name, &text));
    Source::new(name, text).with_reader(reader.unwrap_or(&&HOST_IR))
}
