//! The errors of the import.

use grammar::{Code, Diagnostic, Span};

use super::Importer;
use crate::{sharding::UnsupportedSharding, tree::Operation};

/// Returns the error that hir cannot express a sharding.
pub(super) fn unsupported_sharding(span: Span, why: &UnsupportedSharding) -> Box<Diagnostic> {
    let label = "hir cannot express this sharding";
    let it = Diagnostic::new(Code::UnsupportedSharding, span, why.to_string(), label);
    Box::new(it.help(
        "use axes of one mesh or parts of them, at most three with several devices, whose sizes divide the extents: `jnp.pad` makes these larger",
    ))
}

impl Importer<'_, '_> {
    /// Returns the error that hir does not read an operator.
    pub(super) fn unsupported(&self, what: &str) -> Box<Diagnostic> {
        self.not_read(format!("`{what}`"))
    }

    /// Returns the error that hir does not read a form of an operator.
    pub(super) fn unsupported_form(&self, op: &Operation<'_>, form: &str) -> Box<Diagnostic> {
        self.not_read(format!("this form of `{}`: {form}", op.name))
    }

    fn not_read(&self, what: String) -> Box<Diagnostic> {
        let it = Diagnostic::new(
            Code::UnsupportedOperation,
            self.out.span,
            format!("hir does not read {what}"),
            "no statement of Host IR was found for it",
        );
        Box::new(it.help("`docs/jax.md` lists what is read; express the function by these operators"))
    }

    /// Returns the error that the module contradicts itself.
    pub(super) fn bad_module(&self, message: impl Into<String>, label: &str) -> Box<Diagnostic> {
        let it = Diagnostic::new(Code::BadModule, self.out.span, message, label);
        Box::new(it.help("the text was edited or damaged: write it again with `as_text()`"))
    }

    pub(super) fn missing(&self, op: &Operation<'_>, what: &str) -> Box<Diagnostic> {
        self.bad_module(format!("`{}` has no `{what}`", op.name), "expected it here")
    }

    /// Returns the error for a sharding that was written before Shardy.
    pub(super) fn gspmd(&self) -> Box<Diagnostic> {
        let message = "the module has shardings of GSPMD (`mhlo.sharding`)";
        let it =
            Diagnostic::new(Code::UnsupportedSharding, self.out.span, message, "expected `sdy.sharding`");
        Box::new(it.help(
            "lower with `jax.config.update(\"jax_use_shardy_partitioner\", True)`, the default since JAX 0.7",
        ))
    }
}
